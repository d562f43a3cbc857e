"""The repair of a stream that a start refuses: what `sluice repair` finds, offers and does.

    choice    the header shall count                                     cut, to a file of its own first
    ENTRIES   the sound blocks behind it, too; of a stream without       nothing
              blocks the entries that the index covers, else all whole
    HEADER    what it counts                                             the whole entries behind it
    SOUND     the whole blocks, or entries, before the first damage      the bytes from there on, as they are

Each choice makes the index anew, and puts aside a `chain.json` that is ahead. The stream is opened as for a
start, under all its locks, and its judge makes the choice (`datastream.file.opening.Judge`): the header is
written and flushed before anything behind it is touched. After a kill at any moment the same command
finishes.

A block behind the header is sound if its items have the root hash in its end, it links to the block before
it, and chain.json knows no other root hash of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from itertools import zip_longest
from pathlib import Path
from typing import Final, NamedTuple

from sluice.datastream import DataStreamer
from sluice.datastream.errors import DatastreamError, EntriesDisagree
from sluice.datastream.file.disk import Disk
from sluice.datastream.file.evidence import Evidence, Tail, entries_behind
from sluice.datastream.file.file_system import flush_folder
from sluice.datastream.layout import (
    ENTRY_HEAD_SIZE,
    HEADER_PAGE_SIZE,
    PAGE_SIZE,
    Committed,
    Entry,
    StreamHeader,
)
from sluice.gateway.blocks.chain import Chain
from sluice.gateway.blocks.errors import LayoutError
from sluice.gateway.blocks.stream_layout import BlockDecoder, StoredBlock, block_end_of
from sluice.gateway.errors import Fatal
from sluice.gateway.store.chain_file import SNAPSHOT_NAME, snapshot_if_whole
from sluice.gateway.store.cutting import taken, write_entries
from sluice.gateway.store.evidence import (
    GROUP_BLOCKS_DEFAULT,
    STREAM_FILE_NAME,
    StoredEvidence,
    look,
    refusal_of,
)
from sluice.gateway.store.stream_check import summary_of

__all__ = [
    "Found",
    "Looked",
    "NetworkEvidence",
    "Offer",
    "RepairChoice",
    "chain_beside",
    "data_end",
    "end_of",
    "entries_from_begin",
    "find",
    "place_beside",
    "problem_of",
    "put_chain_aside",
    "take",
    "write_what_goes",
]

_COPY_BYTES: Final = PAGE_SIZE


class RepairChoice(Enum):
    """The choices of a repair."""

    ENTRIES = "entries"
    HEADER = "header"
    SOUND = "sound"


@dataclass(frozen=True, slots=True)
class Offer:
    """The outcome of a choice."""

    choice: RepairChoice
    totals: Committed
    last_block: int | None
    cut_entries: int
    cut_bytes: int
    why_no_more: str | None = None
    """The reason why no further entries behind the header are counted."""
    network: Offer | None = None
    """Of a native chain: the outcome in the network's stream."""


class NetworkEvidence(NamedTuple):
    """The evidence of the network's stream of a native chain."""

    evidence: Evidence
    tail: Tail
    whole_entries: int | None
    """Entries of the block stream whose blocks are in both files; None: a start refuses the chain."""


@dataclass(frozen=True, slots=True)
class Found:
    """The state of a stream, and the offers."""

    path: Path
    standing: StoredEvidence
    header: StreamHeader
    holds_blocks: bool
    damage: EntriesDisagree | None
    """The entries do not lead to the header's totals: where and how."""
    refusal: str | None
    """The reason why a start refuses the stream; None: it opens it."""
    offers: tuple[Offer, ...]
    network: NetworkEvidence | None = None
    """Of a native chain, whose block stream this is: the network's stream."""

    @property
    def is_node(self) -> bool:
        """True if the stream belongs to a data folder."""
        return self.network is not None or (self.holds_blocks and self.path.name == STREAM_FILE_NAME)


