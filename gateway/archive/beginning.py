"""Beginning a node's data folder from an archive.

    data_dir/beginning/         the folder at work, and at last whole
    data_dir/datastream.bin     moved from there last: the folder has a stream now. Holes, but page 0 and the
                                pages of the last segment; ends with the last block of that
    data_dir/datastream.db      all bookmarks, and the records of the segments
    data_dir/chain.json         the tree of the root hashes of all blocks

Nothing is believed. There are two ways to trust an archive:

    proof     reads all indexes. The footer of the last block has the root of the tree of all root hashes, and
              its proof signs the footer: that proves the root hashes in the indexes. The folder keeps a
              digest of each segment's, and a page that is read for the first time has its blocks compared
              with them (`store.page_blocks`)
    full      reads everything and verifies every block (`archive.full_reading`); the folder keeps the digest
              of each page. An interrupted beginning goes on where it was

Either way the last block is looked at as at any start (`store.last_block`) before anything is moved. An
archive that is refused leaves nothing.

Source: docs/archive.md.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Literal

from sluice.datastream.errors import BookmarksUnavailable, DatastreamError, StreamFileUnavailable
from sluice.datastream.file.bookmarks import bookmarks_folder
from sluice.datastream.file.file_system import flush_folder
from sluice.datastream.file.pages import PageFault, entries_of
from sluice.datastream.file.remote_pages import SEGMENT_PAGES, digest_of
from sluice.gateway.archive.errors import ArchiveDamaged, ArchiveUnavailable
from sluice.gateway.archive.full_reading import FullReading, last_with_blocks
from sluice.gateway.archive.new_stream import NewStream
from sluice.gateway.archive.objects import ArchiveStore, StoreOptions, open_store
from sluice.gateway.archive.reader import ArchiveReader
from sluice.gateway.archive.restore import StoredStream, open_streams, read_description
from sluice.gateway.archive.segment import (
    STREAM_NAME,
    SegmentName,
    SegmentObject,
    header_name,
    segment_name,
)
from sluice.gateway.archive.segment_check import (
    SegmentCheck,
    difference,
    fetch_pages,
    header_fault,
    in_order,
    read_index_up_to,
    read_segment_index,
    segment_names,
)
from sluice.gateway.blocks.chain import Chain
from sluice.gateway.blocks.errors import LedgerKeyError
from sluice.gateway.blocks.proofs import signs_root
from sluice.gateway.blocks.proofs.ledger_data import LedgerData
from sluice.gateway.blocks.stream_layout import NATIVE_LAYOUT, NEWEST_LAYOUT, bookmarks_of, layout_of
from sluice.gateway.blocks.verification import BlockVerifier
from sluice.gateway.errors import Fatal, GatewayError, GotExpected, StartAbandoned
from sluice.gateway.logs import fields
from sluice.gateway.regular_files import lock_folder, make_folder, replace_file
from sluice.gateway.store.block_store import BlockStore, Layout
from sluice.gateway.store.chain_file import SNAPSHOT_NAME, Snapshot, pack, snapshot_if_whole
from sluice.gateway.store.evidence import BLOCK_FILE_NAME, STREAM_FILE_NAME
from sluice.gateway.store.last_block import look_at_last_block
from sluice.gateway.store.page_blocks import PageBlocks
from sluice.gateway.store.stream_check import summary_of
from sluice.gateway.store.trust_store import KEPT_NAME, keep_ledger, kept_ledger

__all__ = ["BeginningRules", "Trust", "begin_from_archive"]

log = logging.getLogger(__name__)

Trust = Literal["proof", "full"]

THREADS: Final = 16
LOG_SEGMENTS: Final = 1_024
"""Segments between two log lines."""
LARGE_BYTES: Final = 4 << 20
"""Indexes of more bytes are read one after the other: each may take a quarter of a GiB of memory."""
RECORD_SEGMENTS: Final = 64
"""Segments that are recorded at once, if only indexes are read."""
CACHE_PAGES: Final = 64
WORK_FOLDER: Final = "beginning"
_FULL_NAME: Final = "full"
"""A file in the work folder, with the setting: all is being verified, and a later attempt may go on."""
_PROVED_NAME: Final = "proved"
"""A file in the work folder: all is verified, and only to be moved."""


@dataclass(frozen=True, slots=True)
class BeginningRules:
    """The trust of a node in archives, and those that it can use."""

    stream_type: int
    layout: Layout | None
    """The layout that the archive must have; None: either."""
    trust: Trust
    is_signed: bool
    """Proofs are checked (verification mode `full`)."""
    verifier: Callable[[LedgerData | None], BlockVerifier]
    """Returns the verifier of the node's keys, with what block 0 published, if that is known."""
    known_ledger: Callable[[BlockStore], LedgerData | None]
    """Returns the ledger data that the node would start with."""
    go_on: Callable[[], None] = lambda: None
    """Called again and again; what it raises ends the beginning."""


