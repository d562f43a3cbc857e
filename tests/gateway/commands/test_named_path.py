"""Paths that commands are given: an empty one is none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gateway.commands import cli
from gateway.commands.named_path import NamedPath


@click.command()
@click.option("--out", type=NamedPath(path_type=Path), default=Path("x.key"))
@click.argument("sources", type=NamedPath(), nargs=-1)
def probe(out: Path, sources: tuple[str, ...]) -> None:
    """Say what it was given."""
    click.echo(f"{out!r} {sources}")


def test_paths_are_what_click_makes_of_them() -> None:
    assert CliRunner().invoke(probe, []).output == f"{Path('x.key')!r} ()\n"
    words = ["--out", "a b", "c", "."]
    assert CliRunner().invoke(probe, words).output == f"{Path('a b')!r} ('c', '.')\n"


@pytest.mark.parametrize(("words", "name"), [(["--out", ""], "--out"), (["a", ""], "[SOURCES]...")])
def test_an_empty_one_is_refused(words: list[str], name: str) -> None:
    result = CliRunner().invoke(probe, words)
    assert result.exit_code == 2
    assert f"Error: Invalid value for '{name}': got nothing, expected a path\n" in result.output


def test_one_that_is_too_long_is_refused() -> None:
    result = CliRunner().invoke(probe, ["a" * 300])
    assert result.exit_code == 2
    assert (
        "Error: Invalid value for '[SOURCES]...': got File name too long, expected a path\n" in result.output
    )


def commands_in(command: click.Command) -> Iterator[click.Command]:
    """Yield a command and all below it."""
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
