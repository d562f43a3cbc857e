"""`sluice publish`, with Spark left out: what is asked of it, and what is said at the end.

With Spark, as processes: tests/interop/test_publish_command.py.
"""

from __future__ import annotations

import json
import shlex
import signal
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from sluice.gateway.errors import KeyFileError
from sluice.publishers.blocks.block_files import write_block_file
from sluice.publishers.blocks.maker import BlockMaker, key_of_seed
from sluice.publishers.blocks.signing_key import KeyPlace
from sluice.publishers.commands import publish as module
from sluice.publishers.commands.publish import (
    PUBLISHERS_MAX,
    SHARDS_MAX,
    command,
    command_line,
    program_words,
)
from sluice.publishers.errors import BlockListError, CheckpointError, SparkUnavailable
from sluice.publishers.number_range import NumberRange
from sluice.publishers.report import JobFailure, JobReport, PublishReport
from sluice.publishers.spark.session import is_submitted
from sluice.publishers.spark.sink_options import PUBLISHER_ID_CHARS_MAX

PUBLISHED = PublishReport("publisher-1", blocks=2, won=1, acknowledged=2, safe_through=1)
GOOD = JobReport(0, 1, (PUBLISHED,), (), 1.25)


NETWORK = ("--gateway", "a:1", "--source", "server:b:1", "--sign", "env:KEY")


def quote(path: Path) -> str:
    """The path as a word for a shell."""
    return shlex.quote(str(path))


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
    monkeypatch.setattr(module, "leave_signals_to_python", lambda session: None)
    monkeypatch.setattr(module, "publish", publish)
    monkeypatch.setattr(module, "publish_locally", publish)
    monkeypatch.setattr(module, "_say_if_none_takes_blocks", lambda *_: None)  # nobody does
    return made


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(command, [str(word) for word in words], standalone_mode=False)


def test_options_reach_spark_and_the_job(chain: Path, calls: dict[str, Any]) -> None:
    words = (
        *("--source", chain, "--from", "0", "--to", "1", "--publishers", "3", "--shards", "2"),
        *("--gateway", "a:1/1,b:2/1", "--gateway", "[::1]:3"),
        *("--publisher-id", "x", "--deadline", "9", "--reset-interval", "60", "--rate", "5"),
        *(
            "--master",
            "local[2]",
            "--conf",
            "spark.a=b=c",
            "--sink-option",
            "Race=2",
            "--option",
            "mode=failfast",
        ),
    )
    result = run(*words)
    assert (result.return_value, result.exception) == (0, None)
    values, named = calls["build_session"]
    assert values == ("local[2]", 6, "sluice publish")
    assert named["settings"] == {"spark.a": "b=c"}
    values, named = calls["publish"]
    assert str(values[1]) == f"blockfiles:{chain}"
    assert values[1].options == {"mode": "failfast"}
    assert values[2:] == (("a:1/1", "b:2/1", "[::1]:3"), 3)
    assert (named["numbers"], named["shards"], named["publisher_prefix"]) == (NumberRange(0, 2), 2, "x")
    assert named["sink_options"] == {
        "race": "2",
        "deadline_seconds": "9.0",
        "reset_interval_seconds": "60.0",
        "blocks_per_second": "5.0",
    }
    assert (named["key"], named["checkpoint"], named["tls"]) == (None, None, None)
    assert calls["session"].is_stopped


def test_a_former_name_of_a_sink_option_is_taken_with_a_warning(chain: Path, calls: dict[str, Any]) -> None:
    words = ("--source", chain, "--gateway", "a:1", "--sink-option", "turn_seconds=5")
    with pytest.warns(FutureWarning, match="option 'turn_seconds' is now 'part_order_seconds'"):
        assert run(*words).return_value == 0
    assert calls["publish"][1]["sink_options"] == {"part_order_seconds": "5"}


def test_plain_lines_when_piped(chain: Path, calls: dict[str, Any]) -> None:
    result = run("--source", chain, "--gateway", "a:1")
    summary, publisher = result.stdout.splitlines()
    assert summary == "blocks 0 to 1: stored, safe_through 1, 0.0 blocks_per_second, 1.2 s"
    assert publisher.startswith("publisher-1: blocks 2, won 1, ")
    assert result.stderr == ""


