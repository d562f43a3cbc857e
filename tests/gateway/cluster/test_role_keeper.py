"""Tests of `gateway.cluster.role_keeper`: publishers, files and following on a real block store."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from sluice.gateway.cluster import role_keeper
from sluice.gateway.cluster.node_status import NodeAnswer
from sluice.gateway.cluster.role_keeper import ROLE_FILE_NAME, RoleKeeper, read_role, write_role
from sluice.gateway.cluster.roles import Phase, RoleRecord
from sluice.gateway.errors import Fatal, RoleRefused
from sluice.gateway.pipeline.replication_quorum import DurableHeight, ReplicationQuorum
from sluice.gateway.store.block_store import BlockStore
from tests.gateway.conducting import Stage, gate, on_stage
from tests.nodes import make_blocks

BLOCKS = make_blocks(4)
PEER = "192.0.2.7:40840"
OTHER = "192.0.2.8:40840"
SENT_ELSEWHERE = "end SUCCESS last None about 0"


class FakeFollowing:
    """Records whom to follow."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []
        """`catch up` or `follow` with the addresses, or `stop`."""
        self._runs = False
        self.said: dict[str, NodeAnswer] = {}

    async def said_by(self, address: str) -> NodeAnswer:
        return self.said.get(address, NodeAnswer())

    def catch_up(self, addresses: Sequence[str]) -> None:
        self._start("catch up", addresses)

    def follow(self, addresses: Sequence[str]) -> None:
        self._start("follow", addresses)

    async def stop(self) -> None:
        self.calls.append(("stop",))
        self._runs = False

    def _start(self, what: str, addresses: Sequence[str]) -> None:
        assert not self._runs, "stop first"
        self.calls.append((what, *addresses))
        self._runs = True


def keep(stage: Stage, role: str = "active", **options: Any) -> tuple[RoleKeeper, FakeFollowing]:
    """A keeper in the stage's data folder."""
    following = FakeFollowing()
    record = RoleRecord("active") if role == "active" else RoleRecord("standby")
    data_dir = stage.store.data_dir
    options = {"drain_seconds": 10.0} | options
    keeper = RoleKeeper(data_dir, record, stage.conductor, stage.store, following, peers=(OTHER,), **options)
    return keeper, following


def play(tmp_path: Path, scene: Callable[[Stage], Awaitable[None]]) -> None:
    on_stage(tmp_path, scene)


