"""Makes the golden vectors with our own encoders: `python -m tests.vectors` writes them.

Fixed secrets make everything, so the same code makes the same bytes. README.md says what each file holds, and
what it was checked with.
"""

from __future__ import annotations

import gzip
import json
import random
import shutil
import socket
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPrivateNumbers, RSAPublicNumbers
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from sluice.datastream.file.remote_pages import SEGMENT_PAGES
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.layout import BOOKMARK_TYPE, HEADER_PAGE_SIZE, PAGE_SIZE, page_start, pages_used
from sluice.datastream.protocol.commands import Command, OnCommandError, encode_command
from sluice.gateway.archive.objects import open_store
from sluice.gateway.archive.segment import StreamDescription
from sluice.gateway.archive.uploader import Uploader, UploaderPlan
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.items import field_item
from sluice.gateway.blocks.merkle import EMPTY_HASH, StreamingTree
from sluice.gateway.blocks.proofs.poseidon import hash_array_number
from sluice.gateway.blocks.proofs.record_file import signed_payload
from sluice.gateway.blocks.root_hash import BlockHasher
from sluice.gateway.blocks.stream_layout import NEWEST_LAYOUT, bookmark_of, encode
from tests.datastream.serving import ServerThread, read_to_end
from tests.gateway.block_makers import KEY, PUBLIC_KEY, footer_item, header_item, proof_item
from tests.gateway.blocks.proofs import record_files
from tests.gateway.blocks.proofs.bn254_setup import WrapsSetup
from tests.gateway.blocks.proofs.made_chain import BlockPlan, MadeChain
from tests.gateway.blocks.proofs.tss_network import TssNetwork

__all__ = [
    "ARCHIVE",
    "FOLDER",
    "SUBTREES",
    "block_vectors",
    "exchange",
    "expanded",
    "made_files",
    "proof_vectors",
    "read_file",
    "stream_vector",
    "tcp_vectors",
    "write_archive",
    "write_files",
]

FOLDER = Path(__file__).parent
ARCHIVE = FOLDER / "archive"
SUBTREES = (
    *("consensus headers", "inputs", "outputs", "state changes", "trace data"),
    *(f"extension {index}" for index in range(8)),
)
FILL = b"\x5a"
LONG_PAYLOAD_SIZE = 1_100_000
"""Bytes, more than one entry can hold."""
ARCHIVE_BLOCKS = 7
ARCHIVE_PAYLOAD_SIZE = 10_000_000
"""Bytes. Six such blocks fill less than a segment, seven more."""


# --- blocks -------------------------------------------------------------------------------------------------


def _bodies() -> list[list[bytes]]:
    """The items between header and footer of each block."""
    kinds_of_today = [
        field_item(3, b"round 1"),
        field_item(2, b"event 1"),
        field_item(4, b"transaction 1"),
        field_item(5, b"result 1"),
        field_item(6, b"output 1"),
        field_item(2, b"event 2"),
        field_item(4, b"transaction 2"),
        field_item(10, b"record file"),
        field_item(7, b"state change"),
        field_item(11, b"trace"),
        field_item(7, b""),
    ]
    long_item = [field_item(4, FILL * LONG_PAYLOAD_SIZE)]
    kinds_to_come = [
        field_item(23, b"consensus header"),
        field_item(24, b"input"),
        field_item(25, b"output"),
        field_item(26, b"state change"),
        field_item(27, b"trace"),
        field_item(28, b"extension 0"),
        field_item(35, b"extension 7"),
        field_item(39, b"not hashed"),
    ]
    return [kinds_of_today, long_item, kinds_to_come]


class MadeBlock(NamedTuple):
    """A block of the chain, with its roots."""

    items: list[bytes]
    root_16: bytes
    root_8: bytes | None
    """None: layout 8 has no place for its items."""
    subtree_roots: list[bytes]


def _block(number: int, body: Sequence[bytes], previous: bytes, all_blocks: bytes) -> MadeBlock:
    unsigned = [header_item(number), *body, footer_item(previous, all_blocks)]
    hasher = BlockHasher()
    hasher.add([*unsigned, proof_item(number)])
    summary = hasher.finish()
    items = [*unsigned, proof_item(number, KEY.sign(summary.root_hash))]
    return MadeBlock(items, summary.root_hash, summary.root_hash_other_layout, hasher.subtree_roots())


