"""`sluice verify`: check block files, or the chain of a node or an archive: root hashes, proofs and links."""

from __future__ import annotations

import json
import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sluice.gateway.addresses import Address, parse_address
from sluice.gateway.archive.objects import SCHEMES, StoreOptions
from sluice.gateway.blocks.block_numbers import BLOCK_NUMBER_MAX
from sluice.gateway.blocks.root_hash import RootLayout
from sluice.gateway.blocks.trusted_keys import TrustedKeys, VerificationMode
from sluice.gateway.commands.archive_options import store_options_beside_tls
from sluice.gateway.commands.contexts import Chosen
from sluice.gateway.commands.node_options import node_options
from sluice.gateway.commands.parameter_types import NamedPath
from sluice.gateway.errors import AddressError, Fatal
from sluice.gateway.transport.channels import ClientTls
from sluice.publishers.blocks.block_layouts import has_glob
from sluice.publishers.blocks.block_places import blocks_in
from sluice.publishers.commands.verify_proof import rsa_threshold_option
from sluice.publishers.errors import PublisherError
from sluice.publishers.number_range import NumberRange
from sluice.publishers.verify.verdicts import BlockVerdict, kinds_text
from sluice.publishers.verify.verify_run import VerifyRun, make_verifier
from sluice.publishers.verify.verify_sources import (
    BlockSource,
    FileSource,
    NodeSource,
    StoredSource,
    StreamSource,
    holds_stream,
)

__all__ = ["command"]

VERIFY_WORKERS_MAX: Final = 256
VERIFY_TABLE_ROWS_MAX: Final = 100
"""Most rows without --all; with more blocks, only those with something to say are shown."""
_HASH_DIGITS = 16
_LAYOUTS: dict[str, RootLayout] = {"auto": "auto", "8": 8, "16": 16}


