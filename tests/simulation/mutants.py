"""`python -m tests.simulation.mutants`: break the code in known ways, and count the seeds that notice.

Each mutant is one replacement in one file of a copy of the repository. Seeds run until a rule is broken. A
mutant that survives shows a missing check; one whose text is not found is out of date.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("sluice", "datastream", "gateway", "publishers", "tests")
MUTANT_SECONDS_MAX = 1_800
"""600 seeds take a minute or two. The steps of a run are bounded, but a step may loop."""


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    path: str
    old: str
    new: str


def mutants() -> list[Mutant]:
    text = Path(__file__).with_suffix(".toml").read_text("utf-8")
    return [Mutant(**entry) for entry in tomllib.loads(text)["mutant"]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the mutants; 0 when seeds noticed each of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants", description=__doc__)
    parser.add_argument("--seeds", type=int, default=600, help="seeds for each mutant at most")
    parser.add_argument("--only", default="", help="mutants whose name has this in it")
    given = parser.parse_args(arguments)
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="sluice-mutants-") as folder:
        copy = Path(folder)
        for package in PACKAGES:
            shutil.copytree(
                ROOT / package, copy / package, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
            )
        for mutant in mutants():
            if given.only in mutant.name:
                noticed, text = _try(copy, mutant, given.seeds)
                survivors += not noticed
                sys.stdout.write(f"{mutant.name}: {text}\n")
                sys.stdout.flush()
    return 1 if survivors else 0


def _try(copy: Path, mutant: Mutant, seed_count: int) -> tuple[bool, str]:
    """Run seeds on a mutant; return whether they noticed it, and how."""
    path = copy / mutant.path
    original = path.read_text("utf-8")
    if original.count(mutant.old) == 0:
        return False, f"NOT APPLIED: its text is not in {mutant.path}"
    path.write_text(original.replace(mutant.old, mutant.new), "utf-8")
    try:
        command = [sys.executable, "-m", "tests.simulation", "--seeds", str(seed_count), "--trace", "0"]
        result = subprocess.run(
            command, cwd=copy, capture_output=True, text=True, check=False, timeout=MUTANT_SECONDS_MAX
        )
    except subprocess.TimeoutExpired:
        return False, f"DOES NOT END within {MUTANT_SECONDS_MAX} s: a seed loops without taking a step"
    finally:
        path.write_text(original, "utf-8")
    output = result.stdout + result.stderr
    rule = re.search(r"^rule: +(.*)$", output, re.MULTILINE)
    count = re.search(r"^(\d+) seeds,", output, re.MULTILINE)
    if rule is not None and count is not None:
        return True, f"{count[1]} seeds ({rule[1]})"
    if result.returncode and "Traceback" in output:
        return True, f"it does not run ({output.strip().splitlines()[-1]})"
    return False, f"SURVIVED {seed_count} seeds"


if __name__ == "__main__":
    sys.exit(main())
