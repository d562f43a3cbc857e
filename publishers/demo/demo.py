"""`sluice demo`: three nodes, racing publishers, and what goes wrong between them.

    publishers ──gRPC──► active node ──► two standbys
    misbehaving ─┘            └── TCP reader, gRPC reader: they compare every block with its source

Each step begins when the chain has grown far enough. At the end the demo checks its own claims: nothing lost,
nothing repeated, the same bytes everywhere, and that each thing that it shows did happen.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import grpc
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sluice.gateway.blocks.block import Block
from sluice.gateway.errors import GatewayError
from sluice.gateway.key_files import public_key_hex
from sluice.publishers.blocks.block_files import write_block_file
from sluice.publishers.blocks.block_layouts import path_in
from sluice.publishers.blocks.block_places import BlockFileReader, LocalStore, blocks_in, check_no_gaps
from sluice.publishers.blocks.maker import BlockMaker, MakerOptions, key_of_seed
from sluice.publishers.demo.cluster import NODES, Cluster, name_of
from sluice.publishers.demo.misbehaving import Misbehaviour, Outcome, misbehave
from sluice.publishers.demo.reading import GrpcReader, Reader, ReadTotals, TcpReader
from sluice.publishers.errors import PublisherError
from sluice.publishers.job.job import JobProgress, JobReport, publish
from sluice.publishers.job.local_job import publish_locally
from sluice.publishers.report import PublishReport, percentile_ns
from sluice.publishers.spark.session import build_session, leave_signals_to_python
from sluice.publishers.spark.source_names import parse_source

__all__ = ["DemoClaim", "DemoOptions", "DemoProgress", "DemoResult", "Show", "nodes_again", "run_demo"]

SEED: Final = 1
STORE_SECONDS: Final = 120.0
"""The publishers' deadline; with a full disk they would never end."""
READ_SECONDS: Final = 60.0
"""Longest wait for readers and standbys after the publishers are done."""
STEP_SECONDS: Final = 30.0
"""Longest wait for a node's answer in one step."""
AWAY_SECONDS: Final = 2.0
"""Time for which the killed node is away after another one took over."""
_LOOK_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The options of the demo."""

    folder: Path
    block_count: int = 600
    """Without `source`."""
    source: Path | None = None
    """Block files to publish instead."""
    publishers: int = 3
    blocks_per_second: float | None = 20.0
    """Pace of the network."""
    engine: Literal["local", "spark"] = "spark"
    master: str = "local[*]"
    ledger_keys: tuple[str, ...] = ()
    """Of `source`; without any the nodes check no proofs."""
    grpc: str | None = None
    """gRPC address of the first node; None: a free port."""
    tcp: str | None = None
    """Its TCP address; None: a free port."""
    maker: MakerOptions = field(default_factory=MakerOptions)


@dataclass(frozen=True, slots=True)
class DemoProgress:
    """The progress of one phase."""

    phase: str
    done: int = 0
    total: int | None = None
    """None: it is not counted."""


@dataclass(frozen=True, slots=True)
class DemoClaim:
    """Something that the demo shows, and whether it is so."""

    name: str
    holds: bool
    said: str


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The result of the demo."""

    first_block: int
    last_block: int
    publishers: tuple[PublishReport, ...]
    readers: dict[str, ReadTotals]
    claims: tuple[DemoClaim, ...]
    latency_median_ns: int | None
    """See `PublishReport.latency_ns`."""
    latency_p99_ns: int | None
    publish_seconds: float
    """The longest time from a publisher's first event to its last."""
    verification_mode: str
    folder: Path
    """Has `node-1/datastream.bin` and so on, `node-1.log`, `spark.log`."""
    source: Path
    active_node: int
    """The number of the node that is active at the end: 1 is `node-1`."""

    @property
    def block_count(self) -> int:
        """The chain's blocks."""
        return self.last_block - self.first_block + 1

    @property
    def is_good(self) -> bool:
        """True if every claim holds."""
        return all(claim.holds for claim in self.claims)


class Show:
    """A display of the demo while it runs; the base class shows nothing."""

    def progress(self, progress: DemoProgress) -> None:
        """Show how far a phase is."""

    def happened(self, text: str) -> None:
        """Show a step of the timeline."""


