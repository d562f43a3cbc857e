"""One node: its ledger, its publish race, and the servers around them, started and stopped in order.

A shell. `run_node` is what `sluice serve` runs; `Node` is the same without signals, for tests and the demo.

    start   ledger, TCP, gRPC, HTTP      so that nothing is served before the ledger is open
    stop    not ready, publish race, subscribers, gRPC, TCP, HTTP, ledger

Source: design.md "The node".
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import uvloop
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from datastream import DatastreamError, ServerLimits, StreamServer
from datastream.disk import Disk
from datastream.errors import AddressUnavailable
from gateway.addresses import Address
from gateway.admission import Admission
from gateway.api import control_pb2_grpc, node_pb2, node_pb2_grpc, publish_pb2, subscribe_pb2
from gateway.channels import ClientTls
from gateway.conductor import Conductor
from gateway.control_service import ControlService
from gateway.errors import Fatal, SettingError
from gateway.findings import ADVICE, Facts, Finding, FindingBook, look
from gateway.following import Following
from gateway.grpc_server import ServerPlan, not_free, start_server
from gateway.hash_process import HashProcess
from gateway.http import start_http
from gateway.ledger import Ledger
from gateway.ledger_files import given_address_book, given_ledger, keep_ledger, ledger_to_start_with
from gateway.ledger_keys import LedgerKeys
from gateway.level_service import SERVICE_NAME as LEVEL_SERVICE_NAME
from gateway.level_service import LevelService
from gateway.limits import GC_OBJECTS_MIN, HARD_MESSAGE_FACTOR, HEALTH_CHECK_SECONDS, THREAD_SWITCH_SECONDS
from gateway.logs import fields
from gateway.loop_watch import LoopWatch
from gateway.metrics import Metrics
from gateway.node_rules import admission_limits, catch_up_rules, race_rules
from gateway.node_service import INSTANCE_KEY, BlockAccessService, BlockNodeService
from gateway.own_address import other_nodes
from gateway.page_facts import gather_status, standby_facts
from gateway.proof_checks import ProofChecks
from gateway.proofs import ProofVerifier
from gateway.publish_service import PublishService
from gateway.race import Arbiter
from gateway.role_keeper import RoleKeeper
from gateway.roles import Phase, RoleRecord
from gateway.settings import Settings
from gateway.standby_gate import StandbyGate
from gateway.standby_watch import StandbyWatch
from gateway.status_page import Status
from gateway.subscribe_service import SubscribeLimits, SubscribeService
from gateway.tls import ServerTls, TlsFiles
from gateway.tls_watch import certificate_notes, watch_certificates
from gateway.verification import BlockVerifier

__all__ = ["Node", "run_node"]

log = logging.getLogger(__name__)

SERVICE_NAMES = (
    publish_pb2.DESCRIPTOR.services_by_name["BlockStreamPublishService"].full_name,
    subscribe_pb2.DESCRIPTOR.services_by_name["BlockStreamSubscribeService"].full_name,
    node_pb2.DESCRIPTOR.services_by_name["BlockNodeService"].full_name,
    node_pb2.DESCRIPTOR.services_by_name["BlockAccessService"].full_name,
)


class Node:
    """One node. `start` it, `stop` it; `broken` ends if it cannot go on."""

    def __init__(self, settings: Settings, *, disk: Disk | None = None) -> None:
        """Check what can be checked before anything is opened.

        Args:
            settings: what the node is to do.
            disk: the stream file, when it is not an ordinary one (tests).

        Raises:
            SettingError, LedgerKeyError: the settings ask for what this node cannot do.
        """
        self.settings = settings
        self.metrics = Metrics(verification_mode=settings.verification_mode)
        self._keys = LedgerKeys.parse(settings.ledger_keys)
        mode = settings.verification_mode
        self._given_ledger = given_ledger(self._keys, mode)
        self._rsa_book = given_address_book(self._keys, mode, settings.verification_rsa_threshold)
        self.ledger: Ledger
        self.conductor: Conductor
        self.grpc_address, self.control_address = settings.grpc_address, settings.control_address
        self.subscriber_address = settings.subscriber_address or settings.grpc_address
        self.tcp_address, self.http_address = settings.tcp_address, settings.http_address
        self._disk = disk
        # With a single core, to send items to another process only costs.
        self._hash_process = HashProcess() if len(os.sched_getaffinity(0)) > 1 else None
        self.subscribe_service: SubscribeService
        self.block_access: BlockAccessService
        self.following: Following
        self.keeper: RoleKeeper
        self._level_service: LevelService
        self._peers: list[str] = []  # the nodes of `settings.peers` that are not this one
        self._tcp_server: StreamServer
        self._starting, self._stopping = True, False
        self._instance = secrets.token_hex(8)
        self._cut_off_at = 0.0
        self._started_at = time.monotonic()
        self._finding_book = FindingBook()
        self._certificates: list[ServerTls] = []
        self._health = health.aio.HealthServicer()
        self._cleanup = AsyncExitStack()

    @property
    def broken(self) -> asyncio.Future[None]:
        """Ends with the error if the node cannot go on."""
        return self.conductor.broken

    def readiness(self) -> list[str]:
        """Say why the node does not take or serve blocks now; nothing to say means ready."""
        return [text for kind, text in look(self._look_facts()) if ADVICE[kind].is_problem]

    def _look_facts(self) -> Facts:
        arbiter, acknowledging = self.conductor.arbiter, self.conductor.acknowledging
        acknowledged_at = acknowledging.acknowledged_at
        quiet_since = self._started_at if acknowledged_at is None else acknowledged_at
        return Facts(
            is_stopping=self._stopping,
            disk_failure=arbiter.persistence_failed,
            is_broken=self.broken.done(),
            catch_up_problem=self.following.problem,
            given_up_target=self.following.given_up_target,
            takes_publishers=arbiter.retired is None,
            publisher_count=arbiter.publisher_count - arbiter.peer_count,
            quiet_seconds=time.monotonic() - quiet_since,
            block_time_seconds=self.settings.block_time_seconds,
            certificates=certificate_notes(self._certificates),
            standbys=standby_facts(acknowledging),
            is_starting=self._starting,
        )

    def _findings(self) -> tuple[Finding, ...]:
        """Say what is wrong, and since when; asked often enough that "since" is right."""
        return self._finding_book.note(look(self._look_facts()), time.time())

    def status(self) -> Status | None:
        """Say what the node knows of itself, for the status page; None while it is starting."""
        if self._starting:  # not all that is asked here is there yet
            return None
        return gather_status(
            self.settings,
            self.conductor,
            self.ledger,
            phase=self.keeper.phase.value,
            followed=self.following.followed,
            distance_blocks=self.following.distance,
            findings=self._findings(),
            addresses=(
                ("gRPC", str(self.grpc_address)),
                ("subscribers", str(self.subscriber_address)),
                ("data streamer", str(self.tcp_address)),
                ("HTTP", str(self.http_address)),
            ),
            tcp_clients=self._tcp_server.client_count,
            tcp_slowest_bytes=self._tcp_server.lag_bytes,
            subscribers=self.subscribe_service.stream_count,
            subscriber_lag_blocks=self.subscribe_service.lag_blocks,
        )

    def publishers_sent_elsewhere(self) -> str | None:
        """Say why publishers are sent elsewhere; None: they are taken."""
        return self.conductor.arbiter.retired

    async def start(self) -> None:
        """Open the ledger and listen.

        Raises:
            GatewayError, DatastreamError: what cannot be opened or listened at; nothing is left open.
        """
        try:
            await self._start()
        except BaseException:
            await self._cleanup.aclose()
            raise
        if self.settings.verification_mode == "hash":
            log.warning("verification mode is hash: the signatures of block proofs are not checked")
        # The last line of starting: who waits for it finds all the others.
        log.info(
            "node started",
            extra=fields(
                grpc=str(self.grpc_address),
                tcp=str(self.tcp_address),
                http=str(self.http_address),
                control=str(self.control_address),
                data_dir=str(self.settings.data_dir),
                verification=self.settings.verification_mode,
                last_block=self.ledger.last_number,
            ),
        )

    def warm_up(self) -> None:
        """Start what otherwise starts when it is needed first; this waits for nothing."""
        if self._hash_process is not None:
            self._hash_process.start()
            self._cleanup.callback(self._hash_process.close)

    async def stop(self) -> None:
        """Finish complete blocks, tell publishers, and close everything. Stopping twice does nothing."""
        self._stopping = True
        await self._health.enter_graceful_shutdown()
        await self._cleanup.aclose()
        log.info("node stopped", extra=fields(last_block=self.ledger.last_number))

    # --- starting, in order; each step says how it is undone -----------------------------------------------

    async def _start(self) -> None:
        settings = self.settings
        self.ledger = await asyncio.to_thread(
            Ledger.open,
            settings.data_dir,
            stream_type=settings.stream_type,
            system_id=settings.stream_system_id,
            version=settings.stream_version,
            disk=self._disk,
        )
        self._cleanup.callback(self.ledger.close)
        await self._find_peers()
        self._make_conductor()
        self._make_following()
        self._make_keeper()
        self.http_address = await self._start_http()
        self.tcp_address = await self._start_tcp()
        if self._hash_process is not None:  # once warm, it takes no core from the first blocks
            await self._hash_process.started()
        self.grpc_address = await self._start_grpc()
        self.control_address = await self._start_control()

    async def _find_peers(self) -> None:
        """Leave this node out of its peers: one configuration for all nodes of a cluster may name it."""
        settings = self.settings
        self._peers = await other_nodes(settings.peers, self._own_addresses())
        if settings.commit_min_standbys > len(self._peers):
            raise SettingError(
                "commit.min_standbys",
                got=f"{settings.commit_min_standbys}",
                expected=f"at most {len(self._peers)}, the number of peers that are other nodes",
                where=f"a node that listens at {settings.grpc_address}",
            )

    def _make_conductor(self) -> None:
        settings = self.settings
        gate, least = None, settings.commit_min_standbys
        if least:
            gate = StandbyGate(least, self._instance, self._peers, self.ledger.chain)
        self.conductor = Conductor(
            Arbiter(self.ledger.last_number, self._first_number(), race_rules(settings)),
            self.ledger,
            self._make_checks(),
            self.metrics,
            responses_max=settings.publish_send_queue_max,
            group_blocks_max=settings.commit_max_blocks_per_group,
            hash_process=self._hash_process,
            standbys=gate,
        )
        loop = asyncio.get_running_loop()
        self.metrics.asyncio_tasks.set_function(lambda: len(asyncio.all_tasks(loop)))
        self._cleanup.callback(LoopWatch(self.metrics.event_loop_lag_seconds.observe).close)
        self.metrics.last_block.set(-1 if self.ledger.last_number is None else self.ledger.last_number)

    def _make_following(self) -> None:
        settings = self.settings
        self.following = Following(
            self.conductor,
            self.metrics,
            rules=catch_up_rules(settings),
            stall_seconds=settings.catchup_stall_seconds,
            message_bytes_max=settings.grpc_max_message_bytes * HARD_MESSAGE_FACTOR,
            tls=self._peer_tls(),
            instance=self._instance,
        )

    def _peer_tls(self) -> ClientTls | None:
        settings = self.settings
        files = (settings.catchup_tls_ca, settings.catchup_tls_certificate, settings.catchup_tls_key)
        if settings.catchup_tls_ca is None:
            return None
        return ClientTls(*(None if file is None else str(file) for file in files))

    def _make_keeper(self) -> None:
        settings, peers = self.settings, self._peers
        self.keeper = RoleKeeper(
            settings.data_dir,
            RoleRecord(settings.role),
            self.conductor,
            self.ledger,
            self.following,
            peers=peers,
            drain_seconds=settings.shutdown_grace_seconds,
        )
        if settings.peers and not peers and self.keeper.phase is Phase.STANDBY and not self.keeper.followed:
            raise SettingError(
                "peers",
                got=f"{', '.join(map(str, settings.peers))}, which is this node itself",
                expected="another node, which a standby can follow",
                where=f"a node that listens at {settings.grpc_address}",
            )

    def _own_addresses(self) -> set[Address]:
        settings = self.settings
        own = {settings.grpc_address, settings.grpc_advertised_address}
        return own if settings.subscriber_address is None else own | {settings.subscriber_address}

    def _make_checks(self) -> ProofChecks:
        """Find the ledger data. Raises LedgerKeyError, Fatal: they are missing, or not of the blocks here."""
        settings, keys = self.settings, self._keys
        known = ledger_to_start_with(
            keys,
            settings.verification_mode,
            self.ledger,
            given=self._given_ledger,
            rsa_book=self._rsa_book,
            first_number=self._first_number(),
            root_layout=settings.verification_root_layout,
        )
        proofs = ProofVerifier(keys, settings.verification_mode, known, self._rsa_book)
        verifier = BlockVerifier(proofs, settings.verification_root_layout)
        if known is not None:
            log.info("TSS ledger", extra=fields(ledger_id=known.ledger_id.hex(), nodes=len(known.nodes)))
        elif verifier.awaits_block_0 and keys.tss_id is None:
            log.warning(
                "no ledger key: the ledger id that block 0 publishes will be believed, whatever it is",
                extra=fields(pin_it_with="--ledger-key tss:id=HEX"),
            )
        checks = ProofChecks(verifier, partial(keep_ledger, self.ledger.data_dir))
        self._cleanup.callback(checks.close)
        checks.warm_up()
        return checks

    def _first_number(self) -> int | None:
        """Where an empty node begins; None: with whatever comes."""
        first_block = self.settings.first_block
        return None if first_block == "any" else first_block or 0

    async def _start_http(self) -> Address:
        server = await start_http(self, self.settings.http_address)
        self._cleanup.push_async_callback(server.close)
        return server.address

    async def _start_tcp(self) -> Address:
        settings, address = self.settings, self.settings.tcp_address
        server = StreamServer(
            self.ledger.streamer,
            address.host,
            address.port,
            limits=ServerLimits(
                connections_max=settings.tcp_max_connections,
                write_timeout_seconds=settings.tcp_write_timeout_seconds,
                inactivity_timeout_seconds=settings.tcp_inactivity_timeout_seconds,
            ),
            on_command_error=settings.tcp_on_command_error,
        )
        try:
            await server.start()
        except AddressUnavailable as error:
            raise not_free("tcp.address", address, error.os_error) from error
        self._cleanup.push_async_callback(server.close)
        self._tcp_server = server
        self.metrics.tcp_clients.set_function(lambda: server.client_count)
        self.metrics.tcp_lag_bytes.set_function(lambda: server.lag_bytes)
        return Address(address.host, server.address[1])

    async def _start_grpc(self) -> Address:
        """Start the server for publishers, and the one for subscribers if it has an address of its own."""
        settings = self.settings

        def add_publishing(server: aio.Server) -> None:
            admission = Admission(admission_limits(settings))
            PublishService(self.conductor, settings.grpc_max_message_bytes, admission).add_to(server)
            self._add_status(server)
            if settings.subscriber_address is None:
                self._add_reading(server)

        def add_subscribing(server: aio.Server) -> None:
            self._add_status(server)
            self._add_reading(server)

        await self.keeper.start()  # a standby sends publishers elsewhere from the first one on
        # Undone from the last to the first: publishers are told, then subscribers, then the servers go.
        if settings.subscriber_address is not None:
            self.subscriber_address = await self._serve(
                "subscriber", settings.subscriber_address, add_subscribing
            )
        address = await self._serve("grpc", settings.grpc_address, add_publishing)
        self._starting = False
        self._cleanup.push_async_callback(self._end_subscribers)
        gate = self.conductor.acknowledging.gate
        if gate is not None:  # watched until the conductor has stopped, since its last blocks may wait
            standbys = StandbyWatch(self.conductor, gate, self.ledger, self._peers, self._peer_tls())
            self._cleanup.push_async_callback(standbys.close)
        self._cleanup.push_async_callback(self.conductor.stop, settings.shutdown_grace_seconds)
        self._cleanup.push_async_callback(self.keeper.close)
        if settings.subscriber_address is None:
            self.subscriber_address = address
        for watch in (self._watch(), watch_certificates(self._certificates, self.metrics)):
            self._cleanup.callback(asyncio.ensure_future(watch).cancel)
        return address

    async def _start_control(self) -> Address:
        """Start the server for those who operate the node, at an address of its own."""
        service = ControlService(
            self.keeper, self.ledger, self._control_facts, self.following.is_itself, self._instance
        )

        def add_control(server: aio.Server) -> None:
            control_pb2_grpc.add_NodeControlServicer_to_server(service, server)

        return await self._serve("control", self.settings.control_address, add_control)

    def _control_facts(self) -> tuple[str, int, str, list[str]]:
        advertised = self.settings.grpc_advertised_address
        if advertised == self.settings.grpc_address:
            advertised = self.grpc_address  # with the port that it has got
        publishers = self.conductor.arbiter.publisher_count
        return str(advertised), publishers, self.settings.verification_mode, self.readiness()

    async def _serve(
        self, section: str, address: Address, add_services: Callable[[aio.Server], None]
    ) -> Address:
        """Start one gRPC server with the TLS files of a section of the settings."""
        settings = self.settings
        certificate, key, client_ca = (
            getattr(settings, f"{section}_{name}") for name in ("tls_certificate", "tls_key", "tls_client_ca")
        )
        tls = None
        if certificate is not None:
            tls = ServerTls(TlsFiles(certificate, key, client_ca), f"{section}.tls")
            self._certificates.append(tls)
        elif not address.is_loopback:
            log.warning("gRPC is open to the network without TLS", extra=fields(setting=f"{section}.address"))
        server, address = await start_server(
            ServerPlan(
                f"{section}.address",
                address,
                settings.grpc_max_message_bytes,
                settings.grpc_keepalive_seconds,
                settings.grpc_max_connections,
                tls,
            ),
            add_services,
        )
        self._cleanup.push_async_callback(self._stop_server, server)
        return address

    def _add_status(self, server: aio.Server) -> None:
        """Add what every server has: status, health, reflection."""
        node_pb2_grpc.add_BlockNodeServiceServicer_to_server(
            BlockNodeService(self.ledger, self._first_number(), self._facts), server
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        if self.settings.grpc_reflection:
            names = (
                *SERVICE_NAMES,
                LEVEL_SERVICE_NAME,
                health_pb2.DESCRIPTOR.services_by_name["Health"].full_name,
            )
            reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), server)

    def _facts(self) -> dict[str, object]:
        """What `sluice status` shows beside the blocks."""
        return {
            INSTANCE_KEY: self._instance,
            "role": self.keeper.phase.value,
            "verification_mode": self.settings.verification_mode,
            "ready": not self.readiness(),
            "publishers": self.conductor.arbiter.publisher_count - self.conductor.arbiter.peer_count,
            "subscribers": self.subscribe_service.stream_count,
            "tcp_clients": self._tcp_server.client_count,
            "missing_blocks": self.following.distance or 0,
            "awaiting_standbys": self.conductor.acknowledging.awaiting_count,
        }

    def _add_reading(self, server: aio.Server) -> None:
        """Add what gives blocks away."""
        self.block_access = BlockAccessService(self.ledger)
        self.block_access.add_to(server)
        self._make_subscribe_service().add_to(server)
        self._level_service = LevelService(self.ledger, self._instance)
        self._level_service.add_to(server)

    def _make_subscribe_service(self) -> SubscribeService:
        settings = self.settings
        limits = SubscribeLimits(
            future_blocks_max=settings.subscriber_max_future_blocks,
            streams_max=settings.subscriber_max_streams,
            streams_per_address_max=settings.subscriber_max_streams_per_address,
            write_timeout_seconds=settings.subscriber_write_timeout_seconds,
            item_set_bytes=settings.subscriber_item_set_bytes,
            message_bytes_max=settings.grpc_max_message_bytes,
        )
        self.subscribe_service = SubscribeService(self.ledger, self._first_number(), self.metrics, limits)
        self.conductor.on_source_error(
            lambda: self.subscribe_service.source_failed("the last publisher ended its stream with ERROR")
        )
        self.conductor.on_commit_failed(
            lambda: self.subscribe_service.source_failed("blocks cannot be written")
        )
        self._cleanup.callback(self.subscribe_service.release)
        return self.subscribe_service

    async def _end_subscribers(self) -> None:
        """Let subscribers have their blocks to the end; who is too slow is cut off with the servers."""
        loop = asyncio.get_running_loop()
        self._cut_off_at = loop.time() + self.settings.shutdown_grace_seconds
        self._level_service.close()
        try:
            async with asyncio.timeout_at(self._cut_off_at):
                await self.subscribe_service.close()
        except TimeoutError:
            count = self.subscribe_service.stream_count
            log.warning("subscribers were not finished", extra=fields(streams=count))

    async def _stop_server(self, server: aio.Server) -> None:
        """Give calls what is left of the time that subscribers had."""
        await server.stop(max(0.0, self._cut_off_at - asyncio.get_running_loop().time()))

    async def _watch(self) -> None:
        """Keep the gRPC health service at what /readyz says, and count what the TCP server has sent."""
        serving: bool | None = None
        sent_bytes = 0
        while True:
            sent_before_bytes, sent_bytes = sent_bytes, self._tcp_server.bytes_sent
            self.metrics.tcp_sent_bytes.inc(sent_bytes - sent_before_bytes)
            self.metrics.show_role(self.keeper.phase.value)
            ready = not any(finding.is_problem for finding in self._findings())
            if ready != serving:
                serving = ready
                status = (
                    health_pb2.HealthCheckResponse.SERVING
                    if ready
                    else health_pb2.HealthCheckResponse.NOT_SERVING
                )
                for name in ("", *SERVICE_NAMES):
                    await self._health.set(name, status)
            await asyncio.sleep(HEALTH_CHECK_SECONDS)


def run_node(settings: Settings) -> int:
    """Run one node until SIGINT, SIGTERM or SIGHUP; return the exit status of `sluice serve`.

    Raises:
        GatewayError: it cannot start.
    """
    sys.setswitchinterval(THREAD_SWITCH_SECONDS)
    gc.set_threshold(GC_OBJECTS_MIN)
    return uvloop.run(_run(settings))


async def _run(settings: Settings) -> int:
    node = Node(settings)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signal_number, stop.set)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup
        loop.add_signal_handler(signal.SIGHUP, stop.set)
    node.warm_up()
    # What is there now stays. To walk it all in every full collection would hold the event loop for 30 ms.
    gc.collect()
    gc.freeze()
    try:
        await node.start()
    except DatastreamError as error:
        raise Fatal(
            f"data_dir {settings.data_dir}", got=str(error), expected="a stream that can be opened"
        ) from error
    gc.freeze()  # as does what the start has made; blocks may be coming, so it is not searched for garbage
    asked = asyncio.ensure_future(stop.wait())
    waits: set[asyncio.Future[Any]] = {asked, node.broken}
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    broken = node.broken.exception() if node.broken.done() else None
    if broken is not None:
        log.critical("the node stops on an internal error", exc_info=broken)
    asked.cancel()
    await node.stop()
    return 1 if broken is not None else 0
