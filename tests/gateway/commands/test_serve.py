"""Tests of `sluice serve`: its options, its errors, and the settings that it passes to the node."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import tomllib
import types
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from sluice.datastream.file.remote_pages import punch_pages
from sluice.datastream.layout import page_start
from sluice.gateway.cluster.role_keeper import write_role
from sluice.gateway.cluster.roles import RoleRecord
from sluice.gateway.commands import cli
from sluice.gateway.commands.serve import command
from sluice.gateway.settings.table import SETTINGS, Setting, Settings
from tests.certificates import Authority
from tests.gateway.archive.chains import blocks_of_a_page
from tests.nodes import ledger_key, make_blocks
from tests.publishers.node_thread import node_thread, store
from tests.serving import refused


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove settings from the environment, and restore logging afterwards."""
    for name in [name for name in os.environ if name.startswith("SLUICE_")]:
        monkeypatch.delenv(name)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


class FakeNodeModule(types.ModuleType):
    """Replaces `gateway.node.run`, and records the settings."""

    def __init__(self, status: int) -> None:
        super().__init__("sluice.gateway.node.run")
        self.status = status
        self.ran_with: list[Settings] = []

    def run_node(self, settings: Settings) -> int:
        self.ran_with.append(settings)
        return self.status


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> FakeNodeModule:
    made = FakeNodeModule(0)
    monkeypatch.setitem(sys.modules, "sluice.gateway.node.run", made)
    return made


def test_help_shows_every_setting_with_its_unit_and_default() -> None:
    result = CliRunner().invoke(command, ["--help"])
    assert result.exit_code == 0
    words = " ".join(result.output.split())
    for setting in SETTINGS:
        unit = f"{setting.unit}, " if setting.unit else ""
        assert setting.flag in words
        assert f"{setting.help} [{unit}default: {setting.default_text}]" in words
    for heading in ("Node:", "gRPC:", "TCP:", "HTTP:", "Publish:", "Log:", "Command:"):
        assert f"\n{heading}\n" in result.output


@pytest.mark.parametrize("is_variable", [False, True])
def test_a_config_that_is_a_pipe_is_read_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, is_variable: bool
) -> None:
    reading, writing = os.pipe()
    os.write(writing, b'role = "standby"\npeers = ["x:1"]\n')
    os.close(writing)
    pipe = f"/dev/fd/{reading}"
    if is_variable:
        monkeypatch.setenv("SLUICE_CONFIG", pipe)
    try:
        assert cli.main(["serve", "--print-config", *([] if is_variable else ["--config", pipe])]) == 0
    finally:
        os.close(reading)
    assert f'role = "standby"  # file {pipe}' in capsys.readouterr().out


def test_the_settings_reach_the_node(node: FakeNodeModule, tmp_path: Path) -> None:
    config = tmp_path / "sluice.toml"
    config.write_text("[publish]\nstall_blocks = 5\n")
    arguments = ["serve", "--config", str(config), "--tcp", "[::1]:0", "--grpc-reflection", "off"]
    assert cli.main([*arguments, "--ledger-key", "ed25519:aa", "--ledger-key", "ed25519:bb"]) == 0
    (settings,) = node.ran_with
    assert str(settings.tcp_address) == "[::1]:0"
    assert settings.publish_stall_blocks == 5
    assert settings.grpc_reflection is False
    assert settings.ledger_keys == ("ed25519:aa", "ed25519:bb")


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_flag_takes_its_value_from_the_next_word(
    setting: Setting, capsys: pytest.CaptureFixture[str]
) -> None:
    """A value that no setting accepts shows that the flag took it."""
    assert cli.main(["serve", "--print-config", setting.flag, ""]) == 2
    assert capsys.readouterr().err.endswith(f"(flag {setting.flag})\n")


