"""Publishers that win blocks and do not bring them, beside two honest ones: does the chain keep its pace?

    python -m tests.rogues                        every way, by 1, 5 and 50 names and 64 streams of one name
    python -m tests.rogues trickle --names 50     one of them
    python -m tests.rogues --block-time 2 --seconds 100
    python -m tests.rogues trickle --against HOST:PORT      the rogues alone, against a node of yours

The node and the rogues run in separate processes over real connections. Honest publishers come from
127.0.0.1, rogues from 127.0.0.2 or from one address for each name. Rogues know the whole chain, react to all
answers, and have each block before the network makes it. The line of a scene gives the share of due blocks
that was stored in time.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from tenacity import wait_fixed

from benchmarks.bare_publisher import BarePublisher
from benchmarks.publish_processes import METHOD
from sluice.gateway.addresses import parse_address
from sluice.gateway.api import block_items_pb2, publish_pb2
from sluice.gateway.blocks.block import Block
from sluice.publishers.client.client import ClientOptions, PublishClient
from sluice.publishers.demo.node_process import NodeProcess
from tests.nodes import ledger_key, make_blocks

__all__ = ["WAYS", "Scene", "Seen", "play"]

PACE_MIN: Final = 0.9
"""The share of its pace that the chain must keep."""
WARM_BLOCKS: Final = 4
"""Blocks that honest publishers bring before the rogues come."""
REACTION_SECONDS: Final = 0.02
"""How long a rogue waits after a skipped block: flooding a node is another attack."""
_Request = publish_pb2.PublishStreamRequest


@cache
def chain(count: int) -> list[Block]:
    """The chain."""
    return make_blocks(count)


def items(*those: bytes) -> bytes:
    """Serialize a message of items."""
    return _Request(block_items=block_items_pb2.BlockItemSet(block_items=those)).SerializeToString()


def end(number: int) -> bytes:
    """Serialize the message end_of_block."""
    return _Request(end_of_block=block_items_pb2.BlockEnd(block_number=number)).SerializeToString()


# --- what they do with a block whose header they have sent; a skip ends it ----------------------------------


async def headers(rogue: Rogue, block: Block) -> None:
    """Send nothing more."""


async def trickle(rogue: Rogue, block: Block) -> None:
    """Send an item at once, and another each half block time."""
    while True:
        rogue.send(items(block.items[1]))
        await asyncio.sleep(rogue.scene.block_seconds / 2)


async def endless(rogue: Rogue, block: Block) -> None:
    """Send items without end."""
    rogue.send(items(*block.items[1:-2]))
    while True:
        await asyncio.sleep(rogue.scene.block_seconds / 40)
        rogue.send(items(block.items[1]))


async def bad_proof(rogue: Rogue, block: Block) -> None:
    """Send the whole block with a wrong signature, as late as possible."""
    rogue.send(items(*block.items[1:-1]))
    await asyncio.sleep(2.9 * rogue.scene.block_seconds)
    rogue.send(items(block.items[-1][:-1] + bytes([block.items[-1][-1] ^ 1])))
    rogue.send(end(block.number))


async def breaks_off(rogue: Rogue, block: Block) -> None:
    """Leave, and come back."""
    await asyncio.sleep(rogue.scene.block_seconds * 0.7)
    rogue.leave()


async def renames(rogue: Rogue, block: Block) -> None:
    """Send an item, leave, and come back with another name."""
    rogue.send(items(block.items[1]))
    await asyncio.sleep(rogue.scene.block_seconds * 2.9)
    rogue.leave()


Way = Callable[["Rogue", Block], Awaitable[None]]
WAYS: Final[dict[str, Way]] = {
    "headers": headers,
    "trickle": trickle,
    "endless": endless,
    "bad proof": bad_proof,
    "breaks off": breaks_off,
    "renames": renames,
}
"""The ways of rogues, by name."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One scene."""

    way: str
    names: int = 5
    streams: int = 1
    """Streams of each name."""
    many_addresses: bool = False
    """Each name has its own address."""
    is_cold: bool = False
    """The rogues come before the honest publishers' first block."""
    block_seconds: float = 0.5
    """The network's time between blocks; the node allows three times as much for one."""
    seconds: float = 25.0
    """How long the rogues stay."""

    @property
    def blocks_count(self) -> int:
        """The least length of the chain."""
        return WARM_BLOCKS + round(self.seconds / self.block_seconds) + 200


