"""What operators see of a front door: counters, log lines, and words for the status page.

A shell. Strangers decide how often something happens at a door: `gateway.logs` leaves out lines beyond some
for each address and minute.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from gateway.logs import caused_by
from gateway.metrics import Metrics
from gateway.transport.frames import ConnectionBreach
from gateway.transport.refused_messages import RefusedMessages
from gateway.transport.server_relay import RefusedMessage

__all__ = ["DoorNotes"]

log = logging.getLogger(__name__)

SHOWN_NS: Final = 600 * 1_000_000_000
"""How long the status page shows what happened at the door."""
REASONS_SHOWN: Final = 8
"""Kinds of trouble that it shows."""


class DoorNotes:
    """What is noted of one door.

    Args:
        setting: the setting that names the address, for messages.
        metrics: of the node; None counts nothing (tests).
        refused_messages: of the node, all its doors; None: nobody is told (tests).
        now_ns: a monotonic clock.
    """

    def __init__(
        self,
        setting: str,
        metrics: Metrics | None = None,
        refused_messages: RefusedMessages | None = None,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._setting = setting
        self._metrics = metrics
        self._refused_messages = refused_messages
        self._now_ns = now_ns
        self._shown: dict[str, tuple[int, int, str]] = {}  # by what: when last, how often, the last address

    def refused(self, address: str, reason: str) -> None:
        """A connection was not taken: there are too many."""
        if self._metrics is not None:
            self._metrics.connections_refused.labels(reason=reason).inc()
        self._note(address, f"connections refused, too many {reason}", "connection refused", reason=reason)

    def ended(self, address: str, breach: ConnectionBreach) -> None:
        """The door ended a connection."""
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

    def refused_message(self, address: str, message: RefusedMessage) -> None:
        """gRPC refused a message for its size."""
        if self._refused_messages is not None:
            self._refused_messages.note(self._setting, address, message.size, message.limit)

    def words(self) -> tuple[str, ...]:
        """Say what happened in the last ten minutes, for the status page."""
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
