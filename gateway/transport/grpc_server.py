"""One gRPC server behind its front door: its address, certificates and channel options.

A shell. A gRPC server offers all its services at all its addresses, so each address of a node has a server.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from grpc import aio
from grpc_reflection.v1alpha import reflection

from sluice.datastream.server.descriptors import descriptors_max
from sluice.gateway.addresses import Address
from sluice.gateway.errors import Fatal
from sluice.gateway.limits import KEEPALIVE_ANSWER_SECONDS, STREAM_WINDOW_BYTES, STREAMS_PER_CONNECTION_MAX
from sluice.gateway.transport.channels import keepalive
from sluice.gateway.transport.door import Door
from sluice.gateway.transport.door_notes import DoorNotes
from sluice.gateway.transport.doorkeeper import DoorLimits, DoorTimes
from sluice.gateway.transport.known_nodes import KnownNodes
from sluice.gateway.transport.message_shares import MessageShares
from sluice.gateway.transport.tls import ServerTls

__all__ = ["ConnectionLimits", "GrpcServer", "ServerPlan", "not_free", "start_server"]

CONNECTION_IDLE_SECONDS_MAX: Final = 600
"""Time without a call before a client gets GOAWAY and reconnects."""
PING_SECONDS_MIN: Final = 0.5
"""Time between two pings of a client. By default gRPC closes a connection for more than one in 5 minutes;
some libraries ping each second."""

_NOT_COMPRESSED = 1
"""gRPC's bit for "no compression". A few kilobytes inflate to megabytes: at 0.2 MB/s one client could block
the event loop for all."""

BEFORE_GOODBYE_SECONDS = 0.2
"""Time between the last answers of stopping services and gRPC's GOAWAY."""
PLACES_DIVISOR = 16
"""One place in so many is kept for each kind of client."""
PLACES_PER_NODE = 4
"""Each other node reports, subscribes and asks for the status, twice at once."""

