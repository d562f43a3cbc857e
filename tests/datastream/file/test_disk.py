"""The real file layer, and creation in one step."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.datastream.check.compare import compare_streams
from sluice.datastream.errors import StreamFileUnavailable
from sluice.datastream.file import disk as disk_module
from sluice.datastream.file.disk import RealDisk, create_file, drop_cached, read_past_cache, write_past_cache
from sluice.datastream.file.file_system import file_system_of, has_no_disk, is_cached, takes_direct_writes
from sluice.datastream.file.streamer import DataStreamer

SHARED_MEMORY = Path("/dev/shm")
real_open = os.open


def test_reads_and_writes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    create_file(path, b"head", 8192)
    disk = RealDisk(path)
    assert disk.size() == 8192
    assert disk.pread(6, 0) == b"head\0\0"
    disk.pwrite(bytearray(b"abc"), 8190 - 1)
    assert disk.pread(100, 8180) == bytes(9) + b"abc"
    disk.fdatasync()
    disk.truncate(4096)
    assert disk.size() == 4096
    assert disk.pread(10, 4096) == b""
    assert os.fstat(disk.fileno()).st_size == 4096
    disk.close()
    disk.close()


def test_holes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    create_file(path, b"head", 1 << 20)
    disk = RealDisk(path)
    assert not disk.has_data(1 << 19)
    disk.pwrite(b"x", 3 << 18)
    disk.fdatasync()
    assert disk.has_data(1 << 19)
    assert not disk.has_data(1 << 20)
    disk.close()


def test_room_is_zeros_that_have_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    create_file(path, b"head", 1 << 20)
    before = path.read_bytes()
    for is_known in (False, True):
        disk = RealDisk(path)
        monkeypatch.setattr(
            "sluice.datastream.file.disk._KEEPING_PLACES",
            (file_system_of(disk.fileno()),) if is_known else (),
        )
        disk.make_room(1 << 16, 1 << 18)
        disk.fdatasync()
        assert disk.has_data(1 << 18) is is_known
        assert not disk.has_data((1 << 18) + (1 << 16))
        disk.close()
    assert path.stat().st_blocks * 512 >= 1 << 16
    assert path.read_bytes() == before


@pytest.fixture(params=["disk", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder for tests, and one on tmpfs, whose direct writes go through the cache."""
    if request.param == "disk":
        yield tmp_path
    elif not SHARED_MEMORY.is_mount() or not os.access(SHARED_MEMORY, os.W_OK):
        pytest.skip("needs a tmpfs at /dev/shm, as Linux mounts it")
    else:
        with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as name:
            yield Path(name)


def test_what_a_socket_holds_stays_when_it_is_replaced(folder: Path) -> None:
    """One large write: a kernel with large folios keeps several of its pages together."""
    path = folder / "file"
    old, new, offset = b"o" * 65_536, b"n" * 8_192, 12_288
    create_file(path, b"", 1 << 20)
    disk = RealDisk(path)
    disk.pwrite(b"o" * (1 << 20), 0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = socket.create_connection(listener.getsockname())
        receiver, _ = listener.accept()
    with sender, receiver:
        assert os.sendfile(sender.fileno(), disk.fileno(), 0, len(old)) == len(old)
        disk.replace(new, offset)
        assert receiver.recv(len(old), socket.MSG_WAITALL) == old
    rest = offset + len(new)
    assert disk.pread(len(old), 0) == old[:offset] + new + old[rest:]
    disk.close()


@pytest.mark.parametrize("is_direct", [True, False])
@pytest.mark.parametrize("is_holed", [True, False])
def test_bytes_are_replaced_whatever_the_file_system_can_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_direct: bool, is_holed: bool
) -> None:
    path = tmp_path / "file"
    create_file(path, b"h" * 16_384, 16_384)
    disk = RealDisk(path)
    monkeypatch.setattr("sluice.datastream.file.disk.takes_direct_writes", lambda fd: is_direct)
    if not is_holed:
        monkeypatch.setattr("sluice.datastream.file.disk._fallocate", lambda *_: -1)
    disk.replace(b"n" * 4_096, 8_192)
    monkeypatch.setattr(os, "open", refuse_direct)  # like old NFS, which makes no holes either
    disk.replace(b"m" * 4_096, 4_096)
    assert path.read_bytes() == b"h" * 4_096 + b"m" * 4_096 + b"n" * 4_096 + b"h" * 4_096
    disk.close()


