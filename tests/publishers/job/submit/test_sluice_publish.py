"""The script for spark-submit; with the real one: tests/interop/test_publish_command.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sluice.publishers.job.submit import sluice_publish
from sluice.publishers.job.submit.sluice_publish import main


def test_it_says_where_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--where"]) == 0
    path = Path(capsys.readouterr().out.strip())
    assert path == Path(sluice_publish.__file__)
    assert [child.name for child in path.parent.glob("*.py")] in (
        ["__init__.py", "sluice_publish.py"],
        ["sluice_publish.py", "__init__.py"],
    )


def test_the_options_are_those_of_the_command() -> None:
    words = [sys.executable, sluice_publish.__file__, "--gateway", "a:1"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "sluice publish: Missing option '--source' (see: sluice publish --help)\n"
