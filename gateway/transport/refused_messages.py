"""The messages that gRPC refused for their length: logged, counted, and remembered for the status page.

A shell around the log and the metrics. gRPC refuses such a message before any code of the node runs, so
the front door, which sees the status that gRPC answers with, reports the refusal here.

    log      some lines an address and minute (`gateway.logs`)
    metric   sluice_messages_refused_total{reason="size"}, each
    finding  what the last one was, for `REMEMBERED_SECONDS`
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from gateway.logs import caused_by
from gateway.metrics import Metrics

__all__ = ["RefusedMessages"]

log = logging.getLogger(__name__)

REMEMBERED_SECONDS: Final = 600.0
"""How long the status page tells of the last one."""

_LIMITS: Final = {"grpc.address": "grpc.max_message_bytes"}
"""The setting that has the limit, by that of the address."""


class RefusedMessages:
    """What one node refused.

    Args:
        metrics: counts them.
        clock_seconds: monotonic time.
    """

    def __init__(self, metrics: Metrics, clock_seconds: Callable[[], float] = time.monotonic) -> None:
        self._counter = metrics.messages_refused.labels(reason="size")
        self._clock_seconds = clock_seconds
        self._last: tuple[float, str] | None = None

    def note(self, setting: str, address: str, size_bytes: int, limit_bytes: int) -> None:
        """Take note of a message that was refused.

        Args:
            setting: names the address that it came to.
            address: the network address that it came from.
            size_bytes: the length that stood in front of the message.
            limit_bytes: the most that is received there.
        """
        now_seconds = self._clock_seconds()
        limit_setting = _LIMITS.get(setting, "a request there has no more")
        self._counter.inc()
        self._last = (
            now_seconds,
            (
                f"a message of {size_bytes} bytes from {address} to {setting} was refused, expected at most "
                f"{limit_bytes} ({limit_setting})"
            ),
        )
        log.warning(
            "message refused for its length",
            extra=caused_by(
                address,
                setting=setting,
                address=address,
                got=size_bytes,
                expected_at_most=limit_bytes,
                limit=limit_setting,
            ),
        )

    @property
    def recent(self) -> str | None:
        """What the last one was, in words; None when there was none for long."""
        if self._last is None or self._clock_seconds() - self._last[0] >= REMEMBERED_SECONDS:
            return None
        return self._last[1]
