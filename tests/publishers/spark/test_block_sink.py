"""The sink's tasks and reports, without Spark, against real gRPC."""

from __future__ import annotations

import dataclasses
import pickle
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from sluice.gateway.blocks.block import Block
from sluice.publishers.client.feeding import paced
from sluice.publishers.coordination.coordinator import Coordinator
from sluice.publishers.coordination.part_order import await_part_order
from sluice.publishers.errors import BadBlock, FrameError, PartOrderTimeout, PublishFailed, PublishStopped
from sluice.publishers.report import PublishReport, QueryTotals
from sluice.publishers.sources.block_gateways import BlockGateways
from sluice.publishers.spark import block_sink, sink_options
from sluice.publishers.spark.block_sink import (
    BATCH_REPORTS_KEPT,
    LAST_WORD_SECONDS,
    BlockStreamStreamWriter,
    BlockStreamWriter,
    PartitionPublished,
    patience_seconds,
    read_reports,
    read_totals,
)
from sluice.publishers.spark.block_stream import BlockStreamDataSource
from sluice.publishers.spark.schema import BLOCK_COLUMNS, arrow_schema, spark_schema
from tests.nodes import make_blocks
from tests.publishers.fake_node import FakeNode, FakeStream, running
from tests.publishers.node_thread import node_thread, store

BLOCKS = make_blocks(10)
SCHEMA: StructType = spark_schema(BLOCK_COLUMNS)


def batches_of(blocks: list[Block], rows: int = 4) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(blocks), rows):
        part = blocks[start : start + rows]
        columns = [[block.number for block in part], [list(block.items) for block in part]]
        yield pa.record_batch(columns, schema=arrow_schema(BLOCK_COLUMNS))


def writer(**options: str) -> BlockStreamWriter:
    made = BlockStreamDataSource(options).writer(SCHEMA, overwrite=False)
    copy = pickle.loads(pickle.dumps(made))  # as Spark sends it to a worker
    assert isinstance(copy, BlockStreamWriter)
    return copy


def stream_writer(**options: str) -> BlockStreamStreamWriter:
    made = BlockStreamDataSource(options).streamWriter(SCHEMA, overwrite=False)
    copy = pickle.loads(pickle.dumps(made))
    assert isinstance(copy, BlockStreamStreamWriter)
    return copy


def reports_in(message: WriterCommitMessage) -> list[PublishReport]:
    assert isinstance(message, PartitionPublished)
    return [PublishReport.from_json(text) for text in message.reports]


class Task:
    """What a task sees of its place in the job."""

    def __init__(self, partition: int, attempt: int = 0) -> None:
        self._partition, self._attempt = partition, attempt

    def partitionId(self) -> int:
        return self._partition

    def attemptNumber(self) -> int:
        return self._attempt


def in_task(monkeypatch: pytest.MonkeyPatch, partition: int, attempt: int = 0) -> None:
    monkeypatch.setattr(TaskContext, "get", lambda: Task(partition, attempt))


def test_a_partition_is_published_in_order() -> None:
    with running(FakeNode()) as node:
        message = writer(gateways=node.address, publisher_id="alice").write(batches_of(BLOCKS))
    assert node.received == BLOCKS
    assert node.publisher_ids == ["alice"]
    (report,) = reports_in(message)
    assert (report.publisher_id, report.won, report.unacknowledged) == ("alice", 10, 0)


def test_an_empty_partition_is_nothing() -> None:
    assert reports_in(writer(gateways="127.0.0.1:1").write(iter(()))) == []


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ([0, 1, 5], "partition 0: blocks 2 to 4 are missing: block 5 came after block 1"),
        ([0, 1, 1], "partition 0: block 1 comes twice or out of order: block 2 was expected"),
        ([1, 0], "partition 0: block 0 comes twice or out of order: block 2 was expected"),
    ],
)
def test_a_partition_out_of_order_is_refused_naming_the_numbers(numbers: list[int], message: str) -> None:
    with running(FakeNode([FakeStream.drain])) as node, pytest.raises(FrameError) as caught:
        writer(gateways=node.address, check="false").write(batches_of([BLOCKS[n] for n in numbers]))
    assert caught.value.reason == message
    assert "sluice.publishers.spark.publish" in caught.value.remedy


