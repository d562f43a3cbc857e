"""Three nodes and a real etcd: the active node is killed, stopped and replaced, and nobody steps in."""

from __future__ import annotations

import asyncio
import resource
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from sluice.datastream.check.compare import compare_streams
from sluice.gateway.api import standby_pb2, standby_pb2_grpc
from sluice.gateway.cluster.role_keeper import read_role
from sluice.gateway.cluster.roles import RoleRecord
from sluice.gateway.errors import FailoverFailed
from tests.etcd import EtcdProcess, etcd_program, running_etcd
from tests.interop.test_failover import fail_over
from tests.interop.test_standbys import WAIT_SECONDS, ClusterNode, Publishing, is_ready, last_of
from tests.nodes import ledger_key, until
from tests.serving import refused

LEASE_SECONDS = 3


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdProcess]:
    with running_etcd(tmp_path / "etcd") as running:
        yield running


class ElectedNode(ClusterNode):
    """A node that takes part in an election."""

    def elect(self, others: Sequence[ClusterNode], etcd: EtcdProcess, least: int = 1) -> None:
        """Set the other nodes and the coordinator."""
        self.introduce(others, least, "standby")
        self._arguments += ["--failover-automatic", "on", "--failover-etcd", etcd.address]
        self._arguments += ["--failover-lease-seconds", str(LEASE_SECONDS)]


@asynccontextmanager
async def elected(tmp_path: Path, etcd: EtcdProcess, count: int = 3) -> AsyncIterator[list[ElectedNode]]:
    """Yield running nodes, one of which is active."""
    async with AsyncExitStack() as stack:
        nodes = [stack.enter_context(ElectedNode(tmp_path / name)) for name in "abcd"[:count]]
        for node in nodes:
            node.elect([other for other in nodes if other is not node], etcd)
        await asyncio.gather(*(node.start() for node in nodes))
        await active_of(nodes)
        yield nodes


async def role_of(node: ClusterNode) -> str | None:
    """Return its role; None: it does not answer."""
    role = (await node.facts())["role"]
    return None if role is None else str(role)