def test_a_former_name_works_and_is_warned_of(
    node: FakeNodeModule, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["serve", "--catchup-rest", "3"]) == 0
    assert node.ran_with[0].catchup_backoff_seconds == 3
    _, warning = capsys.readouterr().err.splitlines()
    words = "setting has another name now  former=--catchup-rest-seconds name=catchup.backoff_seconds"
    assert warning.endswith(words)
    assert "catchup-rest" not in CliRunner().invoke(command, ["--help"]).output


def test_the_status_of_the_node_is_the_status_of_the_command(node: FakeNodeModule) -> None:
    node.status = 1
    assert cli.main(["serve"]) == 1


def test_what_differs_from_the_defaults_is_logged(
    node: FakeNodeModule, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLUICE_VERIFY", "hash")
    assert cli.main(["serve", "--first-block", "any"]) == 0
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith('setting  name=first_block value=any origin="flag --first-block"')
    assert "WARNING" in second
    assert second.endswith("environment variable is no setting  variable=SLUICE_VERIFY")


def test_print_config_does_not_start_a_node(node: FakeNodeModule, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "--print-config", "--log-format", "json"]) == 0
    printed = capsys.readouterr().out
    assert tomllib.loads(printed)["log"] == {"level": "info", "format": "json"}
    assert 'format = "json"  # flag --log-format' in printed
    assert node.ran_with == []


# click words the first three, and may change them.
BAD_USAGE = [
    (["--tpc", "x"], r"sluice serve: No such option.*--tpc.* \(see: sluice serve --help\)"),
    (["--grpc-address", "x"], r"sluice serve: No such option.*--grpc-address.* Did you mean '--grpc'\?.*"),
    (["--tcp"], r"sluice.*: Option '--tcp' requires an argument \(see: sluice.* --help\)"),
    (["extra"], r"sluice serve: Got unexpected extra argument \(extra\) \(see: sluice serve --help\)"),
    (["--role", "boss"], r"sluice: role: got 'boss', expected one of active, standby \(flag --role\)"),
    (["--role", "standby"], r'sluice: role: got "standby", expected at least one --peer .* \(flag --role\)'),
]