def begin_from_archive(data_dir: Path, url: str, options: StoreOptions, rules: BeginningRules) -> bool:
    """Begin a node's data folder from an archive, if the folder is new and the archive has blocks.

    Args:
        data_dir: empty, or left by an interrupted beginning; else nothing is done.

    Returns:
        Whether the folder was begun.

    Raises:
        ArchiveDamaged: the archive contradicts itself.
        ArchiveUnavailable: the store does not give an object.
        Fatal, LedgerKeyError: a node cannot begin with this archive.
        DatastreamError, OSError: the disk refuses.
    """
    make_folder(data_dir)
    work = data_dir / WORK_FOLDER
    alone = "only one node that begins in this folder"
    if (work / _PROVED_NAME).exists():
        with lock_folder(work, alone):
            _move(data_dir)
        return True
    if not _is_new(data_dir):
        return False
    store = open_store(url, options)  # makes the folder of a file:// URL
    if not _has_blocks(store, options):
        return False
    streams = open_streams(url, options)
    make_folder(work)
    with lock_folder(work, alone):
        return _Beginning(data_dir, streams, rules).run()


def _is_new(data_dir: Path) -> bool:
    """Return whether a folder has no node's files; if some are lost, the opening says so."""
    files = [data_dir / name for name in (STREAM_FILE_NAME, BLOCK_FILE_NAME)]
    paths = [*files, *map(bookmarks_folder, files)]
    return not any(path.exists() for path in paths) and not any(data_dir.glob("*.json"))


def _has_blocks(store: ArchiveStore, options: StoreOptions) -> bool:
    """Return whether an archive has something to begin with; else a node begins it.

    Raises:
        ArchiveDamaged: it has lost what it is.
    """
    description = read_description(store)
    if description is None:
        if any(store.names("segments/")):
            raise ArchiveDamaged("archive", f"segments, and no {STREAM_NAME}", "both", store.url)
        log.info("the archive is empty: this node begins it", extra=fields(archive=store.url))
        return False
    if description.stream_layout == NATIVE_LAYOUT and description.first_block is None:
        blocks = open_store(store.url + "/blocks", options)
        if read_description(blocks) is None and not any(blocks.names("segments/")):
            _log_no_block(store.url)
            return False
    return True


def _log_no_block(url: str) -> None:
    log.info("the archive has no whole block yet", extra=fields(archive=url))