def test_a_planned_way_from_active_to_standby_and_back(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        keeper, following = keep(stage)
        await keeper.start()
        alice, bob = stage.publisher("Alice"), stage.publisher("Bob")
        alice.block(BLOCKS[0])
        await alice.expect("ack 0")
        await bob.expect("ack 0")
        bob.items(BLOCKS[1].items[0])
        await keeper.drain(30, PEER)
        assert keeper.phase is Phase.DRAINED
        assert read_role(tmp_path) == RoleRecord("standby", PEER)
        for hand in (alice, bob):
            await hand.expect_end("end SUCCESS last 0 about 0")
        await stage.publisher("Carol").expect_end("end SUCCESS last 0 about 0")
        await keeper.stand_by(PEER)
        assert following.calls == [("catch up", OTHER), ("stop",), ("stop",), ("follow", PEER, OTHER)]
        peer = stage.conductor.connect("peer", is_peer=True)
        assert not peer.closed
        stage.conductor.disconnect(peer, "stopped")
        await keeper.activate()
        assert (keeper.phase, read_role(tmp_path)) == (Phase.ACTIVE, RoleRecord("active"))
        assert following.calls[-2:] == [("stop",), ("catch up", OTHER)]
        dave = stage.publisher("Dave")
        dave.block(BLOCKS[1])
        await dave.expect("ack 1")
        await keeper.close()

    play(tmp_path, scene)


def test_a_drained_node_resumes(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        keeper, _ = keep(stage)
        await keeper.drain(30, PEER)
        await keeper.resume()
        assert (keeper.phase, read_role(tmp_path)) == (Phase.ACTIVE, RoleRecord("active"))
        alice = stage.publisher("Alice")
        alice.block(BLOCKS[0])
        await alice.expect("ack 0")

    play(tmp_path, scene)


def test_a_hold_that_runs_out_makes_the_node_active_again(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        keeper, _ = keep(stage)
        await keeper.drain(0.01, PEER)
        async with asyncio.timeout(10):
            while read_role(tmp_path) != RoleRecord("active"):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        alice = stage.publisher("Alice")
        alice.block(BLOCKS[0])
        await alice.expect("ack 0")

    play(tmp_path, scene)


@pytest.mark.parametrize(
    ("said", "phase"),
    [
        (NodeAnswer(0, 0, "b", "active"), Phase.STANDBY),
        (NodeAnswer(0, 7, "b", "active"), Phase.STANDBY),
        (NodeAnswer(None, None, "b", "active"), Phase.ACTIVE),  # it has less than was handed over
        (NodeAnswer(0, 7, "b", "standby"), Phase.ACTIVE),
        (NodeAnswer(), Phase.ACTIVE),  # it does not answer
    ],
)
def test_where_the_successor_is_active_a_hold_that_runs_out_makes_no_second_one(
    tmp_path: Path, said: NodeAnswer, phase: Phase
) -> None:
    async def scene(stage: Stage) -> None:
        keeper, following = keep(stage)
        following.said[PEER] = said
        alice = stage.publisher("Alice")
        alice.block(BLOCKS[0])
        await alice.expect("ack 0")
        await keeper.drain(0.01, PEER)
        async with asyncio.timeout(10):
            while keeper.phase is Phase.DRAINED:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert keeper._resuming is not None
        await keeper._resuming
        assert keeper.phase is phase
        record = RoleRecord("active") if phase is Phase.ACTIVE else RoleRecord("standby", PEER)
        assert read_role(tmp_path) == record
        follows = ("catch up", OTHER) if phase is Phase.ACTIVE else ("follow", PEER, OTHER)
        assert following.calls[-1] == follows

    play(tmp_path, scene)


def test_a_disk_that_refuses_as_the_hold_runs_out_is_asked_again(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        keeper, following = keep(stage)
        following.said[PEER] = NodeAnswer(0, 7, "b", "active")
        await keeper.drain(30, PEER)
        (tmp_path / "role.new").mkdir()
        keeper._end_lease()
        keeper._on_lease_ended()
        assert keeper._resuming is not None
        await keeper._resuming
        assert keeper.phase is Phase.DRAINED
        (tmp_path / "role.new").rmdir()
        async with asyncio.timeout(10):
            while keeper.phase is Phase.DRAINED:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert (keeper.phase, read_role(tmp_path)) == (Phase.STANDBY, RoleRecord("standby", PEER))

    play(tmp_path, scene)


def test_a_resume_that_the_disk_refuses_is_remembered_when_it_can_be(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        keeper, _ = keep(stage)
        await keeper.drain(30, PEER)
        (tmp_path / "role.new").mkdir()
        with pytest.raises(IsADirectoryError):
            await keeper.resume()
        with pytest.raises(IsADirectoryError):
            await keeper.drain(30, PEER)
        assert (keeper.phase, read_role(tmp_path)) == (Phase.ACTIVE, RoleRecord("standby", PEER))
        alice = stage.publisher("Alice")
        alice.block(BLOCKS[0])
        await alice.expect("ack 0")
        (tmp_path / "role.new").rmdir()
        async with asyncio.timeout(10):
            while read_role(tmp_path) != RoleRecord("active"):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert keeper._remembering is not None
        await keeper._remembering
        await keeper.close()

    play(tmp_path, scene)


def test_a_standby_is_active_no_sooner_than_it_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(stage: Stage) -> None:
        keeper, _ = keep(stage, "standby")
        await keeper.start()
        with gate(monkeypatch, role_keeper, "write_role") as shut:
            activating = asyncio.ensure_future(keeper.activate())
            await shut.reached()
            assert keeper.phase is Phase.STANDBY
        await activating
        assert (keeper.phase, read_role(tmp_path)) == (Phase.ACTIVE, RoleRecord("active"))

    play(tmp_path, scene)


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_node_that_is_remembered_as_active_too_late_is_a_standby_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_refused: bool
) -> None:
    async def scene(stage: Stage) -> None:
        keeper, following = keep(stage, "standby")
        await keeper.start()
        with gate(monkeypatch, role_keeper, "write_role") as shut:
            activating = asyncio.ensure_future(keeper.activate(0.05))
            await shut.reached()
            await asyncio.sleep(0.06)
            if is_refused:  # the role to write at that time
                real, records = write_role, []

                def refuse_once(data_dir: Path, record: RoleRecord) -> None:
                    records.append(record)
                    if len(records) == 1:
                        raise OSError("no space")
                    real(data_dir, record)

                monkeypatch.setattr(role_keeper, "write_role", refuse_once)
        with pytest.raises(OSError if is_refused else Fatal) as caught:
            await activating
        if not is_refused:
            assert str(caught.value) == (
                "activate: got no role on disk in 0.05 s, expected it while the caller waits"
            )
        assert keeper.phase is Phase.STANDBY
        assert following.calls == [("follow", OTHER), ("stop",), ("follow", OTHER)]
        await stage.publisher("Alice").expect_end(SENT_ELSEWHERE)
        async with asyncio.timeout(10):
            while read_role(tmp_path) != RoleRecord("standby"):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        await keeper.close()

    play(tmp_path, scene)


def test_an_activation_that_waited_too_long_for_another_change_writes_nothing(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        keeper, following = keep(stage, "standby")
        await keeper.start()
        with pytest.raises(Fatal, match=r"^activate: got no role on disk in 0 s"):
            await keeper.activate(0.0)
        assert (keeper.phase, read_role(tmp_path)) == (Phase.STANDBY, None)
        assert following.calls[-1] == ("follow", OTHER)

    play(tmp_path, scene)


def test_a_drained_node_is_not_drained_for_another_successor(tmp_path: Path) -> None:
    """Both would be active."""

    async def scene(stage: Stage) -> None:
        keeper, _ = keep(stage)
        both = [asyncio.ensure_future(keeper.drain(30, address)) for address in (PEER, OTHER)]
        first, second = await asyncio.gather(*both, return_exceptions=True)
        assert first is None
        assert isinstance(second, RoleRefused)
        assert (keeper.phase, read_role(tmp_path)) == (Phase.DRAINED, RoleRecord("standby", PEER))
        assert keeper._lease is not None, "its lease goes on"
        await keeper.close()

    play(tmp_path, scene)


def test_one_that_is_drained_anew_as_its_hold_runs_out_stays_so(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        keeper, _ = keep(stage)
        await keeper.drain(30, PEER)
        resuming = asyncio.ensure_future(keeper.resume())
        draining = asyncio.ensure_future(keeper.drain(30, OTHER))
        await asyncio.sleep(0)  # both precede the end of the lease, in the same iteration
        keeper._on_lease_ended()
        await asyncio.gather(resuming, draining)
        assert keeper._resuming is not None
        await keeper._resuming
        assert (keeper.phase, read_role(tmp_path)) == (Phase.DRAINED, RoleRecord("standby", OTHER))
        await keeper.close()

    play(tmp_path, scene)


def test_a_drain_that_the_end_of_the_node_comes_upon_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed node must not come back beside its successor."""

    async def scene(stage: Stage) -> None:
        keeper, following = keep(stage)
        alice = stage.publisher("Alice")
        with gate(monkeypatch, BlockStore, "append"):
            alice.block(BLOCKS[0])
            drain = asyncio.ensure_future(keeper.drain(30, PEER))
            while keeper.phase is not Phase.DRAINING or not following.calls:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
            await keeper.close()
            drain.cancel()
            await asyncio.wait({drain})
        assert read_role(tmp_path) == RoleRecord("standby", PEER)
        assert following.calls == [("stop",), ("stop",)]
        assert stage.conductor.arbiter.retired is not None

    play(tmp_path, scene)


STOPPING = "got a node that is stopping, expected one that is running"


def test_an_activation_that_the_end_of_the_node_comes_upon_follows_nobody(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        keeper, following = keep(stage, "standby")
        await keeper.start()
        stop = following.stop

        async def stop_when_the_node_does() -> None:
            following.stop = stop  # type: ignore[method-assign]
            await keeper.close()

        following.stop = stop_when_the_node_does  # type: ignore[method-assign]
        with pytest.raises(RoleRefused, match=f"^activate: {STOPPING}$"):
            await keeper.activate()
        assert (keeper.phase, read_role(tmp_path)) == (Phase.STANDBY, None)
        assert following.calls == [("follow", OTHER), ("stop",)]
        assert stage.conductor.arbiter.retired is not None

    play(tmp_path, scene)


def test_after_the_end_nothing_is_changed(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        keeper, following = keep(stage)
        await keeper.close()
        for name, change in (
            ("drain", keeper.drain(30, PEER)),
            ("resume", keeper.resume()),
            ("activate", keeper.activate()),
            ("stand by", keeper.stand_by(PEER)),
            ("take over", keeper.await_block(1, bytes(48), 30)),
        ):
            with pytest.raises(RoleRefused, match=f"^{name}: {STOPPING}$"):
                await change
        assert (keeper.phase, read_role(tmp_path), following.calls) == (Phase.ACTIVE, None, [("stop",)])

    play(tmp_path, scene)


def test_a_standby_starts_as_one_whatever_the_setting_says(tmp_path: Path) -> None:
    write_role(tmp_path, RoleRecord("standby", PEER))

    async def scene(stage: Stage) -> None:
        keeper, following = keep(stage, "active")
        await keeper.start()
        assert keeper.phase is Phase.STANDBY
        assert following.calls == [("follow", PEER, OTHER)]
        await stage.publisher("Alice").expect_end(SENT_ELSEWHERE)

    play(tmp_path, scene)


def test_changes_that_are_not_possible_change_nothing(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        keeper, following = keep(stage)
        with pytest.raises(RoleRefused):
            await keeper.stand_by(PEER)
        await keeper.activate()  # it is active: nothing to do
        await keeper.resume()
        assert (keeper.phase, read_role(tmp_path), following.calls) == (Phase.ACTIVE, None, [])

    play(tmp_path, scene)


@pytest.mark.parametrize("change", ["drain", "activate", "stand_by"])
def test_a_disk_that_refuses_leaves_the_role_as_it_was(tmp_path: Path, change: str) -> None:
    async def scene(stage: Stage) -> None:
        keeper, following = keep(stage, "active" if change == "drain" else "standby")
        await keeper.start()
        (tmp_path / "role.new").mkdir()
        before = (keeper.phase, keeper.followed)
        changes: dict[str, Callable[[], Awaitable[None]]] = {
            "drain": lambda: keeper.drain(30, PEER),
            "activate": keeper.activate,
            "stand_by": lambda: keeper.stand_by(PEER),
        }
        with pytest.raises(IsADirectoryError):
            await changes[change]()
        assert (keeper.phase, keeper.followed) == before
        assert not (tmp_path / ROLE_FILE_NAME).exists()
        alice = stage.publisher("Alice")
        if before[0] is Phase.ACTIVE:
            alice.block(BLOCKS[0])
            await alice.expect("ack 0")
        else:
            await alice.expect_end(SENT_ELSEWHERE)
            assert following.calls[-1] == ("follow", OTHER)

    play(tmp_path, scene)


def test_blocks_that_are_not_finished_in_time_undo_the_drain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(stage: Stage) -> None:
        keeper, _ = keep(stage, drain_seconds=0.05)
        alice = stage.publisher("Alice")
        with gate(monkeypatch, BlockStore, "append"):
            alice.block(BLOCKS[0])
            with pytest.raises(Fatal) as caught:
                await keeper.drain(30, PEER)
        assert str(caught.value) == (
            "blocks in flight: got some after 0.05 s, expected them to be acknowledged"
        )
        await alice.expect("ack 0")
        alice.block(BLOCKS[1])
        await alice.expect("ack 1")
        assert read_role(tmp_path) == RoleRecord("active")

    play(tmp_path, scene)


def test_a_resume_does_not_wait_for_the_blocks_that_a_drain_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(stage: Stage) -> None:
        keeper, _ = keep(stage, drain_seconds=3600)
        alice = stage.publisher("Alice")
        with gate(monkeypatch, BlockStore, "append"):
            alice.block(BLOCKS[0])
            draining = asyncio.ensure_future(keeper.drain(30, PEER))
            while stage.conductor.arbiter.retired is None:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            async with asyncio.timeout(10):
                await keeper.resume()
            assert (keeper.phase, read_role(tmp_path)) == (Phase.ACTIVE, RoleRecord("active"))
            with pytest.raises(RoleRefused, match="drain: got a node that is told to resume, expected one"):
                await draining
        await alice.expect("ack 0")
        alice.block(BLOCKS[1])
        await alice.expect("ack 1")
        await keeper.drain(30, PEER)  # the next drain is not ended early
        assert keeper.phase is Phase.DRAINED
        await keeper.close()

    play(tmp_path, scene)


def test_a_resume_of_another_drain_does_not_call_back_the_one_that_waits_for_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C on a second failover must not undo the first one's drain."""

    async def scene(stage: Stage) -> None:
        keeper, _ = keep(stage, drain_seconds=3600)
        alice = stage.publisher("Alice")
        waits = True
        with gate(monkeypatch, BlockStore, "append"):
            alice.block(BLOCKS[0])
            first = asyncio.ensure_future(keeper.drain(30, PEER, "first"))
            while stage.conductor.arbiter.retired is None:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            second = asyncio.ensure_future(keeper.drain(30, OTHER, "second", lambda: waits))
            resuming = asyncio.ensure_future(keeper.resume("second"))
            await asyncio.sleep(0.01)
            waits = False
        await first
        with pytest.raises(
            RoleRefused, match="drain: got a node that is asked by a caller that is gone, exp"
        ):
            await second
        with pytest.raises(RoleRefused, match="resume: got a node that is drained by another call, expected"):
            await resuming
        assert (keeper.phase, keeper.followed) == (Phase.DRAINED, PEER)
        await keeper.resume("first")
        assert (keeper.phase, read_role(tmp_path)) == (Phase.ACTIVE, RoleRecord("active"))
        with pytest.raises(RoleRefused, match="asked by a caller that is gone"):
            await keeper.drain(30, OTHER, "second", lambda: waits)
        assert keeper.phase is Phase.ACTIVE

    play(tmp_path, scene)


def test_a_drain_whose_caller_leaves_before_it_is_done_is_undone(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        keeper, _ = keep(stage)
        said = iter((True, False))
        with pytest.raises(
            RoleRefused, match="drain: got a node that is asked by a caller that is gone, exp"
        ):
            await keeper.drain(30, PEER, "first", lambda: next(said))
        assert (keeper.phase, read_role(tmp_path)) == (Phase.ACTIVE, RoleRecord("active"))

    play(tmp_path, scene)


def test_a_drain_that_standbys_hold_up_says_which(tmp_path: Path) -> None:
    standbys = ReplicationQuorum(2, "this-process", [OTHER, PEER])

    async def scene(stage: Stage) -> None:
        keeper, _ = keep(stage, drain_seconds=0.05)
        alice = stage.publisher("Alice")
        standbys.heard(OTHER, DurableHeight("that-process", None, b""))
        alice.block(*BLOCKS[:2])
        while stage.conductor.acknowledging.awaiting_count < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        with pytest.raises(Fatal) as caught:
            await keeper.drain(30, PEER)
        assert str(caught.value) == (
            "blocks in flight: got some after 0.05 s, expected them to be acknowledged; blocks 0 to 1 are "
            "not acknowledged before 2 other nodes (commit.min_standbys) have them on disk: "
            f"{OTHER} has no block; {PEER} does not report: not reached yet"
        )

    on_stage(tmp_path, scene, standbys=standbys, stop_seconds=0.1)


@pytest.mark.parametrize(
    "record", [RoleRecord("active"), RoleRecord("standby"), RoleRecord("standby", "[2001:db8::1]:40840")]
)
def test_what_is_written_comes_back(tmp_path: Path, record: RoleRecord) -> None:
    assert read_role(tmp_path) is None
    write_role(tmp_path, RoleRecord("active"))
    write_role(tmp_path, record)
    assert read_role(tmp_path) == record
    assert [path.name for path in tmp_path.iterdir()] == [ROLE_FILE_NAME]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"role": "leader"}',
        '{"role": 1}',
        '{"role": "standby", "followed": "somewhere"}',
        '{"role": "standby", "followed": 7}',
        '{"role": "standby", "followed": "192.0.2.7:0"}',
        "[" * 100_000,
    ],
)
def test_what_cannot_be_read_is_fatal(tmp_path: Path, text: str) -> None:
    path = tmp_path / ROLE_FILE_NAME
    path.write_text(text)
    with pytest.raises(Fatal) as caught:
        read_role(tmp_path)
    assert str(caught.value) == (
        f"{path}: got {text[:200]!r}, "
        'expected an object such as {"role": "standby", "followed": "host:port"}'
    )


def test_a_disk_that_refuses_leaves_what_was_remembered(tmp_path: Path) -> None:
    write_role(tmp_path, RoleRecord("standby"))
    (tmp_path / "role.new").mkdir()
    with pytest.raises(IsADirectoryError):
        write_role(tmp_path, RoleRecord("active"))
    assert read_role(tmp_path) == RoleRecord("standby")


@pytest.mark.parametrize("before", [None, RoleRecord("standby", "192.0.2.7:40840")])
def test_a_disk_that_refuses_the_folder_leaves_what_was_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: RoleRecord | None
) -> None:
    """At this last step the new file is in place, and a restart would find it."""
    if before is not None:
        write_role(tmp_path, before)
    flush = os.fsync

    def refuse_folders(number: int) -> None:
        if stat.S_ISDIR(os.fstat(number).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        flush(number)

    monkeypatch.setattr(os, "fsync", refuse_folders)
    with pytest.raises(OSError, match=r"^\[Errno 5\] Input/output error$"):
        write_role(tmp_path, RoleRecord("active"))
    assert read_role(tmp_path) == before


# --- an election --------------------------------------------------------------------------------------------


class FakeTerm:
    """A term that is given and taken by hand, and a record of what the keeper asked for."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.refusal: Exception | None = None
        self.is_held = False

    async def permit(self, timeout_seconds: float) -> None:
        self.calls.append("permit")
        if self.refusal is not None:
            raise self.refusal
        self.is_held = True

    def lead(self) -> None:
        self.calls.append("lead")

    def holds(self) -> bool:
        return self.is_held

    async def offer(self, address: str) -> None:
        self.calls.append(f"offer {address}")

    async def withdraw(self) -> None:
        self.calls.append("withdraw")

    async def give_up(self, pause_seconds: float = 0.0) -> None:
        self.calls.append("give up")
        self.is_held = False


async def elected(stage: Stage, term: FakeTerm) -> RoleKeeper:
    """A keeper whose node was made active."""
    keeper, _ = keep(stage, term=term)
    await keeper.start()
    assert keeper.phase is Phase.STANDBY
    await keeper.activate()
    assert term.calls == ["permit", "lead"]
    term.calls.clear()
    return keeper


def test_with_an_election_a_node_starts_as_a_standby_whatever_it_remembers(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        write_role(tmp_path, RoleRecord("active"))
        keeper, following = keep(stage, term=FakeTerm())
        await keeper.start()
        assert (keeper.phase, keeper.has_one_active) == (Phase.STANDBY, True)
        assert following.calls == [("follow", OTHER)]
        await stage.publisher("Alice").expect_end(SENT_ELSEWHERE)

    play(tmp_path, scene)


def test_a_node_without_permission_stays_a_standby_that_follows(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        term = FakeTerm()
        keeper, following = keep(stage, term=term)
        await keeper.start()
        term.refusal = RoleRefused("activate", got="not elected", expected="elected")
        with pytest.raises(RoleRefused, match="got a node that is not elected"):
            await keeper.activate()
        assert (keeper.phase, following.calls) == (Phase.STANDBY, [("follow", OTHER)])

    play(tmp_path, scene)


def test_a_term_that_ends_while_the_role_goes_to_disk_leaves_a_standby(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(stage: Stage) -> None:
        term = FakeTerm()
        keeper, following = keep(stage, term=term)
        await keeper.start()

        def write_slowly(data_dir: Path, record: RoleRecord) -> None:
            term.is_held = False
            write_role(data_dir, record)

        monkeypatch.setattr(role_keeper, "write_role", write_slowly)
        with pytest.raises(RoleRefused, match="got a node that is without a term"):
            await keeper.activate()
        assert keeper.phase is Phase.STANDBY
        assert term.calls == ["permit", "give up"]
        assert following.calls[-1] == ("follow", OTHER)

    play(tmp_path, scene)


def test_a_node_whose_term_ends_steps_down_and_may_lead_again(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        term = FakeTerm()
        keeper = await elected(stage, term)
        alice = stage.publisher("Alice")
        alice.block(BLOCKS[0])
        await alice.expect("ack 0")
        term.is_held = False
        await keeper.step_down("the lease could not be renewed")
        await alice.expect_end("end SUCCESS last 0 about 0")
        assert (keeper.phase, read_role(tmp_path)) == (Phase.STANDBY, RoleRecord("standby"))
        await keeper.step_down("again")
        await keeper.activate()
        bob = stage.publisher("Bob")
        bob.block(BLOCKS[1])
        await bob.expect("ack 1")
        await keeper.close()

    play(tmp_path, scene)


def test_a_drained_node_offers_its_term_and_takes_publishers_again_only_while_it_has_it(
    tmp_path: Path,
) -> None:
    async def scene(stage: Stage) -> None:
        term = FakeTerm()
        keeper = await elected(stage, term)
        await keeper.drain(30, PEER)
        assert term.calls == [f"offer {PEER}"]
        await keeper.resume()
        assert (keeper.phase, term.calls[1:]) == (Phase.ACTIVE, ["withdraw"])
        await keeper.drain(30, PEER)
        term.is_held = False
        with pytest.raises(RoleRefused, match="got a node that is without a term"):
            await keeper.resume()
        assert keeper.phase is Phase.STANDBY
        await stage.publisher("Alice").expect_end(SENT_ELSEWHERE)

    play(tmp_path, scene)


def test_a_drain_that_nobody_ends_leaves_a_standby_if_the_term_has_ended(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        term = FakeTerm()
        keeper = await elected(stage, term)
        await keeper.drain(0.05, PEER)
        term.is_held = False
        async with asyncio.timeout(10):
            while keeper.phase is not Phase.STANDBY:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert keeper.phase is Phase.STANDBY
        await stage.publisher("Alice").expect_end(SENT_ELSEWHERE)
        await keeper.close()

    play(tmp_path, scene)


def test_a_term_that_ends_ends_a_drain_that_waits_for_blocks(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        standbys = stage.conductor.acknowledging.quorum
        assert standbys is not None
        term = FakeTerm()
        keeper = await elected(stage, term)
        stage.conductor.acknowledging.has_term = term.holds
        alice = stage.publisher("Alice")
        alice.block(BLOCKS[0])
        draining = asyncio.ensure_future(keeper.drain(30, PEER))
        async with asyncio.timeout(10):
            while keeper.phase is not Phase.DRAINING or stage.store.last_number is None:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        term.is_held = False
        await asyncio.wait_for(keeper.step_down("the lease has ended"), 10)
        with pytest.raises(RoleRefused):
            await draining
        assert read_role(tmp_path) == RoleRecord("standby", PEER)
        await alice.expect_end(SENT_ELSEWHERE)

    on_stage(tmp_path, scene, standbys=ReplicationQuorum(1, "this-process", [OTHER]))
