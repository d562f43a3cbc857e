"""A row a transaction (`decode=transactions`), and a row a record of a record file (`decode=records`).

Pure. In a block a transaction is a run of items: the signed transaction, its result, its outputs, the changes
that it made. A signed transaction without a result, as nodes sign states with, has no consensus time and no
status. A result without a signed transaction is that of the next transaction inside the atomic batch before
it. A record file has both in one message; its amendments take the place of what they amend.

Bytes that do not parse give null, and stay in the columns of bytes.
Source: docs/analytics.md, "Columns"; docs/spec/wire.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from sluice.gateway.api import block_pb2, hapi_pb2
from sluice.gateway.blocks.items import ItemKind, payload_of
from sluice.publishers.rows.table import (
    AMOUNTS,
    BYTES_LIST,
    NFT_TRANSFERS,
    TIME,
    TOKEN_AMOUNTS,
    BlockView,
    Decode,
    Table,
)
from sluice.publishers.rows.values import (
    amounts_of,
    as_micros,
    as_nanos,
    identity_in,
    identity_of,
    nft_transfers_of,
    parsed,
    status_of,
    token_amounts_of,
    transaction_id_of,
    transaction_type_of,
)

__all__ = ["RECORDS", "TRANSACTIONS"]

_CREATES_TOPIC: Final = "ConsensusCreateTopic"


class _Executed:
    """A transaction while its items are gathered.

    Args:
        item_index: of its first item.
        signed: the serialized SignedTransaction, if there is one.
        body: the serialized TransactionBody, where that is not in `signed`.
    """

    def __init__(self, item_index: int, signed: bytes | None, body: bytes | None = None) -> None:
        self.item_index = item_index
        self.signed = signed
        if signed is not None and (opened := parsed(hapi_pb2.SignedTransaction, signed)) is not None:
            body = opened.body_bytes
        self.body_bytes = body
        self.body = None if body is None else parsed(hapi_pb2.TransactionBody, body)
        self.result: bytes | None = None
        """The serialized TransactionResult."""
        self.recorded: _Recorded | None = None
        """What a record file has instead."""
        self.outputs: list[bytes] = []
        self.changes: list[bytes] = []
        """The serialized StateChanges behind its result."""


# --- finding them in a block --------------------------------------------------------------------------------


def _executed_in(block: BlockView) -> Iterator[_Executed]:
    current: _Executed | None = None
    inner: deque[bytes] = deque()
    for index, (kind, item) in enumerate(zip(block.kinds, block.items, strict=True)):
        if kind == ItemKind.SIGNED_TRANSACTION:
            if current is not None:
                yield current
            current = _Executed(index, payload_of(item))
            if current.body is not None and current.body.WhichOneof("data") == "atomic_batch":
                inner.extend(current.body.atomic_batch.transactions)
        elif kind == ItemKind.TRANSACTION_RESULT:
            if current is None or current.result is not None:
                if current is not None:
                    yield current
                current = _Executed(index, inner.popleft() if inner else None)
            current.result = payload_of(item)
        elif kind == ItemKind.TRANSACTION_OUTPUT and current is not None:
            current.outputs.append(payload_of(item))
        elif kind == ItemKind.STATE_CHANGES and current is not None:
            current.changes.append(payload_of(item))
        elif kind == ItemKind.RECORD_FILE:
            yield from _executed_by(_records_in(index, item))
    if current is not None:
        yield current


class _Recorded(NamedTuple):
    """A transaction of a record file, and its record."""

    item_index: int
    is_amendment: bool
    transaction: bytes
    record_bytes: bytes
    record: hapi_pb2.TransactionRecord | None

    @property
    def time(self) -> tuple[int, int] | None:
        """Seconds and nanoseconds of the consensus time."""
        if self.record is None:
            return None
        return self.record.consensus_timestamp.seconds, self.record.consensus_timestamp.nanos


def _records_in(item_index: int, item: bytes) -> list[_Recorded]:
    """Return the records of a record file, amendments last. Bytes that are no file are one record."""
    payload = payload_of(item)
    file = parsed(hapi_pb2.RecordFileItem, payload)
    if file is None:
        return [_Recorded(item_index, False, b"", payload, None)]
    return [
        _Recorded(
            item_index,
            is_amendment,
            one.transaction,
            one.record,
            parsed(hapi_pb2.TransactionRecord, one.record),
        )
        for is_amendment, found in (
            (False, file.record_file_contents.record_stream_items),
            (True, file.amendments),
        )
        for one in found
    ]


def _executed_by(records: Sequence[_Recorded]) -> Iterator[_Executed]:
    """Yield the transactions of a record file; an amendment replaces the record of its consensus time."""
    amended = {one.time for one in records if one.is_amendment}
    kept = [one for one in records if one.is_amendment or one.time is None or one.time not in amended]
    if amended:
        kept.sort(key=lambda one: one.time or (0, 0))
    for one in kept:
        executed = _Executed(one.item_index, *_signed_in(one.transaction))
        executed.recorded = one
        yield executed


def _signed_in(transaction: bytes) -> tuple[bytes | None, bytes | None]:
    """Return the serialized SignedTransaction of a transaction, and of older ones only the body."""
    found = parsed(hapi_pb2.Transaction, transaction)
    if found is None:
        return None, None
    if found.signed_transaction_bytes:
        return found.signed_transaction_bytes, None
    return None, found.body_bytes or found.body or None


# --- rows ---------------------------------------------------------------------------------------------------

_Row = dict[str, Any]


def _transactions(block: BlockView, wanted: Collection[str]) -> Table:
    rows = [_row(one) for one in _executed_in(block)]
    return _table(block.number, "transaction_index", rows, TRANSACTIONS.columns)


def _records(block: BlockView, wanted: Collection[str]) -> Table:
    rows = [
        _record_row(one)
        for index, (kind, item) in enumerate(zip(block.kinds, block.items, strict=True))
        if kind == ItemKind.RECORD_FILE
        for one in _records_in(index, item)
    ]
    return _table(block.number, "record_index", rows, RECORDS.columns)


def _table(number: int, index: str, rows: Sequence[_Row], columns: Collection[str]) -> Table:
    table: Table = {name: [row.get(name) for row in rows] for name in columns}
    table["block_number"] = [number] * len(rows)
    table[index] = list(range(len(rows)))
    return table


def _row(executed: _Executed) -> _Row:
    row: _Row = {
        "item_index": executed.item_index,
        "signed_transaction": executed.signed,
        "body": executed.body_bytes,
        "result": executed.result,
        "record": None if executed.recorded is None else executed.recorded.record_bytes,
        "outputs": executed.outputs,
    }
    if executed.body is not None:
        row |= _said_by(executed.body)
    if executed.recorded is not None:
        if executed.recorded.record is not None:
            row |= _recorded(executed.recorded.record, row)
    elif executed.result is not None:
        result = parsed(hapi_pb2.TransactionResult, executed.result)
        if result is not None:
            row |= _moved(result)
            row["fee"] = _unsigned(result.transaction_fee_charged)
            row["status"] = status_of(result.status)
            row["contract"] = row.get("contract") or _contract_in(executed.outputs)
            if row.get("type") == _CREATES_TOPIC:
                row["topic"] = _topic_in(executed.changes, result.consensus_timestamp)
    return row


def _record_row(recorded: _Recorded) -> _Row:
    row: _Row = {
        "item_index": recorded.item_index,
        "is_amendment": recorded.is_amendment,
        "transaction": recorded.transaction,
        "record": recorded.record_bytes,
    }
    record = recorded.record
    if record is None:
        return row
    receipt = record.receipt
    if record.HasField("transaction_id"):
        row |= _identified(record.transaction_id)
    return (
        row
        | _recorded(record, {})
        | {
            "memo": record.memo,
            "transaction_hash": record.transaction_hash,
            "account": identity_in(receipt, "account_id"),
            "file": identity_in(receipt, "file_id"),
            "schedule": identity_in(receipt, "schedule_id"),
            "token": identity_in(receipt, "token_id"),
            "topic_sequence_number": _unsigned(receipt.topic_sequence_number),
        }
    )


def _recorded(record: hapi_pb2.TransactionRecord, said: _Row) -> _Row:
    """Return what a record says; of contract and topic what the transaction says counts first."""
    chosen = record.WhichOneof("body")
    called = None if chosen is None else identity_in(getattr(record, chosen), "contract_id")
    created = identity_in(record.receipt, "contract_id")
    return {
        **_moved(record),
        "status": status_of(record.receipt.status),
        "fee": _unsigned(record.transaction_fee),
        "contract": said.get("contract") or called or created,
        "topic": said.get("topic") or identity_in(record.receipt, "topic_id"),
    }


def _said_by(body: hapi_pb2.TransactionBody) -> _Row:
    """Return what the signed transaction says."""
    chosen = body.WhichOneof("data")
    named: Any = None if chosen is None else getattr(body, chosen)
    row: _Row = {
        "type": transaction_type_of(body),
        "node": identity_in(body, "node_account_id"),
        "max_fee": _unsigned(body.transaction_fee),
        "valid_seconds": body.transaction_valid_duration.seconds,
        "memo": body.memo,
        "contract": identity_in(named, "contract_id") if isinstance(named, hapi_pb2.ContractBody) else None,
        "topic": identity_in(named, "topic_id") if isinstance(named, hapi_pb2.TopicBody) else None,
    }
    return row | (_identified(body.transaction_id) if body.HasField("transaction_id") else {})


def _identified(one: hapi_pb2.TransactionID) -> _Row:
    return {
        "transaction_id": transaction_id_of(one),
        "payer": identity_in(one, "account_id"),
        "valid_start": as_micros(one.transaction_valid_start),
        "valid_start_ns": as_nanos(one.transaction_valid_start),
        "is_scheduled": one.scheduled,
        "nonce": one.nonce,
    }


def _moved(result: hapi_pb2.TransactionResult | hapi_pb2.TransactionRecord) -> _Row:
    """Return the times and transfers, which results and records have by the same names."""
    has_parent = result.HasField("parent_consensus_timestamp")
    return {
        **_timed(result),
        "parent_consensus_ns": as_nanos(result.parent_consensus_timestamp) if has_parent else None,
        "transfers": amounts_of(result.transfer_list.account_amounts),
        "token_transfers": token_amounts_of(result.token_transfer_lists),
        "nft_transfers": nft_transfers_of(result.token_transfer_lists),
    }


def _timed(result: hapi_pb2.TransactionResult | hapi_pb2.TransactionRecord) -> _Row:
    if not result.HasField("consensus_timestamp"):
        return {}
    time: block_pb2.Timestamp = result.consensus_timestamp
    return {"consensus_time": as_micros(time), "consensus_ns": as_nanos(time)}


def _unsigned(value: int) -> int | None:
    """Return a uint64 that BIGINT has; a larger one is no sum of tinybars."""
    return value if value < 1 << 63 else None


# --- what a transaction creates -----------------------------------------------------------------------------


def _contract_in(outputs: Sequence[bytes]) -> str | None:
    """Return the contract that ran, by its outputs."""
    for data in outputs:
        output = parsed(hapi_pb2.TransactionOutput, data)
        chosen = None if output is None else output.WhichOneof("transaction")
        if output is None or chosen is None:
            continue
        if chosen == "ethereum_call":
            which = output.ethereum_call.WhichOneof("transaction_result")
            result = None if which is None else getattr(output.ethereum_call, which)
        else:
            result = getattr(output, chosen).evm_transaction_result
        if result is not None and result.HasField("contract_id"):
            return identity_in(result, "contract_id")
    return None


def _topic_in(changes: Sequence[bytes], time: block_pb2.Timestamp) -> str | None:
    """Return the topic that a transaction of this time put into the state."""
    for data in changes:
        found = parsed(hapi_pb2.StateChanges, data)
        if found is None or found.consensus_timestamp != time:
            continue
        for one in found.state_changes:
            change = parsed(hapi_pb2.StateChange, one)
            if change is None or not change.map_update.key.topic_id_key:
                continue
            topic = parsed(hapi_pb2.EntityID, change.map_update.key.topic_id_key)
            return None if topic is None else identity_of(topic)
    return None


_MOVED: Final = {
    "consensus_time": TIME,
    "consensus_ns": pa.int64(),
    "parent_consensus_ns": pa.int64(),
    "transaction_id": pa.string(),
    "payer": pa.string(),
    "valid_start": TIME,
    "valid_start_ns": pa.int64(),
    "is_scheduled": pa.bool_(),
    "nonce": pa.int64(),
    "memo": pa.string(),
    "status": pa.string(),
    "fee": pa.int64(),
    "transfers": AMOUNTS,
    "token_transfers": TOKEN_AMOUNTS,
    "nft_transfers": NFT_TRANSFERS,
    "contract": pa.string(),
    "topic": pa.string(),
}

TRANSACTIONS: Final = Decode(
    {
        "block_number": pa.int64(),
        "transaction_index": pa.int64(),
        "item_index": pa.int64(),
        **_MOVED,
        "type": pa.string(),
        "node": pa.string(),
        "max_fee": pa.int64(),
        "valid_seconds": pa.int64(),
        "signed_transaction": pa.binary(),
        "body": pa.binary(),
        "result": pa.binary(),
        "record": pa.binary(),
        "outputs": BYTES_LIST,
    },
    _transactions,
)
"""A row a transaction, of blocks and of record files."""

RECORDS: Final = Decode(
    {
        "block_number": pa.int64(),
        "record_index": pa.int64(),
        "item_index": pa.int64(),
        **_MOVED,
        "is_amendment": pa.bool_(),
        "transaction_hash": pa.binary(),
        "account": pa.string(),
        "file": pa.string(),
        "schedule": pa.string(),
        "token": pa.string(),
        "topic_sequence_number": pa.int64(),
        "transaction": pa.binary(),
        "record": pa.binary(),
    },
    _records,
)
"""A row a record of the record files in blocks; other blocks have none."""
