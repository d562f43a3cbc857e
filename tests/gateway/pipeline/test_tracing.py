"""Tests of `gateway.pipeline.tracing`: which blocks are traced, and what is kept of them."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import pytest

from sluice.gateway.pipeline.tracing import SKIPS_MAX, TRACED_BLOCKS_MAX, AttemptTrace, BlockTracer, Span
from sluice.gateway.race.tables import Failure


class Kept:
    """A tracer that keeps its spans."""

    def __init__(self, chain: str = "137/1", sample: float = 1.0) -> None:
        self.spans: list[Span] = []
        self.tracer = BlockTracer(self.take, chain, sample)

    def take(self, spans: Sequence[Span]) -> None:
        self.spans += spans

    def acknowledge(self, number: int) -> None:
        """Begin a block, and acknowledge it."""
        attempt = self.tracer.begun(number, "alice", 10)
        assert attempt is not None
        attempt.ended_ns = attempt.hashed_ns = attempt.verified_ns = attempt.linked_ns = attempt.taken_ns = 20
        attempt.stored(100, 3, 1, 30)
        attempt.acknowledged(bytes(48), 40, 50)

    def roots(self) -> list[Span]:
        return [span for span in self.spans if span.parent_id is None]


def sampled(chain: str, sample: float) -> list[int]:
    tracer = Kept(chain, sample).tracer
    return [number for number in range(2000) if tracer.begun(number, "alice", 0) is not None]


def test_all_nodes_sample_the_same_share_of_blocks() -> None:
    quarter = sampled("137/1", 0.25)
    assert 400 < len(quarter) < 600
    assert quarter == sampled("137/1", 0.25)
    assert quarter != sampled("138/1", 0.25)
    assert set(quarter) < set(sampled("137/1", 0.5))
    assert sampled("137/1", 0.0) == []
    assert sampled("137/1", 1.0) == list(range(2000))


def test_a_trace_id_is_that_of_chain_and_number() -> None:
    def trace_id(chain: str, number: int) -> int:
        kept = Kept(chain)
        kept.acknowledge(number)
        return kept.roots()[0].trace_id

    assert trace_id("a", 1) == trace_id("a", 1)
    assert len({trace_id("a", 1), trace_id("a", 2), trace_id("b", 1)}) == 3
    assert 0 < trace_id("a", 1) < 1 << 128


def test_skips_are_events_of_the_block_up_to_a_limit() -> None:
    kept = Kept()
    kept.tracer.skipped(7, "bob", 5)  # nobody has begun it
    attempt = kept.tracer.begun(7, "alice", 10)
    assert attempt is not None
    for at_ns in range(SKIPS_MAX + 1):
        kept.tracer.skipped(7, "bob", at_ns)
    attempt.acknowledged(bytes(48), 40, 50)
    assert [event.at_ns for event in kept.roots()[0].events] == list(range(SKIPS_MAX))


def test_the_oldest_block_is_forgotten_when_too_many_are_begun() -> None:
    kept = Kept()
    for number in range(TRACED_BLOCKS_MAX + 1):
        kept.tracer.begun(number, "alice", 10)
    kept.tracer.close(20)
    assert [root.attributes["sluice.block.number"] for root in kept.roots()] == list(
        range(1, TRACED_BLOCKS_MAX + 1)
    )
    assert {root.error for root in kept.roots()} == {"the node stopped before it acknowledged the block"}


@pytest.mark.parametrize("is_acknowledged", [True, False])
def test_nothing_of_a_finished_attempt_waits_for_the_garbage_collector(is_acknowledged: bool) -> None:
    tracer = Kept().tracer
    gc.collect()
    gc.disable()
    try:
        attempt = tracer.begun(7, "alice", 10)
        assert attempt is not None
        if is_acknowledged:
            attempt.acknowledged(bytes(48), 40, 50)
        else:
            attempt.failed(Failure.LEFT, "", [b"item"], 50)
        del attempt
        assert not [one for one in gc.get_objects() if isinstance(one, AttemptTrace)]
    finally:
        gc.enable()
