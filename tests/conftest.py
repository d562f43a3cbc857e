"""Fixtures and hooks of all tests: the Spark session, environment, time limits, and hypothesis settings."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import inspect
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from sluice.publishers.errors import SparkUnavailable
from tests import reference_data

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# pytest rewrites their assertions, too.
HELPERS = (
    "nodes serving deaf_client network_double datastream.serving gateway.conducting gateway.racing "
    "interop.foreign interop.network_software interop.sinking publishers.fake_node"
)
pytest.register_assert_rewrite(*(f"tests.{name}" for name in HELPERS.split()))

# As `sluice` does: gRPC runs in the process that forks the session's JVM.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# aiohttp reads the machine's certificates as it is imported, in each node; no test trusts them.
os.environ["SSL_CERT_FILE"] = os.devnull

# nohup and the & of a script ignore these signals, and child processes inherit SIG_IGN. They do not inherit a
# handler.
for ignored in (signal.SIGHUP, signal.SIGINT):
    if signal.getsignal(ignored) == signal.SIG_IGN:
        signal.signal(ignored, signal.default_int_handler if ignored == signal.SIGINT else lambda *_: None)

# Remove proxies, SLUICE_* settings, and variables of terminals and libraries from the environment.
_NOT_FOR_TESTS = {
    *("COLUMNS", "LINES", "TERM", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"),
    *("GRPC_TRACE", "GRPC_VERBOSITY", "PYTHONWARNINGS"),
}
for variable in list(os.environ):
    is_ours = variable.startswith("SLUICE_") and variable not in ("SLUICE_LONG", "SLUICE_NETWORK_JARS")
    if is_ours or variable in _NOT_FOR_TESTS or variable.lower().endswith("_proxy"):
        del os.environ[variable]

# The time of an example depends on the machine's load.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

STILL_SECONDS = 100.0
"""The time after its limit at which a test counts as hanging."""
MEMORY_BYTES_MIN = 4 << 30
"""Room in /dev/shm for the tests of four processes, which have at most 1 GiB each."""
_STDERR = pytest.StashKey[int]()
_SCRATCH = pytest.StashKey[Path]()
_MEMORY = pytest.StashKey[Path]()
_MEMORY_FOLDER = "memory_folder"
_SESSION_TESTS = "session_tests"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--slow`."""
    parser.addoption("--slow", action="store_true", help="run the tests marked slow, too")


def pytest_configure(config: pytest.Config) -> None:
    """Keep the real standard error, as pytest captures that of a test, and make the folders of the run."""
    config.option.slow |= "SLUICE_LONG" in os.environ
    config.stash[_STDERR] = os.dup(2)
    config.stash[_SCRATCH] = scratch = Path(tempfile.mkdtemp(prefix="sluice-tests-"))
    if (worker := getattr(config, "workerinput", None)) is not None:
        config.stash[_MEMORY] = Path(worker[_MEMORY_FOLDER])
        return
    memory = Path("/dev/shm")
    is_large = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= MEMORY_BYTES_MIN
    config.stash[_MEMORY] = Path(
        tempfile.mkdtemp(prefix="sluice-tests-", dir=memory if is_large else scratch)
    )


