"""Coverage-guided fuzzing of the parsers, with atheris (libFuzzer).

    python -m tests.fuzzing.atheris_parsers [--seconds 60] [--runs N] [--corpus FOLDER] [NAME…]

Each parser is fuzzed in a process of its own; all of them if none is named. A finding is an error that a
parser does not declare, an input that costs more than a second of processor time (measured again without the
instrumentation, which costs several times as much), or a hang; the input is then in a file `crash-…` or
`timeout-…` in the working folder, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

__all__ = ["main"]

SLOW_SECONDS: Final = 1.0
"""An instrumented run that takes longer is measured again without instrumentation."""
HANG_SECONDS: Final = 30
"""When libFuzzer gives an input up."""
MEMORY_MIB_MAX: Final = 2048


def main(arguments: Sequence[str]) -> int:
    """Fuzz; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing.atheris_parsers", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="time for each parser (60)")
    parser.add_argument("--runs", type=int, default=0, help="inputs for each parser instead of a time")
    parser.add_argument("--corpus", type=Path, help="folder that keeps what was found, one folder a parser")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args(arguments)
    try:
        has_atheris = find_spec("atheris") is not None
    except ValueError:  # a module that was made None
        has_atheris = False
    if not has_atheris:
        sys.stderr.write("atheris is not installed: pip install 'sluice-gateway[fuzz]'\n")
        return 1
    if options.child:
        _fuzz(options.names[0], options.seconds, options.runs, options.corpus)
        return 0
    from tests.fuzzing.parsers import PARSERS

    for name in options.names or PARSERS:
        if name not in PARSERS:
            parser.error(f"no parser {name!r}; there are {', '.join(PARSERS)}")
    statuses = [_run_child(name, options) for name in options.names or PARSERS]
    return int(any(statuses))


def _run_child(name: str, options: argparse.Namespace) -> int:
    """Fuzz one parser in a process of its own; print one line of what came of it."""
    with tempfile.TemporaryDirectory(prefix="sluice-fuzz-") as folder:
        corpus = (options.corpus or Path(folder)) / name
        corpus.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "tests.fuzzing.atheris_parsers", "--child", name]
        command += ["--seconds", str(options.seconds), "--runs", str(options.runs), "--corpus", str(corpus)]
        begin = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        seconds = time.monotonic() - begin
    output = (done.stdout + done.stderr).splitlines()
    found = next(
        (line for line in reversed(output) if line.startswith("stat::number_of_executed_units")), "0"
    )
    slowest = next(
        (line for line in reversed(output) if line.startswith("slowest ")), "slowest input < 10 ms"
    )
    covered = next((line.split("cov: ")[1].split()[0] for line in reversed(output) if "cov: " in line), "0")
    count = found.split()[-1]
    verdict = "no finding" if done.returncode == 0 else f"FINDING (exit status {done.returncode})"
    line = f"{name}: {count} inputs in {seconds:.0f} s, coverage {covered}, {slowest}: {verdict}"
    _say(line)
    if done.returncode:
        sys.stderr.write("\n".join([*output[-60:], ""]))
    return done.returncode


def _fuzz(name: str, seconds: int, runs: int, corpus: Path) -> None:
    """Fuzz one parser in this process, which libFuzzer ends."""
    import atheris

    with atheris.instrument_imports(include=["gateway", "datastream"]):
        from tests.fuzzing.parsers import CPU_SECONDS_MAX, PARSERS
    parser = PARSERS[name]
    for index, seed in enumerate(parser.seeds()):
        (corpus / f"seed-{index}").write_bytes(seed)
    slowest = 0.01

    def one_input(data: bytes) -> None:
        nonlocal slowest
        begin = time.process_time()
        parser.run(data)
        taken = time.process_time() - begin
        if taken > slowest:
            slowest = taken
            text = f"slowest input {taken:.2f} s (instrumented)"
            _say(text)
            if taken > SLOW_SECONDS:
                plain = _plain_seconds(name, data)
                _say(f"{text}, {plain:.2f} s plain")
                assert plain <= CPU_SECONDS_MAX, f"an input of {len(data)} bytes takes {plain:.2f} s"

    limit = f"-runs={runs}" if runs else f"-max_total_time={seconds}"
    arguments = [sys.argv[0], str(corpus), limit, f"-max_len={parser.size_max}", f"-timeout={HANG_SECONDS}"]
    arguments += [f"-rss_limit_mb={MEMORY_MIB_MAX}", "-print_final_stats=1", "-verbosity=1"]
    atheris.Setup(arguments, one_input)
    atheris.Fuzz()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _plain_seconds(name: str, data: bytes) -> float:
    """Measure an input in a process without instrumentation."""
    code = (
        "import sys; from tests.fuzzing.parsers import PARSERS, cpu_seconds_of; "
        "data = sys.stdin.buffer.read(); "
        f"parser = PARSERS[{name!r}]; parser.run(parser.seeds()[0]); print(cpu_seconds_of(parser, data))"
    )
    done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True)
    return float(done.stdout)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
