"""The last events of a node, for its status page: role changes, failovers, refusals, timeouts, certificates,
and what the front door refused.

`EventRing` is a handler of the log: an event is a log line whose message is in `EVENTS`. So the page says
what the log says, and a place that logs has nothing more to do.

Invariants
  - Each kind keeps its last `EVENTS_KEPT` events: who causes many of one kind takes no other away.
  - Lines with one message and party that follow each other within a minute are one event with a count, though
    others of the kind come between: ten publishers that fail together are ten events. The steps of a failover
    stay apart.
  - The handler gets the lines of its process: nodes that share one, as in tests, have each other's events.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from sluice.gateway.logs import FieldValue, fields_as_text, fields_of, one_line

__all__ = ["EVENTS", "Event", "EventRing", "EventTopic"]

EVENTS_KEPT: Final = 12
"""Events of a kind."""
SAME_SECONDS: Final = 60.0
TEXT_CHARACTERS_MAX: Final = 400


class EventTopic(Enum):
    """The kind of an event, as the page names it."""

    ROLE = "role"
    FAILOVER = "failover"
    BLOCK = "block"
    PUBLISHER = "publisher"
    STANDBY = "standby"
    DISK = "disk"
    CERTIFICATE = "certificate"
    DOOR = "front door"


EVENTS: Final[dict[str, EventTopic]] = {
    "node started": EventTopic.ROLE,
    "role": EventTopic.ROLE,
    "the node is active": EventTopic.ROLE,
    "the node is a standby": EventTopic.ROLE,
    "the node is drained": EventTopic.ROLE,
    "the node is active again": EventTopic.ROLE,
    "asked to change": EventTopic.FAILOVER,
    "not changed": EventTopic.FAILOVER,
    "control call refused": EventTopic.FAILOVER,
    "nobody finished the failover: the node stands by, its successor is active": EventTopic.FAILOVER,
    "nobody finished the failover: publishers are taken again": EventTopic.FAILOVER,
    "the role cannot be remembered": EventTopic.FAILOVER,
    "block refused": EventTopic.BLOCK,
    "block cannot be checked": EventTopic.BLOCK,
    "block dropped": EventTopic.BLOCK,
    "publisher refused": EventTopic.PUBLISHER,
    "publisher backs off": EventTopic.PUBLISHER,
    "stream ended": EventTopic.PUBLISHER,
    "publishers are refused": EventTopic.STANDBY,
    "publishers are accepted": EventTopic.STANDBY,
    "standby": EventTopic.STANDBY,
    "catch-up stands still": EventTopic.STANDBY,
    "catch-up gets on again": EventTopic.STANDBY,
    "commit failed": EventTopic.DISK,
    "the disk takes writes again": EventTopic.DISK,
    "certificate renewed": EventTopic.CERTIFICATE,
    "certificate renewed, it ends soon": EventTopic.CERTIFICATE,
    "certificate not renewed, the old one stays in use": EventTopic.CERTIFICATE,
    "connection refused": EventTopic.DOOR,
    "connection ended": EventTopic.DOOR,
    "connection not taken": EventTopic.DOOR,
    "message refused for its length": EventTopic.DOOR,
}
"""The log messages that are events."""

_LEVEL_MIN: Final = {"stream ended": logging.WARNING}  # else it ended as it should
_PARTIES: Final = ("publisher", "peer", "address")


@dataclass(frozen=True, slots=True)
class Event:
    """An event, or several of the same."""

    unix_seconds: float
    """The time of the last."""
    kind: EventTopic
    text: str
    """One line, which others may have worded."""
    is_trouble: bool
    count: int = 1


@dataclass(slots=True)
class _Kept:
    """An event whose text nobody has asked for yet: strangers cause more of them than people read."""

    message: str
    party: str
    fields: Mapping[str, FieldValue]
    unix_seconds: float
    is_trouble: bool
    count: int = 1

    def follows(self, last: _Kept) -> bool:
        """Return whether it is the same again."""
        mine, others = ((one.message, one.party, one.is_trouble) for one in (self, last))
        return mine == others and self.unix_seconds - last.unix_seconds < SAME_SECONDS


class EventRing(logging.Handler):
    """The last events of this process."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._kept: dict[EventTopic, deque[_Kept]] = {kind: deque(maxlen=EVENTS_KEPT) for kind in EventTopic}

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record if it is an event; the caller holds the handler's lock."""
        message = str(record.msg)
        kind = EVENTS.get(message)
        if kind is None or record.levelno < _LEVEL_MIN.get(message, logging.NOTSET):
            return
        found, kept = fields_of(record), self._kept[kind]
        party = next((str(found[name]) for name in _PARTIES if name in found), "")
        event = _Kept(message, party, found, record.created, record.levelno >= logging.WARNING)
        is_step = not event.is_trouble and kind in (EventTopic.ROLE, EventTopic.FAILOVER)
        before = () if is_step else enumerate(kept)
        same = next((place for place, last in before if event.follows(last)), None)
        if same is not None:
            event.count += kept[same].count
            del kept[same]
        kept.append(event)

    def events(self) -> list[Event]:
        """Return the events, the newest first."""
        assert self.lock is not None  # logging makes one for each handler
        with self.lock:
            found = [(kind, event) for kind, kept in self._kept.items() for event in kept]
        found.sort(key=lambda pair: pair[1].unix_seconds, reverse=True)
        return [
            Event(event.unix_seconds, kind, _text(event), event.is_trouble, event.count)
            for kind, event in found
        ]


def _text(event: _Kept) -> str:
    text = one_line(f"{event.message}  {fields_as_text(event.fields)}".rstrip())
    return text if len(text) <= TEXT_CHARACTERS_MAX else f"{text[: TEXT_CHARACTERS_MAX - 1]}…"
