"""Tests of `gateway.logs`: both forms of a record, and hostile texts."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Literal

import pytest
from rich.console import Console
from rich.progress import Progress

from sluice.gateway.logs import (
    FIELD_CHARACTERS_MAX,
    FLOOD_SECONDS,
    LINES_PER_CAUSE,
    LINES_PER_MESSAGE,
    FieldValue,
    FloodFilter,
    JsonFormatter,
    TextFormatter,
    caused_by,
    fields,
    set_up_logging,
    tell_left_out,
)
from sluice.gateway.status.events import EventRing

# name, value, in the text form, in the JSON form
VALUES: list[tuple[str, FieldValue, str, object]] = [
    ("number", 9, "9", 9),
    ("float", 0.123456789, "0.123457", 0.123456789),
    ("truth", True, "True", True),
    ("nothing", None, "None", None),
    ("bytes", b"\x00\xff", "00ff", "00ff"),
    ("word", "9f3a…", "9f3a…", "9f3a…"),
    ("blank", "a b", '"a b"', "a b"),
    ("equals", "a=b", '"a=b"', "a=b"),
    ("quote", 'a"b', '"a\\"b"', 'a"b'),
    ("empty", "", '""', ""),
    ("line_end", "a\nINFO forged", '"a\\nINFO forged"', "a\nINFO forged"),
    ("terminal_command", "a\x9b2Jb", '"a\\x9b2Jb"', "a\x9b2Jb"),
    ("half_a_character", "a\ud800b", '"a\\ud800b"', "a\ud800b"),
    ("longest", "x" * FIELD_CHARACTERS_MAX, "x" * FIELD_CHARACTERS_MAX, "x" * FIELD_CHARACTERS_MAX),
    (
        "too_long",
        "x" * (FIELD_CHARACTERS_MAX + 1),
        "x" * (FIELD_CHARACTERS_MAX - 1) + "…",
        "x" * (FIELD_CHARACTERS_MAX - 1) + "…",
    ),
    ("too_long_bytes", bytes(FIELD_CHARACTERS_MAX), "0" * (FIELD_CHARACTERS_MAX - 1) + "…", None),
]


def record(message: str, /, *levels: int, **values: FieldValue) -> logging.LogRecord:
    (level,) = levels or (logging.INFO,)
    made = logging.makeLogRecord(
        {
            "name": "sluice.gateway.race.arbiter",
            "levelno": level,
            "levelname": logging.getLevelName(level),
            "msg": message,
        }
        | fields(**values)
    )
    made.created = datetime(2026, 1, 31, 12, 0, 0, 123_000, UTC).timestamp()
    return made


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """A stream for the log; restores logging afterwards."""
    root = logging.getLogger()
    ours = logging.getLogger("sluice")
    before = root.handlers[:], root.level, ours.level
    yield io.StringIO()
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


@pytest.mark.parametrize(("name", "value", "text", "json_value"), VALUES, ids=[case[0] for case in VALUES])
def test_a_field_in_both_forms(name: str, value: FieldValue, text: str, json_value: object) -> None:
    line = TextFormatter().format(record("block refused", **{name: value}))
    assert (
        line == f"2026-01-31 12:00:00.123 INFO    sluice.gateway.race.arbiter  block refused  {name}={text}"
    )
    entry = json.loads(JsonFormatter().format(record("block refused", **{name: value})))
    expected = text if name == "too_long_bytes" else json_value
    assert entry == {
        "time": "2026-01-31T12:00:00.123Z",
        "level": "info",
        "logger": "sluice.gateway.race.arbiter",
        "message": "block refused",
        name: expected,
    }


def test_fields_keep_their_order() -> None:
    line = TextFormatter().format(record("block refused", block=9, publisher=2, got="a", expected="b"))
    assert line.endswith("  block refused  block=9 publisher=2 got=a expected=b")


def test_a_record_without_fields() -> None:
    assert (
        TextFormatter().format(record("ready"))
        == "2026-01-31 12:00:00.123 INFO    sluice.gateway.race.arbiter  ready"
    )


@pytest.mark.parametrize("message", ["a\nb", "a\r\nb", "a\x1b[2Jb", "a\u2028b"])
def test_a_message_stays_on_its_line(message: str) -> None:
    assert len(TextFormatter().format(record(message)).splitlines()) == 1
    assert "\x1b" not in TextFormatter().format(record(message))
    assert len(JsonFormatter().format(record(message, other=message)).split("\n")) == 1


def test_a_field_cannot_take_the_name_of_a_part_of_the_line() -> None:
    with pytest.raises(ValueError, match="log field 'level': the name is used by the log line itself"):
        fields(level=1)


def test_colour_only_on_a_terminal() -> None:
    assert "\x1b[33mWARNING\x1b[0m" in TextFormatter(colour=True).format(record("slow", logging.WARNING))
    assert "\x1b" not in TextFormatter(colour=True).format(record("ready"))
    assert "\x1b" not in TextFormatter().format(record("slow", logging.WARNING))


def test_a_traceback(stream: io.StringIO) -> None:
    set_up_logging(stream=stream, form="json")
    try:
        raise ValueError("the reason")
    except ValueError:
        logging.getLogger("sluice.gateway.x").exception("failed", extra=fields(block=9))
    entry = json.loads(stream.getvalue())
    assert entry["error"].endswith("ValueError: the reason")
    assert entry["block"] == 9
    stream.truncate(stream.seek(0))
    set_up_logging(stream=stream)
    try:
        raise ValueError("the reason")
    except ValueError:
        logging.getLogger("sluice.gateway.x").exception("failed")
    assert stream.getvalue().splitlines()[-1] == "ValueError: the reason"


def shown(stream: io.StringIO) -> list[str]:
    """Log at two levels from our code and a library; return the lines."""
    stream.truncate(stream.seek(0))
    for name in ("sluice.datastream.server.server", "aiohttp"):
        for level in ("debug", "info", "warning", "error"):
            logging.getLogger(name).log(logging.getLevelNamesMapping()[level.upper()], level)
    return [" ".join(line.split()[3:]) for line in stream.getvalue().splitlines()]


def test_levels(stream: io.StringIO) -> None:
    set_up_logging(stream=stream)
    ours = [
        "sluice.datastream.server.server info",
        "sluice.datastream.server.server warning",
        "sluice.datastream.server.server error",
    ]
    assert shown(stream) == [*ours, "aiohttp warning", "aiohttp error"]
    set_up_logging(stream=stream, level="error")
    assert shown(stream) == ["sluice.datastream.server.server error", "aiohttp error"]
    set_up_logging(stream=stream, level="debug")
    ours.insert(0, "sluice.datastream.server.server debug")
    assert shown(stream) == [*ours, "aiohttp info", "aiohttp warning", "aiohttp error"]


def test_what_is_not_written_is_still_there_for_the_list_of_events(stream: io.StringIO) -> None:
    set_up_logging(stream=stream, level="error")
    ring, logger = EventRing(), logging.getLogger("sluice")
    logger.addHandler(ring)
    logging.getLogger("sluice.gateway.cluster.role_keeper").info("the node is active")
    logger.removeHandler(ring)
    assert [event.text for event in ring.events()] == ["the node is active"]
    assert stream.getvalue() == ""


class Flood:
    """A log of lines that others cause, with a test's clock."""

    def __init__(self) -> None:
        self.seconds = 1_000.0
        self.lines: list[str] = []
        self._filter = FloodFilter(self._write, lambda: self.seconds)

    def _write(self, record: logging.LogRecord) -> None:
        self.lines.append(TextFormatter().format(record).partition("sluice.gateway.x  ")[2])

    def line(self, message: str, cause: str | None, *arguments: object) -> bool:
        """Log a line; return whether it was written."""
        made = logging.LogRecord("sluice.gateway.x", logging.INFO, "x.py", 1, message, arguments, None)
        if cause is not None:
            made.__dict__.update(caused_by(cause, who=cause))
        return self._filter.filter(made)

    def tell(self) -> None:
        self._filter.tell_left_out()


