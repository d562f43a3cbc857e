"""What `sluice publish` shows, always the same figures."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from sluice.publishers.commands.publish_display import (
    FIGURES,
    LINE_SECONDS,
    Display,
    progress_text,
    report_json,
    report_lines,
    report_table,
)
from sluice.publishers.report import JobProgress, JobReport, PublishReport

PUBLISHED = PublishReport(
    "publisher-1",
    blocks=2,
    won=1,
    skipped=1,
    acknowledged=2,
    latency_ns=(2_000_000, 4_000_000),
    safe_through=1,
)
STORED = PublishReport("publisher-1", safe_through=5)
GOOD = JobReport(0, 1, (PUBLISHED,), (), 1.25, 8.0)
SUMMARY = "blocks 0 to 1: stored, safe_through 1, 8.0 blocks_per_second, 1.2 s"


def progress(*publishers: PublishReport, reachable: bool = True, stopping: bool = False) -> JobProgress:
    return JobProgress(
        last_stored=1,
        is_reachable=reachable,
        ready=1,
        running=len(publishers),
        elapsed_seconds=2.0,
        first_block=0,
        last_block=9,
        safe_through=1 if publishers else None,
        blocks_per_second=8.0,
        publishers=publishers,
        is_stopping=stopping,
    )


def table_text(report: JobReport, width: int) -> str:
    console = Console(width=width, file=None, force_terminal=False)
    with console.capture() as capture:
        console.print(report_table(report, console))
    return capture.get()


def bar_lines(shown: JobProgress, width: int) -> list[str]:
    """What a terminal shows while it runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORCE_COLOR", "1")
        patch.setenv("COLUMNS", str(width))
        display = Display(is_quiet=False)
    bar = display._bar
    assert bar is not None
    display._task = bar.add_task("", total=None, blocks="", lines=[])
    display.show(shown)
    console = Console(width=width, file=None, force_terminal=False)
    with console.capture() as capture:
        console.print(bar.get_renderable())
    return capture.get().splitlines()


def test_a_table_on_a_terminal() -> None:
    text = table_text(GOOD, 160)
    assert SUMMARY in text
    assert all(word in text for word in ("publisher-1", "4.0 ms", *(name for name, _ in FIGURES)))
    assert "┃ publisher_id ┃ blocks ┃" in text
    assert "│ a [/b]       │" in table_text(JobReport(0, 1, (PublishReport("a [/b]"),), (), 1), 160)


@pytest.mark.parametrize(("width", "beside"), [(120, 6), (80, 5), (40, 2), (20, 1)])
def test_a_table_on_a_narrow_terminal_lies_on_its_side_and_is_not_cut(width: int, beside: int) -> None:
    names = [f"publisher-{number}" for number in range(1, 7)]
    rows = tuple(replace(PUBLISHED, publisher_id=name) for name in names)
    text = table_text(JobReport(0, 1, rows, (), 1.25, 8.0), width)
    assert all(len(line) <= width for line in text.splitlines())
    summary, _, tables = text.partition("\n\n")
    assert " ".join(summary.split()) == SUMMARY
    told = [line.split() for line in tables.splitlines()]
    for name, value in FIGURES:
        cells = [word for line in told if line[:1] == [name] for word in line[1:]]
        assert cells == len(names) * f"{value(PUBLISHED)}".split()
    groups = [names[number : number + beside] for number in range(0, len(names), beside)]
    if width >= 40:
        assert [line[1:] for line in told if line[:1] == ["publisher_id"]] == groups
    else:
        assert [line[0] for line in told if line[:1] and line[0] in names] == names, "wrapped"
    assert "publisher_id" not in table_text(JobReport(None, None, (), (), 2), width)


def test_plain_lines() -> None:
    summary, line = report_lines(GOOD)
    assert summary == SUMMARY
    assert line == (
        "publisher-1: blocks 2, won 1, skipped 1, acknowledged 2, duplicate 0, resent 0, reconnects 0, "
        "failovers 0, latency_p50 2.0 ms, latency_p99 4.0 ms"
    )


