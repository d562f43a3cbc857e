"""The commands' tests have their folders in memory."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def tmp_path(memory_path: Path) -> Path:
    """A folder in memory: these tests open some thousand databases, and kill processes, but no machine."""
    return memory_path
