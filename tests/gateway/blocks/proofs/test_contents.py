"""Tests of `gateway.blocks.proofs.contents`: proofs of single items, against trees built here."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Literal

import pytest

from sluice.gateway.api import block_pb2, item_proof_pb2, proof_pb2
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.errors import BlockRefused, NotProvable, ProofDataError
from sluice.gateway.blocks.items import field_item, kinds_of
from sluice.gateway.blocks.merkle import Sibling, audit_path, sides_of
from sluice.gateway.blocks.proofs import ProofKind, ProofVerifier, RsaBook
from sluice.gateway.blocks.proofs.contents import (
    ContentsProof,
    ItemProof,
    ProvableBlock,
    ProvenItem,
    claim_of,
    verify_item_proof,
)
from sluice.gateway.blocks.refusal import Refusal, RefusalKind
from sluice.gateway.blocks.trusted_keys import TrustedKeys
from tests.gateway.block_makers import block_items
from tests.gateway.blocks.proofs import real, record_files
from tests.gateway.blocks.proofs.made_chain import BlockPlan, MadeChain
from tests.gateway.blocks.proofs.state_proofs import len_field
from tests.gateway.blocks.proofs.tss_network import TssNetwork
from tests.nodes import KEY, make_blocks

LONG = os.environ.get("SLUICE_LONG") == "1"
ED25519 = ProofVerifier(TrustedKeys(ed25519=(KEY.public_key().public_bytes_raw(),)))
EVERY_KIND = tuple(
    field_item(kind, b"item %d of kind %d" % (count, kind))
    for count in range(5)
    for kind in (2, 3, 4, 5, 6, 7, 11, 23, 24, 25, 26, 27, 28, 35, 1006, 1008 + 20)
    if kind % 20 != 8 or kind == 28
)
OLD_KINDS = tuple(item for item in EVERY_KIND if item[0] < 0x80 and item[0] >> 3 < 12)
"""Layout 8 has no subtree for extensions."""


# --- another implementation ---------------------------------------------------------------------------------

_Side = tuple[bool, bytes]
_OF_KIND = {1: 2, 2: 0, 3: 0, 4: 1, 5: 2, 6: 2, 7: 3, 10: 2, 11: 4}
_OF_REMAINDER = {3: 0, 4: 1, 5: 2, 6: 3, 7: 4, **{8 + number: 5 + number for number in range(8)}}


def sha384(*parts: bytes) -> bytes:
    """SHA-384 over parts."""
    return hashlib.sha384(b"".join(parts)).digest()


def tree(hashes: Sequence[bytes]) -> bytes:
    """The root over hashes, by its recursive definition."""
    if len(hashes) < 2:
        return hashes[0] if hashes else sha384(b"\0")
    middle = 1
    while 2 * middle < len(hashes):
        middle *= 2
    return sha384(b"\2", tree(hashes[:middle]), tree(hashes[middle:]))


def way_up(hashes: Sequence[bytes], place: int) -> list[_Side]:
    """The siblings of a leaf, from the bottom up."""
    if len(hashes) < 2:
        return []
    middle = 1
    while 2 * middle < len(hashes):
        middle *= 2
    if place < middle:
        return [*way_up(hashes[:middle], place), (False, tree(hashes[middle:]))]
    return [*way_up(hashes[middle:], place - middle), (True, tree(hashes[:middle]))]


def climbed(value: bytes, sides: Sequence[_Side]) -> bytes:
    """The hash at the end of a way."""
    for is_left, sibling in sides:
        if not sibling:
            value = sha384(b"\1", value)
        elif is_left:
            value = sha384(b"\2", sibling, value)
        else:
            value = sha384(b"\2", value, sibling)
    return value


def tag_of(item: bytes) -> int:
    """The field number of an item."""
    value = shift = 0
    for byte in item:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return value >> 3


def subtree_of(kind: int) -> int | None:
    """The place of an item's subtree among them; None: it is not hashed."""
    return _OF_KIND.get(kind) if kind < 20 else _OF_REMAINDER.get(kind % 20)


