"""Readers for options, which Spark passes as text by case-insensitive name.

An option that is not given is None; its default stands in the dataclass of the source's options.
"""

from __future__ import annotations

import operator
import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final, SupportsIndex

from sluice.publishers.errors import OptionError
from sluice.publishers.number_range import NUMBER_MAX

__all__ = [
    "block_bounds",
    "check_known",
    "check_root_layout",
    "current_names",
    "flag",
    "given",
    "one_of",
    "positive",
    "processor_count",
    "required",
    "time_ns",
    "whole_argument",
    "whole_number",
]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
OPTION_MAX: Final = 1e9
"""The longest time, 31 years, and the highest rate: clocks count in nanoseconds."""


def given(**values: Any) -> dict[str, Any]:
    """Return the values that are not None, as arguments."""
    return {name: value for name, value in values.items() if value is not None}


def current_names(options: Mapping[str, str], former_names: Mapping[str, str]) -> dict[str, str]:
    """Replace former names by current ones, after a warning.

    `former_names` has the current name by the former one, in lower case. Raises OptionError for an option
    under both.
    """
    renamed: dict[str, str] = {}
    for name, value in options.items():
        current = former_names.get(name.lower(), name)
        if current != name:
            if current in options:
                raise OptionError(current, f"{name} as well", "one of the two")
            warnings.warn(f"option {name!r} is now {current!r}", FutureWarning, stacklevel=2)
        renamed[current] = value
    return renamed


def processor_count() -> int:
    """Return how many processors the driver has, the default of `partitions`."""
    return os.cpu_count() or 1


def required(options: Mapping[str, str], name: str, example: str) -> str:
    """Return an option that must be there; raise OptionError."""
    text = options.get(name, "").strip()
    if not text:
        raise OptionError(name, "nothing", example)
    return text


def whole_number(options: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    """Return a whole number; raise OptionError."""
    text = options.get(name)
    if text is None:
        return None
    try:
        value = int(text)
    except ValueError:
        raise OptionError(name, repr(text), f"a whole number from {least} to {most}") from None
    if not least <= value <= most:
        raise OptionError(name, text, f"{least} to {most}")
    return value


def whole_argument(name: str, value: SupportsIndex, least: int, most: int | None = None) -> int:
    """Return a whole number that a caller passed as an argument; raise OptionError."""
    expected = f"at least {least}" if most is None else f"{least} to {most}"
    try:
        number = operator.index(value)
    except TypeError:
        raise OptionError(name, repr(value), f"a whole number, {expected}") from None
    if number < least or (most is not None and number > most):
        raise OptionError(name, str(number), expected)
    return number


def positive(options: Mapping[str, str], name: str, unit: str) -> float | None:
    """Return a number above 0; raise OptionError."""
    text = options.get(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise OptionError(name, repr(text), f"{unit} above 0")
    if value > OPTION_MAX:
        raise OptionError(name, repr(text), f"{unit} above 0, at most {OPTION_MAX:,.0f}")
    return value


def one_of(options: Mapping[str, str], name: str, choices: Sequence[str]) -> str | None:
    """Return one of a few words, in lower case; raise OptionError."""
    text = options.get(name)
    if text is None:
        return None
    word = text.strip().lower()
    if word not in choices:
        raise OptionError(name, repr(text), f"one of {', '.join(choices)}")
    return word


def flag(options: Mapping[str, str], name: str) -> bool | None:
    """Return a yes or no; raise OptionError."""
    word = one_of(options, name, ("true", "false"))
    return None if word is None else word == "true"


def time_ns(options: Mapping[str, str], name: str) -> int | None:
    """Return a time in nanoseconds since 1970; raise OptionError."""
    text = options.get(name)
    if text is None:
        return None
    time = None
    with suppress(ValueError):
        time = datetime.fromisoformat(text.strip())
    if time is None or time.tzinfo is None:
        raise OptionError(name, repr(text), "a time with its zone, such as 2026-01-31T12:00:00Z")
    return (time - _EPOCH) // timedelta(microseconds=1) * 1_000


def block_bounds(options: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Return the options `from` and `to`, the first and the last block to read; raise OptionError."""
    first = whole_number(options, "from", 0, NUMBER_MAX - 1)
    return first, whole_number(options, "to", first or 0, NUMBER_MAX - 1)


def check_root_layout(root_layout: object) -> None:
    """Raise OptionError for a layout other than `auto`, 8 or 16, such as the text "8"."""
    if root_layout not in ("auto", 8, 16):
        raise OptionError("root_layout", repr(root_layout), "'auto', 8 or 16")


def check_known(options: Mapping[str, str], known: frozenset[str]) -> None:
    """Raise OptionError for options that nobody reads: typing errors, or several paths given to `load`."""
    if "paths" in options and "paths" not in known:
        raise OptionError("path", f"several: {options['paths']}", "one; join what is read of each by union")
    for name in sorted(options):
        if name.lower() not in known:
            raise OptionError(name, "an unknown option", f"one of {', '.join(sorted(known))}")