class _Beginning:
    def __init__(self, data_dir: Path, streams: Sequence[StoredStream], rules: BeginningRules) -> None:
        self._data_dir, self._work = data_dir, data_dir / WORK_FOLDER
        self._streams, self._rules = streams, rules
        self._url = streams[0].store.url
        self._names: list[list[SegmentName]] = []

    def run(self) -> bool:
        """Begin the folder, or do nothing, as `begin_from_archive`."""
        work = self._work
        try:
            is_done = self._make()
        except (ArchiveUnavailable, StartAbandoned, BookmarksUnavailable, StreamFileUnavailable, OSError):
            if not (work / _FULL_NAME).exists():
                shutil.rmtree(work)
            raise
        except (GatewayError, DatastreamError) as error:
            shutil.rmtree(work)
            if isinstance(error, GotExpected) and self._url not in str(error):
                what = f"archive {self._url}: {error.what}"
                expected = f"{error.expected}; sluice check {self._url} says where the archive is wrong"
                raise type(error)(what, error.got, expected) from error
            raise
        if not is_done:
            shutil.rmtree(work)
        return is_done

    def _make(self) -> bool:
        rules = self._rules
        self._check_descriptions()
        self._names = [segment_names(stream.store) for stream in self._streams]
        for stream, names in zip(self._streams, self._names, strict=True):
            _check_newest_header(stream, names)
        url = self._url
        may_prove = len(self._streams) == 1 and self._streams[0].description.first_block == 0
        marked = self._work / _FULL_NAME
        had_no_proof = marked.exists() and marked.read_text() == rules.trust
        if rules.trust == "proof" and may_prove and not had_no_proof:
            self._wipe()
            if not self._read_indexes():
                _log_no_block(url)
                return False
            if self._is_proved(by_one=True):
                self._finish()
                return True
            log.info("the last block's proof does not sign its footer", extra=fields(archive=url))
        if rules.trust == "proof":
            log.info(
                "one signature cannot prove the archive: all of it is verified", extra=fields(archive=url)
            )
        if not self._read_all():
            _log_no_block(url)
            return False
        self._is_proved(by_one=False)
        self._finish()
        return True

    def _check_descriptions(self) -> None:
        """Raises Fatal if a node with these settings cannot have this stream."""
        rules, streams = self._rules, self._streams
        first = streams[0].description
        where = streams[0].store.address(STREAM_NAME)
        for stream in streams:
            found, address = stream.description, stream.store.address(STREAM_NAME)
            if found.stream_type != rules.stream_type:
                raise Fatal(f"{address}: stream_type", str(found.stream_type), str(rules.stream_type))
            if (found.system_id, found.version, found.stream_layout) != (
                first.system_id,
                first.version,
                first.stream_layout,
            ):
                raise ArchiveDamaged(
                    "stream", str(found), f"the system id, version and layout of {where}", address
                )
        if streams[-1].description.first_block is None:
            raise Fatal(where, got="a stream without blocks", expected="the blocks of a chain")
        layout = "native" if len(streams) > 1 else "block"
        if rules.layout not in (None, layout):
            raise Fatal(f"{where}: stream_layout", f"{layout}", f"{rules.layout}, the setting stream.layout")

    def _wipe(self) -> None:
        """Empty the work folder, which is locked."""
        for path in self._work.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    # --- trust: proof ---------------------------------------------------------------------------------------

    def _read_indexes(self) -> bool:
        """Write the folder by the indexes; return whether there is a block."""
        (stream,), (names,) = self._streams, self._names
        new = NewStream(self._work, stream)
        chain = Chain(0)
        last: SegmentObject | None = None
        try:
            for segment in self._indexes(stream.store, names):
                new.add(segment)
                for block in segment.index.blocks:
                    chain.advance(block.number, block.root_hash)
                if segment.index.blocks:
                    last = segment
                    new.settle(segment.entries_end, RECORD_SEGMENTS)
            if last is None:
                return False
            pages = dict(_pages_of(stream.store, last))
            total_entries = _end_of_last_block(stream.store, last, pages.values())
            self._write([new], [total_entries], chain, [pages])
        finally:
            new.close()
        return True

    def _indexes(self, store: ArchiveStore, names: Sequence[SegmentName]) -> Iterator[SegmentObject]:
        before = _Before(self._streams[0].description.stream_layout)
        threads = ThreadPoolExecutor(THREADS, "archive-index")
        try:
            calls = (partial(read_index_up_to, store, name, LARGE_BYTES) for name in names)
            found = in_order(threads, calls, 2 * THREADS, self._rules.go_on)
            for count, (name, small) in enumerate(zip(names, found, strict=True), 1):
                segment = small or read_segment_index(store, name)
                before.check(store, segment)
                yield segment
                if count % LOG_SEGMENTS == 0:
                    extra = fields(archive=store.url, segments=count, of=len(names))
                    log.info("reading the indexes of the archive", extra=extra)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    # --- trust: full ----------------------------------------------------------------------------------------

    def _read_all(self) -> bool:
        """Write the folder after all blocks are verified; return whether there is one."""
        work, rules = self._work, self._rules
        news: list[NewStream] = []
        with contextlib.ExitStack() as stack:
            begun = self._take_up(news, stack)
            if begun is not None and begun.cut is None:
                return True  # written before
            count = last_with_blocks(news[-1], self._names[-1])
            if not count:
                return False
            names = [*self._names[:-1], self._names[-1][:count]]
            verifier = rules.verifier(kept_ledger(work))
            first = self._streams[-1].description.first_block
            if verifier.awaits_block_0 and first != 0:
                raise LedgerKeyError(
                    "ledger keys",
                    got="no tss:FILE",
                    expected="tss:FILE, or a key of another kind alone: the archive begins with block "
                    f"{first}, and only block 0 publishes ledger data",
                )
            reading = FullReading(
                news,
                names,
                verifier,
                work,
                keep=partial(keep_ledger, work),
                begun=begun,
                go_on=rules.go_on,
            )
            reading.run()
            if reading.chain.last_number is None:
                return False
            totals = [reading.totals.blocks]
            if len(news) > 1:
                totals.insert(0, reading.totals.network)
            pages = [
                dict(_pages_of(new.stored.store, new.last_segment(total))) if total else {}
                for new, total in zip(news, totals, strict=True)
            ]
            self._write(news, totals, reading.chain, pages)
        return True

    def _take_up(self, news: list[NewStream], stack: contextlib.ExitStack) -> Snapshot | None:
        """Open the streams in the work folder; return where an earlier attempt came to, if it can go on."""
        work = self._work

        def open_all() -> None:
            for stream in self._streams:
                news.append(NewStream(work, stream))
                stack.callback(news[-1].close)

        begun = snapshot_if_whole(work) if (work / _FULL_NAME).exists() else None
        first = self._streams[-1].description.first_block
        if begun is not None and begun.chain.first_number == first:
            if begun.cut is None and all((work / stream.file_name).exists() for stream in self._streams):
                return begun
            if begun.cut is not None:
                open_all()
                if all(new.has_names(names) for new, names in zip(news, self._names, strict=True)):
                    return begun
                stack.close()
                news.clear()
            log.info("the archive is another one than before: begun again", extra=fields(archive=self._url))
        self._wipe()
        (work / _FULL_NAME).write_text(self._rules.trust)
        open_all()
        return None

    # --- the end --------------------------------------------------------------------------------------------

    def _write(
        self,
        news: Sequence[NewStream],
        totals: Sequence[int],
        chain: Chain,
        pages: Sequence[Mapping[int, bytes]],
    ) -> None:
        """Write the stream files, and the snapshot of the chain."""
        for new, total_entries, local in zip(news, totals, pages, strict=True):
            first_page = new.write(total_entries, local)
        description = self._streams[-1].description
        layout = NATIVE_LAYOUT
        if len(news) == 1:
            layout = _layout_on(first_page, self._url)
        if description.stream_layout not in (None, layout):
            where = self._streams[-1].store.address(STREAM_NAME)
            expected = f"{layout}, as its first block has"
            raise ArchiveDamaged("stream_layout", str(description.stream_layout), expected, where)
        replace_file(self._work / SNAPSHOT_NAME, pack(Snapshot(chain, layout)).encode(), flush=True)

    def _is_proved(self, *, by_one: bool) -> bool:
        """Look at the last block, as a start does.

        Args:
            by_one: its proof has to sign all; return whether it does.

        Raises:
            Fatal, LedgerKeyError: it is not what the node's keys and the rest of the chain say.
        """
        rules, streams = self._rules, self._streams
        header = streams[-1].description.header
        store = BlockStore.open(
            self._work,
            stream_type=header.stream_type,
            system_id=header.system_id,
            version=header.version,
            go_on=rules.go_on,
        )
        with contextlib.ExitStack() as stack:
            stack.callback(store.close)
            for stream, streamer in zip(streams, store.streamers, strict=True):
                streamer.remote.cache_pages_max = CACHE_PAGES
                reader = ArchiveReader(stream.store, streamer)
                stack.callback(reader.close)
            PageBlocks(store).known_root = reader.known_root
            verifier = rules.verifier(rules.known_ledger(store))
            last = look_at_last_block(store, verifier)
            number = store.last_number
            assert number is not None
            if last is None or last.lack is not None:
                got = "a last block that cannot be read" if last is None else last.lack
                expected = "keys that verify its last block, which proves the others"
                raise LedgerKeyError(f"archive {self._url}", got=str(got), expected=expected)
            stored = store.read_block(number)
            assert stored is not None
            summary, _ = summary_of(stored)
            return not by_one or not rules.is_signed or (summary is not None and signs_root(summary))

    def _finish(self) -> None:
        flush_folder(self._work)
        (self._work / _PROVED_NAME).touch()
        flush_folder(self._work)
        _move(self._data_dir)
        snapshot = snapshot_if_whole(self._data_dir)
        last = None if snapshot is None else snapshot.chain.last_number
        segments = sum(map(len, self._names))
        extra = fields(archive=self._url, segments=segments, last_block=last)
        log.info("data folder begun from the archive", extra=extra)


