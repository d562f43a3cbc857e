"""Opening files whose names come from elsewhere, regular ones alone; and replacing small files whole.

A shell. To open a pipe (a FIFO) waits for somebody who writes to it, maybe for ever, and a device has no end.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from datastream.file.file_system import flush_folder

__all__ = ["make_folder", "open_regular", "replace_file"]


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


def replace_file(path: Path, content: bytes, *, flush: bool = True) -> None:
    """Put a file in the place of another, or of none: whole or not at all, whatever happens meanwhile.

    Args:
        path: of the file; `path` with the suffix `.new` is written first.
        content: all of it.
        flush: it is on disk on return.

    Raises:
        OSError: the disk refused. What was there still is; where only the folder could not be flushed, it is
            the new file, and a power failure may bring back the old one.
    """
    new_path = path.with_suffix(".new")
    # A new file each time: the pages of one whose flush failed may never reach the disk.
    new_path.unlink(missing_ok=True)
    try:
        with new_path.open("xb") as file:
            file.write(content)
            if flush:
                file.flush()
                os.fsync(file.fileno())
        new_path.replace(path)
    except OSError:
        with suppress(OSError):
            new_path.unlink(missing_ok=True)
        raise
    if flush:
        flush_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing; their names are on disk on return.

    Raises:
        OSError: it cannot be made, or something else is there.
    """
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in missing:
        flush_folder(each.parent)
