"""`sluice demo` with real Spark, and as a process of its own that is ended in the middle."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from rich.console import Console

from sluice.gateway.commands.cli import main
from sluice.publishers.blocks.block_files import write_block_file
from sluice.publishers.blocks.block_places import NO_BLOCKS
from sluice.publishers.commands.demo import print_result
from sluice.publishers.demo.demo import DemoResult, PublisherResult
from sluice.publishers.sources.stream_reader import ReadTotals
from tests.nodes import make_blocks

STOP_SECONDS = 60
LONG = pytest.mark.skipif("SLUICE_LONG" not in os.environ, reason="a JVM more; SLUICE_LONG=1 runs it")


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


@pytest.mark.spark
@pytest.mark.usefixtures("spark_for_commands")
def test_it_runs_from_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "demo"
    status = main(["demo", "--folder", str(folder), "--blocks", "12", "--json"])
    said = capsys.readouterr()
    assert status == 0, said.err
    result = json.loads(said.out)
    assert result["good"] is True
    assert (result["blocks"], result["read"]["blocks"], result["read"]["differing"]) == (12, 12, 0)
    assert sum(one["won"] for one in result["publishers"]) == 12
    assert [one["acknowledged"] for one in result["publishers"]] == [12, 12, 12]
    assert result["verification_mode"] == "full"
    assert result["latency_p99_ns"] >= result["latency_median_ns"] > 0
    assert (folder / "node" / "datastream.bin").exists()
    assert processes_about(folder) == []


@pytest.mark.spark
@pytest.mark.usefixtures("java")
@pytest.mark.parametrize(
    ("moment", "number", "status"),
    [
        ("starting a node", signal.SIGINT, 130),
        ("starting a node", signal.SIGTERM, 128 + signal.SIGTERM),
        ("starting publishers", signal.SIGINT, 130),
        pytest.param("starting publishers", signal.SIGTERM, 128 + signal.SIGTERM, marks=LONG),
    ],
)
def test_ctrl_c_or_sigterm_to_all_its_processes_ends_it_cleanly(
    tmp_path: Path, moment: str, number: signal.Signals, status: int
) -> None:
    folder = tmp_path / "demo"
    with demo(folder, "--blocks", "50") as process:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line.strip())
            if said[-1] == moment:
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
    with demo(folder, "--blocks", "5") as process:
        assert process.stdout is not None
        assert any(line.strip() == "starting a node" for line in process.stdout)
        while not processes_about(folder / "node"):
            time.sleep(0.01)
        process.send_signal(number)
        status = process.wait(STOP_SECONDS)
    give_up_at = time.monotonic() + (STOP_SECONDS if number == signal.SIGKILL else 0)
    while processes_about(folder / "node") and time.monotonic() < give_up_at:
        time.sleep(0.1)  # nobody waits for the node of one that was killed
    left = processes_about(folder / "node")
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
    read=ReadTotals(entries=11, blocks=2, items=6, bytes=1234),
    publishers=(PublisherResult("publisher-1", 2, 0, 2, 1_500_000, None),),
    latency_median_ns=1_500_000,
    latency_p99_ns=None,
    publish_seconds=0.5,
    verification_mode="full",
    folder=FOLDER,
    source=FOLDER / "blocks",
)


def test_the_summary_is_plain_lines_when_piped(capsys: pytest.CaptureFixture[str]) -> None:
    print_result(Console(width=80, force_terminal=False), RESULT)
    assert capsys.readouterr().out.splitlines() == [
        "publisher    blocks won  skipped  acknowledged  sent",
        "publisher-1  2           0        2 of 2        1.5 MB",
        "",
        "blocks               0 to 1, each stored once",
        "items                6",
        "bytes of items       1,234",
        "verified             root hash, links and proof (mode full)",
        "published in         0.5 s, 4 blocks/s",
        "time to acknowledge  median 1.5 ms, p99 unknown",
        "TCP client           11 entries, 2 blocks: byte for byte what was published",
        f"stream file          {FOLDER}/node/datastream.bin",
        f"block files          {FOLDER}/blocks",
        f"log of the node      {FOLDER}/node.log",
        f"log of Spark         {FOLDER}/spark.log",
    ]


def test_the_summary_is_two_tables_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_result(Console(width=300, force_terminal=True, no_color=True), RESULT)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines if "publisher-1" in line] == ["publisher-1"]
    assert [line.split("│")[2].strip() for line in lines if "log of Spark" in line] == [f"{FOLDER}/spark.log"]


def test_a_narrow_terminal_cuts_nothing_off(capsys: pytest.CaptureFixture[str]) -> None:
    print_result(Console(width=40, force_terminal=True, no_color=True), RESULT)
    assert "…" not in capsys.readouterr().out


def test_what_failed_is_not_said_to_be_stored(capsys: pytest.CaptureFixture[str]) -> None:
    given_up = PublisherResult("publisher-1", 1, 0, 1, 1_500_000, "block 1 was not acknowledged within 120 s")
    result = dataclasses.replace(RESULT, read=ReadTotals(blocks=1), publishers=(given_up,))
    print_result(Console(width=80, force_terminal=False), result)
    assert "blocks               0 to 1\n" in capsys.readouterr().out


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
