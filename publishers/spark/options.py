"""Reads the options of data sources: text by name, each with its range.

Pure. Spark gives all options as text, under names without regard to case.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import SupportsIndex

from publishers.errors import OptionError
from publishers.limits import OPTION_MAX
from publishers.number_range import NUMBER_MAX

__all__ = [
    "block_bounds",
    "check_known",
    "check_root_layout",
    "flag",
    "one_of",
    "positive",
    "required",
    "whole_argument",
    "whole_number",
]


def required(options: Mapping[str, str], name: str, example: str) -> str:
    """Give an option that must be there.

    Raises:
        OptionError: it is not, or is blank.
    """
    text = options.get(name, "").strip()
    if not text:
        raise OptionError(name, "nothing", example)
    return text


def whole_number(options: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    """Give a whole number.

    Raises:
        OptionError: it is none, or out of range.
    """
    text = options.get(name)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        raise OptionError(name, repr(text), f"a whole number from {least} to {most}") from None
    if not least <= value <= most:
        raise OptionError(name, text, f"{least} to {most}")
    return value


def whole_argument(name: str, value: SupportsIndex, least: int, most: int | None = None) -> int:
    """Give a whole number that a caller gave as one, and not as text.

    Raises:
        OptionError: it is none, or out of range.
    """
    expected = f"at least {least}" if most is None else f"{least} to {most}"
    try:
        number = operator.index(value)
    except TypeError:
        raise OptionError(name, repr(value), f"a whole number, {expected}") from None
    if number < least or (most is not None and number > most):
        raise OptionError(name, str(number), expected)
    return number


def positive(options: Mapping[str, str], name: str, unit: str) -> float | None:
    """Give a number above 0, or None where it is not set.

    Args:
        options: as given.
        name: of the option.
        unit: what it counts, for the error.

    Raises:
        OptionError: it is not such a number, or above OPTION_MAX.
    """
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


def one_of(options: Mapping[str, str], name: str, default: str, choices: Sequence[str]) -> str:
    """Give a word out of a few.

    Raises:
        OptionError: it is another.
    """
    text = options.get(name)
    if text is None:
        return default
    word = text.strip().lower()
    if word not in choices:
        raise OptionError(name, repr(text), f"one of {', '.join(choices)}")
    return word


def flag(options: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    """Give a yes or no.

    Raises:
        OptionError: it is neither `true` nor `false`.
    """
    return one_of(options, name, str(default).lower(), ("true", "false")) == "true"


def block_bounds(options: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Give the first and the last block to read, by the options `from` and `to`; None where not given.

    Raises:
        OptionError: one is no block number, or the last is before the first.
    """
    first = whole_number(options, "from", 0, 0, NUMBER_MAX - 1) if "from" in options else None
    last = whole_number(options, "to", 0, first or 0, NUMBER_MAX - 1) if "to" in options else None
    return first, last


def check_root_layout(root_layout: object) -> None:
    """Refuse what would pass for `auto`: the layout "8", as the command line has it, or one that is none.

    Raises:
        OptionError: it is no layout of root hashes.
    """
    if root_layout not in ("auto", 8, 16):
        raise OptionError("root_layout", repr(root_layout), "'auto', 8 or 16")


def check_known(options: Mapping[str, str], known: frozenset[str]) -> None:
    """Refuse options that nobody reads: they are slips of the hand, or several paths given to `load`.

    Args:
        options: as given.
        known: names in lower case.

    Raises:
        OptionError: naming the first that is not known.
    """
    if "paths" in options and "paths" not in known:
        raise OptionError("path", f"several: {options['paths']}", "one; join what is read of each by union")
    for name in sorted(options):
        if name.lower() not in known:
            raise OptionError(name, "an unknown option", f"one of {', '.join(sorted(known))}")
