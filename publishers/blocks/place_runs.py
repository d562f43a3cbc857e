"""Places of consecutive blocks as runs, so that a plan has a few words for thousands of files.

    chain/12.blk.gz chain/13.blk.gz …   ──►   folder chain/, numbers 12 to 99, ending .blk.gz

Pure. A run has the places in one folder, or in one archive, whose names follow from their numbers.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sluice.publishers.blocks.block_places import BlockPlace

__all__ = ["PlaceRun", "places_of", "runs_of"]

_NAME: Final = re.compile(r"(?P<before>(?:.*/)?)(?P<digits>[0-9]+)(?P<ending>\.[^/]*)", re.ASCII | re.DOTALL)


@dataclass(frozen=True, slots=True)
class PlaceRun:
    """Consecutive blocks whose names differ in their numbers alone."""

    first: int
    count: int
    before: str
    """Of the name: folders with a `/` behind them."""
    digits: int
    """Digits of a name, with leading zeros; 0: none lead."""
    modulus: int
    """A name has the number modulo this one; 0: all of it."""
    ending: str
    archive: str | None = None
    """The archive whose members these are; None: each block has its own file."""
    entry: int = -1
    """Position of the first in the archive; the others follow."""
    sizes: bytes = b""
    """Stored sizes of the members: 64-bit numbers."""
    changed_ns: int = 0

    def places(self) -> Iterator[BlockPlace]:
        """Yield the places in order."""
        sizes = array("q", self.sizes)
        for step in range(self.count):
            number = self.first + step
            shown = number % self.modulus if self.modulus else number
            name = f"{self.before}{shown:0{self.digits}}{self.ending}"
            if self.archive is None:
                yield BlockPlace(number, name)
            else:
                yield BlockPlace(number, self.archive, name, self.entry + step, sizes[step], self.changed_ns)


def runs_of(places: Sequence[BlockPlace]) -> tuple[PlaceRun, ...]:
    """Return places in order of number as runs; `places_of` gives them back."""
    runs: list[PlaceRun] = []
    start = 0
    while start < len(places):
        head = _run_at(places[start])
        end = start + 1
        while end < len(places) and _follows(head, places[end], end - start):
            end += 1
        sizes = b""
        if head.archive is not None:
            sizes = array("q", (place.size_bytes for place in places[start:end])).tobytes()
        runs.append(replace(head, count=end - start, sizes=sizes))
        start = end
    return tuple(runs)


def places_of(runs: Iterable[PlaceRun]) -> Iterator[BlockPlace]:
    """Yield the places of runs, in order."""
    for run in runs:
        yield from run.places()


def _run_at(place: BlockPlace) -> PlaceRun:
    is_member = place.entry >= 0
    match = _NAME.fullmatch(place.member if is_member else place.path)
    assert match is not None, place  # a block's name has its digits
    digits = match["digits"]
    modulus = 0 if int(digits) == place.number else 10 ** len(digits)
    return PlaceRun(
        place.number,
        1,
        match["before"],
        len(digits) if digits[0] == "0" or modulus else 0,
        modulus,
        match["ending"],
        place.path if is_member else None,
        place.entry,
        changed_ns=place.changed_ns,
    )


def _follows(head: PlaceRun, place: BlockPlace, step: int) -> bool:
    number = head.first + step
    found, path, member, entry, _, changed_ns = place
    if found != number:
        return False
    shown = number % head.modulus if head.modulus else number
    name = head.before + str(shown).zfill(head.digits) + head.ending
    if head.archive is None:
        return path == name and entry < 0
    return (path, member, entry, changed_ns) == (head.archive, name, head.entry + step, head.changed_ns)