def pytest_unconfigure(config: pytest.Config) -> None:
    """Close the file, and remove the folders that this process made."""
    os.close(config.stash[_STDERR])
    shutil.rmtree(config.stash[_SCRATCH])
    if not hasattr(config, "workerinput"):
        shutil.rmtree(config.stash[_MEMORY], ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """End this process, with all stacks, if a test hangs.

    The signal of its time limit does not get through uvloop, a busy event loop, or a waiting thread pool.
    """
    marker, config = item.get_closest_marker("timeout"), item.config
    limit = float(marker.args[0] if marker else config.getoption("timeout") or config.getini("timeout"))
    faulthandler.dump_traceback_later(limit + STILL_SECONDS, exit=True, file=config.stash[_STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip slow tests, unless they are wanted. In a worker, begin with the tests of the shared Spark session,
    then with files that have slow ones.
    """
    if not config.getoption("slow"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="slow: `make test-all` runs it"))
    worker = getattr(config, "workerinput", None)  # a run inside of a worker's test is none
    if worker is None:
        return
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (not _is_of_session(item), item.path not in slow))
    if worker["workerid"] == "gw0":
        listed = Path(worker[_SESSION_TESTS])
        listed.write_text("\n".join(item.nodeid for item in items if _is_of_session(item)), "utf-8")


def _is_of_session(item: pytest.Item) -> bool:
    return "spark" in getattr(item, "fixturenames", ())


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker where to list the tests of the Spark session, which only workers know, and the memory."""
    node.workerinput[_SESSION_TESTS] = str(node.config.stash[_SCRATCH] / "session")
    node.workerinput[_MEMORY_FOLDER] = str(node.config.stash[_MEMORY])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give one worker all tests of the Spark session, and the others the rest, file by file.

    A second session takes 25 s of processor time, and fixtures of a file are made once.
    """
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    listed = config.stash[_SCRATCH] / "session"

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        @cached_property
        def session_tests(self) -> frozenset[str]:
            return frozenset(listed.read_text("utf-8").splitlines())

        def _split_scope(self, nodeid: str) -> str:
            return "session" if nodeid in self.session_tests else str(super()._split_scope(nodeid))

    config.option.loadscopereorder = False  # as `pytest_collection_modifyitems` orders them
    return Scheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine function in an event loop of its own; None: the test is none."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in arguments}))
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose files are missing, before its fixtures run."""
    reference_data.skip_without(item)


def pytest_report_teststatus(
    report: pytest.CollectReport | pytest.TestReport,
) -> tuple[str, str, str] | None:
    """Give tests that were skipped for missing files a category of their own."""
    return reference_data.category_of(report)


def _without_reference_data(config: pytest.Config) -> list[pytest.TestReport]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return [] if reporter is None else reporter.stats.get(reference_data.CATEGORY, [])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that skipped tests which it may not skip."""
    if _without_reference_data(session.config) and reference_data.may_not_be_skipped():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None, object, object]:
    """Print the number of tests without files, in the last line before the counts."""
    result = yield
    if skipped := _without_reference_data(terminalreporter.config):
        terminalreporter.write_line(reference_data.summary_of(skipped))
    return result


def pytest_enter_pdb() -> None:
    """Cancel the time limit in a debugger."""
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session")
def java() -> None:
    """Skip a test that needs Java where there is none."""
    from sluice.publishers.spark.session import require_java

    try:
        require_java()
    except SparkUnavailable as error:
        if os.environ.get("JAVA_HOME") or shutil.which("java"):
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with three task slots and the data sources registered.

    It shuffles into four partitions: Spark's 200 take seconds for a dozen rows. It compiles no query, which
    takes longer than a dozen rows.
    """
    from sluice.publishers.spark.session import build_session

    folder = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    session = build_session("local[1]", 3, "tests", folder / "spark.log", settings)
    yield session
    session.stop()


@pytest.fixture
def spark_for_commands(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkSession]:
    """The shared session, which commands in this process take for their own, and do not end."""
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    before = dict(spark.conf.getAll)
    yield spark
    # The command's own session would have its settings alone.
    for name, value in dict(spark.conf.getAll).items():
        if name.startswith("spark.sql.") and before.get(name) != value:
            if name in before:
                spark.conf.set(name, before[name])
            else:
                spark.conf.unset(name)


@pytest.fixture(scope="session")
def memory_folder(pytestconfig: pytest.Config) -> Path:
    """A folder in memory, the run's; on the disk where /dev/shm is small, as in containers."""
    return pytestconfig.stash[_MEMORY]


@pytest.fixture
def memory_path(memory_folder: Path) -> Iterator[Path]:
    """A folder in memory, where there is one, for a test to which the disk is nothing.

    Such are tests with a disk of their own, as `MemoryDisk`, and rooms whose tests kill processes, and never
    a machine. A busy machine takes a second for some flushes.
    """
    with tempfile.TemporaryDirectory(dir=memory_folder) as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Restore the logging that commands set up for their process."""
    loggers = [logging.getLogger(name) for name in ("", "sluice")]
    before = [(one.level, one.propagate, list(one.handlers)) for one in loggers]
    yield
    for logger, (level, propagate, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.propagate, logger.handlers[:] = propagate, handlers


@pytest.fixture(autouse=True)
def process_as_it_was() -> Iterator[None]:
    """Restore the signal handlers and tuning that commands set for their process.

    A closed uvloop leaves its signal handlers in place: Ctrl-C would do nothing any more.
    """
    handlers = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)}
    switch_interval, threshold = sys.getswitchinterval(), gc.get_threshold()
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    sys.setswitchinterval(switch_interval)
    gc.set_threshold(*threshold)
    gc.unfreeze()


@pytest.fixture
def small_parts(spark: SparkSession) -> Iterator[None]:
    """Have Spark read files of some kilobytes in several partitions."""
    settings = {
        "spark.sql.adaptive.advisoryPartitionSizeInBytes": "2048",
        "spark.sql.adaptive.coalescePartitions.minPartitionSize": "1",
        "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    }
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield
    for name, earlier in before.items():
        spark.conf.set(name, earlier or "")
