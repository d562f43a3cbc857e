"""`sluice subscribe`: follow a chain, to block files, JSON lines, or a table on a terminal."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sluice.gateway.blocks.block_numbers import BLOCK_NUMBER_MAX
from sluice.gateway.commands.contexts import Chosen, Port
from sluice.gateway.commands.node_options import node_options
from sluice.gateway.commands.parameter_types import FiniteRange, NamedPath, offers
from sluice.gateway.logs import one_line
from sluice.gateway.transport.channels import ClientTls
from sluice.publishers.blocks.block_layouts import BlockFormat, BlockLayout, default_format
from sluice.publishers.blocks.block_summary import size_text, summarize
from sluice.publishers.blocks.block_writer import BlockWriter
from sluice.publishers.commands.layout_options import layout_options
from sluice.publishers.limits import MESSAGE_BYTES_MAX, MESSAGE_OPTION_MAX, MESSAGE_OPTION_MIN
from sluice.publishers.number_range import number_of
from sluice.publishers.sources.block_follower import BlockFollower, Received, Start

__all__ = ["command"]

_TABLE_ROWS = 12
_TABLE_REFRESHES_PER_SECOND = 4


def _start(context: click.Context, parameter: click.Parameter, text: str) -> Start:
    if text == "first":
        return "first"
    if text == "new":
        return "new"
    number = number_of(text, BLOCK_NUMBER_MAX)
    if number is None:
        raise click.BadParameter(f"{text!r} is not a block number, 'first' or 'new'", context, parameter)
    return number


@click.command("subscribe", short_help="Follow a chain: every committed block once, in order.")
@click.option(
    "--from",
    "start",
    default="new",
    show_default=True,
    callback=_start,
    metavar="N|first|new",
    shell_complete=offers("first", "new"),
    help="The first block: a number, the first one that the node has, or the first new one.",
)
@click.option(
    "--to",
    "end",
    type=click.IntRange(0, BLOCK_NUMBER_MAX),
    metavar="M",
    help="The last block; by default there is none.",
)
@click.option(
    "--out",
    "folder",
    type=NamedPath(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write each block to a file, flushed, before counting it; the folder is made if it is missing.",
)
@layout_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each block.")
@click.option(
    "--patience",
    "patience_seconds",
    type=FiniteRange(min=0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Give up after so long without a reachable node; 0: never.",
)
@click.option(
    "--max-message-bytes",
    "message_bytes_max",
    type=click.IntRange(MESSAGE_OPTION_MIN, MESSAGE_OPTION_MAX),
    default=MESSAGE_BYTES_MAX,
    show_default=True,
    metavar="BYTES",
    help="The longest message to accept; an item of a block may be as long.",
)
@node_options(Port.GRPC, "--gateway")
def command(
    nodes: Chosen,
    start: Start,
    end: int | None,
    folder: Path | None,
    layout: BlockLayout,
    block_format: BlockFormat,
    as_json: bool,
    patience_seconds: float,
    message_bytes_max: int,
    tls: ClientTls | None,
) -> None:
    """Follow a chain: every committed block once, in order, over reconnects and from node to node.

    The first node is the preferred one; when one fails, the next continues at the same block.

    Ctrl-C ends it after the block in hand; the exit status is then 0, or 130 if blocks before --to are
    missing.
    """
    if isinstance(start, int) and end is not None and end < start:
        raise click.UsageError(f"--to {end} is before --from {start}")
    if folder is None and (layout, block_format) != ("plain", default_format("plain")):
        raise click.UsageError("--layout and --format need --out DIR")
    goes_on = "going on with the next node" if len(nodes.addresses) > 1 else "trying again"
    on_terminal = sys.stdout.isatty() and not as_json
    view: _View = (
        _TableView(goes_on, end)
        if on_terminal
        else _LineView(goes_on, as_json=as_json, to_files=folder is not None)
    )
    writer = None if folder is None else BlockWriter(folder, layout, block_format)

    def take(received: Received) -> None:
        if writer is not None:
            writer.write(received.block)
        view.show(received)

    follower = BlockFollower(
        nodes.addresses,
        start,
        end,
        tls=tls,
        patience_seconds=patience_seconds,
        on_trouble=view.trouble,
        message_bytes_max=message_bytes_max,
    )
    try:
        with writer or nullcontext(), view:
            interrupted = asyncio.run(_follow(follower, take))
    except BrokenPipeError:  # the reader of our output has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    if writer is not None and writer.staged_text is not None:
        click.echo(f"sluice: {writer.staged_text}", err=True)
    if interrupted and end is not None:
        click.get_current_context().exit(130)


async def _follow(follower: BlockFollower, take: Callable[[Received], None]) -> bool:
    """Take blocks until the last one or an interrupt; return whether it was an interrupt."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    stopping = asyncio.ensure_future(stop.wait())
    blocks = follower.blocks()
    try:
        while not stop.is_set():
            following = asyncio.ensure_future(anext(blocks, None))
            await asyncio.wait({following, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                following.cancel()
                await asyncio.wait({following})
                return True
            received = following.result()
            if received is None:
                return False
            await asyncio.to_thread(take, received)
        return True
    finally:
        stopping.cancel()
        await blocks.aclose()  # type: ignore[attr-defined]  # an async generator


# --- what is shown ------------------------------------------------------------------------------------------


class _View:
    """A view of blocks and trouble; a context manager."""

    def __init__(self, goes_on: str) -> None:
        self.goes_on = goes_on
        self.blocks_count = 0
        self.size_bytes = 0
        self.begun_at = time.monotonic()

    def __enter__(self) -> _View:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def show(self, received: Received) -> None:
        """Show a block."""
        self.blocks_count += 1
        self.size_bytes += received.block.size_bytes

    def trouble(self, line: str) -> None:
        """Show why the follower left a node."""
        click.echo(f"sluice: {one_line(line)}; {self.goes_on}", err=True)

    def totals(self) -> str:
        """Return how much has come, in words."""
        seconds = max(time.monotonic() - self.begun_at, 1e-3)
        return (
            f"{self.blocks_count} blocks, {size_text(self.size_bytes)}, {self.blocks_count / seconds:.1f} "
            f"blocks/s, {size_text(self.size_bytes / seconds)}/s"
        )


class _LineView(_View):
    """A view with a line for each block."""

    def __init__(self, goes_on: str, *, as_json: bool, to_files: bool) -> None:
        super().__init__(goes_on)
        self._as_json = as_json
        self._to_files = to_files

    def show(self, received: Received) -> None:
        """Print a line; only count blocks that go to files."""
        super().show(received)
        if self._as_json:
            line = {**summarize(received.block).as_json(), "gateway": received.address}
            click.echo(json.dumps(line))
        elif not self._to_files:
            block = received.block
            click.echo(f"block {block.number}: {len(block.items)} items, {size_text(block.size_bytes)}")
        sys.stdout.flush()

    def __exit__(self, *error: object) -> None:
        if not self._as_json:
            click.echo(self.totals())


class _TableView(_View):
    """A view with a live table of the last blocks."""

    def __init__(self, goes_on: str, end: int | None) -> None:
        super().__init__(goes_on)
        self._end = end
        self._rows: deque[Received] = deque(maxlen=_TABLE_ROWS)
        self._trouble = ""
        self._live = Live(
            console=Console(), get_renderable=self._render, refresh_per_second=_TABLE_REFRESHES_PER_SECOND
        )

    def __enter__(self) -> _View:
        self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.__exit__(None, None, None)

    def show(self, received: Received) -> None:
        """Add a block to the table."""
        super().show(received)
        self._rows.append(received)

    def trouble(self, line: str) -> None:
        """Show the last trouble below the table."""
        self._trouble = f"{line}; {self.goes_on}"

    def _render(self) -> Group:
        table = Table("block", "items", "size", "from", box=None, pad_edge=False)
        for received in tuple(self._rows):
            block = received.block
            table.add_row(
                str(block.number), str(len(block.items)), size_text(block.size_bytes), received.address
            )
        goal = "" if self._end is None else f" of those up to block {self._end}"
        lines: list[Table | Text] = [table, Text(f"{self.totals()}{goal}")]
        if self._trouble:
            lines.append(Text(self._trouble, style="yellow"))
        return Group(*lines)
