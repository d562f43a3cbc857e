"""Typed rows, compared with what the network's own messages say (`network_rows.py`)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sluice.gateway.api import hapi_pb2
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.errors import ItemError
from sluice.gateway.blocks.items import field_item
from sluice.publishers.blocks.block_files import read_block_file
from sluice.publishers.blocks.block_items import header_item
from sluice.publishers.blocks.linking import summary_of
from sluice.publishers.errors import PrepareError
from sluice.publishers.rows.decodes import DECODES, table_batches
from sluice.publishers.rows.table import BlockView, Table
from sluice.publishers.rows.values import (
    as_micros,
    as_nanos,
    parsed,
    state_of,
    status_of,
    transaction_id_of,
    transaction_type_of,
)
from sluice.publishers.spark.source_options import BLOCK_DECODES
from tests.reference_data import BLOCKS, needs_blocks

PROGRAM = Path(__file__).with_name("network_rows.py")
CHAINS = sorted(BLOCKS.iterdir()) if BLOCKS.exists() else []


def rows_of(block: Block, decode: str) -> list[dict[str, Any]]:
    """Return the rows of a block, through Arrow."""
    way = DECODES[decode]
    table = way.table(BlockView(block.number, block.items), way.columns)
    assert {len(values) for values in table.values()} == {len(table["block_number"])}
    batches = list(table_batches([(table, block.size_bytes)], way.columns))
    return [row for batch in batches for row in batch.to_pylist()]


def run(*words: str) -> str:
    done = subprocess.run([sys.executable, PROGRAM, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def theirs() -> Any:
    """What the network's messages say of each chain."""
    return json.loads(run("read", *map(str, CHAINS)))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Block]:
    """Blocks 7 and 8, made with the network's messages."""
    folder = tmp_path_factory.mktemp("made")
    run("make", str(folder))
    return {number: read_block_file(folder / f"{number}.blk.gz") for number in (7, 8)}


def blocks_of(chain: Path) -> list[Block]:
    paths = sorted(chain.glob("*.blk.gz"), key=lambda path: int(path.name.partition(".")[0]))
    return [read_block_file(path) for path in paths]


# --- real chains --------------------------------------------------------------------------------------------


SAID = (
    "block_number",
    "type",
    "payer",
    "valid_start_ns",
    "is_scheduled",
    "node",
    "max_fee",
    "valid_seconds",
    "memo",
    "contract",
    "topic",
    "consensus_ns",
    "status",
    "fee",
)


def plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a transaction as `network_rows` has it."""
    found = {name: row[name] for name in SAID}
    for name in ("transfers", "token_transfers", "nft_transfers"):
        fields = ("token", "sender", "receiver", "account", "amount", "serial_number")
        each = row[name]
        found[name] = each and [[one[field] for field in fields if field in one] for one in each]
    return {name: value for name, value in found.items() if value not in (None, [])}


@needs_blocks
@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: str(chain.name))
def test_transactions_are_those_of_the_network(chain: Path, theirs: Any) -> None:
    ours = [row for block in blocks_of(chain) for row in rows_of(block, "transactions")]
    expected = [
        {name: value for name, value in row.items() if value not in (None, [])}
        for row in theirs["chains"][str(chain)]["transactions"]
    ]
    assert [plain(row) for row in ours] == expected
    (first, *_) = blocks_of(chain)
    places = [row["transaction_index"] for row in rows_of(first, "transactions")]
    assert places == list(range(len(places)))


@needs_blocks
@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: str(chain.name))
def test_state_changes_are_those_of_the_network(chain: Path, theirs: Any) -> None:
    names = ("block_number", "consensus_ns", "state", "operation", "key_kind", "entity", "value_kind")
    ours = [row for block in blocks_of(chain) for row in rows_of(block, "state_changes")]
    assert [[row[name] for name in names] for row in ours] == theirs["chains"][str(chain)]["changes"]


@needs_blocks
@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: str(chain.name))
def test_headers_are_those_of_the_network(chain: Path, theirs: Any) -> None:
    blocks = blocks_of(chain)
    ours = [row for block in blocks for row in rows_of(block, "headers")]
    for block, row, expected in zip(blocks, ours, theirs["chains"][str(chain)]["headers"], strict=True):
        assert row["block_number"] == expected["block_number"]
        assert row["consensus_ns"] == expected["consensus_ns"]
        assert row["consensus_time"].timestamp() == pytest.approx(expected["consensus_ns"] / 1e9, abs=1e-6)
        major, minor, patch, before, build = expected["hapi"]
        version = (
            f"{major}.{minor}.{patch}" + (f"-{before}" if before else "") + (f"+{build}" if build else "")
        )
        assert row["hapi_version"] == version
        assert row["previous_root_hash"].hex() == expected["previous"]
        assert row["proof_kinds"] == expected["proofs"]
        assert dict(row["item_counts"]) == expected["counts"]
        # An item's bytes here have its tag and length; ByteSize of a BlockItem has them, too.
        assert dict(row["item_bytes"]) == expected["bytes"]
        assert row["item_count"] == len(block.items)
        assert row["size_bytes"] == block.size_bytes
        assert row["root_hash"] == summary_of(block.number, block.items).root_hash


@needs_blocks
def test_items_are_the_bytes_in_their_order() -> None:
    (block, *_) = blocks_of(BLOCKS / "signed-chain")
    rows = rows_of(block, "items")
    assert tuple(row["item"] for row in rows) == block.items
    assert [row["item_index"] for row in rows] == list(range(len(block.items)))
    assert rows[0]["kind"] == "block_header"
    assert rows[-1]["kind"] == "block_proof"


@needs_blocks
def test_records_have_what_the_network_wrote() -> None:
    rows = [row for block in blocks_of(BLOCKS / "record-file-chain") for row in rows_of(block, "records")]
    assert len(rows) == 982
    assert {row["status"] for row in rows} == {"SUCCESS"}
    assert not any(row["is_amendment"] for row in rows)
    assert all(len(row["transaction_hash"]) == 48 for row in rows)
    created = [row["account"] for row in rows if row["account"]]
    assert len(created) == len(set(created)) > 100


@needs_blocks
def test_every_type_has_the_name_of_the_network(theirs: Any) -> None:
    for field, name in theirs["types"].items():
        descriptor = hapi_pb2.TransactionBody.DESCRIPTOR.fields_by_name[field]
        body = hapi_pb2.TransactionBody()
        chosen = getattr(body, field)
        if descriptor.message_type is None:
            setattr(body, field, b"")
        else:
            chosen.SetInParent()
        assert transaction_type_of(body) == name, field


# --- made blocks --------------------------------------------------------------------------------------------


def test_transactions_of_each_form(made: dict[int, Block]) -> None:
    rows = rows_of(made[7], "transactions")
    assert [row["type"] for row in rows] == [
        "AtomicBatch",
        "CryptoTransfer",
        "ConsensusSubmitMessage",
        "ContractCall",
        "ContractCreate",
        "EthereumTransaction",
        "ConsensusCreateTopic",
        "StateSignatureTransaction",
    ]
    batch, transfer, message, call, create, ethereum, topic, signature = rows
    assert [row["payer"] for row in rows[:3]] == ["0.0.11", "0.0.21", "0.0.22"]
    assert [row["item_index"] for row in rows] == [1, 3, 4, 5, 8, 11, 14, 17]
    assert batch["transaction_id"] == "0.0.11@1.000000007"
    assert transfer["transfers"] == [
        {"account": "0.0.5", "amount": -9, "is_approval": False},
        {"account": "0.0.6", "amount": 9, "is_approval": False},
    ]
    assert (message["topic"], message["status"]) == ("0.0.9", "INVALID_TOPIC_ID")
    alias = bytes(range(20)).hex()
    assert call["payer"] == f"1.2.{alias}"
    assert call["transaction_id"] == f"1.2.{alias}@3.000000007?scheduled"
    assert call["is_scheduled"]
    assert call["contract"] == "0.0.8"  # the one that it names
    assert call["parent_consensus_ns"] == 101 * 10**9 + 1
    assert call["token_transfers"] == [
        {"token": "0.0.77", "account": "0.0.5", "amount": 1, "is_approval": True}
    ]
    assert call["nft_transfers"] == [
        {
            "token": "0.0.78",
            "sender": "0.0.5",
            "receiver": "0.0.6",
            "serial_number": 1 << 40,
            "is_approval": False,
        }
    ]
    assert create["contract"] == "0.0.801"
    assert create["transaction_id"].endswith("/2")
    assert ethereum["contract"] == "0.0." + "ee" * 20
    assert topic["topic"] == "0.0.4040"
    assert signature["status"] == "SUCCESS"
    assert all(row["memo"] == "ü" for row in rows)
    assert all(row["signed_transaction"] and row["body"] and row["result"] for row in rows)


def test_an_amendment_takes_the_place_of_its_record(made: dict[int, Block]) -> None:
    rows = rows_of(made[8], "transactions")
    assert [row["memo"] for row in rows] == ["first", "right", "missed", "third"]
    assert [row["topic"] for row in rows] == ["0.0.10", "0.0.20", "0.0.25", "0.0.30"]
    assert all(row["type"] == "ConsensusCreateTopic" and row["record"] for row in rows)
    records = rows_of(made[8], "records")
    assert [row["memo"] for row in records] == ["first", "wrong", "third", "right", "missed"]
    assert [row["is_amendment"] for row in records] == [False, False, False, True, True]


# --- bytes that nobody expects ------------------------------------------------------------------------------


def with_items(*items: bytes) -> Block:
    return Block(3, (header_item(3, 10**9), *items))


def parsed_kind(kind: int, payload: bytes) -> object:
    return parsed(hapi_pb2.StateChanges if kind == 7 else hapi_pb2.RecordFileItem, payload)


@pytest.mark.parametrize("payload", [b"\xff", b"\x0a\x05ab", b"", b"\x0a\x02\xff\xff", bytes(1000)])
@pytest.mark.parametrize("kind", [4, 5, 6, 7, 10])
def test_bytes_that_are_no_message_stay(kind: int, payload: bytes) -> None:
    block = with_items(field_item(4, b"\x0a\x00"), field_item(5, b""), field_item(kind, payload))
    rows = rows_of(block, "transactions")
    if kind == 4:
        assert rows[-1]["signed_transaction"] == payload
        assert rows[-1]["type"] is None
    elif kind == 5:
        assert rows[-1]["result"] == payload
    elif kind == 6:
        assert rows[-1]["outputs"] == [payload]
    for decode, place, column in (("state_changes", 7, "change"), ("records", 10, "record")):
        found = rows_of(block, decode)
        # What parses as a message without entries has no row; what is no message is one.
        if kind == place and parsed_kind(kind, payload) is None:
            assert [row[column] for row in found] == [payload]
        else:
            assert found == []
    assert rows_of(block, "items")[-1]["item"] == field_item(kind, payload)


def test_outputs_and_changes_before_any_transaction_are_nobodys() -> None:
    block = with_items(field_item(6, b""), field_item(7, b""), field_item(5, b"\x08\x16"))
    (row,) = rows_of(block, "transactions")
    assert (row["status"], row["signed_transaction"], row["outputs"]) == ("SUCCESS", None, [])


def test_an_unknown_type_and_status_keep_their_numbers_and_bytes() -> None:
    body = field_item(999, b"later") + b"\x32\x01m"
    signed = field_item(1, body)
    block = with_items(field_item(4, signed), field_item(5, b"\x08\xe7\x07"))
    (row,) = rows_of(block, "transactions")
    assert (row["type"], row["memo"], row["status"]) == ("999", "m", "999")
    without = field_item(4, field_item(1, b"\x28\x01" + field_item(73, b"key")))
    (row_without,) = rows_of(with_items(without), "transactions")
    assert row_without["type"] is None
    assert (row["body"], row["signed_transaction"]) == (body, signed)
    assert (status_of(22), status_of(999), state_of(2), state_of(999)) == (
        "SUCCESS",
        "999",
        "STATE_ID_ACCOUNTS",
        "999",
    )


def test_times_that_no_column_holds_are_null() -> None:
    time = hapi_pb2.TransactionRecord().consensus_timestamp
    time.seconds = (1 << 63) - 1
    assert (as_micros(time), as_nanos(time)) == (None, None)
    time.seconds = -(1 << 63)
    assert (as_micros(time), as_nanos(time)) == (None, None)
    time.seconds, time.nanos = 253_402_300_799, 999_999_999
    assert as_micros(time) == 253_402_300_799_999_999
    assert as_nanos(time) is None
    time.seconds, time.nanos = -1, 999_999_999
    assert (as_micros(time), as_nanos(time)) == (-1, -1)


def test_a_fee_above_what_a_column_holds_is_null() -> None:
    result = field_item(5, b"\x08\x16\x30" + b"\xff" * 9 + b"\x01")
    (row,) = rows_of(with_items(result), "transactions")
    assert (row["status"], row["fee"]) == ("SUCCESS", None)


def test_transaction_ids_of_the_network() -> None:
    one = hapi_pb2.TransactionID(scheduled=True, nonce=3)
    one.account_id.num = 2
    one.transaction_valid_start.seconds = 5
    assert transaction_id_of(one) == "0.0.2@5.000000000?scheduled/3"


def test_what_is_no_block_is_said() -> None:
    block = with_items(b"\x08\x01")
    with pytest.raises(ItemError, match="item 1"):
        rows_of(block, "items")
    with pytest.raises(PrepareError):
        rows_of(with_items(), "headers")
    way = DECODES["headers"]
    table = way.table(BlockView(0, with_items().items), ["block_number", "item_count"])
    assert (table["item_count"], "root_hash" in table) == ([1], False)


# --- batches ------------------------------------------------------------------------------------------------


def sizes(tables: Sequence[tuple[Table, int]], rows_max: int, bytes_max: int) -> list[int]:
    columns = {"block_number": pa.int64(), "item": pa.binary()}
    return [batch.num_rows for batch in table_batches(tables, columns, rows_max, bytes_max)]


def test_batches_are_bounded() -> None:
    def table(count: int) -> Table:
        return {"block_number": [1] * count, "item": [b"abc"] * count}

    assert sizes([(table(2), 6)] * 5, 4, 1000) == [4, 4, 2]
    assert sizes([(table(10), 30)], 4, 1000) == [4, 4, 2]
    assert sizes([(table(10), 3000)], 100, 1000) == [3, 3, 3, 1]
    assert sizes([(table(2), 6)] * 5, 100, 12) == [4, 4, 2]
    assert sizes([(table(0), 5000), (table(1), 3)], 100, 1000) == [1]
    assert sizes([], 1, 1) == []
    nulls = list(
        table_batches([({"block_number": [3]}, 1)], {"block_number": pa.int64(), "item": pa.binary()})
    )
    assert nulls[0].to_pylist() == [{"block_number": 3, "item": None}]


def test_options_name_all_decodes() -> None:
    assert ("blocks", *DECODES) == BLOCK_DECODES
    for way in DECODES.values():
        assert next(iter(way.columns)) == "block_number"
