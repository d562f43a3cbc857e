"""The faults of the script. Each ends with every node up again, and an active one among them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from sluice.gateway.cluster.control_client import ControlClient
from sluice.gateway.cluster.failover import FAILOVER_LEASE_SECONDS, Failover, FailoverStep, NodeStatus
from sluice.gateway.cluster.roles import Phase
from sluice.gateway.errors import FailoverFailed
from tests.chaos.cluster import ChaosNode
from tests.chaos.script import Fault, FaultKind, choose

__all__ = ["Faults", "Stuck", "within"]

log = logging.getLogger(__name__)
_Result = TypeVar("_Result")

LOOK_SECONDS = 0.05
CALM_SECONDS = 60.0
FAR_BLOCKS = 40
"""How many blocks a node may be behind the best when the next fault comes."""


class Stuck(AssertionError):
    """A wait took too long. Fields: `what`, `seconds`, `got`."""

    def __init__(self, what: str, seconds: float, got: str) -> None:
        super().__init__(f"{what}: got {got} after {seconds:g} s")
        self.what = what
        self.seconds = seconds
        self.got = got


async def within(
    seconds: float, what: str, awaited: Awaitable[_Result], got: Callable[[], object] = lambda: "nothing"
) -> _Result:
    """Await something; if it takes too long, say what, and how far it came."""
    try:
        return await asyncio.wait_for(awaited, seconds)
    except TimeoutError:
        raise Stuck(what, seconds, str(got())) from None


class Faults:
    """Applies faults to nodes.

    Args:
        nodes: all of them, started.
        say: called with each event.
    """

    def __init__(self, nodes: Sequence[ChaosNode], say: Callable[[str], None]) -> None:
        self.nodes = nodes
        self._say = say
        self._do: dict[FaultKind, Callable[[Fault], Awaitable[None]]] = {
            FaultKind.FAIL_OVER: self._fail_over,
            FaultKind.LOST: self._lost,
            FaultKind.KILL: self._kill,
            FaultKind.CUT: self._cut,
            FaultKind.FILL: self._fill,
            FaultKind.RESTART: self._restart,
            FaultKind.RUIN: self._ruin,
        }

    async def hit(self, fault: Fault) -> None:
        """Apply one fault from beginning to end."""
        await self._do[fault.kind](fault)

    # --- looking -------------------------------------------------------------------------------------------

    async def states(self) -> dict[ChaosNode, NodeStatus]:
        """Return the states of all nodes that answer."""
        found = await asyncio.gather(*(node.state() for node in self.nodes))
        return {node: state for node, state in zip(self.nodes, found, strict=True) if state is not None}

    async def calm(self) -> dict[ChaosNode, NodeStatus]:
        """Wait until all nodes are ready, none is far behind, and one is active; return their states."""
        seen = "nothing"

        async def look() -> dict[ChaosNode, NodeStatus]:
            nonlocal seen
            while True:
                states = await self.states()
                ready = await asyncio.gather(*(node.is_ready() for node in self.nodes))
                seen = "; ".join(
                    f"{node}: {_text(states.get(node))}{'' if is_ready else ', not ready'}"
                    for node, is_ready in zip(self.nodes, ready, strict=True)
                )
                numbers = [-1 if one.last_number is None else one.last_number for one in states.values()]
                settled = all(one.phase in (Phase.ACTIVE, Phase.STANDBY) for one in states.values())
                if (
                    len(states) == len(self.nodes)
                    and all(ready)
                    and settled
                    and max(numbers) - min(numbers) <= FAR_BLOCKS
                    and any(one.phase is Phase.ACTIVE for one in states.values())
                ):
                    return states
                await asyncio.sleep(LOOK_SECONDS)

        return await within(CALM_SECONDS, "nodes that are ready again", look(), lambda: seen)

    def _pick(
        self, states: dict[ChaosNode, NodeStatus], phase: Phase, number: float, but: ChaosNode | None = None
    ) -> ChaosNode | None:
        found = [node for node, state in states.items() if state.phase is phase and node is not but]
        return choose(found, number) if found else None

    # --- the faults ----------------------------------------------------------------------------------------

    async def _fail_over(self, fault: Fault) -> None:
        states = await self.calm()
        source = self._pick(states, Phase.ACTIVE, fault.hits)
        assert source is not None, "calm has an active node"
        target = self._pick(states, Phase.STANDBY, fault.also) or self._pick(
            states, Phase.ACTIVE, fault.also, but=source
        )
        assert target is not None, "there are three nodes"
        await self.fail_over(source, target)

    async def fail_over(self, source: ChaosNode, target: ChaosNode, *, force: bool = False) -> None:
        """Do what `sluice failover` does.

        Raises:
            FailoverFailed: it was not possible.
        """
        steps: list[FailoverStep] = []
        async with ControlClient(str(source.control)) as one, ControlClient(str(target.control)) as other:
            failover = Failover(one, other, steps.append)
            await (failover.force() if force else failover.run())
        seconds = sum(step.seconds for step in steps)
        self._say(f"{source} -> {target}{' by force' if force else ''}: {seconds:.2f} s")

    async def _lost(self, fault: Fault) -> None:
        states = await self.calm()
        source = self._pick(states, Phase.ACTIVE, fault.hits)
        assert source is not None, "calm has an active node"
        target = self._pick(states, Phase.STANDBY, fault.also)
        if target is None:
            target = self._pick(states, Phase.ACTIVE, fault.also, but=source)
        assert target is not None, "there are three nodes"
        victim = source if fault.also < 0.5 else target
        running = asyncio.ensure_future(self.fail_over(source, target))
        await asyncio.sleep(fault.seconds / 20)
        victim.kill()
        self._say(f"{victim} is killed while {source} hands over to {target}")
        try:
            await within(CALM_SECONDS, "the end of a failover whose node is dead", running)
        except FailoverFailed as error:
            self._say(f"the failover ends: {error}")
        await victim.start()
        await self._have_an_active_node(source, target)

    async def _have_an_active_node(self, source: ChaosNode, target: ChaosNode) -> None:
        """Act like an operator after a failed failover: look, and force the standby."""

        async def settle() -> dict[ChaosNode, NodeStatus]:
            while True:
                states = await self.states()
                if len(states) == len(self.nodes) and all(
                    state.phase in (Phase.ACTIVE, Phase.STANDBY) for state in states.values()
                ):
                    return states
                await asyncio.sleep(LOOK_SECONDS)

        # A drained node takes publishers again by itself.
        states = await within(FAILOVER_LEASE_SECONDS + CALM_SECONDS, "nodes that have settled", settle())
        if not any(state.phase is Phase.ACTIVE for state in states.values()):
            await self.fail_over(source, target, force=True)

    async def _kill(self, fault: Fault) -> None:
        states = await self.calm()
        victim = choose(self.nodes, fault.hits)
        was_active = states[victim].phase is Phase.ACTIVE
        others_active = any(
            state.phase is Phase.ACTIVE for node, state in states.items() if node is not victim
        )
        victim.kill()
        self._say(f"{victim} ({states[victim].phase.value}) is killed")
        await asyncio.sleep(fault.seconds / 2)
        successor = None
        if was_active and not others_active:
            successor = self._pick(states, Phase.STANDBY, fault.also, but=victim)
            assert successor is not None, "there are three nodes"
            await self.fail_over(victim, successor, force=True)
            await asyncio.sleep(fault.seconds / 2)
        await victim.start()
        if successor is not None:  # nobody could tell it, so it is active as well
            await self.calm()
            await self.fail_over(victim, successor)

    async def _ruin(self, fault: Fault) -> None:
        """Kill an active node, delete its disk, and let it begin anew."""
        states = await self.calm()
        victim = self._pick(states, Phase.ACTIVE, fault.hits)
        assert victim is not None, "calm has an active node"
        others_active = self._pick(states, Phase.ACTIVE, fault.also, but=victim) is not None
        victim.kill()
        victim.replace_disk()
        self._say(f"{victim} is killed and its disk thrown away")
        if not others_active:
            successor = self._pick(states, Phase.STANDBY, fault.also, but=victim)
            assert successor is not None, "there are three nodes"
            await self.fail_over(victim, successor, force=True)
        await asyncio.sleep(fault.seconds / 2)
        states = await self.states()
        highest = max(-1 if one.last_number is None else one.last_number for one in states.values())
        await victim.start()
        # One disk at a time: the others' blocks must be on enough disks again before the next loss.
        await within(CALM_SECONDS, f"all nodes to have block {highest}", self._all_have(highest))

    async def _all_have(self, number: int) -> None:
        while True:
            lasts = [one.last_number for one in (await self.states()).values()]
            if len(lasts) == len(self.nodes) and all(last is not None and last >= number for last in lasts):
                return
            await asyncio.sleep(LOOK_SECONDS)

    async def _cut(self, fault: Fault) -> None:
        victim = choose(self.nodes, fault.hits)
        self._say(f"{victim} is cut off: {victim.place.cut(fault.also)}")
        await asyncio.sleep(fault.seconds * victim.place.cut_factor)
        victim.place.heal()

    async def _fill(self, fault: Fault) -> None:
        victim = choose(self.nodes, fault.hits)
        self._say(f"the disk of {victim} is full")
        victim.fill_disk()
        await asyncio.sleep(fault.seconds)
        if not await victim.is_ready():
            self._say(f"{victim} is not ready")
        victim.free_disk()

    async def _restart(self, fault: Fault) -> None:
        victim = choose(self.nodes, fault.hits)
        self._say(f"{victim} is stopped")
        status = await within(CALM_SECONDS, f"{victim} to stop", victim.stop())
        assert status == 0, f"{victim}: got exit status {status}, expected 0"
        await asyncio.sleep(fault.seconds / 4)
        await victim.start()


def _text(state: NodeStatus | None) -> str:
    return "no answer" if state is None else f"{state.phase.value} at {state.last_text}"
