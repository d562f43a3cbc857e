"""Tests of `blocks.proofs.record_file`: who counts, what must agree, and the blocks of a real network."""

from __future__ import annotations

import hashlib
import os
import random
from fractions import Fraction
from typing import Any

import pytest

from sluice.gateway.api import block_pb2
from sluice.gateway.blocks.errors import ProofDataError
from sluice.gateway.blocks.items import proof_of
from sluice.gateway.blocks.proofs import address_book, record_file
from sluice.gateway.blocks.proofs.address_book import AddressBook, read_address_book
from sluice.gateway.blocks.proofs.record_file import (
    DEFAULT_THRESHOLD,
    RECORD_FILE_FIELDS_MAX,
    RECORD_FILE_SIGNATURES_MAX,
    RecordFileCheck,
    read_record_file,
    read_record_file_proof,
    signed_payload,
)
from sluice.gateway.blocks.refusal import Refusal, RefusalKind
from tests.gateway.block_makers import summary_of
from tests.gateway.blocks.proofs import real
from tests.gateway.blocks.proofs.record_files import (
    TIME,
    VERSION,
    block_items,
    book_bytes,
    contents,
    hash_object,
    record_file_item,
    record_file_proof,
    sign,
    signed,
)
from tests.gateway.blocks.proofs.state_proofs import len_field, varint_field

LONG = os.environ.get("SLUICE_LONG") == "1"
BOOK = read_address_book(book_bytes(4))
CHECK = RecordFileCheck(BOOK)


def check_signatures(signatures: list[tuple[int, bytes]], checker: RecordFileCheck = CHECK) -> Refusal | None:
    proof = record_file_proof(signatures)
    return checker.check(proof, summary_of(block_items(record_file_item(contents()), proof)))


def too_few(count: int, needed: int = 2) -> Refusal:
    return Refusal(
        RefusalKind.BAD_PROOF, "record-file proof", f"{count} nodes that signed", f"at least {needed}"
    )


# --- who counts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("node_ids", [[0, 1], [3, 0], [0, 1, 2, 3]])
def test_enough_nodes(node_ids: list[int]) -> None:
    assert CHECK.check(*signed(node_ids)) is None
    assert CHECK.check(*signed(node_ids, number=7)) is None


@pytest.mark.parametrize(
    ("node_count", "threshold", "needed"),
    [
        *((1, Fraction(1, 3), 1), (2, Fraction(1, 3), 1), (3, Fraction(1, 3), 2), (4, Fraction(1, 3), 2)),
        *((6, Fraction(1, 3), 3), (31, Fraction(1, 3), 11), (4, Fraction(0), 1), (4, Fraction(1, 2), 3)),
        *((4, Fraction(3, 4), 4), (3, Fraction(2, 3), 3), (30, Fraction(29, 30), 30)),
    ],
)
def test_the_count_is_strictly_above_the_threshold(node_count: int, threshold: Fraction, needed: int) -> None:
    book = AddressBook(BOOK.keys, node_count)
    assert RecordFileCheck(book, threshold).needed_count == needed
    assert needed > threshold * node_count >= needed - 1


@pytest.mark.parametrize("node_count", [*range(1, 14), 31, 1000])
def test_more_than_a_third_is_the_default(node_count: int) -> None:
    assert RecordFileCheck(AddressBook(BOOK.keys, node_count)).needed_count == node_count // 3 + 1


def test_too_few_nodes() -> None:
    assert CHECK.check(*signed([2])) == too_few(1)
    assert CHECK.check(*signed([])) == too_few(0)
    assert RecordFileCheck(BOOK, Fraction(1, 2)).check(*signed([0, 1])) == too_few(2, 3)


def test_nodes_that_cannot_count_are_passed_over() -> None:
    file = contents()
    good = [(node_id, sign(file, node_id)) for node_id in range(3)]
    strange = (9, good[0][1])
    assert check_signatures([strange, good[0], good[1]]) is None
    assert check_signatures([good[0], good[0]]) == too_few(1)
    assert check_signatures([good[0], (0, b"bad copy"), good[1]]) is None
    assert check_signatures([(1, b""), (2, bytes(256)), good[0]]) == too_few(1)
    assert check_signatures([(1, b""), (2, bytes(256)), good[0], good[1]]) is None
    assert check_signatures([((1 << 64) - 1, good[0][1]), good[0], good[1]]) is None


