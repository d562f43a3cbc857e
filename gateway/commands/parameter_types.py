"""The parameter types that commands share: addresses, and paths and numbers that are stricter than click's.

This module does not import gRPC: `sluice serve` must choose gRPC's poller before that.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from sluice.gateway.addresses import parse_address
from sluice.gateway.errors import AddressError
from sluice.gateway.settings.kinds import NotThisKind, Size

__all__ = ["AddressType", "FiniteRange", "NamedPath", "SizeType", "offers", "offers_files"]

SIZE_MAX: Final = 2**64 - 1
"""As the formats can say it."""
_NEVER_A_PATH: Final = (errno.ENAMETOOLONG, errno.EACCES)
"""Errors for which `Path.exists` raises."""


def offers(
    *words: str,
) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Return the completion of a value that may be one of some words, or something else."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(word) for word in words if word.startswith(incomplete)]

    return complete


def offers_files(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a value that may be a path, or something else."""
    return [CompletionItem(incomplete, type="file")]


class AddressType(click.ParamType):  # type: ignore[type-arg]
    """The address of a server."""

    name = "HOST:PORT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the address with an IPv6 host in brackets; refuse what is no address."""
        try:
            return str(parse_address(value, port_min=1))
        except AddressError as error:
            self.fail(str(error), param, ctx)


class SizeType(click.ParamType):  # type: ignore[type-arg]
    """A size in bytes, perhaps with a unit: 64MiB."""

    name = "BYTES"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read the size."""
        try:
            return int(Size(0, SIZE_MAX).read(value))
        except NotThisKind as error:
            self.fail(f"got {value!r}, expected {error}", param, ctx)


class NamedPath(click.Path):
    """A path that is not empty.

    A shell expands an unset variable to an empty text, which click reads as the current folder: `sluice
    generate --out "$OUT"` would fill it.
    """

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """Refuse an empty text, and a path that no file can have."""
        if value == "":
            self.fail("got nothing, expected a path", param, ctx)
        try:
            Path(value).stat()
        except OSError as error:
            if error.errno in _NEVER_A_PATH:
                self.fail(f"got {error.strerror}, expected a path", param, ctx)
        return super().convert(value, param, ctx)


class FiniteRange(click.FloatRange):
    """A range of finite numbers.

    click accepts `nan` in every range, and `inf` in every range without an upper end: a command would wait
    for ever, or not at all.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Refuse `nan` and infinity."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"got {number:g}, expected a number", param, ctx)
        return number
