"""The keeper of a term beside a coordinator in memory: the promise on disk, and what fails on the way."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sluice.gateway.cluster import term_keeper
from sluice.gateway.cluster.coordinator import Grant
from sluice.gateway.cluster.election import (
    ClusterRecord,
    Election,
    ElectionRules,
    Holder,
    Seen,
    TermPhase,
    read_epoch,
)
from sluice.gateway.cluster.term_keeper import TermKeeper
from sluice.gateway.errors import CoordinatorAway, Fatal, RoleRefused
from sluice.gateway.pipeline.replication_quorum import DurableHeight, ReplicationQuorum
from sluice.gateway.store.block_store import BlockStore
from tests.nodes import until

NODES = ("a:1", "b:1", "c:1")


class MemoryCoordinator:
    """A coordinator that is away, or says that a lease has ended, when told to."""

    def __init__(self) -> None:
        self.seen = Seen(ClusterRecord(4, 3, 1, NODES), None)
        self.is_away = self.has_ended = False
        self.calls: list[str] = []

    async def look(self) -> Seen:
        self._answer("look")
        return self.seen

    async def join(self, seen: Seen, cluster: ClusterRecord) -> bool:
        self._answer("join")
        self.seen = Seen(cluster, seen.holder)
        return True

    async def claim(self, seen: Seen, cluster: ClusterRecord, holder: Holder) -> Grant | None:
        self._answer("claim")
        self.seen = Seen(cluster, holder)
        return Grant(1, holder.epoch)

    async def renew(self, grant: Grant) -> bool:
        self._answer("renew")
        return not self.has_ended

    async def mark(self, grant: Grant, holder: Holder) -> Grant | None:
        self._answer("mark")
        self.seen = Seen(self.seen.cluster, holder)
        return None if self.has_ended else grant

    async def release(self, grant: Grant) -> None:
        self.calls.append("release")
        self.seen = Seen(self.seen.cluster, None)

    async def close(self) -> None:
        self.calls.append("close")

    def _answer(self, call: str) -> None:
        self.calls.append(call)
        if self.is_away:
            raise CoordinatorAway("e:1: nobody listens there")


class Watch:
    """A watch that another test object reports to."""

    def __init__(self, epoch: int) -> None:
        self.epoch, self.is_open = epoch, True

    async def close(self) -> None:
        self.is_open = False


class Scene:
    """A node of three."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir, self.store = data_dir, BlockStore.open(data_dir / "store")
        self.quorum = ReplicationQuorum(1, "A", NODES[1:])
        self.coordinator = MemoryCoordinator()
        self.watches: list[Watch] = []
        self.steps: list[str] = []
        self.answering = 0
        self.keeper = TermKeeper(
            Election(ElectionRules(3, 1, 3.0), "a:1", "A", read_epoch(data_dir)),
            self.coordinator,
            data_dir,
            self.store,
            self.quorum,
            watch=self._watch,
            neighbours=lambda: (self.answering, None),
            refusal=lambda: None,
            instance_at=self._instance_at,
        )

    def _watch(self, epoch: int) -> Watch:
        self.watches.append(Watch(epoch))
        return self.watches[-1]

    async def _instance_at(self, address: str) -> str:
        return {"b:1": "B"}.get(address, "")

    async def activate(self, timeout_seconds: float = 30.0) -> None:
        await self.keeper.permit(timeout_seconds)
        self.keeper.lead()
        self.steps.append("active")

    async def step_down(self, reason: str) -> None:
        self.steps.append(f"standby: {reason}")

    def report(self, number: int | None = None) -> None:
        self.quorum.heard("b:1", DurableHeight("B", number, b"" if number is None else bytes(48)))


@asynccontextmanager
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    made = Scene(tmp_path)
    try:
        yield made
    finally:
        await made.keeper.close()
        made.store.close()