@pytest.mark.parametrize(
    ("report", "line"),
    [
        (JobReport(5, 5, (STORED,), (), 0), "block 5: stored, safe_through 5, 0.0 blocks_per_second, 0.0 s"),
        (JobReport(None, None, (), (), 2), "no blocks came, 2.0 s"),
        (
            JobReport(0, 9, (PUBLISHED,), (), 2, 1, is_interrupted=True),
            "blocks 0 to 9: interrupted, safe_through 1, 1.0 blocks_per_second, 2.0 s",
        ),
        (
            JobReport(0, 9, (PublishReport("a", blocks=1),), (), 2, 1),
            "blocks 0 to 9: not all stored as far as is known, safe_through -, 1.0 blocks_per_second, 2.0 s",
        ),
    ],
)
def test_the_summary_says_how_it_ended(report: JobReport, line: str) -> None:
    assert report_lines(report)[0] == line


def test_the_figures_of_bar_and_table_are_in_json_under_their_names() -> None:
    said = json.loads(report_json(GOOD, "sluice publish"))
    assert said["go_on"] == "sluice publish"
    (row,) = said["publishers"]
    for name, value in FIGURES:
        if name.startswith("latency"):
            assert f"{row[f'{name}_ns'] / 1e6:.1f} ms" == value(PUBLISHED)
        else:
            assert row[name] == value(PUBLISHED)
    bar = progress_text(progress(PUBLISHED))
    assert f"safe_through {said['safe_through']}" in bar
    assert f"{said['blocks_per_second']} blocks_per_second" in bar
    assert f"won publisher-1 {row['won']}" in bar


def test_progress_says_what_is_done() -> None:
    assert progress_text(progress(reachable=False)) == "No gateway answers"
    lost = PublishReport("publisher-1", offered=3, trouble="UNAVAILABLE: connection refused")
    silent = PublishReport("publisher-2")
    assert progress_text(progress(lost, silent, reachable=False)).startswith("No gateway answers, ")
    heard = progress_text(progress(lost, replace(PUBLISHED, offered=2), reachable=False))
    assert heard.startswith("Publishing (2 running), "), "one takes blocks and has no serverStatus"
    assert progress_text(progress()) == "Starting publishers"
    other = PublishReport("publisher-2", won=5)
    assert progress_text(progress(PUBLISHED, other)) == (
        "Publishing (2 running), safe_through 1, 8.0 blocks_per_second, won publisher-2 5 / publisher-1 1"
    )
    assert progress_text(progress(PUBLISHED, stopping=True)).startswith(
        "Finishing the block in flight (Ctrl-C"
    )
    many = [PublishReport(f"p-{number}") for number in range(9)]
    assert progress_text(progress(*many)).endswith(" / p-7 0 / …")


def test_progress_says_why_a_publisher_gets_nowhere() -> None:
    """What a gateway says may be anything, also what would be more than a line, or markup of the bar."""
    refused = PublishReport("p-2", trouble="[::1]:1: PERMISSION_DENIED: not\n\x1b[1m on the list [/b]")
    text = progress_text(progress(PUBLISHED, refused))
    assert text.endswith(
        "won publisher-1 1 / p-2 0, p-2: [::1]:1: PERMISSION_DENIED: not [1m on the list [/b]"
    )
    assert progress_text(progress(refused, PUBLISHED, refused)).endswith("on the list [/b] (and 1 more)")
    long = progress_text(progress(PublishReport("p", trouble=1000 * "x")))
    assert long.endswith(", p: " + 196 * "x" + "…")
    shown = bar_lines(progress(refused), 200)
    assert shown[-1] == "p-2: [::1]:1: PERMISSION_DENIED: not [1m on the list [/b]"


