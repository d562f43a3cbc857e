"""`sluice block`: one block of a node, to a file or as a summary."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import click
import grpc

from sluice.gateway.api import node_pb2, node_pb2_grpc
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.block_numbers import BLOCK_NUMBER_MAX, to_wire
from sluice.gateway.commands.contexts import Chosen, Port
from sluice.gateway.commands.node_options import node_options
from sluice.gateway.commands.parameter_types import NamedPath, offers
from sluice.gateway.logs import one_line
from sluice.gateway.transport.channels import WHOLE_BLOCKS, ClientTls, call_once
from sluice.gateway.transport.failures import why_failed_at
from sluice.publishers import limits
from sluice.publishers.blocks.block_files import encode_block_file, write_output
from sluice.publishers.blocks.block_layouts import BlockFormat, BlockLayout
from sluice.publishers.blocks.block_summary import size_text, summarize
from sluice.publishers.blocks.block_writer import BlockWriter
from sluice.publishers.errors import SourceRefused, SourceUnreachable
from sluice.publishers.number_range import number_of

__all__ = ["ask_node", "command", "get_block"]

AnswerT = TypeVar("AnswerT")

_ENDINGS: tuple[tuple[str, BlockFormat], ...] = (
    (".gz", "blk.gz"),
    (".zst", "blk.zst"),
    (".zstd", "blk.zstd"),
)
_LAYOUTS = ("plain", "consensus", "recent", "bucket")  # a historic zip is made of 10,000 blocks


def _number(context: click.Context, parameter: click.Parameter, text: str) -> int | None:
    if text == "latest":
        return None
    number = number_of(text, BLOCK_NUMBER_MAX)
    if number is None:
        raise click.BadParameter(f"{text!r} is not a block number or 'latest'", context, parameter)
    return number


@click.command("block", short_help="Get one committed block of a node.")
@click.argument("number", callback=_number, metavar="N|latest", shell_complete=offers("latest"))
@click.option(
    "--out",
    "path",
    type=NamedPath(path_type=Path, allow_dash=True),
    metavar="FILE|DIR",
    help="Write the block to this file; .gz, .zst and .zstd compress it, - is standard output.",
)
@click.option(
    "--layout",
    type=click.Choice(_LAYOUTS),
    help="Name the file in the folder --out as `sluice subscribe --layout` does; the folder is made if it is "
    "missing.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@node_options(Port.GRPC, "--gateway")
def command(
    number: int | None,
    nodes: Chosen,
    path: Path | None,
    layout: BlockLayout | None,
    as_json: bool,
    tls: ClientTls | None,
) -> None:
    """Get one committed block of a node: what is in it, or the block itself.

    Of several nodes, the first that has it gives it. The root hash is computed from the block; its proof is
    not checked.
    """
    is_stdout = path is not None and str(path) == "-"
    if layout is not None and (path is None or is_stdout):
        raise click.UsageError("--layout needs --out DIR")
    if path is not None and layout is None and path.is_dir():
        raise click.BadParameter(f"got the folder {path}, expected a file, or --layout", param_hint="--out")
    block = _get_from_any(nodes.addresses, number, tls)
    if path is not None and layout is not None:
        with BlockWriter(path, layout) as writer:
            writer.write(block)
    elif path is not None:
        _write(path, block)
        if is_stdout:
            return
    summary = summarize(block)
    if as_json:
        click.echo(json.dumps(summary.as_json()))
        return
    click.echo(f"block      {summary.number}")
    click.echo(f"timestamp  {summary.timestamp or 'none'}")
    click.echo(f"root hash  {summary.root_hash or summary.problem}")
    click.echo(f"size       {size_text(summary.size_bytes)}, {summary.items_count} items")
    for kind, count in summary.kinds.items():
        click.echo(f"           {count} {kind.replace('_', ' ')}")


def _get_from_any(addresses: Sequence[str], number: int | None, tls: ClientTls | None) -> Block:
    *others, last = addresses
    for address in others:
        try:
            return get_block(address, number, tls)
        except (SourceUnreachable, SourceRefused) as error:
            click.echo(f"sluice: {one_line(str(error))}; asking the next node", err=True)
    return get_block(last, number, tls)


def get_block(
    address: str,
    number: int | None,
    tls: ClientTls | None = None,
    *,
    timeout_seconds: float = limits.BLOCK_SECONDS,
    options: Sequence[tuple[str, str | int]] = WHOLE_BLOCKS,
) -> Block:
    """Get a block from a node; `number` None: the latest.

    Raises:
        SourceUnreachable: the node does not answer in time.
        SourceRefused: it cannot be reached, does not have the block, or cannot read it.
        BlockRefused: it sent no block.
    """
    wanted = "the latest block" if number is None else f"block {number}"
    request = node_pb2.BlockRequest(block_number=to_wire(number))

    def get(channel: grpc.Channel) -> node_pb2.BlockResponse:
        return node_pb2_grpc.BlockAccessServiceStub(channel).getBlock(request, timeout=timeout_seconds)

    response = ask_node(address, tls, wanted, get, timeout_seconds, options)
    code = node_pb2.BlockResponse.Code
    if response.status != code.SUCCESS:
        name = code.Name(response.status) if response.status in code.values() else str(response.status)
        raise SourceRefused(wanted, f"{address} says {name}")
    return Block.from_items(response.block.items)


def ask_node(
    address: str,
    tls: ClientTls | None,
    wanted: str,
    call: Callable[[grpc.Channel], AnswerT],
    timeout_seconds: float = limits.BLOCK_SECONDS,
    options: Sequence[tuple[str, str | int]] = WHOLE_BLOCKS,
) -> AnswerT:
    """Call a node once.

    Args:
        wanted: what is asked for, in words.
        timeout_seconds: that of `call`.

    Raises:
        SourceUnreachable: the node does not answer in time.
        SourceRefused: it cannot be reached, or ends the call.
    """
    try:
        return call_once(address, tls, call, options)
    except grpc.RpcError as error:
        trouble = str(error)
        if isinstance(error, grpc.Call):
            trouble = f"{address}: {why_failed_at(address, error, tls)}"
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise SourceUnreachable(wanted, timeout_seconds, trouble) from error
        raise SourceRefused(wanted, trouble) from error  # at once: nothing was waited for


def _write(path: Path, block: Block) -> None:
    block_format: BlockFormat = next((form for ending, form in _ENDINGS if path.name.endswith(ending)), "blk")
    data = encode_block_file(block, block_format)
    if str(path) == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    write_output(path, data)
