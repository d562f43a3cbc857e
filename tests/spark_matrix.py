"""The Spark tests with other versions of Python and PySpark.

    python -m tests.spark_matrix --python python3.11 --python python3.13 --pyspark 4.2.0 --pyspark 4.3.0

Each pair gets an environment of its own below `build/matrix`, which is kept: a second run installs nothing.
The tests are those of the sources, the sink and the rows, a server of Spark Connect among them; `--tests`
names others. With `--here` they run in this environment alone. The exit status is 1 if a pair failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ("tests/publishers/spark", "tests/publishers/rows", "tests/publishers/job/test_job.py")


@dataclass(frozen=True)
class Cell:
    """One pair of versions."""

    python: str
    pyspark: str

    @property
    def folder(self) -> Path:
        """The folder of its environment."""
        return ROOT / "build" / "matrix" / f"{Path(self.python).name}-pyspark-{self.pyspark}"

    def prepare(self) -> Path:
        """Make the environment; return its interpreter. Raises CalledProcessError."""
        # The tests need Java, which `make test` looks for by itself.
        subprocess.run(
            ["make", f"PYTHON={self.python}", f"VENV={self.folder}", "setup"], cwd=ROOT, check=True
        )
        interpreter = self.folder / "bin" / "python"
        words = ["-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
        subprocess.run([interpreter, *words, f"pyspark[sql]=={self.pyspark}"], cwd=ROOT, check=True)
        return interpreter


def run_tests(interpreter: Path | str, tests: Sequence[str]) -> tuple[bool, str]:
    """Run the tests; return whether they passed, and their last line."""
    java = subprocess.run(["sh", "deploy/java.sh"], cwd=ROOT, capture_output=True, text=True, check=True)
    environment = {**os.environ, "JAVA_HOME": java.stdout.strip(), "PYSPARK_PYTHON": str(interpreter)}
    done = subprocess.run(
        [interpreter, "-m", "pytest", "--quiet", "--numprocesses", "2", "--dist", "loadfile", *tests],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.stdout.write(done.stdout[-20_000:] + done.stderr[-5_000:])
    lines = done.stdout.strip().splitlines() or [f"exit status {done.returncode}"]
    return done.returncode == 0, lines[-1].strip("= ")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark_matrix", description=__doc__.splitlines()[0])
    parser.add_argument("--python", action="append", help=f"an interpreter, repeatedly ({sys.executable})")
    parser.add_argument("--pyspark", action="append", help="a version, repeatedly (4.2.0 and 4.3.0)")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="files or folders of tests")
    parser.add_argument("--here", action="store_true", help="run them in this environment alone")
    options = parser.parse_args(arguments)
    cells = [
        Cell(python, pyspark)
        for python in options.python or [sys.executable]
        for pyspark in options.pyspark or ["4.2.0", "4.3.0"]
    ]
    failed = 0
    for cell in [None] if options.here else cells:
        started = time.monotonic()
        passed, said = False, "its environment cannot be made"
        try:
            passed, said = run_tests(cell.prepare() if cell else sys.executable, options.tests)
        except subprocess.CalledProcessError as error:
            said = f"{said}: {error}"
        failed += not passed
        name = f"{cell.python}, PySpark {cell.pyspark}" if cell else "this environment"
        seconds = time.monotonic() - started
        sys.stdout.write(f"{'passed' if passed else 'FAILED'}  {name}: {said} ({seconds:.0f} s)\n")
        sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
