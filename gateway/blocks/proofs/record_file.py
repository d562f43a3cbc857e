"""RSA record-file proofs: nodes have signed the record file that a block wraps.

Pure. The proof signs the file's contents, not the block root: only the next block's link fixes header,
footer, creation time, sidecars and amendments. So file and block must agree on what both say
(`_check_agreement`).
Source: docs/spec/proofs.md section 4; RFC 8017 section 8.2.
"""

import hashlib
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA384

from sluice.gateway.blocks.errors import BlockRefused, ItemError, ProofDataError
from sluice.gateway.blocks.items import WireType, fields_of, payload_of
from sluice.gateway.blocks.merkle import HASH_SIZE
from sluice.gateway.blocks.proofs.address_book import AddressBook, rsa_key
from sluice.gateway.blocks.proofs.strict_message import bytes_of, integer_of, strict_fields
from sluice.gateway.blocks.refusal import Refusal, RefusalKind
from sluice.gateway.blocks.root_hash import BlockSummary

__all__ = [
    "DEFAULT_THRESHOLD",
    "RecordFile",
    "RecordFileCheck",
    "read_record_file",
    "read_record_file_proof",
]

RECORD_FILE_FIELDS_MAX: Final = 100_000
"""Fields of a record file and its item; skipping them takes some 0.1 s. A file of two seconds has 20,000 in a
network with 10,000 transactions a second."""
RECORD_FILE_SIGNATURES_MAX: Final = 500
"""Signatures in a proof, one for each node. Verifying one takes 0.07 ms at most."""

DEFAULT_THRESHOLD: Final = Fraction(1, 3)
"""Share of the nodes that is not enough (docs/spec/proofs.md section 4.3)."""

VERSION: Final = 6
"""The known version of record files (docs/spec/proofs.md sections 4.2 and 4.3)."""

_WHAT: Final = "record-file proof"
_INT32_MAX: Final = (1 << 31) - 1  # node_id is an int32 (docs/spec/proofs.md section 1)
_PADDING: Final = PKCS1v15()
_HASH: Final = SHA384()
_HASH_OBJECT_HEAD: Final = bytes([0x08, 1, 0x10, HASH_SIZE, 0x1A, HASH_SIZE])
"""A HashObject up to its hash."""
_FIRST_RUNNING_HASH: Final = bytes(HASH_SIZE)
"""The running hash before the first block (docs/spec/proofs.md section 4.4)."""

_SHOWN_NODES_MAX: Final = 8
_SHOWN_SIZE_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class RecordFile:
    """The parts of a record file item that its block needs."""

    contents: bytes  # the serialized RecordStreamFile
    creation_time: bytes
    hapi_proto_version: bytes
    block_number: int
    start_running_hash: bytes
    """The running hash before this file; zeros in block 0."""
    end_running_hash: bytes


class _Read(NamedTuple):
    """A parsed record file; parsing the longest takes 0.1 s."""

    item: bytes
    record_file: RecordFile
    payload: bytes  # what nodes sign for it
    held: set[tuple[int, bytes]]
    """Its verified signatures: (node id, signature)."""


