"""The history of a node's figures: one hour at 5 s, one day at 2 min.

Pure: `status.sampler` brings a sample every `SAMPLE_SECONDS`, and keeps the packed history in a file.

    ring    slot     slots    a series of 720 numbers takes 6 KB
    hour    5 s      720
    day     2 min    720      made from the hour when 2 min are over

    packed    magic, then zlib of:
              a JSON line     {"series": ["blocks", …], "hour": [end, count], "day": [end, count]}
              float32, little-endian: for each series its hour, then its day, oldest first

A slot's number is the Unix time divided by its length. `end` is the slot after the newest.

Invariants
  - All series of a ring have the same slots without a gap; NaN stands where nothing was measured.
  - A clock that goes back takes the samples behind its new time away.
  - A sample may bring new series, up to `SERIES_MAX`.
"""

from __future__ import annotations

import json
import math
import sys
import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from sluice.gateway.errors import InvalidInput

__all__ = ["SAMPLE_SECONDS", "History", "Ring", "full_in_seconds"]

SAMPLE_SECONDS: Final = 5
DAY_SLOT_SECONDS: Final = 120
RING_SLOTS: Final = 720

SERIES_MAX: Final = 64
"""A node has some 20: figures, and reasons of ours, which no peer can invent."""

PEAKS: Final = frozenset(
    {
        *("latency_p99_seconds", "loop_lag_p99_seconds", "inflight_bytes", "tcp_lag_bytes"),
        *("subscriber_lag_blocks", "standby_lag_blocks", "catch_up_blocks"),
    }
)
"""The series of which a longer slot shows the highest number; of the others it shows the mean."""

TREND_SLOTS_MIN: Final = 60
"""Five minutes."""
FULL_IN_SECONDS_MAX: Final = 365 * 86_400.0
"""A disk that is full later is not filling."""

_MAGIC: Final = b"sluice history 1\n"
_UNIX_SECONDS_END: Final = 253_402_300_800
"""The year 10000, which no clock shows."""
_PACKED_BYTES_MAX: Final = SERIES_MAX * 2 * RING_SLOTS * 4 + 65_536
_NAN: Final = math.nan


