"""The decision table of opening a stream. Pure.

Five enums hold the facts; exactly one row of `RECOVERY` matches any combination.

Source: docs/spec/stream-file.md sections 1.5 and 3; datastream/README.md, "Opening".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

__all__ = [
    "RECOVERY",
    "Access",
    "Action",
    "FileState",
    "IndexState",
    "Row",
    "TailState",
    "UpdateState",
    "decide",
    "index_state_of",
]


class FileState(Enum):
    """The state of a file whose header page is sound."""

    ENTRIES_DISAGREE = auto()
    CONSISTENT = auto()


class TailState(Enum):
    """True if everything past `total_length` is zero, as our padding and unused pages are."""

    ZERO = auto()
    NOT_ZERO = auto()


class IndexState(Enum):
    """The entries that the index covers, compared with the stream's."""

    LEVEL = auto()
    BEHIND = auto()
    """It covers fewer: after a crash behind the commit point, or another program's commit."""
    MISSING = auto()
    """It is new, or another program made it."""
    FOREIGN = auto()
    """It is of a stream that shares the folder by its name, or whose folder was copied here."""
    AHEAD = auto()
    """It points at uncommitted entries, as from a program that writes bookmarks before it commits; or it is
    not believed."""
    KNOWS_MORE = auto()
    """It is of this stream and ahead of the header: the header went back, the file is older than its folder,
    or unflushed commits were lost."""


class UpdateState(Enum):
    """True if a crash interrupted an update in place."""

    NONE = auto()
    UNFINISHED = auto()


class Access(Enum):
    """The opener's permission."""

    WRITE = auto()
    READ = auto()
    """File and folder stay as they are; the index is a copy."""


