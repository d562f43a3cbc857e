"""`sluice ledger`: prints the ledger data of a TSS network from a file, a folder or a node."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import click
import grpc
from rich.console import Console
from rich.table import Table

from sluice.gateway.addresses import parse_address
from sluice.gateway.api import node_pb2, node_pb2_grpc
from sluice.gateway.blocks.errors import BlockRefused, LedgerKeyError
from sluice.gateway.blocks.proofs.baby_jubjub import point_bytes
from sluice.gateway.blocks.proofs.ledger_data import SENTINEL_KEY, LedgerData, LedgerNode, published_ledger
from sluice.gateway.commands.contexts import Chosen
from sluice.gateway.commands.node_options import node_options
from sluice.gateway.commands.parameter_types import NamedPath
from sluice.gateway.errors import AddressError, Fatal
from sluice.gateway.limits import CONTROL_CALL_SECONDS
from sluice.gateway.services.status_detail import KEY_HASH_BYTES
from sluice.gateway.store.trust_store import ledger_of_file, ledger_of_folder
from sluice.gateway.table_lines import table_lines
from sluice.gateway.transport.channels import WHOLE_BLOCKS, ClientTls, call_once
from sluice.gateway.transport.failures import why_failed_at

__all__ = ["command"]


@click.group("ledger", short_help="Show what a node checks TSS block proofs with.")
def command() -> None:
    """Show the ledger data that a node checks TSS block proofs with."""


@command.command("show", short_help="Print the ledger id of a network, and its nodes.")
@click.argument("source", required=False, type=NamedPath(), metavar="[FILE|DIR|HOST:PORT]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@node_options(instead=["source"])
def show(source: str | None, nodes: Chosen, as_json: bool, tls: ClientTls | None) -> None:
    """Print a network's ledger id, its nodes, their weights and the fingerprints of their keys.

    FILE is a publication of a ledger id or a file of block 0. DIR is the data folder of a node or a folder of
    block files. HOST:PORT is a node that has block 0; without any of these, --node is. The command first
    checks that the ledger id is the hash of the address book, and that each node has proven that it knows its
    secret.
    """
    ledger = _ledger_of(source, tls) if source is not None else _ledger_of_node(nodes.addresses[0], tls)
    if as_json:
        click.echo(json.dumps(_as_json(ledger)))
    else:
        _print(ledger)


def _ledger_of(source: str, tls: ClientTls | None) -> LedgerData:
    path = Path(source)
    if path.exists():
        try:
            return ledger_of_folder(path) if path.is_dir() else ledger_of_file(path)
        except LedgerKeyError as error:  # of the source: no key was configured
            what = error.what.removeprefix("ledger key tss:")
            raise Fatal(what, got=error.got, expected=error.expected) from error
    try:
        address = str(parse_address(source, port_min=1))
    except AddressError:
        expected = "a file, a folder, or a node's HOST:PORT"
        raise Fatal(source, got="nothing of that name", expected=expected) from None
    return _ledger_of_node(address, tls)


def _ledger_of_node(address: str, tls: ClientTls | None) -> LedgerData:
    def get(channel: grpc.Channel) -> node_pb2.BlockResponse:
        request = node_pb2.BlockRequest(block_number=0)
        return node_pb2_grpc.BlockAccessServiceStub(channel).getBlock(request, timeout=CONTROL_CALL_SECONDS)

    try:
        response = call_once(address, tls, get, WHOLE_BLOCKS)
    except grpc.RpcError as error:
        got = why_failed_at(address, error, tls)
        raise Fatal(f"node {address}", got=got, expected="block 0") from None
    if response.status != node_pb2.BlockResponse.Code.SUCCESS:
        got = node_pb2.BlockResponse.Code.Name(response.status)
        raise Fatal(f"node {address}", got=got, expected="block 0")
    try:
        ledger = published_ledger(response.block.items)
    except BlockRefused as error:
        what = f"node {address}, block 0: {error.refusal.what}"
        raise Fatal(what, got=error.refusal.got, expected=error.refusal.expected) from error
    if ledger is None:
        got = "a block 0 that publishes no ledger id"
        raise Fatal(f"node {address}", got=got, expected="block 0 of a TSS network")
    return ledger


def _fingerprint(node: LedgerNode) -> str | None:
    """None: the node has no key."""
    if node.key.Y == SENTINEL_KEY:
        return None
    return hashlib.sha256(point_bytes(node.key.Y)).hexdigest()[: 2 * KEY_HASH_BYTES]


def _as_json(ledger: LedgerData) -> dict[str, object]:
    return {
        "ledger_id": ledger.ledger_id.hex(),
        "wraps_key_sha256": hashlib.sha256(ledger.wraps_vk).hexdigest() if ledger.wraps_vk else None,
        "total_weight": ledger.total_weight,
        "nodes": [
            {"node_id": node.node_id, "weight": node.weight, "key": _fingerprint(node)}
            for node in ledger.nodes
        ],
    }


def _print(ledger: LedgerData) -> None:
    total = ledger.total_weight
    wraps_key = hashlib.sha256(ledger.wraps_vk).hexdigest() if ledger.wraps_vk else "none"
    click.echo(f"ledger id   {ledger.ledger_id.hex()}")
    click.echo(f"WRAPS key   {wraps_key}")
    click.echo(f"weight      {total}")
    click.echo(f"pin it with --ledger-key tss:id={ledger.ledger_id.hex()}")
    rows = [("node", "weight", "share", "key (SHA-256)")]
    for node in ledger.nodes:
        share = f"{100 * node.weight / total:.2f} %" if total else "-"
        rows.append((str(node.node_id), str(node.weight), share, _fingerprint(node) or "none of its own"))
    console = Console()
    if not console.is_terminal:
        click.echo("\n".join(table_lines(rows)))
        return
    table = Table(*rows[0])
    for row in rows[1:]:
        table.add_row(*row)
    console.print(table)
