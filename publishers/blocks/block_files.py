"""Block files: one serialized `Block` each, plain or compressed, with its number in the name.

    12.blk    12.blk.gz    12.blk.zst        and the names of other software, see `block_layouts`

A file is written under a temporary name and then renamed, so that no reader sees half a block.

Source: docs/spec/wire.md section 3; RFC 1952 (gzip), RFC 8878 (zstd).
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Final

import zstandard

from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.errors import BlockRefused
from sluice.gateway.regular_files import open_regular
from sluice.publishers.blocks.block_archives import GZIP_MAGIC, ZSTD_MAGIC
from sluice.publishers.blocks.block_layouts import BlockFormat, number_of_parts
from sluice.publishers.errors import BlockFileError
from sluice.publishers.limits import BLOCK_FILE_BYTES_MAX

__all__ = [
    "NO_BLOCK_FILE_NAME",
    "decode_block",
    "encode_block_file",
    "read_block_file",
    "stored_bytes_max",
    "sync_folder",
    "write_block_file",
    "write_output",
    "write_whole",
]

NO_BLOCK_FILE_NAME: Final = "not a block file name (N.blk, N.blk.gz, N.blk.zst, N.blk.zstd)"
_COMPRESSED_FRAME_BYTES: Final = 65_536  # of headers, a file name among them
_ITEMS_TAG: Final = b"\x0a"
_MAGIC_BYTES: Final = 4
_PIECE_BYTES: Final = 4_096  # 32 bits of zstd can stand for 128 KiB, so a piece gives 128 MiB at most
_GZIP_LEVEL: Final = 6
_ZSTD_LEVEL: Final = 3


def read_block_file(path: Path, size_bytes_max: int = BLOCK_FILE_BYTES_MAX) -> Block:
    """Read one block; the file's name has its number. Raises BlockFileError as `decode_block`."""
    number = number_of_parts(path.absolute().parts)
    if number is None:
        raise BlockFileError(str(path), NO_BLOCK_FILE_NAME)
    try:
        with open_regular(path) as file:
            stored = file.read(stored_bytes_max(size_bytes_max) + 1)
    except OSError as error:
        raise BlockFileError(str(path), error.strerror or str(error)) from error
    return decode_block(stored, str(path), number, size_bytes_max)


def stored_bytes_max(size_bytes_max: int = BLOCK_FILE_BYTES_MAX) -> int:
    """Return the longest stored form of a block: zstd adds up to 1/256 (ZSTD_COMPRESSBOUND), gzip less."""
    return size_bytes_max + size_bytes_max // 128 + _COMPRESSED_FRAME_BYTES


def decode_block(stored: bytes, path: str, number: int, size_bytes_max: int = BLOCK_FILE_BYTES_MAX) -> Block:
    """Return the block in the bytes of a file or of a member of an archive.

    Args:
        stored: the bytes; of a longer file, `stored_bytes_max` and one more are enough.

    Raises:
        BlockFileError: it is empty, truncated, damaged, too large, or another block.
    """
    if not stored:
        raise BlockFileError(
            path, "empty (0 bytes): it is still being written, or its writer has ended early"
        )
    try:
        serialized = _decompressed(stored, size_bytes_max)
    except EOFError as error:
        raise BlockFileError(path, "truncated: the compressed data ends too early") from error
    except (gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as error:
        raise BlockFileError(path, f"damaged: {error}") from error
    if len(serialized) > size_bytes_max:
        raise BlockFileError(path, f"more than {size_bytes_max} bytes, the most that a block may have")
    try:
        block = Block.from_bytes(serialized)
    except BlockRefused as error:
        reason = f"not a block: {error}"
        if serialized is stored and not stored.startswith(_ITEMS_TAG):
            expected = "gzip (1f 8b), zstd (28 b5 2f fd) or a serialized block (0a)"
            reason = f"not a block: it begins with {stored[:_MAGIC_BYTES].hex(' ')}, expected {expected}"
        raise BlockFileError(path, reason) from error
    if block.number != number:
        raise BlockFileError(path, f"holds block {block.number}, expected {number} by its name")
    return block


def write_block_file(path: Path, block: Block, *, is_flushed: bool = False) -> None:
    """Write one block, as `write_whole`. The same block gives the same bytes."""
    if number_of_parts(path.absolute().parts) != block.number:
        raise BlockFileError(str(path), f"not a name for block {block.number}")
    write_whole(path, encode_block_file(block, _format_of(path.name)), is_flushed=is_flushed)


def write_whole(path: Path, data: bytes, *, is_flushed: bool) -> None:
    """Write a file so that nobody ever sees half of it; replace one of that name.

    If `is_flushed`, its bytes are on the disk before it has its name; `sync_folder` flushes the name.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            if is_flushed:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise BlockFileError(str(path), error.strerror or str(error)) from error


def write_output(path: Path, data: bytes) -> None:
    """Write a file that a user has named: whole, flushed, where a link leads; or into a device or a pipe."""
    if path.is_file():
        write_whole(path.resolve(), data, is_flushed=True)
        return
    if not path.exists() and not path.is_symlink():
        write_whole(path, data, is_flushed=True)
        return
    try:
        path.write_bytes(data)  # a device, somebody's pipe, or a link that leads nowhere
    except OSError as error:
        raise BlockFileError(str(path), error.strerror or str(error)) from error


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder. Raises OSError if the system refuses."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def encode_block_file(block: Block, block_format: BlockFormat) -> bytes:
    """Return the bytes of a block file."""
    serialized = block.to_bytes()
    if block_format == "blk":
        return serialized
    if block_format == "blk.gz":
        return gzip.compress(serialized, _GZIP_LEVEL, mtime=0)
    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(serialized)


def _format_of(name: str) -> BlockFormat:
    endings: tuple[BlockFormat, ...] = ("blk.gz", "blk.zst", "blk.zstd")
    return next((ending for ending in endings if name.endswith(f".{ending}")), "blk")


def _decompressed(stored: bytes, size_bytes_max: int) -> bytes:
    """Of a block that is too long, return at least one byte more than the limit."""
    if len(stored) > stored_bytes_max(size_bytes_max):
        return stored
    if stored.startswith(GZIP_MAGIC):
        with gzip.open(io.BytesIO(stored)) as unzipped:
            return unzipped.read(size_bytes_max + 1)
    if stored.startswith(ZSTD_MAGIC):
        return _unzstd(stored, size_bytes_max)
    return stored


def _unzstd(stored: bytes, size_bytes_max: int) -> bytes:
    decompressor = zstandard.ZstdDecompressor()
    # Our files state their content's size, which bounds one pass.
    with suppress(zstandard.ZstdError):
        if 0 < zstandard.frame_content_size(stored) <= size_bytes_max:
            return decompressor.decompress(stored, allow_extra_data=False)
    # Java's files do not. Only this interface finds the end of the frame; it has no bound, so it gets pieces.
    frame = decompressor.decompressobj()
    data, size_bytes = [], 0
    for start in range(0, len(stored), _PIECE_BYTES):
        data.append(frame.decompress(stored[start : start + _PIECE_BYTES]))
        size_bytes += len(data[-1])
        if size_bytes > size_bytes_max:
            return b"".join(data)
        if frame.eof:
            after = len(stored) - start - _PIECE_BYTES
            after = max(after, 0) + len(frame.unused_data)
            if after:
                raise zstandard.ZstdError(f"{after} bytes after the end of the frame")
            return b"".join(data)
    raise EOFError
