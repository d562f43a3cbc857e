"""Reads the options of data sources: text by name, each with its range.

Pure. Spark gives all options as text, under names without regard to case.
"""

from __future__ import annotations

from collections.abc import Mapping

from publishers.errors import OptionError

__all__ = ["check_known", "positive", "required", "whole_number"]


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


def positive(options: Mapping[str, str], name: str, unit: str) -> float | None:
    """Give a number above 0, or None where it is not set.

    Args:
        options: as given.
        name: of the option.
        unit: what it counts, for the error.

    Raises:
        OptionError: it is not such a number.
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
    return value


def check_known(options: Mapping[str, str], known: frozenset[str]) -> None:
    """Refuse options that nobody reads: they are slips of the hand.

    Args:
        options: as given.
        known: names in lower case.

    Raises:
        OptionError: naming the first that is not known.
    """
    for name in sorted(options):
        if name.lower() not in known:
            raise OptionError(name, "an unknown option", f"one of {', '.join(sorted(known))}")