def test_an_address_book_without_a_needed_nodes_key_blames_nobody() -> None:
    """The proof might hold with the key of node 9; without it, nobody can tell."""
    good = (0, sign(contents(), 0))
    for proof in ([good, (9, b"x")], [(9, b"x"), good, (9, b"y")], [good, (0, b"z"), (9, b"x")]):
        refusal = check_signatures(proof)
        assert refusal is not None
        assert refusal.kind is RefusalKind.MISSING_VERIFICATION_DATA
        assert refusal.got == (
            "1 nodes that signed, and signatures of nodes without a key in the address book: 9"
        )
    assert check_signatures([(9, b"x")]) == too_few(0)
    many = check_signatures([(node_id, b"x") for node_id in range(100, 120)])
    assert many is not None
    assert many.got.endswith(": 100, 101, 102, 103, 104, 105, 106, 107, …")


def test_one_signature_that_does_not_verify_refuses_the_proof() -> None:
    file = contents()
    good = [(node_id, sign(file, node_id)) for node_id in range(4)]
    wrong = bytearray(good[3][1])
    wrong[100] ^= 1
    for bad in (bytes(wrong), good[2][1], good[3][1][:-1], good[3][1] + b"\0", sign(file + b"\0", 3)):
        refusal = check_signatures([*good[:3], (3, bad)])
        assert refusal == Refusal(
            RefusalKind.BAD_PROOF,
            "record-file proof: node 3",
            f"signature {bad[:8].hex()}…, which its key does not verify",
            "a signature of the record file",
        )


def test_what_is_signed() -> None:
    """The version, 6, in four bytes, big-endian, then the contents."""
    assert signed_payload(b"abc") == hashlib.sha384(bytes([0, 0, 0, 6]) + b"abc").digest()


def test_a_file_is_read_once_for_all_proofs_of_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block may have four proofs, and reading a file of 100,000 fields takes 0.1 s."""
    read_files: list[bytes] = []
    read = record_file.read_record_file

    def reading(item: bytes) -> record_file.RecordFile:
        read_files.append(item)
        return read(item)

    monkeypatch.setattr(record_file, "read_record_file", reading)
    check = RecordFileCheck(BOOK)
    (first, summary), (second, _), (few, _) = signed([0, 1]), signed([1, 0]), signed([0])
    assert [check.check(proof, summary) for proof in (first, second, few)] == [None, None, too_few(1)]
    assert read_files == [summary.record_file]
    later, later_summary = signed([0, 1], number=7)
    assert check.check(later, later_summary) is None
    refusal = check.check(first, later_summary)
    assert refusal is not None
    assert refusal.what == "record-file proof: node 0"
    assert check.check(second, summary) is None
    assert read_files == [summary.record_file, later_summary.record_file, summary.record_file]


def test_a_signature_is_verified_once_for_all_proofs_of_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of four proofs may have the signatures of 500 nodes."""
    verified: list[bytes] = []

    class Key:
        def __init__(self, der: bytes) -> None:
            self._key = address_book.rsa_key(der)

        def verify(self, signature: bytes, *more: Any) -> None:
            verified.append(signature)
            assert self._key is not None
            self._key.verify(signature, *more)

    monkeypatch.setattr(record_file, "rsa_key", Key)
    check = RecordFileCheck(BOOK)
    (first, summary), (second, _), (third, _) = signed([0, 1]), signed([2, 1, 0]), signed([3, 0])
    assert [check.check(proof, summary) for proof in (first, second, third, first)] == [None] * 4
    by_node = [sign(contents(), node_id) for node_id in range(4)]
    assert verified == by_node
    assert check.check(record_file_proof([(1, by_node[1]), (0, by_node[1])]), summary) is not None
    assert verified == [*by_node, by_node[1]]
    later, later_summary = signed([0, 1], number=7)
    assert check.check(later, later_summary) is None
    assert len(verified) == 7


