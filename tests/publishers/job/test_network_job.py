"""The stream of a network through racing publishers to a node: the same bytes, each block once, and back."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from sluice.datastream.client.blocking_client import BlockingStreamClient
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.layout import BOOKMARK_TYPE, DATA_SIZE_MAX, PACKET_ANSWER, Entry, encode_entry
from sluice.datastream.protocol.commands import Command, CommandError, encode_command
from sluice.datastream.protocol.packets import encode_result
from sluice.gateway.node.node import Node
from sluice.publishers.blocks.linking import sign_block
from sluice.publishers.blocks.signing_key import KeyPlace
from sluice.publishers.blocks.stream_grouping import Grouping, StreamBlocks
from sluice.publishers.errors import BlockListError
from sluice.publishers.job.checkpoint import FollowCheckpoint
from sluice.publishers.job.job import JobReport, publish
from sluice.publishers.number_range import NumberRange
from sluice.publishers.sources.entry_blocks import blocks_that_begin_in
from sluice.publishers.sources.stream_runs import PagesReader
from sluice.publishers.spark.source_names import SourceName, parse_source
from tests.datastream.serving import ServerThread
from tests.datastream.streams import sample_file
from tests.nodes import KEY
from tests.publishers.fake_node import FakeNode, racing, running
from tests.publishers.node_thread import node_thread
from tests.reference_data import needs_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONG = os.environ.get("SLUICE_LONG") == "1"
SHUFFLE = "spark.sql.shuffle.partitions"
Blocks = list[tuple[int, tuple[bytes, ...]]]

pytestmark = [pytest.mark.spark, needs_stream, pytest.mark.usefixtures("one_partition")]


@pytest.fixture
def one_partition(spark: SparkSession) -> Iterator[None]:
    """Shuffle into one partition, as `sluice publish` does for a server."""
    before = str(spark.conf.get(SHUFFLE))
    spark.conf.set(SHUFFLE, "1")
    yield
    spark.conf.set(SHUFFLE, before)


@pytest.fixture
def entries(tmp_path: Path) -> list[Entry]:
    """The beginning of the sample; one entry is as long as any may be."""
    with PagesReader(sample_file(tmp_path)) as pages:
        whole = (entry for page in pages.pages_from(pages.run_from(0)) for entry in page)
        found = list(itertools.islice(whole, 1200))
    found[19] = Entry(0xFFFFFFFE, 19, bytes(DATA_SIZE_MAX))
    return found


@pytest.fixture
def key(tmp_path: Path) -> KeyPlace:
    path = tmp_path / "key.pem"
    path.write_bytes(KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return KeyPlace(str(path), None)


def append(streamer: DataStreamer, entries: Iterable[Entry]) -> None:
    streamer.start_atomic_op()
    for entry in entries:
        if entry.type == BOOKMARK_TYPE:
            streamer.add_stream_bookmark(entry.data)
        else:
            streamer.add_stream_entry(entry.type, entry.data)
    streamer.commit_atomic_op(flush=False)


def signed_blocks(entries: Iterable[Entry], by: str, *, is_whole: bool = False) -> Blocks:
    maker = StreamBlocks(Grouping.parse(by))
    made = [maker.feed(entry.number, entry.type, entry.data) for entry in entries]
    if is_whole:
        made.append(maker.finish())
    return [(block.number, sign_block(block.number, block.items, KEY)) for block in made if block is not None]


def stored_blocks(node: Node) -> Blocks:
    """What a client reads from the node's stream."""
    with BlockingStreamClient(node.tcp_address.host, node.tcp_address.port) as client:
        count = client.header().total_entries
        client.start(0)
        stored = blocks_that_begin_in(client.entries(), 0, count)
        return [(block.number, tuple(block.items)) for block in stored]


def source_of(server: ServerThread, by: str, **options: str) -> SourceName:
    return parse_source(f"server:{server.host}:{server.port}", {"group_by": by, **options})


def beginning_of(path: Path, place: Path, entry_count: int) -> Path:
    """Return a stream file with so many entries of another, which is the same where they are all."""
    with DataStreamer.open(path, read_only=True) as streamer:
        if entry_count == streamer.header.total_entries:
            return path
        entries = list(streamer.read_entries(0, entry_count))
    with DataStreamer.open(place, version=2, system_id=1) as streamer:
        append(streamer, entries)
    return place


def ask_for_every_bookmark(node: Node, entries: list[Entry]) -> None:
    """Ask over TCP, many at a time; each answer is the first event behind the bookmark."""
    asked, expected = [], []
    event = entries[-1]
    for entry in reversed(entries):
        if entry.type != BOOKMARK_TYPE:
            event = entry
        else:
            asked.append(encode_command(Command.BOOKMARK, 1, entry.data))
            expected.append(encode_result(CommandError.OK, "OK") + encode_entry(event, PACKET_ANSWER))
    assert len(asked) == sum(entry.type == BOOKMARK_TYPE for entry in entries) > 0
    with socket.create_connection((node.tcp_address.host, node.tcp_address.port), 20) as connection:
        came = connection.makefile("rb")
        for start in range(0, len(asked), 500):
            connection.sendall(b"".join(asked[start : start + 500]))
            answers = b"".join(expected[start : start + 500])
            assert came.read(len(answers)) == answers


