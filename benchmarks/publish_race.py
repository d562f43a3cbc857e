"""Sixteen racing publishers against one: blocks acknowledged a second.

    python -m benchmarks.publish_race [--quick]

One client process sends the same chain in both cases. All publishers offer the header of each block; the
first wins, and the others skip it. They offer the next block while this one is being sent, so its winner is
known in time; the winner of a block offers the next one when somebody has won that. A single publisher sends
the same messages one after the other.

A loser costs some 60 microseconds whatever the block's size: a header read, Skip and an acknowledgement
written, and as much at the publisher. Fifteen of them are a tenth of the time of a block of 2 MB. So the
ratio is given for blocks of 1.5 MB, 3 MB and 6 MB: 750, 1,500 and 3,000 transactions of 1 kB a second, at 2 s
a block.

Blocks a second depend on the processor time of node and publishers together; in a network, publishers have
machines of their own. The node's own processor time is in brackets.

The publishers are bare (`benchmarks.bare_publisher`): gRPC's own clients take about as long over a short
message as the node. In brackets are the same race with gRPC's clients, and the race of bare publishers to a
bare loop (`benchmarks.bare_server`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from statistics import median
from typing import NamedTuple, Protocol

import uvloop
from grpc import aio

from benchmarks.bare_publisher import Hear, open_bare
from benchmarks.chains import Chain, make_chain
from benchmarks.cpu_seconds import cpu_seconds
from benchmarks.measuring import Rows, print_rows
from benchmarks.publish_processes import METHOD, bare_server, node, open_call
from sluice.gateway.api import publish_pb2

__all__ = ["ITEM_BYTES", "PUBLISHER_COUNT", "race_seconds", "run"]

PUBLISHER_COUNT = 16
ITEM_BYTES = 1_000
NODE_PAIR_COUNT = 11
"""Races, each beside a single publisher, alternately before and behind it. A machine's speed changes by the
minute, so each race is compared with its neighbour and the median ratio counts: it varies by 0.03, that of
five
pairs by 0.05. More pairs would not end before the deadline in slow hours."""
OTHER_PAIR_COUNT = 5
"""The same for the figures in brackets."""
CASES = ((60, 1_500), (30, 3_000), (16, 6_000))
"""(blocks, items in each)."""
# The answer to the header of a stored block has to be Skip, not the end of the stream.
_ARGUMENTS = ("--publish-duplicate-skip-window", "1000")


class _Publisher(Protocol):
    """One publish stream with a connection of its own."""

    def send(self, messages: Sequence[bytes]) -> None:
        """Send serialized messages, as the node's flow control allows."""

    async def all_sent(self) -> None:
        """Wait until flow control has let everything through."""

    def close(self) -> None:
        """Close the connection."""


class _GrpcPublisher:
    """A publisher with gRPC's own client; arguments as for `BarePublisher`."""

    def __init__(self, address: str, name: str, hear: Hear) -> None:
        options = (("grpc.use_local_subchannel_pool", 1),)  # a connection for each
        self._channel = aio.insecure_channel(address, options=options)
        self.call = open_call(self._channel, name)
        self._hear = hear
        self._unsent: asyncio.Queue[bytes] = asyncio.Queue()
        self._tasks = [asyncio.ensure_future(self._write()), asyncio.ensure_future(self._read())]

    def send(self, messages: Sequence[bytes]) -> None:
        for message in messages:
            self._unsent.put_nowait(message)

    async def all_sent(self) -> None:
        await self._unsent.join()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks = [asyncio.ensure_future(self._channel.close())]

    async def _write(self) -> None:
        while True:
            await self.call.write(await self._unsent.get())
            self._unsent.task_done()

    async def _read(self) -> None:
        while isinstance(response := await self.call.read(), publish_pb2.PublishStreamResponse):
            self._hear(response)
        self._hear("the end of the call")


async def _open_bare(address: str, name: str, hear: Hear) -> _Publisher:
    return await open_bare(address, METHOD, name, hear)


async def _open_grpc(address: str, name: str, hear: Hear) -> _Publisher:
    publisher = _GrpcPublisher(address, name, hear)
    await publisher.call.initial_metadata()
    return publisher


_Open = Callable[[str, str, Hear], Awaitable[_Publisher]]