@dataclass(frozen=True, slots=True)
class Seen:
    """The outcome of a scene."""

    pace: float
    """The share of the due blocks that was stored in time."""
    longest_seconds: float
    """The longest time without a block."""
    won: dict[str, int]
    """Blocks by publisher."""
    backoffs: int
    finding: str
    """The node's own words at the end."""


class Rogue:
    """One stream after another, of one name or of a new one each time."""

    def __init__(self, scene: Scene, address: str, name: str, local: str, blocks: Sequence[Block]) -> None:
        self.scene = scene
        self._address, self._name, self._local, self._blocks = address, name, local, blocks
        self._number = 0
        self._heard: asyncio.Queue[publish_pb2.PublishStreamResponse | str] = asyncio.Queue()
        self._publisher: BarePublisher | None = None
        self._act: asyncio.Future[None] | None = None
        self._streams_count = 0

    async def run(self) -> None:
        """Go on until cancelled."""
        try:
            while True:
                with suppress(OSError):
                    await self._one_stream()
                self._stop_act()
                await asyncio.sleep(0.02)
        finally:
            self._stop_act()
            self.leave()

    def send(self, *messages: bytes) -> None:
        """Send messages if the stream is still open."""
        if self._publisher is not None:
            self._publisher.send(messages)

    def leave(self) -> None:
        """Break the connection."""
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None
            self._heard.put_nowait("left")

    async def _one_stream(self) -> None:
        self._streams_count += 1
        name = f"{self._name}.{self._streams_count}" if self.scene.way == "renames" else self._name
        heard: asyncio.Queue[publish_pb2.PublishStreamResponse | str] = asyncio.Queue()
        self._heard = heard
        place = parse_address(self._address)
        _, publisher = await asyncio.get_running_loop().create_connection(
            lambda: BarePublisher(METHOD, name, heard.put_nowait),
            *(place.host, place.port),
            local_addr=(self._local, 0),
        )
        await asyncio.wait({publisher.taken}, timeout=5)
        self._publisher = publisher
        self._offer(self._number)
        while not isinstance(response := await heard.get(), str):
            match response.WhichOneof("response"):
                case "acknowledgement":
                    if response.acknowledgement.block_number >= self._number:
                        self._offer(response.acknowledgement.block_number + 1)
                case "skip_block":
                    if response.skip_block.block_number == self._number:
                        await asyncio.sleep(REACTION_SECONDS)
                        self._offer(self._number + 1)
                case "resend_block":
                    self._offer(response.resend_block.block_number)
                case "node_behind_publisher":
                    await asyncio.sleep(self.scene.block_seconds / 20)
                    self._offer(response.node_behind_publisher.block_number + 1 & (1 << 64) - 1)
                case _:
                    self._number = response.end_stream.block_number + 1 & (1 << 64) - 1
                    break
        self.leave()

    def _offer(self, number: int) -> None:
        self._stop_act()
        self._number = number
        if number < len(self._blocks):
            block = self._blocks[number]
            self.send(items(block.items[0]))
            self._act = asyncio.ensure_future(WAYS[self.scene.way](self, block))

    def _stop_act(self) -> None:
        if self._act is not None:
            self._act.cancel()
            self._act = None


async def _due(blocks: Sequence[Block], begun: float, block_seconds: float) -> AsyncIterator[Block]:
    """Yield each block when the network has made it."""
    for block in blocks:
        await asyncio.sleep(begun + block.number * block_seconds - time.monotonic())
        yield block


async def _watched(node: NodeProcess, seconds: float) -> float:
    """Wait for this time; return the longest time without a block."""
    until, last, since, longest = time.monotonic() + seconds, -1.0, time.monotonic(), 0.0
    while (now := time.monotonic()) < until:
        number = (await asyncio.to_thread(node.metrics))["sluice_last_block"]
        if number != last:
            last, since = number, now
        longest = max(longest, now - since)
        await asyncio.sleep(0.1)
    return longest


async def attack(scene: Scene, address: str) -> None:
    """Run the rogues of a scene, until cancelled."""
    blocks = chain(scene.blocks_count)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.readline)
    rogues = [
        Rogue(scene, address, f"rogue-{name}", f"127.0.0.{2 + name * scene.many_addresses}", blocks)
        for name in range(scene.names)
        for _ in range(scene.streams)
    ]
    await asyncio.gather(*(rogue.run() for rogue in rogues))