class Looked(Exception):
    """Ends an opening that only looks."""


def find(path: Path, stream_type: int) -> Found:
    """Examine a stream; nothing is changed.

    Raises:
        datastream.DatastreamError: its header page is wrong, or another opener has it.
    """
    found: list[Found] = []

    def judge(evidence: Evidence) -> None:
        """Examine it, and end the opening."""
        found.append(_find(path, evidence))
        raise Looked

    with suppress(Looked):
        DataStreamer.open(path, stream_type=stream_type, read_only=True, judge=judge).close()
    (only,) = found
    return only


def take(
    path: Path,
    stream_type: int,
    choice: RepairChoice,
    place: Path | None,
    agree: Callable[[Found, Offer, Path | None], None],
) -> tuple[Offer, Path | None]:
    """Carry out a choice; return the offer, and the file of cut entries.

    Args:
        place: for that file; None: beside the stream file.
        agree: called under the locks before any change; raises to abort.

    Raises:
        Fatal: there is no such offer, or the place cannot be written; nothing was changed.
        datastream.DatastreamError: the disk refuses.
    """
    done: list[tuple[Found, Offer, Path | None]] = []

    def judge(evidence: Evidence) -> Committed:
        """Examine it again under the locks; return what the header shall count."""
        found = _find(path, evidence)
        offer = next((offer for offer in found.offers if offer.choice is choice), None)
        if offer is None:
            offered = " or ".join(offer.choice.value for offer in found.offers)
            raise Fatal(
                f"--take of {path}", got=choice.value, expected=offered or "nothing, as nothing is wrong"
            )
        cut = None if not offer.cut_bytes else place or place_beside(path, offer)
        agree(found, offer, cut)
        if cut is not None:
            write_what_goes(evidence, offer, cut)
        done.append((found, offer, cut))
        return offer.totals

    # Without a folder, damage would end the opening early. The index is made anew anyway.
    path.with_name(path.name.split(".", 1)[0] + ".db").mkdir(exist_ok=True)
    DataStreamer.open(path, stream_type=stream_type, judge=judge).close()
    found, offer, cut = done[0]
    if found.is_node:
        put_chain_aside(path.parent, offer.last_block)
    return offer, cut


def _find(path: Path, evidence: Evidence) -> Found:
    standing = look(path.parent if path.name == STREAM_FILE_NAME else path, evidence)
    damage = evidence.file.refusal
    holds_blocks = any(
        number is not None for number in (standing.last_block, standing.behind.first, standing.chain_block)
    )
    if damage is not None:
        holds_blocks = _begins_with_block(evidence)
        sound = _sound(evidence, holds_blocks=holds_blocks)
        return Found(path, standing, evidence.header, holds_blocks, damage, str(damage), (sound,))
    refusal: str | None = None
    if holds_blocks and path.name == STREAM_FILE_NAME:
        fatal = refusal_of(path.parent, standing, GROUP_BLOCKS_DEFAULT)
        refusal = None if fatal is None else fatal.got
    elif evidence.index_is_ahead and evidence.index_is_of_file:
        refusal = evidence.words()
    if refusal is None:
        return Found(path, standing, evidence.header, holds_blocks, None, None, ())
    forward = _forward_blocks(path, standing) if holds_blocks else _forward_entries(evidence)
    gains = forward.totals != evidence.file.committed
    offers = (forward, _as_it_is(standing)) if gains else (_as_it_is(standing),)
    return Found(path, standing, evidence.header, holds_blocks, None, refusal, offers)


# --- what the choices give ----------------------------------------------------------------------------------


def _as_it_is(standing: StoredEvidence) -> Offer:
    evidence = standing.evidence
    tail = evidence.tail()
    totals = evidence.file.committed
    end, count = tail.end, tail.entry_count
    if not tail.is_all:
        for entry, offset in evidence.entries_behind():
            end, count = end_of(entry, offset), entry.number + 1 - totals.total_entries
    return Offer(RepairChoice.HEADER, totals, standing.last_block, count, end - totals.total_length)