class Action(Enum):
    """One step of recovery."""

    REFUSE = auto()
    FINISH_UPDATE = auto()
    CHECK_PAGES = auto()
    """Walk the pages to be indexed: damage there refuses the file before any change."""
    TRIM_TAIL = auto()
    INDEX_MISSING = auto()
    REBUILD_BOOKMARKS = auto()


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table: facts, and the actions they lead to."""

    label: str
    file: frozenset[FileState]
    tail: frozenset[TailState]
    index: frozenset[IndexState]
    update: frozenset[UpdateState]
    access: frozenset[Access]
    actions: tuple[Action, ...]

    @property
    def columns(self) -> tuple[frozenset[Enum], ...]:
        """The facts, in the order of `decide`."""
        return self.file, self.tail, self.index, self.update, self.access


_SOUND = frozenset({FileState.CONSISTENT})
_ANY_FILE = frozenset(FileState)
_ANY_TAIL = frozenset(TailState)
_ANY_INDEX = frozenset(IndexState)
_ZERO = frozenset({TailState.ZERO})
_DIRTY = frozenset({TailState.NOT_ZERO})
_LEVEL = frozenset({IndexState.LEVEL})
_BEHIND = frozenset({IndexState.BEHIND})
_USELESS = frozenset({IndexState.MISSING, IndexState.FOREIGN, IndexState.AHEAD})
_MORE = frozenset({IndexState.KNOWS_MORE})
_NO_MORE = _ANY_INDEX - _MORE
_DONE = frozenset({UpdateState.NONE})
_UNDONE = frozenset({UpdateState.UNFINISHED})
_ANY_ACCESS = frozenset(Access)
_WRITE = frozenset({Access.WRITE})
_READ = frozenset({Access.READ})
_ADD = (Action.CHECK_PAGES, Action.INDEX_MISSING)
_REBUILD = (Action.CHECK_PAGES, Action.REBUILD_BOOKMARKS)
_TRIM_AND_ADD = (Action.CHECK_PAGES, Action.TRIM_TAIL, Action.INDEX_MISSING)
_TRIM_AND_REBUILD = (Action.CHECK_PAGES, Action.TRIM_TAIL, Action.REBUILD_BOOKMARKS)

RECOVERY: tuple[Row, ...] = (
    # A partial page was refused before: growth is one ftruncate, which a crash cannot cut.
    Row("refuse", _ANY_FILE - _SOUND, _ANY_TAIL, _ANY_INDEX, _DONE, _ANY_ACCESS, (Action.REFUSE,)),
    # The tail may hold acknowledged commits. The operator chooses (`sluice repair`).
    Row("index knows more", _SOUND, _ANY_TAIL, _MORE, _DONE, _WRITE, (Action.REFUSE,)),
    Row("clean", _SOUND, _ZERO, _LEVEL, _DONE, _WRITE, ()),
    Row("index behind", _SOUND, _ZERO, _BEHIND, _DONE, _WRITE, _ADD),
    Row("index useless", _SOUND, _ZERO, _USELESS, _DONE, _WRITE, _REBUILD),
    Row("tail", _SOUND, _DIRTY, _LEVEL, _DONE, _WRITE, (Action.TRIM_TAIL,)),
    Row("tail, index behind", _SOUND, _DIRTY, _BEHIND, _DONE, _WRITE, _TRIM_AND_ADD),
    Row("tail, index useless", _SOUND, _DIRTY, _USELESS, _DONE, _WRITE, _TRIM_AND_REBUILD),
    # Also if entries disagree: the update may have left zeros in place of heads. Other faults are refused
    # behind it.
    Row(
        "update unfinished",
        *(_ANY_FILE, _ANY_TAIL, _NO_MORE, _UNDONE, _WRITE),
        (Action.FINISH_UPDATE, *_TRIM_AND_REBUILD),
    ),
    Row(
        "update unfinished, index knows more",
        *(_ANY_FILE, _ANY_TAIL, _MORE, _UNDONE, _WRITE),
        (Action.REFUSE,),
    ),
    Row("update unfinished, read only", _ANY_FILE, _ANY_TAIL, _ANY_INDEX, _UNDONE, _READ, (Action.REFUSE,)),
    # The tail is never read.
    Row("read only", _SOUND, _ANY_TAIL, _LEVEL, _DONE, _READ, ()),
    # The index is a copy, so nothing is checked first.
    Row("read only, index behind", _SOUND, _ANY_TAIL, _BEHIND, _DONE, _READ, (Action.INDEX_MISSING,)),
    Row(
        "read only, index useless",
        *(_SOUND, _ANY_TAIL, _USELESS | _MORE, _DONE, _READ),
        (Action.REBUILD_BOOKMARKS,),
    ),
)


def index_state_of(
    covered: int | None,
    highest_number: int | None,
    total_entries: int,
    *,
    is_foreign: bool = False,
    knows_more: bool = False,
    is_only_ours: bool = False,
) -> IndexState:
    """Compare the index with the stream.

    Args:
        covered: how many entries the index covers; None if it does not say.
        highest_number: among the compared bookmarks.
        is_foreign: it names another stream. Another program's index names none and is believed.
        knows_more: it covers more than this stream's committed entries (`evidence.py`).
        is_only_ours: no other program wrote bookmarks since the count was written.
    """
    if covered is None:
        return IndexState.MISSING
    if knows_more:
        return IndexState.KNOWS_MORE
    if is_foreign:
        return IndexState.FOREIGN
    # A bookmark past the count may be another program's, of entries that it rolled back.
    sound_end = total_entries if is_only_ours else covered
    if covered > total_entries or (highest_number is not None and highest_number >= sound_end):
        return IndexState.AHEAD
    return IndexState.LEVEL if covered == total_entries else IndexState.BEHIND


def decide(
    file: FileState,
    tail: TailState,
    index: IndexState,
    update: UpdateState = UpdateState.NONE,
    access: Access = Access.WRITE,
) -> tuple[Action, ...]:
    """Return the actions of the matching row, in order."""
    facts = (file, tail, index, update, access)
    (row,) = (
        row
        for row in RECOVERY
        if all(fact in column for fact, column in zip(facts, row.columns, strict=True))
    )
    return row.actions
