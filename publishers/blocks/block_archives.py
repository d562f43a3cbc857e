"""Zip and tar files with blocks: lists of members, the bytes of one, and new zips. Nothing is ever unpacked.

    zip    the list at its end has the place of each member, and each can be read alone
    tar    its headers are read once, from the first to the last; then each member can be read alone
    tar in gzip or zstd: the same, but a member is reached by decompressing all before it

The first bytes of a file tell its kind, and a member's name its block number. An archive with a name that
leads out of it (`/x`, `../x`) is refused: no software of the field writes one.

Source: APPNOTE.TXT (PKWARE), POSIX pax (ustar), RFC 1952, RFC 8878.
"""

from __future__ import annotations

import gzip
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, Final, cast

import zstandard

from sluice.publishers.blocks.block_layouts import number_of_parts
from sluice.publishers.errors import ArchiveError
from sluice.publishers.limits import BLOCK_FILE_BYTES_MAX

__all__ = ["GZIP_MAGIC", "ZSTD_MAGIC", "Archive", "ArchiveMember", "write_zip"]

ARCHIVE_MEMBERS_MAX: Final = 1_000_000
"""The most that a block node can be told to put into one."""

ARCHIVE_LIST_BYTES_MAX: Final = 96 << 20
"""The list at the end of a zip, for that many members with the names of blocks."""

TAR_NAME_BYTES_MAX: Final = 64 * 1024
"""A name in a tar that is too long for a header."""

