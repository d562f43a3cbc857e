"""A chain longer than the disk: readers, the disk, a new node, and stores that lie, at full size.

    python -m tests.gateway.archive.long_chain DIR --bytes 4GiB --window 256MiB
    python -m tests.gateway.archive.long_chain DIR --bytes 1GiB --window 256MiB --stream datastream.bin
    python -m tests.gateway.archive.long_chain DIR --bytes 1GiB --stream datastream.bin --published

    publishers ──┬──▶ a node with an archive ──▶ five TCP readers from entry 0, a subscriber from block 0
                 └──▶ a node that keeps all  ──▶ what they must have got

The readers begin while the chain grows, so most of what they read has left the disk. Then a new node begins
with the archive, and others with copies of it that lie. Each claim has a line with its figures; one that does
not hold makes the exit status 1.

With `--published` the chain of an earlier run in DIR is not published again: a new node and the stores that
lie come next. So a long one can be done in two runs.

With `--stream` the nodes have the native layout, and the chain is a network's stream, repeated: in each copy
the numbers of batches and L2 blocks go on, and so does the time. There, a node that begins with the archive
verifies all of it before it serves, and can begin only where both streams have a segment.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import itertools
import json
import os
import select
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import uvloop

from sluice.datastream import DataStreamer
from sluice.datastream.client.blocking_client import BlockingStreamClient
from sluice.datastream.errors import DatastreamError
from sluice.datastream.events.events import event_of
from sluice.datastream.events.network_events import (
    BatchEnd,
    BatchStart,
    Bookmark,
    BookmarkType,
    L2Block,
    L2BlockEnd,
    NetworkEvent,
    Transaction,
    UpdateGer,
)
from sluice.datastream.file.remote_pages import ROOTS_KEY, SEGMENT_PAGES, digest_of
from sluice.datastream.layout import HEADER_PAGE_SIZE, PAGE_SIZE, Entry, page_number_of, page_start
from sluice.gateway.archive.objects import open_store
from sluice.gateway.archive.segment_check import fetch_pages, read_segment_index, segment_names
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.items import varint
from sluice.gateway.settings.kinds import Size, size_text
from sluice.publishers.blocks.block_items import proof_item
from sluice.publishers.blocks.stream_grouping import Grouping, StreamBlocks
from sluice.publishers.client.client import ClientOptions
from sluice.publishers.client.racing import Racer, race
from sluice.publishers.demo.node_process import START_SECONDS, NodeNotStarted, NodeProcess
from sluice.publishers.number_range import NumberRange
from sluice.publishers.sources.block_follower import BlockFollower
from sluice.publishers.sources.stream_runs import PagesReader
from sluice.publishers.verify.verify_sources import StoredSource
from tests.gateway.archive.chains import varied_blocks
from tests.nodes import KEY, ledger_key

MIB = 1 << 20
SEGMENT_BYTES = SEGMENT_PAGES * PAGE_SIZE
MODULE = "tests.gateway.archive.long_chain"
READERS = 5
FIRST_ENTRY_SECONDS_MAX = 5.0
SAMPLE_SECONDS = 0.05
RULE = "15"
"""Five L2 blocks. With a batch in each block, the stream of blocks fills its first segment after 6 GiB."""
WAIT_SECONDS = 600.0
VERIFY_SECONDS = 3600.0
"""Longest time in which a node verifies a whole archive before it serves."""
AHEAD_BYTES = 32 * MIB
"""How far one publisher may be ahead of the other."""
BESIDE_BYTES = 16 * MIB
"""The bookmarks, and the other files of a data folder. Those of a network are counted apart: it has one for
each L2 block, of a few hundred bytes.
"""
_START = struct.pack(">QQQ", 1, 1, 0)
_OK_SIZE = 11
_TOTAL_LENGTH_AT = 38
_READ_BYTES = 1 << 18
_ENTRIES_OF_A_SEGMENT_MAX = 10_000


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@dataclass
class Verdicts:
    """What was found."""

    held: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def add(self, claim: str, figures: str, *, holds: bool) -> None:
        """Print a claim with its figures."""
        say(f"{'holds' if holds else 'FAILS'}  {claim}: {figures}")
        (self.held if holds else self.failed).append(claim)


# --- a network's stream, repeated ---------------------------------------------------------------------------

_RISING: dict[type[NetworkEvent], dict[str, str]] = {
    BatchStart: {"number": "batch"},
    L2Block: {"number": "block", "batch_number": "batch", "timestamp": "seconds"},
    Transaction: {"l2block_number": "block"},
    BatchEnd: {"number": "batch"},
    UpdateGer: {"batch_number": "batch", "timestamp": "seconds"},
    L2BlockEnd: {"number": "block"},
}
"""The fields that go on rising, and what they count. They are the first of their messages."""
_OF_BOOKMARK = {BookmarkType.BATCH: "batch", BookmarkType.L2_BLOCK: "block"}


class _Mould:
    """An event without the numbers that rise, which are encoded anew for each copy."""

    def __init__(self, event: NetworkEvent) -> None:
        if isinstance(event, Bookmark):
            rising = {"value": _OF_BOOKMARK[BookmarkType(event.type)]}
            self._before, self._behind = replace(event, value=0).encode(), b""
        else:
            rising = _RISING[type(event)]
            self._before = b""
            self._behind = replace(event, **dict.fromkeys(rising, 0)).encode()  # type: ignore[type-var]
        tags = {one.name: varint(one.number << 3) for one in event.TABLE.fields}
        self.entry_type = event.ENTRY_TYPE
        self.numbers = [(tags[name], what, getattr(event, name)) for name, what in rising.items()]

    def cast(self, steps: dict[str, int]) -> bytes:
        """Return the data of the entry, with numbers that are so much higher."""
        data = self._before
        for tag, what, number in self.numbers:
            if number + steps[what]:  # a field with 0 is left out
                data += tag + varint(number + steps[what])
        return data + self._behind


def repeated_entries(stream: Path, first_copy: int = 0) -> Iterator[Entry]:
    """Yield a network's entries again and again, without its last batch, which may have no end.

    Types, data and sizes are those of the network, but for the numbers and times, which rise from copy to
    copy. Copy 0 is the network's own.
    """
    with PagesReader(stream) as reader:
        events = [event_of(one) for page in reader.pages_from(reader.run_from(0)) for one in page]
    last = max(place for place, one in enumerate(events) if isinstance(one, BatchStart))
    end = last - isinstance(events[last - 1], Bookmark)
    moulds = [_Mould(one) for one in events[:end] if isinstance(one, NetworkEvent)]
    assert len(moulds) == end, "not the events of a current network"
    seen: dict[str, list[int]] = {"batch": [], "block": [], "seconds": []}
    for mould in moulds:
        for _, what, value in mould.numbers:
            seen[what].append(value)
    spans = {what: max(values) - min(values) + 1 for what, values in seen.items()}
    number = 0
    for copy in itertools.count(first_copy):
        steps = {what: copy * span for what, span in spans.items()}
        for mould in moulds:
            yield Entry(mould.entry_type, number, mould.cast(steps))
            number += 1


def network_blocks(size_bytes: int, first_copy: int, stream: Path, rule: str) -> Iterator[Block]:
    """Yield signed blocks of these entries, as the publishers make them, of that size together."""
    maker = StreamBlocks(Grouping.parse(rule))
    for entry in repeated_entries(stream, first_copy):
        block = maker.feed(entry.number, entry.type, entry.data)
        if block is None:
            continue
        root_hash = maker.point.chain.previous_root_hash  # of this block: it is the last one that is linked
        block = Block(block.number, (*block.items, proof_item(block.number, KEY.sign(root_hash))))
        yield block
        size_bytes -= sum(map(len, block.items))
        if size_bytes <= 0:
            return


# --- publishers, readers and a subscriber, each in a process of its own -------------------------------------


async def _each(blocks: Iterator[Block]) -> AsyncIterator[Block]:
    for block in blocks:
        yield block
        await asyncio.sleep(0)  # to make a block may take as long as to send one


def publish(size_bytes: str, seed: str, stream: str, rule: str, *gateways: str) -> None:
    """Publish a chain to each node, as fast as the slower one takes it: made up, or of a network's stream."""
    racers = [Racer(f"publisher-{place}", (one,)) for place, one in enumerate(gateways)]
    if stream:
        blocks = network_blocks(int(size_bytes), int(seed) - 1, Path(stream), rule)
    else:
        blocks = varied_blocks(int(size_bytes), int(seed))
    reports = uvloop.run(race(_each(blocks), racers, ClientOptions(), AHEAD_BYTES))
    assert all(report.unacknowledged == 0 for report in reports), reports


