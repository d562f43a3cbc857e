"""The gRPC servers of a node: which services are at which of its addresses, with which certificates.

A shell around `gateway.transport.grpc_server`. Every address has its own server:

    grpc.address         publish, status, health, reflection; and what reads, unless subscriber.address is set
    subscriber.address   subscribe, blocks, durable heights for standbys; status, health, reflection
    control.address      what changes the role of the node, and nothing else

Source: docs/operations.md, "Run a node".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Protocol

from grpc import aio
from grpc_reflection.v1alpha import reflection

from sluice.gateway.addresses import Address
from sluice.gateway.api import control_pb2_grpc, node_pb2, node_pb2_grpc, publish_pb2, subscribe_pb2
from sluice.gateway.cluster.control_service import ControlService
from sluice.gateway.limits import REQUEST_BYTES_MAX
from sluice.gateway.logs import fields
from sluice.gateway.metrics import Metrics
from sluice.gateway.services.health_service import SERVICE_NAME as HEALTH_NAME
from sluice.gateway.services.health_service import HealthService
from sluice.gateway.services.height_service import SERVICE_NAME as HEIGHT_SERVICE_NAME
from sluice.gateway.services.node_service import BlockNodeService
from sluice.gateway.services.proof_service import PROOF_SERVICE_NAME
from sluice.gateway.settings.table import Settings
from sluice.gateway.transport.door import look_at_shares
from sluice.gateway.transport.door_notes import DoorNotes
from sluice.gateway.transport.grpc_server import GrpcServer, ServerPlan, start_server
from sluice.gateway.transport.known_nodes import KnownNodes
from sluice.gateway.transport.message_shares import MessageShares, StreamKey
from sluice.gateway.transport.tls import ServerTls, TlsFiles

__all__ = ["NodeServers", "Service"]

log = logging.getLogger(__name__)

SHARES_LOOK_SECONDS = 0.25
"""Time between two checks of waiting large messages."""
PUBLISHING_NAME = publish_pb2.DESCRIPTOR.services_by_name["BlockStreamPublishService"].full_name
STATUS_NAME = node_pb2.DESCRIPTOR.services_by_name["BlockNodeService"].full_name
READING_NAMES = (
    subscribe_pb2.DESCRIPTOR.services_by_name["BlockStreamSubscribeService"].full_name,
    node_pb2.DESCRIPTOR.services_by_name["BlockAccessService"].full_name,
    PROOF_SERVICE_NAME,
    HEIGHT_SERVICE_NAME,
)

_LISTED: dict[str, Callable[[Settings], tuple[str, ...]]] = {
    "grpc": lambda settings: settings.publish_allowed_subjects,
    "subscriber": lambda _: (),
    "control": lambda settings: settings.control_allowed_subjects,
}
"""Names in certificates for which places are kept, by section of the settings."""


class Service(Protocol):
    """A gRPC service that can register itself."""

    def add_to(self, server: aio.Server) -> None:
        """Register the service with a server before its start."""


class NodeServers:
    """The gRPC servers of one node, and the health service that they share.

    Args:
        nodes: the other nodes, which connect where readers do.
        cleanup: gets the stop of each started server.
        stop: stops a server in the time that the node has for it.
    """

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        nodes: KnownNodes,
        cleanup: AsyncExitStack,
        stop: Callable[[GrpcServer], Awaitable[None]],
    ) -> None:
        self.certificates: list[ServerTls] = []
        """The certificates of the servers, and that of the stream."""
        self.door_notes: list[DoorNotes] = []
        self._settings = settings
        self._metrics = metrics
        self._nodes = nodes
        self._shares = MessageShares(settings.grpc_max_receiving_bytes, settings.grpc_max_message_bytes)
        self._cleanup = cleanup
        self._stop = stop
        self._health = HealthService((PUBLISHING_NAME, STATUS_NAME, *READING_NAMES))
        self._is_stopping = False

    async def start_reading(self, status: BlockNodeService, reading: Sequence[Service]) -> Address | None:
        """Start the readers' server, if it has its own address; return the address."""
        address = self._settings.subscriber_address
        if address is None:
            return None

        def add_services(server: aio.Server) -> None:
            self._add_status(server, status, READING_NAMES)
            for service in reading:
                service.add_to(server)

        return await self._serve("subscriber", address, REQUEST_BYTES_MAX, add_services)

    async def start_publishing(
        self, publishing: Service, status: BlockNodeService, reading: Sequence[Service]
    ) -> Address:
        """Start the publishers' server, also for readers without their own; return its address."""

        def add_services(server: aio.Server) -> None:
            publishing.add_to(server)
            here = reading if self._settings.subscriber_address is None else ()
            self._add_status(server, status, (PUBLISHING_NAME, *(READING_NAMES if here else ())))
            for service in here:
                service.add_to(server)

        settings = self._settings
        return await self._serve("grpc", settings.grpc_address, settings.grpc_max_message_bytes, add_services)

    async def start_control(self, control: ControlService) -> Address:
        """Start the operators' server; return its address."""
        settings = self._settings
        is_open = settings.control_tls_client_ca is not None and not settings.control_allowed_subjects
        if is_open and settings.control_tls_client_ca == settings.grpc_tls_client_ca:
            log.warning(
                "every publisher's certificate may change the role of this node",
                extra=fields(expected="control.allowed_subjects, or another authority"),
            )

        def add_services(server: aio.Server) -> None:
            control_pb2_grpc.add_NodeControlServicer_to_server(control, server)

        return await self._serve("control", settings.control_address, REQUEST_BYTES_MAX, add_services)

    async def watch_receiving(self, is_urgent: Callable[[StreamKey], bool]) -> None:
        """Keep large messages moving, until cancelled.

        `is_urgent` returns whether a stream may bring the next block.
        """
        while True:
            look_at_shares(self._shares, is_urgent)
            await asyncio.sleep(SHARES_LOOK_SECONDS)

    def show_readiness(self, ready: bool) -> None:
        """Show readiness in the health service."""
        self._health.show(ready=ready and not self._is_stopping)

    def show_stopping(self) -> None:
        """Show "not serving" in the health service from now on."""
        self._is_stopping = True
        self.show_readiness(False)

    def end_health(self) -> None:
        """End the streams of the health service's watchers."""
        self._health.close()

    def _add_status(self, server: aio.Server, status: BlockNodeService, further_names: Sequence[str]) -> None:
        """Add the services of every server but control's: status, health, reflection."""
        node_pb2_grpc.add_BlockNodeServiceServicer_to_server(status, server)
        self._health.add_to(server)
        if self._settings.grpc_reflection:
            names = (*further_names, STATUS_NAME, HEALTH_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, server)

    def tls_of(self, section: str, *, is_http2: bool = True) -> ServerTls | None:
        """Load the certificate of a section of the settings, and watch it; None: no TLS.

        Raises TlsError.
        """
        certificate, key, client_ca = (
            getattr(self._settings, f"{section}_{name}")
            for name in ("tls_certificate", "tls_key", "tls_client_ca")
        )
        if certificate is None:
            return None
        tls = ServerTls(TlsFiles(certificate, key, client_ca), f"{section}.tls", is_http2=is_http2)
        self.certificates.append(tls)
        return tls

    async def _serve(
        self,
        section: str,
        address: Address,
        message_bytes_max: int,
        add_services: Callable[[aio.Server], None],
    ) -> Address:
        settings = self._settings
        tls = self.tls_of(section)
        if tls is None and not address.is_loopback:
            log.warning("gRPC is open to the network without TLS", extra=fields(setting=f"{section}.address"))
        has_readers_apart = settings.subscriber_address is not None
        notes = DoorNotes(f"{section}.address", self._metrics)
        plan = ServerPlan(
            f"{section}.address",
            address,
            message_bytes_max,
            settings.grpc_keepalive_seconds,
            settings.grpc_max_connections,
            tls,
            connections_per_address_max=settings.grpc_max_connections_per_address,
            connection_age_seconds=settings.grpc_max_connection_age_seconds,
            connection_age_grace_seconds=settings.grpc_max_connection_age_grace_seconds,
            nodes=self._nodes if section == ("subscriber" if has_readers_apart else "grpc") else None,
            listed_subjects=frozenset(_LISTED[section](settings)),
            descriptors_divisor=64 if section == "control" else 16 if has_readers_apart else 8,
            takes_compressed=settings.grpc_compression,
        )
        server = await start_server(plan, add_services, notes, self._shares)
        self._metrics.connections.labels(setting=plan.setting).set_function(
            lambda: server.door.connection_count
        )
        self.door_notes.append(notes)
        self._cleanup.push_async_callback(self._stop, server)
        return server.address
