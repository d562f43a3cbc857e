"""Opening files whose names come from elsewhere: regular ones alone.

A shell. To open a pipe (a FIFO) waits for somebody who writes to it, maybe for ever, and a device has no end.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

__all__ = ["flush_folder", "open_regular"]


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read it; this does not wait for anybody.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # which means nothing for a regular file
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # a folder is refused below, as everywhere
            raise OSError(None, "Not a regular file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def flush_folder(folder: Path) -> None:
    """Have the names in a folder on disk."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