class Ring:
    """The newest `RING_SLOTS` slots of all series."""

    def __init__(self, slot_seconds: int) -> None:
        self.slot_seconds = slot_seconds
        self.end = 0
        """The slot after the newest."""
        self.count = 0
        self.version = 0
        """Rises with each sample."""
        self._series: dict[str, array[float]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its series."""
        return tuple(self._series)

    def numbers(self, name: str) -> Sequence[float]:
        """Return a series, the newest slot last; empty if there is none of this name."""
        return self._series.get(name, ())

    def add(self, slot: int, sample: Mapping[str, float]) -> None:
        """Put a sample into a slot, and NaN into slots that were left out."""
        if slot < self.end:
            self._drop_newest(self.end - slot)
        elif self.count:
            self._append({}, min(slot - self.end, RING_SLOTS))
        self._append(sample, 1)
        self.end = slot + 1
        self.version += 1

    def slots(self, first: int, end: int) -> dict[str, list[float]]:
        """Return the numbers that the slots from `first` to `end - 1` have, without NaN."""
        begin = self.end - self.count
        place = slice(max(0, first - begin), max(0, end - begin))
        return {
            name: [number for number in numbers[place] if not math.isnan(number)]
            for name, numbers in self._series.items()
        }

    def copy(self) -> Ring:
        """Return a copy, which another thread may draw or pack."""
        found = Ring(self.slot_seconds)
        found.restore(self.end, {name: numbers[:] for name, numbers in self._series.items()})
        return found

    def restore(self, end: int, series: Mapping[str, array[float]]) -> None:
        """Take over the slots of a packed history."""
        self.end, self._series = end, dict(series)
        self.count = max((len(numbers) for numbers in series.values()), default=0)

    def _append(self, sample: Mapping[str, float], times: int) -> None:
        for name in sample:
            if name not in self._series and len(self._series) < SERIES_MAX:
                self._series[name] = array("d", [_NAN]) * self.count
        self.count = min(self.count + times, RING_SLOTS)
        for name, numbers in self._series.items():
            numbers.extend([sample.get(name, _NAN)] * times)
            del numbers[: len(numbers) - self.count]

    def _drop_newest(self, slot_count: int) -> None:
        self.count = max(0, self.count - slot_count)
        for numbers in self._series.values():
            del numbers[self.count :]


class History:
    """The history of one node."""

    def __init__(self) -> None:
        self.hour = Ring(SAMPLE_SECONDS)
        self.day = Ring(DAY_SLOT_SECONDS)

    def note(self, now_unix_seconds: float, sample: Mapping[str, float]) -> None:
        """Take the sample of the slot that ends now."""
        slot = int(now_unix_seconds // SAMPLE_SECONDS)
        slots_per_day_slot = DAY_SLOT_SECONDS // SAMPLE_SECONDS
        before, now = (self.hour.end - 1) // slots_per_day_slot, slot // slots_per_day_slot
        if self.hour.count and before < now:
            first = before * slots_per_day_slot
            found = self.hour.slots(first, first + slots_per_day_slot)
            self.day.add(before, {name: _fold(name, numbers) for name, numbers in found.items() if numbers})
        self.hour.add(slot, sample)

    def copy(self) -> History:
        """Return a copy."""
        found = History()
        found.hour, found.day = self.hour.copy(), self.day.copy()
        return found

    def pack(self) -> bytes:
        """Return the history as bytes for a file."""
        names = sorted({*self.hour.names, *self.day.names})
        head = {"series": names, **{key: [ring.end, ring.count] for key, ring in self._rings()}}
        body = [json.dumps(head).encode(), b"\n"]
        for name in names:
            body += [_packed(ring.numbers(name) or [_NAN] * ring.count) for _, ring in self._rings()]
        return _MAGIC + zlib.compress(b"".join(body), 1)

    @classmethod
    def unpack(cls, packed: bytes) -> History:
        """Read a packed history.

        Raises:
            InvalidInput: it is damaged, cut off, or of another version.
        """
        if not packed.startswith(_MAGIC):
            raise InvalidInput("history", f"{packed[: len(_MAGIC)]!r}", f"{_MAGIC!r} at its beginning")
        try:
            return cls._read(_inflate(packed[len(_MAGIC) :]))
        except (zlib.error, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise InvalidInput("history", str(error) or type(error).__name__, "a whole history") from error

    @classmethod
    def _read(cls, body: bytes) -> History:
        line, _, numbers = body.partition(b"\n")
        head, history = json.loads(line), cls()
        names = [str(name) for name in head["series"]]
        sizes = [tuple(map(int, head[key])) for key, _ in history._rings()]
        if len(names) > SERIES_MAX or any(not 0 <= count <= RING_SLOTS for _, count in sizes):
            raise ValueError("more than a history has")
        for (_, ring), (end, _) in zip(history._rings(), sizes, strict=True):
            if not 0 <= end * ring.slot_seconds < _UNIX_SECONDS_END:
                raise ValueError(f"a time that no clock shows: slot {end}")
        if not all(map(str.isprintable, names)):
            raise ValueError("a name that is no text")
        if len(numbers) != 4 * len(names) * sum(count for _, count in sizes):
            raise ValueError(f"{len(numbers)} bytes of numbers")
        at = 0
        found: list[dict[str, array[float]]] = [{} for _ in sizes]
        for name in names:
            for series, (_, count) in zip(found, sizes, strict=True):
                series[name] = _unpacked(numbers[at : at + 4 * count])
                at += 4 * count
                if any(map(math.isinf, series[name])):
                    raise ValueError(f"{name}: a number that nothing measures")
        for (_, ring), (end, _), series in zip(history._rings(), sizes, found, strict=True):
            ring.restore(end, series)
        return history

    def _rings(self) -> tuple[tuple[str, Ring], ...]:
        return ("hour", self.hour), ("day", self.day)


def full_in_seconds(free_bytes: Sequence[float], slot_seconds: float) -> float | None:
    """Return in how many seconds the disk is full if it goes on as in this series.

    None: it does not fill, or the series is too short to say so. The trend is the line of least squares.
    """
    known = [(at, number) for at, number in enumerate(free_bytes) if not math.isnan(number)]
    if len(known) < TREND_SLOTS_MIN:
        return None
    middle = sum(at for at, _ in known) / len(known)
    mean = sum(number for _, number in known) / len(known)
    spread = sum((at - middle) ** 2 for at, _ in known)
    slope = sum((at - middle) * (number - mean) for at, number in known) / spread  # bytes a slot
    if slope >= 0:
        return None
    seconds = known[-1][1] / -slope * slot_seconds
    return seconds if seconds <= FULL_IN_SECONDS_MAX else None


def _fold(name: str, numbers: Iterable[float]) -> float:
    found = list(numbers)
    return max(found) if name in PEAKS else sum(found) / len(found)


def _packed(numbers: Iterable[float]) -> bytes:
    """`struct` takes ten times as long, in the event loop."""
    found = array("f", numbers)
    if sys.byteorder == "big":
        found.byteswap()
    return found.tobytes()


def _unpacked(packed: bytes) -> array[float]:
    found = array("f", packed)
    if sys.byteorder == "big":
        found.byteswap()
    return array("d", found)


def _inflate(packed: bytes) -> bytes:
    """Raises ValueError if it is cut off or has more bytes than any history."""
    inflater = zlib.decompressobj()
    body = inflater.decompress(packed, _PACKED_BYTES_MAX)
    if not inflater.eof or inflater.unused_data:
        raise ValueError("cut off, or too long")
    return body
