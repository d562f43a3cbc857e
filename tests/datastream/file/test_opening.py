"""Opening: refusals that change nothing, second openers, and repair of what others left."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from sluice.datastream import errors
from sluice.datastream.errors import BookmarkNotFound
from sluice.datastream.file import opening
from sluice.datastream.file.bookmarks import (
    COVERED_KEY,
    LAST_KEY,
    STREAM_KEY,
    SUMS_OF_KEY,
    TABLE_KEY,
    BookmarkIndex,
)
from sluice.datastream.file.disk import RealDisk
from sluice.datastream.file.fingerprint import FINGERPRINT_SIZE
from sluice.datastream.file.index_database import own_folder, plyvel
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.file.streamfile import StreamFile
from sluice.datastream.layout import file_size_of, page_end, page_start
from sluice.datastream.limits import BOOKMARKS_CHECKED_AT_OPEN_MAX, BOOKMARKS_KEPT_AT_OPEN_MAX, StreamLimits
from tests.datastream.fake_disk import FailingDisk, MemoryDisk
from tests.datastream.streams import (
    bookmark,
    change_database,
    commit,
    entries,
    names,
    operation,
    stored_in,
    u64,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.bin"


def test_a_second_opener_gets_one_clear_error(path: Path) -> None:
    with DataStreamer.open(path) as streamer:
        commit(streamer, (1, b"x"))
        with pytest.raises(
            errors.StreamInUse, match=r"s\.bin: the stream is in use by another program or opener"
        ):
            DataStreamer.open(path)
        commit(streamer, (1, b"y"))
    DataStreamer.open(path).close()


def test_a_refused_file_is_left_alone(path: Path) -> None:
    path.write_bytes(b"not a stream" * 1000)
    with pytest.raises(errors.WrongMagic):
        DataStreamer.open(path)
    assert names(path.parent) == ["s.bin"]  # no bookmark folder beside it
    assert path.read_bytes() == b"not a stream" * 1000


def test_a_file_that_something_has_emptied_is_no_new_stream(path: Path) -> None:
    DataStreamer.open(path).close()
    path.write_bytes(b"")
    for read_only in (False, True):
        with pytest.raises(errors.ShorterThanHeaderPage, match="found 0 bytes, expected at least 4096"):
            DataStreamer.open(path, read_only=read_only)
    assert path.read_bytes() == b""


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("missing/s.bin", errors.StreamFileUnavailable, "cannot open the stream file: no folder"),
        ("s.db", errors.BookmarksUnavailable, "the stream file has the name that its bookmark folder needs"),
        ("", errors.StreamFileUnavailable, "cannot open the stream file: Is a directory"),
    ],
)
def test_places_that_cannot_be(tmp_path: Path, name: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        DataStreamer.open(tmp_path / name)
    assert message in str(caught.value)
    assert names(tmp_path) == []


@pytest.mark.parametrize("name", [b"\xff.bin", b"folder \xff/s.bin"])
def test_a_path_that_is_not_utf_8(tmp_path: Path, name: bytes) -> None:
    path = tmp_path / os.fsdecode(name)
    path.parent.mkdir(exist_ok=True)
    make(path, 3, b"A")
    make(path, 3, b"A", read=True)
    with DataStreamer.open(path, read_only=True) as streamer:
        assert streamer.get_bookmark(b"A" + u64(4)) == 4


@pytest.mark.parametrize("target", ["away/t.bin", "s.bin"], ids=["nowhere", "circle"])
def test_a_link_that_leads_to_no_file_is_not_replaced(path: Path, target: str) -> None:
    """Its disk may not be mounted."""
    path.symlink_to(target)
    with pytest.raises(errors.StreamFileUnavailable) as caught:
        DataStreamer.open(path)
    assert f"it is a link to {target}, and there is no file" in str(caught.value)
    assert names(path.parent) == ["s.bin"]
    assert path.is_symlink()


def test_a_link_to_a_stream_is_followed(path: Path) -> None:
    make(path.with_name("t.bin"), 3, b"A")
    path.symlink_to("t.bin")
    make(path, 3, b"A", read=True)
    assert path.is_symlink()


def test_another_stream_type(path: Path) -> None:
    DataStreamer.open(path).close()
    with pytest.raises(errors.WrongStreamType, match=r"s\.bin: stream type: found 1, expected 2"):
        DataStreamer.open(path, stream_type=2)


# --- the index, and what other programs do to it ---------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("says nothing", {"covered": None}),
        ("behind", {"covered": u64(2), "c": None}),
        ("far behind", {"covered": u64(0), "a": None, "b": None, "c": None}),
        ("points past the end", {"z": u64(6)}),
        ("count of another length", {"covered": b"12", "c": None}),
    ],
)
def test_the_index_is_put_right(path: Path, name: str, changes: dict[str, bytes | None]) -> None:
    streamer = DataStreamer.open(path)
    commit(streamer, (0xB0, b"a"), (1, b"x"), (0xB0, b"b"), (1, b"y"), (0xB0, b"c"), (1, b"z"))
    streamer.close()
    change_database(path.with_name("s.db"), **changes)
    streamer = DataStreamer.open(path)
    assert [streamer.get_bookmark(key) for key in (b"a", b"b", b"c")] == [0, 2, 4]
    streamer.close()
    stored = stored_in(path.with_name("s.db"))
    assert len(stored.pop(STREAM_KEY)) == FINGERPRINT_SIZE == len(stored.pop(SUMS_OF_KEY))
    assert stored == {
        b"a": u64(0),
        b"b": u64(2),
        b"c": u64(4),
        COVERED_KEY: u64(6),
        LAST_KEY: u64(4) + b"c",
    }


def make(path: Path, count: int, name: bytes, *, read: bool = False) -> None:
    """Make, or reopen, a stream of bookmarks and events; find all bookmarks."""
    with DataStreamer.open(path, initial_pages=1) as streamer:
        if not read:
            commit(
                streamer, *((0xB0, name + u64(at)) if at % 2 == 0 else (1, name) for at in range(2 * count))
            )
        assert [streamer.get_bookmark(name + u64(2 * at)) for at in range(count)] == [*range(0, 2 * count, 2)]


def test_streams_that_share_a_folder_by_their_names(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With the same totals, neither takes the other's index for its own."""
    first, second = tmp_path / "s.1.bin", tmp_path / "s.2.bin"
    make(first, 10, b"A")
    make(second, 10, b"B")
    for path, name in ((first, b"A"), (second, b"B"), (first, b"A")):
        caplog.clear()
        make(path, 10, name, read=True)
        assert f"{path}: the bookmark folder s.db is of another stream, or of other entries" in caplog.text
        with caplog.at_level("DEBUG", "sluice.datastream.file.opening"):
            caplog.clear()
            make(path, 10, name, read=True)  # made anew once, not at each opening
        assert caplog.text == ""


