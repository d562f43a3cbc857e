"""The pages of docs against the code, except those with their own test module.

The command line accepts their commands, files parse, settings, statuses and columns exist, and each rule,
equation and known answer is where the page says. tests/gateway/race/test_tables.py compares the tables of
docs/protocol.md.
"""

from __future__ import annotations

import hashlib
import importlib
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

from sluice.gateway.api import subscribe_pb2
from sluice.gateway.commands import serve, status
from sluice.gateway.settings.sources import resolve
from sluice.gateway.settings.table import SETTINGS
from sluice.publishers.commands import block, prove, publish, subscribe, verify, verify_proof
from sluice.publishers.spark.verify import VERDICT_COLUMNS
from tests.certificates import Authority
from tests.interop.doc_tables import ROOT, found, functions_in, names_in, page, rows_of, section_of

COMMANDS: dict[str, click.Command] = {
    "block": block.command,
    "prove": prove.command,
    "publish": publish.command,
    "serve": serve.command,
    "status": status.command,
    "subscribe": subscribe.command,
    "verify": verify.command,
    "verify-proof": verify_proof.command,
}
SHOWN = {
    "connecting.md": {"publish", "serve", "status", "subscribe"},
    "subscribing.md": {"block", "status", "subscribe"},
    "verification.md": {"prove", "verify", "verify-proof"},
}
"""The commands of a page."""
LINES = [(name, line) for name in SHOWN for line in page(name).splitlines() if line.startswith("sluice ")]


@pytest.mark.parametrize("line", [line for _, line in LINES])
def test_a_command_is_taken(line: str) -> None:
    words = shlex.split(re.split(r" \| |#", line)[0])
    with COMMANDS[words[1]].make_context(words[1], words[2:]) as context:
        assert not context.args


@pytest.mark.parametrize("name", SHOWN)
def test_every_command_of_a_page_is_there(name: str) -> None:
    lines = [line for where, line in LINES if where == name]
    assert {line.split()[1] for line in lines} == SHOWN[name]
    assert len(lines) >= {"connecting.md": 4, "subscribing.md": 8, "verification.md": 6}[name]


# --- connecting.md ------------------------------------------------------------------------------------------

CONNECTING = page("connecting.md")
CERTIFICATE = "/etc/sluice/node.crt"
HASH = f"openssl x509 -in {CERTIFICATE} -noout -fingerprint -sha384"


def fenced(language: str) -> list[str]:
    """The examples in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", CONNECTING, re.MULTILINE | re.DOTALL)


def test_the_hash_is_that_of_the_whole_certificate(tmp_path: Path) -> None:
    assert HASH in CONNECTING
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
    named = {
        name for name in re.findall(r"`([a-z]+\.[a-z_]+)`", CONNECTING) if name.partition(".")[0] in sections
    }
    assert len(named) >= 10
    assert named <= {setting.name for setting in SETTINGS}


# --- subscribing.md -----------------------------------------------------------------------------------------


def test_every_status_has_a_row() -> None:
    named = re.findall(r"^\| ([A-Z_]{3,}) \|", page("subscribing.md"), re.MULTILINE)
    codes = subscribe_pb2.SubscribeStreamResponse.Code.keys()
    assert sorted(named) == sorted(set(codes) - {"UNKNOWN"})


# --- protocol.md --------------------------------------------------------------------------------------------

PROTOCOL = section_of(page("protocol.md"), "From the rules to the code and the tests")
PROTOCOL_ROWS = rows_of(PROTOCOL)


def test_each_rule_of_the_protocol_is_where_the_page_says() -> None:
    assert sorted({int(row[0]) for row in PROTOCOL_ROWS}) == list(range(1, 11))
    for _, _, where, _ in PROTOCOL_ROWS:
        assert names_in(where)
        for name in names_in(where):
            found(name)


def test_each_test_of_a_rule_of_the_protocol_is_there() -> None:
    named = re.findall(r"`(test_\w+)`", PROTOCOL)
    assert len(named) > len(PROTOCOL_ROWS)
    assert set(named) <= functions_in("interop/rules")


# --- verification.md ----------------------------------------------------------------------------------------

VERIFICATION = page("verification.md")


def test_the_columns_of_a_verdict_are_those_of_spark() -> None:
    assert f"# {', '.join(VERDICT_COLUMNS)}\n" in VERIFICATION


def test_each_known_answer_is_in_the_test_that_the_page_names() -> None:
    named = re.findall(
        r"`((?:tests/interop/)?test_\w+(?:\.\w+)*)`", section_of(VERIFICATION, "Known answers")
    )
    assert len(named) == 10
    for name in named:
        if name.endswith(".py"):
            assert (ROOT / name).exists()
            continue
        module, _, test = name.partition(".")
        assert hasattr(importlib.import_module(f"tests.gateway.blocks.proofs.{module}"), test or "__doc__")


def test_each_equation_is_where_the_page_says() -> None:
    """Each function exists, and names its section in the first paragraph of its docstring."""
    rows = rows_of(section_of(VERIFICATION, "From the equations to the code"))
    assert len(rows) > 20
    assert [row[0] for row in rows] == sorted((row[0] for row in rows), key=_in_order)
    for section, _, where in rows:
        for name in names_in(where):
            _, thing = found(name, "gateway.blocks.proofs")
            sections = (thing.__doc__ or "").split("\n\n")[0]
            assert re.search(rf"\b{section.split(',')[0]}\b", sections), f"{name}: {sections!r}"


def _in_order(section: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", section)]


RULES = {
    title: section_of(VERIFICATION, f"From {title} to the code and the tests")
    for title in ("the root hash", "the proofs")
}


@pytest.mark.parametrize(
    ("title", "sections"), [("the root hash", {1, 2, 3, 4}), ("the proofs", {1, 2, 4, 5, 6})]
)
def test_each_rule_is_where_the_page_says(title: str, sections: set[int]) -> None:
    """Each thing exists, in a module that names one of the two pages as its source."""
    rows = rows_of(RULES[title])
    assert {int(re.split(r"\D", row[0])[0]) for row in rows} == sections
    assert [row[0] for row in rows] == sorted((row[0] for row in rows), key=_first_in_order)
    for _, _, where, tests in rows:
        assert names_in(where)
        assert names_in(tests)
        for name in names_in(where):
            module, _ = found(name)
            assert re.search(r"\b(block-hash|proofs)\.md", module.__doc__ or ""), name


def _first_in_order(section: str) -> list[int]:
    return _in_order(section.split(",")[0])


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_each_test_of_a_rule_is_there(rules: str) -> None:
    named = {name for row in rows_of(rules) for name in names_in(row[3])}
    assert len(named) > 20
    assert named - functions_in("gateway", "interop", "publishers") == set()
