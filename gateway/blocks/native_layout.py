"""The native layout of a block: its stream entry items are the entries of a network's stream. Pure.

The network's stream has these entries alone, so its clients read what they know. The block stream beside it
has the rest, one atomic operation a block. The entries of a block begin where those of the block before end.
Source: docs/spec/block-layout.md section 5.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from sluice.datastream.layout import BOOKMARK_TYPE, Entry
from sluice.datastream.limits import BOOKMARK_SIZE_MAX, BOOKMARK_SIZE_MIN
from sluice.gateway.blocks.errors import LayoutError
from sluice.gateway.blocks.items import ItemKind, kinds_of, stream_entry_item, stream_entry_of
from sluice.gateway.blocks.stream_layout import BLOCK_END_SIZE, BLOCK_END_TYPE, EntryRun, encode_runs

__all__ = ["ENTRIES_TYPE", "NetworkEntry", "encode_native", "entries_so_far", "is_bookmark", "whole_blocks"]

ENTRIES_TYPE: Final = 0xB2
"""Entry type of the mark that stands for entries of the network's stream."""
MARKED_BYTES_MAX: Final = 1 << 20
"""Data behind one mark: a reader of the block stream takes it at once."""
_MARK: Final = struct.Struct(">QQ")
_SO_FAR: Final = struct.Struct(">Q")
_STREAM_ENTRY: Final = int(ItemKind.STREAM_ENTRY)

NetworkEntry = tuple[int, bytes]
"""Entry type and data."""


def is_bookmark(entry_type: int, data: bytes) -> bool:
    """Return whether clients can ask for an entry as a bookmark; others of that type are plain entries."""
    return entry_type == BOOKMARK_TYPE and BOOKMARK_SIZE_MIN <= len(data) <= BOOKMARK_SIZE_MAX


class NativeBlock(NamedTuple):
    """The two parts of a block."""

    network: list[NetworkEntry]
    runs: Iterator[EntryRun]
    """Of the block stream, after the bookmark."""


def encode_native(
    block_number: int,
    items: Sequence[bytes],
    root_hash: bytes,
    first_entry: int,
    kinds: Sequence[int] | None = None,
) -> NativeBlock:
    """Return the entries of a block; errors as `encode_runs`.

    Args:
        first_entry: the number of its first entry in the network's stream.
        kinds: `kinds_of(items)`, if known.
    """
    network: list[NetworkEntry] = []
    kept: list[bytes] = []
    kept_kinds: list[int] = []
    kinds = kinds_of(items) if kinds is None else kinds
    for is_entry, group in groupby(zip(items, kinds, strict=True), lambda pair: pair[1] == _STREAM_ENTRY):
        if not is_entry:
            for item, kind in group:
                kept.append(item)
                kept_kinds.append(kind)
            continue
        for entries in _chunks(stream_entry_of(item) for item, _ in group):
            kept.append(_MARK.pack(first_entry + len(network), len(entries)))
            kept_kinds.append(ENTRIES_TYPE)
            network += entries
    so_far = _SO_FAR.pack(first_entry + len(network))
    return NativeBlock(network, encode_runs(block_number, kept, root_hash, kept_kinds, end_suffix=so_far))


def _chunks(entries: Iterable[NetworkEntry]) -> Iterator[list[NetworkEntry]]:
    chunk: list[NetworkEntry] = []
    size_bytes = 0
    for entry in entries:
        if chunk and size_bytes + len(entry[1]) > MARKED_BYTES_MAX:
            yield chunk
            chunk, size_bytes = [], 0
        chunk.append(entry)
        size_bytes += len(entry[1])
    if chunk:
        yield chunk


def entries_so_far(block_end: bytes) -> int:
    """Return how many entries the network's stream has behind a block, from the data of its end."""
    if len(block_end) != BLOCK_END_SIZE + _SO_FAR.size:
        raise LayoutError("block end", f"{len(block_end)} bytes", f"{BLOCK_END_SIZE + _SO_FAR.size}")
    (count,) = _SO_FAR.unpack_from(block_end, BLOCK_END_SIZE)
    return int(count)


def whole_blocks(
    entries: Iterable[Entry], read: Callable[[int, int], Iterable[NetworkEntry]]
) -> Iterator[Entry]:
    """Yield the entries of a block stream as they are in layout 2, with the numbers that they have there.

    Args:
        read: returns the network's entries from one number to before another.

    Raises:
        LayoutError: a mark or a block end has another size.
    """
    for entry in entries:
        if entry.type == ENTRIES_TYPE:
            if len(entry.data) != _MARK.size:
                raise LayoutError(f"mark at entry {entry.number}", f"{len(entry.data)} bytes", "16")
            first, count = _MARK.unpack(entry.data)
            for entry_type, data in read(first, first + count):
                yield Entry(_STREAM_ENTRY, entry.number, stream_entry_item(entry_type, data))
        elif entry.type == BLOCK_END_TYPE:
            entries_so_far(entry.data)
            yield Entry(entry.type, entry.number, entry.data[:BLOCK_END_SIZE])
        else:
            yield entry
