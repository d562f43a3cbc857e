"""Tests of `gateway.commands.cli`: finding commands, and each kind of end."""

from __future__ import annotations

import ast
import errno
import os
import re
import subprocess
import sys
import types
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from sluice.datastream.errors import CommandRefused, DatastreamError
from sluice.gateway import __version__
from sluice.gateway.commands import cli, start
from sluice.gateway.errors import Fatal, SettingError

Bodies = dict[str, Callable[[], object]]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[Bodies], None]:
    """Return a function that installs commands with the given bodies."""

    def put(bodies: Bodies) -> None:
        module = types.ModuleType("commands_of_this_test")
        for name, body in bodies.items():
            setattr(module, name, click.Command(name, callback=body, short_help=f"Run {name}."))
        monkeypatch.setitem(sys.modules, module.__name__, module)
        points = [EntryPoint(name, f"{module.__name__}:{name}", cli.COMMAND_GROUP) for name in bodies]
        # A module that needs Spark, and one that does not exist.
        points.append(EntryPoint("sparky", "needs_spark:command", cli.COMMAND_GROUP))
        points.append(EntryPoint("gone", "sluice.gateway.commands.gone:command", cli.COMMAND_GROUP))
        monkeypatch.setattr(cli, "_commands", lambda: tuple(points))

    return put


@pytest.fixture(autouse=True)
def _needs_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)  # makes `import pyspark` raise
    (tmp_path / "needs_spark.py").write_text("import pyspark\n")
    monkeypatch.syspath_prepend(tmp_path)


def fail_with(error: BaseException) -> Callable[[], object]:
    def body() -> None:
        raise error

    return body


SPARK_LINE = "needs the extra 'spark', which is not installed: pip install 'sluice-gateway[spark]'"


GONE_LINE = (
    "needs the module 'sluice.gateway.commands.gone', which is not there: install sluice-gateway again"
)


def test_help_lists_all_commands_and_what_some_are_missing(install: Callable[[Bodies], None]) -> None:
    install({"work": lambda: None})
    result = CliRunner().invoke(cli.sluice, ["--help"], terminal_width=200, max_content_width=200)
    assert result.exit_code == 0
    lines = [line.split(maxsplit=1) for line in result.output.partition("Commands:\n")[2].splitlines()[:3]]
    assert lines == [
        ["gone", GONE_LINE],
        ["sparky", SPARK_LINE],
        ["work", "Run work."],
    ]


def test_a_command_without_its_extra_says_what_to_install(
    install: Callable[[Bodies], None], capsys: pytest.CaptureFixture[str]
) -> None:
    install({"work": lambda: None})
    assert cli.main(["sparky", "--source", "x", "y"]) == 1
    assert capsys.readouterr().err == f"sluice: sparky {SPARK_LINE}\n"
    assert cli.main(["gone", "--help"]) == 1
    assert capsys.readouterr().err == f"sluice: gone {GONE_LINE}\n"
    assert cli.main(["work"]) == 0


