"""`sluice ds`: the data streamer's commands, with the options of the original demo app."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from pathlib import Path

import click

from sluice.datastream import BOOKMARK_TYPE, DataStreamer, Relay, StreamServer
from sluice.datastream.client.blocking_client import TlsContext
from sluice.datastream.events.sample_operations import ENTRIES_PER_OPERATION, sample_operation
from sluice.datastream.protocol.commands import OnCommandError
from sluice.datastream.server.in_thread import open_in_thread
from sluice.gateway.archive.archive import ArchiveOptions
from sluice.gateway.commands.ds_client import client
from sluice.gateway.commands.ds_options import (
    TIME_MAX,
    ServersType,
    archive_options,
    archived,
    log_option,
    run_until_stopped,
    server_limits,
    serving_options,
)
from sluice.gateway.commands.parameter_types import NamedPath
from sluice.gateway.commands.tls_options import client_tls_options
from sluice.gateway.transport.channels import ClientTls, connecting_context

__all__ = ["command"]

log = logging.getLogger(__name__)

_REPORT_OPERATIONS = 100_000


def _stream_file(ctx: click.Context, param: click.Parameter, path: Path) -> Path:
    """Add `.bin` to a name without a dot, as the original does, unless a file of that name exists."""
    return path if "." in path.name or os.path.lexists(path) else path.with_name(f"{path.name}.bin")


@click.group("ds", short_help="Data streamer: serve a stream file, read one, relay one.")
def command() -> None:
    """Data streamer: serve a stream file, read from a server, relay one.

    The commands and options are those of the original demo app (dsapp).
    """


command.add_command(client)


@command.command("server")
@click.option(
    "--file",
    "path",
    type=NamedPath(path_type=Path, dir_okay=False),
    default=Path("datastream.bin"),
    show_default=True,
    callback=_stream_file,
    help="Stream file, created if missing. Its bookmarks are in the folder beside it, with .db for .bin. "
    "A name without a dot gets .bin.",
)
@serving_options(6900)
@click.option(
    "--sleep",
    "sleep_ms",
    type=click.IntRange(0, TIME_MAX),
    default=0,
    show_default=True,
    metavar="MS",
    help="Pause before each operation, in milliseconds.",
)
@click.option(
    "--opers",
    "operation_count",
    type=click.IntRange(0),
    default=1_000_000,
    show_default=True,
    help="Number of operations; the server ends after them.",
)
@click.option(
    "--read-only",
    is_flag=True,
    help="Serve an existing file until Ctrl-C without writing; ignores --sleep and --opers.",
)
@archive_options
@log_option
def server(
    path: Path,
    port: int,
    host: str,
    writetimeout: int,
    inactivitytimeout: int,
    on_command_error: OnCommandError,
    serving_tls: TlsContext | None,
    sleep_ms: int,
    operation_count: int,
    read_only: bool,
    archive: ArchiveOptions | None,
) -> None:
    """Serve a stream file, and add sample operations to it.

    An operation has bookmarks of a batch and a block, and the events StartL2Block, L2Tx and EndL2Block of the
    original zkEVM network. Clients see an operation at once; the server flushes all to disk when it ends.
    """
    if read_only and not path.exists():
        raise click.ClickException(f"{path}: the file to serve does not exist")

    async def serve() -> int:
        limits = server_limits(writetimeout, inactivitytimeout)
        with (
            await open_in_thread(path, read_only=read_only) as streamer,
            archived(archive, streamer, uploads=not read_only),
        ):
            async with StreamServer(streamer, host, port, limits, on_command_error, serving_tls):
                if read_only:
                    await asyncio.Event().wait()
                await _operate(streamer, operation_count, sleep_ms / 1000)
        return 0

    click.get_current_context().exit(run_until_stopped(serve()))


async def _operate(streamer: DataStreamer, count: int, sleep_seconds: float) -> None:
    """Flush the operations even when stopped."""
    stop = threading.Event()
    operating = asyncio.ensure_future(
        asyncio.to_thread(_add_operations, streamer, count, sleep_seconds, stop)
    )
    try:
        await asyncio.shield(operating)
    except asyncio.CancelledError:
        stop.set()
        await operating
        raise


def _add_operations(streamer: DataStreamer, count: int, sleep_seconds: float, stop: threading.Event) -> None:
    # A stream that we began continues with the next number.
    first = streamer.committed.total_entries // ENTRIES_PER_OPERATION
    begun = time.monotonic()
    done = 0
    stop.wait(sleep_seconds)
    for number in range(first, first + count):
        if stop.is_set():
            break
        streamer.start_atomic_op()
        for entry_type, data in sample_operation(number, int(time.time())):
            if entry_type == BOOKMARK_TYPE:
                streamer.add_stream_bookmark(data)
            else:
                streamer.add_stream_entry(entry_type, data)
        streamer.commit_atomic_op(flush=False)
        done += 1
        if done % _REPORT_OPERATIONS == 0:
            log.info("%d operations, %d entries", done, streamer.committed.total_entries)
        stop.wait(sleep_seconds)
    if done:
        streamer.start_atomic_op()
        streamer.commit_atomic_op()
    log.info("%d operations in %.1f s", done, time.monotonic() - begun)


@command.command("relay", short_help="Keep the stream of a server in a file, and serve that.")
@click.option(
    "--server",
    "servers",
    type=ServersType(),
    default="127.0.0.1:6900",
    show_default=True,
    help="Master to follow, which may be a relay; with several, the relay goes to the next when one fails.",
)
@click.option(
    "--file",
    "path",
    type=NamedPath(path_type=Path, dir_okay=False),
    default=Path("datarelay.bin"),
    show_default=True,
    callback=_stream_file,
    help="The relay's stream file, created with the master's version and system id if missing.",
)
@client_tls_options
@serving_options(7900)
@archive_options
@log_option
def relay(
    servers: list[tuple[str, int]],
    path: Path,
    port: int,
    host: str,
    writetimeout: int,
    inactivitytimeout: int,
    on_command_error: OnCommandError,
    serving_tls: TlsContext | None,
    tls: ClientTls | None,
    archive: ArchiveOptions | None,
) -> None:
    """Follow a server, keep its stream in a file, and serve that, until Ctrl-C.

    The relay serves clients while it catches up and while the master is away. It resumes after a restart of
    the master or of itself. If the master has another stream than the file, the relay ends with status 1:
    choose another --file or --server. --tls and the other --tls-… options are for the master, --serve-tls-…
    for clients.
    """
    master_tls = connecting_context(tls)

    async def follow() -> int:
        limits = server_limits(writetimeout, inactivitytimeout)
        await Relay(
            servers,
            path,
            host,
            port,
            server_limits=limits,
            on_command_error=on_command_error,
            tls=serving_tls,
            master_tls=master_tls,
            master_tls_server_name=None if tls is None else tls.server_name,
            beside=lambda streamer: archived(archive, streamer, uploads=True),
        ).run()
        return 0

    click.get_current_context().exit(run_until_stopped(follow()))
