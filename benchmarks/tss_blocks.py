"""TSS blocks in a node: speed against mode `hash`, and the pauses of the event loop.

    python -m benchmarks.tss_blocks [--quick]

Blocks of 400 kB in items of 107 bytes, as real ones, all signed under one hinTS key. The clock starts when
block 0 is acknowledged. Three processes are at work: the publisher, the node, and in mode `full` its proof
process.

*As fast as they go*: the same blocks in mode `hash` and in mode `full`, alternating; the ratio is of the best
of each. With thirteen nodes, of which others sign each block, nearly every statement of a signature is new:
the most that a key costs. *So many blocks a second* leaves the machine time.

*Small TSS blocks, N proof processes*: blocks of 30 items come as fast as they go, so that they wait for their
proofs. The processor seconds of the node and of each proof process say what more processors bring: the
blocks take at least the most of these.

Three figures separate the node's part of its event loop's pauses from the machine's: the pause's own part and
its processor time (`benchmarks.bare_loop`); the pauses of the same node in mode `hash`, which checks no
proofs; and those of a bare loop in the same runs. For a pause above the goal, the text says how long all
threads of the node ran in it: next to nothing means that the machine stood still.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from statistics import median

import uvloop

from benchmarks.chains import SET_BYTES, Chain, make_chain
from benchmarks.cpu_seconds import process_seconds
from benchmarks.measuring import Rows, print_rows
from benchmarks.publish_processes import bare_loop, node, publish
from tests.gateway.blocks.proofs.tss_chain import publishing_transaction
from tests.gateway.blocks.proofs.tss_network import TssNetwork

__all__ = ["ITEMS_PER_BLOCK", "ITEM_BYTES", "run"]

ITEMS_PER_BLOCK, ITEM_BYTES = 3_740, 107
BLOCKS_PER_SECOND = 10.0
"""The moderate pace; real networks make a block in two seconds."""
PAUSE_GOAL_SECONDS = 0.010


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of a chain through a node."""

    seconds: float
    """From block 0's acknowledgement to the last one."""
    pause: float
    own_pause: float
    processor_pause: float
    bare_pause: float
    """Worst pauses, seconds: of the node's loop, its own part, its processor time, and of the bare loop."""
    process_seconds: float
    """The processor time of all threads of the node in its worst pause."""


def run(quick: bool = False) -> Rows:
    """Measure all; return a label and a text for each figure."""
    block_count, round_count = (30, 3) if quick else (100, 5)
    rows = []
    four = TssNetwork((1,) * 4)
    chain = _chain(four, lambda number: (0, 1, 2, 3), block_count)
    rows.append((f"publish {block_count} TSS blocks of 400 kB, 4 nodes", _against_hash(chain, round_count)))
    rows.append((f"the same, {BLOCKS_PER_SECOND:.0f} blocks a second", _one_by_one(chain)))
    whole = _chain(four, lambda number: (0, 1, 2, 3), block_count, set_bytes=1 << 20)
    rows.append(("the same, each block in one item set", _one_by_one(whole)))
    chain = _chain(TssNetwork((1,) * 13), _nine_of_thirteen, block_count)
    label = f"publish {block_count} TSS blocks of 400 kB, 13 nodes, each by others"
    rows.append((label, _against_hash(chain, round_count)))
    count = 300 if quick else 1_500
    chain = _chain(TssNetwork((1,) * 4), lambda number: (0, 1, 2, 3), count, items_per_block=30)
    for processes in (1, 2, 4):
        label = f"publish {count:,} small TSS blocks, {processes} proof process{'es' * (processes > 1)}"
        rows.append((label, _divided(chain, processes)))
    return rows


