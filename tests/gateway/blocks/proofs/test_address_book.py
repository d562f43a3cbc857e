"""Tests of `gateway.blocks.proofs.address_book`."""

from __future__ import annotations

import json
import pickle

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicNumbers, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from sluice.gateway.blocks.errors import ProofDataError
from sluice.gateway.blocks.proofs.address_book import ADDRESS_BOOK_SIZE_MAX, read_address_book, rsa_key
from sluice.gateway.limits import ADDRESS_BOOK_NODES_MAX
from tests.gateway.blocks.proofs import real
from tests.gateway.blocks.proofs.record_files import book_bytes, private_key, public_key_hex


def book_of(*entries: object) -> bytes:
    return json.dumps({"nodeAddress": entries}).encode()


def test_keys_by_node() -> None:
    book = read_address_book(book_bytes(3, {"RSAPubKey": public_key_hex(3).upper(), "nodeId": 3}))
    assert [node_id for node_id, _ in book.keys] == [0, 1, 2, 3]
    assert book.node_count == 4
    for node_id, der in book.keys:
        key = rsa_key(der)
        assert key is not None
        assert key.public_numbers() == private_key(node_id).public_key().public_numbers()
    assert pickle.loads(pickle.dumps(book)) == book


def der_hex(key: object) -> str:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo).hex()  # type: ignore[attr-defined,no-any-return]


UNUSABLE: list[object] = [
    {"nodeId": "9"},
    {"nodeId": "9", "RSAPubKey": ""},
    {"nodeId": "1", "RSAPubKey": ""},
    {},
    {"nodeId": "9", "RSAPubKey": "0x" + public_key_hex(0)},
    {"nodeId": "9", "RSAPubKey": public_key_hex(0)[:-2]},
    {"nodeId": "9", "RSAPubKey": 5},
    {"nodeId": "9", "RSAPubKey": "00" * 100_000},
    {"nodeId": "9", "RSAPubKey": der_hex(Ed25519PrivateKey.generate().public_key())},
    {"nodeId": "9", "RSAPubKey": der_hex(generate_private_key(65537, 1024).public_key())},
    {"nodeId": "-1", "RSAPubKey": public_key_hex(0)},
    {"nodeId": "1.0", "RSAPubKey": public_key_hex(0)},
    {"nodeId": "٣", "RSAPubKey": public_key_hex(0)},
    {"nodeId": "9" * 11, "RSAPubKey": public_key_hex(0)},
    {"nodeId": 1 << 31, "RSAPubKey": public_key_hex(0)},
    {"nodeId": True, "RSAPubKey": public_key_hex(0)},
    {"nodeId": None, "RSAPubKey": public_key_hex(0)},
    None,
    [],
    "node",
]


def key_of(bits: int) -> bytes:
    """A public key of that many bits, whose secret nobody knows."""
    key = RSAPublicNumbers(65537, (1 << bits) - 159).public_key()
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def test_keys_have_2048_to_4096_bits() -> None:
    assert [rsa_key(key_of(bits)) is not None for bits in (2047, 2048, 4096, 4097)] == [
        False,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize("entry", UNUSABLE, ids=range(len(UNUSABLE)))
def test_an_entry_without_a_usable_key_still_counts_as_a_node(entry: object) -> None:
    book = read_address_book(book_bytes(2, entry))
    assert [node_id for node_id, _ in book.keys] == [0, 1]
    assert book.node_count == 3


@pytest.mark.parametrize(
    ("serialized", "text"),
    [
        (
            b"",
            "address book: got what is not JSON (Expecting value: line 1 column 1 (char 0)), expected JSON",
        ),
        (b"\xff\xfe\xfa", "address book: got what is not JSON ("),
        (b"[" * 100_000, "address book: got what is not JSON ("),
        (b"1" * 10_000, "address book: got what is not JSON ("),
        (
            b"[]",
            "address book: got no array `nodeAddress`, expected the JSON form of a network's address book",
        ),
        (b'{"nodeAddress": {}}', "address book: got no array `nodeAddress`"),
        (book_of(), "address book: got 0 nodes without a usable RSA key, expected at least one key"),
        (book_of({"nodeId": "1"}), "address book: got 1 nodes without a usable RSA key"),
        (
            book_bytes(2, {"nodeId": "1", "RSAPubKey": public_key_hex(2)}),
            "address book: node 1: got it twice, expected at most once",
        ),
        (
            book_of(*[None] * (ADDRESS_BOOK_NODES_MAX + 1)),
            "address book: got 501 nodes, expected at most 500",
        ),
        (
            bytes(ADDRESS_BOOK_SIZE_MAX + 1),
            "address book: got 8388609 bytes, expected at most 8388608",
        ),
    ],
    ids=["nothing", "text", "deep", "number", "array", "object", "none", "no key", "twice", "many", "large"],
)
def test_what_is_no_address_book(serialized: bytes, text: str) -> None:
    with pytest.raises(ProofDataError) as caught:
        read_address_book(serialized)
    assert str(caught.value).startswith(text)


def test_the_longest_address_books() -> None:
    book = read_address_book(book_bytes(1, *[None] * (ADDRESS_BOOK_NODES_MAX - 1)))
    assert book.node_count == ADDRESS_BOOK_NODES_MAX
    assert read_address_book(book_bytes(2).ljust(ADDRESS_BOOK_SIZE_MAX)).node_count == 2


@real.needs_real_blocks
def test_the_address_book_of_a_real_network() -> None:
    book = read_address_book((real.FOLDER / "record-file-chain" / "address-book.json").read_bytes())
    assert [node_id for node_id, _ in book.keys] == [0, 1, 2, 3]
    keys = [rsa_key(der) for _, der in book.keys]
    assert {key.key_size for key in keys if key is not None} == {3072}
