"""The messages that gRPC refused for their length: logged, counted, and remembered for the status page.

A shell around the log and the metrics. gRPC refuses such a message before any code of the node runs, so
the front door, which sees the status that gRPC answers with, reports the refusal here.

    log      one line an address and minute, with how many came since the line before
    metric   sluice_messages_refused_total{reason="size"}, each
    finding  what the last one was, for `REMEMBERED_SECONDS`
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gateway.logs import fields
from gateway.metrics import Metrics

__all__ = ["RefusedMessages"]

log = logging.getLogger(__name__)

LINE_SECONDS: Final = 60.0
"""Time between two log lines about one address: whoever sends such messages sends them again and again."""

REMEMBERED_SECONDS: Final = 600.0
"""How long the status page tells of the last one."""

_LIMITS: Final = {"grpc.address": "grpc.max_message_bytes"}
"""The setting that has the limit, by that of the address."""

ADDRESSES_KEPT: Final = 1_000
"""Addresses that are remembered for the log; the one that was quiet longest is forgotten first."""


@dataclass(slots=True)
class _Quiet:
    """An address that the log has told of."""

    since_seconds: float
    """When it did."""
    untold_count: int = 0
    """Messages that were refused since."""


class RefusedMessages:
    """What one node refused.

    Args:
        metrics: counts them.
        clock_seconds: monotonic time.
    """

    def __init__(self, metrics: Metrics, clock_seconds: Callable[[], float] = time.monotonic) -> None:
        self._counter = metrics.messages_refused.labels(reason="size")
        self._clock_seconds = clock_seconds
        self._told: OrderedDict[str, _Quiet] = OrderedDict()
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
        told = self._told.get(address)
        if told is not None and now_seconds - told.since_seconds < LINE_SECONDS:
            told.untold_count += 1
            return
        before_count = 0 if told is None else told.untold_count
        log.warning(
            "message refused for its length",
            extra=fields(
                setting=setting,
                address=address,
                got=size_bytes,
                expected_at_most=limit_bytes,
                limit=limit_setting,
                not_logged_before=before_count,
            ),
        )
        self._told[address] = _Quiet(now_seconds)
        self._told.move_to_end(address)
        if len(self._told) > ADDRESSES_KEPT:
            self._told.popitem(last=False)

    @property
    def recent(self) -> str | None:
        """What the last one was, in words; None when there was none for long."""
        if self._last is None or self._clock_seconds() - self._last[0] >= REMEMBERED_SECONDS:
            return None
        return self._last[1]
