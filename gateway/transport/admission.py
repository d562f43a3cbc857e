"""The limits of publish streams: who may open one, and how fast its messages are taken.

Pure. The publish service asks before the race hears of a stream. A publisher or address above its messages a
second is not refused, but slowed down by gRPC's flow control. A pace outlives its connections, so
reconnecting does not evade it. Unproven names are a kind of their own, so invented names push out no others.
Source: docs/protocol.md, "Limits".
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from enum import Enum
from typing import Final

from sluice.gateway.identity import is_vouched_for

__all__ = ["Admission", "AdmissionLimits", "DenialKind", "Denied", "MessagePace"]

MESSAGE_PACES_KEPT: Final = 10_000
"""Paces remembered of each kind. The one idle longest is forgotten first."""

SECOND_NS: Final = 1_000_000_000


class DenialKind(Enum):
    """The reason why a stream is not admitted."""

    NOT_ALLOWED = "not allowed"  # no certificate, or an unlisted subject
    PUBLISHER_STREAMS = "streams of the publisher"
    ADDRESS_STREAMS = "streams of the address"


@dataclass(frozen=True, slots=True)
class Denied:
    """A stream that is not admitted."""

    kind: DenialKind
    reason: str
    """What, got, expected: the status's details."""


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """The settings of an operator."""

    allowed_subjects: frozenset[str] = frozenset()
    """Names in certificates; empty: anybody."""
    streams_per_publisher_max: int = 64
    streams_per_address_max: int = 256
    messages_per_second: int = 0
    """The limit of one publisher; 0: none."""
    messages_per_second_per_address: int = 0


class Admission:
    """The open publish streams of one node, and the paces of their messages."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self._limits = limits
        self.has_pace = bool(limits.messages_per_second or limits.messages_per_second_per_address)
        self._by_publisher: Counter[str] = Counter()
        self._by_address: Counter[str] = Counter()
        self._paces = {kind: OrderedDict[str, MessagePace]() for kind in _Paced}

    def admit(self, publisher: str, address: str, subjects: frozenset[str]) -> Denied | None:
        """Count a new stream, or return why it is not admitted; `release` an admitted one.

        Args:
            subjects: the names that its certificate proves.
        """
        limits = self._limits
        if limits.allowed_subjects and not subjects & limits.allowed_subjects:
            got = max(subjects, key=len) if subjects else "no client certificate"
            return Denied(
                DenialKind.NOT_ALLOWED,
                f"publisher: got {got}, expected a certificate whose subject is in publish.allowed_subjects",
            )
        if self._by_publisher[publisher] >= limits.streams_per_publisher_max:
            return Denied(
                DenialKind.PUBLISHER_STREAMS,
                f"streams of this publisher: got {limits.streams_per_publisher_max + 1}, expected at most "
                f"{limits.streams_per_publisher_max} at once",
            )
        if self._by_address[address] >= limits.streams_per_address_max:
            return Denied(
                DenialKind.ADDRESS_STREAMS,
                f"streams of this address: got {limits.streams_per_address_max + 1}, expected at most "
                f"{limits.streams_per_address_max} at once",
            )
        self._by_publisher[publisher] += 1
        self._by_address[address] += 1
        return None

    def release(self, publisher: str, address: str) -> None:
        """Forget a stream that `admit` counted."""
        for counter, key in ((self._by_publisher, publisher), (self._by_address, address)):
            assert counter[key] > 0, f"{key} has no stream to release"
            counter[key] -= 1
            if counter[key] == 0:
                del counter[key]

    def wait_ns(self, publisher: str, address: str, now_ns: int) -> int:
        """Count one message; return how long to wait before handling it (`now_ns`: a monotonic clock)."""
        limits, wait_ns = self._limits, 0
        if limits.messages_per_second:
            kind = _Paced.VOUCHED_FOR if is_vouched_for(publisher) else _Paced.AT_WILL
            wait_ns = self._pace(publisher, kind, limits.messages_per_second, now_ns).wait_ns(now_ns)
        if limits.messages_per_second_per_address:
            pace = self._pace(address, _Paced.ADDRESS, limits.messages_per_second_per_address, now_ns)
            wait_ns = max(wait_ns, pace.wait_ns(now_ns))
        return wait_ns

    def _pace(self, key: str, kind: _Paced, limit: int, now_ns: int) -> MessagePace:
        paces = self._paces[kind]
        pace = paces.get(key)
        if pace is None:
            pace = paces[key] = MessagePace(limit, now_ns)
            if len(paces) > MESSAGE_PACES_KEPT:
                paces.popitem(last=False)
        else:
            paces.move_to_end(key)
        return pace


class _Paced(Enum):
    VOUCHED_FOR = "name that somebody vouches for"
    AT_WILL = "name that anybody can have"
    ADDRESS = "address"


class MessagePace:
    """A token bucket for messages: a second's worth may come at once."""

    def __init__(self, messages_per_second: float, now_ns: int) -> None:
        assert messages_per_second > 0
        self._cost_ns = int(SECOND_NS / messages_per_second)
        # When the bucket would be full again.
        self._full_at_ns = now_ns

    def wait_ns(self, now_ns: int) -> int:
        """Count one message; return how long to wait before handling it."""
        self._full_at_ns = max(self._full_at_ns, now_ns) + self._cost_ns
        return max(0, self._full_at_ns - now_ns - SECOND_NS)
