"""Values of columns, made of the network's messages: identities, times, names, transfers.

Pure. Identities are written as the network's tools do: `0.0.1234`, an alias or an EVM address in hex behind
shard and realm. What is absent is None, and so is a time that its column cannot hold.
Source: docs/analytics.md, "Columns".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeVar

from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from sluice.gateway.api import block_pb2, hapi_pb2
from sluice.publishers.blocks.block_items import SECOND_NS
from sluice.publishers.number_range import NUMBER_MAX

__all__ = [
    "amounts_of",
    "as_micros",
    "as_nanos",
    "descriptor_set",
    "identity_in",
    "identity_of",
    "nft_transfers_of",
    "parsed",
    "seconds_of",
    "state_of",
    "status_of",
    "token_amounts_of",
    "transaction_id_of",
    "transaction_type_of",
    "version_of",
]

MessageT = TypeVar("MessageT", bound=Message)
_MICROS_MIN: Final = -62_135_596_800_000_000
_MICROS_MAX: Final = 253_402_300_799_999_999
"""The years 1 to 9999, as Spark's TIMESTAMP."""


def parsed(kind: type[MessageT], data: bytes) -> MessageT | None:
    """Parse a message; None if these bytes are none."""
    try:
        return kind.FromString(data)
    except DecodeError:
        return None


def descriptor_set() -> bytes:
    """Return a serialized FileDescriptorSet of the messages in typed rows, for `from_protobuf` of Spark.

    Their package is `sluice.hapi`; names and numbers are the network's, and what Sluice does not look into
    is bytes.
    """
    files = descriptor_pb2.FileDescriptorSet()
    for file in (block_pb2.DESCRIPTOR, hapi_pb2.DESCRIPTOR):
        file.CopyToProto(files.file.add())
    return files.SerializeToString(deterministic=True)


# --- times --------------------------------------------------------------------------------------------------


def as_nanos(time: block_pb2.Timestamp) -> int | None:
    """Return nanoseconds since 1970; None if 64 bits cannot hold them."""
    nanos = time.seconds * SECOND_NS + time.nanos
    return nanos if -NUMBER_MAX <= nanos <= NUMBER_MAX else None


def as_micros(time: block_pb2.Timestamp) -> int | None:
    """Return microseconds since 1970, rounded down; None outside of the years 1 to 9999."""
    micros = time.seconds * 1_000_000 + time.nanos // 1_000
    return micros if _MICROS_MIN <= micros <= _MICROS_MAX else None


def seconds_of(time: block_pb2.Timestamp) -> str:
    """Return a time as in transaction ids: `1700000000.000000001`."""
    return f"{time.seconds}.{time.nanos:09}"


# --- identities ---------------------------------------------------------------------------------------------


def identity_of(entity: hapi_pb2.EntityID) -> str:
    """Return `shard.realm.number`, or `shard.realm.alias`."""
    alias = entity.alias
    return f"{entity.shard_num}.{entity.realm_num}.{alias.hex() if alias else entity.num}"


def identity_in(message: Message, name: str) -> str | None:
    """Return the identity in a field of a message; None: it has none."""
    return identity_of(getattr(message, name)) if message.HasField(name) else None


def transaction_id_of(one: hapi_pb2.TransactionID) -> str:
    """Return `0.0.1234@1700000000.000000001`, then `?scheduled` and `/nonce` where they are set."""
    text = f"{identity_of(one.account_id)}@{seconds_of(one.transaction_valid_start)}"
    if one.scheduled:
        text += "?scheduled"
    return f"{text}/{one.nonce}" if one.nonce else text


def version_of(version: block_pb2.SemanticVersion) -> str:
    """Return a version as semver.org has it."""
    text = f"{version.major}.{version.minor}.{version.patch}"
    return text + (f"-{version.pre}" if version.pre else "") + (f"+{version.build}" if version.build else "")


# --- names --------------------------------------------------------------------------------------------------

_TYPES: Final = {
    "contractCreateInstance": "ContractCreate",
    "contractDeleteInstance": "ContractDelete",
    "contractUpdateInstance": "ContractUpdate",
    "cryptoCreateAccount": "CryptoCreate",
    "cryptoUpdateAccount": "CryptoUpdate",
    "history_proof_signature": "HistoryAssemblySignature",
    "tokenAssociate": "TokenAssociateToAccount",
    "tokenCreation": "TokenCreate",
    "tokenDeletion": "TokenDelete",
    "tokenDissociate": "TokenDissociateFromAccount",
    "tokenFreeze": "TokenFreezeAccount",
    "tokenGrantKyc": "TokenGrantKycToAccount",
    "tokenRevokeKyc": "TokenRevokeKycFromAccount",
    "tokenUnfreeze": "TokenUnfreezeAccount",
    "tokenWipe": "TokenAccountWipe",
}
"""Bodies whose type has another name."""


def _type_of(field: str) -> str:
    return _TYPES.get(field) or "".join(word[:1].upper() + word[1:] for word in field.split("_"))


_TYPE_OF: Final = {
    field.name: _type_of(field.name)
    for field in hapi_pb2.TransactionBody.DESCRIPTOR.oneofs_by_name["data"].fields
}


_NO_TYPES: Final = frozenset((5, 73, 1001, 1002))
"""Fields of a TransactionBody that are no type and that no column needs."""


def transaction_type_of(body: hapi_pb2.TransactionBody) -> str | None:
    """Return the network's name of a transaction's type (HederaFunctionality), or the number of its field if
    this version does not know it; None: the body has none.
    """
    chosen = body.WhichOneof("data")
    if chosen is not None:
        return _TYPE_OF[chosen]
    unknown = UnknownFieldSet(body)
    numbers = (unknown[index].field_number for index in range(len(unknown)))
    return next((str(number) for number in numbers if number not in _NO_TYPES), None)


def _names(enum: str) -> dict[int, str]:
    return {value.number: value.name for value in hapi_pb2.DESCRIPTOR.enum_types_by_name[enum].values}


_STATUSES: Final = _names("ResponseCode")
_STATES: Final = _names("StateIdentifier")


def status_of(number: int) -> str:
    """Return the name of a status, or its number if this version does not know it."""
    return _STATUSES.get(number) or str(number)


def state_of(number: int) -> str:
    """Return the name of a state, or its number if this version does not know it."""
    return _STATES.get(number) or str(number)


# --- transfers ----------------------------------------------------------------------------------------------


def amounts_of(transfers: Iterable[hapi_pb2.AccountAmount]) -> list[dict[str, Any]]:
    """Return transfers as values of `AMOUNTS`."""
    return [
        {"account": identity_of(one.account_id), "amount": one.amount, "is_approval": one.is_approval}
        for one in transfers
    ]


def token_amounts_of(lists: Iterable[hapi_pb2.TokenTransferList]) -> list[dict[str, Any]]:
    """Return transfers of fungible tokens as values of `TOKEN_AMOUNTS`."""
    return [
        {"token": identity_of(one.token)} | amount for one in lists for amount in amounts_of(one.transfers)
    ]


def nft_transfers_of(lists: Iterable[hapi_pb2.TokenTransferList]) -> list[dict[str, Any]]:
    """Return transfers of non-fungible tokens as values of `NFT_TRANSFERS`."""
    return [
        {
            "token": identity_of(one.token),
            "sender": identity_of(transfer.sender_account_id),
            "receiver": identity_of(transfer.receiver_account_id),
            "serial_number": transfer.serial_number,
            "is_approval": transfer.is_approval,
        }
        for one in lists
        for transfer in one.nft_transfers
    ]
