"""The cost of waiting for a standby: `commit.min_standbys` 0 against 1.

    python -m benchmarks.standbys [--quick]

An active node and its standby are processes on this machine and share its processors and its disk. Throughput
is one publisher that sends small blocks as fast as they go: with 1 no faster than the standby follows, with 0
the standby falls behind. Latency is from sending a block to its acknowledgement, at a moderate pace.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import uvloop

from benchmarks.chains import Chain, make_chain
from benchmarks.measuring import Rows, print_rows
from benchmarks.paced_publisher import latencies, p99
from benchmarks.publish_processes import free_addresses, publish
from sluice.publishers.demo.node_process import NodeProcess

__all__ = ["run"]

ITEMS_PER_BLOCK, ITEM_BYTES = 30, 165
BLOCK_COUNT = 2_000
PACED_COUNT = 300
WARM_COUNT = 100
"""Blocks that do not count, while the standby begins to follow."""
BLOCKS_PER_SECOND = 50


@contextmanager
def _pair(chain: Chain, min_standbys: int) -> Iterator[str]:
    """Run an active node and its standby on empty folders; yield the address of the active one."""
    with tempfile.TemporaryDirectory() as folder:
        addresses = free_addresses(2)
        common = ["--ledger-key", chain.ledger_key, "--commit-min-standbys", str(min_standbys)]
        words = [
            ["--grpc", addresses[0], "--peer", addresses[1], *common],
            ["--grpc", addresses[1], "--peer", addresses[0], *common, "--role", "standby"],
        ]
        places = [(Path(folder, name), Path(folder, f"{name}.log")) for name in "ab"]
        with NodeProcess(*places[0], words[0]), NodeProcess(*places[1], words[1]):
            yield addresses[0]


def _first(chain: Chain, count: int) -> Chain:
    return Chain(chain.messages[:count], chain.item_count, chain.size_bytes, chain.ledger_key)


def run(quick: bool = False) -> Rows:
    """Measure both cases, alternating; return labels and texts."""
    chain = make_chain(BLOCK_COUNT // (4 if quick else 1), ITEMS_PER_BLOCK, ITEM_BYTES)
    paced = _first(chain, PACED_COUNT)
    rates: dict[int, list[float]] = {}
    times: dict[int, list[float]] = {}
    for _ in range(1 if quick else 3):
        for min_standbys in (0, 1):
            with _pair(chain, min_standbys) as address:
                seconds = uvloop.run(publish(address, chain))
                rates.setdefault(min_standbys, []).append(len(chain.messages) / seconds)
            with _pair(chain, min_standbys) as address:
                found = latencies(address, paced, BLOCKS_PER_SECOND)
                times.setdefault(min_standbys, []).extend(one.since_sent for one in found[WARM_COUNT:])
    lines = []
    for min_standbys in (0, 1):
        latency = times[min_standbys]
        text = (
            f"{median(rates[min_standbys]):,.0f} blocks/s; at {BLOCKS_PER_SECOND} blocks/s median "
            f"{median(latency) * 1e3:.1f} ms, p99 {p99(latency) * 1e3:.1f} ms"
        )
        lines.append((f"with a standby, commit.min_standbys {min_standbys}", text))
    return lines


if __name__ == "__main__":
    print_rows(run)
