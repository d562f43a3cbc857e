"""The sources of `sluice verify`: block files, a node (gRPC), a data stream (TCP), a node's data folder, and
its archive.

A source names its blocks in order of number; numbers may be missing. The checking process reads a block from
its file; this one reads blocks from the network or a stream file.
Source: docs/spec/wire.md section 2.3; docs/spec/stream-file.md; docs/spec/block-layout.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Protocol

import grpc

from sluice.datastream import DatastreamError
from sluice.datastream.errors import ConnectionEnded
from sluice.datastream.layout import MAGIC, Entry
from sluice.gateway.addresses import Address
from sluice.gateway.api import node_pb2, node_pb2_grpc
from sluice.gateway.archive.errors import ArchiveDamaged, ArchiveUnavailable
from sluice.gateway.archive.objects import StoreOptions
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.errors import BlockRefused, LayoutError
from sluice.gateway.blocks.refusal import Refusal, RefusalKind
from sluice.gateway.blocks.stream_layout import BLOCK_END_TYPE, BlockDecoder, StoredBlock, bookmark_of
from sluice.gateway.blocks.verification import BlockVerifier
from sluice.gateway.regular_files import open_regular
from sluice.gateway.transport.channels import WHOLE_BLOCKS, ClientTls, open_blocking_channel
from sluice.gateway.transport.failures import why_failed_at
from sluice.publishers import limits
from sluice.publishers.blocks.block_places import (
    NO_BLOCKS,
    BlockFileReader,
    BlockPlace,
    LocalStore,
    find_blocks,
)
from sluice.publishers.errors import BlockFileError, BlockListError, SourceRefused, SourceUnreachable
from sluice.publishers.number_range import NumberRange
from sluice.publishers.sources.archive_runs import ArchivePagesReader, blocks_url
from sluice.publishers.sources.block_gateways import ask_held
from sluice.publishers.sources.entry_blocks import blocks_that_begin_in
from sluice.publishers.sources.entry_server import connect_to_stream
from sluice.publishers.sources.native_pages import NativePages, block_file_in, network_file_of
from sluice.publishers.sources.stream_runs import PagesReader, stream_file_in
from sluice.publishers.verify.verdicts import CheckedBlock, check_block, unreadable

__all__ = [
    "BlockSource",
    "FileSource",
    "Job",
    "NodeSource",
    "StoredSource",
    "StreamSource",
    "check_job",
    "holds_stream",
]


@dataclass(frozen=True, slots=True)
class Job:
    """One block to check; it may go to another process."""

    number: int
    place: BlockPlace | None = None
    """None: `items` has the block."""
    items: tuple[bytes, ...] = ()
    stored_root_hash: bytes | None = None
    """The root hash at the block's end in a stream, 48 bytes."""


class BlockSource(Protocol):
    """Blocks in order of number."""

    count: int | None

    def jobs(self) -> Iterator[Job]:
        """Yield each block."""
        ...

    def block_0(self) -> Job | None:
        """Return block 0."""
        ...


def _wanted(numbers: NumberRange, first: int, last: int, where: object) -> range:
    held = numbers.narrowed(first, last + 1)
    assert held.end is not None
    if held.first >= held.end:
        raise SourceRefused("these blocks", f"{where} has blocks {first} to {last}")
    return range(held.first, held.end)


_reader = BlockFileReader(LocalStore())
"""An archive stays open for its next block."""


def check_job(verifier: BlockVerifier, job: Job) -> CheckedBlock:
    """Read the block of a job and check it, alone."""
    try:
        block = Block.from_items(job.items) if job.place is None else _reader.read(job.place)
    except BlockFileError as error:
        return unreadable(job.number, error.path, error.reason)
    except BlockRefused as refused:
        return CheckedBlock(job.number, refusal=refused.refusal)
    if block.number != job.number:
        return _differs(job.number, "block header: number", str(block.number), str(job.number))
    checked = check_block(verifier, block)
    stored, summary = job.stored_root_hash, checked.summary
    if stored is None or summary is None or checked.refusal is not None or stored == summary.root_hash:
        return checked
    if stored == summary.root_hash_other_layout:  # by the node's setting, and no proof contradicts
        return replace(checked, summary=summary.in_other_layout())
    return _differs(job.number, "root hash at the block's end", stored.hex(), summary.root_hash.hex())


def _differs(number: int, what: str, got: str, expected: str) -> CheckedBlock:
    return CheckedBlock(number, refusal=Refusal(RefusalKind.BAD_ROOT_HASH, what, got, expected))


# --- files --------------------------------------------------------------------------------------------------


