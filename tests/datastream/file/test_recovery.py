"""Every combination of facts meets exactly one row."""

from __future__ import annotations

from itertools import product

import pytest

from sluice.datastream.file.recovery import (
    RECOVERY,
    Access,
    Action,
    FileState,
    IndexState,
    TailState,
    UpdateState,
    decide,
    index_state_of,
)


@pytest.mark.parametrize(
    ("file", "tail", "index", "update", "access"),
    list(product(FileState, TailState, IndexState, UpdateState, Access)),
)
def test_exactly_one_row(
    file: FileState, tail: TailState, index: IndexState, update: UpdateState, access: Access
) -> None:
    facts = (file, tail, index, update, access)
    rows = [
        row
        for row in RECOVERY
        if all(fact in column for fact, column in zip(facts, row.columns, strict=True))
    ]
    assert len(rows) == 1
    actions = decide(*facts)
    assert actions == rows[0].actions
    unfinished = update is UpdateState.UNFINISHED
    sound = file is FileState.CONSISTENT
    writable = access is Access.WRITE
    refused = not writable if unfinished else not sound
    knows_more = index is IndexState.KNOWS_MORE
    refused |= knows_more and writable
    assert (actions == (Action.REFUSE,)) == refused
    assert writable or not {Action.FINISH_UPDATE, Action.TRIM_TAIL} & set(actions)
    if refused:
        return
    assert (Action.FINISH_UPDATE in actions) == unfinished
    assert (Action.TRIM_TAIL in actions) == (writable and (unfinished or tail is TailState.NOT_ZERO))
    assert (Action.INDEX_MISSING in actions) == (index is IndexState.BEHIND and not unfinished)
    useless = knows_more or index in (IndexState.MISSING, IndexState.FOREIGN, IndexState.AHEAD)
    assert (Action.REBUILD_BOOKMARKS in actions) == (useless or unfinished)
    # Pages to be indexed are checked before any change, except what the update itself left.
    is_indexed = bool({Action.INDEX_MISSING, Action.REBUILD_BOOKMARKS} & set(actions))
    assert (Action.CHECK_PAGES in actions) == (is_indexed and writable)
    if Action.CHECK_PAGES in actions:
        assert actions.index(Action.CHECK_PAGES) == unfinished


def test_labels_are_unique() -> None:
    assert len({row.label for row in RECOVERY}) == len(RECOVERY)


@pytest.mark.parametrize(
    ("covered", "highest_number", "total_entries", "is_foreign", "state"),
    [
        (None, None, 0, False, IndexState.MISSING),
        (None, 3, 5, False, IndexState.MISSING),
        (0, None, 0, False, IndexState.LEVEL),
        (5, 4, 5, False, IndexState.LEVEL),
        (4, 3, 5, False, IndexState.BEHIND),
        (6, 3, 5, False, IndexState.AHEAD),
        (5, 5, 5, False, IndexState.AHEAD),
        (4, 9, 5, False, IndexState.AHEAD),
        (4, 4, 5, False, IndexState.AHEAD),
        (0, 0, 5, False, IndexState.AHEAD),
        (5, 4, 5, True, IndexState.FOREIGN),
        (4, 3, 5, True, IndexState.FOREIGN),
        (6, 9, 5, True, IndexState.FOREIGN),
        (None, 3, 5, True, IndexState.MISSING),
    ],
)
def test_index_state(
    covered: int | None, highest_number: int | None, total_entries: int, is_foreign: bool, state: IndexState
) -> None:
    found = index_state_of(covered, highest_number, total_entries, is_foreign=is_foreign)
    assert found is state


def test_an_index_of_this_stream_that_covers_more() -> None:
    assert index_state_of(6, 5, 5, knows_more=True) is IndexState.KNOWS_MORE
    assert index_state_of(6, 5, 5, is_foreign=True, knows_more=True) is IndexState.KNOWS_MORE
    assert index_state_of(None, 5, 5, knows_more=True) is IndexState.MISSING
