"""One atomic operation at a time: its states as a table. Pure.

    state         start         add    update  seal      rollback  rollback group  commit      change
    IDLE          OPEN          -      -       -         -         IDLE            -           COMMITTING
    OPEN          -             OPEN   OPEN    SEALED    IDLE      IDLE            COMMITTING  -
    SEALED        OPEN_SEALED   -      -       -         -         IDLE            COMMITTING  -
    OPEN_SEALED   -             stays  stays   SEALED    SEALED    IDLE            COMMITTING  -
    COMMITTING    everything is refused until the commit ends: IDLE
    READ_ONLY     everything but closing is refused
    CLOSED        everything is refused          (- is refused; SEALED: complete operations wait for a commit)

*Update* replaces an entry of the open operation; *change* updates or truncates what is committed.

Source: docs/spec/stream-file.md section 2.
"""

from __future__ import annotations

from enum import Enum, IntEnum, auto

from datastream.errors import (
    CommitInProgress,
    NoOperationOpen,
    OperationAlreadyOpen,
    OperationsNotCommitted,
    StreamClosed,
    StreamReadOnly,
)

__all__ = ["ADDING", "CALL_NAMES", "TRANSITIONS", "Call", "State", "Wrong", "next_state"]


class State(IntEnum):
    """Where the atomic operation stands."""

    IDLE = auto()
    OPEN = auto()
    SEALED = auto()
    OPEN_SEALED = auto()
    COMMITTING = auto()
    READ_ONLY = auto()
    CLOSED = auto()


class Call(IntEnum):
    """A call of the API, or the end of a commit."""

    START = auto()
    ADD_ENTRY = auto()
    ADD_BOOKMARK = auto()
    UPDATE = auto()
    SEAL = auto()
    ROLLBACK = auto()
    ROLLBACK_GROUP = auto()
    COMMIT = auto()
    COMMIT_DONE = auto()
    UPDATE_COMMITTED = auto()
    TRUNCATE = auto()
    CLOSE = auto()


CALL_NAMES: dict[Call, str] = {
    Call.START: "start_atomic_op",
    Call.ADD_ENTRY: "add_stream_entry",
    Call.ADD_BOOKMARK: "add_stream_bookmark",
    Call.UPDATE: "update_entry_data",
    Call.SEAL: "seal_atomic_op",
    Call.ROLLBACK: "rollback_atomic_op",
    Call.ROLLBACK_GROUP: "rollback_group",
    Call.COMMIT: "commit_atomic_op",
    Call.COMMIT_DONE: "the end of a commit",
    Call.UPDATE_COMMITTED: "update_entry_data of a committed entry",
    Call.TRUNCATE: "truncate_file",
    Call.CLOSE: "close",
}


class Wrong(Enum):
    """Why a call is refused; the value is the error's class."""

    ALREADY_OPEN = OperationAlreadyOpen
    NOT_OPEN = NoOperationOpen
    NOT_COMMITTED = OperationsNotCommitted
    COMMITTING = CommitInProgress
    READ_ONLY = StreamReadOnly
    CLOSED = StreamClosed


TRANSITIONS: dict[State, dict[Call, State | Wrong]] = {
    State.IDLE: {
        Call.START: State.OPEN,
        Call.ADD_ENTRY: Wrong.NOT_OPEN,
        Call.ADD_BOOKMARK: Wrong.NOT_OPEN,
        Call.UPDATE: Wrong.NOT_OPEN,
        Call.SEAL: Wrong.NOT_OPEN,
        Call.ROLLBACK: Wrong.NOT_OPEN,
        Call.ROLLBACK_GROUP: State.IDLE,
        Call.COMMIT: Wrong.NOT_OPEN,
        Call.COMMIT_DONE: Wrong.NOT_OPEN,
        Call.UPDATE_COMMITTED: State.COMMITTING,
        Call.TRUNCATE: State.COMMITTING,
        Call.CLOSE: State.CLOSED,
    },
    State.OPEN: {
        Call.START: Wrong.ALREADY_OPEN,
        Call.ADD_ENTRY: State.OPEN,
        Call.ADD_BOOKMARK: State.OPEN,
        Call.UPDATE: State.OPEN,
        Call.SEAL: State.SEALED,
        Call.ROLLBACK: State.IDLE,
        Call.ROLLBACK_GROUP: State.IDLE,
        Call.COMMIT: State.COMMITTING,
        Call.COMMIT_DONE: Wrong.ALREADY_OPEN,
        Call.UPDATE_COMMITTED: Wrong.ALREADY_OPEN,
        Call.TRUNCATE: Wrong.ALREADY_OPEN,
        Call.CLOSE: State.CLOSED,
    },
    State.SEALED: {
        Call.START: State.OPEN_SEALED,
        Call.ADD_ENTRY: Wrong.NOT_OPEN,
        Call.ADD_BOOKMARK: Wrong.NOT_OPEN,
        Call.UPDATE: Wrong.NOT_OPEN,
        Call.SEAL: Wrong.NOT_OPEN,
        Call.ROLLBACK: Wrong.NOT_OPEN,
        Call.ROLLBACK_GROUP: State.IDLE,
        Call.COMMIT: State.COMMITTING,
        Call.COMMIT_DONE: Wrong.NOT_OPEN,
        Call.UPDATE_COMMITTED: Wrong.NOT_COMMITTED,
        Call.TRUNCATE: Wrong.NOT_COMMITTED,
        Call.CLOSE: State.CLOSED,
    },
    State.OPEN_SEALED: {
        Call.START: Wrong.ALREADY_OPEN,
        Call.ADD_ENTRY: State.OPEN_SEALED,
        Call.ADD_BOOKMARK: State.OPEN_SEALED,
        Call.UPDATE: State.OPEN_SEALED,
        Call.SEAL: State.SEALED,
        Call.ROLLBACK: State.SEALED,
        Call.ROLLBACK_GROUP: State.IDLE,
        Call.COMMIT: State.COMMITTING,
        Call.COMMIT_DONE: Wrong.ALREADY_OPEN,
        Call.UPDATE_COMMITTED: Wrong.ALREADY_OPEN,
        Call.TRUNCATE: Wrong.ALREADY_OPEN,
        Call.CLOSE: State.CLOSED,
    },
    State.COMMITTING: {**dict.fromkeys(Call, Wrong.COMMITTING), Call.COMMIT_DONE: State.IDLE},
    State.READ_ONLY: {**dict.fromkeys(Call, Wrong.READ_ONLY), Call.CLOSE: State.CLOSED},
    State.CLOSED: {**dict.fromkeys(Call, Wrong.CLOSED), Call.CLOSE: State.CLOSED},
}

ADDING: frozenset[State] = frozenset({State.OPEN, State.OPEN_SEALED})
"""The states in which entries are added."""


def next_state(state: State, call: Call) -> State:
    """Return the state after `call`.

    Raises:
        MisuseError: the table refuses the call; the state stays as it was.
    """
    following = TRANSITIONS[state][call]
    if isinstance(following, Wrong):
        raise following.value(CALL_NAMES[call])
    return following
