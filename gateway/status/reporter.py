"""The gathering of a node's report from its rooms.

A shell: it asks the rooms and reads the clock. Source: docs/operations.md, "Watch it".
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from sluice.datastream import StreamServer
from sluice.gateway import __version__
from sluice.gateway.addresses import Address
from sluice.gateway.archive.archive import Archives
from sluice.gateway.cluster.cluster_view import Statement
from sluice.gateway.cluster.cluster_watch import ClusterWatch
from sluice.gateway.cluster.healing import Healer
from sluice.gateway.cluster.peer_follower import PeerFollower
from sluice.gateway.cluster.role_keeper import RoleKeeper
from sluice.gateway.cluster.term_keeper import TermKeeper
from sluice.gateway.identity import is_vouched_for
from sluice.gateway.limits import HEALTH_CHECK_SECONDS
from sluice.gateway.logs import tell_left_out
from sluice.gateway.metrics import Metrics
from sluice.gateway.pipeline.conductor import Conductor
from sluice.gateway.race.records import StreamRecord
from sluice.gateway.race.tables import GONE, StreamState
from sluice.gateway.services.subscribe_service import SubscribeService
from sluice.gateway.settings.table import Settings
from sluice.gateway.status.findings import FindingBook, look
from sluice.gateway.status.node_report import NodeReport, PublisherStatus
from sluice.gateway.status.processor_watch import ProcessorWatch
from sluice.gateway.store.block_store import BlockStore
from sluice.gateway.transport.door_notes import DoorNotes, last_refused_message
from sluice.gateway.transport.tls import ServerTls, certificate_notes

__all__ = ["NodeReporter"]

PUBLISHERS_SHOWN: Final = 200


class NodeReporter:
    """Makes the reports of one node from its rooms.

    Args:
        certificates, door_notes: of the node's servers; both lists grow during the start.
    """

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        instance: str,
        *,
        conductor: Conductor,
        store: BlockStore,
        following: PeerFollower,
        keeper: RoleKeeper,
        term: TermKeeper | None,
        cluster: ClusterWatch,
        peers: Sequence[str],
        tcp_server: StreamServer,
        subscribers: SubscribeService,
        certificates: Sequence[ServerTls],
        door_notes: Sequence[DoorNotes],
        healers: Sequence[Healer],
        processor: ProcessorWatch,
        archive: Archives | None = None,
        health_check_seconds: float = HEALTH_CHECK_SECONDS,
        publishers_shown: int = PUBLISHERS_SHOWN,
    ) -> None:
        self._health_check_seconds = health_check_seconds
        self._publishers_shown = publishers_shown
        self.metrics = metrics
        self.is_stopping = False
        self._settings = settings
        self._instance = instance
        self._conductor = conductor
        self._store = store
        self._following = following
        self._keeper = keeper
        self._term = term
        self._cluster = cluster
        self._peers = tuple(peers)
        self._tcp_server = tcp_server
        self._subscribers = subscribers
        self._certificates = certificates
        self._door_notes = door_notes
        self._healers = healers
        self._processor = processor
        self._archive = archive
        self._addresses: tuple[tuple[str, str], ...] = ()
        self._grpc_address = settings.grpc_address
        self._subscriber_address = settings.subscriber_address or settings.grpc_address
        self._finding_book = FindingBook()
        self._made_at = time.monotonic()

    def has_started(self, grpc: Address, subscribers: Address, tcp: Address, http: Address) -> None:
        """Note the addresses of the started servers."""
        self._grpc_address, self._subscriber_address = grpc, subscribers
        self._addresses = (
            ("gRPC", str(grpc)),
            ("subscribers", str(subscribers)),
            ("data streamer", str(tcp)),
            ("HTTP", str(http)),
        )

    def readiness(self) -> list[str]:
        """Return why the node is not ready."""
        return list(self.report().problems)

    def status_report(self) -> dict[str, object]:
        """Return the report for serverStatus."""
        return self.report().for_status()

    def statement(self) -> Statement:
        """Return this node's statement, for the watch over its cluster."""
        return self.report().statement

    def report(self, *, for_page: bool = False) -> NodeReport:
        """Gather the report; `for_page` with the race and each publisher, which takes longer."""
        settings, arbiter, acknowledging = (
            self._settings,
            self._conductor.arbiter,
            self._conductor.acknowledging,
        )
        in_flight, chain, now = self._conductor.in_flight, self._store.chain, time.monotonic()
        acknowledged_at = acknowledging.acknowledged_at
        grpc_address, subscriber_address = self._advertised()
        report = NodeReport(
            version=__version__,
            instance=self._instance,
            phase=self._keeper.phase.value,
            verification_mode=settings.verification_mode,
            addresses=self._addresses,
            grpc_address=grpc_address,
            subscriber_address=subscriber_address,
            now_unix_seconds=time.time(),
            block_time_seconds=settings.block_time_seconds,
            first_block=self._store.first_available,
            last_block=chain.last_number,
            last_root_hash=(chain.last_root_hash or b"").hex(),
            is_rolling=self._store.first_available != self._store.first_number,
            stream_layout=None if chain.last_number is None else self._store.layout,
            last_block_age_seconds=None if acknowledged_at is None else now - acknowledged_at,
            quiet_seconds=now - (self._made_at if acknowledged_at is None else acknowledged_at),
            publisher_count=arbiter.publisher_count,
            inflight_bytes=arbiter.inflight_bytes,
            tcp_clients=self._tcp_server.client_count,
            tcp_slowest_bytes=self._tcp_server.lag_bytes,
            subscribers=self._subscribers.stream_count,
            subscriber_lag_blocks=self._subscribers.lag_blocks,
            peers=tuple(self._peers),
            followed=self._following.followed,
            distance_blocks=self._following.distance,
            cluster_faults=tuple(self._cluster.faults.items()),
            has_one_active=self._keeper.has_one_active,
            hears=None if (hears := self._cluster.hears()) is None else tuple(hears),
            active_seconds_ago=self._cluster.active_seconds_ago(self._keeper.phase),
            quorum=acknowledging.quorum_state(),
            election=None if self._term is None else self._term.state(),
            awaiting_standbys=acknowledging.awaiting_count,
            is_starting=not self._addresses,
            is_stopping=self.is_stopping,
            disk_failure=self._conductor.disk_failure,
            is_broken=self._conductor.broken.done(),
            catch_up_problem=self._following.problem,
            given_up_target=self._following.given_up_target,
            sent_elsewhere=arbiter.retired,
            certificates=certificate_notes(self._certificates),
            door=tuple(words for notes in self._door_notes for words in notes.words()),
            disputed=in_flight.disputed,
            lack=in_flight.lack_of(self._conductor.next_to_store),
            refused_message=last_refused_message(self._door_notes),
            bad_pages=tuple(line for healer in self._healers for line in healer.words()),
            archives=() if self._archive is None else self._archive.states(),
            backing_off=tuple(arbiter.reputations.backing_off(self._conductor.now_ns())),
            processor=self._processor.words,
        )
        now_seconds = time.clock_gettime(time.CLOCK_BOOTTIME)
        findings = self._finding_book.note(look(report), report.now_unix_seconds, now_seconds)
        report = replace(report, findings=findings)
        if not for_page:
            return report
        history = acknowledging.history
        return replace(
            report,
            race=history.blocks,
            winners=tuple(history.counts()),
            median_seconds=history.median_seconds(),
            publishers=_publishers(arbiter.streams.values(), self._publishers_shown),
        )

    def _advertised(self) -> tuple[str, str]:
        """Addresses for publishers and for subscribers, "" if the same."""
        advertised = self._settings.grpc_advertised_address
        if advertised == self._settings.grpc_address:
            advertised = self._grpc_address  # with its real port
        if self._settings.subscriber_address is None:
            return str(advertised), ""
        return str(advertised), str(self._subscriber_address.reached_by(advertised.host))

    async def watch(self, show_readiness: Callable[[bool], None]) -> None:
        """Show readiness, role and the bytes sent over TCP, until cancelled.

        Its reports also tell the finding book since when something is wrong.
        """
        sent_bytes = 0
        while True:
            sent_before_bytes, sent_bytes = sent_bytes, self._tcp_server.bytes_sent
            self.metrics.tcp_sent_bytes.inc(sent_bytes - sent_before_bytes)
            self.metrics.show_role(self._keeper.phase.value)
            if self._term is not None:
                election = self._term.state()
                self.metrics.election_epoch.set(election.epoch)
                self.metrics.coordinator_away.set(election.away is not None)
            tell_left_out()
            self._show_archive()
            show_readiness(not self.readiness())
            await asyncio.sleep(self._health_check_seconds)

    def _show_archive(self) -> None:
        for stream in () if self._archive is None else self._archive.streams:
            state, metrics = stream.state(), self.metrics
            for gauge, value in (
                (metrics.archived_pages, state.archived_pages),
                (metrics.archive_behind_pages, state.behind_pages),
                (metrics.archive_local_pages, state.local_pages),
                (metrics.archive_cached_pages, state.cached_pages),
                (metrics.archive_read_bytes, stream.reader.bytes_read),
                (metrics.archive_failing, state.error is not None or state.read_error is not None),
                (metrics.archive_disagrees, state.disagreement is not None),
            ):
                gauge.labels(archive=state.url).set(value)


def _publishers(streams: Iterable[StreamRecord], most: int) -> tuple[PublisherStatus, ...]:
    """Say what publishers do, proven names first; of very many, count the rest."""
    here = [stream for stream in streams if stream.state not in GONE]
    here.sort(key=lambda stream: not is_vouched_for(stream.name))
    shown = [PublisherStatus(stream.name, _doing(stream)) for stream in here[:most]]
    if len(here) > most:
        shown.append(PublisherStatus(f"and {len(here) - most:,} more streams", ""))
    return tuple(shown)


def _doing(stream: StreamRecord) -> str:
    if stream.block is not None:
        return f"sends block {stream.block.number}"
    if stream.state is StreamState.FRESH:
        return "has sent nothing yet"
    if stream.asked_for is not None:
        return f"was asked for block {stream.asked_for}"
    if stream.behind_from is not None:
        return f"is ahead: block {stream.behind_from} is next"
    return "waits" if stream.next_offer is None else f"comes to block {stream.next_offer} next"