def test_no_keys() -> None:
    proof, summary = signed([0, 1])
    assert RecordFileCheck(AddressBook((), 0)).check(proof, summary) == Refusal(
        RefusalKind.MISSING_VERIFICATION_DATA,
        "record-file proof",
        "no RSA keys",
        "--ledger-key rsa:ADDRESS_BOOK.json",
    )


def test_a_block_without_a_record_file() -> None:
    proof, summary = signed([0, 1])
    assert CHECK.check(proof, summary._replace(record_file=None)) == Refusal(
        RefusalKind.MISSING_ITEM, "record-file proof", "no record file", "one in the block"
    )


@pytest.mark.parametrize("version", [0, 2, 5, 7, 1 << 33 | 6])
def test_other_versions(version: int) -> None:
    file = contents()
    proof = record_file_proof([(0, sign(file, 0)), (1, sign(file, 1))], version)
    refusal = CHECK.check(proof, summary_of(block_items(record_file_item(file), proof)))
    assert refusal == Refusal(RefusalKind.UNSUPPORTED, "record-file proof: version", str(version), "6")


@pytest.mark.parametrize("node_id", [1 << 31, 1 << 32, (1 << 50) + 1, (1 << 64) - (1 << 31) - 1])
def test_a_node_id_is_an_int32(node_id: int) -> None:
    """A parser takes 2^50 + 1 for node 1 and would count a signature that is skipped here."""
    good = [(number, sign(contents(), number)) for number in range(3)]
    assert check_signatures([*good, (node_id, good[1][1])]) == Refusal(
        RefusalKind.CANNOT_PARSE, "record-file proof: signature 3: node id", str(node_id), "an int32"
    )
    for no_node in ((1 << 31) - 1, (1 << 64) - (1 << 31), (1 << 64) - 1):
        assert check_signatures([*good, (no_node, good[1][1])]) is None


# --- what must agree ----------------------------------------------------------------------------------------


def test_the_file_must_be_of_this_block() -> None:
    file = contents(8)
    proof = record_file_proof([(0, sign(file, 0)), (1, sign(file, 1))])
    refusal = CHECK.check(proof, summary_of(block_items(record_file_item(file), proof, 7)))
    assert refusal == Refusal(RefusalKind.BAD_PROOF, "record file: block number", "8", "7, as in the header")


def test_the_creation_time_must_be_the_header_s() -> None:
    file = contents()
    proof = record_file_proof([(0, sign(file, 0)), (1, sign(file, 1))])
    other = block_pb2.Timestamp(seconds=1_700_000_000, nanos=6).SerializeToString()
    for time in (other, b"", TIME + b"\x10\x05"):
        refusal = CHECK.check(proof, summary_of(block_items(record_file_item(file, time), proof)))
        assert refusal == Refusal(
            RefusalKind.BAD_PROOF, "record file: creation time", time.hex(), f"{TIME.hex()}, as in the header"
        )


def test_a_refusal_shows_the_start_of_a_long_field() -> None:
    """A field of 8 MB would come back to the event loop as 16 MB of digits."""
    file = contents()
    proof = record_file_proof([(0, sign(file, 0)), (1, sign(file, 1))])
    refusal = CHECK.check(proof, summary_of(block_items(record_file_item(file, b"\x08" * 33), proof)))
    assert refusal is not None
    assert refusal.got == "08" * 32 + "…"


def test_the_version_must_be_the_header_s() -> None:
    other = block_pb2.SemanticVersion(minor=77).SerializeToString()
    refusal = CHECK.check(*signed([0, 1], inner={"version": len_field(1, other)}))
    assert refusal == Refusal(
        RefusalKind.BAD_PROOF,
        "record file: HAPI version",
        other.hex(),
        f"{VERSION.hex()}, as in the header",
    )


