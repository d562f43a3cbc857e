"""The last step of a block: its acknowledgement, at once or when enough other nodes have it on disk.

A shell beside `pipeline.conductor`. It feeds `committed` to the arbiter, which acknowledges. What other nodes
have is known to `pipeline.replication_quorum`; without one (`commit.min_standbys` 0) no block waits.

    block on disk ──► stored ──► awaiting standbys, in order ──► committed ──► acknowledgements
                                          ▲
    quorum.confirmed ──► release ─────────┘

Readers and standbys see a block at once; the arbiter and the publishers learn of it when it is confirmed. A
standby waits for nobody: its blocks are those of the active node.

Invariants
  - `committed` is fed in order of number, and only for blocks that are on disk.
  - A block that publishers are told is stored was on `min_standbys` other disks while this node was active,
    or is now. While that is not known of the last block, `refusal` keeps publishers out, since every answer
    that ends a stream names that block.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from sluice.gateway.logs import fields
from sluice.gateway.metrics import Metrics
from sluice.gateway.pipeline.replication_quorum import QuorumState, ReplicationQuorum
from sluice.gateway.race.actions import Action, AttemptId
from sluice.gateway.race.arbiter import Arbiter
from sluice.gateway.race.history import RaceHistory

__all__ = ["Acknowledging", "UnconfirmedBlock"]

log = logging.getLogger(__name__)

RELEASED_BLOCKS_MAX: Final = 64
"""Blocks that are acknowledged in one go when a standby has come back after a long time..."""

RELEASE_PAUSE_SECONDS: Final = 0.01
"""...and the rest before the next ones, in which publishers are sent them: nobody is to be cut off for not
reading thousands of answers that come at once."""


class UnconfirmedBlock(NamedTuple):
    """A block that is on disk here, and not acknowledged yet."""

    attempt_id: AttemptId
    """The attempt that brought it."""
    number: int
    root_hash: bytes
    """48 bytes."""
    publisher: str
    """Who sent it."""
    begun_ns: int
    """When its header came."""
    stored_ns: int
    """When it was on disk."""


class Acknowledging:
    """Acknowledges the blocks of one node.

    Args:
        arbiter: acknowledges.
        perform: performs its actions.
        metrics: counts acknowledgements.
        now_ns: monotonic time in nanoseconds, the clock of `UnconfirmedBlock`.
        gate: knows what other nodes have; None: no block waits for them.
    """

    def __init__(
        self,
        arbiter: Arbiter,
        perform: Callable[[Sequence[Action]], None],
        metrics: Metrics,
        now_ns: Callable[[], int],
        gate: ReplicationQuorum | None = None,
    ) -> None:
        self.history = RaceHistory()
        """Who won the last blocks."""
        self.acknowledged_at: float | None = None
        """When the last block was acknowledged: monotonic time in seconds."""
        self.gate = gate
        """What is known of other nodes; None: no block waits for them."""
        self._arbiter = arbiter
        self._perform = perform
        self._metrics = metrics
        self._now_ns = now_ns
        self._awaiting: deque[UnconfirmedBlock] = deque()
        self._safe_number = -1
        """Every block up to this one was on enough other disks."""
        self._refuses = False
        if gate is not None:
            metrics.min_standbys.set(gate.min_standbys)
            metrics.standbys.set_function(gate.connected_count)
            metrics.blocks_awaiting_standbys.set_function(lambda: self.awaiting_count)
            metrics.awaiting_standbys_seconds.set_function(lambda: self.awaiting_seconds)

    # --- what is known -------------------------------------------------------------------------------------

    @property
    def awaiting(self) -> tuple[int, int] | None:
        """The first and the last block that wait for standbys; None where none waits."""
        return (self._awaiting[0].number, self._awaiting[-1].number) if self._awaiting else None

    @property
    def awaiting_count(self) -> int:
        """How many blocks wait for standbys."""
        return len(self._awaiting)

    @property
    def awaiting_seconds(self) -> float:
        """How long the first of them has waited."""
        return (self._now_ns() - self._awaiting[0].stored_ns) / 1e9 if self._awaiting else 0.0

    @property
    def next_to_store(self) -> int:
        """The number after the last block on disk, acknowledged or not."""
        return self._awaiting[-1].number + 1 if self._awaiting else self._arbiter.next_number

    def quorum_state(self) -> QuorumState | None:
        """Return what is known of the nodes that acknowledgements wait for; None where they wait for none.

        A standby's acknowledgements wait for nobody, and it tells of its publishers elsewhere.
        """
        gate = self.gate
        if gate is None:
            return None
        states, other_chains = tuple(gate.states()), tuple(gate.other_chains())
        if self.is_standby:
            return QuorumState(gate.min_standbys, states, other_chains=other_chains)
        return QuorumState(
            gate.min_standbys,
            states,
            refusal=self.refusal(),
            awaiting=self.awaiting,
            awaiting_seconds=self.awaiting_seconds,
            other_chains=other_chains,
        )

    def refusal(self) -> str | None:
        """Return why publishers are refused now; None where they are not.

        The last block may be on this disk alone, and each answer that ends a stream would call it safe.
        """
        gate, last = self.gate, self._arbiter.last_number
        if gate is None or last is None or last <= self._safe_number:
            return None
        if gate.confirmed is not None and last <= gate.confirmed:
            return None
        if self.is_standby:
            return self._arbiter.retired
        nodes = "node" if gate.min_standbys == 1 else "nodes"
        states = "; ".join(f"{address} {state}" for address, state in gate.states())
        return (
            f"publishers are refused until block {last}, the last one here, is known to be on disk at "
            f"{gate.min_standbys} other {nodes} (commit.min_standbys): {states}"
        )

    @property
    def is_standby(self) -> bool:
        """Whether the node follows another one, or has handed over: no block waits then."""
        return self._arbiter.retired is not None and self._arbiter.idle

    # --- what happens --------------------------------------------------------------------------------------

    def stored(self, block: UnconfirmedBlock) -> None:
        """Take a block that is on disk; acknowledge it, now or when it is confirmed."""
        if self.gate is None:
            self._acknowledge(block)
            return
        self.gate.stored(block.number, block.root_hash)
        self._awaiting.append(block)
        self.release()

    def release(self) -> None:
        """Acknowledge what is confirmed; call this after a report of a standby and a change of role."""
        gate, awaiting = self.gate, self._awaiting
        if gate is None:
            return
        if self.is_standby:
            through = awaiting[-1].number if awaiting else -1
        else:
            through = -1 if gate.confirmed is None else gate.confirmed
            self._safe_number = max(self._safe_number, through)
        for _ in range(RELEASED_BLOCKS_MAX):
            if not awaiting or awaiting[0].number > through:
                break
            self._acknowledge(awaiting.popleft())
        else:
            asyncio.get_running_loop().call_later(RELEASE_PAUSE_SECONDS, self.release)
        self._note_refusal()
        for note in gate.take_notes():
            level = logging.WARNING if note.is_trouble else logging.INFO
            log.log(level, "standby", extra=fields(peer=note.address, what=note.text))

    def _acknowledge(self, block: UnconfirmedBlock) -> None:
        now_ns, metrics = self._now_ns(), self._metrics
        metrics.blocks_acknowledged.inc()
        metrics.last_block.set(block.number)
        metrics.count_won(block.publisher)
        seconds = (now_ns - block.begun_ns) / 1e9
        metrics.acknowledgement_latency_seconds.observe(seconds)
        if self.gate is not None:
            metrics.standby_wait_seconds.observe((now_ns - block.stored_ns) / 1e9)
        self.history.won(block.number, block.publisher, seconds)
        self.acknowledged_at = time.monotonic()
        self._perform(self._arbiter.committed(block.attempt_id, now_ns))

    def _note_refusal(self) -> None:
        """Log when an active node begins or stops refusing publishers."""
        refusal = None if self._arbiter.retired is not None else self.refusal()
        if refusal is not None and not self._refuses:
            log.warning("publishers are refused", extra=fields(reason=refusal))
        elif refusal is None and self._refuses:
            log.info("publishers are heard", extra=fields(last_block=self._arbiter.last_number))
        self._refuses = refusal is not None
