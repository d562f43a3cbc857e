"""Tests of the part order: which part is next, and at which gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from sluice.publishers.coordination.part_order import (
    PART_PATIENCE_SECONDS,
    UNREACHABLE,
    await_part_order,
    gateway_for_part,
)
from sluice.publishers.errors import PartOrderTimeout, SourceUnreachable
from sluice.publishers.sources.block_gateways import HeldRange


@pytest.mark.parametrize(
    ("lasts", "patient", "impatient"),
    [
        ([9], 0, 0),
        ([12, -1], 0, 0),
        ([8], None, None),
        ([-1], None, None),
        ([UNREACHABLE], None, None),
        ([UNREACHABLE, 9], 1, 1),
        ([8, 9], None, 1),
        ([8, 7, 9], None, 2),
        ([8, 7], None, None),
    ],
)
def test_a_part_is_next_when_the_block_before_is_held(
    lasts: list[int], patient: int | None, impatient: int | None
) -> None:
    assert gateway_for_part(lasts, 9, is_patient=True) == patient
    assert gateway_for_part(lasts, 9, is_patient=False) == impatient


def wait_until_next(
    say: Callable[[str], HeldRange | None],
    timeout_seconds: float | None = None,
    deadline_seconds: float | None = None,
    patience_seconds: float = PART_PATIENCE_SECONDS,
) -> tuple[str, ...]:
    """Wait with three gateways, which do not answer where `say` gives None."""

    def ask(address: str) -> HeldRange:
        held = say(address)
        if held is None:
            raise SourceUnreachable("what it holds", None, f"{address}: refused")
        return held

    waiting = await_part_order(
        ("a", "b", "c"),
        10,
        ask,
        timeout_seconds,
        deadline_seconds,
        poll_seconds=0.01,
        patience_seconds=patience_seconds,
    )
    return asyncio.run(waiting)


def test_a_part_waits_until_the_blocks_before_are_there() -> None:
    lasts = iter(range(5, 20))
    assert wait_until_next(lambda address: HeldRange(0, next(lasts)) if address == "a" else None) == (
        "a",
        "b",
        "c",
    )
    assert next(lasts) == 10


def test_it_begins_with_the_gateway_that_has_them() -> None:
    held = {"a": HeldRange(0, 3), "b": HeldRange(0, 9), "c": HeldRange(None, None)}
    assert wait_until_next(held.__getitem__, patience_seconds=0) == ("b", "a", "c")


@pytest.mark.parametrize(("last", "last_stored"), [(3, 3), (None, None)])
def test_waiting_may_have_an_end(last: int | None, last_stored: int | None) -> None:
    with pytest.raises(PartOrderTimeout) as caught:
        wait_until_next(lambda address: HeldRange(None, last), timeout_seconds=0.01)
    assert (caught.value.first_block, caught.value.last_stored) == (10, last_stored)


def test_the_deadline_counts_while_no_gateway_answers() -> None:
    answers = iter([HeldRange(0, 3)] * 5)
    with pytest.raises(PartOrderTimeout) as caught:
        wait_until_next(lambda address: next(answers, None), timeout_seconds=60, deadline_seconds=0.05)
    assert (caught.value.first_block, caught.value.last_stored, caught.value.seconds) == (10, None, 0.05)
    assert caught.value.trouble == "c: refused"


def test_the_deadline_does_not_count_while_a_gateway_answers() -> None:
    """Who publishes the part before may wait for its source, and counts nothing meanwhile."""
    answers = iter([HeldRange(0, 3)] * 30 + [HeldRange(0, 9)])
    assert wait_until_next(lambda address: next(answers) if address == "b" else None, 60, 0.05)[0] == "b"


def test_while_no_gateway_answers_nobody_gives_up() -> None:
    """Who publishes the part before is as patient, and is not to be failed by those that wait for it."""
    answers = iter([None] * 30 + [HeldRange(0, 9)])
    assert wait_until_next(
        lambda address: next(answers) if address == "b" else None, timeout_seconds=0.05
    ) == (
        "b",
        "a",
        "c",
    )
