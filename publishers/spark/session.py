"""Starts a Spark session that publishers can run in, and says clearly why it cannot.

What it sees to: Java 17 or later, and what else is needed (preflight.py); workers with the driver's
interpreter; a task slot for each racing publisher; small Arrow batches, as a row is a whole block; and quiet:
Spark's log goes to a file, not between our lines. Under spark-submit there is a JVM already, with settings of
the user's; they are left alone. Source: docs/spark.md.
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

from gateway.ignored_signals import unless_ignored
from publishers.errors import SparkUnavailable
from publishers.limits import (
    ARROW_BATCH_BYTES,
    ARROW_BATCH_ROWS,
    JAVA_VERSION_MIN,
    JVM_STARTS_MAX,
    TURN_SECONDS_CROWDED,
    TURN_SECONDS_DEFAULT,
)
from publishers.spark import preflight
from publishers.spark.failures import known_failure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "active_session",
    "build_session",
    "failures_allowed",
    "is_local",
    "is_submitted",
    "java_version",
    "leave_signals_to_python",
    "require_java",
    "turn_seconds",
    "turn_seconds_for",
    "with_slots",
]

_JAVA_REMEDY: Final = (
    f"install Java {JAVA_VERSION_MIN} or later (Debian and Ubuntu: apt-get install openjdk-17-jre-headless, "
    "or default-jre-headless where that is gone; macOS: brew install openjdk@17), or set JAVA_HOME to one"
)
_JAVA_TIMEOUT_SECONDS: Final = 60  # it takes 0.1 s, and far longer on a machine that has no time
_STACK_FRAME: Final = re.compile(r"\s*at [\w.$]+\(|\s*\.\.\. \d+ more")
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_LOCAL_MASTER: Final = re.compile(r"local(?:\[(?P<slots>\*|\d+)(?P<failures>,\s*\d+)?\])?")
_TASK_FAILURES: Final = 4
_GATEWAY_PORT: Final = "PYSPARK_GATEWAY_PORT"
_LOG_TAIL_LINES: Final = 200
_LOG_SHOWN_LINES: Final = 5
_READ_BY_PYSPARK: Final = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
"""Read in this process, whenever a session or a query begins."""
_LOOPBACK: Final = "127.0.0.1"
_LOCAL_HEAP: Final = "4g"
"""The most that Java's heap may have. Each task there has the blocks of an Arrow batch several times, and one
block may have 125 MB: with Spark's 1 GB, two tasks that have one end the JVM. It takes what it needs."""
# A local job's time is mostly Java compiling Spark: with the quick compiler alone, a session and two small
# jobs take 14 s of processor time instead of 23 s. The JVM only passes Arrow batches on, so nothing is lost.
_LOCAL_JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

_LOG_CONFIGURATION: Final = """\
rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss}} %p %c{{1}}: %m%n%ex
"""


def java_version(java: Path) -> int | str:
    """Ask a Java for its major version.

    Returns:
        The version, or what it did instead of saying it.
    """
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_JAVA_TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"did not say its version within {_JAVA_TIMEOUT_SECONDS} s"
    except OSError as error:
        return f"does not run: {error.strerror or error}"
    said = answer.stderr + answer.stdout
    match = _VERSION.search(said)
    if match is not None:
        return int(match[1])
    lines = [line for line in said.splitlines() if line.strip()] or ["nothing"]
    return f"does not run: it says {lines[0]!r} and ends with status {answer.returncode}"


def require_java(environment: Mapping[str, str] | None = None) -> int:
    """Check that Spark will find a Java that it can run on.

    Args:
        environment: JAVA_HOME and PATH are read; the process's own by default.

    Returns:
        The major version.

    Raises:
        SparkUnavailable: there is none, or it is too old; it says where and how to get one.
    """
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
    version = java_version(java)
    if isinstance(version, str):
        reason = f"Spark needs Java {JAVA_VERSION_MIN}: the one in {where} {version}"
        raise SparkUnavailable(reason, _JAVA_REMEDY)
    if version < JAVA_VERSION_MIN:
        raise SparkUnavailable(
            f"Spark needs Java {JAVA_VERSION_MIN}: {where} is version {version}", _JAVA_REMEDY
        )
    return version


