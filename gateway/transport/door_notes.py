"""The record of a front door for operators: counters, log lines, and text for the status page.

A shell. Strangers cause these events at will, so `gateway.logs` limits the lines of each address and minute.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Final

from sluice.gateway.logs import caused_by
from sluice.gateway.metrics import Metrics
from sluice.gateway.transport.frames import ConnectionBreach
from sluice.gateway.transport.message_size import TooLong

__all__ = ["DoorNotes", "last_refused_message"]

log = logging.getLogger(__name__)

SHOWN_NS: Final = 600 * 1_000_000_000
"""The time that the status page shows an event."""
REASONS_SHOWN: Final = 8
"""Kinds of events shown."""
_LIMITS: Final = {"grpc.address": "grpc.max_message_bytes"}
"""The setting that limits messages, by that of the address."""


class DoorNotes:
    """The record of one door.

    Args:
        setting: the setting of its address, for messages.
        metrics: None counts nothing.
    """

    def __init__(
        self,
        setting: str,
        metrics: Metrics | None = None,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._setting = setting
        self._metrics = metrics
        self._now_ns = now_ns
        self._shown: dict[str, tuple[int, int, str]] = {}  # by kind: last time, count, last address
        self._refused_message: tuple[int, str] | None = None
        if metrics is not None:
            metrics.messages_refused.labels(reason="size")  # creates the counter at 0

    def refused(self, address: str, reason: str) -> None:
        """Note that a connection found no place."""
        if self._metrics is not None:
            self._metrics.connections_refused.labels(reason=reason).inc()
        self._note(address, f"connections refused, too many {reason}", "connection refused", reason=reason)

    def ended(self, address: str, breach: ConnectionBreach) -> None:
        """Note that the door ended a connection."""
        if self._metrics is not None:
            self._metrics.connections_ended.labels(reason=breach.what).inc()
        if breach.what == "no call":  # nobody's fault
            return
        self._note(
            address,
            f"connections ended, {breach.what}",
            "connection ended",
            reason=breach.what,
            got=breach.got,
            expected=breach.expected,
        )

    def refused_message(self, address: str, message: TooLong) -> None:
        """Note that gRPC refused a message for its size, before the node saw it."""
        setting, limit = self._setting, _LIMITS.get(self._setting, "a request there has no more")
        if self._metrics is not None:
            self._metrics.messages_refused.labels(reason="size").inc()
        words = (
            f"a message of {message.size_bytes} bytes from {address} to {setting} was refused, "
            f"expected at most {message.limit_bytes} ({limit})"
        )
        self._refused_message = (self._now_ns(), words)
        log.warning(
            "message refused for its length",
            extra=caused_by(
                address,
                setting=setting,
                address=address,
                got=message.size_bytes,
                expected_at_most=message.limit_bytes,
                limit=limit,
            ),
        )

    @property
    def recent_refused_message(self) -> tuple[int, str] | None:
        """Return time and text of the last message refused lately, if any."""
        refused = self._refused_message
        return None if refused is None or self._now_ns() - refused[0] >= SHOWN_NS else refused

    def words(self) -> tuple[str, ...]:
        """Return the events of the last ten minutes."""
        self._forget_what_is_over(self._now_ns())
        return tuple(
            f"{self._setting}: {what}: {count}, last from {address}"
            for what, (_, count, address) in self._shown.items()
        )

    def _forget_what_is_over(self, now_ns: int) -> None:
        self._shown = {what: note for what, note in self._shown.items() if now_ns - note[0] < SHOWN_NS}

    def _note(self, address: str, what: str, line: str, **words: str | int) -> None:
        now_ns = self._now_ns()
        self._forget_what_is_over(now_ns)
        count = self._shown[what][1] if what in self._shown else 0
        if count or len(self._shown) < REASONS_SHOWN:
            self._shown[what] = (now_ns, count + 1, address)
        log.warning(line, extra=caused_by(address, setting=self._setting, address=address, **words))


def last_refused_message(doors: Iterable[DoorNotes]) -> str | None:
    """Return the text of the last message that any door refused lately, if any."""
    found = [refused for door in doors if (refused := door.recent_refused_message) is not None]
    return max(found)[1] if found else None