def read(host: str, port: str) -> None:
    """Read entries from 0 on until as many bytes are here as standard input says; print their digest."""
    digest, received, wanted = hashlib.sha256(), -_OK_SIZE, None
    with socket.create_connection((host, int(port))) as server:
        server.sendall(_START)
        while wanted is None or received < wanted:
            waits_for = [server] if wanted is not None else [server, sys.stdin]
            ready = select.select(waits_for, [], [], WAIT_SECONDS)[0]
            assert ready, f"nothing came for {WAIT_SECONDS:.0f} s"
            if sys.stdin in ready:
                wanted = int(sys.stdin.readline())
            if server in ready:
                data = server.recv(_READ_BYTES)
                if not data:
                    sys.exit(f"the node ended the stream behind byte {received}")
                digest.update(data[max(0, -received) :])
                received += len(data)
    say(json.dumps([received, digest.hexdigest()]))


def subscribe(address: str) -> None:
    """Read blocks from 0 on up to the one that standard input names; print their count and digest."""

    async def main() -> tuple[int, str]:
        digest, count = hashlib.sha256(), 0

        async def follow() -> None:
            nonlocal count
            async for received in BlockFollower([address], 0).blocks():
                _add_block(digest, received.block.number, received.block.items)
                count += 1

        following = asyncio.ensure_future(follow())
        last = int(await asyncio.to_thread(sys.stdin.readline))
        while count <= last and not following.done():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        following.cancel()
        return count, digest.hexdigest()

    say(json.dumps(uvloop.run(main())))


