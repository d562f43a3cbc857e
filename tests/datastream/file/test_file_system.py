"""Facts about file systems, here and from older kernels."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.datastream.file import file_system
from sluice.datastream.file.file_system import (
    EXT,
    TMPFS,
    XFS,
    file_system_of,
    flush_folder,
    has_no_disk,
    is_cached,
    takes_direct_writes,
)

SHARED_MEMORY = Path("/dev/shm")


def answering(mask: int, dio_mem_align: int, dio_offset_align: int = 512) -> Callable[..., int]:
    def statx(fd: int, path: bytes, flags: int, asked: int, answer: ctypes.Array[ctypes.c_char]) -> int:
        assert (path, flags, asked) == (b"", 0x1000, 0x2000)
        struct.pack_into("=I", answer, 0, mask)
        struct.pack_into("=2I", answer, 152, dio_mem_align, dio_offset_align)
        return 0

    return statx


@pytest.mark.parametrize(
    ("kind", "statx", "expected"),
    [
        (EXT, answering(0x3FFF, 512), True),
        (EXT, answering(0x3FFF, 512, 4_096), True),
        (EXT, answering(0x3FFF, 512, 16_384), False),  # more than our alignment
        (EXT, answering(0x3FFF, 0), False),  # data=journal
        (EXT, answering(0x1FFF, 512), False),  # a kernel that does not say: the value means nothing
        (EXT, lambda *_: -1, False),
        (EXT, None, False),  # a C library without it
        (XFS, answering(0x1FFF, 0), True),
        (XFS, None, True),
    ],
)
def test_direct_writes_as_the_kernel_says(
    monkeypatch: pytest.MonkeyPatch, kind: int, statx: Callable[..., int] | None, expected: bool
) -> None:
    monkeypatch.setattr(file_system, "file_system_of", lambda fd: kind)
    monkeypatch.setattr(file_system, "_statx", statx)
    assert takes_direct_writes(0) is expected


@pytest.mark.skipif(
    not SHARED_MEMORY.is_mount() or not os.access(SHARED_MEMORY, os.W_OK),
    reason="needs a tmpfs at /dev/shm, as Linux mounts it",
)
def test_tmpfs_writes_through_the_cache() -> None:
    path = SHARED_MEMORY / f"sluice-test-{os.getpid()}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        path.unlink()
        assert file_system_of(fd) == TMPFS
        assert not takes_direct_writes(fd)
        assert has_no_disk(fd)
    finally:
        os.close(fd)


def test_a_descriptor_of_nothing_has_no_file_system() -> None:
    assert file_system_of(-1) == 0
    assert not takes_direct_writes(-1)


def test_what_the_page_cache_holds(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 65_536)
    with path.open("r+b") as file:
        if has_no_disk(file.fileno()):
            pytest.skip("needs a file system with a disk; --basetemp names a folder on one")
        assert is_cached(file.fileno(), 65_536, 0)
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert not is_cached(file.fileno(), 65_536, 0)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(file.fileno(), 1, 32_768)
        assert is_cached(file.fileno(), 65_536, 0)
        assert not is_cached(file.fileno(), 4_096, 0)


def test_the_names_in_a_folder_are_flushed_by_its_own_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[Path] = []
    descriptors = Path("/proc/self/fd")
    monkeypatch.setattr(os, "fsync", lambda number: flushed.append((descriptors / str(number)).readlink()))
    flush_folder(tmp_path)
    assert flushed == [tmp_path]
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        flush_folder(tmp_path / "file")
