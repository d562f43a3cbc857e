"""The type of all options and arguments of commands that are paths."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

import click

__all__ = ["NamedPath"]

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
