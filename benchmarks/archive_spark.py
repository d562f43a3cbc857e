"""Spark counts and verifies the blocks of an archive: two workers against one, and the memory of the driver.

    python -m benchmarks.archive_spark [--quick] [SIZE …]      sizes of archives, 512MiB 1GiB 2GiB

The largest archive is read with `local[1]` and with `local[2]`, each in a session of its own. A task of
`verify_blocks` is two Python workers and the JVM at once, and keeps more than one core busy: with as many
workers as cores two of them cannot be twice as fast. So one line compares with one worker that is held to one
core. The jobs before the clock runs read one segment: they compile, and start the workers.

Each size is read with two workers. In a local session the JVM is driver and executor; the figures are the
peaks of the Python process, of the JVM, and of what outlives its collections (the tenured generation).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.cpu_seconds import cpu_seconds
from benchmarks.measuring import Rows
from sluice.gateway.archive.archive import ArchiveOptions, Archives, StoredBlocks
from sluice.gateway.archive.objects import StoreOptions
from sluice.gateway.settings.kinds import Size, size_text
from sluice.gateway.store.block_store import BlockStore, VerifiedBlock
from sluice.publishers.blocks.linking import summary_of
from sluice.publishers.spark import verify_blocks
from sluice.publishers.spark.session import build_session
from tests.gateway.archive.chains import varied_blocks
from tests.nodes import ledger_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["run"]

_MIB = 1 << 20
_WINDOW_BYTES = 64 * _MIB
SIZES = (512 * _MIB, 1024 * _MIB, 2048 * _MIB)
QUICK_SIZES = (128 * _MIB, 256 * _MIB)
PARTITIONS = 8
"""More than workers, so that both end at about the same time."""
_JOBS = ("count", "verify")


# --- the archives -----------------------------------------------------------------------------------------


def _make(folder: Path, size_bytes: int) -> None:
    """Make an archive of a signed chain; the stream beside it keeps only its newest pages."""
    store = BlockStore.open(folder / "data")
    options = ArchiveOptions(f"file://{folder}/archive", StoreOptions(), _WINDOW_BYTES, 0, _WINDOW_BYTES)

    def blocks() -> StoredBlocks:
        return StoredBlocks(store.first_number, store.last_number, store.layout)

    stream = Archives(options, store.streamers, blocks, lambda: True).streams[0]
    for block in varied_blocks(size_bytes + 4 * _MIB):
        root_hash = summary_of(block.number, block.items).root_hash
        verified = VerifiedBlock(block.number, block.items, root_hash)
        store.append([verified])
        store.advance(verified)
        while stream.uploader.behind_pages > 2 * 64 and stream.uploader.step():
            pass
    while stream.uploader.step():
        pass
    stream.reader.close()
    store.close()


def _part(folder: Path, size_bytes: int) -> str:
    """Return the URL of an archive that has the first segments of the other, as links."""
    whole, part = folder / "archive", folder / size_text(size_bytes)
    (part / "segments").mkdir(parents=True)
    os.link(whole / "stream.json", part / "stream.json")
    for path in sorted((whole / "segments").iterdir())[: size_bytes // (64 * _MIB)]:
        os.link(path, part / "segments" / path.name)
    return f"file://{part}"


# --- one session, in a process of its own -----------------------------------------------------------------


def _measure(url: str, master: str, cores: str) -> dict[str, Any]:
    """Run the jobs in a session of this process, held to so many cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(cores)])
    spark = build_session(master, app_name="benchmark")
    try:
        frame = _frame(spark, url)
        few = _frame(spark, url, to=20)
        found: dict[str, Any] = {}
        for job in _JOBS:
            _run(few, job)
            before, begun = cpu_seconds(), time.perf_counter()
            found["blocks"] = _run(frame, job)
            found[job] = time.perf_counter() - begun
            taken = cpu_seconds().since(before)
            found[f"{job}_cpu"] = f"{taken.python:.0f} + {taken.jvm:.0f} s"
        return found | _memory(spark)
    finally:
        spark.stop()


