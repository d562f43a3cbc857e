"""`sluice prove` against a real node, and `sluice verify-proof` of what it wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.gateway.api import block_pb2, hapi_pb2
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.items import ItemKind, field_item
from sluice.gateway.blocks.merkle import EMPTY_HASH, StreamingTree
from sluice.gateway.commands.cli import main
from sluice.gateway.node.node import Node
from tests.gateway.block_makers import footer_item, header_item, proof_item, summary_of
from tests.gateway.blocks.proofs import record_files
from tests.gateway.blocks.proofs.state_proofs import len_field
from tests.nodes import KEY
from tests.publishers.node_thread import node_thread, store

ED25519 = f"ed25519:{KEY.public_key().public_bytes_raw().hex()}"
TRANSACTION = "0.0.1234@1700000000.000000007"


def transaction_item(number: int) -> bytes:
    """A signed transaction of an account; its id has the number of its block as nanoseconds."""
    body = hapi_pb2.TransactionBody(
        transaction_id=hapi_pb2.TransactionID(
            account_id=hapi_pb2.EntityID(num=1234),
            transaction_valid_start=block_pb2.Timestamp(seconds=1_700_000_000, nanos=number),
        ),
        memo="a memo",
    )
    signed = hapi_pb2.SignedTransaction(body_bytes=body.SerializeToString())
    return field_item(ItemKind.SIGNED_TRANSACTION, signed.SerializeToString())


def chain(count: int) -> list[Block]:
    """Signed blocks with a transaction each."""
    blocks, tree, previous = [], StreamingTree(), EMPTY_HASH
    for number in range(count):
        items = [header_item(number), transaction_item(number), footer_item(previous, tree.root())]
        previous = summary_of([*items, proof_item(number)]).root_hash
        tree.push(previous)
        blocks.append(Block.from_items([*items, proof_item(number, KEY.sign(previous))]))
    return blocks


BLOCKS = chain(12)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node that holds the blocks."""
    data_dir = tmp_path_factory.mktemp("node")
    store(data_dir, BLOCKS)
    with node_thread(data_dir) as running:
        yield running


