"""Real nodes change their roles: publishers and a legacy client follow, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest
from tenacity import wait_fixed

from sluice.datastream.check.compare import compare_streams
from sluice.datastream.client.client import StreamClient
from sluice.gateway.addresses import Address
from sluice.gateway.blocks.block import Block
from sluice.gateway.cluster.control_client import ControlClient
from sluice.gateway.cluster.failover import Failover, FailoverStep
from sluice.gateway.cluster.node_status import collect
from sluice.gateway.cluster.role_keeper import read_role
from sluice.gateway.cluster.roles import Phase, RoleRecord
from sluice.gateway.errors import FailoverFailed
from sluice.gateway.node.node import Node
from sluice.publishers.client.client import ClientOptions, PublishClient
from sluice.publishers.protocol.machine import MachineLimits
from sluice.publishers.report import PublishReport
from tests.nodes import each, ledger_key, make_blocks, running_node, until, wire_to
from tests.serving import ANYWHERE, SLUICE, free_port, refused

BLOCKS = make_blocks(60)
OPTIONS = ClientOptions(wait=wait_fixed(0.05), machine=MachineLimits(deadline_ns=60 * 10**9))


@asynccontextmanager
async def pair(tmp_path: Path, **changes: Any) -> AsyncIterator[tuple[Node, Node]]:
    """An active node, and its standby."""
    async with running_node(tmp_path / "a", **changes) as a:
        standby = {"role": "standby", "peers": (a.subscriber_address,), "catchup_backoff_seconds": 0.05}
        async with running_node(tmp_path / "b", **(standby | changes)) as b:
            yield a, b


class Controlled(Protocol):
    """A node here, or a process, with a control address."""

    @property
    def control_address(self) -> Address:
        """Where operators call."""


async def fail_over(
    source: Controlled, target: Controlled, *, force: bool = False, **options: Any
) -> list[FailoverStep]:
    """Run a failover; return its steps."""
    steps: list[FailoverStep] = []
    async with (
        ControlClient(str(source.control_address)) as one,
        ControlClient(str(target.control_address)) as other,
    ):
        failover = Failover(one, other, steps.append, **options)
        await (failover.force() if force else failover.run())
    return steps


async def level(node: Node, number: int) -> None:
    """Wait until a node holds a block."""
    await until(lambda: node.store.last_number is not None and node.store.last_number >= number)


async def publish(nodes: Sequence[Node], name: str, blocks: Sequence[Block]) -> PublishReport:
    """Publish slowly enough for events in between."""
    gateways = [str(node.grpc_address) for node in nodes]
    return await PublishClient(gateways, name, OPTIONS).publish(each(blocks, 0.01))


async def test_a_standby_follows_and_sends_publishers_elsewhere(tmp_path: Path) -> None:
    async with pair(tmp_path) as (a, b), wire_to(a) as wire, wire_to(b) as other:
        publisher = await wire.publisher("alice")
        await publisher.block(*BLOCKS[:5])
        await publisher.expect(*(f"ack {number}" for number in range(5)))
        await level(b, 4)
        elsewhere = await other.publisher("bob")
        await elsewhere.expect("end SUCCESS last 4 about 0", "closed")
        assert b.reporter.report().sent_elsewhere is not None
        assert b.reporter.readiness() == []
        assert (await other.get_block(3)).block.items == list(BLOCKS[3].items)
        await publisher.block(BLOCKS[5])
        await publisher.expect("ack 5")
        await level(b, 5)
    comparison = compare_streams(tmp_path / "a" / "datastream.bin", tmp_path / "b" / "datastream.bin")
    assert comparison.is_equal
    assert comparison.headers[0].total_entries == comparison.headers[1].total_entries


async def test_after_a_failover_the_standby_follows_where_subscribers_connect(tmp_path: Path) -> None:
    async with pair(tmp_path, subscriber_address=Address("127.0.0.1", 0)) as (a, b):
        await publish((a, b), "alice", BLOCKS[:3])
        await level(b, 2)
        await fail_over(a, b)
        assert read_role(tmp_path / "a") == RoleRecord("standby", str(b.subscriber_address))
        await publish((a, b), "alice", BLOCKS[:6])
        await level(a, 5)


async def test_of_two_failovers_at_once_to_two_nodes_one_is_done(tmp_path: Path) -> None:
    """Otherwise two nodes are active."""

    async with pair(tmp_path) as (a, b), AsyncExitStack() as stack:
        standby = {"role": "standby", "peers": (a.subscriber_address,), "catchup_backoff_seconds": 0.05}
        c = await stack.enter_async_context(running_node(tmp_path / "c", **standby))
        await publish((a,), "alice", BLOCKS[:3])
        await level(b, 2)
        await level(c, 2)
        results = await asyncio.gather(fail_over(a, b), fail_over(a, c), return_exceptions=True)
        failures = [error for error in results if isinstance(error, FailoverFailed)]
        assert [failure.outcome for failure in failures] in (
            [f"{a.control_address} is drained"],
            [f"{a.control_address} is standby"],
            ["nothing has changed"],  # it came late, and saw the other
        )
        assert [node.keeper.phase for node in (b, c)].count(Phase.ACTIVE) == 1
        assert a.keeper.phase is Phase.STANDBY


async def test_a_planned_failover_under_publishers_and_a_reader_that_carries_its_entry_number(
    tmp_path: Path,
) -> None:
    async with pair(tmp_path) as (a, b):
        read: list[bytes] = []

        async def read_entries() -> None:
            """A legacy client: reads history and live from A, then from B."""
            async with await StreamClient.connect(a.tcp_address.host, a.tcp_address.port) as client:
                await client.start(0)
                async for entry in client.entries():
                    assert entry.number == len(read)
                    read.append(entry.data)
                    if len(read) == 200:
                        break
            while b.store.streamer.committed.total_entries < len(read):  # noqa: ASYNC110
                await asyncio.sleep(0.005)  # B is a few entries behind, and would refuse
            async with await StreamClient.connect(b.tcp_address.host, b.tcp_address.port) as client:
                await client.start(len(read))
                async for entry in client.entries():
                    assert entry.number == len(read)
                    read.append(entry.data)

        reader = asyncio.create_task(read_entries())
        publishers = [
            asyncio.create_task(publish(nodes, name, BLOCKS))
            for nodes, name in (((a, b), "alice"), ((b, a), "bob"))
        ]
        await level(a, 15)
        steps = await fail_over(a, b)
        assert [step.name.split()[0] for step in steps[:4]] == ["read", "drain", "level", "activate"]
        await level(b, 35)
        await fail_over(b, a)
        reports = await asyncio.gather(*publishers)
        assert [report.blocks for report in reports] == [60, 60]
        for node in (a, b):
            await level(node, 59)
        assert (a.keeper.phase, b.keeper.phase) == (Phase.ACTIVE, Phase.STANDBY)
        assert read_role(tmp_path / "b") == RoleRecord("standby", str(a.grpc_address))
        total_entries = b.store.streamer.committed.total_entries
        await until(lambda: len(read) >= total_entries)
        reader.cancel()
        assert read == [entry.data for entry in a.store.streamer.read_entries(0)]
    comparison = compare_streams(tmp_path / "a" / "datastream.bin", tmp_path / "b" / "datastream.bin")
    assert comparison.is_equal


async def test_roles_survive_a_restart(tmp_path: Path) -> None:
    async with pair(tmp_path) as (a, b):
        await fail_over(a, b)
    async with running_node(tmp_path / "b") as b, running_node(tmp_path / "a") as a:
        assert (a.keeper.phase, b.keeper.phase) == (Phase.STANDBY, Phase.ACTIVE)


async def test_a_standby_takes_over_from_a_dead_node_and_the_dead_one_becomes_its_standby(
    tmp_path: Path,
) -> None:
    async with running_node(tmp_path / "a") as a:
        address = a.grpc_address
        async with running_node(tmp_path / "b", role="standby", peers=(address,)) as b:
            async with wire_to(a) as wire:
                publisher = await wire.publisher("alice")
                await publisher.block(*BLOCKS[:3])
                await publisher.expect("ack 0", "ack 1", "ack 2")
                await level(b, 2)
            with pytest.raises(FailoverFailed, match="answers and is active; leave --force out"):
                await fail_over(a, b, force=True)
            await a.stop()
            with pytest.raises(FailoverFailed, match="nothing has changed; if that node is dead: --force"):
                await fail_over(a, b)
            await fail_over(a, b, force=True)
            async with wire_to(b) as wire:
                publisher = await wire.publisher("alice")
                await publisher.block(BLOCKS[3])
                await publisher.expect("ack 3")
                async with running_node(tmp_path / "a", peers=(b.grpc_address,)) as back:
                    assert back.keeper.phase is Phase.ACTIVE
                    # Nobody could tell it. B has all its blocks, so it can stand by at once.
                    await fail_over(back, b)
                    assert (back.keeper.phase, b.keeper.phase) == (Phase.STANDBY, Phase.ACTIVE)
                    await level(back, 3)


async def test_a_standby_with_another_chain_is_not_ready_at_once_and_is_not_handed_over_to(
    tmp_path: Path,
) -> None:
    """With the default backoffs, five attempts would take four minutes."""

    async with running_node(tmp_path / "b") as b, wire_to(b) as wire:
        publisher = await wire.publisher("alice")
        await publisher.block(*make_blocks(3, seed=8))
        await publisher.expect("ack 0", "ack 1", "ack 2")
    async with AsyncExitStack() as stack:
        a = await stack.enter_async_context(running_node(tmp_path / "a"))
        settings: dict[str, Any] = {"role": "standby", "peers": (a.grpc_address,)}
        b = await stack.enter_async_context(running_node(tmp_path / "b", **settings))
        assert b.reporter.readiness() == []  # an empty node has no chain yet
        wire = await stack.enter_async_context(wire_to(a))
        publisher = await wire.publisher("alice")
        await publisher.block(*BLOCKS[:4])
        await publisher.expect(*(f"ack {number}" for number in range(4)))
        await until(lambda: b.reporter.readiness())
        [problem] = b.reporter.readiness()
        why = "bad root hash: block footer field 1 (previous_block_root_hash): got "
        assert problem.startswith(f"the node cannot follow: {a.grpc_address} sent what cannot be: {why}")
        view = await collect([str(a.grpc_address), str(b.grpc_address)])
        assert [row.report["ready"] for row in view.rows] == [True, False]
        assert view.agree is False
        with pytest.raises(FailoverFailed, match=r"is not ready: .*; nothing has changed"):
            await fail_over(a, b)
        assert a.keeper.phase is Phase.ACTIVE


async def test_a_failover_that_cannot_become_level_is_undone(tmp_path: Path) -> None:

    async with pair(tmp_path) as (a, b), wire_to(a) as wire:
        await b.following.stop()  # as if B could not reach A
        publisher = await wire.publisher("alice")
        await publisher.block(BLOCKS[0])
        await publisher.expect("ack 0")
        with pytest.raises(FailoverFailed, match=r"DEADLINE_EXCEEDED: await block 0: .* is active again"):
            await fail_over(a, b, level_seconds=0.1)
        assert (a.keeper.phase, b.keeper.phase) == (Phase.ACTIVE, Phase.STANDBY)
        again = await wire.publisher("alice")
        await again.block(BLOCKS[1])
        await again.expect("ack 1")


@pytest.mark.parametrize("name", [pytest.param("127.0.0.1", marks=pytest.mark.slow), "localhost"])
def test_a_standby_of_itself_does_not_start(tmp_path: Path, name: str) -> None:
    """Whatever its own name in its configuration; exit status 2, as for any wrong setting."""
    port = free_port()
    status, text = refused(
        *("--data-dir", tmp_path, "--ledger-key", ledger_key(), "--role", "standby", *ANYWHERE[2:]),
        *("--grpc", f"127.0.0.1:{port}", "--peer", f"{name}:{port}"),
    )
    assert status == 2
    assert text == (
        f"sluice: peers: got {name}:{port}, which is this node itself, expected another node, which a "
        f"standby can follow (a node that listens at 127.0.0.1:{port})\n"
    )


async def test_a_node_does_not_hand_over_to_itself(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        port = node.control_address.port
        for options in ((), ("--force",)):
            command = [*SLUICE, "failover", "--from", f"127.0.0.1:{port}", "--to", f"localhost:{port}"]
            process = await asyncio.create_subprocess_exec(
                *command, *options, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
            )
            _, error = await process.communicate()
            assert process.returncode == 1
            reason = f"127.0.0.1:{port} and localhost:{port} are the same node; nothing has changed"
            if options:
                reason = f"127.0.0.1:{port} answers and is active; leave --force out, or stop that node first"
            assert error.decode() == f"sluice: failover: {reason}\n"
        assert node.keeper.phase is Phase.ACTIVE
