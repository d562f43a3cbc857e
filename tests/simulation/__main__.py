"""`python -m tests.simulation`: run seeds, and print each failure with its options."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tests.simulation.coverage import Coverage
from tests.simulation.options import Options, draw
from tests.simulation.run import Result, folder, run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 when no rule was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="one seed")
    parser.add_argument("--seeds", default=None, help="A-B: these and all between; B: 0 to B - 1")
    parser.add_argument("--steps", type=int, default=None, help="steps after which faults stop")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="change an option")
    parser.add_argument("--trace", type=int, default=60, help="events printed of a failure")
    parser.add_argument("--shrink", action="store_true", help="look for fewer faults with the same failure")
    parser.add_argument("--keep-going", action="store_true", help="go on after a failure")
    given = parser.parse_args(arguments)
    coverage, failures = Coverage(), 0
    seeds = _seeds(given.seed, given.seeds)
    started = time.monotonic()
    done = steps = 0
    with folder() as data_dir:
        for seed in seeds:
            options = draw(seed, given.steps).with_changes(given.set)
            if len(seeds) == 1:
                _say(f"seed {seed}", *(f"    {line}" for line in options.lines()))
            # Of many seeds only a failing one is traced: it runs again and does the same.
            result = run(seed, options, data_dir, coverage, given.trace if len(seeds) == 1 else 0)
            if result.violation is not None and len(seeds) > 1:
                result = run(seed, options, data_dir, Coverage(), given.trace)
            done, steps = done + 1, steps + result.steps
            if result.violation is not None:
                failures += 1
                if given.shrink:
                    result = shrink(result, data_dir, given.trace)
                _say(*describe(result))
                if not given.keep_going:
                    break
            elif len(seeds) == 1:
                _say(f"clean: {result.steps} steps, {result.seconds:.1f} s of its time, {result.digest:08x}")
            if done % 1000 == 0:
                _say(f"{done} seeds, {time.monotonic() - started:.0f} s, {failures} failures")
    took = time.monotonic() - started
    _say(
        f"{done} seeds, {steps} steps, {took:.1f} s ({1000 * took / max(1, done):.1f} ms a seed), "
        f"{failures} failures"
    )
    if len(seeds) > 1:
        _say(*coverage.summary())
        for kind, names in coverage.missing().items():
            _say(f"never reached of {kind}: {', '.join(names)}")
    return 1 if failures else 0


def describe(result: Result) -> list[str]:
    changed = _changes(result)
    command = f"python -m tests.simulation --seed {result.seed}" + "".join(f" --set {one}" for one in changed)
    return [
        *result.trace,
        f"seed {result.seed} breaks a rule after {result.steps} steps, {result.seconds:.3f} s of its time",
        *(f"    {line}" for line in result.options.lines()),
        f"rule:   {result.violation.rule if result.violation else 'none'}",
        f"got:    {result.violation.got if result.violation else 'nothing'}",
        f"replay: {command}",
    ]


def _changes(result: Result) -> list[str]:
    drawn: Options = draw(result.seed)
    return [
        f"{after.partition(' = ')[0]}={after.partition(' = ')[2].replace(' ', '')}"
        for before, after in zip(drawn.lines(), result.options.lines(), strict=True)
        if before != after
    ]


def _seeds(seed: int | None, text: str | None) -> range:
    if text is None:
        return range(seed or 0, (seed or 0) + 1)
    first, dash, last = text.partition("-")
    return range(int(first), int(last) + 1) if dash else range(int(first))


def _say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


_COUNTS = (
    *("crashes", "commit_crashes", "shutdowns", "retirements", "disk_faults", "breaks", "stalls", "restarts"),
    *("pauses", "peers", "rogues", "publishers", "blocks"),
)
_PLAIN = Options()
_PLAIN_NAMES = (
    *(
        "delay_ns",
        "window",
        "lag_ns",
        "job_ns",
        "inline_items_max",
        "proofs_in_process",
        "first_block",
        "block_bytes_max",
    ),
    *("duplicate_skip_window", "responses_max", "inflight_bytes_max", "publisher_bytes_max"),
    *("group_blocks_max", "pages"),
    *("same_name", "quiet", "window_blocks", "cache_bytes", "reset_interval_ns", "answer_timeout_ns"),
    *("busy", "elsewhere", "twins"),
    *("block_time_ns", "stall_blocks", "block_timeout_ns", "idle_timeout_ns"),
)


def shrink(result: Result, data_dir: Path, trace_lines: int) -> Result:
    """Return the simplest run found that still fails."""
    best, rule = result, result.violation.rule if result.violation else ""
    improved = True
    while improved:
        improved = False
        for options in _simpler(best.options):
            tried = run(best.seed, options, data_dir, Coverage(), trace_lines)
            if tried.violation is not None and tried.violation.rule == rule:
                best, improved = tried, True
                break
    return best


def _simpler(options: Options) -> Iterator[Options]:
    for name in _COUNTS:
        count, least = getattr(options, name), {"publishers": 1, "blocks": 5}.get(name, 0)
        for fewer in sorted({least, count // 2, count - 1}):
            if least <= fewer < count:
                yield replace(options, **{name: fewer})
    for name in _PLAIN_NAMES:
        if getattr(options, name) != getattr(_PLAIN, name):
            yield replace(options, **{name: getattr(_PLAIN, name)})


if __name__ == "__main__":
    sys.exit(main())
