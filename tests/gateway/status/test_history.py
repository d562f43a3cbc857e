"""Tests of `gateway.status.history`: every slot in its place, and a file that is whole or nothing."""

from __future__ import annotations

import math
import random
import struct
import zlib

import pytest

from sluice.gateway.errors import InvalidInput
from sluice.gateway.status.history import (
    DAY_SLOT_SECONDS,
    RING_SLOTS,
    SAMPLE_SECONDS,
    SERIES_MAX,
    History,
    Ring,
    full_in_seconds,
)

NOON = 1_700_006_400.0  # a multiple of two minutes


def shown(ring: Ring, name: str) -> list[float | None]:
    return [None if math.isnan(number) else number for number in ring.numbers(name)]


def filled(seconds: int, *, begin: float = NOON) -> History:
    """A history of so many seconds, in which `blocks` counts the samples."""
    history = History()
    for at in range(0, seconds, SAMPLE_SECONDS):
        history.note(begin + at, {"blocks": float(at // SAMPLE_SECONDS), "latency_p99_seconds": at % 7 / 8})
    return history


def test_samples_stand_one_behind_the_other() -> None:
    history = filled(20)
    assert shown(history.hour, "blocks") == [0.0, 1.0, 2.0, 3.0]
    assert history.hour.end == NOON // SAMPLE_SECONDS + 4
    assert history.hour.numbers("nothing") == ()
    assert history.day.count == 0


def test_a_time_without_samples_is_a_gap() -> None:
    history = filled(10)
    history.note(NOON + 25, {"blocks": 9.0})
    assert shown(history.hour, "blocks") == [0.0, 1.0, None, None, None, 9.0]
    history.note(NOON + 100 * 3600, {"blocks": 1.0})
    assert shown(history.hour, "blocks") == [None] * (RING_SLOTS - 1) + [1.0]


def test_a_series_that_begins_later_has_nothing_before() -> None:
    history = filled(10)
    history.note(NOON + 10, {"refused bad proof": 0.2})
    assert shown(history.hour, "refused bad proof") == [None, None, 0.2]
    assert shown(history.hour, "blocks") == [0.0, 1.0, None]


def test_a_ring_keeps_its_newest_slots() -> None:
    history = filled(SAMPLE_SECONDS * (RING_SLOTS + 3))
    assert history.hour.count == RING_SLOTS == len(history.hour.numbers("blocks"))
    assert (history.hour.numbers("blocks")[0], history.hour.numbers("blocks")[-1]) == (3.0, RING_SLOTS + 2)


def test_a_clock_that_goes_back_takes_the_samples_behind_it_away() -> None:
    history = filled(20)
    history.note(NOON + 5, {"blocks": 7.0})
    assert shown(history.hour, "blocks") == [0.0, 7.0]
    history.note(NOON - 3600, {"blocks": 8.0})
    assert shown(history.hour, "blocks") == [8.0]


def test_two_samples_in_one_slot_are_the_later_one() -> None:
    history = filled(10)
    history.note(NOON + 6, {"blocks": 5.0})
    assert shown(history.hour, "blocks") == [0.0, 5.0]


def test_two_minutes_become_one_slot_of_the_day() -> None:
    history = filled(2 * DAY_SLOT_SECONDS + 5)
    assert shown(history.day, "blocks") == [sum(range(24)) / 24, sum(range(24, 48)) / 24]
    assert shown(history.day, "latency_p99_seconds") == [0.75, 0.75]  # the highest
    assert history.day.end == NOON // DAY_SLOT_SECONDS + 2


def test_what_was_not_measured_is_no_part_of_the_mean() -> None:
    history = History()
    for at in range(0, DAY_SLOT_SECONDS + 5, SAMPLE_SECONDS):
        history.note(NOON + at, {"blocks": 2.0} if at == 50 else {"skipped": 1.0})
    assert (shown(history.day, "blocks"), shown(history.day, "skipped")) == ([2.0], [1.0])


def test_a_day_goes_on_behind_a_gap() -> None:
    history = filled(DAY_SLOT_SECONDS)
    history.note(NOON + 3 * DAY_SLOT_SECONDS, {"blocks": 1.0})
    history.note(NOON + 4 * DAY_SLOT_SECONDS, {"blocks": 1.0})
    assert shown(history.day, "blocks") == [11.5, None, None, 1.0]


def test_series_are_bounded() -> None:
    history = History()
    history.note(NOON, {f"reason {number}": 1.0 for number in range(SERIES_MAX + 1)})
    assert len(history.hour.names) == SERIES_MAX


def test_a_packed_history_comes_back_and_goes_on() -> None:
    history = filled(3 * DAY_SLOT_SECONDS)
    again = History.unpack(history.pack())
    for ring, other in ((history.hour, again.hour), (history.day, again.day)):
        assert (ring.end, ring.count, set(ring.names)) == (other.end, other.count, set(other.names))
        for name in ring.names:
            assert shown(ring, name) == shown(other, name)  # these numbers are exact as float32
    for each in (history, again):
        each.note(NOON + 3 * DAY_SLOT_SECONDS + 10, {"blocks": 3.0})
    assert shown(history.day, "blocks") == shown(again.day, "blocks")
    assert len(History.unpack(History().pack()).hour.names) == 0


def test_a_copy_stays_as_it_was() -> None:
    history = filled(130)
    copy, packed = history.copy(), history.pack()
    assert copy.pack() == packed
    history.note(NOON + 130, {"blocks": 1.0})
    assert copy.pack() == packed != history.pack()


def test_a_series_of_one_ring_alone_is_packed_too() -> None:
    history = filled(DAY_SLOT_SECONDS + 5)
    history.note(NOON + DAY_SLOT_SECONDS + 5, {"refused bad proof": 0.25})
    again = History.unpack(history.pack())
    assert shown(again.hour, "refused bad proof")[-2:] == [None, 0.25]
    assert shown(again.day, "refused bad proof") == [None]


def test_every_cut_and_every_changed_byte_is_found() -> None:
    packed = filled(60).pack()
    for size in range(len(packed)):
        with pytest.raises(InvalidInput):
            History.unpack(packed[:size])
    for place in range(len(packed)):
        bent = bytearray(packed)
        bent[place] ^= 0x55
        with pytest.raises(InvalidInput):
            History.unpack(bytes(bent))
    with pytest.raises(InvalidInput):
        History.unpack(packed + b"\0")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]\n",
        b"{}\n",
        b'{"series": 1, "hour": [0, 0], "day": [0, 0]}\n',
        b'{"series": ["a"], "hour": [0, 721], "day": [0, 0]}\n' + bytes(4 * 721),
        b'{"series": ["a"], "hour": [0, -1], "day": [0, 1]}\n',
        b'{"series": ["a"], "hour": [0, 2], "day": [0, 0]}\n' + bytes(7),
        b'{"series": ["a"], "hour": [Infinity, 0], "day": [0, 0]}\n',
        b"[" * 100_000 + b"\n",
        b'{"series": ["a"], "hour": [100000000000000000000, 1], "day": [0, 0]}\n' + bytes(4),
        b'{"series": ["a"], "hour": [-1, 1], "day": [0, 0]}\n' + bytes(4),
        b'{"series": ["a"], "hour": [1, 1], "day": [0, 0]}\n' + struct.pack("<f", math.inf),
        b'{"series": ["refused \\ud800"], "hour": [1, 1], "day": [0, 0]}\n' + bytes(4),
        bytes(2 << 20),
    ],
)
def test_a_file_that_is_whole_and_wrong_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInput):
        History.unpack(b"sluice history 1\n" + zlib.compress(body))


