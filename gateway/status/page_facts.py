"""Gathers what a node knows of itself, for `gateway.status.status_page` and `/status.json`.

A shell: it asks each room of the node for its facts, and decides nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from gateway import __version__
from gateway.identity import is_vouched_for
from gateway.pipeline.conductor import Conductor
from gateway.race.records import StreamFacts
from gateway.race.tables import GONE, StreamState
from gateway.settings.table import Settings
from gateway.status.findings import Finding
from gateway.status.status_page import PublisherStatus, Status
from gateway.store.block_store import BlockStore

__all__ = ["PUBLISHERS_SHOWN", "gather_status"]

PUBLISHERS_SHOWN: Final = 200
"""Streams of publishers that the page shows; it is made anew for each who looks."""


def gather_status(
    settings: Settings,
    conductor: Conductor,
    store: BlockStore,
    *,
    phase: str,
    followed: str | None,
    distance_blocks: int | None,
    findings: Iterable[Finding],
    addresses: Iterable[tuple[str, str]],
    tcp_clients: int,
    tcp_slowest_bytes: int,
    subscribers: int,
    subscriber_lag_blocks: int,
) -> Status:
    """Gather a `Status`; what the race and the ledger do not know comes as arguments of the same names."""
    arbiter, history, chain = conductor.arbiter, conductor.acknowledging.history, store.chain
    findings, gate = tuple(findings), conductor.acknowledging.gate
    age_seconds = None
    if conductor.acknowledging.acknowledged_at is not None:
        age_seconds = time.monotonic() - conductor.acknowledging.acknowledged_at
    return Status(
        version=__version__,
        phase=phase,
        verification_mode=settings.verification_mode,
        addresses=tuple(addresses),
        problems=tuple(finding.text for finding in findings if finding.is_problem),
        findings=findings,
        now_unix_seconds=time.time(),
        first_block=store.first_number,
        last_block=chain.last_number,
        last_root_hash=(chain.last_root_hash or b"").hex(),
        last_block_age_seconds=age_seconds,
        race=history.blocks,
        winners=tuple(history.counts()),
        median_seconds=history.median_seconds(),
        publishers=_publishers(arbiter.streams.values()),
        inflight_bytes=arbiter.inflight_bytes,
        tcp_clients=tcp_clients,
        tcp_slowest_bytes=tcp_slowest_bytes,
        subscribers=subscribers,
        subscriber_lag_blocks=subscriber_lag_blocks,
        peers=tuple(map(str, settings.peers)),
        followed=followed,
        distance_blocks=distance_blocks,
        min_standbys=0 if gate is None else gate.min_standbys,
        standbys=() if gate is None else tuple(gate.states()),
        awaiting_standbys=conductor.acknowledging.awaiting_count,
    )


def _publishers(streams: Iterable[StreamFacts]) -> tuple[PublisherStatus, ...]:
    """Say what publishers do, those first whose names somebody vouches for; of very many, how many more."""
    here = [stream for stream in streams if stream.state not in GONE]
    here.sort(key=lambda stream: not is_vouched_for(stream.name))
    shown = [PublisherStatus(stream.name, _doing(stream)) for stream in here[:PUBLISHERS_SHOWN]]
    if len(here) > PUBLISHERS_SHOWN:
        shown.append(PublisherStatus(f"and {len(here) - PUBLISHERS_SHOWN:,} more streams", ""))
    return tuple(shown)


def _doing(stream: StreamFacts) -> str:
    """Say in words what a publisher does."""
    if stream.block is not None:
        return f"sends block {stream.block.number}"
    if stream.state is StreamState.FRESH:
        return "has sent nothing yet"
    if stream.asked_for is not None:
        return f"was asked for block {stream.asked_for}"
    if stream.behind_from is not None:
        return f"is ahead: block {stream.behind_from} is next"
    return "waits" if stream.next_offer is None else f"comes to block {stream.next_offer} next"