def test_one_address_writes_so_many_lines_a_minute_and_the_log_says_how_many_more_there_were() -> None:
    flood = Flood()
    written = [flood.line("came", "192.0.2.1") for _ in range(1_234 + LINES_PER_CAUSE)]
    assert written == [True] * LINES_PER_CAUSE + [False] * 1_234
    assert flood.line("came", "192.0.2.2")  # others
    assert flood.line("went", "192.0.2.1")  # other lines are not suppressed
    assert all(flood.line("came", None) for _ in range(LINES_PER_MESSAGE + 1))  # nor lines without a cause
    flood.seconds += FLOOD_SECONDS - 0.1
    assert not flood.line("came", "192.0.2.1")
    assert flood.lines == []
    flood.seconds += 0.1
    flood.tell()
    assert flood.lines == ["came: and 1,235 more  lines_left_out=1235 seconds=60"]
    assert flood.line("came", "192.0.2.1")
    flood.seconds += FLOOD_SECONDS
    flood.tell()
    assert len(flood.lines) == 1  # nothing was suppressed


def test_many_addresses_write_no_more_between_them() -> None:
    flood = Flood()
    written = [
        flood.line("came from %s", f"192.0.2.{number}", number) for number in range(10 * LINES_PER_MESSAGE)
    ]
    assert sum(written) == LINES_PER_MESSAGE
    minutes = flood._filter._minutes
    assert [len(minute.by_cause) for minute in minutes.values()] == [LINES_PER_MESSAGE]
    flood.seconds += FLOOD_SECONDS
    assert flood.line("other", "192.0.2.1")  # any line triggers the count
    assert flood.lines == [f"came from 999: and {9 * LINES_PER_MESSAGE} more  lines_left_out=900 seconds=60"]
    assert list(minutes) == [("sluice.gateway.x", "other")]


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_flood_is_left_out_of_the_log_of_a_process(
    stream: io.StringIO, form: Literal["text", "json"]
) -> None:
    seconds = 0.0
    set_up_logging(stream=stream, form=form, clock=lambda: seconds)
    for _ in range(10 * LINES_PER_CAUSE):
        logging.getLogger("sluice.gateway.x").info("came", extra=caused_by("192.0.2.1", block=9))
        logging.getLogger("sluice.datastream.x").info(
            "client %s: came", "a:1", extra={"caused_by": "192.0.2.1"}
        )
    assert len(stream.getvalue().splitlines()) == 2 * LINES_PER_CAUSE
    seconds = FLOOD_SECONDS
    tell_left_out()
    last = stream.getvalue().splitlines()[-2:]
    assert len(stream.getvalue().splitlines()) == 2 * LINES_PER_CAUSE + 2
    assert "came: and 180 more" in last[0]
    assert "client a:1: came: and 180 more" in last[1]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_go_above_a_progress_bar_and_not_into_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The logging was set up before the bar came."""
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    set_up_logging()
    log = logging.getLogger("sluice.gateway.x")
    with Progress(console=Console(stderr=True, force_terminal=True, width=100)) as bar:
        task = bar.add_task("verifying", total=3)
        for number in range(3):
            bar.advance(task)
            bar.refresh()
            log.warning("line", extra=fields(number=number))
    log.warning("line", extra=fields(number=3))
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    rows = [row.rpartition("\r")[2] for row in text.split("\n") if "sluice.gateway.x" in row]
    pattern = r"20\S+ \S+ WARNING sluice\.gateway\.x  line  number=(\d)\s*"
    found = [re.fullmatch(pattern, row) for row in rows]
    assert [one and one[1] for one in found] == ["0", "1", "2", "3"]


PYTHON_SAYS = """
import logging, sys, threading, warnings
from sluice.gateway.logs import log_what_python_says, set_up_logging
set_up_logging(form="json")
log_what_python_says()
warnings.warn("old\\nthing", DeprecationWarning, stacklevel=1)
logging.getLogger("sluice").error("%d", "no number")
thread = threading.Thread(target=lambda: 1 / 0, name="one")
thread.start()
thread.join()
class Ends:
    def __del__(self):
        raise OSError("at its end")
Ends()
logging.getLogger("sluice").info("a number", extra={"sluice_fields": {"seconds": float("inf")}})
raise RuntimeError("of the main thread")
"""


def test_what_python_says_is_json_too() -> None:
    words = [sys.executable, "-W", "always", "-c", PYTHON_SAYS]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")

    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} is no JSON")

    lines = [json.loads(line, parse_constant=refuse) for line in done.stderr.splitlines()]
    assert [(line["level"], line["message"]) for line in lines] == [
        ("warning", "old\nthing"),
        ("error", "log line that cannot be written: '%d'"),
        ("critical", "uncaught error"),
        ("critical", "uncaught error"),
        ("info", "a number"),
        ("critical", "uncaught error"),
    ]
    ends = [line["error"].splitlines()[-1] for line in lines if "error" in line]
    assert ends[1:] == [
        "ZeroDivisionError: division by zero",
        "OSError: at its end",
        "RuntimeError: of the main thread",
    ]