def with_slots(master: str, slot_count: int) -> str:
    """Give a local master at least so many task slots; a master of another kind is left alone.

    Racing publishers are one long task each: with fewer slots than publishers, some would only begin when
    others are done.
    """
    match = _LOCAL_MASTER.fullmatch(master.strip())
    if match is None:
        return master
    stated = match["slots"] or "1"
    slots = (os.cpu_count() or 1) if stated == "*" else int(stated)
    return f"local[{max(slots, slot_count)}{(match['failures'] or '').replace(' ', '')}]"


def failures_allowed(master: str, setting: str | None) -> int:
    """Give how often a task may fail before its job does: a local master says it itself.

    Args:
        master: of the session.
        setting: `spark.task.maxFailures`; None: Spark's own 4.
    """
    match = _LOCAL_MASTER.fullmatch(master.strip())
    if match is not None:
        return int((match["failures"] or ",1").lstrip(", "))
    return int(setting or _TASK_FAILURES)


def is_local(master: str | None) -> bool:
    """Whether the workers are threads of this machine's own session.

    Args:
        master: None: `local[*]`, or what spark-submit was told; of that nothing is said.
    """
    if master is None:
        return not is_submitted(os.environ)
    return _LOCAL_MASTER.fullmatch(master.strip()) is not None


def is_submitted(environment: Mapping[str, str]) -> bool:
    """Whether spark-submit started this process: its JVM is there already."""
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
        publishers: how many will race at once.
        app_name: shown in Spark's UI and logs.
        log_file: where Spark's log goes; None: a temporary file, shown when Spark does not start.
        settings: further Spark settings; they win over ours.

    Raises:
        SparkUnavailable: no PySpark, no Java, or Spark does not start.
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
    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in (_settings(master, folder, configuration) | given | dict(settings or {})).items():
        if name != "spark.master":
            builder = builder.config(name, value)
    environment = preflight.worker_environment(os.environ)
    if is_local(master):
        # Else the JVM looks for the address of this machine's name, which not every machine has, and ends.
        environment["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP") or _LOOPBACK
    try:
        spark = _started(builder, log_path, environment)
    except Exception as error:
        raise _not_started(error, log_path) from error  # its log stays there
    except BaseException:  # interrupted
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        raise
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    from publishers.spark import register

    register(spark)
    return spark


def _started(builder: SparkSession.Builder, log_path: Path, environment: Mapping[str, str]) -> SparkSession:
    """Start the session; a JVM that ended before it said anything is started again, beside a running gRPC."""
    from pyspark.errors import PySparkRuntimeError

    if "grpc" not in sys.modules:
        # Read when gRPC begins. With it off, what is forked from here on runs none of gRPC's handlers.
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
    """Start what the session stands on, and leave SIGINT to who had it.

    PySpark's own handler asks the JVM to cancel jobs. When it interrupts another question to the JVM, which
    is most of the time while a session starts, that ends in tracebacks, and at times in no interrupt at all.
    """
    from pyspark import SparkConf, SparkContext

    # An interrupt is no error; py4j logs a traceback of each that finds it at work.
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
    """Let Ctrl-C, SIGTERM and SIGHUP take effect at the end; for the start of the JVM, a few seconds.

    PySpark takes the place away where the JVM is to say how it is reached, when it is interrupted there; and
    the JVM, which ends with this process only after it has said so, stays for ever.
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
    """Spark's settings; the folder is for what Spark would otherwise leave in the working directory."""
    # As a URI: options are cut at spaces, which a path may have.
    java_options = f"-Dlog4j2.configurationFile={configuration.as_uri()}"
    local = {}
    if is_local(master):
        java_options += f" {_LOCAL_JAVA_OPTIONS}"
        # Nobody else is to connect; the workers of a cluster have to.
        local = {
            "spark.driver.host": _LOOPBACK,
            "spark.driver.bindAddress": _LOOPBACK,
            "spark.driver.memory": _LOCAL_HEAP,
        }
    return local | {
        "spark.driver.extraJavaOptions": java_options,
        "spark.log.level": "WARN",  # what counts where the JVM is there already
        "spark.executorEnv.PYTHONSAFEPATH": "1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_BATCH_ROWS),
        "spark.sql.execution.arrow.maxBytesPerBatch": str(ARROW_BATCH_BYTES),
    }


