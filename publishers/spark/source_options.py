"""The options of the sources, checked. Without Spark they serve `sluice publish --engine local`.

Source: docs/spark.md, "Sources".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sluice.datastream.events.events import Generation
from sluice.gateway.archive.objects import StoreOptions
from sluice.publishers import limits
from sluice.publishers.blocks.stream_grouping import Grouping
from sluice.publishers.errors import OptionError
from sluice.publishers.limits import BLOCK_FILE_BYTES_MAX, BLOCKS_PER_BATCH_DEFAULT, PARTITIONS_MAX
from sluice.publishers.number_range import NUMBER_MAX, NumberRange
from sluice.publishers.spark.folders import BlockFolders
from sluice.publishers.spark.gateway_options import (
    gateway_tls,
    gateways_of,
    message_bytes_of,
    rotated,
)
from sluice.publishers.spark.option_types import (
    BlockFilesOptions,
    BlockStreamOptions,
    DataStreamOptions,
    NetworkFileOptions,
    NetworkServerOptions,
    names_of,
)
from sluice.publishers.spark.options import (
    block_bounds,
    check_known,
    current_names,
    flag,
    given,
    one_of,
    positive,
    processor_count,
    time_ns,
    whole_number,
)

if TYPE_CHECKING:
    from sluice.gateway.transport.channels import ClientTls
    from sluice.publishers.sources.block_gateways import BlockGateways, HeldRange

__all__ = [
    "FIRST",
    "LATEST",
    "FileOptions",
    "NetworkOptions",
    "StreamOptions",
    "SubscriptionOptions",
    "generation_of",
]

SUBSCRIPTIONS_MAX: Final = 10_000
"""Most parts, each a subscription; a gateway has 1,000 at once and Spark runs a few."""
ENTRIES_PER_BATCH_DEFAULT: Final = 100_000
"""Entries in one batch of a streaming query."""
FIRST, LATEST = "first", "latest"
BLOCK_DECODES: Final = (
    "blocks",
    "hashes",
    "headers",
    "items",
    "transactions",
    "state_changes",
    "records",
)
STREAM_DECODES: Final = ("entries", "events", *BLOCK_DECODES)
FORMER_NAMES: Final = {
    "blocks_per_batch": "max_blocks_per_trigger",
    "entries_per_batch": "max_entries_per_trigger",
}


@dataclass(frozen=True)
class TimeBounds:
    """The consensus times of the wanted blocks, in nanoseconds since 1970; None: no bound."""

    first: int | None = None
    end: int | None = None
    """They are before it."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> TimeBounds | None:
        """Read `starting_timestamp` and `ending_timestamp`; None: neither is given. Raises OptionError."""
        first, end = (time_ns(options, name) for name in ("starting_timestamp", "ending_timestamp"))
        for name, bound, other in (("starting_timestamp", first, "from"), ("ending_timestamp", end, "to")):
            if bound is not None and other in options:
                raise OptionError(name, f"{other} as well", "one of the two")
        return None if first is None and end is None else cls(first, end)

    def check_endless(self) -> None:
        """Raise OptionError if a stream would have an end."""
        if self.end is not None:
            raise OptionError("ending_timestamp", "a time", "nothing in a stream; to, or a batch")