def test_block_0_begins_with_zeros() -> None:
    start = {"start": len_field(2, hash_object(b"\x01" * 48))}
    assert CHECK.check(*signed([0, 1], number=1, inner=start)) is None
    refusal = CHECK.check(*signed([0, 1], inner=start))
    assert refusal == Refusal(
        RefusalKind.BAD_PROOF, "record file: start running hash of block 0", "01" * 48, "zeros"
    )


# --- reading ------------------------------------------------------------------------------------------------


def test_a_record_file() -> None:
    item = record_file_item(contents(5), more=len_field(3, b"sidecar") + len_field(4, b"amendment"))
    file = read_record_file(item)
    assert (file.contents, file.creation_time, file.hapi_proto_version) == (contents(5), TIME, VERSION)
    assert (file.block_number, file.start_running_hash, file.end_running_hash) == (5, bytes(48), b"w" * 48)


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (record_file_item(b""), "record file: contents: got nothing, expected a record stream file"),
        (
            record_file_item(contents(), more=len_field(2, b"x")),
            "record file: field 2: got it twice, expected",
        ),
        (
            record_file_item(contents(), more=varint_field(2, 1)),
            "record file: field 2: got it twice, expected",
        ),
        (
            record_file_item(contents(), more=len_field(1, TIME)),
            "record file: field 1: got it twice, expected",
        ),
        (record_file_item(contents(5) + varint_field(5, 5)), "record stream file: field 5: got it twice"),
        (
            record_file_item(contents(start=b"")),
            "record stream file: start running hash: got , expected a SHA",
        ),
        (
            record_file_item(contents(end=len_field(4, hash_object(bytes(47))))),
            "record stream file: end running hash: got 080110301a2f00",
        ),
        (
            record_file_item(contents(end=varint_field(4, 1))),
            "record stream file: field 4: got wire type 0, expected wire type 2",
        ),
        (record_file_item(b"\x0f"), "record stream file: wire type of field at byte 0: got 7, expected 0, 1"),
        (b"\x52\x05", "record file: length of item field 10: got 5 bytes, expected 0, all that follow"),
    ],
    ids=range(10),
)
def test_malformed_record_files(item: bytes, text: str) -> None:
    with pytest.raises(ProofDataError) as caught:
        read_record_file(item)
    assert str(caught.value).startswith(text)


