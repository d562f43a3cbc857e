"""`sluice demo`: the main job from end to end, with a progress display and a summary."""

from __future__ import annotations

import dataclasses
import json
import math
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

import click
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from sluice.gateway.addresses import parse_address
from sluice.gateway.blocks.trusted_keys import TrustedKeys
from sluice.gateway.commands.parameter_types import NamedPath
from sluice.gateway.ignored_signals import unless_ignored
from sluice.gateway.table_lines import table_lines
from sluice.publishers.blocks.block_places import blocks_in, check_no_gaps
from sluice.publishers.blocks.maker import MakerOptions
from sluice.publishers.demo.demo import DemoOptions, DemoProgress, DemoResult, run_demo
from sluice.publishers.errors import PublisherError
from sluice.publishers.limits import MAKER_BLOCKS_MAX
from sluice.publishers.verify.verify_run import make_verifier

__all__ = ["command", "print_result"]


class DemoFailed(PublisherError):
    """The demo's summary shows a fault."""


@click.command("demo", short_help="Run a node, racing publishers and a reader, and sum up.")
@click.option(
    "--blocks",
    "block_count",
    type=click.IntRange(1, MAKER_BLOCKS_MAX),
    default=300,
    show_default=True,
    metavar="N",
    help="How many blocks to make.",
)
@click.option(
    "--source",
    type=NamedPath(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Publish the block files of this folder instead of made ones. The node checks their proofs with "
    "--ledger-key; without one it runs in mode hash and checks no signatures.",
)
@click.option(
    "--ledger-key",
    "ledger_keys",
    multiple=True,
    metavar="KIND:KEY",
    help="With --source: a key to check its proofs with. Repeatable.",
)
@click.option(
    "--publishers", type=click.IntRange(1, 64), default=3, show_default=True, help="How many publishers race."
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0),
    default=50.0,
    show_default=True,
    metavar="BLOCKS",
    help="Blocks a second that the network makes; 0: as many as the node takes.",
)
@click.option("--transactions-per-block", type=int, default=10, show_default=True, help="Of made blocks.")
@click.option("--item-bytes", type=int, default=1024, show_default=True, help="Largest items of made blocks.")
@click.option(
    "--folder",
    type=NamedPath(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Empty folder for blocks, the node's data and logs. Default: a new temporary folder.",
)
@click.option("--master", default="local[*]", show_default=True, help="Spark master.")
@click.option("--grpc", metavar="HOST:PORT", help="The node's gRPC address. Default: a free port.")
@click.option("--tcp", metavar="HOST:PORT", help="The node's TCP address. Default: a free port.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def command(
    block_count: int,
    source: Path | None,
    ledger_keys: tuple[str, ...],
    publishers: int,
    rate: float,
    transactions_per_block: int,
    item_bytes: int,
    folder: Path | None,
    master: str,
    grpc: str | None,
    tcp: str | None,
    as_json: bool,
) -> None:
    """Run a node, three racing Spark publishers and a TCP client, and sum up what happened.

    Exit status 1 if a block was not acknowledged to every publisher, or not read back unchanged. Ctrl-C ends
    it at any moment.
    """
    if ledger_keys and source is None:
        raise click.UsageError("--ledger-key goes with --source: made blocks have a key of their own")
    node_arguments = [word for key in ledger_keys for word in ("--ledger-key", key)]
    for flag, text in (("--grpc", grpc), ("--tcp", tcp)):
        if text is not None:
            node_arguments += [flag, str(parse_address(text))]
    if not math.isfinite(rate):
        raise click.BadParameter(f"{rate:g} is no number of blocks a second", param_hint="--rate")
    maker = MakerOptions(transactions_per_block=transactions_per_block, item_bytes=item_bytes)
    maker.check()
    if source is not None:
        check_no_gaps(str(source), blocks_in(source))
        make_verifier(TrustedKeys.parse(ledger_keys), "full", "auto", 0)  # reads the files that they name
    options = DemoOptions(
        folder=_claim(folder),
        block_count=block_count,
        source=source,
        publishers=publishers,
        blocks_per_second=rate or None,
        master=master,
        node_arguments=tuple(node_arguments),
        maker=maker,
    )
    for number in unless_ignored(signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    console = Console(stderr=as_json)
    click.echo(f"Everything goes to {options.folder}", err=as_json)
    with _Display(console) as display:
        result = run_demo(options, display.update)
    if as_json:
        click.echo(json.dumps(_json_of(result)))
    else:
        print_result(console, result)
    if not result.is_good:
        raise DemoFailed(_problem(result))


def _leave(signal_number: int, frame: FrameType | None) -> None:
    """Exit by an exception, so that the node and Spark are stopped."""
    sys.exit(128 + signal_number)


def _claim(folder: Path | None) -> Path:
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="sluice-demo-"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        got = f"{folder} cannot be made: {error.strerror}"
        raise click.BadParameter(got, param_hint="--folder") from error
    if any(folder.iterdir()):
        raise click.BadParameter(f"{folder} is not empty", param_hint="--folder")
    return folder.absolute()


class _Display:
    """Bars on a terminal; when piped, a line for each step and each fifth of the blocks."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said = ""
        self._bars = Progress(
            TextColumn("{task.description:<22}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self._stored = self._bars.add_task("making blocks", total=None)
        self._read = self._bars.add_task("read by a TCP client", total=None, visible=False)
        self._live = Live(self._bars, console=console, refresh_per_second=8) if console.is_terminal else None

    def __enter__(self) -> _Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, progress: DemoProgress) -> None:
        """Show the progress."""
        total = progress.block_count or None
        if self._live is None:
            fifth = 5 * progress.done // progress.block_count if progress.block_count else 0
            said = f"{progress.step}: {fifth * 20}%" if fifth else progress.step
            if said != self._said:
                self._said = said
                self._console.print(said, highlight=False)
            return
        self._bars.update(self._stored, description=progress.step, total=total, completed=progress.done)
        self._bars.update(
            self._read, total=total, completed=progress.read, visible=progress.step != "making blocks"
        )


def print_result(console: Console, result: DemoResult) -> None:
    """Print the summary: tables on a terminal, else plain lines."""
    race, sums = _race_rows(result), _sum_rows(result)
    if not console.is_terminal:
        click.echo("\n".join([*table_lines(race), "", *table_lines(sums)]))
        return
    table = Table(*race[0], title="The race")
    for column in table.columns[1:]:
        column.justify = "right"
    _fold(table)
    for row in race[1:]:
        table.add_row(*map(Text, row))
    console.print(table)
    table = Table("what", "figures", title="The chain", show_header=False)
    _fold(table)
    for row in sums:
        table.add_row(*map(Text, row))
    console.print(table)


def _fold(table: Table) -> None:
    """Wrap long texts on a narrow terminal: names and paths differ at their ends."""
    for column in table.columns:
        column.overflow = "fold"


def _race_rows(result: DemoResult) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("publisher", "blocks won", "skipped", "acknowledged", "sent")]
    for one in result.publishers:
        acknowledged = one.failure or f"{one.acknowledged:,} of {result.block_count:,}"
        sent = f"{one.bytes_sent / 1e6:,.1f} MB"
        rows.append((one.name, f"{one.won:,}", f"{one.skipped:,}", acknowledged, sent))
    return rows


def _sum_rows(result: DemoResult) -> list[tuple[str, str]]:
    read = result.read
    same = "byte for byte what was published" if result.is_good else _problem(result)
    checked = "root hash, links and proof" if result.verification_mode == "full" else "root hash and links"
    stored = ", each stored once" if result.is_good else ""
    rate = f"{result.block_count / max(result.publish_seconds, 1e-9):,.0f} blocks/s"
    latency = f"median {_ms(result.latency_median_ns)}, p99 {_ms(result.latency_p99_ns)}"
    return [
        ("blocks", f"{result.first_block:,} to {result.last_block:,}{stored}"),
        ("items", f"{read.items:,}"),
        ("bytes of items", f"{read.bytes:,}"),
        ("verified", f"{checked} (mode {result.verification_mode})"),
        ("published in", f"{result.publish_seconds:.1f} s, {rate}"),
        ("time to acknowledge", latency),
        ("TCP client", f"{read.entries:,} entries, {read.blocks:,} blocks: {same}"),
        ("stream file", str(result.folder / "node" / "datastream.bin")),
        ("block files", str(result.source)),
        ("log of the node", str(result.folder / "node.log")),
        ("log of Spark", str(result.folder / "spark.log")),
    ]


def _ms(nanoseconds: int | None) -> str:
    return "unknown" if nanoseconds is None else f"{nanoseconds / 1e6:,.1f} ms"


def _problem(result: DemoResult) -> str:
    for one in result.publishers:
        if one.failure is not None:
            return f"{one.name} failed: {one.failure}"
        if one.acknowledged != result.block_count:
            return f"{one.name}: {one.acknowledged} blocks acknowledged, expected {result.block_count}"
    if result.read.blocks != result.block_count:
        return f"TCP client: {result.read.blocks} blocks read, expected {result.block_count}"
    return f"TCP client: {result.read.differing} blocks differ from what was published"


def _json_of(result: DemoResult) -> dict[str, object]:
    plain = dataclasses.asdict(result) | {"blocks": result.block_count, "good": result.is_good}
    return {key: str(value) if isinstance(value, Path) else value for key, value in plain.items()}