def test_a_protobuf_that_does_not_fit_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # A generated module's check on import, with a version that no runtime has.
    code = "from google.protobuf import runtime_version as v\n"
    code += "v.ValidateProtobufRuntimeVersion(v.Domain.PUBLIC, 99, 1, 0, '', 'node.proto')\n"
    (tmp_path / "newer_stubs.py").write_text(code)
    point = EntryPoint("newer", "newer_stubs:command", cli.COMMAND_GROUP)
    monkeypatch.setattr(cli, "_commands", lambda: (point,))
    assert cli.main(["newer", "--source", "x"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("sluice: newer needs another protobuf than the one that is imported (Detected ")
    assert line.endswith("): pip install 'protobuf>=7.36,<8', or give Sluice an environment of its own")


def test_a_command_that_imports_spark_when_it_runs(
    install: Callable[[Bodies], None], capsys: pytest.CaptureFixture[str]
) -> None:
    install({"late": fail_with(ModuleNotFoundError("No module named 'pyspark'", name="pyspark.sql"))})
    assert cli.main(["late"]) == 1
    assert capsys.readouterr().err == f"sluice: this command {SPARK_LINE}\n"


def test_without_leveldb_what_to_install_is_said(
    install: Callable[[Bodies], None], capsys: pytest.CaptureFixture[str]
) -> None:
    install({"late": fail_with(ModuleNotFoundError("No module named 'plyvel_next'", name="plyvel_next"))})
    assert cli.main(["late"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("sluice: this command needs LevelDB, which is not there: pip install plyvel-next ")
    assert said.endswith(" has no wheel, pip builds it with g++ and the headers of libleveldb-dev\n")


ENDS: list[tuple[BaseException, int, str]] = [
    (Fatal("port 1", got="taken", expected="free"), 1, "sluice: port 1: got taken, expected free\n"),
    (DatastreamError("the file is no stream"), 1, "sluice: the file is no stream\n"),
    (Fatal("x", got="two\nlines", expected="one"), 1, "sluice: x: got two lines, expected one\n"),
    (
        CommandRefused("Header", 77, "\x1b[31mred\rx\x07 ä\u202e"),
        1,
        "sluice: server: Header: error 77 \\x1b[31mred\\rx\\x07 ä\\u202e\n",
    ),
    (
        SettingError("role", got="'x'", expected="y", where="flag --role"),
        2,
        "sluice: role: got 'x', expected y (flag --role)\n",
    ),
    (
        OSError(errno.ENOSPC, "No space left on device", "/x/y"),
        1,
        "sluice: /x/y: got No space left on device, expected room for it\n",
    ),
    (
        PermissionError(errno.EACCES, "Permission denied", "/x/y"),
        1,
        "sluice: /x/y: got Permission denied, expected to be allowed to use it\n",
    ),
    (
        OSError(errno.EMFILE, "Too many open files"),
        1,
        (
            "sluice: this process: got Too many open files, expected fewer open files, or a higher limit "
            "(ulimit -n)\n"
        ),
    ),
    (
        OSError(errno.ENAMETOOLONG, "File name too long", "xx"),
        1,
        "sluice: xx: got File name too long, expected a path that can be followed\n",
    ),
    (click.UsageError("no"), 2, "sluice work: no (see: sluice work --help)\n"),
    (click.ClickException("could not"), 1, "sluice: could not\n"),
    (KeyboardInterrupt(), 130, "\n"),
    (click.Abort(), 130, ""),
    (click.exceptions.Exit(7), 7, ""),
]


@pytest.mark.parametrize(("error", "status", "line"), ENDS)
def test_how_a_command_ends(
    install: Callable[[Bodies], None],
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    status: int,
    line: str,
) -> None:
    install({"work": fail_with(error)})
    assert cli.main(["work"]) == status
    captured = capsys.readouterr()
    assert captured.err == line
    assert captured.out == ""


def test_what_a_command_returns_is_its_status(install: Callable[[Bodies], None]) -> None:
    install({"three": lambda: 3, "none": lambda: None, "words": lambda: "words"})
    assert [cli.main([name]) for name in ("three", "none", "words")] == [3, 0, 0]


def test_a_bug_shows_its_traceback(install: Callable[[Bodies], None]) -> None:
    install({"work": fail_with(ZeroDivisionError("ours"))})
    with pytest.raises(ZeroDivisionError, match="ours"):
        cli.main(["work"])


def test_no_command_and_an_unknown_one(
    install: Callable[[Bodies], None], capsys: pytest.CaptureFixture[str]
) -> None:
    install({"work": lambda: None})
    assert cli.main([]) == 2
    assert "Commands:" in capsys.readouterr().err
    assert cli.main(["wrok"]) == 2
    assert capsys.readouterr().err.startswith("sluice: No such command 'wrok'")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["stauts"], "sluice: No such command 'stauts'. Did you mean 'status'? (see: sluice --help)"),
        (
            ["ds", "cleint"],
            "sluice ds: No such command 'cleint'. Did you mean 'client'? (see: sluice ds --help)",
        ),
        (["xyzzy"], "sluice: No such command 'xyzzy' (see: sluice --help)"),
        (
            ["status", "--node"],
            "sluice status: Option '--node' requires an argument (see: sluice status --help)",
        ),
        (["status", "--nod", "a"], "sluice status: No such option '--nod'. Did you mean '--node'?"),
        (
            ["subscribe", "--gatway", "a"],
            "sluice subscribe: No such option '--gatway'. Did you mean '--gateway'?",
        ),
        (
            ["misbehave", "--source", "x", "--gateway", "a:1"],
            "sluice misbehave: Missing argument '{hang|disconnect|bad-proof|repeat|ahead}'. Choose from: ha",
        ),
    ],
)
def test_what_was_mistyped_is_guessed(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    assert capsys.readouterr().err.startswith(line)


def test_the_names_of_commands_are_completed_without_an_import(
    install: Callable[[Bodies], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    install({"alpha": lambda: None})
    monkeypatch.setattr(cli, "_load", None)
    found = cli.sluice.shell_complete(click.Context(cli.sluice), "")
    assert [item.value for item in found] == ["alpha", "gone", "sparky"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which Linux has")
def test_output_that_nobody_can_take_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "sluice.gateway.commands.cli", "serve", "--print-config"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    line = "sluice: what is written: got No space left on device, expected room for it\n"
    assert (done.returncode, done.stderr) == (1, line)


def test_asserts_must_be_on() -> None:
    cli._refuse_optimized(asserts_are_on=True)
    with pytest.raises(
        Fatal, match="python -O: got assertions switched off, expected to be started without -O"
    ):
        cli._refuse_optimized(asserts_are_on=False)


def test_the_installed_command() -> None:
    sluice = Path(sys.executable).with_name("sluice")
    if not sluice.exists():
        pytest.skip("needs sluice beside this interpreter; pip install -e . installs it")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}

    def run(*words: str) -> tuple[int, str, str]:
        done = subprocess.run([sluice, *words], capture_output=True, text=True, env=environment, check=False)
        return done.returncode, done.stdout, done.stderr

    assert run("--version") == (0, f"sluice {__version__}\n", "")
    status, output, errors = run("--help")
    assert (status, errors) == (0, "")
    for command in ("demo", "generate", "keygen", "publish", "serve"):
        assert f"\n  {command} " in output
    for words in ((), ("ds",), ("ledger",)):  # each command has its own line, which is not cut
        output = run(*words, "--help")[1]
        assert "..." not in output.partition("Commands:\n")[2]
    status, output, errors = run("--wrong")
    assert (status, output) == (2, "")
    assert re.fullmatch(r"sluice: No such option.*--wrong.* \(see: sluice --help\)\n", errors)


CLOSED = """
import os, sys
from pathlib import Path
from sluice.gateway.commands import cli, start
status = cli.main(["--version"])
print("to nobody")
print("to nobody", file=sys.stderr)
numbers = [os.readlink(f"/proc/self/fd/{number}") for number in range(3)]
Path(sys.argv[1]).write_text(repr([status, numbers, sys.stdin.read()]))
"""


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc, which Linux has")
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_standard_streams_that_are_closed_lead_nowhere(tmp_path: Path, closed: str) -> None:
    told = tmp_path / "told"
    words = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", CLOSED, str(told)]
    with Path(os.devnull).open("rb") as nothing:
        done = subprocess.run(words, stdin=nothing, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    status, numbers, read = ast.literal_eval(told.read_text())
    assert (status, read) == (0, "")
    at = {">&-": [1], "2>&-": [2]}.get(closed, [0, 1, 2])
    assert all(numbers[number] == os.devnull for number in at)


WIDE = """
import click, sys
from sluice.gateway.commands import cli, start

@cli.sluice.command("wide")
def wide():
    click.echo("ä…")
    print("ä…", flush=True)
    print("ä…", file=sys.stderr, flush=True)

sys.exit(cli.main(["wide"]))
"""


@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize("encoding", ["latin-1", "utf-8"])
def test_a_character_that_the_encoding_lacks_is_no_traceback(encoding: str, is_terminal: bool) -> None:
    environment = os.environ | {"PYTHONIOENCODING": encoding, "PYTHONPATH": os.pathsep.join(sys.path)}
    read, write = os.openpty() if is_terminal else os.pipe()
    try:
        words = [sys.executable, "-c", WIDE]
        status = subprocess.run(words, stdout=write, stderr=write, env=environment, check=False).returncode
        said = os.read(read, 10_000).decode(encoding)
    finally:
        os.close(read)
        os.close(write)
    lacking = "?" if is_terminal else "\\u2026"
    line = "ä…" if encoding == "utf-8" else f"ä{lacking}"
    assert (status, said.split()) == (0, 3 * [line])


OPEN = """
import os, sys
from sluice.gateway.commands import cli, start
streams, before = (sys.stdin, sys.stdout, sys.stderr), os.listdir("/proc/self/fd")
cli._open_standard_streams()
assert (sys.stdin, sys.stdout, sys.stderr) == streams
assert os.listdir("/proc/self/fd") == before
"""


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc, which Linux has")
def test_nothing_is_opened_where_nothing_is_closed() -> None:
    """In a separate process: here gRPC may still be closing descriptors of earlier tests."""
    done = subprocess.run([sys.executable, "-c", OPEN], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# --- gateway.commands.start --------------------------------------------------------------------------------

INTERRUPTED = """
import sys
from sluice.gateway.commands import start

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupts())
sys.exit(start.main())
"""


def test_it_runs_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["sluice", "--version"])
    assert start.main() == 0
    assert capsys.readouterr().out == f"sluice {__version__}\n"


def test_ctrl_c_while_it_imports_is_no_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_it_is_what_is_installed() -> None:
    """It imports nothing slow, so it soon handles Ctrl-C."""
    project = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    assert '\nsluice = "sluice.gateway.commands.start:main"\n' in project
    source = Path(start.__file__).read_text()
    assert [line for line in source.splitlines() if line.startswith(("import ", "from "))] == [
        "from __future__ import annotations",
        "import os",  # already imported by the interpreter
    ]
