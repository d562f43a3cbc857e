"""One subscription to a peer, fed into the publish race like a publisher's stream.

A shell: `services.subscription_client` checks the peer's messages, the race decides about its blocks. The
first of four tasks to end gives the outcome of the attempt:

    read     checks the peer's messages and offers them to the race
    hear     takes the answers of the race
    watch    ends the attempt if the peer is silent though it has more, or slower than another peer could be
    poll     (when following live) asks the peer for its status, and the other peers as well if it is silent,
             does not answer, or is a standby

Source: docs/subscribing.md, "Nodes that read from each other"; docs/spec/wire.md section 2.2.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from grpc import aio

from sluice.gateway.api import subscribe_pb2
from sluice.gateway.blocks.errors import ItemError
from sluice.gateway.blocks.item_set import ItemSet
from sluice.gateway.cluster.catch_up import AttemptOutcome, Range
from sluice.gateway.errors import SubscriptionError
from sluice.gateway.identity import name_of_peer
from sluice.gateway.limits import PEER_POLL_SECONDS, SLOT_ITEMS_MIN
from sluice.gateway.logs import fields
from sluice.gateway.pipeline.conductor import Conductor, Outbox
from sluice.gateway.race.actions import Behind, EndOfStream, Resend, Response, Skip
from sluice.gateway.race.tables import EndStatus
from sluice.gateway.services.subscription_client import (
    Received,
    SubscriptionOrder,
    status_name,
    subscribe_to,
)
from sluice.gateway.transport.failures import why_failed
from sluice.gateway.workers.looking import Looking

__all__ = ["ENDINGS", "Ending", "PeerStream"]

log = logging.getLogger(__name__)

PEER_POLL_FAILURES_MAX: Final = 3
"""Unanswered status requests in a row after which a peer counts as gone. A hung process keeps its
connections, and a healthy stream may be silent for long."""

Ending = tuple[AttemptOutcome, str]

ENDINGS: Final[dict[EndStatus, AttemptOutcome]] = {
    EndStatus.SUCCESS: AttemptOutcome.NODE,
    EndStatus.INVALID_REQUEST: AttemptOutcome.LIED,
    EndStatus.ERROR: AttemptOutcome.NODE,
    EndStatus.TIMEOUT: AttemptOutcome.STALLED,
    EndStatus.DUPLICATE_BLOCK: AttemptOutcome.RACED,
    EndStatus.BAD_BLOCK_PROOF: AttemptOutcome.LIED,
    EndStatus.PERSISTENCE_FAILED: AttemptOutcome.NODE,
}

_Code = subscribe_pb2.SubscribeStreamResponse.Code

_ORDERLY: Final = frozenset({_Code.SUCCESS, _Code.ERROR})
"""The statuses with which a healthy node ends a stream that it has begun."""

SHARED_PART_MIN: Final = 2 / 3
"""The part of the time that the node waits for its peer, from which on other peers are to bring blocks, too.
Below it they would bring little: the node itself takes most of the time."""


class PeerStream:
    """One attempt with one peer.

    Args:
        stall_seconds: how long a peer that has more may be silent.
        block_seconds: how long the node waits for one block, if another peer has it.
        blocks_per_second_min: the slowest pace, measured over `block_seconds` of waiting, of a peer that is
            kept while another has its blocks.
        ask_others: returns the highest last block of the other peers; None: no other peer has any.
        may_share: returns whether other peers could bring some of the blocks.
        share_seconds: how long the node watches whether it mostly waits for the peer.
    """

    def __init__(
        self,
        conductor: Conductor,
        address: str,
        plan: Range,
        stall_seconds: float,
        *,
        block_seconds: float = math.inf,
        blocks_per_second_min: float = 0.0,
        ask_others: Callable[[], Awaitable[int | None]] | None = None,
        may_share: Callable[[], bool] | None = None,
        share_seconds: float = 1.0,
        poll_seconds: float = PEER_POLL_SECONDS,
    ) -> None:
        self.known_last: int | None = None
        self.known_elsewhere: int | None = None
        """The highest last block that other peers reported."""
        self.known_active: str | None = None
        """The active peer to follow instead of this one, which is a standby or mute."""
        self.is_mute = False
        self.on_sent: Callable[[], None] = lambda: None
        """Called when all requested blocks have come; they may not be on disk."""
        self.blocks_per_second = 0.0
        """The pace of the peer in the time watched last, in which at least one block came."""
        self.block_bytes = 0.0
        """The bytes of one block of that time."""
        self._conductor = conductor
        self._address = address
        self._plan = plan
        self._stall_seconds = stall_seconds
        self._block_seconds = block_seconds
        self._pace_min = blocks_per_second_min
        self._ask_others = ask_others
        self._may_share = may_share
        self._share_seconds = share_seconds
        self._poll_seconds = poll_seconds
        self._looking = Looking(conductor.slots)
        self._order = SubscriptionOrder(plan.start_number, plan.end_number)
        self._heard_at: float | None = None
        """Since when it waits for the current message."""
        self._waited_seconds = 0.0
        self._total_waited_seconds = 0.0
        self._owing_since: tuple[float, int] | None = None
        """`_total_waited_seconds` and the next block when the measurement of pace began."""
        self._is_crawling: str | None = None
        """The reason why the peer is too slow while another has its blocks."""
        self._looked_at = asyncio.get_running_loop().time()
        self._taken_bytes = 0
        self._watched_from = self._looked_at, 0.0, plan.start_number, 0
        """When the node began to watch the pace, and `_total_waited_seconds`, the next block and
        `_taken_bytes` then."""
        self._is_shared = False
        """Other peers are to bring some of the blocks."""
        self._settled = asyncio.Event()

    def looks_beside(self) -> None:
        """Note that the node asks other peers now."""
        self.known_active = self.known_elsewhere = None
        self._looked_at = asyncio.get_running_loop().time()

    @property
    def is_unlooked(self) -> bool:
        """True if no other peer was asked for long: this peer may hide that it lacks blocks."""
        return asyncio.get_running_loop().time() - self._looked_at >= self._stall_seconds

    @property
    def offered_next(self) -> int:
        """One above the peer's last complete block."""
        return self._order.next_number or 0

    @property
    def last_to_come(self) -> int | None:
        """The last requested block that the peer says it has; None: not known."""
        return self.known_last if self._plan.end_number is None else self._plan.end_number

    @property
    def is_quiet(self) -> bool:
        """It has been silent for a while, with nothing missing."""
        return not self._order.in_block and not self._has(self.known_last) and self._is_silent(1 / 4)

    @property
    def slowness(self) -> str | None:
        """The reason why the current block is too slow; None: it is not.

        Only time spent waiting for the peer counts, not that of the node's own disk.
        """
        waited_seconds = self._waited_seconds + self._silent_seconds()
        if not self._order.in_block or waited_seconds < self._block_seconds:
            return None
        return f"block {self._order.next_number} was waited for {waited_seconds:.0f} s and has not ended"

    def _silent_seconds(self) -> float:
        """Return the seconds since the peer's last message; 0: the node does not wait for one."""
        return 0.0 if self._heard_at is None else asyncio.get_running_loop().time() - self._heard_at

    def _is_silent(self, share: float) -> bool:
        return self._heard_at is not None and self._silent_seconds() >= share * self._stall_seconds

    def _has(self, last: int | None) -> bool:
        return last is not None and (self._order.next_number or 0) <= last

    async def run(self, channel: aio.Channel, poll: Callable[[], Awaitable[None]] | None) -> Ending:
        """Subscribe, and take blocks until the attempt ends.

        Args:
            poll: updates `known_last`; None: not needed.
        """
        return await self.take(subscribe_to(channel, self._plan.start_number, self._plan.end_number), poll)

    async def take(self, call: Any, poll: Callable[[], Awaitable[None]] | None) -> Ending:
        """Take the blocks of a call, as `run` does."""
        outbox = self._conductor.connect(name_of_peer(self._address), is_peer=True)
        unlisten = self._conductor.on_stored(self._settled.set)
        works: list[Coroutine[Any, Any, Ending]] = [
            self._read(call, outbox),
            self._hear(outbox),
            self._watch(),
        ]
        if poll is not None:
            works.append(self._poll(poll))
        tasks = [asyncio.ensure_future(work) for work in works]
        reason = "stopped"
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            # The race's answer precedes its consequences.
            first = next(task for task in (tasks[1], *tasks) if task in done)
            outcome, reason = first.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            call.cancel()
            unlisten()
            self._conductor.disconnect(outbox, reason)
        return outcome, reason

    async def _read(self, call: Any, outbox: Outbox) -> Ending:
        """Read up to the stream's status; then wait until the blocks are on disk."""
        conductor, order, loop = self._conductor, self._order, asyncio.get_running_loop()
        reading = asyncio.ensure_future(call.read())
        try:
            while order.status is None:
                self._heard_at = loop.time()
                response = await reading
                # A header may take long: the block before it was the last one.
                silent_seconds = self._silent_seconds()
                self._waited_seconds = self._waited_seconds + silent_seconds if order.in_block else 0.0
                self._total_waited_seconds += silent_seconds
                self._heard_at = None
                if response is aio.EOF:
                    return AttemptOutcome.BROKE_OFF, "the stream ended without a status"
                if response is None:  # gRPC returns None for bytes that do not parse
                    return AttemptOutcome.LIED, "it sent a message that does not parse"
                # gRPC receives the next message in its own thread while this one is hashed.
                reading = asyncio.ensure_future(call.read())
                await self._take(response, outbox)
                ending = self._left_for_an_active_peer() or self._left_as_crawling() or self._left_to_share()
                if ending is not None:
                    return ending
        except SubscriptionError as error:
            return AttemptOutcome.LIED, str(error)
        finally:
            reading.cancel()
        if not order.complete:
            return self._closed(order.status), f"it ended the stream with {status_name(order.status)}"
        assert order.next_number is not None
        self.on_sent()
        self._heard_at = loop.time()  # the disk may take as long as a silent peer, and no longer
        while conductor.next_to_store < order.next_number:
            self._settled.clear()
            await self._settled.wait()
            self._heard_at = loop.time()
        return AttemptOutcome.COMPLETE, f"it has sent everything up to block {order.next_number - 1}"

    def _closed(self, status: int) -> AttemptOutcome:
        """A node sends its live subscribers ERROR when its last publisher leaves with an error, and SUCCESS
        when it stops. Neither is the peer's fault.
        """
        in_order = status in _ORDERLY and not self._order.in_block and not self._has(self.known_last)
        return AttemptOutcome.CLOSED if in_order else AttemptOutcome.BROKE_OFF

    async def _take(self, received: Received, outbox: Outbox) -> None:
        conductor = self._conductor
        if isinstance(received, ItemSet):
            if len(received.items) >= SLOT_ITEMS_MIN:
                await conductor.slots.take()
        elif not isinstance(received, ItemError):
            items = received.block_items.block_items
            if len(items) >= SLOT_ITEMS_MIN:
                self._order.refuse_too_many(len(items))
                try:
                    received = await self._looking.look(items)
                except ItemError as error:
                    received = error
        taken = self._order.take(received)
        if isinstance(taken, ItemSet):
            self._taken_bytes += taken.size_bytes
            await conductor.room_for(outbox)
            conductor.offer(outbox, taken)
        elif taken is not None:
            arbiter, now_ns = conductor.arbiter, conductor.now_ns()
            conductor.perform(arbiter.block_end(outbox.publisher_id, taken, now_ns))

    async def _hear(self, outbox: Outbox) -> Ending:
        while responses := await outbox.get():
            for response in responses:
                ending = self._ending_of(response)
                if ending is not None:
                    return ending
            self._settled.set()
        return AttemptOutcome.NODE, "the node takes no blocks from peers now"

    def _ending_of(self, response: Response) -> Ending | None:
        match response:
            case EndOfStream():
                return ENDINGS[response.status], response.reason
            case Resend(number):
                return AttemptOutcome.RACED, f"block {number} is needed again"
            case Behind():
                return AttemptOutcome.RACED, "a block before it is needed again"
            case Skip(number):
                log.debug("a publisher sends it, too", extra=fields(peer=self._address, block=number))
        return None

    def _left_for_an_active_peer(self) -> Ending | None:
        if self.known_active is None or self.is_mute or self._order.in_block:
            return None
        return AttemptOutcome.STANDBY, f"{self.known_active} is active"

    def _left_as_mute(self) -> Ending | None:
        if not self.is_mute or not self._is_silent(1 / 4):
            return None
        if self.known_active is not None:
            return AttemptOutcome.UNREACHABLE, f"it does not answer, and {self.known_active} is active"
        if self._has(self.known_elsewhere):
            return (
                AttemptOutcome.UNREACHABLE,
                f"it does not answer, and another peer has block {self.known_elsewhere}",
            )
        return None

    async def _left_as_slow(self) -> Ending | None:
        """Leave the peer in mid-block if the block takes too long and another peer has it.

        Otherwise a peer that sends a little again and again would hold the node for ever.
        """
        if self.slowness is None or self._ask_others is None:
            return None
        last = await self._ask_others()
        if (slowness := self.slowness) is None or not self._has(last):
            return None
        return AttemptOutcome.STALLED, f"{slowness}, and another peer has block {last}"

    def _left_as_crawling(self) -> Ending | None:
        if self._is_crawling is None or self._order.in_block:
            return None
        return AttemptOutcome.STALLED, self._is_crawling

    def _left_to_share(self) -> Ending | None:
        if not self._is_shared or self._order.in_block:
            return None
        return AttemptOutcome.SHARED, f"it brings {self.blocks_per_second:.3g} blocks a second"

    def _look_at_waiting(self) -> None:
        """If the node mostly waits for the peer, others can bring blocks meanwhile."""
        if self._may_share is None:
            return
        now, waited_seconds = asyncio.get_running_loop().time(), self._total_waited_seconds
        waited_seconds += self._silent_seconds()
        number = self._order.next_number or 0
        from_time, from_waited_seconds, from_number, from_bytes = self._watched_from
        seconds, count = now - from_time, number - from_number
        if seconds < self._share_seconds or not count:
            return
        self.blocks_per_second, self.block_bytes = count / seconds, (self._taken_bytes - from_bytes) / count
        self._watched_from = now, waited_seconds, number, self._taken_bytes
        is_waiting = waited_seconds - from_waited_seconds >= SHARED_PART_MIN * seconds
        self._is_shared = is_waiting and self._may_share()

    async def _look_at_pace(self) -> None:
        """A slow peer may never be late with a block, but the node would never reach the end of the chain.
        The time of the node's own disk does not count.
        """
        order, waited_seconds = self._order, self._total_waited_seconds + self._silent_seconds()
        number = order.next_number or 0
        if not (self._has(self.known_last) or self._has(self.known_elsewhere)):
            self._owing_since = self._is_crawling = None
            return
        if self._owing_since is None:
            self._owing_since = waited_seconds, number
        seconds, count = waited_seconds - self._owing_since[0], number - self._owing_since[1]
        if seconds < self._block_seconds or self._ask_others is None:
            return
        self._owing_since = self._is_crawling = None
        if count < self._pace_min * seconds and self._has(last := await self._ask_others()):
            words = f"{count} blocks in {seconds:.0f} s in which it was waited for"
            self._is_crawling = f"{words}, and another peer has block {last}"

    async def _watch(self) -> Ending:
        while True:
            await asyncio.sleep(min(self._stall_seconds / 4, self._poll_seconds))
            order = self._order
            self._look_at_waiting()
            await self._look_at_pace()
            ending = self._left_as_mute() or self._left_for_an_active_peer() or await self._left_as_slow()
            if ending is not None:
                return ending
            if self._is_silent(1) and (
                order.in_block or order.status is not None or self._has(self.known_last)
            ):
                return AttemptOutcome.STALLED, f"no message in {self._stall_seconds:g} s"
            if self.is_quiet and self._has(self.known_elsewhere):
                return AttemptOutcome.OUTRUN, f"another peer has block {self.known_elsewhere}"

    async def _poll(self, poll: Callable[[], Awaitable[None]]) -> Ending:
        failures_count = 0
        while failures_count < PEER_POLL_FAILURES_MAX:
            await asyncio.sleep(self._poll_seconds)
            try:
                await poll()
                failures_count = 0
            except aio.AioRpcError as error:
                failures_count += 1
                reason = why_failed(error)
        return AttemptOutcome.UNREACHABLE, reason
