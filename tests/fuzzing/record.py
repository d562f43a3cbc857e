"""The progress of a running fuzzing process: a small file that both ends map into memory.

    offset 0    inputs           u64 little-endian, the number of inputs read
           8    cpu_seconds      f64, processor time since the first input
           16   slowest_seconds  f64, processor time of the slowest input, instrumented
           24   size             u32, of the current input
           28   input            this many bytes

Whatever ends the process, the file has its current input.
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
    """The number of inputs read."""
    cpu_seconds: float = 0.0
    """The processor time for them, its own and libFuzzer's."""
    slowest_seconds: float = 0.0
    """That of the slowest one, instrumented."""


class Record:
    """The fuzzing process's end.

    Args:
        path: of the file, which is created anew.
        size_max: bytes of the longest input.
    """

    def __init__(self, path: Path, size_max: int) -> None:
        path.write_bytes(bytes(_INPUT_OFFSET + size_max))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)

    def begin(self, data: bytes) -> None:
        """Note the next input."""
        _SIZE.pack_into(self._map, _PROGRESS.size, len(data))
        self._map[_INPUT_OFFSET : _INPUT_OFFSET + len(data)] = data

    def end(self, progress: Progress) -> None:
        """Note that the input is done."""
        _PROGRESS.pack_into(self._map, 0, *progress)


def read_progress(path: Path) -> Progress:
    """Return the process's progress; zero if it has not begun."""
    content = path.read_bytes()[: _PROGRESS.size] if path.exists() else b""
    return Progress(*_PROGRESS.unpack(content)) if len(content) == _PROGRESS.size else Progress()


def read_input(path: Path) -> bytes:
    """Return the current input."""
    content = path.read_bytes() if path.exists() else b""
    if len(content) < _INPUT_OFFSET:
        return b""
    (size,) = _SIZE.unpack_from(content, _PROGRESS.size)
    return content[_INPUT_OFFSET : _INPUT_OFFSET + size]
