"""A node that begins with an archive by reading and verifying all of it."""

from __future__ import annotations

import hashlib
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sluice.datastream import DataStreamer
from sluice.gateway.archive.beginning import BeginningRules, Trust, begin_from_archive
from sluice.gateway.archive.errors import ArchiveUnavailable
from sluice.gateway.archive.new_stream import NewStream
from sluice.gateway.archive.objects import StoreOptions, open_store
from sluice.gateway.archive.reader import ArchiveReader
from sluice.gateway.archive.restore import open_streams
from sluice.gateway.archive.segment import SegmentObject
from sluice.gateway.archive.segment_check import read_segment_index, segment_names
from sluice.gateway.blocks.errors import LayoutError
from sluice.gateway.blocks.proofs import ProofVerifier
from sluice.gateway.blocks.trusted_keys import TrustedKeys
from sluice.gateway.blocks.verification import BlockVerifier
from sluice.gateway.errors import Fatal, GatewayError, StartAbandoned
from sluice.gateway.store.block_store import BlockStore
from sluice.gateway.store.page_blocks import PageBlocks
from sluice.gateway.store.trust_store import kept_ledger
from tests.gateway.archive import test_beginning, test_restore
from tests.gateway.archive.chains import ARCHIVED_PAGES, BLOCKS, archive, fill
from tests.gateway.archive.native_chains import archive_native
from tests.gateway.archive.test_beginning import change, nothing, page_of, segments
from tests.gateway.cluster.test_peer_follower import FAST, peers, until_block
from tests.nodes import ledger_key, running_node

MIB = 1 << 20
FIRST = 7
KEYS = (ledger_key(),)


