"""The options of the sink `blockstream`.

Source: docs/spark.md, "Options of the sink".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from sluice.gateway.transport.channels import ClientTls
from sluice.publishers import limits
from sluice.publishers.client.client import ClientOptions, check_publisher_id
from sluice.publishers.client.feeding import paced
from sluice.publishers.client.racing import Pace, Racer
from sluice.publishers.coordination.coordinator import CoordinatorAddress
from sluice.publishers.errors import OptionError
from sluice.publishers.number_range import NUMBER_MAX
from sluice.publishers.protocol.machine import SECOND_NS, MachineLimits
from sluice.publishers.sources.block_gateways import BlockGateways
from sluice.publishers.spark.gateway_options import (
    Gateways,
    gateway_tls,
    gateways_of,
    message_bytes_of,
    rotated,
)
from sluice.publishers.spark.option_types import BlockSinkOptions, names_of
from sluice.publishers.spark.options import (
    check_known,
    current_names,
    flag,
    given,
    positive,
    whole_number,
)

__all__ = ["FORMER_NAMES", "SinkOptions"]

CACHE_BYTES_MAX: Final = 1 << 40
"""Largest cache, far above any machine: it catches typing errors."""
PUBLISHER_ID_CHARS_MAX: Final = 128
"""Partitions, attempts and racers add to the name, and a file name may have 255."""
FORMER_NAMES: Final = {"turn_seconds": "part_order_seconds"}
"""Current name by former name: version 0.2 takes both."""


@dataclass(frozen=True)
class SinkOptions:
    """The sink's options, checked; they travel to the workers."""

    gateways: Gateways
    tls: ClientTls | None = None
    """None: connect without TLS."""
    message_bytes: int = limits.MESSAGE_BYTES_MAX
    publisher_id: str = "spark"
    race: int = 1
    is_checked: bool = True
    deadline_seconds: float | None = None
    """None: never give up."""
    reset_interval_seconds: float | None = None
    """None: never leave a working stream."""
    part_order_seconds: float = limits.PART_ORDER_SECONDS_DEFAULT
    answer_seconds: float = limits.ANSWER_TIMEOUT_SECONDS_DEFAULT
    set_bytes: int = limits.ITEM_SET_BYTES_DEFAULT
    cache_bytes: int = limits.CACHE_BYTES_DEFAULT
    window_blocks: int = limits.WINDOW_BLOCKS_DEFAULT
    blocks_per_second: float | None = None
    """None: no limit."""
    first_block: int | None = None
    """The chain's first block; None: the first one of partition 0."""
    report_path: str | None = None
    coordinator: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Read the options that Spark passes; raise OptionError."""
        options = current_names(options, FORMER_NAMES)
        check_known(options, names_of(BlockSinkOptions))
        message_bytes = message_bytes_of(options)
        set_bytes = whole_number(options, "set_bytes", 1, message_bytes - limits.MESSAGE_MARGIN_BYTES)
        if set_bytes is None:
            set_bytes = min(limits.ITEM_SET_BYTES_DEFAULT, message_bytes // 2)
        return cls(
            gateways=gateways_of(options),
            tls=gateway_tls(options),
            message_bytes=message_bytes,
            set_bytes=set_bytes,
            **given(
                publisher_id=_publisher_id(options),
                race=whole_number(options, "race", 1, limits.RACE_MAX),
                is_checked=flag(options, "check"),
                deadline_seconds=positive(options, "deadline_seconds", "seconds"),
                reset_interval_seconds=positive(options, "reset_interval_seconds", "seconds"),
                part_order_seconds=positive(options, "part_order_seconds", "seconds"),
                answer_seconds=positive(options, "answer_seconds", "seconds"),
                cache_bytes=whole_number(options, "cache_bytes", 1, CACHE_BYTES_MAX),
                window_blocks=whole_number(options, "window_blocks", 1, limits.OFFERS_MAX),
                blocks_per_second=positive(options, "blocks_per_second", "blocks a second"),
                first_block=whole_number(options, "first_block", 0, NUMBER_MAX),
                report_path=options.get("report_path"),
                coordinator=_coordinator(options),
            ),
        )

    @property
    def prepared_bytes(self) -> int:
        """Bytes of blocks prepared and not yet with the publisher: a quarter of the cache."""
        return max(1, self.cache_bytes // 4)

    def client_options(self) -> ClientOptions:
        """Return the options of the client of one partition."""
        machine = MachineLimits(
            # Prepared blocks, and one racer's lead, take a quarter each.
            cache_bytes_max=max(1, self.cache_bytes // 2),
            window_blocks_max=self.window_blocks,
            deadline_ns=_nanoseconds(self.deadline_seconds),
            reset_interval_ns=_nanoseconds(self.reset_interval_seconds),
            answer_timeout_ns=int(self.answer_seconds * SECOND_NS),
        )
        return ClientOptions(
            machine=machine,
            set_bytes_max=self.set_bytes,
            message_bytes_max=self.message_bytes,
            tls=self.tls,
        )

    def racers(self, task_name: str) -> list[Racer]:
        """Name the publishers of one task; those with gateways of one priority begin with different ones."""
        if self.race == 1:
            return [Racer(task_name, rotated(self.gateways, 0))]
        return [
            Racer(f"{task_name}.{place + 1}", rotated(self.gateways, place)) for place in range(self.race)
        ]

    def pace(self, *, is_beginning: bool, opened_at: float) -> Pace | None:
        """Return what holds each publisher to `blocks_per_second`; see `paced`."""
        if self.blocks_per_second is None:
            return None
        return partial(
            paced, per_second=self.blocks_per_second, opened_at=opened_at if is_beginning else None
        )

    def asker(self, answer_seconds: float = 10.0) -> BlockGateways:
        """Return a client that asks gateways how far they are."""
        return BlockGateways(rotated(self.gateways, 0), self.tls, answer_seconds=answer_seconds)


def _publisher_id(options: Mapping[str, str]) -> str | None:
    name = options.get("publisher_id", "").strip()
    check_publisher_id(name)
    if len(name) > PUBLISHER_ID_CHARS_MAX:
        expected = f"{PUBLISHER_ID_CHARS_MAX} characters at most"
        raise OptionError("publisher_id", f"{len(name)} characters", expected)
    return name or None


def _coordinator(options: Mapping[str, str]) -> str | None:
    text = options.get("coordinator")
    return None if text is None else str(CoordinatorAddress.parse(text))


def _nanoseconds(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * SECOND_NS)
