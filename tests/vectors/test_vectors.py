"""The golden vectors: our encoders make them, our decoders and verifiers read them, and foreign code does."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import zstandard

from sluice.datastream.check.check import Severity, check_stream
from sluice.datastream.file.remote_pages import SEGMENT_PAGES
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.layout import Entry
from sluice.gateway.archive.segment import TRAILER_SIZE, index_size, read_index, segment_of
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.chain import Chain
from sluice.gateway.blocks.errors import BlockRefused
from sluice.gateway.blocks.items import ItemKind, proof_of
from sluice.gateway.blocks.proofs import ProofKind, ProofVerifier, RsaBook, kind_of_proof
from sluice.gateway.blocks.proofs.ledger_data import read_publication, refusal_of
from sluice.gateway.blocks.root_hash import BlockHasher, BlockSummary
from sluice.gateway.blocks.stream_layout import BlockDecoder, StoredBlock, encode
from sluice.gateway.blocks.trusted_keys import TrustedKeys
from sluice.gateway.blocks.verification import BlockVerifier
from sluice.gateway.store.block_store import BlockStore, VerifiedBlock
from tests.datastream.serving import ServerThread
from tests.interop import foreign
from tests.vectors.maker import (
    ARCHIVE,
    SUBTREES,
    exchange,
    expanded,
    made_files,
    read_file,
    write_archive,
)

BLOCKS: list[dict[str, Any]] = json.loads(read_file("blocks.json"))["blocks"]
CONVERSATIONS: list[dict[str, Any]] = json.loads(read_file("tcp.json"))
PROOFS: dict[str, Any] = json.loads(read_file("proofs.json"))
KINDS = {
    "Ed25519": ProofKind.ED25519,
    "TSS": ProofKind.TSS,
    "state proof": ProofKind.STATE,
    "RSA": ProofKind.RECORD_FILE,
}


def items_of(vector: dict[str, Any]) -> list[bytes]:
    return [expanded(item) for item in vector["items"]]


def entries_of(vector: dict[str, Any]) -> list[tuple[int, bytes]]:
    return [(kind, expanded(data)) for kind, data in vector["entries"]]


def test_they_are_what_the_maker_makes() -> None:
    """A difference is a change of a format, or of the maker."""
    for name, content in made_files().items():
        assert read_file(name) == content, name


# --- the archive --------------------------------------------------------------------------------------------


def test_the_archive_is_what_the_maker_makes(tmp_path: Path) -> None:
    """Names and contents are fixed; another zstd may make other frames."""
    expected = write_archive(tmp_path)
    made, kept = (
        {str(file.relative_to(top)): file for file in top.rglob("*.*")} for top in (tmp_path, ARCHIVE)
    )
    assert made.keys() == kept.keys()
    assert len(kept) == 3
    assert made["stream.json"].read_bytes() == kept["stream.json"].read_bytes()
    indexes = []
    for archive in (made, kept):
        header, segment = (archive[name].read_bytes() for name in sorted(archive)[:2])
        name = segment_of(sorted(archive)[1])
        assert name is not None
        read = read_index(name, segment[-index_size(segment[-TRAILER_SIZE:], "") :], len(segment), "")
        pages = read.pages_of(segment, 0, SEGMENT_PAGES, "")
        assert zstandard.ZstdDecompressor().decompress(header) + b"".join(pages) == expected
        for page in read.index.pages:
            page.frame_size = 0
        indexes.append(read.index)
    assert indexes[0] == indexes[1]


def test_zstd_makes_the_stream_file_of_the_archive(tmp_path: Path) -> None:
    """As docs/spec/archive.md says."""
    zstd = shutil.which("zstd")
    if zstd is None:
        pytest.skip("needs the command zstd; the package zstd has it")
    made = tmp_path / "datastream.bin"
    line = f"cat headers/000000000064.zst segments/*.seg | {zstd} -dc > {made}"
    subprocess.run(line, shell=True, cwd=ARCHIVE, check=True)
    assert made.read_bytes() == write_archive(tmp_path / "archive")
    result = check_stream(made)
    assert (result.entry_count, result.counts[Severity.DAMAGE]) == (95, 0)


# --- blocks -------------------------------------------------------------------------------------------------


def summary_of(items: list[bytes], step: int) -> BlockSummary:
    hasher = BlockHasher()
    for start in range(0, len(items), step):
        hasher.add(items[start : start + step])
    return hasher.finish()


@pytest.mark.parametrize("vector", BLOCKS, ids=lambda vector: str(vector["number"]))
def test_the_root_hashes_of_a_block(vector: dict[str, Any]) -> None:
    items = items_of(vector)
    for step in (1, 3, len(items)):
        summary = summary_of(items, step)
        other = summary.root_hash_other_layout
        assert (summary.number, summary.root_layout) == (vector["number"], 16)
        assert summary.root_hash.hex() == vector["root in layout 16"]
        assert (None if other is None else other.hex()) == vector["root in layout 8"]


@pytest.mark.parametrize("vector", BLOCKS, ids=lambda vector: str(vector["number"]))
def test_foreign_code_finds_the_same_root(vector: dict[str, Any]) -> None:
    """Other code computes the block's root from its subtrees, links and time."""
    subtrees = [
        bytes.fromhex(vector["subtree roots"].get(name, foreign.EMPTY_TREE.hex())) for name in SUBTREES
    ]
    fields = {kind: dict(foreign.split_fields(message)) for kind, message in frame_of(items_of(vector))}
    links = [fields[ItemKind.BLOCK_FOOTER][number] for number in (1, 2, 3)]
    time = fields[ItemKind.BLOCK_HEADER][4]
    assert isinstance(time, bytes)
    core = [link for link in links if isinstance(link, bytes)] + subtrees
    leaf = foreign.digest(b"\0", time)
    assert vector["root in layout 16"] == foreign.digest(b"\2", leaf, foreign.tree_root(core)).hex()
    top = foreign.digest(b"\1", foreign.tree_root(core[:8]))
    assert vector["root in layout 8"] in (None, foreign.digest(b"\2", leaf, top).hex())


