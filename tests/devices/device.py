"""A file system on a device that can refuse: a loop device whose file lies on a tmpfs.

    folder/memory       tmpfs; when shrunk, it has no page for new places
    folder/memory/disk  the device, sparse
    folder/disk         the file system, on a loop device

While the device refuses, existing places can be written again: journal, inodes, the stream's header. So the
file system goes on, and only data in new places are lost, as on a full thin volume.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

KINDS = ("ext4", "xfs", "btrfs")
_MEMORY_BYTES = 900 << 20
_DISK_BYTES = 320 << 20
_BLOCK_SIZE = 4096
_AG_HEAD_BYTES = 1 << 17
_FORMAT = {
    "ext4": "mkfs.ext4 -q -b 4096 -N 256 -J size=4 -O ^resize_inode "
    "-E nodiscard,lazy_itable_init=0,lazy_journal_init=0",
    "xfs": "mkfs.xfs -q -K -f",
    "btrfs": "mkfs.btrfs -q -K -f -m single",
}
_PACKAGES = {"ext4": "e2fsprogs", "xfs": "xfsprogs", "btrfs": "btrfs-progs"}


class DeviceError(Exception):
    """A command failed."""


def why_not(kind: str) -> str | None:
    """Return why no device of a kind is possible here; None: it is."""
    if os.geteuid() != 0:
        return "needs root, which can mount a file system"
    if not Path("/dev/loop-control").exists():
        return "needs loop devices: modprobe loop"
    for program in ("mount", "umount", "losetup", f"mkfs.{kind}"):
        if shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None:
            return f"needs {program}; the packages mount and {_PACKAGES[kind]} have it"
    if kind not in Path("/proc/filesystems").read_text("utf-8"):
        return f"needs {kind} in the kernel: modprobe {kind}"
    return None


def command(*words: object) -> str:
    """Run a command; return its output.

    Raises:
        DeviceError: it failed.
    """
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise DeviceError(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout.strip()


class Device:
    """One device with its file system, mounted at `disk`; `with` leaves nothing behind.

    Args:
        folder: an empty one.
        kind: of the file system.

    Raises:
        DeviceError: it is impossible here.
    """

    def __init__(self, folder: Path, kind: str) -> None:
        self.kind = kind
        self.disk = folder / "disk"
        self._memory = folder / "memory"
        self._image = self._memory / "disk"

    def __enter__(self) -> Self:
        """Make it."""
        try:
            self._memory.mkdir()
            self.disk.mkdir()
            command("mount", "-t", "tmpfs", "-o", f"size={_MEMORY_BYTES}", "none", self._memory)
            with self._image.open("xb") as file:
                file.truncate(_DISK_BYTES)
            command(*_FORMAT[self.kind].split(), self._image)
            self._place_metadata()
            self.mount()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Take it away."""
        self.close()

    def mount(self) -> None:
        """Mount it; unmounting also frees the loop device."""
        loop = command("losetup", "-f", "--show", self._image)
        try:
            # A loop device treats a partly written request as done, so requests are of one page.
            Path(f"/sys/block/{Path(loop).name}/queue/max_sectors_kb").write_text("4", "ascii")
            command("mount", loop, self.disk)
        finally:
            command("losetup", "-d", loop)

    def unmount(self) -> None:
        """Unmount it, and drop all caches.

        Raises:
            DeviceError: somebody has files open.
        """
        command("umount", self.disk)

    @property
    def is_read_only(self) -> bool:
        """Return whether the file system stopped itself after a failed write of its own."""
        return bool(os.statvfs(self.disk).f_flag & os.ST_RDONLY)

    def refuse(self) -> None:
        """Refuse new places on the device from now on."""
        os.sync()
        while True:
            used = os.statvfs(self._memory)
            size = (used.f_blocks - used.f_bfree) * used.f_frsize
            with contextlib.suppress(DeviceError):  # grown meanwhile
                command("mount", "-o", f"remount,size={size}", self._memory)
                return

    def take(self) -> None:
        """Accept everything again."""
        command("mount", "-o", f"remount,size={_MEMORY_BYTES}", self._memory)

    def close(self) -> None:
        """Remove it in any case."""
        for folder in (self.disk, self._memory):
            for words in (("umount",), ("umount", "-l")):
                with contextlib.suppress(DeviceError):
                    command(*words, folder)
                if not os.path.ismount(folder):
                    break
                time.sleep(0.1)

    def _place_metadata(self) -> None:
        """Allocate the file system's own data, which must not fail in place of the stream's."""
        with self._image.open("r+b") as file:
            for start, end in self._metadata(file.read(_BLOCK_SIZE)):
                for offset in range(start, end, 1 << 20):
                    file.seek(offset)
                    data = file.read(min(1 << 20, end - offset))
                    file.seek(offset)
                    file.write(data)

    def _metadata(self, first_block: bytes) -> Iterator[tuple[int, int]]:
        """Yield the ranges of metadata: everything not free; for XFS the log, and the groups' beginnings.

        Offsets in its superblock are those of Linux, fs/xfs/libxfs/xfs_format.h, `struct xfs_dsb`.
        """
        if self.kind == "ext4":
            text, start = command("dumpe2fs", self._image), 0
            for line in re.findall(r"^  Free blocks: (.+)$", text, re.MULTILINE):
                for free in line.split(", "):
                    first, _, last = free.partition("-")
                    yield start, int(first) * _BLOCK_SIZE
                    start = (int(last or first) + 1) * _BLOCK_SIZE
        elif self.kind == "xfs":
            (block_size,) = struct.unpack_from(">I", first_block, 4)
            (log_start,) = struct.unpack_from(">Q", first_block, 48)
            group_blocks, group_count, _, log_blocks = struct.unpack_from(">4I", first_block, 84)
            shift = first_block[124]
            start = (log_start >> shift) * group_blocks + (log_start & ((1 << shift) - 1))
            yield start * block_size, (start + log_blocks) * block_size
            for number in range(group_count):
                group_start = number * group_blocks * block_size
                yield group_start, group_start + _AG_HEAD_BYTES