def _move(data_dir: Path) -> None:
    """Move the verified files to the data folder, durably, the stream that TCP clients read last.

    Raises:
        Fatal: another program has made some there.
    """
    work = data_dir / WORK_FOLDER
    order = [work / KEPT_NAME, work / SNAPSHOT_NAME]
    for file in (work / BLOCK_FILE_NAME, work / STREAM_FILE_NAME):
        order += [bookmarks_folder(file), file]
    for source in order:
        if not source.exists():
            continue  # moved before, or there is none
        target = data_dir / source.name
        if target.exists():
            expected = f"none: a program has used the folder. What the archive gave is {source}"
            raise Fatal(str(target), got="a file", expected=expected)
        source.rename(target)
        flush_folder(data_dir)
    shutil.rmtree(work)
    flush_folder(data_dir)


def _check_newest_header(stream: StoredStream, names: Sequence[SegmentName]) -> None:
    """Compare the header page behind the last segment, which a kill of the uploader may have left out.

    Raises:
        ArchiveDamaged: it is of another stream than `stream.json`, or of other entries.
    """
    if not names:
        return
    text = header_name(names[-1].first_page + SEGMENT_PAGES)
    found = stream.store.get(text)
    if found is None:
        return
    last = read_segment_index(stream.store, names[-1])
    header = replace(
        stream.description.header, total_length=last.total_length, total_entries=last.entries_end
    )
    fault = header_fault(found, header, stream.store.address(text))
    if fault is not None:
        raise fault


