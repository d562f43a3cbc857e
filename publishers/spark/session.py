"""Starts a Spark session for publishers, or says clearly why it cannot.

Workers get the driver's interpreter, racing publishers a task slot each, and Spark's log goes to a file.
Under spark-submit a JVM runs already, and the user's settings stay. Source: docs/spark.md.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from sluice.gateway.ignored_signals import unless_ignored
from sluice.publishers.errors import SparkUnavailable
from sluice.publishers.limits import (
    ARROW_BATCH_BYTES,
    ARROW_BATCH_ROWS,
    PART_ORDER_SECONDS_DEFAULT,
)
from sluice.publishers.spark import preflight
from sluice.publishers.spark.failures import known_failure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "active_session",
    "build_session",
    "check_workers_of",
    "failures_allowed",
    "is_local",
    "is_submitted",
    "java_version",
    "leave_signals_to_python",
    "part_order_seconds",
    "part_order_seconds_for",
    "require_java",
    "task_slots",
    "with_slots",
]

JAVA_VERSION_MIN: Final = 17
JVM_STARTS_MAX: Final = 3
"""Starts of a JVM that ends silently: a gRPC that runs already can abort in the child that PySpark forks,
before Java begins (about one fork in fifty with grpcio 1.85)."""
PART_ORDER_SECONDS_CROWDED: Final = 60.0
"""See `part_order_seconds`."""
_JAVA_REMEDY: Final = (
    f"install Java {JAVA_VERSION_MIN} or later (Debian and Ubuntu: apt-get install openjdk-17-jre-headless, "
    "or default-jre-headless where that is gone; macOS: brew install openjdk@17), or set JAVA_HOME to one"
)
JAVA_TIMEOUT_SECONDS: Final = 60.0
"""Longest wait for `java -version`, on a busy machine."""
_STACK_FRAME: Final = re.compile(r"\s*at [\w.$]+\(|\s*\.\.\. \d+ more")
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_LOCAL_MASTER: Final = re.compile(r"local(?:\[(?P<slots>\*|\d+)(?P<failures>,\s*\d+)?\])?")
_TASK_FAILURES: Final = 4
_GATEWAY_PORT: Final = "PYSPARK_GATEWAY_PORT"
_LOG_TAIL_LINES: Final = 200
_LOG_SHOWN_LINES: Final = 5
_READ_BY_PYSPARK: Final = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
"""PySpark reads them here whenever a session or a query begins."""
_LOOPBACK: Final = "127.0.0.1"
_LOCAL_HEAP: Final = "4g"
"""A task holds the blocks of an Arrow batch several times, and a block may have 125 MB: Spark's 1 GB is too
little."""
# A short local job mostly compiles Spark, for which the quick compiler is enough. The thorough one triples
# the speed of a long job's rows, and waits for a hundred times as many calls as usual.
_LOCAL_JAVA_OPTIONS: Final = (
    "-XX:+UseSerialGC -XX:Tier4InvocationThreshold=500000 -XX:Tier4MinInvocationThreshold=60000 "
    "-XX:Tier4CompileThreshold=1500000 -XX:Tier4BackEdgeThreshold=4000000"
)

_WORKER_START: Final = """\
import gc, importlib, os, sys

sys.path.remove(os.path.dirname(__file__))
own = sys.modules.pop(__name__)
try:
    import sitecustomize  # of this machine, which this one hides
except ImportError:
    sys.modules[__name__] = own
sys.path[:] = [path for path in sys.path if os.path.basename(path) != "pyspark.zip"]
if "pyspark.daemon" in sys.orig_argv:
    for name in ("block_files", "block_stream", "data_stream"):
        importlib.import_module(f"sluice.publishers.spark.{name}")
    if sys.orig_argv[-1] == "pyspark.worker":
        import pandas
    gc.freeze()  # each worker looks for garbage at once
"""
"""The `sitecustomize` of Spark's Python processes, and of the daemons that fork workers.

