"""The progress of a fuzzing process while it runs: a small file that both ends map into memory.

    offset 0    inputs           u64 little-endian, how many have been read
           8    cpu_seconds      f64, processor time since the first input
           16   slowest_seconds  f64, processor time of the slowest input, instrumented
           24   size             u32, of the input that is being read
           28   input            so many bytes

The process need not live to tell: whatever ends it, the file says which input it was reading.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["Progress", "Record", "read_input", "read_progress"]

_PROGRESS: Final = struct.Struct("<Qdd")
_SIZE: Final = struct.Struct("<I")
_INPUT_OFFSET: Final = _PROGRESS.size + _SIZE.size


class Progress(NamedTuple):
    """The progress of a process."""

    inputs: int = 0
    """Inputs that have been read."""
    cpu_seconds: float = 0.0
    """Processor time that it has used for them, its own and libFuzzer's."""
    slowest_seconds: float = 0.0
    """Processor time of the slowest of them, instrumented."""


class Record:
    """The fuzzing process's end.

    Args:
        path: of the file, which is made anew.
        size_max: bytes of the longest input.
    """

    def __init__(self, path: Path, size_max: int) -> None:
        path.write_bytes(bytes(_INPUT_OFFSET + size_max))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)

    def begin(self, data: bytes) -> None:
        """Note the input that is read next."""
        _SIZE.pack_into(self._map, _PROGRESS.size, len(data))
        self._map[_INPUT_OFFSET : _INPUT_OFFSET + len(data)] = data

    def end(self, progress: Progress) -> None:
        """Note that it has been read."""
        _PROGRESS.pack_into(self._map, 0, *progress)


def read_progress(path: Path) -> Progress:
    """Return how far the process has come; nothing if it has not begun."""
    content = path.read_bytes()[: _PROGRESS.size] if path.exists() else b""
    return Progress(*_PROGRESS.unpack(content)) if len(content) == _PROGRESS.size else Progress()


def read_input(path: Path) -> bytes:
    """Return the input that the process has begun last."""
    content = path.read_bytes() if path.exists() else b""
    if len(content) < _INPUT_OFFSET:
        return b""
    (size,) = _SIZE.unpack_from(content, _PROGRESS.size)
    return content[_INPUT_OFFSET : _INPUT_OFFSET + size]
