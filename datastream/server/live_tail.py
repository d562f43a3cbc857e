"""The bytes that a commit adds, read once for all the clients that wait for them.

A thousand live clients stand at the same offset. One `pread` and a `send` to each is quicker than a
`sendfile` to each. Only a range that is short, ends at the committed length and lies on one page is shared;
for all else a client uses `sendfile`.

Made anew for every round of wake-ups, and gone with it: it holds no more than a few ranges.

Source: datastream/README.md, "Limits".
"""

from __future__ import annotations

from datastream.file.streamer import DataStreamer
from datastream.layout import page_end, page_number_of
from datastream.limits import TAIL_BYTES_MAX

__all__ = ["LiveTail"]


class LiveTail:
    """What lies between the offsets of waiting clients and the committed length as of now."""

    __slots__ = ("_ranges", "_streamer", "limit")

    def __init__(self, streamer: DataStreamer) -> None:
        self._streamer = streamer
        self.limit = streamer.committed.total_length
        """Offset where the committed bytes end."""
        self._ranges: dict[int, tuple[int, bytes] | None] = {}

    def after(self, position: int) -> tuple[int, bytes] | None:
        """Return (offset, bytes) of all that a client at `position` lacks, or None: it should use `sendfile`.

        The offset is `position`, or the start of the next page when what is between is padding.

        Raises:
            EntriesDisagree: the page is damaged.
        """
        try:
            return self._ranges[position]
        except KeyError:
            found = self._ranges[position] = self._read(position)
            return found

    def _read(self, position: int) -> tuple[int, bytes] | None:
        limit = self.limit
        if position >= limit:
            return None
        page_number = page_number_of(position)
        end = self._streamer.data_end(page_number, limit)
        if position >= end:
            position = page_end(page_number)
            end = self._streamer.data_end(page_number + 1, limit) if position < limit else position
        size = end - position
        if end != limit or not 0 < size <= TAIL_BYTES_MAX:
            return None
        data = self._streamer.read_bytes(size, position)
        return (position, data) if len(data) == size else None
