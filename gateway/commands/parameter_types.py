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
"""What is neither there nor not there, and what `Path.exists` raises for."""


class NamedPath(click.Path):
    """A path that has a name.

    click takes an empty text, which is what a shell makes of a variable that is not set, for the folder that
    one is in: `sluice generate --out "$OUT"` would fill it. The options are those of `click.Path`.
    """

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """Read a path; refuse an empty text, and one that no file can be looked for with."""
        if value == "":
            self.fail("got nothing, expected a path", param, ctx)
        try:
            Path(value).stat()
        except OSError as error:
            if error.errno in _NEVER_A_PATH:
                self.fail(f"got {error.strerror}, expected a path", param, ctx)
        return super().convert(value, param, ctx)


class FiniteRange(click.FloatRange):
    """A range of numbers, without what is none.

    For click `nan` is in each range, since it is neither below nor above anything, and `inf` in each that has
    no upper end: a command would wait for ever, or not at all. The options are those of `click.FloatRange`.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read a number; refuse `nan` and infinity."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"got {number:g}, expected a number", param, ctx)
        return number
