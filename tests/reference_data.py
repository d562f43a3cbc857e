"""Files of the reference implementations, and marks for tests that need them.

The files are beside the repository, not in it. A marked test is skipped where its file is missing; the end of
a run says how many were. Where `CI` is set and the folder exists, no file may be missing. Tests that are
skipped for other reasons do not count.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

__all__ = ["BLOCKS", "STREAM", "needs_blocks", "needs_stream"]

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "data"
BLOCKS = FOLDER / "hiero-blocks"
"""Chains of Hiero networks and of the reference's simulator, one folder each."""
STREAM = FOLDER / "zkevm-stream" / "sample.bin.gz"
"""A stream that the Go data streamer wrote."""

MARK = "reference_data"
_NOT_THERE = " is not there"
CATEGORY = "without reference data"
"""The name of skipped tests in the last line of a run."""

needs_blocks = pytest.mark.reference_data(BLOCKS)
needs_stream = pytest.mark.reference_data(STREAM)


def skip_without(item: pytest.Item) -> None:
    """Skip a test whose files are missing."""
    for mark in item.iter_markers(MARK):
        for path in mark.args:
            if not path.exists():
                pytest.skip(f"{path}{_NOT_THERE}")


def category_of(report: pytest.CollectReport | pytest.TestReport) -> tuple[str, str, str] | None:
    """Return category, letter and word of a test that was skipped for missing files, else None."""
    if not report.skipped or MARK not in report.keywords or not isinstance(report.longrepr, tuple):
        return None
    return (CATEGORY, "s", "SKIPPED") if report.longrepr[2].endswith(_NOT_THERE) else None


def may_not_be_skipped() -> bool:
    """Return whether skipping such a test fails the run."""
    return bool(os.environ.get("CI")) and FOLDER.exists()


def summary_of(reports: Sequence[pytest.TestReport]) -> str:
    """Return the line about skipped tests."""
    tests = f"{len(reports)} test{'s' * (len(reports) != 1)} skipped"
    if not FOLDER.exists():
        return f"{tests}: {FOLDER} is not there"
    given = [report.longrepr[2] for report in reports if isinstance(report.longrepr, tuple)]
    reasons = "; ".join(sorted({reason.removeprefix("Skipped: ") for reason in given}))
    failed = ", which fails where CI is set" if may_not_be_skipped() else ""
    return f"{tests} though {FOLDER} is there{failed}: {reasons}"
