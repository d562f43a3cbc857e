"""The entries of a data page as columns. Pure.

Source: docs/spec/stream-file.md section 1; `datastream/file/pages.py` has the walk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sluice.datastream.file.pages import entries_of, walk_page
from sluice.datastream.layout import ENTRY_HEAD_SIZE, PAGE_SIZE, Entry

__all__ = ["PageEntries", "read_page"]

_TYPE_AT: Final = 5


@dataclass(frozen=True, slots=True)
class PageEntries:
    """The entries of one page, checked as `walk_page` checks them."""

    page: bytes
    first_number: int
    positions: NDArray[np.int32]
    """The start of each entry, and the end of the last."""
    types: NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.types)

    def numbers(self) -> pa.Array:
        """Return the entry numbers, int64."""
        return pa.array(np.arange(self.first_number, self.first_number + len(self), dtype=np.int64))

    def data(self) -> pa.Array:
        """Return the data of each entry, as binary."""
        buffers = [None, pa.py_buffer(self.positions), pa.py_buffer(self.page)]
        with_heads = pa.Array.from_buffers(pa.binary(), len(self), buffers)
        return pc.binary_slice(with_heads, ENTRY_HEAD_SIZE, PAGE_SIZE)

    def entries(self) -> list[Entry]:
        """Return the entries one by one."""
        data_end = int(self.positions[-1])
        return list(entries_of(self.page[:data_end], self.first_number, self.first_number + len(self)))


def read_page(page: bytes, first_number: int, end: int) -> PageEntries:
    """Find the entries of a page, and check each head.

    Args:
        page: at least `end` bytes.
        end: where the entries end at the latest: PAGE_SIZE, or the position of `total_length`.

    Raises:
        PageFault: as `walk_page`.
    """
    walk = walk_page(page, first_number, end, interval=1)
    positions = np.append(np.frombuffer(walk.checkpoints, np.uint32), walk.data_end).astype(np.int32)
    places = max(0, end - ENTRY_HEAD_SIZE + 1)
    type_at_every_byte: NDArray[Any] = np.ndarray((places,), ">u4", page, _TYPE_AT, (1,))
    types = type_at_every_byte[positions[:-1]].astype(np.uint32)
    return PageEntries(page, first_number, positions, types)
