"""Chains that grow, for `sluice publish --follow` without Spark: their blocks in order, as they come.

    look ──► the blocks from the next one on, up to a gap ──► publishers
      ▲                     │ none
      └──── pause ◄─────────┘    `awaited` says which block, and since when

Nothing but the next block moves it on, so a gap is waited for. What is known of later blocks is bounded.

A folder of a million files takes seconds to list. So the next file is first looked for under the name that
follows from the last one. A folder is listed when it or an archive in it has changed, and at most a small
part of the time.
Source: docs/spark.md, "sluice publish".
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Protocol

from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.stream_layout import BlockDecoder
from sluice.publishers.blocks.block_layouts import has_glob, number_of_parts
from sluice.publishers.blocks.block_places import (
    FILE_LOOK_SECONDS,
    FILE_WRITE_SECONDS_MAX,
    BlockPlace,
    FileStore,
    missing_text,
    read_if_whole,
)
from sluice.publishers.blocks.watched_store import WatchedStore
from sluice.publishers.errors import BlockFileError, SourceUnreachable
from sluice.publishers.number_range import NumberRange
from sluice.publishers.sources.block_gateways import BlockGateways
from sluice.publishers.sources.entry_server import EntryServers
from sluice.publishers.sources.failover import RETRY_SECONDS, warn
from sluice.publishers.spark.folders import BlockFolders

__all__ = ["Awaited", "ChainFollower", "GrowingChain", "GrowingFiles", "GrowingNode", "GrowingStream"]

PLACES_MAX: Final = 10_000
"""Most places of later blocks that are remembered; for more, the folders are listed again."""
LIST_SHARE: Final = 20
"""Between two listings passes at least so many times as long as one takes."""
LIST_SECONDS_MAX: Final = 30.0
"""Longest time between two listings where no change is seen: a network's file system may not show one."""
GUESS_SECONDS: Final = 1.0
"""So long after a file that was found by its name, the next one is taken to come under its name, too."""
_CONSENSUS_DIGITS: Final = 36
"""A consensus node marks whole files, so only a listing tells whether the next one is whole."""


@dataclass(frozen=True, slots=True)
class Awaited:
    """The block that a follower waits for."""

    number: int | None
    """None: the first one there will be."""
    since: float
    """Seconds since 1970."""
    why: str | None = None
    """None: it is not there yet, and no later one is known."""

    def __str__(self) -> str:
        block = "the first block" if self.number is None else f"block {self.number}"
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"waiting for {block} since {since}" + (f": {self.why}" if self.why else "")


class GrowingChain(Protocol):
    """A source that has more blocks at every look."""

    pause_seconds: float
    """Time between two looks that found nothing."""

    def read(self, number: int | None, end: int | None) -> Iterator[Block]:
        """Yield the blocks that are there from `number` (None: the first there is) to before `end`, up to a
        gap. Raises what is wrong with the source.
        """

    @property
    def why(self) -> str | None:
        """Why the last look ended where it did; None: there was nothing more."""

    @property
    def where(self) -> str | None:
        """The place of the block that was read last, for errors; None: its number says it."""