Without it a daemon compiles PySpark from a zip file, and each worker reads the directory of that file twenty
times, and imports Sluice and pandas: two seconds of processor time.
"""
_LOG_CONFIGURATION: Final = """\
rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss}} %p %c{{1}}: %m%n%ex
"""


def java_version(java: Path, *, timeout_seconds: float = JAVA_TIMEOUT_SECONDS) -> int | str:
    """Return the major version of a Java, or a text that says what it did instead."""
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=timeout_seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return f"did not say its version within {timeout_seconds:g} s"
    except OSError as error:
        return f"does not run: {error.strerror or error}"
    said = answer.stderr + answer.stdout
    match = _VERSION.search(said)
    if match is not None:
        return int(match[1])
    lines = [line for line in said.splitlines() if line.strip()] or ["nothing"]
    return f"does not run: it says {lines[0]!r} and ends with status {answer.returncode}"


def require_java(
    environment: Mapping[str, str] | None = None, *, timeout_seconds: float = JAVA_TIMEOUT_SECONDS
) -> int:
    """Return the major version of the Java that Spark will find; raise SparkUnavailable."""
    environment = os.environ if environment is None else environment
    home = environment.get("JAVA_HOME")
    if home:
        java, where = Path(home) / "bin" / "java", f"JAVA_HOME ({home})"
        if not java.exists():
            raise SparkUnavailable(
                f"Spark needs Java {JAVA_VERSION_MIN}: {where} has no bin/java", _JAVA_REMEDY
            )
    else:
        found = shutil.which("java", path=environment.get("PATH"))
        if found is None:
            raise SparkUnavailable(
                f"Spark needs Java {JAVA_VERSION_MIN}: there is none in PATH, and JAVA_HOME is not set",
                _JAVA_REMEDY,
            )
        java, where = Path(found), found
    version = java_version(java, timeout_seconds=timeout_seconds)
    if isinstance(version, str):
        reason = f"Spark needs Java {JAVA_VERSION_MIN}: the one in {where} {version}"
        raise SparkUnavailable(reason, _JAVA_REMEDY)
    if version < JAVA_VERSION_MIN:
        raise SparkUnavailable(
            f"Spark needs Java {JAVA_VERSION_MIN}: {where} is version {version}", _JAVA_REMEDY
        )
    return version


def with_slots(master: str, slot_count: int) -> str:
    """Return a local master with at least `slot_count` task slots; another master is unchanged.

    A racing publisher is one long task: with fewer slots, some would begin when others are done.
    """
    match = _LOCAL_MASTER.fullmatch(master.strip())
    if match is None:
        return master
    stated = match["slots"] or "1"
    slots = (os.cpu_count() or 1) if stated == "*" else int(stated)
    return f"local[{max(slots, slot_count)}{(match['failures'] or '').replace(' ', '')}]"


def failures_allowed(master: str, setting: str | None) -> int:
    """Return how often a task may fail before its job does; a local master says it itself.

    `setting` is `spark.task.maxFailures`; None: Spark's 4.
    """
    match = _LOCAL_MASTER.fullmatch(master.strip())
    if match is not None:
        return int((match["failures"] or ",1").lstrip(", "))
    return int(setting or _TASK_FAILURES)


def is_local(master: str | None) -> bool:
    """Return whether the workers run on this machine.

    `master` None means `local[*]`; under spark-submit the result is False.
    """
    if master is None:
        return not is_submitted(os.environ)
    return _LOCAL_MASTER.fullmatch(master.strip()) is not None


def check_workers_of(spark: SparkSession) -> None:
    """Check the workers' interpreter of a local session that somebody else has built.

    PySpark takes the `python3` of PATH: in a notebook's kernel, or a program that was started by the path of
    its interpreter, that is often another one. Over Spark Connect, and on a cluster, it is not known here.

    Raises SparkUnavailable.
    """
    if getattr(spark, "_jvm", None) is None or not is_local(spark.sparkContext.master):
        return
    python = shutil.which(spark.sparkContext.pythonExec) or spark.sparkContext.pythonExec
    if Path(python).parent == Path(sys.executable).parent:
        python = sys.executable
    preflight.check_worker_python({**os.environ, "PYSPARK_PYTHON": python})


def is_submitted(environment: Mapping[str, str]) -> bool:
    """Return whether spark-submit started this process, and a JVM with it."""
    return _GATEWAY_PORT in environment


def build_session(
    master: str | None = None,
    publishers: int = 1,
    app_name: str = "sluice",
    log_file: Path | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start a session, or take the one that is running, and register the data sources.

    Args:
        master: a Spark master; None: that of spark-submit, else `local[*]`.
        publishers: least number of task slots of a local master.
        log_file: for Spark's log; None: a temporary file.
        settings: further Spark settings, which win over the defaults.

    Raises:
        SparkUnavailable: PySpark or Java is missing, or Spark does not start; it says what to do.
    """
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise SparkUnavailable(
            f"the module {error.name!r} is not installed", "pip install 'sluice-gateway[spark]'"
        ) from error
    _check_machine(master, settings or {})
    folder = Path(tempfile.mkdtemp(prefix="sluice-spark-"))
    log_path = log_file or folder / "spark.log"
    configuration = folder / "log4j2.properties"
    configuration.write_text(_LOG_CONFIGURATION.format(level="warn"))
    given = _submitted_settings()
    master = with_slots(master or given.get("spark.master", "local[*]"), publishers)
    environment = preflight.worker_environment(os.environ)
    ours = _settings(master, folder, configuration)
    # Only if the workers' PySpark is that of this process, and Spark is PySpark's own.
    is_own = environment["PYSPARK_PYTHON"] == sys.executable and not os.environ.get("SPARK_HOME")
    if is_local(master) and is_own:
        start = folder / "workers" / "sitecustomize.py"
        start.parent.mkdir()
        start.write_text(_WORKER_START)
        ours["spark.executorEnv.PYTHONPATH"] = str(start.parent)
    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in (ours | given | dict(settings or {})).items():
        if name != "spark.master":
            builder = builder.config(name, value)
    if is_local(master):
        # Otherwise the JVM ends if this machine's name has no address.
        environment["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP") or _LOOPBACK
    try:
        spark = _started(builder, log_path, environment)
    except Exception as error:
        raise _not_started(error, log_path) from error  # its log stays there
    except BaseException:  # interrupted
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        raise
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    from sluice.publishers.spark import register_sources

    register_sources(spark)
    return spark


