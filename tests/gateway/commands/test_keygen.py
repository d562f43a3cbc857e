"""Tests of `gateway.commands.keygen`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from sluice.gateway.blocks.trusted_keys import TrustedKeys
from sluice.gateway.commands.cli import main
from sluice.gateway.commands.keygen import command
from sluice.gateway.key_files import load_private_key, public_key_hex


def test_it_writes_a_key_and_prints_the_ledger_key_alone_on_standard_output(tmp_path: Path) -> None:
    path = tmp_path / "my.key"
    result = CliRunner().invoke(command, ["--out", str(path)])
    assert result.exit_code == 0
    assert result.stdout == f"ed25519:{public_key_hex(load_private_key(path))}\n"
    assert result.stderr.splitlines() == [
        f"Private key written to {path}. It signs blocks: keep it secret.",
        "Give your nodes its public half, as --ledger-key:",
    ]


def test_json_is_one_object(tmp_path: Path) -> None:
    path = tmp_path / "my.key"
    result = CliRunner().invoke(command, ["--json", "--out", str(path)])
    printed = json.loads(result.output)
    assert printed.keys() == {"key_file", "ledger_key"}
    assert printed["key_file"] == str(path)
    assert TrustedKeys.parse([printed["ledger_key"]]).ed25519[0].hex() == public_key_hex(
        load_private_key(path)
    )


def test_the_default_file_is_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["keygen"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["sluice.key"]


def test_a_file_that_is_there_is_one_line_and_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "my.key"
    path.write_text("precious")
    assert main(["keygen", "--out", str(path)]) == 1
    assert (
        capsys.readouterr().err == f"sluice: {path}: got a file that is there already, expected a new file\n"
    )
    assert path.read_text() == "precious"


def test_a_wrong_option_is_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keygen", "--key", "x"]) == 2
    assert capsys.readouterr().err.startswith("sluice keygen: No such option")
