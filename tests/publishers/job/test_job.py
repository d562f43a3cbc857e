"""Racing Spark jobs, in one session, against a node that lets them race."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from sluice.gateway.blocks.block import Block
from sluice.publishers.blocks.block_files import write_block_file
from sluice.publishers.blocks.block_places import read_chain
from sluice.publishers.blocks.maker import BlockMaker, MakerOptions, key_of_seed
from sluice.publishers.coordination.coordinator import Coordinator
from sluice.publishers.demo.node_process import NodeProcess
from sluice.publishers.errors import BlockListError
from sluice.publishers.job import job as job_module
from sluice.publishers.job.checkpoint import FollowCheckpoint
from sluice.publishers.job.job import QUERY_STARTS_MAX, GatewayStatus, JobProgress, JobReport, publish
from sluice.publishers.number_range import NumberRange
from sluice.publishers.report import PublishReport, add_reports
from sluice.publishers.spark.block_sink import read_reports
from sluice.publishers.spark.source_names import parse_source
from tests.certificates import Authority
from tests.nodes import make_blocks
from tests.publishers.data import needs_real_blocks, real_chain
from tests.publishers.fake_node import FakeNode, FakeStream, racing, running, stopping_at
from tests.publishers.node_thread import node_thread, store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL = MakerOptions(rounds_per_block=1, events_per_round=2, transactions_per_block=4, item_bytes=300)


def test_a_chain_with_a_gap_is_refused_before_spark_is_asked(tmp_path: Path) -> None:
    for block in BlockMaker(1, key_of_seed(1), SMALL).blocks(3):
        if block.number != 1:
            write_block_file(tmp_path / f"{block.number}.blk", block)
    with pytest.raises(BlockListError, match="block 1 is missing"):
        publish(None, tmp_path, ["127.0.0.1:1"])  # type: ignore[arg-type]


@pytest.mark.spark
def test_publishers_for_which_there_is_no_slot_are_not_waited_for_long(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tasks of the first one and a task of the second one have the three slots until they are done."""
    chain = tmp_path / "chain"
    chain.mkdir()
    for block in make_blocks(20):
        write_block_file(chain / f"{block.number}.blk", block)
    opened: list[tuple[int, int]] = []
    open_gate = Coordinator.open_gate

    def noted(coordinator: Coordinator) -> None:
        opened.append((coordinator.ready_count, coordinator.task_count))
        open_gate(coordinator)

    monkeypatch.setattr(Coordinator, "open_gate", noted)
    with node_thread(tmp_path / "node") as node:
        report = publish(spark, chain, [str(node.grpc_address)], 3, shards=2, deadline_seconds=240)
    assert report.is_complete, report.failures
    assert opened == [(2, 3)]


@pytest.mark.spark
def test_three_publishers_race_and_every_block_is_stored_once(spark: SparkSession, tmp_path: Path) -> None:
    blocks = list(BlockMaker(1, key_of_seed(1), SMALL).blocks(200))
    for block in blocks:
        write_block_file(tmp_path / f"{block.number}.blk.zst", block)
    seen: list[JobProgress] = []
    with running(FakeNode(default=racing)) as node:
        report = publish(spark, tmp_path, [node.address], 3, deadline_seconds=240, on_progress=seen.append)
        again = publish(spark, tmp_path, [node.address], 1, publisher_prefix="again", deadline_seconds=240)
    assert report.is_complete, report.failures
    assert sorted(block.number for block in node.received) == list(range(200))
    assert sorted(node.received, key=lambda block: block.number) == blocks
    assert [published.publisher_id for published in report.publishers] == [
        "publisher-1",
        "publisher-2",
        "publisher-3",
    ]
    assert sum(published.won for published in report.publishers) <= 200
    for published in report.publishers:
        assert (published.blocks, published.unacknowledged, published.safe_through) == (200, 0, 199)
    assert max(progress.ready for progress in seen) == 3
    assert seen[-1].running == 0
    (published,) = again.publishers
    assert (again.is_complete, published.duplicate, published.won) == (True, 200, 0)


@pytest.mark.spark
@needs_real_blocks
@pytest.mark.parametrize("chain", ["signed-chain", "record-file-chain"])
def test_real_chains_arrive_byte_for_byte(spark: SparkSession, chain: str) -> None:
    with running(FakeNode()) as node:
        report = publish(spark, real_chain(chain), [node.address], deadline_seconds=240)
    assert report.is_complete, report.failures
    assert node.received == list(read_chain(real_chain(chain)))


