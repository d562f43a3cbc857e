"""Address books: the RSA keys of a network's nodes.

Pure. An entry without a usable key is skipped, as in the reference, but its node counts for the share of
nodes that have signed. A book with two usable keys for one node is refused.
Source: docs/spec/proofs.md section 4.1.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_der_public_key

from sluice.gateway.blocks.errors import ProofDataError
from sluice.gateway.limits import ADDRESS_BOOK_NODES_MAX

__all__ = ["AddressBook", "key_of_entry", "read_address_book", "rsa_key"]

ADDRESS_BOOK_SIZE_MAX: Final = 8 << 20
"""Bytes of a book in JSON; a node needs some thousand."""

_WHAT: Final = "address book"
_NODE_ID_MAX: Final = (1 << 31) - 1
"""`RecordFileSignature.node_id` is an int32."""
_KEY_BITS_MIN, _KEY_BITS_MAX = 2048, 4096
"""Public networks have keys of 3,072 bits. Shorter ones than the minimum are not safe (NIST SP 800-57 part 1,
table 2); longer ones take longer to verify."""
_KEY_DIGITS_MAX: Final = 2 * (_KEY_BITS_MAX // 8 + 1024)
"""Hex digits of the longest modulus, with room for exponent and DER."""


@dataclass(frozen=True, slots=True)
class AddressBook:
    """Keys as bytes, for worker processes too."""

    keys: tuple[tuple[int, bytes], ...]
    """(node id, DER SubjectPublicKeyInfo) of nodes with a usable key."""
    node_count: int  # with or without a usable key


def read_address_book(serialized: bytes) -> AddressBook:
    """Read an address book, JSON in UTF-8.

    Raises ProofDataError.
    """
    if len(serialized) > ADDRESS_BOOK_SIZE_MAX:
        raise ProofDataError(_WHAT, f"{len(serialized)} bytes", f"at most {ADDRESS_BOOK_SIZE_MAX}")
    try:
        book = json.loads(serialized)
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, an absurd number, or too deep
        raise ProofDataError(_WHAT, f"what is not JSON ({error})", "JSON") from None
    entries = book.get("nodeAddress") if isinstance(book, dict) else None
    if not isinstance(entries, list):
        raise ProofDataError(_WHAT, "no array `nodeAddress`", "the JSON form of a network's address book")
    if len(entries) > ADDRESS_BOOK_NODES_MAX:
        raise ProofDataError(_WHAT, f"{len(entries)} nodes", f"at most {ADDRESS_BOOK_NODES_MAX}")
    keys: dict[int, bytes] = {}
    for entry in entries:
        found = key_of_entry(entry)
        if found is None:
            continue
        node_id, key = found
        if node_id in keys:
            raise ProofDataError(f"{_WHAT}: node {node_id}", "it twice", "at most once")
        keys[node_id] = key
    if not keys:
        raise ProofDataError(_WHAT, f"{len(entries)} nodes without a usable RSA key", "at least one key")
    return AddressBook(tuple(keys.items()), len(entries))


def key_of_entry(entry: object) -> tuple[int, bytes] | None:
    """Return (node id, DER SubjectPublicKeyInfo) of an entry with a usable key."""
    node_id = _node_id(entry)
    if node_id is None or not isinstance(entry, dict):
        return None
    key = _key(entry)
    return None if key is None else (node_id, key)


def _node_id(entry: object) -> int | None:
    if not isinstance(entry, dict):
        return None
    value = entry.get("nodeId", 0)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 10:
        value = int(value)
    is_id = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _NODE_ID_MAX
    return value if is_id else None


def rsa_key(der: bytes) -> RSAPublicKey | None:
    """Decode a SubjectPublicKeyInfo, if it is a usable RSA key."""
    try:
        key = load_der_public_key(der)
    except (ValueError, UnsupportedAlgorithm):
        return None
    if isinstance(key, RSAPublicKey) and _KEY_BITS_MIN <= key.key_size <= _KEY_BITS_MAX:
        return key
    return None


def _key(entry: Mapping[str, object]) -> bytes | None:
    digits = entry.get("RSAPubKey")
    if not isinstance(digits, str) or len(digits) > _KEY_DIGITS_MAX:
        return None
    try:
        der = bytes.fromhex(digits)
    except ValueError:
        return None
    return None if rsa_key(der) is None else der
