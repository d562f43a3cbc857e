"""Tests of the mutants: every cell has some, and every reason in UNREACHABLE fits one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sluice.gateway.race.tables import BLOCK_TABLE, CONSEQUENCES, ON_HEADER, STREAM_TABLE
from sluice.publishers.protocol.machine_tables import ENDINGS, TABLE
from tests.mutation.mutants import TESTS, mutants
from tests.mutation.unreachable import UNREACHABLE, reason_of

FLAT: dict[str, Mapping[Any, object]] = {
    "ON_HEADER": ON_HEADER,
    "CONSEQUENCES": CONSEQUENCES,
    "ENDINGS": ENDINGS,
}
NESTED: dict[str, Mapping[Any, Mapping[Any, object]]] = {
    "STREAM_TABLE": STREAM_TABLE,
    "BLOCK_TABLE": BLOCK_TABLE,
    "TABLE": TABLE,
}
ROOT = Path(__file__).resolve().parents[2]
SCENES = {
    "race": ("tests/gateway/race/test_*.py", "tests.gateway.racing"),
    "machine": ("tests/publishers/protocol/test_machine*.py", "tests.publishers.scenario"),
}
"""The modules with stories of a side, and the helper that they use."""
LONG = {"tests/gateway/race/test_arbiter_walk.py", "tests/gateway/race/test_arbiter_nobody_wins.py"}
"""Modules that play thousands of events and notice little more."""
NAMES = [mutant.name for mutant in mutants()]


def test_every_cell_of_every_table_has_mutants() -> None:
    cells = {name.partition(" ")[0] for name in NAMES}
    expected = {f"{name}[{key.name}]" for name, table in FLAT.items() for key in table}
    expected |= {
        f"{name}[{state.name}][{event.name}]"
        for name, table in NESTED.items()
        for state, row in table.items()
        for event in row
    }
    assert expected <= cells
    assert len(set(NAMES)) == len(NAMES)


def test_every_reason_fits_a_mutant() -> None:
    stale = [prefix for prefix in UNREACHABLE if not any(name.startswith(prefix) for name in NAMES)]
    assert stale == []
    assert reason_of("ON_HEADER[AHEAD] = SKIP") is None


def test_every_module_with_stories_has_to_notice() -> None:
    """Otherwise a module that is split off from another would be left out."""
    for side, (pattern, scene) in SCENES.items():
        told = {
            str(path.relative_to(ROOT)) for path in ROOT.glob(pattern) if scene in path.read_text("utf-8")
        }
        assert told - LONG <= set(TESTS[side])
        assert all((ROOT / path).is_file() for path in TESTS[side])
