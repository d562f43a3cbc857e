"""`sluice keygen`: makes the key that signs the blocks of your own network."""

import json
from pathlib import Path

import click

from sluice.gateway.commands.parameter_types import NamedPath
from sluice.gateway.key_files import create_private_key, public_key_hex

__all__ = ["command"]


@click.command("keygen", short_help="Make a key for the blocks of your own network.")
@click.option(
    "--out",
    "key_file",
    type=NamedPath(path_type=Path),
    default=Path("sluice.key"),
    show_default=True,
    metavar="FILE",
    help="New file for the private key, readable by its owner alone.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(key_file: Path, as_json: bool) -> None:
    """Make an Ed25519 key for the blocks of your own network.

    The command writes the private key, which signs blocks (`sluice generate --key FILE`), and prints the
    ledger key that makes a node trust them: `sluice serve --ledger-key "$(sluice keygen)"`.
    """
    key = create_private_key(key_file)
    ledger_key = f"ed25519:{public_key_hex(key)}"
    if as_json:
        click.echo(json.dumps({"key_file": str(key_file), "ledger_key": ledger_key}))
        return
    click.echo(f"Private key written to {key_file}. It signs blocks: keep it secret.", err=True)
    click.echo("Give your nodes its public half, as --ledger-key:", err=True)
    click.echo(ledger_key)
