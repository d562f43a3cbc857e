"""`sluice demo`: the main job from end to end.

block files ──► racing Spark publishers ──gRPC──► node ──► stream file ──TCP──► client, which compares
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sluice.gateway.blocks.block import Block
from sluice.gateway.identity import name_of_claim
from sluice.gateway.key_files import public_key_hex
from sluice.publishers.blocks.block_files import write_block_file
from sluice.publishers.blocks.block_layouts import path_in
from sluice.publishers.blocks.block_places import BlockFileReader, LocalStore, blocks_in, check_no_gaps
from sluice.publishers.blocks.maker import BlockMaker, MakerOptions, key_of_seed
from sluice.publishers.demo.node_process import NodeProcess
from sluice.publishers.job.job import JobProgress, JobReport, publish
from sluice.publishers.report import percentile_ns
from sluice.publishers.sources.stream_reader import ReadTotals, StreamReader
from sluice.publishers.spark.session import build_session, leave_signals_to_python

__all__ = ["DemoOptions", "DemoProgress", "DemoResult", "PublisherResult", "run_demo"]

SEED: Final = 1
SKIP_WINDOW_BLOCKS: Final = 100
_PATIENT: Final = ("--tcp-inactivity-timeout-seconds", "3600")
"""The client reads nothing until Spark has started, perhaps for minutes."""
_WON: Final = re.compile(r'sluice_blocks_won_total\{publisher="(?P<publisher>[^"]*)"\}')
STORE_SECONDS: Final = 120.0
"""The publishers' deadline; with a full disk they would never end."""
READ_SECONDS: Final = 60.0
"""The client's deadline after the publishers are done."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The options of the demo."""

    folder: Path
    block_count: int = 300
    """Without `source`."""
    source: Path | None = None
    """Block files to publish instead."""
    publishers: int = 3
    blocks_per_second: float | None = 50.0
    """Pace of the network."""
    master: str = "local[*]"
    node_arguments: tuple[str, ...] = ()
    """Further words for `sluice serve`."""
    maker: MakerOptions = field(default_factory=MakerOptions)


@dataclass(frozen=True, slots=True)
class DemoProgress:
    """The progress of the demo."""

    step: str
    block_count: int = 0
    """0: unknown."""
    done: int = 0
    """Blocks made, or stored by the node."""
    read: int = 0
    """Blocks that the client has read."""


@dataclass(frozen=True, slots=True)
class PublisherResult:
    """The result of one publisher."""

    name: str
    won: int
    skipped: int
    acknowledged: int
    """Blocks acknowledged, or known as duplicates."""
    bytes_sent: int
    failure: str | None


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The result of the demo."""

    first_block: int
    last_block: int
    read: ReadTotals
    publishers: tuple[PublisherResult, ...]
    latency_median_ns: int | None
    """See `PublishReport.latency_ns`."""
    latency_p99_ns: int | None
    publish_seconds: float
    """The longest time from a publisher's first event to its last."""
    verification_mode: str
    folder: Path
    """Has `node/datastream.bin`, `node.log`, `spark.log`."""
    source: Path

    @property
    def block_count(self) -> int:
        """The chain's blocks."""
        return self.last_block - self.first_block + 1

    @property
    def is_good(self) -> bool:
        """True if every block was acknowledged to every publisher, and read back unchanged."""
        acknowledged = all(
            one.failure is None and one.acknowledged == self.block_count for one in self.publishers
        )
        return acknowledged and self.read.blocks == self.block_count and self.read.differing == 0


