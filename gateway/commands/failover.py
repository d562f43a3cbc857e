"""`sluice failover`: moves the load of the active node to a standby."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import click

from sluice.gateway.cluster.control_client import ControlClient
from sluice.gateway.cluster.failover import Failover, FailoverStep, NodeStatus
from sluice.gateway.cluster.roles import Phase
from sluice.gateway.commands.contexts import Chosen, Port
from sluice.gateway.commands.node_options import NodeType, node_options
from sluice.gateway.errors import FailoverFailed, FailoverInterrupted, Fatal, NodeCallFailed
from sluice.gateway.ignored_signals import unless_ignored
from sluice.gateway.transport.channels import ClientTls

__all__ = ["choose_pair", "command"]


@click.command("failover")
@click.option(
    "--from",
    "source",
    type=NodeType(Port.CONTROL),
    help="Control address of the active node (setting control.address). By default the nodes' active one.",
)
@click.option(
    "--to",
    "target",
    type=NodeType(Port.CONTROL),
    help="Control address of the standby that takes over. By default the nodes' only ready standby.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Activate the standby because the active node is dead. Blocks that only the dead node has are "
    "missing until their publishers send them again.",
)
@node_options(Port.CONTROL, instead=["source", "target"])
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(
    source: str | None,
    target: str | None,
    force: bool,
    nodes: Chosen,
    tls: ClientTls | None,
    as_json: bool,
) -> None:
    """Hand the load over from the active node to a standby.

    What --from and --to do not name, the command finds among the nodes. --force needs both.

    The active node finishes its blocks in flight and closes its publishers' streams in order. The standby
    becomes active when it has the same last block, and the other node becomes its standby. The command prints
    each step with its time. If a step fails, the first node is active again, and the exit status is 1.

    Ctrl-C, SIGTERM or a closed terminal undoes the failover as long as the standby is not active; after that
    the failover finishes first. The exit status is 130, and the last line says what both nodes are. A second
    signal ends the command at once.
    """
    if source is None or target is None:
        if force:
            raise click.UsageError("--force needs --from and --to: a dead node does not say what it is")
        try:
            source, target = asyncio.run(_find(nodes.addresses, source, target, tls))
        except Fatal as error:
            if as_json:
                click.echo(json.dumps(_as_json([], None, str(error))))
            raise
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
        is_done = failure is None or (isinstance(failure, FailoverInterrupted) and failure.is_done)
        error_text = None if failure is None else str(failure)
        click.echo(json.dumps(_as_json(steps, target if is_done else None, error_text)))
    elif failure is None:
        click.echo(f"{target} is active")
    if failure is not None:
        raise failure


async def _find(
    addresses: Sequence[str], source: str | None, target: str | None, tls: ClientTls | None
) -> tuple[str, str]:
    """Ask the nodes what they are, and return the source and the target of a failover."""

    async def ask(address: str) -> NodeStatus:
        async with ControlClient(address, tls) as client:
            return await client.state()

    answers = await asyncio.gather(*map(ask, addresses), return_exceptions=True)
    states: dict[str, NodeStatus] = {}
    silent: list[str] = []
    for address, answer in zip(addresses, answers, strict=True):
        if isinstance(answer, NodeStatus):
            states[address] = answer
        elif isinstance(answer, NodeCallFailed):
            silent.append(str(answer))
        else:
            raise answer
    return choose_pair(states, silent, source, target)


def choose_pair(
    states: Mapping[str, NodeStatus], silent: Sequence[str], source: str | None, target: str | None
) -> tuple[str, str]:
    """Return the source and the target of a failover: the active node, and the only standby that is ready.

    Args:
        states: the nodes that answered, by control address.
        silent: why each of the others did not.
        source, target: those that the command line names.

    Raises:
        Fatal: there is none, or a choice between several; or it is not sure that both are of one cluster, and
            that no other node is active or about to be.
    """
    if source is not None and target is not None:
        return source, target
    active = [address for address, state in states.items() if state.phase is Phase.ACTIVE]
    ready = [
        address for address, state in states.items() if state.phase is Phase.STANDBY and not state.problems
    ]
    found = "; ".join((*(f"{address} is {state.phase.value}" for address, state in states.items()), *silent))
    if source is None:
        others = [address for address in active if address != target]
        if len(others) != 1:
            raise Fatal("failover", got=found, expected="one active node, or --from")
        source = others[0]
    if target is None:
        others = [address for address in ready if address != source]
        if len(others) != 1:
            raise Fatal("failover", got=found, expected="one standby that is ready, or --to")
        target = others[0]
    if silent or any(state.phase in (Phase.DRAINING, Phase.DRAINED) for state in states.values()):
        expected = "an answer of every node, none of them in a handover, or both --from and --to"
        raise Fatal("failover", got=found, expected=expected)
    _check_follows(states, source, target)
    return source, target


def _check_follows(states: Mapping[str, NodeStatus], source: str, target: str) -> None:
    """Refuse a standby that a failover has made one of another node: it may be of another cluster."""
    followed = states[target].followed if target in states else ""
    led = states.get(source)
    if followed and (led is None or followed not in (led.grpc_address, led.subscriber_address)):
        got = f"{target}, which follows {followed}"
        raise Fatal("failover", got=got, expected=f"a standby of {source}, or both --from and --to")


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


def _as_json(steps: Sequence[FailoverStep], active: str | None, error: str | None) -> dict[str, object]:
    return {
        "steps": [{"name": step.name, "detail": step.detail, "seconds": step.seconds} for step in steps],
        "active": active,
        "error": error,
    }
