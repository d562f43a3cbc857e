"""The two stream files of a native chain, committed as one: the header of the network's stream decides.

    data_dir/datastream.bin    the network's stream, which TCP clients read
    data_dir/blocks.bin        the block stream: the rest of each block (`blocks.native_layout`)

The block stream goes first in each half of a commit, so it is never behind:

    begin    block stream: entries, flush        the header of the commit begun before goes with this flush
             network's stream: the same
    finish   block stream: header, flush
             network's stream: header, flush     the commit point: readers see the blocks

A block of which the network's stream lacks an entry is not committed. An opening cuts it off the block
stream, and so does the end of a failed commit. A block without such entries is committed with the block
stream.

A cut of the last blocks (`sluice truncate`) goes the other way, and may be of any number:

    mark     chain.json: that of the last remaining block, and what stays in both files; flush
    cut      network's stream: header, flush      the commit point
             block stream: header, flush
    unmark   chain.json: the mark is gone, flush

An opening that finds the mark finishes the cut if the network's stream has the entries that stay, else the
chain is as before. Either way the mark is gone before another block is committed.

Source: docs/spec/block-layout.md section 5; datastream/README.md, "The steps of a commit".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from sluice.datastream import DataStreamer
from sluice.datastream.errors import BookmarkNotFound
from sluice.datastream.file.updating import NewestGivenUp
from sluice.datastream.layout import BOOKMARK_TYPE, Entry
from sluice.gateway.blocks.native_layout import (
    NetworkEntry,
    encode_native,
    entries_so_far,
    is_bookmark,
    whole_blocks,
)
from sluice.gateway.blocks.stream_layout import BLOCK_END_TYPE, EntryRun, bookmark_of
from sluice.gateway.errors import Fatal
from sluice.gateway.logs import fields
from sluice.gateway.store.chain_file import SNAPSHOT_NAME, Snapshot
from sluice.gateway.store.evidence import STREAM_FILE_NAME

__all__ = ["StreamPair", "network_reader", "whole_entries"]

log = logging.getLogger(__name__)


class StreamPair:
    """Both files, open. One thread commits, any may read.

    Raises:
        Fatal: the files are not of the same blocks; nothing was changed.
    """

    def __init__(
        self,
        blocks: DataStreamer,
        network: DataStreamer,
        cut_blocks_max: int,
        snapshot: Snapshot | None = None,
    ) -> None:
        """Take both files, and cut off the blocks that a crash left in one only.

        Args:
            blocks: the block stream.
            network: the network's stream.
            cut_blocks_max: most blocks that a crash leaves so.
            snapshot: chain.json.
        """
        self.blocks = blocks
        self.network = network
        totals, network_entries = blocks.committed, network.committed.total_entries
        self._cut_to(
            whole_entries(
                blocks.path,
                totals.total_entries,
                blocks.get_entry,
                network_entries,
                cut_blocks_max,
                snapshot,
            )
        )
        self._whole = blocks.committed.total_entries, network.committed.total_entries
        """Entries of both when they last were of the same blocks."""

    def _so_far(self, entry_number: int) -> int:
        return _so_far(self.blocks.path, self.blocks.get_entry(entry_number))

    def _cut_to(self, keep: int) -> None:
        blocks = self.blocks
        if keep < blocks.committed.total_entries:
            text = "blocks that were not committed in both files are cut off"
            log.warning(text, extra=fields(path=str(blocks.path), entries=keep))
            blocks.truncate_file(keep)

    def entries_before(self, number: int) -> int:
        """Return how many entries the network's stream has before a stored block, or behind the last one."""
        try:
            begin = self.blocks.get_bookmark(bookmark_of(number))
        except BookmarkNotFound:
            begin = self._whole[0]
        return self._so_far(begin - 1) if begin else 0

    # --- committing ----------------------------------------------------------------------------------------

    def add(
        self, number: int, items: Sequence[bytes], root_hash: bytes, kinds: Sequence[int] | None
    ) -> Iterator[EntryRun]:
        """Add a block's entries to the network's stream; return those of the block stream, but its bookmark.

        Raises:
            ItemError, LayoutError: the block cannot be written.
        """
        network = self.network
        native = encode_native(number, items, root_hash, network.next_number, kinds)
        if native.network:
            network.start_atomic_op()
            for entry_type, data in native.network:
                if is_bookmark(entry_type, data):
                    network.add_stream_bookmark(data)
                else:
                    network.add_stream_entry(entry_type, data)
            network.seal_atomic_op()
        return native.runs

    def drop_added(self) -> None:
        """Drop what was added since the last commit was begun."""
        self.blocks.rollback_group()
        self.network.rollback_group()

    @property
    def has_begun(self) -> bool:
        """True while a commit is begun, and can be finished."""
        return self.blocks.has_begun or self.network.has_begun

    def begin(self) -> None:
        """Begin to commit what was added, and finish the commit begun before.

        Raises:
            datastream.CommitFailed: as `DataStreamer.begin_commit`, for both.
        """
        blocks, network = self.blocks, self.network
        try:
            blocks.begin_commit()
        except BaseException:
            network.rollback_group()
            if not blocks.has_begun:
                network.rollback_commit()
            raise
        try:
            if network.group_bytes:
                network.begin_commit()
            else:
                network.finish_commit()
        except BaseException:
            blocks.rollback_commit()
            if not network.has_begun:
                self._straighten()
            raise
        self._note_whole()

    def finish(self) -> None:
        """Finish the begun commit: on disk in both files, and visible.

        Raises:
            datastream.CommitFailed: nobody sees its blocks.
        """
        try:
            self.blocks.finish_commit()
        except BaseException:
            self.network.rollback_commit()
            raise
        try:
            self.network.finish_commit()
        except BaseException:
            self._straighten()
            raise
        self._note_whole()

    def give_up(self) -> None:
        """Drop the begun commit, if any."""
        self.blocks.rollback_commit()
        self.network.rollback_commit()
        self.recover()

    def recover(self) -> None:
        """Cut off what an earlier failure left in the block stream only.

        Raises:
            datastream.CommitFailed: the disk still refuses.
        """
        if self._whole[0] < self.blocks.committed.total_entries and not self.has_begun:
            self._straighten()

    def _note_whole(self) -> None:
        self._whole = self.blocks.committed.total_entries, self.network.committed.total_entries

    def _straighten(self) -> None:
        """Cut the blocks of a failed commit off the block stream."""
        whole_entries, network_entries = self._whole
        if self.network.committed.total_entries == network_entries:
            self._cut_to(whole_entries)
        else:  # interrupted when they were committed
            self._note_whole()

    def truncate(self, keep: int, newest_given_up: NewestGivenUp | None = None) -> None:
        """Keep the first `keep` entries of the block stream and those of their blocks; on disk on return.

        Args:
            newest_given_up: of the network's bookmarks. Those of blocks are there once.

        Raises:
            As `DataStreamer.truncate_file`.
        """
        self.network.truncate_file(self._so_far(keep - 1), newest_given_up)
        self.blocks.truncate_file(keep, lambda bookmarks: {})
        self._note_whole()

    # --- reading -------------------------------------------------------------------------------------------

    def whole(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Yield entries of the block stream as they are in layout 2."""
        return whole_blocks(entries, network_reader(self.network))

    @property
    def whole_entries(self) -> int:
        """The entries of the block stream whose blocks are in both files: during a commit it has more."""
        return self._whole[0]

    def columns(self, from_number: int, size_wanted: int) -> tuple[list[int], list[bytes], list[int]]:
        """Return types and data as `whole` does, and the number after each, until it has `size_wanted` bytes.

        Raises:
            LayoutError, datastream.DatastreamError: the entries cannot be read.
        """
        types: list[int] = []
        column: list[bytes] = []
        numbers: list[int] = []
        left = size_wanted
        for entry in self.whole(self.blocks.read_entries(from_number, self.whole_entries)):
            if left <= 0 and numbers[-1] != entry.number + 1:
                break  # the entries of a mark stay together: it is one entry of the block stream
            types.append(entry.type)
            column.append(entry.data)
            numbers.append(entry.number + 1)
            left -= len(entry.data)
        return types, column, numbers

    def close(self) -> None:
        """Close the network's stream; its owner closes the block stream."""
        self.network.close()


def network_reader(network: DataStreamer) -> Callable[[int, int], Iterator[NetworkEntry]]:
    """Return the reader of a network's entries for `whole_blocks`."""

    def read(first: int, end: int) -> Iterator[NetworkEntry]:
        for entry in network.read_entries(first, end):
            yield entry.type, entry.data

    return read


def whole_entries(
    blocks_path: Path,
    total_entries: int,
    read_entry: Callable[[int], Entry],
    network_entries: int,
    cut_blocks_max: int,
    snapshot: Snapshot | None,
) -> int:
    """Return how many entries of a block stream have their blocks in both files; the others are to be cut.

    Args:
        blocks_path: the block stream.
        total_entries: how many it has.
        read_entry: returns one of them.
        network_entries: how many the network's stream has.
        cut_blocks_max: most blocks that a crash leaves in the block stream only.
        snapshot: chain.json.

    Raises:
        Fatal: the files are not of the same blocks.
    """

    def end_of(count: int) -> tuple[int | None, int]:
        """Return the block that the first `count` entries end with, and the network's entries behind it."""
        if not count:
            return None, 0
        entry = read_entry(count - 1)
        return _number_in(entry), _so_far(blocks_path, entry)

    known = None if snapshot is None else snapshot.chain.last_number
    mark = None if snapshot is None else snapshot.cut
    is_cut = mark is not None and mark.network == network_entries and 0 < mark.blocks <= total_entries
    if mark is not None and is_cut and end_of(mark.blocks) == (known, network_entries):
        return mark.blocks
    keep, cut_count = total_entries, 0
    last, so_far = end_of(keep)
    expected_entries = so_far
    while so_far > network_entries and cut_count <= cut_blocks_max:
        keep -= 1
        while keep and read_entry(keep).type != BOOKMARK_TYPE:
            keep -= 1
        last, so_far = end_of(keep)
        cut_count += 1
    where = f"stream file {blocks_path.with_name(STREAM_FILE_NAME)}"
    advice = f"sluice repair {blocks_path.parent} says what can be done"
    if so_far != network_entries or cut_count > cut_blocks_max:
        raise Fatal(
            where,
            got=f"{network_entries} entries",
            expected=(
                f"{expected_entries}, as {blocks_path.name} beside it says, which is written before it; at "
                f"most {cut_blocks_max} blocks can be missing after a crash; {advice}"
            ),
        )
    if cut_count and known is not None and (last is None or known > last):
        raise Fatal(
            where,
            got=f"{network_entries} entries, those of {'no block' if last is None else f'block {last}'}",
            expected=f"those of block {known}, which {SNAPSHOT_NAME} beside it knows; {advice}",
        )
    return keep


def _so_far(path: Path, entry: Entry) -> int:
    if entry.type != BLOCK_END_TYPE:
        where = f"stream file {path}, entry {entry.number}"
        raise Fatal(where, got=f"an entry of type {entry.type:#x}", expected="a block's end")
    return entries_so_far(entry.data)


def _number_in(block_end: Entry) -> int:
    return int.from_bytes(block_end.data[:8], "big")
