"""A node of the native layout: a network's stream through the race, and the same bytes at its clients."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from sluice.datastream import DataStreamer
from sluice.datastream.client.client import StreamClient
from sluice.datastream.layout import BOOKMARK_TYPE
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.items import field_item, stream_entry_item
from sluice.gateway.blocks.merkle import EMPTY_HASH, StreamingTree
from sluice.gateway.cluster.limits import ClusterLimits
from sluice.gateway.commands import check
from sluice.gateway.node.rules import NodeLimits
from sluice.gateway.store.block_store import BlockStore
from sluice.publishers.blocks.linking import sign_block
from sluice.publishers.blocks.stream_grouping import Grouping, StreamBlocks
from tests.datastream.streams import sample_file
from tests.gateway.block_makers import footer_item, header_item, proof_item, summary_of
from tests.gateway.cluster.test_peer_follower import FAST, peers, until_block
from tests.gateway.store.test_block_store import verified
from tests.nodes import ANSWER_SECONDS, KEY, running_node, wire_to
from tests.reference_data import needs_stream


def sample_blocks(sample: Path, by: str, count: int) -> list[Block]:
    """Return the first blocks of the sample, signed."""
    maker, made = StreamBlocks(Grouping.parse(by)), []
    with DataStreamer.open(sample, read_only=True) as streamer:
        for entry in streamer.read_entries(0):
            block = maker.feed(entry.number, entry.type, entry.data)
            if block is not None:
                made.append(Block(block.number, sign_block(block.number, block.items, KEY)))
            if len(made) == count:
                break
    return made


@needs_stream
async def test_a_networks_stream_goes_through_the_race_and_comes_out_byte_for_byte(tmp_path: Path) -> None:
    sample = sample_file(tmp_path)
    blocks = sample_blocks(sample, "l2block", 120)
    count = sum(len(block.items) - 3 for block in blocks)
    native = {"stream_layout": "native"}
    async with running_node(tmp_path / "a", **native) as node, wire_to(node) as wire:
        publishers = [await wire.publisher(name) for name in ("alice", "bob", "carol")]
        for block in blocks:
            await publishers[block.number % 3].block(block)
            await until_block(node, block.number)
        reader = await wire.subscribe(0, 119)
        assert await reader.rest() == [*blocks, "SUCCESS"]
        answer = await wire.get_block(100)
        assert list(answer.block.items) == list(blocks[100].items)
        with DataStreamer.open(sample, read_only=True) as streamer:
            expected = list(streamer.read_entries(0, count))
        address = node.tcp_address
        async with (
            StreamClient.connect(address.host, address.port) as client,
            asyncio.timeout(ANSWER_SECONDS),
        ):
            assert (await client.header()).total_entries == count
            for entry in expected[:: count // 40]:
                if entry.type == BOOKMARK_TYPE:
                    assert (await client.bookmark(entry.data)).number > entry.number
            await client.start(0)
            got = []
            async for entry in client.entries():
                got.append(entry)
                if len(got) == count:
                    break
        assert got == expected
        settings = FAST | native | {"peers": peers(node.grpc_address)}
        async with running_node(tmp_path / "b", **settings) as second:
            await until_block(second, 119)
            assert second.following.problem is None
    for name in ("datastream.bin", "blocks.bin"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    async with running_node(tmp_path / "a") as node:
        assert (node.store.layout, node.store.last_number) == (3, 119)


@needs_stream
async def test_an_empty_node_of_the_other_layout_does_not_follow(tmp_path: Path) -> None:
    blocks = sample_blocks(sample_file(tmp_path), "l2block", 3)
    async with running_node(tmp_path / "a", stream_layout="native") as node, wire_to(node) as wire:
        publisher = await wire.publisher()
        await publisher.block(*blocks)
        await until_block(node, 2)
        settings = FAST | {"peers": peers(node.grpc_address), "role": "standby"}
        async with running_node(tmp_path / "b", **settings) as second:
            async with asyncio.timeout(ANSWER_SECONDS):
                while second.following.problem is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert "needs an empty data folder and stream.layout native" in second.following.problem


def long_blocks(count: int) -> list[Block]:
    """Return linked, signed blocks: a bookmark, an entry of 150 kB, a transaction of 90 kB, another entry."""
    made: list[Block] = []
    tree, previous = StreamingTree(), EMPTY_HASH
    for number in range(count):
        entries = [(BOOKMARK_TYPE, b"m%d" % number), (9, bytes([number]) * 150_000), (9, b"end")]
        mark, entry, last = (stream_entry_item(*one) for one in entries)
        body = [mark, entry, field_item(4, bytes([number]) * 90_000), last]
        items = [header_item(number), *body, footer_item(previous, tree.root()), proof_item(number)]
        made.append(Block(number, sign_block(number, items, KEY)))
        previous = summary_of(list(made[-1].items)).root_hash
        tree.push(previous)
    return made


def fill(folder: Path, blocks: list[Block]) -> None:
    store = BlockStore.open(folder, layout="native")
    for block in map(verified, blocks):
        store.append([block])
        store.advance(block)
    store.close()


SOON = NodeLimits(cluster=ClusterLimits(heal_pause_seconds=0.05), unproven_pause_seconds=0.05)


@pytest.mark.parametrize(
    ("name", "page"),
    [("datastream.bin", 0), pytest.param("datastream.bin", 2, marks=pytest.mark.slow), ("blocks.bin", 0)],
)
async def test_a_damaged_page_of_either_file_is_healed_from_a_peer(
    tmp_path: Path, name: str, page: int
) -> None:
    for folder in ("a", "b"):
        fill(tmp_path / folder, long_blocks(30))
    good = (tmp_path / "a" / name).read_bytes()
    with (tmp_path / "b" / name).open("r+b") as file:
        file.seek(4096 + (page << 20) + 70_000)
        file.write(b"\xa5\x5a")
    assert (tmp_path / "b" / name).read_bytes() != good
    async with running_node(tmp_path / "a") as peer:
        settings = {"peers": peers(peer.grpc_address), "scrub_bytes_per_second": 1 << 30}
        async with running_node(tmp_path / "b", SOON, **settings) as node, asyncio.timeout(ANSWER_SECONDS):
            while node.metrics.registry.get_sample_value("sluice_pages_healed_total") != 1:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            assert node.reporter.report().bad_pages == ()
    assert (tmp_path / "b" / name).read_bytes() == good


def run(command: click.Command, *arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(command, [str(argument) for argument in arguments])
    return result.exit_code, result.output or str(result.exception)


def test_check_looks_at_both_files_and_at_the_blocks(tmp_path: Path) -> None:
    fill(tmp_path / "a", long_blocks(5))
    fill(tmp_path / "b", long_blocks(4))
    fill(tmp_path / "c", long_blocks(4))
    for name in ("blocks.bin", "blocks.db"):  # as a crash between the two commits leaves them
        (tmp_path / "c" / name).rename(tmp_path / f"{name}-of-4")
        copy = shutil.copytree if name.endswith("db") else shutil.copy
        copy(tmp_path / "a" / name, tmp_path / "c" / name)
    network, blocks = (tmp_path / "a" / name for name in ("datastream.bin", "blocks.bin"))
    status, output = run(check.command, tmp_path / "a")
    assert output.splitlines() == [
        f"{network}: 15 entries, 5 bookmarks, 1 pages: sound",
        f"{blocks}: 40 entries, 5 bookmarks, 1 pages, 5 blocks: sound",
    ]
    assert status == 0
    status, output = run(check.command, "--against", tmp_path / "b", tmp_path / "a")
    assert (status, output.count("byte for byte")) == (0, 2)
    assert "the same 12 entries" in output
    assert "the same 32 entries" in output
    status, output = run(check.command, tmp_path / "c")
    assert (status, "blocks that were not committed in datastream.bin, too" in output) == (0, True), output
    with DataStreamer.open(tmp_path / "c" / "datastream.bin") as streamer:
        streamer.start_atomic_op()
        streamer.add_stream_entry(5, b"of nobody")
        streamer.commit_atomic_op()
    status, output = run(check.command, tmp_path / "c")
    assert (status, "got 13 entries, expected 15" in output) == (1, True), output
    content = bytearray(network.read_bytes())
    content[content.index(b"\x03" * 100_000) + 50_000] ^= 1
    network.write_bytes(content)
    status, output = run(check.command, tmp_path / "a")
    assert status == 1
    assert "block 3: root hash " in output
