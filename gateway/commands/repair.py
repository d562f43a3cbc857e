"""`sluice repair`: shows the choices for a stream that a node refuses to start with, and carries one out."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from sluice.gateway.commands.check import native_folder_of, stream_file_of
from sluice.gateway.commands.parameter_types import NamedPath
from sluice.gateway.commands.truncate import is_wanted
from sluice.gateway.errors import Fatal
from sluice.gateway.store.chain_file import SNAPSHOT_NAME
from sluice.gateway.store.cutting import stream_type_of
from sluice.gateway.store.evidence import BLOCK_FILE_NAME, STREAM_FILE_NAME
from sluice.gateway.store.pair_repair import find_pair, take_pair
from sluice.gateway.store.repair import Found, NetworkEvidence, Offer, RepairChoice, find, take
from sluice.gateway.table_lines import table_lines

__all__ = ["command"]


@click.command("repair", short_help="Repair a stream that a node refuses to start with.")
@click.argument("path", type=NamedPath(exists=True, path_type=Path), metavar="DIR|FILE")
@click.option(
    "--take",
    "choice",
    type=click.Choice([choice.value for choice in RepairChoice]),
    help="What to keep. entries: extend the header over the sound blocks, or entries, behind it. header: "
    "remove everything behind the header. sound: remove everything from the first damage on.",
)
@click.option(
    "--cut-to",
    type=NamedPath(path_type=Path),
    metavar="FILE",
    help="New file for a copy of what is removed. Default: a file named cut-… beside the stream file. A "
    "native chain has two files, which take the default.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(path: Path, choice: str | None, cut_to: Path | None, yes: bool, as_json: bool) -> None:
    """Show what header, index and chain.json say about a stream that a node refuses, and what can be done.

    DIR is the data folder of a stopped node; both files of a native chain are repaired together. FILE is a
    stream file whose server is stopped. Without --take
    the command changes nothing. With it, the command first copies what it removes to a file of its own, and
    rebuilds the index of bookmarks. If it is killed at any moment, run it again. The exit status is 1 if
    something is wrong and not repaired.

    First read "The node refuses to start" in docs/operations.md: a node's blocks were acknowledged.
    """
    if as_json and choice is not None and not yes:
        raise click.UsageError("--json cannot ask: expected --yes with it")
    native = native_folder_of(path)
    if native is not None and cut_to is not None:
        raise click.UsageError(f"--cut-to: {native} has the two files of a native chain: expected none")
    file = stream_file_of(path) if native is None else native / BLOCK_FILE_NAME
    stream_type = stream_type_of(file)
    if choice is None:
        found = find(file, stream_type) if native is None else find_pair(native, stream_type)
        click.echo(json.dumps(_as_json(found)) if as_json else "\n".join(_lines(found)))
        if found.refusal is not None:
            sys.exit(1)
        return

    def agree(found: Found, offer: Offer, *places: Path | None) -> None:
        """Show the finding and the plan, and ask."""
        lines = [*_lines(found, offer), *(f"goes to {place} first" for place in places if place is not None)]
        if not yes and not is_wanted(lines, "Do it?"):
            raise Fatal(str(file), got="no consent to repair", expected="y, or --yes; nothing was changed")

    places: tuple[Path | None, ...]
    if native is None:
        offer, place = take(file, stream_type, RepairChoice(choice), cut_to, agree)
        places = (place,)
    else:
        offer, places = take_pair(native, stream_type, RepairChoice(choice), agree)
    if as_json:
        click.echo(json.dumps(_taken_as_json(file, offer, *places)))
        return
    click.echo(f"{file} ends with {_end(offer)} now")
    for place in places:
        if place is not None:
            click.echo(f"What was cut is in {place}")


def _lines(found: Found, chosen: Offer | None = None) -> Iterator[str]:
    kind = "data folder of a node" if found.is_node else "stream file"
    if found.refusal is None:
        tail = found.standing.behind
        rest = f"; {tail} behind the header, which opening zeroes" if tail.tail.entry_count else ""
        yield f"{found.path}: {kind}: nothing to repair{rest}"
        return
    yield f"{found.path}: {kind}; a start refuses it"
    yield from table_lines(_beliefs(found))
    offers = found.offers if chosen is None else (chosen,)
    yield from table_lines([(f"--take {offer.choice.value}", _gives(offer)) for offer in offers])


def _beliefs(found: Found) -> list[tuple[str, str]]:
    standing, header = found.standing, found.header
    index = standing.evidence.index_count
    ends = "" if standing.last_block is None else f", ends with block {standing.last_block}"
    rows = [
        ("header", f"counts {header.total_entries} entries in {header.total_length} bytes{ends}"),
        ("index", "says nothing" if index is None else f"covers {index} entries"),
        ("behind the header", str(standing.behind)),
    ]
    if found.network is not None:
        network, tail, _ = found.network
        name, index, header = network.file.path.name, network.index_count, network.header
        rows += [
            (f"{name}: header", f"counts {header.total_entries} entries in {header.total_length} bytes"),
            (f"{name}: index", "says nothing" if index is None else f"covers {index} entries"),
            (f"{name}: behind the header", str(tail)),
        ]
    if found.is_node:
        chain = standing.chain_block
        rows.append((SNAPSHOT_NAME, "says nothing" if chain is None else f"knows of block {chain}"))
    if found.damage is not None:
        rows.append(("damage", f"{found.damage.found}, expected {found.damage.expected}"))
    if found.network is not None and found.refusal is not None:
        damage = found.network.evidence.file.refusal
        if damage is not None:
            rows.append((f"{STREAM_FILE_NAME}: damage", f"{damage.found}, expected {damage.expected}"))
        elif found.damage is None:
            rows.append(("refused", found.refusal))
    return rows


def _gives(offer: Offer) -> str:
    goes = _goes(offer)
    if offer.network is not None:
        goes += f"; of {STREAM_FILE_NAME} {_goes(offer.network)}"
    why = "" if offer.why_no_more is None else f"; no more, because {offer.why_no_more}"
    return f"ends with {_end(offer)}; {goes}{why}"


def _goes(offer: Offer) -> str:
    return f"{offer.cut_entries} entries, {offer.cut_bytes} bytes go" if offer.cut_bytes else "nothing goes"


def _end(offer: Offer) -> str:
    entries = f"{offer.totals.total_entries} entries"
    if offer.network is not None:
        entries += f", {offer.network.totals.total_entries} in {STREAM_FILE_NAME}"
    return entries if offer.last_block is None else f"block {offer.last_block}, {entries}"


def _as_json(found: Found) -> dict[str, object]:
    standing = found.standing
    return {
        "file": str(found.path),
        "kind": "node" if found.is_node else "stream",
        "refused": found.refusal,
        "header": {
            "entries": found.header.total_entries,
            "bytes": found.header.total_length,
            "last_block": standing.last_block,
        },
        "index_entries": standing.evidence.index_count,
        "chain_last_block": standing.chain_block,
        "behind": {
            "entries": standing.behind.tail.entry_count,
            "first_block": standing.behind.first,
            "last_block": standing.behind.last,
        },
        "damage_offset": None if found.damage is None else found.damage.offset,
        "network": None if found.network is None else _network_as_json(found.network),
        "choices": [_offer_as_json(offer) for offer in found.offers],
    }


def _network_as_json(found: NetworkEvidence) -> dict[str, object]:
    network, tail, _ = found
    header, damage = network.header, network.file.refusal
    return {
        "file": str(network.file.path),
        "header": {"entries": header.total_entries, "bytes": header.total_length},
        "index_entries": network.index_count,
        "behind": {"entries": tail.entry_count},
        "damage_offset": None if damage is None else damage.offset,
    }


def _offer_as_json(offer: Offer) -> dict[str, object]:
    network = offer.network
    return {
        "take": offer.choice.value,
        **_part_as_json(offer),
        "last_block": offer.last_block,
        "why_no_more": offer.why_no_more,
        "network": None if network is None else _part_as_json(network),
    }


def _part_as_json(offer: Offer) -> dict[str, object]:
    return {
        "entries": offer.totals.total_entries,
        "cut_entries": offer.cut_entries,
        "cut_bytes": offer.cut_bytes,
    }


def _taken_as_json(
    file: Path, offer: Offer, place: Path | None, network_place: Path | None = None
) -> dict[str, object]:
    said = _offer_as_json(offer) | {"file": str(file), "cut_to": place and str(place)}
    if offer.network is not None:
        beside = {
            "file": str(file.with_name(STREAM_FILE_NAME)),
            "cut_to": network_place and str(network_place),
        }
        said["network"] = _part_as_json(offer.network) | beside
    return said