class RecordFileCheck:
    """Checks record-file proofs against one address book. Several threads may call it at once."""

    def __init__(self, book: AddressBook, threshold: Fraction = DEFAULT_THRESHOLD) -> None:
        """Take the keys, and the share of nodes that is not enough: at least 0, below 1."""
        assert 0 <= threshold < 1
        decoded = {node_id: rsa_key(der) for node_id, der in book.keys}
        self._keys = {node_id: key for node_id, key in decoded.items() if key is not None}
        self.needed_count = int(threshold * book.node_count) + 1
        self._read: _Read | None = None  # the last file: a block may have several proofs of it

    def check(self, record_file_proof: bytes, summary: BlockSummary) -> Refusal | None:
        """Return why a SignedRecordFileProof does not prove the block's record file, or None."""
        if summary.record_file is None:
            return Refusal(RefusalKind.MISSING_ITEM, _WHAT, "no record file", "one in the block")
        return self._check(record_file_proof, summary.record_file, summary)

    def check_item(self, record_file_proof: bytes, item: bytes) -> Refusal | None:
        """As `check`, of a record file item without its block."""
        return self._check(record_file_proof, item, None)

    def _check(self, record_file_proof: bytes, item: bytes, summary: BlockSummary | None) -> Refusal | None:
        if not self._keys:
            expected = "--ledger-key rsa:ADDRESS_BOOK.json"
            return Refusal(RefusalKind.MISSING_VERIFICATION_DATA, _WHAT, "no RSA keys", expected)
        try:
            version, signatures = read_record_file_proof(record_file_proof)
            if version != VERSION:
                return Refusal(RefusalKind.UNSUPPORTED, f"{_WHAT}: version", str(version), str(VERSION))
            read = self._read
            if read is None or read.item is not item:
                record_file = read_record_file(item)
                read = _Read(item, record_file, signed_payload(record_file.contents), set())
                self._read = read
            if summary is not None:
                _check_agreement(read.record_file, summary)
            self._check_signatures(signatures, read)
        except ProofDataError as error:
            return Refusal(RefusalKind.CANNOT_PARSE, error.what, error.got, error.expected)
        except BlockRefused as error:
            return error.refusal
        return None

    def _check_signatures(self, signatures: list[tuple[int, bytes]], read: _Read) -> None:
        """Raise BlockRefused for a bad signature, or for too few nodes."""
        counted: set[int] = set()
        keyless: set[int] = set()
        for node_id, signature in signatures:
            key = self._keys.get(node_id)
            if node_id in counted or signature.count(0) == len(signature):
                continue
            if key is None:
                keyless.add(node_id)
                continue
            if (node_id, signature) in read.held:  # by another proof of the block, or for its other root
                counted.add(node_id)
                continue
            try:
                key.verify(signature, read.payload, _PADDING, _HASH)
            except InvalidSignature:
                got = f"signature {signature[:8].hex()}…, which its key does not verify"
                raise _refused(f"{_WHAT}: node {node_id}", got, "a signature of the record file") from None
            counted.add(node_id)
            read.held.add((node_id, signature))
        if len(counted) >= self.needed_count:
            return
        got, expected = f"{len(counted)} nodes that signed", f"at least {self.needed_count}"
        if len(counted) + len(keyless) < self.needed_count:
            raise _refused(_WHAT, got, expected)
        nodes = ", ".join(map(str, sorted(keyless)[:_SHOWN_NODES_MAX]))
        nodes += ", …" if len(keyless) > _SHOWN_NODES_MAX else ""
        got += f", and signatures of nodes without a key in the address book: {nodes}"
        raise BlockRefused(Refusal(RefusalKind.MISSING_VERIFICATION_DATA, _WHAT, got, expected))


def signed_payload(contents: bytes) -> bytes:
    """Return the message that nodes sign for a record file (4.2)."""
    digest = hashlib.sha384(VERSION.to_bytes(4, "big"))
    digest.update(contents)
    return digest.digest()


def read_record_file_proof(serialized: bytes) -> tuple[int, list[tuple[int, bytes]]]:
    """Read a SignedRecordFileProof. Raises ProofDataError if it is malformed or too long.

    Returns:
        The version, 0 if absent, and (node id, signature) of each signature. A negative node id is 2^64 more.
    """
    version = 0
    signatures: list[tuple[int, bytes]] = []
    for number, value in strict_fields(
        serialized, _WHAT, {1: WireType.VARINT, 2: WireType.LEN}, repeated=(2,)
    ):
        if number == 1:
            version = integer_of(value)
            continue
        if len(signatures) == RECORD_FILE_SIGNATURES_MAX:
            raise ProofDataError(_WHAT, "more signatures", f"at most {RECORD_FILE_SIGNATURES_MAX}")
        what = f"{_WHAT}: signature {len(signatures)}"
        parts = dict(strict_fields(bytes_of(value), what, {1: WireType.LEN, 2: WireType.VARINT}))
        if parts.get(2) == 0:
            raise ProofDataError(f"{what}: node id", "0 in two bytes", "0 left out")
        node_id = integer_of(parts.get(2, 0))
        if _INT32_MAX < node_id < (1 << 64) - _INT32_MAX - 1:  # a parser would take its low 32 bits
            raise ProofDataError(f"{what}: node id", str(node_id), "an int32")
        signatures.append((node_id, bytes_of(parts.get(1, b""))))
    return version, signatures


