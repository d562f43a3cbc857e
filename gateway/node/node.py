"""One node: its block store, its publish race, and the servers around them, started and stopped in order.

A shell. `gateway.node.run` wraps it as the process of `sluice serve`; tests and the demo use `Node` itself.

    start   block store, HTTP, TCP, gRPC, control    nothing is served before the store is open; /readyz says
                                                     "starting" until publishers are admitted
    stop    not ready, control, publish race, subscribers, gRPC, TCP, HTTP, block store

Source: docs/operations.md, "Run a node".
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from sluice.datastream import StreamServer
from sluice.datastream.errors import AddressUnavailable, PageDamaged
from sluice.datastream.file.disk import Disk
from sluice.datastream.server.descriptors import descriptors_max
from sluice.gateway.addresses import Address
from sluice.gateway.archive.archive import ArchiveOptions, Archives, StoredBlocks
from sluice.gateway.archive.beginning import BeginningRules, begin_from_archive
from sluice.gateway.archive.retention import Retention, Window
from sluice.gateway.blocks.proofs import ProofVerifier
from sluice.gateway.blocks.proofs.ledger_data import LedgerData
from sluice.gateway.blocks.trusted_keys import TrustedKeys
from sluice.gateway.blocks.verification import BlockVerifier
from sluice.gateway.cluster.cluster_watch import ClusterWatch
from sluice.gateway.cluster.control_service import ControlService
from sluice.gateway.cluster.election import Election, ElectionRules, read_promise
from sluice.gateway.cluster.healing import Healer
from sluice.gateway.cluster.peer_follower import PeerFollower
from sluice.gateway.cluster.role_keeper import RoleKeeper
from sluice.gateway.cluster.roles import Phase, RoleRecord
from sluice.gateway.cluster.standby_watch import StandbyWatch
from sluice.gateway.cluster.term_keeper import TermKeeper
from sluice.gateway.errors import SettingError, StartAbandoned
from sluice.gateway.limits import LOOP_WATCH_SECONDS
from sluice.gateway.logs import fields
from sluice.gateway.metrics import Metrics
from sluice.gateway.node.rules import (
    NodeLimits,
    abilities,
    admission_limits,
    archive_options,
    catch_up_rules,
    coordinator,
    first_number,
    own_addresses,
    peer_tls,
    race_rules,
    stream_layout,
    subscribe_limits,
    tcp_limits,
)
from sluice.gateway.node.servers import NodeServers
from sluice.gateway.pipeline.conductor import Conductor
from sluice.gateway.pipeline.in_flight import Lack
from sluice.gateway.pipeline.replication_quorum import ReplicationQuorum
from sluice.gateway.pipeline.tracing import BlockTracer
from sluice.gateway.race.arbiter import Arbiter
from sluice.gateway.services.height_service import HeightService
from sluice.gateway.services.node_service import BlockAccessService, BlockNodeService
from sluice.gateway.services.proof_service import ProofService
from sluice.gateway.services.publish_service import PublishService
from sluice.gateway.services.status_detail import StatusDetail
from sluice.gateway.services.subscribe_service import SubscribeService
from sluice.gateway.settings.table import Settings
from sluice.gateway.status.cluster_page import ClusterPage
from sluice.gateway.status.events import EventRing
from sluice.gateway.status.http import PageSources, start_http
from sluice.gateway.status.processor_watch import ProcessorWatch
from sluice.gateway.status.reporter import NodeReporter
from sluice.gateway.status.sampler import Sampler, read_history
from sluice.gateway.store.block_hash_tree import BlockHashTree
from sluice.gateway.store.block_store import BlockStore
from sluice.gateway.store.last_block import look_at_last_block
from sluice.gateway.store.page_blocks import NetworkPages, PageBlocks
from sluice.gateway.store.scrub import Scrubber
from sluice.gateway.store.trust_store import (
    given_address_book,
    given_ledger,
    keep_ledger,
    ledger_to_start_with,
)
from sluice.gateway.transport.admission import Admission
from sluice.gateway.transport.door_notes import DoorNotes
from sluice.gateway.transport.grpc_server import GrpcServer, not_free
from sluice.gateway.transport.known_nodes import KnownNodes, other_nodes
from sluice.gateway.transport.tls import watch_certificates
from sluice.gateway.workers.proof_checks import ProofChecks
from sluice.gateway.workers.proof_process import ProofProcesses

__all__ = ["Node", "sample_lateness"]

log = logging.getLogger(__name__)


class Node:
    """One node: `start` it, `stop` it; `broken` ends if it cannot go on.

    Args:
        disk: of the stream file; None: the real one.
        limits: those that no setting changes; None: the defaults.

    Raises:
        SettingError, LedgerKeyError: this node cannot do what the settings ask for.
    """

    def __init__(
        self, settings: Settings, *, disk: Disk | None = None, limits: NodeLimits | None = None
    ) -> None:
        self.settings = settings
        self._limits = limits or NodeLimits()
        self.metrics = Metrics(verification_mode=settings.verification_mode)
        self._keys = TrustedKeys.parse(settings.ledger_keys)
        mode = settings.verification_mode
        self._given_ledger = given_ledger(self._keys, mode)
        self._rsa_book = given_address_book(self._keys, mode, settings.verification_rsa_threshold)
        self._disk = disk
        self._coordinator = coordinator(settings)
        self._instance = secrets.token_hex(8)
        self._events = EventRing()
        self._cut_off_at = 0.0
        self._is_abandoned = threading.Event()
        self._cleanup = AsyncExitStack()
        self._nodes = KnownNodes(settings.peer_networks, settings.peer_subjects)
        self._servers = NodeServers(settings, self.metrics, self._nodes, self._cleanup, self._stop_server)
        self.grpc_address, self.control_address = settings.grpc_address, settings.control_address
        self.subscriber_address = settings.subscriber_address or settings.grpc_address
        self.tcp_address, self.http_address = settings.tcp_address, settings.http_address
        # The start makes the rest, in this order.
        self.store: BlockStore
        self._peers: list[str]  # `settings.peers` without this node
        self._page_blocks: PageBlocks
        self._pages: list[PageBlocks]
        self._archive: Archives | None
        self._healers: list[Healer]
        """Of the stream of blocks, and in the native layout of the network's stream."""
        self._checks: ProofChecks
        self._lack: str | None = None  # why the last block cannot be checked
        self.conductor: Conductor
        self.following: PeerFollower
        self.term: TermKeeper | None
        """Its part in an election."""
        self.keeper: RoleKeeper
        self._cluster: ClusterWatch
        self.subscribe_service: SubscribeService
        self.publish_service: PublishService
        self._tcp_server: StreamServer
        self.reporter: NodeReporter
        self.sampler: Sampler
        self.block_access: BlockAccessService
        self._height_service: HeightService

    @property
    def door_notes(self) -> Sequence[DoorNotes]:
        """The records of its gRPC servers' doors."""
        return self._servers.door_notes

    @property
    def broken(self) -> asyncio.Future[None]:
        """Ends with the error that stops the node."""
        return self.conductor.broken

    async def start(self) -> None:
        """Open the block store and listen.

        Raises:
            StartAbandoned: `abandon_start` was called meanwhile.
            GatewayError, DatastreamError: something cannot be opened or listened at; nothing is left open.
        """
        try:
            await self._start()
        except BaseException:
            await self._cleanup.aclose()
            raise
        if self.settings.verification_mode == "hash":
            log.warning("verification mode is hash: the signatures of block proofs are not checked")
        # The last line of a start: log readers wait for it.
        log.info(
            "node started",
            extra=fields(
                grpc=str(self.grpc_address),
                tcp=str(self.tcp_address),
                http=str(self.http_address),
                control=str(self.control_address),
                data_dir=str(self.settings.data_dir),
                verification=self.settings.verification_mode,
                last_block=self.store.last_number,
            ),
        )

    def abandon_start(self) -> None:
        """End `start` before the node listens."""
        self._is_abandoned.set()

    def _go_on(self) -> None:
        """Raise StartAbandoned if the start was abandoned; callable in any thread."""
        if self._is_abandoned.is_set():
            raise StartAbandoned

    async def stop(self) -> None:
        """Finish complete blocks, tell publishers, and close everything; idempotent."""
        self.reporter.is_stopping = True
        self._servers.show_stopping()
        await self._cleanup.aclose()
        log.info("node stopped", extra=fields(last_block=self.store.last_number))

    # --- starting, in order; each step registers its undoing -----------------------------------------------

    async def _start(self) -> None:
        settings, archive = self.settings, archive_options(self.settings)
        logger = logging.getLogger("sluice")
        logger.addHandler(self._events)
        self._cleanup.callback(logger.removeHandler, self._events)
        tracer = self._make_tracer()
        if archive is not None:
            await asyncio.to_thread(
                begin_from_archive, settings.data_dir, archive.url, archive.store, self._beginning_rules()
            )
        self.store = await asyncio.to_thread(
            BlockStore.open,
            settings.data_dir,
            stream_type=settings.stream_type,
            system_id=settings.stream_system_id,
            version=settings.stream_version,
            disk=self._disk,
            layout=stream_layout(settings),
            go_on=self._go_on,
            group_blocks_max=settings.commit_max_blocks_per_group,
            past_damage=settings.stream_serve_damaged,
        )
        self._cleanup.callback(self.store.close)
        self._open_archive(archive)
        await self._find_peers()
        self._go_on()
        await self._make_checks()
        self._make_conductor(tracer)
        self._make_following()
        self._make_healer()
        await self._make_term()
        self._make_keeper()
        if self._archive is not None:
            self._page_blocks.known_root = self._archive.streams[-1].reader.known_root
            self._archive.start()
        self._roll_history()
        self._make_subscribe_service()
        self._make_tcp_server()
        self._make_reporter()
        await self._make_sampler()
        self.http_address = await self._start_http()
        self.tcp_address = await self._start_tcp()
        self._watch_pages()
        await self._start_grpc()
        self.control_address = await self._start_control()

    async def _find_peers(self) -> None:
        """Remove this node from its peers: all nodes of a cluster may share one configuration."""
        settings = self.settings
        self._peers = self._nodes.peers = await other_nodes(settings.peers, own_addresses(settings))
        if settings.commit_min_standbys > len(self._peers):
            raise SettingError(
                "commit.min_standbys",
                got=f"{settings.commit_min_standbys}",
                expected=f"at most {len(self._peers)}, the number of peers that are other nodes",
                where=f"a node that listens at {settings.grpc_address}",
            )

    def _make_tracer(self) -> BlockTracer | None:
        settings = self.settings
        if settings.otel_endpoint is None:
            return None
        from sluice.gateway.node.span_export import SpanExport  # it needs an extra

        own_address, quiet_seconds = str(settings.grpc_advertised_address), self._limits.traces_quiet_seconds
        export = SpanExport(settings.otel_endpoint, self._instance, own_address, quiet_seconds)
        tracer = BlockTracer(
            export.emit,
            settings.otel_chain,
            settings.otel_sample,
            has_quorum=settings.commit_min_standbys > 0,
        )

        async def close() -> None:
            tracer.close(time.monotonic_ns())
            await export.close(self._rest_of_grace())

        self._cleanup.push_async_callback(close)
        return tracer

    def _make_conductor(self, tracer: BlockTracer | None) -> None:
        settings = self.settings
        first, last = self.store.first_number, self.store.last_number
        quorum, least = None, settings.commit_min_standbys
        if least:
            quorum = ReplicationQuorum(
                least, self._instance, self._peers, self.store.chain, self._limits.cluster.own_roots_kept
            )
        self.conductor = Conductor(
            Arbiter(last, first_number(settings) if last is None else first, race_rules(settings)),
            self.store,
            self._checks,
            self.metrics,
            limits=replace(
                self._limits.pipeline,
                responses_max=settings.publish_send_queue_max,
                group_blocks_max=settings.commit_max_blocks_per_group,
            ),
            standbys=quorum,
            tracer=tracer,
        )
        if self._lack is not None:
            log.error(
                "the last block cannot be checked with these ledger keys", extra=fields(reason=self._lack)
            )
            self.conductor.in_flight.note_lack(Lack(self.store.chain.next_number, self._lack))
        loop = asyncio.get_running_loop()
        self.metrics.asyncio_tasks.set_function(lambda: len(asyncio.all_tasks(loop)))
        self._watch(sample_lateness(self._note_lateness))
        self.metrics.last_block.set(-1 if self.store.last_number is None else self.store.last_number)

    def _note_lateness(self, seconds: float) -> None:
        self.metrics.event_loop_lag_seconds.observe(seconds)
        self.conductor.stood_still(seconds)

    def _make_following(self) -> None:
        settings = self.settings
        self.following = PeerFollower(
            self.conductor,
            self.metrics,
            rules=catch_up_rules(settings),
            stall_seconds=settings.catchup_stall_seconds,
            block_time_seconds=settings.block_time_seconds,
            message_bytes_max=max(settings.grpc_max_message_bytes, self._limits.cluster.message_bytes_min),
            tls=peer_tls(settings),
            instance=self._instance,
            limits=self._limits.cluster,
        )

    def _make_healer(self) -> None:
        settings = self.settings
        self._page_blocks = PageBlocks(self.store)
        network = [] if self.store.pair is None else [NetworkPages(self.store)]
        self._pages = [self._page_blocks, *network]
        self._healers = [
            Healer(
                self.store,
                pages,
                self._peers,
                self.metrics,
                message_bytes_max=max(
                    settings.grpc_max_message_bytes, self._limits.cluster.message_bytes_min
                ),
                stall_seconds=settings.catchup_stall_seconds,
                tls=peer_tls(settings),
                limits=self._limits.cluster,
            )
            for pages in self._pages
        ]
        for healer in self._healers:
            self._cleanup.callback(healer.close)
        self.metrics.bad_pages.set_function(lambda: sum(healer.bad_count for healer in self._healers))

    def _watch_pages(self) -> None:
        for healer in self._healers:
            self._watch(healer.run())
        pace = self.settings.scrub_bytes_per_second
        if pace:
            for pages in self._pages:
                scrubber = Scrubber(
                    pages,
                    self.metrics,
                    pace,
                    unproven_pause_seconds=self._limits.unproven_pause_seconds,
                )
                self._cleanup.callback(scrubber.close)
                self._watch(scrubber.run())

    async def _make_term(self) -> None:
        """Take part in an election, if the settings say so."""
        self.term, settings, quorum = None, self.settings, self.conductor.acknowledging.quorum
        if self._coordinator is None or quorum is None:
            return
        promise = await asyncio.to_thread(read_promise, settings.data_dir)
        rules = ElectionRules(
            len(self._peers) + 1, settings.commit_min_standbys, settings.failover_lease_seconds
        )

        def watch(epoch: int) -> StandbyWatch:
            return self._watch_standbys(quorum, epoch, term.heard)

        async def instance_at(address: str) -> str:
            return (await self.following.said_by(address)).instance

        term = self.term = TermKeeper(
            Election(rules, str(settings.grpc_advertised_address), self._instance, promise),
            self._coordinator,
            settings.data_dir,
            self.store,
            quorum,
            watch=watch,
            neighbours=lambda: self._cluster.neighbours(),
            refusal=lambda: self.conductor.disk_failure,
            is_committing=lambda: self.conductor.is_committing,
            instance_at=instance_at,
        )
        self.conductor.acknowledging.has_term = term.may_acknowledge

    def _make_keeper(self) -> None:
        settings, peers = self.settings, self._peers
        self.keeper = RoleKeeper(
            settings.data_dir,
            RoleRecord(settings.role),
            self.conductor,
            self.store,
            self.following,
            peers=peers,
            drain_seconds=settings.shutdown_grace_seconds,
            term=self.term,
        )
        if settings.peers and not peers and self.keeper.phase is Phase.STANDBY and not self.keeper.followed:
            raise SettingError(
                "peers",
                got=f"{', '.join(map(str, settings.peers))}, which is this node itself",
                expected="another node, which a standby can follow",
                where=f"a node that listens at {settings.grpc_address}",
            )

    def _known_ledger(self, store: BlockStore) -> LedgerData | None:
        settings = self.settings
        return ledger_to_start_with(
            self._keys,
            settings.verification_mode,
            store,
            given=self._given_ledger,
            rsa_book=self._rsa_book,
            first_number=first_number(settings),
            root_layout=settings.verification_root_layout,
        )

    def _verifier(self, known: LedgerData | None) -> BlockVerifier:
        mode = self.settings.verification_mode
        proofs = ProofVerifier(self._keys, mode, known, self._rsa_book)
        return BlockVerifier(proofs, self.settings.verification_root_layout)

    def _beginning_rules(self) -> BeginningRules:
        settings = self.settings
        return BeginningRules(
            settings.stream_type,
            stream_layout(settings),
            settings.archive_trust,
            is_signed=settings.verification_mode == "full",
            verifier=lambda known: self._verifier(self._given_ledger or known),
            known_ledger=self._known_ledger,
            go_on=self._go_on,
        )

    async def _make_checks(self) -> None:
        """Find the ledger data, and check that the last block fits the keys.

        Raises:
            LedgerKeyError, Fatal: they are missing, or do not fit the stored blocks.
        """
        keys, known = self._keys, self._known_ledger(self.store)
        verifier = self._verifier(known)
        if known is not None:
            log.info("TSS ledger", extra=fields(ledger_id=known.ledger_id.hex(), nodes=len(known.nodes)))
        elif verifier.awaits_block_0 and keys.tss_id is None and self.store.last_number is None:
            log.warning(
                "no ledger key: the ledger id that block 0 publishes will be believed, whatever it is",
                extra=fields(pin_it_with="--ledger-key tss:id=HEX"),
            )
        last_block = None
        try:
            last_block = await asyncio.to_thread(look_at_last_block, self.store, verifier)
        except PageDamaged as error:  # its end, which the next block links to, was readable
            log.error("the last block cannot be looked at", extra=fields(got=str(error)))
        if last_block is not None:
            self.store.learn(last_block.layout)
            self._lack = last_block.lack
        processes = ProofProcesses(self.settings.verification_processes)
        self._checks = ProofChecks(verifier, partial(keep_ledger, self.store.data_dir), processes)
        self._cleanup.callback(self._checks.close)
        self._checks.warm_up()

    def _roll_history(self) -> None:
        """Give old pages up for good, if the settings say so."""
        settings, store = self.settings, self.store
        if not (settings.history_keep_bytes or settings.history_keep_blocks):
            return
        blocks = Window(
            settings.history_keep_bytes,
            partial(store.begin_of_last, settings.history_keep_blocks)
            if settings.history_keep_blocks
            else None,
            partial(store.begin_of_last, 1),
        )
        windows = [(store.streamer, blocks)]
        if (pair := store.pair) is not None:  # what the blocks that stay need

            def keeps_from() -> int:
                return pair.entries_before(store.first_available or 0)

            windows.append((pair.network, Window(0, keeps_from, None)))
        for streamer, window in windows:
            retention = Retention(streamer, window)
            retention.start()
            self._cleanup.push_async_callback(asyncio.to_thread, retention.close)

    def _open_archive(self, options: ArchiveOptions | None) -> None:
        """Read from the archive, if there is one, from now on."""
        self._archive, settings = None, self.settings
        if options is None:
            remotes = [streamer.remote for streamer in self.store.streamers]
            if any(remote.end and not remote.is_gone(remote.end - 1) for remote in remotes):
                log.error("pages were given up to an archive, and archive.url is not set")
            return

        def blocks() -> StoredBlocks:
            store = self.store
            return StoredBlocks(store.first_number, store.last_number, store.layout)

        def uploads() -> bool:
            if settings.archive_upload == "auto":
                return self.keeper.phase is Phase.ACTIVE
            return settings.archive_upload == "always"

        self._archive = Archives(options, self.store.streamers, blocks, uploads)
        self._cleanup.push_async_callback(asyncio.to_thread, self._archive.close)

    def _make_subscribe_service(self) -> None:
        settings = self.settings
        service = SubscribeService(
            self.store,
            first_number(settings),
            self.metrics,
            subscribe_limits(settings),
            ensure=self._page_blocks.ensure,
        )
        self._cleanup.callback(service.release)
        self.conductor.on_source_error(
            lambda: service.source_failed("the last publisher ended its stream with ERROR")
        )
        self.conductor.on_commit_failed(lambda: service.source_failed("blocks cannot be written"))
        self.subscribe_service = service

    def _make_tcp_server(self) -> None:
        settings = self.settings
        limits = tcp_limits(settings, descriptors_max())
        if limits.connections_max < settings.tcp_max_connections:
            log.warning(
                "file descriptors are too few for tcp.max_connections (ulimit -n)",
                extra=fields(got=descriptors_max(), clients=limits.connections_max),
            )
        tls = self._servers.tls_of("tcp", is_http2=False)
        server = StreamServer(
            self.store.streamers[0],
            settings.tcp_address.host,
            settings.tcp_address.port,
            limits=limits,
            on_command_error=settings.tcp_on_command_error,
            tls=None if tls is None else tls.context,
        )
        self.metrics.tcp_clients.set_function(lambda: server.client_count)
        self.metrics.tcp_lag_bytes.set_function(lambda: server.lag_bytes)
        self._tcp_server = server

    def _make_reporter(self) -> None:
        self._cluster = ClusterWatch(
            self._peers, self.metrics, peer_tls(self.settings), limits=self._limits.cluster
        )
        processor = ProcessorWatch(
            self.metrics, self._processes, look_seconds=self._limits.processor_look_seconds
        )
        self._cleanup.callback(processor.close)
        self.reporter = NodeReporter(
            self.settings,
            self.metrics,
            self._instance,
            conductor=self.conductor,
            store=self.store,
            following=self.following,
            keeper=self.keeper,
            term=self.term,
            cluster=self._cluster,
            peers=self._peers,
            tcp_server=self._tcp_server,
            subscribers=self.subscribe_service,
            certificates=self._servers.certificates,
            door_notes=self._servers.door_notes,
            healers=self._healers,
            processor=processor,
            archive=self._archive,
            health_check_seconds=self._limits.health_check_seconds,
            publishers_shown=self._limits.publishers_shown,
        )

    async def _make_sampler(self) -> None:
        data_dir = self.settings.data_dir

        def stream_bytes() -> int:
            return sum(each.committed.total_length for each in self.store.streamers)

        self.metrics.stream_bytes.set_function(stream_bytes)
        self.sampler = Sampler(
            await asyncio.to_thread(read_history, data_dir),
            data_dir,
            self.metrics,
            report=self.reporter.report,
            won=lambda: self.conductor.acknowledging.history.blocks,
            stream_bytes=stream_bytes,
            write_seconds=self._limits.history_write_seconds,
        )
        await self.sampler.look_at_disk()
        self._cleanup.push_async_callback(self.sampler.close)
        self._watch(self.sampler.run())

    def _processes(self) -> list[tuple[str, int | None]]:
        return [("proofs", process_id) for process_id in self._checks.process_ids]

    async def _start_http(self) -> Address:
        cluster = ClusterPage(self.reporter.report, self.store, self._peers, peer_tls(self.settings))
        self._cleanup.callback(cluster.close)
        sources = PageSources(self.sampler.history, self._events.events, cluster)
        server = await start_http(self.reporter, self.settings.http_address, sources=sources)
        self._cleanup.push_async_callback(server.close)
        return server.address

    async def _start_tcp(self) -> Address:
        address = self.settings.tcp_address
        try:
            await self._tcp_server.start()
        except AddressUnavailable as error:
            raise not_free("tcp.address", address, error.os_error) from error
        self._cleanup.push_async_callback(self._tcp_server.close)
        return Address(address.host, self._tcp_server.address[1])

    async def _start_grpc(self) -> None:
        settings, servers = self.settings, self._servers
        detail = StatusDetail(abilities(settings, self._keys), self._rsa_book, lambda: self._checks.ledger)
        status = BlockNodeService(
            self.store, first_number(settings), self.reporter.status_report, detail.answer
        )
        publishing = self.publish_service = PublishService(
            self.conductor, Admission(admission_limits(settings)), self._limits.drain
        )
        self.block_access = BlockAccessService(
            self.store, self._page_blocks.ensure_block, self._limits.access
        )
        archived = None if self._archive is None else self._archive.streams[-1].reader.archived_roots
        tree = BlockHashTree(self.store, archived)
        proofs = ProofService(self.store, tree, self.block_access.answers, self._page_blocks.ensure_block)
        self._height_service = HeightService(self.store, self._instance, self._nodes, promises=self.term)
        reading = (self.block_access, proofs, self.subscribe_service, self._height_service)
        self._cleanup.push_async_callback(self.keeper.close)  # undone even if an address is taken
        await self.keeper.start()  # before the first publisher: a standby sends it elsewhere
        await self._nodes.look()
        # Undone in reverse: publishers are told, then subscribers, then the servers go.
        subscriber_address = await servers.start_reading(status, reading)
        self.grpc_address = await servers.start_publishing(publishing, status, reading)
        self.subscriber_address = subscriber_address or self.grpc_address
        self.reporter.has_started(
            self.grpc_address, self.subscriber_address, self.tcp_address, self.http_address
        )
        self._cleanup.push_async_callback(self._end_subscribers)
        quorum = self.conductor.acknowledging.quorum
        # Until the conductor has stopped: its last blocks may wait for standbys.
        if self.term is not None:
            self._cleanup.push_async_callback(self.term.close)
        elif quorum is not None:
            self._cleanup.push_async_callback(self._watch_standbys(quorum).close)
        self._cleanup.push_async_callback(self.conductor.stop, settings.shutdown_grace_seconds)
        self._cleanup.push_async_callback(self.keeper.close)
        self._watch(self.reporter.watch(servers.show_readiness))
        self._watch(self._cluster.watch(self.reporter.statement))
        if self.term is not None:
            self.term.start(self.keeper, self.reporter.report().grpc_address)
        self._watch(tree.run())
        self._watch(watch_certificates(servers.certificates, self.metrics))
        self._watch(servers.watch_receiving(publishing.is_urgent))
        self._watch(self._nodes.watch())

    def _watch_standbys(
        self, quorum: ReplicationQuorum, epoch: int = 0, outdated: Callable[[int], None] = lambda epoch: None
    ) -> StandbyWatch:
        return StandbyWatch(
            self.conductor,
            quorum,
            self.store,
            self._peers,
            peer_tls(self.settings),
            limits=self._limits.cluster,
            epoch=epoch,
            candidate=self._instance,
            outdated=outdated,
        )

    async def _start_control(self) -> Address:
        reporter, following = self.reporter, self.following
        control = ControlService(
            self.keeper,
            self.store,
            reporter.report,
            following.is_itself,
            self._instance,
            allowed_subjects=frozenset(self.settings.control_allowed_subjects),
        )
        return await self._servers.start_control(control)

    def _watch(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        task.add_done_callback(_on_watch_done)
        self._cleanup.callback(task.cancel)

    async def _end_subscribers(self) -> None:
        """Let subscribers receive their blocks to the end; the servers' stop cuts off slow ones."""
        loop = asyncio.get_running_loop()
        self._cut_off_at = loop.time() + self.settings.shutdown_grace_seconds
        self._height_service.close()
        self._servers.end_health()
        try:
            async with asyncio.timeout_at(self._cut_off_at):
                await self.subscribe_service.close()
        except TimeoutError:
            count = self.subscribe_service.stream_count
            log.warning("subscribers were not finished", extra=fields(streams=count))

    async def _stop_server(self, server: GrpcServer) -> None:
        """Give calls the rest of the subscribers' time."""
        await server.stop(self._rest_of_grace())

    def _rest_of_grace(self) -> float:
        return max(0.0, self._cut_off_at - asyncio.get_running_loop().time())


async def sample_lateness(late: Callable[[float], None], period_seconds: float = LOOP_WATCH_SECONDS) -> None:
    """Report how much too late the event loop ends a sleep."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + period_seconds
        await asyncio.sleep(period_seconds)
        late(max(0.0, loop.time() - due))


def _on_watch_done(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("the node does not watch itself any more", exc_info=error)