@click.command("verify", short_help="Check block files, or the blocks that a node has.")
@click.argument("sources", type=NamedPath(), nargs=-1, metavar="[FILES…|DIR|GLOB|URL|HOST:PORT]")
@click.option(
    "--ledger-key",
    "key_texts",
    multiple=True,
    metavar="KEY",
    help="A key to check proofs with: ed25519:HEX, tss:FILE, tss:id=HEX, tss:block0 or "
    "rsa:ADDRESS_BOOK.json; repeatable. Without any, the check trusts what block 0 publishes.",
)
@click.option(
    "--verify",
    "mode",
    type=click.Choice(("full", "hash")),
    default="full",
    show_default=True,
    help="full checks root hash, links and proof; hash skips the proof.",
)
@click.option(
    "--verification-root-layout",
    "layout",
    type=click.Choice(tuple(_LAYOUTS)),
    default="auto",
    show_default=True,
    help="Leaves of a block's top hash tree; auto goes by the block's HAPI version.",
)
@rsa_threshold_option
@click.option(
    "--from",
    "first",
    type=click.IntRange(0, BLOCK_NUMBER_MAX),
    default=0,
    metavar="N",
    help="The first block to check.",
)
@click.option(
    "--to", "last", type=click.IntRange(0, BLOCK_NUMBER_MAX), metavar="M", help="The last block to check."
)
@click.option(
    "--no-gaps", is_flag=True, help="Exit status 1, too, if a number between two blocks is missing."
)
@click.option("--tcp", is_flag=True, help="HOST:PORT is a data streamer, not a node's gRPC address.")
@click.option(
    "--workers",
    "workers_count",
    type=click.IntRange(1, VERIFY_WORKERS_MAX),
    default=lambda: os.cpu_count() or 1,
    show_default="one for each processor",
    metavar="N",
    help="Processes that check.",
)
@click.option(
    "--all",
    "show_all",
    is_flag=True,
    help=f"List each block, even if there are over {VERIFY_TABLE_ROWS_MAX}.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@store_options_beside_tls
@node_options(instead=["sources"])
def command(
    sources: tuple[str, ...],
    nodes: Chosen,
    key_texts: tuple[str, ...],
    mode: VerificationMode,
    layout: str,
    rsa_threshold: int,
    first: int,
    last: int | None,
    no_gaps: bool,
    tcp: bool,
    workers_count: int,
    show_all: bool,
    as_json: bool,
    store: StoreOptions,
    tls: ClientTls | None,
) -> None:
    """Check blocks in files, zips, tars and folders with all below them, or the blocks of a node: in its data
    folder (DIR, or the stream file in it; the node may be running), in its archive (URL, as of archive.url),
    or over the network at HOST:PORT or --node. In a glob, `**` is any number of folders.

    It checks each block's structure, root hash and proofs, and its links to the block before it. If a chain
    begins after block 0, or blocks are missing, it believes what it cannot check, and notes that.

    Exit status 1 if any block is refused. A check that is interrupted, or whose source fails, prints what it
    has found so far.
    """
    if last is not None and last < first:
        raise click.UsageError(f"--to {last} is before --from {first}")
    if not sources:
        if not nodes.are_named:
            raise click.UsageError("nothing to verify: name files, a folder, an archive, or a --node")
        sources = nodes.addresses[:1]
    keys = TrustedKeys.parse(key_texts)
    numbers = NumberRange(first, None if last is None else last + 1)
    verifier = make_verifier(keys, mode, _LAYOUTS[layout], rsa_threshold)
    run = VerifyRun(_source(sources, numbers, tls, store, tcp=tcp), verifier, workers_count)
    verdicts, end = _watched(run, quiet=as_json)
    if end is not None and not verdicts:
        raise end
    refused_count = sum(not verdict.is_accepted for verdict in verdicts)
    is_sound = end is None and not refused_count and not (no_gaps and run.gaps)
    if as_json:
        found = _as_json(run, verdicts, refused_count, is_sound=is_sound, is_complete=end is None)
        click.echo(json.dumps(found))
    else:
        _print(run, verdicts, refused_count, mode, show_all=show_all)
        if run.block_0_refusal is not None and verdicts[0].number != 0:
            click.echo(f"block 0 is refused and gives no ledger data: {run.block_0_refusal}")
        if end is not None:
            click.echo(f"not complete: the check ended after block {verdicts[-1].number}")
        if run.is_from_block_0 and keys.trusts_any_block_0 and run.ledger_id is not None:
            pin = f"--ledger-key tss:id={run.ledger_id.hex()}"
            click.echo(f"The ledger id was taken from block 0 and believed; pin it with {pin}")
    if end is not None:
        raise end
    if not is_sound:
        click.get_current_context().exit(1)


def _source(
    texts: tuple[str, ...], numbers: NumberRange, tls: ClientTls | None, store: StoreOptions, *, tcp: bool
) -> BlockSource:
    urls = [text for text in texts if "://" in text and text.partition("://")[0] in SCHEMES]
    if urls:
        ca_file = None if tls is None else tls.ca_file
        if tcp or tls not in (None, ClientTls(ca_file)):
            raise click.UsageError("--tcp and --tls-… but --tls-ca are for HOST:PORT, not for an archive")
        store = replace(store, tls_ca=None if ca_file is None else Path(ca_file))
        if len(texts) > 1:
            raise Fatal(urls[0], got="an archive among other sources", expected="an archive alone")
        return StoredSource(urls[0], numbers, store)
    paths = [Path(text) for text in texts]
    missing = [text for text, path in zip(texts, paths, strict=True) if not (path.exists() or _is_glob(text))]
    if not missing:
        if tcp:
            raise click.UsageError("--tcp is for HOST:PORT, not for files")
        if tls is not None:
            raise click.UsageError("--tls and --tls-… are for HOST:PORT, not for files")
        streams = [text for text, path in zip(texts, paths, strict=True) if holds_stream(path)]
        if not streams:
            return FileSource(texts, numbers)
        if len(paths) > 1:
            raise Fatal(streams[0], got="a stream among other files", expected="a node's data folder alone")
        if paths[0].is_dir() and blocks_in(paths[0]):
            got = "a stream file and block files"
            raise Fatal(texts[0], got=got, expected="the one or the other, or the file's own name")
        return StoredSource(paths[0], numbers)
    if len(texts) > 1:
        raise Fatal(
            missing[0], got="nothing of that name", expected="block files or folders, or one node alone"
        )
    address = _address(texts[0])
    return (StreamSource if tcp else NodeSource)(address, numbers, tls)


def _is_glob(text: str) -> bool:
    """Return whether a text is a glob; an IPv6 address has brackets, too."""
    if not has_glob(text):
        return False
    try:
        parse_address(text, port_min=1)
    except AddressError:
        return True
    return False


def _address(text: str) -> Address:
    try:
        return parse_address(text, port_min=1)
    except AddressError:
        expected = "a file, a folder, or a node's HOST:PORT or the URL of its archive"
        raise Fatal(text, got="nothing of that name", expected=expected) from None


def _watched(
    run: VerifyRun, *, quiet: bool
) -> tuple[list[BlockVerdict], KeyboardInterrupt | Fatal | PublisherError | None]:
    """Run with a progress bar on a terminal; return the verdicts, and what ended the run early, or None."""
    console = Console(stderr=True)
    columns = (TextColumn("verifying"), BarColumn(), MofNCompleteColumn(), TextColumn("blocks"))
    shown = console.is_terminal and not quiet
    verdicts = []
    try:
        with (
            Progress(
                *columns, TimeRemainingColumn(), console=console, transient=True, disable=not shown
            ) as bar,
            closing(run.verdicts()) as coming,
        ):
            task = bar.add_task("", total=run.count)
            for verdict in coming:
                verdicts.append(verdict)
                bar.advance(task)
    except (KeyboardInterrupt, Fatal, PublisherError) as end:
        return verdicts, end
    return verdicts, None


def _as_json(
    run: VerifyRun,
    verdicts: list[BlockVerdict],
    refused_count: int,
    *,
    is_sound: bool,
    is_complete: bool,
) -> dict[str, object]:
    return {
        "sound": is_sound,
        "complete": is_complete,
        "accepted": len(verdicts) - refused_count,
        "refused": refused_count,
        "gaps": [list(gap) for gap in run.gaps],
        "ledger_id": None if run.ledger_id is None else run.ledger_id.hex(),
        "blocks": [verdict.as_json() for verdict in verdicts],
    }


def _print(
    run: VerifyRun,
    verdicts: list[BlockVerdict],
    refused_count: int,
    mode: VerificationMode,
    *,
    show_all: bool,
) -> None:
    shown = verdicts
    if len(verdicts) > VERIFY_TABLE_ROWS_MAX and not show_all:
        shown = [verdict for verdict in verdicts if not verdict.is_accepted or verdict.note]
        shown = shown[:VERIFY_TABLE_ROWS_MAX]
    for line in _rows(shown):
        click.echo(line)
    for first, last in run.gaps:
        if first == last:  # the next footer bridges it: its row says how
            click.echo(f"block {first} is missing")
        else:
            click.echo(f"blocks {first} to {last} are missing: the links across the gap are not checked")
    if len(shown) < len(verdicts):
        hidden = len(verdicts) - len(shown)
        more = "1 more block is" if hidden == 1 else f"{hidden} more blocks are"
        click.echo(f"{more} not listed here (--all lists them)")
    accepted = f"{len(verdicts) - refused_count} accepted"
    unchecked = "; proofs were not checked" if mode == "hash" else ""
    count = "1 block" if len(verdicts) == 1 else f"{len(verdicts)} blocks"
    click.echo(f"{count}: {accepted}, {refused_count} refused{unchecked}")


def _rows(verdicts: list[BlockVerdict]) -> list[str]:
    """Return the verdicts as lines; their last column is not cut or wrapped."""
    kinds = [kinds_text(verdict.proof_kinds) for verdict in verdicts]
    numbers = max((len(str(verdict.number)) for verdict in verdicts), default=0)
    number_width, kind_width = max(numbers, len("block")), max(map(len, (*kinds, "proof")))
    lines = [f"{'block':>{number_width}}  {'proof':<{kind_width}}  {'root hash':<{_HASH_DIGITS}}  verdict"]
    for verdict, kind in zip(verdicts, kinds, strict=True):
        root_hash = "-" if verdict.root_hash is None else verdict.root_hash.hex()[:_HASH_DIGITS]
        lines.append(
            f"{verdict.number:>{number_width}}  {kind:<{kind_width}}  {root_hash:<{_HASH_DIGITS}}  "
            f"{_verdict_text(verdict)}"
        )
    return lines if verdicts else []


def _verdict_text(verdict: BlockVerdict) -> str:
    if verdict.refusal is not None:
        return f"refused: {verdict.refusal}"
    return f"accepted; {verdict.note}" if verdict.note else "accepted"
