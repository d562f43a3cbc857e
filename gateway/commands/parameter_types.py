"""The types of parameters that commands share: paths and numbers, without what click lets through.

It imports nothing of gRPC: `sluice serve` chooses gRPC's poller before that is imported.
"""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path
from typing import Any, Final

import click

__all__ = ["FiniteRange", "NamedPath"]

_NEVER_A_PATH: Final = (errno.ENAMETOOLONG, errno.EACCES)
"""Errors for which `Path.exists` raises: the path is neither there nor not there."""


class NamedPath(click.Path):
    """A path that is not empty.

    A shell makes an empty text of a variable that is not set, and click reads that as the current folder:
    `sluice generate --out "$OUT"` would fill it. The options are those of `click.Path`.
    """

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """Read a path; refuse an empty text, and one that no file can have."""
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

    click has `nan` in each range, and `inf` in each without an upper end: a command would wait for ever, or
    not at all. The options are those of `click.FloatRange`.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read a number; refuse `nan` and infinity."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"got {number:g}, expected a number", param, ctx)
        return number