class _Before:
    """The end that the next segment has to continue, by the indexes.

    Args:
        layout: of the blocks, by `stream.json`.
    """

    def __init__(self, layout: int | None) -> None:
        self._layout = layout
        self._next_entry = self._next_block = 0
        self._bookmarks: list[tuple[bytes, int]] = []
        """(bookmark, entry) of the block that has begun and not ended."""

    def check(self, store: ArchiveStore, segment: SegmentObject) -> None:
        """Raises ArchiveDamaged if a segment does not continue the ones before, or has other bookmarks."""
        where = store.address(segment_name(*segment.name))
        if segment.entries_begin != self._next_entry:
            got, expected = str(segment.entries_begin), str(self._next_entry)
            raise ArchiveDamaged("first entry", got, expected, where)
        blocks = segment.index.blocks
        if blocks and blocks[0].number != self._next_block:
            got, expected = str(blocks[0].number), str(self._next_block)
            raise ArchiveDamaged("first block that ends here", got, expected, where)
        if segment.first_page == 0:
            self._learn_layout(segment, store.address(STREAM_NAME))
        self._next_entry = segment.entries_end
        if blocks:
            self._next_block = blocks[-1].number + 1
        self._check_bookmarks(segment, where)

    def _learn_layout(self, segment: SegmentObject, where: str) -> None:
        """Learn the layout from the bookmarks of block 0."""
        second = [mark.entry for mark in segment.index.bookmarks[1:2]]
        layout = 1 if second == [1] else NEWEST_LAYOUT
        if self._layout not in (None, layout):
            expected = f"{layout}, as its first block has"
            raise ArchiveDamaged("stream_layout", str(self._layout), expected, where)
        self._layout = layout

    def _check_bookmarks(self, segment: SegmentObject, where: str) -> None:
        """Compare the bookmarks with the places of the blocks: no proof signs either."""
        found = [*self._bookmarks, *((mark.bookmark, mark.entry) for mark in segment.index.bookmarks)]
        expected = [
            mark for block in segment.index.blocks for mark in self._bookmarks_of(block.number, block.entry)
        ]
        self._bookmarks = found[len(expected) :]
        if self._bookmarks:
            begun = self._bookmarks_of(self._next_block, self._bookmarks[0][1])
            expected += begun[: len(self._bookmarks)]
        if found != expected:
            _, got, words = difference(found, expected)
            raise ArchiveDamaged("bookmarks of the index", got, f"{words}, by its blocks", where)

    def _bookmarks_of(self, number: int, entry: int) -> list[tuple[bytes, int]]:
        assert self._layout is not None
        return [(mark, entry + place) for place, mark in enumerate(bookmarks_of(number, self._layout))]


