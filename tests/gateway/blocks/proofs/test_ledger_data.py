"""Tests of `gateway.blocks.proofs.ledger_data`; the two derived keys of tss.md section 7 are derived here."""

from __future__ import annotations

import struct
from hashlib import sha256

import pytest

from sluice.gateway.blocks.errors import BlockRefused, ProofDataError
from sluice.gateway.blocks.items import ItemKind, WireType, field_item, varint
from sluice.gateway.blocks.proofs import baby_jubjub as jubjub
from sluice.gateway.blocks.proofs import ledger_data
from sluice.gateway.blocks.proofs.encoding import scalar_bytes
from sluice.gateway.blocks.proofs.hash_to_field import hash_to_field
from sluice.gateway.blocks.proofs.ledger_data import (
    PADDING_KEY,
    PUBLICATION_SIZE_MAX,
    SENTINEL_KEY,
    LedgerData,
    SearchLimits,
    address_book_hash,
    publications_in,
    published_ledger,
    publishing_items,
    read_publication,
    refusal_of,
)
from sluice.gateway.blocks.refusal import Refusal, RefusalKind
from tests.gateway.blocks.proofs import real
from tests.gateway.blocks.proofs.encoders import publication_bytes
from tests.gateway.blocks.proofs.tss_network import TssNetwork, attested_key, attested_key_of

q = jubjub.FIELD_PRIME
NETWORK = TssNetwork((2, 1, 1))
KEYS = NETWORK.attested_keys
WHAT = "ledger id publication"
SENTINEL = jubjub.point_bytes(SENTINEL_KEY) + jubjub.point_bytes(jubjub.IDENTITY) + bytes(64)


# --- the derived constants ----------------------------------------------------------------------------------


def is_square(value: int) -> bool:
    return value == 0 or pow(value, (q - 1) // 2, q) == 1


def square_root(square: int) -> int:
    """Tonelli and Shanks; q - 1 is divisible by 2^28."""
    odd, exponent = q - 1, 0
    while odd % 2 == 0:
        odd, exponent = odd // 2, exponent + 1
    c, root, t = pow(5, odd, q), pow(square, (odd + 1) // 2, q), pow(square, odd, q)
    assert not is_square(5)
    while t != 1:
        i, power = 0, t
        while power != 1:
            i, power = i + 1, power * power % q
        b = pow(c, 1 << (exponent - i - 1), q)
        exponent, c, root, t = i, b * b % q, root * b % q, t * b * b % q
    return root


def elligator_2(u: int) -> jubjub.Point:
    """RFC 9380 section 6.7.1 with Z = 5, for K t^2 = s^3 + J s^2 + s, mapped to the Edwards curve."""
    J, K, Z = 168698, 168700, 5
    x1 = -(J * pow(K, -1, q)) * pow(1 + Z * u * u, -1, q) % q

    def g(x: int) -> int:
        return (x**3 + J * pow(K, -1, q) * x * x + x * pow(K * K, -1, q)) % q

    x, sign = (x1, 1) if is_square(g(x1)) else ((-x1 - J * pow(K, -1, q)) % q, 0)
    y = square_root(g(x))
    if y % 2 != sign:
        y = -y % q
    s, t = x * K % q, y * K % q
    return s * pow(t, -1, q) % q, (s - 1) * pow(s + 1, -1, q) % q


def test_the_sentinel_key_is_a_hash_to_the_curve() -> None:
    u0, u1 = hash_to_field(b"HieroTSS", b"HieroTSSWrapsSentinelKey", q, 2)
    total = jubjub.add([elligator_2(u0), elligator_2(u1)])
    assert jubjub.multiply(8, total) == SENTINEL_KEY


def chacha12_block(key: bytes, counter: int) -> bytes:
    """The ChaCha block function with 12 rounds, a 64-bit counter and a nonce of zeros."""
    start = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key), counter, 0, 0, 0]
    state = list(start)

    def quarter(a: int, b: int, c: int, d: int) -> None:
        for x, y, z, shift in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            state[x] = (state[x] + state[y]) & 0xFFFFFFFF
            mixed = state[z] ^ state[x]
            state[z] = (mixed << shift | mixed >> (32 - shift)) & 0xFFFFFFFF

    for _ in range(6):
        for column in range(4):
            quarter(column, 4 + column, 8 + column, 12 + column)
        for diagonal in range(4):
            quarter(diagonal, 4 + (diagonal + 1) % 4, 8 + (diagonal + 2) % 4, 12 + (diagonal + 3) % 4)
    return struct.pack("<16I", *((a + b) & 0xFFFFFFFF for a, b in zip(state, start, strict=True)))


