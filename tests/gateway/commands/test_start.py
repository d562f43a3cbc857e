"""The beginning of `sluice`: what it returns, and Ctrl-C while it still imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gateway import __version__
from gateway.commands import start

INTERRUPTED = """
import sys
from gateway.commands import start

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupts())
sys.exit(start.main())
"""


def test_it_runs_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["sluice", "--version"])
    assert start.main() == 0
    assert capsys.readouterr().out == f"sluice {__version__}\n"


def test_ctrl_c_while_it_imports_is_no_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_it_is_what_is_installed() -> None:
    """It imports nothing by itself that takes time: so soon, Ctrl-C is taken."""
    project = (Path(start.__file__).parents[2] / "pyproject.toml").read_text()
    assert '\nsluice = "gateway.commands.start:main"\n' in project
    source = Path(start.__file__).read_text()
    assert [line for line in source.splitlines() if line.startswith(("import ", "from "))] == [
        "from __future__ import annotations",
        "import os",  # which the interpreter has imported by then
    ]
