"""Runs of block numbers."""

from __future__ import annotations

import itertools
import random

import pytest

from sluice.publishers.errors import FrameError
from sluice.publishers.sources.chain_runs import ChainPlan, ChainRun, plan_chain, runs_of


@pytest.mark.parametrize(
    ("numbers", "runs"),
    [
        ([], []),
        ([5], [(5, 5)]),
        ([0, 1, 2], [(0, 2)]),
        ([0, 1, 3, 4], [(0, 1), (3, 4)]),
        ([2, 1, 0], [(2, 2), (1, 1), (0, 0)]),
        ([1, 1, 2], [(1, 1), (1, 2)]),
    ],
)
def test_runs(numbers: list[int], runs: list[tuple[int, int]]) -> None:
    assert runs_of(numbers) == runs


def plan(*partitions: list[int]) -> ChainPlan | None:
    return plan_chain(
        [
            ChainRun(index, first, last)
            for index, numbers in enumerate(partitions)
            for first, last in runs_of(numbers)
        ]
    )


@pytest.mark.parametrize(
    ("partitions", "expected"),
    [
        ([[3, 4], [5]], ChainPlan(3, 5, 2, True)),
        ([[3, 4], [], [5]], ChainPlan(3, 5, 2, True)),
        ([[5], [3, 4]], ChainPlan(3, 5, 2, False)),
        ([[3, 5], [4]], ChainPlan(3, 5, 2, False)),
        ([[4, 3, 5]], ChainPlan(3, 5, 1, False)),
        ([[], []], None),
    ],
)
def test_plans(partitions: list[list[int]], expected: ChainPlan | None) -> None:
    assert plan(*partitions) == expected


@pytest.mark.parametrize(
    ("partitions", "reason"),
    [
        ([[0, 2]], "block 1 is missing"),
        ([[0, 5], [7]], "blocks 1 to 4, 6 are missing"),
        ([[0, 1], [1, 2]], "block 1 is there more than once"),
        ([[0, 1, 2], [1, 2, 3]], "blocks 1 to 2 are there more than once"),
        ([[0, 1, 1, 1, 3]], "block 2 is missing and block 1 is there more than once"),
        (
            [list(range(0, 40, 2))],
            "blocks 1, 3, 5, 7, 9, 11, 13, 15, 17, 19 and more, 19 in all, are missing",
        ),
    ],
)
def test_gaps_and_duplicates_are_named(partitions: list[list[int]], reason: str) -> None:
    with pytest.raises(FrameError) as caught:
        plan(*partitions)
    assert str(caught.value) == f"{reason}; nothing was published: a chain has every number once"


def test_any_order_of_a_chain_is_a_chain_and_anything_else_is_not() -> None:
    rng = random.Random(7)
    for _ in range(300):
        count = rng.randrange(1, 12)
        numbers = list(range(10, 10 + count))
        rng.shuffle(numbers)
        cuts = sorted(rng.choices(range(count + 1), k=2))
        parts = [numbers[a:b] for a, b in itertools.pairwise([0, *cuts, count])]
        found = plan(*parts)
        assert found is not None
        assert (found.first_block, found.last_block, found.block_count) == (10, 9 + count, count)
        assert found.is_ordered == (numbers == sorted(numbers))
        if count > 2:
            wrong = [list(part) for part in parts]
            fullest = max(wrong, key=len)
            fullest[0] = fullest[0] + 1 if len(fullest) == 1 or fullest[0] != 9 + count else fullest[0] - 1
            with pytest.raises(FrameError):
                plan(*wrong)
