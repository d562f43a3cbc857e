"""Foreign records become a chain: the same whatever the partitioning, and a node takes it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from sluice.gateway.blocks.items import ItemKind, header_of, payload_of
from sluice.publishers.errors import OptionError, PrepareError, SchemaError
from sluice.publishers.spark import ChainStart, chain_start, records_to_blocks, records_to_signed_blocks
from sluice.publishers.spark import records as records_module
from sluice.publishers.spark.failures import reason_in
from sluice.publishers.spark.prepare import link_blocks
from sluice.publishers.spark.records import RECORD_PARTS_MAX, RECORDS_PER_BLOCK_MAX
from tests.nodes import KEY
from tests.publishers.node_thread import node_thread

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "time BIGINT, payload BINARY"
RECORDS = [(1_000_000_000 * (index // 3), f"record {index:03}".encode()) for index in range(100)]
"""Three at a time, already in order."""


def frame_of(spark: SparkSession, records: Sequence[tuple[Any, ...]], schema: str = SCHEMA) -> DataFrame:
    shuffled = list(records)
    Random(5).shuffle(shuffled)
    return spark.createDataFrame(shuffled, schema).repartition(4)


def bytes_of(blocks: DataFrame) -> list[tuple[int, list[bytes]]]:
    return sorted((row[0], list(map(bytes, row[1]))) for row in blocks.collect())


@pytest.mark.slow
@pytest.mark.spark
def test_a_real_node_takes_the_records_in_order(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_bytes(KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    records = frame_of(spark, RECORDS)
    first = records_to_signed_blocks(
        records.where("time < 20000000000"), items_per_block=9, key_file=tmp_path / "key.pem"
    )
    after = chain_start(first)
    assert after.next_number == 7  # 60 records, the last block has 6
    second = records_to_signed_blocks(
        records.where("time >= 20000000000"), items_per_block=9, key_file=tmp_path / "key.pem", previous=after
    )
    with node_thread(tmp_path / "node", verification_mode="full") as node:
        for blocks in (first, second):
            blocks.repartition(1).sortWithinPartitions("block_number").write.format("blockstream").option(
                "gateways", str(node.grpc_address)
            ).option("deadline_seconds", 60).mode("append").save()
        found = [node.store.read_block(number) for number in range(12)]
    stored = [block for block in found if block is not None]
    payloads = [payload_of(item) for block in stored for item in block.items[1:-2]]
    assert payloads == [payload for _, payload in RECORDS]
    times = [header_of(block.items[0]).block_timestamp.seconds for block in stored[:7]]
    assert times == [0, 3, 6, 9, 12, 15, 18]


@pytest.mark.spark
def test_partitions_and_order_change_nothing(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of one time are ordered by their payloads, twins are kept."""
    records = [*RECORDS, *RECORDS[50:60], *((7, bytes([value])) for value in range(200))]
    bounds: list[int] = []
    part_of = records_module._part_of

    def noted(moment: Any, some: Sequence[int], first_part: int = 0) -> Any:
        bounds.append(len(some))
        return part_of(moment, some, first_part)

    monkeypatch.setattr(records_module, "_part_of", noted)
    expected = bytes_of(records_to_blocks(frame_of(spark, records), items_per_block=64))
    assert 0 < bounds[0] < RECORD_PARTS_MAX
    count = len(bounds)
    spread = frame_of(spark, sorted(records), SCHEMA).repartition(7, "payload")
    bodies = records_module._bodies(
        spread,
        *("payload", "time", 64, (), ItemKind.SIGNED_TRANSACTION, None),
        parts_max=bounds[0],  # one part less than there were
    )
    assert bytes_of(link_blocks(bodies)) == expected
    assert bounds[count] == bounds[0] - 1
    before = spark.conf.get("spark.sql.shuffle.partitions")
    assert before is not None
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    try:
        assert bytes_of(records_to_blocks(frame_of(spark, records), items_per_block=64)) == expected
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)
    assert bounds[-1] == 0
    items = [payload_of(item) for _, items in expected for item in items[1:-1]]
    assert items == [payload for _, payload in sorted(records)]
    assert [len(items) - 2 for _, items in expected] == [64, 64, 64, 64, 54]


