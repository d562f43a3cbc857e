"""Block files: every format, every way to be wrong."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from sluice.gateway.blocks.block import Block
from sluice.publishers.blocks.block_files import encode_block_file, read_block_file, write_block_file
from sluice.publishers.blocks.block_layouts import BlockFormat, path_in
from sluice.publishers.blocks.block_places import read_chain
from sluice.publishers.blocks.maker import BlockMaker, key_of_seed
from sluice.publishers.errors import BlockFileError
from tests.publishers.data import needs_real_blocks, real_chain

FORMATS: list[BlockFormat] = ["blk", "blk.gz", "blk.zst", "blk.zstd"]
BLOCKS = list(BlockMaker(seed=7, key=key_of_seed(7)).blocks(3))


def refusal(path: Path, size_bytes_max: int = 1 << 20) -> str:
    with pytest.raises(BlockFileError) as caught:
        read_block_file(path, size_bytes_max)
    assert caught.value.path == str(path)
    return caught.value.reason


@pytest.mark.parametrize("block_format", FORMATS)
def test_what_is_written_is_read(tmp_path: Path, block_format: BlockFormat) -> None:
    for block in BLOCKS:
        write_block_file(tmp_path / path_in("plain", block.number, block_format), block)
    assert list(read_chain(tmp_path)) == BLOCKS
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{n}.{block_format}" for n in range(3)]


@pytest.mark.parametrize("block_format", FORMATS)
def test_the_same_block_gives_the_same_file(tmp_path: Path, block_format: BlockFormat) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        write_block_file(tmp_path / folder / f"1.{block_format}", BLOCKS[1])
    one, two = (next((tmp_path / folder).iterdir()).read_bytes() for folder in ("one", "two"))
    assert one == two


def test_names_may_be_padded(tmp_path: Path) -> None:
    path = tmp_path / "000000000002.blk.zst"
    write_block_file(path, BLOCKS[2])
    assert read_block_file(path) == BLOCKS[2]


@pytest.mark.parametrize("ending", ["blk", "blk.gz", "blk.zst", "blk.zstd"])
def test_the_first_bytes_tell_the_compression_and_not_the_name(tmp_path: Path, ending: str) -> None:
    """As in block nodes: an uncompressed `.zstd`, and the other way round."""
    path = tmp_path / f"1.{ending}"
    for block_format in FORMATS:
        path.write_bytes(encode_block_file(BLOCKS[1], block_format))
        assert read_block_file(path) == BLOCKS[1]


def test_zstd_as_java_writes_it_does_not_say_its_length(tmp_path: Path) -> None:
    path = tmp_path / "1.blk.zstd"
    large = Block.from_items([BLOCKS[1].items[0], b"\x22\x80\x80\x40" + os.urandom(1 << 20)])
    path.write_bytes(zstandard.ZstdCompressor(level=1, write_content_size=False).compress(large.to_bytes()))
    assert read_block_file(path) == large
    path.write_bytes(path.read_bytes() + b"xyz")
    assert refusal(path, 1 << 22) == "damaged: 3 bytes after the end of the frame"


def test_a_bucket_s_folders_are_part_of_the_number(tmp_path: Path) -> None:
    folder = tmp_path / "0000" / "0000" / "0000" / "0000"
    folder.mkdir(parents=True)
    write_block_file(folder / "002.blk.zstd", BLOCKS[2])
    assert read_block_file(folder / "002.blk.zstd") == BLOCKS[2]
    moved = folder.rename(folder.parent / "0001")
    assert refusal(moved / "002.blk.zstd") == "holds block 2, expected 1002 by its name"


@pytest.mark.parametrize("block_format", ["blk.gz", "blk.zst"])
def test_a_truncated_file_is_refused(tmp_path: Path, block_format: BlockFormat) -> None:
    path = tmp_path / f"1.{block_format}"
    write_block_file(path, BLOCKS[1])
    whole = path.read_bytes()
    for size in (len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert refusal(path) == "truncated: the compressed data ends too early"


def test_a_truncated_stream_of_unknown_length_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "1.blk.zst"
    compressor = zstandard.ZstdCompressor(write_content_size=False)
    path.write_bytes(compressor.compress(BLOCKS[1].to_bytes())[:-1])
    assert refusal(path) == "truncated: the compressed data ends too early"


def test_a_truncated_plain_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "1.blk"
    path.write_bytes(BLOCKS[1].to_bytes()[:-1])
    assert refusal(path).startswith("not a block: ")
    path.write_bytes(b"")
    assert refusal(path) == "empty (0 bytes): it is still being written, or its writer has ended early"


@pytest.mark.parametrize("block_format", FORMATS)
def test_a_damaged_file_is_refused(tmp_path: Path, block_format: BlockFormat) -> None:
    path = tmp_path / f"1.{block_format}"
    path.write_bytes(b"this is not a block at all")
    assert refusal(path) == (
        "not a block: it begins with 74 68 69 73, expected gzip (1f 8b), zstd (28 b5 2f fd) or a serialized "
        "block (0a)"
    )
    for magic in (b"\x1f\x8b", b"\x28\xb5\x2f\xfd"):
        path.write_bytes(magic + b"this is not compressed at all")
        assert refusal(path).startswith("damaged: ")


def test_bytes_after_the_end_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "1.blk.zst"
    write_block_file(path, BLOCKS[1])
    path.write_bytes(path.read_bytes() + b"xyz")
    assert refusal(path) == "damaged: 3 bytes after the end of the frame"


def test_a_flipped_byte_in_gzip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "1.blk.gz"
    write_block_file(path, BLOCKS[1])
    data = bytearray(path.read_bytes())
    data[-8] ^= 1  # the checksum
    path.write_bytes(data)
    assert refusal(path).startswith("damaged: CRC check failed")


@pytest.mark.parametrize("block_format", FORMATS)
def test_a_bomb_is_not_unpacked(tmp_path: Path, block_format: BlockFormat) -> None:
    path = tmp_path / f"1.{block_format}"
    bomb = bytes(1 << 21)
    compress: dict[BlockFormat, Callable[[bytes], bytes]] = {
        "blk": bytes,
        "blk.gz": gzip.compress,
        "blk.zst": zstandard.ZstdCompressor().compress,
        "blk.zstd": zstandard.ZstdCompressor(write_content_size=False).compress,
    }
    path.write_bytes(compress[block_format](bomb))
    assert refusal(path) == "more than 1048576 bytes, the most that a block may have"


def test_a_block_of_exactly_the_limit_is_read(tmp_path: Path) -> None:
    path = tmp_path / "1.blk.gz"
    write_block_file(path, BLOCKS[1])
    size = len(BLOCKS[1].to_bytes())
    assert read_block_file(path, size) == BLOCKS[1]
    assert refusal(path, size - 1) == f"more than {size - 1} bytes, the most that a block may have"


def test_a_file_with_another_block_is_refused(tmp_path: Path) -> None:
    write_block_file(tmp_path / "1.blk", BLOCKS[1])
    path = (tmp_path / "1.blk").rename(tmp_path / "2.blk")
    assert refusal(path) == "holds block 1, expected 2 by its name"


@pytest.mark.parametrize("name", ["1.txt", "18446744073709551615.blk"])
def test_a_file_of_another_name_is_refused(tmp_path: Path, name: str) -> None:
    assert refusal(tmp_path / name) == "not a block file name (N.blk, N.blk.gz, N.blk.zst, N.blk.zstd)"


@pytest.mark.parametrize("block_format", FORMATS)
def test_a_pipe_is_not_waited_for(tmp_path: Path, block_format: BlockFormat) -> None:
    path = tmp_path / f"1.{block_format}"
    os.mkfifo(path)
    assert refusal(path) == "Not a regular file"


@pytest.mark.parametrize("block_format", FORMATS)
def test_a_file_far_longer_than_any_block_is_not_read_to_its_end(
    tmp_path: Path, block_format: BlockFormat
) -> None:
    """A terabyte of zeros follows a block in a sparse file: gzip would skip them one by one."""
    path = tmp_path / f"1.{block_format}"
    write_block_file(path, BLOCKS[1])
    os.truncate(path, 1 << 40)
    limit = 1 << 20
    assert refusal(path, limit) == f"more than {limit} bytes, the most that a block may have"


def test_what_cannot_be_compressed_may_get_somewhat_longer(tmp_path: Path) -> None:
    block = Block.from_items([BLOCKS[1].items[0], b"\x22\x80\x80\x40" + os.urandom(1 << 20)])
    for block_format in FORMATS:
        path = tmp_path / f"1.{block_format}"
        write_block_file(path, block)
        assert read_block_file(path, len(block.to_bytes())) == block
    assert path.stat().st_size > len(block.to_bytes())


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "1.blk.zst") == "No such file or directory"


def test_writing_under_a_wrong_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BlockFileError) as caught:
        write_block_file(tmp_path / "5.blk", BLOCKS[1])
    assert caught.value.reason == "not a name for block 1"
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(self: Path, target: Path) -> Path:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(Path, "replace", no_space)
    with pytest.raises(BlockFileError) as caught:
        write_block_file(tmp_path / "1.blk", BLOCKS[1])
    assert caught.value.reason == "No space left on device"
    assert list(tmp_path.iterdir()) == []


@needs_real_blocks
@pytest.mark.parametrize("chain", ["signed-chain", "record-file-chain", "layout-8-chain"])
def test_real_blocks_are_read_and_written_again(tmp_path: Path, chain: str) -> None:
    blocks = list(read_chain(real_chain(chain)))
    for number, block in enumerate(blocks):
        assert block.number == number
        write_block_file(tmp_path / f"{number}.blk.zst", block)
    assert list(read_chain(tmp_path)) == blocks
    original = gzip.decompress((real_chain(chain) / "0.blk.gz").read_bytes())
    assert Block.from_bytes(original).to_bytes() == original
