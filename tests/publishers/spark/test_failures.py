"""What is said when Spark fails."""

from __future__ import annotations

import pytest

from sluice.publishers.spark.failures import is_passing, known_failure, reason_in

SPARK_ERROR = """\
An error occurred while calling o66.save.
: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed. SQLSTATE: 58030
Traceback (most recent call last):
  File "x.py", line 1, in f
sluice.gateway.errors.BlockRefused: a cause
Traceback (most recent call last):
sluice.publishers.errors.PublishFailed: publisher x: block 5 was refused SQLSTATE: 38000
\tat org.apache.spark.Task.run(Task.scala:147)
"""


FUNCTION_ERROR = """\
[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "job.py", line 4, in their_function
    raise KeyError("colour")
KeyError: 'colour'
 SQLSTATE: 38000
"""
CHAINED_ERROR = f"""\
{FUNCTION_ERROR}
During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "job.py", line 6, in their_function
ValueError: row 7 has no colour SQLSTATE: 38000
\tat org.apache.spark.Task.run(Task.scala:147)
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (FUNCTION_ERROR, "KeyError: 'colour'"),
        (CHAINED_ERROR, "ValueError: row 7 has no colour"),
        (SPARK_ERROR, "publisher x: block 5 was refused"),
        (
            "An error occurred while calling o1.save.\n: java.lang.Error: no space\n\tat x",
            "java.lang.Error: no space",
        ),
        ("something else\nmore", "something else"),
        ("", "no reason given"),
    ],
)
def test_the_line_that_matters_is_found(text: str, reason: str) -> None:
    assert reason_in(text) == reason


EXECUTORS_DIED = (
    "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 2 times, "
    "most recent failure: Lost task 0.1 in stage 0.0 (TID 1) (127.0.0.2 executor 2): ExecutorLostFailure "
    "(executor 2 exited caused by one of the running tasks) Reason: Command exited with code 137"
)
BIND = "java.net.BindException: Address already in use"
OWN = "; give the workers an interpreter of their own that has sluice-gateway[spark] and nothing else"
# What is written -> what is said, up to its remedy, and the remedy's end.
USUAL = {
    "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than that in driver: 3.11, …": (
        "the workers run Python 3.12, the driver Python 3.11; set PYSPARK_PYTHON to ",
        "of version 3.11 that has sluice-gateway[spark]",
    ),
    'java.io.IOException: Cannot run program "/opt/py": error=2, No such file': (
        "the workers' interpreter /opt/py does not start (error=2, No such file); ",
        "set PYSPARK_PYTHON to the Python that has sluice-gateway[spark]",
    ),
    "ModuleNotFoundError: No module named 'sluice.publishers'; 'sluice' is not a package": (
        "on a worker another module called 'sluice' hides Sluice; remove it from ",
        "from the working directory of the workers",
    ),
    "ModuleNotFoundError: No module named 'sluice'": (
        "a worker cannot import 'sluice': sluice-gateway is not installed for its interpreter, or ",
        "or point PYSPARK_PYTHON to one that has it",
    ),
    "ModuleNotFoundError: No module named 'google.protobuf'": (
        "a worker cannot import 'google'; ",
        "pip install 'sluice-gateway[spark]' for its interpreter",
    ),
    "google.protobuf.runtime_version.VersionError: Detected incompatible versions: gencode 7": (
        "the protobuf that is imported does not fit what Sluice was generated with (Detected ",
        "incompatible versions: gencode 7)" + OWN,
    ),
    "ImportError: cannot import name 'node_pb2' from 'proto' (/lib/proto/__init__.py)": (
        "another module is imported in the place of one of Sluice's or protobuf's (cannot import name ",
        "'node_pb2' from 'proto' (/lib/proto/__init__.py))" + OWN,
    ),
    "TypeError: Couldn't build proto file into descriptor pool: duplicate file name node.proto": (
        "two sets of protobuf classes with the same names are loaded (Couldn't build proto file ",
        "duplicate file name node.proto)" + OWN,
    ),
    f"{BIND}: Service 'sparkDriver' failed after 16 retries": (
        "a port that Spark was told to use is in use (by its service sparkDriver); ",
        "or none, so that Spark takes any",
    ),
    BIND: ("a port that Spark was told to use is in use; ", "or none, so that Spark takes any"),
    "ERROR DiskBlockManager: Failed to create any local dir.": (
        "Spark cannot write to its local folder (Failed to create any local dir.); ",
        "set SPARK_LOCAL_DIRS to one that it can write to",
    ),
    "java.io.IOException: No space left on device": (
        "no space is left for Spark's temporary files; ",
        "set SPARK_LOCAL_DIRS to a disk that has some",
    ),
    "java.lang.IllegalArgumentException: basedir must be absolute: ?/.ivy2.5.2/local": (
        "the user id that it runs under has no name in /etc/passwd, ",
        "run it as a user who has one",
    ),
    "java.lang.OutOfMemoryError: Java heap space": (
        "Spark ran out of memory (Java heap space); give it more: --conf spark.driver.memory=4g in ",
        "else spark.executor.memory",
    ),
    EXECUTORS_DIED: (
        "each executor that ran one of its tasks died, as often as spark.task.maxFailures allows (the last ",
        "(spark.executor.memoryOverhead) or let them hold less (cache_bytes)",
    ),
    "org.apache.spark.SparkException: Python worker failed to connect back.": (
        "a Python worker did not start within the 10 seconds that Spark gives it; ",
        "run it again, with fewer task slots",
    ),
    "TypeError: 'JavaPackage' object is not callable": (
        "PySpark and the Spark in SPARK_HOME are of different versions; ",
        "unset SPARK_HOME",
    ),
}


@pytest.mark.parametrize("text", USUAL)
def test_what_spark_usually_fails_on_is_explained(text: str) -> None:
    begin, end = USUAL[text]
    said = known_failure(text)
    assert said is not None
    assert said.startswith(begin)
    assert said.endswith(end)
    assert reason_in(f"An error occurred while calling o6.save.\n: x.Y: Task failed\n{text}\n\tat z") == said


def test_an_error_of_ours_is_worth_more_than_what_is_around_it() -> None:
    text = "sluice.publishers.errors.BadBlock: block 5 is bad\njava.io.IOException: No space left on device"
    assert reason_in(text) == "block 5 is bad"
    assert known_failure("something else") is None


@pytest.mark.parametrize(
    ("text", "is_so"),
    [
        ("java.io.OptionalDataException", True),
        ("java.util.ConcurrentModificationException: null", True),
        ("org.apache.spark.SparkException: Python worker failed to connect back.", True),
        ("sluice.publishers.errors.BadBlock: block 5 is bad", False),
        ("java.io.IOException: No space left on device", False),
    ],
)
def test_what_a_query_is_begun_again_after(text: str, is_so: bool) -> None:
    assert is_passing(f"=== Streaming Query ===\n{text}\n\tat x") is is_so