class FileSource:
    """The wanted blocks in files, folders, archives and globs."""

    def __init__(self, sources: Sequence[str], numbers: NumberRange) -> None:
        found = find_blocks(LocalStore(), sources)
        self._block_0 = found[0] if found and found[0].number == 0 else None
        self._places = [place for place in found if place.number in numbers]
        if not self._places:
            raise BlockListError(", ".join(sources), NO_BLOCKS + (" of these numbers" if found else ""))
        self.count: int | None = len(self._places)

    def jobs(self) -> Iterator[Job]:
        """Yield the place of each block."""
        return (Job(place.number, place) for place in self._places)

    def block_0(self) -> Job | None:
        """Return block 0."""
        return None if self._block_0 is None else Job(0, self._block_0)


# --- a node, over gRPC --------------------------------------------------------------------------------------


class NodeSource:
    """The wanted blocks that a node has by now, one gRPC request each."""

    def __init__(self, address: Address, numbers: NumberRange, tls: ClientTls | None = None) -> None:
        self._address = str(address)
        self._tls = tls
        first, last = self._held()
        self._has_block_0 = first == 0
        self._wanted = _wanted(numbers, first, last, self._address)
        self.count: int | None = len(self._wanted)

    def jobs(self) -> Iterator[Job]:
        """Yield each block; raise SourceUnreachable or SourceRefused."""
        return self._get(self._wanted)

    def block_0(self) -> Job | None:
        """Return block 0."""
        return next(self._get(range(1))) if self._has_block_0 else None

    def _held(self) -> tuple[int, int]:
        wanted = "what the node has"
        try:
            held = ask_held(self._address, self._tls, limits.STATUS_SECONDS)
        except grpc.RpcError as error:
            raise self._unreachable(wanted, limits.STATUS_SECONDS, error) from error
        if held.first is None or held.last is None:
            raise SourceRefused(wanted, f"{self._address} has no blocks")
        return held.first, held.last

    def _get(self, numbers: range) -> Iterator[Job]:
        code = node_pb2.BlockResponse.Code
        with open_blocking_channel(self._address, self._tls, WHOLE_BLOCKS) as channel:
            stub = node_pb2_grpc.BlockAccessServiceStub(channel)
            for number in numbers:
                request = node_pb2.BlockRequest(block_number=number)
                try:
                    response = stub.getBlock(request, timeout=limits.BLOCK_SECONDS)
                except grpc.RpcError as error:
                    raise self._unreachable(f"block {number}", limits.BLOCK_SECONDS, error) from error
                status = response.status
                if status != code.SUCCESS:
                    name = code.Name(status) if status in code.values() else str(status)
                    raise SourceRefused(f"block {number}", f"{self._address} says {name}")
                yield Job(number, items=tuple(response.block.items))

    def _unreachable(self, wanted: str, seconds: float, error: grpc.RpcError) -> SourceUnreachable:
        is_late = isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        why = why_failed_at(self._address, error, self._tls)
        waited = seconds if is_late else None  # most errors come at once
        return SourceUnreachable(wanted, waited, f"{self._address}: {why}")


# --- a node, over TCP ---------------------------------------------------------------------------------------


class StreamSource:
    """The wanted blocks that a data stream has by now, over TCP."""

    def __init__(self, address: Address, numbers: NumberRange, tls: ClientTls | None = None) -> None:
        self._address = address
        self._numbers = numbers
        self._tls = tls
        self.count: int | None = None

    def jobs(self) -> Iterator[Job]:
        """Yield each block."""
        is_empty = True
        for stored in self._read(self._numbers.first):
            if stored.number in self._numbers:
                is_empty = False
                yield Job(stored.number, items=stored.items, stored_root_hash=stored.root_hash)
            elif stored.number > self._numbers.first:
                break
        if is_empty:
            raise SourceRefused("these blocks", f"the stream of {self._address} does not have them")

    def block_0(self) -> Job | None:
        """Return block 0."""
        with contextlib.closing(self._read(0)) as blocks:
            first = next(blocks, None)
        if first is None or first.number != 0:
            return None
        return Job(0, items=first.items, stored_root_hash=first.root_hash)

    def _read(self, first: int) -> Generator[StoredBlock, None, None]:
        decoder = BlockDecoder()
        seconds = limits.BLOCK_SECONDS
        try:
            with connect_to_stream(self._address, 1, self._tls, seconds) as client:
                entry_count = client.header().total_entries
                if entry_count == 0:
                    return
                if first == 0:
                    client.start(0)
                else:
                    client.start_bookmark(bookmark_of(first))
                for entry in client.entries():
                    stored = decoder.feed(entry.type, entry.data)
                    if stored is not None:
                        yield stored
                    if entry.number >= entry_count - 1:
                        return
        except LayoutError as error:
            raise SourceRefused("blocks", f"the stream of {self._address}: {error}") from error
        except (ConnectionEnded, OSError) as error:
            waited = seconds if isinstance(error, TimeoutError) else None
            raise SourceUnreachable(f"block {first}", waited, f"{self._address}: {error}") from error
        except DatastreamError as error:
            raise SourceRefused(f"block {first}", f"{self._address}: {error}") from error


