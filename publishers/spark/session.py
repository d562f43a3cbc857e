"""Starts a Spark session that publishers can run in, and says clearly why it cannot.

What it sees to: Java 17 or later; workers with the driver's interpreter; a task slot for each racing
publisher; small Arrow batches, as a row is a whole block; and quiet: Spark's log goes to a file, not
between our lines. Source: design.md, "Spark".
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from publishers.errors import SparkUnavailable
from publishers.limits import ARROW_BATCH_BYTES, ARROW_BATCH_ROWS, JAVA_VERSION_MIN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["build_session", "java_version", "require_java", "with_slots"]

_JAVA_REMEDY: Final = (
    f"install Java {JAVA_VERSION_MIN} or later (Debian and Ubuntu: apt-get install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17), or set JAVA_HOME to one"
)
_JAVA_TIMEOUT_SECONDS: Final = 20
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_LOCAL_MASTER: Final = re.compile(r"local(?:\[(?P<slots>\*|\d+)(?P<failures>,\s*\d+)?\])?")
_LOG_TAIL_LINES: Final = 5
# PySpark forks this process to start the JVM. Where gRPC already runs in it, gRPC's handler in the forked
# child can abort before Java begins (about one fork in fifty with grpcio 1.85); the next fork is another try.
_JVM_STARTS_MAX: Final = 3
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


def java_version(java: Path) -> int | None:
    """Ask a Java for its major version; None when it does not run or does not say."""
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_JAVA_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(answer.stderr + answer.stdout)
    return int(match[1]) if match else None


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
    if version is None:
        raise SparkUnavailable(
            f"Spark needs Java {JAVA_VERSION_MIN}: the one in {where} does not run", _JAVA_REMEDY
        )
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


def build_session(
    master: str = "local[*]",
    publishers: int = 1,
    app_name: str = "sluice",
    log_file: Path | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start a session, or take the one that is running, and register the data sources.

    Args:
        master: a Spark master.
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
    require_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    folder = Path(tempfile.mkdtemp(prefix="sluice-spark-"))
    log_path = log_file or folder / "spark.log"
    configuration = folder / "log4j2.properties"
    configuration.write_text(_LOG_CONFIGURATION.format(level="warn"))
    builder = SparkSession.builder.master(with_slots(master, publishers)).appName(app_name)
    for name, value in (_settings(master, folder, configuration) | dict(settings or {})).items():
        builder = builder.config(name, value)
    try:
        spark = _started(builder, log_path)
    except Exception as error:
        tail = " | ".join(_tail(log_path)) or str(error).split("\n", 1)[0]
        raise SparkUnavailable(f"Spark does not start: {tail}", f"its log is {log_path}") from error
    # Only now: a Spark that did not start has its log there.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    from publishers.spark import register

    register(spark)
    return spark


def _started(builder: SparkSession.Builder, log_path: Path) -> SparkSession:
    """Start the session; a JVM that ended before it said anything is started again, beside a running gRPC."""
    from pyspark.errors import PySparkRuntimeError

    if "grpc" not in sys.modules:
        # Read when gRPC begins. With it off, what is forked from here on runs none of gRPC's handlers.
        os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    for start in range(1, _JVM_STARTS_MAX + 1):
        try:
            with _standard_error_to(log_path):
                return builder.getOrCreate()
        except PySparkRuntimeError as error:
            exited = error.getCondition() == "JAVA_GATEWAY_EXITED"
            if not exited or "grpc" not in sys.modules or start == _JVM_STARTS_MAX:
                raise
    raise AssertionError("unreachable: the last start returns or raises")


def _settings(master: str, folder: Path, configuration: Path) -> dict[str, str]:
    """Spark's settings; the folder is for what Spark would otherwise leave in the working directory."""
    java_options = f"-Dlog4j2.configurationFile=file:{configuration}"
    if _LOCAL_MASTER.fullmatch(master.strip()):
        java_options += f" {_LOCAL_JAVA_OPTIONS}"
    return {
        "spark.driver.extraJavaOptions": java_options,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_BATCH_ROWS),
        "spark.sql.execution.arrow.maxBytesPerBatch": str(ARROW_BATCH_BYTES),
    }


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
