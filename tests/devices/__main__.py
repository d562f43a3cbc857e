"""Real devices that refuse: `python -m tests.devices --rounds 100`.

It prints the seed and the outcome of each round, and exits with status 1 after a violation.
"""

from __future__ import annotations

import argparse
import collections
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.devices.device import KINDS, why_not
from tests.devices.run import run_node, run_stream


def main(arguments: Sequence[str] | None = None) -> int:
    """Run rounds; return 0 without violations."""
    parser = argparse.ArgumentParser(prog="python -m tests.devices", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="for each file system")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="of the first round")
    parser.add_argument("--kinds", default="ext4,xfs", help=f"file systems, of {', '.join(KINDS)}")
    parser.add_argument("--node-every", type=int, default=10, help="every so many rounds with `sluice serve`")
    given = parser.parse_args(arguments)
    failed = 0
    for kind in given.kinds.split(","):
        reason = why_not(kind)
        if reason is not None:
            say(f"{kind}: skipped: {reason}")
            continue
        began, acknowledged, refusals = time.monotonic(), 0, 0
        wrong_rounds: collections.Counter[str] = collections.Counter()
        for number in range(given.rounds):
            seed = given.seed + number
            run = run_node if number % given.node_every == given.node_every - 1 else run_stream
            with tempfile.TemporaryDirectory(prefix="sluice-devices-") as folder:
                outcome = run(Path(folder), kind, seed)
            acknowledged, refusals = acknowledged + outcome.acknowledged, refusals + outcome.refusals
            what = "node" if run is run_node else "stream"
            say(
                f"{kind} {what} seed {seed}: {outcome.story}, {outcome.acknowledged} acknowledged, "
                f"{outcome.refusals} refused"
            )
            for line in outcome.wrong[:5]:
                say(f"  WRONG: {line}")
            wrong_rounds[what] += bool(outcome.wrong)
        failed += wrong_rounds.total()
        say(
            f"{kind}: {given.rounds} rounds, {acknowledged} acknowledged, {refusals} refused, "
            f"{wrong_rounds.total()} rounds failed {dict(wrong_rounds)}, {time.monotonic() - began:.0f} s"
        )
    return 1 if failed else 0


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
