"""`sluice generate`: make a chain of blocks and write it as block files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from rich.console import Console
from rich.progress import track

from sluice.gateway.blocks.block import Block
from sluice.gateway.commands.parameter_types import NamedPath
from sluice.gateway.key_files import load_private_key, public_key_hex
from sluice.publishers.blocks.block_layouts import BlockFormat, BlockLayout
from sluice.publishers.blocks.block_places import blocks_in
from sluice.publishers.blocks.block_writer import BlockWriter
from sluice.publishers.blocks.maker import BlockMaker, MakerOptions, key_of_seed
from sluice.publishers.commands.layout_options import layout_options
from sluice.publishers.errors import BlockFileError, BlockListError
from sluice.publishers.limits import MAKER_BLOCKS_MAX

__all__ = ["KEY_FILE_NAME", "command"]

KEY_FILE_NAME = "signing-key.pem"
"""The key of the seed, beside the blocks."""

_DEFAULTS = MakerOptions()


@click.command("generate", short_help="Make a chain of realistic blocks, signed.")
@click.option(
    "--blocks",
    "block_count",
    type=click.IntRange(1, MAKER_BLOCKS_MAX),
    required=True,
    metavar="N",
    help="How many blocks to make.",
)
@click.option(
    "--out",
    "folder",
    type=NamedPath(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="Folder for the files; made if it is missing, refused if it has block files.",
)
@click.option(
    "--key",
    "key_file",
    type=NamedPath(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Private key that signs the blocks (`sluice keygen`). Default: a key made from the seed, written to "
    f"{KEY_FILE_NAME} beside the blocks; anyone who knows the seed has it.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Decides the content of the blocks.")
@click.option(
    "--first-block",
    type=click.IntRange(0, MAKER_BLOCKS_MAX),
    default=0,
    show_default=True,
    metavar="NUMBER",
    help="Number of the first block written; the blocks before it are made, not written.",
)
@click.option(
    "--rounds-per-block", type=int, default=_DEFAULTS.rounds_per_block, show_default=True, metavar="N"
)
@click.option(
    "--events-per-round", type=int, default=_DEFAULTS.events_per_round, show_default=True, metavar="N"
)
@click.option(
    "--transactions-per-block",
    type=int,
    default=_DEFAULTS.transactions_per_block,
    show_default=True,
    metavar="N",
    help="Each makes 3 or 4 items.",
)
@click.option(
    "--item-bytes",
    type=int,
    default=_DEFAULTS.item_bytes,
    show_default=True,
    metavar="BYTES",
    help="Size of a topic message, which half of the transactions are; transfers have about 190 bytes.",
)
@click.option(
    "--block-time",
    "block_time_seconds",
    type=float,
    default=_DEFAULTS.block_time_seconds,
    show_default=True,
    metavar="SECONDS",
    help="Between the timestamps of consecutive blocks.",
)
@layout_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(
    block_count: int,
    folder: Path,
    key_file: Path | None,
    seed: int,
    first_block: int,
    rounds_per_block: int,
    events_per_round: int,
    transactions_per_block: int,
    item_bytes: int,
    block_time_seconds: float,
    layout: BlockLayout,
    block_format: BlockFormat,
    as_json: bool,
) -> None:
    """Make a chain of realistic blocks with right hashes, links and proofs.

    The same options, seed and key give the same bytes. Prints the option that makes a node believe them.
    """
    options = MakerOptions(
        rounds_per_block, events_per_round, transactions_per_block, item_bytes, block_time_seconds
    )
    options.check()
    key = key_of_seed(seed) if key_file is None else load_private_key(key_file)
    _claim(folder)
    writer = BlockWriter(folder, layout, block_format, is_flushed=False)
    if key_file is None:
        key_file = folder / KEY_FILE_NAME
        _write_key(key_file, key)
    blocks = BlockMaker(seed, key, options).blocks(block_count, first_block)
    item_count, size_bytes = 0, 0
    for block in _with_progress(blocks, block_count, quiet=as_json):
        writer.write(block)
        item_count += len(block.items)
        size_bytes += block.size_bytes
    ledger_key = f"ed25519:{public_key_hex(key)}"
    last_block = first_block + block_count - 1
    if as_json:
        summary = {
            "folder": str(folder),
            "first_block": first_block,
            "last_block": last_block,
            "blocks": block_count,
            "items": item_count,
            "bytes": size_bytes,
            "key_file": str(key_file),
            "ledger_key": ledger_key,
        }
        click.echo(json.dumps(summary))
        return
    click.echo(
        f"Blocks {first_block} to {last_block} written to {folder}: "
        f"{item_count:,} items, {size_bytes:,} bytes before compression."
    )
    if writer.staged_text is not None:
        click.echo(f"{writer.staged_text}.")
    click.echo(f"Signed with {key_file}. Give your nodes its public half:")
    click.echo(f"  --ledger-key {ledger_key}")


def _claim(folder: Path) -> None:
    """Make the folder, or check that it has no blocks of another chain."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BlockListError(str(folder), error.strerror or str(error)) from error
    places = blocks_in(folder)
    if places:
        names = f"{places[0].name} to {places[-1].name}" if len(places) > 1 else places[0].name
        raise BlockListError(str(folder), f"has block files already ({names}); give an empty folder")


def _write_key(path: Path, key: Ed25519PrivateKey) -> None:
    """Write a key file of mode 0600; leave an existing one that holds this key."""
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        if load_private_key(path).private_bytes_raw() != key.private_bytes_raw():
            raise BlockFileError(str(path), "holds another key than that of the seed") from None
        return
    except OSError as error:
        raise BlockFileError(str(path), error.strerror or str(error)) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(pem)
    except OSError as error:
        path.unlink(missing_ok=True)  # half a key would be in the way of the next attempt
        raise BlockFileError(str(path), error.strerror or str(error)) from error


def _with_progress(blocks: Iterable[Block], count: int, *, quiet: bool) -> Iterator[Block]:
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield from blocks
        return
    yield from track(blocks, "Making blocks", total=count, console=console, transient=True)
