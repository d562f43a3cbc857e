"""Block files: one serialized `Block` each, plain or compressed; the file's name is the block's number.

    12.blk    12.blk.gz    12.blk.zst        leading zeros are fine: 000000000012.blk.gz

Other files in a folder are left alone. Files are written under a temporary name and then renamed, so that a
reader never sees half a block.
Source: wire.md section 6 (`Block {repeated BlockItem items=1}`).
"""

from __future__ import annotations

import gzip
import io
import itertools
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final, Literal, get_args

import zstandard

from gateway.block import Block
from gateway.block_numbers import BLOCK_NUMBER_MAX
from gateway.errors import BlockRefused
from gateway.regular_files import open_regular
from publishers.errors import BlockFileError, BlockListError
from publishers.limits import BLOCK_FILE_BYTES_MAX

__all__ = [
    "BlockFormat",
    "block_file_name",
    "check_no_gaps",
    "encode_block_file",
    "list_block_files",
    "numbered_block_files",
    "read_block_file",
    "read_block_from",
    "read_chain",
    "write_block_file",
]

BlockFormat = Literal["blk", "blk.gz", "blk.zst"]
"""The endings of block files; each says how the bytes are compressed."""

_NAME: Final = re.compile(r"(?P<number>[0-9]{1,20})\.(?P<format>blk|blk\.gz|blk\.zst)", re.ASCII)
_NO_BLOCK_FILE_NAME: Final = "not a block file name (N.blk, N.blk.gz, N.blk.zst)"
_COMPRESSED_FRAME_BYTES: Final = 65_536  # of headers, a file name among them
_GZIP_LEVEL: Final = 6
_ZSTD_LEVEL: Final = 3


def block_file_name(number: int, block_format: BlockFormat) -> str:
    """Name the file of a block."""
    return f"{number}.{block_format}"


def list_block_files(folder: Path) -> list[tuple[int, Path]]:
    """List the block files of a folder, not of folders in it.

    Returns:
        Pairs of block number and path, by number. There may be gaps, see `check_no_gaps`.

    Raises:
        BlockListError: the folder cannot be read, or has the same number twice.
    """
    try:
        names = [path.name for path in folder.iterdir()]
    except NotADirectoryError as error:
        raise BlockListError(str(folder), "a file, expected the folder that block files are in") from error
    except OSError as error:
        raise BlockListError(str(folder), error.strerror or str(error)) from error
    return [(number, folder / name) for number, name in numbered_block_files(str(folder), names)]


def numbered_block_files(folder: str, names: Iterable[str]) -> list[tuple[int, str]]:
    """Pick the names of block files out of the names in a folder.

    Args:
        folder: for the error.
        names: of everything in it, in any order.

    Returns:
        Pairs of block number and name, by number.

    Raises:
        BlockListError: the same number is there twice.
    """
    found: dict[int, str] = {}
    for name in sorted(names):
        parsed = _parse_name(name)
        if parsed is None:
            continue
        number, _ = parsed
        if number in found:
            raise BlockListError(folder, f"block {number} is there twice: {found[number]} and {name}")
        found[number] = name
    return sorted(found.items())


def check_no_gaps(folder: Path | str, files: Sequence[tuple[int, Path | str]]) -> None:
    """Check that the files make one chain: at least one, and no number missing.

    Args:
        folder: for the error.
        files: by number, as `list_block_files` gives them.

    Raises:
        BlockListError: naming the numbers that are missing.
    """
    if not files:
        raise BlockListError(str(folder), "no block files (N.blk, N.blk.gz, N.blk.zst)")
    for (before, _), (after, path) in itertools.pairwise(files):
        name = Path(path).name
        if after == before + 2:
            raise BlockListError(str(folder), f"block {before + 1} is missing (before {name})")
        if after != before + 1:
            raise BlockListError(
                str(folder), f"blocks {before + 1} to {after - 1} are missing (before {name})"
            )


def read_block_file(path: Path, size_bytes_max: int = BLOCK_FILE_BYTES_MAX) -> Block:
    """Read one block.

    Args:
        path: its name says the number and how it is compressed.
        size_bytes_max: largest size after decompression.

    Raises:
        BlockFileError: the name is none of a block file; the file cannot be read, is truncated, damaged or
        too     large; or it holds another block than its name says.
    """
    if _parse_name(path.name) is None:
        raise BlockFileError(str(path), _NO_BLOCK_FILE_NAME)
    try:
        with open_regular(path) as file:
            return read_block_from(file, str(path), size_bytes_max)
    except OSError as error:
        raise BlockFileError(str(path), error.strerror or str(error)) from error


