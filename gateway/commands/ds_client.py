"""`sluice ds client`: queries a data streamer, or prints what it streams.

Of several servers the client asks the first that answers in time; "not found" is an answer, too. With
`--sanitycheck` it does not reconnect, so that gaps show. An entry is one line, for people or as JSON; items
of blocks have their names in BlockItem (`ds_entries.py`):

    entry 4  Bookmark  type=l2_block value=1
    {"entry": 4, "type": 176, "event": "Bookmark", "values": {"type": "l2_block", "value": 1}}
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from sluice.datastream import BOOKMARK_TYPE, Entry, StreamClient, StreamFollower, StreamHeader
from sluice.datastream.client.blocking_client import TlsContext
from sluice.datastream.errors import BookmarkNotFound, ConnectionEnded, EntryNotFound, RemoteError
from sluice.datastream.events.events import event_of
from sluice.datastream.events.network_events import Bookmark, BookmarkType
from sluice.datastream.events.original_events import OriginalBookmark, OriginalBookmarkType
from sluice.datastream.events.sanity import SanityCheck
from sluice.datastream.limits import BOOKMARK_SIZE_MAX, FollowLimits
from sluice.gateway.addresses import Address, parse_address
from sluice.gateway.commands.contexts import Chosen, Port
from sluice.gateway.commands.ds_entries import EntryReader
from sluice.gateway.commands.ds_options import log_option, run_until_stopped
from sluice.gateway.commands.node_options import node_options
from sluice.gateway.commands.parameter_types import offers
from sluice.gateway.transport.channels import ClientTls, connecting_context
from sluice.gateway.transport.failures import Speaks, trouble_at

__all__ = ["BookmarkForms", "bookmarks_of", "client", "entry_line", "header_line"]

T = TypeVar("T")
_ANSWER_SECONDS = FollowLimits().answer_timeout_seconds
"""The time to connect to a server, and for each answer until it streams."""
_KINDS = {
    "l2block": (OriginalBookmarkType.L2_BLOCK, BookmarkType.L2_BLOCK),
    "batch": (OriginalBookmarkType.BATCH, BookmarkType.BATCH),
}
_NUMBER = re.compile(r"\d{1,20}", re.ASCII)
_HEX = re.compile(rf"([0-9a-fA-F]{{2}}){{1,{BOOKMARK_SIZE_MAX}}}")
_MEANT = re.compile(r"(?P<kind>l2block|batch|\d{1,3}):(?P<number>\d{1,20})", re.ASCII)
_BOOKMARK_VALUE = click.IntRange(0, (1 << 64) - 1)


class _BookmarkKind(click.ParamType):  # type: ignore[type-arg]
    name = "l2block|batch|0..255"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in _KINDS and not (_NUMBER.fullmatch(value) and int(value) <= 255):
            self.fail(f"{value!r} is not l2block, batch, or a number from 0 to 255", param, ctx)
        return value


class BookmarkForms(click.ParamType):  # type: ignore[type-arg]
    """A bookmark, in hex or by kind and number; the value lists the bookmarks it may mean, in the order to
    try."""

    name = "HEX|TYPE:VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[bytes]:
        """Return the bookmarks that the text may mean."""
        if isinstance(value, list):
            return value
        if _HEX.fullmatch(value):
            return [bytes.fromhex(value)]
        meant = _MEANT.fullmatch(value)
        kind, number = ("", 0) if meant is None else (meant["kind"], int(meant["number"]))
        if meant is None or number >= 1 << 64 or (kind.isdigit() and int(kind) > 255):
            forms = f"1 to {BOOKMARK_SIZE_MAX} bytes in hex, l2block:N, batch:N or 0..255:N"
            self.fail(f"got {value!r}, expected {forms}", param, ctx)
        return bookmarks_of(kind, number)


class _From(click.ParamType):  # type: ignore[type-arg]
    name = "latest|N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        if value == "latest":
            return "latest"
        return _BOOKMARK_VALUE.convert(value, param, ctx)


@dataclass(frozen=True, slots=True)
class _Options:
    servers: list[tuple[str, int]]
    start: int | None
    bookmarks: Sequence[bytes]
    as_json: bool
    live: bool
    tls: TlsContext | None
    client_tls: ClientTls | None
    reader: EntryReader

    def show(self, entry: Entry) -> None:
        click.echo(entry_line(entry, as_json=self.as_json, reader=self.reader))


def bookmarks_of(kind: str, number: int) -> list[bytes]:
    """Return the bookmarks that a number may mean, in the order to try them."""
    if kind not in _KINDS:
        return [OriginalBookmark(int(kind), number).encode()]
    original, network = _KINDS[kind]
    # A server answers the original form where it has only the other one.
    return [Bookmark(network, number).encode(), OriginalBookmark(original, number).encode()]


@click.command("client", short_help="Query a server, or print the entries that it streams.")
@click.option(
    "--from",
    "start",
    type=_From(),
    shell_complete=offers("latest"),
    default="latest",
    show_default=True,
    help="First entry to stream; latest is the next one to be added.",
)
@click.option(
    "--frombookmark",
    type=_BOOKMARK_VALUE,
    metavar="N",
    help="Stream from the bookmark of this block or batch; overrides --from.",
)
@click.option("--header", is_flag=True, help="Print the header of the committed stream, and end.")
@click.option("--entry", type=_BOOKMARK_VALUE, metavar="N", help="Print one entry, and end.")
@click.option(
    "--bookmark",
    type=_BOOKMARK_VALUE,
    metavar="N",
    help="Print the first event after the bookmark of this block or batch, and end.",
)
@click.option(
    "--bookmarktype",
    type=_BookmarkKind(),
    default="l2block",
    show_default=True,
    help=(
        "Kind of bookmark that --bookmark and --frombookmark mean: l2block or batch, in either network's "
        "form, or a number: a byte of that value, then the block or batch in eight bytes (the original demo "
        "app's 0 and 1)."
    ),
)
@click.option(
    "--sanitycheck", is_flag=True, help="Check the order of the streamed entries instead of printing them."
)
@click.option("--dumpbatch", type=_BOOKMARK_VALUE, metavar="N", help="Print the entries of a batch, and end.")
@click.option(
    "--range",
    "between",
    type=BookmarkForms(),
    nargs=2,
    metavar="A B",
    help="Print the entries from bookmark A's to bookmark B's, and end. A bookmark is its bytes in hex, or "
    "l2block:N, batch:N in either network's form, or 0..255:N (one byte, and N in eight).",
)
@click.option("--no-live", is_flag=True, help="End with the server's current last entry.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@node_options(Port.TCP, "--server")
@log_option
def client(
    nodes: Chosen,
    start: int | str,
    frombookmark: int | None,
    header: bool,
    entry: int | None,
    bookmark: int | None,
    bookmarktype: str,
    sanitycheck: bool,
    dumpbatch: int | None,
    between: tuple[list[bytes], list[bytes]] | None,
    no_live: bool,
    as_json: bool,
    tls: ClientTls | None,
) -> None:
    """Query a data streamer server, or print the entries that it streams, until Ctrl-C.

    With several servers, the client goes to the next when one fails, or does not answer within 10 s.

    Entries of a zkEVM network appear as its typed events, those of blocks as their items, others as bytes.
    While printing, the client reconnects by itself and resumes with the next entry.

    The exit status is 1 if the server cannot be reached, the query finds nothing, or the sanity check finds
    something.
    """
    number = bookmark if frombookmark is None else frombookmark
    servers = [parse_address(one) for one in nodes.addresses]
    options = _Options(
        [(server.host, server.port) for server in servers],
        start if isinstance(start, int) else None,
        [] if number is None else bookmarks_of(bookmarktype, number),
        as_json,
        not no_live,
        connecting_context(tls),
        tls,
        EntryReader(),
    )
    if header:
        work = _print_header(options)
    elif entry is not None:
        work = _print_entry(options, entry)
    elif bookmark is not None:
        work = _print_bookmark(options, bookmarks_of(bookmarktype, bookmark))
    elif between is not None:
        work = _print_range(options, *between)
    elif dumpbatch is not None:
        work = _dump_batch(options, bookmarks_of("batch", dumpbatch))
    elif sanitycheck:
        work = _check(options)
    else:
        work = _print_stream(options)
    click.get_current_context().exit(run_until_stopped(work))


@asynccontextmanager
async def _connected(
    options: _Options, ask: Callable[[StreamClient], Awaitable[T]]
) -> AsyncIterator[tuple[StreamClient, T]]:
    """`ask` must not print: an OSError of it counts as the connection's."""
    errors: list[str] = []
    for host, port in options.servers:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                connected, answer = await _asked(host, port, options, ask)
        except (OSError, RemoteError) as error:
            errors.append(f"{host}:{port}: {_why(error)}{await _what_is_there(host, port, options, error)}")
            continue
        async with connected:
            yield connected, answer
        return
    raise click.ClickException("; ".join(errors))


