"""Racing publishers without Spark, against real nodes, and one that lets them race."""

from __future__ import annotations

import asyncio
import itertools
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.layout import BOOKMARK_TYPE
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.errors import LayoutError
from sluice.gateway.blocks.items import ItemKind, kind_of
from sluice.publishers.blocks.block_files import write_block_file
from sluice.publishers.blocks.block_places import read_chain
from sluice.publishers.blocks.linking import sign_block
from sluice.publishers.blocks.maker import BlockMaker, MakerOptions, key_of_seed
from sluice.publishers.blocks.signing_key import KeyPlace
from sluice.publishers.blocks.stream_grouping import Grouping, StreamBlocks
from sluice.publishers.demo.node_process import NodeProcess
from sluice.publishers.errors import BlockListError, CheckpointError, OptionError
from sluice.publishers.job.checkpoint import FollowCheckpoint
from sluice.publishers.job.job import GatewayStatus
from sluice.publishers.job.local_chain import LocalChain, open_chain, size_of, why_spark
from sluice.publishers.job.local_job import publish_locally
from sluice.publishers.number_range import NumberRange
from sluice.publishers.report import JobProgress, JobReport
from sluice.publishers.sources.stream_runs import PagesReader
from sluice.publishers.spark.source_names import SourceName, parse_source
from tests.certificates import Authority
from tests.datastream.serving import ServerThread
from tests.datastream.streams import sample_file
from tests.nodes import KEY, make_blocks
from tests.publishers.data import needs_real_blocks, real_chain
from tests.publishers.fake_node import FakeNode, FakeStream, racing, running, stopping_at
from tests.publishers.node_thread import node_thread, store
from tests.reference_data import needs_stream

SMALL = MakerOptions(rounds_per_block=1, events_per_round=2, transactions_per_block=4, item_bytes=300)
BLOCKS = make_blocks(12)


@pytest.fixture
def chain(tmp_path: Path) -> SourceName:
    folder = tmp_path / "chain"
    folder.mkdir()
    return files_of(folder, BLOCKS)


