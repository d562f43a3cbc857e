"""Tests of `gateway.status.cluster_page` with real nodes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from sluice.gateway.addresses import Address
from sluice.gateway.cluster.role_keeper import write_role
from sluice.gateway.cluster.roles import RoleRecord
from sluice.gateway.node.node import Node
from sluice.gateway.status.cluster_page import FRESH_SECONDS, ClusterPage, NodeLine, page_of, render_cluster
from tests.gateway.status.test_status_page import Page
from tests.nodes import KEY, LOOPBACK, make_blocks, running_node, until, wire_to

BLOCKS = make_blocks(4)
NOBODY = Address("127.0.0.1", 1)


async def get(node: Node, path: str) -> str:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{node.http_address}{path}") as answer,
    ):
        assert answer.status == 200
        return await answer.text()


async def published(node: Node, seed: int = 7, count: int = 4) -> None:
    async with wire_to(node) as wire:
        publisher = await wire.publisher("alice")
        await publisher.block(*make_blocks(count, seed=seed, key=KEY))
        await publisher.expect(*(f"ack {number}" for number in range(count)))


async def test_each_node_shows_all_and_links_to_their_pages(tmp_path: Path) -> None:
    async with running_node(tmp_path / "a") as a:
        await published(a)
        peers = (a.grpc_address, NOBODY)
        async with running_node(tmp_path / "b", role="standby", peers=peers) as b:
            await until(lambda: b.store.last_number == 3)
            html = await get(b, "/cluster")
            page = Page(html)
            assert f'<a href="http://{a.http_address}/">{a.grpc_address}</a>' in html
            assert "1 of 3 nodes does not answer this one." in page.text
            assert f"this node, {b.grpc_address} | standby | yes | 3 | 0 | 0 | 0" in page.text
            assert f"{a.grpc_address} | active | yes | 3 | 0 | 0 | 0 | the same at block 3" in page.text
            assert f"{NOBODY} | does not answer: UNAVAILABLE" in page.text
            assert f'<a href="http://{a.http_address}/">{a.grpc_address}</a>' in await get(b, "/")


async def test_a_cluster_with_two_active_nodes_is_not_called_good(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_role(tmp_path / name, RoleRecord("active"))  # as after a failover
    async with (
        running_node(tmp_path / "a") as a,
        running_node(tmp_path / "b", peers=(a.grpc_address,)) as b,
    ):
        await until(lambda: b.reporter.report().cluster_faults)
        page = Page(await get(b, "/cluster"))
        assert f"Two nodes are active: {a.grpc_address} and this node." in page.text
        assert "All nodes answer" not in page.text
        assert "http-equiv=refresh" not in await get(b, "/cluster?hold=on")


def test_a_node_that_is_not_ready_is_named() -> None:
    lines = [
        NodeLine("this node, a:1", role="active", is_ready=True, is_own=True),
        NodeLine("b:1", is_ready=False),
    ]
    assert "Not ready: b:1." in Page(render_cluster(lines)).text
    assert "All nodes answer and are ready" in Page(render_cluster([lines[0], lines[0]])).text


async def test_a_node_with_another_chain_is_named(tmp_path: Path) -> None:
    async with running_node(tmp_path / "a") as a:
        await published(a, seed=8, count=2)
        async with running_node(tmp_path / "b") as b:
            await published(b)  # with the peer it might catch up first
        async with running_node(tmp_path / "b", peers=(a.grpc_address,)) as b:
            page = Page(await get(b, "/cluster"))
            assert f"Not the chain of this node: {a.grpc_address}." in page.text
            assert "| 1 | 2 | 0 | 0 | ANOTHER at block 1" in page.text


async def test_the_link_to_a_peer_stays_while_it_does_not_answer(tmp_path: Path) -> None:
    async with running_node(tmp_path / "b") as b:
        async with running_node(tmp_path / "a") as a:
            view = ClusterPage(b.reporter.report, b.store, [str(a.grpc_address)])
            await view.lines()
            page = view.pages[str(a.grpc_address)]
        view._looked_at = -FRESH_SECONDS
        _, gone = await view.lines()
        assert gone.error is not None
        assert (gone.page, view.pages) == (page, {str(a.grpc_address): page})


async def test_a_node_that_is_ahead_is_compared_at_the_last_block_here(tmp_path: Path) -> None:
    async with running_node(tmp_path / "a") as a, running_node(tmp_path / "b") as b:
        await published(a)
        await published(b, count=2)  # as a peer of the other it would catch up
        view = ClusterPage(b.reporter.report, b.store, [str(a.grpc_address)])
        own, other = await view.lines()
        assert (own.last, other.last, other.has_same_chain, other.compared_at) == (1, 3, True, 1)
        assert other.page == f"http://{a.http_address}/"


async def test_a_fault_of_the_own_disk_is_not_laid_to_the_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_node(tmp_path / "a") as a, running_node(tmp_path / "b") as b:
        await published(a)
        await published(b)
        peers = [str(a.grpc_address)]
        damaged, hanging = (ClusterPage(b.reporter.report, b.store, peers, ask_seconds=1.0) for _ in range(2))

        def fails(number: int) -> bytes:
            raise OSError(f"no block {number}")

        monkeypatch.setattr(b.store, "root_hash_at", fails)
        lines = await damaged.lines()
        assert (lines[1].error, lines[1].role, lines[1].has_same_chain) == (None, "active", None)
        words = "not compared: this node cannot read its block 3: "
        assert f"{words}no block 3" in Page(render_cluster(lines)).text

        goes_on = threading.Event()
        monkeypatch.setattr(b.store, "root_hash_at", lambda number: goes_on.wait() and None)
        try:
            assert (
                f"{words}its disk does not answer in time" in Page(render_cluster(await hanging.lines())).text
            )
        finally:
            goes_on.set()


async def test_a_node_without_peers_says_so(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        page = Page(await get(node, "/cluster"))
        assert "This node has no peers (setting" in page.text
        assert "active | yes | none" in page.text


async def test_many_browsers_are_one_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        running_node(tmp_path / "a") as a,
        running_node(tmp_path / "b", peers=(a.grpc_address,)) as b,
    ):
        asked = 0
        report = a.reporter.status_report

        def counted() -> dict[str, object]:
            nonlocal asked
            asked += 1
            return report()

        monkeypatch.setattr(a.reporter, "status_report", counted)
        assert FRESH_SECONDS > 1
        for _ in range(20):
            await get(b, "/cluster")
        assert asked <= 2


@pytest.mark.parametrize(
    ("peer", "served", "page"),
    [
        ("10.0.0.6:40840", "0.0.0.0:16007", "http://10.0.0.6:16007/"),
        ("node-b:40840", "[::]:16007", "http://node-b:16007/"),
        ("10.0.0.6:40840", "192.0.2.6:80", "http://192.0.2.6:80/"),
        ("[2001:db8::6]:40840", "[::]:16007", "http://[2001:db8::6]:16007/"),
        ("127.0.0.1:40850", "127.0.0.1:16008", "http://127.0.0.1:16008/"),
        ("10.0.0.6:40840", "127.0.0.1:16007", None),
        ("10.0.0.6:40840", "", None),
        ("10.0.0.6:40840", "javascript:alert(1)//:80", None),
        ("10.0.0.6:40840", '"><script>:80', None),
        ("10.0.0.6:40840", "0.0.0.0:0", None),
    ],
)
def test_where_a_peer_has_its_page(peer: str, served: str, page: str | None) -> None:
    assert page_of(peer, served) == page


def test_what_a_peer_says_is_never_markup() -> None:
    evil = "<script>alert(1)</script>"
    values: dict[str, Any] = {"address": evil, "role": evil, "page": f'http://x/"{evil}'}
    html = render_cluster([NodeLine("own", is_own=True), NodeLine(**values), NodeLine(evil, error=evil)])
    page = Page(html)
    assert "script" not in page.tags
    assert page.text.count(evil) == 3 + 1
    assert LOOPBACK.host not in page.text
