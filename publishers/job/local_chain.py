"""The sources of `sluice publish` as chains that this process reads: blocks in order of number.

What is known of the ends is checked before the first block is read, as for a DataFrame. Tables and Parquet
files are for Spark.
Source: docs/spark.md, "sluice publish".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final

from sluice.datastream.layout import Entry
from sluice.gateway.addresses import parse_addresses
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.stream_layout import BlockDecoder
from sluice.publishers.blocks.block_check import OfferCheck
from sluice.publishers.blocks.block_places import BlockPlace
from sluice.publishers.blocks.linking import sign_block
from sluice.publishers.blocks.signing_key import KeyPlace
from sluice.publishers.blocks.stream_grouping import StreamBlocks, plan_blocks, segments_of
from sluice.publishers.errors import BadBlock, BlockFileError, BlockListError, OptionError, PrepareError
from sluice.publishers.job.checkpoint import FollowCheckpoint
from sluice.publishers.job.local_follow import (
    ChainFollower,
    GrowingChain,
    GrowingFiles,
    GrowingNode,
    GrowingStream,
)
from sluice.publishers.number_range import NumberRange
from sluice.publishers.sources.entry_server import EntryServers
from sluice.publishers.sources.stream_runs import PagesReader, stream_file_in
from sluice.publishers.spark.chain_sources import (
    check_ends,
    check_followed,
    entry_of_block,
    file_options,
    listed_places,
    served_entries,
    server_options,
    subscribed,
)
from sluice.publishers.spark.folders import BlockFolders, folder_of
from sluice.publishers.spark.source_names import SourceKind, SourceName
from sluice.publishers.spark.source_options import NetworkOptions, StreamOptions, SubscriptionOptions
from sluice.publishers.verify.verify_sources import StoredSource

__all__ = ["LocalChain", "follow_chain", "open_chain", "prepared", "size_of", "why_spark"]

LOCAL_KINDS: Final[frozenset[SourceKind]] = frozenset(
    ("blockfiles", "blockstream", "datastream", "server", "file")
)
"""The sources that need no Spark."""

FOLLOWED_KINDS: Final[frozenset[SourceKind]] = frozenset(("blockfiles", "blockstream", "datastream"))
"""The sources that are followed without Spark. Of a network's stream, Spark's checkpoint keeps what links the
next block; without it the stream would be read from its beginning at every start.
"""

_TYPED: Final = frozenset(("decode", "starting_timestamp", "ending_timestamp"))
_SPARK_OPTIONS: Final = {
    "blockfiles": _TYPED
    | {"mode", "partitions", "max_blocks_per_trigger", "max_bytes_per_trigger", "fail_on_data_loss"},
    "blockstream": _TYPED | {"partitions", "max_blocks_per_trigger"},
    "datastream": frozenset(("decode", "generation", "from", "to", "partitions", "max_entries_per_trigger")),
    "server": frozenset(("partitions", "max_entries_per_trigger")),
    "file": frozenset(("partitions",)),
}
"""Options of sources that change the rows, parts and batches of a DataFrame."""

_Entries = Callable[[], Iterator[Entry]]


@dataclass(frozen=True, slots=True)
class LocalChain:
    """A chain, ready to be read."""

    blocks: Callable[[], Iterator[Block]]
    first_block: int | None = None
    """None: unknown before the blocks are read."""
    last_block: int | None = None
    """None: unknown before the blocks are read."""
    is_checked: bool = False
    """True: the source wants its blocks checked, whatever the sink wants."""
    follower: ChainFollower | None = None
    """What reads the blocks of a chain that grows."""


def open_chain(source: SourceName, numbers: NumberRange) -> LocalChain:
    """Find the blocks that are there now; both ends of `numbers` must be there.

    Raises:
        BlockListError: the blocks are no chain, or not the wanted ones. Of a network's stream, reading raises
            it.
        OptionError, SourceRefused, SourceUnreachable: the source cannot be read.
    """
    what = why_spark(source)
    if what is not None:
        raise OptionError("engine", f"local with {what}", "spark, which alone reads it")
    if source.kind == "blockfiles":
        options, places = listed_places(source, numbers)
        blocks = partial(_read_places, options.folders, places)
        return LocalChain(blocks, places[0].number, places[-1].number, options.is_checked)
    if source.kind == "blockstream":
        gateways, first, to = subscribed(source, numbers)
        return LocalChain(lambda: gateways.blocks(first, to), first, to)
    if source.kind == "datastream" and not source.is_server:
        return _stored(source, numbers)
    entries: _Entries = partial(_entries_of_file, source)
    if source.is_server:
        entries = partial(_entries_of_server, source, served_entries(source, numbers))
    if not source.is_network:
        return LocalChain(partial(_decoded, source, numbers, entries))
    last = numbers.end - 1 if numbers.end is not None else None
    if not source.is_server:
        last = _planned_last(source, numbers, entries)
    return LocalChain(partial(_made, source, numbers, entries), numbers.first, last)


def follow_chain(source: SourceName, numbers: NumberRange, checkpoint: FollowCheckpoint) -> LocalChain:
    """Return the blocks that are there and those that will come, from where the checkpoint is.

    Raises:
        CheckpointError: the checkpoint is damaged. Reading raises it if it cannot be written.
        OptionError: the source cannot be followed here.
    """
    what = why_spark(source, is_followed=True)
    if what is not None:
        raise OptionError("engine", f"local with {what}", "spark, which alone reads it")
    check_followed(source)
    growing, is_checked = _growing(source)
    following = checkpoint.next_block()
    first = (numbers.first or None) if following is None else following
    follower = ChainFollower(growing, first, numbers.end, checkpoint.note)
    last = None if numbers.end is None else numbers.end - 1
    return LocalChain(follower.blocks, numbers.first or None, last, is_checked, follower)


def _growing(source: SourceName) -> tuple[GrowingChain, bool]:
    """Return a source that grows, and whether it wants its blocks checked."""
    if source.kind == "blockfiles":
        options = file_options(source)
        return GrowingFiles(options.folders), options.is_checked
    if source.kind == "blockstream":
        subscription = SubscriptionOptions.parse({"gateways": source.location, **source.options})
        return GrowingNode(subscription.connect()), False
    return GrowingStream(_entry_servers(source), partial(entry_of_block, source)), False


def why_spark(source: SourceName, *, is_followed: bool = False) -> str | None:
    """Return what of a source only Spark reads; None: nothing."""
    if source.kind not in LOCAL_KINDS:
        return f"the source {source}"
    if is_followed and source.kind not in FOLLOWED_KINDS:
        return f"--follow of the source {source}"
    names = _SPARK_OPTIONS.get(source.kind, frozenset()) & {name.lower() for name in source.options}
    return f"--option {min(names)}" if names else None


def size_of(source: SourceName, numbers: NumberRange, *, is_followed: bool = False) -> int | None:
    """Return the bytes of a source's files on this machine; None: it is elsewhere.

    Of a source that is followed, these are the files that are there now, whatever is missing.
    Raises BlockListError or OptionError.
    """
    if source.kind == "blockfiles":
        folders = file_options(source).folders
        if folders.is_remote:
            return None
        if not is_followed:
            _, places = listed_places(source, numbers)
            return sum(Path(path).stat().st_size for path in {place.path for place in places})
        size_bytes = 0
        for path in {place.path for place in folders.blocks(numbers, is_growing=True)}:
            with suppress(FileNotFoundError):  # a block node removes files that it has put into a zip
                size_bytes += Path(path).stat().st_size
        return size_bytes
    if source.is_server or source.kind not in ("datastream", "file"):
        return None
    return stream_file_in(folder_of(source.location)).stat().st_size


def prepared(
    blocks: Iterator[Block],
    key: KeyPlace | None,
    *,
    is_checked: bool,
    where: Callable[[], str | None] = lambda: None,
) -> Iterator[Block]:
    """Yield the blocks as they are sent: signed if there is a key, then checked.

    Args:
        where: returns the file of the block that was read last; None: it has none.

    Raises:
        BadBlock, PrepareError: a block is bad; a BlockFileError if it has a file.
        KeyFileError: the key cannot be read.
    """
    check = OfferCheck()
    signing_key = None if key is None else key.load()
    for block in blocks:
        try:
            if signing_key is not None:
                block = Block(block.number, sign_block(block.number, block.items, signing_key))
            if is_checked:
                check.check(block)
        except (BadBlock, PrepareError) as error:
            path = where()
            if path is None:
                raise
            raise BlockFileError(path, f"bad block: {error.reason}") from error
        yield block


# --- blocks -------------------------------------------------------------------------------------------------


def _read_places(folders: BlockFolders, places: Sequence[BlockPlace]) -> Iterator[Block]:
    with folders.reader() as reader:
        for place in places:
            yield reader.read(place)


def _stored(source: SourceName, numbers: NumberRange) -> LocalChain:
    stored = StoredSource(folder_of(source.location), numbers, StreamOptions.parse(source.options).store)
    held = stored.numbers
    check_ends(source, numbers, (held[0], held[-1]), held)
    return LocalChain(lambda: (Block(job.number, job.items) for job in stored.jobs()), held[0], held[-1])


# --- entries ------------------------------------------------------------------------------------------------


def _entries_of_file(source: SourceName) -> Iterator[Entry]:
    with PagesReader(stream_file_in(folder_of(source.location))) as pages:
        if pages.header.total_entries:
            yield from chain.from_iterable(pages.pages_from(pages.run_from(0)))


def _entry_servers(source: SourceName) -> EntryServers:
    options = server_options(source)
    return EntryServers(
        parse_addresses(source.location, port_min=1),
        options.stream_type,
        options.tls,
        deadline_seconds=options.deadline_seconds,
    )


def _entries_of_server(source: SourceName, wanted: range) -> Iterator[Entry]:
    for entry in _entry_servers(source).entries(wanted.start):
        yield entry
        if entry.number + 1 >= wanted.stop:
            return


def _decoded(source: SourceName, numbers: NumberRange, entries: _Entries) -> Iterator[Block]:
    """Decode the blocks of a node's stream."""
    decoder = BlockDecoder()
    for entry in entries():
        stored = decoder.feed(entry.type, entry.data)
        if stored is None or stored.number < numbers.first:
            continue
        if stored.number not in numbers:
            return
        yield Block(stored.number, stored.items)


