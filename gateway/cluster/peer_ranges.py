"""Several peers at once: each brings ranges of the missing blocks, and the race takes them in order.

A shell around `cluster.ranges`. A range is an attempt with its peer, like a single subscription: when its
turn comes, a `PeerStream` of its own offers its blocks. So checks, blame and limits are the same.

    each peer, in turn     next_for ──► subscribeBlockStream ──► HeldCall.fill ──► fetched, next_for, …
    each range, in order   its turn ──► PeerStream reads the HeldCall ──► passed ──► the turn of the next one

The first range that fails ends it all. Ranges before it are finished; what waits behind it is dropped.

Source: gateway/README.md, "From a peer".
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final

from grpc import aio

from sluice.gateway.blocks.errors import ItemError
from sluice.gateway.blocks.item_set import ItemSet
from sluice.gateway.cluster.catch_up import AttemptOutcome, Range
from sluice.gateway.cluster.peer_stream import Ending, PeerStream
from sluice.gateway.cluster.ranges import RangePlan
from sluice.gateway.limits import ITEM_OVERHEAD_BYTES
from sluice.gateway.services.subscription_client import Received, subscribe_to

__all__ = ["HeldCall", "PeerRanges"]

BURST_BYTES: Final = 64 * 1024
"""Bytes of messages that the race takes in one go: otherwise each message of a small block costs a turn of
the event loop. A burst takes about a millisecond."""


class HeldCall:
    """A subscription whose messages are read before their turn; for a `PeerStream`, it is a call.

    Args:
        start: the first block of its range.
        changed: waits until the plan may allow what it did not allow before.
        note: tells that the plan has changed.
    """

    def __init__(
        self,
        call: Any,
        plan: RangePlan,
        start: int,
        changed: Callable[[], Awaitable[object]],
        note: Callable[[], None],
    ) -> None:
        self.size_bytes = 0
        self.seconds = 0.0
        """The time that it waited for its peer."""
        self._call = call
        self._plan = plan
        self._start = start
        self._changed = changed
        self._note = note
        self._held: deque[tuple[Any, int]] = deque()
        self._came = asyncio.Event()
        self._failure: aio.AioRpcError | None = None
        self._is_over = False
        self._burst_bytes = 0
        """Bytes of the messages since the event loop ran last."""

    async def fill(self) -> bool:
        """Read until the stream's status; return whether it came."""
        loop, response = asyncio.get_running_loop(), None
        try:
            while True:
                while not self._plan.may_hold(self._start):
                    await self._changed()
                asked_at = loop.time()
                response = await self._call.read()
                self.seconds += loop.time() - asked_at
                if response is aio.EOF:
                    return False
                size_bytes = _size_of(response)
                self.size_bytes += size_bytes
                self._plan.came(self._start, size_bytes)
                self._held.append((response, size_bytes))
                self._came.set()
                if response is None or isinstance(response, ItemError):
                    return False
                if not isinstance(response, ItemSet) and response.WhichOneof("response") == "status":
                    return True
        except aio.AioRpcError as error:
            self._failure = error
            return False
        finally:
            self._is_over = True
            self._came.set()

    def read(self) -> Awaitable[Any]:
        """Return the next message, as a call's `read` does: at once if it waits, for a burst of them."""
        if not self._held or self._burst_bytes >= BURST_BYTES:
            return self._read_later()
        found = asyncio.get_running_loop().create_future()
        found.set_result(self._next())
        return found

    async def _read_later(self) -> Any:
        """Let others run first."""
        self._burst_bytes = 0
        await asyncio.sleep(0)
        while not self._held:
            if self._failure is not None:
                raise self._failure
            if self._is_over:
                return aio.EOF
            self._came.clear()
            await self._came.wait()
        return self._next()

    def _next(self) -> Any:
        response, size_bytes = self._held.popleft()
        self._burst_bytes += size_bytes
        was_full = self._plan.is_full
        self._plan.taken(self._start, size_bytes)
        if was_full:
            self._note()
        return response

    def cancel(self) -> None:
        """End the subscription."""
        self._call.cancel()


