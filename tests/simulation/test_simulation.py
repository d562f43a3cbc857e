"""Seeds of the simulation: a fixed set and some fresh ones, with their numbers in the names of the tests."""

from __future__ import annotations

import os
import random
import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.simulation.__main__ import describe
from tests.simulation.coverage import Coverage
from tests.simulation.node import SimNode
from tests.simulation.options import draw
from tests.simulation.run import folder, run
from tests.simulation.world import Violation

GROUP = 20
FIXED = range(0, 10_000 if os.environ.get("SLUICE_LONG") else 80, GROUP)
DRAW = random.Random(os.environ.get("PYTEST_XDIST_TESTRUNUID") or secrets.token_hex())
"""Every process of a test run has to draw the same numbers, since they are in the names."""
FRESH = sorted(DRAW.randrange(1 << 40) for _ in range(20))


@pytest.fixture(scope="module")
def data_dir() -> Iterator[Path]:
    """Make a folder that the runs share, one after the other."""
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


def test_no_rule_is_broken_where_several_peers_bring_blocks_at_once(data_dir: Path) -> None:
    coverage = Coverage()
    for seed in range(2 * GROUP):
        result = run(seed, replace(draw(seed), peers=4, blocks=20), data_dir, coverage)
        assert result.violation is None, "\n".join(describe(result))
    assert coverage.counts["peer"]["another peer sends, too"] > GROUP


def test_a_seed_replays_exactly(data_dir: Path) -> None:
    first, second = (run(17, draw(17), data_dir, Coverage()) for _ in range(2))
    assert first.steps > 100
    assert (first.digest, first.steps, first.trace) == (second.digest, second.steps, second.trace)


def test_a_seed_replays_exactly_in_another_process(data_dir: Path) -> None:
    """Sets of strings have another order there."""
    result = run(18, draw(18), data_dir, Coverage())
    ran = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--seed", "18"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "12345"},
    )
    said = f"clean: {result.steps} steps, {result.seconds:.1f} s of its time, {result.digest:08x}"
    assert said in ran.stdout.splitlines()


def test_a_violation_says_how_to_replay_it(data_dir: Path) -> None:
    """The report of a rule broken by hand has seed, options, rule and command."""
    result = run(19, replace(draw(19), publishers=2), data_dir, Coverage(), trace_lines=5)
    lines = describe(replace(result, violation=Violation("Nothing is ever wrong", "this is")))
    assert lines[:5] == result.trace[:5]
    assert "    publishers = 2" in lines
    assert lines[-3:-1] == ["rule:   Nothing is ever wrong", "got:    this is"]
    assert lines[-1].startswith("replay: python -m tests.simulation --seed 19 --set publishers=2")


def test_the_same_bad_message_of_two_publishers_at_once_breaks_no_rule(data_dir: Path) -> None:
    """The service parses it once into one object, and both publishers wait for the pace."""
    check(18151629, data_dir)


def test_no_pause_of_the_node_is_told_twice(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Overlapping pauses are one. A pause that ends with the faults is reported too."""
    told: list[tuple[int, int]] = []
    go_on = SimNode.go_on

    def spy(node: SimNode, after_ns: int) -> None:
        told.append((node.world.now_ns - after_ns, node.world.now_ns))
        go_on(node, after_ns)

    monkeypatch.setattr(SimNode, "go_on", spy)
    result = run(129, replace(draw(129), pauses=12, crashes=0, shutdowns=0), data_dir, Coverage(), 10_000)
    assert result.violation is None, "\n".join(describe(result))
    assert all(end_ns <= from_ns for (_, end_ns), (from_ns, _) in pairwise(told)), told
    events = [line.split(maxsplit=1)[1] for line in result.trace]
    begun = sum(event.startswith("the node stands still") for event in events)
    assert 1 < len(told) < begun == 12
    assert len(told) == events.count("the node goes on")
    assert events[events.index("the faults stop") + 1] == "the node goes on"


def test_options_are_changed_by_hand() -> None:
    options = draw(3).with_changes(["first_block=any", "blocks=7", "delay_ns=(1,2)", "quiet=0"])
    assert (options.first_block, options.blocks, options.delay_ns, options.quiet) == ("any", 7, (1, 2), False)
    with pytest.raises(ValueError, match=r"^option: got 'colour', expected one of blocks, "):
        draw(3).with_changes(["colour=1"])
