"""An active node and its standby for tests of `cluster.failover`; calls can fail and answers be lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from sluice.gateway.cluster.failover import Failover, FailoverStep, NodeStatus
from sluice.gateway.cluster.roles import Phase, RoleEvent, RoleRecord, RoleState
from sluice.gateway.errors import FailoverFailed, NodeCallFailed, RoleRefused

ROOT = b"\x11" * 48
LOST = "UNAVAILABLE: connection reset"
DEAD = "UNAVAILABLE: no answer"


@dataclass
class FakeNode:
    """A node with a real role table, whose calls can fail before or after they take effect."""

    address: str
    role: RoleState
    last_number: int | None = 41
    root_hash: bytes = ROOT
    problems: tuple[str, ...] = ()
    instance: str = ""
    refuse: set[str] = field(default_factory=set)
    """Calls that fail and change nothing."""
    lose: set[str] = field(default_factory=set)
    """Calls that take effect, but whose answer is lost."""
    late: set[str] = field(default_factory=set)
    """Calls that take effect only before the next change, after the caller gave up."""
    dies_after: str = ""
    """The last call to be answered."""
    interrupted_at: str = ""
    """The call that interrupts the failover."""
    interrupt: Callable[[], object] = str
    takes: dict[str, float] = field(default_factory=dict)
    """Seconds that each call takes."""
    seconds: float = 0.0
    """The sum of those seconds."""
    drained_first: str = ""
    """Another failover drains it for this node first."""
    calls: list[str] = field(default_factory=list)
    activate_seconds: float = 0.0
    """The time allowed for the last activation."""
    drain_id: str = ""
    """Names the last drain."""
    is_dead: bool = False
    under_way: list[RoleEvent] = field(default_factory=list)

    def _status(self) -> NodeStatus:
        return NodeStatus(
            self.role.phase,
            self.last_number,
            self.root_hash,
            f"grpc-of-{self.address}",
            f"subscribers-of-{self.address}",
            followed=self.role.followed or "",
            problems=self.problems,
            instance=self.instance,
        )

    def _call(self, name: str, *events: RoleEvent, followed: str | None = None) -> NodeStatus:
        if self.is_dead:
            raise NodeCallFailed(self.address, DEAD, is_unanswered=True)
        self.calls.append(name)
        self.seconds += self.takes.get(name, 0.0)
        if name == self.interrupted_at:
            self.interrupt()
        if name in self.refuse:
            raise NodeCallFailed(self.address, f"INTERNAL: {name} refused")
        if name in self.late:
            self.under_way += events
            raise NodeCallFailed(self.address, "DEADLINE_EXCEEDED: too late", is_unanswered=True)
        if events:
            self.finish()
        try:
            for event in events:
                self.role.take(event, followed)
        except RoleRefused as error:
            raise NodeCallFailed(self.address, f"FAILED_PRECONDITION: {error}", is_refused=True) from error
        self.is_dead = name == self.dies_after
        if name in self.lose:
            raise NodeCallFailed(self.address, LOST, is_unanswered=True)
        return self._status()

    def finish(self) -> None:
        """Make the pending changes."""
        for event in self.under_way:
            self.role.take(event)
        self.under_way.clear()

    async def state(self) -> NodeStatus:
        return self._call("state")

    async def drain(self, lease_seconds: float, successor: str, drain_id: str) -> NodeStatus:
        assert lease_seconds > 0
        assert drain_id
        self.drain_id = drain_id
        if self.drained_first:
            self.role.take(RoleEvent.DRAIN, self.drained_first)
            self.role.take(RoleEvent.IDLE)
        return self._call("drain", RoleEvent.DRAIN, RoleEvent.IDLE, followed=successor)

    async def resume(self, drain_id: str) -> NodeStatus:
        assert self.address != "A" or drain_id == self.drain_id
        return self._call("resume", RoleEvent.RESUME)

    async def await_block(self, number: int, root_hash: bytes, timeout_seconds: float) -> NodeStatus:
        assert timeout_seconds > 0
        status = self._call("await_block")
        if self.last_number is None or self.last_number < number or self.root_hash != root_hash:
            raise NodeCallFailed(self.address, "FAILED_PRECONDITION: another chain")
        return status

    async def activate(self, timeout_seconds: float) -> NodeStatus:
        self.activate_seconds = timeout_seconds
        return self._call("activate", RoleEvent.ACTIVATE)

    async def stand_by(self, followed: str) -> NodeStatus:
        return self._call("stand_by", RoleEvent.STAND_BY, followed=followed)


class Pair:
    """An active node A and its standby B."""

    def __init__(self) -> None:
        self.a = FakeNode("A", RoleState(RoleRecord("active")))
        self.b = FakeNode("B", RoleState(RoleRecord("standby", "grpc-of-A")))
        self.steps: list[FailoverStep] = []

    def run(self, *, force: bool = False) -> None:
        """Run the failover from A to B."""
        failover = Failover(self.a, self.b, self.steps.append, clock=lambda: self.a.seconds + self.b.seconds)
        self.a.interrupt = self.b.interrupt = failover.interrupt
        asyncio.run(failover.force() if force else failover.run())

    def failure(self, *, force: bool = False) -> str:
        """Run it, and return the error's text."""
        with pytest.raises(FailoverFailed) as caught:
            self.run(force=force)
        return str(caught.value)

    @property
    def active(self) -> list[str]:
        """The active nodes; dead ones as they would come back."""
        return [
            node.address
            for node in (self.a, self.b)
            if (RoleState(node.role.record()).phase if node.is_dead else node.role.phase) is Phase.ACTIVE
        ]
