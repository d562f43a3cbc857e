"""Items as long as in networks, through every party with its defaults, each in its own process."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sluice.datastream import iter_entries
from sluice.datastream.layout import BOOKMARK_TYPE
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.stream_layout import BLOCK_END_TYPE
from sluice.publishers.blocks.block_files import read_block_file
from sluice.publishers.client.client import publish_blocks
from sluice.publishers.demo.node_process import NodeProcess
from sluice.publishers.limits import ITEM_BYTES_MAX
from tests.interop.sinking import write_chain
from tests.large_items import CONSENSUS_NODE_ITEM_BYTES, large_chain
from tests.nodes import each, ledger_key
from tests.serving import COMMAND_SECONDS, sluice

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# The longest that consensus nodes send, and the longest that fits into a message.
SIZES = (9_000_000, CONSENSUS_NODE_ITEM_BYTES, ITEM_BYTES_MAX - 5, 300)
LAST = len(SIZES) - 1
LOWERED = ("--grpc-max-message-bytes", "64KiB")
KEY = ("--ledger-key", ledger_key())


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The blocks, as files."""
    folder = tmp_path_factory.mktemp("chain")
    return write_chain(folder, large_chain(SIZES))


@pytest.fixture(scope="module")
def stored(chain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a node to which the blocks were published."""
    folder = tmp_path_factory.mktemp("stored")
    with NodeProcess(folder / "node", folder / "node.log", KEY) as node:
        report = asyncio.run(publish_blocks(each(blocks_of(chain)), [node.grpc], "alice"))
        assert (report.acknowledged, report.reconnects) == (len(SIZES), 0)
        assert node.stop() == 0
    return folder / "node"


def blocks_of(folder: Path) -> Iterator[Block]:
    return (read_block_file(folder / f"{number}.blk") for number in range(len(SIZES)))


def said(*words: object) -> str:
    """Run a command that has to succeed; what it prints."""
    done = sluice(*words)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def items_over_tcp(host: str, port: int) -> Iterator[bytes]:
    """Return each block's items over TCP, joined if they come in pieces."""
    pieces: list[bytes] = []
    for entry in iter_entries(host, port, from_entry=0):
        if entry.type == BLOCK_END_TYPE:
            yield b"".join(pieces)
            if int.from_bytes(entry.data[:8], "big") == LAST:
                return
            pieces = []
        elif entry.type != BOOKMARK_TYPE:
            pieces.append(entry.data)


def read_all(node: NodeProcess, folder: Path, chain: Path) -> None:
    """Read a node's blocks in every way, and compare them with the published ones."""
    words = ("subscribe", "--gateway", node.grpc, "--from", "first", "--to", str(LAST))
    said(*words, "--out", folder / "subscribed", "--format", "blk")
    expected = [(chain / f"{number}.blk").read_bytes() for number in range(len(SIZES))]
    subscribed = sorted((folder / "subscribed").iterdir())
    assert [path.read_bytes() for path in subscribed] == expected
    for number in (LAST - 1, LAST):
        copy = folder / f"{number}.blk"
        said("block", number, "--gateway", node.grpc, "--out", copy)
        assert copy.read_bytes() == expected[number]


def follow(node: NodeProcess, folder: Path, *arguments: str) -> None:
    """Have another node take all blocks from a peer; compare the streams' bytes."""
    with NodeProcess(folder, folder.with_suffix(".log"), [*KEY, "--peer", node.grpc, *arguments]) as other:
        give_up_at = time.monotonic() + COMMAND_SECONDS
        while other.metrics()["sluice_last_block"] != LAST:
            assert time.monotonic() < give_up_at
            time.sleep(0.1)
        assert other.stop() == 0


def test_with_defaults_every_party_takes_them(stored: Path, chain: Path, tmp_path: Path) -> None:
    with NodeProcess(stored, tmp_path / "node.log", KEY) as node:
        read_all(node, tmp_path, chain)
        verified = said("verify", node.grpc, *KEY)
        assert f"{len(SIZES)} blocks: {len(SIZES)} accepted, 0 refused" in verified
        for number, items in enumerate(items_over_tcp(*node.tcp)):
            assert items == b"".join(read_block_file(chain / f"{number}.blk").items)
        assert number == LAST
        follow(node, tmp_path / "peer")
    for folder in (stored, tmp_path / "peer"):
        assert f"{len(SIZES)} blocks: sound" in said("check", folder)
    streams = [(folder / "datastream.bin").read_bytes() for folder in (stored, tmp_path / "peer")]
    assert streams[0] == streams[1]


def test_what_is_stored_is_served_after_the_limit_was_lowered(
    stored: Path, chain: Path, tmp_path: Path
) -> None:
    with NodeProcess(stored, tmp_path / "node.log", [*KEY, *LOWERED]) as node:
        read_all(node, tmp_path, chain)
        # And its standbys take them, whatever they take from publishers.
        follow(node, tmp_path / "standby", "--role", "standby", *LOWERED)


@pytest.mark.spark
def test_spark_takes_them_from_files_to_a_node_and_back(tmp_path: Path) -> None:
    blocks = list(large_chain((300, ITEM_BYTES_MAX - 5)))
    folder = write_chain(tmp_path / "chain", blocks)
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(NodeProcess(tmp_path / name, tmp_path / f"{name}.log", KEY))
            for name in ("first", "second")
        ]
        for source, node in ((str(folder), nodes[0]), (f"blockstream:{nodes[0].grpc}", nodes[1])):
            words = ("publish", "--source", source, "--gateway", node.grpc, "--publishers", "1", "--json")
            report = json.loads(said(*words))
            assert report["publishers"][0]["acknowledged"] == len(blocks)
            assert node.metrics()["sluice_last_block"] == len(blocks) - 1
