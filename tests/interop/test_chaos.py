"""A short run of chaos: three nodes, publishers, readers, a script of faults. Long ones: `make chaos`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.gateway.store.block_store import Layout
from tests.chaos.network import why_not_namespaces
from tests.chaos.run import Options, run
from tests.chaos.script import USUAL, FaultKind, choose, draw

LONG = os.environ.get("SLUICE_LONG") == "1"


def test_a_seed_gives_the_same_script_each_time() -> None:
    scripts = [draw(seed, 2000, 48) for seed in range(20)]
    assert scripts == [draw(seed, 2000, 48) for seed in range(20)]
    assert len({script.roles for script in scripts}) == 3
    for script in scripts:
        blocks = [fault.after_block for fault in script.faults]
        assert blocks == sorted(blocks)
        assert 0 <= blocks[0] <= blocks[-1] < 2000
        kinds = [fault.kind for fault in script.faults]
        assert all(set(kinds[start : start + 6]) == set(USUAL) for start in range(0, 48, 6))
        assert all(0.2 <= fault.seconds <= 4 for fault in script.faults)


def test_what_a_fault_hits() -> None:
    assert [choose("abc", number) for number in (0.0, 0.33, 0.34, 0.99, 1.0)] == list("aabcc")


@pytest.mark.parametrize(
    ("seed", "kinds", "layout"),
    [
        (1, (FaultKind.FAIL_OVER, FaultKind.KILL, FaultKind.CUT), "native"),
        *([(seed, USUAL, "block") for seed in range(100, 104)] if LONG else []),
        *([(seed, USUAL, "native") for seed in range(104, 106)] if LONG else []),
    ],
)
def test_nothing_acknowledged_is_lost_and_everybody_sees_each_block_once(
    tmp_path: Path, seed: int, kinds: tuple[FaultKind, ...], layout: Layout
) -> None:
    script = draw(seed, 120, len(kinds), kinds, seconds_max=1.0)
    said = script.lines()
    wrong = run(script, Options(blocks_per_second=30, layout=layout), tmp_path, said.append)
    assert wrong == [], "\n".join(said)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "kinds"),
    [
        (2, (FaultKind.RUIN,)),
        *([(seed, tuple(FaultKind)) for seed in range(200, 204)] if LONG else []),
    ],
)
def test_disks_that_are_thrown_away_take_nothing_acknowledged_with_them(
    tmp_path: Path, seed: int, kinds: tuple[FaultKind, ...]
) -> None:
    script = draw(seed, 100, max(2, len(kinds)), kinds, seconds_max=1.0)
    said = script.lines()
    options = Options(blocks_per_second=40, min_standbys=1, clients=3, subscribers=2, publishers=2)
    wrong = run(script, options, tmp_path, said.append)
    assert wrong == [], "\n".join(said)


@pytest.mark.slow
def test_packets_that_vanish_between_namespaces_cost_nobody_a_block(tmp_path: Path) -> None:
    """Where the machine has network namespaces: a cut that nobody is told of, for everybody."""
    reason = why_not_namespaces()
    if reason is not None:
        pytest.skip(f"needs network namespaces, which root with iproute2 and util-linux can make: {reason}")
    options = ("--seed", "3", "--blocks", "50", "--faults", "1", "--kinds", "cut", "--seconds", "1")
    size = ("--rate", "30", "--clients", "3", "--subscribers", "2", "--publishers", "2")
    command = [sys.executable, "-m", "tests.chaos", *options, *size, "--folder", str(tmp_path)]
    done = subprocess.run(
        [*command, "--network", "namespaces"], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "network: namespaces" in done.stdout
    assert "is cut off: its" in done.stdout