@pytest.mark.parametrize("count", [9, 10, 20])
@pytest.mark.parametrize("read_only", [False, True])
def test_the_folder_of_another_stream(tmp_path: Path, count: int, read_only: bool) -> None:
    """A copy of it, or a leftover one."""
    mine, other = tmp_path / "s.bin", tmp_path / "x.bin"
    make(mine, count, b"A")
    make(other, 10, b"B")
    shutil.rmtree(mine.with_name("s.db"))
    shutil.copytree(tmp_path / "x.db", tmp_path / "s.db")
    with DataStreamer.open(mine, read_only=read_only) as streamer:
        found = [streamer.get_bookmark(b"A" + u64(2 * at)) for at in range(count)]
    assert found == [*range(0, 2 * count, 2)]


@pytest.mark.parametrize(
    ("added", "actions"), [(0, ""), (1, "CHECK_PAGES, INDEX_MISSING")], ids=["level", "behind"]
)
@pytest.mark.parametrize("has_key", [False, True])
def test_a_folder_that_another_program_wrote_is_believed(
    path: Path, added: int, actions: str, has_key: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Others omit the fingerprint, or leave that of fewer entries."""
    make(path, 5, b"A")
    index = path.with_name("s.db")
    with plyvel.DB(str(own_folder(index))) as database:
        before = database.get(STREAM_KEY)
    with DataStreamer.open(path) as streamer:
        commit(streamer, (0xB0, b"new"), (1, b"x"))
    with plyvel.DB(str(own_folder(index))) as database:
        if has_key:
            database.put(STREAM_KEY, before)
        else:
            database.delete(STREAM_KEY)
        if added:
            database.put(COVERED_KEY, u64(10))
            database.delete(b"new")
    with caplog.at_level("DEBUG", "sluice.datastream.file.opening"), DataStreamer.open(path) as streamer:
        assert streamer.get_bookmark(b"new") == 10
    found = ", ".join(record.getMessage().rpartition(" ")[2] for record in caplog.records)
    assert found == actions


@pytest.mark.parametrize("page_count", [3, 12])
def test_a_missing_index_is_made(path: Path, page_count: int) -> None:
    streamer = DataStreamer.open(path)
    for number in range(page_count):
        commit(streamer, bookmark(number), (1, b"x" * 700_000), bookmark(1000 + number))
    streamer.close()
    shutil.rmtree(path.with_name("s.db"))
    streamer = DataStreamer.open(path)
    for number in range(page_count):
        assert streamer.get_bookmark(bookmark(number)[1]) == 3 * number
        assert streamer.get_bookmark(bookmark(1000 + number)[1]) == 3 * number + 2
    streamer.close()


class EnoughOfIt(Exception):
    """Ends an opening."""


def test_an_index_whose_making_is_ended_is_made_at_the_next_opening(path: Path) -> None:
    with DataStreamer.open(path) as streamer:
        for number in range(6):
            commit(streamer, bookmark(number), (1, b"x" * 700_000))
    shutil.rmtree(path.with_suffix(".db"))
    limits = StreamLimits(rebuild_batch_bookmarks=1)
    for step_count in count():  # ended before each page of the check and of the indexing
        steps = iter(range(step_count))

        def go_on(steps: Iterator[int] = steps) -> None:
            if next(steps, None) is None:
                raise EnoughOfIt

        with suppress(EnoughOfIt), DataStreamer.open(path, go_on=go_on, limits=limits) as streamer:
            found = [streamer.get_bookmark(bookmark(number)[1]) for number in range(6)]
            break
    assert found == list(range(0, 12, 2))
    assert step_count >= 6


def test_a_new_stream_is_no_news_and_an_index_that_is_made_anew_is(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with DataStreamer.open(path) as streamer:
        assert caplog.messages == []
        commit(streamer, (1, b"x"))
    shutil.rmtree(path.with_suffix(".db"))
    DataStreamer.open(path).close()
    assert caplog.messages == [f"{path}: opening: REBUILD_BOOKMARKS"]


def test_a_stream_file_that_was_taken_away_leaves_no_bookmarks(path: Path) -> None:
    streamer = DataStreamer.open(path)
    commit(streamer, (0xB0, b"a"), (1, b"x"))
    streamer.close()
    path.unlink()
    with DataStreamer.open(path) as streamer, pytest.raises(BookmarkNotFound):
        streamer.get_bookmark(b"a")


@pytest.mark.parametrize("which", [1, 2])
def test_an_index_that_cannot_be_read_is_made_anew(path: Path, which: int) -> None:
    """The first DB has the bookmarks, the second our keys."""
    streamer = DataStreamer.open(path)
    commit(streamer, (0xB0, b"a"), (1, b"x"))
    streamer.close()
    openings: list[Any] = []

    class Unreadable:
        def __init__(self, below: Any) -> None:
            self.close = below.close

        def iterator(self, **which: bytes) -> Any:
            raise plyvel.CorruptionError("block checksum mismatch")

        def get(self, key: bytes) -> bytes:
            raise plyvel.CorruptionError("block checksum mismatch")

    def open_database(folder: str) -> Any:
        database = plyvel.DB(folder, create_if_missing=True)
        openings.append(database)
        return Unreadable(database) if len(openings) == which else database

    with DataStreamer.open(path, open_database=open_database) as streamer:
        assert len(openings) == (6 if which == 1 else 4)  # noticed at once, or later
        assert streamer.get_bookmark(b"a") == 0


# --- the tail --------------------------------------------------------------------------------------------


def test_what_lies_past_the_end_is_zeroed(path: Path) -> None:
    streamer = DataStreamer.open(path, initial_pages=3)
    commit(streamer, (1, b"x"))
    end = streamer.committed.total_length
    streamer.close()
    with path.open("r+b") as file:
        for offset in (end, end + 5000, page_end(0) - 1, page_end(1) + 77):
            file.seek(offset)
            file.write(b"garbage"[: file_size_of(3) - offset])
    DataStreamer.open(path).close()
    content = path.read_bytes()
    assert len(content) == file_size_of(3)
    assert not any(content[end:])


def test_a_clean_file_is_flushed_and_not_changed_when_opened(path: Path) -> None:
    """Header and last block are rewritten past the page cache, unchanged; a hole follows."""
    streamer = DataStreamer.open(path)
    commit(streamer, *operation(1))
    streamer.close()
    before = path.read_bytes()
    disk = MemoryDisk.of(before)
    DataStreamer.open(path, disk=disk).close()
    written = ["pwrite", "fdatasync"]
    assert disk.steps == ["fdatasync", *written, "discard", *written]
    assert (bytes(disk.cache), path.read_bytes()) == (before, before)


def test_a_file_that_may_only_be_read_is_not_flushed(path: Path) -> None:
    DataStreamer.open(path).close()
    before = path.stat().st_mtime_ns
    DataStreamer.open(path, read_only=True).close()
    assert path.stat().st_mtime_ns == before


# --- others at work --------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["made", "added to"])
def test_another_opener_was_at_work_until_we_got_the_locks(
    path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    if first == "added to":
        DataStreamer.open(path).close()
    open_bookmarks: Callable[..., BookmarkIndex] = opening._open_bookmarks

    def others_first(*arguments: Any) -> BookmarkIndex:
        monkeypatch.setattr(opening, "_open_bookmarks", open_bookmarks)
        # Like a Go program: it locks the folder, not the file.
        disk = RealDisk(path) if first == "added to" else None
        with DataStreamer.open(path, disk=disk) as other:
            commit(other, bookmark(1), (1, b"theirs"))
        return open_bookmarks(*arguments)

    monkeypatch.setattr(opening, "_open_bookmarks", others_first)
    with DataStreamer.open(path) as streamer:
        assert commit(streamer, (1, b"ours")) == [2]
        assert list(streamer.read_entries(0)) == entries(bookmark(1), (1, b"theirs"), (1, b"ours"))


def test_a_disk_that_fails_while_the_tail_is_trimmed(path: Path) -> None:
    memory = MemoryDisk()
    with DataStreamer.open(path, disk=memory, initial_pages=1) as streamer:
        commit(streamer, (1, b"x"))
    memory.cache[5000] = 1
    with pytest.raises(errors.StreamFileUnavailable, match="cannot open the stream file: Input/output error"):
        DataStreamer.open(path, disk=FailingDisk(memory, {"pwrite": [5]}))
    with DataStreamer.open(path, disk=memory) as streamer:  # the locks are free again
        assert list(streamer.read_entries(0)) == entries((1, b"x"))
    assert memory.cache[5000] == 0


# --- for reading only ------------------------------------------------------------------------------------


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(file): (file.stat().st_mtime_ns, file.read_bytes())
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


@pytest.mark.parametrize("index", ["level", "behind", "none"])
def test_reading_only_writes_nothing(path: Path, index: str) -> None:
    with DataStreamer.open(path, initial_pages=2) as streamer:
        for number in range(3):
            commit(streamer, *operation(number))
    if index == "behind":
        change_database(path.with_name("s.db"), covered=u64(5))
    elif index == "none":
        shutil.rmtree(path.with_name("s.db"))
    with path.open("r+b") as stream:  # a tail, which a writer would trim
        stream.seek(-1, 2)
        stream.write(b"x")
    before = snapshot(path.parent)
    with (
        DataStreamer.open(path, read_only=True) as streamer,
        DataStreamer.open(path, read_only=True) as other,
    ):
        for reader in (streamer, other):
            assert len(list(reader.read_entries(0))) == 15
            assert reader.get_bookmark(bookmark(2)[1]) == 10
        for call in (
            streamer.start_atomic_op,
            streamer.commit_atomic_op,
            lambda: streamer.add_stream_entry(1, b""),
            lambda: streamer.update_entry_data(2, 1, b""),
            lambda: streamer.truncate_file(0),
        ):
            with pytest.raises(errors.StreamReadOnly, match="the stream is open for reading only"):
                call()
        with pytest.raises(errors.StreamInUse):
            DataStreamer.open(path)
    assert snapshot(path.parent) == before


def test_reading_only_what_is_not_there_or_in_use(path: Path) -> None:
    with pytest.raises(errors.StreamFileUnavailable, match="No such file or directory"):
        DataStreamer.open(path, read_only=True)
    assert names(path.parent) == []
    with DataStreamer.open(path), pytest.raises(errors.StreamInUse):
        DataStreamer.open(path, read_only=True)


def test_a_file_that_may_not_be_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with DataStreamer.open(path) as streamer:
        commit(streamer, (1, b"x"))
    open_real = os.open

    def refuse_writing(name: Any, flags: int, *rest: int, **more: Any) -> int:
        if name == path and flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, "Permission denied")
        return open_real(name, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refuse_writing)
    with pytest.raises(errors.StreamFileUnavailable, match="cannot open the stream file: Permission denied"):
        DataStreamer.open(path)
    with DataStreamer.open(path, read_only=True) as streamer:
        assert list(streamer.read_entries(0)) == entries((1, b"x"))


def test_damage_beside_a_folder_is_refused(path: Path) -> None:
    """The folder could hold the record of an unfinished update, and does not."""
    with DataStreamer.open(path) as streamer:
        commit(streamer, (1, b"x"), (1, b"y"))
    content = bytearray(path.read_bytes())
    content[4096 + 18] = 7
    path.write_bytes(content)
    for read_only in (False, True):
        with pytest.raises(errors.EntriesDisagree, match="found packet type 7 at entry 1, offset 4114"):
            DataStreamer.open(path, read_only=read_only)
    assert path.read_bytes() == content


def twelve_pages(path: Path, covered: int | None) -> list[int]:
    """Make a file that is too large to be walked whole, with a dirty tail and an index with a count.

    Return the entry numbers of its bookmarks, one a page.
    """
    with DataStreamer.open(path, initial_pages=14) as streamer:
        numbers = [
            commit(streamer, (1, b"x" * 1_000_000), bookmark(page), (1, b"y"))[1] for page in range(12)
        ]
        end = streamer.committed.total_length
    gone = [bookmark(page)[1] for page in range(12) if covered is not None and numbers[page] >= covered]
    gone += [TABLE_KEY + u64(page) for page in range(12)]
    changes = {key.decode(): None for key in (*gone, LAST_KEY)}
    change_database(path.with_suffix(".db"), covered=None if covered is None else u64(covered), **changes)
    with path.open("r+b") as file:
        file.seek(end + 500)
        file.write(b"what another writer has not committed")
    return numbers


@pytest.mark.parametrize(("index", "covered"), [("of another program", None), ("behind", 12), ("none", None)])
def test_damage_on_a_page_that_is_to_be_indexed_is_found_before_anything_is_changed(
    path: Path, index: str, covered: int | None
) -> None:
    twelve_pages(path, covered)
    folder = path.with_suffix(".db")
    if index == "none":
        shutil.rmtree(folder)
    with path.open("r+b") as file:
        file.seek(page_start(6) + 1_000_017)
        file.write(b"\7")
    content, held = path.read_bytes(), held_in(folder)
    with pytest.raises(errors.EntriesDisagree, match="found packet type 7 at entry 19"):
        DataStreamer.open(path)
    assert path.read_bytes() == content
    assert held_in(folder) == held


def held_in(folder: Path) -> dict[bytes, bytes] | None:
    if not folder.exists():
        return None
    return stored_in(folder)


@pytest.mark.parametrize("kept_max", [0, 4, BOOKMARKS_KEPT_AT_OPEN_MAX])
@pytest.mark.parametrize(("index", "covered"), [("of another program", None), ("behind", 12)])
def test_pages_are_walked_twice_only_where_they_have_too_many_bookmarks(
    path: Path, monkeypatch: pytest.MonkeyPatch, kept_max: int, index: str, covered: int | None
) -> None:
    numbers = twelve_pages(path, covered)
    limits = StreamLimits(bookmarks_kept_at_open_max=kept_max)
    walked: list[int] = []
    walk = StreamFile.walk

    def counted_walk(file: StreamFile, page_number: int) -> Any:
        walked.append(page_number)
        return walk(file, page_number)

    monkeypatch.setattr(StreamFile, "walk", counted_walk)
    with DataStreamer.open(path, limits=limits) as streamer:
        to_index = list(range(4 if index == "behind" else 0, 12))
        assert walked == [11, *to_index, *to_index[kept_max:]]  # the last page first, as always
        assert [streamer.get_bookmark(bookmark(page)[1]) for page in range(12)] == numbers
        assert streamer._bookmarks.get_table(5) is not None  # what was learned is kept
        end = streamer.committed.total_length
    assert not any(path.read_bytes()[end:])


@pytest.mark.parametrize("is_past", [False, True])
def test_so_many_bookmarks_are_compared_at_opening_and_later_ones_when_they_are_looked_up(
    path: Path, is_past: bool
) -> None:
    """Keys of the DB are in order."""
    streamer = DataStreamer.open(path)
    commit(streamer, (0xB0, b"a"), (1, b"x"), (0xB0, b"b"), (1, b"y"))
    streamer.close()
    change_database(path.with_name("s.db"), z=u64(6))  # past the end of the stream
    checked_count = 1 if is_past else 3
    assert checked_count < BOOKMARKS_CHECKED_AT_OPEN_MAX
    limits = StreamLimits(bookmarks_checked_at_open_max=checked_count)
    with DataStreamer.open(path, limits=limits) as streamer:
        held = dict(streamer._bookmarks.items())
        assert (b"z" in held) is is_past
        with pytest.raises(BookmarkNotFound):
            streamer.get_bookmark(b"z")
        assert [streamer.get_bookmark(key) for key in (b"a", b"b")] == [0, 2]
