"""`sluice publish`: racing publishers send a chain, from block files, a stream, a node or a lake table, or
make it of the stream of a network. They run in this process, or as Spark jobs.
"""

from __future__ import annotations

import os
import shlex
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, Final, Self

import click
from rich.console import Console

from sluice.gateway.commands.parameter_types import FiniteRange, NamedPath, SizeType, offers, offers_files
from sluice.gateway.commands.tls_options import tls_options
from sluice.gateway.ignored_signals import unless_ignored
from sluice.gateway.logs import one_line
from sluice.gateway.settings.kinds import size_text
from sluice.gateway.transport.channels import ClientTls
from sluice.gateway.transport.failures import trouble_at
from sluice.publishers.blocks.signing_key import KeyPlace
from sluice.publishers.commands.publish_display import Display, report_json, report_lines, report_table
from sluice.publishers.errors import OptionError
from sluice.publishers.job.checkpoint import Engine, FollowCheckpoint, engine_in
from sluice.publishers.job.job import JobReport, publish
from sluice.publishers.job.local_chain import open_chain, size_of, why_spark
from sluice.publishers.job.local_job import publish_locally
from sluice.publishers.number_range import NUMBER_MAX, NumberRange
from sluice.publishers.spark.chain_sources import check_before_spark, check_followed, check_options
from sluice.publishers.spark.folders import folder_of
from sluice.publishers.spark.gateway_options import gateways_of
from sluice.publishers.spark.option_types import SparkSinkOptions, names_of
from sluice.publishers.spark.options import current_names
from sluice.publishers.spark.session import build_session, is_local, is_submitted, leave_signals_to_python
from sluice.publishers.spark.sink_options import FORMER_NAMES, SinkOptions
from sluice.publishers.spark.source_names import SourceName, parse_sources

__all__ = ["Interrupts", "command", "command_line", "program_words"]

PUBLISHERS_MAX: Final = 64
"""Most racing publishers: each is a task slot and two Python processes."""
SHARDS_MAX: Final = 256
"""Most parts at once of one publisher: each is a task slot."""
STATUS_INTERRUPTED = 130
GROUP_BY_DEFAULT: Final = "batch"
ENGINES: Final = ("auto", "local", "spark")
SPARK_ABOVE_BYTES_DEFAULT: Final = 1 << 30
"""One process reads, checks and sends this much in the time that Spark needs to start, several times over."""
_ONE_TASK: Final = {"spark.sql.shuffle.partitions": "1", "spark.sql.streaming.minBatchesToRetain": "10"}
"""For a query in which one task makes the chain: other partitions would be empty, and each batch that Spark
keeps has the entries of a whole block."""
_WORDS = "sluice.publishers.commands.publish.words"
_OWN_WORDS: Final = ("sluice", "publish")
_SUBMIT_CLASS: Final = "org.apache.spark.deploy.SparkSubmit"
_SPARK_SINK_OPTIONS: Final = ("part_order_seconds",)
"""Options of the sink that order the parts of a DataFrame."""
_NAMED_APART = frozenset(("gateways", "publisher_id"))
_SET_BY_US = frozenset(("coordinator", "report_path", "first_block"))
_NOT_OF_SOURCES = {
    "blockfiles": frozenset(("from", "to", "path", "paths")),
    "blockstream": frozenset(("from", "to", "path", "gateways")),
    "datastream": frozenset(("path", "server")),
    "server": frozenset(("group_by",)),
    "file": frozenset(("group_by",)),
    "parquet": frozenset(("path",)),
    "table": frozenset[str](),
}
"""Options that --source, --from and --to set. `from` of a data stream is an entry number."""
_NUMBER = click.IntRange(0, NUMBER_MAX - 1)
_SECONDS = FiniteRange(min=0, min_open=True)


