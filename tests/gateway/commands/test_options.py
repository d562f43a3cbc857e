"""The parameter types and options that commands share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from sluice.gateway.commands import cli, failover, ledger, status
from sluice.gateway.commands.parameter_types import FiniteRange, NamedPath
from sluice.gateway.commands.tls_options import tls_options
from sluice.gateway.errors import TlsError
from sluice.gateway.transport.channels import ClientTls
from sluice.publishers.commands import block, publish, subscribe


@click.command()
@click.option("--out", type=NamedPath(path_type=Path), default=Path("x.key"))
@click.argument("sources", type=NamedPath(), nargs=-1)
def paths(out: Path, sources: tuple[str, ...]) -> None:
    click.echo(f"{out!r} {sources}")


def test_paths_are_what_click_makes_of_them() -> None:
    assert CliRunner().invoke(paths, []).output == f"{Path('x.key')!r} ()\n"
    words = ["--out", "a b", "c", "."]
    assert CliRunner().invoke(paths, words).output == f"{Path('a b')!r} ('c', '.')\n"


@pytest.mark.parametrize(("words", "name"), [(["--out", ""], "--out"), (["a", ""], "[SOURCES]...")])
def test_an_empty_one_is_refused(words: list[str], name: str) -> None:
    result = CliRunner().invoke(paths, words)
    assert result.exit_code == 2
    assert f"Error: Invalid value for '{name}': got nothing, expected a path\n" in result.output


def test_one_that_is_too_long_is_refused() -> None:
    result = CliRunner().invoke(paths, ["a" * 300])
    assert result.exit_code == 2
    assert (
        "Error: Invalid value for '[SOURCES]...': got File name too long, expected a path\n" in result.output
    )


def commands_in(command: click.Command) -> Iterator[click.Command]:
    """Yield a command and its subcommands."""
    yield command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands_in(below)


def test_all_paths_of_all_commands_have_names() -> None:
    commands = [command for command in commands_in(cli.sluice) if command.params]
    assert {"serve", "publish", "verify", "client"} <= {command.name for command in commands}
    for command in commands:
        for parameter in command.params:
            is_path = isinstance(parameter.type, click.Path)
            assert not is_path or isinstance(parameter.type, NamedPath), (command.name, parameter.name)


def test_the_help_of_every_command_fits_a_terminal_of_80_columns() -> None:
    for command in commands_in(cli.sluice):
        words = CliRunner().invoke(command, ["--help"], terminal_width=80, prog_name="sluice").output
        assert [line for line in words.splitlines() if len(line) > 80] == [], command.name


@click.command()
@click.option("--seconds", type=FiniteRange(min=0))
def number(seconds: float) -> None:
    click.echo(repr(seconds))


@pytest.mark.parametrize(("text", "shown"), [("0", "0.0"), ("2.5", "2.5"), ("1e9", "1000000000.0")])
def test_numbers_are_taken(text: str, shown: str) -> None:
    assert CliRunner().invoke(number, ["--seconds", text]).output == f"{shown}\n"


@pytest.mark.parametrize(
    ("text", "got"), [("nan", "nan"), ("inf", "inf"), ("1e400", "inf"), ("9" * 5000, "inf")]
)
def test_what_is_no_number_is_refused(text: str, got: str) -> None:
    result = CliRunner().invoke(number, ["--seconds", text])
    assert result.exit_code == 2
    assert f"Error: Invalid value for '--seconds': got {got}, expected a number\n" in result.output


def test_the_range_holds() -> None:
    result = CliRunner().invoke(number, ["--seconds", "-1"])
    assert result.exit_code == 2
    assert "-1.0 is not in the range x>=0" in result.output


@click.command()
@tls_options
def connect(tls: ClientTls | None) -> None:
    click.echo(repr(tls))


def test_without_options_there_is_no_tls() -> None:
    assert CliRunner().invoke(connect, []).output == "None\n"


def test_files_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--tls-ca", "ca.pem", "--tls-cert", "/x/c.pem", "--tls-key", "k.pem"]
    expected = ClientTls(str(tmp_path / "ca.pem"), "/x/c.pem", str(tmp_path / "k.pem"))
    assert CliRunner().invoke(connect, words).output == f"{expected!r}\n"


def test_tls_alone_and_a_name_of_the_server_are_enough() -> None:
    assert CliRunner().invoke(connect, ["--tls"]).output == f"{ClientTls()!r}\n"
    named = ClientTls(server_name="node.example")
    assert CliRunner().invoke(connect, ["--tls-server-name", "node.example"]).output == f"{named!r}\n"


def test_a_certificate_needs_its_key() -> None:
    with pytest.raises(TlsError) as caught:
        CliRunner().invoke(connect, ["--tls-cert", "c.pem"], catch_exceptions=False)
    assert str(caught.value) == "client TLS: got a certificate without a key, expected both, or neither"


@pytest.mark.parametrize(
    "command",
    [failover.command, ledger.show, status.command, block.command, publish.command, subscribe.command],
    ids=["failover", "ledger show", "status", "block", "publish", "subscribe"],
)
def test_every_command_that_connects_to_nodes_has_them(command: click.Command) -> None:
    known = {option for parameter in command.params for option in parameter.opts}
    assert {"--tls-ca", "--tls-cert", "--tls-key"} <= known
