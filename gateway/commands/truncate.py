"""`sluice truncate`: cuts the last blocks off a node's data folder, or the last entries off a stream file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import click

from sluice.datastream import DataStreamer
from sluice.datastream.errors import BookmarkNotFound
from sluice.datastream.file.updating import NewestGivenUp
from sluice.gateway.archive.objects import StoreOptions, open_store
from sluice.gateway.archive.reader import ArchiveReader
from sluice.gateway.blocks.stream_layout import BlockDecoder, StoredBlock, bookmark_of
from sluice.gateway.commands.archive_options import store_options
from sluice.gateway.commands.check import native_folder_of, stream_file_of
from sluice.gateway.commands.ds_client import BookmarkForms
from sluice.gateway.commands.parameter_types import NamedPath
from sluice.gateway.errors import Fatal
from sluice.gateway.store.block_store import STREAM_FILE_NAME, BlockStore
from sluice.gateway.store.cutting import (
    CutCheck,
    block_time,
    check_place,
    entries_of,
    look_at,
    write_cut,
    write_entries,
)
from sluice.gateway.store.evidence import BLOCK_FILE_NAME

__all__ = ["command", "is_wanted"]

_U64 = click.IntRange(0, (1 << 64) - 1)


@dataclass(frozen=True, slots=True)
class _Blocks:
    first: int
    kept_last: int
    last: int
    unix_seconds: tuple[int | None, int | None]
    """The times of the first and the last block that go, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    kept_entries: int
    total_entries: int
    cut_bytes: int

    @classmethod
    def of(cls, streamer: DataStreamer, kept: int) -> _File:
        totals = streamer.committed
        cut_bytes = totals.total_length - streamer.offset_of(kept)
        return cls(streamer.path, kept, totals.total_entries, cut_bytes)

    def as_json(self) -> dict[str, object]:
        return {
            "file": str(self.path),
            "kept_entries": self.kept_entries,
            "cut_entries": self.total_entries - self.kept_entries,
            "cut_bytes": self.cut_bytes,
        }

    def stays(self) -> str:
        return f"entries 0 to {self.kept_entries - 1}" if self.kept_entries else "no entry"

    def goes(self, of: str = "") -> str:
        if self.kept_entries == self.total_entries:
            return f"no entry{of}"
        return f"entries {self.kept_entries} to {self.total_entries - 1}{of}, {self.cut_bytes} bytes"


@dataclass(frozen=True, slots=True)
class _Plan:
    file: _File
    network: _File | None
    """The network's stream of a native chain."""
    is_node: bool
    blocks: _Blocks | None
    """None: not cut by blocks."""
    place: Path
    """The file for the cut part."""

    def as_json(self, *, truncated: bool) -> dict[str, object]:
        blocks = self.blocks
        return {
            **self.file.as_json(),
            "network": None if self.network is None else self.network.as_json(),
            "kind": "node" if self.is_node else "stream",
            "truncated": truncated,
            "cut_to": str(self.place) if truncated else None,
            "last_block": None if blocks is None else blocks.kept_last,
            "cut_first_block": None if blocks is None or not truncated else blocks.kept_last + 1,
            "cut_last_block": None if blocks is None or not truncated else blocks.last,
        }

    def lines(self) -> Iterator[str]:
        kind = "data folder of a node" if self.is_node else "stream file"
        file, network = self.file, self.network
        kept, cut = file.stays(), file.goes()
        if network is None:
            yield f"{file.path}: {kind}, {file.total_entries} entries"
        else:
            name = network.path.name
            yield f"{file.path}: {kind}, {file.total_entries} entries, {network.total_entries} in {name}"
            kept += f", {network.stays()} of {name}"
            cut += f", {network.goes(f' of {name}')}"
        if self.blocks is not None:
            blocks = self.blocks
            kept = f"{_numbers(blocks.first, blocks.kept_last)}, {kept}"
            times = " to ".join(_time(seconds) for seconds in dict.fromkeys(blocks.unix_seconds))
            cut = f"{_numbers(blocks.kept_last + 1, blocks.last)} of {times}, {cut}"
        yield f"stays  {kept}"
        yield f"goes   {cut}"
        yield f"       to {self.place} first"


def _numbers(first: int, last: int) -> str:
    return f"block {first}" if first == last else f"blocks {first} to {last}"


def _time(seconds: int | None) -> str:
    try:
        return "an unknown time" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%FT%TZ}"
    except (ValueError, OverflowError, OSError):
        return f"{seconds} s"


