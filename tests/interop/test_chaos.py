"""A short run of chaos: three nodes, publishers, readers, a script of faults. Long ones: `make chaos`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.chaos.run import Options, run
from tests.chaos.script import FaultKind, choose, draw

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
        assert all(set(kinds[start : start + 6]) == set(FaultKind) for start in range(0, 48, 6))
        assert all(0.2 <= fault.seconds <= 4 for fault in script.faults)


def test_what_a_fault_hits() -> None:
    assert [choose("abc", number) for number in (0.0, 0.33, 0.34, 0.99, 1.0)] == list("aabcc")


@pytest.mark.parametrize(
    ("seed", "kinds"),
    [
        (1, (FaultKind.FAIL_OVER, FaultKind.KILL, FaultKind.CUT)),
        *([(seed, tuple(FaultKind)) for seed in range(100, 104)] if LONG else []),
    ],
)
def test_nothing_acknowledged_is_lost_and_everybody_sees_each_block_once(
    tmp_path: Path, seed: int, kinds: tuple[FaultKind, ...]
) -> None:
    script = draw(seed, 120, len(kinds), kinds, seconds_max=1.0)
    said = script.lines()
    wrong = run(script, Options(blocks_per_second=30), tmp_path, said.append)
    assert wrong == [], "\n".join(said)
