"""Small file systems, for nodes whose disk fills up."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_file_system(folder: Path, size_bytes: int) -> Iterator[None]:
    """Mount a tmpfs of that size on a new folder; skip the test where that fails."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("needs root, and the command mount, for a small file system")
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"needs the right to mount (CAP_SYS_ADMIN): {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
