"""The matrix of versions runs the tests, and says what failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark_matrix import main


def test_one_cell_runs_here(capsys: pytest.CaptureFixture[str], java: None) -> None:
    assert main(["--here", "--tests", "tests/publishers/spark/test_options.py"]) == 0
    assert capsys.readouterr().out.startswith("passed  this environment: ")


@pytest.mark.slow
def test_a_cell_that_fails_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path, java: None) -> None:
    (tmp_path / "test_wrong.py").write_text("def test_wrong() -> None:\n    assert 1 == 2\n")
    assert main(["--here", "--tests", str(tmp_path / "test_wrong.py")]) == 1
    out = capsys.readouterr().out
    assert "assert 1 == 2" in out
    assert "FAILED  this environment: " in out
