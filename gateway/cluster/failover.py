"""A failover: the active node hands over to a standby, step by step, and a step that fails is undone.

    read both       the one is active, the other a standby that has no problem; an active one may wait for the
                    first to have its blocks (`commit.min_standbys`): it is given some time to be ready
    drain           the active node finishes its blocks and sends publishers elsewhere
    level           the standby holds the same last block with the same root hash
    activate        the standby takes publishers; one that was active says that it still is
    stand by        the node that was active follows the new one

    a step fails                  what is done
    drain, refused                nothing: perhaps another failover has drained the node
    before activate               the drained node is resumed: it is active again
    activate, refused             as above: perhaps another failover has drained the target
    activate, answer lost, late   the standby is asked what it is, when its change is over; active: go on;
                                  else as above. One that died may come back as active: that is said
    stand by, or late for that    nothing: the load has moved. The failover says what the old node is: one
                                  that lives asks the new one when its lease ends, and is active again only
                                  if that does not say that it is active; one that died is a standby then

    interrupted                   what is done
    before activate               the step is given up, and the drained node resumed at once
    from activate on              the rest is done first; each of its calls has a time limit

Either way the failover says what both nodes are then. Both are standbys if the drained node was restarted in
the middle: which of them is to be active, an operator decides then, with `force`.

With `force` the failover takes the active node for dead and activates the standby as it is. It refuses that
while the other node still answers as active, or something else answers in its place. If the dead node comes
back, it is active as well, since nobody could tell it; the same failover without `force` then makes it a
standby. Until then both take the same chain's blocks. A standby whose own acknowledgements wait for other
nodes (`commit.min_standbys`) may have none left: it is active then and not ready, and a step says so.

A shell without sockets: it talks to `NodeControl`, so that every loss of an answer can be tried in a test.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Protocol, TypeVar

from sluice.gateway.cluster.roles import Phase
from sluice.gateway.errors import FailoverFailed, FailoverInterrupted, NodeCallFailed
from sluice.gateway.limits import CONTROL_CALL_SECONDS

__all__ = ["Failover", "FailoverStep", "NodeControl", "NodeStatus"]

FAILOVER_LEVEL_SECONDS: Final = 10.0
"""How long a standby may take to become level while publishers wait; then the failover is undone."""

FAILOVER_LOOK_SECONDS: Final = 2.0
"""How long a failover that was interrupted waits for each node to say what it is, before it says that."""

FAILOVER_READY_SECONDS: Final = 20.0
"""How long a failover between two active nodes waits for the second to be ready: with `commit.min_standbys`
it is so only while the first has its blocks, which that takes every `catchup.stall_seconds` (10) or so."""

FAILOVER_READY_POLL_SECONDS: Final = 0.5
"""How often it asks meanwhile; a node whose blocks wait for others stays ready for 3 s."""

FAILOVER_LEASE_SECONDS: Final = 30.0
"""How long a drained node waits for the end of the failover before it takes publishers again by itself:
longer than all steps of a failover together may take."""

_Result = TypeVar("_Result")

_INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """The answer of a node at its control address."""

    phase: Phase
    last_number: int | None
    """Its last block; None for an empty node."""
    last_root_hash: bytes
    """That block's root hash, 48 bytes; empty for an empty node."""
    grpc_address: str
    """Where publishers connect."""
    subscriber_address: str
    """Where subscribers connect, and nodes that follow it; mostly the same."""
    publisher_count: int = 0
    """Publishers connected."""
    followed: str = ""
    """The node that it follows."""
    problems: tuple[str, ...] = ()
    """Why it is not ready."""
    instance: str = ""
    """Another one for every process; empty where the node does not tell."""

    @property
    def last_text(self) -> str:
        """The last block for people."""
        return "no block" if self.last_number is None else f"block {self.last_number}"


