"""`sluice publish`: Spark jobs race to publish a folder of block files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from gateway.addresses import parse_addresses
from gateway.channels import ClientTls
from gateway.commands.tls_options import tls_options
from gateway.errors import AddressError
from publishers.block_files import check_no_gaps, list_block_files
from publishers.job import JobProgress, JobReport, publish
from publishers.limits import PUBLISHERS_MAX
from publishers.report import PublishReport, percentile_ns
from publishers.spark.session import build_session

__all__ = ["command", "report_lines", "report_table"]

MILLISECOND_NS = 1_000_000

_COLUMNS: tuple[tuple[str, Callable[[PublishReport], object]], ...] = (
    ("publisher", lambda report: report.publisher_id),
    ("blocks", lambda report: report.blocks),
    ("won", lambda report: report.won),
    ("skipped", lambda report: report.skipped),
    ("acknowledged", lambda report: report.acknowledged),
    ("stored before", lambda report: report.duplicate),
    ("resent", lambda report: report.resent),
    ("reconnects", lambda report: report.reconnects),
    ("ack median", lambda report: _milliseconds(report, 50)),
    ("ack p99", lambda report: _milliseconds(report, 99)),
)


def _parse_gateways(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> tuple[str, ...]:
    """Check the addresses, and give them in their usual form, each once."""
    try:
        addresses = [address for text in texts for address in parse_addresses(text, port_min=1)]
    except AddressError as error:
        raise click.BadParameter(str(error), context, parameter) from error
    return tuple(dict.fromkeys(map(str, addresses)))


@click.command("publish")
@click.option(
    "--source",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    required=True,
    metavar="PATH",
    help="Folder of block files: N.blk, N.blk.gz, N.blk.zst, without gaps.",
)
@click.option(
    "--gateway",
    "gateways",
    callback=_parse_gateways,
    multiple=True,
    required=True,
    metavar="HOST:PORT[,HOST:PORT…]",
    help="Gateways, the preferred one first; the others take over when it fails. May be given repeatedly.",
)
@click.option(
    "--publishers",
    "publisher_count",
    type=click.IntRange(1, PUBLISHERS_MAX),
    default=1,
    show_default=True,
    metavar="N",
    help="How many Spark jobs race with the whole chain; each block is stored once.",
)
@click.option(
    "--publisher-id",
    "publisher_prefix",
    default="publisher",
    show_default=True,
    metavar="NAME",
    help="By which nodes know the publishers: NAME-1, NAME-2, …",
)
@click.option(
    "--master",
    default="local[*]",
    show_default=True,
    help="Spark master. A local one gets a task slot per publisher at least.",
)
@click.option(
    "--deadline",
    "deadline_seconds",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Give up after so long without a block becoming safe. Default: try for ever.",
)
@click.option(
    "--reset-interval",
    "reset_interval_seconds",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Leave a stream in good order after so long, and go on at the next gateway. Default: never.",
)
@click.option(
    "--rate",
    "blocks_per_second",
    type=click.FloatRange(min=0, min_open=True),
    metavar="BLOCKS",
    help="Offer at most so many blocks a second, as a network would. Default: no limit.",
)
@click.option(
    "--spark-log",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Keep Spark's own log there.",
)
@tls_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(
    source: Path,
    gateways: tuple[str, ...],
    publisher_count: int,
    publisher_prefix: str,
    master: str,
    deadline_seconds: float | None,
    reset_interval_seconds: float | None,
    blocks_per_second: float | None,
    spark_log: Path | None,
    tls: ClientTls | None,
    as_json: bool,
) -> int:
    """Publish a chain of block files with racing Spark jobs.

    Ends when every block is acknowledged; blocks that are stored already are passed over. Exit status 1
    when a publisher gave up: a block was refused, or the deadline passed.
    """
    files = list_block_files(source)
    check_no_gaps(source, files)  # before Spark, which takes seconds to start
    with _display(files[0][0], files[-1][0], quiet=as_json) as show:
        spark = build_session(master, publisher_count, app_name="sluice publish", log_file=spark_log)
        try:
            report = publish(
                spark,
                source,
                gateways,
                publisher_count,
                publisher_prefix=publisher_prefix,
                deadline_seconds=deadline_seconds,
                reset_interval_seconds=reset_interval_seconds,
                blocks_per_second=blocks_per_second,
                tls=tls,
                on_progress=show,
            )
        finally:
            spark.stop()
    if as_json:
        click.echo(json.dumps(_as_json(report)))
    else:
        _print(report)
    for failure in report.failures:
        click.echo(f"sluice: publisher {failure.publisher_id} failed: {failure.reason}", err=True)
    return 0 if report.is_complete else 1


def report_table(report: JobReport) -> Table:
    """Make the table that ends a run on a terminal: one row per publisher that ended well."""
    table = Table(title=_summary(report))
    for title, _ in _COLUMNS:
        table.add_column(title, justify="left" if title == "publisher" else "right")
    for published in report.publishers:
        table.add_row(*(f"{value(published)}" for _, value in _COLUMNS))
    return table


def report_lines(report: JobReport) -> list[str]:
    """Say the same in plain lines."""
    lines = [_summary(report)]
    for published in report.publishers:
        facts = ", ".join(f"{title} {value(published)}" for title, value in _COLUMNS[1:])
        lines.append(f"{published.publisher_id}: {facts}")
    return lines


def _summary(report: JobReport) -> str:
    blocks = (
        f"block {report.first_block}"
        if report.first_block == report.last_block
        else f"blocks {report.first_block} to {report.last_block}"
    )
    state = "stored" if report.is_complete else "not all stored as far as is known"
    return f"{blocks}: {state}, {report.elapsed_seconds:.1f} s"


def _print(report: JobReport) -> None:
    console = Console()
    if console.is_terminal:
        console.print(report_table(report))
        return
    for line in report_lines(report):
        click.echo(line)


def _as_json(report: JobReport) -> dict[str, object]:
    publishers = []
    for published in report.publishers:
        fields = json.loads(published.to_json())
        del fields["latency_ns"]  # a number per block; the percentiles say enough
        for percent in (50, 99):
            fields[f"latency_p{percent}_ns"] = percentile_ns(published.latency_ns, percent)
        publishers.append(fields)
    failures = [
        {"publisher_id": failure.publisher_id, "reason": failure.reason} for failure in report.failures
    ]
    return {
        "complete": report.is_complete,
        "first_block": report.first_block,
        "last_block": report.last_block,
        "elapsed_seconds": round(report.elapsed_seconds, 3),
        "publishers": publishers,
        "failures": failures,
    }


def _milliseconds(report: PublishReport, percent: float) -> str:
    latency_ns = percentile_ns(report.latency_ns, percent)
    return "-" if latency_ns is None else f"{latency_ns / MILLISECOND_NS:.1f} ms"


@contextmanager
def _display(
    first_block: int, last_block: int, *, quiet: bool
) -> Iterator[Callable[[JobProgress], None] | None]:
    """Show how far the gateway is, on a terminal; nothing when piped."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        total = last_block - first_block + 1
        task = progress.add_task("Starting Spark", total=total)

        def show(seen: JobProgress) -> None:
            if not seen.is_reachable:
                doing = "No gateway answers"
            elif seen.ready < seen.running:
                doing = "Starting publishers"
            else:
                doing = f"Publishing ({seen.running} running)"
            stored = 0 if seen.head is None else seen.head - first_block + 1
            progress.update(task, description=doing, completed=min(total, max(0, stored)))

        yield show