@contextmanager
def _attacking(scene: Scene, address: str) -> Iterator[Callable[[], None]]:
    """Start the rogues' process; yield a function that lets them begin."""
    command = [sys.executable, "-m", "tests.rogues", scene.way, "--against", address]
    command += ["--names", str(scene.names), "--streams", str(scene.streams)]
    command += ["--block-time", str(scene.block_seconds), "--seconds", str(scene.seconds)]
    command += ["--many-addresses"] if scene.many_addresses else []
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            stdin = process.stdin

            def begin() -> None:
                stdin.write("\n")
                stdin.flush()

            yield begin
        finally:
            process.kill()


async def _play(scene: Scene, node: NodeProcess, begin_attack: Callable[[], None]) -> Seen:
    blocks = chain(scene.blocks_count)
    options = ClientOptions(wait=wait_fixed(0.1), set_bytes_max=1)
    tasks: list[asyncio.Future[object]] = []
    if scene.is_cold:
        begin_attack()
        await asyncio.sleep(1)
    begun = time.monotonic()
    for name in ("honest-1", "honest-2"):
        source = _due(blocks, begun, scene.block_seconds)
        tasks.append(asyncio.ensure_future(PublishClient([node.grpc], name, options).publish(source)))
    try:
        if not scene.is_cold:
            await asyncio.sleep((WARM_BLOCKS - 0.5) * scene.block_seconds)
            begin_attack()
        first = (await asyncio.to_thread(node.metrics))["sluice_last_block"]
        longest = await _watched(node, scene.seconds)
        metrics = await asyncio.to_thread(node.metrics)
        page = await asyncio.to_thread(node.get, "/status.json")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    prefix = 'sluice_blocks_won_total{publisher="'
    return Seen(
        pace=(metrics["sluice_last_block"] - first) * scene.block_seconds / scene.seconds,
        longest_seconds=longest,
        won={key[len(prefix) : -2]: int(won) for key, won in metrics.items() if key.startswith(prefix)},
        backoffs=int(metrics["sluice_backoffs_total"]),
        finding="backs off" if "backs off" in page else "",
    )


def play(scene: Scene, log: Path | None = None) -> Seen:
    """Play a scene against a new node."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["--ledger-key", ledger_key(), "--block-time", f"{scene.block_seconds:g}"]
        with (
            NodeProcess(Path(folder, "data"), log or Path(folder, "log"), words) as node,
            _attacking(scene, node.grpc) as begin_attack,
        ):
            return asyncio.run(_play(scene, node, begin_attack))


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the scenes; return 0 if the chain kept its pace in each."""
    parser = argparse.ArgumentParser(prog="python -m tests.rogues", description=__doc__.split("\n")[0])
    parser.add_argument("ways", nargs="*", metavar="WAY", help=f"{', '.join(WAYS)}; all where none is named")
    parser.add_argument("--names", type=int, help="so many names")
    parser.add_argument("--streams", type=int, default=1, help="streams of each, with --names")
    parser.add_argument("--many-addresses", action="store_true", help="each name has an address of its own")
    parser.add_argument("--cold", action="store_true", help="nobody has brought a block yet")
    parser.add_argument("--block-time", type=float, default=0.5, help="seconds between blocks")
    parser.add_argument("--seconds", type=float, default=25.0, help="how long each scene lasts")
    parser.add_argument("--log", type=Path, help="where the node's log goes")
    parser.add_argument("--against", help="be the rogues of one scene: HOST:PORT of a node on this machine")
    given = parser.parse_args(arguments)
    failed = 0
    crowds = [(given.names, given.streams)] if given.names else [(1, 1), (5, 1), (50, 1), (1, 64)]
    for way in given.ways or WAYS:
        for names, streams in crowds:
            scene = Scene(
                *(way, names, streams, given.many_addresses, given.cold, given.block_time, given.seconds)
            )
            if given.against:
                asyncio.run(attack(scene, given.against))
            seen = play(scene, given.log)
            failed += seen.pace < PACE_MIN
            sys.stdout.write(
                f"{way:10} {names:2} names, {streams:2} streams each: pace {seen.pace:4.2f}, longest pause "
                f"{seen.longest_seconds:4.1f} s, {seen.backoffs} backoffs, won by {seen.won}\n"
            )
            sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