class NaiveBlock:
    """A block whose tree is built as a whole."""

    def __init__(self, items: Sequence[bytes], layout: Literal[8, 16]) -> None:
        self.items = items
        self.layout = layout
        self.subtrees: list[list[bytes]] = [[] for _ in range(13)]
        self.places: dict[int, tuple[int, int]] = {}
        for index, item in enumerate(items):
            subtree = subtree_of(tag_of(item))
            if subtree is not None and tag_of(item) not in (9, 12):
                self.places[index] = (subtree, len(self.subtrees[subtree]))
                self.subtrees[subtree].append(sha384(b"\0", item))
        header = block_pb2.BlockItem.FromString(items[0]).block_header
        self.time = sha384(b"\0", header.block_timestamp.SerializeToString())
        [footer] = [item for item in items if tag_of(item) == 12]
        links = block_pb2.BlockItem.FromString(footer).block_footer
        state = links.start_of_block_state_root_hash or (bytes(48) if layout == 8 else sha384(b"\0"))
        roots = [tree(leaves) for leaves in self.subtrees]
        top = [links.previous_block_root_hash, links.root_hash_of_all_block_hashes_tree, state, *roots]
        self.top = top[: 8 if layout == 8 else 16]
        self.root = climbed(self.top[0], self._from_top(0))

    def _from_top(self, leaf: int) -> list[_Side]:
        single: list[_Side] = [(False, b"")] if self.layout == 8 else []
        return [*way_up(self.top, leaf), *single, (True, self.time)]

    def way_of(self, index: int) -> list[_Side]:
        """From an item's leaf to the root."""
        subtree, place = self.places[index]
        return [*way_up(self.subtrees[subtree], place), *self._from_top(3 + subtree)]

    def way_of_tree(self) -> list[_Side]:
        """From the root over all blocks before to the root."""
        return self._from_top(1)


def naive(block: ProvableBlock) -> NaiveBlock:
    """The same block, built here."""
    return NaiveBlock(block.items, block.summary.root_layout)


# --- chains -------------------------------------------------------------------------------------------------

REAL = [
    ("signed-chain", 0),
    *(("signed-chain", number) for number in range(1, 6)),
    *(("layout-8-chain", number) for number in range(5)),
    ("wraps-chain", 0),
    ("wraps-chain", 391),
    ("simulator-chain", 2),
    ("simulator-wraps", 3),
]
_SIMULATED_LAYOUT_IS_THE_OTHER = ("simulator-chain", "simulator-wraps")


def real_block(chain: str, number: int) -> ProvableBlock:
    """A real block with its own root hash."""
    items = real.block(chain, number).items
    block = ProvableBlock(items)
    if chain in _SIMULATED_LAYOUT_IS_THE_OTHER:
        other = block.summary.in_other_layout()
        assert other is not None
        return ProvableBlock(items, other.root_hash)
    return block


@cache
def network() -> TssNetwork:
    """The network of made chains."""
    return TssNetwork()


@cache
def made() -> tuple[MadeChain, list[Block]]:
    """A chain of both layouts, which signs each third block."""
    random_ = random.Random(5)
    plans: list[BlockPlan] = []
    for number in range(24):
        layout: Literal[8, 16] = random_.choice((8, 16))
        body = random_.sample(EVERY_KIND if layout == 16 else OLD_KINDS, random_.choice((0, 1, 2, 7, 20)))
        state = b"" if number % 5 == 4 else b"\x5a" * 48
        plans.append(BlockPlan(layout, 77, tuple(body), state, is_signed=number % 3 == 2))
    chain = MadeChain(network(), plans)
    return chain, chain.blocks()


def provable(number: int) -> ProvableBlock:
    """A block of the made chain."""
    chain, blocks = made()
    return ProvableBlock(blocks[number].items, chain.roots[number])


def made_verifier() -> ProofVerifier:
    """With the keys of the made chain."""
    return ProofVerifier(TrustedKeys(), ledger=network().ledger)


def file_of(block: ProvableBlock, index: int) -> bytes:
    """The file of an item's proof."""
    header = None if index == 0 else block.prove(0)
    return ItemProof(block.summary.number, block.prove(index), header).to_bytes()


def file_under(number: int, index: int, later_number: int) -> bytes:
    """The file of an item's proof of the made chain, under a later block."""
    block, later, roots = provable(number), provable(later_number), made()[0].roots
    path = [Sibling(*side) for side in way_up(roots[:later_number], number)]
    header = None if index == 0 else block.prove_under(0, later, path)
    return ItemProof(number, block.prove_under(index, later, path), header, later.prove(0)).to_bytes()


def hashed_places(block: ProvableBlock) -> list[int]:
    """The places of items that the root hash covers."""
    return sorted(naive(block).places)