def _divided(chain: Chain, processes: int) -> str:
    """Tell how the work divides over the node and its proof processes."""
    block_0, rest = (replace(chain, messages=part) for part in (chain.messages[:1], chain.messages[1:]))
    with node(chain, ["--verification-processes", str(processes)]) as facts:
        uvloop.run(publish(facts.address, block_0))
        node_before, children_before = process_seconds(facts.process_id)
        seconds = uvloop.run(publish(facts.address, rest, first=1))
        node_after, children = process_seconds(facts.process_id)
    proofs = [children[0] - sum(children_before), *children[1:]]
    node_seconds, count = node_after - node_before, len(rest.messages)
    return (
        f"{count / seconds:,.0f} blocks/s; processor seconds: node {node_seconds:.2f}, proofs "
        f"{', '.join(f'{each:.2f}' for each in proofs)}; with a processor for each at most "
        f"{count / max(node_seconds, *proofs):,.0f} blocks/s"
    )


def _against_hash(chain: Chain, round_count: int) -> str:
    """Publish in both modes, alternating, so that a busy machine slows both."""
    hashed, full = [], []
    for _ in range(round_count):
        hashed.append(_published(chain, "hash"))
        full.append(_published(chain, "full"))
    block_count = len(chain.messages) - 1
    best_hash, best_full = (min(one.seconds for one in runs) for runs in (hashed, full))
    middle = median(before.seconds / after.seconds for before, after in zip(hashed, full, strict=True))
    return (
        f"mode hash {block_count / best_hash:,.0f} blocks/s, "
        f"mode full {block_count / best_full:,.0f} blocks/s; "
        f"ratio {best_hash / best_full:.2f}, median of the rounds {middle:.2f}; "
        f"mode full: {_pauses(full)}; mode hash: {_pauses(hashed)}"
    )


def _one_by_one(chain: Chain) -> str:
    runs = [_published(chain, "full", BLOCKS_PER_SECOND) for _ in range(2)]
    return f"mode full; {_pauses(runs)}"


def _pauses(runs: list[_Run]) -> str:
    worst = ", ".join(map(_pause, runs))
    return (
        f"worst pause of the loop in each run {worst} ms, own part at most "
        f"{max(one.own_pause for one in runs) * 1e3:.1f} ms, processor time at most "
        f"{max(one.processor_pause for one in runs) * 1e3:.1f} ms; of a bare loop beside it at most "
        f"{max(one.bare_pause for one in runs) * 1e3:.1f} ms"
    )


def _pause(run: _Run) -> str:
    """Return the worst pause of a run, ms; above the goal with the time that the node ran in it."""
    if run.pause < PAUSE_GOAL_SECONDS:
        return f"{run.pause * 1e3:.1f}"
    return f"{run.pause * 1e3:.1f} (in which all its threads ran {run.process_seconds * 1e3:.1f})"


def _nine_of_thirteen(number: int) -> tuple[int, ...]:
    """Return nine nodes, which differ for nearly every number."""
    return tuple(sorted(Random(number).sample(range(13), 9)))


def _chain(
    network: TssNetwork,
    signers: Callable[[int], tuple[int, ...]],
    block_count: int,
    *,
    items_per_block: int = ITEMS_PER_BLOCK,
    set_bytes: int = SET_BYTES,
) -> Chain:
    numbers, every_node = itertools.count(), range(len(network.weights))
    return make_chain(
        block_count + 1,
        items_per_block,
        ITEM_BYTES,
        sign=lambda root_hash: network.sign(root_hash, signers(next(numbers)), every_node),
        published=[publishing_transaction(network.publication)],
        ledger_key="tss:block0",
        set_bytes=set_bytes,
    )


def _published(chain: Chain, mode: str, blocks_per_second: float | None = None) -> _Run:
    first, rest = (replace(chain, messages=part) for part in (chain.messages[:1], chain.messages[1:]))
    with node(chain, ["--verify", mode], watched=True) as facts, bare_loop() as bare:
        uvloop.run(publish(facts.address, first))
        seconds = uvloop.run(publish(facts.address, rest, first=1, blocks_per_second=blocks_per_second))
    return _Run(
        seconds,
        facts.worst_pause_seconds,
        facts.worst_own_pause_seconds,
        facts.worst_processor_pause_seconds,
        bare.worst_pause_seconds,
        facts.process_seconds_in_worst_pause,
    )


if __name__ == "__main__":
    print_rows(run)