def _add_block(digest: hashlib._Hash, number: int, items: tuple[bytes, ...]) -> None:
    digest.update(struct.pack(">QQ", number, len(items)))
    for item in items:
        digest.update(struct.pack(">Q", len(item)))
        digest.update(item)


class Child:
    """A process of this module. A context manager: it is killed if it still runs."""

    def __init__(self, *words: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", MODULE, *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.process.kill()
        self.process.communicate()

    def result(self, line: object = "") -> tuple[int, str]:
        """Give it a line, and return what it prints; (0, why not) if it fails."""
        printed, _ = self.process.communicate(f"{line}\n")
        if self.process.returncode != 0:
            return 0, f"exit status {self.process.returncode}"
        count, digest = json.loads(printed)
        return int(count), str(digest)


# --- the disk -----------------------------------------------------------------------------------------------


def local_bytes(folder: Path, process_id: int) -> tuple[int, int]:
    """Return what a folder takes on the disk, with the files without a name that a node and its helpers have
    open: all but the bookmarks, and the bookmarks.
    """
    sizes: dict[int, int] = {}
    bookmarks: dict[int, int] = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            status = path.stat()
            is_bookmarks = path.relative_to(folder).parts[0].endswith(".db")
            (bookmarks if is_bookmarks else sizes)[status.st_ino] = 512 * status.st_blocks
    for number in (process_id, *_children(process_id)):
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{number}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if str(link.readlink()).startswith(f"{folder}/"):
                        status = link.stat()
                        if status.st_ino not in bookmarks:
                            sizes[status.st_ino] = 512 * status.st_blocks
    return sum(sizes.values()), sum(bookmarks.values())


def _children(process_id: int) -> list[int]:
    with contextlib.suppress(OSError):
        tasks = Path(f"/proc/{process_id}/task").iterdir()
        return [int(word) for task in tasks for word in (task / "children").read_text().split()]
    return []


class DiskWatch:
    """Samples what a node's folder takes. A context manager."""

    def __init__(self, node: NodeProcess, *, bookmarks_apart: bool) -> None:
        self.peak_bytes = self.bookmarks_peak_bytes = self.sample_count = self.behind_pages_max = 0
        """`peak_bytes` is of everything, or of all but the bookmarks if these are counted apart."""
        self._node = node
        self._is_apart = bookmarks_apart
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> DiskWatch:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            taken, bookmarks = local_bytes(self._node.data_dir, self._node.process_id)
            self.peak_bytes = max(self.peak_bytes, taken + (0 if self._is_apart else bookmarks))
            self.bookmarks_peak_bytes = max(self.bookmarks_peak_bytes, bookmarks)
            self.sample_count += 1
            if self.sample_count % 20 == 0:
                with contextlib.suppress(OSError):
                    behind = max(metric(self._node, "sluice_archive_behind_pages"))
                    self.behind_pages_max = max(self.behind_pages_max, int(behind))


def metric(node: NodeProcess, name: str) -> list[float]:
    """Return a metric of a node, for each of its labels: in the native layout there are two archives."""
    return [value for key, value in node.metrics().items() if key.split("{")[0] == name]


# --- what a stream has --------------------------------------------------------------------------------------


def total_length(folder: Path, name: str = "datastream.bin") -> int:
    """Return the committed length of a node's stream file."""
    with (folder / name).open("rb") as file:
        return int.from_bytes(os.pread(file.fileno(), 8, _TOTAL_LENGTH_AT), "big")


def entries_of(folder: Path, bytes_max: int | None = None) -> tuple[int, str]:
    """Return size and digest of the entries of a stopped node that keeps all, or of their first bytes."""
    digest, size = hashlib.sha256(), 0
    with DataStreamer.open(folder / "datastream.bin") as streamer:
        length = streamer.committed.total_length
        for page_number in range(page_number_of(length - 1) + 1):
            begin = page_start(page_number)
            data = os.pread(streamer.fileno(), streamer.data_end(page_number, length) - begin, begin)
            if bytes_max is not None:
                data = data[: bytes_max - size]
            digest.update(data)
            size += len(data)
    return size, digest.hexdigest()


def blocks_of(folder: Path) -> tuple[tuple[int, str], dict[int, bytes | None]]:
    """Return count and digest of the blocks of a node that keeps all, and their root hashes."""
    digest, roots = hashlib.sha256(), {}
    for job in StoredSource(folder, NumberRange(0, None)).jobs():
        assert job.items is not None
        _add_block(digest, job.number, job.items)
        roots[job.number] = job.stored_root_hash
    return (len(roots), digest.hexdigest()), roots


def entry_bytes(folder: Path, place: Path) -> int:
    """Return the bytes of the entries of a node that began with an archive."""
    names = segment_names(open_store(f"file://{place}"))
    store = open_store(f"file://{place}")
    length = total_length(folder)
    size = 0
    for name in names:
        for number, page in enumerate(read_segment_index(store, name).index.pages, name.first_page):
            size += max(0, min(int(page.data_end), length - page_start(number)))
    return size + max(0, length - page_start(SEGMENT_PAGES * len(names)))


def compare_pages(whole: Path, part: Path, place: Path) -> tuple[str, bool]:
    """Compare the stream file of a node that keeps all with what another one has archived and kept.

    Returns:
        The figures, and whether header and pages are the same.
    """
    archived = local = 0
    store = open_store(f"file://{place}")
    with (
        DataStreamer.open(part, read_only=True) as streamer,
        whole.open("rb") as wanted,
        part.open("rb") as kept,
    ):

        def page_of(number: int) -> bytes:
            return os.pread(wanted.fileno(), PAGE_SIZE, page_start(number))

        same = os.pread(wanted.fileno(), HEADER_PAGE_SIZE, 0) == os.pread(kept.fileno(), HEADER_PAGE_SIZE, 0)
        for name in segment_names(store):
            pages = fetch_pages(store, read_segment_index(store, name))
            for number, page in enumerate(pages, name.first_page):
                same = same and page == page_of(number)
                archived += 1
        count = page_number_of(streamer.committed.total_length - 1) + 1
        for number in range(streamer.remote.end, count):
            same = same and os.pread(kept.fileno(), PAGE_SIZE, page_start(number)) == page_of(number)
            local += 1
        same = same and streamer.remote.end <= archived
    return f"{whole.name} {archived} pages of the archive, {local} of the disk, {count} in all", same


# --- the proof ----------------------------------------------------------------------------------------------


class LongChain:
    """The proof, in a folder.

    Args:
        stream: a network's stream file, which is repeated; None: the chain is made up.
        rule: which entries of the network make a block, as `sluice publish --group-by`.
    """

    def __init__(
        self,
        folder: Path,
        size_bytes: int,
        window_bytes: int,
        cache_bytes: int,
        seed: int,
        stream: Path | None = None,
        rule: str = RULE,
    ) -> None:
        self.folder = folder.absolute()
        self.stream = stream
        self.rule = rule
        self.size_bytes = size_bytes
        self.window_bytes = window_bytes
        self.cache_bytes = cache_bytes
        self.seed = seed
        self.place = self.folder / "archive"
        self.names = ["datastream.bin"]
        """The stream files of a node."""
        self.node_words: list[str] = []
        if stream is not None:
            with PagesReader(stream) as reader:
                header = reader.header
            self.names.append("blocks.bin")
            self.node_words += ["--stream-layout", "native", "--stream-system-id", str(header.system_id)]
            self.node_words += ["--stream-version", str(header.version)]
            self.node_words += ["--stream-type", str(header.stream_type)]
        self.verdicts = Verdicts()
        self.roots: dict[int, bytes | None] = {}

    def run(self, *, is_published: bool = False) -> bool:
        """Return whether all claims hold."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not is_published:
            self.publish_and_read()
        elif self.stream is None:
            self.roots = blocks_of(self.folder / "all")[1]
        if self.stream is None or all(self.segments(self.place_of(name)) for name in self.names):
            self.begin_anew()
            self.refuse_liars()
        else:
            say("no node can begin with this archive: the stream of blocks fills no segment yet")
        say(f"{len(self.verdicts.failed)} of the claims fail")
        return not self.verdicts.failed

    def node(self, name: str, *words: str, place: Path | None = None) -> NodeProcess:
        """Start a node; with a place, it has an archive there."""
        archive = [] if place is None else ["--archive", f"file://{place}"]
        if place is not None:
            archive += ["--archive-local-bytes", size_text(self.window_bytes)]
            archive += ["--archive-cache-bytes", size_text(self.cache_bytes)]
        arguments = ["--ledger-key", ledger_key(), *self.node_words, *archive, *words]
        return NodeProcess(
            self.folder / name,
            self.folder / f"{name}.log",
            arguments,
            is_bound=True,
            start_seconds=START_SECONDS if self.stream is None else VERIFY_SECONDS,
        )

    def publisher(self, size_bytes: int, seed: int, rule: str, *nodes: NodeProcess) -> Child:
        """Start a publisher of a chain to each node."""
        stream = "" if self.stream is None else self.stream.absolute()
        return Child("publish", size_bytes, seed, stream, rule, *(node.grpc for node in nodes))

    def place_of(self, name: str) -> Path:
        """Return the place of a stream file's archive."""
        return self.place if name == self.names[0] else self.place / "blocks"

    # --- the readers and the disk ---------------------------------------------------------------------------

    def publish_and_read(self) -> None:
        """Publish to both nodes while the readers read; compare what they got."""
        begun = time.monotonic()
        with (
            contextlib.ExitStack() as stack,
            self.node("all") as plain,
            self.node("archived", place=self.place) as node,
            DiskWatch(node, bookmarks_apart=self.stream is not None) as disk,
        ):
            publisher = stack.enter_context(
                self.publisher(self.size_bytes, self.seed, self.rule, plain, node)
            )
            readers: list[Child] = []
            subscriber = None
            while publisher.process.poll() is None:
                written = sum(total_length(node.data_dir, name) for name in self.names) / self.size_bytes
                if len(readers) < READERS and written >= len(readers) / READERS:
                    readers.append(stack.enter_context(Child("read", *node.tcp)))
                if subscriber is None and written >= 1 / 2:
                    subscriber = stack.enter_context(Child("subscribe", node.grpc))
                time.sleep(SAMPLE_SECONDS)
            seconds = time.monotonic() - begun
            assert publisher.process.returncode == 0, "the publishers failed"
            assert subscriber is not None
            last = int(metric(node, "sluice_last_block")[0])
            assert last == int(metric(plain, "sluice_last_block")[0])
            rate = f"{self.size_bytes / MIB / seconds:.0f} MiB/s"
            say(f"{last + 1} blocks to both in {seconds:.0f} s, {rate}; load {os.getloadavg()[0]:.1f}")
            plain.stop()
            wanted = entries_of(plain.data_dir)
            got = [reader.result(wanted[0]) for reader in readers]
            blocks = subscriber.result(last)
            reading_seconds = time.monotonic() - begun
            _until(lambda: max(metric(node, "sluice_archive_behind_pages")) < 2 * SEGMENT_PAGES)
            read_bytes = sum(metric(node, "sluice_archive_read_bytes"))
        wanted_blocks, self.roots = blocks_of(self.folder / "all")
        self.verdicts.add(
            f"{READERS} TCP readers from entry 0 get every byte",
            f"{[one[0] for one in got]} of {wanted[0]} bytes in {reading_seconds:.0f} s, "
            f"{read_bytes / MIB:.0f} MiB read from the store",
            holds=len(got) == READERS and all(one == wanted for one in got),
        )
        self.verdicts.add(
            "a subscriber from block 0 gets every byte",
            f"{blocks[0]} of {wanted_blocks[0]} blocks",
            holds=blocks == wanted_blocks,
        )
        compared = [
            compare_pages(self.folder / "all" / name, self.folder / "archived" / name, self.place_of(name))
            for name in self.names
        ]
        self.verdicts.add(
            "archive and disk have the bytes of the node that keeps all",
            ", ".join(figures for figures, _ in compared),
            holds=all(same for _, same in compared),
        )
        bookmarks = f"{disk.bookmarks_peak_bytes / MIB:.0f} MiB of bookmarks"
        apart = "" if self.stream is None else f", without {bookmarks}"
        each = self.window_bytes + self.cache_bytes + SEGMENT_BYTES
        second = sum(min(each, total_length(self.folder / "all", name)) for name in self.names[1:])
        bound = each + second + BESIDE_BYTES
        self.verdicts.add(
            "the disk stays below window + cache + one segment",
            f"at most {disk.peak_bytes / MIB:.0f} MiB{apart} in {disk.sample_count} samples, bound "
            f"{self.window_bytes // MIB} + {self.cache_bytes // MIB} + {SEGMENT_BYTES // MIB} + "
            f"{second // MIB} for a second file + {BESIDE_BYTES // MIB} beside = {bound // MIB}; "
            f"up to {disk.behind_pages_max} pages were not archived",
            holds=disk.sample_count > 0 and disk.peak_bytes <= bound,
        )

    # --- a new node -----------------------------------------------------------------------------------------

    def begin_anew(self) -> None:
        """Begin a node with the archive; time its first entry, and read all of it."""
        begun = time.monotonic()
        with self.node("new", "--archive-upload", "never", place=self.place) as node:
            with BlockingStreamClient(*node.tcp, timeout_seconds=WAIT_SECONDS) as client:
                client.start(0)
                assert next(client.entries()).number == 0
            seconds = time.monotonic() - begun
            taken = sum(local_bytes(node.data_dir, node.process_id))
            claim, figures = "a new node serves its first entry", f"{seconds:.2f} s after it was started"
            disk = f"{taken / MIB:.0f} MiB on its disk"
            if self.stream is None:
                goal = f"goal {FIRST_ENTRY_SECONDS_MAX:.0f}"
                holds = seconds <= FIRST_ENTRY_SECONDS_MAX
                self.verdicts.add(claim, f"{figures}, {goal}; {disk}", holds=holds)
            else:
                say(f"{claim} {figures}: it has verified all before; {disk}")
            size = entry_bytes(node.data_dir, self.place)
            with Child("read", *node.tcp) as reader:
                got = reader.result(size)
        self.verdicts.add(
            "a new node serves every byte",
            f"{got[0]} of {size} bytes",
            holds=got == entries_of(self.folder / "all", size),
        )
        if self.stream is None:
            self._look_at_roots()
        else:
            self._look_at_pages()
        shutil.rmtree(self.folder / "new")

    def _look_at_roots(self) -> None:
        store, proved, count = open_store(f"file://{self.place}"), 0, 0
        with DataStreamer.open(self.folder / "new" / "datastream.bin") as streamer:
            for name in segment_names(store):
                segment = read_segment_index(store, name)
                count += len(segment.index.blocks)
                noted = streamer.notes.get(ROOTS_KEY + name.first_page.to_bytes(8, "big"))
                if noted == segment.roots_digest:
                    blocks = segment.index.blocks
                    proved += sum(self.roots[int(one.number)] == one.root_hash for one in blocks)
        self.verdicts.add(
            "a new node has proved every block hash",
            f"{proved} of the {count} in the archive are noted, and those of the node that keeps all",
            holds=proved == count > 0,
        )

    def _look_at_pages(self) -> None:
        same = count = by_digest = 0
        for name in self.names:
            with (
                DataStreamer.open(self.folder / "new" / name, read_only=True) as streamer,
                (self.folder / "all" / name).open("rb") as wanted,
            ):
                for number in range(page_number_of(streamer.committed.total_length - 1)):
                    page = os.pread(wanted.fileno(), PAGE_SIZE, page_start(number))
                    if 1 <= number < streamer.remote.end:
                        same += streamer.remote.digest(number) == digest_of(page)
                        by_digest += 1
                    else:
                        same += os.pread(streamer.fileno(), PAGE_SIZE, page_start(number)) == page
                    count += 1
        self.verdicts.add(
            "a new node has every full page, or its verified digest",
            f"{same} of {count} pages are those of the node that keeps all, {by_digest} by their digests",
            holds=same == count and by_digest > 0,
        )

    # --- stores that lie ------------------------------------------------------------------------------------

    def refuse_liars(self) -> None:
        """Begin nodes with copies of the archive that lie."""
        other = self.folder / "other"
        with self.node("other-node", place=other) as node:
            with self.publisher(SEGMENT_BYTES * 5 // 4, self.seed + 1, "batch", node) as publisher:
                assert publisher.process.wait() == 0
            _until(lambda: max(metric(node, "sluice_archived_pages")) >= SEGMENT_PAGES)
        names = [path.name for path in self.segments(self.place)]
        first = names[0][:12]
        # The footer of the last block refuses another root hash; what does not fit has its object named.
        tree = "root_hash_of_all_block_hashes_tree"
        liars: list[tuple[str, Callable[[Path], None], tuple[str, ...]]] = [
            ("swaps two segments", self._swap, (names[0],)),
            ("flips a byte of an index", self._flip_index, (names[1], tree)),
            ("drops a segment", lambda place: self.segments(place)[1].unlink(), ("the one of page 64",)),
            ("serves another chain's segment", self._another_chain, (names[1], tree, "block 0: ")),
        ]
        for what, lie, words in liars:
            with self._copy() as place:
                lie(place)
                said = self._refusal(place)
            holds = any(word in said for word in words)
            self.verdicts.add(f"a store that {what} is refused", said, holds=holds)
        with self._copy() as place:
            self._flip_page(place)
            said = self._read_refusal(place) if self.stream is None else self._refusal(place)
        self.verdicts.add("a store that flips a byte of a page is refused", said, holds=first in said)
        shutil.rmtree(other)
        shutil.rmtree(self.folder / "other-node")

    @staticmethod
    def segments(place: Path) -> list[Path]:
        """Return the segments of an archive, in order."""
        return sorted((place / "segments").glob("*.seg"))

    @contextlib.contextmanager
    def _copy(self) -> Iterator[Path]:
        """Yield a copy of the archive, whose objects are links."""
        place = self.folder / "lying"
        shutil.copytree(self.place, place, copy_function=os.link)
        try:
            yield place
        finally:
            shutil.rmtree(place)
            shutil.rmtree(self.folder / "believer", ignore_errors=True)

    def _refusal(self, place: Path) -> str:
        """Return what a new node says that does not begin with an archive."""
        (self.folder / "believer.log").unlink(missing_ok=True)
        try:
            with self.node("believer", place=place):
                return "nothing: it was believed"
        except NodeNotStarted as refused:
            return refused.last_words.rpartition("sluice: ")[2]

    def _read_refusal(self, place: Path) -> str:
        """Return what a new node says when its readers come to a page with other bytes."""
        with (
            self.node("believer", place=place) as node,
            BlockingStreamClient(*node.tcp, timeout_seconds=WAIT_SECONDS) as client,
        ):
            client.start(0)
            try:
                for entry in client.entries():
                    if entry.number > _ENTRIES_OF_A_SEGMENT_MAX:
                        return "nothing: the page was served"
            except (DatastreamError, OSError):
                return "; ".join(one["text"] for one in json.loads(node.get("/status.json"))["findings"])
        return "nothing: the stream ended"

    def _swap(self, place: Path) -> None:
        first, second = self.segments(place)[:2]
        first.rename(place / "kept")
        second.rename(first)
        (place / "kept").rename(second)

    def _changed(self, path: Path, at: int) -> None:
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.unlink()  # the archive has it, too
        path.write_bytes(data)

    def _flip_index(self, place: Path) -> None:
        path = self.segments(place)[1]
        self._changed(path, path.stat().st_size - 200)

    def _flip_page(self, place: Path) -> None:
        path = self.segments(place)[0]
        self._changed(path, path.stat().st_size // 3)

    def _another_chain(self, place: Path) -> None:
        self.segments(place)[0].unlink()
        theirs = self.segments(self.folder / "other")[0]
        shutil.copy(theirs, place / "segments" / theirs.name)


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"not within {WAIT_SECONDS:.0f} s"
        time.sleep(0.1)


def main() -> int:
    """Run what the command line asks for; return the exit status."""
    roles: dict[str, Callable[..., None]] = {"publish": publish, "read": read, "subscribe": subscribe}
    if sys.argv[1:2] and sys.argv[1] in roles:
        roles[sys.argv[1]](*sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__.splitlines()[0])
    size = Size(1, 1 << 50).read
    parser.add_argument("folder", type=Path, help="an empty folder, with room for the chain twice")
    parser.add_argument("--bytes", type=size, default=size("640MiB"), help="of the chain (640MiB)")
    parser.add_argument("--window", type=size, default=size("128MiB"), help="archive.local_bytes (128MiB)")
    parser.add_argument("--cache", type=size, default=size("64MiB"), help="archive.cache_bytes (64MiB)")
    parser.add_argument("--seed", type=int, default=1, help="decides the content of the blocks")
    parser.add_argument("--stream", type=Path, help="a network's stream file: the chain is this, repeated")
    parser.add_argument("--group-by", default=RULE, help=f"which of its entries make a block ({RULE})")
    parser.add_argument("--published", action="store_true", help="go on with the chain of an earlier run")
    options = parser.parse_args()
    chain = LongChain(
        options.folder,
        options.bytes,
        options.window,
        options.cache,
        options.seed,
        options.stream,
        options.group_by,
    )
    return 0 if chain.run(is_published=options.published) else 1


if __name__ == "__main__":
    sys.exit(main())