def refuse_direct(path: str, flags: int, *rest: int) -> int:
    if flags & os.O_DIRECT:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return real_open(path, flags, *rest)


# --- past the page cache ------------------------------------------------------------------------------------


@pytest.fixture(params=["directly", "dropped first"])
def disk(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RealDisk]:
    """A file of 4 MiB, with and without direct writes past the cache."""
    path = tmp_path / "file"
    create_file(path, b"h" * 4_096, 4 << 20)
    disk = RealDisk(path)
    if not takes_direct_writes(disk.fileno()):
        pytest.skip(
            "needs a file system with direct writes, as ext4 or XFS; --basetemp names a folder on one"
        )
    if request.param != "directly":
        monkeypatch.setattr("sluice.datastream.file.disk.takes_direct_writes", lambda fd: False)
    yield disk
    disk.close()


def directly_read(disk: RealDisk, size: int, offset: int) -> bytes:
    return disk._read_directly(size, offset)


@pytest.mark.parametrize("size", [4_096, 65_536, 1 << 20])
def test_what_is_rewritten_is_on_the_disk_and_is_read(disk: RealDisk, size: int) -> None:
    disk.pwrite(b"o" * (3 << 20), 0)
    data = os.urandom(size)
    disk.rewrite(data, 8_192)
    assert (
        directly_read(disk, size, 8_192)
        == disk.read_past_cache(size, 8_192)
        == disk.pread(size, 8_192)
        == data
    )
    assert disk.pread(8_192, 0) == b"o" * 8_192
    assert disk.pread(4_096, 8_192 + size) == b"o" * 4_096


