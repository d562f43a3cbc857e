"""`sluice failover`: hand the load of the active node over to a standby."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import click

from gateway.addresses import parse_address
from gateway.channels import ClientTls
from gateway.commands.tls_options import tls_options
from gateway.control_client import ControlClient
from gateway.errors import AddressError, FailoverFailed
from gateway.failover import Failover, Step

__all__ = ["command"]


def _address(context: click.Context, parameter: click.Parameter, text: str) -> str:
    try:
        return str(parse_address(text, port_min=1))
    except AddressError as error:
        raise click.BadParameter(str(error), context, parameter) from error


@click.command("failover")
@click.option(
    "--from",
    "source",
    required=True,
    callback=_address,
    metavar="HOST:PORT",
    help="Control address of the node that is active (setting control.address).",
)
@click.option(
    "--to",
    "target",
    required=True,
    callback=_address,
    metavar="HOST:PORT",
    help="Control address of the standby that takes over.",
)
@click.option(
    "--force",
    is_flag=True,
    help="The active node is dead: activate the standby with the blocks that it has. What only the dead node "
    "held is missing until its publishers send it again.",
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

    The active node finishes the blocks in flight and ends its publishers in order; the standby becomes active
    when it holds the same last block; the other becomes its standby. Each step is printed with its time. If a
    step fails, the first node is active again, and the exit status is 1.
    """
    if source == target:
        raise click.UsageError("--from and --to are the same node")
    steps: list[Step] = []

    def report(step: Step) -> None:
        steps.append(step)
        if not as_json:
            click.echo(f"{step.seconds:7.3f} s  {step.name}: {step.detail}")

    failure: FailoverFailed | None = None
    try:
        asyncio.run(_run(source, target, tls, report, force=force))
    except FailoverFailed as error:
        failure = error
    if as_json:
        click.echo(json.dumps(_as_json(steps, target, failure)))
    elif failure is None:
        click.echo(f"{target} is active")
    if failure is not None:
        raise failure


async def _run(
    source: str, target: str, tls: ClientTls | None, report: Callable[[Step], None], *, force: bool
) -> None:
    async with ControlClient(source, tls) as one, ControlClient(target, tls) as other:
        failover = Failover(one, other, report)
        await (failover.force() if force else failover.run())


def _as_json(steps: list[Step], target: str, failure: FailoverFailed | None) -> dict[str, object]:
    return {
        "steps": [{"name": step.name, "detail": step.detail, "seconds": step.seconds} for step in steps],
        "active": target if failure is None else None,
        "error": None if failure is None else str(failure),
    }
