"""The acknowledgement of blocks: at once, or when enough other nodes have them on disk.

A shell beside `pipeline.conductor`. It reports `committed` to the arbiter, which acknowledges.
`pipeline.replication_quorum` knows what other nodes have; without one (`commit.min_standbys` 0) no block
waits.

    block on disk ──► stored ──► awaiting standbys, in order ──► committed ──► acknowledgements
                                          ▲
    quorum.confirmed ──► release ─────────┘

Readers and standbys see a block at once; the arbiter and the publishers when it is confirmed. A standby waits
for nobody: its blocks are the active node's.

Invariants
  - The arbiter hears `committed` in order of number, only for blocks on disk.
  - With an election, a block is acknowledged only while this node's term holds.
  - A block that publishers are told is stored was on `min_standbys` other disks while this node was active,
    or is now. Until that is known of the last block, which every EndOfStream names, `refusal` keeps
    publishers out.
Source: docs/operations.md, "Acknowledge what is on several disks".
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from sluice.gateway.logs import fields
from sluice.gateway.metrics import Metrics
from sluice.gateway.pipeline.limits import RELEASED_BLOCKS_MAX
from sluice.gateway.pipeline.replication_quorum import QuorumState, ReplicationQuorum
from sluice.gateway.pipeline.tracing import AttemptTrace
from sluice.gateway.race.actions import Action, AttemptId
from sluice.gateway.race.arbiter import Arbiter

__all__ = ["Acknowledging", "RaceHistory", "UnconfirmedBlock", "Won"]

log = logging.getLogger(__name__)

RELEASE_PAUSE_SECONDS: Final = 0.01
"""Time for publishers to read `released_blocks_max` acknowledgements."""

RACE_HISTORY_BLOCKS: Final = 100


class UnconfirmedBlock(NamedTuple):
    """A block on disk that is not acknowledged yet."""

    attempt_id: AttemptId
    number: int
    root_hash: bytes
    """48 bytes."""
    publisher: str
    begun_ns: int
    """The time when its header came."""
    stored_ns: int
    trace: AttemptTrace | None = None


@dataclass(frozen=True, slots=True)
class Won:
    """An acknowledged block."""

    number: int
    publisher: str
    seconds: float


class RaceHistory:
    """The last `RACE_HISTORY_BLOCKS` winners."""

    def __init__(self) -> None:
        self._blocks: deque[Won] = deque(maxlen=RACE_HISTORY_BLOCKS)

    def won(self, number: int, publisher: str, seconds: float) -> None:
        """Add an acknowledged block."""
        self._blocks.append(Won(number, publisher, seconds))

    @property
    def blocks(self) -> tuple[Won, ...]:
        """The newest last."""
        return tuple(self._blocks)

    def counts(self) -> list[tuple[str, int]]:
        """Return the count of blocks by publisher, most first, then by name."""
        counted = Counter(block.publisher for block in self._blocks)
        return sorted(counted.items(), key=lambda pair: (-pair[1], pair[0]))

    def median_seconds(self) -> float | None:
        """Return the median time to acknowledge."""
        times = sorted(block.seconds for block in self._blocks)
        return times[len(times) // 2] if times else None


class Acknowledging:
    """Acknowledges the blocks of one node.

    Args:
        now_ns: monotonic time in nanoseconds, the clock of `UnconfirmedBlock`.
    """

    def __init__(
        self,
        arbiter: Arbiter,
        perform: Callable[[Sequence[Action]], None],
        metrics: Metrics,
        now_ns: Callable[[], int],
        quorum: ReplicationQuorum | None = None,
        *,
        released_blocks_max: int = RELEASED_BLOCKS_MAX,
    ) -> None:
        self.history = RaceHistory()
        self.acknowledged_at: float | None = None
        """Monotonic seconds."""
        self.quorum = quorum
        """None: no block waits for other nodes."""
        self._arbiter = arbiter
        self._perform = perform
        self._metrics = metrics
        self._now_ns = now_ns
        self._released_blocks_max = released_blocks_max
        self.has_term: Callable[[], bool] | None = None
        """Returns whether an election allows acknowledgements now; None: nothing has to allow them."""
        self.is_unheard = False
        """Every publisher's stream has ended, and no other can begin: nobody hears of a block."""
        self._awaiting: deque[UnconfirmedBlock] = deque()
        self._safe_number = -1
        """Blocks up to this one were on enough other disks."""
        self._refuses = False
        if quorum is not None:
            metrics.min_standbys.set(quorum.min_standbys)
            metrics.standbys.set_function(quorum.connected_count)
            metrics.blocks_awaiting_standbys.set_function(lambda: self.awaiting_count)
            metrics.awaiting_standbys_seconds.set_function(lambda: self.awaiting_seconds)

    # --- what is known -------------------------------------------------------------------------------------

    @property
    def awaiting(self) -> tuple[int, int] | None:
        """The first and the last block that wait for standbys."""
        return (self._awaiting[0].number, self._awaiting[-1].number) if self._awaiting else None

    @property
    def awaiting_count(self) -> int:
        """Number of blocks that wait for standbys."""
        return len(self._awaiting)

    @property
    def awaiting_seconds(self) -> float:
        """The wait of the first of them so far."""
        return (self._now_ns() - self._awaiting[0].stored_ns) / 1e9 if self._awaiting else 0.0

    @property
    def next_to_store(self) -> int:
        """The number after the last block on disk, acknowledged or not."""
        return self._awaiting[-1].number + 1 if self._awaiting else self._arbiter.next_number

    def quorum_state(self) -> QuorumState | None:
        """Return the state of the replication quorum; None without one.

        A standby waits for nobody, and reports its refusals of publishers elsewhere.
        """
        quorum = self.quorum
        if quorum is None:
            return None
        states, other_chains = tuple(quorum.states()), tuple(quorum.other_chains())
        if self.is_standby:
            return QuorumState(quorum.min_standbys, states, other_chains=other_chains)
        return QuorumState(
            quorum.min_standbys,
            states,
            refusal=self.refusal(),
            awaiting=self.awaiting,
            awaiting_seconds=self.awaiting_seconds,
            other_chains=other_chains,
            behind_blocks=tuple(quorum.behind_blocks()),
        )

    def refusal(self) -> str | None:
        """Return why publishers are refused.

        The last block may be on this disk alone, and each EndOfStream would call it safe.
        """
        quorum, last = self.quorum, self._arbiter.last_number
        if quorum is None or last is None or last <= self._safe_number:
            return None
        if quorum.confirmed is not None and last <= quorum.confirmed:
            return None
        if self.is_standby:
            return self._arbiter.retired
        nodes = "node" if quorum.min_standbys == 1 else "nodes"
        states = "; ".join(f"{address} {state}" for address, state in quorum.states())
        return (
            f"publishers are refused until block {last}, the last one here, is known to be on disk at "
            f"{quorum.min_standbys} other {nodes} (commit.min_standbys): {states}"
        )

    @property
    def is_standby(self) -> bool:
        """True while the node follows another one or has handed over: then no block waits."""
        return self._arbiter.retired is not None and self._arbiter.idle

    # --- what happens --------------------------------------------------------------------------------------

    def stored(self, block: UnconfirmedBlock) -> None:
        """Acknowledge a block on disk, now or when it is confirmed."""
        if self.quorum is None:
            self._acknowledge(block)
            return
        self.quorum.stored(block.number, block.root_hash)
        self._awaiting.append(block)
        self.release()

    def release(self) -> None:
        """Acknowledge confirmed blocks; call this after a standby's report and a change of role."""
        quorum, awaiting = self.quorum, self._awaiting
        if quorum is None:
            return
        if self.is_standby or self.is_unheard:
            through = awaiting[-1].number if awaiting else -1
        elif self.has_term is not None and not self.has_term():
            through = -1
        else:
            through = -1 if quorum.confirmed is None else quorum.confirmed
            self._safe_number = max(self._safe_number, through)
        for _ in range(self._released_blocks_max):
            if not awaiting or awaiting[0].number > through:
                break
            self._acknowledge(awaiting.popleft())
        else:
            asyncio.get_running_loop().call_later(RELEASE_PAUSE_SECONDS, self.release)
        self._note_refusal()
        for note in quorum.take_notes():
            level = logging.WARNING if note.is_trouble else logging.INFO
            log.log(level, "standby", extra=fields(peer=note.address, what=note.text))

    def _acknowledge(self, block: UnconfirmedBlock) -> None:
        now_ns, metrics = self._now_ns(), self._metrics
        seconds = (now_ns - block.begun_ns) / 1e9
        self.history.won(block.number, block.publisher, seconds)
        self.acknowledged_at = time.monotonic()
        metrics.blocks_acknowledged.inc()
        metrics.last_block.set(block.number)
        metrics.count_won(block.publisher)
        metrics.acknowledgement_latency_seconds.observe(seconds)
        if self.quorum is not None:
            metrics.standby_wait_seconds.observe((now_ns - block.stored_ns) / 1e9)
        self._perform(self._arbiter.committed(block.attempt_id, now_ns))
        if block.trace is not None:
            block.trace.acknowledged(block.root_hash, now_ns, self._now_ns())

    def _note_refusal(self) -> None:
        refusal = None if self._arbiter.retired is not None else self.refusal()
        if refusal is not None and not self._refuses:
            log.warning("publishers are refused", extra=fields(reason=refusal))
        elif refusal is None and self._refuses:
            log.info("publishers are accepted", extra=fields(last_block=self._arbiter.last_number))
        self._refuses = refusal is not None
