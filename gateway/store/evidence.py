"""The evidence of a node's last block: what header, index, `chain.json` and file say before a start.

Blocks are missing if chain.json or the index of bookmarks knows a later one than the stream ends with: both
are written after the header. A crash leaves the whole blocks of its commit behind the header, a begun block
and a group, which were not acknowledged; opening zeroes them. More than that were counted once, by a header
that went back. (A copy of a file that was being written has them, too, but neither index nor chain.json.)

Then a start refuses, changes nothing and reports the evidence; `sluice repair` offers the choices.

Source: datastream/file/evidence.py; gateway/pipeline/group_commit.py.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from sluice.datastream.errors import DatastreamError
from sluice.datastream.file.bookmarks import BookmarkIndex, bookmarks_folder
from sluice.datastream.file.evidence import Evidence, Tail
from sluice.datastream.layout import ENTRY_HEAD_SIZE
from sluice.datastream.limits import TAIL_LOOKED_AT_BYTES_MAX
from sluice.gateway.blocks.errors import LayoutError
from sluice.gateway.blocks.native_layout import ENTRIES_TYPE
from sluice.gateway.blocks.stream_layout import (
    BLOCK_END_SIZE,
    BLOCK_END_TYPE,
    NATIVE_LAYOUT,
    BlockDecoder,
    block_end_of,
)
from sluice.gateway.errors import Fatal
from sluice.gateway.limits import COMMIT_GROUP_BYTES_MAX
from sluice.gateway.logs import fields
from sluice.gateway.store.chain_file import SNAPSHOT_NAME, snapshot_if_whole

__all__ = [
    "BLOCK_FILE_NAME",
    "GROUP_BLOCKS_DEFAULT",
    "STREAM_FILE_NAME",
    "BlocksBehind",
    "StoredEvidence",
    "cut_blocks_max",
    "is_native",
    "judge_for",
    "look",
    "look_for_lost_blocks",
    "refusal_of",
]

log = logging.getLogger(__name__)

STREAM_FILE_NAME: Final = "datastream.bin"
BLOCK_FILE_NAME: Final = "blocks.bin"
"""The stream of blocks in the native layout."""
GROUP_BLOCKS_DEFAULT: Final = 64
"""The default of `commit.max_blocks_per_group`."""


def is_native(data_dir: Path) -> bool:
    """Return whether a folder has a native chain, by its `blocks.bin` or its `chain.json`."""
    if (data_dir / BLOCK_FILE_NAME).exists():
        return True
    snapshot = snapshot_if_whole(data_dir)
    return snapshot is not None and snapshot.layout == NATIVE_LAYOUT


def cut_blocks_max(group_blocks_max: int) -> int:
    """Return how many blocks a crash leaves at most in one file of a native chain only."""
    return 2 * max(group_blocks_max, GROUP_BLOCKS_DEFAULT)


class BlocksBehind(NamedTuple):
    """The whole blocks behind the header."""

    tail: Tail
    block_count: int
    first: int | None
    """None: there is none."""
    last: int | None
    inner_bytes: int
    """Size of all but the first and the last, with their entry heads."""

    def __str__(self) -> str:
        """Return words for an error."""
        if self.first is None:
            return str(self.tail)
        blocks = f"block {self.first}" if self.block_count == 1 else f"blocks {self.first} to {self.last}"
        return f"{self.tail}, with {blocks}{'' if self.tail.is_all else ' and more'}"


@dataclass(frozen=True, slots=True)
class StoredEvidence:
    """The evidence of a data folder."""

    evidence: Evidence
    last_block: int | None
    """The block that the stream ends with, by its header."""
    chain_block: int | None
    """The last block that chain.json knows."""
    behind: BlocksBehind

    def words(self) -> str:
        """Return the evidence in words, for an error."""
        length, count = self.evidence.file.committed
        ends = "no block" if self.last_block is None else f"block {self.last_block}"
        index = self.evidence.index_count
        says = "says nothing" if index is None else f"covers {index} entries"
        chain = "says nothing" if self.chain_block is None else f"knows of block {self.chain_block}"
        return (
            f"a header that counts {count} entries in {length} bytes and ends with {ends}, an index of "
            f"bookmarks that {says}, {SNAPSHOT_NAME} that {chain}, and {self.behind} behind the header"
        )


def judge_for(
    data_dir: Path, group_blocks_max: int, group_bytes_max: int = COMMIT_GROUP_BYTES_MAX
) -> Callable[[Evidence], None]:
    """Return the judge of a data folder's stream (`datastream.file.opening.Judge`)."""

    def judge(evidence: Evidence) -> None:
        """Raise Fatal if something knows more than the header."""
        if evidence.file.refusal is None:
            standing = look(data_dir, evidence)
            refusal = refusal_of(data_dir, standing, group_blocks_max, group_bytes_max)
            if refusal is not None:
                raise refusal

    return judge


