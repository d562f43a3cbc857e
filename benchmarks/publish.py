"""Publish throughput: one publisher, every block verified and flushed, against a bare loop in the same run.

    python -m benchmarks.publish [--quick]

The node is a process of its own (`sluice serve`, mode full, Ed25519 proofs); the publisher sends serialized
messages. The bare loop is `benchmarks.bare_server`; the bare echo is the same without hashing. All three
alternate several times; the best of each counts. The worst pause is the longest iteration of the node's event
loop.
"""

from __future__ import annotations

from dataclasses import dataclass

import uvloop

from benchmarks.chains import Chain, make_chain
from benchmarks.measuring import Rows, print_rows
from benchmarks.publish_processes import bare_server, node, publish

__all__ = ["CASES", "Case", "measure", "run"]


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of chain."""

    label: str
    block_count: int
    items_per_block: int
    item_bytes: int


CASES = (
    Case("items of 110 B, 64 KiB sets", 40, 8_000, 110),
    Case("items of 1 kB, 64 KiB sets", 60, 1_500, 1_000),
    Case("items of 8 kB, 64 KiB sets", 60, 400, 8_000),
    Case("small blocks, 30 items, 5 kB", 2_000, 30, 165),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """The best of several rounds, in seconds."""

    node_seconds: float
    bare_seconds: float
    echo_seconds: float
    blocks_per_pair: float
    """Blocks a pair of flushes."""
    worst_pause_seconds: float


def measure(chain: Chain, round_count: int) -> Measured:
    """Publish a chain to a node, to the bare loop and to the bare echo; once more for the pause."""
    block_count = len(chain.messages)
    rounds = []
    for _ in range(round_count):
        with node(chain) as facts:
            node_seconds = uvloop.run(publish(facts.address, chain))
        per_pair = 2 * block_count / facts.flush_count
        with bare_server("hash", per_pair, block_count) as address:
            bare_seconds = uvloop.run(publish(address, chain))
        with bare_server("echo", per_pair, block_count) as address:
            echo_seconds = uvloop.run(publish(address, chain))
        rounds.append((node_seconds, bare_seconds, echo_seconds, per_pair))
    with node(chain, watched=True) as facts:
        uvloop.run(publish(facts.address, chain))
    node_all, bare_all, echo_all, _ = zip(*rounds, strict=True)
    best = min(node_all), min(bare_all), min(echo_all)
    return Measured(*best, rounds[-1][3], facts.worst_pause_seconds)


def run(quick: bool = False) -> Rows:
    """Run every case; return a label and a text for each figure."""
    rows = []
    for case in CASES[1:2] if quick else CASES:
        chain = make_chain(case.block_count, case.items_per_block, case.item_bytes)
        found = measure(chain, 1 if quick else 3)
        megabytes, best = chain.size_bytes / 1e6, found.node_seconds
        text = (
            f"{case.block_count / best:,.0f} blocks/s, {chain.item_count / best:,.0f} items/s, "
            f"{megabytes / best:,.1f} MB/s; bare loop {megabytes / found.bare_seconds:,.1f} MB/s, "
            f"bare echo {megabytes / found.echo_seconds:,.1f} MB/s; "
            f"ratio {found.bare_seconds / best:.2f}, to the echo {found.echo_seconds / best:.2f} "
            f"({found.blocks_per_pair:.1f} blocks a pair of flushes); "
            f"worst pause of the loop {found.worst_pause_seconds * 1e3:.1f} ms"
        )
        rows.append((f"publish, {case.label}", text))
    return rows


if __name__ == "__main__":
    print_rows(run)
