"""The charts of the status page: a node's history as inline SVG.

Pure. A chart is a figure with a title, the newest number, one or more lines, and the words of its scale:

    blocks
    1.9 /s
    ┌───────────────────────────────┐     the scale begins at 0 and ends at a round number
    │    ╭─╮      ╭──               │     a gap is where the node measured nothing
    └───────────────────────────────┘
    13:05        0 to 5 /s      14:05     UTC

A ring that is not full yet has a shorter time: a new node shows its first five minutes.

The lines of one chart have the colours `l0`, `l1` and `l2` of the page's style.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Final

from sluice.gateway.status.history import PEAKS, RING_SLOTS, Ring, full_in_seconds

__all__ = ["block_count", "charts", "duration", "size"]

DAYS_NAMED_SECONDS: Final = 12 * 3_600
"""A longer chart names the days of its ends: a day begins and ends at the same time."""
POINTS_MAX: Final = 120
"""Points of a line: a chart is some 300 pixels wide."""
_SPANS: Final = (60, 120, 240, 480, RING_SLOTS)
"""The slots that a chart may show."""
NEWEST_SLOTS: Final = 3
WIDTH, HEIGHT = 3_600, 640
"""Tenths of a pixel: whole numbers are drawn in half the time."""


@dataclass(frozen=True, slots=True)
class _Line:
    series: str
    name: str = ""
    """For the legend; a single line has none."""


@dataclass(frozen=True, slots=True)
class _Chart:
    title: str
    lines: tuple[_Line, ...]
    words: Callable[[float], str]
    """A number of the series as text."""
    base: int = 10
    """Round numbers of the scale: 1, 2 and 5 times a power of ten; or powers of two."""


def duration(seconds: float) -> str:
    """Return a time in words."""
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = int(seconds) // 60
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes < 48 * 60 else f"{minutes // 1440} days"


def size(size_bytes: float) -> str:
    """Return a number of bytes in words."""
    for unit, factor in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.1f} {unit}"
    return f"{size_bytes:.0f} bytes"


def _rate(per_second: float) -> str:
    """Slow ones by the minute: 0.02 refusals a second say nothing to people."""
    if per_second < 0.5:
        return f"{per_second * 60:.2g} /min" if per_second else "0 /s"
    return f"{per_second:,.{0 if per_second >= 100 else 1}f} /s"


def block_count(number: float) -> str:
    """Return a number of blocks in words."""
    words = f"{number:,.0f}"
    return f"{words} block" if words == "1" else f"{words} blocks"


_CHARTS: Final = (
    _Chart("blocks", (_Line("blocks"),), _rate),
    _Chart("written", (_Line("bytes"),), lambda number: f"{size(number)}/s", 2),
    _Chart(
        "header to acknowledgement",
        (_Line("latency_p50_seconds", "p50"), _Line("latency_p99_seconds", "p99")),
        duration,
    ),
    _Chart("in flight", (_Line("inflight_bytes"),), size, 2),
    _Chart(
        "answers to publishers",
        (_Line("skipped", "skips"), _Line("resent", "resends"), _Line("refused", "refusals")),
        _rate,
    ),
    _Chart("data-streamer clients behind by", (_Line("tcp_lag_bytes"),), size, 2),
    _Chart(
        "behind by",
        (
            _Line("subscriber_lag_blocks", "subscribers"),
            _Line("standby_lag_blocks", "standbys"),
            _Line("catch_up_blocks", "this node"),
        ),
        block_count,
    ),
    _Chart("disk free", (_Line("disk_free_bytes"),), size, 2),
    _Chart("event loop late, p99", (_Line("loop_lag_p99_seconds"),), duration),
)


def charts(ring: Ring) -> str:
    """Return all charts of a ring as HTML; this takes some 10 ms."""
    if not ring.count:
        return f"<p>The first figures come within {ring.slot_seconds} s.</p>"
    figures = "".join(_figure(ring, chart) for chart in _CHARTS)
    return f"<div class=charts>{figures}</div>{_reasons(ring)}"


def _figure(ring: Ring, chart: _Chart) -> str:
    found = [(place, line, _numbers(ring, line.series)) for place, line in enumerate(chart.lines)]
    known = [each for each in found if not all(map(math.isnan, each[2]))]
    drawn = [(place, _points(ring, line.series, numbers)) for place, line, numbers in known]
    highest = max((number for _, points in drawn for number in points if number > 0), default=0.0)
    top = _top(highest, chart.base)
    width = _span(ring) // _step(ring)
    paths = "".join(f'<path class=l{place} d="{_path(points, top, width)}"/>' for place, points in drawn)
    newest = " ".join(
        f"<span class=k{place}>{escape(line.name)} {_newest(numbers, chart)}</span>"
        for place, line, numbers in known
    )
    more = ""
    if chart.lines[0].series == "disk_free_bytes":
        seconds = full_in_seconds(ring.numbers("disk_free_bytes"), ring.slot_seconds)
        more = "" if seconds is None else f" <b>full in {duration(seconds)}</b> if it goes on so"
    begin, end = ((ring.end - _span(ring)) * ring.slot_seconds, ring.end * ring.slot_seconds)
    clock = "%a %H:%M" if end - begin > DAYS_NAMED_SECONDS else "%H:%M"
    scale = f"0 to {chart.words(top)}" if known else "nothing measured"
    return (
        f"<figure><figcaption>{escape(chart.title)}<div>{newest or '–'}{more}</div></figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio=none role=img '
        f'aria-label="{escape(chart.title)}, {escape(scale)}">{paths}</svg>'
        f"<div class=scale><span>{_clock(begin, clock)}</span><span>{escape(scale)}</span>"
        f"<span>{_clock(end, clock)}</span></div></figure>"
    )


def _span(ring: Ring) -> int:
    """Return the number of slots that the charts of a ring show."""
    return next(span for span in _SPANS if span >= ring.count)


def _step(ring: Ring) -> int:
    """Return the number of slots of one point."""
    return -(-_span(ring) // POINTS_MAX)


def _reasons(ring: Ring) -> str:
    """List resends and refusals by reason."""
    found = []
    for kind in ("resent", "refused"):
        totals = {
            name.removeprefix(f"{kind} "): _total(ring, name)
            for name in ring.names
            if name.startswith(f"{kind} ")
        }
        listed = ", ".join(
            f"{escape(reason.replace('_', ' '))} {total:,}"
            for reason, total in sorted(totals.items(), key=lambda pair: -pair[1])
            if total
        )
        found.append(f"{kind}: {listed or 'none'}")
    return f"<div class=quiet>blocks {'; '.join(found)}</div>"


def _total(ring: Ring, name: str) -> int:
    return round(_or(_sum(ring.numbers(name)), 0.0) * ring.slot_seconds)


def _numbers(ring: Ring, series: str) -> Sequence[float]:
    """Return a series; of `resent` and `refused` the sums over all reasons."""
    reasons = [ring.numbers(name) for name in ring.names if name.startswith(f"{series} ")]
    if not reasons:
        return ring.numbers(series)
    return [_sum(column) for column in zip(*reasons, strict=True)]


def _points(ring: Ring, series: str, numbers: Sequence[float]) -> list[float]:
    """Return the points of a line, each of one slot to three."""
    step = _step(ring)
    if step == 1:
        return list(numbers)
    begin = (ring.end - ring.count) % step  # a point has the same slots in each picture
    fold = _highest if series in PEAKS else _mean
    places = range(-begin, len(numbers), step)
    return [fold(numbers[max(0, place) : place + step]) for place in places]


# NaN makes a sum NaN: asking each number takes three times as long.


def _sum(numbers: Sequence[float]) -> float:
    total = sum(numbers)
    if total == total:
        return total
    known = [number for number in numbers if number == number]
    return sum(known) if known else math.nan


def _mean(numbers: Sequence[float]) -> float:
    total = sum(numbers)
    if total == total:
        return total / len(numbers)
    known = [number for number in numbers if number == number]
    return sum(known) / len(known) if known else math.nan


def _highest(numbers: Sequence[float]) -> float:
    total = sum(numbers)
    known = numbers if total == total else [number for number in numbers if number == number]
    return max(known, default=math.nan)


def _or(number: float, other: float) -> float:
    return other if math.isnan(number) else number


def _newest(numbers: Sequence[float], chart: _Chart) -> str:
    """Of blocks that come more slowly than samples, the last one counts for a while."""
    known = [number for number in numbers[-NEWEST_SLOTS:] if not math.isnan(number)]
    return escape(chart.words(known[-1])) if known else "–"


def _top(number: float, base: int) -> float:
    """Return the round number at which a scale ends."""
    if number <= 0:
        return 1.0
    if base == 2:
        return 2.0 ** math.ceil(math.log2(number))
    power = 10.0 ** math.floor(math.log10(number))
    return next(step * power for step in (1.0, 2.0, 5.0, 10.0) if step * power >= number * 0.999)


def _path(points: Sequence[float], top: float, width: int) -> str:
    """Return the line through the points, broken at NaN; a point alone is a dot.

    Args:
        width: points of a line from edge to edge.
    """
    x_step, y_step = WIDTH / (width - 1), (HEIGHT - 40) / top
    x, words, is_open = x_step * (width - len(points)), [], False
    for number in points:
        if number == number:
            place = f"{int(x)} {HEIGHT - 20 - int(y_step * number)}"
            words.append(f"L{place}" if is_open else f"M{place}h0")
            is_open = True
        else:
            is_open = False
        x += x_step
    return "".join(words)


def _clock(unix_seconds: float, form: str) -> str:
    return f"{datetime.fromtimestamp(unix_seconds, UTC):{form}}"