def test_a_whole_day_of_all_series_is_small() -> None:
    dice, history = random.Random(7), History()
    names = [f"series {number}" for number in range(30)]
    for at in range(RING_SLOTS):
        history.hour.add(at, {name: dice.random() for name in names})
        history.day.add(at, {name: dice.random() for name in names})
    assert len(history.pack()) < 200_000  # noise, which does not compress


@pytest.mark.parametrize(
    ("free", "seconds"),
    [
        ([100.0 - at for at in range(60)], 41 * 5),
        ([100.0] * 60, None),
        ([100.0 + at for at in range(60)], None),
        ([100.0 - at for at in range(59)], None),
        ([math.nan] * 700, None),
        ([], None),
        ([1e12 - at for at in range(60)], None),
    ],
)
def test_when_the_disk_is_full(free: list[float], seconds: float | None) -> None:
    assert full_in_seconds(free, 5) == (None if seconds is None else pytest.approx(seconds))


def test_steps_do_not_bend_the_trend() -> None:
    free = [100.0 - at + at % 2 for at in range(99)] + [2.0]
    assert full_in_seconds(free, 5) == pytest.approx(10, rel=0.05)


def test_gaps_do_not_bend_the_trend() -> None:
    free = [100.0 - at if at % 3 else math.nan for at in range(91)]
    assert full_in_seconds(free, 5) == pytest.approx((100 - 89) * 5)
