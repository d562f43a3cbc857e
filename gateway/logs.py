"""The log of a node: lines for people, or one JSON object per line, with the same fields.

    text    2026-01-31 12:00:00.123 INFO    gateway.race.arbiter  block refused  block=9 publisher=2 got=9f3a…
    json    {"time": "2026-01-31T12:00:00.123Z", "level": "info", "logger": "gateway.race.arbiter",
             "message": "block refused", "block": 9, "publisher": 2, "got": "9f3a…", …}

Invariants
  - One record is one line: line ends in message and fields are escaped, so that a peer cannot forge a line.
    Only a traceback in the text form follows on its own lines.
  - A field is cut at `FIELD_CHARACTERS_MAX` characters, so that a peer cannot fill the disk.
  - Lines that others cause (`caused_by`, or `extra={"caused_by": …}`) are limited per minute, by message and
    by cause. One line at the end of the minute counts the suppressed ones.
  - Times are UTC.
  - In the JSON form, what Python writes by itself, warnings and tracebacks, is a line of the log, too.
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Literal, TextIO

__all__ = [
    "LINES_PER_CAUSE",
    "LINES_PER_MESSAGE",
    "FieldValue",
    "FloodFilter",
    "JsonFormatter",
    "TextFormatter",
    "caused_by",
    "fields",
    "fields_as_text",
    "fields_of",
    "is_json",
    "log_as_the_node",
    "log_form_for_child",
    "log_what_python_says",
    "one_line",
    "set_up_logging",
    "tell_left_out",
]

FIELD_CHARACTERS_MAX: Final = 2_000
"""Characters of one field of a log line; longer texts are cut."""

FLOOD_SECONDS: Final = 60.0
"""The period over which lines that others cause are counted."""
LINES_PER_CAUSE: Final = 20
"""Lines with one message that one address, or one proven publisher, may cause in a period."""
LINES_PER_MESSAGE: Final = 100
"""The same for all causes together, so that many addresses write no more."""

_process_log = logging.getLogger("sluice")

_FORM_VARIABLE = "SLUICE_LOG_FORMAT"
_FIELDS = "sluice_fields"
_CAUSED_BY = "caused_by"
_RESERVED = frozenset({"time", "level", "logger", "message", "error"})
_PLAIN = re.compile(r"[^\s\"'=]+")
_LEVEL_COLOURS = {logging.WARNING: "\x1b[33m", logging.ERROR: "\x1b[31m", logging.CRITICAL: "\x1b[31m"}
_RESET = "\x1b[0m"

FieldValue = str | int | float | bool | bytes | None


def fields(**values: FieldValue) -> dict[str, Mapping[str, FieldValue]]:
    """Return the `extra` of a log call with these fields (`block`, `publisher`, `got`)."""
    if taken := _RESERVED & values.keys():
        raise ValueError(f"log field {min(taken)!r}: the name is used by the log line itself")
    return {_FIELDS: values}


def caused_by(cause: str, **values: FieldValue) -> dict[str, object]:
    """Return the `extra` of a line that others can cause at will.

    `cause` is the party: its address, or the subject of its certificate.
    """
    return {**fields(**values), _CAUSED_BY: cause}


def set_up_logging(
    *,
    level: Literal["debug", "info", "warning", "error"] = "info",
    form: Literal["text", "json"] = "text",
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Send all logging of this process to one stream, and replace every other handler.

    Args:
        level: for other libraries `warning`, and `info` where it is `debug`: HTTP/2's has ten lines for each
            header, with its value.
        form: `text` (in colour on a terminal) or `json`.
        stream: None: standard error.
    """
    plain = _StandardError() if stream is None else logging.StreamHandler(stream)
    handler = _JsonHandler(stream or sys.stderr) if form == "json" else plain
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter(colour=handler.stream.isatty()))
    handler.setLevel(_number(level))
    handler.addFilter(FloodFilter(handler.handle, clock))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO if level == "debug" else max(logging.WARNING, _number(level)))
    # The status page lists events of level `info`, whatever is written.
    logging.getLogger("sluice").setLevel(min(logging.INFO, _number(level)))