def test_bytes_that_a_rewrite_finds_otherwise_are_not_believed(
    disk: RealDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that holds other bytes than it took."""
    monkeypatch.setattr(disk, "read_past_cache", lambda size, offset: bytes(size))
    with pytest.raises(OSError, match="the disk holds other bytes than it took at offset 8192"):
        disk.rewrite(b"n" * 4_096, 8_192)
    monkeypatch.setattr(disk, "read_past_cache", lambda size, offset: None)
    with pytest.raises(OSError, match="lets nobody read past its page cache: stop, unmount, mount, check"):
        disk.rewrite(b"n" * 4_096, 8_192)


def test_a_rewrite_that_is_refused_leaves_its_bytes_to_be_read(
    disk: RealDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Perhaps only the cache had them, and those of neighbouring pages."""
    disk.pwrite(b"o" * 65_536, 0)
    disk.fdatasync()

    def refuse(*_: object) -> bool:
        os.posix_fadvise(disk.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return False

    monkeypatch.setattr(disk, "_write_directly", refuse)
    monkeypatch.setattr(disk, "_drop_cached", refuse)
    with pytest.raises(OSError, match=r"refuses a direct write|lets nobody read"):
        disk.rewrite(b"n" * 4_096, 8_192)
    assert disk.pread(65_536, 0) == b"o" * 8_192 + b"n" * 4_096 + b"o" * 53_248


def test_pages_that_others_hold_are_not_taken_for_the_disk(disk: RealDisk) -> None:
    """A socket holds them, so they cannot be dropped, and reads return them."""
    disk.pwrite(b"o" * 65_536, 0)
    disk.fdatasync()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = socket.create_connection(listener.getsockname())
        receiver, _ = listener.accept()
    with sender, receiver:
        assert os.sendfile(sender.fileno(), disk.fileno(), 0, 65_536) == 65_536
        if vars(disk_module)["takes_direct_writes"](disk.fileno()):
            disk.rewrite(b"n" * 4_096, 8_192)
        else:
            assert disk.read_past_cache(4_096, 8_192) is None
            with pytest.raises(OSError, match="lets nobody read past its page cache"):
                disk.rewrite(b"o" * 4_096, 8_192)
        assert receiver.recv(65_536, socket.MSG_WAITALL) == b"o" * 65_536
    for _ in range(200):  # until the kernel has dropped what the socket held
        with contextlib.suppress(OSError):
            disk.rewrite(b"n" * 4_096, 8_192)
            break
        time.sleep(0.01)
    assert directly_read(disk, 4_096, 8_192) == b"n" * 4_096


def test_what_is_discarded_is_zeros_of_which_nothing_is_cached(disk: RealDisk) -> None:
    disk.pwrite(b"o" * (4 << 20), 0)
    disk.discard(8_192)
    assert not is_cached(disk.fileno(), (4 << 20) - 8_192, 8_192)
    assert not disk.has_data(8_192)
    assert disk.pread(4 << 20, 0) == b"o" * 8_192 + bytes((4 << 20) - 8_192)
    assert disk.size() == 4 << 20
    disk.discard(4 << 20)


@pytest.mark.parametrize("end", [4_096, 8_192, 4_096 + (1 << 20)])
def test_what_is_discarded_where_there_are_no_holes(
    disk: RealDisk, monkeypatch: pytest.MonkeyPatch, end: int
) -> None:
    monkeypatch.setattr("sluice.datastream.file.disk._fallocate", lambda *_: -1)
    size = 4_096 + (3 << 20)
    disk.truncate(size)
    disk.pwrite(b"o" * size, 0)
    disk.discard(end)
    assert disk.pread(size, 0) == b"o" * end + bytes(size - end)
    assert disk.size() == size


def test_reads_are_refreshed_from_the_disk(disk: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.refresh(4_096, 0)
    assert disk.pread(4_096, 0) == b"h" * 4_096
    disk.pwrite(b"n" * 4_096, 0)  # dirty: it is flushed first
    disk.refresh(4_096, 0)
    assert directly_read(disk, 4_096, 0) == disk.pread(4_096, 0) == b"n" * 4_096
    monkeypatch.setattr(disk, "read_past_cache", lambda size, offset: b"x" * size)
    with pytest.raises(OSError, match="page cache holds other bytes than the disk at offset 0, and keeps"):
        disk.refresh(4_096, 0)


def test_a_file_in_memory_has_nothing_below_the_cache(folder: Path) -> None:
    path = folder / "file"
    create_file(path, b"h" * 4_096, 1 << 20)
    disk = RealDisk(path)
    if has_no_disk(disk.fileno()):
        assert disk.read_past_cache(4_096, 0) is None
    disk.rewrite(b"n" * 4_096, 4_096)
    disk.refresh(4_096, 0)
    disk.discard(8_192)
    assert disk.pread(12_288, 0) == b"h" * 4_096 + b"n" * 4_096 + bytes(4_096)
    disk.close()


def test_read_only(tmp_path: Path) -> None:
    path = tmp_path / "file"
    create_file(path, b"head", 4096)
    disk = RealDisk(path, writable=False)
    with pytest.raises(OSError, match="Bad file descriptor"):
        disk.pwrite(b"x", 0)
    disk.close()


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    (tmp_path / "file.new").write_bytes(b"left by a crash" * 1000)

    def full(fd: int, data: bytes, offset: int) -> int:
        assert not path.exists()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="No space left"):
            create_file(path, b"head", 4096)
    assert list(tmp_path.iterdir()) == []
    create_file(path, b"head", 4096)
    assert path.read_bytes() == b"head".ljust(4096, b"\0")
    assert list(tmp_path.iterdir()) == [path]


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "s.bin"
    os.mkfifo(path)
    for read_only in (True, False):
        with pytest.raises(StreamFileUnavailable, match="cannot open the stream file: Illegal seek"):
            DataStreamer.open(path, read_only=read_only)
    with pytest.raises(StreamFileUnavailable, match="cannot open the stream file: "):
        compare_streams(path, path)


# --- reading and writing past the page cache ------------------------------------------------------------


SIZE = 8192


@pytest.fixture(params=["here", "shm"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file of three such pieces."""
    shm = Path("/dev/shm")
    if request.param == "shm" and not os.access(shm, os.W_OK):
        pytest.skip("needs a tmpfs at /dev/shm, as Linux mounts it")
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
            pytest.skip(
                "needs a file system with direct reads, as ext4 or XFS; --basetemp names a folder on one"
            )

        def in_parts(number: int, buffers: list[memoryview], offset: int) -> int:
            with memoryview(buffers[0]) as whole, whole[:4_096] as part:
                return read(number, [part], offset)

        monkeypatch.setattr(os, "preadv", in_parts)
        assert read_past_cache(fd, 2 * SIZE, 0) == b"a" * SIZE + b"b" * SIZE
    finally:
        os.close(fd)
