"""Writing through the mapped window: the same bytes as `pwrite`, and no window where a copy could fail."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.datastream.file import append_window
from sluice.datastream.file.append_window import APPEND_WINDOW_BYTES, AppendWindow
from sluice.datastream.file.disk import RealDisk
from sluice.datastream.file.file_system import file_system_of
from sluice.datastream.layout import HEADER_PAGE_SIZE, PAGE_SIZE, file_size_of, page_start

BLOCK = mmap.ALLOCATIONGRANULARITY
KILLED_WRITER = """
import os, signal, sys
from sluice.datastream.file.append_window import AppendWindow
fd = os.open(sys.argv[1], os.O_RDWR)
AppendWindow(fd, lambda data, offset: os.pwrite(fd, data, offset)).write(b"written", 5000)
os.kill(os.getpid(), signal.SIGKILL)
"""
UNLOCKED_WRITER = """
import os, resource, sys
from sluice.datastream.file.append_window import AppendWindow
resource.setrlimit(resource.RLIMIT_MEMLOCK, (4096, 4096))
if os.geteuid() == 0:
    os.setresuid(65534, 65534, 65534)  # root may lock whatever it likes
fd = int(sys.argv[1])
window = AppendWindow(fd, lambda data, offset: os.pwrite(fd, data, offset))
window.write(b"written", 5000)
assert window.range == (0, 0)
"""


class Written:
    """A file with a window; records the writes that bypass it."""

    def __init__(self, path: Path, pages: int = 2) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT)
        os.ftruncate(self.fd, file_size_of(pages))
        self.without: list[tuple[int, int]] = []
        """(offset, size)."""
        self.window = AppendWindow(self.fd, self._otherwise)

    def _otherwise(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        self.without.append((offset, len(data)))
        os.pwrite(self.fd, data, offset)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Written]:
    written = Written(tmp_path / "file")
    if file_system_of(written.fd) not in append_window._OVERWRITING:
        os.close(written.fd)
        pytest.skip(
            "needs a file system that overwrites in place, as ext4 or tmpfs; --basetemp names a folder on one"
        )
    yield written
    written.window.forget()
    os.close(written.fd)


def test_what_is_written_is_in_the_file(file: Written) -> None:
    file.window.write(b"one", 5000)
    assert file.window.range == (BLOCK, BLOCK + APPEND_WINDOW_BYTES)
    file.window.write(bytearray(b"two"), 5003)
    file.window.write(memoryview(b"three"), 5006)
    assert os.pread(file.fd, 13, 4999) == b"\0onetwothree\0"
    os.fdatasync(file.fd)
    assert file.without == []


@settings(max_examples=30)
@given(st.lists(st.integers(0, 9000) | st.integers(0, APPEND_WINDOW_BYTES), max_size=12))
def test_the_same_bytes_as_pwrite(tmp_path_factory: pytest.TempPathFactory, sizes: list[int]) -> None:
    file = Written(tmp_path_factory.mktemp("same") / "file", pages=4)
    expected = bytearray(file_size_of(4))
    offset = HEADER_PAGE_SIZE + 17
    for number, size in enumerate(sizes):
        data = bytes([number + 1]) * size
        file.window.write(data, offset)
        expected[offset : offset + size] = data
        offset += size
    assert os.pread(file.fd, len(expected) + 1, 0) == expected
    file.window.forget()
    os.close(file.fd)


def test_the_window_ends_with_the_data_page(file: Written) -> None:
    end = page_start(1)
    file.window.write(b"x" * 100, end - 100)
    assert file.window.range == (end - BLOCK, end)
    assert os.lseek(file.fd, end - 1, os.SEEK_DATA) == end - 1
    with pytest.raises(OSError, match="No such device or address"):
        os.lseek(file.fd, end, os.SEEK_DATA)
    file.window.write(b"across", end - 3)
    assert file.without == [(end - 3, 6)]
    file.window.write(b"next", end + 3)
    assert file.window.range == (end, end + APPEND_WINDOW_BYTES)
    assert os.pread(file.fd, 10, end - 3) == b"acrossnext"


@pytest.mark.parametrize(
    ("offset", "size"),
    [
        (HEADER_PAGE_SIZE, APPEND_WINDOW_BYTES + 1),  # larger than a window
        (HEADER_PAGE_SIZE + PAGE_SIZE - 5, 10),  # across a page's end
        (file_size_of(2) - 5, 10),  # past the end of the file
        (file_size_of(2), 10),
    ],
)
def test_what_has_no_room_in_a_window(file: Written, offset: int, size: int) -> None:
    file.window.write(b"y" * size, offset)
    assert file.without == [(offset, size)]
    assert os.pread(file.fd, size, offset) == b"y" * size
    file.window.write(b"small", HEADER_PAGE_SIZE)
    assert len(file.without) == 1


def test_an_unknown_file_system_has_no_window(file: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    btrfs = 0x9123683E
    monkeypatch.setattr(append_window, "file_system_of", lambda fd: btrfs)
    file.window.write(b"abc", 5000)
    assert file.without == [(5000, 3)]
    assert file.window.range == (0, 0)


def test_without_room_for_a_window(file: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file asks only once."""
    tries = []

    def refuse(fd: int, start: int, size: int) -> mmap.mmap:
        tries.append(start)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(append_window, "_map_range", refuse)
    file.window.write(b"abc", 5000)
    file.window.write(b"def", 5003)
    assert (tries, file.without) == ([BLOCK], [(5000, 3), (5003, 3)])
    assert os.pread(file.fd, 6, 5000) == b"abcdef"


def test_refusals_of_the_kernel(file: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        append_window._map_range(-1, 0, 4096)
    no_such_advice = 9999
    monkeypatch.setattr(append_window, "_MADV_POPULATE_WRITE", no_such_advice)
    with pytest.raises(OSError, match="Invalid argument"):
        append_window._map_range(file.fd, BLOCK, APPEND_WINDOW_BYTES)
    file.window.write(b"abc", 5000)
    assert file.without == [(5000, 3)]


def test_memory_that_may_not_be_locked(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(file_size_of(1)))
    fd = os.open(path, os.O_RDWR)
    command = [sys.executable, "-c", UNLOCKED_WRITER, str(fd)]
    done = subprocess.run(command, stderr=subprocess.PIPE, check=False, timeout=60, pass_fds=(fd,))
    os.close(fd)
    assert (done.returncode, done.stderr) == (0, b"")
    assert path.read_bytes()[5000:5007] == b"written"


def test_a_file_that_is_cut_or_gets_a_hole(tmp_path: Path) -> None:
    """A copy into a window that has left the file would end the process."""
    path = tmp_path / "file"
    path.write_bytes(bytes(file_size_of(1)))
    disk = RealDisk(path)
    disk.append(b"first", 5000)
    disk.truncate(HEADER_PAGE_SIZE)
    disk.truncate(file_size_of(1))
    disk.append(b"second", 5000)
    disk.replace(bytes(BLOCK), BLOCK)
    disk.append(b"third", 5000)
    assert disk.pread(7, 4999) == b"\0third\0"
    disk.close()


def test_a_killed_process_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(file_size_of(1)))
    done = subprocess.run([sys.executable, "-c", KILLED_WRITER, str(path)], check=False, timeout=60)
    assert done.returncode == -9
    assert path.read_bytes()[5000:5007] == b"written"