def _forward_entries(evidence: Evidence) -> Offer:
    """Count on to where the index ends, or to the last whole entry."""
    known, totals, why = evidence.index_totals, evidence.file.committed, None
    for entry, offset in evidence.entries_behind():
        totals = Committed(end_of(entry, offset), entry.number + 1)
        if known is not None and totals.total_entries == known.total_entries:
            break
    if evidence.index_count is not None and totals.total_entries < evidence.index_count:
        why = f"entry {totals.total_entries} is not there, or not whole"
    return Offer(RepairChoice.ENTRIES, totals, None, 0, 0, why)


def _forward_blocks(path: Path, standing: StoredEvidence) -> Offer:
    evidence = standing.evidence
    totals, last = evidence.file.committed, standing.last_block
    root_hash = _last_root_hash(evidence)
    chain = chain_beside(path)
    decoder, why = BlockDecoder(), None
    for entry, offset in evidence.entries_behind():
        try:
            block = decoder.feed(entry.type, entry.data)
        except LayoutError as error:
            why = str(error)
            break
        if block is None:
            continue
        why = problem_of(block, last, root_hash, chain)
        if why is not None:
            break
        totals = Committed(end_of(entry, offset), entry.number + 1)
        last, root_hash = block.number, block.root_hash
    if why is None and standing.chain_block is not None and (last is None or last < standing.chain_block):
        why = f"block {0 if last is None else last + 1} is not there, or not whole"
    return Offer(RepairChoice.ENTRIES, totals, last, 0, 0, why)


def problem_of(
    block: StoredBlock, last: int | None, root_hash: bytes | None, chain: Chain | None
) -> str | None:
    """Return why a block behind the header is not counted; None: it is sound.

    `last` and `root_hash` are of the block before it, `chain` is the state in chain.json.
    """
    if last is not None and block.number != last + 1:
        return f"block {block.number} behind block {last}"
    summary, problem = summary_of(block)
    if summary is None:
        return problem
    if root_hash is not None and summary.previous_root_hash != root_hash:
        return f"block {block.number} names another block before it: {summary.previous_root_hash.hex()}"
    if chain is not None and chain.last_number == block.number and chain.last_root_hash != block.root_hash:
        return f"block {block.number} has another root hash than {SNAPSHOT_NAME} knows of it"
    return None


def _sound(evidence: Evidence, *, holds_blocks: bool) -> Offer:
    empty = Committed(HEADER_PAGE_SIZE, 0)
    totals, last = empty, None
    for entry, offset in entries_from_begin(evidence):
        end = end_of(entry, offset)
        if end > evidence.file.committed.total_length:
            break
        if not holds_blocks:
            totals = Committed(end, entry.number + 1)
        elif block_end_of(entry.type, entry.data) is not None:
            totals, last = Committed(end, entry.number + 1), int.from_bytes(entry.data[:8], "big")
    counted = evidence.file.committed
    size = data_end(evidence.file.disk, totals.total_length) - totals.total_length
    return Offer(RepairChoice.SOUND, totals, last, max(0, counted.total_entries - totals.total_entries), size)


def entries_from_begin(evidence: Evidence) -> Iterator[tuple[Entry, int]]:
    """Yield all whole entries of the file, each with its offset, while numbers go on."""
    header = evidence.header
    from_begin = StreamHeader(header.version, header.system_id, header.stream_type, HEADER_PAGE_SIZE, 0)
    return entries_behind(evidence.file.disk, from_begin)


def _begins_with_block(evidence: Evidence) -> bool:
    decoder = BlockDecoder()
    try:
        return any(decoder.feed(entry.type, entry.data) for entry, _ in entries_from_begin(evidence))
    except LayoutError:
        return False


def end_of(entry: Entry, offset: int) -> int:
    """Return the offset just past an entry."""
    return offset + ENTRY_HEAD_SIZE + len(entry.data)