@pytest.mark.slow
def test_three_publishers_make_the_same_blocks_and_a_node_stores_each_once(
    spark: SparkSession, entries: list[Entry], key: KeyPlace, tmp_path: Path
) -> None:
    expected = signed_blocks(entries, "l2block")
    with DataStreamer.open(tmp_path / "network.bin") as streamer:
        append(streamer, entries)
        with ServerThread(streamer) as server:
            for size in ("300", "500") if LONG else ("500",):  # batches end elsewhere
                with running(FakeNode(default=racing)) as fake:
                    source = source_of(server, "l2block", max_entries_per_trigger=size)
                    report = publish(spark, source, [fake.address], key=key, deadline_seconds=240)
                    assert report.is_complete, report.failures
                assert [(block.number, block.items) for block in fake.received] == expected
            with node_thread(tmp_path / "node", verification_mode="full") as node:
                gateways = [str(node.grpc_address)]
                report = publish(
                    spark, source_of(server, "l2block"), gateways, 3, key=key, deadline_seconds=240
                )
                assert report.is_complete, report.failures
                assert stored_blocks(node) == expected
    assert sum(row.won for row in report.publishers) == len(expected)
    for row in report.publishers:
        assert (row.blocks, row.safe_through, row.unacknowledged) == (len(expected), len(expected) - 1, 0)


@pytest.mark.slow
def test_two_that_follow_a_growing_stream_go_on_from_their_checkpoints(
    spark: SparkSession, entries: list[Entry], key: KeyPlace, tmp_path: Path
) -> None:
    expected = signed_blocks(entries, "l2block")
    half = len(signed_blocks(entries[:600], "l2block"))
    with (
        DataStreamer.open(tmp_path / "network.bin") as streamer,
        ServerThread(streamer) as server,
        node_thread(tmp_path / "node", verification_mode="full") as node,
    ):

        def follow(block_count: int) -> JobReport:
            source = source_of(server, "l2block")
            with FollowCheckpoint(tmp_path / "state", str(source), 0, "l2block") as checkpoint:
                return publish(
                    spark,
                    source,
                    [str(node.grpc_address)],
                    2,
                    numbers=NumberRange(end=block_count),
                    key=key,
                    checkpoint=checkpoint,
                    deadline_seconds=240,
                )

        append(streamer, entries[:600])
        report = follow(half)
        assert report.is_complete, report.failures
        assert stored_blocks(node) == expected[:half]
        append(streamer, entries[600:])
        report = follow(len(expected))
        assert report.is_complete, report.failures
        assert stored_blocks(node) == expected
        # Each read only what was new.
        assert [row.blocks for row in report.publishers] == [len(expected) - half] * 2
        report = follow(len(expected))  # nothing is left to do, and it ends
        assert report.is_complete, report.failures
        assert [(row.blocks, row.safe_through) for row in report.publishers] == [(0, len(expected) - 1)] * 2


@pytest.mark.parametrize(
    ("entry_count", "shards"),
    # In parts, two publishers take the three slots, and wait half a minute for the third.
    [(1500, 1), pytest.param(13952, 2, marks=pytest.mark.slow)],
)
def test_a_stream_file_through_three_publishers_and_a_native_node_is_the_same_on_tcp(
    spark: SparkSession, key: KeyPlace, tmp_path: Path, entry_count: int, shards: int
) -> None:
    path = beginning_of(sample_file(tmp_path), tmp_path / "beginning.bin", entry_count)
    with DataStreamer.open(path, read_only=True) as sample:
        header, entries = sample.header, list(sample.read_entries(0))
    assert len(entries) == entry_count
    source = parse_source(f"file:{path}", {"group_by": "batch", "keep_incomplete": "true"})
    as_network = {"stream_layout": "native", "stream_system_id": 1, "stream_version": 2}
    with node_thread(tmp_path / "node", verification_mode="full", **as_network) as node:
        report = publish(
            spark, source, [str(node.grpc_address)], 3, key=key, shards=shards, deadline_seconds=240
        )
        assert report.is_complete, report.failures
        expected = signed_blocks(entries, "batch", is_whole=True)
        stored = [node.store.read_block(number) for number in range(len(expected))]
        with BlockingStreamClient(node.tcp_address.host, node.tcp_address.port) as client:
            assert client.header() == header
            client.start(0)
            assert list(itertools.islice(client.entries(), len(entries))) == entries
        ask_for_every_bookmark(node, entries)
    assert [(block.number, block.items) for block in stored if block] == expected
    length = header.total_length
    assert (tmp_path / "node" / "datastream.bin").read_bytes()[:length] == path.read_bytes()[:length]
    assert (report.first_block, report.last_block) == (0, len(expected) - 1)


def test_a_part_of_a_stream_file(spark: SparkSession, key: KeyPlace, tmp_path: Path) -> None:
    source = parse_source(f"file:{sample_file(tmp_path)}", {"group_by": "1000"})
    for numbers, said in (
        (NumberRange(13), "block 13 is not there"),
        (NumberRange(0, 14), "block 13 is not"),
    ):
        with pytest.raises(BlockListError, match=said):
            publish(spark, source, ["127.0.0.1:1"], key=key, numbers=numbers)
    with running(FakeNode()) as node:
        report = publish(
            spark, source, [node.address], key=key, numbers=NumberRange(0, 3), deadline_seconds=240
        )
    assert report.is_complete, report.failures
    assert [block.number for block in node.received] == [0, 1, 2]


def test_sources_without_a_block(spark: SparkSession, key: KeyPlace, tmp_path: Path) -> None:
    with DataStreamer.open(tmp_path / "network.bin") as streamer:
        with (
            ServerThread(streamer) as server,
            pytest.raises(BlockListError, match="the stream has no entries"),
        ):
            publish(spark, source_of(server, "batch"), ["127.0.0.1:1"], key=key)
        append(streamer, [Entry(1, 0, b"")])
    source = parse_source(f"file:{tmp_path / 'network.bin'}", {"group_by": "batch"})
    with pytest.raises(BlockListError, match="its 1 entries make no complete block"):
        publish(spark, source, ["127.0.0.1:1"], key=key)