def run_demo(options: DemoOptions, show: Show) -> DemoResult:
    """Run the demo, and stop all that it started."""
    source = _chain(options, show)
    places = {place.number: place for place in blocks_in(source)}
    check_no_gaps(str(source), list(places.values()))
    first, last = min(places), max(places)
    arguments = _node_words(options, first)
    files = BlockFileReader(LocalStore())
    lock = threading.Lock()

    def block_of(number: int) -> Block | None:
        with lock:
            return files.read(places[number]) if number in places else None

    def block_at(number: int) -> Block:
        found = block_of(number)
        assert found is not None, "no node has a block that was not published"
        return found

    numbers = range(first, last + 1)
    with ExitStack() as cleanup:
        cleanup.callback(files.close)
        cluster = Cluster(options.folder, arguments, options.grpc, options.tcp)
        cleanup.callback(cluster.kill)
        _start(cluster, show)
        readers: dict[str, Reader] = {
            "TCP reader": TcpReader("tcp-reader", cluster.tcp, block_at, first, last),
            "gRPC reader": GrpcReader("grpc-reader", cluster.grpc, block_at, first, last),
        }
        mode = "hash" if "hash" in arguments else "full"
        publishing = _Publishing(options, source, cluster.grpc, show)
        cleanup.callback(publishing.stop)
        publishing.begin()
        for reader in readers.values():
            cleanup.callback(reader.abandon)
            reader.start()
        timeline = _Timeline(cluster, block_of, numbers, publishing, checks_proofs=mode == "full")
        publishing.start()
        timeline.start()
        while publishing.is_alive() or timeline.is_alive():
            publishing.join(_LOOK_SECONDS)
            time.sleep(0 if publishing.is_alive() else _LOOK_SECONDS)
            _show_counts(show, publishing, readers, numbers)
        _await_all(publishing, readers, cluster, numbers)
        _show_counts(show, publishing, readers, numbers)
        cluster.stop()
        return _result(options, source, mode, numbers, publishing, readers, cluster, timeline)


@contextmanager
def nodes_again(options: DemoOptions, result: DemoResult, show: Show) -> Iterator[Cluster]:
    """Start the nodes again on what they have after a demo, in their last roles; stop them at the end."""
    arguments = _node_words(options, result.first_block)
    cluster = Cluster(options.folder, arguments, options.grpc, options.tcp)
    cluster.active = result.active_node - 1
    try:
        _start(cluster, show)
        yield cluster
        cluster.stop()
    finally:
        cluster.kill()


def _start(cluster: Cluster, show: Show) -> None:
    show.progress(DemoProgress("starting nodes", 0, NODES))
    cluster.start(lambda count: show.progress(DemoProgress("starting nodes", count, NODES)))
    for at, address in enumerate(cluster.http):
        role = "active" if at == cluster.active else "standby"
        show.happened(f"{name_of(at)} is {role}: http://{address}")


def _show_counts(show: Show, publishing: _Publishing, readers: dict[str, Reader], numbers: range) -> None:
    progress = publishing.progress
    if progress is None or not progress.publishers:
        show.progress(DemoProgress("starting publishers"))
        return
    stored = numbers.start - 1 if progress.safe_through is None else progress.safe_through
    show.progress(DemoProgress("publishing", stored - numbers.start + 1, len(numbers)))
    for name, reader in readers.items():
        show.progress(DemoProgress(name, reader.totals.blocks, len(numbers)))


def _await_all(publishing: _Publishing, readers: dict[str, Reader], cluster: Cluster, numbers: range) -> None:
    """Wait until readers and standbys have all blocks; the claims say if they have not."""
    deadline = time.monotonic() + READ_SECONDS
    while publishing.report_or_raise().is_complete and time.monotonic() < deadline:
        is_read = not any(reader.is_alive() for reader in readers.values())
        if is_read and cluster.heads() == [numbers.stop - 1] * NODES:
            return
        publishing.show.progress(DemoProgress("waiting for readers and standbys"))
        time.sleep(_LOOK_SECONDS)


def _chain(options: DemoOptions, show: Show) -> Path:
    """Return the folder of blocks; make them if none are given."""
    if options.source is not None:
        return options.source
    source = options.folder / "blocks"
    source.mkdir()
    key: Ed25519PrivateKey = key_of_seed(SEED)
    for block in BlockMaker(SEED, key, options.maker).blocks(options.block_count):
        write_block_file(source / path_in("plain", block.number, "blk.gz"), block)
        show.progress(DemoProgress("making blocks", block.number + 1, options.block_count))
    return source


def _node_words(options: DemoOptions, first_block: int) -> list[str]:
    """Return how the nodes verify the blocks, and which is their first."""
    if options.source is None:
        words = ["--ledger-key", f"ed25519:{public_key_hex(key_of_seed(SEED))}"]
    else:
        keys = [word for key in options.ledger_keys for word in ("--ledger-key", key)]
        words = keys or ["--verify", "hash"]
    return [*words, "--first-block", str(first_block)] if first_block > 0 else words


# --- the publishers -----------------------------------------------------------------------------------------


