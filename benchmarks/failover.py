"""The pause of publishers when the load moves from one node to another, planned and unplanned.

    python -m benchmarks.failover [--quick] [--rounds N]

An active node and its standby, as processes; three publishers that know both, with the defaults of `sluice
publish`, and a network that makes 25 blocks a second. A pause is the longest time without a new
acknowledgement, from just before the failover (or the SIGKILL) until the new node acknowledges. In the
unplanned kind `sluice failover --force` follows the SIGKILL at once.

A killed node may have acknowledged a block that its standby does not have yet. Only the dead node's disk
holds it, and the new node goes on when the dead one is back. Such rounds are counted apart.

The third kind has two standbys and `commit.min_standbys` 1: the dead node loses its disk, nobody waits for
it, and it starts anew as a standby.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median

from benchmarks.measuring import Rows
from benchmarks.publish_processes import free_addresses
from sluice.gateway.blocks.block import Block
from sluice.gateway.cluster.control_client import ControlClient
from sluice.gateway.cluster.failover import Failover
from sluice.gateway.key_files import public_key_hex
from sluice.publishers.blocks.maker import BlockMaker, MakerOptions, key_of_seed
from sluice.publishers.client.client import PublishClient
from sluice.publishers.demo.node_process import NodeProcess
from sluice.publishers.errors import PublishFailed
from sluice.publishers.protocol.messages import Acknowledged, Action, Event

__all__ = ["run"]

KEY = key_of_seed(7)
BLOCKS_PER_SECOND = 25
ROUND_SECONDS = 20.0
"""A round that takes longer has failed."""
ALONE_SECONDS = 6.0
"""The time for the standby to go on without the dead node, before that one is started again."""
OPTIONS = MakerOptions(rounds_per_block=1, events_per_round=2, transactions_per_block=3, item_bytes=256)


class _Watch:
    """The times of first acknowledgements."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self._highest = -1

    def heard(self, number: int) -> None:
        if number > self._highest:
            self._highest = number
            self.times.append(time.monotonic())

    def longest_pause(self, since: float) -> float:
        """Return the longest time between two new acknowledgements since `since`."""
        after = [at for at in self.times if at > since]
        return max(later - earlier for earlier, later in zip([since, *after], after, strict=False))

    async def until_after(self, when: float, count: int, seconds: float = ROUND_SECONDS) -> None:
        """Wait for `count` new acknowledgements after a time; TimeoutError if they do not come."""
        async with asyncio.timeout(seconds):
            while sum(at > when for at in self.times[-2 * count :]) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


class _Publisher(PublishClient):
    """A publisher that reports its acknowledgements to a watch."""

    def __init__(self, gateways: Sequence[str], name: str, watch: _Watch) -> None:
        super().__init__(gateways, name)
        self._watch = watch

    def _hear(self, event: Event) -> list[Action]:
        if isinstance(event, Acknowledged):
            self._watch.heard(event.number)
        return super()._hear(event)


async def _network(blocks: Sequence[Block]) -> AsyncIterator[Block]:
    begun = time.monotonic()
    for block in blocks:
        await asyncio.sleep(begun + block.number / BLOCKS_PER_SECOND - time.monotonic())
        yield block


async def _pauses(
    nodes: _Cluster, blocks: Sequence[Block], rounds: int, *, planned: bool
) -> tuple[list[float], int]:
    """Fail over `rounds` times.

    Returns:
        The seconds of each pause that ended without the dead node, and the number of the others.
    """
    watch, found = _Watch(), []
    waited_count = 0
    try:
        gateways = [process.grpc for process in nodes.processes]
        publishing = [
            asyncio.ensure_future(
                _Publisher(addresses, f"publisher-{index}", watch).publish(_network(blocks))
            )
            for index, addresses in enumerate((gateways, gateways[::-1], gateways))
        ]
        active = 0
        for _ in range(rounds):
            await watch.until_after(time.monotonic(), 10)
            begun = time.monotonic()
            await nodes.fail_over(active, planned=planned)
            try:
                await watch.until_after(time.monotonic(), 5, ROUND_SECONDS if planned else ALONE_SECONDS)
                found.append(watch.longest_pause(begun))
            except TimeoutError:
                if planned:
                    raise
                waited_count += 1
            if not planned:
                await nodes.bring_back(active)
            active = nodes.successor(active)
        for task in publishing:
            task.cancel()
        with suppress(asyncio.CancelledError, PublishFailed):
            await asyncio.gather(*publishing)
        return found, waited_count
    finally:
        nodes.stop()