def frame_of(items: list[bytes]) -> list[tuple[int, bytes]]:
    """Kind and content of header and footer."""
    found = [foreign.split_fields(item)[0] for item in items if item[0] in (0x0A, 0x62)]
    return [(kind, content) for kind, content in found if isinstance(content, bytes)]


def test_the_blocks_are_a_chain() -> None:
    links = Chain()
    verifier = BlockVerifier(ProofVerifier(TrustedKeys((bytes.fromhex(PROOFS["Ed25519 key"]),))))
    for vector in BLOCKS:
        items = items_of(vector)
        summary = verifier.check(summary_of(items, len(items)), items).summary
        assert links.check_links(summary) is None
        links.advance(summary.number, summary.root_hash)


@pytest.mark.parametrize("vector", BLOCKS, ids=lambda vector: str(vector["number"]))
def test_a_block_becomes_its_entries_and_back(vector: dict[str, Any]) -> None:
    number, items, root = vector["number"], items_of(vector), bytes.fromhex(vector["root in layout 16"])
    entries = entries_of(vector)
    assert encode(number, items, root) == entries == foreign.entries_of(foreign.Block(number, items, root))
    in_layout_1 = encode(number, items, root, 1)
    assert in_layout_1 == foreign.entries_of(foreign.Block(number, items, root), 1)
    for layout in (entries, in_layout_1):
        decoder = BlockDecoder()
        read = [decoder.feed(kind, data) for kind, data in layout]
        assert read == [None] * (len(layout) - 1) + [StoredBlock(number, tuple(items), root)]


# --- the stream ---------------------------------------------------------------------------------------------


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    path = tmp_path / "stream.bin"
    path.write_bytes(read_file("stream.bin"))
    return path


def test_the_stream_holds_the_entries_of_the_blocks(stream: Path) -> None:
    expected = [entry for vector in BLOCKS for entry in entries_of(vector)]
    with DataStreamer.open(stream) as streamer:
        read = [streamer.get_entry(number) for number in range(streamer.committed.total_entries)]
        assert read == [Entry(kind, number, data) for number, (kind, data) in enumerate(expected)]
        for vector in BLOCKS:
            assert streamer.get_bookmark(entries_of(vector)[0][1]) == vector["first entry"]
    assert stream.read_bytes() == read_file("stream.bin")
    assert not check_stream(stream).findings


def test_foreign_code_writes_the_same_pages() -> None:
    pages, count = foreign.pages_of([entry for vector in BLOCKS for entry in entries_of(vector)])
    content = read_file("stream.bin")
    header = struct.pack(">BIBQQQQ", 1, 38, 1, 137, 1, 4096 + len(pages), count)
    assert content == ((b"polygonDATSTREAM" + header).ljust(4096, b"\0") + pages).ljust(len(content), b"\0")


