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
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from sluice.datastream.errors import DatastreamError, PageUnchecked
from sluice.datastream.file.page_sums import this_thread, without_fetching
from sluice.gateway.blocks.errors import LayoutError, NotProvable
from sluice.gateway.blocks.merkle import HASH_SIZE, Sibling, audit_path, climb, inner_hash, tree_root
from sluice.gateway.errors import GatewayError
from sluice.gateway.logs import fields
from sluice.gateway.store.block_store import BlockStore

__all__ = ["GROUP_BLOCKS", "BlockHashTree"]

log = logging.getLogger(__name__)

GROUP_BLOCKS: Final = 256
"""Leaves of a group, and groups of a larger one. Notes are kept by it: another value needs another key."""
GROUPS_AT_ONCE: Final = 16
"""Groups that one call notes at most: some 0.1 s of reading."""
GROWING_PAUSE_SECONDS: Final = 0.2
"""Pause between two such calls: a node that reads an old chain has other work."""

_KEY: Final = b"sluice/block-hash-group/"
_LEVELS: Final = 7
"""256^7 blocks are more than a chain will have."""


class BlockHashTree:
    """The paths of one store's blocks. Any thread may call.

    Args:
        archived_roots: returns number and root hash of the blocks in the archive, in order; None: there is
            none.
        group_blocks: leaves of a group, and groups of a larger one.
    """

    def __init__(
        self,
        store: BlockStore,
        archived_roots: Callable[[], Iterable[tuple[int, bytes]]] | None = None,
        group_blocks: int = GROUP_BLOCKS,
    ) -> None:
        self._store = store
        self._group_blocks = group_blocks
        self._archived_roots = archived_roots
        self._lock = threading.Lock()
        self._noted: int | None = None

    @property
    def reaches_block_0(self) -> bool:
        """Whether the chain begins with block 0: else nobody here knows the first leaves."""
        return self._store.first_number == 0

    async def run(self) -> None:
        """Note groups as the chain grows, a little at a time, until cancelled."""
        grown = asyncio.Event()

        def look() -> None:
            if (self._store.last_number or 0) % self._group_blocks == 0:
                grown.set()

        stop_looking = self._store.on_advance(look)
        try:
            while True:
                try:
                    has_more = await asyncio.to_thread(self.grow)
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
        if not self.reaches_block_0:
            return False
        with self._lock:
            last = self._store.last_number or 0
            noted = self._count()
            wanted = min(last // self._group_blocks, noted + GROUPS_AT_ONCE)
            roots: Iterable[bytes] | None = None
            for group in range(noted, wanted):
                first = group * self._group_blocks
                if roots is None:
                    try:
                        with without_fetching():
                            leaves = [self._root_hash(first + place) for place in range(self._group_blocks)]
                    except PageUnchecked:
                        if self._archived_roots is None or not this_thread.fetches:
                            raise
                        # Indexes of segments have them: reading the pages would take as long as the archive.
                        roots = (root for number, root in self._archived_roots() if number >= first)
                if roots is not None:
                    leaves = list(islice(roots, self._group_blocks))
                    if len(leaves) < self._group_blocks:  # its last blocks are not archived yet
                        known = first + len(leaves)
                        leaves += [
                            self._root_hash(number) for number in range(known, first + self._group_blocks)
                        ]
                        roots = None
                self._note(group, leaves)
            return wanted < last // self._group_blocks

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
        noted, wanted = self._noted_now(), later_number // self._group_blocks
        if noted < wanted:
            self.grow()
            noted = self._noted_now()
            if noted < wanted:
                got = f"the root hashes before block {noted * self._group_blocks}, and others are being read"
                raise NotProvable(what, got, "all: ask again later")
        path = audit_path(number, later_number, self._root_over)
        root = climb(self._root_hash(number), path)
        if root != expected_root:
            raise LayoutError(what, root.hex(), f"{expected_root.hex()}, as its footer says")
        return path

    def _noted_now(self) -> int:
        with self._lock:
            return self._count()

    def _count(self) -> int:
        """Return the count of groups whose notes are of this chain."""
        if self._noted is None:
            low, high = 0, (self._store.last_number or 0) // self._group_blocks
            while low < high:  # they were noted in order
                middle = (low + high + 1) // 2
                low, high = (middle, high) if self._read_note(1, middle - 1) else (low, middle - 1)
            while low:
                found, note = (
                    self._store.root_hash_at(low * self._group_blocks - 1),
                    self._read_note(1, low - 1),
                )
                if found is None or note is None or note[HASH_SIZE:] == found:
                    break  # all blocks before it are those of the chain, too
                low -= 1
            self._noted = low
        return self._noted

    def _note(self, group: int, leaves: list[bytes]) -> None:
        last = leaves[-1]
        notes = self._store.streamer.notes
        index, root = group, tree_root(leaves)
        for level in range(1, _LEVELS + 1):
            notes.put(_key(level, index), root + last)
            if (index + 1) % self._group_blocks:
                break
            index //= self._group_blocks
            first = index * self._group_blocks
            root = tree_root([self._noted_root(level, first + place) for place in range(self._group_blocks)])
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
        if note is None:
            first = index * self._group_blocks**level
            raise NotProvable(f"group of block hashes from block {first} on", "no note", "one")
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
