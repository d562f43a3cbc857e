"""The standard health service, `grpc.health.v1.Health`: whether the node is ready.

In grpcio's own service one watcher that reads nothing would delay all others and the node's end.

Source: the gRPC health checking protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import grpc
from grpc import aio
from grpc_health.v1 import health_pb2

__all__ = ["SERVICE_NAME", "HealthService"]

SERVICE_NAME = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name

_Request = health_pb2.HealthCheckRequest
_Response = health_pb2.HealthCheckResponse
_Context = aio.ServicerContext[Any, Any]


class HealthService:
    """The health of one node, which is not ready until `show` says so."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(("", *names))
        self._status: int = _Response.NOT_SERVING
        self._changed = asyncio.Event()  # set at a change or the end
        self._is_over = False

    def add_to(self, server: aio.Server) -> None:
        """Register the service."""
        check: grpc.RpcMethodHandler[Any, Any] = grpc.unary_unary_rpc_method_handler(
            self._check, _Request.FromString, _Response.SerializeToString
        )
        watch: grpc.RpcMethodHandler[Any, Any] = grpc.unary_stream_rpc_method_handler(
            self._watch, _Request.FromString, _Response.SerializeToString
        )
        handlers = {"Check": check, "Watch": watch}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))

    def show(self, *, ready: bool) -> None:
        """Tell watchers whether the node is ready."""
        status = _Response.SERVING if ready else _Response.NOT_SERVING
        if status != self._status:
            self._status = status
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

    def close(self) -> None:
        """End watchers' streams."""
        self._is_over = True
        self._changed.set()

    async def _check(self, request: health_pb2.HealthCheckRequest, context: _Context) -> object:
        if request.service not in self._names:
            await context.abort(grpc.StatusCode.NOT_FOUND, "service: got a name that is none of this node's")
        return _Response(status=self._status)

    async def _watch(self, request: health_pb2.HealthCheckRequest, context: _Context) -> None:
        told = None
        while True:
            changed = self._changed
            status = self._status if request.service in self._names else _Response.SERVICE_UNKNOWN
            if status != told:
                await context.write(_Response(status=status))
                told = status
            if self._is_over:
                return
            await changed.wait()
