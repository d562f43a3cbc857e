"""The sanity check of a stream: the order of entries, blocks, batches and their bookmarks. Pure.

| what | rule |
|---|---|
| entry | its number is that of the entry before it, plus 1 |
| block | begins with the number of the block before it, plus 1, after that one has ended |
| block end | has the number of the block that is open; a batch end ends its block too, as in block 0 |
| batch | the same, where batches are marked by events (current network) |
| bookmark | of a block or batch: the number of the last one of that form plus 1, or for a batch the same |

The first of each kind is accepted. After a finding, the check continues from what it found.

Source: zkevm-data-streamer README, "DATASTREAM CLI DEMO APP".
"""

from __future__ import annotations

from collections.abc import Callable

from sluice.datastream.events.events import Event, event_of
from sluice.datastream.events.network_events import (
    BatchEnd,
    BatchStart,
    Bookmark,
    BookmarkType,
    L2Block,
    L2BlockEnd,
)
from sluice.datastream.events.original_events import (
    EndL2Block,
    OriginalBookmark,
    OriginalBookmarkType,
    StartL2Block,
)
from sluice.datastream.layout import Entry

__all__ = ["SanityCheck"]

_BLOCK, _BATCH = "block", "batch"
_NETWORK_MARKS = {BookmarkType.BATCH: _BATCH, BookmarkType.L2_BLOCK: _BLOCK}
_ORIGINAL_MARKS = {OriginalBookmarkType.BATCH: _BATCH, OriginalBookmarkType.L2_BLOCK: _BLOCK}


class SanityCheck:
    """A check of the order of entries.

    Args:
        read: returns the event of an entry; called once for each.
    """

    def __init__(self, read: Callable[[Entry], Event] = event_of) -> None:
        self._read = read
        self.entry_count = 0
        self.finding_count = 0
        self._last: dict[str, int] = {}
        """The last number of each kind: "entry", "block", "batch", and bookmarks of blocks and batches."""
        self._open: dict[str, int | None] = {}
        """The open block and batch; no key before the first."""

    def feed(self, entry: Entry) -> list[str]:
        """Check the next entry; return a line for each fault."""
        findings = [
            f"entry {entry.number}: {text}"
            for text in (
                *self._follow("entry", entry.number),
                *self._feed_event(self._read(entry)),
            )
        ]
        self.entry_count += 1
        self.finding_count += len(findings)
        return findings

    def _feed_event(self, event: Event) -> list[str]:
        match event:
            case L2Block(number=number) | StartL2Block(block_number=number):
                return self._begin(_BLOCK, number)
            case L2BlockEnd(number=number) | EndL2Block(block_number=number):
                return self._end(_BLOCK, number)
            case BatchStart(number=number):
                return self._begin(_BATCH, number)
            case BatchEnd(number=number):
                if _BLOCK in self._open:
                    self._open[_BLOCK] = None
                return self._end(_BATCH, number)
            case Bookmark(type=kind, value=number) if kind in _NETWORK_MARKS:
                return self._mark(_NETWORK_MARKS[BookmarkType(kind)], number, "network")
            case OriginalBookmark(type=kind, number=number) if kind in _ORIGINAL_MARKS:
                return self._mark(_ORIGINAL_MARKS[OriginalBookmarkType(kind)], number, "original")
        return []

    def _follow(self, what: str, number: int, form: str = "") -> list[str]:
        expected = self._last.get(form + what, number - 1) + 1
        self._last[form + what] = number
        return [] if number == expected else [f"{what} {number}, expected {expected}"]

    def _begin(self, what: str, number: int) -> list[str]:
        still_open = self._open.get(what)
        self._open[what] = number
        findings = [] if still_open is None else [f"{what} {number} begins before {still_open} has ended"]
        return [*findings, *self._follow(what, number)]

    def _end(self, what: str, number: int) -> list[str]:
        # The stream may be read from mid-block, so the first end is accepted.
        is_first = what not in self._open
        expected = self._open.get(what)
        self._open[what] = None
        if is_first or number == expected:
            return []
        return [f"end of {what} {number}, expected {'none' if expected is None else f'that of {expected}'}"]

    def _mark(self, what: str, number: int, form: str) -> list[str]:
        mark = f"bookmark of {what}"
        if what == _BATCH and self._last.get(form + mark) == number:
            return []
        return self._follow(mark, number, form)