@pytest.mark.spark
def test_other_columns_say_the_order_of_one_time(spark: SparkSession) -> None:
    at = datetime(2026, 1, 1, 12, 0, 0, 250_000, UTC)
    rows = [(at, 9 - index, bytes([index]), "other") for index in range(10)]
    frame = frame_of(spark, rows, "at TIMESTAMP, offset INT, body BINARY, more STRING")
    ((number, items),) = bytes_of(
        records_to_blocks(frame, payload="body", time="at", order_by=["offset"], item_kind=11)
    )
    assert (number, [payload_of(item) for item in items[1:-1]]) == (0, [bytes([9 - n]) for n in range(10)])
    stamp = header_of(items[0]).block_timestamp
    assert (stamp.seconds, stamp.nanos) == (int(at.timestamp()), 250_000_000)


@pytest.mark.spark
def test_no_records_make_no_blocks(spark: SparkSession) -> None:
    start = ChainStart(2, bytes(48), (bytes(48),))
    blocks = records_to_blocks(spark.createDataFrame([], SCHEMA), previous=start)
    assert blocks.columns == ["block_number", "items"]
    assert blocks.collect() == []


@pytest.mark.spark
@pytest.mark.parametrize(
    ("record", "message"),
    [
        ((None, b"x"), "block 0 cannot be prepared: a record has no time (null)"),
        ((10_000_000_000, None), "block 3 cannot be prepared: record 0 of the block has no payload (null)"),
    ],
)
def test_nulls_are_refused_with_the_block(spark: SparkSession, record: tuple[Any, Any], message: str) -> None:
    with pytest.raises(Exception, match="PrepareError") as caught:
        records_to_blocks(frame_of(spark, [*RECORDS, record]), items_per_block=10).collect()
    assert reason_in(str(caught.value)) == message


@pytest.mark.spark
def test_what_is_refused_before_a_job(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.createDataFrame([], f"{SCHEMA}, text STRING, local TIMESTAMP_NTZ")
    for columns, message in (
        ({"payload": "text"}, "column 'text': got string, expected BINARY"),
        ({"payload": "none"}, "column 'none': got no such column, expected BINARY"),
        (
            {"time": "local"},
            "column 'local': got timestamp_ntz, expected TIMESTAMP, or BIGINT with nanoseconds since 1970",
        ),
    ):
        with pytest.raises(SchemaError) as wrong:
            records_to_blocks(frame, **columns)  # type: ignore[arg-type]
        assert str(wrong.value) == message
    with pytest.raises(SchemaError, match="column 'missing': got no such column, expected a column"):
        records_to_blocks(frame, order_by=["missing"])
    records_to_blocks(frame.drop("text", "local"), items_per_block=RECORDS_PER_BLOCK_MAX)
    for count in (0, RECORDS_PER_BLOCK_MAX + 1):
        with pytest.raises(OptionError) as bad:
            records_to_blocks(frame, items_per_block=count)
        assert str(bad.value) == f"option 'items_per_block': got {count}, expected 1 to 1000000"
    half: Any = 2.5
    with pytest.raises(
        OptionError, match=r"'items_per_block': got 2\.5, expected a whole number, 1 to 1000000$"
    ):
        records_to_blocks(frame, items_per_block=half)
    with pytest.raises(OptionError, match="option 'item_kind': got 9"):
        records_to_blocks(frame, item_kind=9)
    with pytest.raises(OptionError, match="option 'key_file, key_env': got neither"):
        records_to_signed_blocks(frame)
    stream = spark.readStream.format("blockfiles").load(str(tmp_path))
    with pytest.raises(PrepareError, match="a stream has no last record"):
        records_to_blocks(stream)
