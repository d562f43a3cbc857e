"""Files that the reference implementations wrote, and tests that need them.

The files lie beside the repository and not in it. A test that reads one has a mark, and is skipped where the
file is not there. The end of a run says in one line how many were. Where `CI` is set and the folder is there,
no file may be missing. A test that is skipped for another reason, as one that takes long, is not counted.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

__all__ = ["BLOCKS", "STREAM", "needs_blocks", "needs_stream"]

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "data"
BLOCKS = FOLDER / "hiero-blocks"
"""Chains of Hiero networks and of the reference's simulator: a folder each."""
STREAM = FOLDER / "zkevm-stream" / "sample.bin.gz"
"""A stream that the Go data streamer wrote."""

MARK = "reference_data"
_NOT_THERE = " is not there"
CATEGORY = "without reference data"
"""What the last line of a run calls tests that were skipped."""

needs_blocks = pytest.mark.reference_data(BLOCKS)
needs_stream = pytest.mark.reference_data(STREAM)


def skip_without(item: pytest.Item) -> None:
    """Skip a test whose files are not there."""
    for mark in item.iter_markers(MARK):
        for path in mark.args:
            if not path.exists():
                pytest.skip(f"{path}{_NOT_THERE}")


def category_of(report: pytest.CollectReport | pytest.TestReport) -> tuple[str, str, str] | None:
    """Return category, letter and word of a test that was skipped for want of files, None for all others."""
    if not report.skipped or MARK not in report.keywords or not isinstance(report.longrepr, tuple):
        return None
    return (CATEGORY, "s", "SKIPPED") if report.longrepr[2].endswith(_NOT_THERE) else None


def may_not_be_skipped() -> bool:
    """Whether a run fails that skips such a test."""
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
