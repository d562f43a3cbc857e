"""The states of an atomic operation: every (state, call)."""

from __future__ import annotations

import re
from itertools import product

import pytest

from sluice.datastream.file import operation
from sluice.datastream.file.operation import (
    ADDING,
    CALL_NAMES,
    TRANSITIONS,
    Call,
    OperationState,
    Wrong,
    next_state,
)


@pytest.mark.parametrize(("state", "call"), list(product(OperationState, Call)))
def test_every_state_and_call(state: OperationState, call: Call) -> None:
    following = TRANSITIONS[state][call]
    if isinstance(following, OperationState):
        assert next_state(state, call) is following
        return
    with pytest.raises(following.value) as caught:
        next_state(state, call)
    assert str(caught.value).startswith(CALL_NAMES[call] + ": ")


def test_each_wrong_state_has_its_own_error() -> None:
    assert len({wrong.value for wrong in Wrong}) == len(Wrong) == 6


def test_entries_are_added_where_the_table_takes_one_and_stays() -> None:
    assert {state for state in OperationState if TRANSITIONS[state][Call.ADD_ENTRY] is state} == ADDING


COLUMNS = {
    "start": [Call.START],
    "add": [Call.ADD_ENTRY, Call.ADD_BOOKMARK],
    "update": [Call.UPDATE],
    "seal": [Call.SEAL],
    "rollback": [Call.ROLLBACK],
    "rollback group": [Call.ROLLBACK_GROUP],
    "commit": [Call.COMMIT],
    "change": [Call.UPDATE_COMMITTED, Call.TRUNCATE],
}


def test_the_table_in_the_docstring_is_the_one_in_the_code() -> None:
    rows = [re.split(r" {2,}", line.strip()) for line in (operation.__doc__ or "").splitlines()]
    (titles,) = [row[1:] for row in rows if row[0] == "state"]
    assert titles == list(COLUMNS)
    for state in (
        OperationState.IDLE,
        OperationState.OPEN,
        OperationState.SEALED,
        OperationState.OPEN_SEALED,
    ):
        (cells,) = [row[1:] for row in rows if row[0] == state.name]
        for title, cell in zip(titles, cells, strict=True):
            for call in COLUMNS[title]:
                following = TRANSITIONS[state][call]
                name = "-" if isinstance(following, Wrong) else following.name
                assert cell in (name, "stays" if following is state else name), (state.name, call.name)
