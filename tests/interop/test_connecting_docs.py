"""What docs/connecting.md says: its commands are taken, its files can be read, and its settings are there."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import click
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from gateway.commands import serve, status
from gateway.settings.sources import resolve
from gateway.settings.table import SETTINGS
from publishers.commands import publish, subscribe
from tests.certificates import Authority
from tests.interop.doc_tables import page

PAGE = page("connecting.md")
COMMANDS = {
    "publish": publish.command,
    "serve": serve.command,
    "status": status.command,
    "subscribe": subscribe.command,
}
LINES = [line for line in PAGE.splitlines() if line.startswith("sluice ")]
CERTIFICATE = "/etc/sluice/node.crt"
HASH = f"openssl x509 -in {CERTIFICATE} -noout -fingerprint -sha384"


def fenced(language: str) -> list[str]:
    """The examples in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("line", LINES)
def test_a_command_is_taken(line: str) -> None:
    words = shlex.split(line)
    command: click.Command = COMMANDS[words[1]]
    with command.make_context(words[1], words[2:]) as context:
        assert not context.args


def test_every_command_of_a_node_and_its_clients_is_there() -> None:
    assert {line.split()[1] for line in LINES} == set(COMMANDS)


def test_the_hash_is_that_of_the_whole_certificate(tmp_path: Path) -> None:
    assert HASH in PAGE
    pair = Authority(tmp_path).issue("localhost")
    words = shlex.split(HASH.replace(CERTIFICATE, str(pair.certificate)))
    shown = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout
    der = x509.load_pem_x509_certificate(pair.certificate.read_bytes()).public_bytes(Encoding.DER)
    assert shown.strip().partition("=")[2].replace(":", "").lower() == hashlib.sha384(der).hexdigest()


def test_the_files_of_a_node_are_read(tmp_path: Path) -> None:
    examples = fenced("toml")
    assert len(examples) == 2
    for number, text in enumerate(examples):
        config = tmp_path / f"{number}.toml"
        config.write_text(text)
        settings = resolve({}, {}, config).settings
        assert str(settings.grpc_address) == tomllib.loads(text)["grpc"]["address"]


def test_the_files_of_the_other_side_are_json() -> None:
    consensus, block = (json.loads(text)["nodes"] for text in fenced("json"))
    assert {node["address"] for node in block} < {node["address"] for node in consensus}


def test_every_setting_of_sluice_is_one() -> None:
    """Those of the other side begin otherwise, or have capitals."""
    sections = {setting.name.partition(".")[0] for setting in SETTINGS if "." in setting.name}
    named = {name for name in re.findall(r"`([a-z]+\.[a-z_]+)`", PAGE) if name.partition(".")[0] in sections}
    assert len(named) >= 10
    assert named <= {setting.name for setting in SETTINGS}
