"""The shared options of `sluice ds`, their logging, and running until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

import click
import uvloop

from sluice.datastream import DataStreamer, ServerLimits
from sluice.datastream.server.descriptors import raise_descriptors_max
from sluice.gateway.addresses import parse_addresses
from sluice.gateway.archive.archive import ArchiveOptions, Archives
from sluice.gateway.archive.objects import StoreOptions
from sluice.gateway.commands.parameter_types import NamedPath, SizeType
from sluice.gateway.errors import AddressError
from sluice.gateway.logs import set_up_logging
from sluice.gateway.transport.tls import ServerTls, TlsFiles

__all__ = [
    "TIME_MAX",
    "ServersType",
    "archive_options",
    "archived",
    "log_option",
    "run_until_stopped",
    "server_limits",
    "serving_options",
]

LogLevel = Literal["debug", "info", "warning", "error"]
_LEVELS: dict[str, LogLevel] = {"debug": "debug", "info": "info", "warn": "warning", "error": "error"}
TIME_MAX = 2**31 - 1
"""The longest time of an option: 24 days in milliseconds, 68 years in seconds."""
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class ServersType(click.ParamType):  # type: ignore[type-arg]
    """One or more addresses with commas between them: [(host, port), …]."""

    name = "H:P[,H:P…]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[tuple[str, int]]:
        """Read the addresses."""
        if isinstance(value, list):
            return value
        try:
            return [(address.host, address.port) for address in parse_addresses(value, port_min=1)]
        except AddressError as error:
            self.fail(str(error), param, ctx)


def _set_level(ctx: click.Context, param: click.Parameter, value: str) -> str:
    set_up_logging(level=_LEVELS[value])
    return value


def log_option(command: Decorated) -> Decorated:
    """Add `--log`, which sets up logging to standard error."""
    option = click.option(
        "--log",
        type=click.Choice(list(_LEVELS)),
        default="info",
        show_default=True,
        callback=_set_level,
        expose_value=False,
        help="Least severe log line on standard error.",
    )
    return option(command)


def serving_options(port: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options of a command that serves clients.

    The function gets those of TLS as `serving_tls`, a `TlsContext`, or None without any of them.

    Args:
        port: the default port.
    """

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def command(
            *,
            serve_tls_certificate: Path | None,
            serve_tls_key: Path | None,
            serve_tls_client_ca: Path | None,
            **others: Any,
        ) -> Any:
            serving_tls = None
            if serve_tls_certificate is not None and serve_tls_key is not None:
                files = TlsFiles(serve_tls_certificate, serve_tls_key, serve_tls_client_ca)
                serving_tls = ServerTls(files, "serve_tls", is_http2=False).context
            elif serve_tls_certificate or serve_tls_key or serve_tls_client_ca:
                raise click.UsageError("TLS needs --serve-tls-certificate and --serve-tls-key")
            return function(serving_tls=serving_tls, **others)

        for option in reversed(
            (
                click.option(
                    "--port",
                    type=click.IntRange(0, 65_535),
                    default=port,
                    show_default=True,
                    help="TCP port for clients; 0 takes a free one.",
                ),
                click.option(
                    "--host",
                    default="0.0.0.0",  # like the original, which has no such option
                    show_default=True,
                    help="Address to listen on; 127.0.0.1 lets only this machine connect.",
                ),
                click.option(
                    "--writetimeout",
                    type=click.IntRange(0, TIME_MAX),
                    default=3000,
                    show_default=True,
                    metavar="MS",
                    help="Close a client that reads nothing for this many milliseconds; 0: never.",
                ),
                click.option(
                    "--inactivitytimeout",
                    type=click.IntRange(0, TIME_MAX),
                    default=120,
                    show_default=True,
                    metavar="SECONDS",
                    help="Close a client that neither sends nor reads for this many seconds; 0: never.",
                ),
                click.option(
                    "--on-command-error",
                    type=click.Choice(["keep", "close"]),
                    default="keep",
                    show_default=True,
                    help="Close or keep a client that sends a command in the wrong state.",
                ),
                click.option(
                    "--serve-tls-certificate",
                    type=NamedPath(path_type=Path),
                    metavar="FILE",
                    help="TLS for clients: PEM file of the certificate. A changed file is reloaded.",
                ),
                click.option(
                    "--serve-tls-key",
                    type=NamedPath(path_type=Path),
                    metavar="FILE",
                    help="TLS for clients: PEM file of the private key.",
                ),
                click.option(
                    "--serve-tls-client-ca",
                    type=NamedPath(path_type=Path),
                    metavar="FILE",
                    help="TLS for clients: PEM file of the authorities whose clients may connect; else any.",
                ),
            )
        ):
            command = option(command)
        return command

    return add


def archive_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of an archive; the function gets an `ArchiveOptions` as `archive`, or None."""

    @functools.wraps(command)
    def with_archive(
        *,
        archive_url: str | None,
        archive_local_bytes: int,
        archive_cache_bytes: int,
        archive_endpoint: str | None,
        archive_region: str | None,
        archive_tls_ca: Path | None,
        **others: Any,
    ) -> Any:
        archive = None
        if archive_url is not None:
            store = StoreOptions(archive_endpoint, archive_region, tls_ca=archive_tls_ca)
            archive = ArchiveOptions(archive_url, store, archive_local_bytes, 0, archive_cache_bytes)
        return command(archive=archive, **others)

    size = SizeType()
    for option in (
        click.option(
            "--archive-tls-ca",
            type=NamedPath(exists=True, dir_okay=False, path_type=Path),
            help="PEM file of authorities that sign the store's certificate, besides those of the system.",
        ),
        click.option("--archive-region", metavar="REGION", help="Region of an S3 bucket."),
        click.option(
            "--archive-endpoint", metavar="URL", help="Address of a store that is not the cloud's own."
        ),
        click.option(
            "--archive-cache-bytes",
            type=size,
            default="1GiB",
            show_default=True,
            help="Room on the disk for archived pages that clients ask for.",
        ),
        click.option(
            "--archive-local-bytes",
            type=size,
            default="0",
            help="Newest part of the file that stays on the disk; 0: everything stays.",
        ),
        click.option(
            "--archive",
            "archive_url",
            metavar="URL",
            help="Keep history also in an object store: s3://…, gs://…, az://… or file:///FOLDER.",
        ),
    ):
        with_archive = option(with_archive)
    return with_archive


@contextlib.contextmanager
def archived(options: ArchiveOptions | None, streamer: DataStreamer, *, uploads: bool) -> Iterator[None]:
    """Archive a stream, and read from its archive, while this is open."""
    if options is None:
        yield
        return
    archive = Archives(options, [streamer], None, lambda: uploads)
    if uploads:
        archive.start()
    try:
        yield
    finally:
        archive.close()


def server_limits(writetimeout_ms: int, inactivitytimeout_seconds: int) -> ServerLimits:
    """Return the limits that the options set."""
    return ServerLimits(
        write_timeout_seconds=writetimeout_ms / 1000,
        inactivity_timeout_seconds=float(inactivitytimeout_seconds),
    )


def run_until_stopped(work: Coroutine[Any, Any, int]) -> int:
    """Run `work` until it ends, a signal stops it, or nobody reads our output any more.

    Returns:
        the result of `work`; 0 if it was stopped.
    """
    raise_descriptors_max()

    async def main() -> int:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
        try:
            return await task
        except asyncio.CancelledError:
            return 0

    try:
        return uvloop.run(main())
    except BrokenPipeError:
        # After `sluice ds client | head` the buffered output has no reader.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