def read_record_file(item: bytes) -> RecordFile:
    """Read a record file item.

    Raises ProofDataError.
    """
    wire_types = {1: WireType.LEN, 2: WireType.LEN}
    outer, left_count = _single_fields(item, "record file", wire_types, RECORD_FILE_FIELDS_MAX, is_item=True)
    contents = bytes_of(outer.get(2, b""))
    if not contents:
        raise ProofDataError("record file: contents", "nothing", "a record stream file")
    what = "record stream file"
    wire_types = {1: WireType.LEN, 2: WireType.LEN, 4: WireType.LEN, 5: WireType.VARINT}
    inner, _ = _single_fields(contents, what, wire_types, left_count)
    return RecordFile(
        contents,
        bytes_of(outer.get(1, b"")),
        bytes_of(inner.get(1, b"")),
        integer_of(inner.get(5, 0)),
        _running_hash(bytes_of(inner.get(2, b"")), f"{what}: start running hash"),
        _running_hash(bytes_of(inner.get(4, b"")), f"{what}: end running hash"),
    )


def _check_agreement(record_file: RecordFile, summary: BlockSummary) -> None:
    version = next(
        bytes_of(field.value) for field in fields_of(payload_of(summary.header)) if field.number == 1
    )
    for what, got, expected in (
        ("creation time", record_file.creation_time, summary.timestamp),
        ("HAPI version", record_file.hapi_proto_version, version),
    ):
        if got != expected:
            raise _refused(f"record file: {what}", _shown(got), f"{_shown(expected)}, as in the header")
    if record_file.block_number != summary.number:
        got_number, expected_number = str(record_file.block_number), f"{summary.number}, as in the header"
        raise _refused("record file: block number", got_number, expected_number)
    if summary.number == 0 and record_file.start_running_hash != _FIRST_RUNNING_HASH:
        what = "record file: start running hash of block 0"
        raise _refused(what, record_file.start_running_hash.hex(), "zeros")


def _shown(value: bytes) -> str:
    """Return a field for an error, cut: a peer's may have megabytes."""
    return value.hex() if len(value) <= _SHOWN_SIZE_MAX else f"{value[:_SHOWN_SIZE_MAX].hex()}…"


def _refused(what: str, got: str, expected: str) -> BlockRefused:
    return BlockRefused(Refusal(RefusalKind.BAD_PROOF, what, got, expected))


def _single_fields(
    message: bytes, what: str, wire_types: dict[int, WireType], left_count: int, *, is_item: bool = False
) -> tuple[dict[int, int | bytes], int]:
    """Return the fields that may occur once, and how many of `left_count` may still be read."""
    values: dict[int, int | bytes] = {}
    try:
        fields = fields_of(payload_of(message) if is_item else message)
        for number, wire_type, value in fields:
            left_count -= 1
            if left_count < 0:
                raise ProofDataError(what, "more fields", f"at most {RECORD_FILE_FIELDS_MAX} in all")
            if number not in wire_types:
                continue
            if number in values:
                raise ProofDataError(f"{what}: field {number}", "it twice", "at most once")
            if wire_type is not wire_types[number]:
                expected = f"wire type {wire_types[number].value}"
                raise ProofDataError(f"{what}: field {number}", f"wire type {wire_type.value}", expected)
            values[number] = value
    except ItemError as error:
        raise ProofDataError(f"{what}: {error.what}", error.got, error.expected) from None
    return values, left_count


def _running_hash(hash_object: bytes, what: str) -> bytes:
    head, value = hash_object[: len(_HASH_OBJECT_HEAD)], hash_object[len(_HASH_OBJECT_HEAD) :]
    if head != _HASH_OBJECT_HEAD or len(value) != HASH_SIZE:
        raise ProofDataError(what, f"{hash_object[:60].hex()}", "a SHA-384 hash object")
    return value
