"""Looks for a simpler run with the same failure: fewer publishers, blocks and faults."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tests.simulation.coverage import Coverage
from tests.simulation.options import Options
from tests.simulation.run import Result, run

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
        "proofs_apart",
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
    """Return the simplest failing run that was found; every change is tried, and kept when it still fails."""
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