class KnownSignatures(ProofVerifier):
    """Holds the signatures of some root hashes for valid, and no others: real ones take some milliseconds."""

    def __init__(self, held: Sequence[tuple[bytes, bytes]]) -> None:
        super().__init__(TrustedKeys())
        self.held = frozenset(held)

    def check_signature(self, signature: bytes, root_hash: bytes) -> Refusal | None:
        """Compare."""
        if (signature, root_hash) in self.held:
            return None
        return Refusal(RefusalKind.BAD_PROOF, "signature", root_hash.hex(), "a signed one")


def signed_by(data: bytes) -> KnownSignatures:
    """Knows the signature of a file as it is."""
    message = item_proof_pb2.ItemProof.FromString(data)
    sides = [(one.is_first, one.sibling_hash) for one in message.item.sibling_hashes]
    root_hash = climbed(sha384(b"\0", message.item.block_item), sides)
    return KnownSignatures([(message.item.block_signature, root_hash)])


# --- known answers ------------------------------------------------------------------------------------------


def root_between(hashes: Sequence[bytes], begin: int, end: int) -> bytes:
    """The root over some of the leaves."""
    return tree(hashes[begin:end])


def test_an_audit_path_is_that_of_the_recursive_definition() -> None:
    for count in (1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 100):
        hashes = [sha384(b"%d" % place) for place in range(count)]
        for place in range(count):
            path = audit_path(place, count, partial(root_between, hashes))
            assert [tuple(sibling) for sibling in path] == way_up(hashes, place)
            assert climbed(hashes[place], way_up(hashes, place)) == tree(hashes)


@real.needs_real_blocks
@pytest.mark.parametrize(("chain", "number"), REAL)
def test_items_of_real_blocks_have_the_paths_of_another_implementation(chain: str, number: int) -> None:
    block = real_block(chain, number)
    other = naive(block)
    assert other.root == block.summary.root_hash
    places = hashed_places(block)
    for index in [*places[:3], *random.Random(number).sample(places, min(25, len(places))), places[-1]]:
        assert [tuple(sibling) for sibling in block.path_of(index)] == other.way_of(index)


