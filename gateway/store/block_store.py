"""The block store: the chain of committed blocks in the data streamer's file.

A shell around `blocks.stream_layout` (the entries of a block), `datastream.DataStreamer` (puts them on disk)
and `blocks.chain` (what the next block must link to). It also recovers the chain's state after a restart.

    data_dir/datastream.bin       the stream file
    data_dir/datastream.db/       its bookmarks
    data_dir/chain.json           a snapshot of the chain's state, so that a start reads few root hashes

In the native layout the blocks are in `blocks.bin`, and `datastream.bin` is the network's stream
(`store.stream_pair`).

Invariants
  - Blocks have consecutive numbers; the last committed entry is the end of a block.
  - A snapshot that does not fit the stream is ignored and replaced. If it or the index knows of more than the
    stream holds, the stream is not opened (`gateway.store.evidence`).
  - `append`, `begin`, `finish`, `give_up` and `settle` are called from one thread at a time; everything else
    from any. Source: docs/spec/block-layout.md; datastream/README.md, "The steps of a commit".
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Literal, NamedTuple

from sluice.datastream import DataStreamer, Entry
from sluice.datastream.errors import PageNotServed
from sluice.datastream.file.bookmarks import OpenDatabase, bookmarks_folder
from sluice.datastream.file.disk import Disk, RealDisk
from sluice.datastream.file.evidence import Evidence
from sluice.datastream.file.opening import Judge
from sluice.datastream.file.remote_pages import RemotePages
from sluice.datastream.file.streamfile import StreamFile, inspect_header
from sluice.datastream.file.updating import NewestGivenUp
from sluice.datastream.layout import BOOKMARK_TYPE, Committed
from sluice.gateway.blocks.chain import Chain, LastLayout
from sluice.gateway.blocks.errors import ChainStateError, LayoutError
from sluice.gateway.blocks.stream_layout import (
    BLOCK_END_SIZE,
    BLOCK_END_TYPE,
    NATIVE_LAYOUT,
    NEWEST_LAYOUT,
    BlockDecoder,
    StoredBlock,
    block_end_of,
    block_number_of,
    bookmark_of,
    bookmarks_of,
    encode_runs,
    layout_of,
)
from sluice.gateway.errors import Fatal
from sluice.gateway.logs import fields
from sluice.gateway.regular_files import make_folder, replace_file
from sluice.gateway.store.chain_file import (
    SNAPSHOT_NAME,
    CutMark,
    Snapshot,
    pack,
    read_snapshot,
    snapshot_if_whole,
)
from sluice.gateway.store.evidence import (
    BLOCK_FILE_NAME,
    GROUP_BLOCKS_DEFAULT,
    STREAM_FILE_NAME,
    cut_blocks_max,
    is_native,
    judge_for,
    look_for_lost_blocks,
)
from sluice.gateway.store.stream_check import summary_of
from sluice.gateway.store.stream_pair import StreamPair, whole_entries

__all__ = ["STREAM_FILE_NAME", "BlockStore", "Layout", "VerifiedBlock", "stored_last"]

log = logging.getLogger(__name__)

CHAIN_SNAPSHOT_BLOCKS: Final = 1_000
"""Root hashes that a start reads at most after a snapshot."""

ROLL_FORWARD_LOG_BLOCKS: Final = 100_000
"""Some seconds of reading between two log lines."""

DISK_PROBE_BYTES: Final = 1 << 20
"""Room for a data page."""


Layout = Literal["block", "native"]


class VerifiedBlock(NamedTuple):
    """A verified and linked block."""

    number: int
    items: Sequence[bytes]
    root_hash: bytes
    kinds: Sequence[int] | None = None
    """`kinds_of(items)`; None: the store reads them from the items."""
    layout: LastLayout | None = None
    """The layout of the root hash; None: unknown."""


class BlockStore:
    """The committed blocks of one node. Made by `BlockStore.open`."""

    def __init__(
        self,
        data_dir: Path,
        streamer: DataStreamer,
        snapshot_blocks: int = CHAIN_SNAPSHOT_BLOCKS,
        pair: StreamPair | None = None,
    ) -> None:
        self.data_dir = data_dir
        self.streamer = streamer
        """The stream of blocks."""
        self.pair = pair
        """It, and the network's stream; None: the layout is not native."""
        streamer.sums.adopts = False  # `PageBlocks` proves a page before it gets a sum
        self.first_number: int | None = None
        """None: the stream is empty."""
        self.layout: int | None = None
        """The layout of the stream's blocks; None: the stream is empty."""
        self.new_layout = NEWEST_LAYOUT if pair is None else NATIVE_LAYOUT
        """The layout that the first block of the stream will have."""
        self.chain = Chain()
        self.doubted_number: int | None = None
        """A block whose root hash in chain.json differs from the stream's; see `look_at_last_block`."""
        self.is_doubted = False
        """The chain may be wrong: `close` writes no snapshot."""
        self.snapshot_due = False
        """Enough blocks were added for another snapshot."""
        self._snapshot_blocks = snapshot_blocks
        self._snapshot_number = -1
        self._room_bytes = 0
        """Size of the first block of the last group."""
        self._available: tuple[int, int | None] = (0, None)
        """A page up to which pages are given up -> the first block that can be read."""
        self._callbacks: tuple[Callable[[], None], ...] = ()

    @classmethod
    def open(
        cls,
        data_dir: Path,
        *,
        stream_type: int = 1,
        system_id: int = 137,
        version: int = 1,
        disk: Disk | None = None,
        network_disk: Disk | None = None,
        open_database: OpenDatabase | None = None,
        go_on: Callable[[], None] = lambda: None,
        group_blocks_max: int = GROUP_BLOCKS_DEFAULT,
        judge: Judge | None = None,
        past_damage: bool = False,
        snapshot_blocks: int = CHAIN_SNAPSHOT_BLOCKS,
        layout: Layout | None = None,
    ) -> BlockStore:
        """Open the block store in `data_dir`, or make an empty one there.

        Args:
            stream_type: an existing stream must have it; `system_id` and `version` are for a new one.
            disk: replaces the file of the blocks (tests).
            network_disk: replaces that of the network's stream (tests).
            open_database: replaces plyvel for the bookmarks (tests).
            go_on: called again and again in long work; what it raises ends the opening, without harm.
            group_blocks_max: most blocks that a commit had.
            judge: weighs the evidence instead of `gateway.store.evidence` (`sluice repair`).
            past_damage: as `DataStreamer.open`.
            snapshot_blocks: blocks between two snapshots.
            layout: an existing folder must have it; None: it decides, and a new one gets "block".

        Raises:
            Fatal: the folder cannot be used, has another layout, its stream does not hold blocks, or
                something knows of more than its header counts; nothing was changed.
            datastream.DatastreamError: the stream file or its bookmarks cannot be opened.
        """
        try:
            make_folder(data_dir)
            has_pair = _has_native(data_dir, layout)
            path = data_dir / (BLOCK_FILE_NAME if has_pair else STREAM_FILE_NAME)
            judge = judge or judge_for(data_dir, group_blocks_max)
            if disk is None and not path.exists():
                look_for_lost_blocks(data_dir, path)
            if disk is None and not bookmarks_folder(path).exists():
                _look_before_opening(path, stream_type, judge)
            open_stream = partial(
                DataStreamer.open,
                stream_type=stream_type,
                system_id=system_id,
                version=version,
                open_database=open_database,
                go_on=go_on,
                past_damage=past_damage,
            )
            if has_pair:
                most = cut_blocks_max(group_blocks_max)
                streamer, pair = _open_pair(data_dir, open_stream, disk, network_disk, judge, most)
            else:
                streamer, pair = open_stream(path, disk=disk, judge=judge), None
        except OSError as error:
            got = error.strerror or str(error)
            raise Fatal(f"data_dir {data_dir}", got=got, expected="a folder that can be written") from error
        store = cls(data_dir, streamer, snapshot_blocks, pair)
        header = streamer.header
        for name, told, kept in (
            ("stream.system_id", system_id, header.system_id),
            ("stream.version", version, header.version),
        ):
            if told != kept:
                text = "setting is for a new stream file; this one keeps its own"
                log.warning(text, extra=fields(name=name, value=told, kept=kept))
        try:
            store._recover(go_on)
        except BaseException:
            for streamer in store.streamers:
                streamer.close()
            raise
        return store

    @property
    def streamers(self) -> tuple[DataStreamer, ...]:
        """The streams in the folder, first the one that TCP clients read."""
        return (self.streamer,) if self.pair is None else (self.pair.network, self.streamer)

    @property
    def total_entries(self) -> int:
        """The entries that readers of blocks see."""
        return self.streamer.committed.total_entries if self.pair is None else self.pair.whole_entries

    @property
    def first_available(self) -> int | None:
        """The first block that can be read, here or in the archive; None: the store is empty."""
        remote = self.streamer.remote
        if remote.end <= 1 or self.first_number is None or self.last_number is None:
            return self.first_number
        if self._available[0] != remote.end:
            self._available = remote.end, self._first_from(remote)
        return self._available[1]

    def _first_from(self, remote: RemotePages) -> int:
        assert self.first_number is not None
        assert self.last_number is not None
        if not remote.is_gone(remote.end - 1):
            return self.first_number
        blocks = range(self.first_number, self.last_number + 1)
        first_entry = self.streamer.sums.first_number(remote.end)
        place = bisect_left(blocks, first_entry, key=lambda number: self.entry_of(number))
        return self.first_number + min(place, len(blocks) - 1)

    def begin_of_last(self, count: int) -> int:
        """Return the number of the first entry of the last `count` blocks."""
        if self.first_number is None or self.last_number is None:
            return 0
        return self.entry_of(max(self.first_number, self.last_number - count + 1))

    def entry_of(self, number: int) -> int:
        """Return the number of a block's first entry, by the index: also if it cannot be read."""
        return self.streamer.indexed_number(bookmark_of(number))

    @property
    def last_number(self) -> int | None:
        """The last committed block; None: the store is empty."""
        return self.chain.last_number

    def append(self, blocks: Sequence[VerifiedBlock]) -> None:
        """Commit blocks; return when they are on disk.

        Raises:
            As `begin` and `finish`; nobody sees the blocks then.
        """
        self.begin(blocks)
        self.finish()

    def begin(self, blocks: Sequence[VerifiedBlock]) -> None:
        """Write blocks, one atomic operation each; finish those begun before with the same flush.

        Nobody sees them before `finish`, or before other blocks are begun.

        Raises:
            ItemError, LayoutError, datastream.DatastreamError: none of the blocks is begun. If nothing
                `has_begun`, those before are lost too; else they can be finished.
        """
        streamer = self.streamer
        if self.layout is None:
            self.layout = self.new_layout
        pair = self.pair
        if pair is not None:
            pair.recover()
        try:
            for block in blocks:
                bookmarks = bookmarks_of(block.number, self.layout)
                streamer.start_atomic_op()
                for bookmark in bookmarks:
                    streamer.add_stream_bookmark(bookmark)
                add = encode_runs if pair is None else pair.add
                for run in add(block.number, block.items, block.root_hash, block.kinds):
                    streamer.add_stream_entries(run.entry_types, run.data)
                streamer.seal_atomic_op()
                if block is blocks[0]:
                    self._room_bytes = streamer.group_bytes
        except BaseException:
            (streamer.rollback_group if pair is None else pair.drop_added)()
            raise
        (streamer.begin_commit if pair is None else pair.begin)()

    def finish(self) -> None:
        """Finish the begun blocks; return when they are on disk.

        Raises:
            datastream.CommitFailed: the disk refused; nobody sees the blocks.
        """
        (self.streamer.finish_commit if self.pair is None else self.pair.finish)()

    def give_up(self) -> None:
        """Drop the begun blocks, if any."""
        (self.streamer.rollback_commit if self.pair is None else self.pair.give_up)()

    @property
    def has_begun(self) -> bool:
        """True while blocks are begun and not finished."""
        return (self.streamer if self.pair is None else self.pair).has_begun

    def adopt_layout(self, layout: int) -> bool:
        """Begin an empty stream with this layout; return whether it can have it."""
        if (layout == NATIVE_LAYOUT) != (self.pair is not None):
            return False
        self.new_layout = layout
        return True

    def advance(self, block: VerifiedBlock) -> None:
        """Add a committed block to the chain, in order of number."""
        self._note_last(block.number)
        if self.chain.last_number is None:
            self.chain = Chain(block.number)
            self.first_number = block.number
        self.chain.advance(block.number, block.root_hash, block.layout)
        for callback in self._callbacks:
            callback()

    def learn(self, layout: LastLayout) -> None:
        """Add the layout of the last block's root hash to the chain; a start does not read it."""
        if layout.other_root_hash is not None and self.chain.lacks_tree_before:
            last_number, self.chain = self.chain.last_number, Chain(self.chain.first_number)
            assert last_number is not None
            log.warning(
                "chain snapshot is of an earlier version: all root hashes are read again",
                extra=fields(first_block=self.chain.first_number, last_block=last_number),
            )
            self._roll_forward(self.chain.first_number, last_number, lambda: None)
        self.chain.learn(layout)

    def settle(self, root_hash: bytes) -> None:
        """Rewrite the last block's root hash, since the next block has shown that it has the other layout.

        It is on disk on return; call `settled` then. In the commit thread, with nothing begun.

        Raises:
            datastream.CommitFailed: the disk refused; the block's end is unchanged.
        """
        end = self.streamer.committed.total_entries - 1
        entry = self.streamer.get_entry(end)
        number, before = _block_end(self.streamer.path, entry)
        if before != root_hash:
            suffix = entry.data[BLOCK_END_SIZE:]
            self.streamer.update_entry_data(
                end, BLOCK_END_TYPE, number.to_bytes(8, "big") + root_hash + suffix
            )

    def settled(self) -> None:
        """Put the root hash that `settle` wrote into the chain."""
        chain = self.chain.in_other_layout()
        assert chain is not None
        self.chain = chain

    def on_advance(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after each `advance`; return a function that ends this."""
        self._callbacks = (*self._callbacks, callback)

        def unlisten() -> None:
            """End the calls; a second time does nothing."""
            self._callbacks = tuple(other for other in self._callbacks if other is not callback)

        return unlisten

    def read_block(self, number: int) -> StoredBlock | None:
        """Read one committed block; None if it is not stored.

        Raises:
            LayoutError: the entries at the block's bookmark are not that block.
        """
        first, last = self.first_available, self.last_number
        if first is None or last is None or not first <= number <= last:
            return None
        start = self.streamer.get_bookmark(bookmark_of(number))
        decoder = BlockDecoder()
        for entry in self.read_entries(start):
            stored = decoder.feed(entry.type, entry.data)
            if stored is not None:
                if stored.number != number:
                    raise LayoutError(f"block at entry {start}", str(stored.number), str(number))
                return stored
        raise LayoutError(f"block {number} at entry {start}", "the end of the stream", "the end of the block")

    def read_entries(self, start: int, end: int | None = None) -> Iterator[Entry]:
        """Read the entries of blocks, as they are in layout 2; with the numbers that they have here."""
        entries = self.streamer.read_entries(start, end)
        return entries if self.pair is None else self.pair.whole(entries)

    def read_columns(
        self, from_number: int, size_wanted: int
    ) -> tuple[Sequence[int], Sequence[bytes], Sequence[int]]:
        """Read entries as `read_entries`, faster: types, data, and the number after each.

        At least one entry, and no further ones once their data has `size_wanted` bytes. There may be fewer.
        """
        if self.pair is not None:
            return self.pair.columns(from_number, size_wanted)
        types, column = self.streamer.read_columns(from_number, size_wanted)
        return types, column, range(from_number + 1, from_number + 1 + len(types))

    def root_hash_at(self, number: int) -> bytes | None:
        """Read the root hash of one committed block, 48 bytes; None if it is not stored."""
        first, last = self.first_available, self.last_number
        if first is None or last is None or not first <= number <= last:
            return None
        return self._root_hash_of(number, last)

    def first_on_last_page(self) -> int | None:
        """Return the first block that ends on the last data page; None if the store is empty."""
        if self.last_number is None:
            return None
        for entry in self.streamer.read_entries(self.streamer.first_on_last_page):
            if entry.type == BLOCK_END_TYPE:
                return _block_end(self.streamer.path, entry)[0]
        return None

    def probe(self) -> None:
        """Test whether the disk takes writes again: a file, the rest of a failed commit, the bookmarks.

        It requires room for the refused block: with less, the node would alternate between ready and not
        ready. In the commit thread.

        Raises:
            OSError: there is no room, or the disk refuses.
            datastream.CommitFailed: stream or bookmarks cannot be repaired yet: the next commit would fail.
        """
        with tempfile.TemporaryFile(dir=self.data_dir) as file:
            file.write(bytes(DISK_PROBE_BYTES))
            file.flush()
            os.fdatasync(file.fileno())
            room = os.fstatvfs(file.fileno())
        for streamer in self.streamers:
            streamer.recover()
        if self.pair is not None:
            self.pair.recover()
        # A refused commit has zeroed its bytes, and keeps their room.
        spare_bytes = max(0, self.streamer.allocated_bytes - self.streamer.committed.total_length)
        if room.f_bfree * room.f_frsize + spare_bytes < self._room_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def chain_up_to(
        self,
        number: int,
        go_on: Callable[[], None] = lambda: None,
        archived_roots: Callable[[], Iterable[tuple[int, bytes]]] | None = None,
    ) -> Chain:
        """Return the chain that ends with a stored block, for `truncate`; read all root hashes for it.

        Args:
            go_on: called for each root hash that is read.
            archived_roots: returns number and root hash of the blocks in the archive, unproved.

        Raises:
            Fatal: there is no such block; or nobody has the root hashes of pages that are given up.
            datastream.DatastreamError: they cannot be read.
        """
        first, last, remote = self.first_number, self.last_number, self.streamer.remote
        if first is None or last is None or not first <= number <= last:
            held = "no block" if first is None else f"blocks {first} to {last}"
            raise Fatal(str(self.data_dir), got=held, expected=f"a chain that has block {number}")
        if number == last:
            return self.chain.copy()
        if first and remote.end:  # a chain that begins here has no tree of all root hashes
            return Chain.ending_with(first, number, self._root_hash_of(number, last))
        chain, start = Chain(first), first
        if remote.end:
            what = f"root hashes of blocks {first} to {number}"
            if remote.is_gone(remote.end - 1):
                expected = "all: a node that has its old pages makes the tree of them; take a peer's folder"
                raise Fatal(what, got="some that are gone for good (history.keep_…)", expected=expected)
            if archived_roots is None:
                expected = "the archive that has the others: --archive URL"
                raise Fatal(what, got="those of the local window", expected=expected)
            for archived_number, root_hash in archived_roots():
                if archived_number > number:
                    break
                chain.advance(archived_number, root_hash)
                go_on()
            start = chain.next_number
        if start <= number:
            self._roll_forward(start, number, go_on, chain)
        if remote.end:
            self._check_tree(chain)
        return chain

    def _check_tree(self, chain: Chain) -> None:
        """Compare a chain with the footer of the block behind it. Raises Fatal if they differ."""
        stored = self.read_block(chain.next_number)
        summary, problem = (None, "no block") if stored is None else summary_of(stored)
        refusal = None if summary is None else chain.check_links(summary)
        if summary is None or refusal is not None:
            what = f"block {chain.next_number} in {self.data_dir}"
            if refusal is None:
                raise Fatal(what, got=problem, expected="one whose footer tells the root hashes before it")
            expected = f"{refusal.expected}, by the root hashes in the archive: they are others"
            raise Fatal(f"{what}: {refusal.what}", got=refusal.got, expected=expected)

    def truncate(
        self,
        number: int,
        go_on: Callable[[], None] = lambda: None,
        chain: Chain | None = None,
        newest_given_up: NewestGivenUp | None = None,
    ) -> None:
        """Drop the blocks above `number`, on disk on return. Only without a node.

        A crash leaves the old chain whole, or the new one.

        Args:
            go_on: as `chain_up_to`.
            chain: `chain_up_to(number)`; None: it is made here.
            newest_given_up: as `StreamPair.truncate`.

        Raises:
            Fatal, datastream.DatastreamError: as `chain_up_to`.
            datastream.EntriesArchived: an archive has these blocks; nothing is dropped.
            OSError, datastream.DatastreamError: the disk refuses; nothing is dropped. Of a native chain that
                is decided when it is opened again: only `close` may follow.
        """
        last, before = self.last_number, self.chain
        if number == last:
            return
        chain = self.chain_up_to(number, go_on) if chain is None else chain
        assert last is not None
        end, pair = self.streamer.get_bookmark(bookmark_of(number + 1)), self.pair
        cut = None if pair is None else CutMark(end, pair.entries_before(number + 1))
        self.streamer.check_not_archived("truncate", end)
        if pair is not None:
            pair.network.check_not_archived("truncate", pair.entries_before(number + 1))
        self.chain = chain
        try:
            assert self.chain.last_root_hash == self._root_hash_of(number, last)
            # Before the stream: a snapshot is never ahead of the stream.
            self.is_doubted = cut is not None  # until the mark is gone, `close` leaves it
            self._replace_snapshot(flush=True, cut=cut)
            self._snapshot_number = number
            self._note_last(number)
            if pair is None:
                self.streamer.truncate_file(end, lambda bookmarks: {})  # each is there once
            else:
                pair.truncate(end, newest_given_up)
                self._replace_snapshot(flush=True)
                self.is_doubted = False
        except BaseException:
            if self.streamer.committed.total_entries > end:  # else the error came after the commit point
                self.chain = before
            raise

    def close(self) -> None:
        """Write the snapshot and close the stream. Closing twice does nothing."""
        if self.last_number not in (None, self._snapshot_number) and not self.is_doubted:
            self.write_snapshot()
        if self.pair is not None:
            self.pair.close()
        self.streamer.close()

    # --- recovery ------------------------------------------------------------------------------------------

    def _recover(self, go_on: Callable[[], None]) -> None:
        total_entries = self.streamer.committed.total_entries
        if total_entries == 0:
            return
        last = _block_end(self.streamer.path, self.streamer.get_entry(total_entries - 1))
        self.first_number, self.layout = self._begin_of_stream()
        self.chain = self._snapshot(last[0])
        start_number = self.first_number if self.chain.last_number is None else self.chain.last_number + 1
        if start_number <= last[0]:
            self._roll_forward(start_number, last[0], go_on)
        if self.chain.last_number != last[0] or self.chain.last_root_hash != last[1]:
            raise Fatal(
                f"stream file {self.streamer.path}",
                got=f"a chain that ends at block {self.chain.last_number}",
                expected=f"block {last[0]}, as in its last entry",
            )
        if self.pair is not None:
            self._remove_mark()
        self._note_last(last[0])
        log.info(
            "block store opened",
            extra=fields(first_block=self.first_number, last_block=last[0], entries=total_entries),
        )

    def _remove_mark(self) -> None:
        """Replace a snapshot that says that the chain is being cut. Raises Fatal if the disk refuses."""
        snapshot = snapshot_if_whole(self.data_dir)
        if snapshot is None or snapshot.cut is None:
            return
        is_cut = self.last_number == snapshot.chain.last_number
        text = "is finished" if is_cut else "was not committed: the chain is as before"
        log.warning(f"a cut of blocks {text}", extra=fields(last_block=self.last_number))
        try:
            self._replace_snapshot(flush=True)
        except OSError as error:
            got = error.strerror or str(error)
            where = str(self.data_dir / SNAPSHOT_NAME)
            raise Fatal(where, got=got, expected="a file that can be written") from error

    def _begin_of_stream(self) -> tuple[int, int]:
        """Return the number of the stream's first block, and its layout."""
        try:
            first, second = self.streamer.get_entry(0), self.streamer.get_entry(1)
        except PageNotServed:  # all other pages are served
            if (known := snapshot_if_whole(self.data_dir)) is not None:
                return known.chain.first_number, known.layout
            raise
        number = block_number_of(first.data) if first.type == BOOKMARK_TYPE else None
        if number is None:
            raise Fatal(
                f"stream file {self.streamer.path}, entry 0",
                got=f"an entry of type {first.type:#x} with {len(first.data)} bytes",
                expected="the bookmark of a block: does the stream hold blocks?",
            )
        return number, NATIVE_LAYOUT if self.pair is not None else layout_of(second.type)

    def _snapshot(self, last_number: int) -> Chain:
        """Return the chain of the snapshot, or an empty one where it does not fit the stream."""
        assert self.first_number is not None
        path = self.data_dir / SNAPSHOT_NAME
        try:
            snapshot = read_snapshot(self.data_dir)
            chain = snapshot and snapshot.chain
            if chain and chain.first_number == self.first_number and chain.last_number is not None:
                number = chain.last_number
                if number <= last_number:
                    root_hash = self._root_hash_of(number, last_number)
                    if root_hash == chain.last_root_hash:
                        self._snapshot_number = number
                        return chain
                    self.doubted_number, self.is_doubted = number, True
                log.warning(
                    "chain snapshot does not fit the stream", extra=fields(path=str(path), block=number)
                )
        except (OSError, ValueError, ChainStateError) as error:
            log.warning("chain snapshot cannot be used", extra=fields(path=str(path), got=str(error)))
        return Chain(self.first_number)

    def _root_hash_of(self, number: int, last_number: int) -> bytes:
        """Return a block's root hash from its last entry, found by the next block's bookmark."""
        path, streamer = self.streamer.path, self.streamer
        if number == last_number:
            found, root_hash = _block_end(path, streamer.get_entry(streamer.committed.total_entries - 1))
            if found == number:
                return root_hash
            # The commit thread is ahead of the chain: further blocks are in the stream.
        end = streamer.get_bookmark(bookmark_of(number + 1)) - 1
        found, root_hash = _block_end(path, streamer.get_entry(end))
        if found != number:
            raise LayoutError(f"block end at entry {end}", str(found), str(number))
        return root_hash

    def _roll_forward(
        self, start_number: int, last_number: int, go_on: Callable[[], None], chain: Chain | None = None
    ) -> None:
        """Add the root hashes of blocks `start_number` to `last_number` to a chain; None: the store's."""
        chain = self.chain if chain is None else chain
        start_entry = self.streamer.get_bookmark(bookmark_of(start_number))
        for entry in self.streamer.read_entries(start_entry):
            if entry.type == BLOCK_END_TYPE:
                number, root_hash = _block_end(self.streamer.path, entry)
                if number != chain.next_number:
                    raise Fatal(
                        f"stream file {self.streamer.path}, entry {entry.number}",
                        got=f"the end of block {number}",
                        expected=f"the end of block {chain.next_number}",
                    )
                chain.advance(number, root_hash)
                go_on()
                if number == last_number:
                    return
                if number % ROLL_FORWARD_LOG_BLOCKS == 0:
                    log.info("reading root hashes", extra=fields(block=number, last_block=last_number))

    def _note_last(self, number: int) -> None:
        self.snapshot_due = number - self._snapshot_number >= self._snapshot_blocks

    def write_snapshot(self) -> None:
        """Replace the snapshot, while no block is added; may wait for the disk.

        A failure only makes the next start read more.
        """
        try:
            self._replace_snapshot()
        except OSError as error:
            path = self.data_dir / SNAPSHOT_NAME
            log.warning("chain snapshot cannot be written", extra=fields(path=str(path), got=str(error)))
        assert self.last_number is not None
        self.snapshot_due = False
        self._snapshot_number = self.last_number  # after a failure too: do not retry at every block

    def _replace_snapshot(self, *, flush: bool = False, cut: CutMark | None = None) -> None:
        path = self.data_dir / SNAPSHOT_NAME
        assert self.layout is not None
        replace_file(path, pack(Snapshot(self.chain, self.layout, cut)).encode(), flush=flush)


def _block_end(path: Path, entry: Entry) -> tuple[int, bytes]:
    """Return (block number, root hash) of a block's last entry. Raises Fatal if it is another entry."""
    found = block_end_of(entry.type, entry.data)
    if found is None:
        raise Fatal(
            f"stream file {path}, entry {entry.number}",
            got=f"an entry of type {entry.type:#x} with {len(entry.data)} bytes",
            expected=f"a block's end (type {BLOCK_END_TYPE:#x}, 56 bytes): does the stream hold blocks?",
        )
    return found


def _has_native(data_dir: Path, layout: Layout | None) -> bool:
    """Return whether a folder has the native layout, or gets it; raise Fatal if it is to have another one."""
    has_stream = (data_dir / STREAM_FILE_NAME).exists()
    kept: Layout = "native" if is_native(data_dir) else "block" if has_stream else layout or "block"
    if layout not in (None, kept):
        raise Fatal("stream.layout", got=str(layout), expected=f"{kept}, as in {data_dir}")
    return kept == "native"


def _open_pair(
    data_dir: Path,
    open_stream: Callable[..., DataStreamer],
    disk: Disk | None,
    network_disk: Disk | None,
    judge: Judge,
    cut_max: int,
) -> tuple[DataStreamer, StreamPair]:
    """Open both files of a native chain; nothing is changed before both are judged."""
    path, network_path = data_dir / BLOCK_FILE_NAME, data_dir / STREAM_FILE_NAME
    snapshot = snapshot_if_whole(data_dir)

    with contextlib.ExitStack() as undo:
        networks: list[DataStreamer] = []

        def open_network(total_entries: int, read_entry: Callable[[int], Entry]) -> None:
            """Open the network's stream, if it fits these entries of the block stream."""

            def judge_network(evidence: Evidence) -> None:
                """Raise Fatal if the files are not of the same blocks."""
                count = evidence.file.committed.total_entries
                knows_more = evidence.index_is_ahead and evidence.index_is_of_file  # refused by the opening
                if evidence.file.refusal is None and not knows_more:
                    whole_entries(path, total_entries, read_entry, count, cut_max, snapshot)

            if network_disk is None and total_entries and not network_path.exists():
                expected = f"the entries of the blocks in {path.name}"
                raise Fatal(f"stream file {network_path}", got="no such file", expected=expected)
            networks.append(open_stream(network_path, disk=network_disk, judge=judge_network))
            undo.callback(networks[0].close)

        def judge_both(evidence: Evidence) -> Committed | None:
            """Judge the block stream, then the network's, which is opened here."""
            totals = judge(evidence)
            if evidence.file.refusal is None and not networks:
                open_network(evidence.file.committed.total_entries, evidence.file.read_entry)
            return totals

        streamer = open_stream(path, disk=disk, judge=judge_both)
        undo.callback(streamer.close)
        if not networks:  # the block stream is damaged, and is read around that
            open_network(streamer.committed.total_entries, streamer.get_entry)
        pair = StreamPair(streamer, networks[0], cut_max, snapshot)
        undo.pop_all()
    return streamer, pair


def stored_last(data_dir: Path, stream_type: int) -> int | None:
    """Return the last block of a data folder by its header and last page; None: none. It only reads.

    Raises:
        Fatal: the stream does not end with a block.
        datastream.DatastreamError: the file is no stream file, or damaged.
    """
    path = data_dir / (BLOCK_FILE_NAME if is_native(data_dir) else STREAM_FILE_NAME)
    if not path.exists():
        return None
    with contextlib.closing(RealDisk(path, writable=False)) as disk:
        if not disk.size():
            return None
        last = StreamFile(path, disk, inspect_header(path, disk, stream_type)).last_entry()
        return None if last is None else _block_end(path, last)[0]


def _look_before_opening(path: Path, stream_type: int, judge: Judge) -> None:
    """Refuse a stream that does not end with a block, before an index is made beside it.

    Raises:
        Fatal: it does not; or what `judge` says.
        datastream.DatastreamError: the file is no stream file, or damaged.
    """
    with contextlib.suppress(OSError), contextlib.closing(RealDisk(path, writable=False)) as disk:
        if disk.size():
            file = StreamFile(path, disk, inspect_header(path, disk, stream_type))
            file.load()
            total_entries = file.committed.total_entries
            if total_entries:
                _block_end(path, file.read_entry(total_entries - 1))
            judge(Evidence(file, None, None, index_is_of_file=False, has_index=False))