def _pages_of(store: ArchiveStore, segment: SegmentObject) -> Iterator[tuple[int, bytes]]:
    """Yield (number, page) of a segment; with digests, only those pages that have them."""
    for number, page in enumerate(fetch_pages(store, segment), segment.first_page):
        digest = segment.digests[number - segment.first_page] if segment.digests else None
        if digest not in (None, digest_of(page)):
            where = f"{store.address(segment_name(*segment.name))}: page {number}"
            raise ArchiveDamaged("page", "other bytes", "those that were verified", where)
        yield number, page


def _end_of_last_block(store: ArchiveStore, segment: SegmentObject, pages: Iterable[bytes]) -> int:
    """Return the entries of the stream that ends with the last block of a segment; compare all its pages."""
    where = store.address(segment_name(*segment.name))
    # The check gives its segment digests, and nobody has proved these pages yet.
    check = SegmentCheck(SegmentObject(segment.name, segment.index), where, has_blocks=True)
    for page in pages:
        check.add(page)
    total_entries = check.finish().next_begin
    assert total_entries is not None
    return total_entries


def _layout_on(first_page: bytes, url: str) -> int:
    """Return the layout of the block with which a stream begins."""
    try:
        entries = list(entries_of(first_page, 0, 2))
    except PageFault as fault:
        raise ArchiveDamaged("page 0", fault.found, fault.expected, url) from None
    if len(entries) < 2:
        raise ArchiveDamaged("page 0", f"{len(entries)} entries", "those of a block", url)
    return layout_of(entries[1].type)
