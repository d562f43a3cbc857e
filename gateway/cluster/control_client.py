"""The client of a node's control address (`gateway.cluster.control_service`).

Every call has a time limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import TracebackType
from typing import Self

import grpc
from grpc import aio

from sluice.gateway.addresses import parse_address
from sluice.gateway.api import control_pb2, control_pb2_grpc
from sluice.gateway.blocks.block_numbers import from_wire
from sluice.gateway.cluster.failover import NodeStatus
from sluice.gateway.cluster.roles import Phase
from sluice.gateway.errors import AddressError, NodeCallFailed
from sluice.gateway.limits import CONTROL_CALL_SECONDS
from sluice.gateway.transport.channels import ClientTls, open_channel
from sluice.gateway.transport.failures import is_somebody_there, why_failed_at

__all__ = ["ControlClient"]

# gRPC reports UNAVAILABLE for these as for a dead node; only the words differ.
_SOMEBODY_IS_THERE = ("handshake failed", "Verification Check failed", "Failed parsing HTTP/2")


class ControlClient:
    """A client of one node's control address."""

    def __init__(
        self, address: str, tls: ClientTls | None = None, *, call_seconds: float = CONTROL_CALL_SECONDS
    ) -> None:
        self.address = address
        self._call_seconds = call_seconds
        self._tls = tls
        self._channel = open_channel(address, tls)
        self._stub = control_pb2_grpc.NodeControlStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close()

    async def state(self) -> NodeStatus:
        """Return the node's role and chain."""
        call = self._stub.getState(control_pb2.StateRequest(), timeout=self._call_seconds)
        return await self._answer(call)

    async def drain(self, lease_seconds: float, successor: str, drain_id: str) -> NodeStatus:
        """Make the node finish its blocks and send publishers elsewhere."""
        request = control_pb2.DrainRequest(hold_seconds=lease_seconds, successor=successor, drain_id=drain_id)
        return await self._answer(self._stub.drain(request, timeout=lease_seconds))

    async def resume(self, drain_id: str) -> NodeStatus:
        """Undo this drain; older nodes resume after any."""
        request = control_pb2.ResumeRequest(drain_id=drain_id)
        return await self._answer(self._stub.resume(request, timeout=self._call_seconds))

    async def await_block(self, number: int, root_hash: bytes, timeout_seconds: float) -> NodeStatus:
        """Wait until the node has a block with this root hash."""
        request = control_pb2.AwaitBlockRequest(
            block_number=number, root_hash=root_hash, timeout_seconds=timeout_seconds
        )
        call = self._stub.awaitBlock(request, timeout=timeout_seconds + self._call_seconds)
        return await self._answer(call)

    async def activate(self, timeout_seconds: float) -> NodeStatus:
        """Make the node active within this time; an older node may become active later."""
        call = self._stub.activate(control_pb2.ActivateRequest(), timeout=timeout_seconds)
        return await self._answer(call)

    async def stand_by(self, followed: str) -> NodeStatus:
        """Make the node a standby of the node at gRPC address `followed`."""
        call = self._stub.standBy(control_pb2.StandByRequest(followed=followed), timeout=self._call_seconds)
        return await self._answer(call)

    async def _answer(self, call: Awaitable[control_pb2.NodeState]) -> NodeStatus:
        try:
            state = await call
        except aio.AioRpcError as error:
            reason = await asyncio.to_thread(why_failed_at, self.address, error, self._tls)
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                reason = "something else answers there, expected the control address of a node"
            refused = error.code() is grpc.StatusCode.FAILED_PRECONDITION
            unanswered = _is_unanswered(error) and not is_somebody_there(reason)
            raise NodeCallFailed(
                self.address, reason, is_refused=refused, is_unanswered=unanswered
            ) from error
        return status_of(state, self.address)


def _is_unanswered(error: aio.AioRpcError) -> bool:
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        return not any(words in (error.details() or "") for words in _SOMEBODY_IS_THERE)
    return error.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def status_of(state: control_pb2.NodeState, asked: str) -> NodeStatus:
    """Read a NodeState; an unknown phase of a newer version becomes DRAINING, which nobody acts on."""
    try:
        phase = Phase[control_pb2.Phase.Name(state.phase)]
    except (KeyError, ValueError):
        phase = Phase.DRAINING
    return NodeStatus(
        phase=phase,
        last_number=from_wire(state.last_block_number),
        last_root_hash=state.last_root_hash,
        grpc_address=_reached(state.grpc_address, asked),
        subscriber_address=_reached(state.subscriber_address or state.grpc_address, asked),
        publisher_count=state.publisher_count,
        followed=state.followed,
        problems=tuple(state.problems),
        instance=state.instance,
    )


def _reached(text: str, asked: str) -> str:
    """A wildcard host becomes the host that was asked."""
    try:
        return str(parse_address(text).reached_by(parse_address(asked).host))
    except AddressError:  # from a newer version, or asked over a Unix socket
        return text
