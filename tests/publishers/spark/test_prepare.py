"""Preparing blocks: what the workers do, without Spark; then jobs on shuffled blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

import pyarrow as pa

from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.items import proof_of
from sluice.gateway.blocks.proofs.ed25519 import Ed25519Check
from sluice.gateway.blocks.root_hash import BlockHasher
from sluice.gateway.key_files import create_private_key, public_key_hex
from sluice.publishers.blocks.linking import ChainStart
from sluice.publishers.blocks.maker import BlockMaker, MakerOptions, key_of_seed
from sluice.publishers.blocks.signing_key import KeyPlace
from sluice.publishers.errors import OptionError, PrepareError, SchemaError
from sluice.publishers.limits import ARROW_BATCH_ROWS
from sluice.publishers.spark import prepare
from sluice.publishers.spark.failures import reason_in
from sluice.publishers.spark.prepare import (
    chain_start,
    link_and_sign_blocks,
    link_blocks,
    root_hashes,
    sign_blocks,
)
from sluice.publishers.spark.schema import BLOCK_COLUMNS, BLOCK_SCHEMA, arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SMALL = MakerOptions(rounds_per_block=1, events_per_round=1, transactions_per_block=1, item_bytes=300)
BLOCKS = list(BlockMaker(3, key_of_seed(3), SMALL).blocks(12))
OTHER = list(BlockMaker(3, key_of_seed(4), SMALL).blocks(12))

Items = Sequence[bytes | None] | None


def batches_of(rows: Sequence[tuple[int | None, Items]]) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch(
        [list(column) for column in zip(*rows, strict=True)], schema=arrow_schema(BLOCK_COLUMNS)
    )


def run(
    rows: Callable[..., Iterator[dict[str, Any]]], given: Sequence[tuple[int | None, Items]]
) -> list[Any]:
    """Run a worker's function on Arrow batches, as Spark does."""
    mapped = prepare._map_batches(rows, BLOCK_COLUMNS, ARROW_BATCH_ROWS, batches_of(given))
    return [row for batch in mapped for row in batch.to_pylist()]


def signer(folder: Path) -> Callable[[prepare.Rows], Iterator[dict[str, Any]]]:
    place = KeyPlace.parse(folder / "key.pem", None)
    return lambda rows: prepare._sign_rows(place, "auto", rows)


@pytest.mark.parametrize(
    ("number", "items", "message"),
    [
        (None, [b"x"], "the blocks cannot be prepared: a row has no block_number (null)"),
        (-1, [b"x"], "block -1 cannot be prepared: numbers begin with 0"),
        (4, None, "block 4 cannot be prepared: the row has no items (null)"),
        (4, [b"x", None], "block 4 cannot be prepared: item 1 is null"),
        (
            4,
            [],
            "block 4 cannot be prepared: missing item: block: got no items, expected a block header first",
        ),
        (5, BLOCKS[4].items, "block 5 cannot be prepared: its header says that it is block 4"),
    ],
)
def test_rows_that_are_no_blocks(number: int | None, items: Items, message: str, tmp_path: Path) -> None:
    create_private_key(tmp_path / "key.pem")
    with pytest.raises(PrepareError) as caught:
        run(signer(tmp_path), [(number, items)])
    assert str(caught.value) == message


def test_the_key_is_not_needed_where_there_is_nothing_to_sign(tmp_path: Path) -> None:
    assert list(prepare._map_batches(signer(tmp_path), BLOCK_COLUMNS, ARROW_BATCH_ROWS, iter(()))) == []


def frame_of(spark: SparkSession, blocks: Sequence[Block], partitions: int = 3) -> DataFrame:
    """The blocks with the last first, over some partitions."""
    rows = [(block.number, [bytearray(item) for item in block.items]) for block in reversed(blocks)]
    return spark.createDataFrame(rows, BLOCK_SCHEMA).repartition(partitions)


def blocks_in(frame: DataFrame) -> list[Block]:
    rows = sorted(frame.collect(), key=lambda row: int(row.block_number))
    return [Block(row.block_number, tuple(map(bytes, row["items"]))) for row in rows]


def unsigned(blocks: Sequence[Block]) -> list[Block]:
    return [Block(block.number, block.items[:-1]) for block in blocks]


@pytest.mark.spark
def test_shuffled_blocks_become_the_chain_again(spark: SparkSession, tmp_path: Path) -> None:
    key = create_private_key(tmp_path / "key.pem")
    expected = list(BlockMaker(3, key, SMALL).blocks(12))
    blocks = frame_of(spark, OTHER)
    both = link_and_sign_blocks(blocks, key_file=tmp_path / "key.pem")
    assert blocks_in(both) == expected
    linked = link_blocks(blocks, broadcast_links=False)
    assert blocks_in(linked) == unsigned(expected)
    assert blocks_in(sign_blocks(linked.repartition(2), key_file=str(tmp_path / "key.pem"))) == expected
    check = Ed25519Check([bytes.fromhex(public_key_hex(key))])
    for row in root_hashes(both).collect():
        hasher = BlockHasher()
        hasher.add(expected[row.block_number].items)
        summary = hasher.finish()
        assert bytes(row.root_hash) == summary.root_hash
        assert bytes(row.previous_root_hash) == summary.previous_root_hash
        assert bytes(row.all_blocks_root_hash) == summary.all_blocks_root_hash
        assert row.root_layout == 16
        signature = proof_of(summary.proofs[0]).signed_block_proof.block_signature
        assert check.check(signature, summary.root_hash) is None


