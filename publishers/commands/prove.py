"""`sluice prove`: a file that shows, without the block, that an item is in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import grpc

from sluice.gateway.api import hapi_pb2, proof_pb2, proof_pb2_grpc
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.block_numbers import BLOCK_NUMBER_MAX
from sluice.gateway.blocks.errors import BlockRefused, ProofDataError
from sluice.gateway.blocks.items import ItemKind, kind_of, kinds_of, payload_of
from sluice.gateway.blocks.proofs import ProofKind, kind_of_signature
from sluice.gateway.blocks.proofs.contents import (
    ContentsProof,
    ItemProof,
    claim_of,
    verify_item_proof,
)
from sluice.gateway.commands.contexts import Chosen, Port
from sluice.gateway.commands.node_options import node_options
from sluice.gateway.commands.parameter_types import NamedPath
from sluice.gateway.commands.verify_proof import as_json, describe, ledger_key_option, proof_verifier
from sluice.gateway.logs import one_line
from sluice.gateway.services.proof_service import REASON_KEY, UNDER_KEY
from sluice.gateway.transport.channels import WHOLE_BLOCKS, ClientTls, call_once
from sluice.gateway.transport.failures import why_failed_at
from sluice.publishers import limits
from sluice.publishers.blocks.block_files import write_whole
from sluice.publishers.commands.block import get_block
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
    if under is not None and under <= number:
        raise click.BadParameter(f"got {under}, expected a block above {number}", param_hint="--under")
    verifier = proof_verifier(key_texts) if key_texts else None
    data = b""
    for place, address in enumerate(nodes.addresses):
        try:
            node = _Node(address, tls)
            wanted = node.place_of(number, transaction_id) if transaction_id is not None else index
            assert wanted is not None
            data = node.prove(number, wanted, under)
            break
        except (SourceUnreachable, SourceRefused) as error:
            if place == len(nodes.addresses) - 1:
                raise
            click.echo(f"sluice: {one_line(str(error))}; asking the next node", err=True)
    shown = claim_of(data) if verifier is None else verify_item_proof(data, verifier)
    write_whole(path.resolve(), data, is_flushed=True)
    if is_json:
        report = {"proof_bytes": len(data), "is_checked": verifier is not None, **as_json(shown)}
        click.echo(json.dumps(report))
        return
    for line in describe(shown, is_checked=verifier is not None):
        click.echo(line)
    click.echo(f"proof      {len(data):,} bytes in {path}")


@dataclass(frozen=True, slots=True)
class _Node:
    """A node that is asked for proofs."""

    address: str
    tls: ClientTls | None

    def place_of(self, number: int, transaction_id: str) -> int:
        """Return the place of the item with a transaction. Raises SourceRefused if there is no single one."""
        places = _places_of(get_block(self.address, number, self.tls), transaction_id)
        if len(places) != 1:
            got = f"{len(places)} items with it: {', '.join(map(str, places))}" if places else "none there"
            raise SourceRefused(f"transaction {transaction_id} in block {number}", got)
        return places[0]

    def prove(self, number: int, index: int, under: int | None) -> bytes:
        """Return the file of a proof, whose parts fit together."""
        item = self._ask(number, index, under)
        header = under_header = None
        is_header = kind_of(item.item) == ItemKind.BLOCK_HEADER
        is_of_root = kind_of_signature(item.signature) is not ProofKind.UNKNOWN_SIGNATURE
        if not is_header and (is_of_root or kind_of(item.item) != ItemKind.RECORD_FILE):
            header = self._ask(number, 0, under)
        if under is not None:
            under_header = self._ask(under, 0, None)
        try:
            data = ItemProof(number, item, header, under_header).to_bytes()
            claim_of(data)
        except (BlockRefused, ProofDataError) as error:
            raise SourceRefused(
                f"proof of block {number} item {index}", f"{self.address}: {error}"
            ) from error
        return data

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

        try:
            response, reason = call_once(self.address, self.tls, get, WHOLE_BLOCKS)
        except grpc.RpcError as error:
            trouble = str(error)
            if isinstance(error, grpc.Call):
                trouble = f"{self.address}: {why_failed_at(self.address, error, self.tls)}"
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise SourceUnreachable(wanted, limits.BLOCK_SECONDS, trouble) from error
            raise SourceRefused(wanted, trouble) from error
        code = proof_pb2.BlockContentsProofResponse.Code
        if response.status != code.SUCCESS:
            name = code.Name(response.status) if response.status in code.values() else str(response.status)
            raise SourceRefused(wanted, f"{self.address} says {name}" + (f": {reason}" if reason else ""))
        return ContentsProof.of(response.block_content_proof, wanted)


def _places_of(block: Block, transaction_id: str) -> Sequence[int]:
    """Return the places of the items with a transaction: itself, or the record file that has it."""
    return [
        place
        for place, (kind, item) in enumerate(zip(kinds_of(block.items), block.items, strict=True))
        if transaction_id in _transactions_of(kind, item)
    ]


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
