"""How `sluice ds client` shows entries and headers: one line each, for people or as JSON. Pure.

entry 4  Bookmark  type=l2_block value=1
{"entry": 4, "type": 176, "event": "Bookmark", "values": {"type": "l2_block", "value": 1}}
"""

from __future__ import annotations

import json

from datastream import Entry, StreamHeader
from datastream.events.events import event_name, event_of, event_values

__all__ = ["entry_line", "header_line"]


def entry_line(entry: Entry, *, as_json: bool) -> str:
    """Return one line that shows an entry as the typed event that it is, or its bytes."""
    event = event_of(entry)
    name, values = event_name(event), event_values(event)
    if as_json:
        return json.dumps({"entry": entry.number, "type": entry.type, "event": name, "values": values})
    shown = " ".join(f"{key}={_plain(value)}" for key, value in values.items())
    return f"entry {entry.number}  {name}  {shown}".rstrip()


def _plain(value: int | bool | str) -> str:
    """Write a value so that it cannot end the line or steer a terminal."""
    if isinstance(value, str) and not (value.isprintable() and " " not in value):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def header_line(header: StreamHeader, *, as_json: bool) -> str:
    """Return one line that shows a header."""
    values = {
        "version": header.version,
        "system_id": header.system_id,
        "stream_type": header.stream_type,
        "total_length": header.total_length,
        "total_entries": header.total_entries,
    }
    if as_json:
        return json.dumps(values)
    return "header  " + " ".join(f"{key}={value}" for key, value in values.items())
