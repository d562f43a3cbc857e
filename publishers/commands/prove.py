"""`sluice prove`: a file that shows, without the block, that an item is in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import grpc

from sluice.gateway.api import hapi_pb2, proof_pb2, proof_pb2_grpc
from sluice.gateway.blocks.block_numbers import BLOCK_NUMBER_MAX
from sluice.gateway.blocks.errors import BlockRefused, ItemError, ProofDataError
from sluice.gateway.blocks.items import ItemKind, item_name, kind_of, kinds_of, payload_of
from sluice.gateway.blocks.proofs import ProofVerifier
from sluice.gateway.blocks.proofs.contents import (
    ContentsProof,
    ItemProof,
    ProvenItem,
    claim_of,
    is_of_record_file,
    verify_item_proof,
)
from sluice.gateway.commands.contexts import Chosen, Port
from sluice.gateway.commands.node_options import node_options
from sluice.gateway.commands.parameter_types import NamedPath
from sluice.gateway.logs import one_line
from sluice.gateway.services.proof_service import REASON_KEY, UNDER_KEY
from sluice.gateway.transport.channels import ClientTls
from sluice.publishers import limits
from sluice.publishers.blocks.block_files import write_output
from sluice.publishers.commands.block import ask_node, get_block
from sluice.publishers.commands.verify_proof import as_json, describe, ledger_key_option, proof_verifier
from sluice.publishers.errors import SourceRefused, SourceUnreachable
from sluice.publishers.rows.values import parsed, transaction_id_of

__all__ = ["command"]


@click.command("prove", short_help="Make a proof of one item, to be checked without the block.")
@click.argument("number", type=click.IntRange(0, BLOCK_NUMBER_MAX), metavar="BLOCK")
@click.option(
    "--item",
    "index",
    type=click.IntRange(0, (1 << 32) - 1),
    metavar="N",
    help="The item, counted from 0, the block's header.",
)
@click.option(
    "--transaction",
    "transaction_id",
    metavar="ID",
    help="Instead of --item: the signed transaction with this id, as 0.0.1234@1700000000.000000001, or the "
    "record file that has it.",
)
@click.option(
    "--under",
    type=click.IntRange(0, BLOCK_NUMBER_MAX),
    metavar="M",
    help="A later block: the proof goes through its tree of all block hashes, and needs that block's "
    "signature or root hash only.",
)
@click.option(
    "--out",
    "path",
    required=True,
    type=NamedPath(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the proof there.",
)
@ledger_key_option
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object instead of text.")
@node_options(Port.GRPC)
def command(
    number: int,
    index: int | None,
    transaction_id: str | None,
    under: int | None,
    path: Path,
    key_texts: tuple[str, ...],
    is_json: bool,
    nodes: Chosen,
    tls: ClientTls | None,
) -> None:
    """Get a proof that an item is in block BLOCK: a few kilobytes that anybody can check without a node, with
    `sluice verify-proof` or with a function of the library.

    The proof is checked before it is written, with --ledger-key its signature, too.
    """
    if (index is None) == (transaction_id is None):
        raise click.UsageError("give one of --item N and --transaction ID")
    if transaction_id is not None and "@" not in transaction_id:
        got = f"got {transaction_id!r}, expected an id such as 0.0.1234@1700000000.000000001"
        raise click.BadParameter(got, param_hint="--transaction")
    if under is not None and under <= number:
        raise click.BadParameter(f"got {under}, expected a block above {number}", param_hint="--under")
    verifier = proof_verifier(key_texts) if key_texts else None
    data, shown = _prove_by_any(nodes.addresses, tls, _Wanted(number, index, transaction_id, under), verifier)
    write_output(path, data)
    if is_json:
        report = {"proof_bytes": len(data), "is_checked": verifier is not None, **as_json(shown)}
        click.echo(json.dumps(report))
        return
    for line in describe(shown, is_checked=verifier is not None):
        click.echo(line)
    click.echo(f"proof      {len(data):,} bytes in {path}")


@dataclass(frozen=True, slots=True)
class _Wanted:
    """An item to be proved, by its place or by its transaction."""

    number: int
    index: int | None
    transaction_id: str | None
    under: int | None

    def __str__(self) -> str:
        what = f"item {self.index}" if self.transaction_id is None else f"transaction {self.transaction_id}"
        return f"proof of block {self.number} {what}"

    def check(self, item: bytes) -> None:
        """Raise ItemError if a proved item is not the wanted one, as far as that shows."""
        kind = kind_of(item)
        if self.index == 0 and kind != ItemKind.BLOCK_HEADER:
            raise ItemError("item 0", item_name(kind), "a block header")
        if self.transaction_id is not None and self.transaction_id not in _transactions_of(kind, item):
            raise ItemError("item", "one without it", f"the transaction {self.transaction_id}")


def _prove_by_any(
    addresses: Sequence[str], tls: ClientTls | None, wanted: _Wanted, verifier: ProofVerifier | None
) -> tuple[bytes, ProvenItem]:
    """Return the file of a proof, and what it shows: by the first node whose proof holds."""
    for place, address in enumerate(addresses):
        try:
            return _Node(address, tls).prove(wanted, verifier)
        except (SourceUnreachable, SourceRefused) as error:
            if place == len(addresses) - 1:
                raise
            click.echo(f"sluice: {one_line(str(error))}; asking the next node", err=True)
    raise AssertionError(addresses)


@dataclass(frozen=True, slots=True)
class _Node:
    """A node that is asked for proofs."""

    address: str
    tls: ClientTls | None

    def prove(self, wanted: _Wanted, verifier: ProofVerifier | None) -> tuple[bytes, ProvenItem]:
        """Return the file of a proof, and what it shows. Raises SourceRefused if it does not hold."""
        try:
            number, under = wanted.number, wanted.under
            item = self._ask(number, self._place_of(wanted), under)
            header = under_header = None
            if kind_of(item.item) != ItemKind.BLOCK_HEADER and not is_of_record_file(item):
                header = self._ask(number, 0, under)
            if under is not None:
                under_header = self._ask(under, 0, None)
            data = ItemProof(number, item, header, under_header).to_bytes()
            shown = claim_of(data) if verifier is None else verify_item_proof(data, verifier)
            wanted.check(shown.item)
        except (BlockRefused, ItemError, ProofDataError) as error:
            raise SourceRefused(str(wanted), f"{self.address}: {error}") from error
        return data, shown

    def _place_of(self, wanted: _Wanted) -> int:
        if wanted.index is not None:
            return wanted.index
        block = get_block(self.address, wanted.number, self.tls)
        places = [
            place
            for place, (kind, item) in enumerate(zip(kinds_of(block.items), block.items, strict=True))
            if wanted.transaction_id in _transactions_of(kind, item)
        ]
        if len(places) != 1:
            got = f"{len(places)} items with it: {', '.join(map(str, places))}" if places else "none there"
            raise SourceRefused(str(wanted), f"{self.address}: {got}")
        return places[0]

    def _ask(self, number: int, index: int, under: int | None) -> ContentsProof:
        wanted = f"proof of block {number} item {index}"
        request = proof_pb2.BlockContentsProofRequest(block_number=number, block_item_index=index)
        metadata = () if under is None else ((UNDER_KEY, str(under)),)

        def get(channel: grpc.Channel) -> tuple[proof_pb2.BlockContentsProofResponse, str]:
            stub = proof_pb2_grpc.ProofServiceStub(channel)
            response, call = stub.getBlockContentsProof.with_call(
                request, metadata=metadata, timeout=limits.BLOCK_SECONDS
            )
            reasons = [str(value) for key, value in call.trailing_metadata() or () if key == REASON_KEY]
            return response, "".join(reasons[:1])

        response, reason = ask_node(self.address, self.tls, wanted, get)
        code = proof_pb2.BlockContentsProofResponse.Code
        if response.status != code.SUCCESS:
            name = code.Name(response.status) if response.status in code.values() else str(response.status)
            raise SourceRefused(wanted, f"{self.address} says {name}" + (f": {reason}" if reason else ""))
        return ContentsProof.of(response.block_content_proof, wanted)


def _transactions_of(kind: int, item: bytes) -> list[str]:
    if kind == ItemKind.SIGNED_TRANSACTION:
        signed = parsed(hapi_pb2.SignedTransaction, payload_of(item))
        body = None if signed is None else parsed(hapi_pb2.TransactionBody, signed.body_bytes)
        return [] if body is None else [transaction_id_of(body.transaction_id)]
    if kind == ItemKind.RECORD_FILE:
        file = parsed(hapi_pb2.RecordFileItem, payload_of(item))
        items = () if file is None else file.record_file_contents.record_stream_items
        records = [parsed(hapi_pb2.TransactionRecord, one.record) for one in items]
        return [transaction_id_of(record.transaction_id) for record in records if record is not None]
    return []
