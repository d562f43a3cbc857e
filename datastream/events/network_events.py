"""The typed events of the current zkEVM network: protobuf, package `datastream.v1`. Pure values.

    1 BatchStart    2 L2Block    3 Transaction    4 BatchEnd    5 UpdateGer    6 L2BlockEnd    0xb0 Bookmark

An event equals what its bytes say; `unknown_fields` has the bytes of fields that the table lacks. Numbers are
uint64 where not said, hashes and addresses are bytes of any length, as on the wire.

Source: docs/spec/stream-file.md section 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, Self

from sluice.datastream.events.protobuf import (
    UNKNOWN_FIELDS,
    Field,
    FieldKind,
    MessageTable,
    decode_message,
    encode_message,
)
from sluice.datastream.layout import BOOKMARK_TYPE

__all__ = [
    "NETWORK_EVENTS",
    "BatchEnd",
    "BatchStart",
    "BatchType",
    "Bookmark",
    "BookmarkType",
    "Debug",
    "L2Block",
    "L2BlockEnd",
    "NetworkEvent",
    "Transaction",
    "UpdateGer",
]


class BatchType(IntEnum):
    """The origin of a batch; unknown values stay numbers."""

    UNSPECIFIED = 0
    REGULAR = 1
    FORCED = 2
    INJECTED = 3
    INVALID = 4


class BookmarkType(IntEnum):
    """The kind of a bookmark; unknown values stay numbers."""

    UNSPECIFIED = 0
    BATCH = 1
    L2_BLOCK = 2


@dataclass(frozen=True, slots=True)
class Debug:
    """A note of whoever wrote the event."""

    message: str = ""
    unknown_fields: bytes = b""


_DEBUG = MessageTable("Debug", Field(1, "message", FieldKind.STRING))


class NetworkEvent:
    """Base of the protobuf events."""

    __slots__ = ()

    ENTRY_TYPE: ClassVar[int]
    """Type of the entries that hold this event."""
    TABLE: ClassVar[MessageTable]
    """The message's fields."""
    unknown_fields: bytes
    """The bytes of all other fields, in their order."""

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read an entry's data; EventMalformed when it is not this message."""
        values = decode_message(cls.TABLE, data)
        if values.get("debug") is not None:
            values["debug"] = Debug(**values["debug"])
        return cls(**values)

    def encode(self) -> bytes:
        """Return the entry's data; EventValueWrong when a value does not fit its field."""
        values: dict[str, Any] = {name: getattr(self, name) for name in self.TABLE.defaults}
        debug = values.get("debug")
        if debug is not None:
            values["debug"] = {"message": debug.message, UNKNOWN_FIELDS: debug.unknown_fields}
        return encode_message(self.TABLE, values)


@dataclass(frozen=True, slots=True)
class BatchStart(NetworkEvent):
    """A batch begins."""

    ENTRY_TYPE = 1
    TABLE = MessageTable(
        "BatchStart",
        Field(1, "number", FieldKind.U64),
        Field(2, "type", FieldKind.ENUM),
        Field(3, "fork_id", FieldKind.U64),
        Field(4, "chain_id", FieldKind.U64),
        Field(5, "debug", FieldKind.MESSAGE, _DEBUG),
    )
    number: int = 0
    type: int = BatchType.UNSPECIFIED
    """A BatchType."""
    fork_id: int = 0
    chain_id: int = 0
    debug: Debug | None = None
    unknown_fields: bytes = b""


@dataclass(frozen=True, slots=True)
class L2Block(NetworkEvent):
    """An L2 block begins; its transactions follow."""

    ENTRY_TYPE = 2
    TABLE = MessageTable(
        "L2Block",
        Field(1, "number", FieldKind.U64),
        Field(2, "batch_number", FieldKind.U64),
        Field(3, "timestamp", FieldKind.U64),
        Field(4, "delta_timestamp", FieldKind.U32),
        Field(5, "min_timestamp", FieldKind.U64),
        Field(6, "l1_blockhash", FieldKind.BYTES),
        Field(7, "l1_infotree_index", FieldKind.U32),
        Field(8, "hash", FieldKind.BYTES),
        Field(9, "state_root", FieldKind.BYTES),
        Field(10, "global_exit_root", FieldKind.BYTES),
        Field(11, "coinbase", FieldKind.BYTES),
        Field(12, "block_gas_limit", FieldKind.U64),
        Field(13, "block_info_root", FieldKind.BYTES),
        Field(14, "debug", FieldKind.MESSAGE, _DEBUG),
        Field(15, "base_fee", FieldKind.BYTES),
    )
    number: int = 0
    batch_number: int = 0
    timestamp: int = 0
    """Seconds since 1970."""
    delta_timestamp: int = 0
    """u32, seconds."""
    min_timestamp: int = 0
    """Seconds since 1970."""
    l1_blockhash: bytes = b""
    l1_infotree_index: int = 0
    """u32."""
    hash: bytes = b""
    state_root: bytes = b""
    global_exit_root: bytes = b""
    coinbase: bytes = b""
    block_gas_limit: int = 0
    block_info_root: bytes = b""
    debug: Debug | None = None
    base_fee: bytes = b""
    """Of blocks of cdk-erigon: big-endian."""
    unknown_fields: bytes = b""


