"""What opening a stream does about what it finds: one decision table. Pure.

Facts are computed once into three enums, then `RECOVERY` answers; exactly one row matches any combination.

    file    is the header sound, is the file whole, do the entries lead to the header's totals
    tail    is everything past `total_length` zero (our padding and unused pages are)
    index   how many entries the bookmark DB covers, compared with `total_entries`

Source: wire.md 1 ("Refuse to open") and 2; design.md, "Durability and speed".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

__all__ = ["RECOVERY", "Action", "FileState", "IndexState", "Row", "TailState", "decide", "index_state_of"]


class FileState(Enum):
    """The first thing that is wrong with the file, or that nothing is."""

    SHORTER_THAN_HEADER_PAGE = auto()
    NOT_WHOLE_PAGES = auto()
    WRONG_MAGIC = auto()
    WRONG_PACKET_TYPE = auto()
    WRONG_HEADER_SIZE = auto()
    WRONG_STREAM_TYPE = auto()
    TOTAL_LENGTH_OUT_OF_FILE = auto()
    ENTRIES_DISAGREE = auto()
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
    AHEAD = auto()
    """It covers or points at entries that are not committed: unflushed commits were lost, or another
    program wrote bookmarks before it committed."""


class Action(Enum):
    """One thing to do when opening."""

    REFUSE = auto()
    TRIM_TAIL = auto()
    """Write zeros over what lies past `total_length`; skipped when the file is opened for reading only."""
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
    actions: tuple[Action, ...]


_SOUND = frozenset({FileState.CONSISTENT})
_ANY_TAIL = frozenset(TailState)
_ANY_INDEX = frozenset(IndexState)
_ZERO = frozenset({TailState.ZERO})
_DIRTY = frozenset({TailState.NOT_ZERO})
_LEVEL = frozenset({IndexState.LEVEL})
_BEHIND = frozenset({IndexState.BEHIND})
_USELESS = frozenset({IndexState.MISSING, IndexState.AHEAD})

RECOVERY: tuple[Row, ...] = (
    # A partial page is refused too: our own growth is one ftruncate, which a crash cannot cut.
    Row("refuse", frozenset(FileState) - _SOUND, _ANY_TAIL, _ANY_INDEX, (Action.REFUSE,)),
    Row("clean", _SOUND, _ZERO, _LEVEL, ()),
    Row("index behind", _SOUND, _ZERO, _BEHIND, (Action.INDEX_MISSING,)),
    Row("index useless", _SOUND, _ZERO, _USELESS, (Action.REBUILD_BOOKMARKS,)),
    Row("tail", _SOUND, _DIRTY, _LEVEL, (Action.TRIM_TAIL,)),
    Row("tail, index behind", _SOUND, _DIRTY, _BEHIND, (Action.TRIM_TAIL, Action.INDEX_MISSING)),
    Row("tail, index useless", _SOUND, _DIRTY, _USELESS, (Action.TRIM_TAIL, Action.REBUILD_BOOKMARKS)),
)


def index_state_of(covered: int | None, highest_number: int | None, total_entries: int) -> IndexState:
    """Compare the index with the stream.

    Args:
        covered: how many entries the index says it covers; None when it does not say.
        highest_number: the highest entry number among the bookmarks that were looked at; None without any.
        total_entries: number of committed entries.
    """
    if covered is None:
        return IndexState.MISSING
    if covered > total_entries or (highest_number is not None and highest_number >= total_entries):
        return IndexState.AHEAD
    return IndexState.LEVEL if covered == total_entries else IndexState.BEHIND


def decide(file: FileState, tail: TailState, index: IndexState) -> tuple[Action, ...]:
    """Return what opening does, in order; empty when there is nothing to do."""
    (row,) = (row for row in RECOVERY if file in row.file and tail in row.tail and index in row.index)
    return row.actions
