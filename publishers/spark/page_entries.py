"""The entries of a data page as columns. Pure.

Source: docs/spec/stream-file.md section 1; `datastream/file/pages.py` has the walk.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count, pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sluice.datastream.file.pages import split_page
from sluice.datastream.layout import Entry

__all__ = ["PageEntries", "read_page"]


@dataclass(frozen=True, slots=True)
class PageEntries:
    """The entries of one page, checked as `walk_page` checks them."""

    first_number: int
    types: NDArray[np.int64]
    offsets: NDArray[np.int32]
    """Where the data of each entry begins in `every_byte`, and where that of the last ends."""
    every_byte: bytes

    def __len__(self) -> int:
        return len(self.types)

    def numbers(self) -> pa.Array:
        """Return the entry numbers, int64."""
        return pa.array(np.arange(self.first_number, self.first_number + len(self), dtype=np.int64))

    def data(self) -> pa.Array:
        """Return the data of each entry, as binary."""
        buffers = [None, pa.py_buffer(self.offsets), pa.py_buffer(self.every_byte)]
        return pa.Array.from_buffers(pa.binary(), len(self), buffers)

    def entries(self) -> list[Entry]:
        """Return the entries one by one."""
        data = (self.every_byte[start:end] for start, end in pairwise(self.offsets.tolist()))
        return list(map(Entry, self.types.tolist(), count(self.first_number), data))


def read_page(page: bytes, first_number: int, end: int) -> PageEntries:
    """Find the entries of a page, and check each head.

    Args:
        page: at least `end` bytes.
        end: where the entries end at the latest: PAGE_SIZE, or the position of `total_length`.

    Raises:
        PageFault: as `walk_page`.
    """
    types, offsets, data = split_page(page, first_number, end)
    return PageEntries(first_number, np.frombuffer(types, np.int64), np.frombuffer(offsets, np.int32), data)
