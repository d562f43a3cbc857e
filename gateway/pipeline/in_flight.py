"""The blocks in flight: hashed as their items come, verified when they end, linked in order.

A shell. The outcome of an action goes back to the arbiter, as the return value of a method or through
`perform`.

    Begin       a new attempt with a hasher
    Append      its items are hashed here, or by `Hashing` when the set is large         ──► refused
    Verify      root hash here; proofs by `ProofChecks`, here or in a worker process     ──► verified, refused
    CheckLink   the links to the block before it; `pipeline.dispute` says whether a
                wrong link may be our own fault                                          ──► linked, refused
    Drop        the attempt and all work for it end

A block that this node cannot check is dropped without blame for its sender.

Invariants
  - The items of an attempt are hashed in order: all sets wait behind one that waits for a thread.
  - The arbiter hears nothing of a dropped attempt.
  - Links are checked against a chain that is ahead of the stored one by the blocks that are being committed.
    When a commit fails, it falls back to the stored chain.
Source: gateway/README.md, "From a message to an acknowledgement".
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sluice.datastream.errors import DatastreamError
from sluice.gateway.blocks.chain import Chain, LastLayout
from sluice.gateway.blocks.errors import BlockRefused, LayoutError
from sluice.gateway.blocks.proofs.ledger_data import LedgerData
from sluice.gateway.blocks.refusal import Fault
from sluice.gateway.blocks.root_hash import BlockHasher, BlockSummary
from sluice.gateway.logs import fields
from sluice.gateway.metrics import Metrics
from sluice.gateway.pipeline.dispute import Dispute, Disputed, Source
from sluice.gateway.pipeline.notes import note_dispute, note_drop, note_refusal
from sluice.gateway.pipeline.tracing import AttemptTrace, BlockTracer
from sluice.gateway.race.actions import Action, Append, AttemptId, Begin, CheckLink, Drop, Verify
from sluice.gateway.race.arbiter import Arbiter
from sluice.gateway.race.tables import Failure
from sluice.gateway.store.block_store import BlockStore, VerifiedBlock
from sluice.gateway.workers.hashing import Hashing
from sluice.gateway.workers.proof_checks import ProofChecks

__all__ = ["Attempt", "BlocksInFlight", "Lack"]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Attempt:
    """One block in flight."""

    attempt_id: AttemptId
    number: int
    source: Source
    hasher: BlockHasher
    begun_ns: int
    """The time when its header came."""
    items: list[bytes] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    summary: BlockSummary | None = None
    """None until it is verified."""
    block: VerifiedBlock | None = None
    """None until it is linked."""
    unhashed: deque[Append] = field(default_factory=deque)
    """Item sets that wait for a thread, or behind one that does."""
    hashing: asyncio.Task[None] | None = None
    proving: asyncio.Task[None] | None = None
    settles: bytes | None = None
    """The root hash of the block before it, where its links show the other layout."""
    published: LedgerData | None = None
    """The ledger data that an accepted block 0 publishes."""
    ended: bool = False
    """Verify came while items were unhashed."""
    trace: AttemptTrace | None = None
    """None: the block is not traced."""


class Lack(NamedTuple):
    """A reason why this node cannot check a block."""

    number: int
    text: str


class BlocksInFlight:
    """Hashes and verifies the blocks of one node."""

    def __init__(
        self,
        arbiter: Arbiter,
        perform: Callable[[Sequence[Action]], None],
        store: BlockStore,
        checks: ProofChecks,
        hashing: Hashing,
        metrics: Metrics,
        now_ns: Callable[[], int],
        spawn: Callable[[Coroutine[None, None, None]], asyncio.Task[None]],
        dispute: Dispute,
        tracer: BlockTracer | None,
    ) -> None:
        self.attempts: dict[AttemptId, Attempt] = {}
        """Attempts that are neither dropped nor on disk."""
        self._arbiter = arbiter
        self._perform = perform
        self._store = store
        self._checks = checks
        self._hashing = hashing
        self._metrics = metrics
        self._now_ns = now_ns
        self._spawn = spawn
        self._chain_ahead = store.chain.copy()
        self._linked: BlockSummary | None = None
        """The last block of that chain, if it was linked in this run."""
        self._dispute = dispute
        self._tracer = tracer
        self._looking_at: int | None = None
        """The block of an earlier run whose proofs were checked again last."""
        self._said: tuple[int, bool] | None = None
        self._lack: Lack | None = None

    def lack_of(self, number: int) -> str | None:
        """Return why block `number`, the next one, could not be checked."""
        return self._lack.text if self._lack is not None and self._lack.number == number else None

    def note_lack(self, lack: Lack) -> None:
        """Keep the lowest block that could not be checked and is not stored."""
        chain, known = self._chain_ahead, self._lack
        next_number = self._arbiter.next_number if chain.last_number is None else chain.next_number
        if known is None or not next_number <= known.number < lack.number:
            self._lack = lack

    def begin(self, action: Begin, source: Source) -> None:
        """Begin an attempt."""
        number, now_ns = action.block_number, self._now_ns()
        attempt = Attempt(action.attempt_id, number, source, self._checks.hasher(), now_ns)
        self.attempts[action.attempt_id] = attempt
        if self._tracer is not None:
            attempt.trace = self._tracer.begun(number, source.name, now_ns)
        self._metrics.blocks_received.inc()

    def drop(self, action: Drop) -> None:
        """End a failed attempt."""
        attempt = self.attempts.pop(action.attempt_id)
        if attempt.trace is not None:
            attempt.trace.failed(action.failure, action.reason, attempt.items, self._now_ns())
        attempt.unhashed.clear()
        for task in (attempt.hashing, attempt.proving):
            if task is not None:
                task.cancel()
        # A cancelled task keeps its locals, and with them the items, until a full garbage collection.
        attempt.hashing = attempt.proving = None
        note_drop(attempt.source.name, action, attempt.source.key)

    def commit_failed(self) -> None:
        """Go back to the stored chain."""
        self._chain_ahead = self._store.chain.copy()

    def stop(self) -> None:
        """Cancel all work."""
        for attempt in self.attempts.values():
            for task in (attempt.hashing, attempt.proving):
                if task is not None:
                    task.cancel()

    # --- items ---------------------------------------------------------------------------------------------

    def append(self, action: Append) -> Sequence[Action]:
        """Add items, and hash them now or after those before them."""
        attempt = self.attempts[action.attempt_id]
        attempt.items.extend(action.items)
        attempt.kinds.extend(action.kinds)
        if attempt.hashing is None and self._hashing.is_quick(len(action.items), action.size_bytes):
            try:
                attempt.hasher.add(action.items, action.kinds, action.size_bytes)
            except BlockRefused as refused:
                return self._refused(attempt, refused)
            return ()
        attempt.unhashed.append(action)
        if attempt.hashing is None:
            attempt.hashing = self._spawn(self._hash_elsewhere(attempt))
        return ()

    async def _hash_elsewhere(self, attempt: Attempt) -> None:
        try:
            while attempt.unhashed:
                await self._hashing.add_next(attempt.hasher, attempt.unhashed)
        except BlockRefused as refused:
            attempt.hashing = None
            self._perform(self._refused(attempt, refused))
            return
        attempt.hashing = None
        if attempt.ended:
            self._perform(self._verify(attempt))

    # --- root hash and proofs ------------------------------------------------------------------------------

    def verify(self, action: Verify) -> Sequence[Action]:
        """Check root hash and proofs of a complete block, once its last item is hashed."""
        attempt = self.attempts[action.attempt_id]
        if attempt.trace is not None:
            attempt.trace.ended_ns = self._now_ns()
        if attempt.hashing is not None:
            attempt.ended = True
            return ()
        return self._verify(attempt)

    def _verify(self, attempt: Attempt) -> Sequence[Action]:
        try:
            summary = attempt.hasher.finish()
            if attempt.trace is not None:
                attempt.trace.hashed_ns = self._now_ns()
            attempt.summary = self._checks.check_now(summary)
        except BlockRefused as refused:
            return self._refused(attempt, refused)
        if attempt.summary is not None:
            return self._verified(attempt)
        attempt.proving = self._spawn(self._verify_in_process(attempt, summary))
        return ()

    async def _verify_in_process(self, attempt: Attempt, summary: BlockSummary) -> None:
        """A Drop cancels this."""
        try:
            more_come = any(
                other.proving is None and other.summary is None for other in self.attempts.values()
            )
            verdict = await self._checks.check(
                summary, attempt.items, block_0_comes=self._awaits_block_0, more_come=more_come
            )
        except BlockRefused as refused:
            attempt.proving = None
            self._perform(self._refused(attempt, refused))
            return
        attempt.proving = None
        attempt.summary, attempt.published = verdict.summary, verdict.published
        self._perform(self._verified(attempt))

    def _verified(self, attempt: Attempt) -> Sequence[Action]:
        now_ns = self._now_ns()
        if attempt.trace is not None:
            attempt.trace.verified_ns = now_ns
        return self._arbiter.verified(attempt.attempt_id, now_ns)

    def _awaits_block_0(self) -> bool:
        return self._store.last_number is None and self._arbiter.next_number == 0

    # --- links ---------------------------------------------------------------------------------------------

    def check_link(self, action: CheckLink) -> Sequence[Action]:
        """Check both links of a verified block. Blocks come in order of number."""
        attempt = self.attempts[action.attempt_id]
        summary = attempt.summary
        assert summary is not None
        if self._chain_ahead.last_number is None:
            self._chain_ahead = Chain(self._arbiter.next_number)
            if self._chain_ahead.anchor_note is not None:
                log.warning(
                    "the chain begins after block 0", extra=fields(note=self._chain_ahead.anchor_note)
                )
        chain, refusal = self._chain_ahead.settled_by(summary)
        if refusal is not None:
            failure = Failure.DISPUTED if self._note_dispute(attempt.source, summary) else Failure.REFUSED
            return self._refused(attempt, BlockRefused(refusal), failure)
        if chain is not self._chain_ahead:
            attempt.settles = chain.last_root_hash
            log.info(
                "the next block tells the layout of a block's root hash",
                extra=fields(block=chain.last_number, root_hash=summary.previous_root_hash.hex()),
            )
            self._chain_ahead = chain
        attempt.summary = summary = chain.in_its_layout(summary)
        number, root_hash, layout = summary.number, summary.root_hash, LastLayout.of(summary)
        chain.advance(number, root_hash, layout)
        attempt.block = VerifiedBlock(number, attempt.items, root_hash, attempt.kinds, layout)
        self._linked = summary
        self._metrics.blocks_verified.inc()
        now_ns = self._now_ns()
        if attempt.trace is not None:
            attempt.trace.linked_ns = now_ns
        return self._arbiter.linked(action.attempt_id, now_ns)

    def _refused(
        self, attempt: Attempt, refused: BlockRefused, failure: Failure = Failure.REFUSED
    ) -> Sequence[Action]:
        number, refusal = attempt.number, refused.refusal
        note_refusal(self._metrics, number, attempt.source.name, refusal, attempt.source.key)
        if refusal.kind.fault is not Fault.SENDER:
            failure = Failure.UNCHECKED
            self.note_lack(
                Lack(number, f"block {number} of {attempt.source.name} cannot be checked: {refusal}")
            )
        return self._arbiter.refused(attempt.attempt_id, str(refusal), self._now_ns(), failure=failure)

    # --- the dispute over the last stored block ------------------------------------------------------------

    @property
    def disputed(self) -> Disputed | None:
        """The dispute over the last stored block."""
        return self._dispute.state(self._store.last_number, self._now_ns())

    def _note_dispute(self, source: Source, summary: BlockSummary) -> bool:
        """Return whether the node is at a dead end."""
        number, own_root = self._chain_ahead.last_number, self._chain_ahead.last_root_hash
        named_root = summary.previous_root_hash
        if number is None or own_root is None or number != self._store.last_number or named_root == own_root:
            return False  # the block before it is not stored yet, or is the one it names
        self._dispute.claim(number, own_root, source, named_root, self._now_ns())
        if self._dispute.is_signed(number) is None:
            if self._linked is not None and self._linked.number == number:
                self._dispute.judge(number, is_signed=self._checks.signs_root(self._linked))
            elif self._looking_at != number:
                self._looking_at = number
                self._spawn(self._look_at_stored(number))
        found = self.disputed
        if found is None:
            return False
        if self._said != (found.number, found.is_dead_end):
            self._said = found.number, found.is_dead_end
            note_dispute(found)
        return found.is_dead_end

    async def _look_at_stored(self, number: int) -> None:
        """Check in a thread whether a signature covers the root of a block of an earlier run."""

        def is_signed() -> bool:
            try:
                stored = self._store.read_block(number)
            except (LayoutError, DatastreamError, OSError):
                return False
            return stored is not None and self._checks.signs_stored_root(stored)

        self._dispute.judge(number, is_signed=await asyncio.to_thread(is_signed))