@cache
def chain() -> list[MadeBlock]:
    """Blocks 0 to 2, linked in layout 16 and signed with Ed25519."""
    blocks: list[MadeBlock] = []
    tree = StreamingTree()
    for number, body in enumerate(_bodies()):
        previous = blocks[-1].root_16 if blocks else EMPTY_HASH
        blocks.append(_block(number, body, previous, tree.root()))
        tree.push(blocks[-1].root_16)
    return blocks


def block_vectors() -> dict[str, Any]:
    """The content of `blocks.json`."""
    vectors = []
    first_entry = 0
    for number, block in enumerate(chain()):
        entries = encode(number, block.items, block.root_16)
        vectors.append(
            {
                "number": number,
                "items": [_shortened(item) for item in block.items],
                "subtree roots": {
                    name: root.hex()
                    for name, root in zip(SUBTREES, block.subtree_roots, strict=True)
                    if root != EMPTY_HASH
                },
                "root in layout 16": block.root_16.hex(),
                "root in layout 8": None if block.root_8 is None else block.root_8.hex(),
                "first entry": first_entry,
                "entries": [[kind, _shortened(data)] for kind, data in entries],
            }
        )
        first_entry += len(entries)
    return {"Ed25519 key": PUBLIC_KEY.hex(), "blocks": vectors}


def _shortened(data: bytes) -> Any:
    """Data in hex, with the number of repetitions of a repeated last byte."""
    rest = data.rstrip(FILL)
    times = len(data) - len(rest)
    return data.hex() if times < 64 else {"hex": rest.hex(), "then": FILL.hex(), "times": times}


def expanded(value: Any) -> bytes:
    """The data that `_shortened` wrote."""
    if isinstance(value, str):
        return bytes.fromhex(value)
    return bytes.fromhex(value["hex"]) + bytes.fromhex(value["then"]) * int(value["times"])


# --- the stream, and commands about it ----------------------------------------------------------------------


def write_stream(path: Path, layout: int = NEWEST_LAYOUT) -> DataStreamer:
    """Write the blocks to a new stream, one operation each; the streamer is open."""
    streamer = DataStreamer.open(path, initial_pages=3)
    for number, block in enumerate(chain()):
        _append(streamer, number, block, layout)
    return streamer


def _append(streamer: DataStreamer, number: int, block: MadeBlock, layout: int) -> None:
    streamer.start_atomic_op()
    for kind, data in encode(number, block.items, block.root_16, layout):
        if kind == BOOKMARK_TYPE:
            streamer.add_stream_bookmark(data)
        else:
            streamer.add_stream_entry(kind, data)
    streamer.commit_atomic_op()


