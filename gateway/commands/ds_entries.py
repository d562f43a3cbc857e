"""The entries of a data streamer, named and decoded: items of blocks, and events of zkEVM networks.

Both layouts use the entry types 1, 2, 3… The data tell them apart: those of an item are one length-delimited
field whose number is the entry's type. No event of a network has a field of this form and number in front,
except a batch end of batch 0 without roots.

Source: docs/spec/block-layout.md; docs/spec/wire.md section 3; docs/spec/stream-file.md section 5.
"""

from __future__ import annotations

from typing import NamedTuple

from sluice.datastream import Entry
from sluice.datastream.events.events import Event, RawEvent, event_name, event_of, event_values
from sluice.datastream.events.network_events import L2Block, L2BlockEnd
from sluice.gateway.api import block_pb2
from sluice.gateway.blocks.errors import ItemError
from sluice.gateway.blocks.items import ItemKind, footer_of, header_of, kind_of, proof_of
from sluice.gateway.blocks.merkle import HASH_SIZE
from sluice.gateway.blocks.stream_layout import BLOCK_END_TYPE, CONTINUED

__all__ = ["EntryReader", "ReadEntry"]

Values = dict[str, int | bool | str]
_NUMBER_SIZE = 8


class ReadEntry(NamedTuple):
    """An entry for people, scripts, and the sanity check."""

    name: str
    """The item's name in BlockItem, "block_end", or the event's."""
    values: Values
    event: Event
    """Headers and block ends are the events that begin and end a block; other items are raw."""


class EntryReader:
    """Reads consecutive entries; one that is read alone is no last piece of a long item."""

    def __init__(self) -> None:
        self._piece: tuple[int, int] | None = None
        """(number of the entry that continues a long item, its kind)."""

    def read(self, entry: Entry) -> ReadEntry:
        """Read the next entry."""
        piece, self._piece = self._piece, None
        kind = entry.type & ~CONTINUED
        if entry.type & CONTINUED and kind < BLOCK_END_TYPE:
            self._piece = (entry.number + 1, kind)
            return _raw(entry, _item_name(kind), piece="more")
        if piece == (entry.number, kind):
            return _raw(entry, _item_name(kind), piece="last")
        if entry.type == BLOCK_END_TYPE and len(entry.data) == _NUMBER_SIZE + HASH_SIZE:
            number = int.from_bytes(entry.data[:_NUMBER_SIZE], "big")
            values: Values = {"number": number, "root_hash": f"0x{entry.data[_NUMBER_SIZE:].hex()}"}
            return ReadEntry("block_end", values, L2BlockEnd(number))
        if _is_item(entry):
            return _read_item(entry)
        event = event_of(entry)
        return ReadEntry(event_name(event), event_values(event), event)


def _raw(entry: Entry, name: str, **values: int | bool | str) -> ReadEntry:
    return ReadEntry(name, {**values, "data": f"0x{entry.data.hex()}"}, RawEvent(entry.type, entry.data))


def _is_item(entry: Entry) -> bool:
    try:
        return kind_of(entry.data) == entry.type
    except ItemError:
        return False


def _item_name(kind: int) -> str:
    return ItemKind(kind).name.lower() if kind in set(ItemKind) else f"item {kind}"


def _read_item(entry: Entry) -> ReadEntry:
    name = _item_name(entry.type)
    try:
        match entry.type:
            case ItemKind.BLOCK_HEADER:
                header = header_of(entry.data)
                return ReadEntry(name, _header_values(header), L2Block(header.number))
            case ItemKind.BLOCK_FOOTER:
                footer = footer_of(entry.data)
                hashes = {field.name: f"0x{value.hex()}" for field, value in footer.ListFields()}
                return ReadEntry(name, {**hashes}, RawEvent(entry.type, entry.data))
            case ItemKind.BLOCK_PROOF:
                proof = proof_of(entry.data)
                return _raw(entry, name, block=proof.block, proof=proof.WhichOneof("proof") or "none")
    except ItemError:  # it does not parse
        pass
    return _raw(entry, name)


def _header_values(header: block_pb2.BlockHeader) -> Values:
    time = header.block_timestamp
    return {
        "number": header.number,
        "hapi_proto_version": _version(header.hapi_proto_version),
        "software_version": _version(header.software_version),
        "block_timestamp": f"{time.seconds}.{time.nanos:09d}",
        "hash_algorithm": header.hash_algorithm,
    }


def _version(version: block_pb2.SemanticVersion) -> str:
    text = f"{version.major}.{version.minor}.{version.patch}"
    return text + (f"-{version.pre}" if version.pre else "") + (f"+{version.build}" if version.build else "")
