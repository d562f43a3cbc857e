"""Each mutant of the simulation changes the present code."""

from __future__ import annotations

import pytest

from tests.simulation.mutants import ROOT, Mutant, mutants


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.name)
def test_a_mutant_changes_the_code(mutant: Mutant) -> None:
    text = (ROOT / mutant.path).read_text("utf-8")
    assert mutant.old in text, f"its text is not in {mutant.path}"
    assert mutant.old != mutant.new