class PeerRanges:
    """One plan, carried out.

    Args:
        open_stream: makes the attempt with a peer for a range; the last argument is the time after which the
            peer is late.
        attempt: runs an attempt, reports its end, and returns its outcome.
    """

    def __init__(
        self,
        plan: RangePlan,
        open_stream: Callable[[str, Range, float], PeerStream],
        attempt: Callable[[str, Callable[[], Awaitable[Ending]]], Awaitable[AttemptOutcome]],
    ) -> None:
        self.offered_next = 0
        """One above the last complete block that the race was offered."""
        self._plan = plan
        self._open_stream = open_stream
        self._attempt = attempt
        self._changed = asyncio.Event()
        self._turn = asyncio.Event()  # of the next range to be given
        self._turn.set()
        self._tasks: set[asyncio.Task[bool]] = set()
        self._under_way: set[int] = set()  # the first blocks of ranges that have not ended
        self._failed: int | None = None  # the lowest of those that have failed
        self._error: BaseException | None = None  # a bug of ours
        self._is_over = asyncio.Event()

    async def run(self, lanes: Sequence[Coroutine[Any, Any, bool]]) -> None:
        """Bring blocks until the end of the plan, or until a range fails.

        Args:
            lanes: one for each peer; each calls `bring` once its peer has answered.
        """
        try:
            for lane in lanes:
                self._spawn(lane)
            await self._is_over.wait()
            if self._error is not None:
                raise self._error
        finally:
            tasks = set(self._tasks)
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    def note(self) -> None:
        """Wake all that wait for a change of the plan."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def bring(self, address: str, channel: aio.Channel) -> None:
        """Fetch one range of a peer after the other until the plan has none for it."""
        plan, running = self._plan, set[asyncio.Task[bool]]()
        self.note()
        try:
            while not plan.is_over_for(address):
                blocks = plan.next_for(address)
                if blocks is None:
                    await self._changed.wait()
                    continue
                start = blocks.start_number
                held = HeldCall(
                    subscribe_to(channel, start, blocks.end_number),
                    plan,
                    start,
                    lambda: self._changed.wait(),
                    self.note,
                )
                turn, self._turn = self._turn, asyncio.Event()
                self._under_way.add(start)
                running.add(self._spawn(self._take(address, blocks, held, turn, self._turn)))
                if not await held.fill():
                    plan.failed()  # its own attempt says why, when its turn comes
                    break
                plan.fetched(address, blocks, held.size_bytes, held.seconds)
                self.note()
                running = {task for task in running if not task.done()}
            if running:
                await asyncio.wait(running)
        finally:
            self.note()

    async def _take(
        self, address: str, blocks: Range, held: HeldCall, turn: asyncio.Event, next_turn: asyncio.Event
    ) -> bool:
        """Offer a range to the race when its turn comes; return whether it came whole."""
        try:
            await turn.wait()
            stream = self._open_stream(address, blocks, self._plan.patience_seconds(address, blocks))

            def sent() -> None:
                self._plan.passed(blocks.start_number)
                self.note()
                next_turn.set()

            stream.on_sent = sent
            try:
                outcome = await self._attempt(address, lambda: stream.take(held, None))
            finally:
                self.offered_next = max(self.offered_next, stream.offered_next)
            if outcome is AttemptOutcome.COMPLETE:
                return True
            self._plan.failed()
            if self._failed is None or blocks.start_number < self._failed:
                self._failed = blocks.start_number
            return False
        finally:
            held.cancel()
            self._under_way.discard(blocks.start_number)

    def _spawn(self, work: Coroutine[Any, Any, bool]) -> asyncio.Task[bool]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: asyncio.Task[bool]) -> None:
        """Those before the range that failed are heard first: one of them may be to blame."""
        self._tasks.discard(task)
        is_failed = self._failed is not None and all(start > self._failed for start in self._under_way)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = error
        if is_failed or not self._tasks or self._error is not None:
            self._is_over.set()


def _size_of(received: Received | None) -> int:
    """Return the bytes that a message takes in memory; gRPC returns None for bytes that do not parse."""
    if isinstance(received, ItemSet):
        return received.size_bytes + ITEM_OVERHEAD_BYTES * len(received.items)
    if received is None or isinstance(received, ItemError):
        return 0
    return received.ByteSize() + ITEM_OVERHEAD_BYTES * len(received.block_items.block_items)