def test_the_padding_key_is_drawn_from_a_fixed_seed() -> None:
    seed = sha256(bytes(32) + b"\0").digest()
    stream = b"".join(chacha12_block(seed, counter) for counter in range(8))
    for start in range(0, len(stream), 32):
        value = int.from_bytes(stream[start : start + 32], "little") & (1 << 251) - 1
        if value < jubjub.SUBGROUP_ORDER:
            break
    else:
        raise AssertionError("no value in 16 draws")
    secret = value * pow(2, -256, jubjub.SUBGROUP_ORDER) % jubjub.SUBGROUP_ORDER
    assert jubjub.multiply(secret, jubjub.BASE) == PADDING_KEY


# --- real publications --------------------------------------------------------------------------------------


@real.needs_real_blocks
@pytest.mark.parametrize(
    ("chain", "ledger_id"),
    [
        ("signed-chain", "2d342330e766b2bee6d8c147393aa697fc0f8c2d88e65260af9aee0be1bfb205"),
        ("layout-8-chain", "439bc42bd91eb5dce5eb6a9aaea17ed5789d8163f30d5f71ba592d8d3cc3020b"),
        ("wraps-chain", "17fbc01aecd3bd502b37657bde5af3e6791a13ddbe1eb95389ba5cbf84a63a2f"),
    ],
)
def test_block_0_of_a_network_publishes_its_ledger(chain: str, ledger_id: str) -> None:
    ledger = real.ledger(chain)
    assert ledger.ledger_id.hex() == ledger_id
    assert [(node.node_id, node.weight) for node in ledger.nodes] == [(0, 1), (1, 1), (2, 1), (3, 1)]
    assert ledger.total_weight == 4
    assert len(ledger.wraps_vk) == 1768
    assert refusal_of(ledger) is None
    entries = [(node.node_id, node.weight, attested_key_of(node)) for node in ledger.nodes]
    assert publication_bytes(ledger.ledger_id, ledger.wraps_vk, entries) == real.publication(chain)


@real.needs_real_blocks
def test_other_blocks_publish_nothing() -> None:
    for chain, number in (("signed-chain", 1), ("wraps-chain", 391), ("record-file-chain", 0)):
        assert publications_in(real.block(chain, number).items) == []


# --- where a publication is ---------------------------------------------------------------------------------


def transaction(*bodies: bytes) -> bytes:
    """A signed transaction with these bodies; a real one has one."""
    signed = b"".join(varint(1 << 3 | 2) + varint(len(body)) + body for body in bodies)
    return field_item(ItemKind.SIGNED_TRANSACTION, signed)


def body(*publications: bytes, before: bytes = b"\x18\x01") -> bytes:
    return before + b"".join(
        varint(77 << 3 | WireType.LEN) + varint(len(each)) + each for each in publications
    )


def test_publications_are_found_in_transactions_alone() -> None:
    found = transaction(body(b"one"))
    assert publications_in([transaction(body()), found]) == [b"one"]
    assert publications_in([found, found]) == [b"one"]
    assert publications_in([found, transaction(body(b"two", b"one"))]) == [b"one", b"two"]
    assert publications_in([transaction(body(), body(b"two"))]) == [b"two"]
    for kind in (ItemKind.TRANSACTION_RESULT, ItemKind.STATE_CHANGES):
        assert publications_in([field_item(kind, found)]) == []


def test_transactions_that_do_not_parse_are_passed_over() -> None:
    tag = varint(77 << 3 | WireType.LEN)
    for broken in (tag, b"\x0a\x7f" + tag, b"\x0a\x04" + tag + b"\x7f\x00", b"\x0b" + tag):
        items = [field_item(ItemKind.SIGNED_TRANSACTION, broken), transaction(body(b"one"))]
        assert publications_in(items) == [b"one"]
    assert publications_in([b"\x23" + tag, b"", tag]) == []  # from a file, which nobody has looked at
    as_number = field_item(ItemKind.SIGNED_TRANSACTION, b"\x0a\x04" + varint(77 << 3) + b"\x01\x00")
    assert publications_in([as_number]) == []


