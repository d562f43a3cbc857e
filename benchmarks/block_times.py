"""The time of a small block, stage by stage, from its sending to its acknowledgement.

    python -m benchmarks.block_times [--rate BLOCKS_PER_SECOND] [--show BLOCK]

Not in `make bench`: it has no ratio. A node that records when each block reaches which stage
(`benchmarks.traced_node`) gets blocks at a steady pace, as in `benchmarks.publish_latency`. Blocks that were
acknowledged before the next one was sent are counted apart from those that overlap with it:

    sent ─► offered ─► linked ─► begun ─► entries on disk ─► on disk ─► told ─► heard
    └ gRPC ─┘└ hash, verify ┘└ thread ┘└serialize, flush┘└ flush, index ┘└ loop ┘└ gRPC ┘

Overlapping blocks share the interpreter: while the event loop hashes the later one, the commit thread of the
earlier one waits for it after each flush. So each delays the other, and the next. `--show` prints the moments
of one block and of the three behind it, in order.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles

from rich.console import Console
from rich.table import Table

from benchmarks.chains import Chain, make_chain
from benchmarks.paced_publisher import Latency, latencies
from benchmarks.publish_latency import BLOCK_COUNT, FIRST_BLOCKS, ITEM_BYTES, ITEMS_PER_BLOCK
from benchmarks.traced_node import Moment, moments_in
from sluice.publishers.demo.node_process import NodeProcess

RATE = 800.0
"""About half of a node's maximum on two cores."""
SHOWN_BLOCKS = 4
SENT, HEARD = "it is sent", "its acknowledgement is heard"
_MOMENTS: tuple[str, ...] = (SENT, *Moment, HEARD)

_Times = dict[str, float]
"""A block's moments: seconds of `time.perf_counter` by event."""


def _measure(chain: Chain, blocks_per_second: float) -> list[_Times]:
    """Publish a chain; return the moments of its blocks from FIRST_BLOCKS on."""
    with tempfile.TemporaryDirectory() as folder:
        data_dir = Path(folder, "data")
        words = ["--ledger-key", chain.ledger_key]
        with NodeProcess(data_dir, Path(folder, "log"), words, module="benchmarks.traced_node") as node:
            found = latencies(node.grpc, chain, blocks_per_second)
        moments = moments_in(data_dir)
    return [_times(moments, number, one) for number, one in enumerate(found) if number >= FIRST_BLOCKS]


def _times(moments: dict[Moment, dict[int, int]], number: int, one: Latency) -> _Times:
    noted = {str(moment): moments[moment][number] / 1e9 for moment in Moment}
    return {SENT: one.sent_at, **noted, HEARD: one.heard_at}


def _step_ms(blocks: Sequence[_Times], from_moment: str, to_moment: str) -> str:
    """Return median and p90 of the time from one moment to another, as text."""
    if len(blocks) < 2:
        return "-"
    taken = [(block[to_moment] - block[from_moment]) * 1e3 for block in blocks]
    return f"{median(taken):.2f}, {quantiles(taken, n=10)[8]:.2f}"


def _table(blocks: Sequence[_Times]) -> Table:
    """Return a table of the steps' times, for blocks alone and for those that overlap with the next."""
    alone = [block for block, after in pairwise(blocks) if block[HEARD] <= after[SENT]]
    others = [block for block, after in pairwise(blocks) if block[HEARD] > after[SENT]]
    title = "From one moment to the next: median and p90, in milliseconds"
    table = Table("until", f"{len(alone)} alone", f"{len(others)} that overlap", title=title)
    for before, moment in pairwise(_MOMENTS):
        table.add_row(moment, _step_ms(alone, before, moment), _step_ms(others, before, moment))
    table.add_section()
    table.add_row("in all", _step_ms(alone, SENT, HEARD), _step_ms(others, SENT, HEARD))
    return table


def _print_moments(blocks: Sequence[_Times], first: int) -> None:
    """Print the moments of some blocks in order, in microseconds since the first was sent."""
    shown = blocks[first - FIRST_BLOCKS :][:SHOWN_BLOCKS]
    moments = sorted(
        (at, first + index, what) for index, block in enumerate(shown) for what, at in block.items()
    )
    for at, number, what in moments:
        print(f"{(at - moments[0][0]) * 1e6:8,.0f}  block {number}: {what}")


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.block_times", description="Where the time of a small block goes."
    )
    parser.add_argument("--rate", type=float, default=RATE, metavar="N", help="blocks a second (%(default)g)")
    parser.add_argument(
        "--show", type=int, metavar="BLOCK", help=f"print the moments of it and of {SHOWN_BLOCKS - 1} more"
    )
    options = parser.parse_args()
    if not 0 < options.rate < math.inf:
        parser.error(f"--rate: got {options.rate:g}, expected blocks a second, above 0")
    last = BLOCK_COUNT - 1
    if options.show is not None and not FIRST_BLOCKS <= options.show <= last:
        parser.error(f"--show: got {options.show}, expected a block from {FIRST_BLOCKS} to {last}")
    blocks = _measure(make_chain(BLOCK_COUNT, ITEMS_PER_BLOCK, ITEM_BYTES), options.rate)
    Console().print(_table(blocks))
    if options.show is not None:
        _print_moments(blocks, options.show)


if __name__ == "__main__":
    main()
