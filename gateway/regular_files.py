"""Regular files: opens only regular files, and replaces small ones whole; and folders: makes and locks them.

A shell. Opening a pipe (FIFO) may wait for a writer for ever, and a device has no end.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from sluice.datastream.file.file_system import flush_folder
from sluice.gateway.errors import Fatal

__all__ = ["lock_folder", "make_folder", "open_regular", "read_small_text", "replace_file"]


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read, without waiting.

    Raises OSError if it cannot be opened, or is no regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # O_NONBLOCK means nothing for a regular file
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # fdopen refuses a folder
            raise OSError(None, "Not a regular file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_small_text(path: Path, expected: str) -> str | None:
    """Return the text of a small file; None: there is none.

    Args:
        expected: the content, in words, for the error.

    Raises:
        Fatal: it cannot be read, or is no text.
    """
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise Fatal(str(path), got=str(error), expected=expected) from error


def replace_file(path: Path, content: bytes, *, flush: bool = True) -> None:
    """Write or replace a file: whole or not at all, even across a crash.

    Args:
        path: with the suffix `.new` it is written first.
        flush: whether the file is on disk on return.

    Raises:
        OSError: the disk refused, and the old file is unchanged. If only flushing the folder failed, the new
            file is in place, and a power failure may bring back the old one.
    """
    new_path = path.with_suffix(".new")
    # Write a new file each time: after a failed flush, the pages of a file may never reach the disk.
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
    """Create a folder and its missing parents; their names are on disk on return.

    Raises OSError.
    """
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in missing:
        flush_folder(each.parent)


@contextmanager
def lock_folder(folder: Path, expected: str) -> Iterator[None]:
    """Hold the lock of a folder; the system releases it if the process ends.

    Args:
        expected: for the error.

    Raises:
        Fatal: another program holds it.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Fatal(str(folder), got="another program", expected=expected) from None
        yield
    finally:
        os.close(descriptor)
