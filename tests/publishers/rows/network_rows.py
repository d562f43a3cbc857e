"""The rows of blocks by the network's own messages (`hiero-sdk-python`), to compare with Sluice's.

    python network_rows.py read CHAIN…      one JSON object: of each folder its rows and ten answers
    python network_rows.py make FOLDER      a block file with what the real chains lack

It runs in a process of its own, and imports nothing of Sluice: both have messages of the same names.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from hiero_sdk_python.hapi.block.stream import block_item_pb2, block_pb2, record_file_item_pb2
from hiero_sdk_python.hapi.block.stream.output import (
    state_changes_pb2,
    transaction_output_pb2,
    transaction_result_pb2,
)
from hiero_sdk_python.hapi.services import (
    basic_types_pb2,
    response_code_pb2,
    timestamp_pb2,
    transaction_contents_pb2,
    transaction_pb2,
    transaction_record_pb2,
)

_FUNCTIONS = {
    value.name.lower(): value.name for value in basic_types_pb2.HederaFunctionality.DESCRIPTOR.values
}
_WORDS = {
    "contractcreateinstance": "contractcreate",
    "contractupdateinstance": "contractupdate",
    "contractdeleteinstance": "contractdelete",
    "cryptocreateaccount": "cryptocreate",
    "cryptoupdateaccount": "cryptoupdate",
    "historyproofsignature": "historyassemblysignature",
    "tokenassociate": "tokenassociatetoaccount",
    "tokencreation": "tokencreate",
    "tokendeletion": "tokendelete",
    "tokendissociate": "tokendissociatefromaccount",
    "tokenfreeze": "tokenfreezeaccount",
    "tokengrantkyc": "tokengrantkyctoaccount",
    "tokenrevokekyc": "tokenrevokekycfromaccount",
    "tokenunfreeze": "tokenunfreezeaccount",
    "tokenwipe": "tokenaccountwipe",
}
"""Bodies whose name in `TransactionBody` is not that in `HederaFunctionality`, in small letters."""


def function_of(field: str | None) -> str | None:
    """Return the name of a body in HederaFunctionality."""
    if field is None:
        return None
    word = field.replace("_", "").lower()
    return str(_FUNCTIONS[_WORDS.get(word, word)])


def names() -> dict[str, str | None]:
    """Return the type of each body that this package knows."""
    fields = transaction_pb2.TransactionBody.DESCRIPTOR.oneofs_by_name["data"].fields
    return {field.name: function_of(field.name) for field in fields}


def nanos(time: Any) -> int:
    return int(time.seconds) * 10**9 + int(time.nanos)


def dotted(one: Any) -> str:
    for field in ("accountNum", "contractNum", "topicNum", "tokenNum", "fileNum", "scheduleNum"):
        if field in one.DESCRIPTOR.fields_by_name:
            alias = getattr(one, "alias", b"") or getattr(one, "evm_address", b"")
            return f"{one.shardNum}.{one.realmNum}.{alias.hex() or getattr(one, field)}"
    raise AssertionError(one)


def optional(message: Any, field: str) -> str | None:
    return dotted(getattr(message, field)) if message.HasField(field) else None


def body_in(signed: bytes) -> tuple[bytes, Any]:
    data = transaction_contents_pb2.SignedTransaction.FromString(signed).bodyBytes
    return data, transaction_pb2.TransactionBody.FromString(data)


def transfers_of(result: Any, amounts: str, lists: str) -> dict[str, Any]:
    return {
        "transfers": [[dotted(one.accountID), one.amount] for one in getattr(result, amounts).accountAmounts],
        "token_transfers": [
            [dotted(each.token), dotted(one.accountID), one.amount]
            for each in getattr(result, lists)
            for one in each.transfers
        ],
        "nft_transfers": [
            [
                dotted(each.token),
                dotted(one.senderAccountID),
                dotted(one.receiverAccountID),
                one.serialNumber,
            ]
            for each in getattr(result, lists)
            for one in each.nftTransfers
        ],
    }


def said_by(body: Any) -> dict[str, Any]:
    id_ = body.transactionID
    data = body.WhichOneof("data")
    named = getattr(body, data) if data else None
    fields = () if named is None else named.DESCRIPTOR.fields_by_name
    return {
        "type": function_of(data),
        "payer": optional(id_, "accountID"),
        "valid_start_ns": nanos(id_.transactionValidStart) if body.HasField("transactionID") else None,
        "is_scheduled": id_.scheduled if body.HasField("transactionID") else None,
        "node": optional(body, "nodeAccountID"),
        "max_fee": body.transactionFee,
        "valid_seconds": body.transactionValidDuration.seconds,
        "memo": body.memo,
        "contract": optional(named, "contractID") if "contractID" in fields else None,
        "topic": optional(named, "topicID") if "topicID" in fields else None,
    }


def of_items(items: list[Any]) -> list[dict[str, Any]]:
    """The transactions of a block without record files: what is behind a result belongs to it."""
    rows: list[dict[str, Any]] = []
    batched: list[bytes] = []
    fresh = False
    for item in items:
        kind = item.WhichOneof("item")
        if kind == "signed_transaction":
            _, body = body_in(item.signed_transaction)
            batched += body.atomic_batch.transactions
            rows.append(said_by(body))
            fresh = True
        elif kind == "transaction_result":
            if not fresh:
                rows.append(said_by(body_in(batched.pop(0))[1]) if batched else {})
            fresh = False
            result = item.transaction_result
            rows[-1] |= transfers_of(result, "transfer_list", "token_transfer_lists")
            rows[-1] |= {
                "consensus_ns": nanos(result.consensus_timestamp),
                "status": response_code_pb2.ResponseCodeEnum.Name(result.status),
                "fee": result.transaction_fee_charged,
            }
        elif kind == "transaction_output":
            which = item.transaction_output.WhichOneof("transaction")
            output: Any = getattr(item.transaction_output, which) if which else None
            evm = getattr(output, "evm_transaction_result", None)
            if which == "ethereum_call":
                evm = getattr(output, output.WhichOneof("transaction_result"))
            if evm is not None and evm.HasField("contract_id"):
                rows[-1]["contract"] = rows[-1].get("contract") or dotted(evm.contract_id)
        elif kind == "state_changes" and rows and rows[-1].get("type") == "ConsensusCreateTopic":
            for change in item.state_changes.state_changes:
                if change.map_update.key.HasField("topic_id_key"):
                    rows[-1]["topic"] = dotted(change.map_update.key.topic_id_key)
    return rows


def of_records(file: Any) -> list[dict[str, Any]]:
    rows = []
    for one in file.record_file_contents.record_stream_items:
        transaction, record = one.transaction, one.record
        if transaction.signedTransactionBytes:
            _, body = body_in(transaction.signedTransactionBytes)
        elif transaction.bodyBytes:
            body = transaction_pb2.TransactionBody.FromString(transaction.bodyBytes)
        else:
            body = transaction.body
        row = said_by(body) | transfers_of(record, "transferList", "tokenTransferLists")
        row |= {
            "consensus_ns": nanos(record.consensusTimestamp),
            "status": response_code_pb2.ResponseCodeEnum.Name(record.receipt.status),
            "fee": record.transactionFee,
        }
        for field in ("contractCallResult", "contractCreateResult"):
            if record.HasField(field):
                row["contract"] = row["contract"] or optional(getattr(record, field), "contractID")
        row["contract"] = row["contract"] or optional(record.receipt, "contractID")
        row["topic"] = row["topic"] or optional(record.receipt, "topicID")
        rows.append(row)
    return rows


def changes_of(number: int, items: list[Any]) -> list[list[Any]]:
    states = {value.number: value.name for value in state_changes_pb2.StateIdentifier.DESCRIPTOR.values}
    rows = []
    for item in items:
        if item.WhichOneof("item") != "state_changes":
            continue
        for change in item.state_changes.state_changes:
            operation = change.WhichOneof("change_operation")
            key = change.map_update.key if operation == "map_update" else change.map_delete.key
            key_kind = key.WhichOneof("key_choice")
            named = key_kind is not None and key_kind.rpartition("_id_key")[0] in (
                "account",
                "contract",
                "file",
                "schedule",
                "token",
                "topic",
            )
            value_kind = {
                "map_update": change.map_update.value.WhichOneof("value_choice"),
                "singleton_update": change.singleton_update.WhichOneof("new_value"),
                "queue_push": change.queue_push.WhichOneof("value"),
            }.get(operation or "")
            rows.append(
                [
                    number,
                    nanos(item.state_changes.consensus_timestamp),
                    states[change.state_id],
                    operation,
                    key_kind,
                    dotted(getattr(key, key_kind)) if named and key_kind else None,
                    value_kind,
                ]
            )
    return rows


def read(folder: Path) -> dict[str, Any]:
    """Return the rows of a chain."""
    transactions: list[dict[str, Any]] = []
    changes: list[list[Any]] = []
    headers: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.blk.gz"), key=lambda path: int(path.name.partition(".")[0])):
        block = block_pb2.Block.FromString(gzip.decompress(path.read_bytes()))
        header = block.items[0].block_header
        items = list(block.items)
        found = of_items(items)
        for item in items:
            if item.WhichOneof("item") == "record_file":
                found += of_records(item.record_file)
        transactions += [{"block_number": header.number} | row for row in found]
        changes += changes_of(header.number, items)
        sizes: Counter[str] = Counter()
        for item in items:
            size = item.ByteSize()
            sizes[item.WhichOneof("item")] += size
        footer = next(item.block_footer for item in items if item.WhichOneof("item") == "block_footer")
        version = header.hapi_proto_version
        headers.append(
            {
                "block_number": header.number,
                "consensus_ns": nanos(header.block_timestamp),
                "hapi": [version.major, version.minor, version.patch, version.pre, version.build],
                "previous": footer.previous_block_root_hash.hex(),
                "proofs": [
                    item.block_proof.WhichOneof("proof")
                    for item in items
                    if item.WhichOneof("item") == "block_proof"
                ],
                "bytes": dict(sizes),
                "counts": dict(Counter(item.WhichOneof("item") for item in items)),
            }
        )
    return {
        "headers": headers,
        "transactions": transactions,
        "changes": changes,
        "answers": answers(headers, transactions, changes),
    }


def answers(headers: list[Any], transactions: list[Any], changes: list[Any]) -> list[list[list[Any]]]:
    """Return the answers of the ten questions of docs/analytics.md, each a sorted table."""
    executed = [row for row in transactions if row.get("status") is not None]
    by_type = Counter((row.get("type"), row["status"]) for row in executed)
    fees: Counter[str] = Counter()
    received: Counter[str] = Counter()
    seconds: Counter[int] = Counter()
    topics: Counter[str] = Counter()
    tokens: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    waits: dict[str, list[int]] = defaultdict(list)
    for row in executed:
        fees[row.get("payer") or ""] += row["fee"]
        seconds[row["consensus_ns"] // 10**9] += 1
        if row.get("type") == "ConsensusSubmitMessage":
            topics[row["topic"]] += 1
        for account, amount in row["transfers"]:
            received[account] += max(0, amount)
        for token, _, amount in row["token_transfers"]:
            tokens[token][0] += 1
            tokens[token][1] += max(0, amount)
        if row.get("valid_start_ns") is not None and row.get("type"):
            waits[row["type"]].append(row["consensus_ns"] - row["valid_start_ns"])
    kinds: Counter[str] = Counter()
    for header in headers:
        kinds.update(header["bytes"])
    changed = Counter((row[2], row[3]) for row in changes)
    busiest = Counter(row[5] for row in changes if row[5] is not None and row[2] == "STATE_ID_ACCOUNTS")
    found: list[list[list[Any]]] = [
        [[*key, count] for key, count in by_type.items()],
        [[payer, fee] for payer, fee in fees.items() if fee > 0],
        [[second, count] for second, count in seconds.items()],
        [[topic, count] for topic, count in topics.items()],
        [[account, amount] for account, amount in received.items() if amount > 0],
        [
            [row["block_number"], row["type"], row["payer"], row["status"]]
            for row in executed
            if row["status"] != "SUCCESS"
        ],
        [[kind, len(each), min(each), max(each)] for kind, each in waits.items()],
        [[kind, size] for kind, size in kinds.items()],
        [[*key, count] for key, count in changed.items()],
        [[account, count] for account, count in busiest.items() if count > 1],
    ]
    return [sorted(table, key=str) for table in found]


# --- a block with what the real chains lack -----------------------------------------------------------------


def account(number: int = 0, alias: bytes = b"") -> Any:
    if alias:
        return basic_types_pb2.AccountID(shardNum=1, realmNum=2, alias=alias)
    return basic_types_pb2.AccountID(accountNum=number)


def time_of(seconds: int, nanoseconds: int = 0) -> Any:
    return timestamp_pb2.Timestamp(seconds=seconds, nanos=nanoseconds)


def signed(payer: Any, seconds: int, *, scheduled: bool = False, nonce: int = 0, **data: Any) -> bytes:
    body = transaction_pb2.TransactionBody(
        transactionID=basic_types_pb2.TransactionID(
            accountID=payer, transactionValidStart=time_of(seconds, 7), scheduled=scheduled, nonce=nonce
        ),
        nodeAccountID=account(3),
        transactionFee=5,
        memo="ü",
        **data,
    )
    message = transaction_contents_pb2.SignedTransaction(bodyBytes=body.SerializeToString())
    return bytes(message.SerializeToString())


def result(seconds: int, status: str = "SUCCESS", **fields: Any) -> Any:
    return block_item_pb2.BlockItem(
        transaction_result=transaction_result_pb2.TransactionResult(
            status=response_code_pb2.ResponseCodeEnum.Value(status),
            consensus_timestamp=time_of(seconds, 1),
            transaction_fee_charged=4,
            **fields,
        )
    )


def output(**fields: Any) -> Any:
    return block_item_pb2.BlockItem(transaction_output=transaction_output_pb2.TransactionOutput(**fields))


def transaction(data: bytes) -> Any:
    return block_item_pb2.BlockItem(signed_transaction=data)


def evm(number: int = 0, address: bytes = b"") -> dict[str, Any]:
    named = {"evm_address": address} if address else {"contractNum": number}
    return {"evm_transaction_result": {"contract_id": named}}


def make(folder: Path) -> None:
    """Write block 7 with the cases that no real chain here has."""
    inner = [
        signed(account(21), 2, cryptoTransfer={}),
        signed(account(22), 2, consensusSubmitMessage={"topicID": {"topicNum": 9}, "message": b"m"}),
    ]
    amounts = {
        "accountAmounts": [{"accountID": account(5), "amount": -9}, {"accountID": account(6), "amount": 9}]
    }
    tokens = [
        {
            "token": {"tokenNum": 77},
            "transfers": [{"accountID": account(5), "amount": 1, "is_approval": True}],
        },
        {
            "token": {"tokenNum": 78},
            "nftTransfers": [
                {"senderAccountID": account(5), "receiverAccountID": account(6), "serialNumber": 1 << 40}
            ],
        },
    ]
    change = {
        "state_id": 21,
        "map_update": {"key": {"topic_id_key": {"topicNum": 4040}}, "value": {"topic_value": {"memo": "t"}}},
    }
    items = [
        block_item_pb2.BlockItem(
            block_header={"number": 7, "block_timestamp": time_of(100), "hapi_proto_version": {"minor": 78}}
        ),
        transaction(signed(account(11), 1, atomic_batch={"transactions": inner})),
        result(101),
        result(102, transfer_list=amounts),
        result(103, "INVALID_TOPIC_ID"),
        transaction(
            signed(
                account(alias=bytes(range(20))),
                3,
                scheduled=True,
                contractCall={"contractID": {"contractNum": 8}},
            )
        ),
        result(104, token_transfer_lists=tokens, parent_consensus_timestamp=time_of(101, 1)),
        output(contract_call=evm(800)),
        transaction(signed(account(12), 4, nonce=2, contractCreateInstance={})),
        result(105),
        output(contract_create=evm(801)),
        transaction(signed(account(13), 5, ethereumTransaction={})),
        result(106),
        output(ethereum_call={"evm_call_transaction_result": {"contract_id": {"evm_address": b"\xee" * 20}}}),
        transaction(signed(account(14), 6, consensusCreateTopic={})),
        result(107),
        block_item_pb2.BlockItem(
            state_changes={"consensus_timestamp": time_of(107, 1), "state_changes": [change]}
        ),
        transaction(signed(account(15), 7, state_signature_transaction={})),
        result(108),
        block_item_pb2.BlockItem(block_footer={"previous_block_root_hash": b"p" * 48}),
    ]
    write(folder / "7.blk.gz", items)


def write(path: Path, items: list[Any]) -> None:
    path.write_bytes(gzip.compress(block_pb2.Block(items=items).SerializeToString()))


def make_records(folder: Path) -> None:
    """Write block 8: a record file with amendments, and with each form of a transaction."""

    def item(seconds: int, memo: str, form: str) -> Any:
        body = transaction_pb2.TransactionBody(memo=memo, consensusCreateTopic={})
        data = body.SerializeToString()
        forms: dict[str, dict[str, Any]] = {
            "body": {"body": body},
            "bodyBytes": {"bodyBytes": data},
            "signed": {
                "signedTransactionBytes": transaction_contents_pb2.SignedTransaction(
                    bodyBytes=data
                ).SerializeToString()
            },
        }
        record = transaction_record_pb2.TransactionRecord(
            consensusTimestamp=time_of(seconds),
            memo=memo,
            receipt={"status": 22, "topicID": {"topicNum": seconds}},
        )
        return {"transaction": transaction_pb2.Transaction(**forms[form]), "record": record}

    file = record_file_item_pb2.RecordFileItem(
        record_file_contents={
            "record_stream_items": [
                item(10, "first", "body"),
                item(20, "wrong", "bodyBytes"),
                item(30, "third", "signed"),
            ]
        },
        amendments=[item(20, "right", "signed"), item(25, "missed", "bodyBytes")],
    )
    items = [
        block_item_pb2.BlockItem(
            block_header={"number": 8, "block_timestamp": time_of(10), "hapi_proto_version": {"minor": 78}}
        ),
        block_item_pb2.BlockItem(record_file=file),
        block_item_pb2.BlockItem(block_footer={"previous_block_root_hash": b"p" * 48}),
    ]
    write(folder / "8.blk.gz", items)


def main() -> None:
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]))
        make_records(Path(sys.argv[2]))
        return
    found = {path: read(Path(path)) for path in sys.argv[2:]}
    sys.stdout.write(json.dumps({"types": names(), "chains": found}))


if __name__ == "__main__":
    main()
