"""The follower of peers: subscribes to another node and offers its blocks to the publish race.

A shell around `cluster.catch_up`. Blocks of a peer go through the race like a publisher's.

    serverStatus ──► told ──► subscribeBlockStream ──► SubscriptionOrder ──► Conductor.offer ──► the race
                                                                                  │
                              ended(outcome) ◄── the race's answer ◄──────────────┘

Several peers bring blocks to a node that is far behind and mostly waits (`cluster.peer_ranges`).

    catch_up(addresses)    fetch the blocks by which publishers are ahead, whenever they are
    follow(addresses)      follow a peer for ever
    stop()                 do neither; on return no block of a peer is in flight

Source: docs/subscribing.md, "Nodes that read from each other"; gateway/README.md, "The role of a node".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from grpc import aio

from sluice.gateway.api import node_pb2_grpc
from sluice.gateway.blocks.stream_layout import LAYOUTS, NATIVE_LAYOUT
from sluice.gateway.cluster.catch_up import DONE, AttemptOutcome, CatchUp, CatchUpRules, Range, Try
from sluice.gateway.cluster.limits import CLUSTER_LIMITS, ClusterLimits
from sluice.gateway.cluster.node_status import NodeAnswer, ask_node
from sluice.gateway.cluster.peer_ranges import PeerRanges
from sluice.gateway.cluster.peer_stream import Ending, PeerStream
from sluice.gateway.cluster.ranges import RangePlan, count_of
from sluice.gateway.errors import GatewayError, InvalidInput
from sluice.gateway.limits import KEEPALIVE_PEER_SECONDS, PEER_STATUS_SECONDS_MAX
from sluice.gateway.logs import caused_by, fields
from sluice.gateway.metrics import Metrics
from sluice.gateway.pipeline.conductor import Conductor
from sluice.gateway.transport.channels import ClientTls, keepalive, open_channel, relayed_if_refused
from sluice.gateway.transport.failures import why_failed
from sluice.gateway.transport.message_size import why_too_long

__all__ = ["PeerFollower"]

log = logging.getLogger(__name__)

_ROLLING: Final = (
    "its oldest blocks are gone for good, and a stream that begins later has other entry numbers: begin with "
    "a copy of its data folder, or set first_block"
)

PEER_BLOCK_DOUBLINGS_MAX: Final = 8
"""The most doublings of the time for one block: two hours then, with `catchup.stall_seconds` = 10."""

FOLLOW_SETTLE_SECONDS: Final = 0.005
"""Time between two checks whether a peer's last blocks are committed, when the node stops following."""

_QUIET = frozenset(
    {
        AttemptOutcome.COMPLETE,
        AttemptOutcome.RACED,
        AttemptOutcome.NOTHING,
        AttemptOutcome.STANDBY,
        AttemptOutcome.SHARED,
        AttemptOutcome.CLOSED,
    }
)


