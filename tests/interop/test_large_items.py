"""Items as long as in networks, through every party with its defaults, each in its own process.

`SLUICE_LONG=1` has Spark read the longest ones back from a node, too.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from sluice.datastream import iter_entries
from sluice.datastream.layout import BOOKMARK_TYPE
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.stream_layout import BLOCK_END_TYPE
from sluice.gateway.commands import check
from sluice.publishers.blocks.block_files import read_block_file
from sluice.publishers.client.client import publish_blocks
from sluice.publishers.commands import block
from sluice.publishers.demo.node_process import NodeProcess
from sluice.publishers.job.job import publish
from sluice.publishers.limits import ITEM_BYTES_MAX
from sluice.publishers.number_range import NumberRange
from sluice.publishers.spark.source_names import parse_source
from tests.interop.sinking import write_chain
from tests.large_items import CONSENSUS_NODE_ITEM_BYTES, large_chain
from tests.nodes import each, ledger_key
from tests.serving import COMMAND_SECONDS, sluice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONG = os.environ.get("SLUICE_LONG") == "1"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# The longest that fits into a message; the others have the longest that consensus nodes send.
SIZES = (9_000_000, *([CONSENSUS_NODE_ITEM_BYTES] if LONG else []), ITEM_BYTES_MAX - 5, 300)
CONSENSUS_NODE_SIZES = (CONSENSUS_NODE_ITEM_BYTES, 300)
LOWERED = ("--grpc-max-message-bytes", "64KiB")
KEY = ("--ledger-key", ledger_key())


def store(chain: Path, data_dir: Path) -> None:
    """Fill the data folder of a node with defaults, by a publisher."""
    with NodeProcess(data_dir, data_dir.with_suffix(".log"), KEY) as node:
        report = asyncio.run(publish_blocks(each(blocks_of(chain)), [node.grpc], "alice"))
        assert (report.acknowledged, report.reconnects) == (len(files_of(chain)), 0)
        assert node.stop() == 0


def files_of(chain: Path) -> list[Path]:
    return sorted(chain.iterdir())


def blocks_of(chain: Path) -> Iterator[Block]:
    return map(read_block_file, files_of(chain))


def said(*words: object) -> str:
    """Run a command in a process of its own, which has to succeed; return what it prints."""
    done = sluice(*words)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def said_here(command: click.Command, *words: object) -> str:
    """Run a command in this process, which saves its start; it has to succeed. Return what it prints."""
    done = CliRunner().invoke(command, [str(word) for word in words])
    assert done.exit_code == 0, done.output[-2000:]
    return done.stdout


def items_over_tcp(host: str, port: int, last: int) -> Iterator[bytes]:
    """The items of each block, joined, as a data-streamer client has them: in pieces where they are long."""
    pieces: list[bytes] = []
    for entry in iter_entries(host, port, from_entry=0):
        if entry.type == BLOCK_END_TYPE:
            yield b"".join(pieces)
            if int.from_bytes(entry.data[:8], "big") == last:
                return
            pieces = []
        elif entry.type != BOOKMARK_TYPE:
            pieces.append(entry.data)


def check_reads(node: NodeProcess, folder: Path, chain: Path) -> None:
    """Read a node's blocks in every way, and compare them with those that were published."""
    expected = [path.read_bytes() for path in files_of(chain)]
    last = len(expected) - 1
    words = ("subscribe", "--gateway", node.grpc, "--from", "first", "--to", str(last))
    said(*words, "--out", folder / "subscribed", "--format", "blk")
    assert [path.read_bytes() for path in files_of(folder / "subscribed")] == expected
    for number in (last - 1, last):
        copy = folder / f"{number}.blk"
        said_here(block.command, number, "--gateway", node.grpc, "--out", copy)
        assert copy.read_bytes() == expected[number]


def check_follower(node: NodeProcess, last: int, folder: Path, *arguments: str) -> None:
    """Have another node take all blocks from a peer."""
    with NodeProcess(folder, folder.with_suffix(".log"), [*KEY, "--peer", node.grpc, *arguments]) as other:
        give_up_at = time.monotonic() + COMMAND_SECONDS
        while other.metrics()["sluice_last_block"] != last:
            assert time.monotonic() < give_up_at
            time.sleep(0.1)
        assert other.stop() == 0


def test_with_defaults_every_party_takes_them(tmp_path: Path) -> None:
    chain, stored, last = (
        write_chain(tmp_path / "chain", large_chain(SIZES)),
        tmp_path / "node",
        len(SIZES) - 1,
    )
    store(chain, stored)
    with NodeProcess(stored, tmp_path / "node.log", KEY) as node:
        check_reads(node, tmp_path, chain)
        verified = said("verify", node.grpc, *KEY)
        assert f"{len(SIZES)} blocks: {len(SIZES)} accepted, 0 refused" in verified
        for number, items in enumerate(items_over_tcp(*node.tcp, last)):
            assert items == b"".join(read_block_file(chain / f"{number}.blk").items)
        assert number == last
        check_follower(node, last, tmp_path / "peer")
    for folder in (stored, tmp_path / "peer"):
        assert f"{len(SIZES)} blocks: sound" in said_here(check.command, folder)
    streams = [(folder / "datastream.bin").read_bytes() for folder in (stored, tmp_path / "peer")]
    assert streams[0] == streams[1]


def test_what_is_stored_is_served_after_the_limit_was_lowered(tmp_path: Path) -> None:
    chain, stored = write_chain(tmp_path / "chain", large_chain(CONSENSUS_NODE_SIZES)), tmp_path / "node"
    store(chain, stored)
    with NodeProcess(stored, tmp_path / "node.log", [*KEY, *LOWERED]) as node:
        check_reads(node, tmp_path, chain)
        # And its standbys take them, whatever they take from publishers.
        last = len(CONSENSUS_NODE_SIZES) - 1
        check_follower(node, last, tmp_path / "standby", "--role", "standby", *LOWERED)


@pytest.mark.spark
def test_spark_takes_them_from_files_to_a_node_and_back(spark: SparkSession, tmp_path: Path) -> None:
    blocks = list(large_chain((300, CONSENSUS_NODE_ITEM_BYTES, ITEM_BYTES_MAX - 5)))
    folder = write_chain(tmp_path / "chain", blocks)
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(NodeProcess(tmp_path / name, tmp_path / f"{name}.log", KEY))
            for name in ("first", "second")
        ]
        back = f"blockstream:{nodes[0].grpc}"
        for source, node, count in ((str(folder), nodes[0], 3), (back, nodes[1], 3 if LONG else 2)):
            report = publish(
                *(spark, parse_source(source), [node.grpc]),
                numbers=NumberRange(0, count),
                deadline_seconds=COMMAND_SECONDS,
            )
            assert report.is_complete, report.failures
            assert report.publishers[0].acknowledged == count
            assert node.metrics()["sluice_last_block"] == count - 1