@pytest.mark.slow
@pytest.mark.spark
def test_a_refused_block_fails_with_one_line_and_the_others_go_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    for block in BlockMaker(1, key_of_seed(1), SMALL).blocks(3):
        write_block_file(tmp_path / f"{block.number}.blk", block)

    async def refuse(stream: FakeStream) -> None:
        if stream.publisher_id == "publisher-2":
            block = await stream.block()
            await stream.end("BAD_BLOCK_PROOF", 2**64 - 1, proximate=block.number)
            await stream.drain()
            return
        for number in range(3):
            await stream.block()
            await stream.acknowledge(number)

    with running(FakeNode(default=refuse)) as node:
        report = publish(spark, tmp_path, [node.address], 2, deadline_seconds=240)
    assert not report.is_complete
    (failure,) = report.failures
    assert failure.publisher_id == "publisher-2"
    assert failure.reason.startswith("block 0 was refused 3 times with BAD_BLOCK_PROOF: its proof is not of ")
    good, bad = report.publishers
    assert (good.publisher_id, good.won, good.failure) == ("publisher-1", 3, None)
    assert (bad.publisher_id, bad.blocks, bad.won) == ("publisher-2", 3, 0)
    assert bad.failure == failure.reason


@pytest.mark.spark
def test_a_bad_block_is_found_where_its_file_is_read(spark: SparkSession, tmp_path: Path) -> None:
    blocks = list(BlockMaker(1, key_of_seed(1), SMALL).blocks(3))
    blocks[2] = Block(2, (*blocks[2].items[:1], *blocks[2].items[2:-2], *blocks[2].items[-1:]))  # no footer
    for block in blocks:
        write_block_file(tmp_path / f"{block.number}.blk", block)
    with running(FakeNode()) as node:
        report = publish(spark, tmp_path, [node.address])
        assert all(block in blocks[:2] for block in node.received)
    (failure,) = report.failures
    assert failure.reason.startswith(f"{tmp_path}/2.blk: bad block: ")