class NodeControl(Protocol):
    """One node, as a failover sees it. Every method raises `NodeCallFailed`."""

    @property
    def address(self) -> str:
        """Where it was called, for messages."""

    async def state(self) -> NodeStatus:
        """Ask what it is."""

    async def drain(self, lease_seconds: float, successor: str, drain_id: str) -> NodeStatus:
        """Have it finish its blocks and send publishers elsewhere."""

    async def resume(self, drain_id: str) -> NodeStatus:
        """Have it take publishers again; it refuses where another drain has come."""

    async def await_block(self, number: int, root_hash: bytes, timeout_seconds: float) -> NodeStatus:
        """Wait until it holds a block."""

    async def activate(self, timeout_seconds: float) -> NodeStatus:
        """Make it active in this time, or leave it a standby."""

    async def stand_by(self, followed: str) -> NodeStatus:
        """Make it a standby."""


@dataclass(frozen=True, slots=True)
class FailoverStep:
    """A step that is done."""

    name: str
    detail: str
    """Its result."""
    seconds: float
    """How long it took."""


class Failover:
    """One failover from a node to another.

    Args:
        source: the node that is active, or was.
        target: the standby.
        report: called after each step.
    """

    def __init__(
        self,
        source: NodeControl,
        target: NodeControl,
        report: Callable[[FailoverStep], None],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        level_seconds: float = FAILOVER_LEVEL_SECONDS,
    ) -> None:
        self._source = source
        self._target = target
        self._report = report
        self._clock = clock
        self._sleep = sleep
        self._level_seconds = level_seconds
        self.is_interrupted = False
        """`interrupt` was called."""
        self._stoppable: asyncio.Future[Any] | None = None
        """The work that an interruption ends at once."""
        self._drain_asked_at: float | None = None
        """When the source was asked to drain, by `clock`; its lease begins later. None: not, or refused."""
        self._drain_id = secrets.token_hex(8)
        """The name of this failover's drain: it undoes no other."""
        self._step_name = ""
        """The step that was begun last."""
        self._grpc_addresses: tuple[str, ...] = ()

    async def run(self) -> None:
        """Hand over as planned.

        Raises:
            FailoverFailed: it was not possible; it says which node is active now.
            FailoverInterrupted: it was interrupted; it says what both nodes are now.
        """
        await self._to_an_end(self._hand_over())

    async def force(self) -> None:
        """Activate the standby because the active node is dead.

        Raises:
            FailoverFailed: the other node answers and is no standby, or the standby cannot be activated.
            FailoverInterrupted: it was interrupted; it says what both nodes are now.
        """
        await self._to_an_end(self._take_over())

    def interrupt(self) -> str:
        """End as soon as that leaves one active node; return in words what is done for that."""
        self.is_interrupted = True
        if self._stoppable is None:
            return "finishing what has to follow"
        self._stoppable.cancel()
        return "undoing what was done" if self._drain_asked_at is not None else "nothing has changed yet"

    def ended_at_once(self) -> FailoverInterrupted:
        """Return the error of a failover that was cancelled."""
        addresses = " ".join(self._grpc_addresses) or "HOST:PORT HOST:PORT"
        return FailoverInterrupted(
            f"{_INTERRUPTED} twice and ended at once, in the step: {self._step_name}",
            f"look at both nodes with: sluice status {addresses}; one that is drained follows the other "
            f"after {FAILOVER_LEASE_SECONDS:g} s, if that is active, or is active again; if both are active "
            "then, run the failover again",
        )

    # --- ways to the end -----------------------------------------------------------------------------------

    async def _to_an_end(self, work: Awaitable[None]) -> None:
        """Do the work; if it was interrupted, raise what the nodes are at its end."""
        reason, outcome, is_done = _INTERRUPTED, "the failover is done", True
        try:
            await work
        except FailoverFailed as error:
            if not self.is_interrupted:
                raise
            is_said = error.reason.startswith(_INTERRUPTED)
            reason = error.reason if is_said else f"{_INTERRUPTED}; {error.reason}"
            outcome, is_done = error.outcome, False
        if self.is_interrupted:
            states = ", ".join(
                await asyncio.gather(self._phase_text(self._source), self._phase_text(self._target))
            )
            raise FailoverInterrupted(reason, f"{outcome} ({states})", is_done=is_done)

    async def _interruptible(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Do work that an interruption ends at once.

        Raises:
            FailoverFailed: it was interrupted, or a step failed; what was done is undone.
        """
        self._stoppable = working = asyncio.ensure_future(work)
        try:
            result = await working
        except NodeCallFailed as error:
            self._stoppable = None  # an interruption does not stop the undoing
            await self._undo(str(error), error)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # all is ended, not this alone
        finally:
            self._stoppable = None
        if self.is_interrupted:
            if self._drain_asked_at is not None:
                await self._undo(_INTERRUPTED)
            raise FailoverFailed(_INTERRUPTED, "nothing has changed")
        return result

    async def _phase(self, node: NodeControl) -> Phase | None:
        """Ask a node for its phase; None: it does not answer soon."""
        try:
            async with asyncio.timeout(FAILOVER_LOOK_SECONDS):
                return (await node.state()).phase
        except (NodeCallFailed, TimeoutError):
            return None

    async def _phase_text(self, node: NodeControl) -> str:
        """Return the phase of a node in words."""
        return _phase_text(node, await self._phase(node))

    async def _source_text(self, note: str = "") -> str:
        """Return the phase of a source that is not resumed, and what to do, else `note`."""
        source, target = await asyncio.gather(self._phase(self._source), self._phase(self._target))
        return _phase_text(self._source, source) + (self._advice(source, target) or note)

    async def _hand_over(self) -> None:
        """Do a planned failover."""
        target = await self._interruptible(self._prepare())
        if target is None:
            return  # done before
        # Also if the target was active: it may have died since, or be drained by a failover the other way.
        await self._refuse_if_late()
        await self._activate()
        await self._retire(target.subscriber_address)

    async def _prepare(self) -> NodeStatus | None:
        """Do all that goes before the activation; return the target's status. None: nothing is to be done."""
        source, target = await self._step("read both nodes", self._read(), _both_text)
        self._refuse_one_node(source, target)
        if source.phase is Phase.STANDBY and target.phase is Phase.ACTIVE:
            return None
        if source.phase is target.phase is Phase.ACTIVE and target.problems:
            target = await self._step(
                f"wait for {self._target.address}",
                self._await_ready(target),
                lambda state: "not ready" if state.problems else "ready",
            )
        self._check(source, target)
        drained = await self._drain(target.subscriber_address)
        if drained.last_number is not None:
            await self._step(
                f"level {self._target.address}",
                self._target.await_block(drained.last_number, drained.last_root_hash, self._level_seconds),
                lambda state: f"{state.last_text}, same root hash",
            )
        return target

    async def _take_over(self) -> None:
        """Do a failover by force."""
        await self._interruptible(self._refuse_force())
        try:
            target = await self._step(
                f"activate {self._target.address}",
                self._target.activate(CONTROL_CALL_SECONDS),
                lambda state: state.last_text,
            )
        except NodeCallFailed as error:
            raise FailoverFailed(f"{self._target.address} cannot be activated: {error.reason}", "") from error
        if target.problems:  # it is active, and may not take blocks before it has a standby of its own
            name = f"{self._target.address} is active and NOT READY"
            self._report(FailoverStep(name, "; ".join(target.problems), 0.0))

    # --- steps ---------------------------------------------------------------------------------------------

    async def _refuse_force(self) -> None:
        """Refuse force if the other node answers."""
        self._step_name = "ask whether the other node is dead"
        try:
            source = await self._source.state()
        except NodeCallFailed as error:
            if error.is_unanswered:
                return
            raise FailoverFailed(
                str(error), "nothing has changed: --force is for a node that does not answer at all"
            ) from error
        if source.phase is not Phase.STANDBY:
            raise FailoverFailed(
                f"{self._source.address} answers and is {source.phase.value}",
                "leave --force out, or stop that node first",
            )
        self._refuse_one_node(source, await self._target_state())

    async def _read(self) -> tuple[NodeStatus, NodeStatus]:
        try:
            source, target = await self._source.state(), await self._target.state()
        except NodeCallFailed as error:
            advice = "nothing has changed"
            if error.address == self._source.address and error.is_unanswered:
                advice += "; if that node is dead: --force"
            raise FailoverFailed(str(error), advice) from error
        self._grpc_addresses = source.grpc_address, target.grpc_address
        return source, target

    async def _target_state(self) -> NodeStatus:
        try:
            return await self._target.state()
        except NodeCallFailed as error:
            raise FailoverFailed(str(error), "nothing has changed") from error

    async def _await_ready(self, target: NodeStatus) -> NodeStatus:
        """Wait for a target that is active as well: its blocks may wait for the source to have them."""
        deadline = self._clock() + FAILOVER_READY_SECONDS
        while target.problems and self._clock() < deadline:
            await self._sleep(FAILOVER_READY_POLL_SECONDS)
            target = await self._target_state()
        return target

    def _refuse_one_node(self, source: NodeStatus, target: NodeStatus) -> None:
        """Refuse a failover from a node to itself, under whatever name."""
        if source.instance and source.instance == target.instance:
            both = f"{self._source.address} and {self._target.address}"
            raise FailoverFailed(f"{both} are the same node", "nothing has changed")

    def _check(self, source: NodeStatus, target: NodeStatus) -> None:
        """Refuse what cannot end well, before anything changes."""
        wrong = advice = ""
        if source.phase is not Phase.ACTIVE:
            wrong = f"{self._source.address} is {source.phase.value}, expected active"
            advice = self._advice(source.phase, target.phase)
        elif target.phase not in (Phase.STANDBY, Phase.ACTIVE):
            wrong = f"{self._target.address} is {target.phase.value}, expected standby"
        elif target.problems:
            wrong = f"{self._target.address} is not ready: {'; '.join(target.problems)}"
        elif source.grpc_address == target.grpc_address:
            wrong = (
                f"both nodes have the gRPC address {source.grpc_address}; where others find a node is its "
                "grpc.advertised_address"
            )
        if wrong:
            raise FailoverFailed(wrong, f"nothing has changed{advice}")

    def _advice(self, source: Phase | None, target: Phase | None) -> str:
        """Return what to do if no node is active, as after a restart of the drained one; else ""."""
        if source is not Phase.STANDBY or target not in (Phase.STANDBY, None):
            return ""
        both = f"{self._target.address} does not answer" if target is None else "both are standbys"
        return (
            f"; {both}: where no other node is active, see which is ahead with sluice status "
            f"{' '.join(self._grpc_addresses)}, and fail over to that one with --force"
        )

    async def _drain(self, successor: str) -> NodeStatus:
        """Drain the source; if it refuses, it is not resumed, since another failover may have drained it."""
        self._drain_asked_at = self._clock()
        try:
            return await self._step(
                f"drain {self._source.address}",
                self._source.drain(FAILOVER_LEASE_SECONDS, successor, self._drain_id),
                lambda state: f"{state.last_text}, publishers sent elsewhere",
            )
        except NodeCallFailed as error:
            if not error.is_refused:
                raise
            self._drain_asked_at = None
            raise FailoverFailed(str(error), await self._phase_text(self._source)) from error

    async def _refuse_if_late(self) -> None:
        """Refuse to go on after the source's lease: this command was suspended for a while."""
        if (lateness := self._lateness()) is not None:
            raise FailoverFailed(lateness, await self._source_text())

    def _lateness(self) -> str | None:
        """Return in words that the lease of the drained node is over; None: it is not."""
        seconds = self._seconds_since_drain()
        if seconds < FAILOVER_LEASE_SECONDS:
            return None
        return f"the drain is {seconds:.0f} s ago, expected less than {FAILOVER_LEASE_SECONDS:g} s"

    def _seconds_since_drain(self) -> float:
        return 0.0 if self._drain_asked_at is None else self._clock() - self._drain_asked_at

    async def _activate(self) -> None:
        # Not beyond the source's lease: after that, it is active again if the target is not.
        seconds = min(CONTROL_CALL_SECONDS, FAILOVER_LEASE_SECONDS - self._seconds_since_drain())
        try:
            await self._step(
                f"activate {self._target.address}",
                self._target.activate(seconds),
                lambda state: state.last_text,
            )
        except NodeCallFailed as error:
            if error.is_refused:  # another failover has drained it, and has yet to end: it is not to resume
                await self._undo(str(error), error)
            # Perhaps only the answer was lost, or is late: then the load moves, and undoing would make two
            # active nodes. A node makes one change at a time, so it answers a resume after the activation.
            # The resume changes nothing: an active node is active, any other that this failover did not drain
            # refuses it.
            with suppress(NodeCallFailed):
                await self._target.resume(self._drain_id)
            note = ""
            try:
                if (await self._target.state()).phase is Phase.ACTIVE:
                    return
            except NodeCallFailed:  # it remembers what it has become, and nobody can tell it of the undoing
                note = (
                    f", and {self._target.address} may be, too, when it comes back: see with sluice status "
                    f"{' '.join(self._grpc_addresses)}, and run a failover to the one that is ahead"
                )
            await self._undo(str(error), error, note)

    async def _retire(self, followed: str) -> None:
        name = f"{self._source.address} stands by"
        if (lateness := self._lateness()) is not None:  # perhaps it is drained for another failover by now
            await self._see_retired(name, followed, lateness)
            return
        try:
            await self._step(name, self._source.stand_by(followed), lambda state: f"follows {state.followed}")
        except NodeCallFailed as error:
            await self._see_retired(name, followed, str(error))

    async def _see_retired(self, name: str, followed: str, reason: str) -> None:
        """Look at a source that was not told to stand by, or has not answered to that.

        Raises:
            FailoverFailed: it is no standby; `reason` says why.
        """
        try:
            source = await self._source.state()
        except NodeCallFailed as error:
            detail = (
                f"no answer ({error.reason}); if it died it comes back as a standby of {followed}, if it "
                f"lives it becomes one after {FAILOVER_LEASE_SECONDS:g} s; if both are active then, run "
                "the failover again"
            )
            self._report(FailoverStep(name, detail, 0.0))
            return
        if source.phase is not Phase.STANDBY:
            until = (
                ""
                if source.phase is Phase.ACTIVE
                else f", and after {FAILOVER_LEASE_SECONDS:g} s its standby, or active"
            )
            raise FailoverFailed(
                reason,
                f"{self._target.address} is active, but {self._source.address} is {source.phase.value}"
                f"{until}: run the failover again",
            )
        self._report(FailoverStep(name, f"follows {source.followed}", 0.0))

    async def _undo(self, reason: str, error: NodeCallFailed | None = None, note: str = "") -> NoReturn:
        """Make the drained node active again; `note` follows the words that say so.

        Raises:
            FailoverFailed: always; it says how far the undoing went.
        """
        if (lateness := self._lateness()) is not None:  # it is active by itself, or drained for another
            raise FailoverFailed(f"{reason}; {lateness}", await self._source_text(note)) from error
        try:
            await self._step(
                f"undo: resume {self._source.address}",
                self._source.resume(self._drain_id),
                lambda state: state.phase.value,
            )
        except NodeCallFailed as second:
            outcome = (
                f"is {self._source.address} dead? then: --force; if it is alive it is active again after "
                f"{FAILOVER_LEASE_SECONDS:g} s"
                if second.is_unanswered
                else await self._source_text(note)
            )
            raise FailoverFailed(f"{reason}; {second}", outcome) from error
        raise FailoverFailed(reason, f"{self._source.address} is active again{note}") from error

    async def _step(self, name: str, work: Awaitable[_Result], detail: Callable[[_Result], str]) -> _Result:
        began, self._step_name = self._clock(), name
        result = await work
        self._report(FailoverStep(name, detail(result), self._clock() - began))
        return result


def _phase_text(node: NodeControl, phase: Phase | None) -> str:
    return f"{node.address} does not answer" if phase is None else f"{node.address} is {phase.value}"


def _both_text(states: tuple[NodeStatus, NodeStatus]) -> str:
    source, target = states
    return f"{source.phase.value} at {source.last_text}, {target.phase.value} at {target.last_text}"
