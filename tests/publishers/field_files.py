"""Blocks as the software of the field stores them, for tests."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import zstandard

from sluice.gateway.blocks.block import Block

__all__ = ["in_bucket", "in_consensus_folder", "in_recent_folder", "in_tar", "in_zip", "java_zstd"]


def java_zstd(block: Block) -> bytes:
    """The block as a block node stores it: zstd of level 1, without its length."""
    return zstandard.ZstdCompressor(level=1, write_content_size=False).compress(block.to_bytes())


def in_consensus_folder(folder: Path, blocks: Sequence[Block]) -> None:
    """Write what a consensus node has: each block, and the mark that it is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    for block in blocks:
        (folder / f"{block.number:036}.blk.gz").write_bytes(gzip.compress(block.to_bytes()))
        (folder / f"{block.number:036}.mf").touch()


def in_recent_folder(root: Path, blocks: Sequence[Block]) -> None:
    """Write what a block node has of recent blocks."""
    for block in blocks:
        digits = f"{block.number:019}"
        folder = root.joinpath(*(digits[at : min(at + 3, 16)] for at in range(0, 16, 3)))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{digits}.blk.zstd").write_bytes(java_zstd(block))


def in_bucket(root: Path, blocks: Sequence[Block]) -> None:
    """Write what a block node uploads block by block."""
    for block in blocks:
        digits = f"{block.number:019}"
        folder = root / digits[:4] / digits[4:8] / digits[8:12] / digits[12:16]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{digits[16:]}.blk.zstd").write_bytes(java_zstd(block))


def in_zip(path: Path, blocks: Sequence[Block]) -> None:
    """Write a zip as a block node does: stored, because its members are compressed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for block in blocks:
            archive.writestr(f"{block.number:019}.blk.zstd", java_zstd(block))


def in_tar(path: Path, blocks: Sequence[Block], mode: str = "w") -> None:
    """Write a tar as a block node does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode, format=tarfile.USTAR_FORMAT) as archive:  # type: ignore[call-overload]
        for block in blocks:
            data = java_zstd(block)
            info = tarfile.TarInfo(f"{block.number:019}.blk.zstd")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
