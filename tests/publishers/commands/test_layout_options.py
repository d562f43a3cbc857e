"""`--layout` and `--format` of commands that write block files."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from sluice.publishers.commands.layout_options import layout_options


@click.command()
@layout_options
def command(layout: str, block_format: str) -> None:
    """Say what was chosen."""
    click.echo(f"{layout} {block_format}")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "plain blk.gz"),
        (("--format", "blk.zst"), "plain blk.zst"),
        (("--layout", "consensus"), "consensus blk.gz"),
        (("--layout", "bucket"), "bucket blk.zstd"),
        (("--format", "blk", "--layout", "historic"), "historic blk"),
    ],
)
def test_a_layout_has_its_own_compression(words: tuple[str, ...], said: str) -> None:
    assert CliRunner().invoke(command, words).output == f"{said}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--layout", "tree"), "'tree' is not one of 'plain', 'consensus', 'recent', 'historic', 'bucket'"),
        (
            ("--format", "blk.gz", "--layout", "recent"),
            "got blk.gz, expected blk.zstd or blk with layout recent",
        ),
        (("--layout", "consensus", "--format", "blk.zst"), "got blk.zst, expected blk.gz or blk with layout"),
    ],
)
def test_what_does_not_go_together_is_said(words: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(command, words)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())
