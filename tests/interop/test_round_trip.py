"""Real chains go files -> Spark -> gateway -> `blockstream` -> files, and keep their bytes.

In this process with several cores; with SLUICE_LONG=1 all chains, and also on a standalone cluster.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

from sluice.publishers.demo.node_process import NodeProcess
from sluice.publishers.spark import publish
from tests.gateway.blocks.proofs import real
from tests.interop.sink_driver import copy_blocks
from tests.interop.sinking import Driver, spark_cluster
from tests.publishers.data import REAL_BLOCKS, needs_real_blocks, real_chain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONG = os.environ.get("SLUICE_LONG") == "1"
BOOK = f"rsa:{REAL_BLOCKS / 'record-file-chain' / 'address-book.json'}"
CHAINS: dict[str, Sequence[str]] = {
    "signed-chain": (),
    "layout-8-chain": (),
    "record-file-chain": ("--ledger-key", BOOK),
}
"""Chain -> what a node is told to check it in full: nothing but block 0, or an address book."""

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), needs_real_blocks]


def bytes_of(folder: Path) -> dict[str, bytes]:
    """The block files of a folder, by number and without compression."""
    found = {}
    for path in folder.glob("*.blk*"):
        data = path.read_bytes()
        found[path.name.partition(".")[0]] = gzip.decompress(data) if path.suffix == ".gz" else data
    return found


def round_trip(spark: SparkSession, folder: Path, source: Path, arguments: Sequence[str], first: int) -> Path:
    """Publish a chain from a block on, and write what the gateway then has into a folder."""
    copy = folder / "copy"
    copy.mkdir()
    with NodeProcess(folder / "node", folder / "node.log", arguments) as node:
        chain = spark.read.format("blockfiles").options(**{"partitions": "2", "from": str(first)})
        publish(chain.load(str(source)), node.grpc, race=2, deadline_seconds=240)
        back = spark.read.format("blockstream").option("gateways", node.grpc).option("partitions", 2).load()
        copy_blocks(back, copy)
    return copy


@pytest.mark.parametrize("name", list(CHAINS) if LONG else ["signed-chain"])
def test_a_real_chain_comes_back_byte_by_byte(spark: SparkSession, tmp_path: Path, name: str) -> None:
    copy = round_trip(spark, tmp_path, real_chain(name), CHAINS[name], 0)
    assert bytes_of(copy) == bytes_of(real_chain(name))


@pytest.mark.slow
def test_a_block_from_the_middle_of_a_chain_comes_back(spark: SparkSession, tmp_path: Path) -> None:
    """A TSS signature with a WRAPS proof; the node is given the ledger data of block 0, and begins later."""
    ledger = tmp_path / "publication"
    ledger.write_bytes(real.publication("wraps-chain"))
    arguments = ("--ledger-key", f"tss:{ledger}", "--first-block", "any")
    copy = round_trip(spark, tmp_path, real_chain("wraps-chain"), arguments, 391)
    assert bytes_of(copy) == {"391": bytes_of(real_chain("wraps-chain"))["391"]}


@pytest.mark.skipif(not LONG, reason="a cluster of five JVMs, for SLUICE_LONG=1")
def test_real_chains_over_a_cluster(tmp_path: Path) -> None:
    with spark_cluster(tmp_path) as cluster:
        for name, arguments in CHAINS.items():
            folder, copy = tmp_path / name, tmp_path / name / "copy"
            copy.mkdir(parents=True)
            with (
                NodeProcess(folder / "node", folder / "node.log", arguments) as node,
                Driver(
                    folder / "driver.log",
                    do="round-trip",
                    master=cluster.master,
                    settings={"spark.executor.memory": "512m"},
                    chain=str(real_chain(name)),
                    partitions=2,
                    gateways=node.grpc,
                    options={"deadline_seconds": 60},
                    copy=str(copy),
                ) as driver,
            ):
                assert sum(report.blocks for report in driver.reports()) == len(bytes_of(copy))
            assert bytes_of(copy) == bytes_of(real_chain(name))