def _check_machine(master: str | None, settings: Mapping[str, str]) -> None:
    """Look what can be known before Spark starts, and set what its workers are to have.

    Raises:
        SparkUnavailable: something that Spark needs is missing.
    """
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
    """Say why Spark did not start, as far as its log and the error tell."""
    lines = list(dict.fromkeys(line for line in _tail(log_path) if not _STACK_FRAME.match(line)))
    explained = known_failure("\n".join([str(error), *lines]))
    tail = " | ".join(lines[-_LOG_SHOWN_LINES:]) or str(error).split("\n", 1)[0]
    return SparkUnavailable(f"Spark does not start: {explained or tail}", f"its log is {log_path}")


def leave_signals_to_python(spark: SparkSession) -> None:
    """Let signals end this process, which then ends the JVM, and not the JVM under its feet.

    A terminal sends Ctrl-C, and SIGHUP when it is closed, and systemd SIGTERM, to all processes of a command.
    Under spark-submit the JVM is the one that a supervisor knows: it hands its SIGTERM on.
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
    """A signal handler of the JVM's that sends the signal to this process."""

    def handle(self, signal_of_jvm: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    class Java:
        implements: ClassVar = ["sun.misc.SignalHandler"]


def _submitted_settings() -> dict[str, str]:
    """Give what spark-submit was given, its master, too: settings of the user's, which win over ours."""
    if not is_submitted(os.environ):
        return {}
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # else SparkConf does not see those of the JVM
    return dict(SparkConf().getAll())


@contextmanager
def _passed_on(environment: Mapping[str, str]) -> Iterator[None]:
    """Let the JVM and its workers have this in their environment; what this process starts later has not."""
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
    """Let child processes that start meanwhile write their standard error to a file, for good.

    The JVM writes there before any log configuration is read, and so do Spark's Python workers.
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
    """Make a session the active one of this thread, and afterwards the one that was, or none.

    Spark finds data sources that were registered from Python through the active session of the thread, not
    through the session that a DataFrame is of. A thread of Python has none in the JVM, and the first session
    of a program stays active when the program works with a second one. There is no public call for it.
    """
    # Spark Connect's session has no JVM here; its server looks at no thread of ours.
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


def turn_seconds(part_count: int, slot_count: int, failures_max: int) -> float:
    """Decide how long a part of a chain waits for its turn without any progress of the gateways.

        slots     parts     a failed task is
        enough    any       tried again at once, in the slot that it had                   600 s
        too few   any       not tried again: the job fails, and the waiting ones with it   600 s
        too few   any       tried again when a slot is free, but those that wait for it     60 s
                            have them all, and go on only when it has gone on

    Args:
        part_count: parts that are published at once, each a task.
        slot_count: tasks that can run at once.
        failures_max: of one task, with which the job fails.
    """
    is_crowded = part_count > slot_count and failures_max > 1
    return TURN_SECONDS_CROWDED if is_crowded else TURN_SECONDS_DEFAULT


def turn_seconds_for(spark: SparkSession, part_count: int) -> float:
    """Decide it for a session.

    A cluster that grows with its tasks gives a failed one a slot; a session over Spark Connect does not say
    what it has.
    """
    try:
        context = spark.sparkContext
    except Exception:  # Connect has an error of its own for it, which only exists where Connect is installed
        return TURN_SECONDS_DEFAULT
    settings = context.getConf()
    if settings.get("spark.dynamicAllocation.enabled") == "true":
        return TURN_SECONDS_DEFAULT
    cpus = int(settings.get("spark.task.cpus") or 1)
    failures_max = failures_allowed(str(context.master), settings.get("spark.task.maxFailures"))
    return turn_seconds(part_count, context.defaultParallelism // cpus, failures_max)