async def _asked(
    host: str, port: int, options: _Options, ask: Callable[[StreamClient], Awaitable[T]]
) -> tuple[StreamClient, T]:
    try:
        connected = await StreamClient.connect(
            host, port, tls=options.tls, tls_server_name=_server_name(options)
        )
    except OSError as error:
        why = error.strerror or str(error) or "the server ended the connection"
        raise OSError(error.errno, f"cannot connect: {why}") from error
    try:
        return connected, await ask(connected)
    except BaseException:
        await connected.close()
        raise


def _server_name(options: _Options) -> str | None:
    return None if options.client_tls is None else options.client_tls.server_name


async def _what_is_there(host: str, port: int, options: _Options, error: OSError | RemoteError) -> str:
    """Return what a server is that does not speak to a data-streamer client, if it can be found out."""
    if isinstance(error, ConnectionRefusedError) or (isinstance(error, OSError) and (error.errno or 0) < 0):
        return ""  # nobody, or no such name
    address = str(Address(host, port))
    found = await asyncio.to_thread(trouble_at, address, options.client_tls, Speaks.STREAM)
    return "" if found is None else f" ({found})"


def _why(error: OSError | RemoteError) -> str:
    if isinstance(error, OSError):
        is_ours = isinstance(error, TimeoutError) and error.errno is None
        return f"no answer within {_ANSWER_SECONDS:g} s" if is_ours else error.strerror or str(error)
    return str(error)