def stream_vector(layout: int) -> bytes:
    """The whole stream file of the blocks: header page and three data pages."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stream.bin"
        with write_stream(path, layout) as streamer:
            assert pages_used(streamer.committed.total_length) == 3
        content = path.read_bytes()
    assert len(content) == HEADER_PAGE_SIZE + 3 * PAGE_SIZE
    return content


def _conversations(count: int, bookmarked: int) -> list[tuple[str, OnCommandError, list[bytes]]]:
    """Name, server mode and commands of each connection; the stream has `count` entries."""

    def entries(command: Command, number: int) -> bytes:
        return encode_command(command, 1, number)

    def bookmarks(command: Command, bookmark: bytes) -> bytes:
        return encode_command(command, 1, bookmark)

    header, stop = encode_command(Command.HEADER, 1), encode_command(Command.STOP, 1)
    last = entries(Command.START, count)
    newest, original = bookmark_of(bookmarked), b"\0" + bookmarked.to_bytes(8, "big")
    return [
        ("Header", "close", [header]),
        ("Entry: the first", "close", [entries(Command.ENTRY, 0)]),
        ("Entry: none of that number", "close", [entries(Command.ENTRY, count)]),
        ("Bookmark, in protobuf form", "close", [bookmarks(Command.BOOKMARK, newest)]),
        ("Bookmark, in the form of 9 bytes", "close", [bookmarks(Command.BOOKMARK, original)]),
        ("Bookmark: none such", "close", [bookmarks(Command.BOOKMARK, b"nobody")]),
        ("Start: the last two entries", "close", [entries(Command.START, count - 2)]),
        ("Start at the end: nothing yet", "close", [last]),
        ("Start beyond the end, then Header", "close", [entries(Command.START, count + 1), header]),
        ("StartBookmark", "close", [bookmarks(Command.START_BOOKMARK, newest)]),
        ("StartBookmark, in the form of 9 bytes", "close", [bookmarks(Command.START_BOOKMARK, original)]),
        (
            "StartBookmark: none such, then Header",
            "close",
            [bookmarks(Command.START_BOOKMARK, b"nobody"), header],
        ),
        ("Start, Stop, Header", "close", [last, stop, header]),
        ("Stop when stopped", "close", [stop, header]),
        ("Stop when stopped; the server keeps on", "keep", [stop, header]),
        ("Start when started", "close", [last, last]),
        ("Header when started", "close", [last, header]),
        ("an unknown command", "close", [(99).to_bytes(8, "big") + (1).to_bytes(8, "big")]),
        ("another stream type", "close", [encode_command(Command.HEADER, 2)]),
        ("a bookmark of no bytes", "close", [bookmarks(Command.BOOKMARK, b"")]),
        ("a bookmark of 17 bytes", "close", [bookmarks(Command.BOOKMARK, b"x" * 17)]),
    ]


def exchange(server: ServerThread, commands: Sequence[bytes]) -> bytes:
    """Send commands on a new connection, close our side, and return all that the server sends."""
    with server.connect() as client:
        client.sendall(b"".join(commands))
        client.shutdown(socket.SHUT_WR)
        return read_to_end(client)


def tcp_vectors() -> list[dict[str, Any]]:
    """The content of `tcp.json`."""
    vectors = []
    with tempfile.TemporaryDirectory() as folder, write_stream(Path(folder) / "stream.bin") as streamer:
        for name, mode, commands in _conversations(streamer.committed.total_entries, len(chain()) - 1):
            with ServerThread(streamer, on_command_error=mode) as server:
                received = exchange(server, commands)
            sent = [command.hex() for command in commands]
            vectors.append({"name": name, "on error": mode, "send": sent, "receive": received.hex()})
    return vectors


# --- the archive ------------------------------------------------------------------------------------------


def write_archive(folder: Path) -> bytes:
    """Write the archive of a chain of long blocks; return the stream file of the archived entries."""
    with tempfile.TemporaryDirectory() as work:
        path = Path(work) / "stream.bin"
        with DataStreamer.open(path, initial_pages=80) as streamer:
            tree, previous = StreamingTree(), EMPTY_HASH
            for number in range(ARCHIVE_BLOCKS):
                body = [field_item(4, FILL * ARCHIVE_PAYLOAD_SIZE)]
                block = _block(number, body, previous, tree.root())
                _append(streamer, number, block, NEWEST_LAYOUT)
                previous = block.root_16
                tree.push(previous)
            description = StreamDescription.of(streamer.header, 0, NEWEST_LAYOUT)
            plan = UploaderPlan(lambda: description, block_begin=lambda number: 0)
            assert Uploader(streamer, open_store(f"file://{folder}"), plan).step()
            streamer.truncate_file(streamer.sums.first_number(SEGMENT_PAGES))
        return path.read_bytes()[: page_start(SEGMENT_PAGES)]


# --- proofs -------------------------------------------------------------------------------------------------


@cache
def rsa_key(node_id: int) -> RSAPrivateKey:
    """A key of 2,048 bits from a fixed seed; it protects nothing."""
    rng = random.Random(f"vectors {node_id}")
    p, q = _prime(rng), _prime(rng)
    e = 65537
    d = pow(e, -1, (p - 1) * (q - 1))
    public = RSAPublicNumbers(e, p * q)
    return RSAPrivateNumbers(p, q, d, d % (p - 1), d % (q - 1), pow(q, -1, p), public).private_key()


def _prime(rng: random.Random) -> int:
    small = [number for number in range(3, 2000, 2) if all(number % d for d in range(3, number, 2))]
    while True:
        number = rng.getrandbits(1024) | 3 << 1022 | 1
        if all(number % one for one in small) and pow(2, number - 1, number) == 1:
            return number


def _address_book(node_count: int) -> dict[str, Any]:
    entries: list[dict[str, str]] = []
    for node_id in range(node_count):
        der = rsa_key(node_id).public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        entries.append({"RSAPubKey": der.hex()} | ({"nodeId": str(node_id)} if node_id else {}))
    return {"nodeAddress": entries}


def _record_file_block() -> Block:
    file = record_files.contents()
    signatures = [
        (node_id, rsa_key(node_id).sign(signed_payload(file), PKCS1v15(), SHA384())) for node_id in (0, 1)
    ]
    proof = record_files.record_file_proof(signatures)
    return Block.from_items(record_files.block_items(record_files.record_file_item(file), proof))


def _tss_blocks(network: TssNetwork, setup: WrapsSetup) -> list[tuple[str, Block, bytes]]:
    """Name, block and root hash of the blocks of a chain whose layouts change."""
    chain = MadeChain(
        network,
        [
            BlockPlan(16),
            BlockPlan(16, is_signed=False, body=(field_item(4, b"transaction"),)),
            BlockPlan(16),
            BlockPlan(8, 77, is_signed=False),
            BlockPlan(8, 73, is_signed=False),
            BlockPlan(8, 73),
            BlockPlan(16),
        ],
    )
    signature = network.sign(chain.roots[6])[: -len(network.vouch(b"", ()))]
    vk_hash = hash_array_number(network.vk)
    parts = setup.proof_parts(int.from_bytes(network.ledger.ledger_id, "little"), vk_hash)
    with_wraps = proof_item(6, signature + b"".join(parts.values()))
    return [
        ("TSS, with a Schnorr address-book proof", chain.block(0, chain.signed_proof(0)), chain.roots[0]),
        ("state proof, form C", chain.block(1, chain.state_proof(1)), chain.roots[1]),
        ("state proof, form B", chain.block(3, chain.state_proof(3)), chain.roots[3]),
        ("state proof, form A", chain.block(4, chain.form_a_proof(4)), chain.roots[4]),
        ("TSS, with a WRAPS address-book proof", chain.block(6, with_wraps), chain.roots[6]),
    ]


def proof_vectors() -> dict[str, Any]:
    """The content of `proofs.json.gz`."""
    setup = WrapsSetup()
    network = TssNetwork((5, 1, 3), wraps_vk=setup.key_bytes())
    record_file = _record_file_block()
    hasher = BlockHasher()
    hasher.add(record_file.items)
    first = chain()[0]
    named = [
        ("Ed25519", Block.from_items(first.items), first.root_16),
        *_tss_blocks(network, setup),
        ("RSA, of a record file", record_file, hasher.finish().root_hash),
    ]
    return {
        "Ed25519 key": PUBLIC_KEY.hex(),
        "address book": _address_book(2),
        "ledger id": network.ledger.ledger_id.hex(),
        "ledger id publication": network.publication.hex(),
        "blocks": [
            {"proof": name, "block": block.to_bytes().hex(), "root": root.hex()}
            for name, block, root in named
        ],
    }


# --- files --------------------------------------------------------------------------------------------------


def made_files() -> dict[str, bytes]:
    """Name and content of each file, uncompressed."""
    return {
        "blocks.json": _json(block_vectors()),
        "tcp.json": _json(tcp_vectors()),
        "proofs.json": _json(proof_vectors()),
        "stream.bin": stream_vector(NEWEST_LAYOUT),
        "stream-1.bin": stream_vector(1),
    }


def write_files() -> dict[str, int]:
    """Write all files; return the size of each in bytes."""
    sizes = {}
    for name, content in made_files().items():
        if name in ("proofs.json", "stream.bin", "stream-1.bin"):
            name, content = f"{name}.gz", gzip.compress(content, 9, mtime=0)
        (FOLDER / name).write_bytes(content)
        sizes[name] = len(content)
    shutil.rmtree(ARCHIVE, ignore_errors=True)
    write_archive(ARCHIVE)
    for file in sorted(ARCHIVE.rglob("*.*")):
        sizes[str(file.relative_to(FOLDER))] = file.stat().st_size
    return sizes


def read_file(name: str) -> bytes:
    """Read a file, and decompress one with `.gz` in its name."""
    compressed = FOLDER / f"{name}.gz"
    return gzip.decompress(compressed.read_bytes()) if compressed.exists() else (FOLDER / name).read_bytes()


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()