class _Command(click.Command):
    """A command that remembers its words."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_WORDS] = list(args)
        return super().parse_args(ctx, args)


@contextmanager
def _bad_parameter(context: click.Context, parameter: click.Parameter) -> Iterator[None]:
    try:
        yield
    except OptionError as error:
        raise click.BadParameter(f"got {error.got}, expected {error.expected}", context, parameter) from error


def _pairs(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f"got {text!r}, expected NAME=VALUE", context, parameter)
        pairs[name.strip()] = value
    return pairs


def _parse_gateways(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> tuple[str, ...]:
    parts = [part for text in texts for part in text.split(",")]
    with _bad_parameter(context, parameter):
        gateways_of({"gateways": ",".join(parts)})
    return tuple(part.strip() for part in parts)


def _parse_key(context: click.Context, parameter: click.Parameter, text: str | None) -> KeyPlace | None:
    """Parse FILE or env:NAME, without reading the key or repeating the text."""
    if text is None:
        return None
    variable = text.removeprefix("env:") if text.startswith("env:") else None
    with _bad_parameter(context, parameter):
        place = KeyPlace.parse(text if variable is None else None, variable)
    # Workers have other working directories.
    return place if place.file is None else KeyPlace(str(Path(place.file).absolute()), None)


def _parse_checkpoint(context: click.Context, parameter: click.Parameter, text: str | None) -> Path | None:
    with _bad_parameter(context, parameter):
        return None if text is None else folder_of(text, "checkpoint")


def _parse_prefix(context: click.Context, parameter: click.Parameter, value: str) -> str:
    name = value.strip()
    with _bad_parameter(context, parameter):
        SinkOptions.parse({"gateways": "127.0.0.1:1", "publisher_id": name})
    return name


@dataclass(frozen=True, slots=True)
class _Request:
    source: SourceName
    gateways: tuple[str, ...]
    numbers: NumberRange
    publisher_count: int
    publisher_prefix: str
    shards: int
    key: KeyPlace | None
    checkpoint: Path | None
    sink_options: dict[str, str]
    tls: ClientTls | None
    master: str | None
    settings: Mapping[str, str]
    spark_log: Path | None
    engine: str
    spark_above_bytes: int


@click.command(
    "publish",
    cls=_Command,
    epilog="Examples: sluice publish --source chain/ --gateway a:40840 --gateway b:40840 --publishers 3; "
    "sluice publish --source parquet:s3a://lake/blocks --gateway a:40840 --sign env:SIGNING_KEY; "
    "sluice publish --source blockstream:other:40840 --gateway a:40840 --follow --checkpoint state/. "
    "Everything else is in docs/spark.md.",
)
@click.option(
    "--source",
    "source_texts",
    multiple=True,
    required=True,
    metavar="SOURCE",
    shell_complete=offers_files,
    help="A folder of block files (N.blk, N.blk.gz, N.blk.zst) with all below it, a zip or tar of them, or a "
    "glob such as 'blocks/**/*.zip'; several of them are one chain. Or FORMAT:WHERE: blockfiles:PATH; "
    "datastream:PATH or datastream:HOST:PORT, a node's stream; blockstream:HOST:PORT, its gRPC address; "
    "parquet:PATH or table:NAME, with the columns block_number BIGINT and items ARRAY<BINARY>. Or the stream "
    "of a zkEVM network, of which blocks are made: server:HOST:PORT, its sequencer's data streamer, or "
    "file:PATH, a stream file.",
)
@click.option(
    "--group-by",
    "group_by",
    metavar="batch|l2block|bookmark|N",
    shell_complete=offers("batch", "l2block", "bookmark"),
    help="What makes one block of a source server: or file: a batch (the default), an L2 block, the entries "
    "from a bookmark to the next, or N entries.",
)
@click.option(
    "--option",
    "source_options",
    callback=_pairs,
    multiple=True,
    metavar="NAME=VALUE",
    help="An option of the source's format; repeatable.",
)
@click.option("--from", "first", type=_NUMBER, metavar="N", help="The first block to publish.")
@click.option("--to", "last", type=_NUMBER, metavar="M", help="The last block to publish.")
@click.option(
    "--gateway",
    "gateways",
    callback=_parse_gateways,
    multiple=True,
    required=True,
    metavar="HOST:PORT[/PRIORITY]",
    help="A gateway; the others take over when it fails. The lowest priority number is preferred; without "
    "numbers, the first gateway. Racing publishers share gateways of one number. Repeatable, or a list.",
)
@click.option(
    "--publishers",
    "publisher_count",
    type=click.IntRange(1, PUBLISHERS_MAX),
    default=1,
    show_default=True,
    metavar="N",
    help="Publishers that race with the whole chain; each block is stored once.",
)
@click.option(
    "--shards",
    type=click.IntRange(1, SHARDS_MAX),
    default=1,
    show_default=True,
    metavar="N",
    help="Parts of the chain that each publisher prepares at once, and sends in order.",
)
@click.option(
    "--publisher-id",
    "publisher_prefix",
    callback=_parse_prefix,
    default="publisher",
    show_default=True,
    metavar="NAME",
    help="Name of the publishers; nodes see NAME-1, NAME-2, …",
)
@click.option(
    "--sign",
    "key",
    callback=_parse_key,
    metavar="FILE|env:NAME",
    shell_complete=offers_files,
    help="Sign each block with this Ed25519 key (sluice keygen), in place of the proofs that it has. Workers "
    "read it from the file or the environment variable; no plan and no log has it. Sources server: and file: "
    "need it.",
)
@click.option(
    "--follow",
    is_flag=True,
    help="Keep publishing new blocks, until Ctrl-C or --to. Needs --checkpoint.",
)
@click.option(
    "--checkpoint",
    type=NamedPath(file_okay=False),
    callback=_parse_checkpoint,
    metavar="DIR",
    help="Folder for the progress of --follow; the same command continues there.",
)
@click.option(
    "--deadline",
    "deadline_seconds",
    type=_SECONDS,
    metavar="SECONDS",
    help="Give up after so long without a newly stored block. Default: try for ever.",
)
@click.option(
    "--reset-interval",
    "reset_interval_seconds",
    type=_SECONDS,
    metavar="SECONDS",
    help="Leave a stream in good order after so long, and continue at the next gateway. Default: never.",
)
@click.option(
    "--rate",
    "blocks_per_second",
    type=_SECONDS,
    metavar="BLOCKS",
    help="Offer at most so many blocks a second, as a network would; stored ones take no time. "
    "Default: no limit.",
)
@click.option(
    "--sink-option",
    "sink_options",
    callback=_pairs,
    multiple=True,
    metavar="NAME=VALUE",
    help="Any other option of the sink, such as cache_bytes=67108864; docs/spark.md lists them. Repeatable.",
)
@tls_options
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default="auto",
    show_default=True,
    help="What reads and prepares the blocks: this process, or Spark jobs. auto takes Spark for tables, "
    "Parquet files, --follow of server: sources, --shards, any option of Spark, and files of --spark-above "
    "or more. With --follow it stays with the engine that the checkpoint was begun with.",
)
@click.option(
    "--spark-above",
    "spark_above_bytes",
    type=SizeType(),
    default=size_text(SPARK_ABOVE_BYTES_DEFAULT),
    show_default=True,
    metavar="BYTES",
    help="With --engine auto: the size of files from which on Spark is worth its start.",
)
@click.option(
    "--master",
    help="Spark master. A local one gets at least a task slot for each part of each publisher. Default: "
    "local[*], or that of spark-submit.",
)
@click.option(
    "--conf",
    "settings",
    callback=_pairs,
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of Spark, such as spark.driver.memory=4g; repeatable.",
)
@click.option(
    "--spark-log",
    type=NamedPath(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="File for Spark's own log.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@click.pass_context
def command(
    context: click.Context,
    source_texts: tuple[str, ...],
    source_options: dict[str, str],
    group_by: str | None,
    first: int | None,
    last: int | None,
    gateways: tuple[str, ...],
    publisher_count: int,
    shards: int,
    publisher_prefix: str,
    key: KeyPlace | None,
    follow: bool,
    checkpoint: Path | None,
    deadline_seconds: float | None,
    reset_interval_seconds: float | None,
    blocks_per_second: float | None,
    sink_options: dict[str, str],
    tls: ClientTls | None,
    master: str | None,
    settings: dict[str, str],
    spark_log: Path | None,
    engine: str,
    spark_above_bytes: int,
    as_json: bool,
) -> int:
    """Publish a chain of blocks with racing publishers.

    It ends when every block is acknowledged. It passes over blocks that are stored already, so the same
    command can be run again at any time. The first Ctrl-C (or SIGTERM, or a closed terminal) finishes the
    block in flight and says how to go on; the second ends at once.

    Exit status 1 when a publisher gave up: a block was refused, or the deadline passed. 130 when interrupted.
    """
    if last is not None and last < (first or 0):
        raise click.UsageError(f"--to {last} is before --from {first or 0}")
    if follow != (checkpoint is not None):
        raise click.UsageError("--follow and --checkpoint go together")
    source = _source(source_texts, source_options, group_by, is_followed=follow)
    if source.is_network and key is None:
        raise click.UsageError(f"{source} needs --sign: the blocks that are made of it have no proofs")
    request = _Request(
        source=source,
        gateways=gateways,
        numbers=NumberRange(first or 0, None if last is None else last + 1),
        publisher_count=publisher_count,
        publisher_prefix=publisher_prefix,
        shards=shards,
        key=key,
        checkpoint=checkpoint,
        sink_options=_sink_options(
            sink_options,
            deadline_seconds=deadline_seconds,
            reset_interval_seconds=reset_interval_seconds,
            blocks_per_second=blocks_per_second,
        ),
        tls=tls,
        master=master,
        settings=settings,
        spark_log=spark_log,
        engine=engine,
        spark_above_bytes=spark_above_bytes,
    )
    _check_log(spark_log)
    return _perform(request, context.meta[_WORDS], as_json=as_json)


def _check_log(path: Path | None) -> None:
    """Open the file of --spark-log; the session would explain a failure less well."""
    if path is None:
        return
    try:
        path.open("ab").close()
    except OSError as error:
        got = f"{path} cannot be written to: {error.strerror}"
        raise click.BadParameter(got, param_hint="--spark-log") from error


def _source(
    texts: tuple[str, ...], options: dict[str, str], group_by: str | None, *, is_followed: bool
) -> SourceName:
    """Parse the source and the options of its format; add the default of --group-by.

    It refuses a wrong source before the checkpoint, which belongs to its first source for good.
    """
    try:
        source = parse_sources(texts, options)
        if is_followed:
            check_followed(source)
    except OptionError as error:
        raise click.BadParameter(
            f"got {error.got}, expected {error.expected}", param_hint="--source"
        ) from error
    for name in sorted(options):
        if name.lower() in _NOT_OF_SOURCES[source.kind]:
            raise click.BadParameter(f"{name} has an option of its own", param_hint="--option")
    if source.is_network:
        source = replace(source, options={**source.options, "group_by": group_by or GROUP_BY_DEFAULT})
    elif group_by is not None:
        raise click.UsageError(f"--group-by is for server: and file: sources, not {source.kind}:")
    try:
        check_options(source)
    except OptionError as error:
        raise click.BadParameter(str(error), param_hint="--option") from error
    return source


def _sink_options(given: dict[str, str], **named: float | None) -> dict[str, str]:
    given = {name.lower(): value for name, value in given.items()}  # as Spark takes them
    for name in sorted(given):
        if name in _NAMED_APART or name.startswith("tls"):
            raise click.BadParameter(f"{name} has an option of its own", param_hint="--sink-option")
        if name in _SET_BY_US:
            raise click.BadParameter(f"sluice publish sets {name} itself", param_hint="--sink-option")
        if name in names_of(SparkSinkOptions):
            raise click.BadParameter(f"{name} is no option of the sink", param_hint="--sink-option")
    options = given | {name: str(value) for name, value in named.items() if value is not None}
    try:
        options = current_names(options, FORMER_NAMES)
        SinkOptions.parse({"gateways": "127.0.0.1:1", **options})
    except OptionError as error:
        raise click.BadParameter(str(error), param_hint="--sink-option") from error
    return options


def _perform(request: _Request, words: list[str], *, as_json: bool) -> int:
    with Interrupts() as interrupts, Display(is_quiet=as_json) as display:
        try:
            report = _run(request, interrupts, display)
        except KeyboardInterrupt:
            report = None
        except Exception:
            if not interrupts.is_raised:
                raise
            report = None  # py4j raises its own error for an interrupt
    if report is None:
        said = "interrupted; what was acknowledged is stored" if interrupts.asked.is_set() else "interrupted"
        click.echo(f"sluice: {said}. Go on with:\n{_line(words, None)}", err=True)
        return STATUS_INTERRUPTED
    go_on = _go_on(request, report, words)
    if as_json:
        click.echo(report_json(report, go_on))
    else:
        _print(report)
    for failure in report.failures:
        click.echo(f"sluice: publisher {failure.publisher_id} failed: {one_line(failure.reason)}", err=True)
    if go_on is not None:
        known = report.safe_through
        stored = "no block is known to be stored" if known is None else f"blocks up to {known} are stored"
        said = "interrupted; " if report.is_interrupted else ""
        click.echo(f"sluice: {said}{stored}. Go on with:\n{go_on}", err=True)
    if report.is_interrupted:
        return STATUS_INTERRUPTED
    return 0 if report.is_complete else 1


def _run(request: _Request, interrupts: Interrupts, display: Display) -> JobReport:
    engine = _engine_of(request)
    if request.key is not None and (engine == "local" or is_local(request.master)):
        request.key.load()  # whoever signs is on this machine: refuse a wrong key now
    run = _run_locally if engine == "local" else _run_spark
    return run(request, interrupts, display)


def _engine_of(request: _Request) -> str:
    """Choose the engine; raise UsageError if the wanted one cannot do what is asked."""
    is_followed = request.checkpoint is not None
    sink_names = [name for name in _SPARK_SINK_OPTIONS if name in request.sink_options]
    reasons = (
        why_spark(request.source, is_followed=is_followed),
        bool(sink_names) and f"--sink-option {sink_names[0]}",
        request.shards > 1 and "--shards",
        request.master is not None and "--master",
        bool(request.settings) and "--conf",
        request.spark_log is not None and "--spark-log",
    )
    why = next(filter(None, reasons), None)
    if request.engine == "local" and why is not None:
        raise click.UsageError(f"--engine local does not take {why}: that is done by Spark")
    if request.engine != "auto":
        return request.engine
    if why is not None or is_submitted(os.environ):
        return "spark"
    begun_with = None if request.checkpoint is None else engine_in(request.checkpoint)
    if begun_with is not None:
        return begun_with
    size_bytes = size_of(request.source, request.numbers, is_followed=is_followed)
    is_large = size_bytes is not None and size_bytes >= request.spark_above_bytes
    return "spark" if is_large and find_spec("pyspark") is not None else "local"


def _say_if_none_takes_blocks(request: _Request, display: Display) -> None:
    """Say that no gateway can be connected to; the publishers then try for as long as they are told to.

    By plain sockets: PySpark forks, which a gRPC that runs already does not always survive.
    """
    troubles = []
    for address, _ in gateways_of({"gateways": ",".join(request.gateways)}):
        trouble = trouble_at(address, request.tls)
        if trouble is None:
            return
        troubles.append(f"{address}: {trouble}")
    display.say(f"no gateway takes blocks ({'; '.join(troubles)}); trying on")


def _run_locally(request: _Request, interrupts: Interrupts, display: Display) -> JobReport:
    with ExitStack() as cleanup:
        checkpoint = chain = None
        if request.checkpoint is not None:
            checkpoint = cleanup.enter_context(_checkpoint_of(request, request.checkpoint, "local"))
        else:
            chain = open_chain(request.source, request.numbers)
        _say_if_none_takes_blocks(request, display)
        stop = cleanup.enter_context(interrupts.graceful())
        return publish_locally(
            request.source,
            request.gateways,
            request.publisher_count,
            numbers=request.numbers,
            chain=chain,
            key=request.key,
            checkpoint=checkpoint,
            publisher_prefix=request.publisher_prefix,
            tls=request.tls,
            sink_options=request.sink_options,
            on_progress=display.show,
            stop=stop,
        )


def _checkpoint_of(request: _Request, folder: Path, engine: Engine) -> FollowCheckpoint:
    source, first = str(request.source), request.numbers.first
    group_by = request.source.options.get("group_by") if request.source.is_network else None
    return FollowCheckpoint(folder, source, first, group_by, engine=engine)


def _run_spark(request: _Request, interrupts: Interrupts, display: Display) -> JobReport:
    if request.checkpoint is None:
        check_before_spark(request.source, request.numbers)
    with ExitStack() as cleanup:
        checkpoint = None
        if request.checkpoint is not None:
            checkpoint = cleanup.enter_context(_checkpoint_of(request, request.checkpoint, "spark"))
        if is_local(request.master):
            _say_if_none_takes_blocks(request, display)
        display.starting("Starting Spark")
        slots = request.publisher_count * request.shards
        settings = request.settings
        if request.source.kind == "server":
            settings = {**_ONE_TASK, **settings}
        spark = build_session(
            request.master, slots, "sluice publish", log_file=request.spark_log, settings=settings
        )
        cleanup.callback(spark.stop)
        leave_signals_to_python(spark)
        with interrupts.graceful() as stop:
            return publish(
                spark,
                request.source,
                request.gateways,
                request.publisher_count,
                numbers=request.numbers,
                shards=request.shards,
                key=request.key,
                checkpoint=checkpoint,
                publisher_prefix=request.publisher_prefix,
                tls=request.tls,
                sink_options=request.sink_options,
                on_progress=display.show,
                stop=stop,
            )


def _go_on(request: _Request, report: JobReport, words: list[str]) -> str | None:
    """Return the command that does what is left; None: nothing is."""
    if report.is_complete:
        return None
    known = report.safe_through
    if request.checkpoint is not None or known is None:
        return _line(words, None)
    if report.last_block is not None and known >= report.last_block:
        return None
    if report.first_block is not None and known < report.first_block:
        return _line(words, None)  # the node's chain ends before the source begins
    return _line(words, known + 1)


def _line(words: list[str], first_block: int | None) -> str:
    return command_line(program_words(os.environ), words, first_block)


def _print(report: JobReport) -> None:
    console = Console()
    if console.is_terminal:
        console.print(report_table(report, console))
        return
    for line in report_lines(report):
        click.echo(line)


# --- signals, and the command that goes on ------------------------------------------------------------------


class Interrupts:
    """Ctrl-C, SIGTERM and SIGHUP for a command that has something to finish: the first asks, the second ends.

        with Interrupts() as interrupts:
            prepare()                          each signal raises KeyboardInterrupt, at once
            with interrupts.graceful():
                run(stop=interrupts.asked)     the first sets the event; the second raises KeyboardInterrupt

    When the terminal closes, both kernel and shell send SIGHUP, so only the first counts. An ignored SIGHUP,
    as under nohup, stays ignored. Outside the main thread it handles nothing.
    """

    def __init__(self) -> None:
        self.asked = threading.Event()
        """Set by the first signal in a graceful part."""
        self.is_raised = False
        """True if a signal has raised KeyboardInterrupt."""
        self._is_graceful = False
        self._has_hung_up = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self.claim()
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def claim(self) -> None:
        """Install the handlers, again if need be: PySpark installs its own for SIGINT."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM, *unless_ignored(signal.SIGHUP)):
            before = signal.signal(number, self._handle)
            self._before.setdefault(number, before)

    @contextmanager
    def graceful(self) -> Iterator[threading.Event]:
        """Let the first signal set the returned event."""
        self.claim()
        self._is_graceful = True
        try:
            yield self.asked
        finally:
            self._is_graceful = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            if self._has_hung_up:
                return
            self._has_hung_up = True
        if self._is_graceful and not self.asked.is_set():
            self.asked.set()
            return
        self.is_raised = True
        raise KeyboardInterrupt


