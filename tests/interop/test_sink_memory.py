"""The memory of the sink's tasks is bounded by the option `cache_bytes`, not by the chain.

A chain of 192 MB with a cache of 8 MB, in small blocks, so that Arrow batches are small, too; with
SLUICE_LONG=1 one of 2 GB with a cache of 256 MB.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from publishers.limits import MIB
from publishers.maker import BlockMaker, MakerOptions
from tests.interop.sinking import Driver, gateways, write_chain
from tests.nodes import KEY

LONG = os.environ.get("SLUICE_LONG") == "1"
CHAIN_BYTES = (2048 if LONG else 192) * MIB
CACHE_BYTES = (256 if LONG else 8) * MIB
BLOCK_BYTES = 4 * MIB if LONG else MIB // 16
WORKER_BYTES = 110 * MIB
"""A Python worker of Spark that has done nothing yet but import what the sink needs."""
OTHER_BYTES = (160 if LONG else 96) * MIB
"""Some Arrow batches, of 16 MiB or of 4, what they are made of and become, and what malloc keeps."""

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900 if LONG else 300)]


def worker_peaks(driver_id: int) -> Iterator[int]:
    """The most bytes in memory that each Python worker of a driver has had so far."""
    parents, commands = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                commands[int(folder.name)] = (folder / "cmdline").read_bytes()
    for process_id, command in commands.items():
        ancestor = process_id
        while ancestor in parents and ancestor != driver_id:
            ancestor = parents[ancestor]
        if ancestor == driver_id and b"pyspark.daemon" in command:
            with suppress(OSError, StopIteration):
                lines = (Path("/proc") / str(process_id) / "status").read_text().splitlines()
                yield next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def test_a_chain_that_is_larger_than_the_cache(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    options = MakerOptions(
        rounds_per_block=1, events_per_round=1, transactions_per_block=4, item_bytes=BLOCK_BYTES // 4
    )
    count = CHAIN_BYTES // BLOCK_BYTES
    chain = write_chain(tmp_path / "chain", BlockMaker(7, KEY, options).blocks(count))
    with (
        gateways(tmp_path, 1) as (node,),
        Driver(
            tmp_path / "driver.log",
            do="publish",
            master="local[1]",
            chain=str(chain),
            partitions=1,
            gateways=node.address,
            options={"cache_bytes": CACHE_BYTES, "deadline_seconds": 120},
        ) as driver,
    ):
        peak = 0
        while driver.is_running and node.head < count - 1:
            peak = max(peak, *worker_peaks(driver.process_id), 0)
            time.sleep(0.05)
        (report,) = driver.reports()
    assert (report.blocks, report.unacknowledged) == (count, 0)
    record_property("peak_mib", peak // MIB)
    assert WORKER_BYTES + CACHE_BYTES + OTHER_BYTES < WORKER_BYTES + CHAIN_BYTES * 2 // 3
    assert 0 < peak < WORKER_BYTES + CACHE_BYTES + OTHER_BYTES, f"{peak // MIB} MiB"
