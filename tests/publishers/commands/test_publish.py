"""`sluice publish`, with Spark left out: what is asked of it, and what is said at the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from publishers.block_files import write_block_file
from publishers.commands import publish as module
from publishers.commands.publish import command, report_lines, report_table
from publishers.errors import BlockListError, SparkUnavailable
from publishers.job import Failure, JobReport
from publishers.maker import BlockMaker, key_of_seed
from publishers.report import PublishReport

PUBLISHED = PublishReport(
    "publisher-1",
    blocks=2,
    won=1,
    skipped=1,
    acknowledged=2,
    latency_ns=(2_000_000, 4_000_000),
    safe_through=1,
)
GOOD = JobReport(0, 1, (PUBLISHED,), (), 1.25)
BAD = JobReport(0, 1, (PUBLISHED,), (Failure("publisher-2", "block 1 was refused"),), 1.25)


class FakeSession:
    """A session that only knows whether it was stopped."""

    def __init__(self) -> None:
        self.is_stopped = False

    def stop(self) -> None:
        self.is_stopped = True


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    folder = tmp_path / "chain"
    folder.mkdir()
    for block in BlockMaker(1, key_of_seed(1)).blocks(2):
        write_block_file(folder / f"{block.number}.blk", block)
    return folder


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the command asked of Spark and of the job; `report` is what the job answers."""
    made: dict[str, Any] = {"report": GOOD, "session": FakeSession()}

    def build_session(*values: object, **named: object) -> FakeSession:
        made["build_session"] = (values, named)
        session = made["session"]
        assert isinstance(session, FakeSession)
        return session

    def publish(*values: object, **named: object) -> JobReport:
        made["publish"] = (values, named)
        report = made["report"]
        if isinstance(report, BaseException):
            raise report
        assert isinstance(report, JobReport)
        return report

    monkeypatch.setattr(module, "build_session", build_session)
    monkeypatch.setattr(module, "publish", publish)
    return made


def run(*words: str) -> Result:
    return CliRunner().invoke(command, words, standalone_mode=False)


def test_options_reach_spark_and_the_job(chain: Path, calls: dict[str, Any]) -> None:
    gateways = ("--gateway", "a:1,b:2", "--gateway", "[::1]:3,a:1")
    words = (
        "--publishers",
        "3",
        "--publisher-id",
        "x",
        "--deadline",
        "9",
        "--reset-interval",
        "60",
        "--master",
        "local[2]",
    )
    result = run("--source", str(chain), *gateways, *words)
    assert result.return_value == 0
    assert calls["build_session"][0] == ("local[2]", 3)
    values, named = calls["publish"]
    assert values[1:] == (chain, ("a:1", "b:2", "[::1]:3"), 3)
    assert (named["publisher_prefix"], named["deadline_seconds"]) == ("x", 9)
    assert named["reset_interval_seconds"] == 60
    assert calls["session"].is_stopped


def test_plain_lines_when_piped(chain: Path, calls: dict[str, Any]) -> None:
    result = run("--source", str(chain), "--gateway", "a:1")
    summary, publisher = result.stdout.splitlines()
    assert summary == "blocks 0 to 1: stored, 1.2 s"
    assert publisher == (
        "publisher-1: blocks 2, won 1, skipped 1, acknowledged 2, stored before 0, resent 0, reconnects 0, "
        "ack median 2.0 ms, ack p99 4.0 ms"
    )


def test_a_failure_is_one_line_each_and_exit_1(chain: Path, calls: dict[str, Any]) -> None:
    calls["report"] = BAD
    result = run("--source", str(chain), "--gateway", "a:1")
    assert result.return_value == 1
    assert result.stdout.splitlines()[0] == "blocks 0 to 1: not all stored as far as is known, 1.2 s"
    assert result.stderr == "sluice: publisher publisher-2 failed: block 1 was refused\n"


def test_json(chain: Path, calls: dict[str, Any]) -> None:
    calls["report"] = BAD
    result = run("--source", str(chain), "--gateway", "a:1", "--json")
    said = json.loads(result.stdout)
    assert said["complete"] is False
    assert said["failures"] == [{"publisher_id": "publisher-2", "reason": "block 1 was refused"}]
    (published,) = said["publishers"]
    assert (published["won"], published["latency_p50_ns"], published["latency_p99_ns"]) == (1, 2e6, 4e6)
    assert "latency_ns" not in published


def test_a_table_on_a_terminal() -> None:
    console = Console(width=120, record=True, file=None, force_terminal=False)
    with console.capture() as capture:
        console.print(report_table(GOOD))
    text = capture.get()
    assert "blocks 0 to 1: stored, 1.2 s" in text
    assert "publisher-1" in text
    assert "4.0 ms" in text
    assert report_lines(JobReport(5, 5, (), (), 0))[0] == "block 5: stored, 0.0 s"


def test_the_session_is_stopped_when_the_job_is_interrupted(chain: Path, calls: dict[str, Any]) -> None:
    calls["report"] = KeyboardInterrupt()
    result = run("--source", str(chain), "--gateway", "a:1")
    assert result.exit_code != 0
    assert calls["session"].is_stopped


def test_a_gap_is_said_before_spark_starts(chain: Path, calls: dict[str, Any]) -> None:
    (chain / "1.blk").rename(chain / "5.blk")
    result = run("--source", str(chain), "--gateway", "a:1")
    assert isinstance(result.exception, BlockListError)
    assert str(result.exception) == f"{chain}: blocks 1 to 4 are missing (before 5.blk)"
    assert "build_session" not in calls


def test_no_java_is_said(chain: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    result = run("--source", str(chain), "--gateway", "a:1")
    assert isinstance(result.exception, SparkUnavailable)


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--gateway", "a:1"),
        ("--gateway", "a", "--source", "."),
        ("--gateway", "a:1", "--source", ".", "--publishers", "65"),
        ("--gateway", "a:1", "--source", ".", "--deadline", "0"),
        ("--gateway", "a:1", "--source", "no-such-folder"),
    ],
)
def test_wrong_use_is_exit_2(words: tuple[str, ...]) -> None:
    assert CliRunner().invoke(command, words).exit_code == 2
