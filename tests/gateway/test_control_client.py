"""Tests of `gateway.control_client`: a node that does not answer, and one that is newer than this program."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.api import control_pb2
from gateway.control_client import ControlClient, status_of
from gateway.errors import NodeCallFailed
from gateway.failover import NodeStatus
from gateway.roles import Phase
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
    assert status_of(state) == NodeStatus(phase, 7, b"root", "a:1", 3, "b:2", ("one",))


@pytest.mark.parametrize("number", [0, 99])
def test_a_phase_that_is_not_known_is_one_that_nothing_is_done_to(number: int) -> None:
    state = control_pb2.NodeState(last_block_number=(1 << 64) - 1)
    state.phase = number  # type: ignore[assignment]
    assert status_of(state) == NodeStatus(Phase.DRAINING, None, b"", "")


def test_a_node_that_is_not_there_is_named() -> None:
    async def main() -> None:
        async with ControlClient("127.0.0.1:1") as client:
            with pytest.raises(NodeCallFailed, match=r"^127\.0\.0\.1:1: UNAVAILABLE: ") as caught:
                await client.state()
            assert caught.value.address == "127.0.0.1:1"

    asyncio.run(main())


def test_an_address_that_is_not_for_control_is_named(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, ControlClient(str(node.grpc_address)) as client:
            with pytest.raises(NodeCallFailed) as caught:
                await client.state()
        assert str(caught.value) == (
            f"{node.grpc_address}: something else answers there, expected the control address of a node"
        )

    asyncio.run(main())