@pytest.fixture
def key(tmp_path: Path) -> KeyPlace:
    path = tmp_path / "key.pem"
    path.write_bytes(KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return KeyPlace(str(path), None)


def files_of(folder: Path, blocks: list[Block]) -> SourceName:
    for block in blocks:
        write_block_file(folder / f"{block.number}.blk", block)
    return parse_source(f"blockfiles:{folder}")


async def refuses(stream: FakeStream) -> None:
    block = await stream.block()
    await stream.end("BAD_BLOCK_PROOF", 2**64 - 1, proximate=block.number)
    await stream.drain()


def test_three_publishers_race_and_every_block_is_stored_once(tmp_path: Path) -> None:
    blocks = list(BlockMaker(1, key_of_seed(1), SMALL).blocks(200))
    source = files_of(tmp_path, blocks)
    seen: list[JobProgress] = []
    with running(FakeNode(default=racing)) as node:
        report = publish_locally(source, [node.address], 3, on_progress=seen.append)
        again = publish_locally(source, [node.address], 1, publisher_prefix="again")
    assert report.is_complete, report.failures
    assert sorted(node.received, key=lambda block: block.number) == blocks
    assert [row.publisher_id for row in report.publishers] == ["publisher-1", "publisher-2", "publisher-3"]
    for row in report.publishers:
        assert (row.blocks, row.unacknowledged, row.safe_through) == (200, 0, 199)
    assert sum(row.won for row in report.publishers) <= 200
    assert (seen[-1].ready, seen[-1].running) == (3, 0)
    (row,) = again.publishers
    assert (again.is_complete, row.duplicate, row.won) == (True, 200, 0)


@needs_real_blocks
@pytest.mark.parametrize("name", ["signed-chain", "record-file-chain"])
def test_real_chains_arrive_byte_for_byte(name: str) -> None:
    source = parse_source(f"blockfiles:{real_chain(name)}")
    with running(FakeNode()) as node:
        report = publish_locally(source, [node.address])
    assert report.is_complete, report.failures
    assert node.received == list(read_chain(real_chain(name)))


def test_a_node_and_its_streams_are_sources(tmp_path: Path) -> None:
    """Over gRPC, over TCP, and from its file: the wanted part, byte for byte."""
    store(tmp_path / "data", BLOCKS)
    with node_thread(tmp_path / "data") as held:
        sources = [
            f"blockstream:{held.grpc_address}",
            f"datastream:{held.tcp_address}",
            f"datastream:{tmp_path / 'data'}",
        ]
        for place, text in enumerate(sources):
            with node_thread(tmp_path / f"copy-{place}", first_block=3) as node:
                report = publish_locally(
                    parse_source(text), [str(node.grpc_address)], numbers=NumberRange(3, 9)
                )
                assert report.is_complete, (text, report.failures)
                assert (report.last_block, node.store.last_number) == (8, 8)
                for block in BLOCKS[3:9]:
                    found = node.store.read_block(block.number)
                    assert found is not None
                    assert found.items == block.items
            with pytest.raises(BlockListError, match="block 12 is not there"):
                publish_locally(parse_source(text), ["127.0.0.1:1"], numbers=NumberRange(3, 13))


@needs_stream
@pytest.mark.parametrize("is_server", [True, False])
def test_a_networks_stream_becomes_the_blocks_that_spark_makes(
    tmp_path: Path, key: KeyPlace, is_server: bool
) -> None:
    with PagesReader(sample_file(tmp_path)) as pages:
        whole = (entry for page in pages.pages_from(pages.run_from(0)) for entry in page)
        entries = list(itertools.islice(whole, 1200))
    folder = tmp_path / "network"
    folder.mkdir()
    streamer = DataStreamer.open(folder / "datastream.bin")
    streamer.start_atomic_op()
    for entry in entries:
        add = streamer.add_stream_bookmark if entry.type == BOOKMARK_TYPE else None
        if add is None:
            streamer.add_stream_entry(entry.type, entry.data)
        else:
            add(entry.data)
    streamer.commit_atomic_op()
    maker = StreamBlocks(Grouping("l2block"))
    made = [maker.feed(entry.number, entry.type, entry.data) for entry in entries]
    expected = [
        Block(block.number, sign_block(block.number, block.items, KEY)) for block in made if block is not None
    ]
    assert len(expected) > 5
    options = {"group_by": "l2block"}
    try:
        if is_server:
            with ServerThread(streamer) as server, running(FakeNode()) as node:
                source = parse_source(f"server:127.0.0.1:{server.port}", options)
                report = publish_locally(source, [node.address], key=key)
        else:
            with running(FakeNode()) as node:
                report = publish_locally(
                    parse_source(f"file:{folder / 'datastream.bin'}", options), [node.address], key=key
                )
    finally:
        streamer.close()
    assert report.is_complete, report.failures
    assert node.received == expected
    if not is_server:
        file = parse_source(f"file:{folder / 'datastream.bin'}", options)
        with pytest.raises(BlockListError, match=f"block {len(expected)} is not there"):
            open_chain(file, NumberRange(0, len(expected) + 1))


def test_a_refused_block_fails_with_one_line_and_the_others_go_on(tmp_path: Path) -> None:
    source = files_of(tmp_path, BLOCKS[:3])

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
        report = publish_locally(source, [node.address], 2)
    assert not report.is_complete
    (failure,) = report.failures
    assert failure.publisher_id == "publisher-2"
    assert failure.reason.startswith("block 0 was refused 3 times with BAD_BLOCK_PROOF: its proof is not of ")
    good, bad = report.publishers
    assert (good.won, good.failure, bad.won, bad.failure) == (3, None, 0, failure.reason)


@pytest.mark.slow
def test_when_all_gave_up_each_says_why(chain: SourceName) -> None:
    with running(FakeNode(default=refuses)) as node:
        report = publish_locally(chain, [node.address], 2)
    assert [failure.publisher_id for failure in report.failures] == ["publisher-1", "publisher-2"]
    assert all("BAD_BLOCK_PROOF" in failure.reason for failure in report.failures)


@pytest.mark.slow
def test_when_all_gave_up_before_the_source_ended_they_say_why(tmp_path: Path) -> None:
    """What is left in the source is then nobody's, and no reason."""
    source = files_of(tmp_path, list(BlockMaker(1, key_of_seed(1), SMALL).blocks(60)))

    with running(FakeNode(default=refuses)) as node:
        report = publish_locally(source, [node.address], 2, sink_options={"cache_bytes": "8000"})
    assert [failure.publisher_id for failure in report.failures] == ["publisher-1", "publisher-2"]
    assert all("BAD_BLOCK_PROOF" in failure.reason for failure in report.failures)


def test_a_bad_block_stops_all_with_the_blocks_before_it_stored(tmp_path: Path) -> None:
    blocks = list(BlockMaker(1, key_of_seed(1), SMALL).blocks(3))
    blocks[2] = Block(2, (*blocks[2].items[:1], *blocks[2].items[2:-2], *blocks[2].items[-1:]))  # no footer
    source = files_of(tmp_path, blocks)
    with running(FakeNode(default=racing)) as node:
        report = publish_locally(source, [node.address], 2)
        assert all(block in blocks[:2] for block in node.received)
    assert [failure.publisher_id for failure in report.failures] == ["publisher-1", "publisher-2"]
    assert all(failure.reason.startswith("block 2 ") for failure in report.failures)
    assert (report.is_complete, report.safe_through) == (False, 1)


def test_a_chain_with_a_gap_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    source = files_of(tmp_path, [BLOCKS[0], BLOCKS[2]])
    with pytest.raises(BlockListError, match="block 1 is missing"):
        publish_locally(source, ["127.0.0.1:1"])


def test_gateways_may_ask_for_certificates(chain: SourceName, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, alice = authority.issue("localhost"), authority.issue("alice")
    settings = {
        "grpc_tls_certificate": server.certificate,
        "grpc_tls_key": server.key,
        "grpc_tls_client_ca": authority.path,
        "publish_allowed_subjects": ("CN=alice",),
    }
    with node_thread(tmp_path / "data", **settings) as node:
        gateways = [f"localhost:{node.grpc_address.port}"]
        assert publish_locally(chain, gateways, tls=authority.client(alice)).is_complete
        assert node.store.last_number == 11


def test_each_publisher_may_race_by_itself(chain: SourceName, tmp_path: Path) -> None:
    with node_thread(tmp_path / "node") as node:
        report = publish_locally(chain, [str(node.grpc_address)], 2, sink_options={"race": "2"})
        assert node.store.last_number == 11
    assert report.is_complete, report.failures
    names = [f"publisher-{one}.{two}" for one in (1, 2) for two in (1, 2)]
    assert [row.publisher_id for row in report.publishers] == names


def test_stop_finishes_the_block_in_flight_and_the_next_run_goes_on(tmp_path: Path) -> None:
    blocks = make_blocks(40)
    source = files_of(tmp_path, blocks)
    stop = threading.Event()

    seen: list[JobProgress] = []
    with running(FakeNode([stopping_at(5, stop)])) as node:
        options = {"window_blocks": "1"}
        report = publish_locally(
            source, [node.address], sink_options=options, stop=stop, on_progress=seen.append
        )
        assert report.is_interrupted
        assert not report.is_complete
        assert report.failures == ()
        assert report.safe_through == 5
        assert [block.number for block in node.received] == list(range(6))
        assert seen[-1].is_stopping
        assert all(word.startswith("RESET(") for word in node.words)
        assert node.words
        assert publish_locally(source, [node.address], numbers=NumberRange(6)).is_complete
    assert node.received == blocks


@pytest.mark.parametrize("is_known", [True, False], ids=["the end is known", "the end is unknown"])
def test_stop_in_a_race_of_two_is_no_end(tmp_path: Path, is_known: bool) -> None:
    """The source is read long before the last block is due."""
    source = files_of(tmp_path, make_blocks(30))
    chain = open_chain(source, NumberRange())
    if not is_known:
        chain = LocalChain(chain.blocks)
    stop = threading.Event()

    def stop_soon(progress: JobProgress) -> None:
        if progress.safe_through is not None and progress.safe_through >= 5:
            stop.set()

    with node_thread(tmp_path / "node") as node:
        options = {"blocks_per_second": "10"}
        gateways = [str(node.grpc_address)]
        report = publish_locally(
            source, gateways, 2, chain=chain, sink_options=options, stop=stop, on_progress=stop_soon
        )
        assert (node.store.last_number or 0) < 29
    assert (report.is_interrupted, report.is_complete, report.failures) == (True, False, ())


def test_blocks_are_signed_and_then_checked(tmp_path: Path, key: KeyPlace) -> None:
    bare = [Block(block.number, block.items[:-1]) for block in BLOCKS]
    assert all(kind_of(block.items[-1]) == ItemKind.BLOCK_FOOTER for block in bare)
    source = files_of(tmp_path, bare)
    with running(FakeNode()) as node:
        assert publish_locally(source, [node.address], key=key).is_complete
        options = {"check": "false"}
        source = parse_source(f"blockfiles:{tmp_path}", {"check": "true"})
        report = publish_locally(source, [node.address], sink_options=options)
    assert [block.number for block in node.received] == list(range(12))
    (failure,) = report.failures  # the source wants what the sink does not
    assert failure.reason.startswith("block 0 ")


def test_a_source_that_fails_in_the_middle_is_reported(tmp_path: Path) -> None:
    source = files_of(tmp_path, BLOCKS)

    def blocks() -> Iterator[Block]:
        yield from BLOCKS[:3]
        raise LayoutError("entry 9", "nonsense", "an item")

    with running(FakeNode()) as node:
        report = publish_locally(source, [node.address], chain=LocalChain(blocks))
    (failure,) = report.failures
    assert "nonsense" in failure.reason
    assert not report.is_complete


def test_a_pace_holds_each_publisher_and_winners_change(tmp_path: Path) -> None:
    blocks = make_blocks(30)
    source = files_of(tmp_path, blocks)
    with node_thread(tmp_path / "node") as node:
        report = publish_locally(
            source, [str(node.grpc_address)], 3, sink_options={"blocks_per_second": "20"}
        )
        assert node.store.last_number == 29
    assert report.is_complete, report.failures
    assert report.elapsed_seconds > 1
    assert sum(row.won > 0 for row in report.publishers) > 1


# --- following ----------------------------------------------------------------------------------------------


class Following:
    """A folder that grows, and the runs of a command that follows it."""

    def __init__(self, folder: Path, source: str | None = None) -> None:
        self.chain = folder / "growing"
        self.chain.mkdir()
        self.state = folder / "state"
        self.source = parse_source(source or f"blockfiles:{self.chain}")
        self.stop = threading.Event()
        self.seen: list[JobProgress] = []

    def put(self, *numbers: int) -> None:
        for number in numbers:
            write_block_file(self.chain / f"{number}.blk", BLOCKS[number])

    def run(
        self,
        gateways: Sequence[str],
        publishers: int = 1,
        *,
        numbers: NumberRange | None = None,
        on_progress: Callable[[JobProgress], None] = lambda progress: None,
        **named: Any,
    ) -> JobReport:
        def show(progress: JobProgress) -> None:
            self.seen.append(progress)
            on_progress(progress)

        with FollowCheckpoint(self.state, str(self.source), 0, engine="local") as checkpoint:
            return publish_locally(
                self.source,
                gateways,
                publishers,
                numbers=numbers,
                checkpoint=checkpoint,
                on_progress=show,
                stop=self.stop,
                **named,
            )


def test_three_that_follow_a_growing_folder_go_on_from_their_checkpoint(tmp_path: Path) -> None:
    """Blocks come in disorder, a gap is said; then the same command again, up to the last block."""
    follow = Following(tmp_path)
    coming = [(0,), (2,), (3, 4), (1,), (6,)]

    def feed(progress: JobProgress) -> None:
        if coming and (progress.awaited is not None or progress.safe_through == 4):
            follow.put(*coming.pop(0))
        elif not coming and progress.safe_through == 4:
            follow.stop.set()

    with node_thread(tmp_path / "node") as node:
        gateways = [str(node.grpc_address)]
        first = follow.run(gateways, 3, on_progress=feed)
        assert (first.is_interrupted, first.is_complete, first.failures) == (True, False, ())
        assert (first.first_block, first.safe_through, node.store.last_number) == (0, 4, 4)
        said = [progress.awaited or "" for progress in follow.seen]
        assert any(text.startswith("waiting for the first block since ") for text in said)
        missing = f": block 1 is missing (before {follow.chain}/2.blk)"
        assert any(text.startswith("waiting for block 1 since ") and text.endswith(missing) for text in said)
        follow.stop.clear()
        follow.put(5, 7, 8, 9)
        (follow.chain / "0.blk").unlink()  # it needs no more what is stored
        second = follow.run(gateways, 3, numbers=NumberRange(end=9))
        assert (second.is_complete, second.failures) == (True, ())
        assert (second.first_block, second.last_block, node.store.last_number) == (5, 8, 8)
        assert [row.blocks for row in second.publishers] == [4, 4, 4]
        third = follow.run(gateways, 3, numbers=NumberRange(end=9))
        assert (third.is_complete, third.safe_through) == (True, 8)
        assert [row.blocks for row in third.publishers] == [0, 0, 0]


def test_a_run_whose_checkpoint_lags_sends_nothing_twice(tmp_path: Path) -> None:
    """As after a kill, which may come before the progress is noted."""
    follow = Following(tmp_path)
    follow.put(*range(6))
    with node_thread(tmp_path / "node") as node:
        gateways = [str(node.grpc_address)]
        assert follow.run(gateways, numbers=NumberRange(end=6)).is_complete
        (follow.state / "progress.json").write_text('{"next": 2}\n')
        follow.put(6)
        report = follow.run(gateways, numbers=NumberRange(end=7))
        assert node.store.last_number == 6
    (row,) = report.publishers
    assert (report.is_complete, row.blocks, row.acknowledged + row.duplicate, row.won) == (True, 5, 5, 1)


def test_the_beginning_of_a_chain_is_noted_before_its_first_block_is_sent(tmp_path: Path) -> None:
    follow = Following(tmp_path)
    follow.put(5)

    def stop(progress: JobProgress) -> None:
        if (follow.state / "progress.json").exists():
            follow.stop.set()

    assert follow.run(["127.0.0.1:1"], on_progress=stop).is_interrupted
    assert (follow.state / "progress.json").read_text() == '{"next": 5}\n'
    follow.stop.clear()
    follow.put(3, 4)  # they come too late
    with node_thread(tmp_path / "node", first_block=5) as node:
        report = follow.run([str(node.grpc_address)], numbers=NumberRange(end=6))
    assert (report.is_complete, report.first_block) == (True, 5)


def test_a_file_that_is_wrong_is_named_and_the_blocks_before_it_are_stored(tmp_path: Path) -> None:
    follow = Following(tmp_path)
    follow.put(0, 1)
    bad = Block(2, (*BLOCKS[2].items[:1], *BLOCKS[2].items[2:-2], *BLOCKS[2].items[-1:]))  # no footer
    write_block_file(follow.chain / "2.blk", bad)
    with node_thread(tmp_path / "node") as node:
        report = follow.run([str(node.grpc_address)], 2)
        assert node.store.last_number == 1
    assert len(report.failures) == 2
    for failure in report.failures:
        assert failure.reason.startswith(f"{follow.chain}/2.blk: bad block: ")
    assert (report.is_complete, report.is_interrupted, report.safe_through) == (False, False, 1)


def test_a_folder_that_vanishes_ends_it_with_its_name(tmp_path: Path) -> None:
    follow = Following(tmp_path)
    follow.put(0)

    def move(progress: JobProgress) -> None:
        if progress.safe_through == 0 and follow.chain.exists():
            follow.chain.rename(tmp_path / "elsewhere")

    with node_thread(tmp_path / "node") as node:
        report = follow.run([str(node.grpc_address)], on_progress=move)
    assert [failure.reason for failure in report.failures] == [f"{follow.chain}: No such file or directory"]


@pytest.mark.parametrize("kind", ["blockstream", "datastream"])
def test_a_node_is_followed_over_grpc_and_tcp(tmp_path: Path, kind: str) -> None:
    store(tmp_path / "held", BLOCKS[:4])
    with node_thread(tmp_path / "held") as held, node_thread(tmp_path / "node") as node:
        address = held.grpc_address if kind == "blockstream" else held.tcp_address
        follow = Following(tmp_path, f"{kind}:{address}")

        def publish_to_held(folder: str, blocks: list[Block]) -> None:
            (tmp_path / folder).mkdir()
            assert publish_locally(files_of(tmp_path / folder, blocks), [str(held.grpc_address)]).is_complete

        def feed(progress: JobProgress) -> None:
            if progress.awaited is not None and held.store.last_number == progress.safe_through == 3:
                publish_to_held("more", BLOCKS[4:6])
            elif progress.safe_through == 5:
                follow.stop.set()

        gateways = [str(node.grpc_address)]
        assert follow.run(gateways, 2, on_progress=feed).is_interrupted
        follow.stop.clear()
        publish_to_held("last", BLOCKS[6:7])
        report = follow.run(gateways, numbers=NumberRange(end=7))
        assert (report.is_complete, report.first_block, report.safe_through, node.store.last_number) == (
            True,
            6,
            6,
            6,
        )
        for block in BLOCKS[:7]:
            found = node.store.read_block(block.number)
            assert found is not None
            assert found.items == block.items


def test_blocks_that_are_followed_are_signed(tmp_path: Path, key: KeyPlace) -> None:
    follow = Following(tmp_path)
    for block in BLOCKS[:3]:
        write_block_file(follow.chain / f"{block.number}.blk", Block(block.number, block.items[:-1]))
        then = time.time() - 60  # a fresh file without a proof may be half of one
        os.utime(follow.chain / f"{block.number}.blk", (then, then))
    with node_thread(tmp_path / "node") as node:
        report = follow.run([str(node.grpc_address)], numbers=NumberRange(end=3), key=key)
        assert (report.is_complete, node.store.last_number) == (True, 2)


def test_a_checkpoint_that_cannot_be_written_ends_it(tmp_path: Path) -> None:
    follow = Following(tmp_path)
    follow.put(0)

    def damage(progress: JobProgress) -> None:
        path = follow.state / "progress.part"
        if progress.awaited is not None and not path.exists():
            path.mkdir()
            follow.put(1)

    with (
        node_thread(tmp_path / "node") as node,
        pytest.raises(CheckpointError, match=r"progress\.json: Is a directory"),
    ):
        follow.run([str(node.grpc_address)], on_progress=damage)


def test_what_only_spark_reads_is_refused_by_name(tmp_path: Path) -> None:
    table = parse_source("table:blocks")
    assert why_spark(table) == "the source table:blocks"
    with pytest.raises(OptionError, match="spark, which alone reads it"):
        open_chain(table, NumberRange())
    (tmp_path / "0.blk").touch()
    assert why_spark(parse_source(str(tmp_path), {"Mode": "permissive"})) == "--option mode"
    assert why_spark(parse_source(str(tmp_path), {"partitions": "3"})) == "--option partitions"
    server = parse_source("server:a:1")
    assert why_spark(server) is None
    assert why_spark(server, is_followed=True) == "--follow of the source server:a:1"


def test_the_size_of_files_is_known_before_they_are_read(chain: SourceName, tmp_path: Path) -> None:
    sizes = [path.stat().st_size for path in sorted((tmp_path / "chain").iterdir())]
    assert size_of(chain, NumberRange()) == sum(sizes)
    assert size_of(chain, NumberRange(3, 4)) == (tmp_path / "chain" / "3.blk").stat().st_size
    assert size_of(parse_source("blockstream:a:1"), NumberRange()) is None
    (tmp_path / "chain" / "5.blk").unlink()
    left = [path.stat().st_size for path in (tmp_path / "chain").iterdir()]
    assert size_of(chain, NumberRange(), is_followed=True) == sum(left)


PROGRAM = """
import sys
sys.modules["pyspark"] = sys.modules["pyarrow"] = sys.modules["pandas"] = sys.modules["py4j"] = None
from sluice.gateway.commands.start import main
sys.argv = ["sluice", "publish", "--source", sys.argv[1], "--gateway", sys.argv[2], *sys.argv[3:]]
sys.exit(main())
"""
"""`sluice publish` where the extra `spark` is not installed."""


@pytest.fixture
def unanswered(chain: SourceName) -> Iterator[subprocess.Popen[str]]:
    """A publisher without Spark whose gateway takes blocks and never answers."""

    async def mute(stream: FakeStream) -> None:
        await asyncio.sleep(60)

    with (
        running(FakeNode(default=mute)) as node,
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(chain), node.address],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        deadline = time.monotonic() + 60
        while not node.stream_count and time.monotonic() < deadline:
            time.sleep(0.02)
        yield process
        process.kill()


def test_without_spark_it_publishes(chain: SourceName, tmp_path: Path) -> None:
    with node_thread(tmp_path / "node") as node:
        words = [sys.executable, "-c", PROGRAM, str(chain), str(node.grpc_address)]
        ended = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert (ended.returncode, node.store.last_number) == (0, 11), ended.stderr
    assert ended.stdout.startswith("blocks 0 to 11: stored, ")


@pytest.mark.slow
def test_without_spark_it_follows_over_a_kill_and_an_interrupt(tmp_path: Path) -> None:
    """From one process into a node in another."""
    follow = Following(tmp_path)
    follow.put(*range(4))
    with NodeProcess(tmp_path / "node", tmp_path / "log", ("--verify", "hash")) as node:
        words = [sys.executable, "-c", PROGRAM, str(follow.source), node.grpc]
        words += ["--follow", "--checkpoint", str(follow.state), "--publishers", "2"]

        def begun(last_block: int) -> subprocess.Popen[str]:
            """Start the command; return when the node has a block."""
            process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            deadline = time.monotonic() + 60
            with GatewayStatus([node.grpc]) as status:
                while (last := status.ask()[0]) is None or last < last_block:
                    assert process.poll() is None, process.communicate()
                    assert time.monotonic() < deadline, last
                    time.sleep(0.02)
            return process

        killed = begun(3)
        killed.kill()
        killed.communicate(timeout=60)
        follow.put(*range(4, 8))
        interrupted = begun(7)
        second = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert second.returncode == 1
        assert second.stderr == f"sluice: checkpoint {follow.state}: another `sluice publish` is using it\n"
        interrupted.send_signal(signal.SIGINT)
        printed, said = interrupted.communicate(timeout=60)
        assert interrupted.returncode == 130, said
        assert "interrupted, safe_through 7, " in printed
        go_on = f"--follow --checkpoint {shlex.quote(str(follow.state))} --publishers 2"
        assert said.splitlines()[-1].endswith(go_on)
        follow.put(*range(8, 12))
        done = subprocess.run([*words, "--to", "11"], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("blocks 8 to 11: stored, safe_through 11, ")


def test_the_second_interrupt_ends_it_at_once(unanswered: subprocess.Popen[str]) -> None:
    unanswered.send_signal(signal.SIGINT)
    time.sleep(0.5)
    unanswered.send_signal(signal.SIGINT)
    printed, said = unanswered.communicate(timeout=60)
    assert (unanswered.returncode, printed) == (130, "")  # after the first alone it prints a report
    assert "Go on with:" in said
    assert "Traceback" not in said
