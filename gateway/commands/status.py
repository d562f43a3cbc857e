"""`sluice status`: compares several nodes, and whether they have the same chain."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from sluice.gateway.cluster.node_status import NodesView, collect
from sluice.gateway.commands.contexts import Chosen
from sluice.gateway.commands.node_options import node_options
from sluice.gateway.commands.parameter_types import FiniteRange
from sluice.gateway.transport.channels import ClientTls

__all__ = ["command"]

_INTERVAL_SECONDS_MAX = 86_400


@click.command("status", short_help="Show which blocks nodes have, and whether they agree.")
@click.option("--watch", is_flag=True, help="Repeat until Ctrl-C.")
@click.option(
    "--interval",
    "interval_seconds",
    type=FiniteRange(min=0.1, max=_INTERVAL_SECONDS_MAX),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two requests with --watch.",
)
@click.option(
    "--detail", is_flag=True, help="Show each node's capabilities, and what it knows of the network."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object; with --watch, one for each request."
)
@node_options(as_arguments=True)
def command(
    nodes: Chosen,
    watch: bool,
    interval_seconds: float,
    detail: bool,
    as_json: bool,
    tls: ClientTls | None,
) -> None:
    """Show which blocks nodes have, and whether they agree. NODE is HOST or HOST:PORT, as with --node.

    The root hash is that of the last block that all nodes have. "behind" counts the blocks that another of
    the nodes has and this one lacks, "missing" those that the node itself knows of and lacks. The exit status
    is 1 if a node does not answer, has another root hash, or says that its cluster has no active node, two of
    them, or none that could take over. JSON output always includes the detail.
    """

    def look() -> Coroutine[Any, Any, NodesView]:
        return collect(nodes.addresses, tls, detail=detail or as_json)

    if watch:
        asyncio.run(_watch(look, interval_seconds, as_json=as_json))
    view = asyncio.run(look())
    _print(view, as_json=as_json)
    if not view.healthy:
        click.get_current_context().exit(1)


async def _watch(
    look: Callable[[], Awaitable[NodesView]], interval_seconds: float, *, as_json: bool
) -> NoReturn:
    """Run in one event loop, which handles Ctrl-C at any time."""
    view = await look()
    if sys.stdout.isatty() and not as_json:
        console = Console()
        with Live(_text(view, console.width), console=console, auto_refresh=False) as live:
            while True:
                await asyncio.sleep(interval_seconds)
                view = await look()
                live.update(_text(view, console.width), refresh=True)
    while True:
        _print(view, as_json=as_json)
        sys.stdout.flush()
        await asyncio.sleep(interval_seconds)
        view = await look()


def _print(view: NodesView, *, as_json: bool) -> None:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    click.echo(json.dumps(view.as_json()) if as_json else "\n".join(view.lines(width)))


def _text(view: NodesView, width: int) -> Text:
    return Text("\n".join(view.lines(width)))