class _Publishing(threading.Thread):
    """The racing publishers, in a thread of their own."""

    def __init__(self, options: DemoOptions, source: Path, gateways: Sequence[str], show: Show) -> None:
        super().__init__(name="publishing", daemon=True)
        self.show = show
        self.progress: JobProgress | None = None
        self._options = options
        self._source = source
        self._gateways = list(gateways)
        self._stopping = threading.Event()
        self._error: Exception | None = None
        self._report: JobReport | None = None
        self._spark: Any = None
        """The session, with the engine `spark`."""

    def begin(self) -> None:
        """Start Spark, if it publishes; only the main thread may."""
        if self._options.engine == "spark":
            self.show.progress(DemoProgress("starting Spark"))
            log = self._options.folder / "spark.log"
            spark = build_session(self._options.master, self._options.publishers, "sluice demo", log_file=log)
            leave_signals_to_python(spark)
            self._spark = spark

    def run(self) -> None:
        """Publish the chain."""
        try:
            self._report = self._publish()
        except Exception as error:
            self._error = error

    def _publish(self) -> JobReport:
        options = {"deadline_seconds": str(STORE_SECONDS)}
        if self._options.blocks_per_second is not None:
            options["blocks_per_second"] = str(self._options.blocks_per_second)
        source, count = parse_source(f"blockfiles:{self._source}"), self._options.publishers
        # Of one priority, all publishers begin with the active node, which the standbys name.
        gateways = [f"{gateway}/{at}" for at, gateway in enumerate(self._gateways)]
        run = publish_locally if self._spark is None else partial(publish, self._spark)
        return run(source, gateways, count, sink_options=options, on_progress=self._note, stop=self._stopping)

    def _note(self, progress: JobProgress) -> None:
        self.progress = progress

    @property
    def is_stopping(self) -> bool:
        """True once `stop` was called: the demo ends, finished or not."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """Stop what still runs."""
        self._stopping.set()
        if self._spark is not None:
            self._spark.stop()

    def report_or_raise(self) -> JobReport:
        """Return the report, after the thread ended."""
        if self._error is not None:
            raise self._error
        assert self._report is not None
        return self._report


# --- the timeline -------------------------------------------------------------------------------------------


class _Timeline(threading.Thread):
    """The things that go wrong, each when the chain has grown far enough."""

    def __init__(
        self,
        cluster: Cluster,
        block_of: Callable[[int], Block | None],
        numbers: range,
        publishing: _Publishing,
        *,
        checks_proofs: bool,
    ) -> None:
        super().__init__(name="timeline", daemon=True)
        self.outcomes: dict[Misbehaviour, Outcome] = {}
        self.is_taken_over = False
        self.error: Exception | None = None
        self._cluster = cluster
        self._block_of = block_of
        self._numbers = numbers
        self._publishing = publishing
        self._checks_proofs = checks_proofs
        self._show = publishing.show

    def run(self) -> None:
        """Do all steps; one that goes wrong ends it."""
        steps: tuple[tuple[float, Callable[[], None]], ...] = (
            (0.1, lambda: self._misbehave(Misbehaviour.HANG, "a publisher hangs in the middle of a block")),
            (0.25, self._send_bad_proof),
            (0.4, lambda: self._misbehave(Misbehaviour.REPEAT, "a publisher lags: it offers stored blocks")),
            (0.55, self._fail_over),
        )
        try:
            for share, step in steps:
                if self._await(self._numbers.start + int(share * len(self._numbers))):
                    step()
        except Exception as error:
            if self._publishing.is_stopping:
                return  # what the step needs is gone
            if not isinstance(error, PublisherError | GatewayError | OSError | grpc.RpcError):
                raise
            self.error = error
            self._show.happened(f"went wrong: {error}")

    def _send_bad_proof(self) -> None:
        if self._checks_proofs:  # else the block would be stored
            self._misbehave(Misbehaviour.BAD_PROOF, "a publisher sends a block with a wrong proof")

    def _await(self, number: int) -> bool:
        """Wait until a block is stored; return False if the publishers ended before."""
        while True:
            progress = self._publishing.progress
            stored = None if progress is None else progress.safe_through
            if stored is not None and stored >= number:
                return True
            if not self._publishing.is_alive():
                return False
            time.sleep(_LOOK_SECONDS / 4)

    def _misbehave(self, kind: Misbehaviour, text: str) -> None:
        self._show.happened(text)
        self.outcomes[kind] = asyncio.run(
            misbehave(
                kind,
                self._cluster.grpc[self._cluster.active],
                self._block_of,
                publisher_id=f"misbehaving-{kind}",
                patience_seconds=STEP_SECONDS,
                say=lambda line: self._show.happened(f"  {line}"),
            )
        )

    def _fail_over(self) -> None:
        dead = self._cluster.kill_active()
        self._show.happened(f"{name_of(dead)} is killed (kill -9): no node is active")
        target = self._cluster.take_over(lambda step: self._show.happened(f"  {step.name}: {step.detail}"))
        self._show.happened(f"{name_of(target)} is active; publishers and readers go on there")
        self.is_taken_over = True
        time.sleep(AWAY_SECONDS)
        self._cluster.start_one(dead, "standby")
        self._show.happened(f"{name_of(dead)} is back, as a standby, and takes the blocks that it missed")


# --- the end ------------------------------------------------------------------------------------------------


def _result(
    options: DemoOptions,
    source: Path,
    mode: str,
    numbers: range,
    publishing: _Publishing,
    readers: dict[str, Reader],
    cluster: Cluster,
    timeline: _Timeline,
) -> DemoResult:
    report = publishing.report_or_raise()
    latency_ns = [sample for one in report.publishers for sample in one.latency_ns]
    return DemoResult(
        first_block=numbers.start,
        last_block=numbers.stop - 1,
        publishers=report.publishers,
        readers={name: reader.totals for name, reader in readers.items()},
        claims=(
            *_claims_of_chain(report, len(numbers), readers, cluster.digests()),
            *_claims_of_race(report, timeline, mode, options.publishers),
        ),
        latency_median_ns=percentile_ns(latency_ns, 50),
        latency_p99_ns=percentile_ns(latency_ns, 99),
        publish_seconds=max((one.elapsed_ns for one in report.publishers), default=0) / 1e9,
        verification_mode=mode,
        folder=options.folder,
        source=source,
        active_node=cluster.active + 1,
    )


def _claims_of_chain(
    report: JobReport, count: int, readers: dict[str, Reader], digests: list[str]
) -> Iterator[DemoClaim]:
    failures = "; ".join(f"{failure.publisher_id}: {failure.reason}" for failure in report.failures)
    stored = failures or f"every publisher knows that all {count:,} blocks are stored"
    yield DemoClaim(
        "acknowledged", report.is_complete, stored if report.is_complete or failures else "not all"
    )
    totals = [reader.totals for reader in readers.values()]
    lost = sum(count - one.blocks + one.repeated for one in totals)
    trouble = "; ".join(f"{name}: {one.failure}" for name, one in readers.items() if one.failure is not None)
    yield DemoClaim(
        "lost",
        lost == 0,
        f"{lost:,} blocks lost by {len(totals)} readers" + (f" ({trouble})" * bool(trouble)),
    )
    repeated = sum(one.repeated for one in totals)
    yield DemoClaim("repeated", repeated == 0, f"{repeated:,} blocks came twice")
    missing = sum(one.missing for one in totals)
    yield DemoClaim(
        "out of order", missing + repeated == 0, f"{missing + repeated:,} blocks came out of order"
    )
    differing = sum(one.differing for one in totals)
    yield DemoClaim("changed", differing == 0, f"{differing:,} blocks differ from what was published")
    same = len(set(digests)) == 1
    said = f"the streams of {NODES} nodes are the same, byte for byte (SHA-256 {digests[0][:16]}…)"
    yield DemoClaim("identical", same, said if same else f"the nodes' streams differ: {', '.join(digests)}")


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _claims_of_race(
    report: JobReport, timeline: _Timeline, mode: str, publishers: int
) -> Iterator[DemoClaim]:
    winners = sum(row.won > 0 for row in report.publishers)
    if publishers > 1:
        yield DemoClaim("race", winners > 1, f"{winners} of {publishers} publishers won blocks")
        skipped = sum(row.skipped for row in report.publishers)
        yield DemoClaim("skip", skipped > 0, f"{_times(skipped)} a publisher was told to skip a block")
        resent = sum(row.resent for row in report.publishers)
        yield DemoClaim("resend", resent > 0, f"{_times(resent)} a publisher was asked for a block again")
    for kind in (Misbehaviour.HANG, Misbehaviour.BAD_PROOF, Misbehaviour.REPEAT):
        if kind is Misbehaviour.BAD_PROOF and mode == "hash":
            continue  # that mode checks no proofs
        outcome = timeline.outcomes.get(kind)
        answers = ", ".join(outcome.answers) if outcome is not None else "it never came to that"
        yield DemoClaim(str(kind), outcome is not None and outcome.is_expected, f"answered with {answers}")
    said = "another node took over, and the old one is its standby"
    trouble = f"no failover: {timeline.error or 'it never came to that'}"
    yield DemoClaim(
        "failover",
        timeline.is_taken_over and timeline.error is None,
        said if timeline.is_taken_over else trouble,
    )