def test_progress_says_what_is_waited_for() -> None:
    waiting = "waiting for block 2 since 2026-01-31 12:00:00: block 2 is missing (before 3.blk)"
    shown = replace(progress(STORED), awaited=waiting)
    assert progress_text(shown).endswith(f", won publisher-1 0, {waiting}")
    assert progress_text(replace(progress(), awaited=waiting)) == f"Starting publishers, {waiting}"
    assert waiting not in progress_text(replace(shown, is_stopping=True))


def test_without_a_terminal_a_line_is_said_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    with Display(is_quiet=False, now=lambda: now[0]) as display:
        for seconds in (0.0, 1.0, LINE_SECONDS, LINE_SECONDS + 1, 3 * LINE_SECONDS):
            now[0] = seconds
            display.show(progress(PUBLISHED))
        display.show(progress(reachable=False))
        now[0] = 5 * LINE_SECONDS
        display.show(progress(reachable=False))
    assert capsys.readouterr().err.splitlines() == [
        "sluice: Publishing (1 running), safe_through 1, 8.0 blocks_per_second, won publisher-1 1",
        "sluice: No gateway answers",
    ]


def test_quiet_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    with Display(is_quiet=True) as display:
        display.show(progress(PUBLISHED))
    assert capsys.readouterr() == ("", "")


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    with Display(is_quiet=False) as display:
        display.show(progress(PUBLISHED))
        assert display._bar is not None
        (task,) = display._bar.tasks
        assert (task.completed, task.total, task.fields["blocks"]) == (2, 10, "blocks 2/10")
        endless = JobProgress(None, True, 1, 1, 1.0, safe_through=6, publishers=(PublishReport("a", 5),))
        display.show(endless)
        assert task.fields["blocks"] == "blocks 2"
    assert "blocks 2" in capsys.readouterr().err


@pytest.mark.parametrize("width", [160, 80, 40, 20])
def test_a_bar_on_a_narrow_terminal_is_not_cut(width: int) -> None:
    others = [PublishReport(f"publisher-{number}") for number in (2, 3)]
    refused = PublishReport("publisher-4", trouble="[::1]:1: PERMISSION_DENIED: " + 5 * "not on the list ")
    far = replace(progress(PUBLISHED, *others, refused), last_block=80_999_999, safe_through=80_123_456)
    lines = bar_lines(far, width)
    assert all(len(line) <= width for line in lines)
    words = " ".join(lines).split()
    at = words.index("0:00:00") + 1
    assert words[at - 3 : at] == ["blocks", "80123457/81000000", "0:00:00"]
    said = (
        progress_text(far).replace("_second, won", "_second won").replace(" 0, publisher-4", " 0 publisher-4")
    )
    assert "".join(words[at:]) == said.replace(" ", ""), "long words may be broken"
    if width >= 40:
        assert len(words[at - 4]) == min(20, width - 35), "the bar has the rest of its line"
        assert lines[0].endswith(" 0:00:00")


def test_the_bar_goes_on_while_standard_error_is_a_file(tmp_path: Path) -> None:
    """As while Spark starts, whose log is that file."""
    code = """
import os, sys
from sluice.publishers.commands.publish_display import Display
with Display(is_quiet=False) as display:
    os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT), 2)
    display.starting("Starting Spark")
    display._bar.refresh()
"""
    terminal, its_end = (os.fdopen(fd, "rb", buffering=0) for fd in os.openpty())
    with terminal, its_end:
        subprocess.run([sys.executable, "-c", code, str(tmp_path / "log")], stderr=its_end, check=True)
        assert b"Starting Spark" in terminal.read(1 << 16)
    assert (tmp_path / "log").read_bytes() == b""


def test_a_bar_on_a_terminal_that_is_not_utf_8(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr("sys.stderr", io.TextIOWrapper(written, encoding="latin-1", errors="strict"))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    with Display(is_quiet=False) as display:
        display.show(progress(PUBLISHED))
        assert display._bar is not None
        display._bar.refresh()
    assert b"Publishing (1 running)" in written.getvalue()