async def test_the_promise_is_on_disk_before_anybody_is_watched_with_it(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        permitting = asyncio.ensure_future(here.keeper.permit(30))
        await until(lambda: here.watches)
        assert (here.watches[0].epoch, read_epoch(tmp_path)) == (5, 5)
        assert not permitting.done()
        here.report()
        await permitting
        assert (here.keeper.holds(), here.keeper.may_acknowledge()) == (True, False)
        here.keeper.lead()
        assert here.keeper.may_acknowledge()
        await here.keeper.permit(30)
        assert here.coordinator.calls.count("claim") == 1
        await here.keeper.give_up()
        assert not here.watches[0].is_open
        assert not here.keeper.holds()


async def test_a_promise_to_another_node_ends_the_own_term_and_only_rises(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        told: list[int] = []
        here.keeper.on_promise(lambda: told.append(here.keeper.promised))
        here.report()
        await here.activate()
        assert [await here.keeper.promise(epoch) for epoch in (3, 9, 7, 9)] == [5, 9, 9, 9]
        assert (read_epoch(tmp_path), told) == (9, [5, 9])
        assert not here.keeper.may_acknowledge()


async def test_a_disk_that_refuses_the_promise_lets_the_term_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(data_dir: Path, epoch: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(term_keeper, "write_epoch", refuse)
    async with scene(tmp_path) as here:
        with pytest.raises(OSError, match="No space left"):
            await here.keeper.permit(30)
        assert here.coordinator.calls[-1] == "release"
        assert (here.watches, here.keeper.promised, here.keeper.holds()) == ([], 0, False)


async def test_a_node_that_lacks_a_block_or_promises_lets_the_term_go_in_time(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        with pytest.raises(Fatal, match="take over: got 0 other nodes have promised epoch 5, expected 1"):
            await here.keeper.permit(0.1)
        here.report(7)
        with pytest.raises(Fatal, match="take over: got block 7 is on another node and not here yet"):
            await here.keeper.permit(0.1)
        assert here.coordinator.calls.count("release") == 2
        assert here.keeper.election.phase is TermPhase.FREE


@pytest.mark.parametrize("is_away", [True, False])
async def test_no_claim_without_an_answer_or_while_another_node_holds_the_lease(
    tmp_path: Path, *, is_away: bool
) -> None:
    async with scene(tmp_path) as here:
        here.coordinator.is_away = is_away
        here.coordinator.seen = Seen(here.coordinator.seen.cluster, Holder(4, "b:1", "B"))
        reason = "the coordinator does not answer: e:1" if is_away else "b:1 holds the lease of epoch 4"
        with pytest.raises(RoleRefused, match=f"got a node that is not elected: {reason}"):
            await here.keeper.permit(30)
        assert "claim" not in here.coordinator.calls


async def test_a_node_takes_over_by_itself_and_steps_down_when_its_lease_has_ended(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        here.answering = 1
        here.keeper.start(here, "a:1")
        here.report()
        await until(lambda: here.steps == ["active"])
        here.coordinator.is_away = True
        await until(lambda: len(here.steps) == 2)
        assert here.steps[1] == "standby: the lease could not be renewed: e:1: nobody listens there"
        here.coordinator.is_away = False
        here.coordinator.seen = Seen(here.coordinator.seen.cluster, None)
        here.report()
        await until(lambda: len(here.steps) == 3)
        here.coordinator.has_ended = True
        await until(lambda: len(here.steps) == 4)
        assert here.steps[3] == "standby: the lease has ended, or another node has taken the term over"


async def test_a_term_is_offered_to_a_node_that_answers_and_taken_back(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        here.report()
        await here.activate()
        await here.keeper.offer("c:1")
        assert "mark" not in here.coordinator.calls
        await here.keeper.offer("b:1")
        assert here.coordinator.seen.holder == Holder(5, "a:1", "A", "B")
        await here.keeper.withdraw()
        assert here.coordinator.seen.holder == Holder(5, "a:1", "A")
        await here.keeper.offer("b:1")
        here.coordinator.is_away = True
        await here.keeper.withdraw()
        assert here.keeper.holds()
        here.coordinator.is_away, here.coordinator.has_ended = False, True
        await here.keeper.withdraw()
        assert not here.keeper.holds()
