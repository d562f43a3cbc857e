"""Fuzz every parser of foreign bytes, for hours, in slices.

    python -m tests.fuzzing [--minutes 60] [--slice-minutes 10] [--jobs 1] [--folder fuzzing] [NAME…]

A process (`tests.fuzzing.atheris_parsers`) fuzzes one parser for a slice of time; the next parser is the one
with the least time so far. The run ends when each parser has had this many minutes, including earlier runs in
the same folder, or when it is interrupted; the next run continues. Minutes are processor time, so a slow
machine fuzzes as much, later.

    FOLDER/hours.json     each parser's time and findings
    FOLDER/corpus/NAME    inputs that reach new code
    FOLDER/findings       inputs at which a parser failed: NAME-crash-…, NAME-oom-…, NAME-hang-…
    FOLDER/logs/NAME.log  libFuzzer's output of the last slice

A parser with a finding gets no further slice in this run, and the exit status is 1. To repeat a finding:
python -m tests.fuzzing --replay FOLDER/findings/NAME-crash-…
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Final

from tests.fuzzing.hours import Account, Hours
from tests.fuzzing.record import read_input, read_progress

__all__ = ["main"]

SAVE_SECONDS: Final = 10.0
"""The time between two saves: a killed run loses no more."""
_LOG_LINES: Final = 40


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz; return the exit status."""
    options = _options(arguments)
    try:
        has_atheris = find_spec("atheris") is not None
    except ValueError:  # a disabled module
        has_atheris = False
    if not has_atheris:
        sys.stderr.write("atheris is not installed: pip install 'sluice-gateway[fuzz]'\n")
        return 1
    from tests.fuzzing.parsers import PARSERS

    if options.replay is not None:
        return _replay(options.replay)
    for name in options.names:
        if name not in PARSERS:
            sys.stderr.write(f"no parser {name!r}; there are {', '.join(PARSERS)}\n")
            return 2
    signal.signal(signal.SIGTERM, _interrupt)
    with _locked(options.folder):
        return _Run(options, options.names or list(PARSERS)).run()


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzzing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="CPU time of each parser, in all (60)")
    parser.add_argument("--slice-minutes", type=float, default=10.0, help="CPU time of one go (10)")
    parser.add_argument("--runs", type=int, default=0, help="one slice of so many inputs for each instead")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time (1)")
    parser.add_argument("--folder", type=Path, default=Path("fuzzing"), help="what is kept (./fuzzing)")
    parser.add_argument(
        "--replay", type=Path, metavar="FILE", help="read one finding again, and nothing else"
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="parsers; none: all")
    return parser.parse_args(arguments)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder against a second run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "logs").mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"{folder}: another run is at work there")
        yield


@dataclass(slots=True)
class _Slice:
    """One running process."""

    name: str
    process: subprocess.Popen[bytes]
    before: Account
    """The parser's account before this slice."""