def test_a_failure_is_one_line_each_and_says_how_to_go_on(chain: Path, calls: dict[str, Any]) -> None:
    calls["report"] = JobReport(0, 9, (PUBLISHED,), (JobFailure("publisher-2", "block 2 was refused"),), 1.25)
    result = run("--source", chain, "--gateway", "a:1")
    assert result.return_value == 1
    assert result.stderr.splitlines() == [
        "sluice: publisher publisher-2 failed: block 2 was refused",
        "sluice: blocks up to 1 are stored. Go on with:",
        f"sluice publish --source {quote(chain)} --gateway a:1 --from 2",
    ]
    calls["report"] = JobReport(0, 9, (), (JobFailure("publisher-1", "no gateway"),), 1.25)
    result = run("--source", chain, "--gateway", "a:1", "--from=0")
    assert result.stderr.splitlines()[1:] == [
        "sluice: no block is known to be stored. Go on with:",
        f"sluice publish --source {quote(chain)} --gateway a:1 --from=0",
    ]


@pytest.mark.parametrize(("stored", "more"), [(19, ""), (29, ""), (30, " --from 31")])
def test_it_goes_on_with_a_block_that_the_source_has(
    chain: Path, calls: dict[str, Any], stored: int, more: str
) -> None:
    """What is stored may end before the source begins: somebody else has yet to publish what is between."""
    publisher = PublishReport("publisher-1", safe_through=stored)
    calls["report"] = JobReport(30, 99, (publisher,), (), 1.25, is_interrupted=True)
    result = run("--source", chain, "--gateway", "a:1")
    assert result.stderr.splitlines()[-1] == f"sluice publish --source {quote(chain)} --gateway a:1{more}"


def test_one_of_several_that_failed_leaves_nothing_to_do(chain: Path, calls: dict[str, Any]) -> None:
    calls["report"] = JobReport(0, 1, (PUBLISHED,), (JobFailure("publisher-2", "refused\x1b[2J"),), 1.25)
    result = run("--source", chain, "--gateway", "a:1")
    assert (result.return_value, result.stderr) == (
        1,
        "sluice: publisher publisher-2 failed: refused\\x1b[2J\n",
    )


def test_json(chain: Path, calls: dict[str, Any]) -> None:
    calls["report"] = JobReport(0, 9, (PUBLISHED,), (), 1.25, is_interrupted=True)
    result = run("--source", chain, "--gateway", "a:1", "--json")
    said = json.loads(result.stdout)
    assert (said["complete"], said["interrupted"], said["safe_through"]) == (False, True, 1)
    assert said["go_on"] == f"sluice publish --source {quote(chain)} --gateway a:1 --json --from 2"
    assert result.return_value == 130


def test_an_interrupt_before_the_jobs_is_130_and_stops_spark(chain: Path, calls: dict[str, Any]) -> None:
    calls["report"] = KeyboardInterrupt()
    result = run("--source", chain, "--gateway", "a:1", "--engine", "spark")
    assert result.return_value == 130
    assert result.stderr == (
        "sluice: interrupted. Go on with:\n"
        f"sluice publish --source {quote(chain)} --gateway a:1 --engine spark\n"
    )
    assert calls["session"].is_stopped


