"""Tests of `gateway.node.servers` on a real node: services and addresses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
from grpc import aio
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from sluice.gateway.api import control_pb2, control_pb2_grpc
from sluice.gateway.blocks.items import ItemKind, field_item
from sluice.gateway.limits import REQUEST_BYTES_MAX
from tests.nodes import ANSWER_SECONDS, LOOPBACK, running_node, wire_to

API = "org.hiero.block.api"
COMMON = ["grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection", f"{API}.BlockNodeService"]
SERVICES = [
    *COMMON[:2],
    f"{API}.BlockAccessService",
    f"{API}.BlockNodeService",
    f"{API}.BlockStreamPublishService",
    f"{API}.BlockStreamSubscribeService",
    f"{API}.ProofService",
]


async def test_health_and_reflection(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, wire_to(node) as wire:
        for service in ("", *SERVICES[2:]):
            assert await wire.health(service) == "SERVING"
        assert await services_of(wire.channel()) == [*SERVICES, "sluice.standby.NodeLevel"]
    async with running_node(tmp_path, grpc_reflection=False) as node, wire_to(node) as wire:
        assert await status_unasked(wire.channel()) is grpc.StatusCode.UNIMPLEMENTED


async def test_each_address_has_its_services(tmp_path: Path) -> None:
    """Publishers, readers and operators have an address each."""

    async with running_node(tmp_path, subscriber_address=LOOPBACK) as node:
        async with aio.insecure_channel(str(node.grpc_address)) as channel:
            assert await services_of(channel) == [*COMMON, f"{API}.BlockStreamPublishService"]
        async with aio.insecure_channel(str(node.subscriber_address)) as channel:
            assert set(await services_of(channel)) == {
                *COMMON,
                f"{API}.BlockAccessService",
                f"{API}.BlockStreamSubscribeService",
                f"{API}.ProofService",
                "sluice.standby.NodeLevel",
            }
        async with aio.insecure_channel(str(node.control_address)) as channel:
            assert await status_unasked(channel) is grpc.StatusCode.UNIMPLEMENTED
            stub: Any = control_pb2_grpc.NodeControlStub(channel)
            state = await stub.getState(control_pb2.StateRequest(), timeout=ANSWER_SECONDS)
            assert state.phase == control_pb2.Phase.ACTIVE


async def test_an_address_without_publishers_takes_short_requests_alone(tmp_path: Path) -> None:
    """gRPC reads the length in front of a message, and receives nothing of a longer one."""

    async with running_node(tmp_path, subscriber_address=LOOPBACK) as node:
        status, state = f"/{API}.BlockNodeService/serverStatus", "/sluice.control.NodeControl/getState"
        refused = grpc.StatusCode.RESOURCE_EXHAUSTED
        for address, method in ((node.subscriber_address, status), (node.control_address, state)):
            assert await code_of(str(address), method, REQUEST_BYTES_MAX) is grpc.StatusCode.OK
            assert await code_of(str(address), method, REQUEST_BYTES_MAX + 1) is refused
        assert await code_of(str(node.grpc_address), status, REQUEST_BYTES_MAX + 1) is grpc.StatusCode.OK


async def code_of(address: str, method: str, size: int) -> grpc.StatusCode:
    """Return the status of a call whose request has so many bytes."""
    request = field_item(ItemKind.TRACE_DATA, bytes(size - 4))
    assert len(request) == size
    async with aio.insecure_channel(address) as channel:
        ask: Any = channel.unary_unary(method)
        code: grpc.StatusCode = await ask(request, timeout=ANSWER_SECONDS).code()
        return code


async def services_of(channel: Any) -> list[str]:
    """Ask reflection for the names of all services."""
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
    call = stub.ServerReflectionInfo(
        iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=ANSWER_SECONDS
    )
    response = await call.read()
    return sorted(service.name for service in response.list_services_response.service)


async def status_unasked(channel: Any) -> grpc.StatusCode:
    """Open reflection without a question: a write to a refused call would end it as INTERNAL."""
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
    status: grpc.StatusCode = await stub.ServerReflectionInfo(timeout=ANSWER_SECONDS).code()
    return status