def run_demo(options: DemoOptions, on_progress: Callable[[DemoProgress], None]) -> DemoResult:
    """Run the demo, and stop all that it started."""
    source, arguments = _chain(options, on_progress)
    places = {place.number: place for place in blocks_in(source)}
    check_no_gaps(str(source), list(places.values()))
    first, last = min(places), max(places)
    if first > 0:
        arguments += ["--first-block", str(first)]
    # A publisher that is a moment late should skip the block, not connect again.
    arguments += ["--publish-duplicate-skip-window", str(SKIP_WINDOW_BLOCKS)]
    count = last - first + 1
    node_log, spark_log = options.folder / "node.log", options.folder / "spark.log"

    with ExitStack() as cleanup:
        files = cleanup.enter_context(BlockFileReader(LocalStore()))

        def published(number: int) -> Block:
            return files.read(places[number])

        on_progress(DemoProgress("starting a node", count))
        node = cleanup.enter_context(
            NodeProcess(
                options.folder / "node",
                node_log,
                [*arguments, *_PATIENT, *options.node_arguments],
                is_bound=True,
            )
        )
        reader = StreamReader(*node.tcp, published, last)
        cleanup.callback(reader.stop)
        reader.start()
        on_progress(DemoProgress("starting Spark", count))
        spark = build_session(options.master, options.publishers, "sluice demo", log_file=spark_log)
        cleanup.callback(spark.stop)
        leave_signals_to_python(spark)

        def job_progress(progress: JobProgress) -> None:
            done = 0 if progress.last_stored is None else progress.last_stored - first + 1
            waiting = progress.ready < options.publishers and done == 0
            step = "starting publishers" if waiting else "publishing"
            on_progress(DemoProgress(step, count, done, reader.totals.blocks))

        report = publish(
            spark,
            source,
            [node.grpc],
            options.publishers,
            deadline_seconds=STORE_SECONDS,
            blocks_per_second=options.blocks_per_second,
            on_progress=job_progress,
        )
        _await_reader(reader, report, count, on_progress)
        mode = "hash" if "hash" in arguments else "full"
        return _result(report, reader.totals, _blocks_won(node), mode, options)


def _chain(options: DemoOptions, on_progress: Callable[[DemoProgress], None]) -> tuple[Path, list[str]]:
    """Return the folder of blocks, and how the node verifies them."""
    if options.source is not None:
        trusted = any(word == "--ledger-key" for word in options.node_arguments)
        return options.source, [] if trusted else ["--verify", "hash"]
    source = options.folder / "blocks"
    source.mkdir()
    key: Ed25519PrivateKey = key_of_seed(SEED)
    for block in BlockMaker(SEED, key, options.maker).blocks(options.block_count):
        write_block_file(source / path_in("plain", block.number, "blk.gz"), block)
        on_progress(DemoProgress("making blocks", options.block_count, block.number + 1))
    return source, ["--ledger-key", f"ed25519:{public_key_hex(key)}"]


def _await_reader(
    reader: StreamReader, report: JobReport, count: int, on_progress: Callable[[DemoProgress], None]
) -> None:
    deadline = time.monotonic() + READ_SECONDS
    while report.is_complete and reader.is_alive() and time.monotonic() < deadline:
        reader.join(0.1)
        on_progress(DemoProgress("reading the rest", count, count, reader.totals.blocks))
    if reader.failure is not None:
        raise reader.failure


def _blocks_won(node: NodeProcess) -> dict[str, int]:
    """Ask the node, which alone knows."""
    found = {}
    for name, value in node.metrics().items():
        if match := _WON.fullmatch(name):
            found[match["publisher"]] = int(value)
    return found


def _result(
    report: JobReport, read: ReadTotals, won: dict[str, int], mode: str, options: DemoOptions
) -> DemoResult:
    failed = {failure.publisher_id: failure.reason for failure in report.failures}
    shares = [
        PublisherResult(
            one.publisher_id,
            won.get(name_of_claim(one.publisher_id), 0),
            one.skipped,
            one.acknowledged + one.duplicate,
            one.bytes_sent,
            failed.pop(one.publisher_id, one.failure),
        )
        for one in report.publishers
    ]
    shares += [PublisherResult(name, won.get(name, 0), 0, 0, 0, reason) for name, reason in failed.items()]
    latency_ns = [sample for one in report.publishers for sample in one.latency_ns]
    assert report.first_block is not None, "a folder of block files has a first one"
    assert report.last_block is not None
    return DemoResult(
        first_block=report.first_block,
        last_block=report.last_block,
        read=read,
        publishers=tuple(sorted(shares, key=lambda share: share.name)),
        latency_median_ns=percentile_ns(latency_ns, 50),
        latency_p99_ns=percentile_ns(latency_ns, 99),
        publish_seconds=max((one.elapsed_ns for one in report.publishers), default=0) / 1e9,
        verification_mode=mode,
        folder=options.folder,
        source=options.source or options.folder / "blocks",
    )