class _Cluster:
    """Nodes on fixed ports: the first is active, the others follow it.

    Args:
        folder: for data and logs.
        count: number of nodes.
        min_standbys: standbys that acknowledgements wait for; above 0, a dead node loses its disk.
    """

    def __init__(self, folder: Path, count: int = 2, min_standbys: int = 0) -> None:
        self._folder = folder
        self._addresses = free_addresses(count)
        self._min_standbys = min_standbys
        self.processes = [self._start(index, "standby" if index else "active") for index in range(count)]

    def _start(self, index: int, role: str) -> NodeProcess:
        words = ["--ledger-key", f"ed25519:{public_key_hex(KEY)}", "--role", role]
        words += ["--grpc", self._addresses[index], "--commit-min-standbys", str(self._min_standbys)]
        for address in self._addresses:
            if address != self._addresses[index]:
                words += ["--peer", address]
        return NodeProcess(self._folder / str(index), self._folder / f"{index}.log", words)

    def successor(self, active: int) -> int:
        """Return the node that takes over from `active`."""
        return (active + 1) % len(self.processes)

    async def fail_over(self, active: int, *, planned: bool) -> None:
        """Fail over as `sluice failover` does; unless planned, kill the active node first."""
        if not planned:
            self.processes[active].kill()
        one, other = self.processes[active], self.processes[self.successor(active)]
        async with ControlClient(one.control) as source, ControlClient(other.control) as target:
            failover = Failover(source, target, lambda step: None)
            await (failover.run() if planned else failover.force())

    async def bring_back(self, index: int) -> None:
        """Start the dead node again, on a new disk or on its own, and make it a standby."""
        if self._min_standbys:
            shutil.rmtree(self._folder / str(index))
        role = "standby" if self._min_standbys else "active"
        self.processes[index] = await asyncio.to_thread(self._start, index, role)
        if not self._min_standbys:
            await self.fail_over(index, planned=True)

    def stop(self) -> None:
        for process in self.processes:
            process.stop()


def run(quick: bool = False, rounds: int | None = None) -> Rows:
    """Measure each kind; return labels and texts."""
    planned_rounds = rounds or (3 if quick else 20)
    unplanned_rounds = rounds or (2 if quick else 5)
    found = []
    for kind, count, node_count, min_standbys in (
        ("planned", planned_rounds, 2, 0),
        ("SIGKILL and --force", unplanned_rounds, 2, 0),
        ("SIGKILL, --force, disk lost, min_standbys 1", unplanned_rounds, 3, 1),
    ):
        block_count = int((count + 2) * ROUND_SECONDS * BLOCKS_PER_SECOND)
        blocks = list(BlockMaker(7, KEY, OPTIONS).blocks(block_count))
        with tempfile.TemporaryDirectory() as folder:
            cluster = _Cluster(Path(folder), node_count, min_standbys)
            measured = _pauses(cluster, blocks, count, planned=kind == "planned")
            pauses, waited_count = asyncio.run(measured)
        text = f"{waited_count} of {count} waited for the dead node's disk"
        if pauses:
            text = f"median {median(pauses):.2f} s, worst {max(pauses):.2f} s of {len(pauses)}" + (
                f"; {text}" if waited_count else ""
            )
        found.append((f"failover, {kind}: publishers pause", text))
    return found


if __name__ == "__main__":
    asked = int(sys.argv[sys.argv.index("--rounds") + 1]) if "--rounds" in sys.argv else None
    for label, text in run(quick="--quick" in sys.argv, rounds=asked):
        print(f"{label}: {text}")
