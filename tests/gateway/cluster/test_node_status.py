"""Several nodes compared: real ones, other block nodes, ones that are away or disagree."""

from __future__ import annotations

import socket
from contextlib import AsyncExitStack
from pathlib import Path

from grpc import aio

from sluice.gateway.api import node_pb2_grpc
from sluice.gateway.cluster import node_status
from sluice.gateway.cluster.node_status import NodeRow, NodesView, ask_node, collect
from sluice.gateway.limits import PEER_STATUS_SECONDS_MAX
from sluice.publishers.blocks.block_summary import summarize
from tests.gateway.fake_peer import fake_peer, nonsense_peer
from tests.nodes import make_blocks, running_node
from tests.publishers.node_thread import store

BLOCKS = make_blocks(8)
STRANGE = make_blocks(8, seed=8)
NOBODY = "127.0.0.1:1"


async def test_nodes_that_hold_the_same_chain_agree_on_the_last_block_that_all_have(tmp_path: Path) -> None:
    store(tmp_path / "a", BLOCKS)
    store(tmp_path / "b", BLOCKS[:5])

    async with AsyncExitStack() as stack:
        first, second, empty = [
            await stack.enter_async_context(running_node(tmp_path / name)) for name in ("a", "b", "c")
        ]
        addresses = [str(node.grpc_address) for node in (first, second, empty)]
        pages = [{"http_address": str(node.http_address)} for node in (first, second, empty)]
        view = await collect(addresses)
        assert (view.common, view.agree, view.healthy) == (4, True, True)
        root_hash = summarize(BLOCKS[4]).root_hash
        report = {
            "role": "active",
            "verification_mode": "full",
            "stream_layout": 2,
            "rolling": False,
            "ready": True,
            "publishers": 0,
            "subscribers": 0,
            "tcp_clients": 0,
            "missing_blocks": 0,
            "awaiting_standbys": 0,
            "cluster": {"one_active": False, "hears": None, "active_seconds_ago": 0.0, "faults": []},
        }
        assert view.as_json() == {
            "nodes": [
                {"node": addresses[0], "first_block": 0, "last_block": 7, "root_hash": root_hash}
                | report
                | pages[0]
                | {"error": None, "detail": None},
                {"node": addresses[1], "first_block": 0, "last_block": 4, "root_hash": root_hash}
                | report
                | pages[1]
                | {"error": None, "detail": None},
                {"node": addresses[2], "first_block": None, "last_block": None, "root_hash": None}
                | report
                | pages[2]
                | {"stream_layout": None, "error": None, "detail": None},
            ],
            "common_block": 4,
            "agree": True,
        }


async def test_nodes_whose_streams_have_different_layouts_are_told_apart(tmp_path: Path) -> None:
    store(tmp_path / "a", BLOCKS)
    store(tmp_path / "b", BLOCKS, layout=1)
    async with (
        running_node(tmp_path / "a") as first,
        running_node(tmp_path / "b") as second,
        running_node(tmp_path / "c") as empty,
    ):
        addresses = [str(node.grpc_address) for node in (first, second, empty)]
        view = await collect(addresses)
        assert (view.agree, view.healthy) == (True, False)
        assert view.lines()[-2:] == [
            "the nodes agree on block 7",
            (
                "their streams HAVE DIFFERENT LAYOUTS, so entry numbers differ: "
                f"1: {addresses[1]}; 2: {addresses[0]}"
            ),
        ]
        assert (await collect([addresses[0], addresses[2]])).healthy


async def test_nodes_that_differ_and_one_that_is_away(tmp_path: Path) -> None:
    store(tmp_path / "a", BLOCKS)
    store(tmp_path / "b", STRANGE)

    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(running_node(tmp_path / name)) for name in ("a", "b")]
        view = await collect([*(str(node.grpc_address) for node in nodes), NOBODY])
        assert (view.common, view.agree, view.healthy) == (7, False, False)
        assert view.lines()[-1] == "the nodes DO NOT AGREE on block 7"
        assert view.lines()[-2].startswith(f"{NOBODY}: UNAVAILABLE: ")


async def test_a_node_of_another_make_has_blanks_and_an_error_where_it_cannot_answer() -> None:
    async with fake_peer(BLOCKS) as peer:
        view = await collect([peer.address])
        assert view.common == 7
        assert view.rows[0].report == {}
        assert view.rows[0].error is not None
        assert view.rows[0].error.startswith("UNIMPLEMENTED: ")


