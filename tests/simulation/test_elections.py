"""Some seeds of the simulated elections, and faults in the product that they have to find.

`python -m tests.simulation.elections --seeds 10000` runs many; `SLUICE_LONG=1` looks longer for each fault.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from sluice.gateway.cluster.election import Election, ElectionRules, TermPhase
from sluice.gateway.cluster.term_keeper import TermKeeper
from tests.simulation.elections import ElectionOptions, falling, pausing, simulate, skewed, wild
from tests.simulation.run import folder

Change = Callable[[ElectionOptions], ElectionOptions]
LONG = os.environ.get("SLUICE_LONG") == "1"


@pytest.fixture(scope="module")
def data_dir() -> Iterator[Path]:
    with folder() as path:
        yield path


@pytest.mark.parametrize("change", [None, skewed, falling, wild], ids=["usual", "skewed", "falling", "wild"])
@pytest.mark.parametrize("seed", range(300 if LONG else 4))
def test_no_rule_is_broken(seed: int, change: Change | None, data_dir: Path) -> None:
    result = simulate(seed, data_dir, 100, change)
    assert result.violation is None, "\n".join((*result.trace, str(result.violation)))
    assert result.acknowledged > 0


def test_a_seed_replays_exactly(data_dir: Path) -> None:
    first, second = (simulate(3, data_dir) for _ in range(2))
    assert first.digest == second.digest
    assert first.trace == second.trace != []


# --- faults -------------------------------------------------------------------------------------------------


def no_room_for_drift(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ElectionRules, "held_seconds", property(lambda rules: rules.lease_seconds))


def lease_from_the_answer_on(patch: pytest.MonkeyPatch) -> None:
    renewed = Election.renewed
    patch.setattr(Election, "renewed", lambda election, asked_at: renewed(election, asked_at + 1.0))


def acknowledges_without_looking_at_the_clock(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Election, "may_acknowledge", lambda election, now: election.phase is TermPhase.LEADING)


def asks_too_few_nodes(patch: pytest.MonkeyPatch) -> None:
    few = property(lambda rules: max(1, rules.node_count - rules.min_standbys - 1))
    patch.setattr(ElectionRules, "nodes_needed", few)


def does_not_fetch_what_others_have(patch: pytest.MonkeyPatch) -> None:
    lacks = Election.lacks

    def blind(election: Election, answers: Sequence[int | None], last: int | None) -> str | None:
        return lacks(election, [None for _ in answers], last)

    patch.setattr(Election, "lacks", blind)


def promises_and_does_not_keep_it(patch: pytest.MonkeyPatch) -> None:
    async def forget(keeper: TermKeeper, epoch: int, candidate: str) -> int:
        return epoch

    patch.setattr(TermKeeper, "promise_to", forget)


@pytest.mark.parametrize(
    ("fault", "change", "rule", "seeds"),
    [
        (no_room_for_drift, skewed, "One acknowledges", 10),
        (lease_from_the_answer_on, skewed, "One acknowledges", 20),
        (acknowledges_without_looking_at_the_clock, pausing, "One acknowledges", 40),
        (asks_too_few_nodes, falling, "Nothing is lost", 10),
        (does_not_fetch_what_others_have, falling, "Nothing is lost", 200),
        (promises_and_does_not_keep_it, wild, "Nothing is lost", 10),
    ],
)
def test_a_fault_of_the_product_breaks_a_rule(
    fault: Callable[[pytest.MonkeyPatch], None],
    change: Change | None,
    rule: str,
    seeds: int,
    data_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if seeds > 50 and not LONG:
        pytest.skip("SLUICE_LONG=1 looks for it in many seeds")
    fault(monkeypatch)
    for seed in range(seeds):
        result = simulate(seed, data_dir, 0, change)
        if result.violation is not None:
            assert result.violation.rule == rule, result.violation
            return
    pytest.fail(f"not found in {seeds} seeds")