def test_an_interrupt_that_spark_makes_an_error_of_is_an_interrupt(
    chain: Path, calls: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def publish(*values: object, **named: object) -> JobReport:
        try:
            for _ in range(2):  # the first one asks
                signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt as error:
            raise RuntimeError("Gateway must be connected to send cancel cmd.") from error
        raise AssertionError("unreachable: the second signal raises")

    monkeypatch.setattr(module, "publish", publish)
    result = run("--source", chain, "--gateway", "a:1", "--engine", "spark")
    assert result.return_value == 130
    assert result.stderr == (
        "sluice: interrupted; what was acknowledged is stored. Go on with:\n"
        f"sluice publish --source {quote(chain)} --gateway a:1 --engine spark\n"
    )
    assert calls["session"].is_stopped


def test_what_can_be_known_is_said_before_spark_starts(
    chain: Path, tmp_path: Path, calls: dict[str, Any]
) -> None:
    words = ("--source", chain, "--gateway", "a:1")
    result = run(*words, "--from", "5")
    assert str(result.exception) == f"blockfiles:{chain}: block 5 is not there; the first is 0 and the last 1"
    result = run(*words, "--sign", tmp_path / "no.key")
    assert isinstance(result.exception, KeyFileError)
    assert str(tmp_path / "no.key") in str(result.exception)
    (tmp_path / "state" / "offsets").mkdir(parents=True)
    result = run(*words, "--follow", "--checkpoint", tmp_path / "state")
    assert isinstance(result.exception, CheckpointError)
    (chain / "1.blk").rename(chain / "5.blk")
    result = run(*words)
    assert isinstance(result.exception, BlockListError)
    assert str(result.exception) == f"{chain}: blocks 1 to 4 are missing (before 5.blk)"
    assert "build_session" not in calls


def test_a_checkpoint_is_held_while_it_follows(chain: Path, tmp_path: Path, calls: dict[str, Any]) -> None:
    state = tmp_path / "state"
    calls["report"] = JobReport(0, 1, (PUBLISHED,), (), 1.25, is_interrupted=True)
    url = run("--source", chain, "--gateway", "a:1", "--follow", "--checkpoint", state.as_uri())
    assert url.exception is None
    assert calls["publish"][1]["checkpoint"].of("publisher-1") == str(state / "publisher-1")
    result = run("--source", chain, "--gateway", "a:1", "--follow", "--checkpoint", state)
    assert calls["publish"][1]["checkpoint"].of("publisher-1") == str(state / "publisher-1")
    assert result.stderr.splitlines()[-1] == (
        f"sluice publish --source {quote(chain)} --gateway a:1 --follow --checkpoint {quote(state)}"
    )


@pytest.mark.parametrize("kind", ["parquet", "datastream", "table"])
def test_a_source_that_cannot_be_followed_leaves_the_checkpoint_to_others(
    chain: Path, tmp_path: Path, calls: dict[str, Any], kind: str
) -> None:
    words = ("--gateway", "a:1", "--follow", "--checkpoint", tmp_path / "state")
    result = run("--source", f"{kind}:{chain}", *words)
    assert isinstance(result.exception, click.BadParameter)
    said = "to be followed over TCP" if kind == "datastream" else "cannot be followed"
    assert said in result.exception.format_message()
    assert not (tmp_path / "state").exists()
    assert run("--source", chain, *words).exception is None


def test_the_key_is_a_place(chain: Path, calls: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(chain)
    words = ("--source", chain, "--gateway", "a:1", "--master", "spark://x:7077")
    assert run(*words, "--sign", "net.key").exception is None
    assert calls["publish"][1]["key"] == KeyPlace(str(chain / "net.key"), None)
    assert run(*words, "--sign", "env:KEY").exception is None
    assert calls["publish"][1]["key"] == KeyPlace(None, "KEY")


def test_the_stream_of_a_network(chain: Path, calls: dict[str, Any], tmp_path: Path) -> None:
    words = ("--source", "server:b:1,c:2", "--gateway", "a:1", "--sign", "env:KEY", "--master", "spark://x:1")
    result = run(*words, "--option", "Generation=network", "--conf", "spark.sql.shuffle.partitions=3")
    assert result.exception is None
    source = calls["publish"][0][1]
    assert (str(source), source.is_server) == ("server:b:1,c:2", True)
    assert source.options == {"Generation": "network", "group_by": "batch"}
    assert calls["build_session"][1]["settings"]["spark.sql.shuffle.partitions"] == "3"
    follow = ("--follow", "--checkpoint", tmp_path / "state")
    assert run(*words, "--group-by", "500", *follow).exception is None
    assert calls["publish"][0][1].options == {"group_by": "500"}
    assert calls["build_session"][1]["settings"]["spark.sql.shuffle.partitions"] == "1"
    result = run(*words, "--group-by", "batch", *follow)
    assert isinstance(result.exception, CheckpointError)
    assert "it was begun with --group-by 500, not batch" in str(result.exception)


def test_no_java_is_said(chain: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    result = run("--source", str(chain), "--gateway", "127.0.0.1:1", "--engine", "spark")
    assert isinstance(result.exception, SparkUnavailable)
    assert "sluice: no gateway takes blocks (127.0.0.1:1: nobody listens there); trying on\n" in result.stderr


@pytest.mark.parametrize(
    ("words", "is_spark"),
    [
        ((), False),
        (("--publishers", "3", "--rate", "9", "--spark-above", "1GiB"), False),
        (("--spark-above", "0"), True),
        (("--engine", "local", "--spark-above", "0"), False),
        (("--engine", "spark"), True),
        (("--shards", "2"), True),
        (("--master", "local[1]"), True),
        (("--conf", "spark.a=b"), True),
        (("--option", "mode=permissive"), True),
        (("--option", "partitions=3"), True),
        (("--sink-option", "part_order_seconds=9"), True),
        (("--follow", "--checkpoint", "state"), False),
        (("--follow", "--checkpoint", "state", "--spark-above", "0"), True),
        (("--follow", "--checkpoint", "state", "--shards", "2"), True),
    ],
)
def test_auto_takes_spark_where_it_is_worth_its_start(
    chain: Path,
    calls: dict[str, Any],
    words: tuple[str, ...],
    is_spark: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(chain.parent)
    assert run("--source", chain, "--gateway", "a:1", *words).return_value == 0
    assert ("build_session" in calls) is is_spark
    assert "publish" in calls


def test_the_local_engine_does_not_follow_a_networks_stream(calls: dict[str, Any], tmp_path: Path) -> None:
    result = run(*NETWORK, "--engine", "local", "--follow", "--checkpoint", tmp_path / "state")
    what = "--follow of the source server:b:1"
    assert str(result.exception) == f"--engine local does not take {what}: that is done by Spark"
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(("engine", "other"), [("local", "spark"), ("spark", "local")])
def test_auto_stays_with_the_engine_of_the_checkpoint(
    chain: Path, tmp_path: Path, calls: dict[str, Any], engine: str, other: str
) -> None:
    state = tmp_path / "state"
    words = ("--source", chain, "--gateway", "a:1", "--follow", "--checkpoint", state)
    assert run(*words, "--engine", engine).exception is None
    calls.pop("build_session", None)
    # By size it would be the other one.
    above = "0" if engine == "local" else "1GiB"
    assert run(*words, "--spark-above", above).exception is None
    assert ("build_session" in calls) is (engine == "spark")
    result = run(*words, "--engine", other)
    assert isinstance(result.exception, CheckpointError)
    said = f"it was begun with --engine {engine}, not {other}; begin with a new folder: "
    assert result.exception.reason.startswith(said)


def test_without_pyspark_large_files_are_published_here(
    chain: Path, calls: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    assert run("--source", chain, "--gateway", "a:1", "--spark-above", "0").return_value == 0
    assert "build_session" not in calls


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--shards", "2"), "--shards"),
        (("--spark-log", "log"), "--spark-log"),
        (("--option", "decode=blocks"), "--option decode"),
        (("--option", "partitions=2"), "--option partitions"),
        (("--sink-option", "Part_Order_Seconds=2"), "--sink-option part_order_seconds"),
        (
            ("--follow", "--checkpoint", "state", "--option", "max_blocks_per_trigger=2"),
            "--option max_blocks_per_trigger",
        ),
    ],
)
def test_the_local_engine_names_what_spark_does(
    chain: Path, calls: dict[str, Any], words: tuple[str, ...], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(chain.parent)
    result = run("--source", chain, "--gateway", "a:1", "--engine", "local", *words)
    assert str(result.exception) == f"--engine local does not take {what}: that is done by Spark"
    assert "publish" not in calls


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "Missing option '--source'"),
        (("--source", "."), "Missing option '--gateway'"),
        (("--gateway", "a"), "Invalid value for '--gateway': got 'a', expected host:port"),
        (("--gateway", "a:1/x"), "Invalid value for '--gateway': got 'a:1/x', expected host:port/priority"),
        (("--gateway", "a:1", "--publishers", str(PUBLISHERS_MAX + 1)), "65 is not in the range 1<=x<=64"),
        (("--gateway", "a:1", "--publishers", "0"), "0 is not in the range 1<=x<=64"),
        (("--gateway", "a:1", "--shards", str(SHARDS_MAX + 1)), "257 is not in the range 1<=x<=256"),
        (("--gateway", "a:1", "--deadline", "0"), "0.0 is not in the range x>0"),
        (
            ("--gateway", "a:1", "--deadline", "inf"),
            "Invalid value for '--deadline': got inf, expected a number",
        ),
        (("--gateway", "a:1", "--rate", "nan"), "Invalid value for '--rate': got nan, expected a number"),
        (
            ("--gateway", "a:1", "--deadline", "1e300"),
            "got '1e+300', expected seconds above 0, at most 1,000,000,000",
        ),
        (("--gateway", "a:1", "--from", "5", "--to", "4"), "--to 4 is before --from 5"),
        (("--gateway", "a:1", "--follow"), "--follow and --checkpoint go together"),
        (("--gateway", "a:1", "--checkpoint", "x"), "--follow and --checkpoint go together"),
        (
            ("--gateway", "a:1", "--follow", "--checkpoint", "s3a://lake/x"),
            "Invalid value for '--checkpoint': got 's3a://lake/x', expected a path, or a file: URL",
        ),
        (("--gateway", "a:1", "--option", "x"), "Invalid value for '--option': got 'x', expected NAME=VALUE"),
        (
            ("--gateway", "a:1", "--option", "From=5"),
            "Invalid value for --option: From has an option of its own",
        ),
        (("--gateway", "a:1", "--option", "to=5"), "Invalid value for --option: to has an option of its own"),
        (("--gateway", "a:1", "--option", "path=x"), "Invalid value for --option: path has an option of its"),
        (
            ("--gateway", "a:1", "--source", "blockstream:b:1", "--option", "gateways=c:1"),
            "Invalid value for --option: gateways has an option of its own",
        ),
        (
            ("--gateway", "a:1", "--source", "datastream:b:1", "--option", "server=c:1"),
            "Invalid value for --option: server has an option of its own",
        ),
        (
            ("--gateway", "a:1", "--option", "foo=3"),
            "Invalid value for --option: option 'foo': got an unknown option, expected one of",
        ),
        (
            (
                "--gateway",
                "a:1",
                "--option",
                "max_blocks_per_trigger=0",
                "--follow",
                "--checkpoint",
                "/dev/null/x",
            ),
            "Invalid value for --option: option 'max_blocks_per_trigger': got 0, expected 1 to",
        ),
        (
            ("--gateway", "a:1", "--option", "MODE=x"),
            "Invalid value for --option: option 'mode': got 'x', expected one of failfast, permissive",
        ),
        (
            ("--gateway", "a:1", "--source", "blockstream:b:1", "--option", "partitions=x"),
            "Invalid value for --option: option 'partitions': got 'x', expected a whole number",
        ),
        (
            ("--gateway", "a:1", "--source", "datastream:b:1", "--option", "check=maybe"),
            "Invalid value for --option: option 'check': got an unknown option, expected one of",
        ),
        (
            ("--gateway", "a:1", "--publisher-id", "Zoë"),
            r"Invalid value for '--publisher-id': got 'Zo\xeb', expected printable ASCII characters",
        ),
        (
            ("--gateway", "a:1", "--publisher-id", "x" * (PUBLISHER_ID_CHARS_MAX + 1)),
            "Invalid value for '--publisher-id': got 129 characters, expected 128 characters at most",
        ),
        (("--gateway", "a:1", "--sink-option", "race=17"), "option 'race': got 17, expected 1 to 16"),
        (("--gateway", "a:1", "--sink-option", "gateways=x"), "gateways has an option of its own"),
        (("--gateway", "a:1", "--sink-option", "Gateways=x"), "gateways has an option of its own"),
        (("--gateway", "a:1", "--sink-option", "tls_key=x"), "tls_key has an option of its own"),
        (("--gateway", "a:1", "--sink-option", "TLS=true"), "tls has an option of its own"),
        (("--gateway", "a:1", "--sink-option", "report_path=x"), "sluice publish sets report_path itself"),
        (("--gateway", "a:1", "--sink-option", "First_block=0"), "sluice publish sets first_block itself"),
        (
            ("--gateway", "a:1", "--sink-option", "coordinator=a:1/x"),
            "sluice publish sets coordinator itself",
        ),
        (("--gateway", "a:1", "--sink-option", "path=x"), "path is no option of the sink"),
        (("--gateway", "a:1", "--sink-option", "Race=17"), "option 'race': got 17, expected 1 to 16"),
        (
            ("--gateway", "a:1", "--spark-log", "/dev/null/x"),
            "Invalid value for --spark-log: /dev/null/x cannot be written to: Not a directory",
        ),
        (("--gateway", "a:1", "--sign", "env:a b"), "got something that is no name"),
        (("--gateway", "a:1", "--sign", "ab" * 32), "got something that is no path"),
        (("--gateway", "a:1", "--source", "no-such-folder"), "got 'no-such-folder', which is not there"),
        (("--gateway", "a:1", "--source", "server:b"), "got 'server:b', expected server:HOST:PORT"),
        (("--gateway", "a:1", "--source", "file:/no/such"), "got '/no/such', which is not there"),
        (("--gateway", "a:1", "--source", "server:b:1"), "server:b:1 needs --sign: the blocks that are made"),
        (
            ("--gateway", "a:1", "--group-by", "batch"),
            "--group-by is for server: and file: sources, not block",
        ),
        (
            (*NETWORK, "--group-by", "day"),
            "option 'group_by': got 'day', expected batch, l2block, bookmark, or a number of entries from 1",
        ),
        ((*NETWORK, "--option", "group_by=batch"), "group_by has an option of its own"),
        ((*NETWORK, "--option", "from=3"), "option 'from': got an unknown option, expected one of"),
        ((*NETWORK, "--option", "decode=blocks"), "option 'decode': got an unknown option, expected one of"),
        ((*NETWORK, "--option", "keep_incomplete=true"), "option 'keep_incomplete': got an unknown option"),
        ((*NETWORK, "--option", "max_block_bytes=0"), "option 'max_block_bytes': got 0, expected 1 to"),
        (
            (*NETWORK, "--option", "generation=2"),
            "option 'generation': got '2', expected one of auto, network",
        ),
        (
            ("--gateway", "a:1", "--source", "file:/dev/null", "--follow", "--checkpoint", "x"),
            "got file:/dev/null, expected to be followed over TCP: server:HOST:PORT",
        ),
    ],
)
def test_wrong_use_is_said_and_exit_2(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    given = words if "--source" in words or not words else ("--source", str(tmp_path), *words)
    result = run(*given)
    assert isinstance(result.exception, click.UsageError)
    assert said in str(result.exception.format_message())
    assert result.exception.exit_code == 2
    assert "abab" not in str(result.exception.format_message())


def test_the_highest_numbers_are_taken(chain: Path, calls: dict[str, Any]) -> None:
    words = ("--publishers", str(PUBLISHERS_MAX), "--shards", str(SHARDS_MAX), "--master", "local[2]")
    name = "x" * PUBLISHER_ID_CHARS_MAX
    result = run("--source", chain, "--gateway", "a:1", *words, "--publisher-id", f" {name} ")
    assert result.exception is None
    assert calls["publish"][1]["publisher_prefix"] == name
    assert calls["build_session"][0][1] == PUBLISHERS_MAX * SHARDS_MAX


def test_help_is_enough() -> None:
    text = CliRunner().invoke(command, ["--help"]).output
    for parameter in command.params:
        assert isinstance(parameter, click.Option)
        assert parameter.opts[0] in text
        assert parameter.help


# --- the command that goes on -------------------------------------------------------------------------------

SUBMITTED = {"PYSPARK_GATEWAY_PORT": "1234"}


@pytest.mark.parametrize(
    ("words", "first_block", "line"),
    [
        (["--source", "my chain", "--json"], None, "sluice publish --source 'my chain' --json"),
        (["--source", "a"], 5, "sluice publish --source a --from 5"),
        (["--from", "2", "--source", "a"], 5, "sluice publish --source a --from 5"),
        (["--source", "a", "--from=2"], 5, "sluice publish --source a --from 5"),
        (["--source", "a", "--from=2"], None, "sluice publish --source a --from=2"),
    ],
)
def test_from_is_replaced(words: list[str], first_block: int | None, line: str) -> None:
    assert command_line(program_words({}), words, first_block) == line


def test_the_words_of_spark_submit_are_those_of_its_jvm(tmp_path: Path) -> None:
    words = ["/usr/bin/java", "-cp", "x", "org.apache.spark.deploy.SparkSubmit", "--conf", "a=b c"]
    script = "/opt/sluice_publish.py"
    (tmp_path / "cmdline").write_text("\0".join([*words, script, "--source", "x", ""]))
    found = program_words(SUBMITTED, tmp_path)
    assert found == ["spark-submit", "--conf", "a=b c", script]
    assert command_line(found, ["--source", "x"], 3) == (
        f"spark-submit --conf 'a=b c' {script} --source x --from 3"
    )


def test_what_cannot_be_known_is_left_open(tmp_path: Path) -> None:
    unknown = ["spark-submit", "…", "sluice_publish.py"]
    assert program_words(SUBMITTED, tmp_path) == unknown
    (tmp_path / "cmdline").write_text("init\0")
    assert program_words(SUBMITTED, tmp_path) == unknown
    assert is_submitted(SUBMITTED)
    assert not is_submitted({})