def _last_root_hash(evidence: Evidence) -> bytes | None:
    total_entries = evidence.file.committed.total_entries
    if not total_entries:
        return None
    with suppress(DatastreamError):
        end = evidence.file.read_entry(total_entries - 1)
        if (found := block_end_of(end.type, end.data)) is not None:
            return found[1]
    return None


def chain_beside(path: Path) -> Chain | None:
    """Return the chain in chain.json beside the stream of a node."""
    snapshot = snapshot_if_whole(path.parent) if path.name == STREAM_FILE_NAME else None
    return None if snapshot is None else snapshot.chain


# --- what goes ----------------------------------------------------------------------------------------------


def place_beside(path: Path, offer: Offer) -> Path:
    """Return the default place for what goes."""
    stem, first = path.name.split(".")[0], offer.totals.total_entries
    if offer.choice is RepairChoice.SOUND:
        return path.with_name(f"cut-{stem}-bytes-from-{offer.totals.total_length}.raw")
    return path.with_name(f"cut-{stem}-entries-{first}-to-{first + offer.cut_entries - 1}.bin")


def write_what_goes(evidence: Evidence, offer: Offer, place: Path) -> None:
    """Write the cut entries to a file, flushed; the same file may be there already."""
    if offer.choice is RepairChoice.SOUND:
        _write_bytes(evidence.file.disk, offer.totals.total_length, offer.cut_bytes, place)
    else:
        behind = entries_behind(evidence.file.disk, evidence.file.header(offer.totals))
        write_entries(evidence.header, (entry for entry, _ in behind), place)


def _write_bytes(disk: Disk, start: int, size: int, place: Path) -> None:
    """Copy bytes of the stream file; pages of zeros become holes."""
    part = place.with_name(f".{place.name}.part")
    try:
        with part.open("wb") as file:
            for at in range(0, size, _COPY_BYTES):
                data = disk.pread(min(_COPY_BYTES, size - at), start + at)
                if data.count(0) != len(data):
                    file.seek(at)
                    file.write(data)
            file.truncate(size)
            file.flush()
            os.fsync(file.fileno())
        if not os.path.lexists(place):
            part.rename(place)
        elif not _is_kept(part, place):
            raise taken(place)
        flush_folder(place.parent)
    except OSError as error:
        got = error.strerror or str(error)
        raise Fatal(str(place), got=got, expected="a file that can be written (--cut-to)") from error
    finally:
        part.unlink(missing_ok=True)


def _is_kept(part: Path, place: Path) -> bool:
    """Return whether a file has the bytes of another; a killed repair may have zeroed some of those."""
    with part.open("rb") as file, place.open("rb") as kept:
        while data := file.read(_COPY_BYTES):
            there = kept.read(len(data))
            if data != there and not all(
                ours in (0, theirs) for ours, theirs in zip_longest(data, there, fillvalue=-1)
            ):
                return False
        return not kept.read(1)


def data_end(disk: Disk, start: int) -> int:
    """Return the offset just past the last byte from `start` on that is not zero."""
    end, offset, size = start, start, disk.size()
    zeros = bytes(_COPY_BYTES)
    while offset < size and disk.has_data(offset):
        data = disk.pread(min(_COPY_BYTES, size - offset), offset)
        if data != zeros[: len(data)]:  # forty times as fast as `rstrip`
            end = offset + len(data.rstrip(b"\0"))
        offset += len(data)
    return end


def put_chain_aside(data_dir: Path, last_block: int | None) -> None:
    """Rename a chain.json that is ahead of the stream; a start makes a new one."""
    path = data_dir / SNAPSHOT_NAME
    chain = chain_beside(data_dir / STREAM_FILE_NAME)
    known = None if chain is None else chain.last_number
    if known is not None and (last_block is None or known > last_block):
        path.replace(path.with_name(f"chain-of-block-{known}.json"))
        flush_folder(data_dir)
