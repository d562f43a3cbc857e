"""`sluice misbehave`: a publisher that does one thing wrong, to test gateways and what watches them."""

from __future__ import annotations

import asyncio
import json
import time

import click
import grpc

from sluice.gateway.commands.parameter_types import AddressType, FiniteRange, offers_files
from sluice.gateway.commands.tls_options import tls_options
from sluice.gateway.transport.channels import ClientTls
from sluice.gateway.transport.failures import why_failed_at
from sluice.publishers.blocks.block_places import NO_BLOCKS, BlockFileReader, LocalStore, find_blocks
from sluice.publishers.client.client import check_publisher_id
from sluice.publishers.demo.misbehaving import Misbehaviour, Outcome, misbehave
from sluice.publishers.errors import BlockListError, OptionError, SourceUnreachable

__all__ = ["command"]

PATIENCE_SECONDS_DEFAULT = 60.0
"""Above three times the longest usual time of a block, after which a silent winner times out."""


def _parse_name(context: click.Context, parameter: click.Parameter, name: str) -> str:
    try:
        check_publisher_id(name)
    except OptionError as error:
        raise click.BadParameter(f"got {error.got}, expected {error.expected}", context, parameter) from error
    return name


@click.command("misbehave", short_help="Publish one block wrongly, on purpose.")
@click.argument("kind", type=click.Choice([kind.value for kind in Misbehaviour]))
@click.option(
    "--source",
    "sources",
    multiple=True,
    required=True,
    metavar="PATH",
    shell_complete=offers_files,
    help="The chain's block files: a folder with all below it, an archive, or a glob. Repeatable.",
)
@click.option(
    "--gateway", required=True, type=AddressType(), help="gRPC address of the active node to misbehave at."
)
@click.option(
    "--publisher-id",
    default="misbehaving",
    show_default=True,
    callback=_parse_name,
    metavar="NAME",
    help="Name of the publisher.",
)
@click.option(
    "--patience",
    "patience_seconds",
    type=FiniteRange(min=0, min_open=True),
    default=PATIENCE_SECONDS_DEFAULT,
    show_default=True,
    metavar="SECONDS",
    help="Longest wait for the gateway's answer.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@tls_options
def command(
    kind: str,
    sources: tuple[str, ...],
    gateway: str,
    publisher_id: str,
    patience_seconds: float,
    as_json: bool,
    tls: ClientTls | None,
) -> int:
    """Publish one block wrongly, and print what the gateway answers, with times.

    \b
    hang        send half of a block, then nothing: EndOfStream(TIMEOUT)
    disconnect  send half of a block, and leave: another publisher brings it
    bad-proof   send a block with another's proof: EndOfStream(BAD_BLOCK_PROOF)
    repeat      offer stored blocks: SkipBlock, or EndOfStream(DUPLICATE_BLOCK)
    ahead       offer a block far above the next one: BehindPublisher

    It offers the next block of the chain until no other publisher has it. A gateway that keeps the protocol
    stores the same chain as without it; one that checks no proofs (verification.mode hash) stores what
    bad-proof sends. Alone at a gateway, a publisher that hangs may hear nothing for
    publish.idle_timeout_seconds.

    Exit status 1 if the gateway answers something else, or nothing.
    """
    started = time.monotonic()

    def say(line: str) -> None:
        if not as_json:
            click.echo(f"{time.monotonic() - started:7.3f} s  {line}")

    places = {place.number: place for place in find_blocks(LocalStore(), sources)}
    if not places:
        raise BlockListError(", ".join(sources), NO_BLOCKS)
    with BlockFileReader(LocalStore()) as reader:
        try:
            outcome = asyncio.run(
                misbehave(
                    Misbehaviour(kind),
                    gateway,
                    lambda number: reader.read(places[number]) if number in places else None,
                    publisher_id=publisher_id,
                    tls=tls,
                    patience_seconds=patience_seconds,
                    say=say,
                )
            )
        except grpc.RpcError as error:
            raise SourceUnreachable(
                "an answer", None, f"{gateway}: {why_failed_at(gateway, error, tls)}"
            ) from error
    if as_json:
        click.echo(json.dumps(_json_of(kind, outcome)))
    elif not outcome.is_expected:
        said = ", ".join(outcome.answers) or f"nothing for {patience_seconds:g} s"
        expected = EXPECTED[Misbehaviour(kind)]
        if kind == Misbehaviour.HANG and not outcome.answers:
            expected += "; with no other publisher there, after publish.idle_timeout_seconds: give --patience"
        click.echo(f"sluice: {kind}: got {said}, expected {expected}", err=True)
    return 0 if outcome.is_expected else 1


EXPECTED = {
    Misbehaviour.HANG: "EndOfStream(TIMEOUT)",
    Misbehaviour.DISCONNECT: "nothing",
    Misbehaviour.BAD_PROOF: "EndOfStream(BAD_BLOCK_PROOF)",
    Misbehaviour.REPEAT: "SkipBlock or EndOfStream(DUPLICATE_BLOCK)",
    Misbehaviour.AHEAD: "BehindPublisher",
}


def _json_of(kind: str, outcome: Outcome) -> dict[str, object]:
    return {
        "kind": kind,
        "block": outcome.number,
        "answers": outcome.answers,
        "expected": outcome.is_expected,
    }