# --- block files --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileOptions:
    """The source's options, checked."""

    folders: BlockFolders
    first_block: int | None = None
    """None: the first there is."""
    last_block: int | None = None
    """None: the last there is."""
    partition_count: int = field(default_factory=processor_count)
    """The most partitions."""
    decode: str = "blocks"
    is_checked: bool = False
    """True: check blocks as gateways do, except for proofs."""
    mode: str = "failfast"
    times: TimeBounds = field(default_factory=lambda: TimeBounds())
    max_blocks_per_trigger: int = BLOCKS_PER_BATCH_DEFAULT
    max_bytes_per_trigger: int | None = None
    """Stored bytes; None: no limit."""
    fail_on_data_loss: bool = True
    """False: a query goes on behind a block that is missing."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> FileOptions:
        """Read the options that Spark passes; raise OptionError."""
        options = current_names(options, FORMER_NAMES)
        check_known(options, names_of(BlockFilesOptions))
        first, last = block_bounds(options)
        return cls(
            folders=BlockFolders(_paths(options)),
            first_block=first,
            last_block=last,
            **given(
                partition_count=whole_number(options, "partitions", 1, PARTITIONS_MAX),
                decode=one_of(options, "decode", BLOCK_DECODES),
                is_checked=flag(options, "check"),
                mode=one_of(options, "mode", ("failfast", "permissive")),
                times=TimeBounds.parse(options),
                max_blocks_per_trigger=whole_number(options, "max_blocks_per_trigger", 1, NUMBER_MAX),
                max_bytes_per_trigger=whole_number(options, "max_bytes_per_trigger", 1, NUMBER_MAX),
                fail_on_data_loss=flag(options, "fail_on_data_loss"),
            ),
        )

    @property
    def is_permissive(self) -> bool:
        """True if a damaged file is a row, not an error."""
        return self.mode == "permissive"

    @property
    def numbers(self) -> NumberRange:
        """The blocks from `from` to `to`."""
        end = None if self.last_block is None else self.last_block + 1
        return NumberRange(self.first_block or 0, end)


def _paths(options: Mapping[str, str]) -> list[str]:
    text = options.get("paths")
    if text is None:
        return [options.get("path", "")]
    with suppress(ValueError):
        paths = json.loads(text)
        if isinstance(paths, list) and all(isinstance(path, str) for path in paths):
            return paths
    raise OptionError("paths", repr(text), "a JSON array of paths")


# --- gateways -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SubscriptionOptions:
    """The options of reading."""

    gateways: tuple[str, ...]
    tls: ClientTls | None = None
    """None: connect without TLS."""
    message_bytes: int = limits.MESSAGE_BYTES_MAX
    begin: int | str = FIRST
    """A block number, `first` or `latest`."""
    last_block: int | None = None
    """None: the last there is; for a stream, none."""
    partition_count: int | None = None
    """None: the processors for a batch, 1 for a stream."""
    decode: str = "blocks"
    times: TimeBounds = field(default_factory=lambda: TimeBounds())
    max_blocks_per_trigger: int = limits.BLOCKS_PER_BATCH_DEFAULT
    deadline_seconds: float = limits.SOURCE_DEADLINE_SECONDS_DEFAULT

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SubscriptionOptions:
        """Read the options that Spark passes; raise OptionError."""
        options = current_names(options, FORMER_NAMES)
        check_known(options, names_of(BlockStreamOptions))
        word = options.get("from", "").strip().lower()
        is_word = word in (FIRST, LATEST)
        first = None if is_word else whole_number(options, "from", 0, NUMBER_MAX - 1)
        return cls(
            gateways=rotated(gateways_of(options), 0),
            tls=gateway_tls(options),
            message_bytes=message_bytes_of(options),
            **given(
                begin=word if is_word else first,
                last_block=whole_number(options, "to", first or 0, NUMBER_MAX - 1),
                partition_count=whole_number(options, "partitions", 1, SUBSCRIPTIONS_MAX),
                times=TimeBounds.parse(options),
                decode=one_of(options, "decode", BLOCK_DECODES),
                max_blocks_per_trigger=whole_number(options, "max_blocks_per_trigger", 1, NUMBER_MAX),
                deadline_seconds=positive(options, "deadline_seconds", "seconds"),
            ),
        )

    def connect(self) -> BlockGateways:
        """Return the gateways to read from."""
        from sluice.publishers.sources.block_gateways import BlockGateways

        return BlockGateways(
            self.gateways,
            self.tls,
            deadline_seconds=self.deadline_seconds,
            message_bytes_max=self.message_bytes,
        )

    def held(self) -> HeldRange:
        """Return what the first gateway that answers holds; raise SourceUnreachable."""
        return self.connect().held_surely()


# --- data streams -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StreamOptions:
    """The source's options, checked."""

    decode: str = "entries"
    generation: Generation | None = None
    """None: by the bytes."""
    partition_count: int = field(default_factory=processor_count)
    first_number: int = 0
    """The first entry; of a file or an archive that is read as blocks, the first block."""
    last_number: int = NUMBER_MAX
    """The last of them."""
    times: TimeBounds = field(default_factory=lambda: TimeBounds())
    store: StoreOptions = field(default_factory=StoreOptions)
    """Of an archive."""
    max_entries_per_trigger: int = ENTRIES_PER_BATCH_DEFAULT
    stream_type: int = 1
    tls: ClientTls | None = None
    """Of a server; None: connect without."""
    deadline_seconds: float = limits.SOURCE_DEADLINE_SECONDS_DEFAULT

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> StreamOptions:
        """Read the options that Spark passes; raise OptionError."""
        options = current_names(options, FORMER_NAMES)
        check_known(options, names_of(DataStreamOptions))
        decode, times = one_of(options, "decode", STREAM_DECODES), TimeBounds.parse(options)
        if times is not None and decode not in BLOCK_DECODES:
            name = "starting_timestamp" if times.first is not None else "ending_timestamp"
            raise OptionError(name, f"decode={decode or 'entries'}", "a decode of blocks, which have a time")
        return cls(
            **given(
                decode=decode,
                times=times,
                generation=generation_of(options),
                partition_count=whole_number(options, "partitions", 1, limits.PARTITIONS_MAX),
                first_number=whole_number(options, "from", 0, NUMBER_MAX),
                last_number=whole_number(options, "to", 0, NUMBER_MAX),
                store=StoreOptions(
                    options.get("endpoint"),
                    options.get("region"),
                    tls_ca=Path(options["tls_ca"]) if options.get("tls_ca") else None,
                ),
                max_entries_per_trigger=whole_number(options, "max_entries_per_trigger", 1, NUMBER_MAX),
                stream_type=whole_number(options, "stream_type", 0, 2**64 - 1),
                tls=gateway_tls(options),
                deadline_seconds=positive(options, "deadline_seconds", "seconds"),
            )
        )

    @property
    def has_blocks(self) -> bool:
        """True if rows are made of blocks, not of entries."""
        return self.decode in BLOCK_DECODES


