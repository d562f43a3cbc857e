"""`sluice demo` with and without Spark, and as a process of its own that is ended in the middle."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sluice.gateway.commands.cli import main
from sluice.publishers.blocks.block_files import write_block_file
from sluice.publishers.blocks.block_places import NO_BLOCKS
from sluice.publishers.commands.demo import print_result
from sluice.publishers.demo.demo import DemoClaim, DemoResult
from sluice.publishers.demo.reading import ReadTotals
from sluice.publishers.report import PublishReport
from tests.nodes import make_blocks
from tests.serving import sluice

STOP_SECONDS = 60


def demo(folder: Path, *words: str) -> subprocess.Popen[str]:
    """Start the demo in `folder`; it and its children are a process group, as a shell makes one."""
    return subprocess.Popen(
        [sys.executable, "-m", "sluice.gateway.commands.cli", "demo", "--folder", str(folder), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def processes_about(folder: Path) -> list[int]:
    """Processes that have the folder on their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if os.fsencode(folder) in words:
                found.append(int(entry.name))
    return found


CLAIMS = [
    *("acknowledged", "lost", "repeated", "out of order", "changed", "identical"),
    *("race", "skip", "resend", "hang", "bad-proof", "repeat", "failover"),
]


def check_result(result: dict[str, Any], folder: Path, count: int) -> None:
    """Check what --json says of a good run; the demo has checked its claims itself."""
    assert [claim["name"] for claim in result["claims"]] == CLAIMS
    assert [claim["said"] for claim in result["claims"] if not claim["holds"]] == []
    assert result["good"] is True
    assert result["blocks"] == count
    assert {name: read["blocks"] for name, read in result["readers"].items()} == {
        "TCP reader": count,
        "gRPC reader": count,
    }
    assert result["verification_mode"] == "full"
    assert result["latency_p99_ns"] >= result["latency_median_ns"] > 0
    streams = [(folder / f"node-{at}" / "datastream.bin").read_bytes() for at in (1, 2, 3)]
    assert len({hashlib.sha256(stream).digest() for stream in streams}) == 1
    assert processes_about(folder) == []


