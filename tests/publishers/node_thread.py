"""A real node in a thread of its own, for clients that block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.root_hash import BlockHasher
from sluice.gateway.blocks.stream_layout import NEWEST_LAYOUT
from sluice.gateway.node.node import Node
from sluice.gateway.store.block_store import BlockStore, Layout, VerifiedBlock
from tests.nodes import running_node


def store(
    data_dir: Path, blocks: Sequence[Block], *, layout: int = NEWEST_LAYOUT, stream: Layout = "block"
) -> None:
    """Put blocks into the block store of a node that is not running, as if publishers had sent them."""
    verified = []
    for block in blocks:
        hasher = BlockHasher()
        hasher.add(block.items)
        verified.append(VerifiedBlock(block.number, block.items, hasher.finish().root_hash))
    store = BlockStore.open(data_dir, layout=stream)
    if stream == "block":
        store.new_layout = layout
    store.append(verified)
    store.close()


@contextmanager
def node_thread(data_dir: Path, **changes: Any) -> Iterator[Node]:
    """A node that knows KEY, started, and stopped at the end."""
    started, stopped = threading.Event(), threading.Event()
    nodes: list[Node] = []

    async def run() -> None:
        async with running_node(data_dir, **changes) as node:
            nodes.append(node)
            started.set()
            await asyncio.to_thread(stopped.wait)

    with ThreadPoolExecutor(1) as executor:
        future = executor.submit(lambda: asyncio.run(run()))
        future.add_done_callback(lambda _: started.set())
        try:
            assert started.wait(20)
            if not nodes:
                future.result(0)
            yield nodes[0]
        finally:
            stopped.set()
            future.result(20)
