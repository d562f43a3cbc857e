"""The uploader: side by side with others, against archives of others, and a store that fails or lies."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sluice.datastream import DataStreamer
from sluice.datastream.errors import BookmarksUnavailable, EntriesArchived
from sluice.datastream.file.remote_pages import RemotePages
from sluice.gateway.api.archive_pb2 import SegmentIndex
from sluice.gateway.archive.errors import ArchiveDamaged, ArchiveUnavailable
from sluice.gateway.archive.objects import ArchiveStore, open_store
from sluice.gateway.archive.segment import (
    StreamDescription,
    header_name,
    segment_name,
    segment_of,
    segment_prefix,
)
from sluice.gateway.archive.uploader import RESERVE_BYTES, Uploader, UploaderPlan, verify_segment
from tests.gateway.archive.stores import FaultProxy, as_s3_user, s3_server, s3_store

MIB = 1 << 20
ENTRIES = 135
"""One on each page: two segments, and seven pages."""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("filled")
    fill(folder / "stream.bin", 0)
    return folder


def fill(path: Path, salt: int) -> None:
    with DataStreamer.open(path, initial_pages=ENTRIES + 1) as streamer:
        for number in range(ENTRIES):
            streamer.start_atomic_op()
            streamer.add_stream_entry(1, bytes([number + salt]) * 700_000)
            streamer.commit_atomic_op()


@pytest.fixture
def streamer(filled: Path, tmp_path: Path) -> Iterator[DataStreamer]:
    """A copy of that stream, open."""
    with copy_of(filled, tmp_path / "a") as opened:
        yield opened


def copy_of(filled: Path, folder: Path) -> DataStreamer:
    shutil.copytree(filled, folder)
    return DataStreamer.open(folder / "stream.bin")


@pytest.fixture
def store(tmp_path: Path) -> ArchiveStore:
    return open_store(f"file://{tmp_path}/archive")


def plan_of(streamer: DataStreamer, *, uploads: bool = True, local_bytes: int = 0) -> UploaderPlan:
    return UploaderPlan(
        lambda: StreamDescription.of(streamer.header), uploads=lambda: uploads, local_bytes=local_bytes
    )


def run(uploader: Uploader) -> None:
    while uploader.step():
        pass


def children() -> Iterator[int]:
    """Yield the processes of this one."""
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            yield from map(int, (task / "children").read_text().split())


def names(store: ArchiveStore) -> list[str]:
    return list(store.names("segments/"))


def place_of(store: ArchiveStore, name: str) -> Path:
    return Path(store.address(name).removeprefix("file://"))


# --- side by side -------------------------------------------------------------------------------------------


def test_two_uploaders_of_one_chain_write_the_same_names(filled: Path, tmp_path: Path) -> None:
    with as_s3_user(), s3_server() as port, contextlib.ExitStack() as stack:
        uploaders = []
        for name in "ab":
            streamer = stack.enter_context(copy_of(filled, tmp_path / name))
            uploaders.append(Uploader(streamer, s3_store(port), plan_of(streamer)))
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(run, uploaders))
        store = s3_store(port)
        assert [name[9:21] for name in names(store)] == ["000000000000", "000000000064"]
        assert sum(one.uploaded_count for one in uploaders) == 2
        assert all(one.behind_pages == 6 for one in uploaders)
        assert list(store.names("headers/")) == [header_name(64), header_name(128)]


def test_one_that_does_not_upload_waits_for_others(
    filled: Path, streamer: DataStreamer, tmp_path: Path, store: ArchiveStore
) -> None:
    waiting = Uploader(streamer, store, plan_of(streamer, uploads=False, local_bytes=64 * MIB))
    with pytest.raises(ArchiveUnavailable, match="the node that uploads makes it"):
        waiting.step()
    assert not names(store)
    with copy_of(filled, tmp_path / "b") as other:
        assert Uploader(other, store, plan_of(other)).step()
    run(waiting)
    assert (waiting.uploaded_count, streamer.remote.archived_pages, streamer.remote.end) == (0, 64, 64)
    assert len(names(store)) == 1


# --- other chains -------------------------------------------------------------------------------------------


def test_the_archive_of_another_stream_is_left_alone(
    streamer: DataStreamer, tmp_path: Path, store: ArchiveStore
) -> None:
    store.put_new("stream.json", StreamDescription.of(streamer.header, 0, 2).encode())
    uploader = Uploader(streamer, store, plan_of(streamer))
    with pytest.raises(ArchiveDamaged, match="this node's stream"):
        uploader.step()
    assert list(store.names("")) == ["stream.json"]


@pytest.mark.parametrize("uploads", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_two_nodes_that_disagree(
    filled: Path, streamer: DataStreamer, tmp_path: Path, store: ArchiveStore, uploads: bool
) -> None:
    (tmp_path / "b").mkdir()
    fill(tmp_path / "b" / "stream.bin", salt=1)
    with DataStreamer.open(tmp_path / "b" / "stream.bin") as other:
        assert Uploader(other, store, plan_of(other)).step()
    before = names(store)
    uploader = Uploader(streamer, store, plan_of(streamer, uploads=uploads, local_bytes=64 * MIB))
    for _ in range(2):
        with pytest.raises(ArchiveDamaged, match="two nodes disagree"):
            uploader.step()
    assert uploader.disagreement is not None
    assert before[0] in uploader.disagreement
    assert (names(store), streamer.remote.archived_pages, streamer.remote.end) == (before, 0, 0)
    place_of(store, before[0]).unlink()  # somebody has looked
    if uploads:
        run(uploader)
        assert uploader.disagreement is None
        assert streamer.remote.end > 1


def test_a_second_name_that_comes_while_pages_are_given_up(
    streamer: DataStreamer, store: ArchiveStore
) -> None:
    uploader = Uploader(streamer, store, plan_of(streamer, local_bytes=64 * MIB))
    assert uploader.step()
    before = streamer.remote.end
    store.put_new(segment_name(64, bytes(32)), b"of another node")
    with pytest.raises(ArchiveDamaged, match="two nodes disagree"):
        uploader.step()
    assert streamer.remote.end == before
    assert len(names(store)) == 2  # ours was not written beside it


def test_an_archive_without_what_was_archived_gets_nothing(
    streamer: DataStreamer, store: ArchiveStore, tmp_path: Path
) -> None:
    """Nobody could restore an archive that begins in the midst."""
    assert Uploader(streamer, store, plan_of(streamer)).step()
    other = open_store(f"file://{tmp_path}/other")
    with pytest.raises(ArchiveDamaged, match=r"is archive.url that of another archive"):
        Uploader(streamer, other, plan_of(streamer)).step()
    assert not names(other)
    shutil.copytree(tmp_path / "archive" / "segments", tmp_path / "other" / "segments")
    run(Uploader(streamer, other, plan_of(streamer)))
    assert len(names(other)) == 2


# --- stores that lie ----------------------------------------------------------------------------------------


def rewritten(change: Callable[[bytes], bytes]) -> Callable[[ArchiveStore], None]:
    def harm(store: ArchiveStore) -> None:
        path = place_of(store, names(store)[0])
        path.write_bytes(change(path.read_bytes()))

    return harm


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(rewritten(lambda data: data[:-1]), marks=pytest.mark.slow),
        pytest.param(rewritten(lambda data: b""), marks=pytest.mark.slow),
        rewritten(lambda data: data[:50] + bytes([data[50] ^ 1]) + data[51:]),
    ],
)
def test_what_is_there_under_our_name_is_read_before_it_counts(
    filled: Path,
    streamer: DataStreamer,
    tmp_path: Path,
    store: ArchiveStore,
    harm: Callable[[ArchiveStore], None],
) -> None:
    with copy_of(filled, tmp_path / "b") as other:
        assert Uploader(other, store, plan_of(other)).step()
    harm(store)
    uploader = Uploader(streamer, store, plan_of(streamer, local_bytes=64 * MIB))
    with pytest.raises(ArchiveDamaged):
        uploader.step()
    assert (streamer.remote.archived_pages, streamer.remote.end) == (0, 0)


def test_a_segment_that_is_read_back_otherwise(streamer: DataStreamer) -> None:
    with as_s3_user(), s3_server() as port, FaultProxy(port) as proxy:
        store = s3_store(proxy.port)
        uploader = Uploader(streamer, store, plan_of(streamer, local_bytes=64 * MIB))
        proxy.fault, proxy.only = "wrong", b"GET /chain/prefix/segments/"
        with pytest.raises(ArchiveDamaged, match="other bytes, expected those that were written"):
            uploader.step()
        assert (streamer.remote.archived_pages, streamer.remote.end) == (0, 0)
        proxy.fault = None
        run(uploader)
        assert streamer.remote.archived_pages == 128
        assert uploader.uploaded_count == 1  # the first one was there by then


def test_an_object_that_vanishes(streamer: DataStreamer, store: ArchiveStore) -> None:
    uploader = Uploader(streamer, store, plan_of(streamer))
    assert uploader.step()
    (name,) = names(store)
    found = segment_of(name)
    assert found is not None
    place_of(store, name).unlink()
    with tempfile.TemporaryFile() as file:
        segment = uploader._build(0, file)
    with pytest.raises(ArchiveUnavailable, match="no such object"):
        verify_segment(store, segment, None)


def say_less_data(index: SegmentIndex) -> None:
    index.pages[5].data_end -= 1


def say_later_entries(index: SegmentIndex) -> None:
    for page in index.pages:
        page.first_entry += 1


def say_a_bookmark(index: SegmentIndex) -> None:
    index.bookmarks.add(bookmark=b"x", entry=3)


@pytest.mark.parametrize("lie", [say_less_data, say_later_entries, say_a_bookmark])
def test_right_pages_under_an_index_that_lies_are_not_given_up(
    streamer: DataStreamer, store: ArchiveStore, lie: Callable[[SegmentIndex], None]
) -> None:
    """Whoever owns the store puts them there first, and the node would serve its pages by that index."""
    uploader = Uploader(streamer, store, plan_of(streamer, local_bytes=64 * MIB))
    with tempfile.TemporaryFile() as file:
        segment = uploader._build(0, file)
        file.seek(0)
        whole = file.read()
    name = segment_name(*segment.name)
    lie(segment.index)
    frame = segment.index.SerializeToString()
    frame = struct.pack("<II", 0x184D2A50, len(frame)) + frame
    trailer = struct.pack("<IIQ8s", 0x184D2A50, 16, len(frame), b"sluice-1")
    store.put_new(name, whole[: segment.frame_places[-1]] + frame + trailer)
    with pytest.raises(ArchiveDamaged, match="index: got another one, expected that of these pages"):
        uploader.step()
    assert (streamer.remote.archived_pages, streamer.remote.end) == (0, 0)


def test_a_store_that_overwrites_gets_no_segment(streamer: DataStreamer) -> None:
    with as_s3_user(), s3_server() as port, FaultProxy(port) as proxy:
        proxy.fault = "overwrites"
        uploader = Uploader(streamer, s3_store(proxy.port), plan_of(streamer))
        for _ in range(2):
            with pytest.raises(ArchiveDamaged, match=r"expected conditional writes \(If-None-Match"):
                uploader.step()
        assert not names(s3_store(port))
        assert (
            StreamDescription.decode(s3_store(port).get("stream.json") or b"", "")
            == uploader._plan.description()
        )
        proxy.fault = None
        run(uploader)
        assert streamer.remote.archived_pages == 128


@pytest.mark.parametrize(
    "fault",
    ["503", *(pytest.param(fault, marks=pytest.mark.slow) for fault in ("403", "cut", "refused", "lost"))],
)
def test_a_store_that_is_away_then_back(streamer: DataStreamer, fault: str) -> None:
    with as_s3_user(), s3_server() as port, FaultProxy(port) as proxy:
        uploader = Uploader(streamer, s3_store(proxy.port), plan_of(streamer))
        assert uploader.step()
        proxy.fault = fault
        for _ in range(2):
            with pytest.raises(ArchiveUnavailable):
                uploader.step()
        assert streamer.remote.archived_pages == 64
        proxy.fault = None
        run(uploader)
        assert streamer.remote.archived_pages == 128
        store = s3_store(port)
        assert len(names(store)) == 2
        for name in names(store):
            found = segment_of(name)
            assert found is not None
            with tempfile.TemporaryFile() as file:
                verify_segment(store, uploader._build(found.first_page, file))


@pytest.mark.parametrize("is_building", [False, True])
def test_the_process_that_builds_is_killed(
    streamer: DataStreamer, store: ArchiveStore, is_building: bool
) -> None:
    uploader = Uploader(streamer, store, plan_of(streamer))
    before = set(children())
    assert uploader.step()
    (process,) = set(children()) - before
    if is_building:
        os.kill(process, signal.SIGSTOP)
        threading.Timer(0.3, os.kill, (process, signal.SIGKILL)).start()
    else:
        os.kill(process, signal.SIGKILL)
    with pytest.raises(OSError, match="segment of page 64 cannot be built: the process of it"):
        uploader.step()
    run(uploader)
    assert streamer.remote.archived_pages == 128


# --- what is noted, and what is given up --------------------------------------------------------------------


def test_no_page_is_given_up_before_it_is_noted(
    streamer: DataStreamer, store: ArchiveStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploader = Uploader(streamer, store, plan_of(streamer, local_bytes=64 * MIB))
    expected = [entry.data[:1] for entry in streamer.read_entries(0)]

    def refuse(segment: object) -> None:
        raise BookmarksUnavailable(tmp_path, "the disk refuses")

    with monkeypatch.context() as patch:
        patch.setattr(streamer, "note_archived", refuse)
        with pytest.raises(BookmarksUnavailable):
            uploader.step()
    assert len(names(store)) == 1  # it is there, but not noted
    assert (streamer.remote.archived_pages, streamer.remote.end) == (0, 0)
    assert [entry.data[:1] for entry in streamer.read_entries(0)] == expected
    (tmp_path / "archive").rename(tmp_path / "away")
    assert uploader.step()  # the store is not asked again
    assert (streamer.remote.archived_pages, streamer.remote.end) == (64, 64)


def test_the_marks_are_on_disk_when_pages_go(
    streamer: DataStreamer, store: ArchiveStore, tmp_path: Path
) -> None:
    uploader = Uploader(streamer, store, plan_of(streamer, local_bytes=64 * MIB))
    size_before = streamer.allocated_bytes
    run(uploader)
    assert (streamer.remote.archived_pages, streamer.remote.end) == (128, 70)
    assert streamer.allocated_bytes < size_before - 66 * MIB
    streamer.close()
    with DataStreamer.open(tmp_path / "a" / "stream.bin") as again:
        assert isinstance(again.remote, RemotePages)
        assert (again.remote.archived_pages, again.remote.end) == (128, 70)
        assert again.committed.total_entries == ENTRIES
        with pytest.raises(EntriesArchived):
            again.truncate_file(100)
        again.truncate_file(130)


@pytest.mark.parametrize("left_bytes", [None, 0, 4096])
def test_a_reserve_that_is_not_whole_is_taken_again(
    streamer: DataStreamer, store: ArchiveStore, left_bytes: int | None
) -> None:
    reserve = streamer.path.with_suffix(".reserve")
    if left_bytes is not None:
        reserve.write_bytes(bytes(left_bytes))
    Uploader(streamer, store, plan_of(streamer))._keep_reserve()  # keeps everything: it needs none
    assert reserve.exists() == (left_bytes is not None)
    Uploader(streamer, store, plan_of(streamer, local_bytes=64 * MIB))._keep_reserve()
    status = reserve.stat()
    assert status.st_size == RESERVE_BYTES <= status.st_blocks * 512


def test_entries_that_may_change_are_not_archived(streamer: DataStreamer, store: ArchiveStore) -> None:
    end = 63
    plan = UploaderPlan(lambda: StreamDescription.of(streamer.header), entries_end=lambda: end)
    uploader = Uploader(streamer, store, plan)
    assert not uploader.step()
    end = 64
    assert uploader.step()
    assert not uploader.step()
    assert len(names(store)) == 1
    assert names(store)[0].startswith(segment_prefix(0))


def test_the_thread_waits_for_the_store_and_ends_when_it_is_told(
    streamer: DataStreamer, store: ArchiveStore, tmp_path: Path
) -> None:
    blocked = tmp_path / "archive" / "segments"
    blocked.write_bytes(b"in the way")
    uploader = Uploader(streamer, store, plan_of(streamer), look_seconds=0.01)
    uploader.start()
    try:
        while uploader.failures_count < 2:
            time.sleep(0.01)
        assert uploader.last_error is not None
        blocked.unlink()
        while streamer.remote.archived_pages < 128 or uploader.last_error is not None:
            time.sleep(0.01)
        assert uploader.failures_count == 0
    finally:
        uploader.close()
    assert not uploader._thread.is_alive()


def test_nobody_waits_for_a_store_that_is_silent_when_the_archive_is_closed(streamer: DataStreamer) -> None:
    with as_s3_user(), socket.create_server(("127.0.0.1", 0)) as silent:
        store = s3_store(silent.getsockname()[1])
        uploader = Uploader(streamer, store, plan_of(streamer))
        uploader.start()
        peer, _ = silent.accept()
        began = time.monotonic()
        uploader.close()
        assert time.monotonic() - began < 2
        with pytest.raises(ArchiveUnavailable, match=r"stream.json: the archive is being closed"):
            store.get("stream.json")
        peer.close()


# --- priority -----------------------------------------------------------------------------------------------


def children_niceness(stop: threading.Event) -> list[int]:
    """Return the last niceness of each child of this process that comes until `stop`."""
    before, seen = set(children()), dict[int, int]()
    while not stop.wait(0.01):
        for child in children():
            with contextlib.suppress(OSError):
                seen[child] = os.getpriority(os.PRIO_PROCESS, child)
    return [niceness for child, niceness in seen.items() if child not in before]


@pytest.mark.parametrize(("local_bytes", "expected"), [(0, [19]), (64 * MIB, [0, 19])])
def test_building_has_low_priority_until_the_disk_would_outgrow_its_window(
    streamer: DataStreamer, store: ArchiveStore, local_bytes: int, expected: list[int]
) -> None:
    ours, stop = os.getpriority(os.PRIO_PROCESS, 0), threading.Event()
    with ThreadPoolExecutor(1) as threads:
        seen = threads.submit(children_niceness, stop)
        run(Uploader(streamer, store, plan_of(streamer, local_bytes=local_bytes)))
        stop.set()
        assert seen.result() == [min(ours + more, 19) for more in expected]
