"""The typed events of zkEVM streams, of both generations, to bytes and back. Pure.

    event = decode_event(entry.type, entry.data)          # L2Block(number=7, ...), or RawEvent(type, data)
    streamer.add_stream_entry(entry_type_of(event), encode_event(event))

Nothing is lost: `encode_event(decode_event(t, data)) == data` for every data. A message keeps its unknown
fields. An unknown type or a non-canonical encoding becomes a `RawEvent` with the bytes.

Unless the caller names it, the bytes tell the generation: the original's layouts have exact sizes, and data
of such a size are hardly ever a message as well. A message with unknown fields comes last.

Source: docs/spec/stream-file.md section 5.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum

from sluice.datastream.errors import EventMalformed, EventValueWrong
from sluice.datastream.events.network_events import (
    NETWORK_EVENTS,
    BatchStart,
    BatchType,
    Bookmark,
    BookmarkType,
    NetworkEvent,
)
from sluice.datastream.events.original_events import (
    ORIGINAL_EVENTS,
    OriginalBookmark,
    OriginalBookmarkType,
    OriginalEvent,
)
from sluice.datastream.layout import BOOKMARK_TYPE, Entry

__all__ = [
    "Event",
    "Generation",
    "RawEvent",
    "decode_event",
    "encode_event",
    "entry_type_of",
    "event_name",
    "event_of",
    "event_values",
]


class Generation(Enum):
    """The generation of a network's events."""

    NETWORK = "network"
    """The current network's: protobuf."""
    ORIGINAL = "original"
    """The original network's: fixed binary layouts."""


@dataclass(frozen=True, slots=True)
class RawEvent:
    """An entry of unknown meaning."""

    type: int
    """Entry type."""
    data: bytes


Event = NetworkEvent | OriginalEvent | RawEvent


def decode_event(entry_type: int, data: bytes, generation: Generation | None = None) -> Event:
    """Return the event of an entry.

    Args:
        entry_type: of the entry; 0xb0 is a bookmark.
        generation: None takes the one that the bytes fit, and never raises.

    Raises:
        EventMalformed: a known type of that generation with other data.
    """
    match generation:
        case Generation.NETWORK:
            return _decode_network(entry_type, data)
        case Generation.ORIGINAL:
            return _decode_original(entry_type, data)
    last: Event = RawEvent(entry_type, data)
    for decode in (_decode_network, _decode_original):
        try:
            event = decode(entry_type, data)
        except EventMalformed:
            continue
        # A demo app's bookmark may have any first byte; only known ones identify it.
        is_guess = isinstance(event, OriginalBookmark) and event.type not in set(OriginalBookmarkType)
        if isinstance(event, NetworkEvent) and event.unknown_fields:
            last = event
        elif not isinstance(event, RawEvent) and not is_guess:
            return event
    return last


def event_of(entry: Entry, generation: Generation | None = None) -> Event:
    """Return the event of an entry; as `decode_event`."""
    return decode_event(entry.type, entry.data, generation)


def entry_type_of(event: Event) -> int:
    """Return the type of the event's entry; 0xb0 is added with `add_stream_bookmark`."""
    return event.type if isinstance(event, RawEvent) else event.ENTRY_TYPE


def encode_event(event: Event) -> bytes:
    """Return the data of the event's entry.

    Raises:
        EventValueWrong: a value that does not fit its field.
    """
    return event.data if isinstance(event, RawEvent) else event.encode()


def _decode_network(entry_type: int, data: bytes) -> Event:
    kind = NETWORK_EVENTS.get(entry_type)
    if kind is None:
        return RawEvent(entry_type, data)
    event = kind.decode(data)
    try:
        is_canonical = event.encode() == data
    except EventValueWrong:
        is_canonical = False
    return event if is_canonical else RawEvent(entry_type, data)


def _decode_original(entry_type: int, data: bytes) -> Event:
    kind = ORIGINAL_EVENTS.get(entry_type)
    return RawEvent(entry_type, data) if kind is None else kind.decode(data)


# --- for people and scripts ------------------------------------------------------------------------------


def event_name(event: Event) -> str:
    """Return the event's name; of both generations' bookmarks the same."""
    match event:
        case RawEvent(type=entry_type):
            return "Bookmark" if entry_type == BOOKMARK_TYPE else f"type {entry_type:#x}"
        case Bookmark() | OriginalBookmark():
            return "Bookmark"
        case _:
            return type(event).__name__.removeprefix("Original")


def event_values(event: Event) -> dict[str, int | bool | str]:
    """Return the event's fields that are set, for JSON or a line of text: bytes as 0x…, enums as names."""
    values: dict[str, int | bool | str] = {}
    for field in fields(event):  # type: ignore[arg-type]
        value = getattr(event, field.name)
        if isinstance(event, RawEvent) and field.name == "type":
            continue
        match value:
            case bytes():
                if value:
                    values[field.name] = f"0x{value.hex()}"
            case None:
                continue
            case int():
                values[field.name] = _enum_name(event, field.name, value)
            case _:
                values[field.name] = value.message
                if value.unknown_fields:
                    values[f"{field.name}_unknown_fields"] = f"0x{value.unknown_fields.hex()}"
    return values


def _enum_name(event: Event, field: str, value: int) -> int | str:
    enum = {BatchStart: BatchType, Bookmark: BookmarkType, OriginalBookmark: OriginalBookmarkType}.get(
        type(event)
    )
    if field != "type" or enum is None or value not in set(enum):
        return value
    return enum(value).name.lower()
