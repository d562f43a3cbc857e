"""The parsers of foreign files: block files, the zips and tars around them, and the objects of an archive.

As in `tests.fuzzing.parsers`, a function takes any bytes and returns; whatever it raises is a finding.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from contextlib import suppress
from typing import Final

import zstandard

from sluice.datastream.layout import PAGE_SIZE
from sluice.gateway.archive.errors import ArchiveDamaged
from sluice.gateway.archive.segment import SegmentName, StreamDescription, index_size, read_index
from sluice.publishers.blocks.block_archives import Archive
from sluice.publishers.blocks.block_files import decode_block, encode_block_file
from sluice.publishers.errors import ArchiveError, BlockFileError
from tests.fuzzing.stream_parsers import Target
from tests.nodes import make_blocks
from tests.vectors.maker import ARCHIVE

__all__ = ["FILE_TARGETS"]

_BLOCK_BYTES_MAX: Final = 1 << 20


def _run_archive(data: bytes) -> None:
    with suppress(ArchiveError):
        archive = Archive(io.BytesIO(data), len(data))
        for member in archive.members():
            read = archive.read(member.entry, member.size_bytes, _BLOCK_BYTES_MAX)
            assert len(read) <= _BLOCK_BYTES_MAX + 1


def _archives() -> list[bytes]:
    zipped, tarred = io.BytesIO(), io.BytesIO()
    names = ["0000000000000000001.blk.zstd", "a/2.blk", "x" * 120 + "/3.blk"]
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(zipfile.ZipInfo(name), name * 9)
    with tarfile.open(fileobj=tarred, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = len(name)
            tar.addfile(info, io.BytesIO(name.encode()))
    plain = tarred.getvalue()
    return [zipped.getvalue(), plain, gzip.compress(plain), zstandard.ZstdCompressor().compress(plain)]


def _run_block_file(data: bytes) -> None:
    with suppress(BlockFileError):
        decode_block(data, "1.blk", 1, _BLOCK_BYTES_MAX)


def _block_files() -> list[bytes]:
    block = make_blocks(2)[1]
    java = zstandard.ZstdCompressor(write_content_size=False).compress(block.to_bytes())
    return [encode_block_file(block, "blk"), encode_block_file(block, "blk.gz"), java]


def _run_segment(data: bytes) -> None:
    with suppress(ArchiveDamaged):
        size = index_size(data, "fuzz")
        segment = read_index(SegmentName(0, bytes(32)), data[-size:], len(data), "fuzz")
        for page in segment.pages_of(data, 0, 2, "fuzz"):
            assert len(page) == PAGE_SIZE


def _segments() -> list[bytes]:
    return [next((ARCHIVE / "segments").iterdir()).read_bytes()]


def _run_description(data: bytes) -> None:
    with suppress(ArchiveDamaged):
        StreamDescription.decode(data, "fuzz")


def _descriptions() -> list[bytes]:
    return [(ARCHIVE / "stream.json").read_bytes()]


FILE_TARGETS: Final = (
    Target("segment", _run_segment, _segments, 16_384),
    Target("stream-json", _run_description, _descriptions, 4_096),
    Target("archive", _run_archive, _archives, 16_384),
    Target("block-file", _run_block_file, _block_files, 16_384),
)
