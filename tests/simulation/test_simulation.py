"""Seeds of the simulation: a fixed set, and some fresh ones, whose numbers are in the names of the tests."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulation.__main__ import describe
from tests.simulation.coverage import Coverage
from tests.simulation.options import draw
from tests.simulation.run import folder, run

GROUP = 20
FIXED = range(0, 10_000 if os.environ.get("SLUICE_LONG") else 160, GROUP)
FRESH = sorted(secrets.randbelow(1 << 40) for _ in range(20))


@pytest.fixture(scope="module")
def data_dir() -> Iterator[Path]:
    """A folder that the runs share, one after the other."""
    with folder() as path:
        yield path


def check(seed: int, data_dir: Path) -> None:
    result = run(seed, draw(seed), data_dir, Coverage())
    assert result.violation is None, "\n".join(describe(result))


@pytest.mark.parametrize("first", FIXED)
def test_no_rule_is_broken_in_fixed_seeds(first: int, data_dir: Path) -> None:
    for seed in range(first, first + GROUP):
        check(seed, data_dir)


@pytest.mark.parametrize("seed", FRESH)
def test_no_rule_is_broken_in_fresh_seeds(seed: int, data_dir: Path) -> None:
    check(seed, data_dir)


def test_a_seed_replays_exactly(data_dir: Path) -> None:
    first, second = (run(17, draw(17), data_dir, Coverage()) for _ in range(2))
    assert first.steps > 100
    assert (first.digest, first.steps, first.trace) == (second.digest, second.steps, second.trace)