class _StandardError(logging.StreamHandler[TextIO]):
    """A handler for what `sys.stderr` is at each line: a progress bar takes its place, and writes lines above
    itself."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)  # StreamHandler's would keep the stream of now

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def is_json() -> bool:
    """Return whether the log of this process has the JSON form."""
    return any(isinstance(handler, _JsonHandler) for handler in logging.getLogger().handlers)


def log_what_python_says() -> None:
    """Log warnings and uncaught errors, which Python writes to standard error as text of several lines."""

    def uncaught(where: str, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, SystemExit):
            _process_log.critical("uncaught error", exc_info=error, extra=fields(where=where))

    def warn(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        extra = fields(category=category.__name__, where=f"{filename}:{lineno}")
        _process_log.warning("%s", message, extra=extra)

    warnings.showwarning = warn
    sys.excepthook = lambda _, error, __: uncaught("main thread", error)
    threading.excepthook = lambda args: uncaught(
        args.thread.name if args.thread else "thread", args.exc_value
    )
    sys.unraisablehook = lambda args: uncaught(args.err_msg or repr(args.object), args.exc_value)


def log_form_for_child() -> dict[str, str]:
    """Return the variables by which a child process logs as this one does."""
    return {_FORM_VARIABLE: "json" if is_json() else "text"}


def log_as_the_node(environ: Mapping[str, str]) -> None:
    """Log in a child process as its node does."""
    if environ.get(_FORM_VARIABLE) == "json":
        set_up_logging(form="json")
        log_what_python_says()


def _number(level: str) -> int:
    return logging.getLevelNamesMapping()[level.upper()]


def tell_left_out() -> None:
    """Write how many lines earlier minutes suppressed: a silent log does not do so by itself."""
    for handler in logging.getLogger().handlers:
        for one in handler.filters:
            if isinstance(one, FloodFilter):
                one.tell_left_out()


@dataclass(slots=True)
class _Minute:
    since: float
    line_count: int = 0
    by_cause: Counter[str] = field(default_factory=Counter)
    left_out_count: int = 0
    left_out: logging.LogRecord | None = None


class FloodFilter(logging.Filter):
    """A filter of lines that others cause too often; `LINES_PER_MESSAGE` bounds its memory.

    `write` writes the count of suppressed lines.
    """

    def __init__(
        self, write: Callable[[logging.LogRecord], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._write = write
        self._clock = clock
        self._lock = threading.Lock()
        self._minutes: dict[tuple[str, str], _Minute] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write a line."""
        cause: str | None = getattr(record, _CAUSED_BY, None)
        if cause is None:
            return True
        self.tell_left_out()
        with self._lock:
            key = (record.name, str(record.msg))
            minute = self._minutes.get(key)
            if minute is None:
                minute = self._minutes[key] = _Minute(self._clock())
            if minute.line_count < LINES_PER_MESSAGE and minute.by_cause[cause] < LINES_PER_CAUSE:
                minute.line_count += 1
                minute.by_cause[cause] += 1
                return True
            minute.left_out_count += 1
            minute.left_out = record
            return False

    def tell_left_out(self) -> None:
        """Forget past minutes, and write how many lines each suppressed."""
        with self._lock:
            now = self._clock()
            over = [key for key, minute in self._minutes.items() if now - minute.since >= FLOOD_SECONDS]
            minutes = [self._minutes.pop(key) for key in over]
        for minute in minutes:
            if (record := minute.left_out) is not None:
                text = f"{record.getMessage()}: and {minute.left_out_count:,} more"
                extra = fields(lines_left_out=minute.left_out_count, seconds=round(now - minute.since))
                where = (record.name, record.levelno, record.pathname, record.lineno)
                line = logging.LogRecord(*where, text, (), None)
                line.__dict__.update(extra)
                self._write(line)


class TextFormatter(logging.Formatter):
    """The text form: time, level, logger, message, then `key=value` fields."""

    def __init__(self, *, colour: bool = False) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        """Format a record; a traceback follows on its own lines."""
        at = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        level = f"{record.levelname:<7}"
        if self._colour and record.levelno in _LEVEL_COLOURS:
            level = f"{_LEVEL_COLOURS[record.levelno]}{level}{_RESET}"
        line = f"{at} {level} {record.name}  {one_line(record.getMessage())}"
        if shown := fields_as_text(fields_of(record)):
            line = f"{line}  {shown}"
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return line


class JsonFormatter(logging.Formatter):
    """The JSON form: one object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record; a traceback becomes the field `error`."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        entry: dict[str, object] = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {key: _json(value) for key, value in fields_of(record).items()}
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)  # in ASCII


class _JsonHandler(logging.StreamHandler[TextIO]):
    """Writes an error in a log call as a line, too, where it can write at all."""

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, OSError):
            where = (record.name, logging.ERROR, record.pathname, record.lineno)
            text = f"log line that cannot be written: {record.msg!r}"
            self.handle(logging.LogRecord(*where, text, (), (type(error), error, error.__traceback__)))


def fields_as_text(values: Mapping[str, FieldValue]) -> str:
    """Return fields as `key=value …`, one line."""
    return " ".join(f"{key}={_text(value)}" for key, value in values.items())


def fields_of(record: logging.LogRecord) -> Mapping[str, FieldValue]:
    """Return the fields of a record."""
    found: Mapping[str, FieldValue] = getattr(record, _FIELDS, {})
    return found


def _cut(text: str) -> str:
    return text if len(text) <= FIELD_CHARACTERS_MAX else f"{text[: FIELD_CHARACTERS_MAX - 1]}…"


def _json(value: FieldValue) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such number
    if isinstance(value, bool | int | float) or value is None:
        return value
    return _cut(value.hex() if isinstance(value, bytes) else str(value))


def _text(value: FieldValue) -> str:
    """Return a field's text, quoted unless it is one plain word."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, bytes):
        return _cut(value.hex())
    text = _cut(str(value))
    if text.isprintable() and _PLAIN.fullmatch(text):
        return text
    return one_line(json.dumps(text, ensure_ascii=False))


def one_line(message: str) -> str:
    """Escape characters that end a line or control a terminal."""
    if message.isprintable():
        return message
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)