def run(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """Run a command that succeeds; return what it prints."""
    status = main([str(word) for word in words])
    printed = capsys.readouterr()
    assert status == 0, printed.err
    return printed.out


def test_an_item_is_proved_and_the_proof_holds_without_the_node(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, item = tmp_path / "proof", tmp_path / "item"
    said = run(capsys, "prove", 7, "--item", 1, "--node", node.grpc_address, "--out", path)
    assert "signature  not checked: that takes --ledger-key (Ed25519 block proof)" in said
    assert said.splitlines()[-1] == f"proof      {path.stat().st_size:,} bytes in {path}"
    said = run(capsys, "verify-proof", path, "--ledger-key", ED25519, "--out", item)
    root_hash = summary_of(list(BLOCKS[7].items)).root_hash.hex()
    assert said.splitlines() == [
        f"item       signed transaction (field 4), {len(BLOCKS[7].items[1])} bytes",
        "block      7, of 2023-11-14T22:13:20Z",
        f"root hash  {root_hash}",
        "signed by  the network: Ed25519 signature",
    ]
    assert item.read_bytes() == BLOCKS[7].items[1]
    shown = json.loads(run(capsys, "verify-proof", path, "--root-hash", root_hash, "--json"))
    assert shown == {
        "holds": True,
        "block": 7,
        "kind": 4,
        "item_bytes": len(BLOCKS[7].items[1]),
        "timestamp": "2023-11-14T22:13:20Z",
        "root_hash": root_hash,
        "under": None,
        "signed_by": None,
    }


def test_what_is_written_to_a_pipe_or_a_device_leaves_it_there(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, pipe = tmp_path / "proof", tmp_path / "pipe"
    run(capsys, "prove", 7, "--item", 1, "--node", node.grpc_address, "--out", path)
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDWR)
    run(capsys, "prove", 7, "--item", 1, "--node", node.grpc_address, "--out", pipe)
    assert os.read(reading, 1 << 16) == path.read_bytes()
    run(capsys, "verify-proof", path, "--ledger-key", ED25519, "--out", pipe)
    assert os.read(reading, 1 << 16) == BLOCKS[7].items[1]
    assert pipe.is_fifo()
    os.close(reading)


def test_a_transaction_is_found_by_its_id(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, item = tmp_path / "proof", tmp_path / "item"
    words = ["--transaction", TRANSACTION, "--node", node.grpc_address, "--ledger-key", ED25519]
    shown = json.loads(run(capsys, "prove", 7, *words, "--out", path, "--json"))
    assert (shown["block"], shown["kind"], shown["is_checked"]) == (7, 4, True)
    assert shown["proof_bytes"] == path.stat().st_size
    run(capsys, "verify-proof", path, "--ledger-key", ED25519, "--out", item)
    assert item.read_bytes() == BLOCKS[7].items[1]


def test_a_block_is_proved_under_a_later_one(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "proof"
    root_hash = summary_of(list(BLOCKS[11].items)).root_hash.hex()
    for index in (0, 1):
        words = ["--item", index, "--under", 11, "--node", node.grpc_address, "--out", path]
        run(capsys, "prove", 2, *words)
        for trusted in (("--ledger-key", ED25519), ("--root-hash", root_hash)):
            said = run(capsys, "verify-proof", path, *trusted)
            assert "under      block 11, by its tree of all block hashes" in said.splitlines()


def test_a_transaction_of_a_record_file_is_proved_by_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = hapi_pb2.TransactionRecord(
        transaction_id=hapi_pb2.TransactionID(account_id=hapi_pb2.EntityID(num=9))
    )
    entry = len_field(2, record.SerializeToString())
    inner = record_files.contents(records=len_field(3, entry))
    signatures = [(one, record_files.sign(inner, one)) for one in range(3)]
    proof = record_files.record_file_proof(signatures)
    block = Block.from_items(record_files.block_items(record_files.record_file_item(inner), proof))
    book = tmp_path / "book.json"
    book.write_bytes(record_files.book_bytes(4))
    store(tmp_path / "node", [block])
    path = tmp_path / "proof"
    with node_thread(tmp_path / "node", ledger_keys=(f"rsa:{book}",)) as node:
        words = ["--node", node.grpc_address, "--out", path]
        run(capsys, "prove", 0, "--transaction", "0.0.9@0.000000000", *words)
        assert main(["prove", "0", "--item", "0", *map(str, words)]) == 1
        assert "got RSA record-file proof, expected one that signs the root hash" in capsys.readouterr().err
    said = run(capsys, "verify-proof", path, "--ledger-key", f"rsa:{book}")
    assert "signed by  nodes of the address book: the contents of the record file, nothing else" in said
    threshold = ["--verification-rsa-threshold", "4"]
    assert main(["verify-proof", str(path), "--ledger-key", f"rsa:{book}", *threshold]) == 1
    assert "got 3 nodes that signed, expected at least 4" in capsys.readouterr().err


def test_of_several_nodes_one_that_has_the_block_is_asked(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = ["--node", "127.0.0.1:1", "--node", str(node.grpc_address)]
    assert main(["prove", "3", "--item", "1", *nodes, "--out", str(tmp_path / "proof")]) == 0
    assert "nobody listens there; asking the next node" in capsys.readouterr().err


def test_errors_of_prove_are_one_line_and_leave_no_file(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address, path = str(node.grpc_address), tmp_path / "proof"
    cases: dict[tuple[str, ...], tuple[int, str]] = {
        ("7",): (2, "give one of --item N and --transaction ID"),
        ("7", "--item", "1", "--transaction", "x"): (2, "give one of --item N and --transaction ID"),
        ("7", "--item", "9"): (1, "says ITEM_NOT_FOUND: block 7: got item 9, expected one of 0 to 3"),
        ("7", "--item", "2"): (1, "says NOT_AVAILABLE: block 7 item 2: got block footer (field 12)"),
        ("70", "--item", "1"): (1, "says NOT_AVAILABLE: block 70: got none, expected one of those here"),
        ("7", "--item", "1", "--under", "7"): (2, "got 7, expected a block above 7"),
        ("7", "--item", "1", "--under", "99"): (1, "block 99: got none, expected one of those here"),
        ("7", "--transaction", "x"): (2, "got 'x', expected an id such as 0.0.1234@1700000000.000000001"),
        ("7", "--transaction", "0.0.1@1.0"): (1, "none there"),
        ("7", "--item", "1", "--ledger-key", "ed25519:" + "00" * 32): (1, "bad proof"),
        ("7", "--item", "1", "--ledger-key", "x"): (2, "ledger key 'x': got no kind"),
    }
    for words, (status, expected) in cases.items():
        assert main(["prove", *words, "--node", address, "--out", str(path)]) == status, words
        [line] = capsys.readouterr().err.splitlines()
        assert expected in line
        assert not path.exists()


def test_errors_of_verify_proof_are_one_line(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "proof"
    run(capsys, "prove", 7, "--item", 1, "--node", node.grpc_address, "--out", path)
    other = tmp_path / "other"
    other.write_bytes(path.read_bytes()[:-1])
    cases: dict[tuple[str, ...], tuple[int, str]] = {
        (str(path),): (2, "give the network's key with --ledger-key, or a --root-hash that you trust"),
        (str(path), "--root-hash", "00"): (2, "got 1 bytes, expected 48"),
        (str(path), "--root-hash", "x"): (2, "got a value that is not hex"),
        (str(path), "--root-hash", "00" * 48): (1, f"root hashes on the way: got {BLOCK_7}"),
        (str(path), "--ledger-key", "ed25519:" + "00" * 32): (1, "bad proof"),
        (str(path), "--ledger-key", "tss:id=" + "00" * 32): (1, "got no Ed25519 ledger key"),
        (str(other), "--ledger-key", ED25519): (1, "item proof: length of field at byte "),
        (str(tmp_path), "--ledger-key", ED25519): (1, "Is a directory"),
        (str(tmp_path / "none"), "--ledger-key", ED25519): (1, "No such file or directory"),
        (os.devnull, "--ledger-key", ED25519): (1, "Not a regular file"),
        (str(path), "--ledger-key", ED25519, "--out", str(tmp_path)): (2, "is a directory"),
        (str(path), "--ledger-key", ED25519, "--out", str(tmp_path / "no" / "x")): (1, "No such file"),
    }
    for words, (status, expected) in cases.items():
        assert main(["verify-proof", *words]) == status, words
        [line] = capsys.readouterr().err.splitlines()
        assert expected in line, line
    assert main(["verify-proof", str(other), "--ledger-key", ED25519, "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["holds"], said["problem"]["what"][:10]) == (False, "item proof")


BLOCK_7 = summary_of(list(BLOCKS[7].items)).root_hash.hex()


def test_a_proof_of_more_bytes_than_any_item_has_is_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "proof"
    with path.open("wb") as file:
        file.truncate(131_072_001)
    assert main(["verify-proof", str(path), "--ledger-key", ED25519]) == 1
    assert "got 131072001 bytes, expected at most 131072000" in capsys.readouterr().err


def test_verify_proof_needs_neither_grpc_nor_spark() -> None:
    code = (
        "import sys, sluice.publishers.commands.verify_proof\n"
        "print([name for name in ('grpc', 'pyspark', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