class _Run:
    """Starts slices, watches them, and keeps the accounts."""

    def __init__(self, options: argparse.Namespace, names: list[str]) -> None:
        self._folder: Path = options.folder.absolute()
        self._cpu_seconds = options.minutes * 60
        self._slice_seconds = options.slice_minutes * 60
        self._runs: int = options.runs
        self._jobs: int = max(1, options.jobs)
        self._names = names
        self._waiting = list(names)  # without a finding in this run, and not running
        self._slices: list[_Slice] = []
        self._hours = Hours(self._folder / "hours.json", names)
        self._found = False

    def run(self) -> int:
        """Fuzz until all have had their time; return the exit status."""
        saved = time.monotonic()
        try:
            while self._start_slices() or self._slices:
                time.sleep(0.2)
                for one in [one for one in self._slices if one.process.poll() is not None]:
                    self._finish(one)
                if time.monotonic() - saved > SAVE_SECONDS:
                    saved = time.monotonic()
                    self._save()
        except KeyboardInterrupt:
            _say("interrupted; another run goes on from here")
        finally:
            for one in self._slices:
                one.process.kill()
                one.process.wait()
            self._save()
        _say(*self._hours.table(self._names))
        return int(self._found)

    def _start_slices(self) -> bool:
        """Start further slices; return whether any started."""
        started = False
        while len(self._slices) < self._jobs:
            name = self._hours.next(self._waiting, float("inf") if self._runs else self._cpu_seconds)
            if name is None:
                break
            self._waiting.remove(name)
            self._slices.append(self._start(name))
            started = True
        return started

    def _start(self, name: str) -> _Slice:
        account = self._hours[name]
        command = [sys.executable, "-m", "tests.fuzzing.atheris_parsers", name, "--folder", str(self._folder)]
        if self._runs:
            command += ["--runs", str(self._runs)]
        else:
            seconds = min(self._slice_seconds, self._cpu_seconds - account.cpu_seconds)
            command += ["--cpu-seconds", str(seconds)]
            now = time.strftime("%H:%M:%S")
            _say(f"{now} {name}: has had {account.cpu_seconds / 60:.1f} min, {seconds:.0f} s more")
        self._record(name).unlink(missing_ok=True)
        with self._log(name).open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        return _Slice(name, process, account)

    def _finish(self, one: _Slice) -> None:
        """Record the result of a slice."""
        self._slices.remove(one)
        status, name = one.process.returncode, one.name
        progress, findings = read_progress(self._record(name)), []
        if status == 0:
            if not self._runs:
                self._waiting.append(name)
        else:
            findings = [self._finding(name, status)]
            self._found = True
            _say(f"{name}: FINDING: {findings[0]}", *self._log_lines(name)[-_LOG_LINES:])
        account = one.before.with_slice(progress, self._coverage(name), findings)
        self._hours[name] = account
        self._hours.save()
        _say(
            f"{name}: {progress.inputs} inputs in {progress.cpu_seconds:.0f} s, coverage "
            f"{self._coverage(name)}, slowest {progress.slowest_seconds:.2f} s (instrumented); "
            f"in all {account.cpu_seconds / 60:.1f} min, {account.inputs:,} inputs"
        )

    def _finding(self, name: str, status: int) -> str:
        """Describe how a process ended, and keep its input if it could not."""
        if status != -signal.SIGPROF:
            return f"exit status {status}, see findings and logs"
        data = read_input(self._record(name))
        path = self._folder / "findings" / f"{name}-hang-{hashlib.sha1(data).hexdigest()}"
        path.write_bytes(data)
        return f"hang, {path.name}"

    def _save(self) -> None:
        """Write the accounts, including the running slices."""
        for one in self._slices:
            progress = read_progress(self._record(one.name))
            self._hours[one.name] = one.before.with_slice(progress, self._coverage(one.name))
        self._hours.save()

    def _coverage(self, name: str) -> int:
        """Return the number of edges that libFuzzer reports."""
        words = next((line.split("cov: ") for line in reversed(self._log_lines(name)) if "cov: " in line), [])
        return int(words[1].split()[0]) if len(words) > 1 else 0

    def _log_lines(self, name: str) -> list[str]:
        return self._log(name).read_text(errors="replace").splitlines()

    def _log(self, name: str) -> Path:
        return self._folder / "logs" / f"{name}.log"

    def _record(self, name: str) -> Path:
        return self._folder / f"{name}.record"


def _replay(path: Path) -> int:
    """Parse one finding; raise, or print the time."""
    from tests.fuzzing.parsers import CPU_SECONDS_MAX, PARSERS, cpu_seconds_of

    names = [name for name in PARSERS if path.name.startswith(f"{name}-")]
    if not names:
        sys.stderr.write(f"{path}: the file's name does not begin with that of a parser\n")
        return 2
    parser = PARSERS[max(names, key=len)]
    parser.check(parser.seeds()[0])  # cached values
    seconds = cpu_seconds_of(parser, path.read_bytes())
    _say(f"{parser.name}: read in {seconds:.2f} s")
    return int(seconds > CPU_SECONDS_MAX)


def _say(*lines: str) -> None:
    for line in lines:
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
