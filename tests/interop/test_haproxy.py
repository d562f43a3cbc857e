"""The HAProxy example in front of two real nodes: a publisher and a client that know one address each."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from tenacity import wait_fixed

from sluice.datastream.client.follower import StreamFollower
from sluice.datastream.limits import FollowLimits
from sluice.gateway.cluster.control_client import ControlClient
from sluice.gateway.cluster.failover import Failover
from sluice.gateway.node.node import Node
from sluice.publishers.client.client import ClientOptions, PublishClient
from sluice.publishers.protocol.machine import SECOND_NS, MachineLimits
from tests.chaos.network import free_ports
from tests.nodes import ANSWER_SECONDS, each, make_blocks, running_node

CONFIGURATION = Path(__file__).resolve().parents[2] / "deploy" / "haproxy" / "haproxy.cfg"
BLOCKS = make_blocks(60)
OPTIONS = ClientOptions(
    machine=MachineLimits(deadline_ns=60 * SECOND_NS, answer_timeout_ns=10 * SECOND_NS), wait=wait_fixed(0.1)
)


def rendered(nodes: tuple[Node, Node], publish_port: int, tcp_port: int) -> str:
    """The example, on ports that are free here."""
    text = CONFIGURATION.read_text("utf-8")
    text = text.replace("bind :40840", f"bind 127.0.0.1:{publish_port}")
    text = text.replace("maxconn 20000", "maxconn 200")  # 1,024 files are often the limit, and each takes two
    text = text.replace("bind :6900", f"bind 127.0.0.1:{tcp_port}")
    lines = []
    for line in text.splitlines():
        for name, node in zip(("node-a", "node-b"), nodes, strict=True):
            line = line.replace(f"{name}:40840", str(node.grpc_address))
            line = line.replace(f"{name}:6900", str(node.tcp_address))
            if line.strip().startswith(f"server {name}"):
                line = line.replace("port 16007", f"port {node.http_address.port}")
        lines.append(line)
    return "\n".join(lines) + "\n"


@asynccontextmanager
async def haproxy(configuration: Path) -> AsyncIterator[None]:
    """HAProxy, until the end of the test."""
    command = shutil.which("haproxy")
    if command is None:
        pytest.skip("needs haproxy; the package haproxy has it")
    log = configuration.with_suffix(".log")
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            command, "-db", "-f", str(configuration), stdout=out, stderr=out
        )
        try:
            yield
            assert process.returncode is None, log.read_text("utf-8")
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def ready_for_publishers(node: Node) -> int:
    """Ask what HAProxy asks."""
    address = f"http://{node.http_address}/readyz/publishers"
    async with aiohttp.ClientSession() as session, session.get(address) as response:
        return response.status


async def test_a_failover_behind_haproxy(tmp_path: Path) -> None:
    if shutil.which("haproxy") is None:
        pytest.skip("needs haproxy; the package haproxy has it")

    publish_port, tcp_port = free_ports(2)
    async with running_node(tmp_path / "a") as a:
        standby = {"role": "standby", "peers": (a.grpc_address,), "catchup_backoff_seconds": 0.05}
        async with running_node(tmp_path / "b", **standby) as b:
            assert (await ready_for_publishers(a), await ready_for_publishers(b)) == (200, 503)
            configuration = tmp_path / "haproxy.cfg"
            configuration.write_text(rendered((a, b), publish_port, tcp_port))
            async with haproxy(configuration):
                publisher = PublishClient([f"127.0.0.1:{publish_port}"], "alice", OPTIONS)
                publishing = asyncio.ensure_future(publisher.publish(each(BLOCKS, 0.02)))
                limits = FollowLimits(backoff_first_seconds=0.1, backoff_max_seconds=0.5)
                entry_count = sum(len(block.items) + 2 for block in BLOCKS)
                async with (
                    asyncio.timeout(3 * ANSWER_SECONDS),
                    StreamFollower([("127.0.0.1", tcp_port)], from_entry=0, limits=limits) as client,
                    ControlClient(str(a.control_address)) as one,
                    ControlClient(str(b.control_address)) as other,
                ):
                    numbers = [(await anext(client)).number for _ in range(entry_count // 4)]
                    await Failover(one, other, lambda step: None).run()
                    assert (await ready_for_publishers(a), await ready_for_publishers(b)) == (503, 200)
                    report = await publishing
                    numbers += [(await anext(client)).number for _ in range(entry_count - len(numbers))]
                assert (report.blocks, report.unacknowledged) == (60, 0)
                assert numbers == list(range(entry_count))
                assert b.store.last_number == 59
