"""A failover: the active node hands over to a standby, step by step; a step that fails is undone.

    read both       source active, target a standby without problems; a target that is also active may have to
                    wait for the source to have its blocks (`commit.min_standbys`)
    drain           the source finishes its blocks and sends publishers elsewhere
    level           the target has the same last block with the same root hash
    activate        the target takes publishers
    stand by        the source follows the target

    failed step                   the failover
    drain, refused                does nothing: another failover may have drained the node
    before activate               resumes the source, which is active again
    activate, refused             resumes the source: another failover may have drained the target
    activate, no or late answer   asks the target what it is once its change is over, and goes on if it is
                                  active; else resumes the source
    stand by, failed or late      undoes nothing, since the load has moved

An interruption before activate abandons the step and resumes the source; from activate on the failover
finishes.

A shell without sockets: it talks to `NodeControl`, so that a test can lose any answer.

Source: docs/operations.md, "Fail over".
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
"""The time that a standby has to reach the source's last block while publishers wait."""

FAILOVER_LOOK_SECONDS: Final = 2.0
"""The time that an interrupted failover waits for each node's final state."""

FAILOVER_READY_SECONDS: Final = 20.0
"""The time that a failover between two active nodes waits: with `commit.min_standbys` the target is ready
only while the source has its blocks, which takes the source about `catchup.stall_seconds`."""

FAILOVER_READY_POLL_SECONDS: Final = 0.5
"""Time between two questions meanwhile; a node whose blocks wait for others stays ready for 3 s."""

FAILOVER_LEASE_SECONDS: Final = 30.0
"""Longer than all steps of a failover together."""

_Result = TypeVar("_Result")

_INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """The state of a node."""

    phase: Phase
    last_number: int | None
    last_root_hash: bytes
    """That block's root hash, 48 bytes; empty for an empty node."""
    grpc_address: str
    subscriber_address: str
    """The address for subscribers and following nodes; mostly the same."""
    publisher_count: int = 0
    followed: str = ""
    problems: tuple[str, ...] = ()
    instance: str = ""
    """Empty where the node does not tell."""

    @property
    def last_text(self) -> str:
        """The last block for people."""
        return "no block" if self.last_number is None else f"block {self.last_number}"


class NodeControl(Protocol):
    """One node, as a failover sees it. Every method raises `NodeCallFailed`."""

    @property
    def address(self) -> str:
        """Its address, for messages."""

    async def state(self) -> NodeStatus:
        """Return its state."""

    async def drain(self, lease_seconds: float, successor: str, drain_id: str) -> NodeStatus:
        """Make it finish its blocks and send publishers elsewhere."""

    async def resume(self, drain_id: str) -> NodeStatus:
        """Make it take publishers again; it refuses after another drain."""

    async def await_block(self, number: int, root_hash: bytes, timeout_seconds: float) -> NodeStatus:
        """Wait until it has a block."""

    async def activate(self, timeout_seconds: float) -> NodeStatus:
        """Make it active within this time, or leave it a standby."""

    async def stand_by(self, followed: str) -> NodeStatus:
        """Make it a standby."""


@dataclass(frozen=True, slots=True)
class FailoverStep:
    """A finished step."""

    name: str
    detail: str
    seconds: float