class ChainFollower:
    """Reads a growing chain, once.

    Args:
        first: the block to begin with; None: the first there is.
        end: the block to end before; None: it never ends.
        on_begin: is told the first block before that is given.
    """

    def __init__(
        self,
        chain: GrowingChain,
        first: int | None,
        end: int | None,
        on_begin: Callable[[int], None] = lambda number: None,
    ) -> None:
        self.awaited: Awaited | None = None
        """None: blocks are coming. Read by other threads."""
        self._chain = chain
        self._next = first
        self._end = end
        self._on_begin = on_begin
        self._stopped = threading.Event()

    @property
    def where(self) -> str | None:
        """See `GrowingChain`."""
        return self._chain.where

    def stop(self) -> None:
        """End `blocks` at its next look, in whatever thread it runs."""
        self._stopped.set()

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks in order, as they come, up to the end or `stop`; raise as the source."""
        has_begun = False
        while self._end is None or self._next is None or self._next < self._end:
            for block in self._chain.read(self._next, self._end):
                if not has_begun:
                    self._on_begin(block.number)
                    has_begun = True
                self.awaited = None
                self._next = block.number + 1
                yield block
            if self._stopped.is_set():
                return
            if self._end is not None and self._next is not None and self._next >= self._end:
                return
            self._await()
            if self._stopped.wait(self._chain.pause_seconds):
                return

    def _await(self) -> None:
        if self.awaited is None or self.awaited.number != self._next:
            self.awaited = Awaited(self._next, time.time(), self._chain.why)
        elif self.awaited.why != self._chain.why:
            self.awaited = replace(self.awaited, why=self._chain.why)


# --- folders of block files ---------------------------------------------------------------------------------


class GrowingFiles:
    """Block files and archives that others write into folders."""

    def __init__(
        self,
        folders: BlockFolders,
        now: Callable[[], float] = time.monotonic,
        places_max: int = PLACES_MAX,
    ) -> None:
        self._places_max = places_max
        self.pause_seconds = FILE_LOOK_SECONDS
        self.why: str | None = None
        self.where: str | None = None
        self._folders = folders
        self._now = now
        self._store: FileStore = folders.store() if folders.is_remote else WatchedStore()
        self._roots = folders.roots()
        self._may_guess = not folders.is_remote and not any(map(has_glob, self._roots))
        self._places: deque[BlockPlace] = deque()  # the next blocks, consecutive
        self._last: BlockPlace | None = None
        self._gone: BlockPlace | None = None  # listed, and not there when it was to be read
        self._later: BlockPlace | None = None  # the first one behind a gap
        self._is_cut = True  # the last listing left out blocks behind `places_max`
        self._list_from = self._list_by = 0.0
        self._unfinished: BlockPlace | None = None
        self._give_up_at = 0.0

    def read(self, number: int | None, end: int | None) -> Iterator[Block]:
        """See `GrowingChain`. Raises BlockFileError or BlockListError, which name the file or folder."""
        with self._folders.reader() as reader:
            while end is None or number is None or number < end:
                place = self._place_of(number, end)
                if place is None:
                    self.why = self._gap(number)
                    return
                try:
                    block = read_if_whole(self._store, reader, place)
                except BlockFileError as error:
                    if not isinstance(error.__cause__, FileNotFoundError) or place == self._gone:
                        raise
                    # A block node removes files that it has put into a zip.
                    self._gone, self._is_cut = place, True
                    self._places.clear()
                    continue
                if block is None and self._is_awaited(place):
                    self.why = f"{place} is still being written"
                    return
                # One that is written for ever is read as it is, to say what is wrong with it.
                block = block or reader.read(place)
                self._last, self.where, self._gone = self._places.popleft(), str(place), None
                number = block.number + 1
                yield block

    def _is_awaited(self, place: BlockPlace) -> bool:
        if place != self._unfinished:
            self._unfinished, self._give_up_at = place, self._now() + FILE_WRITE_SECONDS_MAX
        return self._now() < self._give_up_at

    def _gap(self, number: int | None) -> str | None:
        if number is None or self._later is None:
            return None
        return missing_text(number, self._later.number, str(self._later))

    def _place_of(self, number: int | None, end: int | None) -> BlockPlace | None:
        if not self._places:
            self._guess(number)
        if not self._places and self._may_list():
            self._list(number, end)
        return self._places[0] if self._places else None

    def _guess(self, number: int | None) -> None:
        """Look for the file with the next number beside the last one."""
        if not self._may_guess or self._last is None or self._last.path in self._roots:
            return
        path = _path_after(self._store, self._last)
        if path is None:
            return
        with suppress(OSError):
            self._store.state(path)
            place = BlockPlace(self._last.number + 1, path)
            if place.number == number and place != self._gone:
                self._places.append(place)
                self._later = None
                self._list_from = max(self._list_from, self._now() + GUESS_SECONDS)

    def _may_list(self) -> bool:
        now = self._now()
        if self._is_cut:
            return True
        if now < self._list_from:
            return False
        has_changed = not isinstance(self._store, WatchedStore) or self._store.has_changed()
        self._list_from = now + LIST_SHARE * (self._now() - now)
        return has_changed or now >= self._list_by

    def _list(self, number: int | None, end: int | None) -> None:
        began_at = self._now()
        if isinstance(self._store, WatchedStore):
            self._store.begin()
        numbers = NumberRange(0, end) if number is None else NumberRange(number, end)
        if number is not None:
            numbers = numbers.narrowed(end=number + self._places_max)
        places = self._folders.blocks(numbers, is_growing=True, store=self._store)
        number = places[0].number if number is None and places else number
        run = [
            place for at, place in enumerate(places[: self._places_max]) if place.number == (number or 0) + at
        ]
        self._places.extend(run)
        self._is_cut = len(run) == self._places_max
        self._later = places[len(run)] if len(run) < len(places) else None
        ended_at = self._now()
        self._list_from = ended_at + LIST_SHARE * (ended_at - began_at)
        self._list_by = max(ended_at + LIST_SECONDS_MAX, self._list_from)


def _path_after(store: FileStore, place: BlockPlace) -> str | None:
    """Return the path of the next block in the folder of a block file; None: its layout has another one."""
    if place.entry >= 0:
        return None
    folder, slash, name = place.path.rpartition("/")
    digits, dot, ending = name.partition(".")
    if len(digits) == _CONSENSUS_DIGITS:
        return None
    following = str(place.number + 1)
    path = f"{folder}{slash}{following.zfill(len(digits)) if digits[0] == '0' else following}{dot}{ending}"
    return path if number_of_parts(store.parts(path)) == place.number + 1 else None


# --- nodes and their streams --------------------------------------------------------------------------------


class _Troubles:
    """Logs the troubles of servers that are asked again and again: each once, until a look has none."""

    def __init__(self) -> None:
        self._said: set[str] = set()
        self._now: set[str] = set()

    def begin(self) -> Callable[[str], None]:
        """Begin a look; return what takes its troubles."""
        self._said, self._now = self._now, set()
        return self._take

    def _take(self, trouble: str) -> None:
        if trouble not in self._said | self._now:
            warn(trouble)
        self._now.add(trouble)


class GrowingNode:
    """The blocks that a node commits, over gRPC."""

    def __init__(self, gateways: BlockGateways) -> None:
        self.pause_seconds = RETRY_SECONDS
        self.why: str | None = None
        self.where: str | None = None
        self._gateways = gateways
        self._troubles = _Troubles()

    def read(self, number: int | None, end: int | None) -> Iterator[Block]:
        """See `GrowingChain`; it waits for a node that does not answer. Raises SourceRefused."""
        try:
            held = self._gateways.held_surely(on_trouble=self._troubles.begin())
            self.why = None
            first = held.first if number is None else number
            if first is None or held.last is None:
                return
            last = held.last if end is None else min(held.last, end - 1)
            if first <= last:
                yield from self._gateways.blocks(first, last)
        except SourceUnreachable as error:
            self.why = str(error)


class GrowingStream:
    """The blocks in a node's stream, over TCP.

    Args:
        entry_of: returns the entry that a block begins with; None: the server does not have it.
    """

    def __init__(self, servers: EntryServers, entry_of: Callable[[int], int | None]) -> None:
        self.pause_seconds = RETRY_SECONDS
        self.why: str | None = None
        self.where: str | None = None
        self._servers = servers
        self._entry_of = entry_of
        self._decoder = BlockDecoder()
        self._next_entry: int | None = None
        self._troubles = _Troubles()

    def read(self, number: int | None, end: int | None) -> Iterator[Block]:
        """See `GrowingChain`; it waits for a server that does not answer. Raises LayoutError."""
        try:
            total = self._servers.header_surely(self._troubles.begin()).total_entries
            self.why = None
            if self._next_entry is None:
                self._next_entry = 0 if number is None else self._entry_of(number)
            if self._next_entry is None or self._next_entry >= total:
                return
            for entry in itertools.islice(self._servers.entries(self._next_entry), total - self._next_entry):
                self._next_entry = entry.number + 1
                stored = self._decoder.feed(entry.type, entry.data)
                if stored is None:
                    continue
                yield Block(stored.number, stored.items)
                if end is not None and stored.number + 1 >= end:
                    return
        except SourceUnreachable as error:
            self.why = str(error)