@click.command("truncate", short_help="Cut the last blocks off a node's data, or entries off a stream.")
@click.argument("path", type=NamedPath(exists=True, path_type=Path), metavar="DIR|FILE")
@click.option("--to-block", type=_U64, metavar="N", help="Keep blocks up to N.")
@click.option("--to-entry", type=_U64, metavar="N", help="Keep entries up to N.")
@click.option(
    "--to-bookmark",
    type=BookmarkForms(),
    help="Cut from this bookmark on: its bytes in hex, or l2block:N, batch:N in either network's form, or "
    "0..255:N (one byte, and N in eight). If several entries are this bookmark, the last one counts.",
)
@click.option(
    "--cut-to",
    type=NamedPath(path_type=Path),
    metavar="FILE",
    help="New stream file for a copy of what is cut. Default: a file named cut-… beside the stream file.",
)
@click.option(
    "--archive",
    "archive_url",
    envvar="SLUICE_ARCHIVE_URL",
    metavar="URL",
    help="The node's archive: needed if it has given pages up, for the root hashes of their blocks.",
)
@store_options
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text; needs --yes.")
def command(
    path: Path,
    to_block: int | None,
    to_entry: int | None,
    to_bookmark: list[bytes] | None,
    cut_to: Path | None,
    archive_url: str | None,
    store: StoreOptions,
    yes: bool,
    as_json: bool,
) -> None:
    """Cut the end off a stream for good, after copying it to a file of its own.

    DIR is the data folder of a stopped node: cut it with --to-block. FILE is a stream file, of sluice ds or
    of the Go data streamer, whose server is stopped: cut it with --to-entry or --to-bookmark. The command
    does not change what stays. If it is killed at any moment, the stream is whole, either as before or cut:
    run it again.

    What is archived stays: only blocks behind the last archived segment can be cut.

    A node's blocks were acknowledged: publishers may not have them any more, and its standbys must be cut as
    well. First read "The last block fits nobody" in docs/operations.md.
    """
    if sum(option is not None for option in (to_block, to_entry, to_bookmark)) != 1:
        raise click.UsageError("expected one of --to-block, --to-entry and --to-bookmark")
    if as_json and not yes:
        raise click.UsageError("--json cannot ask: expected --yes with it")
    native = native_folder_of(path)
    if native is not None and to_block is None:
        raise click.UsageError(f"{native} has the two files of a native chain: expected --to-block")
    file = stream_file_of(path) if native is None else native / BLOCK_FILE_NAME
    looked = look_at(file)
    is_node = native is not None or (looked.holds_blocks and file.name == STREAM_FILE_NAME)
    if to_block is not None and not looked.holds_blocks:
        raise click.UsageError(
            f"--to-block: {file} does not end with a block: expected --to-entry or --to-bookmark"
        )
    if to_block is None and is_node:
        raise click.UsageError(
            f"{file} is the stream of a node, which holds whole blocks: expected --to-block"
        )
    with ExitStack() as stack:
        blocks, streamer = stack.enter_context(_opened(file, looked, is_node=is_node))
        total = streamer.committed.total_entries
        kept = _kept(streamer, blocks, to_block, to_entry, to_bookmark)
        plan = _planned(file, streamer, blocks, to_block, kept, cut_to)
        if kept == total:
            _say(plan, as_json=as_json, truncated=False)
            return
        streamer.check_not_archived("truncate", kept)
        if blocks is not None and blocks.pair is not None and plan.network is not None:
            blocks.pair.network.check_not_archived("truncate", plan.network.kept_entries)
        streamers = [streamer] if blocks is None else blocks.streamers
        readers = stack.enter_context(_readers(streamers, archive_url, store))
        newest = readers[0].newest_bookmarks if readers else _newest_without(streamers[0])
        chain = None
        if blocks is not None and to_block is not None:
            roots = readers[-1].archived_roots if readers else None
            chain = blocks.chain_up_to(to_block, archived_roots=roots)
        if newest is None and (blocks is None or blocks.pair is not None):
            expected = "the archive that has the others, which may be older ones of the same: --archive URL"
            raise Fatal("bookmarks", got="those of the local window", expected=expected)
        check_place(plan.place, total - kept if native is None else None)
        if not yes and not is_wanted(plan.lines(), "Cut it?"):
            raise Fatal(str(file), got="no consent to cut", expected="y, or --yes; nothing was changed")
        if blocks is None or to_block is None:
            write_cut(streamer, kept, plan.place)
            streamer.truncate_file(kept, newest)
        else:
            if blocks.pair is None:
                write_cut(streamer, kept, plan.place)
            else:
                write_entries(streamer.header, entries_of(_blocks_behind(blocks, to_block)), plan.place)
            blocks.truncate(to_block, chain=chain, newest_given_up=newest)
    _say(plan, as_json=as_json, truncated=True)


@contextmanager
def _readers(
    streamers: Sequence[DataStreamer], url: str | None, options: StoreOptions
) -> Iterator[list[ArchiveReader]]:
    """Read given up pages from the archive. Yields a reader for each stream, or none without an archive."""
    with ExitStack() as stack:
        readers: list[ArchiveReader] = []
        if url is not None and any(streamer.remote.end for streamer in streamers):
            for streamer in streamers:
                address = url.rstrip("/") + ("" if streamer is streamers[0] else "/blocks")
                readers.append(ArchiveReader(open_store(address, options, read_only=True), streamer))
                stack.callback(readers[-1].close)
        yield readers


def _newest_without(streamer: DataStreamer) -> NewestGivenUp | None:
    """Return what finds bookmarks on given up pages without an archive; None: nothing can."""
    remote = streamer.remote
    if not remote.end or remote.is_gone(remote.end - 1):
        return lambda bookmarks: {}  # of a page that is gone for good nobody finds one
    return None


