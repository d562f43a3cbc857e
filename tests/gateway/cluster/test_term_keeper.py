"""The keeper of a term beside a coordinator in memory: the promise on disk, and what fails on the way."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sluice.gateway.cluster import term_keeper
from sluice.gateway.cluster.cluster_view import Statement
from sluice.gateway.cluster.coordinator import Grant
from sluice.gateway.cluster.election import (
    ClusterRecord,
    Election,
    ElectionRules,
    Holder,
    Promise,
    Seen,
    TermPhase,
    read_promise,
)
from sluice.gateway.cluster.term_keeper import TermKeeper, boot_seconds
from sluice.gateway.errors import CoordinatorAway, Fatal, RoleRefused
from sluice.gateway.pipeline.replication_quorum import DurableHeight, ReplicationQuorum
from sluice.gateway.store.block_store import BlockStore
from tests.nodes import until

PEERS = ("b:1", "c:1")
PACE = 5
"""So many times as fast as ours goes a node's clock."""
LEASE_SECONDS = 7.5
"""By that clock."""


class MemoryCoordinator:
    """A coordinator that is away, or says that a lease has ended, when told to."""

    def __init__(self) -> None:
        self.seen = Seen(None, None)
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
        self.disk = read_promise(data_dir).disk
        self.data_dir, self.store = data_dir, BlockStore.open(data_dir / "store")
        self.quorum = ReplicationQuorum(1, "A", PEERS)
        self.coordinator, promise = MemoryCoordinator(), read_promise(data_dir)
        disks = {"a:1": promise.disk, "b:1": "B", "c:1": "C"}
        self.coordinator.seen = Seen(ClusterRecord(4, 3, 1, disks), None)
        self.watches: list[Watch] = []
        self.steps: list[str] = []
        self.neighbours: list[Statement] = []
        self.refusal: str | None = None
        self.is_committing = False
        self.keeper = TermKeeper(
            Election(ElectionRules(3, 1, LEASE_SECONDS), "a:1", "A", promise),
            self.coordinator,
            data_dir,
            self.store,
            self.quorum,
            watch=self._watch,
            neighbours=lambda: self.neighbours,
            refusal=lambda: self.refusal,
            is_committing=lambda: self.is_committing,
            instance_at=self._instance_at,
            clock=lambda: PACE * boot_seconds(),
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
        assert here.watches[0].epoch == 5
        assert read_promise(tmp_path) == Promise(here.disk, 5, "A")
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
        cluster = here.coordinator.seen.cluster
        assert await here.keeper.promise_to(3, "C") == 5  # the answer says that it is outdated
        here.coordinator.seen = Seen(cluster, Holder(9, "b:1", "B"))
        assert here.keeper.may_acknowledge()
        assert [await here.keeper.promise_to(epoch, "B") for epoch in (9, 7, 9)] == [9, 9, 9]
        assert (read_promise(tmp_path), told) == (Promise(here.disk, 9, "B"), [5, 9])
        assert not here.keeper.may_acknowledge()


async def test_an_epoch_is_promised_only_to_the_process_that_has_it_from_the_coordinator(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path) as here:
        cluster = here.coordinator.seen.cluster
        for holder, held in (
            (None, "nobody has it"),
            (Holder(7, "c:1", "C"), "c:1 has epoch 7"),
            (Holder(8, "b:1", "B"), "b:1 has epoch 8"),
        ):
            here.coordinator.seen = Seen(cluster, holder)
            with pytest.raises(RoleRefused, match=rf"promise epoch 7: .*told another holder: {held}"):
                await here.keeper.promise_to(7, "B")
        here.coordinator.is_away = True
        with pytest.raises(RoleRefused, match=r"promise epoch 7: .*told nothing: e:1: nobody listens there"):
            await here.keeper.promise_to(7, "B")
        here.coordinator.is_away, here.coordinator.seen = False, Seen(cluster, Holder(7, "b:1", "B"))
        assert await here.keeper.promise_to(7, "B") == 7
        here.coordinator.is_away = True  # which is asked once for each promise
        assert await here.keeper.promise_to(7, "B") == 7
        with pytest.raises(RoleRefused, match="promise epoch 7: got a node that is bound to another process"):
            await here.keeper.promise_to(7, "C")


async def test_a_disk_that_refuses_the_promise_lets_the_term_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(data_dir: Path, promise: Promise) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with scene(tmp_path) as here:
        monkeypatch.setattr(term_keeper, "write_promise", refuse)
        with pytest.raises(OSError, match="No space left"):
            await here.keeper.permit(30)
        await until(lambda: here.coordinator.calls[-1] == "release")
        assert (here.watches, here.keeper.promised, here.keeper.holds()) == ([], 0, False)


async def test_a_node_that_lacks_a_block_or_promises_lets_the_term_go_in_time(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        with pytest.raises(Fatal, match="take over: got 0 other nodes have promised epoch 5, expected 1"):
            await here.keeper.permit(0.1)
        await until(lambda: here.coordinator.seen.holder is None)
        here.report(7)
        with pytest.raises(Fatal, match="take over: got block 7 is on another node and not here yet"):
            await here.keeper.permit(0.1)
        await until(lambda: here.coordinator.calls.count("release") == 2)
        assert here.keeper.election.phase is TermPhase.FREE


@pytest.mark.parametrize("is_away", [True, False])
async def test_no_claim_without_an_answer_or_while_another_node_holds_the_lease(
    tmp_path: Path, *, is_away: bool
) -> None:
    async with scene(tmp_path) as here:
        here.coordinator.is_away = is_away
        here.coordinator.seen = Seen(here.coordinator.seen.cluster, Holder(4, "b:1", "B"))
        reason = "e:1: nobody listens there" if is_away else "b:1 holds the lease of epoch 4"
        with pytest.raises(RoleRefused, match=f"got a node that is not elected: {reason}"):
            await here.keeper.permit(30)
        assert "claim" not in here.coordinator.calls


async def test_a_node_takes_over_by_itself_and_steps_down_when_its_lease_has_ended(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        here.neighbours = [Statement("B", "standby")]
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
        assert not here.keeper.holds()  # B may have it
        here.coordinator.is_away = False
        await until(lambda: here.coordinator.seen.holder is None)
        await here.activate()
        await here.keeper.offer("b:1")
        here.coordinator.has_ended = True
        await here.keeper.withdraw()
        assert not here.keeper.holds()


async def test_a_node_that_cannot_acknowledge_for_a_whole_lease_lets_others_try(tmp_path: Path) -> None:
    """For one of three reasons, each in a scene of its own; they play side by side."""
    reasons = ("blocks cannot be written: No space left on device", "its disk takes no block", None)
    for number in range(len(reasons)):
        (tmp_path / str(number)).mkdir()
    await asyncio.gather(
        *(lets_others_try(tmp_path / str(number), reason) for number, reason in enumerate(reasons))
    )


async def lets_others_try(data_dir: Path, reason: str | None) -> None:
    """Play one of them; None: nobody reports."""
    async with scene(data_dir) as here:
        here.neighbours = [Statement("B", "standby")]
        here.keeper.start(here, "a:1")
        here.report()
        await until(lambda: here.steps == ["active"])
        if reason is None:
            here.quorum.lost("b:1", "gone")
        here.is_committing = reason == "its disk takes no block"
        here.refusal = None if here.is_committing else reason
        await until(lambda: len(here.steps) == 2)
        assert here.steps[1] == "standby: this node cannot acknowledge: " + (
            reason or "0 other nodes report to it, expected 1"
        )
        here.refusal, here.is_committing = None, False
        here.report()
        await until(lambda: len(here.steps) == 3)


async def test_a_new_disk_takes_part_when_it_has_what_the_active_node_has(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        disks = {"a:1": "the old one", "b:1": "B", "c:1": "C"}
        here.coordinator.seen = Seen(ClusterRecord(4, 3, 1, disks), Holder(4, "b:1", "B"))
        here.neighbours = [Statement("B", "active", 7), Statement("C", "standby", 7)]
        here.keeper.start(here, "a:1")
        await until(lambda: here.coordinator.calls.count("look") > 2)
        assert "a:1 has another disk" in str(here.keeper.why_no_member)
        assert "join" not in here.coordinator.calls
        for wrong in (
            Statement("B", "standby"),
            Statement("C", "active"),
        ):  # it only takes over; it is another
            here.neighbours = [wrong]
            here.coordinator.calls.clear()
            await until(lambda: here.coordinator.calls.count("look") > 2)
            assert "join" not in here.coordinator.calls
        here.neighbours = [Statement("B", "active"), Statement("C", "standby", 7)]
        await until(lambda: here.keeper.why_no_member is None)
        cluster = here.coordinator.seen.cluster
        assert cluster is not None
        assert cluster.nodes["a:1"] == here.disk


async def test_a_coordinator_that_hangs_keeps_no_node_from_stopping_or_stepping_down(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:

        async def hang(grant: Grant) -> None:
            await asyncio.Event().wait()

        here.report()
        await here.activate()
        here.coordinator.release = hang  # type: ignore[method-assign]
        await asyncio.wait_for(here.keeper.give_up(), 1)
        assert not here.keeper.holds()
