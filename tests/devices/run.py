"""A round: write, let the device refuse, maybe kill the writer, let it accept again, remount.

start    operations are appended to a stream, or blocks published to a node
refuse   new places on the device fail; the writer keeps trying, or is killed
take     it goes on by itself, or is started again
end      it ends in order, or is killed; after a remount, the file has what was acknowledged, byte for byte,
         and nothing that was not offered
"""

from __future__ import annotations

import asyncio
import os
import random
import select
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from tenacity import wait_fixed

from sluice.datastream.check.check import Severity, check_stream
from sluice.datastream.errors import DatastreamError
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.layout import Entry
from sluice.gateway.blocks.block import Block
from sluice.gateway.errors import Fatal
from sluice.gateway.store.block_store import BlockStore
from sluice.publishers.blocks.maker import BlockMaker, MakerOptions
from sluice.publishers.client.client import ClientOptions
from sluice.publishers.protocol.machine import SECOND_NS, MachineLimits
from tests.devices.device import Device
from tests.devices.writer import ITEMS_PER_OPERATION, operation
from tests.nodes import KEY
from tests.serving import Listener, ServeProcess, free_port

WAIT_SECONDS = 20.0
REFUSED_SECONDS_MAX = 0.3
RUN_SECONDS_MAX = 0.25
STORIES = ("goes on", "goes on", "killed", "killed when refused", "killed twice")
BLOCKS = MakerOptions(rounds_per_block=1, events_per_round=2, transactions_per_block=4, item_bytes=6_000)
BLOCK_COUNT = 600
OPTIONS = ClientOptions(
    machine=MachineLimits(deadline_ns=60 * SECOND_NS), wait=wait_fixed(0.02), connect_timeout_seconds=1.0
)


@dataclass
class Outcome:
    """The outcome of a round."""

    story: str
    wrong: list[str] = field(default_factory=list)
    """The violations."""
    acknowledged: int = 0
    """Operations or blocks."""
    refusals: int = 0
    """Commits that the device refused."""

    def expect(self, holds: bool, words: str) -> None:
        """Note a violation unless the condition holds."""
        if not holds:
            self.wrong.append(words)