# --- a data folder ------------------------------------------------------------------------------------------


def holds_stream(path: Path) -> bool:
    """Return whether a path is a stream file, or a folder that has one under a node's name for it."""
    if path.is_dir():
        return stream_file_in(path).is_file()
    try:
        with open_regular(path) as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


class StoredSource:
    """The wanted blocks that a stream file, or an archive, has by now.

    The file is not locked; a node may append to it. Bisection over the data pages finds where a block begins:
    the last blocks of a long chain are as near as the first.

    Args:
        path: of a file or a folder, or the URL of an archive.
        store: options of the archive's store.
    """

    def __init__(self, path: Path | str, numbers: NumberRange, store: StoreOptions | None = None) -> None:
        self._path = path
        with self._faults_named():
            self._pages, network = _open_stored(path, store or StoreOptions())
            self._path = self._pages.path
            self._native = None if network is None else NativePages(self._pages, network)
            self._end = self._whole_entries()
            if self._end == 0:
                raise SourceRefused("blocks", f"{self._path} has none")
            self._first_held = self._block_ending_from(0)
            last = self._last_number()
        self.numbers = _wanted(numbers, self._first_held, last, self._path)
        """The wanted blocks."""
        self.count: int | None = len(self.numbers)

    def jobs(self) -> Iterator[Job]:
        """Yield each block; raise SourceRefused for a damaged file."""
        for stored in self._blocks_from(self._page_before(self.numbers.start)):
            if stored.number in self.numbers:
                yield _job(stored)
            if stored.number + 1 >= self.numbers.stop:
                return

    def block_0(self) -> Job | None:
        """Return block 0."""
        return _job(next(self._blocks_from(0))) if self._first_held == 0 else None

    def _blocks_from(self, page_number: int) -> Iterator[StoredBlock]:
        run = self._pages.run_from(page_number)
        with self._faults_named():
            entries = chain.from_iterable(self._pages.pages_from(run))
            whole = entries if self._native is None else self._native.whole(entries)
            yield from blocks_that_begin_in(whole, run.first_number, self._end)

    def _page_before(self, number: int) -> int:
        """The last page on or after which another block ends before this one begins."""
        low, high = 0, self._pages.page_count
        with self._faults_named():
            while high - low > 1:
                middle = (low + high) // 2
                if self._block_ending_from(middle) < number:
                    low = middle
                else:
                    high = middle
        return low

    def _block_ending_from(self, page_number: int) -> int:
        for entries in self._pages.pages_from(self._pages.run_from(page_number)):
            for entry in entries:
                if entry.type == BLOCK_END_TYPE:
                    return _number_at_end(entry)
        raise LayoutError(f"stream from data page {page_number} on", "no end of a block", "one")

    def _whole_entries(self) -> int:
        """Return how many entries there are up to the end of the last whole block."""
        if self._native is not None:
            return self._native.committed_entries()
        total = self._pages.header.total_entries
        if not self._pages.may_be_cut:
            return total
        for page_number in range(self._pages.page_count - 1, -1, -1):
            for entry in reversed(next(self._pages.pages_from(self._pages.run_from(page_number)))):
                if entry.type == BLOCK_END_TYPE:
                    return entry.number + 1
        return 0

    def _last_number(self) -> int:
        page_number = self._pages.page_of_entry(self._end - 1)
        entries = next(self._pages.pages_from(self._pages.run_from(page_number)))
        last = entries[self._end - 1 - entries[0].number]
        if last.type != BLOCK_END_TYPE:
            raise LayoutError(
                f"entry {last.number}, the last", f"entry type {last.type:#x}", "the end of a block (0xb1)"
            )
        return _number_at_end(last)

    @contextlib.contextmanager
    def _faults_named(self) -> Iterator[None]:
        try:
            yield
        except (OSError, DatastreamError, LayoutError, ArchiveDamaged, ArchiveUnavailable) as error:
            where = "" if str(self._path) in str(error) else f"{self._path}: "
            raise SourceRefused("blocks", f"{where}{error}") from error


def _open_stored(path: Path | str, store: StoreOptions) -> tuple[PagesReader, PagesReader | None]:
    """Open the stream that has the blocks, and the network's stream of a native chain."""
    if isinstance(path, str):
        url = blocks_url(path, store)
        network = None if url == path.rstrip("/") else ArchivePagesReader(path, store)
        return ArchivePagesReader(url, store), network
    blocks = block_file_in(path)
    beside = network_file_of(blocks)
    return PagesReader(blocks), None if beside is None else PagesReader(beside)


def _job(stored: StoredBlock) -> Job:
    return Job(stored.number, items=stored.items, stored_root_hash=stored.root_hash)


def _number_at_end(entry: Entry) -> int:
    """`BlockDecoder` checks it later."""
    return int.from_bytes(entry.data[:8], "big")
