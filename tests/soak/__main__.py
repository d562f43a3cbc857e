"""The soak: `python -m tests.soak --minutes 60`.

One node process, eight publishers, two clients that read nothing (`tests.soak.publishers`), and a chain at a
steady pace. The soak samples the node's resources (`tests.soak.watch`) and prints a table at the end. It
exits with status 1 if a resource of the node grew, or the chain stalled or did not end. The publishers'
process is in the table, but is not judged: grpcio keeps connections of calls with unread answers until the
process ends.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from sluice.publishers.demo.node_process import NodeProcess
from tests.nodes import ledger_key
from tests.soak.watch import MIB, Sample, growth_of, leaks_of, take_sample

SETTLE_SECONDS_MAX = 20.0
"""How long to look at the node again while something is left: it drains and closes streams for a second."""
FINISH_SECONDS = 60.0
"""How long the chain may take to end after the last block was made."""
STILL_SECONDS = 60.0
"""The longest time without a block: block timeouts, retries and publishers' waits take seconds."""
ROWS_MAX = 24


@dataclass(frozen=True, slots=True)
class Outcome:
    """The findings of a soak."""

    before: Sample
    samples: list[Sample]
    after: Sample
    said: str
    """The publishers' counts."""
    leaks: list[str]
    """What grew or went wrong."""


async def soak(
    folder: Path, *, seconds: float, blocks_per_second: float, data_bytes_max: int, seed: int
) -> Outcome:
    """Run a node and the publishers for `seconds`, or until the data folder is full."""
    count = int(seconds * blocks_per_second)
    arguments = ["--ledger-key", ledger_key(), "--block-time", "1", "--publish-send-queue-max", "1024"]
    arguments += ["--subscriber-write-timeout", "2"]
    with NodeProcess(folder / "data", folder / "node.log", arguments) as node:
        await asyncio.sleep(1)
        begun = time.monotonic()
        before = take_sample(node, None, 0)
        # In a separate process, so that what publishers leave open does not count as the node's.
        words = ("-m", "tests.soak.publishers", node.grpc, str(count), str(blocks_per_second), str(seed))
        publishers = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=subprocess.PIPE)
        samples: list[Sample] = []
        problems: list[str] = []
        while publishers.returncode is None:
            with suppress(TimeoutError):
                await asyncio.wait_for(publishers.wait(), max(0.25, min(10, seconds / 100)))
            samples.append(take_sample(node, publishers.pid, time.monotonic() - begun))
            problems = problems_of(samples, seconds, data_bytes_max)
            if problems:
                with suppress(ProcessLookupError):
                    publishers.terminate()
                break
        if await publishers.wait() and not problems:
            problems.append(f"the publishers ended with exit status {publishers.returncode}")
        assert publishers.stdout is not None
        said = (await publishers.stdout.read()).decode().strip()
        settled_at = time.monotonic() + SETTLE_SECONDS_MAX
        after = take_sample(node, None, time.monotonic() - begun)
        while leaks_of(before, samples, after) and time.monotonic() < settled_at:
            await asyncio.sleep(0.25)
            after = take_sample(node, None, time.monotonic() - begun)
        status = node.stop()
    if status != 0:
        problems.append(f"the node ended with exit status {status}")
    entries = (json.loads(line) for line in node.log_path.read_text("utf-8").splitlines())
    errors = [entry["message"] for entry in entries if entry["level"] in ("error", "critical")]
    if errors:
        problems.append(f"the node logged {len(errors)} errors, the first: {errors[0]}")
    return Outcome(before, samples, after, said, problems + leaks_of(before, samples, after))


def problems_of(samples: Sequence[Sample], seconds: float, data_bytes_max: int) -> list[str]:
    """Return why a soak cannot go on.

    Args:
        samples: so far.
        seconds: the planned time.
        data_bytes_max: the largest data folder.
    """
    last = samples[-1]
    if last.data_bytes > data_bytes_max:
        return [f"the data folder has reached {data_bytes_max / MIB:g} MiB"]
    if last.seconds > seconds + FINISH_SECONDS:
        return [f"the chain did not come to its end: the last block is {last.last_block}"]
    since = next(sample for sample in samples if sample.last_block == last.last_block)
    if last.seconds - since.seconds > STILL_SECONDS:
        return [f"the chain stands still: no block after {last.last_block} in {STILL_SECONDS:g} s"]
    return []


def _table(outcome: Outcome) -> Table:
    """Return the table of samples; the last two columns are the publishers' process."""
    table = Table("minutes", "block", "streams", "heap", "resident", "files", "threads", "tasks", "data")
    for name in ("their heap", "their files"):
        table.add_column(name)
    step = max(1, len(outcome.samples) // ROWS_MAX)
    for sample in (outcome.before, *outcome.samples[::step], outcome.after):
        table.add_row(
            f"{sample.seconds / 60:.1f}",
            str(sample.last_block),
            str(sample.publishers),
            f"{sample.anonymous_bytes / MIB:.1f} MiB",
            f"{sample.resident_bytes / MIB:.1f} MiB",
            str(sample.descriptors),
            str(sample.threads),
            str(sample.tasks),
            f"{sample.data_bytes / MIB:.0f} MiB",
            f"{sample.client_anonymous_bytes / MIB:.0f} MiB",
            str(sample.client_descriptors),
        )
    return table


def main() -> int:
    """Run a soak; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--blocks-per-second", type=float, default=50.0)
    parser.add_argument("--data-mib-max", type=int, default=4096, help="the soak ends when the data has this")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    options = parser.parse_args()
    console = Console(width=120)
    console.print(f"seed {options.seed}, {options.minutes:g} minutes, {options.blocks_per_second:g} blocks/s")
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        outcome = uvloop.run(
            soak(
                Path(name),
                seconds=options.minutes * 60,
                blocks_per_second=options.blocks_per_second,
                data_bytes_max=options.data_mib_max * MIB,
                seed=options.seed,
            )
        )
    console.print(_table(outcome))
    console.print(outcome.said)
    last = outcome.samples[-1]
    rate = (last.last_block + 1) / last.seconds
    console.print(
        f"blocks: {last.last_block + 1}, {rate:.1f} a second; columns from heap to data: the node's"
    )
    console.print(f"heap, last quarter against the second: {growth_of(outcome.samples) / MIB:+.1f} MiB")
    for leak in outcome.leaks:
        console.print(f"FAILED {leak}")
    console.print("nothing has grown" if not outcome.leaks else "see above")
    return 1 if outcome.leaks else 0


if __name__ == "__main__":
    sys.exit(main())
