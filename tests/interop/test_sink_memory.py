"""The memory of the sink's tasks is bounded by the option `cache_bytes`, not by the chain.

A chain of 192 MB with a cache of 8 MB, in small blocks, so that Arrow batches are small, too; with
SLUICE_LONG=1 one of 2 GB with a cache of 256 MB.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

from sluice.publishers.blocks.maker import BlockMaker, MakerOptions
from sluice.publishers.limits import MIB
from sluice.publishers.spark import publish
from tests.interop.sinking import gateways, write_chain
from tests.nodes import KEY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONG = os.environ.get("SLUICE_LONG") == "1"
CHAIN_BYTES = (2048 if LONG else 192) * MIB
CACHE_BYTES = (256 if LONG else 8) * MIB
BLOCK_BYTES = 4 * MIB if LONG else MIB // 16
WORKER_BYTES = 110 * MIB
"""The memory of an idle Python worker of Spark after its imports."""
OTHER_BYTES = (160 if LONG else 96) * MIB
"""The memory of some Arrow batches, of 16 or 4 MiB, and of what malloc keeps."""

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900 if LONG else 600)]


def workers_of(process_id: int) -> set[Path]:
    """The Python workers of the Spark that a process has started, as folders of /proc."""
    parents, found = {}, set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                parents[folder.name] = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                if b"pyspark.daemon" in (folder / "cmdline").read_bytes():
                    found.add(folder)
    return {folder for folder in found if str(process_id) in _ancestors(folder.name, parents)}


def _ancestors(process_id: str, parents: Mapping[str, str]) -> Iterator[str]:
    while process_id in parents:
        process_id = parents[process_id]
        yield process_id


def peak_bytes(worker: Path) -> int:
    """Return a process's peak memory since the last reset; 0: it is gone."""
    with suppress(OSError):
        for line in (worker / "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def set_back(worker: Path) -> int:
    """Begin to count anew; what it has now."""
    with suppress(OSError):
        (worker / "clear_refs").write_text("5")
    return peak_bytes(worker)


def test_a_chain_that_is_larger_than_the_cache(
    spark: SparkSession, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    options = MakerOptions(
        rounds_per_block=1, events_per_round=1, transactions_per_block=4, item_bytes=BLOCK_BYTES // 4
    )
    count = CHAIN_BYTES // BLOCK_BYTES
    chain = write_chain(tmp_path / "chain", BlockMaker(7, KEY, options).blocks(count))
    with gateways(tmp_path, 1) as (node,):
        before = {worker: set_back(worker) for worker in workers_of(os.getpid())}
        blocks = spark.read.format("blockfiles").option("partitions", 1).load(str(chain))
        (report,) = publish(blocks, node.address, cache_bytes=CACHE_BYTES, deadline_seconds=120)
        peaks = {worker: peak_bytes(worker) for worker in workers_of(os.getpid())}
    assert (report.blocks, report.unacknowledged) == (count, 0)
    record_property("peaks_mib", sorted(peak // MIB for peak in peaks.values()))
    grown = max(peak - before.get(worker, WORKER_BYTES) for worker, peak in peaks.items())
    assert grown < CACHE_BYTES + OTHER_BYTES < CHAIN_BYTES * 2 // 3, f"{grown // MIB} MiB"
