"""Where a node's processor time goes when it takes blocks, and how near any node could come to the bare echo.

    python -m benchmarks.publish_parts [--quick]

The chains are those of `benchmarks.publish`. Bare servers do one step of the work after the other
(`benchmarks.bare_server`, from `take` to `work`), so each part is a difference between two of them. The last
one does all that nobody can leave out: it makes the items, hashes them and a tree over them in native calls,
checks one signature for each block, writes and flushes. What the node takes beyond it is ours: the front
door, the race, the forms of items, links, heads and checksums of entries, the index of the stream.

Processor seconds are those of the server's process, the least of several rounds, in which all servers
alternate. They tell more than the time of a run does, since publisher and servers share the processors.

    ratio           the work loop's processor time to the node's
    limit           the echo's time to the work loop's: the highest ratio to the echo that a node can have
                    which does its own work in no time

Processor us a block on two cores with AVX-512, least of eight rounds; by processor time, as they shared the
machine with other work:

    items       blocks    node  work loop  gRPC  items  hashes  signature  writing  echo  ratio  limit  goal
    110 B       0.9 MB   5,697      3,144   486    509   1,018        289      842 2,248   0.55   0.72  0.50
    1 kB        1.5 MB   5,762      3,336   676    460     879         74    1,247 2,270   0.58   0.68  0.60
    8 kB        3.2 MB   9,814      6,106 1,282    594   1,530        176    2,524 4,199   0.62   0.69  0.60
    small       5 kB       345        129    61      3      11         39       15   101   0.37   0.78  0.65

So the goals of `benchmarks.publish` to the echo leave a node 0.69, 0.88, 0.87 and 0.83 of the work loop. A
small block is 30 short items: it takes what Python does once for each block, in 750 calls of functions of a
few percent each at most. Where signatures take longer, the goal is what the work loop reaches: node 618,
work loop 273 (signature 113), echo 157 us a block, limit 0.58, by time 0.65. In instructions of a small block
(callgrind): echo 0.19 million, work loop 1.04 (signature 0.61), node 2.4 (signature 0.61, interpreter 1.1).
Of the instructions for 110 B items without gRPC (callgrind, which knows four lanes), two thirds
are hashes, a fifth is Python, and a tenth copies.
"""

from __future__ import annotations

from itertools import pairwise

import uvloop

from benchmarks.chains import Chain, make_chain
from benchmarks.cpu_seconds import thread_seconds
from benchmarks.measuring import Rows, print_rows
from benchmarks.publish import CASES
from benchmarks.publish_processes import bare_process, node, publish

__all__ = ["run"]

_PARTS = {"take": "gRPC", "items": "items", "root": "hashes", "proof": "signatures", "work": "writing"}
"""Each bare server, and what it does beyond the one before it."""
_ROUNDS = 2


def measure(chain: Chain, round_count: int) -> tuple[dict[str, float], dict[str, float]]:
    """Publish a chain to the node, the echo and each bare server; return the least seconds of all rounds.

    Returns:
        The processor seconds of each server, and the time of each run.
    """
    used: dict[str, list[float]] = {}
    took: dict[str, list[float]] = {}

    def note(name: str, address: str, process_id: int) -> None:
        before = thread_seconds(process_id)
        took.setdefault(name, []).append(uvloop.run(publish(address, chain)))
        used.setdefault(name, []).append(thread_seconds(process_id) - before)

    block_count = len(chain.messages)
    for _ in range(round_count):
        with node(chain) as facts:
            note("node", facts.address, facts.process_id)
        for name in ("echo", *_PARTS):
            with bare_process(name, 2 * block_count / facts.flush_count, block_count) as server:
                note(name, *server)
    least_used, least_took = ({name: min(all_) for name, all_ in one.items()} for one in (used, took))
    return least_used, least_took


def run(quick: bool = False) -> Rows:
    """Run every case; return a label and a text for each."""
    rows = []
    for case in CASES[1:2] if quick else CASES:
        chain = make_chain(case.block_count, case.items_per_block, case.item_bytes)
        used, took = measure(chain, 1 if quick else _ROUNDS)
        block_us = {name: seconds / case.block_count * 1e6 for name, seconds in used.items()}
        parts = [f"{_PARTS['take']} {block_us['take']:,.0f}"]
        parts += [f"{_PARTS[name]} {block_us[name] - block_us[last]:,.0f}" for last, name in pairwise(_PARTS)]
        text = (
            f"processor us a block: node {block_us['node']:,.0f}, work loop {block_us['work']:,.0f} "
            f"({', '.join(parts)}), ours {block_us['node'] - block_us['work']:,.0f}, "
            f"echo {block_us['echo']:,.0f}; ratio {used['work'] / used['node']:.2f}; by time "
            f"{took['work'] / took['node']:.2f}; limit {took['echo'] / took['work']:.2f} "
            f"(processor {used['echo'] / used['work']:.2f})"
        )
        rows.append((f"publish, parts, {case.label}", text))
    return rows


if __name__ == "__main__":
    print_rows(run)