def _planned_last(source: SourceName, numbers: NumberRange, entries: _Entries) -> int:
    """Return the last block that is made of a file, which is read for that."""
    options = NetworkOptions.parse(source.options, is_server=False)
    segments = segments_of(options.grouping, ((one.number, one.type, one.data) for one in entries()))
    plan = plan_blocks(
        options.grouping,
        segments,
        is_whole=options.keep_incomplete,
        block_bytes_max=options.block_bytes_max,
    )
    count = len(plan.starts)
    if not count:
        raise BlockListError(str(source), "its entries make no complete block")
    check_ends(source, numbers, (0, count - 1), range(count))
    return count - 1 if numbers.end is None else numbers.end - 1


def _made(source: SourceName, numbers: NumberRange, entries: _Entries) -> Iterator[Block]:
    """Make the blocks of a network's stream."""
    options = NetworkOptions.parse(source.options, is_server=source.is_server)
    maker = StreamBlocks(options.grouping, block_bytes_max=options.block_bytes_max)
    next_number = 0
    for entry in entries():
        block = maker.feed(entry.number, entry.type, entry.data)
        if block is None:
            continue
        next_number = block.number + 1
        if block.number in numbers:
            yield block
        if numbers.end is not None and next_number >= numbers.end:
            return
    if options.keep_incomplete and (rest := maker.finish()) is not None:
        next_number = rest.number + 1
        if rest.number in numbers:
            yield rest
    if next_number == 0:
        raise BlockListError(str(source), "its entries make no complete block")
    check_ends(source, numbers, (0, next_number - 1), range(next_number))
