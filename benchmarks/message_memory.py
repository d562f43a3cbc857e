"""The memory of a node while many connections send their longest messages at once.

    python -m benchmarks.message_memory --connections 16 --megabytes 125

The publisher of each connection wins a block of its own (0, 1, 2 and so on) and sends one item of that
length. Block 0 comes without its item, so the node can commit nothing and everything received stays in
flight. When the node takes no more, block 0 is completed and must be committed.

It prints the peak of the node's process (VmHWM in its status), and that of its children together.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpc import aio

from sluice.gateway.api import publish_pb2_grpc
from sluice.publishers.blocks.block_items import header_item
from sluice.publishers.demo.node_process import NodeProcess
from tests.large_items import large_chain
from tests.nodes import Publisher, ledger_key

_MEGABYTE = 1_000_000
_FIELD = "VmHWM:"


def peak_bytes(process_id: int) -> int:
    """Return the peak memory of a process."""
    for line in Path(f"/proc/{process_id}/status").read_text().splitlines():
        if line.startswith(_FIELD):
            return int(line.split()[1]) * 1024
    return 0  # it has ended


def children_of(process_id: int) -> list[int]:
    """Return the worker processes of a node."""
    tasks = Path(f"/proc/{process_id}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


async def flood(address: str, connections: int, item_bytes: int, seconds: float) -> tuple[int, float]:
    """Send a message on each connection; then complete block 0.

    Returns:
        the number of messages that the node took before that, and the seconds to the acknowledgement.
    """
    (first,) = large_chain([item_bytes])
    channels = [_channel(address) for _ in range(connections)]
    try:
        publishers = []
        for number, channel in enumerate(channels):
            stub: Any = publish_pb2_grpc.BlockStreamPublishServiceStub(channel)
            publisher = Publisher(
                stub.publishBlockStream(metadata=(("publisher-id", f"publisher {number}"),))
            )
            await publisher.items(first.items[0] if number == 0 else header_item(number, 1))
            publishers.append(publisher)
            await asyncio.sleep(0.05)  # blocks have to begin in order
        sending = [asyncio.ensure_future(one.items(first.items[3])) for one in publishers[1:]]
        if sending:
            await asyncio.wait(sending, timeout=seconds)
        taken_count = sum(task.done() for task in sending)
        began_at = time.monotonic()
        await publishers[0].items(*first.items[1:])
        await publishers[0].end(0)
        answer = await publishers[0].answer()
        assert answer == "ack 0", answer
        for task in sending:
            task.cancel()
        return taken_count, time.monotonic() - began_at
    finally:
        for channel in channels:
            await channel.close()


def _channel(address: str) -> aio.Channel:
    options = (("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1))
    return aio.insecure_channel(address, options)


def measure(connections: int, item_bytes: int, seconds: float, arguments: Sequence[str]) -> str:
    """Run a node, flood it, and return the figures as text."""
    with tempfile.TemporaryDirectory(prefix="sluice-memory-") as name:
        folder = Path(name)
        words = ["--ledger-key", ledger_key(), "--publish-block-timeout-seconds", "0", *arguments]
        with NodeProcess(folder / "node", folder / "node.log", words) as node:
            idle_bytes = peak_bytes(node.process_id)
            taken, took_seconds = asyncio.run(flood(node.grpc, connections, item_bytes, seconds))
            children = sum(map(peak_bytes, children_of(node.process_id)))
            peak = peak_bytes(node.process_id)
            return (
                f"{connections} connections, messages of {item_bytes / _MEGABYTE:g} MB: node "
                f"{idle_bytes / _MEGABYTE:.0f} MB at rest, {peak / _MEGABYTE:.0f} MB at most, its children "
                f"{children / _MEGABYTE:.0f} MB; {taken} of {connections - 1} messages sent before block 0, "
                f"which was acknowledged after {took_seconds:.1f} s"
            )


def main() -> None:
    """Measure once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--megabytes", type=float, default=125.0, help="of the item of each message")
    parser.add_argument("--seconds", type=float, default=20.0, help="before block 0 is completed")
    parser.add_argument("arguments", nargs="*", help="for sluice serve, behind --")
    given = parser.parse_args()
    print(measure(given.connections, int(given.megabytes * _MEGABYTE), given.seconds, given.arguments))


if __name__ == "__main__":
    main()