@pytest.mark.slow
def test_its_nodes_run_on_until_ctrl_c_and_can_be_read_as_it_says(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    with demo(folder, "--quick", "--blocks", "60", "--stay") as process:
        try:
            assert process.stdout is not None
            said: list[str] = []
            for line in process.stdout:
                said.append(line)
                if "python -c" in line:
                    break
            commands = said[-3:]
            assert "The nodes run until Ctrl-C" in said[-4], "".join(said)
            words = commands[0].split()
            assert words[:3] == ["sluice", "block", "latest"]
            block = sluice(*words[1:], "--json")
            assert (block.returncode, json.loads(block.stdout)["number"]) == (0, 59), block.stderr
            roles = [re.search(r"(node-\d) is (\w+): (http://\S+)", line) for line in said]
            told = [found.groups() for found in roles if found is not None][-3:]
            assert sorted(role for _, role, _ in told) == ["active", "standby", "standby"]
            assert told[0][:2] == ("node-1", "standby")  # the demo has killed it, and another one took over
            for _, role, page in told:
                with urllib.request.urlopen(f"{page}/status.json") as answer:
                    assert json.load(answer)["phase"] == role
            code = commands[2].partition('-c "')[2].rpartition('"')[0]
            entry = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
            assert entry.stdout.startswith("Entry(")
            process.send_signal(signal.SIGINT)
            assert process.wait(STOP_SECONDS) == 0
        finally:
            process.kill()
    assert processes_about(folder) == []


def test_it_runs_from_end_to_end_without_spark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "demo"
    status = main(["demo", "--folder", str(folder), "--quick", "--blocks", "120", "--rate", "10", "--json"])
    said = capsys.readouterr()
    assert status == 0, said.err
    check_result(json.loads(said.out), folder, 120)


@pytest.mark.slow
def test_other_blocks_are_checked_by_hash_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A block with a wrong proof would be stored: that step is left out."""
    source, folder = tmp_path / "source", tmp_path / "demo"
    source.mkdir()
    for block in make_blocks(120):
        write_block_file(source / f"{block.number}.blk", block)
    status = main(
        ["demo", "--folder", str(folder), "--quick", "--rate", "10", "--source", str(source), "--json"]
    )
    said = capsys.readouterr()
    assert status == 0, said.err
    result = json.loads(said.out)
    assert [claim["name"] for claim in result["claims"]] == [name for name in CLAIMS if name != "bad-proof"]
    assert result["verification_mode"] == "hash"


def test_without_java_it_says_so_before_it_starts_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "demo"
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    done = sluice("demo", "--folder", folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("sluice: Spark needs Java 17: JAVA_HOME")
    assert done.stderr.endswith("; `sluice demo --quick` needs no Spark\n")
    assert not folder.exists()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark_for_commands")
def test_it_runs_from_end_to_end_with_spark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "demo"
    status = main(["demo", "--folder", str(folder), "--blocks", "120", "--rate", "10", "--json"])
    said = capsys.readouterr()
    assert status == 0, said.err
    check_result(json.loads(said.out), folder, 120)


@pytest.mark.parametrize(
    ("moment", "number", "status"),
    [
        pytest.param("starting nodes", signal.SIGINT, 130, marks=pytest.mark.slow),
        ("starting nodes", signal.SIGTERM, 128 + signal.SIGTERM),
        ("publishing", signal.SIGINT, 130),
        pytest.param("publishing", signal.SIGTERM, 128 + signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_or_sigterm_to_all_its_processes_ends_it_cleanly(
    tmp_path: Path, moment: str, number: signal.Signals, status: int
) -> None:
    check_end(tmp_path / "demo", ("--quick",), moment, number, status)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("java")
def test_ctrl_c_while_spark_starts_ends_it_cleanly(tmp_path: Path) -> None:
    check_end(tmp_path / "demo", (), "starting Spark", signal.SIGINT, 130)


def check_end(folder: Path, words: tuple[str, ...], moment: str, number: signal.Signals, status: int) -> None:
    with demo(folder, *words, "--blocks", "100") as process:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line.strip())
            if said[-1].endswith(f" s  {moment}"):
                break
        time.sleep(0.5)  # somewhere in the middle of the step
        os.killpg(process.pid, number)
        rest = process.stdout.read()
        assert process.wait(STOP_SECONDS) == status, (said, rest)
    assert "Traceback" not in rest
    assert processes_about(folder) == []


@pytest.mark.parametrize(
    ("number", "expected"), [(signal.SIGHUP, 128 + signal.SIGHUP), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_terminal_that_is_closed_or_kill_9_leaves_no_node(
    tmp_path: Path, number: signal.Signals, expected: int
) -> None:
    folder = tmp_path / "demo"
    with demo(folder, "--quick", "--blocks", "5") as process:
        assert process.stdout is not None
        assert any(line.strip().endswith("starting nodes") for line in process.stdout)
        while not processes_about(folder / "node-1"):
            time.sleep(0.01)
        process.send_signal(number)
        status = process.wait(STOP_SECONDS)
    give_up_at = time.monotonic() + (STOP_SECONDS if number == signal.SIGKILL else 0)
    while processes_about(folder) and time.monotonic() < give_up_at:
        time.sleep(0.1)  # nobody waits for the nodes of one that was killed
    left = processes_about(folder)
    for process_id in left:
        os.kill(process_id, signal.SIGKILL)
    assert (status, left) == (expected, [])


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "precious").touch()
    assert main(["demo", "--folder", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"sluice demo: Invalid value for --folder: {tmp_path} is not empty (see: sluice demo --help)\n"
    )


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "loop").symlink_to("nowhere")
    folder = tmp_path / "loop"
    assert main(["demo", "--folder", str(folder)]) == 2
    assert capsys.readouterr().err == (
        f"sluice demo: Invalid value for --folder: {folder} cannot be made: File exists "
        "(see: sluice demo --help)\n"
    )


def test_a_ledger_key_goes_with_a_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--ledger-key", "ed25519:00"]) == 2
    assert "--ledger-key goes with --source" in capsys.readouterr().err


def test_a_source_that_cannot_be_published_leaves_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, made = tmp_path / "source", tmp_path / "temporary"
    source.mkdir()
    made.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    assert main(["demo", "--source", str(source)]) == 1
    assert capsys.readouterr().err == f"sluice: {source}: {NO_BLOCKS}\n"
    blocks = make_blocks(3)
    for block in (blocks[0], blocks[2]):
        write_block_file(source / f"{block.number}.blk", block)
    assert main(["demo", "--source", str(source)]) == 1
    assert "block 1 is missing" in capsys.readouterr().err
    write_block_file(source / "1.blk", blocks[1])
    for key in ("ed25519:00", f"tss:{tmp_path / 'none'}"):
        assert main(["demo", "--source", str(source), "--ledger-key", key]) != 0
        assert "sluice: ledger key " in capsys.readouterr().err
    assert not list(made.iterdir())


FOLDER = Path("/very/long/" + 20 * "folder/" + "[bold]")
RESULT = DemoResult(
    first_block=0,
    last_block=1,
    publishers=(
        PublishReport("publisher-1", blocks=2, won=2, acknowledged=2, reconnects=1, bytes_sent=1_500_000),
    ),
    readers={"TCP reader": ReadTotals(entries=11, blocks=2, items=6, bytes=1234)},
    claims=(DemoClaim("lost", True, "0 blocks lost by 2 readers"), DemoClaim("skip", False, "0 times")),
    latency_median_ns=1_500_000,
    latency_p99_ns=None,
    publish_seconds=0.5,
    verification_mode="full",
    folder=FOLDER,
    source=FOLDER / "blocks",
    active_node=1,
)


def test_the_summary_is_plain_lines_when_piped(capsys: pytest.CaptureFixture[str]) -> None:
    print_result(Console(width=80, force_terminal=False), RESULT)
    assert capsys.readouterr().out.splitlines() == [
        "",
        "publisher    won  skipped  resent  streams  stored  sent",
        "publisher-1  2    0        0       2        2 of 2  1.5 MB",
        "",
        "blocks               0 to 1",
        "items                6, 1,234 bytes",
        "verified             root hash, links and proof (mode full)",
        "published in         0.5 s, 4 blocks/s",
        "time to acknowledge  median 1.5 ms, p99 unknown",
        f"block files          {FOLDER}/blocks",
        f"streams and logs     {FOLDER}",
        "",
        "holds  lost  0 blocks lost by 2 readers",
        "FAILS  skip  0 times",
    ]


def test_the_summary_is_tables_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_result(Console(width=300, force_terminal=True, no_color=True), RESULT)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines if "publisher-1" in line] == ["publisher-1"]
    assert [line.split("│")[2].strip() for line in lines if "streams and logs" in line] == [str(FOLDER)]


def test_a_narrow_terminal_cuts_nothing_off(capsys: pytest.CaptureFixture[str]) -> None:
    print_result(Console(width=40, force_terminal=True, no_color=True), RESULT)
    assert "…" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--item-bytes", "-5"), "--item-bytes: got -5, expected 256 to 131070960"),
        (("--rate", "nan"), "--rate: nan is no number of blocks a second"),
        (("--rate", "inf"), "--rate: inf is no number of blocks a second"),
    ],
)
def test_what_cannot_be_is_refused_before_there_is_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    folder = tmp_path / "demo"
    assert main(["demo", "--folder", str(folder), *words]) != 0
    assert said in capsys.readouterr().err
    assert not folder.exists()
