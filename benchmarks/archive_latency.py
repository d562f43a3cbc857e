"""Publishing and acknowledgements of a node with an archive, beside those of a node without, by turns.

    python -m benchmarks.archive_latency [--quick]

Each round drives a node without an archive as fast as it goes, then one with; and gives blocks at half of
that pace to one without, then to one with, as `publish_latency` does; every second round the other way
round. The node with an archive uploads some segments meanwhile, and gives their pages up. Half of the items'
bytes are random, as zstd would be too fast otherwise.

The archive is a folder, in memory if there is `/dev/shm`: an object store does not use the node's disk.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import uvloop

from benchmarks.chains import Chain, make_chain
from benchmarks.measuring import Rows, print_rows
from benchmarks.paced_publisher import latencies, p99
from benchmarks.publish_processes import node, publish

__all__ = ["run"]

_MIB = 1 << 20
_POOL_BYTES = 8 * _MIB
_WAIT_SECONDS = 60.0
ROUNDS = 5
SEGMENTS = 3
"""Full segments of a chain."""
WINDOW = "256MiB"
FIRST_BLOCKS = 100
"""The blocks of a fresh node that do not count."""
LOAD_ITEMS, LATENCY_ITEMS, ITEM_BYTES = 60, 5, 4_000
"""Items of a block where the load is measured, and where the latency is."""


def _chain(items_per_block: int, segments: int) -> Chain:
    chance = random.Random(1)
    pool = b"".join(chance.randbytes(32) + bytes(32) for _ in range(_POOL_BYTES // 64))
    count = (64 * segments + 16) * _MIB // (items_per_block * ITEM_BYTES)
    return make_chain(count, items_per_block, ITEM_BYTES, pool=pool)


@contextmanager
def _node(chain: Chain, *, archived: bool) -> Iterator[str]:
    """Run a node; yield its address."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as place:
        words = ("--archive", f"file://{place}", "--archive-local-bytes", WINDOW) if archived else ()
        with node(chain, words) as facts:
            yield facts.address
            deadline = time.monotonic() + _WAIT_SECONDS
            while archived and not list(Path(place, "segments").glob("*.seg")):
                if time.monotonic() > deadline:
                    raise SystemExit("archive: got no segment, expected some: nothing was measured")
                time.sleep(0.1)


def _load(chain: Chain, *, archived: bool) -> float:
    """Return the blocks a second at full speed."""
    with _node(chain, archived=archived) as address:
        return len(chain.messages) / uvloop.run(publish(address, chain))


def _latencies(chain: Chain, blocks_per_second: float, *, archived: bool) -> list[float]:
    """Return the seconds from when each block was due to its acknowledgement."""
    with _node(chain, archived=archived) as address:
        found = latencies(address, chain, blocks_per_second)
    return [one.since_due for one in found[FIRST_BLOCKS:]]


def run(quick: bool = False) -> Rows:
    """Measure, and return (label, text) rows."""
    segments, rounds = (2, 1) if quick else (SEGMENTS, ROUNDS)
    large, small = _chain(LOAD_ITEMS, segments), _chain(LATENCY_ITEMS, segments)
    loads: dict[bool, list[float]] = {False: [], True: []}
    times: dict[bool, list[list[float]]] = {False: [], True: []}
    pace = _load(small, archived=False) / 2
    for number in range(rounds):
        ways = (False, True) if number % 2 == 0 else (True, False)
        for archived in ways:
            loads[archived].append(_load(large, archived=archived))
        for archived in ways:
            times[archived].append(_latencies(small, pace, archived=archived))
    rates = {
        way: [large.size_bytes / len(large.messages) * load / _MIB for load in loads[way]] for way in loads
    }
    rows = [("archive, publishing beside a node without", _beside(rates, "MiB/s", ".0f"))]
    for label, figure in (("median", median), ("p99", p99)):
        found = {way: [1e3 * figure(one) for one in times[way]] for way in times}
        text = f"{_beside(found, 'ms', '.2f')}, at {pace:,.0f} blocks/s"
        rows.append((f"archive, {label} of acknowledgements beside a node without", text))
    return rows


def _beside(figures: dict[bool, list[float]], unit: str, form: str) -> str:
    """Return both medians, and the median of the ratios of each round."""
    ratios = [with_ / without for without, with_ in zip(figures[False], figures[True], strict=True)]
    both = f"{median(figures[True]):{form}} and {median(figures[False]):{form}} {unit}"
    return f"{both}, ratio {median(ratios):.3f} ({min(ratios):.2f} to {max(ratios):.2f})"


if __name__ == "__main__":
    print_rows(run)
