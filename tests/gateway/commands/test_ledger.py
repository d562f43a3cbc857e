"""`sluice ledger show` on files, folders and real nodes."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sluice.gateway.blocks.proofs.baby_jubjub import IDENTITY, point_bytes
from sluice.gateway.blocks.proofs.ledger_data import SENTINEL_KEY
from sluice.gateway.commands.ledger import command
from sluice.gateway.errors import Fatal, GatewayError
from sluice.gateway.node.node import Node
from sluice.gateway.store.trust_store import KEPT_NAME, keep_ledger
from tests.gateway.blocks.proofs import real
from tests.gateway.blocks.proofs.encoders import publication_bytes
from tests.gateway.blocks.proofs.tss_chain import TssChain
from tests.gateway.blocks.proofs.tss_network import TssNetwork
from tests.nodes import make_blocks
from tests.publishers.node_thread import node_thread, store

NETWORK = TssNetwork((3, 1))
ID = NETWORK.ledger.ledger_id.hex()
KEYS = [hashlib.sha256(point_bytes(key)).hexdigest()[:16] for key in NETWORK.public_keys]
SENTINEL = point_bytes(SENTINEL_KEY) + point_bytes(IDENTITY) + bytes(64)


def show(*arguments: object) -> Result:
    return CliRunner().invoke(command, ["show", *map(str, arguments)])


def refusal(source: object) -> GatewayError:
    """Run the command, and return its one-line error."""
    result = show(source)
    assert isinstance(result.exception, GatewayError), result.output
    assert result.output == ""
    return result.exception


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node that has trusted and stored block 0's publication."""
    data_dir = tmp_path_factory.mktemp("node")
    store(data_dir, TssChain(NETWORK).blocks(2))
    with node_thread(data_dir, ledger_keys=()) as running:
        yield running


def test_a_file_in_text(tmp_path: Path) -> None:
    path = tmp_path / "publication"
    path.write_bytes(NETWORK.publication)
    result = show(path)
    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == [
        f"ledger id   {ID}",
        "WRAPS key   none",
        "weight      4",
        f"pin it with --ledger-key tss:id={ID}",
        "node  weight  share    key (SHA-256)",
        f"0     3       75.00 %  {KEYS[0]}",
        f"1     1       25.00 %  {KEYS[1]}",
    ]


def test_a_terminal_gets_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "publication"
    path.write_bytes(NETWORK.publication)
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes any output for a terminal
    lines = show(path).output.splitlines()
    assert [line.split("│")[1:5] for line in lines if "%" in line] == [
        [" 0    ", " 3      ", " 75.00 % ", f" {KEYS[0]} "],
        [" 1    ", " 1      ", " 25.00 % ", f" {KEYS[1]} "],
    ]


def test_all_sources_say_the_same(tmp_path: Path, node: Node) -> None:
    block_0 = TssChain(NETWORK).block(0).to_bytes()
    (tmp_path / "0.blk.gz").write_bytes(gzip.compress(block_0))
    kept = tmp_path / "kept"
    kept.mkdir()
    keep_ledger(kept, NETWORK.ledger)
    expected = {
        "ledger_id": ID,
        "wraps_key_sha256": None,
        "total_weight": 4,
        "nodes": [
            {"node_id": 0, "weight": 3, "key": KEYS[0]},
            {"node_id": 1, "weight": 1, "key": KEYS[1]},
        ],
    }
    for source in (
        tmp_path,
        tmp_path / "0.blk.gz",
        kept,
        kept / KEPT_NAME,
        node.grpc_address,
        node.settings.data_dir,
    ):
        result = show(source, "--json")
        assert result.exit_code == 0, result.output
        assert json.loads(result.output) == expected


def test_a_node_without_a_key_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "publication"
    entries = [(0, 0, NETWORK.attested_keys[0]), (5, 0, SENTINEL)]
    path.write_bytes(NETWORK.publication_of(entries))
    printed = json.loads(show(path, "--json").output)
    assert printed["nodes"] == [
        {"node_id": 0, "weight": 0, "key": KEYS[0]},
        {"node_id": 5, "weight": 0, "key": None},
    ]
    assert show(path).output.splitlines()[-1] == "5     0       -      none of its own"


@real.needs_real_blocks
def test_a_real_network() -> None:
    printed = json.loads(show(real.FOLDER / "wraps-chain", "--json").output)
    assert printed["ledger_id"] == "17fbc01aecd3bd502b37657bde5af3e6791a13ddbe1eb95389ba5cbf84a63a2f"
    assert printed["wraps_key_sha256"] == "5a6d78fb8d0d1ef989db3ca9c6aff7e2bd336665af8f5ec904892522ec8f2b3d"
    assert [node["weight"] for node in printed["nodes"]] == [1, 1, 1, 1]


def test_what_cannot_be_shown_is_named(tmp_path: Path) -> None:
    error = refusal(tmp_path)
    assert isinstance(error, Fatal)
    assert str(error) == (
        f"{tmp_path}: got a folder without ledger data, expected ledger-id.bin, or block 0 in a file 0.blk, "
        "0.blk.gz or 0.blk.zst"
    )
    error = refusal(tmp_path / "none")
    assert isinstance(error, Fatal)
    assert str(error) == (
        f"{tmp_path / 'none'}: got nothing of that name, expected a file, a folder, or a node's HOST:PORT"
    )
    assert str(refusal("127.0.0.1:1")).startswith("node 127.0.0.1:1: got UNAVAILABLE: ")
    false = tmp_path / "false"
    entries = list(zip(NETWORK.node_ids, NETWORK.weights, NETWORK.attested_keys, strict=True))
    false.write_bytes(publication_bytes(bytes(32), b"", entries))
    assert str(refusal(false)) == (
        f"{false}: ledger id publication: ledger id (tss.md 7.2): got {'00' * 32}, "
        f"expected {ID}, the address book's hash"
    )


def test_a_node_of_another_kind_of_network(tmp_path: Path) -> None:
    with node_thread(tmp_path / "empty") as empty:
        assert str(refusal(empty.grpc_address)) == (
            f"node {empty.grpc_address}: got NOT_AVAILABLE, expected block 0"
        )
    data_dir = tmp_path / "own"
    store(data_dir, make_blocks(1))
    with node_thread(data_dir) as own:
        assert str(refusal(own.grpc_address)) == (
            f"node {own.grpc_address}: got a block 0 that publishes no ledger id, expected block 0 of a TSS "
            "network"
        )