@pytest.fixture(scope="module")
def made(filled: Path, archived: Path, native: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data folders and archives: a chain from 0, one from FIRST, and native ones."""
    folder = tmp_path_factory.mktemp("made")
    shutil.copytree(filled, folder / "from-0")
    shutil.copytree(archived, folder / "from-0-archive")
    fill(folder / "from-7", FIRST)
    archive(folder / "from-7", folder / "from-7-archive")
    shutil.copytree(native / "node", folder / "native")
    shutil.copytree(native / "archive", folder / "native-archive")
    archive_native(folder / "other", folder / "other-archive", salt=1)
    shutil.rmtree(folder / "other")
    return folder


@pytest.fixture
def native_place(made: Path, tmp_path: Path) -> Path:
    """A copy of a native archive."""
    shutil.copytree(made / "native-archive", tmp_path / "archive")
    return tmp_path / "archive"


def rules(
    trust: Trust = "full", keys: tuple[str, ...] = KEYS, go_on: Callable[[], None] = lambda: None
) -> BeginningRules:
    trusted = TrustedKeys.parse(keys)
    return BeginningRules(
        1,
        None,
        trust,
        is_signed=True,
        verifier=lambda known: BlockVerifier(ProofVerifier(trusted, "full", known)),
        known_ledger=lambda store: kept_ledger(store.data_dir),
        go_on=go_on,
    )


def begin(place: Path, new: Path, how: BeginningRules | None = None) -> bool:
    return begin_from_archive(new, f"file://{place}", StoreOptions(retry_seconds=0.1), how or rules())


def digest_of(path: Path, end: int | None = None) -> str:
    digest = hashlib.sha256()
    with DataStreamer.open(path, read_only=True) as streamer:
        for entry in streamer.read_entries(0, end):
            digest.update(entry.type.to_bytes(4, "big") + entry.data)
    return digest.hexdigest()


# --- archives that are whole --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings", "last"),
    [
        pytest.param("from-0", {"archive_trust": "full"}, ARCHIVED_PAGES - 1, marks=pytest.mark.slow),
        ("from-7", {}, FIRST + ARCHIVED_PAGES - 1),
        pytest.param("native", {}, 63, marks=pytest.mark.slow),
    ],
)
async def test_a_node_that_keeps_no_more_than_a_window(
    made: Path, tmp_path: Path, name: str, settings: dict[str, str], last: int
) -> None:
    new = tmp_path / "new"
    url = f"file://{made}/{name}-archive"
    for _ in range(2):  # it begins, and starts again
        async with running_node(new, archive_url=url, archive_upload="never", **settings) as node:
            store = node.store
            assert store.last_number == last
            for streamer in store.streamers:
                remote = streamer.remote
                assert streamer.allocated_bytes < 70 * MIB
                assert all(remote.digest(page) for page in range(1, remote.end))
                digest = hashlib.sha256()
                for entry in streamer.read_entries(0):
                    digest.update(entry.type.to_bytes(4, "big") + entry.data)
                end = streamer.committed.total_entries
                assert digest.hexdigest() == digest_of(made / name / streamer.path.name, end)
            assert store.read_block(last - 60) is not None
    assert not list(new.glob("beginning"))


@pytest.mark.slow
async def test_a_native_node_goes_on_with_its_peers(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "native", tmp_path / "old")
    url = f"file://{made}/native-archive"
    async with running_node(tmp_path / "old", archive_url=url) as node:
        follows = FAST | {"peers": peers(node.grpc_address), "role": "standby", "archive_url": url}
        async with running_node(tmp_path / "new", **follows) as second:
            await until_block(second, 69)
            assert second.following.problem is None
    for name in ("datastream.bin", "blocks.bin"):
        with DataStreamer.open(tmp_path / "new" / name, read_only=True) as streamer:
            first = streamer.first_on_last_page
            kept = [entry.data for entry in streamer.read_entries(first)]
        with DataStreamer.open(made / "native" / name, read_only=True) as streamer:
            assert [entry.data for entry in streamer.read_entries(first)] == kept


def test_a_native_pair_that_ends_at_different_places(native_place: Path, tmp_path: Path) -> None:
    segments(native_place)[1].unlink()
    (native_place / "headers/000000000128.zst").unlink()
    assert begin(native_place, tmp_path / "new")
    store = BlockStore.open(tmp_path / "new")
    assert (store.last_number, [streamer.remote.end for streamer in store.streamers]) == (31, [0, 0])
    store.close()


def test_a_native_archive_without_blocks_yet(native_place: Path, tmp_path: Path) -> None:
    shutil.rmtree(native_place / "blocks")
    assert not begin(native_place, tmp_path / "new")
    assert not any((tmp_path / "new").iterdir())


def test_no_block_is_whole_yet(place: Path, tmp_path: Path) -> None:
    shutil.rmtree(place / "segments")
    shutil.rmtree(place / "headers")
    for trust in ("proof", "full"):
        assert not begin(place, tmp_path / "new", rules(trust))
        assert not any((tmp_path / "new").iterdir())


# --- archives that lie --------------------------------------------------------------------------------------


def no_padding(place: Path) -> None:
    """Fill the padding of a page, whose entries end before its end."""
    path = segments(place)[0]
    page = bytearray(page_of(path, 0))
    end = page.rindex(bytes([2])) if page[-1] else len(page.rstrip(b"\0"))
    assert end < MIB - 10
    page[-5] = 1
    change(path, nothing, {0: bytes(page)})


def fewer_blocks(place: Path) -> None:
    def index_of(segment: SegmentObject) -> None:
        segment.index.blocks.pop()

    change(segments(place)[2], index_of)


def more_blocks(place: Path) -> None:
    def index_of(segment: SegmentObject) -> None:
        last = segment.index.blocks[-1]
        segment.index.blocks.add(number=last.number + 1, entry=last.entry + 1, root_hash=bytes(48))

    change(segments(place)[2], index_of)


def another_beginning(place: Path) -> None:
    test_beginning.describe_otherwise(place, '"first_block": 0', '"first_block": 1')


def no_blocks_at_all(place: Path) -> None:
    test_beginning.describe_otherwise(place, '"first_block": 0', '"first_block": null')


def no_number(place: Path) -> None:
    test_beginning.describe_otherwise(place, '"first_block": 0', '"first_block": "0"')


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        pytest.param(test_beginning.drop_first, "the one of page 0", marks=pytest.mark.slow),
        pytest.param(test_beginning.swap, "format 1, first page 64, expected 1, 0", marks=pytest.mark.slow),
        (test_beginning.two_names, "two nodes disagree"),
        pytest.param(test_beginning.another_root, "block 3 on the pages", marks=pytest.mark.slow),
        pytest.param(test_beginning.another_entry, "page 64", marks=pytest.mark.slow),
        pytest.param(test_beginning.cut_short, "its trailer", marks=pytest.mark.slow),
        pytest.param(test_beginning.another_system, "header page", marks=pytest.mark.slow),
        (test_beginning.another_layout, "stream_layout: got 1, expected 2"),
        pytest.param(test_restore.flip_byte, "CRC32C", marks=pytest.mark.slow),
        (test_restore.other_hash, "SHA-256 of the pages"),
        pytest.param(test_restore.other_bookmark_in_index, "bookmark 3 on the pages", marks=pytest.mark.slow),
        (test_restore.other_block, "block 69: got block 69: root hash"),
        (no_padding, "padding"),
        pytest.param(
            fewer_blocks,
            "block 63 on the pages: got .*ArchivedBlock.*, expected none",
            marks=pytest.mark.slow,
        ),
        pytest.param(more_blocks, "block 64 on the pages: got none", marks=pytest.mark.slow),
        pytest.param(
            another_beginning,
            "block 0: block number: got 0, expected 1|first block that ends here",
            marks=pytest.mark.slow,
        ),
        pytest.param(no_blocks_at_all, "a stream without blocks", marks=pytest.mark.slow),
        (no_number, "first_block: got '0', expected null, or 0 to"),
    ],
)
def test_an_archive_that_lies(place: Path, tmp_path: Path, lie: Callable[[Path], None], words: str) -> None:
    lie(place)
    with pytest.raises(GatewayError, match=words) as refused:
        begin(place, tmp_path / "new")
    assert str(place) in str(refused.value)
    assert not any((tmp_path / "new").iterdir())


@pytest.mark.parametrize("lie", [fewer_blocks, more_blocks, another_beginning])
def test_lies_of_indexes_are_found_by_one_proof_too(
    place: Path, tmp_path: Path, lie: Callable[[Path], None]
) -> None:
    lie(place)
    with pytest.raises(GatewayError):
        begin(place, tmp_path / "new", rules("proof"))
    assert not any((tmp_path / "new").iterdir())


@pytest.mark.parametrize("half", ["segments", pytest.param("blocks/segments", marks=pytest.mark.slow)])
def test_a_native_pair_of_two_chains(made: Path, native_place: Path, tmp_path: Path, half: str) -> None:
    headers = half.replace("segments", "headers")
    for part in (half, headers):
        shutil.rmtree(native_place / part)
        shutil.copytree(made / "other-archive" / part, native_place / part)
    with pytest.raises(GatewayError, match=r"block 0: .*root hash"):
        begin(native_place, tmp_path / "new")
    assert not any((tmp_path / "new").iterdir())


def test_a_network_s_entry_that_is_another_one(native_place: Path, tmp_path: Path) -> None:
    page = bytearray(page_of(segments(native_place)[1], 5))
    page[500_000] ^= 1
    change(segments(native_place)[1], nothing, {5: bytes(page)})
    with pytest.raises(GatewayError, match=r"block 34: .*root hash"):
        begin(native_place, tmp_path / "new")


def test_two_descriptions_that_differ(native_place: Path, tmp_path: Path) -> None:
    test_beginning.describe_otherwise(native_place / "blocks", '"system_id": 137', '"system_id": 138')
    with pytest.raises(GatewayError, match="the system id, version and layout of"):
        begin(native_place, tmp_path / "new")


def test_proofs_under_another_key(made: Path, tmp_path: Path) -> None:
    """Everything else of the archive is right."""
    other = (ledger_key(Ed25519PrivateKey.generate()),)
    for name in ("from-7", "native"):
        with pytest.raises(GatewayError, match=r"block \d+: Ed25519.* by the keys of this node"):
            begin(made / f"{name}-archive", tmp_path / "new", rules(keys=other))
        assert not any((tmp_path / "new").iterdir())


def test_keys_that_cannot_check_the_proofs(made: Path, tmp_path: Path) -> None:
    """A block 0 that publishes nothing gives no key either."""
    with pytest.raises(GatewayError, match="ledger"):
        begin(made / "from-7-archive", tmp_path / "new", rules(keys=()))
    with pytest.raises(GatewayError, match="ledger keys: "):
        begin(made / "from-0-archive", tmp_path / "new", rules(keys=()))
    assert not any((tmp_path / "new").iterdir())


def test_the_layout_that_a_node_must_have(made: Path, tmp_path: Path) -> None:
    how = BeginningRules(
        1, "block", "full", is_signed=True, verifier=rules().verifier, known_ledger=lambda store: None
    )
    with pytest.raises(Fatal, match=r"stream_layout: got native, expected block, the setting stream\.layout"):
        begin(made / "native-archive", tmp_path / "new", how)


# --- interruptions ------------------------------------------------------------------------------------------


class Stop:
    """Abandons a start after some calls."""

    def __init__(self, calls: int) -> None:
        self.calls = calls

    def __call__(self) -> None:
        self.calls -= 1
        if self.calls < 0:
            raise StartAbandoned


@pytest.mark.parametrize(
    "name",
    [
        "from-0",
        pytest.param("from-7", marks=pytest.mark.slow),
        pytest.param("native", marks=pytest.mark.slow),
    ],
)
def test_an_abandoned_start_goes_on(
    made: Path, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    source, new = made / f"{name}-archive", tmp_path / "new"
    for calls in (20, 170, 60):
        with pytest.raises(StartAbandoned):
            begin(source, new, rules(go_on=Stop(calls)))
        assert [path.name for path in new.iterdir()] == ["beginning"]
    with caplog.at_level(logging.INFO):
        assert begin(source, new)
    # On a slow machine, lines of progress follow.
    lines = [record for record in caplog.records if record.getMessage() == "verifying the archive"]
    line, done = lines[0], [line.__dict__["sluice_fields"]["done"] for line in lines]
    assert done == sorted(set(done))
    # Of the native pair, one stream has a single segment, and nothing is kept before it is whole.
    assert (line.__dict__["sluice_fields"]["done"] >= 64) == (name != "native")
    store = BlockStore.open(new)
    whole = BlockStore.open(made / name)
    assert store.last_number is not None
    assert store.root_hash_at(store.last_number) == whole.root_hash_at(store.last_number)
    store.close()
    whole.close()


def later_entries(path: Path, pages: range, by: int) -> None:
    """Give the entries on pages of a segment later numbers; its index and its name fit them."""
    changed = {}
    for place in pages:
        page = bytearray(page_of(path, place))
        position = 0
        while page[position]:
            size, number = (
                int.from_bytes(page[position + at : position + at + n]) for at, n in ((1, 4), (9, 8))
            )
            page[position + 9 : position + 17] = (number + by).to_bytes(8)
            position += size
        changed[place] = bytes(page)

    def index_of(segment: SegmentObject) -> None:
        for page in segment.index.pages:
            page.first_entry += by
        for mark in segment.index.bookmarks:
            mark.entry += by
        for block in list(segment.index.blocks)[1:]:
            block.entry += by

    change(path, index_of, changed)


def test_an_index_that_lies_when_a_start_goes_on(place: Path, tmp_path: Path) -> None:
    """Its segment is recorded, and only its pages are compared again; no entry may be left out behind it."""

    def stop_once_it_is_recorded() -> None:
        if (tmp_path / "new/beginning/chain.json").exists():
            raise StartAbandoned

    with pytest.raises(StartAbandoned):
        begin(place, tmp_path / "new", rules(go_on=stop_once_it_is_recorded))
    first, second, third = segments(place)
    for path in (second, third):
        later_entries(path, range(64), 6)
    change(first, lambda segment: setattr(segment.index.pages[63], "entry_count", 12))
    (place / "headers/000000000192.zst").unlink()
    with pytest.raises(GatewayError, match="first entry: got 392, expected 386"):
        begin(place, tmp_path / "new", rules())


def test_the_beginning_of_a_block_is_not_looked_for_in_all_of_an_archive(made: Path, tmp_path: Path) -> None:
    source = made / "from-0-archive"
    assert begin(source, tmp_path / "new", rules("proof"))
    store = BlockStore.open(tmp_path / "new")
    reader = ArchiveReader(open_store(f"file://{source}"), store.streamer)
    assert PageBlocks(store, block_pages_max=1).of_page(40) is not None
    with pytest.raises(LayoutError, match="no beginning of a block from there to page 39"):
        PageBlocks(store, block_pages_max=0).of_page(40)
    reader.close()
    store.close()


def test_segments_of_many_blocks_do_not_wait_to_be_recorded(place: Path, tmp_path: Path) -> None:
    (stream,) = open_streams(f"file://{place}")
    new = NewStream(tmp_path, stream)
    for name in segment_names(stream.store):
        new.add(read_segment_index(stream.store, name))
    assert not new.settle(1_152, 64)
    assert not new.settle(1_152, 64, 400)
    assert new.settle(1_152, 64, 380)
    assert new.recorded_count == 2
    new.close()


def test_another_archive_is_begun_from_the_start(made: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    with pytest.raises(StartAbandoned):
        begin(made / "from-0-archive", new, rules(go_on=Stop(175)))
    assert begin(made / "from-7-archive", new)
    store = BlockStore.open(new)
    assert store.first_number == FIRST
    store.close()


def test_a_store_that_goes_away(place: Path, tmp_path: Path) -> None:
    new, last = tmp_path / "new", segments(place)[2]

    def take_away() -> None:
        (tmp_path / "kept").exists() or last.rename(tmp_path / "kept")

    with pytest.raises(ArchiveUnavailable, match="no such object"):
        begin(place, new, rules(go_on=take_away))
    (tmp_path / "kept").rename(last)
    assert begin(place, new)


@pytest.mark.parametrize(
    "count", [pytest.param(0, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow), 3]
)
def test_killed_while_the_files_are_moved(made: Path, tmp_path: Path, count: int) -> None:
    new, source = tmp_path / "new", made / "from-0-archive"
    assert begin(source, new)
    work = new / "beginning"
    work.mkdir()
    (work / "proved").touch()
    for name in ("chain.json", "datastream.db", "datastream.bin")[count:]:
        (new / name).rename(work / name)
    assert begin(source, new)
    assert sorted(path.name for path in new.iterdir()) == ["chain.json", "datastream.bin", "datastream.db"]
    store = BlockStore.open(new)
    assert store.last_number == ARCHIVED_PAGES - 1
    store.close()


def test_two_at_once(place: Path, tmp_path: Path) -> None:
    def again() -> None:
        with pytest.raises(Fatal, match="only one node"):
            begin(place, tmp_path / "new")

    assert begin(place, tmp_path / "new", rules(go_on=again))


class Kill:
    """Kills its own process some time after a number of calls."""

    def __init__(self, calls: int, seconds: float) -> None:
        self.calls = calls
        self.seconds = seconds

    def __call__(self) -> None:
        self.calls -= 1
        if self.calls == 0:
            threading.Timer(self.seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()


RUN = (
    "import sys; from pathlib import Path; "
    "from tests.gateway.archive.test_full_trust import Kill, begin, rules; "
    "begin(Path(sys.argv[1]), Path(sys.argv[2]), rules(go_on=Kill(int(sys.argv[3]), float(sys.argv[4]))))"
)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["from-0", "native"])
def test_killed_at_any_moment(made: Path, tmp_path: Path, name: str) -> None:
    chance, new = random.Random(38), tmp_path / "new"
    line = [sys.executable, "-c", RUN, str(made / f"{name}-archive"), str(new)]
    killed = 0
    while not (new / "datastream.bin").exists() or (new / "beginning").exists():
        calls = 0 if killed == 6 else chance.randrange(1, 170)
        done = subprocess.run([*line, str(calls), str(chance.uniform(0.0, 0.02))], timeout=120, check=False)
        assert done.returncode in (0, -signal.SIGKILL)
        killed += done.returncode != 0
    assert killed
    assert begin(made / f"{name}-archive", new) is False
    store = BlockStore.open(new)
    assert store.last_number == {"from-0": ARCHIVED_PAGES - 1, "native": 63}[name]
    assert store.last_number < BLOCKS
    store.close()
