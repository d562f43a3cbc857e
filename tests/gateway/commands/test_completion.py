"""Tests of `gateway.commands.completion`: the table is that of the commands, and answers a shell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.gateway.commands import cli, completion
from sluice.gateway.commands.completion import stored_commands, table_of

CONTEXTS = """
[production]
nodes = ["node-a.example", "node-b.example:40840"]
"""
HEAVY = ("grpc", "rich", "cryptography", "google.protobuf", "pyspark", "asyncio")
ASK = f"""
import atexit, sys
atexit.register(lambda: print("imported", [name for name in {HEAVY} if name in sys.modules], file=sys.stderr))
from sluice.gateway.commands.start import main
main()
"""


def test_the_table_is_what_the_commands_make() -> None:
    expected = "run: python -m sluice.gateway.commands.completion > gateway/commands/completions.json"
    made = table_of(cli.sluice)["commands"]
    assert stored_commands() == made, expected


@pytest.mark.parametrize(
    "name", [name for name, table in stored_commands().items() if "commands" not in table]
)
def test_a_command_that_is_made_of_its_table_has_the_same_options(name: str) -> None:
    table = stored_commands()[name]
    again = table_of(completion.command_of(name, table))
    assert [one["names"] for one in again["params"]] == [one["names"] for one in table["params"]]
    assert [one.get("is_flag") for one in again["params"]] == [one.get("is_flag") for one in table["params"]]


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("sluice sta", ["plain,status"]),
        ("sluice status --no", ["plain,--node"]),
        ("sluice status --node node-b", ["plain,node-b.example:40840"]),
        (
            "sluice status other --node ",
            ["plain,node-a.example", "plain,node-b.example:40840", "plain,spare"],
        ),
        ("sluice status --context pro", ["plain,production"]),
        ("sluice serve --role s", ["plain,standby"]),
        ("sluice serve --data-dir ", ["dir,"]),
        ("sluice serve --config ", ["file,"]),
        ("sluice publish --source ", ["file,"]),
        ("sluice misbehave hang --source ", ["file,"]),
        ("sluice publish --group-by b", ["plain,batch", "plain,bookmark"]),
        ("sluice block lat", ["plain,latest"]),
        ("sluice subscribe --from ", ["plain,first", "plain,new"]),
        ("sluice ds cl", ["plain,client"]),
        ("sluice ds client --bookmarkt", ["plain,--bookmarktype"]),
        ("sluice status --xyzzy", []),
    ],
)
def test_a_shell_gets_completions(words: str, values: list[str], tmp_path: Path) -> None:
    (tmp_path / "sluice").mkdir()
    (tmp_path / "sluice" / "contexts.toml").write_text(CONTEXTS)
    environment = {
        **os.environ,
        "XDG_CONFIG_HOME": str(tmp_path),
        "SLUICE_NODES": "spare",
        "_SLUICE_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - (not words.endswith(" "))),
    }
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == values, done.stderr
    assert done.stderr == "imported []\n"


def test_an_empty_variable_of_the_completion_makes_no_stub_of_a_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("_SLUICE_COMPLETE", "")
    assert cli.main(["serve", "--print-config", "--role", "boss"]) == 2