def test_the_search_for_publications_is_bounded() -> None:
    # Four messages, of 1 + 2 and 1 + 3 fields.
    items = [transaction(body(b"one")), transaction(body(b"one", b"two"))]
    need = 4 * ledger_data.FIELDS_TO_BEGIN + 7
    assert publications_in(items, SearchLimits(fields_max=need)) == [b"one", b"two"]
    too_few = SearchLimits(fields_max=need - 1)
    with pytest.raises(BlockRefused) as caught:
        publications_in(items, too_few)
    assert str(caught.value.refusal) == (
        "unsupported: transactions of block 0 that may publish a ledger id: got more fields, "
        f"expected at most {need - 1} in all"
    )
    untagged = [transaction(b"\x18\x01")] * 9  # without the tag, nothing is read
    assert publications_in([*items[:1], *untagged], too_few) == [b"one"]


def test_transactions_that_do_not_parse_are_bounded_too() -> None:
    """A block 0 may have two million of them, without any field to count."""
    broken = field_item(ItemKind.SIGNED_TRANSACTION, varint(77 << 3 | WireType.LEN))
    limits = SearchLimits(fields_max=9 * ledger_data.FIELDS_TO_BEGIN)
    assert publications_in([broken] * 9, limits) == []
    with pytest.raises(BlockRefused, match=r"that may publish a ledger id: got more fields"):
        publications_in([broken] * 10, limits)


def test_the_bytes_of_transactions_that_are_searched_are_bounded() -> None:
    items = [transaction(body(b"one")), transaction(body(b"two")), transaction(b"\x18\x01" * 99)]
    size_bytes = len(items[0]) + len(items[1])
    assert publications_in(items, SearchLimits(bytes_max=size_bytes)) == [b"one", b"two"]
    with pytest.raises(BlockRefused) as caught:
        publications_in(items, SearchLimits(bytes_max=size_bytes - 1))
    assert str(caught.value.refusal) == (
        "unsupported: transactions of block 0 that may publish a ledger id: got more bytes, "
        f"expected at most {size_bytes - 1} in all"
    )


@pytest.mark.parametrize("reached", ["fields", "bytes"])
def test_of_items_that_may_publish_no_more_are_taken_than_are_refused(reached: str) -> None:
    """The node need not send all items of a block 0 to the process that refuses them."""
    other, broken = transaction(b"\x18\x01"), field_item(4, varint(77 << 3 | WireType.LEN))
    limits = {
        "fields": SearchLimits(fields_max=100 * ledger_data.FIELDS_TO_BEGIN),
        "bytes": SearchLimits(bytes_max=100 * len(broken)),
    }[reached]
    assert publishing_items([other, broken, other, *[broken] * 99], limits) == [broken] * 100
    assert publications_in([broken] * 100, limits) == []
    assert publishing_items([*[broken] * 1_000, other], limits) == [broken] * 101
    with pytest.raises(BlockRefused, match=rf"got more {reached}, expected at most [0-9]+ in all$"):
        publications_in([broken] * 101, limits)


def test_the_search_for_the_publication_of_an_id_is_bounded() -> None:
    """The search reads the id of each of several publications, and counts their fields."""
    named = varint(1 << 3 | WireType.LEN) + b"\x20" + bytes(32)
    others = [named + bytes((0x50, 1)) * 20 + bytes((0x58, index)) for index in range(5)]  # 22 fields each
    items = [transaction(body(*others, NETWORK.publication))]
    of_transaction, of_network = 1 + 1 + 6, 1 + len(NETWORK.weights)
    need = 8 * ledger_data.FIELDS_TO_BEGIN + of_transaction + 5 * 22 + of_network
    ledger_id = NETWORK.ledger.ledger_id
    assert published_ledger(items, ledger_id, SearchLimits(fields_max=need)) == NETWORK.ledger
    with pytest.raises(BlockRefused, match=rf"expected at most {need - 1} in all$"):
        published_ledger(items, ledger_id, SearchLimits(fields_max=need - 1))