GZIP_MAGIC: Final = b"\x1f\x8b"
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZIP_MAGICS: Final = (b"PK\x03\x04", b"PK\x05\x06")
_RECORD_BYTES: Final = tarfile.BLOCKSIZE
_REGULAR_TYPES: Final = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_LONG_NAME_TYPES: Final = (tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
_OTHER_EXTENSION_TYPES: Final = (tarfile.GNUTYPE_LONGLINK, tarfile.XGLTYPE)
_ENCRYPTED: Final = 1
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others take memory as a member says
_PIECE_BYTES: Final = 1 << 20
_TRUNCATED: Final = "truncated: it ends in the middle of {}"


@dataclass(frozen=True, slots=True)
class ArchiveMember:
    """A block in an archive, with its stored size."""

    number: int
    name: str
    entry: int
    """Its position in a zip's list, or its first byte in a tar."""
    size_bytes: int


class Archive:
    """An open archive. Raises ArchiveError if it is none.

    Args:
        file: seekable; stays open while the archive is used.
    """

    def __init__(self, file: BinaryIO, size_bytes: int, *, members_max: int = ARCHIVE_MEMBERS_MAX) -> None:
        self._members_max = members_max
        self._zip: zipfile.ZipFile | None = None
        self._size_bytes: int | None = size_bytes
        with _faults_named():
            magic = file.read(len(ZSTD_MAGIC))
            file.seek(0)
            if magic in _ZIP_MAGICS:
                # It reads the whole list at once, and the file claims how long that is.
                try:
                    self._zip = zipfile.ZipFile(cast(BinaryIO, _BoundedReads(file)))
                except zipfile.BadZipFile as error:
                    raise ArchiveError(f"damaged, truncated or still being written: {error}") from error
                return
            self._tar: BinaryIO | _Unpacked = file
            if opened := _opener_of(magic):
                self._tar, self._size_bytes = _Unpacked(file, opened), None
            record = self._read_on(_RECORD_BYTES)
            self._tar.seek(0)
            if not _is_tar(record):
                begin = magic.hex(" ") if magic else "nothing: it is empty"
                expected = "N.blk, N.blk.gz, N.blk.zst, a zip or a tar"
                raise ArchiveError(f"not an archive: it begins with {begin}; expected {expected}")

    def members(self) -> Iterator[ArchiveMember]:
        """Yield the blocks in stored order. Raises ArchiveError if the archive is damaged or refused."""
        count = 0
        with _faults_named():
            for name, entry, size_bytes in self._in_zip() if self._zip is not None else self._in_tar():
                count += 1
                if count > self._members_max:
                    raise ArchiveError(f"more than {self._members_max} members")
                number = number_of_parts(_checked_parts(name))
                if number is not None and entry is not None:
                    yield ArchiveMember(number, name, entry, size_bytes)

    def read(self, entry: int, size_bytes: int, size_bytes_max: int) -> bytes:
        """Read a member, at most `size_bytes_max` and one byte. Raises ArchiveError if it is damaged."""
        with _faults_named():
            if self._zip is None:
                count = min(size_bytes, size_bytes_max + 1)
                self._tar.seek(entry)
                data = self._read_on(count)
                if len(data) < count:
                    raise ArchiveError(_TRUNCATED.format("a member"))
                return data
            entries = self._zip.infolist()
            if entry >= len(entries):
                raise ArchiveError(f"changed: it has {len(entries)} members, and had more than {entry}")
            info = entries[entry]
            if info.flag_bits & _ENCRYPTED:
                raise ArchiveError("encrypted: no block of the field is, and there is no key for it here")
            if info.compress_type not in _METHODS:
                known = "stored or deflated"
                raise ArchiveError(
                    f"a member is compressed with method {info.compress_type}; expected {known}"
                )
            with self._zip.open(info) as member:
                return member.read(size_bytes_max + 1)

    def _in_zip(self) -> Iterator[tuple[str, int | None, int]]:
        assert self._zip is not None
        for entry, info in enumerate(self._zip.infolist()):
            yield info.filename, entry, info.compress_size

    def _in_tar(self) -> Iterator[tuple[str, int | None, int]]:
        long_name: str | None = None
        at = 0
        while True:
            self._tar.seek(at)
            record = self._read_on(_RECORD_BYTES)
            if not record or record.count(0) == _RECORD_BYTES:
                return
            if len(record) < _RECORD_BYTES:
                raise ArchiveError(_TRUNCATED.format("a header"))
            info = tarfile.TarInfo.frombuf(record, "utf-8", "surrogateescape")
            begin = at + _RECORD_BYTES
            self._check_size(info, begin)
            if info.type in _LONG_NAME_TYPES:
                long_name = _long_name(self._extension(info), info.type) or long_name
                yield "", None, 0  # counts: a compressed tar may have any number of them
            elif info.type in _OTHER_EXTENSION_TYPES:
                yield "", None, 0
            else:
                yield long_name or info.name, begin if info.type in _REGULAR_TYPES else None, info.size
                long_name = None
            at = begin + info.size + -info.size % _RECORD_BYTES

    def _check_size(self, info: tarfile.TarInfo, begin: int) -> None:
        if info.size < 0:
            raise ArchiveError(f"damaged: {info.name} has {info.size} bytes")
        if self._size_bytes is not None and begin + info.size > self._size_bytes:
            reason = f"{info.name} would end at byte {begin + info.size:,}, the file at {self._size_bytes:,}"
            raise ArchiveError(f"truncated: {reason}")
        if self._size_bytes is None and info.size > BLOCK_FILE_BYTES_MAX:
            raise ArchiveError(
                f"{info.name} has {info.size:,} bytes and would have to be decompressed to come to what is "
                f"after it; expected at most {BLOCK_FILE_BYTES_MAX:,}"
            )

    def _extension(self, info: tarfile.TarInfo) -> bytes:
        if info.size > TAR_NAME_BYTES_MAX:
            got = f"a name of {info.size:,} bytes"
            raise ArchiveError(f"{got}; expected at most {TAR_NAME_BYTES_MAX:,}")
        data = self._read_on(info.size)
        if len(data) < info.size:
            raise ArchiveError(_TRUNCATED.format("a name"))
        return data

    def _read_on(self, count: int) -> bytes:
        """Read so many bytes, fewer only at the end."""
        pieces = []
        while count and (piece := self._tar.read(count)):
            pieces.append(piece)
            count -= len(piece)
        return b"".join(pieces)


def write_zip(file: BinaryIO, members: Iterable[tuple[str, bytes]]) -> None:
    """Write a zip as a block node does: stored, because its members are compressed.

    Without times, the same members give the same bytes.
    """
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members:
            archive.writestr(zipfile.ZipInfo(name), data)


class _Unpacked:
    """The content of a compressed file, read forwards; seeking back begins again."""

    def __init__(self, raw: BinaryIO, opened: Callable[[BinaryIO], BinaryIO]) -> None:
        self._raw = raw
        self._opened = opened
        self._inside = opened(raw)
        self._at = 0

    def read(self, count: int) -> bytes:
        data = self._inside.read(count)
        self._at += len(data)
        return data

    def seek(self, position: int) -> None:
        if position < self._at:
            self._raw.seek(0)
            self._inside, self._at = self._opened(self._raw), 0
        while self._at < position and self.read(min(position - self._at, _PIECE_BYTES)):
            pass


class _BoundedReads:
    """A file that refuses to read too much at once."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, count: int = -1) -> bytes:
        if count > ARCHIVE_LIST_BYTES_MAX:
            got = f"a list of members of {count:,} bytes"
            raise ArchiveError(f"{got}; expected at most {ARCHIVE_LIST_BYTES_MAX:,}")
        return self._file.read(count)

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


def _opener_of(magic: bytes) -> Callable[[BinaryIO], BinaryIO] | None:
    if magic.startswith(GZIP_MAGIC):
        return lambda raw: cast(BinaryIO, gzip.GzipFile(fileobj=raw))
    if magic == ZSTD_MAGIC:
        return lambda raw: cast(BinaryIO, zstandard.ZstdDecompressor().stream_reader(raw, closefd=False))
    return None


def _is_tar(record: bytes) -> bool:
    """The record is a header, or the end of an empty tar."""
    try:
        tarfile.TarInfo.frombuf(record, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return len(record) == _RECORD_BYTES == record.count(0)
    return True


def _long_name(data: bytes, kind: bytes) -> str | None:
    if kind == tarfile.GNUTYPE_LONGNAME:
        return data.rstrip(b"\0").decode("utf-8", "surrogateescape")
    while data:
        length = data.split(b" ", 1)[0]
        if not length.isdigit() or not len(length) < int(length) <= len(data):
            raise ArchiveError("damaged: an extended header that does not parse")
        key, _, value = data[len(length) + 1 : int(length) - 1].partition(b"=")
        if key == b"path":
            return value.decode("utf-8", "surrogateescape")
        data = data[int(length) :]
    return None


def _checked_parts(name: str) -> list[str]:
    """Refuse a name that leads out of the archive."""
    parts = name.split("/")
    if name.startswith(("/", "\\")) or ".." in parts:
        raise ArchiveError(f"a member is named {name!r}, which leads out of it")
    return parts


@contextmanager
def _faults_named() -> Iterator[None]:
    try:
        yield
    except EOFError as error:
        raise ArchiveError("truncated: the compressed data ends too early") from error
    except (
        zipfile.BadZipFile,
        tarfile.TarError,
        zlib.error,
        gzip.BadGzipFile,
        zstandard.ZstdError,
    ) as error:
        raise ArchiveError(f"damaged: {error}") from error
    except (
        ValueError,
        struct.error,
        NotImplementedError,
    ) as error:  # offsets, names and versions that are none
        raise ArchiveError(f"damaged: {error}") from error
