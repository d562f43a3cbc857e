"""Java, slots, the active session of a thread, and what is said when Spark cannot start."""

from __future__ import annotations

import logging
import os
import shlex
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from sluice.publishers.errors import SparkUnavailable
from sluice.publishers.spark import register
from sluice.publishers.spark import session as session_module
from sluice.publishers.spark.session import (
    JAVA_VERSION_MIN,
    JVM_STARTS_MAX,
    active_session,
    build_session,
    failures_allowed,
    java_version,
    part_order_seconds,
    part_order_seconds_for,
    require_java,
    with_slots,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPENJDK = 'openjdk version "{}" 2025-04-15'
REMEDY = (
    "install Java 17 or later (Debian and Ubuntu: apt-get install openjdk-17-jre-headless, "
    "or default-jre-headless where that is gone; macOS: brew install openjdk@17), or set JAVA_HOME to one"
)


def fake_java(folder: Path, says: str, status: int = 0) -> Path:
    """A JAVA_HOME whose java says this on standard error."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {status}\n")
    java.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("says", "version"),
    [
        (OPENJDK.format("17.0.15"), 17),
        (OPENJDK.format("21"), 21),
        ('java version "1.8.0_392"', 8),
        (OPENJDK.format("24-ea"), 24),
        ("not a java", "does not run: it says 'not a java' and ends with status 0"),
        ("", "does not run: it says 'nothing' and ends with status 0"),
    ],
)
def test_the_version_is_read_from_what_java_says(tmp_path: Path, says: str, version: int | str) -> None:
    assert java_version(fake_java(tmp_path, says) / "bin" / "java") == version


@pytest.mark.parametrize("version", [str(JAVA_VERSION_MIN), "17.0.1", "25"])
def test_a_good_java_home_is_taken(tmp_path: Path, version: str) -> None:
    home = fake_java(tmp_path, OPENJDK.format(version))
    assert require_java({"JAVA_HOME": str(home), "PATH": ""}) == int(version.split(".")[0])


def test_java_is_found_in_path(tmp_path: Path) -> None:
    home = fake_java(tmp_path, OPENJDK.format("17"))
    assert require_java({"PATH": f"{home}/bin{os.pathsep}/bin"}) == 17


def refusal(environment: dict[str, str], **limits: float) -> str:
    with pytest.raises(SparkUnavailable) as caught:
        require_java(environment, **limits)
    assert caught.value.remedy == REMEDY
    return caught.value.reason


def test_no_java_at_all(tmp_path: Path) -> None:
    assert refusal({"PATH": str(tmp_path)}) == (
        "Spark needs Java 17: there is none in PATH, and JAVA_HOME is not set"
    )


def test_a_java_home_without_java(tmp_path: Path) -> None:
    assert refusal({"JAVA_HOME": str(tmp_path)}) == (
        f"Spark needs Java 17: JAVA_HOME ({tmp_path}) has no bin/java"
    )


def test_an_old_java(tmp_path: Path) -> None:
    home = fake_java(tmp_path, OPENJDK.format("11.0.2"))
    assert refusal({"JAVA_HOME": str(home)}) == f"Spark needs Java 17: JAVA_HOME ({home}) is version 11"


def test_a_java_that_does_not_run(tmp_path: Path) -> None:
    home = fake_java(tmp_path, "library missing", status=127)
    assert refusal({"JAVA_HOME": str(home)}) == (
        f"Spark needs Java 17: the one in JAVA_HOME ({home}) does not run: "
        "it says 'library missing' and ends with status 127"
    )


def test_a_java_that_hangs(tmp_path: Path) -> None:
    home = fake_java(tmp_path, "wait")
    (home / "bin" / "java").write_text("#!/bin/sh\nexec sleep 60\n")
    assert refusal({"JAVA_HOME": str(home)}, timeout_seconds=0.2) == (
        f"Spark needs Java 17: the one in JAVA_HOME ({home}) did not say its version within 0.2 s"
    )


def test_a_java_that_cannot_be_started(tmp_path: Path) -> None:
    home = fake_java(tmp_path, "never")
    (home / "bin" / "java").chmod(0o644)
    assert refusal({"JAVA_HOME": str(home)}) == (
        f"Spark needs Java 17: the one in JAVA_HOME ({home}) does not run: Permission denied"
    )


@pytest.mark.parametrize(
    ("master", "publishers", "expected"),
    [
        ("local", 1, "local[1]"),
        ("local", 3, "local[3]"),
        ("local[2]", 3, "local[3]"),
        ("local[8]", 3, "local[8]"),
        ("local[2, 4]", 3, "local[3,4]"),
        ("local[*]", 1000, "local[1000]"),
        ("spark://host:7077", 3, "spark://host:7077"),
        ("local-cluster[2,1,1024]", 3, "local-cluster[2,1,1024]"),
    ],
)
def test_local_masters_get_a_slot_per_publisher(master: str, publishers: int, expected: str) -> None:
    assert with_slots(master, publishers) == expected


@pytest.mark.parametrize(
    ("master", "setting", "count"),
    [
        ("local[2]", None, 1),
        ("local", "8", 1),  # Spark reads it from the master alone
        ("local[2, 4]", None, 4),
        ("local[*,12]", None, 12),
        ("spark://host:7077", None, 4),
        ("yarn", "8", 8),
    ],
)
def test_how_often_a_task_may_fail(master: str, setting: str | None, count: int) -> None:
    assert failures_allowed(master, setting) == count


def test_all_processors_are_taken_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert with_slots("local[*]", 3) == "local[6]"


def test_a_folder_with_a_space_in_its_name_is_one_java_option() -> None:
    folder = Path("/a folder")
    settings = session_module._settings("local[1]", folder, folder / "log4j2.properties")
    first, *others = settings["spark.driver.extraJavaOptions"].split()
    assert first == "-Dlog4j2.configurationFile=file:///a%20folder/log4j2.properties"
    assert all(other.startswith("-") for other in others)


def test_without_java_no_session_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark", reason="needs the extra spark")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkUnavailable, match="has no bin/java; install Java 17 or later"):
        build_session()


def test_what_a_child_says_meanwhile_goes_to_the_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with session_module._standard_error_to(tmp_path / "log"):
        os.write(2, b"noise\n")
    os.write(2, b"ours\n")
    assert capfd.readouterr().err == "ours\n"
    assert session_module._tail(tmp_path / "log") == ["noise"]


STARTS_SPARK = """
{before}
import sys
from pathlib import Path
from sluice.publishers.errors import SparkUnavailable
from sluice.publishers.spark.session import build_session
try:
    build_session("local[1]", log_file=Path(sys.argv[1]))
except SparkUnavailable as error:
    print(error.reason)
"""


@pytest.mark.parametrize(("before", "starts"), [("import grpc", JVM_STARTS_MAX), ("", 1)])
def test_a_jvm_that_aborts_at_once_is_started_again_beside_grpc(
    tmp_path: Path, before: str, starts: int
) -> None:
    """gRPC's fork handler may abort the child that was to become the JVM."""
    pytest.importorskip("pyspark", reason="needs the extra spark")
    java = fake_java(tmp_path, OPENJDK.format("17")) / "bin" / "java"
    java.write_text(
        f"#!/bin/sh\necho '{OPENJDK.format('17')}' >&2\n"
        f'[ "$1" = -version ] && exit 0\necho started >>{shlex.quote(str(tmp_path))}/starts\nkill -ABRT $$\n'
    )
    done = subprocess.run(
        [sys.executable, "-c", STARTS_SPARK.format(before=before), str(tmp_path / "log")],
        env=os.environ | {"JAVA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    assert done.stdout.startswith("Spark does not start: "), done.stderr
    assert (tmp_path / "starts").read_text().count("started") == starts


INTERRUPTED = """
from sluice.publishers.spark import session

def interrupt(*_):
    raise KeyboardInterrupt

session._check_machine, session._started = lambda *_: None, interrupt
session.build_session("local[1]")
"""


def test_a_start_that_is_interrupted_leaves_no_folder_behind(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="needs the extra spark")
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr.rstrip().endswith("KeyboardInterrupt"), done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("given", "told"), [(None, "127.0.0.1"), ("127.0.0.9", "127.0.0.9")])
def test_the_jvm_of_a_local_session_needs_no_address_of_this_machines_name(
    tmp_path: Path, given: str | None, told: str
) -> None:
    pytest.importorskip("pyspark", reason="needs the extra spark")
    java = fake_java(tmp_path, OPENJDK.format("17")) / "bin" / "java"
    with java.open("a") as script:
        script.write(
            f'[ "$1" = -version ] || echo "told $SPARK_LOCAL_IP" >{shlex.quote(str(tmp_path))}/told\n'
        )
    java.write_text(java.read_text().replace("exit 0\n", ""))
    environment = os.environ | {"JAVA_HOME": str(tmp_path), "SPARK_LOCAL_IP": given or ""}
    command = [sys.executable, "-c", STARTS_SPARK.format(before=""), str(tmp_path / "log")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("Spark does not start: "), done.stderr
    assert (tmp_path / "told").read_text() == f"told {told}\n"


def test_ctrl_c_is_left_to_who_had_it(spark: SparkSession) -> None:
    """PySpark has put a handler of its own in its place when it made the session."""
    handler = signal.getsignal(signal.SIGINT)
    assert not str(getattr(handler, "__module__", "")).startswith("pyspark"), handler


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_waits_for_the_jvm(number: signal.Signals) -> None:
    heard: list[int] = []
    before = signal.signal(number, lambda number, _: heard.append(number))
    try:
        with session_module._interrupts_deferred():
            for _ in range(2):
                signal.raise_signal(number)
            assert heard == []
        assert heard == [number]
        with session_module._interrupts_deferred():
            pass
        assert heard == [number]
    finally:
        signal.signal(number, before)


def test_under_nohup_the_end_of_the_terminal_stays_ignored_while_the_jvm_starts() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with session_module._interrupts_deferred():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_py4j_logs_no_interrupt(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    for words in ("KeyboardInterrupt while sending command.", "Exception while sending command."):
        logging.error(words)
    assert caplog.messages == ["Exception while sending command."]


def test_what_workers_are_to_have_is_not_left_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is started after a session looks for modules where it would without Spark."""
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.setenv("PYSPARK_PYTHON", "python9")
    with session_module._passed_on({"PYTHONSAFEPATH": "1", "PYSPARK_PYTHON": "python9"}):
        assert os.environ["PYTHONSAFEPATH"] == "1"
    assert "PYTHONSAFEPATH" not in os.environ
    assert os.environ["PYSPARK_PYTHON"] == "python9"
    monkeypatch.setenv("PYTHONSAFEPATH", "x")
    with session_module._passed_on({"PYTHONSAFEPATH": "1"}):
        pass
    assert os.environ["PYTHONSAFEPATH"] == "x"


def test_a_worker_forks_from_a_process_that_is_ready(spark: SparkSession) -> None:
    """Otherwise it has PySpark from a zip file, and imports Sluice itself."""

    def look(_: int) -> tuple[str, bool]:
        import pyspark

        return pyspark.__file__, "sluice.publishers.spark.block_files" in sys.modules

    ((pyspark_file, has_sources),) = spark.sparkContext.parallelize([0], 1).map(look).collect()
    assert ".zip" not in pyspark_file
    assert has_sources


@pytest.mark.parametrize("has_one", [True, False])
def test_what_a_machine_does_at_the_start_of_python_is_done_by_workers_too(
    tmp_path: Path, has_one: bool
) -> None:
    for name, content in (("ours", session_module._WORKER_START), ("theirs", "print('theirs')")):
        (tmp_path / name).mkdir()
        if name == "ours" or has_one:
            (tmp_path / name / "sitecustomize.py").write_text(content)
    done = subprocess.run(
        [sys.executable, "-c", "import sys; print(sys.path)"],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}/ours{os.pathsep}{tmp_path}/theirs"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert done.stdout.startswith("theirs\n") == has_one
    assert f"{tmp_path}/ours" not in done.stdout


def test_the_version_before_the_first_good_one_is_refused(tmp_path: Path) -> None:
    home = fake_java(tmp_path, OPENJDK.format(f"{JAVA_VERSION_MIN - 1}.0.2"))
    java = home / "bin" / "java"
    assert refusal({"PATH": str(java.parent)}) == f"Spark needs Java 17: {java} is version 16"


def test_what_spark_wrote_when_it_did_not_start_is_shown_without_its_stack(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    log.write_text(
        "WARNING: Using incubator modules\n"
        'Exception in thread "main" org.apache.spark.SparkException: Master must start with spark\n'
        + "\tat org.apache.spark.deploy.SparkSubmit$$anon$2.doSubmit(SparkSubmit.scala:1171)\n"
        * 9
        + "\t... 12 more\n"
        "WARNING: Using incubator modules\n"
    )
    error = session_module._not_started(RuntimeError("no gateway"), log)
    assert error.reason == (
        "Spark does not start: WARNING: Using incubator modules | "
        'Exception in thread "main" org.apache.spark.SparkException: Master must start with spark'
    )
    assert error.remedy == f"its log is {log}"


# --- the active session of a thread -------------------------------------------------------------------------


def is_active(spark: SparkSession) -> bool:
    assert spark._jvm is not None
    found = spark._get_j_spark_session_class(spark._jvm).getActiveSession()
    return bool(found.isDefined() and found.get().equals(spark._jsparkSession))


@pytest.mark.spark
def test_afterwards_it_is_the_one_that_was(spark: SparkSession) -> None:
    second = spark.newSession()
    with active_session(spark):
        with suppress(KeyError), active_session(second):
            assert is_active(second)
            raise KeyError
        assert is_active(spark)


@pytest.mark.spark
def test_a_thread_has_none_before_and_after(spark: SparkSession) -> None:
    def look() -> list[bool]:
        seen = [is_active(spark)]
        with active_session(spark):
            seen.append(is_active(spark))
        return [*seen, is_active(spark)]

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(look).result() == [False, True, False]


@pytest.mark.spark
def test_a_second_session_gets_the_sources_again_and_again(spark: SparkSession) -> None:
    second = spark.newSession()
    with active_session(spark):
        register(second)
        register(second)
        register(spark)
    with active_session(second):
        assert second.read.format("blockfiles").load("/nowhere").columns == ["block_number", "items"]


def test_a_session_over_connect_has_none() -> None:
    class Connected:
        pass

    with active_session(Connected()) as nothing:  # type: ignore[arg-type]
        assert nothing is None


# --- how long parts wait until they are next ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "slots", "failures", "seconds"),
    [(4, 4, 4, 600.0), (5, 4, 4, 60.0), (5, 4, 1, 600.0), (1, 1, 1, 600.0), (9, 0, 2, 60.0)],
)
def test_parts_give_way_where_slots_are_few_and_tasks_are_tried_again(
    parts: int, slots: int, failures: int, seconds: float
) -> None:
    assert part_order_seconds(parts, slots, failures) == seconds


class Session:
    """As much of a session as is asked."""

    def __init__(self, master: str, slots: int, **settings: str) -> None:
        given = {f"spark.{name.replace('_', '.')}": value for name, value in settings.items()}
        conf = SimpleNamespace(get=given.get)
        self.sparkContext = SimpleNamespace(master=master, defaultParallelism=slots, getConf=lambda: conf)


class ConnectSession:
    """One that has no context."""

    @property
    def sparkContext(self) -> object:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("session", "seconds"),
    [
        (Session("local[2]", 2), 600.0),  # a task that fails once fails the job
        (Session("local[2,3]", 2), 60.0),
        (Session("local[4,3]", 4), 600.0),
        (Session("spark://host:7077", 2), 60.0),
        (Session("spark://host:7077", 2, task_maxFailures="1"), 600.0),
        (Session("spark://host:7077", 4), 60.0),  # until it loses a worker
        (Session("local[4,3]", 4, task_cpus="2"), 60.0),
        (Session("yarn", 2, dynamicAllocation_enabled="true"), 600.0),
        (ConnectSession(), 600.0),
    ],
)
def test_a_session_is_asked_for_its_slots(session: Any, seconds: float) -> None:
    assert part_order_seconds_for(session, 4) == seconds
