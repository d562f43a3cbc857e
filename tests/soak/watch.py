"""The resources of a node process over time, and whether they grow. Reading is I/O; judging is not.

anonymous memory   the heap, without mapped files such as LevelDB's, which the kernel takes back
file descriptors, threads, asyncio tasks
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from sluice.publishers.demo.node_process import NodeProcess

__all__ = ["GROWTH_BYTES_MAX", "Sample", "growth_of", "leaks_of", "take_sample"]

MIB = 1 << 20
GROWTH_BYTES_MAX = 16 * MIB
"""How much more anonymous memory the last quarter may have than the second. An hour with a leak of 1 kB a
block or stream would be far above. Without a leak it varies by 4 MiB (LevelDB's memory table), and its minima
rise by 2 to 3 MiB: page tables (`OFFSET_TABLES_MAX`), and 70 bytes a stream that grpcio does not free if a
connection breaks before an answer is sent (grpc/grpc#43360)."""
DESCRIPTORS_LEFT_MAX = 4
"""How many more file descriptors an idle node may have at the end: LevelDB's files."""
THREADS_LEFT_MAX = 8
"""How many more threads it may have: those of pools not needed at the beginning."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The resources of the process at one moment."""

    seconds: float
    """Since the soak began."""
    last_block: int
    publishers: int
    anonymous_bytes: int
    resident_bytes: int
    descriptors: int
    threads: int
    tasks: int
    data_bytes: int
    """The size of the data folder."""
    client_anonymous_bytes: int = 0
    """Of the publishers' process; not judged."""
    client_descriptors: int = 0
    """Of the publishers' process; not judged."""


def take_sample(node: NodeProcess, client_id: int | None, seconds: float) -> Sample:
    """Return the resources, from the process and the kernel.

    Args:
        node: the node to watch.
        client_id: the publishers' process, if any.
        seconds: since the soak began.
    """
    metrics = node.metrics()
    status = _status_of(node.process_id)
    # The process may have ended.
    client = {} if client_id is None else _status_of(client_id)
    client_files = Path(f"/proc/{client_id}/fd")
    files = [path.stat() for path in node.data_dir.rglob("*") if path.is_file()]
    return Sample(
        seconds=seconds,
        last_block=int(metrics["sluice_last_block"]),
        publishers=int(metrics["sluice_publishers"]),
        anonymous_bytes=int(status["RssAnon"].split()[0]) * 1024,
        resident_bytes=int(metrics["process_resident_memory_bytes"]),
        descriptors=int(metrics["process_open_fds"]),
        threads=int(status["Threads"]),
        tasks=int(metrics["sluice_asyncio_tasks"]),
        data_bytes=sum(file.st_blocks * 512 for file in files),
        client_anonymous_bytes=int(client.get("RssAnon", "0").split()[0]) * 1024,
        client_descriptors=len(list(client_files.iterdir())) if "RssAnon" in client else 0,
    )


def _status_of(process_id: int) -> dict[str, str]:
    """Return the kernel's status of a process; little for an ended one."""
    try:
        text = Path(f"/proc/{process_id}/status").read_text()
    except FileNotFoundError:
        return {}
    return dict(line.split(":", 1) for line in text.splitlines())


def growth_of(samples: Sequence[Sample]) -> int:
    """Return by how many bytes the median anonymous memory of the last quarter exceeds that of the second."""
    quarter = len(samples) // 4
    if quarter == 0:
        return 0
    second = [sample.anonymous_bytes for sample in samples[quarter : 2 * quarter]]
    last = [sample.anonymous_bytes for sample in samples[-quarter:]]
    return int(median(last) - median(second))


def leaks_of(before: Sample, samples: Sequence[Sample], after: Sample) -> list[str]:
    """Return what grew.

    Args:
        before: the idle node, before the first publisher.
        samples: under load, evenly spaced.
        after: the idle node, after all publishers left.
    """
    leaks = []
    growth_bytes = growth_of(samples)
    if growth_bytes > GROWTH_BYTES_MAX:
        leaks.append(
            f"anonymous memory: grew by {growth_bytes / MIB:.1f} MiB from the second quarter to the last, "
            f"expected at most {GROWTH_BYTES_MAX / MIB:g} MiB"
        )
    for name, got, most in (
        ("publishers", after.publishers, before.publishers),
        ("asyncio tasks", after.tasks, before.tasks),
        ("file descriptors", after.descriptors, before.descriptors + DESCRIPTORS_LEFT_MAX),
        ("threads", after.threads, before.threads + THREADS_LEFT_MAX),
    ):
        if got > most:
            leaks.append(f"{name}: {got} when all publishers had gone, expected at most {most}")
    return leaks
