"""`sluice failover`: moves the load of the active node to a standby."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from contextlib import suppress

import click

from sluice.gateway.cluster.control_client import ControlClient
from sluice.gateway.cluster.failover import Failover, FailoverStep
from sluice.gateway.commands.parameter_types import AddressType
from sluice.gateway.commands.tls_options import tls_options
from sluice.gateway.errors import FailoverFailed, FailoverInterrupted
from sluice.gateway.ignored_signals import unless_ignored
from sluice.gateway.transport.channels import ClientTls

__all__ = ["command"]


@click.command("failover")
@click.option(
    "--from",
    "source",
    required=True,
    type=AddressType(),
    help="Control address of the active node (setting control.address).",
)
@click.option(
    "--to",
    "target",
    required=True,
    type=AddressType(),
    help="Control address of the standby that takes over.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Activate the standby because the active node is dead. Blocks that only the dead node has are "
    "missing until their publishers send them again.",
)
@tls_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(
    source: str,
    target: str,
    force: bool,
    tls: ClientTls | None,
    as_json: bool,
) -> None:
    """Hand the load over from the active node to a standby.

    The active node finishes its blocks in flight and closes its publishers' streams in order. The standby
    becomes active when it has the same last block, and the other node becomes its standby. The command prints
    each step with its time. If a step fails, the first node is active again, and the exit status is 1.

    Ctrl-C, SIGTERM or a closed terminal undoes the failover as long as the standby is not active; after that
    the failover finishes first. The exit status is 130, and the last line says what both nodes are. A second
    signal ends the command at once.
    """
    if source == target:
        raise click.UsageError("--from and --to are the same node")
    steps: list[FailoverStep] = []
    unprinted: list[OSError] = []

    def report(step: FailoverStep) -> None:
        steps.append(step)
        if not as_json:
            try:
                click.echo(f"{step.seconds:7.3f} s  {step.name}: {step.detail}")
            except OSError as error:  # nobody reads, or the disk is full: the failover goes on
                unprinted.append(error)

    failure: FailoverFailed | None = None
    try:
        asyncio.run(_run(source, target, tls, report, force=force))
    except FailoverFailed as error:
        failure = error
    if unprinted and failure is None:
        raise unprinted[0]
    if as_json:
        click.echo(json.dumps(_as_json(steps, target, failure)))
    elif failure is None:
        click.echo(f"{target} is active")
    if failure is not None:
        raise failure


async def _run(
    source: str, target: str, tls: ClientTls | None, report: Callable[[FailoverStep], None], *, force: bool
) -> None:
    async with ControlClient(source, tls) as one, ControlClient(target, tls) as other:
        failover = Failover(one, other, report)
        working = asyncio.ensure_future(failover.force() if force else failover.run())

        def interrupt() -> None:
            if failover.is_interrupted:
                working.cancel()
                return
            done = failover.interrupt()
            with suppress(OSError):  # the terminal is gone
                click.echo(f"sluice: failover: interrupted: {done} (once more: end at once)", err=True)

        loop = asyncio.get_running_loop()
        for number in unless_ignored(signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, interrupt)
        try:
            await working
        except asyncio.CancelledError:
            raise failover.ended_at_once() from None


def _as_json(steps: list[FailoverStep], target: str, failure: FailoverFailed | None) -> dict[str, object]:
    is_done = failure is None or (isinstance(failure, FailoverInterrupted) and failure.is_done)
    return {
        "steps": [{"name": step.name, "detail": step.detail, "seconds": step.seconds} for step in steps],
        "active": target if is_done else None,
        "error": None if failure is None else str(failure),
    }