def look(data_dir: Path, evidence: Evidence) -> StoredEvidence:
    """Collect the evidence; nothing is changed."""
    snapshot = snapshot_if_whole(data_dir)  # a fault is reported where the chain is read
    chain_block = None if snapshot is None else snapshot.chain.last_number
    return StoredEvidence(evidence, _last_block(evidence), chain_block, _blocks_behind(evidence))


def refusal_of(
    data_dir: Path,
    standing: StoredEvidence,
    group_blocks_max: int,
    group_bytes_max: int = COMMIT_GROUP_BYTES_MAX,
) -> Fatal | None:
    """Return why a start is refused; None: it is not."""
    evidence, behind = standing.evidence, standing.behind
    chain_is_ahead = standing.chain_block is not None and (
        standing.last_block is None or standing.chain_block > standing.last_block
    )
    # The setting may have been larger before.
    is_more = behind.block_count > max(group_blocks_max, GROUP_BLOCKS_DEFAULT) + 1
    is_more = is_more or behind.inner_bytes > group_bytes_max
    if is_more and not evidence.has_index and standing.chain_block is None:
        text = "blocks behind the header are cut off, as of a copy of a stream that was being written"
        log.warning(text, extra=fields(first_block=behind.first, last_block=behind.last))
        is_more = False
    if not (chain_is_ahead or evidence.index_is_ahead or is_more):
        return None
    return Fatal(
        f"stream file {evidence.file.path}",
        got=standing.words(),
        expected="a header that is not behind any of these; nothing was changed, and "
        f"sluice repair {data_dir} says what can be done",
    )


def look_for_lost_blocks(data_dir: Path, path: Path) -> None:
    """Refuse a new stream where blocks were: they are acknowledged, and nobody may send them again.

    Raises Fatal if the snapshot or the index knows some.
    """
    known, snapshot = None, snapshot_if_whole(data_dir)
    if snapshot is not None and snapshot.chain.last_number is not None:
        known = f"blocks up to {snapshot.chain.last_number}, as {SNAPSHOT_NAME} beside it says"
    if known is None and bookmarks_folder(path).is_dir():
        with contextlib.closing(BookmarkIndex(path, read_only=True)) as index:
            if index.covered:
                known = f"{index.covered} entries, as the index of bookmarks beside it says"
    if known is not None:
        expected = f"{known}; to begin anew, take an empty folder"
        raise Fatal(f"stream file {path}", got="no such file", expected=expected)


def _last_block(evidence: Evidence) -> int | None:
    total_entries = evidence.file.committed.total_entries
    if not total_entries:
        return None
    try:
        entry = evidence.file.read_entry(total_entries - 1)
    except DatastreamError:
        return None
    end = block_end_of(entry.type, entry.data)
    return None if end is None else end[0]


def _blocks_behind(evidence: Evidence) -> BlocksBehind:
    tail = evidence.tail()
    decoder = BlockDecoder()
    limit = evidence.file.committed.total_length + TAIL_LOOKED_AT_BYTES_MAX
    sizes: list[int] = []
    first = last = None
    size_bytes = 0
    for entry, offset in evidence.entries_behind():
        if offset >= limit:
            break
        try:
            data = entry.data[:BLOCK_END_SIZE] if entry.type == BLOCK_END_TYPE else entry.data
            # What a mark of the native layout stands for is not needed here.
            block = None if entry.type == ENTRIES_TYPE else decoder.feed(entry.type, data)
        except LayoutError:
            break
        size_bytes += ENTRY_HEAD_SIZE + len(entry.data)
        if block is not None:
            first = block.number if first is None else first
            last = block.number
            sizes.append(size_bytes)
            size_bytes = 0
    return BlocksBehind(tail, len(sizes), first, last, sum(sizes[1:-1]))
