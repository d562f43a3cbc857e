"""Tests of `cluster.control_client`: a node that does not answer, and one of a newer version."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from sluice.gateway.api import control_pb2
from sluice.gateway.cluster.control_client import ControlClient, status_of
from sluice.gateway.cluster.failover import NodeStatus
from sluice.gateway.cluster.roles import Phase
from sluice.gateway.errors import NodeCallFailed
from sluice.gateway.transport.channels import ClientTls
from tests.certificates import Authority
from tests.nodes import running_node


@pytest.mark.parametrize("phase", list(Phase))
def test_each_phase_is_read(phase: Phase) -> None:
    state = control_pb2.NodeState(
        phase=control_pb2.Phase.Value(phase.name),
        last_block_number=7,
        last_root_hash=b"root",
        grpc_address="a:1",
        publisher_count=3,
        followed="b:2",
        problems=["one"],
    )
    assert status_of(state, "c:3") == NodeStatus(phase, 7, b"root", "a:1", "a:1", 3, "b:2", ("one",))


@pytest.mark.parametrize("number", [0, 99])
def test_a_phase_that_is_not_known_is_one_that_nothing_is_done_to(number: int) -> None:
    state = control_pb2.NodeState(last_block_number=(1 << 64) - 1)
    state.phase = number  # type: ignore[assignment]
    assert status_of(state, "c:3") == NodeStatus(Phase.DRAINING, None, b"", "", "")


@pytest.mark.parametrize(
    ("said", "asked", "reached"),
    [
        (("a:1", "a:2"), "c:3", ("a:1", "a:2")),
        (("a:1", ""), "c:3", ("a:1", "a:1")),
        (("0.0.0.0:1", "[::]:2"), "10.0.0.5:3", ("10.0.0.5:1", "10.0.0.5:2")),
        (("0.0.0.0:1", ""), "[2001:db8::1]:3", ("[2001:db8::1]:1", "[2001:db8::1]:1")),
        (("0.0.0.0:1", "a:2"), "unix:/run/control", ("0.0.0.0:1", "a:2")),
    ],
)
def test_a_node_that_listens_everywhere_is_where_it_was_asked(
    said: tuple[str, str], asked: str, reached: tuple[str, str]
) -> None:
    state = control_pb2.NodeState(grpc_address=said[0], subscriber_address=said[1])
    status = status_of(state, asked)
    assert (status.grpc_address, status.subscriber_address) == reached


async def test_a_node_that_is_not_there_is_named() -> None:
    async with ControlClient("127.0.0.1:1") as client:
        with pytest.raises(NodeCallFailed, match=r"^127\.0\.0\.1:1: UNAVAILABLE: ") as caught:
            await client.state()
        assert caught.value.address == "127.0.0.1:1"
        assert caught.value.is_unanswered


async def test_an_address_that_is_not_for_control_is_named(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, ControlClient(str(node.grpc_address)) as client:
        with pytest.raises(NodeCallFailed) as caught:
            await client.state()
    assert str(caught.value) == (
        f"{node.grpc_address}: something else answers there, expected the control address of a node"
    )
    assert not caught.value.is_unanswered


@pytest.mark.parametrize(
    "answers", ["another authority", "another name", "no TLS", "HTTP/1", "TLS", "mutual TLS"]
)
async def test_what_is_there_and_is_not_trusted_or_no_gRPC_has_answered(tmp_path: Path, answers: str) -> None:
    """gRPC reports UNAVAILABLE, as for a dead node."""
    authority = Authority(tmp_path)
    pair = authority.issue("node")
    settings = (
        {}
        if answers == "no TLS"
        else {"control_tls_certificate": pair.certificate, "control_tls_key": pair.key}
    )
    tls: ClientTls | None = authority.client()
    if answers == "another authority":
        tls = Authority(tmp_path, "another").client()
    elif answers == "another name":
        tls = ClientTls(str(authority.path), server_name="elsewhere.example")

    elif answers == "TLS":
        tls = None
    elif answers == "mutual TLS":
        settings["control_tls_client_ca"] = authority.path

    async with running_node(tmp_path / "data", **settings) as node:
        address, used = (node.http_address, None) if answers == "HTTP/1" else (node.control_address, tls)
        async with ControlClient(str(address), used) as client:
            with pytest.raises(NodeCallFailed, match=": UNAVAILABLE: ") as caught:
                await client.state()
            assert not caught.value.is_unanswered


async def test_a_node_that_is_silent_has_not_answered() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        async with ControlClient(f"127.0.0.1:{listening.getsockname()[1]}", call_seconds=0.1) as client:
            with pytest.raises(NodeCallFailed, match=": DEADLINE_EXCEEDED: ") as caught:
                await client.state()
            assert caught.value.is_unanswered