# gRPC logs a traceback for each: a client's nonsense could fill the log.
logging.getLogger("grpc._cython.cygrpc").addFilter(lambda record: not _is_about_client(record))


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits that no setting changes."""

    idle_seconds_max: int = CONNECTION_IDLE_SECONDS_MAX
    streams_max: int = STREAMS_PER_CONNECTION_MAX
    ping_seconds_min: float = PING_SECONDS_MIN
    keepalive_answer_seconds: int = KEEPALIVE_ANSWER_SECONDS
    times: DoorTimes = field(default_factory=DoorTimes)


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """The configuration of a server."""

    setting: str
    """The setting of the address, for messages."""
    address: Address
    """Port 0: a free one."""
    message_bytes_max: int
    """The longest message; gRPC answers a longer one with RESOURCE_EXHAUSTED without reading it."""
    keepalive_seconds: float
    """Silence before a ping; 0: none."""
    connections_max: int
    """`grpc.max_connections`"""
    tls: ServerTls | None = None
    connections_per_address_max: int = 1_024
    """`grpc.max_connections_per_address`"""
    connection_age_seconds: float = 0
    """`grpc.max_connection_age_seconds`: then a client gets GOAWAY; 0: never."""
    connection_age_grace_seconds: float = 0
    """Time for its open calls after that; 0: no limit."""
    nodes: KnownNodes | None = None
    """None: none connects here."""
    listed_subjects: frozenset[str] = frozenset()
    """Names in certificates with kept places."""
    descriptors_divisor: int = 8
    """One in so many file descriptors may be a connection; each takes three."""
    takes_compressed: bool = False
    """`grpc.compression`; else gRPC answers UNIMPLEMENTED."""
    limits: ConnectionLimits = ConnectionLimits()


class GrpcServer:
    """A gRPC server behind its front door, made by `start_server`."""

    def __init__(self, server: aio.Server, door: Door, address: Address) -> None:
        self.address = address
        self.door = door
        self._server = server

    async def stop(self, grace_seconds: float) -> None:
        """Accept no more connections, give calls some time, and close; idempotent."""
        self.door.stop_listening()
        if self.door.has_mended_streams:
            # Helidon's client closes its socket at GOAWAY, and loses answers that it holds.
            await asyncio.sleep(BEFORE_GOODBYE_SECONDS)
        await self._server.stop(grace_seconds)
        await self.door.finish()
        self.door.close()


async def start_server(
    plan: ServerPlan,
    add_services: Callable[[aio.Server], None],
    notes: DoorNotes | None = None,
    shares: MessageShares | None = None,
) -> GrpcServer:
    """Start a server.

    Args:
        add_services: registers its services.
        notes: records what happens at its door; None: logs it.
        shares: admit large messages; None: all.

    Raises:
        Fatal: it cannot listen there.
    """
    listeners = await _bind(plan.setting, plan.address)
    door = Door(
        _door_limits(plan),
        notes or DoorNotes(plan.setting),
        shares,
        tls=plan.tls,
        nodes=plan.nodes,
        listed_subjects=plan.listed_subjects,
    )
    server = aio.server(options=options_of(plan), interceptors=(_RefuseUnreadable(),))
    add_services(server)
    try:
        server.add_insecure_port(f"unix:{door.grpc_path}")
    except RuntimeError as error:
        door.close()
        for listener in listeners:
            listener.close()
        expected = "a folder for temporary files (TMPDIR) whose name has at most 75 bytes"
        raise Fatal(
            str(door.grpc_path), got="a socket that gRPC cannot listen at", expected=expected
        ) from error
    await server.start()
    door.listen(listeners)
    return GrpcServer(server, door, Address(plan.address.host, listeners[0].getsockname()[1]))


class _RefuseUnreadable(aio.ServerInterceptor):
    """Answers INVALID_ARGUMENT to a single request that does not parse.

    gRPC would answer UNKNOWN and log a traceback. Streams have answers of their own.
    """

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler: Any = await continuation(handler_call_details)
        if handler is None or handler.request_streaming or handler.request_deserializer is None:
            return handler  # type: ignore[no-any-return]  # as it came
        parse, serve, make = (
            handler.request_deserializer,
            handler.unary_unary,
            grpc.unary_unary_rpc_method_handler,
        )
        if handler.response_streaming:
            serve, make = handler.unary_stream, grpc.unary_stream_rpc_method_handler

        def read(message: bytes) -> object:
            try:
                return parse(message)
            except DecodeError as error:
                return error

        async def answer(request: object, context: aio.ServicerContext[Any, Any]) -> object:
            if isinstance(request, DecodeError):
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"request: got {request}")
            return await serve(request, context)

        return make(answer, read, handler.response_serializer)


_ABOUT_CLIENTS = (
    # An answer for a client that has left: the only batch begun outside our handlers.
    "ExecuteBatchError raised in core by servicer method",
    # Metadata that is not UTF-8; gRPC reads it as Latin-1.
    "Invalid encoding on ",
    # The one stream that no code of ours reads.
    f"Unexpected [DecodeError] raised by servicer method [/{reflection.SERVICE_NAME}/",
)


def _is_about_client(record: logging.LogRecord) -> bool:
    return record.getMessage().startswith(_ABOUT_CLIENTS)


def options_of(plan: ServerPlan) -> list[tuple[str, int]]:
    """Return its channel options."""
    limits = plan.limits
    options = [
        # gRPC would read up to 16 MB ahead on an unread stream, which are not counted in flight.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", STREAM_WINDOW_BYTES),
        ("grpc.max_receive_message_length", plan.message_bytes_max),
        # getBlock returns whole blocks.
        ("grpc.max_send_message_length", -1),
        # Without these two gRPC takes a client that pings for an attacker.
        ("grpc.http2.min_ping_interval_without_data_ms", int(limits.ping_seconds_min * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.max_concurrent_streams", limits.streams_max),
        ("grpc.max_connection_idle_ms", limits.idle_seconds_max * 1000),
    ]
    if not plan.takes_compressed:
        options.append(("grpc.compression_enabled_algorithms_bitset", _NOT_COMPRESSED))
    if plan.connection_age_seconds:
        options.append(("grpc.max_connection_age_ms", int(plan.connection_age_seconds * 1000)))
        if plan.connection_age_grace_seconds:
            options.append(
                ("grpc.max_connection_age_grace_ms", int(plan.connection_age_grace_seconds * 1000))
            )
    if plan.keepalive_seconds:
        options += keepalive(plan.keepalive_seconds, limits.keepalive_answer_seconds)
    return options


def _door_limits(plan: ServerPlan) -> DoorLimits:
    """Return the places of a door within its part of the file descriptors."""
    most, nodes, descriptors = plan.connections_max, plan.nodes, descriptors_max()
    if descriptors is not None:  # the client's, and both ends to gRPC
        most = max(1, min(most, descriptors // plan.descriptors_divisor))
    # With fewer places, an address keeps its proportion.
    per_address = max(1, plan.connections_per_address_max * most // plan.connections_max)
    share = 0 if most < PLACES_DIVISOR // 2 else max(1, most // PLACES_DIVISOR)
    has_nodes = nodes is not None and nodes.are_expected
    asks_for_names = plan.tls is not None and plan.tls.requires_client_certificate
    is_told_by_tls = asks_for_names and (plan.listed_subjects or (nodes is not None and nodes.subjects))
    node_count = 0 if nodes is None else len(nodes.peers)
    return DoorLimits(
        most,
        per_address,
        node_places=max(share, min(PLACES_PER_NODE * node_count, most // 4)) if has_nodes else 0,
        listed_places=share if asks_for_names and plan.listed_subjects else 0,
        unknown_places=share if is_told_by_tls else 0,
        times=plan.limits.times,
    )


async def _bind(setting: str, address: Address) -> list[socket.socket]:
    """Bind a socket at each address of a host, all at one port. Raises Fatal."""
    bound: list[socket.socket] = []
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, protocol, _, where in dict.fromkeys(found):
            listener = socket.socket(family, kind, protocol)
            bound.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:  # a wildcard serves both families, as in gRPC
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(len(found) > 1))
            port = where[1] or (bound[0].getsockname()[1] if len(bound) > 1 else 0)
            listener.bind((where[0], port, *where[2:]))
            listener.listen()
    except OSError as error:
        for listener in bound:
            listener.close()
        raise not_free(setting, address, error) from error
    return bound


def not_free(setting: str, address: Address, error: OSError) -> Fatal:
    """Return the error of an address that is not free."""
    got = error.strerror or str(error)
    return Fatal(f"{setting} {address}", got=got, expected="an address that is free here")