class _Race:
    """A race of publishers that send one chain to one node."""

    def __init__(self, chain: Chain) -> None:
        self._messages = chain.messages
        self._publishers: list[_Publisher] = []
        self._skipped: list[set[int]] = [set() for _ in chain.messages]
        self._awaited: tuple[int, set[int], asyncio.Future[int]] | None = None
        self._heard_all: set[int] = set()
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def open(self, address: str, publisher_count: int, open_one: _Open) -> None:
        for index in range(publisher_count):
            self._publishers.append(await open_one(address, f"publisher-{index}", self._ear(index)))

    def close(self) -> None:
        for publisher in self._publishers:
            publisher.close()

    async def run(self) -> None:
        """Send all blocks; wait until every publisher has the last acknowledgement."""
        sending = asyncio.ensure_future(self._send())
        await asyncio.wait({sending, self._over}, return_when=asyncio.FIRST_EXCEPTION)
        if not self._over.done():
            sending.result()  # raises
        sending.cancel()
        self._over.result()

    async def _send(self) -> None:
        everybody = set(range(len(self._publishers)))
        offering, sent_last = everybody, set[int]()
        self._offer(everybody, 0)
        for number, messages in enumerate(self._messages):
            winner = await self._winner_of(number, offering)
            self._offer(sent_last, number)
            offering, sent_last = everybody - {winner}, {winner}
            self._offer(offering, number + 1)
            self._publishers[winner].send(messages[1:])
            await self._publishers[winner].all_sent()
            if not offering:  # it is alone
                offering, sent_last = everybody, set()
                self._offer(offering, number + 1)

    def _offer(self, indexes: Iterable[int], number: int) -> None:
        """Send the header of a block, if it exists, from these publishers."""
        for messages in self._messages[number : number + 1]:
            for index in indexes:
                self._publishers[index].send(messages[:1])

    async def _winner_of(self, number: int, offering: set[int]) -> int:
        """Wait until all but one of those who offer a block skip it; return that one."""
        self._awaited = number, offering, asyncio.get_running_loop().create_future()
        self._look()
        return await self._awaited[2]

    def _look(self) -> None:
        assert self._awaited is not None
        number, offering, winner = self._awaited
        left = offering - self._skipped[number]
        if len(left) == 1 and not winner.done():
            winner.set_result(left.pop())

    def _ear(self, index: int) -> Hear:
        """Return the function that publisher `index` calls with each answer."""
        last = len(self._messages) - 1

        def hear(response: publish_pb2.PublishStreamResponse | str) -> None:
            if isinstance(response, str):
                self._fail(index, response)
            elif (kind := response.WhichOneof("response")) == "skip_block":
                number = response.skip_block.block_number
                self._skipped[number].add(index)
                if self._awaited is not None and self._awaited[0] == number:
                    self._look()
            elif kind != "acknowledgement":
                self._fail(index, str(response))
            elif response.acknowledgement.block_number == last:
                self._heard_all.add(index)
                if len(self._heard_all) == len(self._publishers) and not self._over.done():
                    self._over.set_result(None)

        return hear

    def _fail(self, index: int, got: str) -> None:
        if not self._over.done():
            error = f"publisher {index}: got {got}, expected an acknowledgement or a skip"
            self._over.set_exception(RuntimeError(error))


class _Took(NamedTuple):
    seconds: float
    processor_seconds: float
    """Processor time of the node and its child processes."""


async def _race(address: str, chain: Chain, publisher_count: int, open_one: _Open) -> _Took:
    race = _Race(chain)
    try:
        await race.open(address, publisher_count, open_one)
        before, started = cpu_seconds(), time.perf_counter()
        await race.run()
        return _Took(time.perf_counter() - started, cpu_seconds().since(before).python)
    finally:
        race.close()
        await asyncio.sleep(0.1)  # lets the goodbyes reach the node


@contextmanager
def _node(chain: Chain, *, has_door: bool = True) -> Iterator[str]:
    with node(chain, _ARGUMENTS, has_door=has_door) as facts:
        yield facts.address


def race_seconds(chain: Chain, *, has_door: bool) -> float:
    """Race for a chain, with bare publishers; return the seconds."""
    return _publish(chain, PUBLISHER_COUNT, partial(_node, has_door=has_door), _open_bare).seconds


def _bare_loop(chain: Chain) -> AbstractContextManager[str]:
    return bare_server("race", 1, len(chain.messages))


_Serve = Callable[[Chain], AbstractContextManager[str]]
"""Runs a gateway; yields its address."""


def _publish(chain: Chain, publisher_count: int, serve: _Serve, open_one: _Open) -> _Took:
    with serve(chain) as address:
        return uvloop.run(_race(address, chain, publisher_count, open_one))


def _measure(chain: Chain, serve: _Serve, open_one: _Open, pair_count: int) -> tuple[str, str]:
    """Race, alternating with a single publisher; return the texts on speed and processor time."""
    alone: list[_Took] = []
    racing: list[_Took] = []
    for index in range(pair_count):
        for publisher_count in (1, PUBLISHER_COUNT)[:: 1 if index % 2 else -1]:
            took = _publish(chain, publisher_count, serve, open_one)
            (alone if publisher_count == 1 else racing).append(took)
    count = len(chain.messages)
    pairs = list(zip(alone, racing, strict=True))
    ratios = sorted(one.seconds / many.seconds for one, many in pairs)
    rates = [count / median(took.seconds for took in runs) for runs in (racing, alone)]
    busy_ms = [median(took.processor_seconds for took in runs) / count * 1e3 for runs in (racing, alone)]
    busy_ratio = median(one.processor_seconds / many.processor_seconds for one, many in pairs)
    text = (
        f"{rates[0]:,.1f} blocks/s, alone {rates[1]:,.1f}; "
        f"ratio {median(ratios):.2f}, median of {pair_count} from {ratios[0]:.2f} to {ratios[-1]:.2f}"
    )
    busy = f"{busy_ms[0]:.1f} ms a block, alone {busy_ms[1]:.1f}, ratio {busy_ratio:.2f}"
    return text, f"the node's processor time {busy}"


def run(quick: bool = False) -> Rows:
    """Race both kinds of publishers; return a label and a text for each size of block."""
    rows = []
    for block_count, items_per_block in CASES:
        chain = make_chain(block_count // (4 if quick else 1), items_per_block, ITEM_BYTES, header_apart=True)
        (racing, processor), (grpc, _), (loop, _) = (
            _measure(chain, serve, open_one, 1 if quick else pair_count)
            for serve, open_one, pair_count in (
                (_node, _open_bare, NODE_PAIR_COUNT),
                (_node, _open_grpc, OTHER_PAIR_COUNT),
                (_bare_loop, _open_bare, OTHER_PAIR_COUNT),
            )
        )
        text = f"{racing} ({processor}; with gRPC's clients: {grpc}; a bare loop: {loop})"
        rows.append((f"publish, {PUBLISHER_COUNT} racing, {items_per_block} items of 1 kB", text))
    return rows


if __name__ == "__main__":
    print_rows(run)
