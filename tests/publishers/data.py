"""Where the real blocks are, for the tests that use them."""

from __future__ import annotations

from pathlib import Path

import pytest

REAL_BLOCKS = Path(__file__).parents[3] / "shared" / "data" / "hiero-blocks"

needs_real_blocks = pytest.mark.skipif(not REAL_BLOCKS.is_dir(), reason="../shared/data is not here")


def real_chain(name: str) -> Path:
    """The folder of one real chain."""
    return REAL_BLOCKS / name
