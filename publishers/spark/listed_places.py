"""The blocks of a streaming query's folders, listed again only for what the last listing does not say.

A batch takes the next thousand of what is listed, so a query over all files lists them once. When it has
come to the end of that, a disk is listed again if one of its folders has changed. An object store is asked
for the names behind that of the last block, where names are in the order of numbers; for all of them again
only so often that this takes a twentieth of the time: a file may have come before.
"""

from __future__ import annotations

import itertools
import time
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from sluice.publishers.blocks.block_places import BlockPlace, FileStore
from sluice.publishers.blocks.watched_store import WatchedStore
from sluice.publishers.errors import BlockListError
from sluice.publishers.number_range import NumberRange
from sluice.publishers.spark.folders import BlockFolders

__all__ = ["ListedPlaces"]

PLACES_MAX: Final = 500_000
"""Most places that are remembered, some 200 bytes each; behind them the folders are listed again."""
WHOLE_LISTING_SHARE: Final = 20
"""A whole listing of an object store waits for as many times what the last one took."""


class ListedPlaces:
    """Remembers a listing, from the block on that was asked for.

    Args:
        folders: they grow.
        numbers: the wanted blocks.
        places_max: how many are remembered.
    """

    def __init__(self, folders: BlockFolders, numbers: NumberRange, places_max: int = PLACES_MAX) -> None:
        self._places_max = places_max
        self.count = 0
        """Listings so far."""
        self.whole_count = 0
        """Those of all files."""
        self._folders = folders
        self._wanted = numbers
        self._store: FileStore | None = None
        self._places: list[BlockPlace] = []
        self._known = NumberRange(0, 0)
        """The numbers of which the listing says whether they are there."""
        self._after_all = 0
        self._last_path: str | None = None
        """The name behind which the blocks are that were asked for last; None: it is not known."""
        self._is_in_order = False
        """The names of the last whole listing rise with the numbers."""
        self._can_continue = True
        self._whole_at = 0.0
        """When all files may be listed again."""

    def __reduce__(self) -> tuple[type[ListedPlaces], tuple[BlockFolders, NumberRange]]:
        """Travel to the workers without the places: each of them has its own in its partition."""
        return type(self), (self._folders, self._wanted)

    def after_all(self) -> int:
        """Return the number after the highest there is now; 0: there is none."""
        self._whole_at = 0.0
        self._look(self._known.first)
        return self._after_all

    def known_end(self) -> int:
        """Return the number after the highest of the last listing."""
        return self._after_all

    def first(self) -> int | None:
        """Return the lowest number there is; None: there is none."""
        self._look(0)
        return self._places[0].number if self._places else None

    def end_of_run(self, following: int) -> int:
        """Return the number after the last before a gap; `following` if it is not there."""
        end = self._run_end(following)
        if end == following:
            self._look(following)
            end = self._run_end(following)
        return end

    def next_one(self, following: int) -> BlockPlace | None:
        """Return the first listed place from `following` on; None: there is none."""
        at = self._at(following)
        return self._places[at] if at < len(self._places) else None

    def between(self, first: int, end: int, *, again: bool = False) -> Sequence[BlockPlace]:
        """Return the places from `first` to before `end`; `again` lists them anew."""
        is_known = first in self._known and end - 1 in self._known
        if again or not is_known or self._at(end) - self._at(first) < end - first:
            return self._folders.blocks(self._wanted.narrowed(first, end), is_growing=True)
        return self._places[self._at(first) : self._at(end)]

    def _at(self, number: int) -> int:
        return bisect_left(self._places, number, key=lambda place: place.number)

    def _run_end(self, following: int) -> int:
        """Numbers that rise by one keep their distance to their positions."""
        if following not in self._known:
            return following
        start = self._at(following)
        if start == len(self._places) or self._places[start].number != following:
            return following
        distance = following - start
        behind = bisect_left(
            range(start, len(self._places)), distance + 1, key=lambda at: self._places[at].number - at
        )
        return following + behind

    def _look(self, following: int) -> None:
        if (
            following in self._known
            and isinstance(self._store, WatchedStore)
            and not self._store.has_changed()
        ):
            return
        self._list(following)

    def _list(self, following: int) -> None:
        self.count += 1
        began = time.monotonic()
        places = self._later(following) if began < self._whole_at else None
        if places is None:
            self.whole_count += 1
            places = self._all(following)
            ended = time.monotonic()
            self._whole_at = ended + WHOLE_LISTING_SHARE * (ended - began)
            self._is_in_order = all(one.path <= other.path for one, other in itertools.pairwise(places))
        self._after_all = places[-1].number + 1 if places else self._after_all
        self._places = places[: self._places_max]
        end = places[self._places_max].number if len(places) > self._places_max else None
        self._known = NumberRange(following, end)

    def _all(self, following: int) -> list[BlockPlace]:
        if self._folders.is_remote:
            self._store = self._folders.store()
        else:
            if not isinstance(self._store, WatchedStore):
                self._store = WatchedStore()
            self._store.begin()
        return self._folders.blocks(self._wanted.narrowed(following), is_growing=True, store=self._store)

    def _later(self, following: int) -> list[BlockPlace] | None:
        """Return what is behind the block before `following`; None: all files must be listed for that."""
        at = self._at(following) - 1
        if at >= 0 and self._places[at].number == following - 1:
            last = self._places[at]
            self._last_path = last.path if last.entry < 0 else last.path[:-1]  # an archive may have more
        elif following != self._known.first:
            self._last_path = None
        if self._last_path is None or not (self._is_in_order and self._can_continue):
            return None
        store = self._folders.behind(self._last_path)
        if store is not None:
            with suppress(BlockListError):
                return self._folders.blocks(self._wanted.narrowed(following), is_growing=True, store=store)
        self._can_continue = False  # such as for credentials that only pyarrow.fs finds
        return None
