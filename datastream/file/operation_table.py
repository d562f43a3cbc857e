"""The states of the atomic operation, as a table. Pure.

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

from sluice.datastream.errors import (
    CommitInProgress,
    NoOperationOpen,
    OperationAlreadyOpen,
    OperationsNotCommitted,
    StreamClosed,
    StreamReadOnly,
)

__all__ = ["ADDING", "CALL_NAMES", "TRANSITIONS", "Call", "OperationState", "Wrong", "next_state"]


class OperationState(IntEnum):
    """The state of the atomic operation."""

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
    """The reason of a refused call; the value is the error's class."""

    ALREADY_OPEN = OperationAlreadyOpen
    NOT_OPEN = NoOperationOpen
    NOT_COMMITTED = OperationsNotCommitted
    COMMITTING = CommitInProgress
    READ_ONLY = StreamReadOnly
    CLOSED = StreamClosed


TRANSITIONS: dict[OperationState, dict[Call, OperationState | Wrong]] = {
    OperationState.IDLE: {
        Call.START: OperationState.OPEN,
        Call.ADD_ENTRY: Wrong.NOT_OPEN,
        Call.ADD_BOOKMARK: Wrong.NOT_OPEN,
        Call.UPDATE: Wrong.NOT_OPEN,
        Call.SEAL: Wrong.NOT_OPEN,
        Call.ROLLBACK: Wrong.NOT_OPEN,
        Call.ROLLBACK_GROUP: OperationState.IDLE,
        Call.COMMIT: Wrong.NOT_OPEN,
        Call.COMMIT_DONE: Wrong.NOT_OPEN,
        Call.UPDATE_COMMITTED: OperationState.COMMITTING,
        Call.TRUNCATE: OperationState.COMMITTING,
        Call.CLOSE: OperationState.CLOSED,
    },
    OperationState.OPEN: {
        Call.START: Wrong.ALREADY_OPEN,
        Call.ADD_ENTRY: OperationState.OPEN,
        Call.ADD_BOOKMARK: OperationState.OPEN,
        Call.UPDATE: OperationState.OPEN,
        Call.SEAL: OperationState.SEALED,
        Call.ROLLBACK: OperationState.IDLE,
        Call.ROLLBACK_GROUP: OperationState.IDLE,
        Call.COMMIT: OperationState.COMMITTING,
        Call.COMMIT_DONE: Wrong.ALREADY_OPEN,
        Call.UPDATE_COMMITTED: Wrong.ALREADY_OPEN,
        Call.TRUNCATE: Wrong.ALREADY_OPEN,
        Call.CLOSE: OperationState.CLOSED,
    },
    OperationState.SEALED: {
        Call.START: OperationState.OPEN_SEALED,
        Call.ADD_ENTRY: Wrong.NOT_OPEN,
        Call.ADD_BOOKMARK: Wrong.NOT_OPEN,
        Call.UPDATE: Wrong.NOT_OPEN,
        Call.SEAL: Wrong.NOT_OPEN,
        Call.ROLLBACK: Wrong.NOT_OPEN,
        Call.ROLLBACK_GROUP: OperationState.IDLE,
        Call.COMMIT: OperationState.COMMITTING,
        Call.COMMIT_DONE: Wrong.NOT_OPEN,
        Call.UPDATE_COMMITTED: Wrong.NOT_COMMITTED,
        Call.TRUNCATE: Wrong.NOT_COMMITTED,
        Call.CLOSE: OperationState.CLOSED,
    },
    OperationState.OPEN_SEALED: {
        Call.START: Wrong.ALREADY_OPEN,
        Call.ADD_ENTRY: OperationState.OPEN_SEALED,
        Call.ADD_BOOKMARK: OperationState.OPEN_SEALED,
        Call.UPDATE: OperationState.OPEN_SEALED,
        Call.SEAL: OperationState.SEALED,
        Call.ROLLBACK: OperationState.SEALED,
        Call.ROLLBACK_GROUP: OperationState.IDLE,
        Call.COMMIT: OperationState.COMMITTING,
        Call.COMMIT_DONE: Wrong.ALREADY_OPEN,
        Call.UPDATE_COMMITTED: Wrong.ALREADY_OPEN,
        Call.TRUNCATE: Wrong.ALREADY_OPEN,
        Call.CLOSE: OperationState.CLOSED,
    },
    OperationState.COMMITTING: {
        **dict.fromkeys(Call, Wrong.COMMITTING),
        Call.COMMIT_DONE: OperationState.IDLE,
    },
    OperationState.READ_ONLY: {**dict.fromkeys(Call, Wrong.READ_ONLY), Call.CLOSE: OperationState.CLOSED},
    OperationState.CLOSED: {**dict.fromkeys(Call, Wrong.CLOSED), Call.CLOSE: OperationState.CLOSED},
}

ADDING: frozenset[OperationState] = frozenset({OperationState.OPEN, OperationState.OPEN_SEALED})
"""The states in which entries are added."""


def next_state(state: OperationState, call: Call) -> OperationState:
    """Return the state after `call`.

    Raises:
        MisuseError: the table refuses the call; the state stays as it was.
    """
    following = TRANSITIONS[state][call]
    if isinstance(following, Wrong):
        raise following.value(CALL_NAMES[call])
    return following