async def _streamed(connected: StreamClient) -> AsyncIterator[Entry]:
    """An OSError of the connection becomes ConnectionEnded: it must not look like a lost reader of our
    output.
    """
    while True:
        try:
            entries = await connected.receive()
        except OSError as error:
            raise ConnectionEnded(f"streaming: {_why(error)}") from error
        for entry in entries:
            yield entry


async def _unbroken(entries: AsyncIterator[Entry], what: str) -> AsyncIterator[Entry]:
    while True:
        try:
            entry = await anext(entries)
        except StopAsyncIteration:
            return
        except OSError as error:
            raise ConnectionEnded(f"{what}: {_why(error)}") from error
        yield entry


async def _print_header(options: _Options) -> int:
    async with _connected(options, StreamClient.header) as (_, header):
        click.echo(header_line(header, as_json=options.as_json))
    return 0


async def _print_entry(options: _Options, number: int) -> int:
    async with _connected(options, lambda connected: connected.entry(number)) as (_, entry):
        options.show(entry)
    return 0


async def _print_bookmark(options: _Options, bookmarks: Sequence[bytes]) -> int:
    async with _connected(options, lambda connected: _find(connected, bookmarks)) as (_, (_, entry)):
        options.show(entry)
    return 0


async def _find(connected: StreamClient, bookmarks: Sequence[bytes]) -> tuple[bytes, Entry]:
    missing = None
    for bookmark in bookmarks:
        try:
            return bookmark, await connected.bookmark(bookmark)
        except BookmarkNotFound as error:
            missing = missing or error
    assert missing is not None
    raise missing


async def _start(connected: StreamClient, options: _Options) -> tuple[int, int | None]:
    """Start streaming; return (the server's number of entries, the first entry's number if known)."""
    total_entries = (await connected.header()).total_entries
    if options.bookmarks:
        bookmark, _ = await _find(connected, options.bookmarks)
        await connected.start_bookmark(bookmark)
        return total_entries, None
    start = total_entries if options.start is None else options.start
    await connected.start(start)
    return total_entries, start


