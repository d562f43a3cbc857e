"""Chaos: `python -m tests.chaos --seed N --blocks 2000`, or `make chaos`.

It prints the script of faults first; the same seed gives the same script. At the end it prints the
violations, and exits with status 1 if there are any.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.network import enter, why_not_namespaces
from tests.chaos.run import Options, run
from tests.chaos.script import USUAL, FaultKind, draw


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one seed; return 0 without violations."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="of the script")
    parser.add_argument("--blocks", type=int, default=2000)
    parser.add_argument("--faults", type=int, help="one for every 40 blocks unless given")
    parser.add_argument("--kinds", help="which faults: " + ", ".join(kind.value for kind in FaultKind))
    parser.add_argument(
        "--min-standbys",
        type=int,
        default=0,
        help="acknowledged when so many other nodes have it; with ruins",
    )
    parser.add_argument("--seconds", type=float, default=4.0, help="a fault lasts this long at most")
    parser.add_argument("--rate", type=float, default=25.0, help="blocks a second")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--subscribers", type=int, default=5)
    parser.add_argument("--publishers", type=int, default=3)
    parser.add_argument("--layout", choices=("block", "native"), default="block", help="of the streams")
    parser.add_argument("--folder", type=Path, help="an empty folder for data and logs")
    parser.add_argument(
        "--network",
        choices=("auto", "namespaces", "ports"),
        default="auto",
        help="each node in a network namespace of its own, where that is possible, or on ports",
    )
    given = parser.parse_args(arguments)
    network, why = _network(given.network)
    if network == "namespaces":
        enter("tests.chaos", sys.argv[1:] if arguments is None else arguments)
    kinds = list(FaultKind if given.min_standbys else USUAL)
    if given.kinds is not None:
        kinds = [FaultKind(word) for word in given.kinds.split(",")]
    fault_count = given.blocks // 40 if given.faults is None else given.faults
    script = draw(given.seed, given.blocks, fault_count, kinds, seconds_max=given.seconds)
    options = Options(
        given.publishers, given.clients, given.subscribers, given.rate, given.min_standbys, given.layout
    )
    folder = given.folder or Path(tempfile.mkdtemp(prefix="sluice-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()

    def say(line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    for line in script.lines():
        say(line)
    say(f"    {options}, logs in {folder}")
    say(f"    network: {network}{why}")
    wrong = run(script, options, folder, lambda line: say(f"{time.monotonic() - began:7.2f} s  {line}"))
    took = time.monotonic() - began
    for line in wrong:
        say(f"WRONG: {line}")
    say(f"seed {given.seed}: {'failed' if wrong else 'clean'}, {took:.1f} s")
    return 1 if wrong else 0


def _network(wanted: str) -> tuple[str, str]:
    """Choose the best possible network, and say why it is no better."""
    reason = None if wanted == "ports" else why_not_namespaces()
    if wanted == "namespaces" and reason is not None:
        raise SystemExit(f"--network namespaces: {reason}")
    if wanted == "ports":
        return "ports", ""
    return ("namespaces", "") if reason is None else ("ports", f" (no namespaces: {reason})")


if __name__ == "__main__":
    sys.exit(main())
