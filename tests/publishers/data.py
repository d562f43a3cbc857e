"""Where the real blocks are, for the tests that use them."""

from __future__ import annotations

from pathlib import Path

from tests.reference_data import BLOCKS, needs_blocks

REAL_BLOCKS = BLOCKS
needs_real_blocks = needs_blocks


def real_chain(name: str) -> Path:
    """The folder of one real chain."""
    return REAL_BLOCKS / name
