"""The repair of a native chain that a start refuses: both files hold the same whole blocks afterwards.

    choice    the headers shall count                              cut from each, to a file of its own first
    ENTRIES   the sound blocks behind both headers, too            the entries behind them
    HEADER    the blocks that both headers count                   the entries behind them
    SOUND     the whole blocks before the first damage in either   the bytes from there on, as they are

All cut parts are written and flushed before any header. Then one file gets its header and a new index, then
the other, under the locks of both. The one that is written last makes a start refuse until then: of SOUND a
damaged one, else the network's stream. So after a kill at any moment the same choice comes to the same
blocks. SOUND without damage, and ENTRIES without a sound block, are HEADER: a killed one may leave that.

A block that not both headers count is sound as in `store.repair`, with its network entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from sluice.datastream import DataStreamer
from sluice.datastream.errors import DatastreamError
from sluice.datastream.file.bookmarks import bookmarks_folder
from sluice.datastream.file.evidence import Evidence, entries_behind
from sluice.datastream.layout import HEADER_PAGE_SIZE, Committed, Entry
from sluice.gateway.blocks.errors import LayoutError
from sluice.gateway.blocks.native_layout import NetworkEntry, entries_so_far, whole_blocks
from sluice.gateway.blocks.stream_layout import BLOCK_END_TYPE, BlockDecoder, StoredBlock
from sluice.gateway.errors import Fatal
from sluice.gateway.store.chain_file import snapshot_if_whole
from sluice.gateway.store.evidence import (
    BLOCK_FILE_NAME,
    GROUP_BLOCKS_DEFAULT,
    STREAM_FILE_NAME,
    StoredEvidence,
    cut_blocks_max,
    look,
    refusal_of,
)
from sluice.gateway.store.repair import (
    Found,
    Looked,
    NetworkEvidence,
    Offer,
    RepairChoice,
    chain_beside,
    data_end,
    end_of,
    entries_from_begin,
    place_beside,
    problem_of,
    put_chain_aside,
    write_what_goes,
)
from sluice.gateway.store.stream_pair import whole_entries

__all__ = ["CutFiles", "find_pair", "take_pair"]


class CutFiles(NamedTuple):
    """The files for what goes; None: nothing goes."""

    blocks: Path | None
    network: Path | None


class _Ends(NamedTuple):
    """The end of a whole block in both files."""

    last: int | None
    root_hash: bytes | None
    blocks: Committed
    network: Committed


_EMPTY = Committed(HEADER_PAGE_SIZE, 0)
_BEGIN = _Ends(None, None, _EMPTY, _EMPTY)


def find_pair(data_dir: Path, stream_type: int) -> Found:
    """Examine a native chain; nothing is changed.

    Raises:
        datastream.DatastreamError: a header page is wrong, or another opener has a file.
    """
    found: list[Found] = []

    def judge(blocks: Evidence, network: Evidence) -> tuple[Committed, Committed]:
        """Examine it, and end the opening."""
        found.append(_find(data_dir, blocks, network))
        raise Looked

    with suppress(Looked):
        _open_both(data_dir, stream_type, judge, read_only=True)
    (only,) = found
    return only


def take_pair(
    data_dir: Path,
    stream_type: int,
    choice: RepairChoice,
    agree: Callable[[Found, Offer, Path | None, Path | None], None],
) -> tuple[Offer, CutFiles]:
    """Carry out a choice; return the offer, and the files of what was cut.

    Args:
        agree: called under the locks before any change; raises to abort.

    Raises:
        Fatal: there is no such offer, or a file for what goes cannot be written; nothing was changed.
        datastream.DatastreamError: the disk refuses.
    """
    looked = find_pair(data_dir, stream_type)
    done: list[tuple[Offer, CutFiles]] = []

    def judge(blocks: Evidence, network: Evidence) -> tuple[Committed, Committed]:
        """Examine it again under the locks; return what the headers shall count."""
        found = _find(data_dir, blocks, network)
        offer = _offer_of(found, choice)
        assert offer.network is not None
        goes = [(blocks, offer), (network, offer.network)]
        places = CutFiles(
            *(place_beside(one.file.path, part) if part.cut_bytes else None for one, part in goes)
        )
        agree(found, offer, *places)
        for (one, part), place in zip(goes, places, strict=True):
            if place is not None:
                write_what_goes(one, part, place)
        done.append((offer, places))
        return offer.totals, offer.network.totals

    for name in (BLOCK_FILE_NAME, STREAM_FILE_NAME):
        # Without a folder, damage would end the opening early. The index is made anew anyway.
        bookmarks_folder(data_dir / name).mkdir(exist_ok=True)
    network_is_sound = looked.network is not None and looked.network.evidence.file.refusal is None
    blocks_last = looked.damage is not None and network_is_sound
    _open_both(data_dir, stream_type, judge, read_only=False, blocks_last=blocks_last)
    offer, places = done[0]
    put_chain_aside(data_dir, offer.last_block)
    return offer, places


def _offer_of(found: Found, choice: RepairChoice) -> Offer:
    offers = {offer.choice: offer for offer in found.offers}
    if choice in offers:
        return offers[choice]
    if RepairChoice.HEADER in offers:  # what a killed one left, or no block behind the headers is sound
        return offers[RepairChoice.HEADER]
    offered = " or ".join(one.value for one in offers)
    raise Fatal(
        f"--take of {found.path.parent}",
        got=choice.value,
        expected=offered or "nothing, as nothing is wrong",
    )


def _open_both(
    data_dir: Path,
    stream_type: int,
    judge: Callable[[Evidence, Evidence], tuple[Committed, Committed]],
    *,
    read_only: bool,
    blocks_last: bool = False,
) -> None:
    """Open both files at once, and judge both before any change; the last one is written last."""
    names = [BLOCK_FILE_NAME, STREAM_FILE_NAME]
    first, last = reversed(names) if blocks_last else names

    with ExitStack() as stack:

        def open_file(name: str, judge_file: Callable[[Evidence], Committed]) -> None:
            """Open a file until the end."""
            path = data_dir / name
            streamer = DataStreamer.open(path, stream_type=stream_type, read_only=read_only, judge=judge_file)
            stack.callback(streamer.close)

        def judge_last(last_evidence: Evidence) -> Committed:
            """Open the first file; return the totals of the last one."""
            totals: list[Committed] = []

            def judge_first(first_evidence: Evidence) -> Committed:
                """Judge both; return the totals of the first one."""
                both = (first_evidence, last_evidence)
                blocks, network = reversed(both) if blocks_last else both
                found = judge(blocks, network)
                totals.extend(reversed(found) if blocks_last else found)
                return totals[0]

            open_file(first, judge_first)
            return totals[1]

        open_file(last, judge_last)


def _find(data_dir: Path, blocks: Evidence, network: Evidence) -> Found:
    standing = look(data_dir, blocks)
    refusal, whole = _judged(data_dir, standing, network)
    offers: tuple[Offer, ...] = ()
    if refusal is not None:
        offers = _offers(data_dir, standing, network)
    return Found(
        path=data_dir / BLOCK_FILE_NAME,
        standing=standing,
        header=blocks.header,
        holds_blocks=True,
        damage=blocks.file.refusal,
        refusal=refusal,
        offers=offers,
        network=NetworkEvidence(network, network.tail(), whole),
    )


def _judged(
    data_dir: Path, standing: StoredEvidence, network: Evidence
) -> tuple[str, None] | tuple[None, int]:
    """Return why a start refuses the chain, or how many entries of the block stream it keeps."""
    blocks = standing.evidence
    for evidence in (blocks, network):
        if evidence.file.refusal is not None:
            return str(evidence.file.refusal), None
    fatal = refusal_of(data_dir, standing, GROUP_BLOCKS_DEFAULT)
    if fatal is not None:
        return f"{fatal.what}: {fatal.got}", None
    if network.index_is_ahead and network.index_is_of_file:
        return f"stream file {network.file.path}: {network.words()}", None
    try:
        return None, whole_entries(
            blocks.file.path,
            blocks.file.committed.total_entries,
            blocks.file.read_entry,
            network.file.committed.total_entries,
            cut_blocks_max(GROUP_BLOCKS_DEFAULT),
            snapshot_if_whole(data_dir),
        )
    except (Fatal, LayoutError, DatastreamError) as error:
        return str(error), None


def _offers(data_dir: Path, standing: StoredEvidence, network: Evidence) -> tuple[Offer, ...]:
    blocks = standing.evidence
    is_damaged = blocks.file.refusal is not None or network.file.refusal is not None
    chain = chain_beside(data_dir / STREAM_FILE_NAME)
    walk, why = _Walk(blocks, network), None
    counted = sound = _BEGIN
    for ends, block in walk.blocks():
        if _is_counted(ends.blocks, blocks) and _is_counted(ends.network, network):
            counted = ends
        elif is_damaged:
            break
        else:
            why = problem_of(block, sound.last, sound.root_hash, chain)
            if why is not None:
                break
        sound = ends
    if is_damaged:
        return (_offer(RepairChoice.SOUND, counted, blocks, network),)
    as_it_is = _offer(RepairChoice.HEADER, counted, blocks, network)
    if sound == counted:
        return (as_it_is,)
    why = why or walk.fault
    known = standing.chain_block
    if why is None and known is not None and (sound.last is None or sound.last < known):
        why = f"block {0 if sound.last is None else sound.last + 1} is not there, or not whole"
    forward = _offer(RepairChoice.ENTRIES, sound, blocks, network)
    return replace(forward, why_no_more=why), as_it_is


def _is_counted(totals: Committed, evidence: Evidence) -> bool:
    counted = evidence.file.committed
    return totals.total_length <= counted.total_length and totals.total_entries <= counted.total_entries


def _offer(choice: RepairChoice, ends: _Ends, blocks: Evidence, network: Evidence) -> Offer:
    return replace(
        _part(choice, ends, blocks, ends.blocks), network=_part(choice, ends, network, ends.network)
    )


def _part(choice: RepairChoice, ends: _Ends, evidence: Evidence, totals: Committed) -> Offer:
    file = evidence.file
    if choice is RepairChoice.SOUND:
        size = data_end(file.disk, totals.total_length) - totals.total_length
        count = max(0, file.committed.total_entries - totals.total_entries)
        return Offer(choice, totals, ends.last, count, size)
    end, number = totals
    for entry, offset in entries_behind(file.disk, file.header(totals)):
        end, number = end_of(entry, offset), entry.number + 1
    return Offer(choice, totals, ends.last, number - totals.total_entries, end - totals.total_length)


class _Walk:
    """A walk over the whole blocks of both files, from the beginning on, past the headers."""

    def __init__(self, blocks: Evidence, network: Evidence) -> None:
        self.fault: str | None = None
        """The fault that ended it; None: the block stream has no more entries."""
        self._blocks = blocks
        self._network = entries_from_begin(network)
        self._network_totals = _EMPTY

    def blocks(self) -> Iterator[tuple[_Ends, StoredBlock]]:
        """Yield each block and its end in both files."""
        decoder = BlockDecoder()
        for entry, offset in entries_from_begin(self._blocks):
            block = None
            try:
                for part in whole_blocks([entry], self._read):
                    block = decoder.feed(part.type, part.data)
                if entry.type == BLOCK_END_TYPE:
                    self._check_so_far(entry)
            except LayoutError as error:
                self.fault = str(error)
                return
            if block is not None:
                totals = Committed(end_of(entry, offset), entry.number + 1)
                yield _Ends(block.number, block.root_hash, totals, self._network_totals), block

    def _check_so_far(self, end: Entry) -> None:
        so_far, read = entries_so_far(end.data), self._network_totals.total_entries
        if so_far != read:
            raise LayoutError(f"block end at entry {end.number}", f"{so_far} entries so far", f"{read}")

    def _read(self, first: int, end: int) -> Iterator[NetworkEntry]:
        """Yield the next entries of the network's stream.

        Raises:
            LayoutError: they are others, or not there.
        """
        number = self._network_totals.total_entries
        if first != number:
            raise LayoutError(f"mark in {BLOCK_FILE_NAME}", f"entries from {first} on", f"from {number} on")
        for number in range(first, end):
            found = next(self._network, None)
            if found is None:
                raise LayoutError(f"entry {number} of {STREAM_FILE_NAME}", "none", "one of a block")
            entry, offset = found
            self._network_totals = Committed(end_of(entry, offset), number + 1)
            yield entry.type, entry.data
