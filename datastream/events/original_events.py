"""The typed events of the original zkEVM network: fixed binary layouts, integers big-endian. Pure values.

    1     StartL2Block   u64 batch_number | u64 block_number | u64 timestamp | u8[32] l1_block_hash
                         | u8[32] global_exit_root | u8[32] l1_info_root | u8[20] coinbase | u16 fork_id
    2     L2Tx           u8 gas_price_percentage | u8 is_valid | u8[32] state_root | u32 size | encoded
    3     EndL2Block     u64 block_number | u8[32] block_hash | u8[32] state_root
    4     OriginalUpdateGer   u64 batch_number | u64 timestamp | u8[32] global_exit_root | u8[20] coinbase
                         | u16 fork_id | u8[32] state_root
    0xb0  OriginalBookmark    u8 type (0 L2 block, 1 batch) | u64 number

Source: docs/spec/stream-file.md section 5; zkevm-data-streamer README, "USE CASE: zkEVM SEQUENCER ENTRIES".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, Self

from sluice.datastream.errors import EventMalformed, EventValueWrong
from sluice.datastream.layout import BOOKMARK_TYPE

__all__ = [
    "ORIGINAL_EVENTS",
    "EndL2Block",
    "L2Tx",
    "OriginalBookmark",
    "OriginalBookmarkType",
    "OriginalEvent",
    "OriginalUpdateGer",
    "StartL2Block",
]

_FIELDS: dict[str, tuple[str, int, bool]] = {
    "u8": ("B", 1, True),
    "u16": ("H", 2, True),
    "u64": ("Q", 8, True),
    "u8[20]": ("20s", 20, False),
    "u8[32]": ("32s", 32, False),
}
"""kind -> (struct code, bytes, whether it is an integer)."""
_U32 = struct.Struct(">I")


class OriginalBookmarkType(IntEnum):
    """The kind of a bookmark."""

    L2_BLOCK = 0
    BATCH = 1


class OriginalEvent:
    """Base of the binary events."""

    __slots__ = ()

    ENTRY_TYPE: ClassVar[int]
    """Type of the entries that hold this event."""
    LAYOUT: ClassVar[dict[str, str]]
    """Field -> kind, in order."""

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read an entry's data; EventMalformed when it has not exactly this layout."""
        head = cls._struct()
        if len(data) != head.size:
            raise EventMalformed(cls.__name__, 0, f"{len(data)} bytes", f"{head.size} bytes")
        return cls(*head.unpack(data))

    def encode(self) -> bytes:
        """Return the entry's data; EventValueWrong when a value does not fit its field."""
        values: list[Any] = []
        for name, kind in self.LAYOUT.items():
            value = getattr(self, name)
            _, size, is_integer = _FIELDS[kind]
            fits = 0 <= value < 1 << 8 * size if is_integer else len(value) == size
            if not fits:
                got = str(value) if is_integer else f"{len(value)} bytes"
                raise EventValueWrong(type(self).__name__, name, got, kind)
            values.append(value)
        return self._struct().pack(*values)

    @classmethod
    def _struct(cls) -> struct.Struct:
        return struct.Struct(">" + "".join(_FIELDS[kind][0] for kind in cls.LAYOUT.values()))


@dataclass(frozen=True, slots=True)
class StartL2Block(OriginalEvent):
    """An L2 block begins; its transactions follow."""

    ENTRY_TYPE = 1
    LAYOUT = {  # noqa: RUF012 (a ClassVar of the base)
        "batch_number": "u64",
        "block_number": "u64",
        "timestamp": "u64",
        "l1_block_hash": "u8[32]",
        "global_exit_root": "u8[32]",
        "l1_info_root": "u8[32]",
        "coinbase": "u8[20]",
        "fork_id": "u16",
    }
    batch_number: int
    block_number: int
    timestamp: int
    """Seconds since 1970."""
    l1_block_hash: bytes = bytes(32)
    global_exit_root: bytes = bytes(32)
    l1_info_root: bytes = bytes(32)
    coinbase: bytes = bytes(20)
    fork_id: int = 0


@dataclass(frozen=True, slots=True)
class L2Tx(OriginalEvent):
    """A transaction of the block before it."""

    ENTRY_TYPE = 2
    LAYOUT = {"gas_price_percentage": "u8", "is_valid": "u8", "state_root": "u8[32]"}  # noqa: RUF012
    gas_price_percentage: int
    is_valid: int
    """u8: 1 when it is."""
    state_root: bytes = bytes(32)
    encoded: bytes = b""
    """The transaction; its length, a u32, goes before it."""

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read an entry's data; EventMalformed when it has not exactly this layout."""
        head = cls._struct()
        start = head.size + _U32.size
        if len(data) < start:
            raise EventMalformed(cls.__name__, 0, f"{len(data)} bytes", f"{start} bytes or more")
        (size,) = _U32.unpack_from(data, head.size)
        if size != len(data) - start:
            got = f"a transaction of {size} bytes"
            raise EventMalformed(cls.__name__, head.size, got, f"the {len(data) - start} that follow")
        percentage, is_valid, state_root = head.unpack_from(data)
        return cls(percentage, is_valid, state_root, data[start:])

    def encode(self) -> bytes:
        """Return the entry's data; EventValueWrong when a value does not fit its field."""
        # Not super(): a dataclass with slots is another class than the one this method was written in.
        return OriginalEvent.encode(self) + _U32.pack(len(self.encoded)) + self.encoded


@dataclass(frozen=True, slots=True)
class EndL2Block(OriginalEvent):
    """An L2 block ends."""

    ENTRY_TYPE = 3
    LAYOUT = {"block_number": "u64", "block_hash": "u8[32]", "state_root": "u8[32]"}  # noqa: RUF012
    block_number: int
    block_hash: bytes = bytes(32)
    state_root: bytes = bytes(32)


@dataclass(frozen=True, slots=True)
class OriginalUpdateGer(OriginalEvent):
    """The global exit root changes."""

    ENTRY_TYPE = 4
    LAYOUT = {  # noqa: RUF012
        "batch_number": "u64",
        "timestamp": "u64",
        "global_exit_root": "u8[32]",
        "coinbase": "u8[20]",
        "fork_id": "u16",
        "state_root": "u8[32]",
    }
    batch_number: int
    timestamp: int
    """Seconds since 1970."""
    global_exit_root: bytes = bytes(32)
    coinbase: bytes = bytes(20)
    fork_id: int = 0
    state_root: bytes = bytes(32)


@dataclass(frozen=True, slots=True)
class OriginalBookmark(OriginalEvent):
    """A bookmark: where an L2 block or a batch begins."""

    ENTRY_TYPE = BOOKMARK_TYPE
    LAYOUT = {"type": "u8", "number": "u64"}  # noqa: RUF012
    type: int
    """An OriginalBookmarkType; the demo app takes any u8."""
    number: int


ORIGINAL_EVENTS: dict[int, type[OriginalEvent]] = {
    kind.ENTRY_TYPE: kind for kind in (StartL2Block, L2Tx, EndL2Block, OriginalUpdateGer, OriginalBookmark)
}
"""Entry type -> event."""
