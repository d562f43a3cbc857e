"""The command that goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from publishers.spark.submission import command_line, is_submitted, program_words

SUBMITTED = {"PYSPARK_GATEWAY_PORT": "1234"}


@pytest.mark.parametrize(
    ("words", "first_block", "line"),
    [
        (["--source", "my chain", "--json"], None, "sluice publish --source 'my chain' --json"),
        (["--source", "a"], 5, "sluice publish --source a --from 5"),
        (["--from", "2", "--source", "a"], 5, "sluice publish --source a --from 5"),
        (["--source", "a", "--from=2"], 5, "sluice publish --source a --from 5"),
        (["--source", "a", "--from=2"], None, "sluice publish --source a --from=2"),
    ],
)
def test_from_is_replaced(words: list[str], first_block: int | None, line: str) -> None:
    assert command_line(program_words({}), words, first_block) == line


def test_the_words_of_spark_submit_are_those_of_its_jvm(tmp_path: Path) -> None:
    words = ["/usr/bin/java", "-cp", "x", "org.apache.spark.deploy.SparkSubmit", "--conf", "a=b c"]
    script = "/opt/sluice_publish.py"
    (tmp_path / "cmdline").write_text("\0".join([*words, script, "--source", "x", ""]))
    found = program_words(SUBMITTED, tmp_path)
    assert found == ["spark-submit", "--conf", "a=b c", script]
    assert command_line(found, ["--source", "x"], 3) == (
        f"spark-submit --conf 'a=b c' {script} --source x --from 3"
    )


def test_what_cannot_be_known_is_left_open(tmp_path: Path) -> None:
    unknown = ["spark-submit", "…", "sluice_publish.py"]
    assert program_words(SUBMITTED, tmp_path) == unknown
    (tmp_path / "cmdline").write_text("init\0")
    assert program_words(SUBMITTED, tmp_path) == unknown
    assert is_submitted(SUBMITTED)
    assert not is_submitted({})
