"""Every combination of facts meets exactly one row."""

from __future__ import annotations

from itertools import product

import pytest

from datastream.recovery import RECOVERY, Action, FileState, IndexState, TailState, decide, index_state_of


@pytest.mark.parametrize(("file", "tail", "index"), list(product(FileState, TailState, IndexState)))
def test_exactly_one_row(file: FileState, tail: TailState, index: IndexState) -> None:
    rows = [row for row in RECOVERY if file in row.file and tail in row.tail and index in row.index]
    assert len(rows) == 1
    actions = decide(file, tail, index)
    assert actions == rows[0].actions
    assert (actions == (Action.REFUSE,)) == (file is not FileState.CONSISTENT)
    if file is FileState.CONSISTENT:
        assert (Action.TRIM_TAIL in actions) == (tail is TailState.NOT_ZERO)
        assert (Action.INDEX_MISSING in actions) == (index is IndexState.BEHIND)
        assert (Action.REBUILD_BOOKMARKS in actions) == (index in (IndexState.MISSING, IndexState.AHEAD))


def test_labels_are_unique() -> None:
    assert len({row.label for row in RECOVERY}) == len(RECOVERY)


@pytest.mark.parametrize(
    ("covered", "highest_number", "total_entries", "state"),
    [
        (None, None, 0, IndexState.MISSING),
        (None, 3, 5, IndexState.MISSING),
        (0, None, 0, IndexState.LEVEL),
        (5, 4, 5, IndexState.LEVEL),
        (4, 3, 5, IndexState.BEHIND),
        (6, 3, 5, IndexState.AHEAD),
        (5, 5, 5, IndexState.AHEAD),
        (4, 9, 5, IndexState.AHEAD),
    ],
)
def test_index_state(
    covered: int | None, highest_number: int | None, total_entries: int, state: IndexState
) -> None:
    assert index_state_of(covered, highest_number, total_entries) is state
