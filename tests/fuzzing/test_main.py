"""Tests of `python -m tests.fuzzing`: hours add up, and each kind of failure is a finding."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.fuzzing.hours import Account, Hours
from tests.fuzzing.record import Progress, Record, read_input, read_progress

ROOT = Path(__file__).resolve().parents[2]
needs_atheris = pytest.mark.skipif(find_spec("atheris") is None, reason="needs the extra fuzz")

# Fuzzes a parser made for the test, in place of `item`.
CHILD = """
import os, sys, time
from tests.fuzzing import atheris_parsers, parsers

def run(data):
    {body}

parsers.PARSERS["item"] = parsers.Parser("item", run, lambda: [b"seed"], 64)
atheris_parsers.HANG_CPU_SECONDS = 0.3
atheris_parsers.main(["item", "--folder", sys.argv[1], "--runs", "20"])
"""


def child(folder: Path, body: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-c", CHILD.format(body=body), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)


def fuzzing(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.fuzzing", "--folder", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=240, check=False)


# --- the command --------------------------------------------------------------------------------------------


@needs_atheris
def test_inputs_add_up_over_runs(tmp_path: Path) -> None:
    done = fuzzing(tmp_path, "--runs", "200", "--jobs", "2", "state-proof", "item")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "state-proof: 200 inputs in " in done.stdout
    before = json.loads((tmp_path / "hours.json").read_text())
    assert [before[name]["inputs"] for name in ("state-proof", "item")] == [200, 200]
    assert before["item"]["coverage"] > 0
    done = fuzzing(tmp_path, "--minutes", str((before["item"]["cpu_seconds"] + 0.5) / 60), "item")
    assert done.returncode == 0, done.stdout + done.stderr
    after = json.loads((tmp_path / "hours.json").read_text())
    assert after["item"]["inputs"] > 200
    assert before["item"]["cpu_seconds"] + 0.5 <= after["item"]["cpu_seconds"]
    assert after["state-proof"] == before["state-proof"]
    assert len(list((tmp_path / "corpus" / "item").iterdir())) > 2
    done = fuzzing(tmp_path, "--minutes", "0.001", "item")  # done
    assert json.loads((tmp_path / "hours.json").read_text()) == after


def test_what_cannot_be_done_is_said(tmp_path: Path) -> None:
    done = fuzzing(tmp_path, "no-such")
    if find_spec("atheris") is None:
        assert done.returncode == 1
        return
    assert done.returncode == 2
    assert done.stderr.startswith("no parser 'no-such'; there are block, item, ")
    done = fuzzing(tmp_path, "--replay", str(tmp_path / "crash-1"))
    assert done.returncode == 2
    assert done.stderr.endswith("crash-1: the file's name does not begin with that of a parser\n")


@needs_atheris
def test_a_finding_is_read_again(tmp_path: Path) -> None:
    finding = tmp_path / "proof-item-crash-1"
    finding.write_bytes(b"\x4a\x00")
    done = fuzzing(tmp_path, "--replay", str(finding))
    assert done.returncode == 0
    assert done.stdout.startswith("proof-item: read in 0.")


def test_the_fuzzer_says_what_it_needs() -> None:
    code = (
        "import sys; sys.modules['atheris'] = None; "
        "from tests.fuzzing.__main__ import main; sys.exit(main(['--runs', '1', 'state-proof']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 1
    assert done.stderr == "atheris is not installed: pip install 'sluice-gateway[fuzz]'\n"


# --- one parser ---------------------------------------------------------------------------------------------


@needs_atheris
def test_an_error_ends_it_and_keeps_the_input(tmp_path: Path) -> None:
    done = child(tmp_path, "assert data != b'seed', 'this one'")
    assert done.returncode not in (0, -signal.SIGPROF)
    assert "this one" in done.stdout + done.stderr
    (finding,) = (tmp_path / "findings").iterdir()
    assert finding.name.startswith("item-crash-")
    assert finding.read_bytes() == b"seed"


@needs_atheris
def test_a_hang_ends_it_even_where_no_signal_handler_runs(tmp_path: Path) -> None:
    """Within one multiplication of huge numbers."""
    done = child(tmp_path, "data == b'seed' and pow(3, 1 << 26)")
    assert done.returncode == -signal.SIGPROF
    assert read_input(tmp_path / "item.record") == b"seed"


@needs_atheris
def test_a_process_that_is_stopped_does_not_hang(tmp_path: Path) -> None:
    """Only processor time counts."""
    done = child(tmp_path, "data == b'seed' and time.sleep(1)")
    assert done.returncode == 0, done.stderr
    progress = read_progress(tmp_path / "item.record")
    assert progress.inputs == 20
    assert progress.slowest_seconds < 0.3


# --- records and accounts -----------------------------------------------------------------------------------


def test_a_record_tells_progress_and_the_last_input(tmp_path: Path) -> None:
    path = tmp_path / "record"
    assert read_progress(path) == Progress()
    assert read_input(path) == b""
    record = Record(path, 8)
    record.begin(b"longer")
    record.end(Progress(1, 0.5, 0.25))
    record.begin(b"last")
    assert read_progress(path) == Progress(1, 0.5, 0.25)
    assert read_input(path) == b"last"


def test_slices_add_up_in_an_account() -> None:
    account = Account().with_slice(Progress(10, 60.0, 0.5), 7).with_slice(Progress(5, 30.0, 0.1), 3, ["hang"])
    assert account == Account(90.0, 15, 7, 0.5, ["hang"])


def test_whoever_has_had_least_is_next(tmp_path: Path) -> None:
    hours = Hours(tmp_path / "hours.json", ["a", "b", "c"])
    assert hours.next(["a", "b"], 60.0) == "a"
    hours["a"] = Account(cpu_seconds=30.0, inputs=3)
    assert hours.next(["a", "b"], 60.0) == "b"
    hours["b"] = Account(cpu_seconds=60.0)
    assert hours.next(["a", "b"], 60.0) == "a"
    assert hours.next(["b"], 60.0) is None
    hours.save()
    again = Hours(tmp_path / "hours.json", ["a", "d"])
    assert again["a"] == Account(cpu_seconds=30.0, inputs=3)
    assert again["d"] == Account()
    again.save()
    assert Hours(tmp_path / "hours.json", [])["b"] == Account(cpu_seconds=60.0)
    lines = again.table(["a", "d"])
    assert lines[1].split() == ["a", "0.5", "3", "0", "0.00", "s", "none"]
