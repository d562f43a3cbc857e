"""`sluice verify-proof`: check the file of `sluice prove`, without a node and without the block."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from sluice.gateway.blocks.errors import BlockRefused, ProofDataError
from sluice.gateway.blocks.items import item_name
from sluice.gateway.blocks.merkle import HASH_SIZE
from sluice.gateway.blocks.proofs import ProofKind, ProofVerifier
from sluice.gateway.blocks.proofs.contents import ITEM_PROOF_BYTES_MAX, ProvenItem, verify_item_proof
from sluice.gateway.blocks.trusted_keys import TrustedKeys
from sluice.gateway.commands.parameter_types import NamedPath
from sluice.gateway.regular_files import open_regular
from sluice.gateway.store.trust_store import given_address_book, given_ledger
from sluice.publishers.blocks.block_files import write_output
from sluice.publishers.errors import BlockFileError

__all__ = ["as_json", "command", "describe", "ledger_key_option", "proof_verifier", "rsa_threshold_option"]

ledger_key_option = click.option(
    "--ledger-key",
    "key_texts",
    multiple=True,
    metavar="KEY",
    help="A key of the network: ed25519:HEX, tss:FILE (its publication, or block 0) or "
    "rsa:ADDRESS_BOOK.json; repeatable.",
)

rsa_threshold_option = click.option(
    "--verification-rsa-threshold",
    "rsa_threshold",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="NODES",
    help="Nodes of the address book that must have signed a record file; 0 means more than a third.",
)


def _root_hash(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        root_hash = bytes.fromhex(text)
    except ValueError:
        raise click.BadParameter("got a value that is not hex", param_hint="--root-hash") from None
    if len(root_hash) != HASH_SIZE:
        got = f"got {len(root_hash)} bytes, expected {HASH_SIZE}"
        raise click.BadParameter(got, param_hint="--root-hash")
    return root_hash


@click.command("verify-proof", short_help="Check a proof of `sluice prove`, without a node.")
@click.argument("path", type=NamedPath(path_type=Path), metavar="FILE")
@ledger_key_option
@click.option(
    "--root-hash",
    "root_hash_text",
    metavar="HEX",
    help="Instead of keys: the root hash of a block that you trust, the item's or a later one that the proof "
    "goes through (`sluice prove --under`).",
)
@rsa_threshold_option
@click.option(
    "--out",
    "item_path",
    type=NamedPath(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the proven item there.",
)
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object instead of text.")
def command(
    path: Path,
    key_texts: tuple[str, ...],
    root_hash_text: str | None,
    rsa_threshold: int,
    item_path: Path | None,
    is_json: bool,
) -> None:
    """Check that the item in FILE is in its block, and that the network has signed that.

    It needs neither a node nor the block. The exit status is 1 if the proof does not hold. It says nothing of
    other items: not how many there are, nor in which order.
    """
    trusted_root_hash = _root_hash(root_hash_text)
    if bool(key_texts) == (trusted_root_hash is not None):
        raise click.UsageError("give the network's key with --ledger-key, or a --root-hash that you trust")
    proofs = proof_verifier(key_texts, rsa_threshold) if key_texts else None
    try:
        with open_regular(path) as file:
            data = file.read(ITEM_PROOF_BYTES_MAX + 1)
    except OSError as error:
        raise BlockFileError(str(path), error.strerror or str(error)) from error
    try:
        shown = verify_item_proof(data, proofs, trusted_root_hash=trusted_root_hash)
    except (BlockRefused, ProofDataError) as error:
        if not is_json:
            raise
        problem = {"what": error.what, "got": error.got, "expected": error.expected}
        click.echo(json.dumps({"holds": False, "problem": problem}))
        click.get_current_context().exit(1)
    if item_path is not None:
        write_output(item_path, shown.item)
    if is_json:
        click.echo(json.dumps({"holds": True, **as_json(shown)}))
        return
    for line in describe(shown):
        click.echo(line)


def proof_verifier(key_texts: tuple[str, ...], rsa_threshold: int = 0) -> ProofVerifier:
    """Read the files that keys name. Raises LedgerKeyError."""
    keys = TrustedKeys.parse(key_texts)
    book = given_address_book(keys, "full", rsa_threshold)
    return ProofVerifier(keys, "full", given_ledger(keys, "full"), book)


def describe(shown: ProvenItem, *, is_checked: bool = True) -> list[str]:
    """Return what a proof shows, or claims, in lines for people."""
    lines = [
        f"item       {item_name(shown.kind)}, {len(shown.item):,} bytes",
        f"block      {shown.block_number}"
        + ("" if shown.timestamp_seconds is None else f", of {_time(shown.timestamp_seconds)}"),
    ]
    if shown.root_hash is not None:
        lines.append(f"root hash  {shown.root_hash.hex()}")
    if shown.under_number is not None:
        lines.append(f"under      block {shown.under_number}, by its tree of all block hashes")
    if not is_checked:
        lines.append(f"signature  not checked: that takes --ledger-key ({shown.signed_by})")
    elif shown.signed_by is ProofKind.RECORD_FILE:
        lines.append("signed by  nodes of the address book: the contents of the record file, nothing else")
    elif shown.signed_by is not None:
        lines.append(f"signed by  the network: {shown.signed_by.value.replace('block proof', 'signature')}")
    else:
        lines.append("trusted    the root hash that was given")
    return lines


def as_json(shown: ProvenItem) -> dict[str, Any]:
    """Return what a proof shows as a JSON object, without the item."""
    return {
        "block": shown.block_number,
        "kind": shown.kind,
        "item_bytes": len(shown.item),
        "timestamp": None if shown.timestamp_seconds is None else _time(shown.timestamp_seconds),
        "root_hash": None if shown.root_hash is None else shown.root_hash.hex(),
        "under": shown.under_number,
        "signed_by": None if shown.signed_by is None else shown.signed_by.name.lower(),
    }


def _time(seconds: int) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return f"second {seconds}"