def program_words(environment: Mapping[str, str], parent: Path | None = None) -> list[str]:
    """Return the words before those of the command: its own name, or those of spark-submit.

    The JVM of spark-submit is our parent process: its command line, in the folder `parent` of /proc, has
    spark-submit's words.
    """
    if not is_submitted(environment):
        return list(_OWN_WORDS)
    parent = parent or Path(f"/proc/{os.getppid()}")
    try:
        words = (parent / "cmdline").read_text().rstrip("\0").split("\0")
    except OSError:
        words = []
    if _SUBMIT_CLASS not in words:
        return ["spark-submit", "…", "sluice_publish.py"]
    rest = words[words.index(_SUBMIT_CLASS) + 1 :]
    script = next((at for at, word in enumerate(rest) if word.endswith(".py")), len(rest) - 1)
    return ["spark-submit", *rest[: script + 1]]


def command_line(program: Sequence[str], words: Sequence[str], first_block: int | None) -> str:
    """Return the command that goes on; `first_block` replaces `--from`, unless it is None."""
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        if first_block is not None and word == "--from":
            next(rest, None)
        elif first_block is None or not word.startswith("--from="):
            kept.append(word)
    if first_block is not None:
        kept += ["--from", str(first_block)]
    return shlex.join([*program, *kept])