def test_a_bad_block_stops_the_task_and_nothing_after_it_is_sent() -> None:
    damaged = dataclasses.replace(BLOCKS[4], items=BLOCKS[4].items[:-2])
    with running(FakeNode()) as node, pytest.raises(BadBlock) as caught:
        writer(gateways=node.address).write(batches_of([*BLOCKS[:4], damaged, *BLOCKS[5:]]))
    assert caught.value.number == 4
    assert [block.number for block in node.received] == list(range(len(node.received)))
    assert len(node.received) <= 4


def test_an_unreachable_gateway_fails_the_task_at_the_deadline() -> None:
    with pytest.raises(PublishFailed, match=r"within 0\.3 s") as caught:
        writer(gateways="127.0.0.1:1", deadline_seconds="0.3").write(batches_of(BLOCKS))
    assert caught.value.report.blocks > 0


def test_the_deadline_counts_while_a_later_partition_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    in_task(monkeypatch, 2)
    said = r"block 6 cannot be sent before block 5 is stored; no gateway has answered for 0\.3 s \(127"
    with pytest.raises(PartOrderTimeout, match=said):
        writer(gateways="127.0.0.1:1", deadline_seconds="0.3").write(batches_of(BLOCKS[6:]))


def test_a_later_partition_waits_until_it_is_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_task(monkeypatch, 2, attempt=1)
    store(tmp_path, BLOCKS[:5])
    with node_thread(tmp_path) as node:
        gateways = f"127.0.0.1:1,{node.grpc_address}"
        with pytest.raises(
            PartOrderTimeout, match="block 6 cannot be sent before block 5 is stored; block 4 is "
        ):
            writer(gateways=gateways, part_order_seconds="0.01").write(batches_of(BLOCKS[6:]))
        (report,) = reports_in(writer(gateways=gateways).write(batches_of(BLOCKS[5:])))
    assert (report.publisher_id, report.safe_through, report.reconnects) == ("spark-2-attempt-1", 9, 0)


@pytest.mark.parametrize(
    ("seconds", "waits"),
    [
        (60.0, [60.0, 120.0, 240.0, 480.0, 600.0, 600.0]),
        (600.0, [600.0] * 6),
        (900.0, [900.0] * 6),
    ],
)
def test_each_attempt_of_a_task_waits_twice_as_long_for_its_part(seconds: float, waits: list[float]) -> None:
    assert [patience_seconds(seconds, attempt) for attempt in (0, 1, 2, 3, 4, 10_000)] == waits


def test_the_chains_first_partition_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    in_task(monkeypatch, 3)  # the partitions before it are empty
    with running(FakeNode()) as node:
        writer(gateways=node.address, first_block="0").write(batches_of(BLOCKS))
    assert node.received == BLOCKS


def test_racers_of_one_task(tmp_path: Path) -> None:
    with node_thread(tmp_path) as node:
        sink = writer(gateways=str(node.grpc_address), race="3", publisher_id="team")
        reports = reports_in(sink.write(batches_of(BLOCKS)))
        assert node.store.last_number == 9
    assert [report.publisher_id for report in reports] == ["team.1", "team.2", "team.3"]
    assert all(report.safe_through == 9 for report in reports)


def test_a_stream_passes_over_what_came_before_and_waits_before_a_gap(tmp_path: Path) -> None:
    order = [0, 1, 1, 0, 2, 3, 6, 7]
    with node_thread(tmp_path) as node:
        sink = stream_writer(gateways=str(node.grpc_address), part_order_seconds="0.01")
        with pytest.raises(
            PartOrderTimeout, match="block 6 cannot be sent before block 5 is stored; block 3 is"
        ):
            sink.write(batches_of([BLOCKS[number] for number in order]))
        writer(gateways=str(node.grpc_address), publisher_id="other").write(batches_of(BLOCKS[:6]))
        reports = reports_in(sink.write(batches_of([BLOCKS[number] for number in order])))
        assert node.store.last_number == 7
    assert [(report.first_block, report.last_block) for report in reports] == [(0, 3), (6, 7)]