@dataclass(frozen=True, slots=True)
class Transaction(NetworkEvent):
    """A transaction of the block before it."""

    ENTRY_TYPE = 3
    TABLE = MessageTable(
        "Transaction",
        Field(1, "l2block_number", FieldKind.U64),
        Field(2, "index", FieldKind.U64),
        Field(3, "is_valid", FieldKind.BOOL),
        Field(4, "encoded", FieldKind.BYTES),
        Field(5, "effective_gas_price_percentage", FieldKind.U32),
        Field(6, "im_state_root", FieldKind.BYTES),
        Field(7, "debug", FieldKind.MESSAGE, _DEBUG),
    )
    l2block_number: int = 0
    index: int = 0
    is_valid: bool = False
    encoded: bytes = b""
    effective_gas_price_percentage: int = 0
    """u32."""
    im_state_root: bytes = b""
    debug: Debug | None = None
    unknown_fields: bytes = b""


@dataclass(frozen=True, slots=True)
class BatchEnd(NetworkEvent):
    """A batch ends."""

    ENTRY_TYPE = 4
    TABLE = MessageTable(
        "BatchEnd",
        Field(1, "number", FieldKind.U64),
        Field(2, "local_exit_root", FieldKind.BYTES),
        Field(3, "state_root", FieldKind.BYTES),
        Field(4, "debug", FieldKind.MESSAGE, _DEBUG),
    )
    number: int = 0
    local_exit_root: bytes = b""
    state_root: bytes = b""
    debug: Debug | None = None
    unknown_fields: bytes = b""


@dataclass(frozen=True, slots=True)
class UpdateGer(NetworkEvent):
    """The global exit root changes."""

    ENTRY_TYPE = 5
    TABLE = MessageTable(
        "UpdateGER",
        Field(1, "batch_number", FieldKind.U64),
        Field(2, "timestamp", FieldKind.U64),
        Field(3, "global_exit_root", FieldKind.BYTES),
        Field(4, "coinbase", FieldKind.BYTES),
        Field(5, "fork_id", FieldKind.U64),
        Field(6, "chain_id", FieldKind.U64),
        Field(7, "state_root", FieldKind.BYTES),
        Field(8, "debug", FieldKind.MESSAGE, _DEBUG),
    )
    batch_number: int = 0
    timestamp: int = 0
    """Seconds since 1970."""
    global_exit_root: bytes = b""
    coinbase: bytes = b""
    fork_id: int = 0
    chain_id: int = 0
    state_root: bytes = b""
    debug: Debug | None = None
    unknown_fields: bytes = b""


@dataclass(frozen=True, slots=True)
class L2BlockEnd(NetworkEvent):
    """An L2 block ends."""

    ENTRY_TYPE = 6
    TABLE = MessageTable("L2BlockEnd", Field(1, "number", FieldKind.U64))
    number: int = 0
    unknown_fields: bytes = b""


@dataclass(frozen=True, slots=True)
class Bookmark(NetworkEvent):
    """A bookmark: where a batch or an L2 block begins."""

    ENTRY_TYPE = BOOKMARK_TYPE
    TABLE = MessageTable("BookMark", Field(1, "type", FieldKind.ENUM), Field(2, "value", FieldKind.U64))
    type: int = BookmarkType.UNSPECIFIED
    """A BookmarkType."""
    value: int = 0
    """Number of the batch or block."""
    unknown_fields: bytes = b""


NETWORK_EVENTS: dict[int, type[NetworkEvent]] = {
    kind.ENTRY_TYPE: kind
    for kind in (BatchStart, L2Block, Transaction, BatchEnd, UpdateGer, L2BlockEnd, Bookmark)
}
"""Entry type -> event."""
