"""Coverage-guided fuzzing of one parser in this process, with atheris (libFuzzer).

    python -m tests.fuzzing.atheris_parsers NAME --folder FOLDER [--cpu-seconds 600 | --runs N]

`python -m tests.fuzzing` starts this for one parser after another and keeps the accounts. A finding ends the
process with a status other than 0:

    an error that the parser does not declare     libFuzzer writes the input to FOLDER/findings
    an input of more than a second                the same, after a second measurement without the
                                                  instrumentation, which costs several times as much
    a hang, 30 seconds in one input               SIGPROF ends the process, in whatever code it is; the record
                                                  has the input

All times are processor time: a stopped or waiting process has not hung.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.fuzzing.record import Progress, Record

if TYPE_CHECKING:
    from tests.fuzzing.parsers import Parser

__all__ = ["HANG_CPU_SECONDS", "main"]

SLOW_SECONDS: Final = 1.0
"""An instrumented run above this is measured again without instrumentation."""
HANG_CPU_SECONDS: Final = 30.0
"""The longest time for an input."""
MEMORY_MIB_MAX: Final = 2048
_PARENT_EVERY_INPUTS: Final = 1024
_NEVER: Final = 1 << 30
"""For libFuzzer's limits, which count wall time."""


def main(arguments: Sequence[str]) -> None:
    """Fuzz one parser until its time is over; does not return."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing.atheris_parsers", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="keeps corpus, findings and records")
    parser.add_argument("--cpu-seconds", type=float, default=600.0, help="processor time (600)")
    parser.add_argument("--runs", type=int, default=0, help="so many inputs instead of a time")
    parser.add_argument("name", metavar="NAME")
    options = parser.parse_args(arguments)
    import atheris

    with atheris.instrument_imports(include=["sluice.gateway", "sluice.datastream"]):
        from tests.fuzzing.parsers import PARSERS
    target: Parser = PARSERS[options.name]
    corpus = options.folder / "corpus" / target.name
    corpus.mkdir(parents=True, exist_ok=True)
    for index, seed in enumerate(target.seeds()):
        (corpus / f"seed-{index}").write_bytes(seed)
    findings = options.folder / "findings"
    findings.mkdir(exist_ok=True)
    limits = [f"-runs={options.runs or _NEVER}", f"-timeout={_NEVER}", f"-report_slow_units={_NEVER}"]
    limits += [f"-max_len={target.size_max}", f"-rss_limit_mb={MEMORY_MIB_MAX}"]
    places = [f"-artifact_prefix={findings}/{target.name}-", str(corpus)]
    one_input = _Inputs(target, options.folder, 0.0 if options.runs else options.cpu_seconds)
    atheris.Setup([sys.argv[0], *limits, *places], one_input)
    atheris.Fuzz()


class _Inputs:
    """Reads libFuzzer's inputs, and ends the process when its time is over.

    Args:
        target: the parser's function.
        folder: of the record.
        cpu_seconds: time for all inputs; 0: no end.
    """

    def __init__(self, target: Parser, folder: Path, cpu_seconds: float) -> None:
        self._target = target
        self._record = Record(folder / f"{target.name}.record", target.size_max)
        self._count = 0
        self._slowest_seconds = 0.0
        self._began = time.process_time()
        self._end = self._began + cpu_seconds if cpu_seconds else float("inf")
        self._parent = os.getppid()
        signal.signal(signal.SIGPROF, signal.SIG_DFL)

    def __call__(self, data: bytes) -> None:
        """Read one input."""
        self._record.begin(data)
        signal.setitimer(signal.ITIMER_PROF, HANG_CPU_SECONDS)
        begin = time.process_time()
        self._target.check(data)
        now = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, 0)
        self._count += 1
        is_slowest = now - begin > self._slowest_seconds
        self._slowest_seconds = max(self._slowest_seconds, now - begin)
        self._record.end(Progress(self._count, now - self._began, self._slowest_seconds))
        if is_slowest and now - begin > SLOW_SECONDS:
            self._measure_again(data)
        if now > self._end:
            os._exit(0)
        if self._count % _PARENT_EVERY_INPUTS == 0 and os.getppid() != self._parent:
            os._exit(0)  # nobody is left to keep the accounts

    def _measure_again(self, data: bytes) -> None:
        """Refuse an input that is too slow without instrumentation, too."""
        code = (
            "import sys; from tests.fuzzing.parsers import PARSERS, cpu_seconds_of; "
            "data = sys.stdin.buffer.read(); "
            f"parser = PARSERS[{self._target.name!r}]; parser.check(parser.seeds()[0]); "
            "print(cpu_seconds_of(parser, data))"
        )
        done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True)
        plain = float(done.stdout)
        from tests.fuzzing.parsers import CPU_SECONDS_MAX

        assert plain <= CPU_SECONDS_MAX, f"an input of {len(data)} bytes takes {plain:.2f} s"


if __name__ == "__main__":
    main(sys.argv[1:])
