"""Whose turn it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from sluice.publishers.coordination.part_order import UNREACHABLE, await_part_order, gateway_for_part
from sluice.publishers.errors import SourceUnreachable, TurnTimeout
from sluice.publishers.sources.block_gateways import HeldRange


@pytest.mark.parametrize(
    ("heads", "patient", "impatient"),
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
def test_the_turn_comes_when_the_block_before_is_held(
    heads: list[int], patient: int | None, impatient: int | None
) -> None:
    assert gateway_for_part(heads, 9, is_patient=True) == patient
    assert gateway_for_part(heads, 9, is_patient=False) == impatient


def wait_for_turn(
    say: Callable[[str], HeldRange | None],
    timeout_seconds: float | None = None,
    deadline_seconds: float | None = None,
) -> tuple[str, ...]:
    """Wait with three gateways, which do not answer where `say` gives None."""

    def ask(address: str) -> HeldRange:
        held = say(address)
        if held is None:
            raise SourceUnreachable("what it holds", None, f"{address}: refused")
        return held

    return asyncio.run(await_part_order(("a", "b", "c"), 10, ask, timeout_seconds, deadline_seconds))


def test_a_part_waits_until_the_blocks_before_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.publishers.coordination.part_order.PART_POLL_SECONDS", 0)
    heads = iter(range(5, 20))
    assert wait_for_turn(lambda address: HeldRange(0, next(heads)) if address == "a" else None) == (
        "a",
        "b",
        "c",
    )
    assert next(heads) == 10


def test_it_begins_with_the_gateway_that_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.publishers.coordination.part_order.PART_PATIENCE_SECONDS", 0)
    held = {"a": HeldRange(0, 3), "b": HeldRange(0, 9), "c": HeldRange(None, None)}
    assert wait_for_turn(held.__getitem__) == ("b", "a", "c")


@pytest.mark.parametrize(("last", "head"), [(3, 3), (None, None)])
def test_waiting_may_have_an_end(monkeypatch: pytest.MonkeyPatch, last: int | None, head: int | None) -> None:
    monkeypatch.setattr("sluice.publishers.coordination.part_order.PART_POLL_SECONDS", 0)
    with pytest.raises(TurnTimeout) as caught:
        wait_for_turn(lambda address: HeldRange(None, last), timeout_seconds=0.01)
    assert (caught.value.first_block, caught.value.head) == (10, head)


def test_the_deadline_counts_while_no_gateway_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.publishers.coordination.part_order.PART_POLL_SECONDS", 0.01)
    answers = iter([HeldRange(0, 3)] * 5)
    with pytest.raises(TurnTimeout) as caught:
        wait_for_turn(lambda address: next(answers, None), timeout_seconds=60, deadline_seconds=0.05)
    assert (caught.value.first_block, caught.value.head, caught.value.seconds) == (10, None, 0.05)
    assert caught.value.trouble == "c: refused"


def test_the_deadline_does_not_count_while_a_gateway_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who publishes the part before may wait for its source, and counts nothing meanwhile."""
    monkeypatch.setattr("sluice.publishers.coordination.part_order.PART_POLL_SECONDS", 0.01)
    answers = iter([HeldRange(0, 3)] * 30 + [HeldRange(0, 9)])
    assert wait_for_turn(lambda address: next(answers) if address == "b" else None, 60, 0.05)[0] == "b"


def test_while_no_gateway_answers_nobody_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who publishes the part before is as patient, and is not to be failed by those that wait for it."""
    monkeypatch.setattr("sluice.publishers.coordination.part_order.PART_POLL_SECONDS", 0.01)
    answers = iter([None] * 30 + [HeldRange(0, 9)])
    assert wait_for_turn(lambda address: next(answers) if address == "b" else None, timeout_seconds=0.05) == (
        "b",
        "a",
        "c",
    )