# --- a network's own stream ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class NetworkOptions:
    """The options of the sources `server` and `file` of `sluice publish`."""

    grouping: Grouping
    keep_incomplete: bool = False
    block_bytes_max: int = BLOCK_FILE_BYTES_MAX
    source: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, options: Mapping[str, str], *, is_server: bool) -> NetworkOptions:
        """Read the options; raise OptionError."""
        options = {name.lower(): value for name, value in options.items()}  # as Spark takes them
        options = current_names(options, FORMER_NAMES)
        names = names_of(NetworkServerOptions if is_server else NetworkFileOptions)
        check_known(options, names)
        source_names = names & names_of(DataStreamOptions) - {"generation"}
        source = {name: value for name, value in options.items() if name in source_names}
        StreamOptions.parse(source)
        grouping = Grouping.parse(options.get("group_by", "batch").strip(), generation_of(options))
        own = given(
            keep_incomplete=flag(options, "keep_incomplete"),
            block_bytes_max=whole_number(options, "max_block_bytes", 1, NUMBER_MAX),
        )
        return cls(grouping, source=source, **own)


def generation_of(options: Mapping[str, str]) -> Generation | None:
    """Read the option `generation`; None: by the bytes. Raises OptionError."""
    chosen = one_of(options, "generation", ("auto", *(kind.value for kind in Generation)))
    return None if chosen in (None, "auto") else Generation(chosen)
