"""An independent implementation from docs/spec: protobuf, hashes, blocks, pages and entries by hand.

It imports nothing from our packages, so that a mistake shared by our encoders and decoders shows.
"""

from __future__ import annotations

import hashlib
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = [
    "Block",
    "Chain",
    "Tcp",
    "bytes_field",
    "digest",
    "entries_of",
    "number_field",
    "pages_of",
    "split_fields",
    "tree_root",
]

EMPTY_TREE = hashlib.sha384(b"\0").digest()
PAGE_BYTES = 1 << 20
_SUBTREES = {2: 0, 3: 0, 4: 1, 1: 2, 5: 2, 6: 2, 10: 2, 7: 3, 11: 4, 25: 2, 28: 5}
"""The subtree of a field number; 25 is 5 modulo 20, 28 is extension subtree 0."""


# --- protobuf -----------------------------------------------------------------------------------------------


def _varint(value: int) -> bytes:
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def number_field(number: int, value: int) -> bytes:
    """A varint field; nothing for 0, as proto3 has it."""
    return _varint(number << 3) + _varint(value) if value else b""


def bytes_field(number: int, value: bytes) -> bytes:
    """A length-delimited field: bytes, a string or a message."""
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def split_fields(message: bytes) -> list[tuple[int, int | bytes]]:
    """Return a message's (field number, varint or bytes), in order."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            digit = message[at]
            at += 1
            value |= (digit & 0x7F) << shift
            shift += 7
            if digit < 0x80:
                return value

    fields: list[tuple[int, int | bytes]] = []
    while at < len(message):
        number, wire_type = divmod(varint(), 8)
        if wire_type == 0:
            fields.append((number, varint()))
            continue
        assert wire_type == 2, f"field {number}: wire type {wire_type}"
        size = varint()
        assert at + size <= len(message), f"field {number}: {size} bytes"
        fields.append((number, message[at : at + size]))
        at += size
    return fields


# --- blocks (docs/spec/block-hash.md) ----------------------------------------------------------------------


def digest(*parts: bytes) -> bytes:
    """SHA-384 of the parts, joined."""
    return hashlib.sha384(b"".join(parts)).digest()


def tree_root(hashes: Sequence[bytes]) -> bytes:
    """Return the root by its recursive definition: split at the largest power of two below the count."""
    if len(hashes) <= 1:
        return hashes[0] if hashes else EMPTY_TREE
    left = 1 << (len(hashes) - 1).bit_length() - 1
    return digest(b"\2", tree_root(hashes[:left]), tree_root(hashes[left:]))


@dataclass(frozen=True)
class Block:
    """A block, its items serialized."""

    number: int
    items: list[bytes]
    root_hash: bytes


class Chain:
    """Makes blocks with correct links and a proof by each key, HAPI 0.78."""

    def __init__(self, keys: Sequence[Ed25519PrivateKey]) -> None:
        self._keys = keys
        self._roots: list[bytes] = []

    def block(self, *middle: bytes) -> Block:
        """Make the next block with these items between header and footer."""
        number = len(self._roots)
        timestamp = number_field(1, 1_700_000_000 + number) + number_field(2, 5)
        version = bytes_field(1, number_field(2, 78))
        header = bytes_field(1, version + number_field(3, number) + bytes_field(4, timestamp))
        previous = self._roots[-1] if self._roots else EMPTY_TREE
        links = [previous, tree_root(self._roots), b"\x11" * 48]
        subtrees: list[list[bytes]] = [[] for _ in range(13)]
        for item in (header, *middle):
            subtrees[_SUBTREES[split_fields(item)[0][0]]].append(digest(b"\0", item))
        top = tree_root([*links, *map(tree_root, subtrees)])
        root_hash = digest(b"\2", digest(b"\0", timestamp), top)
        footer = bytes_field(12, b"".join(bytes_field(at, link) for at, link in enumerate(links, 1)))
        proofs = [
            bytes_field(9, number_field(1, number) + bytes_field(2, bytes_field(1, key.sign(root_hash))))
            for key in self._keys
        ]
        self._roots.append(root_hash)
        return Block(number, [header, *middle, footer, *proofs], root_hash)


# --- the stream (docs/spec/stream-file.md, docs/spec/block-layout.md) ---------------------------------------


def entries_of(block: Block, layout: int = 2) -> list[tuple[int, bytes]]:
    """Return type and data of a block's entries."""
    number = struct.pack(">Q", block.number)
    found = [(0xB0, number_field(1, 2) + number_field(2, block.number)), (0xB0, b"\0" + number)]
    del found[3 - layout :]
    for item in block.items:
        field, size = split_fields(item)[0][0], PAGE_BYTES - 17
        pieces = [item[start : start + size] for start in range(0, len(item), size)]
        found += [(0x80000000 | field, piece) for piece in pieces[:-1]] + [(field, pieces[-1])]
    return [*found, (0xB1, number + block.root_hash)]


def entry_bytes(number: int, kind: int, data: bytes, packet: int = 2) -> bytes:
    """Return an entry as in the file; with 0xfe instead of 2 as in an answer."""
    return struct.pack(">BIIQ", packet, 17 + len(data), kind, number) + data


def pages_of(entries: Sequence[tuple[int, bytes]]) -> tuple[bytes, int]:
    """Return the data pages up to the last entry's end, with padding, and their numbers of entries."""
    pages = bytearray()
    for number, (kind, data) in enumerate(entries):
        entry = entry_bytes(number, kind, data)
        room = PAGE_BYTES - len(pages) % PAGE_BYTES
        if len(entry) > room:
            pages += bytes(room)
        pages += entry
    return bytes(pages), len(entries)


class Tcp:
    """A data-streamer client on a bare socket."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, 20)

    def send(self, command: int, *numbers: int, bookmark: bytes | None = None) -> None:
        """Send a command of stream type 1, its integers as u64, a bookmark with its u32 length."""
        message = struct.pack(f">{2 + len(numbers)}Q", command, 1, *numbers)
        if bookmark is not None:
            message += struct.pack(">I", len(bookmark)) + bookmark
        self._socket.sendall(message)

    def read(self, size: int) -> bytes:
        """Receive this many bytes; fewer only if the server closes."""
        data = bytearray()
        while len(data) < size and (more := self._socket.recv(size - len(data))):
            data += more
        return bytes(data)

    def result(self) -> tuple[int, bytes]:
        """Receive a Result: its error number and its text."""
        packet, length, error = struct.unpack(">BII", self.read(9))
        assert packet == 0xFF
        return error, self.read(length - 9)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
