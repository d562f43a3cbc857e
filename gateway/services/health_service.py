"""Tells whether a node is ready: the standard gRPC service `grpc.health.v1.Health`.

A shell around two words for each name. What grpcio brings for this has all watchers of a name, and who sets
it, wait for one another: one that takes nothing would hold up the others, and the end of the node. Here each
has a stream of its own, and what it does not take holds up nobody.

    Check    the status now; NOT_FOUND for a name that is none of the node's
    Watch    the same at once, and again when it has changed; SERVICE_UNKNOWN, for ever, for such a name.
             Ends when the node does, which would wait for it else

Source: the gRPC health checking protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc import aio
from grpc_health.v1 import health_pb2

__all__ = ["SERVICE_NAME", "HealthService"]

SERVICE_NAME = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name

_Request = health_pb2.HealthCheckRequest
_Response = health_pb2.HealthCheckResponse
_Context = aio.ServicerContext[Any, Any]


class HealthService:
    """Serves whoever wants to know; not ready until it is shown to be.

    Args:
        names: of the services that it speaks for, beside "", which is the whole node.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(("", *names))
        self._status: int = _Response.NOT_SERVING
        self._changed = asyncio.Event()  # the status, or that it is over
        self._is_over = False

    def add_to(self, server: aio.Server) -> None:
        """Register the service; by hand, since a request that does not parse must not be an error of ours."""
        check: grpc.RpcMethodHandler[Any, Any] = grpc.unary_unary_rpc_method_handler(
            self._check, request_deserializer=_parse, response_serializer=_Response.SerializeToString
        )
        watch: grpc.RpcMethodHandler[Any, Any] = grpc.unary_stream_rpc_method_handler(
            self._watch, request_deserializer=_parse, response_serializer=_Response.SerializeToString
        )
        handlers = {"Check": check, "Watch": watch}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))

    def show(self, *, ready: bool) -> None:
        """Say from now on whether the node is ready."""
        status = _Response.SERVING if ready else _Response.NOT_SERVING
        if status != self._status:
            self._status = status
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

    def close(self) -> None:
        """End the streams of those who watch, once they have been told the last status."""
        self._is_over = True
        self._changed.set()

    async def _check(self, request: health_pb2.HealthCheckRequest | None, context: _Context) -> object:
        name = await _name_in(request, context)
        if name not in self._names:
            await context.abort(grpc.StatusCode.NOT_FOUND, "service: got a name that is none of this node's")
        return _Response(status=self._status)

    async def _watch(self, request: health_pb2.HealthCheckRequest | None, context: _Context) -> None:
        """Serve one stream."""
        is_ours, told = await _name_in(request, context) in self._names, None
        while True:
            changed = self._changed
            status = self._status if is_ours else _Response.SERVICE_UNKNOWN
            if status != told:
                await context.write(_Response(status=status))
                told = status
            if self._is_over:
                return
            await changed.wait()


async def _name_in(request: health_pb2.HealthCheckRequest | None, context: _Context) -> str:
    """Give the name that is asked for."""
    if request is None:
        await context.abort(
            grpc.StatusCode.INVALID_ARGUMENT,
            "request: got what does not parse, expected a HealthCheckRequest",
        )
    return request.service


def _parse(message: bytes) -> health_pb2.HealthCheckRequest | None:
    """Read a request; None in the place of one that does not parse."""
    try:
        return _Request.FromString(message)
    except DecodeError:
        return None