def test_the_fields_of_a_record_file_are_bounded() -> None:
    """The item has at least two, and the file three beside its records."""
    record, amendment = len_field(3, b""), len_field(4, b"")
    most = RECORD_FILE_FIELDS_MAX - 5
    assert read_record_file(record_file_item(contents(records=record * most))).block_number == 0
    half = record_file_item(contents(records=record * (most // 2)), more=amendment * (most - most // 2))
    assert read_record_file(half).block_number == 0
    for item in (
        record_file_item(contents(records=record * (most + 1))),
        record_file_item(contents(records=record * most), more=amendment),
    ):
        with pytest.raises(ProofDataError, match=r"m file: got more fields, expected at most 100000 in all$"):
            read_record_file(item)
    with pytest.raises(ProofDataError, match=r"^record file: got more fields, expected at most 100000 in"):
        read_record_file(record_file_item(contents(), more=amendment * (most + 4)))


@pytest.mark.parametrize(
    ("spoiled", "text"),
    [
        (len_field(3, b""), "record-file proof: got field 3 of wire type 2"),
        (len_field(2, b"") + varint_field(1, 6), "record-file proof: got field 1 after field 2"),
        (varint_field(1, 6) * 2, "record-file proof: got field 1 after field 1"),
        (
            len_field(2, varint_field(2, 0)),
            "record-file proof: signature 0: node id: got 0 in two bytes, expected 0 left out",
        ),
        (len_field(2, varint_field(2, 1) + len_field(1, b"")), "record-file proof: signature 0: got field 1"),
        (
            len_field(2, b"") * (RECORD_FILE_SIGNATURES_MAX + 1),
            "record-file proof: got more signatures, expected at most 500",
        ),
        (
            len_field(2, varint_field(2, 1) + len_field(3, b"")),
            "record-file proof: signature 0: got field 3 of wire type 2",
        ),
        (
            len_field(2, len_field(1, b"") + len_field(2, b"\x01")),
            "record-file proof: signature 0: got field 2 of wire type 2",
        ),
    ],
    ids=range(8),
)
def test_malformed_proofs(spoiled: bytes, text: str) -> None:
    with pytest.raises(ProofDataError) as caught:
        read_record_file_proof(spoiled)
    assert str(caught.value).startswith(text)
    refusal = CHECK.check(spoiled, signed([0, 1])[1])
    assert refusal is not None
    assert refusal.kind is RefusalKind.CANNOT_PARSE


# --- real blocks --------------------------------------------------------------------------------------------

# First four bytes of the payloads, docs/spec/proofs.md section 4.2.
PAYLOADS = ("e2f95e39", "3951a3cf", "78c4c4f0")


def real_check(threshold: Fraction = DEFAULT_THRESHOLD) -> RecordFileCheck:
    book = (real.FOLDER / "record-file-chain" / "address-book.json").read_bytes()
    return RecordFileCheck(read_address_book(book), threshold)


@real.needs_real_blocks
@pytest.mark.parametrize("number", range(3))
def test_blocks_of_a_real_network(number: int) -> None:
    checker = real_check()
    assert checker.needed_count == 2
    summary = real.summary("record-file-chain", number)
    proof = proof_of(summary.proofs[0]).signed_record_file_proof
    assert summary.record_file is not None
    file = read_record_file(summary.record_file)
    assert signed_payload(file.contents).hex()[:8] == PAYLOADS[number]
    assert checker.check(proof, summary) is None
    assert [node_id for node_id, _ in read_record_file_proof(proof)[1]] == (
        [0, 2, 3] if number else [0, 1, 3]
    )
    other = proof_of(real.summary("record-file-chain", (number + 1) % 3).proofs[0]).signed_record_file_proof
    refusal = checker.check(other, summary)
    assert refusal is not None
    assert refusal.what == "record-file proof: node 0"
    assert CHECK.check(proof, summary) is not None


@real.needs_real_blocks
def test_running_hashes_of_a_real_network_link() -> None:
    files = []
    for number in range(3):
        item = real.summary("record-file-chain", number).record_file
        assert item is not None
        files.append(read_record_file(item))
    assert files[0].start_running_hash == bytes(48)
    assert files[1].start_running_hash == files[0].end_running_hash
    assert files[2].start_running_hash == files[1].end_running_hash


# --- tampering ----------------------------------------------------------------------------------------------


def altered_bits(proof: bytes) -> list[int]:
    """Every bit in the long run; else every bit that frames the signatures, and some of theirs."""
    if LONG:
        return list(range(8 * len(proof)))
    framing = [at for at in range(len(proof)) if at < 12 or proof[at : at + 2] in (b"\x12\x83", b"\x12\x85")]
    near = {at + offset for at in framing for offset in range(-3, 8) if 0 <= at + offset < len(proof)}
    bits = {8 * at + bit for at in near for bit in range(8)}
    return sorted(bits | set(random.Random(6).sample(range(8 * len(proof)), 200)))


@real.needs_real_blocks
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", range(3))
def test_an_altered_bit_can_only_take_a_signer_away(number: int) -> None:
    """docs/spec/proofs.md section 4.4: a signature of an unknown node is skipped."""
    summary = real.summary("record-file-chain", number)
    proof = proof_of(summary.proofs[0]).signed_record_file_proof
    signers = {node_id for node_id, _ in read_record_file_proof(proof)[1]}
    two, three = real_check(), real_check(Fraction(1, 2))
    assert (two.needed_count, three.needed_count, len(signers)) == (2, 3, 3)
    accepted = 0
    for bit in altered_bits(proof):
        altered = bytearray(proof)
        altered[bit // 8] ^= 1 << bit % 8
        assert three.check(bytes(altered), summary) is not None, bit
        if two.check(bytes(altered), summary) is None:
            accepted += 1
            left = {node_id for node_id, _ in read_record_file_proof(bytes(altered))[1]} & signers
            assert len(left) == 2, bit
    assert accepted == 13 if LONG else accepted > 0
