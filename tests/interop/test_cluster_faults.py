"""Three real nodes, each a process: what every one of them says when the cluster is in danger, and how soon.

What is no fault (a handover, a start, a cut line) is in `tests.gateway.cluster.test_cluster_view`, second by
second; here, a failover and a start run with real ones.
"""

from __future__ import annotations

import asyncio
import re
import resource
from collections.abc import Sequence
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.interop.test_failover import fail_over
from tests.interop.test_standbys import ClusterNode, Publishing, cluster, is_level
from tests.nodes import ANSWER_SECONDS, until
from tests.serving import sluice

NO_ACTIVE, TWO_ACTIVE, NO_SUCCESSOR = "no_active", "two_active", "no_successor"
WORDS = {
    NO_ACTIVE: "no node is active: ",
    TWO_ACTIVE: "two nodes are active: ",
    NO_SUCCESSOR: "nobody could take over without loss: ",
}
HELD = re.compile(r'^sluice_cluster_fault\{fault="(\w+)"\} 1\.0$', re.MULTILINE)


def get(node: ClusterNode, path: str) -> str:
    """Ask over HTTP."""
    with urlopen(f"http://{node.http_address}{path}", timeout=ANSWER_SECONDS) as answer:
        return str(answer.read().decode())


async def faults_of(node: ClusterNode) -> list[str]:
    """Return the faults in its metrics."""
    return HELD.findall(await asyncio.to_thread(get, node, "/metrics"))


async def all_say(nodes: Sequence[ClusterNode], *faults: str) -> None:
    """Wait until every node has these faults, and no others, in its metrics."""

    async def they_do() -> bool:
        return all([await faults_of(node) == list(faults) for node in nodes])

    await until(they_do, 0.1)


async def check_words(node: ClusterNode, fault: str) -> None:
    """Check page, /readyz, log, and `sluice status` of a node that sees one fault."""
    words = WORDS[fault]
    page, ready = await asyncio.to_thread(get, node, "/"), await asyncio.to_thread(get, node, "/readyz")
    assert words in page
    assert ready.startswith(f"ready\nnote: {words}")
    (line,) = [one for one in node.logged("cluster fault") if one["fault"] == fault]
    assert line["reason"].startswith(words)
    status = await asyncio.to_thread(sluice, "status", node.grpc)
    assert (status.returncode, f"{node.grpc} says: {words}" in status.stdout) == (1, True)


async def keeps_silent(nodes: Sequence[ClusterNode]) -> None:
    """Check that no node has seen a fault since its start."""
    for node in nodes:
        assert await faults_of(node) == []
        assert node.logged("cluster fault") == []
        done = await asyncio.to_thread(sluice, "status", node.grpc)
        assert (done.returncode, "says:" in done.stdout) == (0, False)


@pytest.mark.slow
async def test_the_active_node_is_killed_and_comes_back_when_another_has_taken_over(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3, 0) as (a, b, c):
        publishing = Publishing([a])
        await publishing.reach(10)
        count = await publishing.end()
        await until(lambda: is_level(a, b, count - 1))
        await asyncio.sleep(7)  # longer than a fault has to last
        await keeps_silent([a, b, c])

        await a.kill()
        await all_say([b, c], NO_ACTIVE)
        for node in (b, c):
            await check_words(node, NO_ACTIVE)
        (line,) = b.logged("cluster fault")
        assert f"{a.grpc} does not answer (it was active, with block {count - 1})" in line["reason"]

        await fail_over(a, b, force=True)
        await all_say([b, c])
        await a.start()
        await all_say([a, b, c], TWO_ACTIVE)
        for node in (a, b, c):
            await check_words(node, TWO_ACTIVE)

        await fail_over(a, b)  # as the page advises
        await all_say([a, b, c])
        assert [one["fault"] for one in c.logged("cluster fault is over")] == [NO_ACTIVE, TWO_ACTIVE]


async def test_two_nodes_are_started_active_beside_a_standby(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3, 0) as (a, b, c):
        await b.kill()
        b.introduce([a, c], 0, "active")
        await b.start()
        await all_say([a, b, c], TWO_ACTIVE)
        await check_words(c, TWO_ACTIVE)


@pytest.mark.slow
async def test_every_standby_is_stopped(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3, 0) as (a, b, c):
        publishing = Publishing([a])
        await publishing.reach(10)
        count = await publishing.end()
        await until(lambda: is_level(a, b, count - 1))
        await c.kill()
        await asyncio.sleep(7)
        assert await faults_of(a) == await faults_of(b) == []  # b has every block
        await b.kill()
        await all_say([a], NO_SUCCESSOR)
        await check_words(a, NO_SUCCESSOR)
        await c.start()
        await all_say([a, c])


@pytest.mark.slow
async def test_standbys_that_cannot_write_say_that_they_could_not_take_over(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3, 0) as nodes:
        a, *standbys = nodes
        publishing = Publishing([a])
        await publishing.reach(10)
        for node in standbys:
            node.limit_files(1)
        await publishing.reach(publishing.acknowledged + 20)
        await all_say(nodes, NO_SUCCESSOR)
        await check_words(a, NO_SUCCESSOR)
        standbys[0].limit_files(resource.RLIM_INFINITY)
        await all_say(nodes)
        await publishing.end()


@pytest.mark.slow
async def test_planned_handovers_and_a_start_of_all_nodes_are_no_faults(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3, 1) as nodes:
        a, b, c = nodes
        publishing = Publishing([a, b])
        for source, target in ((a, b), (b, a), (a, b)):
            await publishing.reach(publishing.acknowledged + 20)
            await fail_over(source, target)
            await asyncio.sleep(6)
        await publishing.end()
        await keeps_silent(nodes)
        for node in nodes:
            await node.kill()
        for node in (c, a, b):
            await node.start()
            await asyncio.sleep(2)
        await asyncio.sleep(6)
        await keeps_silent(nodes)