def _started(builder: SparkSession.Builder, log_path: Path, environment: Mapping[str, str]) -> SparkSession:
    """Start the session; beside a running gRPC, retry a JVM that ended without a word."""
    from pyspark.errors import PySparkRuntimeError

    if "grpc" not in sys.modules:
        # gRPC, when it starts, reads this: its handlers do not run in forks.
        os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    for start in range(1, JVM_STARTS_MAX + 1):
        try:
            with _standard_error_to(log_path), _passed_on(environment):
                _start_context(builder)
                return builder.getOrCreate()
        except PySparkRuntimeError as error:
            exited = error.getCondition() == "JAVA_GATEWAY_EXITED"
            if not exited or "grpc" not in sys.modules or start == JVM_STARTS_MAX:
                raise
    raise AssertionError("unreachable: the last start returns or raises")


def _start_context(builder: SparkSession.Builder) -> None:
    """Start the Spark context, and restore the handler of SIGINT.

    PySpark's own handler asks the JVM to cancel jobs, which ends in tracebacks during another call, and
    sometimes in no interrupt.
    """
    from pyspark import SparkConf, SparkContext

    # py4j logs a traceback for an interrupt during a call.
    logging.getLogger().addFilter(_is_no_interrupt)
    configuration = SparkConf().setAll(list(builder._options.items()))
    before = signal.getsignal(signal.SIGINT)
    with _interrupts_deferred():
        SparkContext._ensure_initialized(conf=configuration)
    SparkContext.getOrCreate(configuration)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, before)


@contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """Defer Ctrl-C, SIGTERM and SIGHUP while the JVM starts.

    An interrupted PySpark removes the file that says how to reach the JVM, which would stay for ever.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: held.append(number))
        for number in (signal.SIGINT, signal.SIGTERM, *unless_ignored(signal.SIGHUP))
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if held:
            signal.raise_signal(held[0])


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    return record.msg != "KeyboardInterrupt while sending command."


def _settings(master: str, folder: Path, configuration: Path) -> dict[str, str]:
    """Return Spark's settings; `folder` is for files that Spark would leave in the working directory."""
    # As a URI: Spark splits options at spaces, which a path may have.
    java_options = f"-Dlog4j2.configurationFile={configuration.as_uri()}"
    local = {}
    if is_local(master):
        java_options += f" {_LOCAL_JAVA_OPTIONS}"
        # Only the workers of a cluster need to connect.
        local = {
            "spark.driver.host": _LOOPBACK,
            "spark.driver.bindAddress": _LOOPBACK,
            "spark.driver.memory": _LOCAL_HEAP,
        }
    return local | {
        "spark.driver.extraJavaOptions": java_options,
        "spark.log.level": "WARN",  # takes effect if the JVM is there already
        "spark.executorEnv.PYTHONSAFEPATH": "1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_BATCH_ROWS),
        "spark.sql.execution.arrow.maxBytesPerBatch": str(ARROW_BATCH_BYTES),
    }


def _check_machine(master: str | None, settings: Mapping[str, str]) -> None:
    preflight.check_libraries()
    if not is_submitted(os.environ):
        require_java()
        preflight.check_spark_home(os.environ)
        preflight.check_local_folder(os.environ, settings)
        preflight.check_temporary_folder(os.environ)
    workers = preflight.worker_environment(os.environ)
    os.environ.update({name: workers[name] for name in _READ_BY_PYSPARK})
    if is_local(master):
        preflight.check_worker_python({**os.environ, **workers})


