"""What is said when Spark fails."""

from __future__ import annotations

import pytest

from publishers.spark.failures import reason_in

SPARK_ERROR = """\
An error occurred while calling o66.save.
: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed. SQLSTATE: 58030
Traceback (most recent call last):
  File "x.py", line 1, in f
gateway.errors.BlockRefused: a cause
Traceback (most recent call last):
publishers.errors.PublishFailed: publisher x: block 5 was refused SQLSTATE: 38000
\tat org.apache.spark.Task.run(Task.scala:147)
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
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
