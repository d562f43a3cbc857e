"""Runs with missing reference files: pytest itself, with our conftest, in another repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TESTS = """
import pytest
from tests.reference_data import needs_blocks, needs_stream

@needs_stream
def test_a_stream(): ...

@needs_blocks
def test_blocks(): ...

@needs_blocks
@pytest.mark.parametrize("number", [1, 2])
def test_more_blocks(number): ...

@needs_stream
def test_what_else_is_missing():
    pytest.skip("no Java here")

def test_another():
    pytest.skip("another reason")
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Make a repository with our conftest and the tests above."""
    folder = tmp_path / "clone"
    (folder / "tests").mkdir(parents=True)
    for name in ("pyproject.toml", "tests/__init__.py", "tests/conftest.py", "tests/reference_data.py"):
        shutil.copy(ROOT / name, folder / name)
    (folder / "tests" / "test_it.py").write_text(TESTS)
    return folder


def run(clone: Path, *words: str, **environment: str) -> tuple[int, list[str]]:
    """Return the exit status of a run and its summary lines."""
    given = {name: value for name, value in os.environ.items() if name != "CI"}
    given |= {"PYTHONPATH": f"{clone}{os.pathsep}{ROOT}", **environment}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words]
    done = subprocess.run(command, cwd=clone, env=given, capture_output=True, text=True, timeout=100)
    assert not done.stderr
    return done.returncode, [line for line in done.stdout.splitlines() if "skipped" in line.lower()]


def fill(clone: Path, *, stream: bool = True) -> Path:
    data = clone.parent / "shared" / "data"
    (data / "hiero-blocks").mkdir(parents=True)
    if stream:
        (data / "zkevm-stream").mkdir()
        (data / "zkevm-stream" / "sample.bin.gz").touch()
    return data


@pytest.mark.parametrize(("words", "ci"), [((), ""), (("-n", "2"), "1")], ids=["by hand", "CI"])
def test_without_the_files_one_line_says_so(clone: Path, words: tuple[str, ...], ci: str) -> None:
    status, lines = run(clone, *words, CI=ci)
    assert status == 0
    assert lines[0].endswith(": another reason")
    assert lines[1] == f"5 tests skipped: {clone.parent}/shared/data is not there"
    assert "1 skipped, 5 without reference data" in lines[2]


def test_a_file_that_is_missing_fails_a_run_of_ci(clone: Path) -> None:
    data = fill(clone, stream=False)
    sample = f"{data}/zkevm-stream/sample.bin.gz is not there"
    status, lines = run(clone)
    assert status == 0
    assert f"2 tests skipped though {data} is there: {sample}" in lines
    status, lines = run(clone, CI="true")
    assert status == 1
    assert f"2 tests skipped though {data} is there, which fails where CI is set: {sample}" in lines


def test_a_test_that_is_skipped_for_another_reason_fails_nothing(clone: Path) -> None:
    fill(clone)
    status, lines = run(clone, CI="1")
    assert status == 0
    assert any(line.endswith(": no Java here") for line in lines)
    assert "without reference data" not in lines[-1]


def test_with_the_files_nothing_is_said(clone: Path) -> None:
    fill(clone)
    status, lines = run(clone, "-k", "blocks or a_stream or another", CI="1")
    assert status == 0
    assert len(lines) == 2
    assert "without reference data" not in lines[1]
