"""The sink `blockstream`, without Spark: options, one partition, reports."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import ArrayType, BinaryType, LongType, StructField, StructType

from gateway.block import Block
from publishers import limits
from publishers.errors import BlockOrderError, OptionError, PublishFailed, SchemaError
from publishers.machine import SECOND_NS
from publishers.maker import BlockMaker, MakerOptions, key_of_seed
from publishers.report import PublishReport
from publishers.spark.block_stream import (
    BlockStreamDataSource,
    BlockStreamWriter,
    PartitionPublished,
    SinkOptions,
    _paced,
    read_reports,
)
from publishers.spark.schema import ARROW_SCHEMA
from publishers.spark.start_gate import StartGate
from tests.publishers.fake_node import FakeNode, FakeStream, running

SMALL = MakerOptions(rounds_per_block=1, events_per_round=1, transactions_per_block=1, item_bytes=300)
BLOCKS = list(BlockMaker(3, key_of_seed(3), SMALL).blocks(10))
SCHEMA = StructType([StructField("block_number", LongType()), StructField("items", ArrayType(BinaryType()))])


def batches_of(blocks: list[Block], rows: int = 4) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(blocks), rows):
        part = blocks[start : start + rows]
        columns = [[block.number for block in part], [list(block.items) for block in part]]
        yield pa.record_batch(columns, schema=ARROW_SCHEMA)


def writer(**options: str) -> BlockStreamWriter:
    made = BlockStreamDataSource(options).writer(SCHEMA, overwrite=False)
    copy = pickle.loads(pickle.dumps(made))  # as Spark sends it to a worker
    assert isinstance(copy, BlockStreamWriter)
    return copy


def report_in(message: WriterCommitMessage) -> PublishReport:
    assert isinstance(message, PartitionPublished)
    return PublishReport.from_json(message.report)


def test_the_defaults() -> None:
    options = SinkOptions.parse({"gateways": "a:1, [::1]:2"})
    assert options == SinkOptions(
        gateways=("a:1", "[::1]:2"),
        publisher_id="spark",
        deadline_seconds=None,
        reset_interval_seconds=None,
        set_bytes=limits.ITEM_SET_BYTES_DEFAULT,
        cache_bytes=limits.CACHE_BYTES_DEFAULT,
        window_blocks=limits.WINDOW_BLOCKS_DEFAULT,
        blocks_per_second=None,
        report_path=None,
        start_gate=None,
    )
    machine = options.client_options().machine
    assert (machine.deadline_ns, machine.reset_interval_ns) == (None, None)


def test_options_reach_the_client() -> None:
    options = SinkOptions.parse(
        {
            "gateways": "a:1",
            "deadline_seconds": "2.5",
            "reset_interval_seconds": "0.5",
            "set_bytes": "1000",
            "cache_bytes": "5",
            "window_blocks": "7",
        }
    ).client_options()
    assert options.set_bytes_max == 1000
    machine = options.machine
    assert (machine.cache_bytes_max, machine.window_blocks_max) == (5, 7)
    assert machine.deadline_ns == 5 * SECOND_NS // 2
    assert machine.reset_interval_ns == SECOND_NS // 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "option 'gateways': got nothing, expected host:port, or several with commas between"),
        (
            {"gateways": "a:1,b"},
            (
                "option 'gateways': got 'b', expected host:port, "
                "such as 127.0.0.1:6900, [::1]:6900 or 0.0.0.0:6900"
            ),
        ),
        ({"gateways": "a:1", "window_blocks": "513"}, "option 'window_blocks': got 513, expected 1 to 512"),
        (
            {"gateways": "a:1", "reset_interval_seconds": "-1"},
            "option 'reset_interval_seconds': got '-1', expected seconds above 0",
        ),
        (
            {"gateways": "a:1", "deadline_seconds": "0"},
            "option 'deadline_seconds': got '0', expected seconds above 0",
        ),
    ],
)
def test_wrong_options_are_refused_on_the_driver(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        writer(**options)
    assert str(caught.value) == message


def test_a_chain_cannot_be_overwritten_nor_made_of_other_columns() -> None:
    source = BlockStreamDataSource({"gateways": "a:1"})
    with pytest.raises(OptionError, match="option 'mode': got overwrite, expected append"):
        source.writer(SCHEMA, overwrite=True)
    with pytest.raises(SchemaError):
        source.writer(StructType([]), overwrite=False)


def test_a_partition_is_published_in_order() -> None:
    with running(FakeNode()) as node:
        message = writer(gateways=node.address, publisher_id="alice").write(batches_of(BLOCKS))
    assert node.received == BLOCKS
    assert node.publisher_ids == ["alice"]
    report = report_in(message)
    assert (report.publisher_id, report.won, report.unacknowledged) == ("alice", 10, 0)


def test_an_empty_partition_is_nothing() -> None:
    message = writer(gateways="127.0.0.1:1").write(iter(()))
    assert report_in(message).blocks == 0


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ([0, 1, 5], "blocks 2 to 4 are missing: block 5 came after block 1"),
        ([0, 1, 1], "block 1 comes twice or out of order: block 2 was expected"),
        ([1, 0], "block 0 comes twice or out of order: block 2 was expected"),
    ],
)
def test_a_partition_out_of_order_is_refused_naming_the_numbers(numbers: list[int], message: str) -> None:
    with running(FakeNode([FakeStream.drain])) as node, pytest.raises(BlockOrderError) as caught:
        writer(gateways=node.address).write(batches_of([BLOCKS[number] for number in numbers]))
    assert str(caught.value) == message


def test_an_unreachable_gateway_fails_the_task_at_the_deadline() -> None:
    with pytest.raises(PublishFailed, match=r"within 0\.3 s") as caught:
        writer(gateways="127.0.0.1:1", deadline_seconds="0.3").write(batches_of(BLOCKS))
    assert caught.value.report.blocks > 0


def test_a_task_waits_at_the_start_gate(tmp_path: Path) -> None:
    gate = StartGate(tmp_path)
    gate.open()
    with running(FakeNode()) as node:
        writer(gateways=node.address, start_gate=str(tmp_path), publisher_id="a/b").write(batches_of(BLOCKS))
    assert gate.ready_count == 1


def test_commit_writes_the_reports_for_the_driver(tmp_path: Path) -> None:
    sink = writer(gateways="a:1", publisher_id="team/alice", report_path=str(tmp_path))
    reports = [PublishReport("team/alice", blocks=2), PublishReport("team/alice-1", blocks=3)]
    assert read_reports(tmp_path, "team/alice") == []
    sink.commit([PartitionPublished(report.to_json()) for report in reports])
    assert read_reports(tmp_path, "team/alice") == reports
    assert [path.name for path in tmp_path.iterdir()] == ["team_alice.json"]


def test_abort_says_what_is_stored(caplog: pytest.LogCaptureFixture) -> None:
    writer(gateways="a:1").abort([PartitionPublished(PublishReport("alice", safe_through=7).to_json()), None])
    assert caplog.messages == ["the job failed; blocks up to 7 are stored (publisher alice)"]


def test_paced_blocks_wait_for_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    async def sleep(seconds: float) -> None:
        asked.append(seconds)

    async def source() -> AsyncIterator[Block]:
        for number in range(5):
            yield Block(number, ())

    async def run() -> list[int]:
        monkeypatch.setattr(asyncio, "sleep", sleep)
        return [block.number async for block in _paced(source(), per_second=0.001)]

    assert asyncio.run(run()) == [0, 1, 2, 3, 4]
    # A turn lasts 1,000 s, of which up to a half is chance; no time passes here.
    for turn, seconds in enumerate(asked):
        assert turn * 1000 - 1 <= seconds - limits.PACE_LEAD_SECONDS <= turn * 1000 + 500