@pytest.mark.parametrize("vector", CONVERSATIONS, ids=lambda vector: vector["name"])
def test_a_conversation(stream: Path, vector: dict[str, Any]) -> None:
    commands = [bytes.fromhex(command) for command in vector["send"]]
    with (
        DataStreamer.open(stream) as streamer,
        ServerThread(streamer, on_command_error=vector["on error"]) as server,
    ):
        assert exchange(server, commands).hex() == vector["receive"]


def test_a_stream_of_layout_1_is_read_and_goes_on(tmp_path: Path) -> None:
    """Earlier versions wrote it. A chain is one layout for ever, so that its nodes' entries are the same."""
    (tmp_path / "datastream.bin").write_bytes(read_file("stream-1.bin"))
    with closing(BlockStore.open(tmp_path)) as store:
        assert (store.layout, store.first_number, store.last_number) == (1, 0, 2)
        items = items_of(BLOCKS[0])
        store.append([VerifiedBlock(3, items, bytes(48))])
        store.advance(VerifiedBlock(3, items, bytes(48)))
        expected = [
            entry
            for vector in BLOCKS
            for entry in encode(
                vector["number"], items_of(vector), bytes.fromhex(vector["root in layout 16"]), 1
            )
        ]
        expected += encode(3, items, bytes(48), 1)
        assert [(entry.type, entry.data) for entry in store.streamer.read_entries(0)] == expected
        assert store.streamer.get_bookmark(b"\0" + (3).to_bytes(8, "big")) == len(expected) - len(items) - 2
        blocks = [store.read_block(number) for number in range(4)]
        assert [block and block.items for block in blocks[:3]] == [tuple(items_of(one)) for one in BLOCKS]
    with closing(BlockStore.open(tmp_path)) as store:
        assert (store.layout, store.last_number) == (1, 3)


# --- proofs -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def verifier() -> BlockVerifier:
    ledger = read_publication(bytes.fromhex(PROOFS["ledger id publication"]))
    assert refusal_of(ledger) is None
    assert ledger.ledger_id.hex() == PROOFS["ledger id"]
    keys = TrustedKeys((bytes.fromhex(PROOFS["Ed25519 key"]),), tss_file="vectors", rsa_file="vectors")
    book = RsaBook(json.dumps(PROOFS["address book"]).encode())
    return BlockVerifier(ProofVerifier(keys, "full", ledger, book))


def checked(verifier: BlockVerifier, block: Block) -> BlockSummary:
    hasher = verifier.hasher()
    hasher.add(block.items)
    return verifier.check(hasher.finish(), block.items).summary


@pytest.mark.parametrize("vector", PROOFS["blocks"], ids=lambda vector: vector["proof"])
def test_a_proof_holds(verifier: BlockVerifier, vector: dict[str, Any]) -> None:
    block = Block.from_bytes(bytes.fromhex(vector["block"]))
    [kind] = [kind for name, kind in KINDS.items() if vector["proof"].startswith(name)]
    assert kind_of_proof(proof_of(block.items[-1])) is kind
    assert checked(verifier, block).root_hash.hex() == vector["root"]


@pytest.mark.parametrize("vector", PROOFS["blocks"], ids=lambda vector: vector["proof"])
def test_a_proof_with_an_altered_byte_does_not(verifier: BlockVerifier, vector: dict[str, Any]) -> None:
    """Some forty bytes of each: in signatures, paths, keys and lengths."""
    items = Block.from_bytes(bytes.fromhex(vector["block"])).items
    proof = items[-1]
    for at in range(0, len(proof), max(len(proof) // 40, 1)):
        altered = proof[:at] + bytes([proof[at] ^ 1]) + proof[at + 1 :]
        with pytest.raises(BlockRefused):
            checked(verifier, Block.from_items((*items[:-1], altered)))


@pytest.mark.parametrize("vector", PROOFS["blocks"], ids=lambda vector: vector["proof"])
def test_a_proof_of_an_altered_block_does_not(verifier: BlockVerifier, vector: dict[str, Any]) -> None:
    header, *rest = Block.from_bytes(bytes.fromhex(vector["block"])).items
    assert header[-1] == 5  # nanoseconds
    with pytest.raises(BlockRefused):
        checked(verifier, Block.from_items((header[:-1] + b"\6", *rest)))