@pytest.mark.spark
def test_gateways_may_ask_for_certificates(spark: SparkSession, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, alice = authority.issue("localhost"), authority.issue("alice")
    for block in make_blocks(3):
        write_block_file(tmp_path / f"{block.number}.blk", block)
    settings = {
        "grpc_tls_certificate": server.certificate,
        "grpc_tls_key": server.key,
        "grpc_tls_client_ca": authority.path,
        "publish_allowed_subjects": ("CN=alice",),
    }
    with node_thread(tmp_path / "data", **settings) as node:
        gateways = [f"localhost:{node.grpc_address.port}"]
        report = publish(spark, tmp_path, gateways, deadline_seconds=240, tls=authority.client(alice))
        assert report.is_complete
        assert node.store.last_number == 2


@pytest.mark.spark
def test_a_race_in_each_task_gives_a_row_a_racer_and_figures_like_the_sinks(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[PublishReport] = []

    def read(folder: Path, name: str) -> list[PublishReport]:
        written.extend(read_reports(folder, name))
        return written

    monkeypatch.setattr(job_module, "_read_reports", read)
    chain = tmp_path / "chain"
    chain.mkdir()
    for block in make_blocks(12):
        write_block_file(chain / f"{block.number}.blk", block)
    with node_thread(tmp_path / "node") as node:
        gateways = [str(node.grpc_address)]
        report = publish(spark, chain, gateways, shards=2, deadline_seconds=240, sink_options={"race": "2"})
        assert node.store.last_number == 11
    assert report.is_complete, report.failures
    assert (report.first_block, report.last_block, report.safe_through) == (0, 11, 11)
    assert [row.publisher_id for row in report.publishers] == ["publisher-1.1", "publisher-1.2"]
    for row in report.publishers:
        assert (row.blocks, row.acknowledged + row.duplicate) == (12, 12)
        parts = [one for one in written if one.publisher_id[-1] == row.publisher_id[-1]]
        assert len(parts) == 2
        assert row == add_reports(row.publisher_id, parts, with_latency=True)


@pytest.mark.spark
def test_stop_finishes_the_block_in_flight_and_the_next_run_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    blocks = make_blocks(40)
    for block in blocks:
        write_block_file(tmp_path / f"{block.number}.blk", block)
    stop = threading.Event()

    seen: list[JobProgress] = []
    with running(FakeNode([stopping_at(5, stop)])) as node:
        options = {"window_blocks": "1"}
        report = publish(
            spark, tmp_path, [node.address], sink_options=options, stop=stop, on_progress=seen.append
        )
        assert report.is_interrupted
        assert not report.is_complete
        assert report.failures == ()
        assert report.safe_through == 5
        assert [block.number for block in node.received] == list(range(6))
        assert seen[-1].is_stopping
        (row,) = report.publishers
        assert row.acknowledged == len(row.latency_ns) == 6
        assert all(word.startswith("RESET(") for word in node.words)
        assert node.words
        numbers = NumberRange(6)
        assert publish(spark, tmp_path, [node.address], numbers=numbers, deadline_seconds=240).is_complete
    assert node.received == blocks


@pytest.mark.spark
def test_one_that_follows_goes_on_from_its_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    chain = tmp_path / "chain"
    chain.mkdir()
    source = parse_source(f"blockfiles:{chain}")
    blocks = make_blocks(6)
    with node_thread(tmp_path / "node") as node:
        for first, end in ((0, 4), (4, 6)):
            for block in blocks[first:end]:
                write_block_file(chain / f"{block.number}.blk", block)
            with FollowCheckpoint(tmp_path / "state", str(source), 0) as checkpoint:
                report = publish(
                    *(spark, source, [str(node.grpc_address)]),
                    numbers=NumberRange(end=end),
                    checkpoint=checkpoint,
                    deadline_seconds=240,
                )
            assert report.is_complete, report.failures
            assert [(row.blocks, row.safe_through) for row in report.publishers] == [(end - first, end - 1)]
            assert node.store.last_number == end - 1


@pytest.mark.slow
@pytest.mark.spark
def test_two_that_follow_go_on_from_their_checkpoints_and_end_with_the_last_block(
    spark: SparkSession, tmp_path: Path
) -> None:
    blocks = make_blocks(20)
    chain = tmp_path / "chain"
    chain.mkdir()
    source = parse_source(f"blockfiles:{chain}", {"max_blocks_per_trigger": "4"})
    stop = threading.Event()

    def feed(progress: JobProgress, count_max: int) -> None:
        """Bring blocks as they are taken, and stop in the middle."""
        following = 0 if progress.safe_through is None else progress.safe_through + 1
        for block in blocks[following : min(following + 6, count_max)]:
            path = chain / f"{block.number}.blk"
            if not path.exists():
                write_block_file(path, block)
        if following >= 8:
            stop.set()

    with node_thread(tmp_path / "node") as node:
        gateways = [str(node.grpc_address)]

        def follow(numbers: NumberRange, *, stoppable: bool) -> JobReport:
            with FollowCheckpoint(tmp_path / "state", str(source), 0) as checkpoint:
                return publish(
                    spark,
                    source,
                    gateways,
                    2,
                    numbers=numbers,
                    checkpoint=checkpoint,
                    on_progress=partial(feed, count_max=14 if stoppable else 20),
                    stop=stop if stoppable else None,
                )

        first = follow(NumberRange(), stoppable=True)
        assert first.is_interrupted
        assert first.safe_through is not None
        assert 7 <= first.safe_through < 14
        second = follow(NumberRange(end=20), stoppable=False)
        assert (second.is_complete, second.failures) == (True, ())
        assert (second.safe_through, second.last_block) == (19, 19)
        assert node.store.last_number == 19
        # All is done: no batch comes any more, and it ends all the same.
        third = follow(NumberRange(end=20), stoppable=False)
        assert (third.is_complete, third.safe_through, third.failures) == (True, 19, ())
    for report in (first, second):
        assert [row.publisher_id for row in report.publishers] == ["publisher-1", "publisher-2"]
    # The second run did not begin anew; one whose first batch was not over when all had to stop, does.
    assert max(row.first_block or 0 for row in second.publishers) >= 4


@pytest.mark.spark
def test_publishers_that_are_stopped_at_once_are_told_of_all_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    for block in make_blocks(3):
        write_block_file(tmp_path / f"{block.number}.blk", block)
    stop = threading.Event()
    stop.set()
    report = publish(spark, tmp_path, ["127.0.0.1:1"], 2, stop=stop)
    assert (report.is_interrupted, report.safe_through, report.failures) == (True, None, ())
    assert [row.publisher_id for row in report.publishers] == ["publisher-1", "publisher-2"]


@pytest.mark.slow
@pytest.mark.spark
def test_a_query_that_is_ended_in_a_batch_has_not_failed_where_all_is_safe(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a publisher that lags: another one has stored the blocks of the batch."""
    cancel = spark.sparkContext.cancelJobsWithTag

    def cancel_and_wait(tag: str) -> None:
        """Let the query fall over its cancelled job before it is told to stop."""
        cancel(tag)
        give_up_at = time.monotonic() + 60
        while spark.streams.active and time.monotonic() < give_up_at:
            time.sleep(0.05)

    monkeypatch.setattr(spark.sparkContext, "cancelJobsWithTag", cancel_and_wait)
    blocks = make_blocks(12)
    store(tmp_path / "node", blocks)
    chain = tmp_path / "chain"
    chain.mkdir()
    for block in blocks:
        write_block_file(chain / f"{block.number}.blk", block)
    source = parse_source(f"blockfiles:{chain}", {"max_blocks_per_trigger": "1"})
    tracker = spark.sparkContext.statusTracker()
    jobs_in_flight: list[int] = []

    def hold(progress: JobProgress) -> None:
        """Once all is known to be safe, have the next batch wait for the gateway."""
        if progress.safe_through == 11 and not jobs_in_flight:
            node.send(signal.SIGSTOP)
            give_up_at = time.monotonic() + 120
            while not jobs_in_flight and time.monotonic() < give_up_at:
                time.sleep(0.1)
                jobs_in_flight.extend(tracker.getActiveJobsIds())

    with (
        NodeProcess(tmp_path / "node", tmp_path / "log", ("--verify", "hash")) as node,
        FollowCheckpoint(tmp_path / "state", str(source), 0) as checkpoint,
    ):
        try:
            report = publish(
                *(spark, source, [node.grpc]),
                numbers=NumberRange(end=12),
                checkpoint=checkpoint,
                on_progress=hold,
            )
        finally:
            node.send(signal.SIGCONT)
    assert jobs_in_flight
    assert (report.failures, report.is_complete, report.safe_through) == ((), True, 11)


FELL_OVER = "Job aborted: task 0.0 in stage 1 failed (driver): java.io.OptionalDataException"


@pytest.mark.parametrize(
    ("errors", "is_stopping", "has_batches", "starts", "is_raised"),
    [
        ([], False, False, 1, False),
        ([FELL_OVER, FELL_OVER], False, False, 3, False),
        ([FELL_OVER] * (QUERY_STARTS_MAX - 1), False, False, QUERY_STARTS_MAX, False),
        ([FELL_OVER] * QUERY_STARTS_MAX, False, False, QUERY_STARTS_MAX, True),
        ([FELL_OVER] * 2 * QUERY_STARTS_MAX, False, True, 2 * QUERY_STARTS_MAX + 1, False),
        ([FELL_OVER], True, False, 1, True),
        (["block 5 is missing"], False, True, 1, True),
    ],
)
def test_a_query_that_fell_over_another_is_begun_again(
    monkeypatch: pytest.MonkeyPatch,
    errors: list[str],
    is_stopping: bool,
    has_batches: bool,
    starts: int,
    is_raised: bool,
) -> None:
    """Spark's tasks cannot be read when another query changed the environment of all meanwhile."""
    begun: list[int] = []

    def run_query(*_: object) -> None:
        begun.append(1)
        if has_batches:
            job.reports = [PublishReport("publisher-1")]
        if len(begun) <= len(errors):
            raise RuntimeError(errors[len(begun) - 1])

    monkeypatch.setattr(job_module, "_run_query", run_query)
    race: Any = SimpleNamespace(is_stopping=is_stopping)
    job = job_module._Job("publisher-1", "a:1")
    with pytest.raises(RuntimeError) if is_raised else nullcontext():
        job_module._keep_query_running(race, job, {})
    assert len(begun) == starts


def following(folder: Path, publisher_id: str, last_block: int) -> tuple[Any, Any]:
    """A race and its job as they are while a query runs."""
    race: Any = SimpleNamespace(
        folder=folder,
        chain=SimpleNamespace(last_block=last_block),
        coordinator=SimpleNamespace(forget=lambda *_: None),
        checkpoint=None,
    )
    return race, job_module._Job(publisher_id, "a:1", thread=threading.current_thread())


def test_following_up_to_block_0_ends() -> None:
    race, job = following(Path(), "publisher-1", last_block=0)
    assert not job_module._is_all_safe(race, [job])
    job.reports = [PublishReport("publisher-1", safe_through=0)]
    assert job_module._is_all_safe(race, [job])


@pytest.mark.parametrize("publisher_id", ["team/a-1", "[a]-1", "a*-1", "a?-1"])
def test_batches_of_a_publisher_with_any_name_are_found(tmp_path: Path, publisher_id: str) -> None:
    race, job = following(tmp_path, publisher_id, last_block=4)
    name = publisher_id.replace("/", "_")
    report = PublishReport(publisher_id, blocks=5, acknowledged=5, safe_through=4)
    (tmp_path / f"{name}-batch-0.json").write_text(f"[{report.to_json()}]")
    job_module._take_batches(race, job)
    assert job_module._is_all_safe(race, [job])
    assert list(tmp_path.iterdir()) == []


def test_a_batch_counts_when_spark_has_noted_it_in_the_checkpoint(tmp_path: Path) -> None:
    """Otherwise a query that is stopped in between does its batch again."""
    race, job = following(tmp_path / "reports", "publisher-1", last_block=4)
    race.checkpoint = FollowCheckpoint(tmp_path / "state", "server:a:1", 0)
    report = PublishReport("publisher-1", blocks=5, acknowledged=5, safe_through=4)
    commits = tmp_path / "state" / "publisher-1" / "commits"
    race.folder.mkdir()
    commits.mkdir(parents=True)
    (race.folder / "publisher-1-batch-7.json").write_text(f"[{report.to_json()}]")
    for committed in ("6", ".7.tmp"):
        (commits / committed).touch()
        job_module._take_batches(race, job)
        assert not job_module._is_all_safe(race, [job])
    (commits / "7").touch()
    job_module._take_batches(race, job)
    assert job_module._is_all_safe(race, [job])


def test_a_query_that_starts_while_all_is_ended_is_ended_too(tmp_path: Path) -> None:
    """Spark takes seconds to start one; when nothing comes to it, it would run for ever."""
    was_ended, is_over, stop = threading.Event(), threading.Event(), threading.Event()
    race, job = following(tmp_path, "publisher-1", last_block=4)

    def start_late() -> None:
        assert was_ended.wait(10)
        job.query = SimpleNamespace(stop=is_over.set)
        assert is_over.wait(10)

    race.coordinator = SimpleNamespace(
        ready_count=0, task_count=0, open_gate=lambda: None, stop=lambda: None, await_idle=lambda _: True
    )
    context = SimpleNamespace(cancelJobsWithTag=lambda _: was_ended.set(), defaultParallelism=1)
    context.getConf = dict
    race.spark = SimpleNamespace(sparkContext=context)
    race.tag, race.is_stopping, race.opened_at = "x", False, None
    job.thread = threading.Thread(target=start_late)
    job.thread.start()
    stop.set()
    job_module._watch(race, [job], GatewayStatus(("127.0.0.1:1",), None), None, stop)
    assert is_over.is_set()


def test_a_job_that_starts_while_all_is_aborted_is_cancelled_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark takes seconds to plan one; what is cancelled before that is nothing, and it would go on alone."""
    was_cancelled, is_over, has_begun = threading.Event(), threading.Event(), threading.Event()
    race, job = following(tmp_path, "publisher-1", last_block=4)

    def cancel(_: str) -> None:
        (is_over if has_begun.is_set() else was_cancelled).set()

    def start_late(*_: object) -> None:
        assert was_cancelled.wait(10)
        has_begun.set()
        assert is_over.wait(10)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(job_module, "_run_job", start_late)
    monkeypatch.setattr(job_module, "_watch", interrupted)
    race.spark, race.tag = SimpleNamespace(sparkContext=SimpleNamespace(cancelJobsWithTag=cancel)), "x"
    with pytest.raises(KeyboardInterrupt):
        job_module._run(race, [job], GatewayStatus(("127.0.0.1:1",), None), None, None)
    assert is_over.is_set()
    assert not job.is_running
