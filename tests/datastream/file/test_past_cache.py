"""Reading and writing past the page cache, on the file system of the repository and on a tmpfs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from datastream.file.disk import drop_cached, read_past_cache, write_past_cache
from datastream.file.file_system import takes_direct_writes

SIZE = 8192


@pytest.fixture(params=["here", "shm"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file of three such pieces."""
    shm = Path("/dev/shm")
    if request.param == "shm" and not os.access(shm, os.W_OK):
        pytest.skip("no tmpfs here")
    path = (tmp_path if request.param == "here" else shm) / f"past-cache-{os.getpid()}"
    path.write_bytes(b"".join(bytes((letter,)) * SIZE for letter in b"abc"))
    yield path
    path.unlink()


def test_what_was_written_is_read_both_ways(file: Path) -> None:
    fd = os.open(file, os.O_RDWR)
    try:
        os.pwrite(fd, b"B" * SIZE, SIZE)  # dirty in the cache: a direct read gives it, too
        assert read_past_cache(fd, SIZE, SIZE) == b"B" * SIZE
        write_past_cache(fd, b"D" * SIZE, SIZE)
        assert os.pread(fd, SIZE, SIZE) == b"D" * SIZE == read_past_cache(fd, SIZE, SIZE)
        assert file.read_bytes() == b"a" * SIZE + b"D" * SIZE + b"c" * SIZE
        assert read_past_cache(fd, 2 * SIZE, 2 * SIZE) == b"c" * SIZE  # the end of the file
        drop_cached(fd, SIZE, 0)
        assert os.pread(fd, 1, 0) == b"a"
    finally:
        os.close(fd)


def test_a_file_that_cannot_be_written_says_so(file: Path) -> None:
    fd = os.open(file, os.O_RDONLY)
    try:
        with pytest.raises(OSError):
            write_past_cache(fd, b"x" * SIZE, 0)
        assert read_past_cache(fd, SIZE, 0) == b"a" * SIZE
    finally:
        os.close(fd)


def test_a_disk_that_gives_a_part_is_asked_for_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read = tmp_path / "file", os.preadv
    path.write_bytes(b"a" * SIZE + b"b" * SIZE)
    fd = os.open(path, os.O_RDONLY)
    try:
        if not takes_direct_writes(fd):
            pytest.skip("direct reads go through the page cache here")

        def in_parts(number: int, buffers: list[memoryview], offset: int) -> int:
            with memoryview(buffers[0]) as whole, whole[:4_096] as part:
                return read(number, [part], offset)

        monkeypatch.setattr(os, "preadv", in_parts)
        assert read_past_cache(fd, 2 * SIZE, 0) == b"a" * SIZE + b"b" * SIZE
    finally:
        os.close(fd)
