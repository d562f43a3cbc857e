"""What opening a stream does about what it finds: one decision table. Pure.

Facts are computed once into five enums, then `RECOVERY` answers; exactly one row matches any combination.

    file    do the entries lead to the totals of the header, which `inspect_header` has found sound
    tail    is everything past `total_length` zero (our padding and unused pages are)
    index   whose entries the bookmark DB covers, and how many, compared with `total_entries`
    update  did a crash interrupt an update in place
    access  may the file be written

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
    """The entries do not lead to the header's totals."""
    CONSISTENT = auto()


class TailState(Enum):
    """What lies past `total_length`."""

    ZERO = auto()
    NOT_ZERO = auto()


class IndexState(Enum):
    """How far the bookmark DB goes."""

    LEVEL = auto()
    """It covers exactly the committed entries."""
    BEHIND = auto()
    """It covers fewer: a crash after the commit point, or another program appended."""
    MISSING = auto()
    """It does not say what it covers: a new one, or one that another program made."""
    FOREIGN = auto()
    """It is of another stream: one that has the same folder by its name, or whose folder was copied here."""
    AHEAD = auto()
    """It points at entries that are not committed, as another program leaves it that wrote bookmarks before
    it committed; or it covers such entries, and is not to be believed."""
    KNOWS_MORE = auto()
    """It is of this stream, and covers entries that the header does not count: the header went back, the file
    is older than its folder, or commits without a flush were lost."""


class UpdateState(Enum):
    """Whether the bookmark DB holds the record of an update that was not finished (`updating.py`)."""

    NONE = auto()
    UNFINISHED = auto()


class Access(Enum):
    """What the opener may do."""

    WRITE = auto()
    READ = auto()
    """Neither the file nor its folder is changed; the index is a copy."""


class Action(Enum):
    """One thing to do when opening."""

    REFUSE = auto()
    FINISH_UPDATE = auto()
    """Write the blocks that the record holds."""
    CHECK_PAGES = auto()
    """Walk the pages that are to be indexed: damage there refuses the file, of which nothing was changed."""
    TRIM_TAIL = auto()
    """Write zeros over what lies past `total_length`."""
    INDEX_MISSING = auto()
    """Add the bookmarks of the entries that the index does not cover."""
    REBUILD_BOOKMARKS = auto()
    """Empty the index, then add the bookmarks of all entries."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row: the facts it stands for, and what is done, in order."""

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
    # A partial page is refused too: our own growth is one ftruncate, which a crash cannot cut.
    Row("refuse", _ANY_FILE - _SOUND, _ANY_TAIL, _ANY_INDEX, _DONE, _ANY_ACCESS, (Action.REFUSE,)),
    # Its tail may be what was committed, and acknowledged. The operator chooses (`sluice repair`).
    Row("index knows more", _SOUND, _ANY_TAIL, _MORE, _DONE, _WRITE, (Action.REFUSE,)),
    Row("clean", _SOUND, _ZERO, _LEVEL, _DONE, _WRITE, ()),
    Row("index behind", _SOUND, _ZERO, _BEHIND, _DONE, _WRITE, _ADD),
    Row("index useless", _SOUND, _ZERO, _USELESS, _DONE, _WRITE, _REBUILD),
    Row("tail", _SOUND, _DIRTY, _LEVEL, _DONE, _WRITE, (Action.TRIM_TAIL,)),
    Row("tail, index behind", _SOUND, _DIRTY, _BEHIND, _DONE, _WRITE, _TRIM_AND_ADD),
    Row("tail, index useless", _SOUND, _DIRTY, _USELESS, _DONE, _WRITE, _TRIM_AND_REBUILD),
    # Also over entries that disagree: the update may have left zeros where heads were. What is still wrong
    # when it is finished is refused then.
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
    # What lies past the end is never read, so it may stay.
    Row("read only", _SOUND, _ANY_TAIL, _LEVEL, _DONE, _READ, ()),
    # The index is a copy, so that nothing has to be checked first.
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
) -> IndexState:
    """Compare the index with the stream.

    Args:
        covered: how many entries the index says it covers; None when it does not say.
        highest_number: the highest entry number among the bookmarks that were looked at; None without any.
        total_entries: number of committed entries.
        is_foreign: whether it says that it is of another stream. Other programs do not say whose it is, and
            that is believed.
        knows_more: whether it covers more than is committed of this stream (`evidence.py`).
    """
    if covered is None:
        return IndexState.MISSING
    if knows_more:
        return IndexState.KNOWS_MORE
    if is_foreign:
        return IndexState.FOREIGN
    # A bookmark past the count is of another program, since ours are written together with it; that one also
    # leaves those of entries that it rolled back or truncated.
    if covered > total_entries or (highest_number is not None and highest_number >= covered):
        return IndexState.AHEAD
    return IndexState.LEVEL if covered == total_entries else IndexState.BEHIND


def decide(
    file: FileState,
    tail: TailState,
    index: IndexState,
    update: UpdateState = UpdateState.NONE,
    access: Access = Access.WRITE,
) -> tuple[Action, ...]:
    """Return what opening does, in order; empty when there is nothing to do."""
    facts = (file, tail, index, update, access)
    (row,) = (
        row
        for row in RECOVERY
        if all(fact in column for fact, column in zip(facts, row.columns, strict=True))
    )
    return row.actions
