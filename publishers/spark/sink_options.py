"""The options of the sink `blockstream`.

option             meaning                                                          default
gateways, tls…,    see gateway_options.py                                           gateways needed
max_message_bytes
publisher_id       the name by which nodes know this publisher: printable ASCII     spark
race               publishers of every block in each task, each with its own        1
                   connection; one of them has to succeed
check              `true`: check structure, root hash and links before offering     true
deadline_seconds   give up after so long without a block becoming safe; while a     never
                   partition waits for its turn, without a gateway that answers
reset_interval_seconds  leave the stream in good order after so long, between       never
                   blocks, and go on at the next gateway at once
turn_seconds       give up waiting for the blocks before this partition after so     600; session.py
                   long in which gateways answer and make no progress
answer_seconds     leave a gateway that is silent for so long                       60
set_bytes          size of an item set in a message                                 65536
cache_bytes        bytes of blocks that a task holds                                268435456
window_blocks      blocks offered and not acknowledged                              128
blocks_per_second  offer blocks no faster than this, with some jitter               no limit
first_block        the chain's first block: its partition need not wait for others   the partition 0
report_path        folder for `<publisher_id>.json`, the reports of the partitions;  none
                   made where it is not there
coordinator            `host:port/token` of a coordinator (coordinator.py), for races of jobs   none
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gateway.transport.channels import ClientTls
from publishers import limits
from publishers.client.client import ClientOptions, check_publisher_id
from publishers.client.racing import Racer
from publishers.coordination.coordinator import CoordinatorAddress
from publishers.errors import OptionError
from publishers.number_range import NUMBER_MAX
from publishers.protocol.machine import SECOND_NS, MachineLimits
from publishers.sources.block_gateways import BlockGateways
from publishers.spark.gateway_options import (
    GATEWAY_OPTIONS,
    Gateways,
    gateway_tls,
    gateways_of,
    message_bytes_of,
    rotated,
)
from publishers.spark.options import check_known, flag, positive, whole_number

__all__ = ["SPARK_OPTIONS", "SinkOptions"]

SPARK_OPTIONS: Final = frozenset(("path", "checkpointlocation", "queryname"))
"""What Spark gives along with the options of a sink: of `save(path)`, and of a streaming query."""
_KNOWN: Final = (
    GATEWAY_OPTIONS
    | SPARK_OPTIONS
    | {
        *("publisher_id", "race", "check", "deadline_seconds", "turn_seconds", "answer_seconds"),
        *("reset_interval_seconds", "set_bytes", "cache_bytes", "window_blocks", "blocks_per_second"),
        *("first_block", "report_path", "coordinator"),
    }
)


@dataclass(frozen=True)
class SinkOptions:
    """The sink's options, read and checked; they travel to the workers."""

    gateways: Gateways
    """Addresses and priorities, the preferred one first."""
    tls: ClientTls | None
    message_bytes: int
    """The longest message that they take."""
    publisher_id: str
    race: int
    """Publishers of every block in each task."""
    is_checked: bool
    """Whether blocks are checked before they are offered."""
    deadline_seconds: float | None
    reset_interval_seconds: float | None
    turn_seconds: float
    """A task that waits holds a slot, which the task that it waits for may need for another try."""
    answer_seconds: float
    set_bytes: int
    cache_bytes: int
    window_blocks: int
    blocks_per_second: float | None
    first_block: int | None
    """The chain's first block, where it is known."""
    report_path: str | None
    coordinator: str | None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Read what Spark was given.

        Raises:
            OptionError: naming the option, what it was, and what it may be.
        """
        check_known(options, _KNOWN)
        first_block = whole_number(options, "first_block", 0, 0, NUMBER_MAX)
        return cls(
            gateways=gateways_of(options),
            tls=gateway_tls(options),
            message_bytes=message_bytes_of(options),
            publisher_id=_publisher_id(options),
            race=whole_number(options, "race", 1, 1, limits.RACE_MAX),
            is_checked=flag(options, "check", default=True),
            deadline_seconds=positive(options, "deadline_seconds", "seconds"),
            reset_interval_seconds=positive(options, "reset_interval_seconds", "seconds"),
            turn_seconds=positive(options, "turn_seconds", "seconds") or limits.TURN_SECONDS_DEFAULT,
            answer_seconds=positive(options, "answer_seconds", "seconds")
            or limits.ANSWER_TIMEOUT_SECONDS_DEFAULT,
            set_bytes=whole_number(
                options,
                "set_bytes",
                *(min(limits.ITEM_SET_BYTES_DEFAULT, message_bytes_of(options) // 2), 1),
                message_bytes_of(options) - limits.MESSAGE_MARGIN_BYTES,
            ),
            cache_bytes=whole_number(
                options, "cache_bytes", limits.CACHE_BYTES_DEFAULT, 1, limits.CACHE_BYTES_MAX
            ),
            window_blocks=whole_number(
                options, "window_blocks", limits.WINDOW_BLOCKS_DEFAULT, 1, limits.OFFERS_MAX
            ),
            blocks_per_second=positive(options, "blocks_per_second", "blocks a second"),
            first_block=first_block if "first_block" in options else None,
            report_path=options.get("report_path"),
            coordinator=_coordinator(options),
        )

    @property
    def prepared_bytes(self) -> int:
        """Bytes of blocks that are prepared and not yet with the publisher: a quarter of the cache."""
        return max(1, self.cache_bytes // 4)

    def client_options(self) -> ClientOptions:
        """Make the options of the client of one partition."""
        machine = MachineLimits(
            # What is prepared, and what one racer is ahead of another, is a quarter of it each.
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
        return [Racer(f"{task_name}.{turn + 1}", rotated(self.gateways, turn)) for turn in range(self.race)]

    def asker(self, answer_seconds: float = 10.0) -> BlockGateways:
        """Make what asks gateways how far they are; each may take so long to answer."""
        return BlockGateways(rotated(self.gateways, 0), self.tls, answer_seconds=answer_seconds)


def _publisher_id(options: Mapping[str, str]) -> str:
    name = options.get("publisher_id", "").strip() or "spark"
    check_publisher_id(name)
    if len(name) > limits.PUBLISHER_ID_CHARS_MAX:
        expected = f"{limits.PUBLISHER_ID_CHARS_MAX} characters at most"
        raise OptionError("publisher_id", f"{len(name)} characters", expected)
    return name


def _coordinator(options: Mapping[str, str]) -> str | None:
    text = options.get("coordinator")
    return None if text is None else str(CoordinatorAddress.parse(text))


def _nanoseconds(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * SECOND_NS)
