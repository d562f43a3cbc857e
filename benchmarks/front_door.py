"""The cost of the front door: a node with it against the same node without it, alternating.

    python -m benchmarks.front_door [--quick]

Publishing is measured as in `benchmarks.publish`, the race as in `benchmarks.publish_race`; latency is from
sending a small block to its acknowledgement, at half of the doorless node's maximum. Each pair of
neighbouring runs gives a ratio, or a difference, and the median counts, as the machine's speed changes by the
minute.
"""

from __future__ import annotations

from statistics import median

import uvloop

from benchmarks.chains import Chain, make_chain
from benchmarks.measuring import Rows, print_rows
from benchmarks.paced_publisher import latencies
from benchmarks.publish import CASES
from benchmarks.publish_processes import node, publish
from benchmarks.publish_race import ITEM_BYTES, PUBLISHER_COUNT, race_seconds

__all__ = ["run"]

PAIRS = 7
LATENCY_BLOCKS = 1_500
RACE_BLOCKS, RACE_ITEMS = 60, 1_500
SMALL = CASES[-1]


def _seconds(chain: Chain, *, has_door: bool) -> float:
    with node(chain, has_door=has_door) as facts:
        return uvloop.run(publish(facts.address, chain))


def run(quick: bool = False) -> Rows:
    """Run every case; return a label and a text for each figure."""
    rows = []
    pairs = 1 if quick else PAIRS
    for case in CASES[1:2] if quick else CASES:
        chain = make_chain(case.block_count, case.items_per_block, case.item_bytes)
        found = [(_seconds(chain, has_door=True), _seconds(chain, has_door=False)) for _ in range(pairs)]
        megabytes = chain.size_bytes / 1e6
        text = (
            f"{megabytes / min(door for door, _ in found):,.1f} MB/s; "
            f"without it {megabytes / min(bare for _, bare in found):,.1f} MB/s; "
            f"ratio {median(bare / door for door, bare in found):.2f}"
        )
        rows.append((f"front door, {case.label}", text))
    return rows if quick else [*rows, _race(), _latency()]


def _race() -> tuple[str, str]:
    """Compare the race for blocks of 1.5 MB, where skipped publishers cost the largest part."""
    chain = make_chain(RACE_BLOCKS, RACE_ITEMS, ITEM_BYTES, header_apart=True)
    found = [(race_seconds(chain, has_door=True), race_seconds(chain, has_door=False)) for _ in range(PAIRS)]
    text = (
        f"{RACE_BLOCKS / min(door for door, _ in found):,.1f} blocks/s; "
        f"without it {RACE_BLOCKS / min(bare for _, bare in found):,.1f} blocks/s; "
        f"ratio {median(bare / door for door, bare in found):.2f}"
    )
    return f"front door, {PUBLISHER_COUNT} racing, {RACE_ITEMS} items of 1 kB", text


def _median_latency(chain: Chain, per_second: float, *, has_door: bool) -> float:
    with node(chain, has_door=has_door) as facts:
        return median(one.since_sent for one in latencies(facts.address, chain, per_second))


def _latency() -> tuple[str, str]:
    chain = make_chain(LATENCY_BLOCKS, SMALL.items_per_block, SMALL.item_bytes)
    per_second = LATENCY_BLOCKS / _seconds(chain, has_door=False) / 2
    found = [
        (
            _median_latency(chain, per_second, has_door=True),
            _median_latency(chain, per_second, has_door=False),
        )
        for _ in range(PAIRS)
    ]
    text = (
        f"p50 {median(door for door, _ in found) * 1e3:.2f} ms at {per_second:,.0f} blocks/s; "
        f"without it {median(bare for _, bare in found) * 1e3:.2f} ms; "
        f"more with it {median(door - bare for door, bare in found) * 1e3:+.2f} ms"
    )
    return "front door, latency of small blocks", text


if __name__ == "__main__":
    print_rows(run)
