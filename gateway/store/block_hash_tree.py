"""The tree of all block hashes, of which a node can give each path.

The root hash of every block is a leaf. A path through a tree of a million leaves needs all of them, so the
roots of groups of 256 leaves, of 256 such groups, and so on, are noted in the index of the stream as the
chain grows: a path then takes some hundred notes. A group is noted once a later block is committed, which
settles the layout of its last root hash.

    sluice/block-hash-group/ LEVEL INDEX -> its root, and the root hash of its last block

A stream that was cut, and has grown again, has other blocks than its notes say. No node cuts its stream while
it runs, so the notes are compared with the stream once in each process.

Source: docs/spec/block-hash.md section 4.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from sluice.datastream.errors import DatastreamError, PageUnchecked
from sluice.datastream.file.page_sums import without_fetching
from sluice.gateway.blocks.errors import LayoutError, NotProvable
from sluice.gateway.blocks.merkle import (
    GROUP_LEAVES,
    HASH_SIZE,
    Sibling,
    audit_path,
    climb,
    inner_hash,
    tree_root,
)
from sluice.gateway.errors import GatewayError
from sluice.gateway.logs import fields
from sluice.gateway.store.block_store import BlockStore

__all__ = ["GROUP_BLOCKS", "BlockHashTree"]

log = logging.getLogger(__name__)

GROUP_BLOCKS: Final = GROUP_LEAVES
"""Leaves of a group, and groups of a larger one. Notes are kept by it: another value needs another key."""
GROUPS_AT_ONCE: Final = 16
"""Groups that one call notes at most: it reads 4,096 root hashes."""
GROWING_PAUSE_SECONDS: Final = 0.2
"""Pause between two such calls: a node that reads an old chain has other work."""

_KEY: Final = b"sluice/block-hash-group/"
_LEVELS: Final = 7
"""256^7 blocks are more than a chain will have."""
_ArchivedRoots = Callable[[int], Iterable[tuple[int, bytes]]]


class BlockHashTree:
    """The paths of one store's blocks. Any thread may ask for one; one thread calls `grow`.

    Args:
        archived_roots: takes an entry; returns number and root hash of the blocks in the archive, in order,
            from the segment with that entry on. None: there is none.
        group_blocks: leaves of a group, and groups of a larger one.
    """

    def __init__(
        self,
        store: BlockStore,
        archived_roots: _ArchivedRoots | None = None,
        group_blocks: int = GROUP_BLOCKS,
    ) -> None:
        self._store = store
        self._group_blocks = group_blocks
        self._archived_roots = archived_roots
        self._lock = threading.Lock()
        self._noted: int | None = None
        self._in_chain: tuple[int, bytes] | None = None
        """The group that the chain has just completed, and its root: nothing has to be read."""
        self._in_archive: tuple[int, Iterator[tuple[int, bytes]]] | None = None
        """The number of the next root hash that is read there."""

    @property
    def reaches_block_0(self) -> bool:
        """Whether the chain begins with block 0: else nobody here knows the first leaves."""
        return self._store.first_number == 0

    async def run(self) -> None:
        """Note groups as the chain grows, a little at a time, until cancelled."""
        grown = asyncio.Event()

        def look() -> None:
            if (self._store.last_number or 0) % self._group_blocks == 0:
                self._in_chain = self._store.chain.group_before
                grown.set()

        stop_looking = self._store.on_advance(look)
        try:
            while True:
                try:
                    has_more = await asyncio.to_thread(self.grow)
                except NotProvable as error:
                    log.info("no proofs under later blocks", extra=fields(reason=str(error)))
                    return
                except (DatastreamError, GatewayError, OSError) as error:  # proofs say what they lack
                    log.warning("block hashes cannot be read", extra=fields(got=str(error)))
                    has_more = False
                if has_more:
                    await asyncio.sleep(GROWING_PAUSE_SECONDS)
                else:
                    await grown.wait()
                    grown.clear()
        finally:
            stop_looking()

    def grow(self) -> bool:
        """Note complete groups, some at most; return whether there are more. It may wait for an archive."""
        return self._grow(self._archived_roots)

    def path(self, number: int, later_number: int, expected_root: bytes) -> list[Sibling]:
        """Return the siblings from a block's root hash to the root in a later block's footer.

        Raises:
            NotProvable: this node does not have the root hashes, or has not read them yet.
            LayoutError: they lead to another root.
        """
        what = f"tree of all block hashes before block {later_number}"
        if not self.reaches_block_0:
            got = f"a chain that begins with block {self._store.first_number}"
            raise NotProvable(what, got, "one that begins with block 0")
        if self._count() < later_number // self._group_blocks:
            self._grow(None)  # what an archive has is read beside the requests
        noted = self._count()
        if noted < later_number // self._group_blocks:
            got = f"the root hashes before block {noted * self._group_blocks}, and others are being read"
            raise NotProvable(what, got, "all: ask again later")
        path = audit_path(number, later_number, self._root_over)
        root = climb(self._root_hash(number), path)
        if root != expected_root:
            raise LayoutError(what, root.hex(), f"{expected_root.hex()}, as its footer says")
        return path

    def _grow(self, archived_roots: _ArchivedRoots | None) -> bool:
        if not self.reaches_block_0:
            return False
        complete, noted = (self._store.last_number or 0) // self._group_blocks, self._count()
        wanted = min(complete, noted + GROUPS_AT_ONCE)
        for group in range(noted, wanted):
            numbers, known = self._blocks_of(group), self._in_chain
            if known is not None and known[0] == group and len(numbers) == GROUP_BLOCKS:
                self._note(group, known[1], self._root_hash(numbers[-1]))
                continue
            try:
                with without_fetching():
                    leaves = [self._root_hash(number) for number in numbers]
            except PageUnchecked:
                if archived_roots is None:
                    return False
                leaves = self._leaves_in_archive(numbers, archived_roots)
            self._note(group, tree_root(leaves), leaves[-1])
        return wanted < complete

    def _blocks_of(self, group: int) -> range:
        return range(group * self._group_blocks, (group + 1) * self._group_blocks)

    def _leaves_in_archive(self, numbers: range, archived_roots: _ArchivedRoots) -> list[bytes]:
        """Read root hashes in the indexes of segments: reading their pages would take as long as the archive.

        The indexes are read on from group to group. The last blocks of a group may be on the disk.
        """
        leaves: list[bytes] = []
        if self._in_archive is None or self._in_archive[0] != numbers.start:
            self._in_archive = numbers.start, iter(archived_roots(self._store.entry_of(numbers.start)))
        _, roots = self._in_archive
        self._in_archive = None  # unless all of it is read
        for expected in numbers:
            number, root_hash = next((one for one in roots if one[0] >= expected), (expected, None))
            if root_hash is None:
                return leaves + [self._root_hash(other) for other in range(expected, numbers.stop)]
            if number != expected:
                raise LayoutError("root hashes in the archive", f"block {number}", f"block {expected}")
            leaves.append(root_hash)
        self._in_archive = numbers.stop, roots
        return leaves

    def _count(self) -> int:
        """Return the count of groups whose notes are of this chain."""
        if self._noted is None:
            with self._lock:
                if self._noted is None:
                    self._noted = self._stored_count()
        return self._noted

    def _stored_count(self) -> int:
        low, high = 0, (self._store.last_number or 0) // self._group_blocks
        while low < high:  # they were noted in order
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._read_note(1, middle - 1) else (low, middle - 1)
        while low and not self._are_of_this_chain(low):
            low -= 1
        return low

    def _are_of_this_chain(self, count: int) -> bool:
        """Return whether the notes that end with a group are there, and end with the stored block.

        Then all blocks before it are those of the chain, too.
        """
        last_root_hash = self._store.root_hash_at(count * self._group_blocks - 1)
        for level in range(1, _LEVELS + 1):
            note = self._read_note(level, count - 1)
            if note is None or last_root_hash not in (None, note[HASH_SIZE:]):
                return False
            if count % self._group_blocks:
                break
            count //= self._group_blocks
        return True

    def _note(self, group: int, root: bytes, last: bytes) -> None:
        """Note a group, and the larger ones that end with it, all at once: a batch takes all or none."""
        index = group
        notes: dict[bytes, bytes] = {}
        for level in range(1, _LEVELS + 1):
            notes[_key(level, index)] = root + last
            if (index + 1) % self._group_blocks:
                break
            first, index = index + 1 - self._group_blocks, index // self._group_blocks
            before = [self._noted_root(level, first + place) for place in range(self._group_blocks - 1)]
            root = tree_root([*before, root])
        with self._lock:
            if self._noted == group:  # else a request has noted it meanwhile
                self._store.streamer.notes.put_all(notes)
                self._noted = group + 1

    def _root_over(self, begin: int, end: int) -> bytes:
        size = end - begin
        first_size = 1 << size.bit_length() - 1
        if first_size < size:
            middle = begin + first_size
            return inner_hash(self._root_over(begin, middle), self._root_over(middle, end))
        level, unit = 0, 1
        while unit * self._group_blocks <= size:
            level, unit = level + 1, unit * self._group_blocks
        places = range(begin // unit, end // unit)
        if level == 0:
            return tree_root([self._root_hash(number) for number in places])
        return tree_root([self._noted_root(level, index) for index in places])

    def _noted_root(self, level: int, index: int) -> bytes:
        note = self._read_note(level, index)
        if note is None:  # the index has lost it
            below = range(index * self._group_blocks, (index + 1) * self._group_blocks)
            if level == 1:
                root = tree_root([self._root_hash(number) for number in below])
            else:
                root = tree_root([self._noted_root(level - 1, place) for place in below])
            note = root + self._root_hash(below.stop * self._group_blocks ** (level - 1) - 1)
            self._store.streamer.notes.put(_key(level, index), note)
        return note[:HASH_SIZE]

    def _read_note(self, level: int, index: int) -> bytes | None:
        note = self._store.streamer.notes.get(_key(level, index))
        return None if note is None or len(note) != 2 * HASH_SIZE else note

    def _root_hash(self, number: int) -> bytes:
        root_hash = self._store.root_hash_at(number)
        if root_hash is None:
            raise NotProvable(
                f"root hash of block {number}", "a block that is gone", "one that this node has"
            )
        return root_hash


def _key(level: int, index: int) -> bytes:
    return _KEY + bytes([level]) + index.to_bytes(8, "big")
