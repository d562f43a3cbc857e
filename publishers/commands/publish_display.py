"""The output of `sluice publish`: a progress bar, or lines without a terminal; a final table, lines or JSON.

All have the same figures under the names of `publishers.report`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Self, TextIO

import click
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from sluice.gateway.table_lines import lines_on_their_side
from sluice.publishers.report import JobProgress, JobReport, PublishReport, percentile_ns

__all__ = ["FIGURES", "Display", "progress_text", "report_json", "report_lines", "report_table"]

LINE_SECONDS: Final = 10.0
"""Time between two lines of progress without a terminal."""
_MILLISECOND_NS: Final = 1_000_000
_BAR_CHARACTERS_MIN: Final = 4
"""A narrower bar is left out."""
_BAR_CHARACTERS_MAX: Final = 20
_WINNERS_MAX: Final = 8
_TROUBLE_CHARACTERS_MAX: Final = 200


def _milliseconds(percent: float) -> Callable[[PublishReport], object]:
    def text(report: PublishReport) -> str:
        latency_ns = percentile_ns(report.latency_ns, percent)
        return "-" if latency_ns is None else f"{latency_ns / _MILLISECOND_NS:.1f} ms"

    return text


FIGURES: Final[tuple[tuple[str, Callable[[PublishReport], object]], ...]] = (
    ("blocks", lambda report: report.blocks),
    ("won", lambda report: report.won),
    ("skipped", lambda report: report.skipped),
    ("acknowledged", lambda report: report.acknowledged),
    ("duplicate", lambda report: report.duplicate),
    ("resent", lambda report: report.resent),
    ("reconnects", lambda report: report.reconnects),
    ("failovers", lambda report: report.failovers),
    ("latency_p50", _milliseconds(50)),
    ("latency_p99", _milliseconds(99)),
)
"""The figures of each publisher, by their names in its report and in JSON."""


def report_table(report: JobReport, console: Console) -> RenderableType:
    """Return the final table: a row for each publisher, or a column if that is too wide."""
    table = Table(title=_summary(report))
    rows = [("publisher_id", *(name for name, _ in FIGURES))]
    for published in report.publishers:
        rows.append((published.publisher_id, *(f"{value(published)}" for _, value in FIGURES)))
    for number, title in enumerate(rows[0]):
        table.add_column(title, justify="right" if number else "left")
    for row in rows[1:]:
        table.add_row(*map(Text, row))
    if console.measure(table, options=console.options.update(width=sys.maxsize)).maximum <= console.width:
        return table
    return Text("\n".join([_summary(report), "", *lines_on_their_side(rows, console.width)]).rstrip())


def report_lines(report: JobReport) -> list[str]:
    """Return the final report as plain lines."""
    lines = [_summary(report)]
    for published in report.publishers:
        facts = ", ".join(f"{name} {value(published)}" for name, value in FIGURES)
        lines.append(f"{published.publisher_id}: {facts}")
    return lines


def report_json(report: JobReport, go_on: str | None) -> str:
    """Return the final report as one JSON object; `go_on` is the command for what is left."""
    return json.dumps(report.to_fields() | {"go_on": go_on})


def progress_text(progress: JobProgress) -> str:
    """Return the progress in one line."""
    return ", ".join(_progress_lines(progress))


def _progress_lines(progress: JobProgress) -> list[str]:
    awaited = [] if progress.awaited is None or progress.is_stopping else [_one_line(progress.awaited)]
    if not progress.publishers:
        return [_doing(progress), *awaited]
    figures = _head_and_rate(progress.safe_through, progress.blocks_per_second)
    won = f"won {_winners(progress.publishers)}"
    return [f"{_doing(progress)}, {figures}", won, *awaited, *_troubles(progress.publishers)]


def _doing(progress: JobProgress) -> str:
    if progress.is_stopping:
        return "Finishing the block in flight (Ctrl-C again ends at once)"
    # A gateway may take blocks, but not serve its status.
    is_heard = any(row.offered and row.trouble is None for row in progress.publishers)
    if not progress.is_reachable and not is_heard:
        return "No gateway answers"
    if not progress.publishers:
        return "Starting publishers"
    return f"Publishing ({progress.running} running)"


def _head_and_rate(safe_through: int | None, blocks_per_second: float) -> str:
    return f"safe_through {_number(safe_through)}, {blocks_per_second:.1f} blocks_per_second"


def _winners(rows: Iterable[PublishReport]) -> str:
    ordered = sorted(rows, key=lambda row: (-row.won, row.publisher_id))
    words = [f"{row.publisher_id} {row.won}" for row in ordered[:_WINNERS_MAX]]
    return " / ".join(words + ["…"] * (len(ordered) > _WINNERS_MAX))


def _troubles(rows: Iterable[PublishReport]) -> list[str]:
    """Return the trouble of one publisher; mostly all have the same."""
    said = [f"{row.publisher_id}: {row.trouble}" for row in rows if row.trouble is not None]
    return [_one_line(said[0]) + (f" (and {len(said) - 1} more)" if len(said) > 1 else "")] if said else []


def _one_line(text: str) -> str:
    """Cut what a gateway says to one printable line."""
    words = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return words if len(words) <= _TROUBLE_CHARACTERS_MAX else words[: _TROUBLE_CHARACTERS_MAX - 1] + "…"


def _number(number: int | None) -> str:
    return "-" if number is None else str(number)


def _summary(report: JobReport) -> str:
    if report.first_block is None or report.last_block is None:
        return f"no blocks came, {report.elapsed_seconds:.1f} s"
    blocks = (
        f"block {report.first_block}"
        if report.first_block == report.last_block
        else f"blocks {report.first_block} to {report.last_block}"
    )
    if report.is_complete:
        state = "stored"
    elif report.is_interrupted:
        state = "interrupted"
    else:
        state = "not all stored as far as is known"
    figures = _head_and_rate(report.safe_through, report.blocks_per_second)
    return f"{blocks}: {state}, {figures}, {report.elapsed_seconds:.1f} s"


class _Bar(Progress):
    """A bar with count and time, and below it lines of text, which wrap on a narrow terminal.

    Its one task has the fields `blocks`, the count, and `lines`.
    """

    def __init__(self, console: Console) -> None:
        # A terminal without the dots shows question marks.
        spinner = SpinnerColumn("line" if console.options.ascii_only else "dots", table_column=_uncut())
        blocks = TextColumn("{task.fields[blocks]}", table_column=_uncut())
        self._time = TimeElapsedColumn(table_column=_uncut())
        bar = BarColumn(bar_width=None, table_column=Column(max_width=_BAR_CHARACTERS_MAX))
        super().__init__(spinner, bar, blocks, self._time, console=console, transient=True)

    def get_renderables(self) -> Iterator[RenderableType]:
        """Yield the rows."""
        for task in self.tasks:
            said = f"{task.fields['blocks']} {self._time.render(task)}"
            if len(said) + _BAR_CHARACTERS_MIN + len("| ") + len(" ") <= self.console.width:
                yield self.make_tasks_table([task])
            else:
                yield Text(said)
            yield from map(Text, task.fields["lines"])


def _uncut() -> Column:
    """Return a column that is as wide as its content; the bar has the rest."""
    return Column(no_wrap=True)


class Display:
    """The progress on standard error: a bar on a terminal, else a line now and then; a context manager."""

    def __init__(self, *, is_quiet: bool, now: Callable[[], float] = time.monotonic) -> None:
        self._is_quiet = is_quiet
        self._now = now
        self._said_at: float | None = None
        self._said = ""
        console = Console(stderr=True)
        self._terminal: TextIO | None = None
        if not is_quiet and sys.stderr.isatty():
            # While Spark starts, standard error is a file, and the bar is to go on.
            again = os.dup(sys.stderr.fileno())
            self._terminal = os.fdopen(again, "w", encoding=sys.stderr.encoding, errors=sys.stderr.errors)
            console = Console(file=self._terminal)
        self._task: Any = None
        self._bar = _Bar(console) if not is_quiet and console.is_terminal else None

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("", total=None, blocks="", lines=["Starting publishers"])
        return self

    def starting(self, what: str) -> None:
        """Show what takes the time before there is progress."""
        if self._bar is not None:
            self._bar.update(self._task, lines=[what])

    def say(self, text: str) -> None:
        """Print a line that stays, above the bar if there is one."""
        if self._bar is not None:
            self._bar.console.print(f"sluice: {text}", markup=False, highlight=False)
        else:
            click.echo(f"sluice: {text}", err=True)

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._terminal is not None:
            self._terminal.close()

    def show(self, progress: JobProgress) -> None:
        """Show the progress."""
        if self._is_quiet:
            return
        if self._bar is None:
            self._say(progress_text(progress))
            return
        done, total = _done(progress)
        blocks = f"blocks {done}" if total is None else f"blocks {done}/{total}"
        lines = _progress_lines(progress)
        self._bar.update(self._task, total=total, completed=done, blocks=blocks, lines=lines)

    def _say(self, text: str) -> None:
        now = self._now()
        if self._said_at is None:
            self._said_at = now
        if text != self._said and now - self._said_at >= LINE_SECONDS:
            self._said, self._said_at = text, now
            self.say(text)


def _done(progress: JobProgress) -> tuple[int, int | None]:
    """Return how many blocks are stored, and how many there are."""
    first, last = progress.first_block, progress.last_block
    if first is None:
        begins = [row.first_block for row in progress.publishers if row.first_block is not None]
        first = min(begins, default=0)
    done = 0 if progress.safe_through is None else max(0, progress.safe_through - first + 1)
    if last is None:
        return done, None
    return min(done, last - first + 1), last - first + 1
