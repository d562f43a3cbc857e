"""The plain Python publisher that the Spark sink is compared with, as a process.

    python -m benchmarks.plain_publisher ADDRESS FOLDER [--check]

It reads the block files of a folder in order and publishes them with `publish_blocks`. With `--check` it
checks each block first, as the sink does. It prints the seconds from the first block on.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from sluice.gateway.blocks.block import Block
from sluice.publishers.blocks.block_check import OfferCheck
from sluice.publishers.blocks.block_places import read_chain
from sluice.publishers.client.client import publish_blocks

__all__: list[str] = []


async def _blocks(folder: Path, *, is_checked: bool) -> AsyncIterator[Block]:
    check = OfferCheck()
    for block in read_chain(folder):
        if is_checked:
            check.check(block)
        yield block


if __name__ == "__main__":
    address, folder = sys.argv[1:3]
    report = asyncio.run(
        publish_blocks(_blocks(Path(folder), is_checked="--check" in sys.argv), [address], "plain")
    )
    print(report.elapsed_ns / 1e9)