class PeerFollower:
    """The follower of one node; it is idle until `catch_up` or `follow`.

    Args:
        stall_seconds: how long a peer that has more blocks may be silent.
        block_time_seconds: the network's time between blocks.
        instance: the name of this process; a peer of the same name is this node.
    """

    def __init__(
        self,
        conductor: Conductor,
        metrics: Metrics,
        *,
        rules: CatchUpRules,
        stall_seconds: float,
        block_time_seconds: float,
        message_bytes_max: int,
        tls: ClientTls | None = None,
        instance: str = "",
        limits: ClusterLimits = CLUSTER_LIMITS,
    ) -> None:
        self.followed: str | None = None
        self._conductor = conductor
        self._metrics = metrics
        self._rules = rules
        self._stall_seconds = stall_seconds
        self._limits = limits
        self._pace_min = limits.peer_pace_share_min / block_time_seconds
        self._message_bytes_max = message_bytes_max
        self._tls = tls
        self._instance = instance
        self._machine: CatchUp | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._was_problem = False
        self._said_of_node: tuple[str, int] | None = None
        """The last logged reason why this node could not take blocks, and the block that it needed then."""
        self._given_up: tuple[int | None, int] = None, 0
        """The last target given up, and the block that the node needed then."""
        self._said_implausible = False
        """The last reported target was implausibly far ahead."""
        self._failure: str | None = None
        """The internal error that ended the loop."""
        self._stream: PeerStream | None = None
        self._ranges: RangePlan | None = None
        """The blocks that several peers are to bring next."""
        self._offered_next = 0
        """One above the last complete block from peers."""
        conductor.on_catch_up_target(self._on_target)
        metrics.catch_up_distance_blocks.set_function(lambda: self.distance or 0)
        metrics.catch_up_stalled.set_function(lambda: int(self.problem is not None))

    # --- orders -------------------------------------------------------------------------------------------

    def catch_up(self, addresses: Sequence[str]) -> None:
        """Catch up from these peers whenever publishers are ahead; an empty node asks them first."""
        empty = self._conductor.arbiter.last_number is None
        self._start(CatchUp(addresses, self._rules, curious=empty))

    def follow(self, addresses: Sequence[str]) -> None:
        """Follow the first of these peers that works, for ever."""
        self._start(CatchUp(addresses, self._rules, live=True))

    async def stop(self) -> None:
        """Stop, and return when no block of a peer is in flight."""
        task, self._task, self._machine = self._task, None, None
        if task is not None:
            task.cancel()
            self._stopping = asyncio.ensure_future(self._end(task))
        if self._stopping is not None:
            await asyncio.shield(self._stopping)  # a caller that gives up does not end it for others

    async def _end(self, task: asyncio.Task[None]) -> None:
        await asyncio.wait({task})
        await self._settle()

    async def _settle(self) -> None:
        conductor = self._conductor

        def is_under_way() -> bool:
            if conductor.next_to_store >= self._offered_next:
                return False
            return conductor.is_storing and not conductor.broken.done()

        while is_under_way():  # noqa: ASYNC110 - commits wake many others, and this is rare
            await asyncio.sleep(FOLLOW_SETTLE_SECONDS)

    # --- what it knows -------------------------------------------------------------------------------------

    @property
    def distance(self) -> int | None:
        """The number of known blocks that the node lacks; None: it follows nobody."""
        machine = self._machine
        return None if machine is None else machine.distance(self._conductor.next_to_store)

    @property
    def given_up_target(self) -> int | None:
        """The target given up while the node needed the block that it still needs."""
        target, needed = self._given_up
        return target if needed == self._conductor.next_to_store else None

    @property
    def problem(self) -> str | None:
        """The reason why the node makes no progress, in words; None: it does."""
        machine = self._machine
        if self._failure is not None or machine is None:
            return self._failure
        machine.came_to(self._conductor.next_to_store)  # a stream that goes well ends no attempt
        if not machine.live and not self.distance:
            return None
        if machine.problem is None and self._stream is not None and (slowness := self._stream.slowness):
            return f"the node does not come closer to its peers: {self.followed}: {slowness}"
        return machine.problem

    # --- the loop ------------------------------------------------------------------------------------------

    def _start(self, machine: CatchUp) -> None:
        assert self._task is None, "stop first"
        self._machine, self._failure = machine, None
        if not machine.live and self._conductor.catch_up_target is not None:
            self._aim(machine, self._conductor.catch_up_target)
        self._task = asyncio.get_running_loop().create_task(self._run(machine))
        self._task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("following peers stopped on an internal error", exc_info=error)
            self._failure = "following peers stopped on an internal error, see the log"

    def _on_target(self, target_number: int) -> None:
        if self._machine is not None and not self._machine.live:
            self._aim(self._machine, target_number)
            self._changed.set()

    def _aim(self, machine: CatchUp, told_number: int) -> None:
        if machine.is_plausible(told_number, self._conductor.next_to_store):
            machine.aim(told_number)
            self._said_implausible = False
            return
        self._conductor.arbiter.forget_catch_up_target()  # or the arbiter would not report lower ones
        level = logging.DEBUG if self._said_implausible else logging.WARNING
        self._said_implausible = True
        log.log(
            level,
            "a publisher told of a block that is implausibly far ahead; it is not looked for",
            extra=caused_by("publishers", target=told_number, next=self._conductor.next_to_store),
        )

    async def _run(self, machine: CatchUp) -> None:
        conductor = self._conductor
        catching_up = False
        while True:
            self._changed.clear()
            step = machine.step(conductor.next_to_store, conductor.now_ns())
            self._note_given_up(machine)
            if isinstance(step, Try):
                if not catching_up and not machine.live:
                    catching_up = True
                    extra = caused_by("publishers", next=conductor.next_to_store, target=machine.target)
                    log.info("catching up", extra=extra)
                await self._try(machine, step.address)
                if self._ranges is not None:
                    plan, self._ranges = self._ranges, None
                    await self._share(machine, plan)
                continue
            if step is DONE:
                if catching_up:
                    extra = caused_by("publishers", last_block=conductor.arbiter.last_number)
                    log.info("caught up", extra=extra)
                catching_up = False
                self._report(machine)
                before = conductor.next_to_store
                try:
                    async with asyncio.timeout(self._stall_seconds):
                        await self._changed.wait()
                except TimeoutError:
                    await self._look_around(machine, before)
                continue
            seconds = None if step.until_ns is None else max(0, step.until_ns - conductor.now_ns()) / 1e9
            try:
                async with asyncio.timeout(seconds):
                    await self._changed.wait()
            except TimeoutError:
                pass

    def _note_given_up(self, machine: CatchUp) -> None:
        """Let the arbiter report the next one."""
        target = machine.take_given_up()
        if target is None:
            return
        arbiter = self._conductor.arbiter
        arbiter.forget_catch_up_target()
        self._given_up = target, self._conductor.next_to_store
        self._metrics.catch_up_targets_given_up.inc()
        log.warning(
            "a block that publishers told of is not looked for any more: no peer has it, or one before it",
            extra=caused_by("publishers", target=target, next=self._conductor.next_to_store),
        )

    async def _try(self, machine: CatchUp, address: str) -> None:
        self.followed = address
        try:
            ending = await self._ending_of(address, lambda: self._attempt(machine, address))
        finally:
            self.followed = None
        self._note_end(machine, address, ending)

    async def _ending_of(self, address: str, attempt: Callable[[], Awaitable[Ending]]) -> Ending:
        """Make an attempt with a peer; return how it ended, also if it failed."""
        try:
            return await relayed_if_refused(address, attempt)
        except aio.AioRpcError as error:
            reason = why_failed(error)
            if why := why_too_long(reason, "grpc.max_message_bytes of this node"):
                return AttemptOutcome.NODE, f"a block of {address}: {why}"
            return AttemptOutcome.UNREACHABLE, reason
        except InvalidInput as error:
            return AttemptOutcome.LIED, str(error)
        except GatewayError as error:  # an unreadable certificate
            return AttemptOutcome.UNREACHABLE, str(error)
        except Exception as error:  # the next attempt may go better
            log.exception("an attempt failed", extra=fields(peer=address))
            return AttemptOutcome.NODE, f"{type(error).__name__}: {error}"

    def _note_end(
        self, machine: CatchUp, address: str, ending: Ending, quiet_level: int = logging.INFO
    ) -> None:
        conductor, (outcome, reason) = self._conductor, ending
        machine.ended(address, outcome, reason, conductor.next_to_store, conductor.now_ns())
        self._metrics.catch_up_attempts.labels(outcome=outcome.name.lower()).inc()
        level = quiet_level if outcome in _QUIET else logging.WARNING
        if outcome is AttemptOutcome.NODE:  # it concerns every peer, for as long as it lasts
            said = reason, conductor.next_to_store
            level = logging.DEBUG if said == self._said_of_node else level
            self._said_of_node = said
        log.log(
            level,
            "peer ended" if outcome in _QUIET else "peer dropped",
            extra=fields(
                peer=address,
                outcome=outcome.value,
                reason=reason,
                last_block=conductor.arbiter.last_number,
                target=machine.target,
            ),
        )
        self._report(machine)

    def _report(self, machine: CatchUp) -> None:
        problem = machine.problem
        if problem is not None and not self._was_problem:
            log.error("catch-up stands still", extra=fields(reason=problem))
        elif problem is None and self._was_problem:
            log.info("catch-up gets on again", extra=fields(last_block=self._conductor.arbiter.last_number))
        self._was_problem = problem is not None

    async def _attempt(self, machine: CatchUp, address: str) -> Ending:
        channel = open_channel(address, self._tls, self._channel_options())
        try:
            status = node_pb2_grpc.BlockNodeServiceStub(channel)
            said = await ask_node(status, self._status_seconds())
            plan = self._plan_with(machine, address, said)
            if not isinstance(plan, Range):
                return plan
            log.info(
                "subscribing to a peer",
                extra=fields(peer=address, start=plan.start_number, end=plan.end_number),
            )
            stream = self._stream_of(machine, address, plan)
            stream.known_last = said.last
            self._stream = stream
            try:
                ending = await stream.run(
                    channel, (lambda: self._poll(machine, stream, status, address)) if machine.live else None
                )
            finally:
                self._stream, self._offered_next = None, stream.offered_next
            await self._settle()  # the next attempt begins behind them
            if ending[0] is AttemptOutcome.SHARED:
                self._ranges = self._ranges_after(machine, address, stream)
            return ending
        finally:
            await channel.close()

    def _plan_with(self, machine: CatchUp, address: str, said: NodeAnswer) -> Range | Ending:
        """Return what to subscribe to, or why nothing."""
        if self._is_own(said):
            return AttemptOutcome.ITSELF, "its address leads to this node itself"
        conductor = self._conductor
        next_number = None if conductor.arbiter.is_unbegun() else conductor.next_to_store
        plan = machine.told(address, said.first, said.last, next_number, said.role)
        if not isinstance(plan, Range):
            return AttemptOutcome.NOTHING, plan
        if next_number is None and said.report.get("rolling"):
            return AttemptOutcome.NOTHING, _ROLLING
        if (unknown := self._adopt_layout(address, said.stream_layout)) is not None:
            return AttemptOutcome.NOTHING, unknown
        return plan

    def _stream_of(self, machine: CatchUp, address: str, plan: Range) -> PeerStream:
        conductor = self._conductor
        return PeerStream(
            conductor,
            address,
            plan,
            self._stall_seconds,
            block_seconds=block_seconds(
                self._stall_seconds * self._limits.peer_block_stalls,
                machine.stalled_at(address, conductor.next_to_store),
            ),
            poll_seconds=self._limits.peer_poll_seconds,
            blocks_per_second_min=self._pace_min,
            ask_others=lambda: self._highest_of(machine.others(address, conductor.now_ns())),
            may_share=lambda: self._may_share(machine, address),
            share_seconds=self._limits.peer_share_seconds,
        )

    # --- several peers at once -----------------------------------------------------------------------------

    def _may_share(self, machine: CatchUp, address: str) -> bool:
        stream, now_ns = self._stream, self._conductor.now_ns()
        if stream is None or (last := stream.last_to_come) is None:
            return False
        missing_count = last - stream.offered_next + 1
        return self._limits.ranges.is_worth_while(
            missing_count, stream.blocks_per_second, stream.block_bytes
        ) and bool(machine.helpers(address, stream.offered_next, now_ns))

    def _ranges_after(self, machine: CatchUp, address: str, stream: PeerStream) -> RangePlan | None:
        """Return the plan by which this peer and others go on after an attempt with this peer."""
        conductor = self._conductor
        number, last = conductor.next_to_store, stream.last_to_come
        helpers = machine.helpers(address, number, conductor.now_ns())
        if last is None or last < number:
            return None
        asked = [address, *helpers][: self._limits.ranges.peers_max]
        return RangePlan(
            number, last, stream.blocks_per_second, stream.block_bytes, asked, self._limits.ranges
        )

    async def _share(self, machine: CatchUp, plan: RangePlan) -> None:
        """Take blocks from several peers at the same time, until the end of the plan or a failure."""

        def open_stream(address: str, blocks: Range, patience_seconds: float) -> PeerStream:
            self._stream = self._stream_of_range(plan, address, blocks, patience_seconds)
            return self._stream

        async def attempt(address: str, work: Callable[[], Awaitable[Ending]]) -> AttemptOutcome:
            ending = await self._ending_of(address, work)
            self._note_end(machine, address, ending, logging.DEBUG)
            return ending[0]

        async def lane(address: str) -> bool:
            try:
                ending = await self._ending_of(address, lambda: self._bring(machine, plan, ranges, address))
                if ending[0] is not AttemptOutcome.SHARED:  # its ranges were attempts of their own
                    self._note_end(machine, address, ending, logging.DEBUG)
            finally:
                plan.left(address)
                self.followed = ", ".join(plan.addresses) or None
                ranges.note()
            return True

        ranges, asked = PeerRanges(plan, open_stream, attempt), list(plan.asked)
        extra = fields(peers=", ".join(asked), start=plan.next_number, end=plan.end_number)
        log.info("several peers bring blocks", extra=extra)
        try:
            await ranges.run([lane(address) for address in asked])
        finally:
            self._stream = self.followed = None
            self._offered_next = ranges.offered_next
        await self._settle()

    async def _bring(self, machine: CatchUp, plan: RangePlan, ranges: PeerRanges, address: str) -> Ending:
        async with open_channel(address, self._tls, self._channel_options()) as channel:
            said = await ask_node(node_pb2_grpc.BlockNodeServiceStub(channel), self._status_seconds())
            found = self._plan_with(machine, address, said)
            if not isinstance(found, Range):
                return found
            if said.last is None:
                return AttemptOutcome.NOTHING, "it is empty"
            plan.joined(address, said.first or 0, said.last)
            self.followed = ", ".join(plan.addresses)
            await ranges.bring(address, channel)
            return AttemptOutcome.SHARED, "it has no further range"

    def _stream_of_range(
        self, plan: RangePlan, address: str, blocks: Range, patience_seconds: float
    ) -> PeerStream:
        async def ask_others() -> int | None:
            return plan.last_beside(address)

        stream = PeerStream(
            self._conductor,
            address,
            blocks,
            self._stall_seconds,
            block_seconds=patience_seconds,
            poll_seconds=self._limits.peer_poll_seconds,
            blocks_per_second_min=max(self._pace_min, count_of(blocks) / patience_seconds),
            ask_others=ask_others,
        )
        stream.known_last = blocks.end_number
        return stream

    def _adopt_layout(self, address: str, layout: int | None) -> str | None:
        """Give an empty stream the peer's layout; return why it cannot have that."""
        own = self._conductor.stream_layout
        if layout is None or layout == own:
            return None
        if own is not None:
            text = "a peer's stream has another layout: there, entries have other numbers"
            log.warning(text, extra=fields(peer=address, got=layout, expected=own))
        elif layout not in LAYOUTS:
            return f"its stream has layout {layout}, and this version knows {', '.join(map(str, LAYOUTS))}"
        elif not self._conductor.adopt_layout(layout):
            kind = "native" if layout == NATIVE_LAYOUT else "block"
            wanted = f"an empty data folder and stream.layout {kind}"
            return f"its stream has another layout: this node needs {wanted}"
        return None

    async def _poll(
        self,
        machine: CatchUp,
        stream: PeerStream,
        status: node_pb2_grpc.BlockNodeServiceAsyncStub,
        address: str,
    ) -> None:
        """Ask the peer for its status again: it may be silent because it has nothing new.

        If it has nothing new, does not answer, or is a standby, ask the other peers as well. Do so before the
        request times out, or the node would follow a hung process for long.
        """
        asking = asyncio.ensure_future(ask_node(status, self._status_seconds()))
        try:
            await asyncio.wait({asking}, timeout=self._limits.peer_mute_seconds)
            stream.is_mute = not asking.done() or asking.exception() is not None
            if stream.is_mute:
                await self._look_beside(machine, stream, address)
            said = await asking
        finally:
            asking.cancel()
        stream.is_mute, stream.known_active, stream.known_last = False, None, said.last
        machine.heard(address, said.last, self._conductor.next_to_store)
        machine.noted(address, said.first, said.last, said.role)
        if stream.is_quiet or machine.is_standby(address) or stream.is_unlooked:
            await self._look_beside(machine, stream, address)

    async def _look_beside(self, machine: CatchUp, stream: PeerStream, address: str) -> None:
        """Ask all other peers at once: a silent one delays none."""
        conductor = self._conductor

        async def look(other: str) -> None:
            said = await self.said_by(other)
            machine.noted(other, said.first, said.last, said.role)
            if stream.is_mute or machine.is_standby(address):
                stream.known_active = machine.active_beside(
                    address, conductor.next_to_store, conductor.now_ns()
                )
            if said.last is not None and not machine.is_shunned(other, conductor.now_ns()):
                stream.known_elsewhere = max(said.last, stream.known_elsewhere or 0)

        stream.looks_beside()
        others = machine.others(address, conductor.now_ns())
        for other in others:
            machine.noted(other, None, None, "")
        await asyncio.gather(*(look(other) for other in others))

    async def _highest_of(self, addresses: Sequence[str]) -> int | None:
        """None: nobody has one, or answers."""
        answers = await asyncio.gather(*(self.said_by(address) for address in addresses))
        return max((said.last for said in answers if said.last is not None), default=None)

    async def said_by(self, address: str) -> NodeAnswer:
        """Ask a node once; the answer is empty if it does not answer or is this node."""
        try:
            said = await self._ask_at(address)
        except (aio.AioRpcError, GatewayError) as error:
            log.debug("a peer does not answer", extra=fields(peer=address, reason=str(error)))
            return NodeAnswer()
        return NodeAnswer() if self._is_own(said) else said

    async def is_itself(self, address: str) -> bool:
        """Return whether an address leads to this node; one that does not answer does not."""
        try:
            return self._is_own(await self._ask_at(address))
        except (aio.AioRpcError, GatewayError):
            return False

    async def _ask_at(self, address: str) -> NodeAnswer:
        return await relayed_if_refused(address, lambda: self._ask_directly(address))

    async def _ask_directly(self, address: str) -> NodeAnswer:
        async with open_channel(address, self._tls, self._channel_options()) as channel:
            return await ask_node(node_pb2_grpc.BlockNodeServiceStub(channel), self._status_seconds())

    def _is_own(self, said: NodeAnswer) -> bool:
        return bool(said.instance) and said.instance == self._instance

    async def _look_around(self, machine: CatchUp, before: int) -> None:
        """Publishers tell a node what it has missed; when all publishers have left, nobody does."""
        if machine.live or self._conductor.next_to_store != before:
            return
        highest = await self._highest_of(machine.addresses)
        if highest is not None and highest >= self._conductor.next_to_store:
            log.info("a peer has later blocks", extra=fields(last_block=highest))
            machine.aim(highest)

    def _status_seconds(self) -> float:
        return min(self._stall_seconds, PEER_STATUS_SECONDS_MAX)

    def _channel_options(self) -> list[tuple[str, str | int]]:
        return [
            ("grpc.max_receive_message_length", self._message_bytes_max),
            *keepalive(KEEPALIVE_PEER_SECONDS, self._stall_seconds),
            # A new connection for each attempt: gRPC would reuse one that hangs.
            ("grpc.use_local_subchannel_pool", 1),
        ]


def block_seconds(first_seconds: float, stalled_count: int) -> float:
    """Return how long the node waits for one block of a peer, if another peer has it.

    The time doubles each time the peer stalls at this block.
    """
    return first_seconds * 2.0 ** min(stalled_count, PEER_BLOCK_DOUBLINGS_MAX)
