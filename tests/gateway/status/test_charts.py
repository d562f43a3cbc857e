"""Tests of `gateway.status.charts`: what was measured is drawn where it belongs."""

from __future__ import annotations

import re

import pytest

from sluice.gateway.status.charts import block_count, charts, duration, size
from sluice.gateway.status.history import DAY_SLOT_SECONDS, RING_SLOTS, SAMPLE_SECONDS, Ring

AT = 340_000_008  # a slot, in which a point begins: 2023-11-14 22:14:00 UTC


def ring_of(**series: list[float]) -> Ring:
    ring = Ring(SAMPLE_SECONDS)
    for place in range(max(map(len, series.values()))):
        sample = {name: numbers[place] for name, numbers in series.items() if place < len(numbers)}
        ring.add(AT + place, sample)
    return ring


def figure(html: str, title: str) -> str:
    """The figure with this title."""
    found = [each for each in html.split("<figure>")[1:] if each.startswith(f"<figcaption>{title}<div>")]
    assert len(found) == 1
    return found[0]


def test_without_a_sample_there_is_a_word() -> None:
    assert charts(Ring(SAMPLE_SECONDS)) == "<p>The first figures come within 5 s.</p>"


def test_a_line_with_its_newest_number_and_its_scale() -> None:
    html = figure(charts(ring_of(blocks=[1.0] * (RING_SLOTS - 3) + [4.0] * 3)), "blocks")
    assert "<span class=k0> 4.0 /s</span>" in html
    assert "<span>22:14</span><span>0 to 5.0 /s</span><span>23:14</span>" in html
    (path,) = re.findall(r'<path class=l0 d="([^"]+)"/>', html)
    assert path.count("M") == 1  # no gap
    assert path.count("L") == 119
    assert path.startswith("M0 500h0L")
    assert path.endswith("L3569 500L3599 320")


def test_a_gap_breaks_the_line_and_a_point_alone_is_a_dot() -> None:
    ring = Ring(SAMPLE_SECONDS)
    for place, number in ((0, 1.0), (60, 1.0), (63, 1.0)):
        ring.add(AT + place, {"blocks": number})
    html = figure(charts(ring), "blocks")
    (path,) = re.findall(r'<path class=l0 d="([^"]+)"/>', html)
    assert (path.count("M"), path.count("L"), path.count("h0")) == (3, 0, 3)
    assert "<span>22:09</span>" in html


@pytest.mark.parametrize(
    ("count", "begin", "points"),
    [(1, 300, 1), (60, 300, 60), (61, 600, 61), (480, 2400, 120), (720, 3600, 120)],
)
def test_a_young_node_has_a_shorter_time(count: int, begin: int, points: int) -> None:
    html = figure(charts(ring_of(blocks=[1.0] * count)), "blocks")
    minutes = (AT + count) * SAMPLE_SECONDS // 60 - begin // 60
    assert f"<span>{minutes // 60 % 24:02}:{minutes % 60:02}</span><span>0 to" in html
    (path,) = re.findall(r'<path class=l0 d="([^"]+)"/>', html)
    assert path.count("M") + path.count("L") == points
    assert re.search(r"[LM](3599|3600) \d+(h0)?$", path)  # the newest is at the edge


def test_a_peak_stays_and_a_rate_becomes_its_mean() -> None:
    ring = ring_of(blocks=[0.0] * 720, inflight_bytes=[0.0] * 720)
    start = ring.end - 3
    for slot, number in ((start, 0.0), (start + 1, 8.0), (start + 2, 1.0)):
        ring.add(slot, {"blocks": number * 3, "inflight_bytes": number * 1024})
    html = charts(ring)
    assert "0 to 8.0 KiB" in figure(html, "in flight")
    assert "0 to 24" not in figure(html, "blocks")


def test_lines_of_one_chart_have_names_and_only_those_that_there_are() -> None:
    html = charts(ring_of(latency_p50_seconds=[0.004], latency_p99_seconds=[0.009], catch_up_blocks=[3.0]))
    assert "<span class=k0>p50 4.0 ms</span> <span class=k1>p99 9.0 ms</span>" in html
    behind = figure(html, "behind by")
    assert "<span class=k2>this node 3 blocks</span>" in behind
    assert "subscriber" not in behind
    assert "<div>–</div>" in figure(html, "in flight")
    assert "<span>nothing measured</span>" in figure(html, "in flight")


def test_resends_and_refusals_by_reason() -> None:
    ring = ring_of(
        **{"resent timed_out": [0.2, 0.4], "resent left": [0.0, 0.2], "refused bad proof": [0.2]},
    )
    html = charts(ring)
    assert "blocks resent: timed out 3, left 1; refused: bad proof 1" in html
    assert "<span class=k1>resends 0.6 /s</span>" in figure(html, "answers to publishers")


def test_a_disk_that_fills_says_when_it_is_full() -> None:
    gib = 1 << 30
    filling = ring_of(disk_free_bytes=[float(100 * gib - at * gib // 8) for at in range(720)])
    assert "10.1 GiB</span> <b>full in 6 min</b> if it goes on so" in figure(charts(filling), "disk free")
    assert "full in" not in charts(ring_of(disk_free_bytes=[float(gib)] * 720))


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.0004, "0.4 ms"), (1.0, "1.0 s"), (120.0, "2 min"), (7200.0, "2 h 0 min"), (864_000.0, "10 days")],
)
def test_times_in_words(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("size_bytes", "words"), [(0, "0 bytes"), (2048, "2.0 KiB"), (3 << 20, "3.0 MiB"), (5 << 40, "5.0 TiB")]
)
def test_sizes_in_words(size_bytes: int, words: str) -> None:
    assert size(size_bytes) == words


def test_a_day_begins_and_ends_with_the_name_of_a_day() -> None:
    ring = Ring(DAY_SLOT_SECONDS)
    for slot in range(RING_SLOTS):
        ring.add(AT * SAMPLE_SECONDS // DAY_SLOT_SECONDS + slot, {"blocks": 1.0})
    assert re.search(
        r"<span>Tue \d\d:\d\d</span><span>0 to 1.0 /s</span><span>Wed \d\d:\d\d</span>", charts(ring)
    )


@pytest.mark.parametrize(("number", "words"), [(0, "0 blocks"), (1, "1 block"), (1234, "1,234 blocks")])
def test_numbers_of_blocks_in_words(number: int, words: str) -> None:
    assert block_count(number) == words