def read_block_from(file: BinaryIO, path: str, size_bytes_max: int = BLOCK_FILE_BYTES_MAX) -> Block:
    """Read one block from an open file, wherever it lies.

    Args:
        file: at its beginning, for bytes.
        path: its last part says the number and how the bytes are compressed; for the error, too.
        size_bytes_max: largest size after decompression.

    Raises:
        BlockFileError: as `read_block_file`.
        OSError: from the file.
    """
    parsed = _parse_name(Path(path).name)
    if parsed is None:
        raise BlockFileError(path, _NO_BLOCK_FILE_NAME)
    number, block_format = parsed
    try:
        serialized = _read_bytes(file, block_format, size_bytes_max)
    except EOFError as error:
        raise BlockFileError(path, "truncated: the compressed data ends too early") from error
    except (gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as error:
        raise BlockFileError(path, f"damaged: {error}") from error
    if len(serialized) > size_bytes_max:
        raise BlockFileError(path, f"more than {size_bytes_max} bytes, the most that a block may have")
    try:
        block = Block.from_bytes(serialized)
    except BlockRefused as error:
        raise BlockFileError(path, f"not a block: {error}") from error
    if block.number != number:
        raise BlockFileError(path, f"holds block {block.number}, not {number}")
    return block


def read_chain(folder: Path) -> Iterator[Block]:
    """Read the blocks of a folder in order of number.

    Raises:
        BlockListError, BlockFileError: as the functions above, the first before the first block.
    """
    files = list_block_files(folder)
    check_no_gaps(folder, files)
    return (read_block_file(path) for _, path in files)


def write_block_file(path: Path, block: Block) -> None:
    """Write one block; the same block gives the same bytes.

    Args:
        path: its name must be that of the block, its folder must exist. A file of that name is replaced.

    Raises:
        BlockFileError: the name is not the block's, or the file cannot be written; no part of it is left.
    """
    parsed = _parse_name(path.name)
    if parsed is None or parsed[0] != block.number:
        raise BlockFileError(str(path), f"not a name for block {block.number}")
    data = encode_block_file(block, parsed[1])
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise BlockFileError(str(path), error.strerror or str(error)) from error


def encode_block_file(block: Block, block_format: BlockFormat) -> bytes:
    """Return the bytes of a block file; the same block gives the same bytes."""
    return _compress(block.to_bytes(), block_format)


def _parse_name(name: str) -> tuple[int, BlockFormat] | None:
    match = _NAME.fullmatch(name)
    if match is None or int(match["number"]) > BLOCK_NUMBER_MAX:
        return None
    for block_format in get_args(BlockFormat):
        if match["format"] == block_format:
            return int(match["number"]), block_format
    return None


def _read_bytes(file: BinaryIO, block_format: BlockFormat, size_bytes_max: int) -> bytes:
    """Read a file and decompress it; of one that is too long, one byte beyond the limit at least."""
    if block_format == "blk":
        return file.read(size_bytes_max + 1)
    # What cannot be compressed gets longer: by a part in 256 with zstd (ZSTD_COMPRESSBOUND), less with gzip.
    compressed_max = size_bytes_max + size_bytes_max // 128 + _COMPRESSED_FRAME_BYTES
    compressed = file.read(compressed_max + 1)
    if len(compressed) > compressed_max:
        return compressed
    if block_format == "blk.gz":
        with gzip.open(io.BytesIO(compressed)) as unzipped:
            return unzipped.read(size_bytes_max + 1)
    return _read_zstd(compressed, size_bytes_max)


def _read_zstd(compressed: bytes, size_bytes_max: int) -> bytes:
    decompressor = zstandard.ZstdDecompressor()
    # The usual file says how much it holds: one pass, never beyond that. What fails is looked at again below,
    # to say how it is damaged.
    with suppress(zstandard.ZstdError):
        if 0 < zstandard.frame_content_size(compressed) <= size_bytes_max:
            return decompressor.decompress(compressed, allow_extra_data=False)
    with decompressor.stream_reader(compressed) as reader:
        data = reader.read(size_bytes_max + 1)
    if len(data) > size_bytes_max:
        return data
    # The reader takes the end of the file for the end of the frame. That the frame really ended is known by
    # the other interface only, which cannot be bounded; so it runs second.
    frame = decompressor.decompressobj()
    frame.decompress(compressed)
    if not frame.eof:
        raise EOFError
    if frame.unused_data:
        raise zstandard.ZstdError(f"{len(frame.unused_data)} bytes after the end of the frame")
    return data


def _compress(serialized: bytes, block_format: BlockFormat) -> bytes:
    if block_format == "blk":
        return serialized
    if block_format == "blk.gz":
        return gzip.compress(serialized, _GZIP_LEVEL, mtime=0)
    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(serialized)