@pytest.mark.slow
@pytest.mark.spark
def test_blocks_of_another_layout_are_signed_as_they_are_linked(spark: SparkSession, tmp_path: Path) -> None:
    key_file = tmp_path / "key.pem"
    create_private_key(key_file)
    blocks = frame_of(spark, OTHER[:3])
    signed = sign_blocks(link_blocks(blocks, root_layout=8), key_file=key_file, root_layout=8)
    expected = blocks_in(link_and_sign_blocks(blocks, key_file=key_file, root_layout=8))
    assert blocks_in(signed) == expected
    assert expected != blocks_in(link_and_sign_blocks(blocks, key_file=key_file))


@pytest.mark.spark
def test_a_chain_goes_on_where_another_ended(spark: SparkSession) -> None:
    start = chain_start(frame_of(spark, BLOCKS[:7]))
    assert start.next_number == 7
    bodies = [Block(block.number, block.items[:-2]) for block in BLOCKS[7:]]
    states = [Block(block.number, block.items[:-1]) for block in BLOCKS[7:]]
    assert blocks_in(link_blocks(frame_of(spark, states), start)) == unsigned(BLOCKS[7:])
    # Without a footer the state root is that of nothing, so that the links are others from the second on.
    linked = blocks_in(link_blocks(frame_of(spark, bodies), start))
    assert [block.items[:-1] for block in linked] == [block.items for block in bodies]
    assert chain_start(frame_of(spark, BLOCKS[7:]), start) == chain_start(frame_of(spark, BLOCKS))


@pytest.mark.spark
def test_no_blocks_are_no_blocks(spark: SparkSession, tmp_path: Path) -> None:
    none = spark.createDataFrame([], BLOCK_SCHEMA)
    assert link_and_sign_blocks(none, key_file=tmp_path / "no such file").collect() == []
    assert chain_start(none) == ChainStart()


@pytest.mark.spark
def test_a_job_names_block_and_reason(spark: SparkSession) -> None:
    gap = frame_of(spark, [block for block in BLOCKS if block.number not in (4, 5)])
    with pytest.raises(Exception, match="PrepareError") as caught:
        link_blocks(gap).collect()
    assert reason_in(str(caught.value)) == "block 6 cannot be prepared: blocks 4 to 5 are missing before it"
    twice = frame_of(spark, [*BLOCKS[:3], BLOCKS[1]])
    with pytest.raises(Exception, match="PrepareError") as caught:
        link_blocks(twice, broadcast_links=False).collect()
    assert reason_in(str(caught.value)) == "block 1 cannot be prepared: it is there more than once"


@pytest.mark.spark
def test_the_key_is_in_no_plan_and_no_error(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create_private_key(tmp_path / "key.pem")
    secret = (tmp_path / "key.pem").read_text().splitlines()[1]
    signed = sign_blocks(frame_of(spark, BLOCKS), key_file=tmp_path / "key.pem")
    signed.explain(extended=True)
    assert secret not in capsys.readouterr().out
    (tmp_path / "key.pem").write_text(
        f"-----BEGIN PRIVATE KEY-----\n{secret[:-8]}\n-----END PRIVATE KEY-----"
    )
    with pytest.raises(Exception, match="KeyFileError") as caught:
        signed.collect()
    assert secret[:-8] not in str(caught.value)
    assert reason_in(str(caught.value)) == (
        f"{tmp_path}/key.pem: got something else, expected an unencrypted Ed25519 private key in PEM "
        "(`sluice keygen` writes one)"
    )


@pytest.mark.spark
def test_what_is_refused_before_a_job(spark: SparkSession, tmp_path: Path) -> None:
    numbers = spark.range(3).withColumnRenamed("id", "block_number")
    for function in (root_hashes, link_blocks, lambda frame: sign_blocks(frame, key_env="KEY")):
        with pytest.raises(SchemaError) as wrong:
            function(numbers)
        assert str(wrong.value) == "column 'items': got no such column, expected ARRAY<BINARY>"
    stream = spark.readStream.format("blockfiles").load(str(tmp_path))
    with pytest.raises(PrepareError, match=r"a stream has no last block to link from; link each batch"):
        link_blocks(stream)
    layout: Any = "8"
    frame = frame_of(spark, BLOCKS)
    for call in (
        lambda: root_hashes(frame, layout),
        lambda: chain_start(frame, root_layout=layout),
        lambda: link_blocks(frame, root_layout=layout),
        lambda: sign_blocks(frame, key_env="KEY", root_layout=layout),
        lambda: link_and_sign_blocks(frame, key_env="KEY", root_layout=layout),
    ):
        with pytest.raises(OptionError, match=r"^option 'root_layout': got '8', expected 'auto', 8 or 16$"):
            call()