def _not_started(error: Exception, log_path: Path) -> SparkUnavailable:
    lines = list(dict.fromkeys(line for line in _tail(log_path) if not _STACK_FRAME.match(line)))
    explained = known_failure("\n".join([str(error), *lines]))
    tail = " | ".join(lines[-_LOG_SHOWN_LINES:]) or str(error).split("\n", 1)[0]
    return SparkUnavailable(f"Spark does not start: {explained or tail}", f"its log is {log_path}")


def leave_signals_to_python(spark: SparkSession) -> None:
    """Let the JVM ignore signals: they end this process, which then ends the JVM.

    A terminal or systemd signals all processes of a command. Under spark-submit the supervisor knows only the
    JVM, which passes its SIGTERM on.
    """
    jvm: Any = spark._jvm
    signals = jvm.sun.misc
    on_term = signals.SignalHandler.SIG_IGN
    if is_submitted(os.environ):
        from pyspark.java_gateway import ensure_callback_server_started

        start: Any = ensure_callback_server_started
        start(spark.sparkContext._gateway)
        on_term = _HandOn()
    for name in ("INT", "HUP"):
        signals.Signal.handle(signals.Signal(name), signals.SignalHandler.SIG_IGN)
    signals.Signal.handle(signals.Signal("TERM"), on_term)


class _HandOn:
    def handle(self, signal_of_jvm: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    class Java:
        implements: ClassVar = ["sun.misc.SignalHandler"]


def _submitted_settings() -> dict[str, str]:
    if not is_submitted(os.environ):
        return {}
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # else SparkConf does not see those of the JVM
    return dict(SparkConf().getAll())


@contextmanager
def _passed_on(environment: Mapping[str, str]) -> Iterator[None]:
    """Set the environment of the JVM and its workers, but not of later processes."""
    before = {name: os.environ.get(name) for name in environment if name not in _READ_BY_PYSPARK}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _standard_error_to(path: Path) -> Iterator[None]:
    """Send the standard error of child processes that start meanwhile to a file, for good.

    The JVM writes there before it reads a log configuration, and so do Spark's Python workers.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _tail(path: Path) -> list[str]:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return []
    return [line.strip() for line in lines if line.strip()][-_LOG_TAIL_LINES:]


@contextmanager
def active_session(spark: SparkSession) -> Iterator[None]:
    """Make a session the active one of this thread, and afterwards restore the one before.

    Spark finds data sources of Python through the thread's active session, not that of a DataFrame. A
    program's first session stays active when it uses a second. There is no public call for it.
    """
    # A session of Spark Connect has no JVM here.
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        yield
        return
    session_class = spark._get_j_spark_session_class(jvm)
    before = session_class.getActiveSession()
    session_class.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            session_class.setActiveSession(before.get())
        else:
            session_class.clearActiveSession()


def part_order_seconds(part_count: int, slot_count: int, failures_max: int) -> float:
    """Return how long a part of a chain waits until it is next, without progress of the gateways.

        slots     parts     a failed task is
        enough    any       retried at once, in the slot that it had                       600 s
        too few   any       not retried: the job fails, and the waiting ones with it       600 s
        too few   any       retried when a slot is free, but tasks that wait for it have    60 s
                            them all, and go on only when it has gone on

    With `failures_max` failures of one task the job fails.
    """
    is_crowded = part_count > slot_count and failures_max > 1
    return PART_ORDER_SECONDS_CROWDED if is_crowded else PART_ORDER_SECONDS_DEFAULT


def part_order_seconds_for(spark: SparkSession, part_count: int) -> float:
    """Return `part_order_seconds` for the task slots that a session is sure to keep.

    Over Spark Connect they are unknown, and a cluster that grows with its tasks has enough. Any other cluster
    may lose all workers but one.
    """
    try:
        context = spark.sparkContext
    except Exception:  # Connect's error exists only if Connect is installed
        return PART_ORDER_SECONDS_DEFAULT
    settings = context.getConf()
    if settings.get("spark.dynamicAllocation.enabled") == "true":
        return PART_ORDER_SECONDS_DEFAULT
    master = str(context.master)
    failures_max = failures_allowed(master, settings.get("spark.task.maxFailures"))
    return part_order_seconds(part_count, task_slots(spark) if is_local(master) else 1, failures_max)


def task_slots(spark: SparkSession) -> int:
    """Return how many tasks run at once now; on a cluster executors come and go."""
    context = spark.sparkContext
    return context.defaultParallelism // int(context.getConf().get("spark.task.cpus") or 1)