async def test_a_node_whose_answer_does_not_parse_has_that_as_its_error(tmp_path: Path) -> None:
    async with nonsense_peer() as nonsense, fake_peer(BLOCKS) as peer:
        view = await collect([nonsense, peer.address])
        words = "got a message that does not parse, expected a"
        assert view.rows[0].error == f"its status: {words} ServerStatusResponse"
        assert (view.rows[1].last, view.healthy) == (7, False)
        row = NodeRow(nonsense)
        async with aio.insecure_channel(nonsense) as channel:
            await node_status._ask_root(row, channel, 7, PEER_STATUS_SECONDS_MAX)
        assert row.error == f"block 7: {words} BlockResponse"


def test_nodes_without_a_common_block_are_not_compared() -> None:
    view = NodesView([NodeRow("a:1", 0, 3), NodeRow("b:1", 5, 9)], None)
    assert view.agree is None
    assert view.healthy


def test_the_table() -> None:
    rows = [
        NodeRow("10.0.0.1:40840", 0, 41, {"role": "active", "ready": True, "publishers": 3}, "ab" * 48),
        NodeRow("10.0.0.2:40840", 0, 40, {"ready": False, "role": ["hostile"]}, "ab" * 48),
        NodeRow("10.0.0.3:40840"),
        NodeRow("10.0.0.4:40840", error="UNAVAILABLE: away\x1b[2J"),
    ]
    lines = NodesView(rows, 40).lines()
    assert lines[0].split() == (
        [
            "node",
            "role",
            "ready",
            "first",
            "last",
            "root",
            "hash",
            "publishers",
            "tcp",
            "subscribers",
            "behind",
            "missing",
            "verify",
        ]
    )
    assert lines[1:] == [
        "10.0.0.1:40840  active       yes    0      41    abababababab  3                             0",
        "10.0.0.2:40840  ['hostile']  no     0      40    abababababab                                1",
        "10.0.0.3:40840                      none   none",
        "10.0.0.4:40840  no answer",
        "10.0.0.4:40840: UNAVAILABLE: away\\x1b[2J",
        "the nodes agree on block 40",
    ]


def test_a_fault_of_the_cluster_that_a_node_sees_is_shown_and_no_good_health() -> None:
    fault = "no node is active: b:1 does not answer\n"
    report = {"role": "standby", "ready": True, "cluster": {"faults": [fault]}}
    view = NodesView([NodeRow("a:1", 0, 7, report), NodeRow("c:1", 0, 7, {"cluster": ["nonsense"]})], None)
    assert view.lines()[-1] == "a:1 says: no node is active: b:1 does not answer\\n"
    assert not view.healthy
    report["cluster"] = {"faults": []}
    assert view.healthy


async def test_what_a_node_says_is_cut_and_cleaned_before_anybody_repeats_it() -> None:
    async with fake_peer(BLOCKS) as peer, aio.insecure_channel(peer.address) as channel:
        stub = node_pb2_grpc.BlockNodeServiceStub(channel)
        peer.report = {"role": "\ud800" + "r" * 100, "instance": "\x1b[2J" + "i" * 1_000, "root_hash": [1]}
        answer = await ask_node(stub, PEER_STATUS_SECONDS_MAX)
        assert answer.role == "\\ud800" + "r" * 26
        assert answer.instance == "\\x1b[2J" + "i" * 57
        assert answer.report["root_hash"] is None


async def test_a_table_of_nodes_that_say_nonsense_is_plain_text() -> None:
    async with fake_peer(BLOCKS) as peer, fake_peer(BLOCKS) as other:
        deep: list[object] = []
        for _ in range(400):
            deep = [deep]
        peer.report = {
            "role": "\x1b]0;title\x07",
            "root_hash": ["x"],
            "publishers": deep,
            "verification_mode": "\x1b[2J" + "v" * 3_000,
            "cluster": {"faults": ["\x1b[2J", deep]},
        }
        other.report = {"role": "standby", "root_hash": "\x1b[2J"}
        view = await collect([peer.address, other.address])
        lines = view.lines()
        assert [row.error for row in view.rows] == [None, None]
        assert view.agree is None
        assert all(line.isprintable() and len(line) < 1_000 for line in lines), lines
        assert "\\x1b]0;title\\x07" in lines[1]


async def test_a_node_that_does_not_answer_is_not_waited_for_beyond_a_limit() -> None:
    """A hung node accepts the connection."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        view = await collect([address], timeout_seconds=0.2)
    (row,) = view.rows
    assert row.error is not None
    assert row.error.startswith("DEADLINE_EXCEEDED: ")
