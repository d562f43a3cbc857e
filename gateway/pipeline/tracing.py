"""The traces of blocks: one trace a block, made of spans for what took its time.

Pure: the caller passes the time, and `emit` takes what is finished.

    block                first header ──► acknowledgements; an event for each publisher that was skipped
      failed attempt     header ──► drop, with its stages so far; error
      receive            header of the winner ──► end of the block
      verify             ──► root hash and proofs are right
        hash             items that were not hashed when the block ended, and the root hash
        proof
      await order        ──► the block before it is linked
      await commit       ──► the commit thread takes the block
      write              ──► entries and header are flushed
      await standbys     ──► enough other nodes have it (`commit.min_standbys`)
      acknowledge        ──► the acknowledgement is in every outbox

A trace id is a hash of the chain's name and the block's number, so all nodes of a chain give a block the same
one, and sample the same blocks.

Source: docs/operations.md, "Trace blocks".
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise
from typing import Final, NamedTuple

from sluice.gateway.race.tables import Failure

__all__ = ["AttemptTrace", "BlockTracer", "Span", "SpanEvent"]

TRACED_BLOCKS_MAX: Final = 4096
"""Blocks that were begun and are not acknowledged. The oldest one is forgotten: its trace has no root."""
SKIPS_MAX: Final = 32
"""Events of one span. A publisher may offer a block again and again."""
_HASH_DIGITS_SHOWN: Final = 16
_STAGES: Final = ("receive", "verify", "await order", "await commit", "write")


class SpanEvent(NamedTuple):
    """A moment in a span."""

    name: str
    at_ns: int
    attributes: Mapping[str, str | int]


class Span(NamedTuple):
    """A finished part of a trace."""

    trace_id: int
    """128 bits."""
    span_id: int
    """64 bits."""
    parent_id: int | None
    """None: the root."""
    name: str
    begun_ns: int
    """Monotonic, as all times here."""
    ended_ns: int
    attributes: Mapping[str, str | int]
    error: str | None = None
    """The reason, if it failed."""
    events: Sequence[SpanEvent] = ()


@dataclass(slots=True)
class _BlockTrace:
    number: int
    trace_id: int
    span_id: int
    begun_ns: int
    skips: list[SpanEvent] = field(default_factory=list)
    attempt: AttemptTrace | None = None
    """The last one, unless it has failed."""


@dataclass(slots=True)
class AttemptTrace:
    """The times of one attempt; None: it did not come that far."""

    tracer: BlockTracer
    block: _BlockTrace
    publisher: str
    begun_ns: int
    ended_ns: int | None = None
    hashed_ns: int | None = None
    verified_ns: int | None = None
    linked_ns: int | None = None
    taken_ns: int | None = None
    stored_ns: int | None = None
    confirmed_ns: int | None = None
    facts: dict[str, str | int] = field(default_factory=dict)
    """Further attributes."""

    def stored(self, size_bytes: int, item_count: int, group_blocks: int, now_ns: int) -> None:
        """Note a block on disk."""
        self.stored_ns = now_ns
        self._measure(size_bytes, item_count)
        self.facts["sluice.commit.group_blocks"] = group_blocks

    def acknowledged(self, root_hash: bytes, confirmed_ns: int, now_ns: int) -> None:
        """End the trace of a block whose acknowledgement is in every outbox."""
        self.confirmed_ns = confirmed_ns
        self.facts["sluice.block.root_hash"] = root_hash.hex()[:_HASH_DIGITS_SHOWN]
        self.tracer.end(self.block, "acknowledged", now_ns)

    def failed(self, failure: Failure, reason: str, items: Sequence[bytes], now_ns: int) -> None:
        """End a dropped attempt; the trace goes on."""
        self.block.attempt = None
        self._measure(sum(map(len, items)), len(items))
        outcome, error = failure.name.lower(), reason or failure.value
        span = self.tracer.span(
            self.block,
            self.block.span_id,
            "failed attempt",
            (self.begun_ns, now_ns),
            self.attributes(outcome),
            error,
        )
        self.tracer.emit([*self.stages(span.span_id, now_ns, error), span])

    def attributes(self, outcome: str) -> dict[str, str | int]:
        """Return the attributes of the attempt, or of the block whose winner it is."""
        return {"sluice.publisher": self.publisher, "sluice.outcome": outcome} | self.facts

    def stages(self, parent_id: int, now_ns: int, error: str | None) -> Iterator[Span]:
        """Yield a span for each stage; the one that has not ended ends now, with the error."""
        times = [
            self.begun_ns,
            self.ended_ns,
            self.verified_ns,
            self.linked_ns,
            self.taken_ns,
            self.stored_ns,
        ]
        names = [*_STAGES]
        if self.tracer.has_quorum:
            names.append("await standbys")
            times.append(self.confirmed_ns)
        names.append("acknowledge")
        for name, (begun_ns, ended_ns) in zip(names, pairwise((*times, None)), strict=True):
            if begun_ns is None:
                return
            span = self._part(parent_id, name, begun_ns, ended_ns, now_ns, error)
            yield span
            if name == "verify":
                yield self._part(span.span_id, "hash", begun_ns, self.hashed_ns, now_ns, error)
                if self.hashed_ns is not None:
                    yield self._part(span.span_id, "proof", self.hashed_ns, ended_ns, now_ns, error)

    def _part(
        self, parent_id: int, name: str, begun_ns: int, ended_ns: int | None, now_ns: int, error: str | None
    ) -> Span:
        times = (begun_ns, now_ns if ended_ns is None else ended_ns)
        return self.tracer.span(self.block, parent_id, name, times, {}, error if ended_ns is None else None)

    def _measure(self, size_bytes: int, item_count: int) -> None:
        self.facts |= {"sluice.block.bytes": size_bytes, "sluice.block.items": item_count}


class BlockTracer:
    """Makes the traces of one node's blocks.

    Args:
        emit: takes finished spans of one block; it must not wait.
        chain: the name of the chain.
        sample: the share of blocks to trace, 0 to 1.
        has_quorum: acknowledgements wait for other nodes.
    """

    def __init__(
        self, emit: Callable[[Sequence[Span]], None], chain: str, sample: float, *, has_quorum: bool = False
    ) -> None:
        self.emit = emit
        self.has_quorum = has_quorum
        self._chain = chain.encode()
        self._sample_end = round(sample * (1 << 64))
        self._blocks: dict[int, _BlockTrace] = {}

    def begun(self, number: int, publisher: str, now_ns: int) -> AttemptTrace | None:
        """Begin an attempt; return None if the block is not sampled."""
        block = self._blocks.get(number)
        if block is None:
            name = b"%b %d" % (self._chain, number)
            trace_id = int.from_bytes(blake2b(name, digest_size=16, person=b"sluice block").digest())
            if trace_id % (1 << 64) >= self._sample_end:
                return None
            block = self._blocks[number] = _BlockTrace(number, trace_id, _new_id(), now_ns)
            if len(self._blocks) > TRACED_BLOCKS_MAX:
                del self._blocks[next(iter(self._blocks))]
        block.attempt = AttemptTrace(self, block, publisher, now_ns)
        return block.attempt

    def skipped(self, number: int, publisher: str, now_ns: int) -> None:
        """Note that a publisher's offer of a block was answered with SkipBlock."""
        block = self._blocks.get(number)
        if block is not None and len(block.skips) < SKIPS_MAX:
            block.skips.append(SpanEvent("skipped", now_ns, {"sluice.publisher": publisher}))

    def end(self, block: _BlockTrace, outcome: str, now_ns: int, error: str | None = None) -> None:
        """End the trace of a block."""
        self._blocks.pop(block.number, None)
        attempt, spans = block.attempt, list[Span]()
        block.attempt = None  # else the two would be garbage for the collector
        attributes: dict[str, str | int] = {"sluice.outcome": outcome}
        if attempt is not None:
            attributes = attempt.attributes(outcome)
            spans += attempt.stages(block.span_id, now_ns, error)
        root = self.span(block, None, "block", (block.begun_ns, now_ns), attributes, error)
        self.emit([*spans, root._replace(span_id=block.span_id, events=block.skips)])

    def close(self, now_ns: int) -> None:
        """End the traces of blocks that are not acknowledged."""
        for block in list(self._blocks.values()):
            self.end(block, "unfinished", now_ns, "the node stopped before it acknowledged the block")

    def span(
        self,
        block: _BlockTrace,
        parent_id: int | None,
        name: str,
        times: tuple[int, int],
        attributes: dict[str, str | int],
        error: str | None,
    ) -> Span:
        """Return a span of a block's trace."""
        attributes["sluice.block.number"] = block.number
        return Span(block.trace_id, _new_id(), parent_id, name, *times, attributes, error)


def _new_id() -> int:
    return random.getrandbits(64) or 1
