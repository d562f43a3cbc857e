"""What a node says of itself: ready or not and why, the status page, `sluice status`, and who operates it.

A shell: it asks the rooms of the node, reads the clock, and decides nothing; what the answers mean is in
`gateway.status.findings`. Every answer comes from the same facts, so that they cannot differ.

    readiness    /readyz, /metrics, the gRPC health service, `sluice status`, `sluice failover`
    status       the page and /status.json, not before the node has started
    facts        beside the blocks in serverStatus, for `sluice status`

Source: docs/operations.md, "Watch it".
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from datastream import StreamServer
from gateway.addresses import Address
from gateway.cluster.healing import Healer
from gateway.cluster.peer_follower import PeerFollower
from gateway.cluster.role_keeper import RoleKeeper
from gateway.limits import HEALTH_CHECK_SECONDS
from gateway.logs import tell_left_out
from gateway.metrics import Metrics
from gateway.pipeline.conductor import Conductor
from gateway.services.node_service import INSTANCE_KEY
from gateway.services.subscribe_service import SubscribeService
from gateway.settings.table import Settings
from gateway.status.findings import ADVICE, Facts, Finding, FindingBook, look
from gateway.status.page_facts import gather_status
from gateway.status.processor_watch import ProcessorWatch
from gateway.status.status_page import Status
from gateway.store.block_store import BlockStore
from gateway.transport.door_notes import DoorNotes, last_refused_message
from gateway.transport.tls import ServerTls, certificate_notes

__all__ = ["NodeReport"]


class NodeReport:
    """What one node says of itself.

    Args:
        settings, metrics, instance: of the node.
        conductor, ledger, following, keeper, tcp_server, subscribers: the rooms that are asked.
        certificates: those of the node's servers, as they come.
        door_notes: what happened at their doors, as they come.
        healer: knows the damaged pages.
        processor: knows whether the node gets enough of it.
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
        tcp_server: StreamServer,
        subscribers: SubscribeService,
        certificates: Sequence[ServerTls],
        door_notes: Sequence[DoorNotes],
        healer: Healer,
        processor: ProcessorWatch,
    ) -> None:
        self.metrics = metrics
        self.is_stopping = False
        self._settings = settings
        self._instance = instance
        self._conductor = conductor
        self._store = store
        self._following = following
        self._keeper = keeper
        self._tcp_server = tcp_server
        self._subscribers = subscribers
        self._certificates = certificates
        self._door_notes = door_notes
        self._healer = healer
        self._processor = processor
        self._addresses: tuple[tuple[str, str], ...] | None = None
        self._grpc_address = settings.grpc_address
        self._subscriber_address = settings.subscriber_address or settings.grpc_address
        self._finding_book = FindingBook()
        self._made_at = time.monotonic()

    def has_started(self, grpc: Address, subscribers: Address, tcp: Address, http: Address) -> None:
        """Take note that the node listens for publishers, and where its servers are."""
        self._grpc_address, self._subscriber_address = grpc, subscribers
        self._addresses = (
            ("gRPC", str(grpc)),
            ("subscribers", str(subscribers)),
            ("data streamer", str(tcp)),
            ("HTTP", str(http)),
        )

    def readiness(self) -> list[str]:
        """Say why the node does not take or serve blocks now; nothing to say means ready."""
        return [text for kind, text in look(self._look_facts()) if ADVICE[kind].is_problem]

    def publishers_sent_elsewhere(self) -> str | None:
        """Say why publishers are sent elsewhere; None: they are taken."""
        return self._conductor.arbiter.retired

    def status(self) -> Status | None:
        """Say what the node knows of itself, for the status page; None while it is starting."""
        if self._addresses is None:
            return None
        return gather_status(
            self._settings,
            self._conductor,
            self._store,
            phase=self._keeper.phase.value,
            followed=self._following.followed,
            distance_blocks=self._following.distance,
            findings=self._findings(),
            addresses=self._addresses,
            tcp_clients=self._tcp_server.client_count,
            tcp_slowest_bytes=self._tcp_server.lag_bytes,
            subscribers=self._subscribers.stream_count,
            subscriber_lag_blocks=self._subscribers.lag_blocks,
        )

    def facts(self) -> dict[str, object]:
        """Say what `sluice status` shows beside the blocks."""
        return {
            INSTANCE_KEY: self._instance,
            "role": self._keeper.phase.value,
            "verification_mode": self._settings.verification_mode,
            "ready": not self.readiness(),
            "publishers": self._conductor.arbiter.publisher_count,
            "subscribers": self._subscribers.stream_count,
            "tcp_clients": self._tcp_server.client_count,
            "missing_blocks": self._following.distance or 0,
            "awaiting_standbys": self._conductor.acknowledging.awaiting_count,
        }

    def control_facts(self) -> tuple[str, str, int, str, list[str]]:
        """Say what those who operate the node ask: a `gateway.cluster.control_service.NodeFacts`."""
        advertised = self._settings.grpc_advertised_address
        if advertised == self._settings.grpc_address:
            advertised = self._grpc_address  # with the port that it has got
        subscribers = ""
        if self._settings.subscriber_address is not None:
            subscribers = str(self._subscriber_address.reached_by(advertised.host))
        publishers = self._conductor.arbiter.publisher_count
        mode = self._settings.verification_mode
        return str(advertised), subscribers, publishers, mode, self.readiness()

    async def watch(self, show_readiness: Callable[[bool], None]) -> None:
        """Show readiness, role and the bytes sent over TCP, now and then, until cancelled.

        Asked this often, the findings know since when something is wrong.
        """
        sent_bytes = 0
        while True:
            sent_before_bytes, sent_bytes = sent_bytes, self._tcp_server.bytes_sent
            self.metrics.tcp_sent_bytes.inc(sent_bytes - sent_before_bytes)
            self.metrics.show_role(self._keeper.phase.value)
            tell_left_out()
            show_readiness(not any(finding.is_problem for finding in self._findings()))
            await asyncio.sleep(HEALTH_CHECK_SECONDS)

    def _findings(self) -> tuple[Finding, ...]:
        """Say what is wrong, and since when."""
        now_seconds = time.clock_gettime(time.CLOCK_BOOTTIME)
        return self._finding_book.note(look(self._look_facts()), time.time(), now_seconds)

    def _look_facts(self) -> Facts:
        arbiter, acknowledging = self._conductor.arbiter, self._conductor.acknowledging
        acknowledged_at = acknowledging.acknowledged_at
        now, in_flight = time.monotonic(), self._conductor.in_flight
        quiet_since = self._made_at if acknowledged_at is None else acknowledged_at
        return Facts(
            is_stopping=self.is_stopping,
            disk_failure=self._conductor.disk_failure,
            is_broken=self._conductor.broken.done(),
            catch_up_problem=self._following.problem,
            given_up_target=self._following.given_up_target,
            takes_publishers=arbiter.retired is None,
            publisher_count=arbiter.publisher_count,
            quiet_seconds=now - quiet_since,
            block_time_seconds=self._settings.block_time_seconds,
            certificates=certificate_notes(self._certificates),
            door=tuple(words for notes in self._door_notes for words in notes.words()),
            standbys=acknowledging.standby_facts(),
            is_starting=self._addresses is None,
            disputed=in_flight.disputed,
            lack=in_flight.lack_of(self._conductor.next_to_store),
            stored_seconds=None if acknowledged_at is None else now - acknowledged_at,
            refused_message=last_refused_message(self._door_notes),
            bad_pages=self._healer.words(),
            backing_off=tuple(arbiter.reputations.backing_off(self._conductor.now_ns())),
            processor=self._processor.words,
        )