def _frame(spark: SparkSession, url: str, to: int | None = None) -> DataFrame:
    reader = spark.read.format("datastream").option("decode", "blocks").option("partitions", PARTITIONS)
    return (reader if to is None else reader.option("to", to)).load(url)


def _run(frame: DataFrame, job: str) -> int:
    """Run a job; return the number of blocks."""
    if job == "count":
        return frame.count()
    verdicts = verify_blocks(frame, [ledger_key()]).groupBy("verdict").count().collect()
    counts = {row["verdict"]: row["count"] for row in verdicts}
    if set(counts) != {"accepted"}:
        raise SystemExit(f"verify: got {counts}, expected only accepted blocks")
    return int(counts["accepted"])


def _memory(spark: SparkSession) -> dict[str, float]:
    """Return the peaks of this process, the JVM, and the JVM's tenured generation, in MiB."""
    jvm: Any = spark.sparkContext._jvm
    pools = jvm.java.lang.management.ManagementFactory.getMemoryPoolMXBeans()
    tenured = next(pool for pool in pools if "Tenured" in pool.getName() or "Old" in pool.getName())
    return {
        "python_mib": _peak_mib(os.getpid()),
        "jvm_mib": _peak_mib(jvm.java.lang.ProcessHandle.current().pid()),
        "tenured_mib": tenured.getPeakUsage().getUsed() / _MIB,
    }


def _peak_mib(process_id: int) -> float:
    status = Path(f"/proc/{process_id}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def _session(url: str, workers: int, cores: int) -> dict[str, Any]:
    words = [
        sys.executable,
        "-m",
        "benchmarks.archive_spark",
        "measure",
        url,
        f"local[{workers}]",
        str(cores),
    ]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# --- the figures ------------------------------------------------------------------------------------------


def run(quick: bool = False, sizes: Sequence[int] = ()) -> Rows:
    """Measure, and return (label, text) rows."""
    sizes = sorted(sizes or (QUICK_SIZES if quick else SIZES))
    rows: Rows = []
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as name:
        folder = Path(name)
        _make(folder, sizes[-1])
        urls = {size: _part(folder, size) for size in sizes}
        both = {size: _session(url, 2, len(os.sched_getaffinity(0))) for size, url in urls.items()}
        one = _session(urls[sizes[-1]], 1, len(os.sched_getaffinity(0)))
        held = _session(urls[sizes[-1]], 1, 1)
    two, mib = both[sizes[-1]], sizes[-1] / _MIB
    for job in _JOBS:
        text = (
            f"{mib / two[job]:,.0f} MiB/s with 2 workers, {mib / one[job]:,.0f} with 1, ratio "
            f"{one[job] / two[job]:.2f}; {mib / held[job]:,.0f} with 1 on one core, ratio "
            f"{held[job] / two[job]:.2f}; {two['blocks']} blocks; processor time of Python and JVM "
            f"{two[f'{job}_cpu']}, {one[f'{job}_cpu']}, {held[f'{job}_cpu']} (load {os.getloadavg()[0]:.1f})"
        )
        rows.append((f"Spark, {job} of an archive of {size_text(sizes[-1])}", text))
    for size, found in both.items():
        text = (
            f"Python {found['python_mib']:.0f} MiB, JVM {found['jvm_mib']:.0f}, its tenured generation "
            f"{found['tenured_mib']:.0f}"
        )
        rows.append((f"Spark, driver's memory, archive of {size_text(size)}", text))
    return rows


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        print(json.dumps(_measure(*sys.argv[2:])))
    else:
        given = [Size(64 * _MIB, 1 << 50).read(word) for word in sys.argv[1:] if word != "--quick"]
        for label, text in run("--quick" in sys.argv, given):
            print(f"{label}: {text}")