async def active_of(nodes: Sequence[ElectedNode]) -> ElectedNode:
    """Wait until one of the nodes is active, and the only one."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            roles = [await role_of(node) for node in nodes]
            if roles.count("active") == 1:
                return nodes[roles.index("active")]
            await asyncio.sleep(0.05)


async def ends_well(nodes: Sequence[ElectedNode], publishing: Publishing) -> None:
    """All blocks are acknowledged, and all nodes have the same bytes."""
    count = await publishing.end()

    async def are_level() -> bool:
        return all([await last_of(node) == count - 1 for node in nodes])

    await until(are_level)
    for node in nodes:
        node.send(signal.SIGTERM)
        assert await node.ended() == 0
        assert "Traceback" not in node.log_text()
    first, *others = [node.data_dir / "datastream.bin" for node in nodes]
    for other in others:
        compared = compare_streams(first, other)
        assert compared.is_equal, compared.difference


@pytest.mark.parametrize("rounds", [1, pytest.param(3, marks=pytest.mark.slow)])
async def test_a_killed_active_node_is_followed_by_another_and_comes_back_as_its_standby(
    tmp_path: Path, etcd: EtcdProcess, rounds: int
) -> None:
    async with elected(tmp_path, etcd) as nodes:
        publishing = Publishing(nodes)
        epochs = []
        for _ in range(rounds):
            await publishing.reach(publishing.acknowledged + 20)
            active = await active_of(nodes)
            epochs += [line["epoch"] for line in active.logged("has the term")]
            await active.kill()
            acknowledged = publishing.acknowledged
            rest = [node for node in nodes if node is not active]
            successor = await active_of(rest)
            assert await last_of(successor) >= acknowledged
            await publishing.reach(acknowledged + 20)
            await active.start()
            await until(lambda: is_ready(active))  # noqa: B023 - awaited here
            assert await role_of(active) == "standby"
        assert epochs == sorted(set(epochs))
        await ends_well(nodes, publishing)


@pytest.mark.slow
async def test_a_node_that_stands_still_for_longer_than_its_lease_leads_no_more(
    tmp_path: Path, etcd: EtcdProcess
) -> None:
    async with elected(tmp_path, etcd) as nodes:
        publishing = Publishing(nodes)
        await publishing.reach(20)
        active = await active_of(nodes)
        active.send(signal.SIGSTOP)
        await active_of([node for node in nodes if node is not active])
        active.send(signal.SIGCONT)

        async def stands_by() -> bool:
            return await role_of(active) == "standby"

        await until(stands_by)
        assert active.logged("the term has ended")
        await publishing.reach(publishing.acknowledged + 20)
        await ends_well(nodes, publishing)


@pytest.mark.slow
async def test_without_the_coordinator_nobody_acknowledges_and_with_it_again_it_goes_on(
    tmp_path: Path, etcd: EtcdProcess
) -> None:
    async with elected(tmp_path, etcd) as nodes:
        publishing = Publishing(nodes)
        await publishing.reach(20)
        active = await active_of(nodes)
        etcd.freeze()
        await until(lambda: active.logged("the node stands by"))
        acknowledged = publishing.acknowledged
        await asyncio.sleep(LEASE_SECONDS)
        assert publishing.acknowledged == acknowledged
        assert [await role_of(node) for node in nodes] == ["standby"] * 3
        assert any(
            "the node cannot take over: etcd does not answer: " in line for line in await active.reasons()
        )
        etcd.send(signal.SIGCONT)
        await publishing.reach(acknowledged + 20)
        await ends_well(nodes, publishing)


def led_by(node: ClusterNode) -> list[int]:
    """The epochs in which a node was active: others may refuse one that it was granted."""
    epochs = []
    for line in node.logged("has the term", "the node is active"):
        if line["message"] == "has the term":
            granted = line["epoch"]
        else:
            epochs.append(granted)
    return epochs


@pytest.mark.slow
async def test_a_coordinator_without_its_data_costs_no_block(tmp_path: Path, etcd: EtcdProcess) -> None:
    async with elected(tmp_path, etcd) as nodes:
        publishing = Publishing(nodes)
        for _ in range(2):
            await publishing.reach(publishing.acknowledged + 20)
            etcd.stop()
            etcd.lose_data()
            etcd.start()
            acknowledged = publishing.acknowledged
            await publishing.reach(acknowledged + 40)
        epochs = [epoch for node in nodes for epoch in led_by(node)]
        assert len(set(epochs)) == len(epochs) >= 2, sorted(epochs)
        await ends_well(nodes, publishing)


@pytest.mark.slow
async def test_a_stopped_node_leaves_its_term_at_once(tmp_path: Path, etcd: EtcdProcess) -> None:
    async with elected(tmp_path, etcd) as nodes:
        publishing = Publishing(nodes)
        await publishing.reach(20)
        active = await active_of(nodes)
        active.send(signal.SIGTERM)
        assert await active.ended() == 0
        await publishing.reach(publishing.acknowledged + 20)
        await active.start()
        await ends_well(nodes, publishing)


async def test_an_order_hands_the_term_over_and_force_is_refused_while_it_is_held(
    tmp_path: Path, etcd: EtcdProcess
) -> None:
    async with elected(tmp_path, etcd) as nodes:
        publishing = Publishing(nodes)
        await publishing.reach(20)
        active = await active_of(nodes)
        successor, third = (node for node in nodes if node is not active)
        await until(partial(is_ready, successor))  # an order before that is refused
        steps = await fail_over(active, successor)
        assert steps[-1].name == f"{active.control_address} stands by"
        assert [await role_of(node) for node in (active, successor)] == ["standby", "active"]
        await publishing.reach(publishing.acknowledged + 20)
        with pytest.raises(FailoverFailed, match=r"not elected: .* holds the lease of epoch \d"):
            await fail_over(active, third, force=True)  # `active` is a standby now
        await ends_well(nodes, publishing)


@pytest.mark.slow
async def test_a_new_disk_leads_to_nobody_before_it_has_what_was_acknowledged(
    tmp_path: Path, etcd: EtcdProcess
) -> None:
    """Two of three nodes have the last blocks: one loses its disk, the other one is away."""
    async with elected(tmp_path, etcd) as nodes:
        publishing = Publishing(nodes)
        await publishing.reach(20)
        active = await active_of(nodes)
        other, behind = (node for node in nodes if node is not active)
        behind.send(signal.SIGSTOP)
        await publishing.reach(publishing.acknowledged + 40)
        await active.kill()
        await other.kill()
        acknowledged = publishing.acknowledged
        shutil.rmtree(other.data_dir)
        behind.send(signal.SIGCONT)
        await other.start()

        async def is_said() -> bool:
            return any("has another disk than the one that joined" in line for line in await other.reasons())

        await until(is_said)
        await asyncio.sleep(2 * LEASE_SECONDS)
        assert [await role_of(node) for node in (other, behind)] == ["standby"] * 2
        await active.start()
        leader = await active_of(nodes)
        assert await last_of(leader) >= acknowledged
        await publishing.reach(acknowledged + 20)
        await until(lambda: is_ready(other))
        await leader.kill()
        await active_of([node for node in nodes if node is not leader])
        await publishing.reach(publishing.acknowledged + 20)
        await leader.start()
        await ends_well(nodes, publishing)


@pytest.mark.slow
async def test_a_node_whose_disk_refuses_blocks_leaves_its_term(tmp_path: Path, etcd: EtcdProcess) -> None:
    async with elected(tmp_path, etcd) as nodes:
        publishing = Publishing(nodes)
        await publishing.reach(20)
        active = await active_of(nodes)
        active.limit_files(1)
        await publishing.reach(publishing.acknowledged + 40)  # the publisher is sent on
        await active_of([node for node in nodes if node is not active])
        assert await role_of(active) == "standby"
        active.limit_files(resource.RLIM_INFINITY)
        await until(lambda: is_ready(active))
        await ends_well(nodes, publishing)


@pytest.mark.slow
async def test_a_node_that_comes_back_as_a_standby_forgets_that_it_was_active(
    tmp_path: Path, etcd: EtcdProcess
) -> None:
    """Else two nodes would be active when the election is switched off."""
    async with elected(tmp_path, etcd) as nodes:
        active = await active_of(nodes)
        assert read_role(active.data_dir) == RoleRecord("active")
        await active.kill()
        await active_of([node for node in nodes if node is not active])
        await active.start()
        assert read_role(active.data_dir) == RoleRecord("standby")


@pytest.mark.slow
async def test_a_cluster_is_changed_only_by_all_of_its_nodes(tmp_path: Path, etcd: EtcdProcess) -> None:
    """With a higher `min_standbys` fewer nodes need to promise: one alone may lack acknowledged blocks."""
    async with elected(tmp_path, etcd) as nodes:
        for node in nodes:
            await node.kill()
        control = Path(etcd_program()).with_name("etcdctl")
        words = [str(control), "--endpoints", etcd.address, "del", "sluice/cluster"]
        await asyncio.to_thread(subprocess.run, words, check=True)
        for node in nodes:
            node.elect([other for other in nodes if other is not node], etcd, least=2)
        await nodes[0].start()

        async def is_said() -> bool:
            reasons = await nodes[0].reasons()
            return any("not all nodes of the cluster have answered" in line for line in reasons)

        await until(is_said)
        await asyncio.gather(*(node.start() for node in nodes[1:]))
        await active_of(nodes)


@pytest.mark.slow
async def test_nobody_makes_a_node_promise_what_etcd_did_not_grant(tmp_path: Path, etcd: EtcdProcess) -> None:
    async with elected(tmp_path, etcd) as nodes:
        publishing = Publishing(nodes)
        await publishing.reach(20)
        active = await active_of(nodes)
        for node in nodes:
            for epoch in (2, (1 << 63) - 1, (1 << 64) - 1):
                async with aio.insecure_channel(str(node.grpc)) as channel:
                    stub = standby_pb2_grpc.NodeLevelStub(channel)
                    call: Any = stub.watch(standby_pb2.WatchRequest(epoch=epoch, candidate="nobody"))
                    assert await call.code() is grpc.StatusCode.FAILED_PRECONDITION
                    assert "got a node that is told another holder" in str(await call.details())
        await publishing.reach(publishing.acknowledged + 20)
        assert await active_of(nodes) is active
        await ends_well(nodes, publishing)


@pytest.mark.slow
async def test_a_fourth_node_and_one_with_other_settings_take_no_part(
    tmp_path: Path, etcd: EtcdProcess
) -> None:
    async with elected(tmp_path, etcd) as nodes:
        with ElectedNode(tmp_path / "fourth") as fourth, ElectedNode(tmp_path / "fifth") as fifth:
            fourth.elect(nodes[:2], etcd)
            fifth.elect(nodes, etcd, least=2)
            await asyncio.gather(fourth.start(), fifth.start())
            for node, words in (
                (fourth, "the cluster at the coordinator has 3 nodes already"),
                (fifth, "this node has 4 nodes and commit.min_standbys 2"),
            ):

                async def says(node: ElectedNode = node, words: str = words) -> bool:
                    return any(words in line for line in await node.reasons())

                await until(says)
                assert await role_of(node) == "standby"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (
            ["--failover-automatic", "on", "--commit-min-standbys", 1, "--peer", "127.0.0.1:1"],
            "failover.etcd: got nothing",
        ),
        (
            ["--failover-automatic", "on", "--failover-etcd", "127.0.0.1:1"],
            "commit.min_standbys: got 0, expected at least 1",
        ),
    ],
)
def test_settings_that_an_election_needs(tmp_path: Path, words: list[object], name: str) -> None:
    status, said = refused("--data-dir", tmp_path / "data", "--ledger-key", ledger_key(), *words)
    assert status == 2
    assert name in said
