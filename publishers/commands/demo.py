"""`sluice demo`: three nodes, racing publishers and what goes wrong, with a timeline and a summary."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType
from typing import Final, Literal

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from sluice.gateway.addresses import Address, parse_address
from sluice.gateway.blocks.trusted_keys import TrustedKeys
from sluice.gateway.commands.parameter_types import NamedPath
from sluice.gateway.ignored_signals import unless_ignored
from sluice.gateway.settings.table import SETTINGS
from sluice.gateway.table_lines import table_lines
from sluice.publishers.blocks.block_places import blocks_in, check_no_gaps
from sluice.publishers.blocks.maker import MakerOptions
from sluice.publishers.demo.demo import DemoOptions, DemoProgress, DemoResult, Show, nodes_again, run_demo
from sluice.publishers.errors import PublisherError, SparkUnavailable
from sluice.publishers.limits import MAKER_BLOCKS_MAX
from sluice.publishers.spark.preflight import check_libraries
from sluice.publishers.spark.session import is_submitted, require_java
from sluice.publishers.verify.verify_run import make_verifier

__all__ = ["command", "print_result"]


BLOCKS: Final = 600
QUICK_BLOCKS: Final = 200


class DemoFailed(PublisherError):
    """The demo's summary shows a fault."""


@click.command("demo", short_help="Run three nodes and racing publishers, and let things go wrong.")
@click.option(
    "--blocks",
    "block_count",
    type=click.IntRange(1, MAKER_BLOCKS_MAX),
    show_default=f"{BLOCKS}; with --quick {QUICK_BLOCKS}",
    metavar="N",
    help="How many blocks to make.",
)
@click.option("--quick", is_flag=True, help="Take 20 seconds: fewer blocks, and publishers without Spark.")
@click.option(
    "--engine",
    type=click.Choice(("local", "spark")),
    show_default="spark; with --quick local",
    help="What the publishers are: parts of this process, or Spark jobs.",
)
@click.option(
    "--source",
    type=NamedPath(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Publish the block files of this folder instead of made ones. The nodes check their proofs with "
    "--ledger-key; without one they run in mode hash and check no signatures.",
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
    default=20.0,
    show_default=True,
    metavar="BLOCKS",
    help="Blocks a second that the network makes; 0: as many as the nodes take, which may be over before "
    "anything goes wrong.",
)
@click.option("--transactions-per-block", type=int, default=10, show_default=True, help="Of made blocks.")
@click.option("--item-bytes", type=int, default=1024, show_default=True, help="Largest items of made blocks.")
@click.option(
    "--folder",
    type=NamedPath(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Empty folder for blocks, the nodes' data and logs. Default: a new temporary folder.",
)
@click.option("--master", default="local[*]", show_default=True, help="Spark master.")
@click.option("--grpc", metavar="HOST:PORT", help="The first node's gRPC address. Default: a free port.")
@click.option("--tcp", metavar="HOST:PORT", help="The first node's TCP address. Default: a free port.")
@click.option(
    "--stay", is_flag=True, help="Run the nodes on at the end, until Ctrl-C, and say how to read from them."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def command(
    block_count: int | None,
    quick: bool,
    engine: Literal["local", "spark"] | None,
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
    stay: bool,
    as_json: bool,
) -> None:
    """Run three nodes and racing publishers, let things go wrong, and check what came of it.

    \b
    A publisher hangs in the middle of a block: another publisher sends the block.
    A publisher sends a block with a wrong proof: it is refused.
    A publisher lags: it is told to skip, or that its block is stored.
    The active node is killed: a standby takes over; the old node returns as one.

    A TCP reader and a gRPC reader compare every block with what was published, all the while. At the end the
    demo checks that nothing was lost, repeated or out of order, that all nodes have the same bytes, and that
    all of the above did happen. Exit status 1 if anything is not so. Ctrl-C ends it at any moment.
    """
    if stay and as_json:
        raise click.UsageError("--stay is for people: it goes without --json")
    if ledger_keys and source is None:
        raise click.UsageError("--ledger-key goes with --source: made blocks have a key of their own")
    if not math.isfinite(rate):
        raise click.BadParameter(f"{rate:g} is no number of blocks a second", param_hint="--rate")
    maker = MakerOptions(transactions_per_block=transactions_per_block, item_bytes=item_bytes)
    maker.check()
    if source is not None:
        check_no_gaps(str(source), blocks_in(source))
        make_verifier(TrustedKeys.parse(ledger_keys), "full", "auto", 0)  # reads the files that they name
    engine = engine or ("local" if quick else "spark")
    if engine == "spark" and not is_submitted(os.environ):
        try:
            check_libraries()
            require_java()
        except SparkUnavailable as error:
            remedy = f"{error.remedy}; `sluice demo --quick` needs no Spark"
            raise SparkUnavailable(error.reason, remedy) from error
    options = DemoOptions(
        folder=_claim(folder),
        block_count=block_count or (QUICK_BLOCKS if quick else BLOCKS),
        source=source,
        publishers=publishers,
        blocks_per_second=rate or None,
        engine=engine,
        master=master,
        ledger_keys=ledger_keys,
        grpc=_address(grpc, "grpc.address", stay=stay),
        tcp=_address(tcp, "tcp.address", stay=stay),
        maker=maker,
    )
    for number in unless_ignored(signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    console = Console(stderr=as_json)
    click.echo(f"Everything goes to {options.folder}", err=as_json)
    logging.getLogger("sluice").addHandler(logging.FileHandler(options.folder / "demo.log"))
    logging.getLogger("sluice").propagate = False  # into the timeline
    try:
        with _Display(console) as display:
            result = run_demo(options, display)
    except KeyboardInterrupt:
        click.echo("sluice: interrupted; the nodes are stopped", err=True)
        raise
    if as_json:
        click.echo(json.dumps(_json_of(result)))
    else:
        print_result(console, result)
    if not result.is_good:
        raise DemoFailed(_problem(result))
    if stay:
        _stay(options, result)


def _address(given: str | None, setting: str, *, stay: bool) -> str | None:
    """Return the first node's address; None: a free port. One that stays takes the default if it is free."""
    if given is not None:
        return str(parse_address(given))
    if not stay:
        return None
    default = _default(setting)
    try:
        socket.create_server((default.host, default.port)).close()
    except OSError:
        return None
    return str(default)


def _default(setting: str) -> Address:
    (address,) = (one.default for one in SETTINGS if one.name == setting)
    assert isinstance(address, Address)
    return address


def _stay(options: DemoOptions, result: DemoResult) -> None:
    """Run the nodes on until Ctrl-C."""
    with ExitStack() as running:
        with _Display(Console()) as display:  # its bars are gone before the lines below
            cluster = running.enter_context(nodes_again(options, result, display))
        node = "" if cluster.grpc[0] == str(_default("grpc.address")) else f" --node {cluster.grpc[0]}"
        tcp = parse_address(cluster.tcp[0])
        first = f"next(iter_entries({tcp.host!r}, {tcp.port}, from_entry=0))"
        lines = (
            "The nodes run until Ctrl-C. In another terminal:",
            f"  sluice block latest{node}",
            f"  sluice subscribe --from first{node}",
            f'  python -c "from sluice.datastream import iter_entries; print({first})"',
        )
        click.echo("\n".join(("", *lines)))
        with suppress(KeyboardInterrupt):
            signal.pause()
        click.echo("\nstopping the nodes")


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


class _Display(Show):
    """A bar for each phase on a terminal, below the timeline; when piped, the timeline alone."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()
        self._bars = Progress(
            TextColumn("{task.description:<32}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[counts]:>11}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {}
        self._counted: set[str] = set()

    def __enter__(self) -> _Display:
        if self._console.is_terminal:
            self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def progress(self, progress: DemoProgress) -> None:
        """Show the bar of a phase; one without counts ends when the next phase begins."""
        phase, total = progress.phase, progress.total
        if phase not in self._tasks:
            for before, task in self._tasks.items():
                if before not in self._counted:
                    self._bars.update(task, total=1, completed=1)
            self._tasks[phase] = self._bars.add_task(phase, total=total, counts="")
            if not self._console.is_terminal:
                self.happened(phase)
        if total is not None:
            self._counted.add(phase)
            counts = f"{progress.done:,}/{total:,}"
            self._bars.update(self._tasks[phase], completed=progress.done, total=total, counts=counts)

    def happened(self, text: str) -> None:
        """Print a line of the timeline, with its time."""
        line = f"{time.monotonic() - self._started:5.1f} s  {text}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=not self._console.is_terminal)


def print_result(console: Console, result: DemoResult) -> None:
    """Print the summary: tables on a terminal, else plain lines."""
    race, sums = _race_rows(result), _sum_rows(result)
    claims = [("holds" if claim.holds else "FAILS", claim.name, claim.said) for claim in result.claims]
    if not console.is_terminal:
        parts = (table_lines(race), table_lines(sums), table_lines(claims))
        click.echo("\n".join(line for part in parts for line in ("", *part)))
        return
    table = Table(*race[0], title="The race")
    for column in table.columns[1:]:
        column.justify = "right"
    _add(console, table, race[1:])
    _add(console, Table("what", "figures", title="The chain", show_header=False), sums)
    _add(console, Table("", "", "", title="What the demo claims", show_header=False), claims)


def _add(console: Console, table: Table, rows: Sequence[tuple[str, ...]]) -> None:
    """Fill and print a table; long texts wrap, as names and paths differ at their ends."""
    for column in table.columns:
        column.overflow = "fold"
    for row in rows:
        style = "bold red" if row[0] == "FAILS" else None
        table.add_row(*map(Text, row), style=style)
    console.print(table)


def _race_rows(result: DemoResult) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("publisher", "won", "skipped", "resent", "streams", "stored", "sent")]
    for one in result.publishers:
        stored = one.failure or f"{one.acknowledged + one.duplicate:,} of {result.block_count:,}"
        sent = f"{one.bytes_sent / 1e6:,.1f} MB"
        figures = (one.won, one.skipped, one.resent, one.reconnects + 1)
        rows.append((one.publisher_id, *(f"{figure:,}" for figure in figures), stored, sent))
    return rows


def _sum_rows(result: DemoResult) -> list[tuple[str, str]]:
    checked = "root hash, links and proof" if result.verification_mode == "full" else "root hash and links"
    rate = f"{result.block_count / max(result.publish_seconds, 1e-9):,.0f} blocks/s"
    latency = f"median {_ms(result.latency_median_ns)}, p99 {_ms(result.latency_p99_ns)}"
    read = result.readers["TCP reader"]
    return [
        ("blocks", f"{result.first_block:,} to {result.last_block:,}"),
        ("items", f"{read.items:,}, {read.bytes:,} bytes"),
        ("verified", f"{checked} (mode {result.verification_mode})"),
        ("published in", f"{result.publish_seconds:.1f} s, {rate}"),
        ("time to acknowledge", latency),
        ("block files", str(result.source)),
        ("streams and logs", str(result.folder)),
    ]


def _ms(nanoseconds: int | None) -> str:
    return "unknown" if nanoseconds is None else f"{nanoseconds / 1e6:,.1f} ms"


def _problem(result: DemoResult) -> str:
    return "; ".join(f"{claim.name}: {claim.said}" for claim in result.claims if not claim.holds)


def _json_of(result: DemoResult) -> dict[str, object]:
    plain = dataclasses.asdict(result) | {"blocks": result.block_count, "good": result.is_good}
    for row in plain["publishers"]:
        del row["latency_ns"]  # thousands
    return {key: str(value) if isinstance(value, Path) else value for key, value in plain.items()}