def test_publications_of_other_ids_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would cost up to 0.4 s, and a block 0 may have thousands."""
    decoded: list[bytes] = []
    read = ledger_data.read_publication

    def reading(publication: bytes) -> LedgerData:
        decoded.append(publication)
        return read(publication)

    monkeypatch.setattr(ledger_data, "read_publication", reading)
    entries = list(zip((0, 1, 2), (2, 1, 1), KEYS, strict=True))
    others = [publication_bytes(bytes((index,)) * 32, b"", entries) for index in range(1, 30)]
    items = [transaction(body(*others, b"\x0a\x7f", NETWORK.publication))]
    assert published_ledger(items, NETWORK.ledger.ledger_id) == NETWORK.ledger
    assert decoded == [NETWORK.publication]


def test_of_two_publications_only_who_knows_the_id_takes_one() -> None:
    """Both are credible, and their order in the block says nothing."""
    other = TssNetwork((1, 1))
    assert refusal_of(other.ledger) is None
    items = [transaction(body(NETWORK.publication)), transaction(body(other.publication))]
    with pytest.raises(BlockRefused) as caught:
        published_ledger(items)
    assert str(caught.value.refusal) == f"bad proof: {WHAT} in block 0: got 2 that differ, expected one"
    for ledger in (NETWORK.ledger, other.ledger):
        assert published_ledger(items, ledger.ledger_id) == ledger


# --- what a publication must be -----------------------------------------------------------------------------


def test_what_was_published_reads_back() -> None:
    ledger = NETWORK.ledger
    assert ledger.ledger_id == address_book_hash(ledger.nodes)
    assert [(node.node_id, node.weight) for node in ledger.nodes] == [(0, 2), (1, 1), (2, 1)]
    assert ledger.publication == NETWORK.publication
    assert refusal_of(ledger) is None
    later_field = NETWORK.publication + varint(9 << 3) + b"\x01"
    assert read_publication(later_field) == ledger


def test_the_order_of_the_entries_counts() -> None:
    entries = list(zip((0, 1, 2), (1, 1, 1), KEYS, strict=True))
    assert NETWORK.publication_of(entries) != NETWORK.publication_of(entries[::-1])
    turned = publication_bytes(NETWORK.ledger.ledger_id, b"", entries[::-1])
    refusal = refusal_of(read_publication(turned))
    assert refusal is not None
    assert refusal.what == f"{WHAT}: ledger id (tss.md 7.2)"


def test_a_publication_under_another_id_is_refused() -> None:
    book_hash = NETWORK.ledger.ledger_id
    entries = list(zip(NETWORK.node_ids, NETWORK.weights, KEYS, strict=True))
    for other in (bytes(32), book_hash[:-1] + bytes((book_hash[-1] ^ 1,))):
        assert refusal_of(read_publication(publication_bytes(other, b"", entries))) == Refusal(
            RefusalKind.BAD_PROOF,
            f"{WHAT}: ledger id (tss.md 7.2)",
            other.hex(),
            f"{book_hash.hex()}, the address book's hash",
        )


def test_every_node_has_to_know_its_secret() -> None:
    borrowed = KEYS[0][:64] + KEYS[1][64:]
    entries = [(0, 1, KEYS[0]), (7, 1, borrowed)]
    assert refusal_of(read_publication(NETWORK.publication_of(entries))) == Refusal(
        RefusalKind.BAD_PROOF,
        f"{WHAT}: node 7",
        "a proof of knowledge that does not hold (tss.md 5.1)",
        "one that does",
    )


def test_the_sentinel_key_needs_no_proof() -> None:
    entries = [(0, 1, KEYS[0]), (1, 1, SENTINEL), (2, 1, SENTINEL)]
    assert refusal_of(read_publication(NETWORK.publication_of(entries))) is None


def test_all_points_of_a_publication_are_of_the_subgroup() -> None:
    """The proof of knowledge checks R of a key; its order checks R of a sentinel key."""
    order_2 = jubjub.point_bytes((0, q - 1))
    spoiled = KEYS[0][:64] + order_2 + KEYS[0][128:]
    refusal = refusal_of(read_publication(NETWORK.publication_of([(7, 1, spoiled)])))
    assert refusal is not None
    assert refusal.got == "a proof of knowledge that does not hold (tss.md 5.1)"
    spoiled = SENTINEL[:64] + order_2 + bytes(64)
    with pytest.raises(ProofDataError) as caught:
        NETWORK.publication_of([(7, 1, spoiled)])
    assert str(caught.value) == (
        f"{WHAT}: entry 0 key: R: got 0000000000000000…, of another order, expected a point of order l"
    )


def test_the_identity_is_a_key_like_any_other() -> None:
    """Its secret is 0, which everybody knows; the book's hash, and so the ledger id, must include it."""
    entries = [(0, 1, attested_key(0, 9))]
    assert refusal_of(read_publication(NETWORK.publication_of(entries))) is None


