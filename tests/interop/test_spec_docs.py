"""The pages of docs/spec against the code: links, tables, examples and known answers."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
import zstandard

from sluice.datastream.events.network_events import NETWORK_EVENTS
from sluice.datastream.file import bookmarks
from sluice.datastream.protocol.commands import COMMANDS, ERRORS
from sluice.gateway.api import (
    archive_pb2,
    block_items_pb2,
    block_pb2,
    node_pb2,
    proof_pb2,
    publish_pb2,
    standby_pb2,
    subscribe_pb2,
)
from sluice.gateway.archive.segment import StreamDescription
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.items import ItemKind, proof_of
from sluice.gateway.blocks.merkle import EMPTY_HASH, leaf_hash, tree_root
from sluice.gateway.blocks.proofs import hints, schnorr
from sluice.gateway.blocks.proofs.baby_jubjub import add, point_bytes
from sluice.gateway.blocks.proofs.bls12_381 import hash_to_g2
from sluice.gateway.blocks.proofs.ledger_data import read_publication
from sluice.gateway.blocks.proofs.poseidon import hash_array, permute, poseidon, round_constants
from sluice.gateway.blocks.root_hash import NOT_HASHED, subtree_of
from tests.interop.doc_tables import ROOT, page
from tests.vectors.maker import ARCHIVE, expanded, read_file

FOLDER = ROOT / "docs" / "spec"
PAGES = sorted(FOLDER.glob("*.md"))
BLOCKS: list[dict[str, Any]] = json.loads(read_file("blocks.json"))["blocks"]
PROTOS = (block_items_pb2, block_pb2, node_pb2, proof_pb2, publish_pb2, standby_pb2, subscribe_pb2)


def section(name: str, number: str) -> str:
    """Return the text under a numbered heading of a page."""
    found = re.split(r"(?m)^#+ ", page(f"spec/{name}.md"))
    [text] = [part for part in found if re.match(rf"{re.escape(number)}\.? ", part)]
    return text


def rows(text: str) -> Iterator[list[str]]:
    """The cells of the rows of tables, heads included."""
    for line in text.splitlines():
        if line.startswith("|") and not line.startswith("|---"):
            yield [cell.strip() for cell in line.strip().strip("|").split(" | ")]


def anchors(path: Path) -> set[str]:
    """Return the valid anchors of a page."""
    heads = re.findall(r"(?m)^#+ (.+)$", path.read_text("utf-8"))
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("path", [*PAGES, ROOT / "tests/vectors/README.md"], ids=lambda path: path.name)
def test_every_link_leads_somewhere(path: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", path.read_text("utf-8")):
        found = (path.parent / target).resolve()
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), f"{target}#{anchor}"


def test_the_front_page_has_every_page() -> None:
    named = re.findall(r"\| \[([\w-]+\.md)\]", page("spec/README.md"))
    assert sorted(named) == [path.name for path in PAGES if path.name != "README.md"]


# --- wire.md ------------------------------------------------------------------------------------------------


def messages() -> dict[str, dict[int, str]]:
    """Names of the fields of each message by number, also of nested ones."""
    found: dict[str, dict[int, str]] = {}

    def take(descriptor: Any) -> None:
        found[descriptor.name] = {field.number: field.name for field in descriptor.fields}
        for nested in descriptor.nested_types:
            take(nested)

    for module in PROTOS:
        for descriptor in module.DESCRIPTOR.message_types_by_name.values():
            take(descriptor)
    return found


def described_fields(text: str) -> dict[str, dict[int, str]]:
    """The same from tables: a message stands in its first row only, with several fields in one row or not."""
    found: dict[str, dict[int, str]] = {}
    names: list[str] = []
    for cells in rows(text):
        if len(cells) < 4 or not re.match(r"\d", cells[1]):
            continue
        if cells[0] and not cells[0].startswith("("):
            names = [name.split(".")[-1] for name in cells[0].split(", ") if name != "one of"]
        for name in names:
            pairs = zip(cells[1].split(", "), cells[2].split(", "), strict=True)
            found.setdefault(name, {}).update({int(number): field for number, field in pairs})
    return found


def test_messages_have_the_fields_of_the_tables() -> None:
    described = described_fields(page("spec/wire.md"))
    assert len(described) > 20
    known = messages()
    assert described == {name: known[name] for name in described}
    proofs = described_fields(section("proofs", "1"))
    assert all(proofs[name] == known[name] for name in ("BlockProof", "SignedBlockProof"))
    # All that has fields is described, but what the page refers to the files for.
    elsewhere = {"NodeAddressBook", "NodeAddress", "BlockItem", "Block", "PluginVersion", "TssRoster"}
    elsewhere |= {"RangedNodeAddressBook", "BlockProof", "SignedBlockProof"}
    assert {name for name in known if known[name]} - elsewhere == set(described)


def test_codes_have_the_numbers_of_the_page() -> None:
    text = page("spec/wire.md")
    enums = [
        publish_pb2.PublishStreamRequest.EndStream.Code,
        publish_pb2.PublishStreamResponse.EndOfStream.Code,
        subscribe_pb2.SubscribeStreamResponse.Code,
        node_pb2.BlockResponse.Code,
        proof_pb2.BlockContentsProofResponse.Code,
    ]
    listed = [", ".join(f"{number} {name}" for name, number in enum.items()) for enum in enums]
    assert re.findall(r"Code: ([^|]+?) \|", text) == listed


def test_items_have_the_field_numbers_of_the_page() -> None:
    pairs = re.findall(r"\| (\d+) \| (\w+)(?= \|)", section("wire", "3"))
    listed = {int(number): name for number, name in pairs if name in {kind.name.lower() for kind in ItemKind}}
    assert listed == {kind.value: kind.name.lower() for kind in ItemKind}


# --- stream-file.md and block-layout.md ---------------------------------------------------------------------


def test_the_reader_of_the_page_reads_the_stream() -> None:
    [code] = re.findall(r"```python\n(.+?)```", section("stream-file", "1.6"), re.DOTALL)
    scope: dict[str, Any] = {"struct": struct}
    exec(code, scope)
    expected = [(kind, expanded(data)) for vector in BLOCKS for kind, data in vector["entries"]]
    assert list(scope["entries"](read_file("stream.bin"))) == expected


def hex_lines(text: str) -> list[bytes]:
    """The bytes at the start of each line that begins with some."""
    found = [re.match(r"((?:[0-9a-f]{2}(?:  ?|$))+)", line) for line in text.splitlines()]
    return [bytes.fromhex(match[1]) for match in found if match]


def test_the_header_and_the_entry_are_those_of_the_stream() -> None:
    stream = read_file("stream.bin")
    assert b"".join(hex_lines(section("stream-file", "1.1"))) == stream[:54]
    assert hex_lines(section("stream-file", "1.2")) == [stream[4148 : 4148 + 26]]


def test_the_exchange_is_one_of_the_vectors() -> None:
    text = section("stream-file", "4.4").replace(" ", "")
    vectors = {one["name"]: one for one in json.loads(read_file("tcp.json"))}
    for name in ("Start, Stop, Header", "Entry: the first", "Entry: none of that number"):
        assert all(f"\n>{command}" in text for command in vectors[name]["send"])
        answers = vectors[name]["receive"].split("ff0000000b000000004f4b")
        assert all(f"\n<{answer}\n" in text for answer in answers if answer[:2] not in ("", "01"))
    assert text.count("\n<ff0000000b000000004f4b") == 5


def test_the_entries_of_a_block_are_those_of_the_vectors() -> None:
    entries = [bytes([kind]) + expanded(data) for kind, data in BLOCKS[0]["entries"]]
    lines = hex_lines(section("block-layout", "4"))
    assert len(lines) == 7
    assert all(any(entry.startswith(line) for entry in entries) for line in lines)


def test_commands_and_errors_are_those_of_the_page() -> None:
    listed = {cells[0]: int(cells[1]) for cells in rows(section("stream-file", "4.1")) if cells[1].isdigit()}
    assert listed == {name: command.value for command, (name, _, _) in COMMANDS.items()}
    texts = {
        int(cells[0]): cells[1].strip("`")
        for cells in rows(section("stream-file", "4.2"))
        if cells[0].isdigit()
    }
    assert texts == {error.value: text for error, (text, _) in ERRORS.items()}


def test_the_keys_of_the_index_are_on_the_page() -> None:
    text = section("stream-file", "3.2")
    keys = {name: key for name, key in vars(bookmarks).items() if name.endswith("_KEY")}
    assert len(keys) > 3
    assert {name for name, key in keys.items() if f"| `{key.decode()}`" not in text} == set()


def test_events_have_the_fields_of_the_page() -> None:
    listed = {
        cells[0].strip("`"): cells[2] for cells in rows(section("stream-file", "5.1")) if len(cells) == 3
    }
    for event in NETWORK_EVENTS.values():
        text = listed[f"{event.ENTRY_TYPE:#x}" if event.ENTRY_TYPE > 9 else str(event.ENTRY_TYPE)]
        fields = {int(number): name for name, number in re.findall(r"(\w+) = (\d+)", text)}
        assert fields == {field.number: field.name for field in event.TABLE.fields}


# --- block-hash.md ------------------------------------------------------------------------------------------


def test_items_go_where_the_page_says() -> None:
    """Every field number up to 60, in the words of the table."""
    place: dict[int, int | None] = {}
    names = ("C,", "I,", "O,", "S,", "X,")
    for cells in rows(section("block-hash", "2")):
        for index, name in enumerate(names):
            if cells[0].startswith(name):
                place |= {int(number): index for number in re.findall(r"\d+", cells[1])}
                place |= {20 + int(number): index for number in re.findall(r"\d+", cells[2])}
        if cells[0].startswith("none: the item"):
            place |= {20 + number: NOT_HASHED for number in (0, 19)}
    place |= {28 + index: 5 + index for index in range(8)}
    frame = (ItemKind.BLOCK_PROOF, ItemKind.BLOCK_FOOTER)
    for kind in range(1, 61):
        expected = place.get(kind if kind < 20 else 20 + kind % 20)
        assert kind in frame or subtree_of(kind) == expected, kind


def test_hashes_on_the_page() -> None:
    text = page("spec/block-hash.md")
    assert f"EMPTY = {EMPTY_HASH.hex()}\n" in text
    assert f"\n{tree_root([EMPTY_HASH] * 8).hex()}\n" in text
    first = BLOCKS[0]
    example = section("block-hash", "6")
    assert first["root in layout 16"] in example
    assert first["root in layout 8"] in example
    for name, root in zip("CIOSX", first["subtree roots"].values(), strict=True):
        assert f"T({name})          {root[:8]}…" in example
    header = expanded(first["items"][0])
    [item, time] = [
        bytes.fromhex(line) for line in re.findall(r"(?m)^(?:header item|time)\s+([0-9a-f ]+)$", example)
    ]
    assert item == header
    assert header.endswith(time)
    assert f"leaf(time)    {leaf_hash(time).hex()[:8]}…" in example


# --- tss.md -------------------------------------------------------------------------------------------------


def test_known_answers_of_poseidon() -> None:
    answers = {cells[0]: cells[1].strip("`") for cells in rows(section("tss", "2.5"))}
    assert answers["permute(0, 1, 2, 3, 4), lane 0"] == str(permute([0, 1, 2, 3, 4])[0])
    assert answers["ARK[0][0]"] == str(round_constants().ark[0][0])
    assert answers["MDS[0][0]"] == str(round_constants().mds[0][0])
    assert answers["poseidon(1)"] == str(poseidon([1]))
    assert answers["poseidon(1, 2, 3, 4, 5)"] == str(poseidon([1, 2, 3, 4, 5]))
    assert answers["hashArray of forty bytes `01`"] == hash_array(b"\1" * 40).hex()


def test_known_answers_of_a_signature() -> None:
    answers = {cells[0]: cells[1].strip("`") for cells in rows(section("tss", "8"))}
    vectors = json.loads(read_file("proofs.json"))
    [vector] = [one for one in vectors["blocks"] if one["proof"] == "TSS, with a Schnorr address-book proof"]
    proof = Block.from_bytes(bytes.fromhex(vector["block"])).items[-1]
    signature = proof_of(proof).signed_block_proof.block_signature
    vk, pi = signature[: hints.VK_SIZE], signature[hints.VK_SIZE : hints.VK_SIZE + hints.PI_SIZE]
    ledger = read_publication(bytes.fromhex(vectors["ledger id publication"]))
    key, opened = hints.read_key(vk), hints.read_signature(pi)
    bitmap = schnorr.read_signature(signature[hints.VK_SIZE + hints.PI_SIZE :]).bitmap
    signers = [node.key.Y for node, bit in zip(ledger.nodes, bitmap, strict=False) if bit]
    assert answers == {
        "value": "",
        "root hash": vector["root"],
        "ledger id": vectors["ledger id"],
        "weights of nodes 0, 1, 2": ", ".join(str(node.weight) for node in ledger.nodes),
        "n, total_weight, weight": f"{key.n}, {key.total_weight}, {opened.weight}",
        "w": f"{key.w:#x}",
        "rho": f"{hints.challenge(key, opened):#x}",
        "comp(H(m))": hash_to_g2(bytes.fromhex(vector["root"])).to_compressed_bytes().hex(),
        "hashArray(VK)": hash_array(vk).hex(),
        "bitmap": f"{bitmap[:4].hex(' ')} …",
        "A": point_bytes(add(signers)).hex(),
    }


# --- archive.md ---------------------------------------------------------------------------------------------

SEGMENT = next((ARCHIVE / "segments").iterdir())


def test_the_reader_of_the_page_reads_the_segment() -> None:
    [code] = re.findall(r"```python\n(.+?)```", section("archive", "5"), re.DOTALL)
    scope = {
        "struct": struct,
        "zstandard": zstandard,
        "google_crc32c": google_crc32c,
        "SegmentIndex": archive_pb2.SegmentIndex,
    }
    exec(code, scope)
    pages: Any = scope["pages"]
    digest = hashlib.sha256(b"".join(pages(SEGMENT.read_bytes())))
    assert SEGMENT.name == f"000000000000-{digest.hexdigest()}.seg"


def test_the_index_has_the_fields_of_the_table() -> None:
    described = described_fields(section("archive", "3.3"))
    known = archive_pb2.DESCRIPTOR.message_types_by_name
    assert described == {
        name: {field.number: field.name for field in message.fields} for name, message in known.items()
    }


def test_the_examples_are_those_of_the_archive() -> None:
    content = SEGMENT.read_bytes()
    lines = hex_lines(section("archive", "3.2"))
    assert len(lines) == 7
    assert content[-1_522:].startswith(b"".join(lines[:4]))
    assert content.endswith(b"".join(lines[4:]))
    for file in ARCHIVE.rglob("*.*"):
        size = f"{file.stat().st_size:,}"
        assert re.search(
            rf"(?m)^{re.escape(str(file.relative_to(ARCHIVE)))} +{size} bytes$", section("archive", "1")
        )
    [example] = re.findall(r"Example: `(\{.+?\})`", section("archive", "2"), re.DOTALL)
    expected = StreamDescription.decode((ARCHIVE / "stream.json").read_bytes(), "")
    assert StreamDescription.decode(example.encode(), "") == expected