@pytest.mark.parametrize(("arguments", "line"), BAD_USAGE)
def test_bad_usage_is_one_line_and_status_2(
    node: FakeNodeModule, capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    assert cli.main(["serve", *arguments]) == 2
    captured = capsys.readouterr()
    assert re.fullmatch(f"{line}\n", captured.err)
    assert captured.out == ""
    assert node.ran_with == []


def test_a_bad_variable_is_one_line_and_status_2(
    node: FakeNodeModule, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLUICE_TCP_MAX_CONNECTIONS", "many")
    assert cli.main(["serve"]) == 2
    assert capsys.readouterr().err == (
        "sluice: tcp.max_connections: got 'many', expected a whole number from 1 to 1000000 "
        "(environment SLUICE_TCP_MAX_CONNECTIONS)\n"
    )
    assert node.ran_with == []


def test_a_bad_file_is_one_line_and_status_2(
    node: FakeNodeModule, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "sluice.toml"
    config.write_text("[log]\nlevels = true\n")
    assert cli.main(["serve", "--config", str(config)]) == 2
    assert capsys.readouterr().err == (
        "sluice: log.levels: got no setting of this name, expected a setting such as log.level "
        f"(file {config})\n"
    )
    assert node.ran_with == []


def test_as_a_process() -> None:
    sluice = [sys.executable, "-m", "sluice.gateway.commands.cli", "serve"]
    wrong = subprocess.run([*sluice, "--nothing"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert re.fullmatch(
        r"sluice serve: No such option.*--nothing.* \(see: sluice serve --help\)\n", wrong.stderr
    )
    optimized = [sys.executable, "-O", "-m", "sluice.gateway.commands.cli", "serve", "--print-config"]
    refused = subprocess.run(optimized, capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == (
        "sluice: python -O: got assertions switched off, expected to be started without -O\n"
    )


def test_an_interrupt_ends_the_process_with_130_and_no_traceback() -> None:
    # A stand-in for the node that only waits.
    program = (
        "import sys, types, threading\n"
        "node = types.ModuleType('sluice.gateway.node.run')\n"
        "node.run_node = lambda settings: (print('up', flush=True), threading.Event().wait())\n"
        "sys.modules['sluice.gateway.node.run'] = node\n"
        "from sluice.gateway.commands.cli import main\n"
        "sys.exit(main(['serve']))\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors.strip() == ""


def test_grpc_is_told_to_log_nothing_before_it_is_loaded() -> None:
    program = (
        "import os, sys, types\n"
        "node = types.ModuleType('sluice.gateway.node.run')\n"
        "node.run_node = lambda settings: print(os.environ['GRPC_VERBOSITY'], 'grpc' in sys.modules) or 0\n"
        "sys.modules['sluice.gateway.node.run'] = node\n"
        "from sluice.gateway.commands.start import main\n"
        "sys.argv = ['sluice', 'serve']\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "NONE False\n"


def test_a_node_may_open_as_many_files_as_it_is_allowed_to() -> None:
    program = (
        "import resource, sys, types\n"
        "limit = resource.RLIMIT_NOFILE\n"
        "node = types.ModuleType('sluice.gateway.node.run')\n"
        "node.run_node = lambda settings: print(*resource.getrlimit(limit)) or 0\n"
        "sys.modules['sluice.gateway.node.run'] = node\n"
        "from sluice.gateway.commands.cli import main\n"
        "resource.setrlimit(limit, (100, 200))\n"
        "sys.exit(main(['serve']))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "200 200\n"


# --- --check ------------------------------------------------------------------------------------------------


def check(*words: object) -> tuple[int, list[str]]:
    """Run `sluice serve --check`; return its status and lines."""
    result = CliRunner().invoke(command, ["--check", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output.splitlines()


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(folder.rglob("*"))}


def test_a_check_says_what_a_start_would_do_and_touches_nothing(tmp_path: Path, node: FakeNodeModule) -> None:
    data_dir, pair = tmp_path / "data", Authority(tmp_path).issue("node")
    store(data_dir, make_blocks(3))
    write_role(data_dir, RoleRecord("standby", "b:40840"))
    before = contents(tmp_path)
    status, lines = check(
        *("--data-dir", data_dir, "--ledger-key", ledger_key(), "--peer", "127.0.0.1:40850"),
        *("--grpc", "0.0.0.0:40840", "--grpc-tls-certificate", pair.certificate, "--grpc-tls-key", pair.key),
    )
    assert (status, lines[-1]) == (0, "nothing is wrong")
    plan = {line[:14].strip(): line[14:] for line in lines}
    assert plan["publishers"].startswith(f"0.0.0.0:40840, TLS with {pair.certificate} to 20")
    assert plan["data streamer"] == "127.0.0.1:6900, without TLS"
    assert plan["data"].startswith(f"{data_dir}, with blocks to 2; ")
    assert plan["role"] == "standby of b:40840 (role.json, which goes before the setting)"
    assert plan["peers"] == "127.0.0.1:40850; 0 must have a block"
    assert plan["ledger keys"] == ledger_key()
    assert contents(tmp_path) == before
    assert node.ran_with == []


def test_a_check_of_a_folder_that_is_not_there_makes_none(tmp_path: Path) -> None:
    status, lines = check("--data-dir", tmp_path / "x" / "y")
    assert (status, lines[-1]) == (0, "nothing is wrong")
    assert f"data          {tmp_path / 'x' / 'y'}, which the start makes" in lines
    assert list(tmp_path.iterdir()) == []


def test_a_check_finds_the_last_block_where_older_pages_are_given_up(tmp_path: Path) -> None:
    """By an archive, or by history.keep_blocks: only a start knows which pages these are."""
    store(tmp_path, list(blocks_of_a_page(count=8)))
    with (tmp_path / "datastream.bin").open("r+b") as file:
        punch_pages(file.fileno(), 1, 7)
        file.seek(page_start(4))
        assert file.read(10) == bytes(10)
    status, lines = check("--data-dir", tmp_path, "--ledger-key", ledger_key())
    assert (status, lines[-1]) == (0, "nothing is wrong")
    assert f"data          {tmp_path}, with blocks to 7; " in "\n".join(lines)


def test_a_check_warns_of_a_stream_that_only_a_start_can_judge(tmp_path: Path) -> None:
    store(tmp_path, make_blocks(3))
    with (tmp_path / "datastream.bin").open("r+b") as file:
        file.seek(page_start(0))
        file.write(bytes(10))
    status, lines = check("--data-dir", tmp_path, "--ledger-key", ledger_key())
    assert (status, lines[-1]) == (0, "nothing is wrong")
    assert any(line.startswith(f"warning: data_dir {tmp_path}: ") for line in lines)
    assert f"data          {tmp_path}, with a stream that cannot be read; " in "\n".join(lines)


def test_a_check_works_beside_the_running_node(tmp_path: Path) -> None:
    """It takes no lock."""
    with node_thread(tmp_path) as running:
        address = running.grpc_address
        status, lines = check("--data-dir", tmp_path, "--ledger-key", ledger_key(), "--grpc", address)
        assert (status, lines[-1]) == (0, "nothing is wrong")


def test_a_check_says_every_fault_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of file, environment, flags, rules between settings, keys, certificates, the folder and peers."""
    pair, data_dir = Authority(tmp_path).issue("node"), tmp_path / "data"
    data_dir.mkdir()
    (data_dir / "datastream.bin").write_bytes(b"no stream file" * 1000)
    (data_dir / "role.json").write_text("{}")
    config = tmp_path / "sluice.toml"
    config.write_text("nonsense = 1\nrole = 'boss'\n[publish]\nmax_block_bytes = 'much'\n")
    monkeypatch.setenv("SLUICE_BLOCK_TIME_SECONDS", "soon")
    monkeypatch.setenv("SLUICE_COLOUR", "red")
    status, lines = check(
        *("--config", config, "--data-dir", data_dir, "--tcp", "nowhere", "--publish-block-timeout", "1"),
        *("--ledger-key", "ed25519:zz", "--ledger-key", f"tss:{tmp_path / 'gone'}", "--ledger-key", "dsa:1"),
        *("--grpc-tls-certificate", pair.certificate, "--grpc-tls-key", tmp_path / "gone.key"),
        *("--control-tls-certificate", config, "--control-tls-key", pair.key),
        *("--peer", "127.0.0.1:40850", "--commit-min-standbys", "2", "--http", "0.0.0.0:1"),
    )
    faults = [line.removeprefix("fault: ") for line in lines if line.startswith("fault: ")]
    assert (status, lines[-1]) == (2, f"faults: {len(faults)}")
    assert [fault.partition(": got ")[0] for fault in faults] == [
        *("nonsense", "role", "publish.max_block_bytes", "block_time_seconds", "tcp.address"),
        "publish.block_timeout_seconds",
        *("grpc.tls_key", "control.tls_certificate", f"data_dir {data_dir}", f"{data_dir / 'role.json'}"),
        *("ledger key 'ed25519:zz'", f"ledger key tss:{tmp_path / 'gone'}", "ledger key 'dsa:1'"),
        "commit.min_standbys",
    ]
    assert "warning: the environment variable SLUICE_COLOUR is no setting" in lines


def test_a_check_reads_what_an_election_needs(tmp_path: Path) -> None:
    words: list[object] = ["--data-dir", tmp_path / "data", "--peer", "127.0.0.1:1"]
    words += ["--failover-automatic", "on"]
    status, lines = check(*words)
    assert status == 2
    assert any(line.startswith("fault: failover.etcd: got nothing") for line in lines)
    words += ["--failover-etcd", "e:2379", "--commit-min-standbys", 1]
    status, lines = check(*words)
    assert (status, lines[-1]) == (0, "nothing is wrong")
    assert "election      127.0.0.1:40840 at etcd e:2379 (not asked)" in lines
    gone = tmp_path / "gone"
    words += ["--failover-tls-ca", gone, "--failover-username", "u", "--failover-password-file", gone]
    _, lines = check(*words)
    faults = [line.partition(": got ")[0] for line in lines if line.startswith("fault: ")]
    assert faults == ["fault: CA file", "fault: failover.password_file"]


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (
            ["--failover-automatic", "on"],
            "failover.etcd: got nothing, expected the members of an etcd cluster",
        ),
        (["--role", "standby", "--peer", "127.0.0.1:40840"], "peers: got "),
        (["--commit-min-standbys", "1"], "commit.min_standbys: got 1, expected at most 0, "),
        (
            ["--archive", "file:///x", "--history-keep-blocks", "9"],
            "history.keep_bytes, history.keep_blocks: ",
        ),
    ],
)
def test_a_check_refuses_settings_that_contradict_each_other_as_a_start_does(
    words: list[str], fault: str, tmp_path: Path
) -> None:
    status, lines = check("--data-dir", tmp_path / "data", *words)
    assert (status, lines[-1]) == (2, "faults: 1")
    assert lines[-2].startswith(f"fault: {fault}")
    assert refused("--data-dir", tmp_path / "data", *words)[0] == 2


def test_a_check_refuses_an_address_that_two_settings_have(tmp_path: Path) -> None:
    status, lines = check("--data-dir", tmp_path / "data", "--tcp", "127.0.0.1:1", "--http", "127.0.0.1:1")
    assert (status, lines[-1]) == (2, "faults: 1")
    expected = "expected another address than tcp.address (settings)"
    assert lines[-2] == f"fault: http.address: got 127.0.0.1:1, {expected}"


def test_a_check_of_a_machine_that_is_not_ready_ends_with_1(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    status, lines = check("--data-dir", tmp_path / "data")
    assert status == 1
    assert f"fault: data_dir {tmp_path / 'data'}: got a file, expected a folder" in lines


# --- completion ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "begun", "words"),
    [
        ("role", "", ["active", "standby"]),
        ("role", "s", ["standby"]),
        ("grpc_reflection", "o", ["on", "off"]),
        ("grpc_address", "", []),
    ],
)
def test_values_of_settings_are_completed(setting: str, begun: str, words: list[str]) -> None:
    (option,) = (param for param in command.params if param.name == setting)
    context = click.Context(command)
    assert [item.value for item in option.shell_complete(context, begun)] == words


def test_paths_of_settings_are_completed_by_the_shell() -> None:
    context = click.Context(command)
    found = {
        param.name: [item.type for item in param.shell_complete(context, "")]
        for param in command.params
        if param.name in ("data_dir", "grpc_tls_key")
    }
    assert found == {"data_dir": ["dir"], "grpc_tls_key": ["file"]}


@pytest.mark.parametrize(
    ("words", "status", "end"),
    [
        (["--nonsense"], 2, "(see: sluice serve --help)"),
        (["--config", "none.toml"], 2, "expected a file that can be read (file none.toml)"),
        (["--tcp-max-connections", "none"], 2, "(flag --tcp-max-connections)"),
        (["--role", "standby"], 2, "expected at least one --peer for a standby to follow (flag --role)"),
        (["--data-dir", "/proc/none"], 1, None),
    ],
    ids=lambda words: words[0] if isinstance(words, list) else "",
)
def test_a_node_with_a_log_as_json_refuses_in_json(
    words: list[str], status: int, end: str | None, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "sluice.gateway.commands.cli", "serve", "--log-format=json", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (status, "")
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert (lines[-1]["level"], lines[-1]["logger"]) == ("critical", "sluice")
    assert lines[-1]["message"].startswith("sluice")
    assert end is None or lines[-1]["message"].endswith(end)
