"""The shared options of `sluice ds`, their logging, and running until a signal."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Literal, TypeVar

import click
import uvloop

from sluice.datastream import ServerLimits
from sluice.datastream.server.descriptors import raise_descriptors_max
from sluice.gateway.addresses import parse_addresses
from sluice.gateway.errors import AddressError
from sluice.gateway.logs import set_up_logging

__all__ = ["TIME_MAX", "ServersType", "log_option", "run_until_stopped", "server_limits", "serving_options"]

LogLevel = Literal["debug", "info", "warning", "error"]
_LEVELS: dict[str, LogLevel] = {"debug": "debug", "info": "info", "warn": "warning", "error": "error"}
TIME_MAX = 2**31 - 1
"""24 days in milliseconds, 68 years in seconds."""
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


def serving_options(port: int) -> Callable[[Decorated], Decorated]:
    """Add the options of a command that serves clients."""

    def add(command: Decorated) -> Decorated:
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
            )
        ):
            command = option(command)
        return command

    return add


def server_limits(writetimeout_ms: int, inactivitytimeout_seconds: int) -> ServerLimits:
    """Return the limits that the options set."""
    return ServerLimits(
        write_timeout_seconds=writetimeout_ms / 1000,
        inactivity_timeout_seconds=float(inactivitytimeout_seconds),
    )


def run_until_stopped(work: Coroutine[Any, Any, int]) -> int:
    """Run `work` until it ends, a signal stops it, or nobody reads our output any more."""
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