class Writers:
    """Runs one `tests.devices.writer` after another and records its output; leaves none running.

    Args:
        path: of the stream.
        seed: of the first.
        outcome: gets the records.
    """

    def __init__(self, path: Path, seed: int, outcome: Outcome) -> None:
        self._path, self._seed, self._outcome = path, seed, outcome
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""
        self.last_words = ""

    def start(self) -> None:
        """Start one."""
        self._seed += 1
        self._rest, self.last_words = b"", ""
        command = [sys.executable, "-m", "tests.devices.writer", str(self._path), str(self._seed)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def listen(self, seconds: float, until: str | None = None) -> bool:
        """Read its output for this long or until this line; return whether the line came, or it still
        runs."""
        assert self._process is not None
        assert self._process.stdout is not None
        output, end = self._process.stdout.fileno(), time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not select.select([output], [], [], left)[0]:
                return until is None
            said = os.read(output, 1 << 16)
            if not said:
                return False
            *lines, self._rest = (self._rest + said).split(b"\n")
            verbs = [self._hear(line.decode()) for line in lines]
            if until in verbs:
                return True
        return until is None

    def _hear(self, line: str) -> str:
        verb, _, words = line.partition(" ")
        outcome, self.last_words = self._outcome, line
        if verb == "found":
            outcome.expect(int(words) >= outcome.acknowledged, f"found {words} after {outcome.acknowledged}")
        elif verb == "ack":
            outcome.acknowledged = int(words)
        elif verb == "refused":
            outcome.refusals += 1
        return verb

    def kill(self) -> None:
        """Kill it with SIGKILL, and read the rest of its output."""
        if self._process is not None:
            self._process.kill()
            self._ended()

    def stop(self) -> int:
        """Stop it in order; return its exit status."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._ended()

    def _ended(self) -> int:
        process, _ = self._process, self.listen(WAIT_SECONDS, "never said")
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = None
        process.stdin.close()
        process.stdout.close()
        return process.wait(WAIT_SECONDS)

    def __enter__(self) -> Self:
        """Return self."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Leave no process behind."""
        self.kill()


def run_stream(folder: Path, kind: str, seed: int) -> Outcome:
    """Run a round with only a stream, in an empty folder."""
    rng = random.Random(seed)
    outcome = Outcome(rng.choice(STORIES))
    with Device(folder, kind) as device, Writers(device.disk / "s.bin", seed * 10, outcome) as writers:
        writers.start()
        outcome.expect(writers.listen(WAIT_SECONDS, "found"), f"no start: {writers.last_words}")
        writers.listen(rng.uniform(0.05, RUN_SECONDS_MAX))
        device.refuse()
        if outcome.story != "killed":
            writers.listen(1.0, "refused")
        writers.listen(rng.uniform(0, REFUSED_SECONDS_MAX))
        if outcome.story != "goes on":
            writers.kill()
        if outcome.story == "killed twice":
            writers.start()
            writers.listen(rng.uniform(0.3, 0.3 + REFUSED_SECONDS_MAX))
            writers.kill()
        device.take()
        if device.is_read_only:
            outcome.story += ", read-only"
            writers.kill()
            device.unmount()
            device.mount()
        if outcome.story != "goes on":
            writers.start()
            outcome.expect(writers.listen(WAIT_SECONDS, "found"), f"no second start: {writers.last_words}")
        before = outcome.acknowledged
        outcome.expect(writers.listen(WAIT_SECONDS, "ack"), f"it does not go on: {writers.last_words}")
        writers.listen(rng.uniform(0.05, RUN_SECONDS_MAX))
        outcome.expect(outcome.acknowledged > before, "nothing was acknowledged after the device took again")
        if rng.random() < 0.5:
            writers.kill()
        else:
            status = writers.stop()
            outcome.expect(status == 0, f"it ended with status {status}")
        device.unmount()
        device.mount()
        check_operations(device.disk / "s.bin", outcome)
    return outcome


def check_operations(path: Path, outcome: Outcome) -> None:
    """Compare the operations on the device with the acknowledged ones, also by bookmarks."""
    try:
        damage = [str(one) for one in check_stream(path).findings if one.severity is Severity.DAMAGE]
        outcome.expect(not damage, f"after mounting: {damage[:3]}")
        with DataStreamer.open(path) as streamer:
            found = list(streamer.read_entries(0))
            count, rest = divmod(len(found), ITEMS_PER_OPERATION)
            outcome.expect(not rest, f"{rest} entries of an operation that is not whole")
            outcome.expect(
                count >= outcome.acknowledged, f"{outcome.acknowledged} acknowledged, {count} on the device"
            )
            for number in range(count):
                first = number * ITEMS_PER_OPERATION
                items = operation(number)
                expected = [Entry(kind, first + at, data) for at, (kind, data) in enumerate(items)]
                for entry, other in zip(found[first : first + ITEMS_PER_OPERATION], expected, strict=False):
                    outcome.expect(
                        entry == other, f"operation {number} has other bytes: {_unlike(entry, other)}"
                    )
                outcome.expect(streamer.get_bookmark(items[0][1]) == first, f"bookmark {number} is wrong")
    except DatastreamError as error:
        outcome.wrong.append(f"after mounting: {error}")


def _unlike(got: Entry, expected: Entry) -> str:
    """Return where the data of entries differ."""
    pairs = zip(got.data, expected.data, strict=False)
    places = [at for at, (one, other) in enumerate(pairs) if one != other]
    if not places:
        return f"{got.number}, {len(got.data)} bytes, expected {expected.number}, {len(expected.data)}"
    return (
        f"{len(places)} of {len(got.data)} between {places[0]} and {places[-1]}, zeros: {got.data.count(0)}"
    )


def run_node(folder: Path, kind: str, seed: int) -> Outcome:
    """Run a round with `sluice serve` and a publisher."""
    return asyncio.run(_run_node(folder, kind, seed))


async def _run_node(folder: Path, kind: str, seed: int) -> Outcome:
    rng = random.Random(seed)
    outcome = Outcome(rng.choice(STORIES))
    blocks = list(BlockMaker(7, KEY, BLOCKS).blocks(BLOCK_COUNT))
    (folder / "device").mkdir()
    with Device(folder / "device", kind) as device:
        data_dir = device.disk / "data"
        arguments = ("--grpc", f"127.0.0.1:{free_port()}")
        node = ServeProcess(data_dir, *arguments, log_path=folder / "node.log")
        with node:
            await node.start()
            publisher = Listener([str(node.grpc_address)], "alice", OPTIONS)
            publishing = asyncio.create_task(publisher.publish(_source(blocks)))
            try:
                await _tell_story(node, device, publisher, outcome, rng)
            finally:
                publishing.cancel()
                with suppress(asyncio.CancelledError):
                    await publishing
            outcome.refusals = len(node.logged("commit failed"))
            await node.kill()
        outcome.acknowledged = max(publisher.acknowledged, default=-1) + 1
        device.unmount()
        device.mount()
        try:
            _check_blocks(data_dir, blocks, outcome)
        except (DatastreamError, Fatal) as error:
            outcome.wrong.append(f"after mounting: {error}")
    return outcome


def _check_blocks(data_dir: Path, blocks: list[Block], outcome: Outcome) -> None:
    """Compare the blocks on the device with the published ones."""
    store = BlockStore.open(data_dir)
    last = -1 if store.last_number is None else store.last_number
    words = f"{outcome.acknowledged} acknowledged, {last + 1} on the device"
    outcome.expect(last + 1 >= outcome.acknowledged, words)
    for number in range(last + 1):
        stored = store.read_block(number)
        is_same = stored is not None and Block(number, stored.items) == blocks[number]
        outcome.expect(is_same, f"block {number} has other bytes")
    store.close()


async def _tell_story(
    node: ServeProcess, device: Device, publisher: Listener, outcome: Outcome, rng: random.Random
) -> None:
    await _until(lambda: len(publisher.acknowledged) > 20)
    device.refuse()
    if outcome.story != "killed":
        await _until(lambda: bool(node.logged("commit failed")), 3.0)
    await asyncio.sleep(rng.uniform(0, REFUSED_SECONDS_MAX))
    is_killed = outcome.story != "goes on"
    if is_killed:
        await node.kill()
    device.take()
    if device.is_read_only:
        outcome.story += ", read-only"
        if not is_killed:
            await node.kill()
        device.unmount()
        device.mount()
        is_killed = True
    if is_killed:
        await node.start()
    before = len(publisher.acknowledged)
    goes_on = await _until(lambda: len(publisher.acknowledged) > before + 20)
    outcome.expect(goes_on, f"it does not go on: {publisher.disconnected[-3:]}")


async def _until(is_so: Callable[[], bool], seconds: float = WAIT_SECONDS) -> bool:
    """Wait for a condition; return whether it holds."""
    end = time.monotonic() + seconds
    while not is_so() and time.monotonic() < end:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return is_so()


async def _source(blocks: list[Block]) -> AsyncIterator[Block]:
    for block in blocks:
        await asyncio.sleep(0.005)
        yield block