async def _place(connected: StreamClient, options: _Options) -> tuple[int, bytes | None]:
    """Return (the server's number of entries, the bookmark to start from if any)."""
    total_entries = (await connected.header()).total_entries
    bookmark = (await _find(connected, options.bookmarks))[0] if options.bookmarks else None
    return total_entries, bookmark


async def _print_stream(options: _Options) -> int:
    # Report a wrong address or bookmark at once.
    async with _connected(options, lambda connected: _place(connected, options)) as (_, place):
        total_entries, bookmark = place
    start = total_entries if options.start is None else options.start
    if bookmark is None and start > total_entries:
        raise EntryNotFound(start, total_entries)
    follower = StreamFollower(
        options.servers,
        from_entry=start,
        from_bookmark=bookmark,
        tls=options.tls,
        tls_server_name=_server_name(options),
    )
    async with follower:
        while options.live or follower.number_next is None or follower.number_next < total_entries:
            options.show(await anext(follower))
    return 0


async def _print_range(options: _Options, first: Sequence[bytes], last: Sequence[bytes]) -> int:
    async def find(connected: StreamClient) -> tuple[bytes, bytes]:
        return (await _find(connected, first))[0], (await _find(connected, last))[0]

    async with _connected(options, find) as (connected, between):
        async for entry in _unbroken(connected.range(*between), "answering RangeBookmark"):
            options.show(entry)
    return 0


async def _dump_batch(options: _Options, bookmarks: Sequence[bytes]) -> int:
    async def start(connected: StreamClient) -> int:
        total_entries = (await connected.header()).total_entries
        bookmark, _ = await _find(connected, bookmarks)
        await connected.start_bookmark(bookmark)
        return total_entries

    async with _connected(options, start) as (connected, total_entries):
        async for entry in _streamed(connected):
            if _is_of_another_batch(entry, bookmarks):
                break
            options.show(entry)
            if entry.number + 1 >= total_entries:
                break
    return 0


def _is_of_another_batch(entry: Entry, bookmarks: Sequence[bytes]) -> bool:
    if entry.type != BOOKMARK_TYPE or entry.data in bookmarks:
        return False
    event = event_of(entry)
    return (isinstance(event, Bookmark) and event.type == BookmarkType.BATCH) or (
        isinstance(event, OriginalBookmark) and event.type == OriginalBookmarkType.BATCH
    )


async def _check(options: _Options) -> int:
    check = SanityCheck(lambda entry: options.reader.read(entry).event)
    try:
        async with _connected(options, lambda connected: _start(connected, options)) as (connected, begun):
            total_entries, start = begun
            if options.live or start is None or start < total_entries:
                async for entry in _streamed(connected):
                    for finding in check.feed(entry):
                        click.echo(finding)
                    if not options.live and entry.number + 1 >= total_entries:
                        break
    except ConnectionEnded as error:
        click.echo(str(error))
        return 1
    finally:
        click.echo(f"{check.entry_count} entries checked, {check.finding_count} findings")
    return 1 if check.finding_count else 0


def entry_line(entry: Entry, *, as_json: bool, reader: EntryReader | None = None) -> str:
    """Show an entry as an item, as its typed event, or as bytes."""
    name, values, _ = (reader or EntryReader()).read(entry)
    if as_json:
        return json.dumps({"entry": entry.number, "type": entry.type, "event": name, "values": values})
    shown = " ".join(f"{key}={_plain(value)}" for key, value in values.items())
    return f"entry {entry.number}  {name}  {shown}".rstrip()


def _plain(value: int | bool | str) -> str:
    """Write a value so that it cannot end the line or control a terminal."""
    if isinstance(value, str) and not (value.isprintable() and " " not in value):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def header_line(header: StreamHeader, *, as_json: bool) -> str:
    """Return a header in one line."""
    values = {
        "version": header.version,
        "system_id": header.system_id,
        "stream_type": header.stream_type,
        "total_length": header.total_length,
        "total_entries": header.total_entries,
    }
    if as_json:
        return json.dumps(values)
    return "header  " + " ".join(f"{key}={value}" for key, value in values.items())