def test_one_to_128_nodes() -> None:
    many = [(index, index, KEYS[index % 3]) for index in range(129)]
    full = read_publication(publication_bytes(bytes(32), b"", many[:128]))
    assert len(full.nodes) == 128
    assert full.total_weight == 127 * 64
    for entries in ([], many):
        with pytest.raises(ProofDataError) as caught:
            read_publication(publication_bytes(bytes(32), b"", entries))
        assert str(caught.value) == f"{WHAT}: nodes: got {len(entries)}, expected 1 to 128"


def spoiled(**changes: bytes) -> bytes:
    """A publication with some of its parts replaced."""
    parts = {
        "id": b"\x0a\x20" + bytes(32),
        "wraps": b"",
        "node": b"\x1a\xc7\x01" + b"\x08\x05\x10\x03" + b"\x1a\xc0\x01" + KEYS[0],
        "rest": b"",
    } | changes
    return b"".join(parts.values())


def test_the_parts_of_a_publication() -> None:
    [node] = read_publication(spoiled()).nodes
    assert (node.node_id, node.weight) == (5, 3)


def test_the_largest_weight() -> None:
    """A test below refuses one more."""
    weight = (1 << 63) - 1
    parts = b"\x10" + varint(weight) + b"\x1a\xc0\x01" + KEYS[0]
    [node] = read_publication(spoiled(node=b"\x1a" + varint(len(parts)) + parts)).nodes
    assert (node.node_id, node.weight) == (0, weight)


@pytest.mark.parametrize(
    ("publication", "message"),
    [
        (b"", f"{WHAT}: ledger id: got 0 bytes, expected 32"),
        (spoiled(id=b""), f"{WHAT}: ledger id: got 0 bytes, expected 32"),
        (spoiled(id=b"\x0a\x1f" + bytes(31)), f"{WHAT}: ledger id: got 31 bytes, expected 32"),
        (spoiled(rest=b"\x0a\x20" + bytes(32)), f"{WHAT}: field 1: got it twice, expected at most once"),
        (spoiled(id=b"\x08\x01"), f"{WHAT}: field 1: got wire type 0, expected 2"),
        (spoiled(wraps=b"\x12\x01x"), f"{WHAT}: WRAPS key: got 1 bytes, expected 1768, or none"),
        (spoiled(node=b"\x1a\x00"), f"{WHAT}: entry 0 key: got 0 bytes, expected 192"),
        (
            spoiled(node=b"\x1a\x04" + b"\x08\x01\x08\x01"),
            f"{WHAT}: entry 0 field 1: got it twice, expected at most once",
        ),
        (
            spoiled(node=b"\x1a\x02" + b"\x18\x01"),
            f"{WHAT}: entry 0 field 3: got wire type 0, expected 2",
        ),
        (
            spoiled(node=b"\x1a\x02" + b"\x0a\x00"),
            f"{WHAT}: entry 0 field 1: got wire type 2, expected 0",
        ),
        (
            spoiled(node=b"\x1a\x0b" + b"\x10" + varint(1 << 63)),
            f"{WHAT}: entry 0 weight: got {1 << 63}, expected at most {(1 << 63) - 1}",
        ),
        (
            spoiled(node=b"\x1a\xc3\x01" + b"\x1a\xc0\x01" + bytes(192)),
            (
                f"{WHAT}: entry 0 key: Y: got 0000000000000000…, which is not on Baby Jubjub, "
                "expected a point of it"
            ),
        ),
        (
            spoiled(rest=spoiled(id=b"")),
            f"{WHAT}: node 5: got it twice, expected at most once",
        ),
        (
            spoiled(rest=b"\x1a\x05"),
            f"{WHAT}: length of field at byte 236: got 5 bytes, expected at most 0, all that follow",
        ),
        (bytes(PUBLICATION_SIZE_MAX + 1), f"{WHAT}: got 65537 bytes, expected at most 65536"),
    ],
)
def test_what_is_no_publication_is_refused(publication: bytes, message: str) -> None:
    with pytest.raises(ProofDataError) as caught:
        read_publication(publication)
    assert str(caught.value) == message


def test_scalars_and_ids_are_the_books_own() -> None:
    """The hash covers each weight, node id and key."""
    base = [(1, 5, KEYS[0])]
    hashes = {
        address_book_hash(read_publication(publication_bytes(bytes(32), b"", entries)).nodes)
        for entries in (base, [(2, 5, KEYS[0])], [(1, 6, KEYS[0])], [(1, 5, KEYS[1])])
    }
    assert len(hashes) == 4
    assert all(len(each) == 32 and int.from_bytes(each, "little") < q for each in hashes)
    assert scalar_bytes(0) not in hashes