@pytest.mark.parametrize("numbers", [[3, 1], [5, 6, 7, 3], [2, 2, 3, 0]])
def test_a_stream_that_a_shuffle_has_torn_is_refused(tmp_path: Path, numbers: list[int]) -> None:
    """Its earlier blocks would pass for repetitions, and the query would wait for them for ever."""
    store(tmp_path, BLOCKS[: numbers[0]])
    rows = batches_of([BLOCKS[number] for number in numbers])
    with node_thread(tmp_path) as node, pytest.raises(FrameError) as caught:
        stream_writer(gateways=str(node.grpc_address)).write(rows)
    said = f"block {numbers[-1]} comes twice or out of order: block {numbers[-2] + 1} was expected"
    assert caught.value.reason == f"partition 0: {said}"
    assert "a shuffle (repartition, join, aggregation, dropDuplicates) is between" in caught.value.remedy


def test_a_task_tells_its_coordinator_what_it_does() -> None:
    with running(FakeNode()) as node, Coordinator() as coordinator:
        coordinator.open_gate()
        sink = writer(gateways=node.address, coordinator=str(coordinator.address), publisher_id="a/b")
        (report,) = reports_in(sink.write(batches_of(BLOCKS)))
        assert coordinator.await_idle(10)
        assert coordinator.reports("a/b") == [dataclasses.replace(report, latency_ns=())]


def test_a_task_that_is_told_to_stop_publishes_nothing() -> None:
    with running(FakeNode()) as node, Coordinator() as coordinator:
        coordinator.stop()
        with pytest.raises(PublishStopped, match="publisher spark was told to stop"):
            writer(gateways=node.address, coordinator=str(coordinator.address)).write(batches_of(BLOCKS))
    assert node.stream_count == 0


def test_commit_writes_the_reports_for_the_driver(tmp_path: Path) -> None:
    options = {"gateways": "127.0.0.1:1", "publisher_id": "team/alice", "report_path": str(tmp_path)}
    reports = [PublishReport("team/alice", blocks=2), PublishReport("team/alice-1", blocks=3)]
    messages: list[WriterCommitMessage | None] = [
        PartitionPublished((report.to_json(),)) for report in reports
    ]
    assert read_reports(tmp_path, "team/alice") == []
    writer(**options).commit([*messages, PartitionPublished(()), None])
    assert read_reports(tmp_path, "team/alice") == reports
    stream_writer(**options).commit(messages, 7)
    assert read_reports(tmp_path, "team/alice-batch-7") == reports
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "team_alice-batch-7.json",
        "team_alice-totals.json",
        "team_alice.json",
    ]


def test_a_query_adds_up_its_batches_and_keeps_the_reports_of_the_last(tmp_path: Path) -> None:
    sink = stream_writer(gateways="127.0.0.1:1", publisher_id="alice", report_path=str(tmp_path))
    assert read_totals(tmp_path, "alice") == QueryTotals("alice")
    kept = BATCH_REPORTS_KEPT
    for batch in (*range(kept + 2), kept + 1):  # the last one twice, as after a crash
        report = PublishReport("alice", safe_through=batch, blocks=1, acknowledged=1, failovers=batch % 2)
        sink.commit([PartitionPublished((report.to_json(),))], batch)
    sink.commit([PartitionPublished(())], kept + 2)
    totals = read_totals(tmp_path, "alice")
    assert (totals.batch_id, totals.total) == (kept + 2, totals.publishers[0])
    assert totals.total == PublishReport(
        "alice", safe_through=kept + 1, blocks=kept + 2, acknowledged=kept + 2, failovers=kept // 2 + 1
    )
    batches = sorted(int(path.stem.rpartition("-")[2]) for path in tmp_path.glob("*-batch-*"))
    assert batches == list(range(3, kept + 2))


