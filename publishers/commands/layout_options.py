"""The options `--layout` and `--format` of commands that write block files; they have to fit together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, get_args

import click

from sluice.publishers.blocks.block_layouts import BlockFormat, BlockLayout, check_format, default_format
from sluice.publishers.errors import OptionError

__all__ = ["layout_options"]

Command = TypeVar("Command", bound=Callable[..., Any])


def layout_options(command: Command) -> Command:
    """Add `--layout` and `--format` to a command, as `layout` and `block_format`."""
    layout = click.option(
        "--layout",
        type=click.Choice(get_args(BlockLayout)),
        default="plain",
        show_default=True,
        is_eager=True,
        help="Names of files and folders: plain is N.blk.gz; consensus is a consensus node's; recent, "
        "historic (zips of 10,000 blocks) and bucket are a block node's.",
    )
    block_format = click.option(
        "--format",
        "block_format",
        type=click.Choice(get_args(BlockFormat)),
        callback=_format_of,
        show_default="blk.gz; with layouts of a block node blk.zstd",
        help="Ending of the files, and so their compression.",
    )
    return layout(block_format(command))


def _format_of(context: click.Context, parameter: click.Parameter, text: BlockFormat | None) -> BlockFormat:
    layout: BlockLayout = context.params["layout"]
    if text is None:
        return default_format(layout)
    try:
        check_format(layout, text)
    except OptionError as error:
        raise click.BadParameter(f"got {error.got}, expected {error.expected}", context, parameter) from error
    return text