@real.needs_real_blocks
@pytest.mark.parametrize(("chain", "number"), REAL)
def test_items_of_real_blocks_are_proved_with_the_keys_of_their_network(chain: str, number: int) -> None:
    verifier = ProofVerifier(TrustedKeys(), ledger=real.ledger(chain))
    block = real_block(chain, number)
    places = hashed_places(block)
    for index in {0, 1, places[len(places) // 2], places[-1]}:
        shown = verify_item_proof(file_of(block, index), verifier)
        assert (shown.block_number, shown.item) == (number, block.items[index])
        assert shown.root_hash == block.summary.root_hash
        assert shown.timestamp_seconds == block.summary.timestamp_seconds
        assert (shown.signed_by, shown.under_number) == (ProofKind.TSS, None)


def test_items_of_every_kind_are_proved_in_both_layouts_by_each_form_of_proof() -> None:
    verifier = made_verifier()
    layouts = set()
    for number in range(len(made()[1])):
        block = provable(number)
        other = naive(block)
        assert other.root == made()[0].roots[number]
        layouts.add((block.summary.root_layout, number % 3))
        for index in hashed_places(block):
            assert [tuple(sibling) for sibling in block.path_of(index)] == other.way_of(index)
            data = file_of(block, index)
            shown = verify_item_proof(data, signed_by(data))
            assert (shown.block_number, shown.item) == (number, block.items[index])
        verify_item_proof(file_of(block, hashed_places(block)[-1]), verifier)
    assert len(layouts) == 6


def test_a_state_proof_of_the_old_form_is_written_out() -> None:
    plans = [BlockPlan(8, 73, OLD_KINDS[:number], is_signed=number in (0, 4)) for number in range(5)]
    chain = MadeChain(network(), plans)
    for number in (1, 2, 3):
        block = ProvableBlock(chain.block(number, chain.form_a_proof(number)).items, chain.roots[number])
        for index in hashed_places(block):
            proof = block.prove(index)
            sides = [tuple(sibling) for sibling in proof.siblings]
            assert climbed(sha384(b"\0", proof.item), sides) == chain.roots[4]  # type: ignore[arg-type]
            shown = verify_item_proof(file_of(block, index), made_verifier())
            assert shown.block_number == number


def test_each_block_is_proved_under_each_later_one() -> None:
    chain, blocks = made()
    for number in range(len(blocks)):
        places = hashed_places(provable(number))
        for later_number in range(number + 1, len(blocks)):
            data = file_under(number, places[later_number % len(places)], later_number)
            shown = verify_item_proof(data, signed_by(data))
            assert (shown.block_number, shown.under_number) == (number, later_number)
            trusted = verify_item_proof(data, trusted_root_hash=chain.roots[later_number])
            assert trusted == shown._replace(signed_by=None)
            if later_number == len(blocks) - 1:
                assert verify_item_proof(data, made_verifier()) == shown


def test_the_root_over_all_blocks_is_reached_as_another_implementation_does() -> None:
    roots = made()[0].roots
    message = item_proof_pb2.ItemProof.FromString(file_under(3, 0, 11))
    sides = [(one.is_first, one.sibling_hash) for one in message.item.sibling_hashes]
    expected = [
        *naive(provable(3)).way_of(0),
        *way_up(roots[:11], 3),
        *naive(provable(11)).way_of_tree(),
    ]
    assert sides == expected  # block 11 is signed itself


# --- record files -------------------------------------------------------------------------------------------


def record_block(signers: Sequence[int], number: int = 0) -> tuple[ProvableBlock, bytes]:
    """A block around a record file that nodes have signed, and the file."""
    inner = record_files.contents(number)
    proof = record_files.record_file_proof([(one, record_files.sign(inner, one)) for one in signers])
    item = record_files.record_file_item(inner)
    return ProvableBlock(record_files.block_items(item, proof, number)), inner


def book(node_count: int) -> ProofVerifier:
    """With the keys of that many nodes."""
    return ProofVerifier(TrustedKeys(), rsa_book=RsaBook(record_files.book_bytes(node_count)))


def test_a_record_file_is_proved_by_its_nodes_alone() -> None:
    block, inner = record_block([0, 1, 2])
    data = ItemProof(0, block.prove(1), None).to_bytes()
    shown = verify_item_proof(data, book(4))
    contents = len_field(2, inner)
    expected = ProvenItem(0, field_item(10, contents), 10, None, None, None, ProofKind.RECORD_FILE)
    assert shown == expected == claim_of(data)


@pytest.mark.parametrize("size", [2920, 3432])
def test_a_record_file_proof_may_have_the_length_of_another_signature(size: int) -> None:
    """Signatures of zeros do not count."""
    inner = record_files.contents()
    good = [(one, record_files.sign(inner, one)) for one in range(3)]
    short = len(record_files.record_file_proof([*good, (4, b"")]))
    padded = record_files.record_file_proof([*good, (4, bytes(size - short - 2))])
    assert len(padded) == size
    items = record_files.block_items(record_files.record_file_item(inner), padded)
    data = ItemProof(0, ProvableBlock(items).prove(1), None).to_bytes()
    assert verify_item_proof(data, book(4)).signed_by is ProofKind.RECORD_FILE


def test_nothing_above_a_trusted_root_hash_is_shown() -> None:
    """Whoever invents a later block has no signature for it."""
    block = provable(4)
    path = [Sibling(is_left, bytes(48)) for is_left in sides_of(4, 9_999_999)]
    root = climbed(made()[0].roots[4], [(one.is_left, one.hash) for one in path])
    later = ProvableBlock(block_items(9_999_999, all_blocks=root))
    item = block.prove_under(0, later, path)
    data = ItemProof(4, item, None, later.prove(0)).to_bytes()
    assert claim_of(data).under_number == 9_999_999
    shown = verify_item_proof(data, trusted_root_hash=made()[0].roots[4])
    assert (shown.block_number, shown.under_number) == (4, None)
    with pytest.raises(BlockRefused):
        verify_item_proof(data, made_verifier())


def test_nothing_proves_an_item_beside_a_record_file() -> None:
    block, _ = record_block([0, 1, 2])
    with pytest.raises(NotProvable, match="proofs of block 0: got RSA record-file proof"):
        block.prove(0)


@real.needs_real_blocks
@pytest.mark.parametrize("number", range(3))
def test_real_record_files_are_proved(number: int) -> None:
    chain = "record-file-chain"
    verifier = ProofVerifier(
        TrustedKeys(), rsa_book=RsaBook((real.FOLDER / chain / "address-book.json").read_bytes())
    )
    block = ProvableBlock(real.block(chain, number).items)
    index = [tag_of(item) for item in block.items].index(10)
    shown = verify_item_proof(ItemProof(number, block.prove(index), None).to_bytes(), verifier)
    assert (shown.block_number, shown.kind, shown.root_hash) == (number, 10, None)


def test_a_record_file_is_refused_with_other_contents_or_too_few_signers() -> None:
    block, _ = record_block([0, 1, 2], number=3)
    data = ItemProof(3, block.prove(1), None).to_bytes()
    few, _ = record_block([0], number=3)
    for other, why in (
        (data.replace(b"SNAPSHOT", b"SNAPSHOX"), None),
        (ItemProof(4, block.prove(1), None).to_bytes(), "got 4, expected 3, as the record file says"),
        (ItemProof(3, few.prove(1), None).to_bytes(), "got 1 nodes that signed"),
        (ItemProof(3, block.prove(1), provable(3).prove(0)).to_bytes(), "headers beside"),
    ):
        if other != data:
            with pytest.raises((BlockRefused, ProofDataError), match=why):
                verify_item_proof(other, book(4))


def test_a_record_file_proof_with_more_than_its_nodes_have_signed_is_refused() -> None:
    block, _ = record_block([0, 1, 2])
    message = item_proof_pb2.ItemProof.FromString(ItemProof(0, block.prove(1), None).to_bytes())
    message.item.block_item = block.items[1]
    with pytest.raises(ProofDataError, match="more than its nodes have signed"):
        verify_item_proof(message.SerializeToString(deterministic=True), book(4))


def test_every_bit_of_a_record_file_proof_matters_or_only_takes_a_signer_away() -> None:
    block, _ = record_block([0, 1, 2])
    data = ItemProof(0, block.prove(1), None).to_bytes()
    verifier, shown = book(4), claim_of(data)
    held = 0
    for other in flipped(data, every=1 if LONG else 13):
        try:
            assert verify_item_proof(other, verifier) == shown
            held += 1
        except (BlockRefused, ProofDataError):
            continue
    assert held < len(data) * 8 // 50


# --- tampering ----------------------------------------------------------------------------------------------


def flipped(data: bytes, every: int = 1) -> Iterator[bytes]:
    """The data with one bit changed, each or each so many."""
    for bit in range(0, 8 * len(data), every):
        yield data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]


def tampered_files() -> list[bytes]:
    """Twenty proofs: of each form, layout and place, short and long, also under later blocks."""
    pairs = [(2, 5), (3, 4), (0, 16), (7, 8), (1, 23), (12, 22), (15, 20), (4, 9), (6, 7), (10, 21)]
    files = [file_under(number, hashed_places(provable(number))[-1], later) for number, later in pairs]
    for number in (0, 1, 2, 5, 8, 10, 13, 16, 20, 23):
        block = provable(number)
        files.append(file_of(block, hashed_places(block)[number % len(hashed_places(block))]))
    return files


@pytest.mark.parametrize("place", range(20))
def test_a_proof_with_any_bit_changed_is_refused(place: int) -> None:
    data = tampered_files()[place]
    verifier = signed_by(data)
    verify_item_proof(data, verifier)
    for other in flipped(data, every=1 if LONG else 61):
        with pytest.raises((BlockRefused, ProofDataError)):
            verify_item_proof(other, verifier)


def test_a_proof_with_a_real_signature_and_any_bit_changed_is_refused() -> None:
    block = ProvableBlock(make_blocks(3)[2].items)
    data = file_of(block, 2)
    assert verify_item_proof(data, ED25519).signed_by is ProofKind.ED25519
    for other in flipped(data):
        with pytest.raises((BlockRefused, ProofDataError)):
            verify_item_proof(other, ED25519)


def test_a_proof_that_is_cut_off_anywhere_or_continued_is_refused() -> None:
    data = file_under(2, 0, 5)
    verifier = signed_by(data)
    for size in range(len(data)):
        with pytest.raises((BlockRefused, ProofDataError)):
            verify_item_proof(data[:size], verifier)
    for more in (b"\0", b"\x38\1", data):
        with pytest.raises(ProofDataError):
            verify_item_proof(data + more, verifier)


def test_a_proof_of_another_network_is_refused() -> None:
    block = ProvableBlock(make_blocks(2)[1].items)
    other = ProofVerifier(TrustedKeys(ed25519=(bytes(range(32)),)))
    for verifier in (other, made_verifier()):
        with pytest.raises(BlockRefused) as refused:
            verify_item_proof(file_of(block, 1), verifier)
        assert refused.value.what
        assert refused.value.got
        assert refused.value.expected


def test_a_proof_of_another_block_is_refused_and_says_which() -> None:
    blocks = [ProvableBlock(block.items) for block in make_blocks(4)]
    item, header = blocks[2].prove(1), blocks[2].prove(0)
    for proof, why in (
        (ItemProof(3, item, header), "item proof: header: got block 2, expected block 3"),
        (ItemProof(3, item, blocks[3].prove(0)), "item proof: header: got root hash "),
        (ItemProof(2, item, None), "header: got no header, expected that of the block, once"),
        (ItemProof(2, header, header), "header: got two headers"),
        (ItemProof(2, item, item), "a block header"),
        (ItemProof(2, item, header, blocks[2].prove(0)), "under_header: got block 2, expected one above"),
        (ItemProof(2, item, header, blocks[3].prove(0)), "item: sibling"),
    ):
        with pytest.raises((BlockRefused, ProofDataError), match=why):
            verify_item_proof(proof.to_bytes(), ED25519)


def test_a_proof_under_another_block_is_refused() -> None:
    block, roots = provable(3), made()[0].roots
    path = [Sibling(*side) for side in way_up(roots[:11], 3)]
    item, header = block.prove_under(1, provable(11), path), block.prove_under(0, provable(11), path)
    for under in (provable(10), provable(12), provable(14)):
        with pytest.raises(BlockRefused, match="item proof: "):
            claim_of(ItemProof(3, item, header, under.prove(0)).to_bytes())
    assert claim_of(ItemProof(3, item, header, provable(11).prove(0)).to_bytes()).under_number == 11


def test_a_trusted_root_hash_must_be_on_the_way() -> None:
    data, roots = file_under(3, 1, 10), made()[0].roots
    for number in (3, 10, 11):  # block 11 signs block 10
        shown = verify_item_proof(data, trusted_root_hash=roots[number])
        assert (shown.signed_by, shown.under_number) == (None, None if number == 3 else 10)
    for root_hash in (roots[4], bytes(48)):
        with pytest.raises(BlockRefused, match="root hashes on the way"):
            verify_item_proof(data, trusted_root_hash=root_hash)


def test_only_the_canonical_encoding_is_a_proof() -> None:
    block = ProvableBlock(make_blocks(2)[1].items)
    data = file_of(block, 1)
    message = item_proof_pb2.ItemProof.FromString(data)
    message.header.block_signature = message.item.block_signature
    swapped = item_proof_pb2.ItemProof(header=message.header).SerializeToString() + data
    sibling = item_proof_pb2.ItemProof.FromString(data)
    sibling.item.sibling_hashes.add(is_first=True)
    short = item_proof_pb2.ItemProof.FromString(data)
    short.item.sibling_hashes[0].sibling_hash = bytes(47)
    for other, why in (
        (message.SerializeToString(deterministic=True), "header: got a signature, expected none"),
        (swapped, "not its canonical form"),
        (data + b"\xa0\x06\x01", "not its canonical form"),
        (sibling.SerializeToString(deterministic=True), "got is_first and 0 bytes, expected 48 bytes"),
        (short.SerializeToString(deterministic=True), "sibling 0: got .*47 bytes"),
        (b"", "got no item"),
        (b"\xff" * 40, "got a varint of more than 10 bytes"),
        (b"\x12\x02\x12\x00", "do not parse|got no item|siblings|item"),
    ):
        with pytest.raises(ProofDataError, match=why):
            verify_item_proof(other, ED25519)


def test_an_item_that_the_root_hash_does_not_cover_has_no_proof() -> None:
    block = ProvableBlock(make_blocks(2)[1].items)
    kinds = kinds_of(block.items)
    for kind, name in ((9, "block proof"), (12, "block footer")):
        with pytest.raises(NotProvable, match=f"got {name}"):
            block.prove(kinds.index(kind))
        claimed = block.prove(1)._replace(item=block.items[kinds.index(kind)])
        with pytest.raises(BlockRefused, match=f"got {name}"):
            verify_item_proof(ItemProof(1, claimed, block.prove(0)).to_bytes(), ED25519)


def test_a_message_with_more_siblings_than_any_proof_has_is_refused() -> None:
    siblings = [proof_pb2.MerkleSiblingHash(sibling_hash=bytes(48))] * 25_300
    message = proof_pb2.BlockContentsProof(block_item=b"\x22\0", sibling_hashes=siblings)
    with pytest.raises(ProofDataError, match="got 25300 siblings, expected at most"):
        ContentsProof.of(message)
