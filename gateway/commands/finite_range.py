"""The type of options that are numbers with a fraction."""

from __future__ import annotations

import math
from typing import Any

import click

__all__ = ["FiniteRange"]


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
