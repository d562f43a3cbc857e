"""Comparing two streams of the same entries, and every way in which they may differ."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sluice.datastream.check import compare
from sluice.datastream.check.compare import Difference, compare_streams
from sluice.datastream.errors import (
    ShorterThanHeaderPage,
    StreamFileUnavailable,
    TotalLengthOutOfFile,
    WrongMagic,
)
from sluice.datastream.file.disk import RealDisk
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.layout import HEADER_OFFSET, HEADER_PAGE_SIZE, PAGE_SIZE, page_start
from tests.datastream.streams import bookmark, commit, operation

ENTRY = (1, b"x" * 51)  # 68 bytes
PER_PAGE = PAGE_SIZE // 68


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "s.bin"
    with DataStreamer.open(path, initial_pages=3) as streamer:
        commit(streamer, bookmark(0), *[ENTRY] * (2 * PER_PAGE))
        commit(streamer, *operation(1))
    return path


@pytest.fixture
def pair(template: Path, tmp_path: Path) -> tuple[Path, Path]:
    one, other = tmp_path / "one.bin", tmp_path / "other.bin"
    for path in (one, other):
        shutil.copyfile(template, path)
    return one, other


def change(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0xFF]))


def test_the_same_entries_are_the_same_bytes(pair: tuple[Path, Path]) -> None:
    done: list[tuple[int, int]] = []
    comparison = compare_streams(*pair, progress=lambda *pages: done.append(pages))
    assert comparison.is_equal
    assert comparison.compared_length == comparison.headers[0].total_length
    assert done == [(1, 3), (2, 3), (3, 3)]


def test_the_shorter_one_is_a_beginning_of_the_longer_whichever_comes_first(
    pair: tuple[Path, Path],
) -> None:
    one, other = pair
    shorter_length = compare_streams(one, other).compared_length
    with DataStreamer.open(other) as streamer:
        commit(streamer, *operation(2), flush=True)
        # The stream may be in use.
        for paths in ((one, other), (other, one)):
            comparison = compare_streams(*paths)
            assert comparison.is_equal
            assert comparison.compared_length == shorter_length


def test_what_is_behind_the_committed_length_does_not_count(pair: tuple[Path, Path]) -> None:
    comparison = compare_streams(*pair)
    change(pair[1], comparison.compared_length)
    assert compare_streams(*pair).is_equal


@pytest.mark.parametrize(
    ("offset", "entry_number"),
    [
        (HEADER_PAGE_SIZE, 0),
        (HEADER_PAGE_SIZE + 26, 1),
        (HEADER_PAGE_SIZE + 26 + 68 * 7 + 67, 8),
        (page_start(1), PER_PAGE),
        (page_start(1) - 1, None),
    ],
    ids=["first byte", "second entry", "last byte of an entry", "second page", "padding"],
)
def test_the_first_difference_is_told_with_its_entry(
    pair: tuple[Path, Path], offset: int, entry_number: int | None
) -> None:
    change(pair[1], offset)
    change(pair[1], offset + PAGE_SIZE)
    before = pair[0].read_bytes()[offset]
    difference = compare_streams(*pair).difference
    assert difference == Difference(offset, entry_number, f"{before:#04x} and {before ^ 0xFF:#04x}")


def test_a_length_outside_the_file_is_refused_also_when_both_say_the_same(pair: tuple[Path, Path]) -> None:
    one, other = pair
    size = page_start(1) + 10
    for path in pair:  # their pages are still equal, as far as they go
        with path.open("r+b") as file:
            file.truncate(size)
    with pytest.raises(
        TotalLengthOutOfFile,
        match=rf"{one}: TotalLength: found \d+, expected 4096 to {size}, the file's size",
    ):
        compare_streams(one, other)


@pytest.mark.parametrize("total_length", [0, HEADER_PAGE_SIZE - 1, 1 << 60, (1 << 64) - 1])
def test_no_length_that_is_none_is_compared(pair: tuple[Path, Path], total_length: int) -> None:
    for path in pair:
        with path.open("r+b") as file:
            file.seek(HEADER_OFFSET + 22)
            file.write(total_length.to_bytes(8, "big"))
    with pytest.raises(TotalLengthOutOfFile, match=f"found {total_length}, expected 4096 to "):
        compare_streams(*pair)


def test_a_file_that_a_server_makes_longer_meanwhile_is_compared_as_it_was(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair
    size_of, streamer = RealDisk.size, DataStreamer.open(one)

    def grow(disk: RealDisk) -> int:
        if streamer.committed.total_length < page_start(4):
            commit(streamer, *[ENTRY] * (2 * PER_PAGE), flush=True)
        return size_of(disk)

    with streamer:
        monkeypatch.setattr(compare, "RealDisk", type("Growing", (RealDisk,), {"size": grow}))
        assert compare_streams(one, other).is_equal


def test_files_that_are_cut_short_meanwhile_differ_where_they_end(pair: tuple[Path, Path]) -> None:
    def cut(done: int, total: int) -> None:
        for path in pair:
            with path.open("r+b") as file:
                file.truncate(page_start(1) + 10)

    difference = compare_streams(*pair, progress=cut).difference
    assert difference is not None
    assert difference.offset == page_start(1) + 10
    assert difference.what == "the end of the file and the end of the file"


@pytest.mark.parametrize(
    ("option", "value", "what"),
    [
        ("version", 2, "version 1 and 2 in the headers"),
        ("system_id", 7, "system id 137 and 7 in the headers"),
        ("stream_type", 3, "stream type 1 and 3 in the headers"),
    ],
)
def test_what_clients_see_of_the_headers_counts(tmp_path: Path, option: str, value: int, what: str) -> None:
    one, other = tmp_path / "one.bin", tmp_path / "other.bin"
    DataStreamer.open(one).close()
    DataStreamer.open(other, **{option: value}).close()  # type: ignore[arg-type]
    difference = compare_streams(one, other).difference
    assert difference is not None
    assert difference.what == what


def test_what_is_no_stream_is_refused(pair: tuple[Path, Path], tmp_path: Path) -> None:
    short, text = tmp_path / "short", tmp_path / "text"
    short.write_bytes(b"gRPC")
    text.write_bytes(b"x" * 5000)
    with pytest.raises(ShorterThanHeaderPage, match="found 4 bytes, expected at least 54, the header"):
        compare_streams(pair[0], short)
    with pytest.raises(WrongMagic):
        compare_streams(text, pair[0])
    with pytest.raises(StreamFileUnavailable):
        compare_streams(tmp_path / "missing", pair[0])