def test_a_query_that_is_begun_anew_is_added_to_the_one_before(tmp_path: Path) -> None:
    sink = stream_writer(gateways="127.0.0.1:1", publisher_id="alice", report_path=str(tmp_path))
    report = PublishReport("alice", safe_through=3, blocks=4, acknowledged=4).to_json()
    for query in ("first", "second", "second"):  # the last one again, as after a crash
        sink.commit([None, PartitionPublished((report,), query)], 0)
    assert read_totals(tmp_path, "alice").total.blocks == 8


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"before": [], "publishers": [], "x": 1}'])
def test_damaged_totals_stop_no_query(tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str) -> None:
    sink = stream_writer(gateways="127.0.0.1:1", publisher_id="alice", report_path=str(tmp_path))
    path = tmp_path / "alice-totals.json"
    path.write_text(text)
    report = PublishReport("alice", safe_through=7, blocks=1, acknowledged=1)
    sink.commit([PartitionPublished((report.to_json(),))], 7)
    assert [line for line in caplog.messages if line.startswith(f"{path} cannot be read (")]
    assert caplog.messages[-1].endswith("; the totals begin anew with batch 7")
    assert read_totals(tmp_path, "alice").total == report


def test_abort_says_what_is_stored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store(tmp_path, BLOCKS[:5])
    done = PartitionPublished((PublishReport("alice", safe_through=3).to_json(),))
    with node_thread(tmp_path) as node:
        writer(gateways=str(node.grpc_address)).abort([done, None])
    stream_writer(gateways="127.0.0.1:1").abort([done], 7)
    # What goes wrong in asking would be all that Spark shows.
    writer(gateways="127.0.0.1:1", tls_ca=str(tmp_path / "none.crt")).abort([])
    assert [text for text in caplog.messages if text.startswith("the job failed")] == [
        "the job failed; the gateways hold blocks 0 to 4, run it again to go on",
        "the job failed; blocks up to 3 are stored, run it again to go on",
        "the job failed; as far as is known no block is stored",
    ]


def test_abort_waits_no_longer_than_a_second_for_a_gateway_that_says_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else it is what a job that was stopped waits for, ten seconds for each."""
    waits: list[float] = []
    begin = BlockGateways.__init__

    def noted(self: BlockGateways, *words: Any, answer_seconds: float, **named: Any) -> None:
        waits.append(answer_seconds)
        begin(self, *words, answer_seconds=answer_seconds / 10, **named)

    monkeypatch.setattr(BlockGateways, "__init__", noted)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        writer(gateways=f"127.0.0.1:{mute.getsockname()[1]}").abort([])
    assert waits == [LAST_WORD_SECONDS]
    assert "the job failed; as far as is known no block is stored" in caplog.messages


def test_the_pace_of_a_later_partition_begins_when_it_is_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted from the task's start, all blocks would be due by then, and nothing would hold it back."""
    order: list[str] = []

    async def waiting(*arguments: Any) -> tuple[str, ...]:
        gateways = await await_part_order(*arguments)
        order.append("next")
        return gateways

    async def pacing(blocks: AsyncIterator[Block], *arguments: Any, **named: Any) -> AsyncIterator[Block]:
        order.append("pace")
        async for block in paced(blocks, *arguments, **named):
            yield block

    monkeypatch.setattr(block_sink, "await_part_order", waiting)
    monkeypatch.setattr(sink_options, "paced", pacing)
    in_task(monkeypatch, 1)
    store(tmp_path, BLOCKS[:5])
    with node_thread(tmp_path) as node:
        writer(gateways=str(node.grpc_address), blocks_per_second="1000").write(batches_of(BLOCKS[5:]))
        assert node.store.last_number == 9
    assert order == ["next", "pace"]