class Failover:
    """One failover between two nodes."""

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
        self._stoppable: asyncio.Future[Any] | None = None
        self._drain_asked_at: float | None = None
        """By `clock`; the lease begins later. None: not asked, or refused."""
        self._drain_id = secrets.token_hex(8)
        """Its resume ends no other drain."""
        self._step_name = ""
        self._grpc_addresses: tuple[str, ...] = ()

    async def run(self) -> None:
        """Hand over as planned.

        Raises:
            FailoverFailed: the error says which node is active now.
            FailoverInterrupted: the error says what both nodes are now.
        """
        await self._to_an_end(self._hand_over())

    async def force(self) -> None:
        """Activate the target because the source is dead.

        Raises:
            FailoverFailed: the source answers and is no standby, or the target cannot be activated.
        """
        await self._to_an_end(self._take_over())

    def interrupt(self) -> str:
        """End as soon as one node is active; return what remains to be done."""
        self.is_interrupted = True
        if self._stoppable is None:
            return "finishing what has to follow"
        self._stoppable.cancel()
        return "undoing what was done" if self._drain_asked_at is not None else "nothing has changed yet"

    def ended_at_once(self) -> FailoverInterrupted:
        """A cancelled failover ends with this error."""
        addresses = " ".join(self._grpc_addresses) or "HOST:PORT HOST:PORT"
        return FailoverInterrupted(
            f"{_INTERRUPTED} twice and ended at once, in the step: {self._step_name}",
            f"look at both nodes with: sluice status {addresses}; one that is drained follows the other "
            f"after {FAILOVER_LEASE_SECONDS:g} s, if that is active, or is active again; if both are active "
            "then, run the failover again",
        )

    # --- ways to the end -----------------------------------------------------------------------------------

    async def _to_an_end(self, work: Awaitable[None]) -> None:
        """Do the work; if it was interrupted, raise an error with the final state of both nodes."""
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
        """An interruption cancels the work; it raises FailoverFailed then, as a failed step does."""
        self._stoppable = working = asyncio.ensure_future(work)
        try:
            result = await working
        except NodeCallFailed as error:
            self._stoppable = None  # an interruption does not stop the undoing
            await self._undo(str(error), error)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # the whole failover is cancelled
        finally:
            self._stoppable = None
        if self.is_interrupted:
            if self._drain_asked_at is not None:
                await self._undo(_INTERRUPTED)
            raise FailoverFailed(_INTERRUPTED, "nothing has changed")
        return result

    async def _phase(self, node: NodeControl) -> Phase | None:
        try:
            async with asyncio.timeout(FAILOVER_LOOK_SECONDS):
                return (await node.state()).phase
        except (NodeCallFailed, TimeoutError):
            return None

    async def _phase_text(self, node: NodeControl) -> str:
        return _phase_text(node, await self._phase(node))

    async def _source_text(self, note: str = "") -> str:
        source, target = await asyncio.gather(self._phase(self._source), self._phase(self._target))
        return _phase_text(self._source, source) + (self._advice(source, target) or note)

    async def _hand_over(self) -> None:
        target = await self._interruptible(self._prepare())
        if target is None:
            return  # the failover was done before
        # Also for a target that was active: it may have died since, or a failover the other way may have
        # drained it.
        await self._refuse_if_late()
        await self._activate()
        await self._retire(target.subscriber_address)

    async def _prepare(self) -> NodeStatus | None:
        """None: nothing to do."""
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
        await self._interruptible(self._refuse_force())
        try:
            target = await self._step(
                f"activate {self._target.address}",
                self._target.activate(CONTROL_CALL_SECONDS),
                lambda state: state.last_text,
            )
        except NodeCallFailed as error:
            raise FailoverFailed(f"{self._target.address} cannot be activated: {error.reason}", "") from error
        if target.problems:  # it is active, but takes no blocks before it has a standby of its own
            name = f"{self._target.address} is active and NOT READY"
            self._report(FailoverStep(name, "; ".join(target.problems), 0.0))

    # --- steps ---------------------------------------------------------------------------------------------

    async def _refuse_force(self) -> None:
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
        deadline = self._clock() + FAILOVER_READY_SECONDS
        while target.problems and self._clock() < deadline:
            await self._sleep(FAILOVER_READY_POLL_SECONDS)
            target = await self._target_state()
        return target

    def _refuse_one_node(self, source: NodeStatus, target: NodeStatus) -> None:
        if source.instance and source.instance == target.instance:
            both = f"{self._source.address} and {self._target.address}"
            raise FailoverFailed(f"{both} are the same node", "nothing has changed")

    def _check(self, source: NodeStatus, target: NodeStatus) -> None:
        """Refuse a hopeless failover before anything changes."""
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
        """If it refuses, do not resume it: another failover may have drained it."""
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
        seconds = self._seconds_since_drain()
        if seconds < FAILOVER_LEASE_SECONDS:
            return None
        return f"the drain is {seconds:.0f} s ago, expected less than {FAILOVER_LEASE_SECONDS:g} s"

    def _seconds_since_drain(self) -> float:
        return 0.0 if self._drain_asked_at is None else self._clock() - self._drain_asked_at

    async def _activate(self) -> None:
        # Within the source's lease: after it, the source is active again unless the target is active.
        seconds = min(CONTROL_CALL_SECONDS, FAILOVER_LEASE_SECONDS - self._seconds_since_drain())
        try:
            await self._step(
                f"activate {self._target.address}",
                self._target.activate(seconds),
                lambda state: state.last_text,
            )
        except NodeCallFailed as error:
            if error.is_refused:  # another failover has drained it and not ended: it must not resume
                await self._undo(str(error), error)
            # Only the answer may be lost or late: then undoing would make two active nodes. A node makes one
            # change at a time, so it answers a resume after the activation, and this resume changes nothing.
            with suppress(NodeCallFailed):
                await self._target.resume(self._drain_id)
            note = ""
            try:
                if (await self._target.state()).phase is Phase.ACTIVE:
                    return
            except NodeCallFailed:  # it remembers its new role, and nobody can tell it of the undoing
                note = (
                    f", and {self._target.address} may be, too, when it comes back: see with sluice status "
                    f"{' '.join(self._grpc_addresses)}, and run a failover to the one that is ahead"
                )
            await self._undo(str(error), error, note)

    async def _retire(self, followed: str) -> None:
        name = f"{self._source.address} stands by"
        if (lateness := self._lateness()) is not None:  # another failover may have drained it by now
            await self._see_retired(name, followed, lateness)
            return
        try:
            await self._step(name, self._source.stand_by(followed), lambda state: f"follows {state.followed}")
        except NodeCallFailed as error:
            await self._see_retired(name, followed, str(error))

    async def _see_retired(self, name: str, followed: str, reason: str) -> None:
        """Look at a source that was not told to stand by, or did not answer."""
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
        """Make the drained source active again; `note` follows the words that say so."""
        if (lateness := self._lateness()) is not None:  # active by itself, or drained by another failover
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