def _blocks_behind(store: BlockStore, number: int) -> Iterator[StoredBlock]:
    assert store.last_number is not None
    for cut_number in range(number + 1, store.last_number + 1):
        block = store.read_block(cut_number)
        assert block is not None
        yield block


@contextmanager
def _opened(
    file: Path, looked: CutCheck, *, is_node: bool
) -> Iterator[tuple[BlockStore | None, DataStreamer]]:
    """Open and lock the stream; for a node, with its chain."""
    header = looked.header
    if not is_node:
        with DataStreamer.open(file, stream_type=header.stream_type) as streamer:
            yield None, streamer
        return
    store = BlockStore.open(
        file.parent,
        stream_type=header.stream_type,
        system_id=header.system_id,
        version=header.version,
    )
    try:
        yield store, store.streamer
    finally:
        store.close()


def _kept(
    streamer: DataStreamer,
    store: BlockStore | None,
    to_block: int | None,
    to_entry: int | None,
    to_bookmark: list[bytes] | None,
) -> int:
    """Return how many entries stay. Raises Fatal if the stream has no such block, entry or bookmark."""
    total = streamer.committed.total_entries
    if to_entry is not None:
        if to_entry >= total:
            expected = f"at most {total - 1}, the last of {streamer.path}" if total else "an entry to cut"
            raise Fatal("--to-entry", got=f"{to_entry}", expected=expected)
        return to_entry + 1
    if to_bookmark is not None:
        for bookmark in to_bookmark:
            try:
                return streamer.get_bookmark(bookmark)
            except BookmarkNotFound:
                continue
        tried = " and ".join(bookmark.hex() for bookmark in to_bookmark)
        raise Fatal("--to-bookmark", got=tried, expected=f"a bookmark that is in {streamer.path}")
    assert to_block is not None
    first, last = _ends(streamer, store)
    if not first <= to_block <= last:
        expected = f"{first} to {last}, the blocks of {streamer.path}"
        if to_block < first:
            expected += "; to drop them all, take an empty folder"
        raise Fatal("--to-block", got=str(to_block), expected=expected)
    return total if to_block == last else streamer.get_bookmark(bookmark_of(to_block + 1))


def _ends(streamer: DataStreamer, store: BlockStore | None) -> tuple[int, int]:
    if store is not None:
        assert store.first_number is not None
        assert store.last_number is not None
        return store.first_number, store.last_number
    end = streamer.get_entry(streamer.committed.total_entries - 1)
    decoder = BlockDecoder()
    for entry in streamer.read_entries(0):
        decoder.feed(entry.type, entry.data)
        if decoder.block_number is not None:
            break
    assert decoder.block_number is not None
    return decoder.block_number, int.from_bytes(end.data[:8], "big")


def _planned(
    file: Path,
    streamer: DataStreamer,
    store: BlockStore | None,
    to_block: int | None,
    kept: int,
    cut_to: Path | None,
) -> _Plan:
    total = streamer.committed.total_entries
    blocks = None
    name = f"cut-{file.name.split('.')[0]}-entries-{kept}-to-{total - 1}.bin"
    if to_block is not None:
        first, last = _ends(streamer, store)
        times: tuple[int | None, int | None] = (None, None)
        if to_block < last:
            last_begins = streamer.get_bookmark(bookmark_of(last))
            times = block_time(streamer, kept), block_time(streamer, last_begins)
            name = f"cut-blocks-{to_block + 1}-to-{last}.bin"
        blocks = _Blocks(first, to_block, last, times)
    pair = None if store is None else store.pair
    network = None
    if pair is not None and to_block is not None:
        network = _File.of(pair.network, pair.entries_before(to_block + 1))
    return _Plan(
        file=_File.of(streamer, kept),
        network=network,
        is_node=store is not None,
        blocks=blocks,
        place=cut_to or file.with_name(name),
    )


def is_wanted(lines: Iterable[str], question: str) -> bool:
    """Show the plan and ask. Raises UsageError if nobody can answer."""
    for line in lines:
        click.echo(line)
    click.echo(f"{question} [y/N] ", nl=False, err=True)
    answer = sys.stdin.readline()
    if not answer:
        click.echo("", err=True)
        raise click.UsageError("no answer: expected --yes where nobody can be asked")
    return answer.strip().lower() in ("y", "yes")


def _say(plan: _Plan, *, as_json: bool, truncated: bool) -> None:
    if as_json:
        click.echo(json.dumps(plan.as_json(truncated=truncated)))
        return
    path, last = plan.file.path, f"{plan.file.kept_entries} entries"
    if plan.network is not None:
        last += f", {plan.network.kept_entries} in {plan.network.path.name}"
    if plan.blocks is not None:
        last = f"block {plan.blocks.kept_last}, {last}"
    if not truncated:
        click.echo(f"{path} already ends with {last}: nothing was changed")
        return
    click.echo(f"{path} ends with {last} now")
    click.echo(f"What was cut is in {plan.place}")
