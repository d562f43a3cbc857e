"""Attacks on proofs of single items: the hashes are real, or signed by the network; the claim is false."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import pytest

from sluice.gateway.api import item_proof_pb2
from sluice.gateway.blocks.errors import BlockRefused, ProofDataError
from sluice.gateway.blocks.items import ItemKind, field_item
from sluice.gateway.blocks.merkle import Sibling
from sluice.gateway.blocks.proofs import ProofVerifier, RsaBook
from sluice.gateway.blocks.proofs.contents import ContentsProof, ItemProof, ProvableBlock, verify_item_proof
from sluice.gateway.blocks.trusted_keys import TrustedKeys
from tests.gateway.block_makers import KEY, PUBLIC_KEY, block_items, header_item, summary_of
from tests.gateway.blocks.proofs import record_files

VERIFIER = ProofVerifier(TrustedKeys((PUBLIC_KEY,)))
LAST = 64
"""The last block: its tree of all block hashes has 64 leaves and six levels."""
RESULT = 4
"""An item of every block, of the subtree of outputs, as the header."""
Path = Sequence[Sibling]


def sha384(*parts: bytes) -> bytes:
    return hashlib.sha384(b"".join(parts)).digest()


def climbed(item: bytes, path: Path) -> bytes:
    """The hash where a path from an item arrives."""
    value = sha384(b"\x00", item)
    for is_left, other in path:
        if not other:
            value = sha384(b"\x01", value)
        else:
            value = sha384(b"\x02", other, value) if is_left else sha384(b"\x02", value, other)
    return value


def root_over(hashes: Sequence[bytes]) -> bytes:
    """The root of a streaming tree, from its definition (docs/spec/block-hash.md section 1.1)."""
    if len(hashes) < 2:
        return hashes[0] if hashes else sha384(b"\x00")
    middle = 1 << (len(hashes) - 1).bit_length() - 1
    return sha384(b"\x02", root_over(hashes[:middle]), root_over(hashes[middle:]))


def way_among(number: int, hashes: Sequence[bytes]) -> list[Sibling]:
    """The siblings of a leaf of a streaming tree, from the bottom up."""
    if len(hashes) < 2:
        return []
    middle = 1 << (len(hashes) - 1).bit_length() - 1
    if number < middle:
        return [*way_among(number, hashes[:middle]), Sibling(False, root_over(hashes[middle:]))]
    return [*way_among(number - middle, hashes[middle:]), Sibling(True, root_over(hashes[:middle]))]


class Chain(NamedTuple):
    """Blocks 0 to LAST, all of them signed, and their root hashes."""

    blocks: list[list[bytes]]
    roots: list[bytes]

    def provable(self, number: int) -> ProvableBlock:
        return ProvableBlock(self.blocks[number], self.roots[number])

    def within(self, number: int, index: int) -> list[Sibling]:
        """From an item to its block's root hash."""
        return self.provable(number).path_of(index)

    def to_previous(self, number: int) -> list[Sibling]:
        """From the root hash of the block before to a block's own."""
        items = self.provable(number)
        all_blocks, *rest = items.path_of_tree()
        assert all_blocks == Sibling(True, self.roots[number - 1])
        return [Sibling(False, root_over(self.roots[:number])), *rest]

    def under(self, number: int, later: int) -> list[Sibling]:
        """From a block's root hash to that of a later block, by its tree of all block hashes."""
        return [*way_among(number, self.roots[:later]), *self.provable(later).path_of_tree()]


@cache
def chain(minor: int = 78) -> Chain:
    made = Chain([], [])
    for number in range(LAST + 1):
        previous = made.roots[-1] if number else sha384(b"\x00")
        items = block_items(number, previous, root_over(made.roots), minor=minor)
        made.blocks.append(items)
        made.roots.append(summary_of(items).root_hash)
    return made


def made_block(number: int, all_blocks: bytes, minor: int) -> ProvableBlock:
    """A signed block with any tree of all block hashes."""
    return ProvableBlock(block_items(number, chain(minor).roots[number - 1], all_blocks, minor=minor))


both_layouts = pytest.mark.parametrize("minor", [78, 73], ids=["layout 16", "layout 8"])


def signed(item: bytes, path: Path) -> ContentsProof:
    """The proof of an item, whose path's end the network signs, whatever it is."""
    return ContentsProof(item, tuple(path), KEY.sign(climbed(item, path)))


def unsigned(item: bytes, path: Path) -> ContentsProof:
    return ContentsProof(item, tuple(path))


def is_refused(proof: ItemProof) -> bool:
    """Whether a proof is refused, both with the network's key and with the hash at the end of its path."""
    data = proof.to_bytes()
    end = climbed(proof.item.item, proof.item.siblings)
    with_key, with_root_hash = (_is_refused(data, verifier, end) for verifier in (VERIFIER, None))
    assert with_key is with_root_hash
    return with_key


def _is_refused(data: bytes, verifier: ProofVerifier | None, end: bytes) -> bool:
    try:
        if verifier is None:
            verify_item_proof(data, trusted_root_hash=end)
        else:
            verify_item_proof(data, verifier)
    except (BlockRefused, ProofDataError):
        return True
    return False


def proof_under(made: Chain, number: int, later: int = LAST) -> ItemProof:
    """An honest proof under a later block."""
    rest = made.under(number, later)
    items = made.blocks[number]
    return ItemProof(
        number,
        signed(items[RESULT], [*made.within(number, RESULT), *rest]),
        unsigned(items[0], [*made.within(number, 0), *rest]),
        unsigned(made.blocks[later][0], made.within(later, 0)),
    )


@both_layouts
@pytest.mark.parametrize("number", [0, 1, 42, 43, 62, 63])
def test_an_honest_proof_of_these_chains_holds(minor: int, number: int) -> None:
    proof = proof_under(chain(minor), number)
    shown = verify_item_proof(proof.to_bytes(), VERIFIER)
    assert (shown.block_number, shown.under_number) == (number, LAST)
    assert not is_refused(proof)


# --- nodes that are no blocks -------------------------------------------------------------------------------


@both_layouts
@pytest.mark.parametrize("number", [42, 43])
def test_an_inner_node_of_the_tree_of_all_blocks_is_no_block(minor: int, number: int) -> None:
    """The five upper siblings of leaves 42 and 43 of 64 have the sides of a block's time and output leaf.

    So all siblings below them could be of the subtree of outputs. A header must be the first there, and no
    header of a real block is, since outputs are no first leaf of their block.
    """
    made = chain(minor)
    tree = way_among(number, made.roots[:LAST])
    assert [is_left for is_left, _ in tree[1:]] == [True, False, True, False, True]
    path = [*made.within(number, RESULT), *tree]
    header_path = [*made.within(number, 0), *tree]
    assert climbed(made.blocks[number][RESULT], path) == root_over(made.roots[:LAST])
    for item in (RESULT, 0):
        own = made.blocks[number][item]
        proof = signed(own, path if item else header_path)
        header = unsigned(made.blocks[number][0], header_path) if item else None
        assert is_refused(ItemProof(number, proof, header))
        for other in (0, number ^ 1, LAST):  # the header alone, of some block that is signed itself
            other_header = unsigned(made.blocks[other][0], made.within(other, 0))
            assert is_refused(ItemProof(other, proof, other_header))


@both_layouts
def test_no_other_number_passes_for_a_block_among_all(minor: int) -> None:
    """Each number has its own sides, none of which is the end of another's."""
    made = chain(minor)
    for later in (42, 63, LAST):
        proof = proof_under(made, 21, later)
        assert not is_refused(proof)
        for number in {*range(later + 2)} - {21}:
            assert is_refused(ItemProof(number, proof.item, proof.header, proof.under_header))
            if number <= LAST:
                header = unsigned(made.blocks[number][0], made.within(number, 0))
                assert is_refused(ItemProof(number, proof.item, header, proof.under_header))


@both_layouts
def test_an_audit_path_that_is_cut_or_of_another_leaf_is_refused(minor: int) -> None:
    made = chain(minor)
    tree = way_among(42, made.roots[:LAST])
    end = made.provable(LAST).path_of_tree()
    under_header = unsigned(made.blocks[LAST][0], made.within(LAST, 0))
    others = [tree[:-1], tree[1:], [*tree, tree[-1]], [tree[0], *tree], way_among(40, made.roots[:LAST]), []]
    others.append([Sibling(not tree[0].is_left, tree[0].hash), *tree[1:]])
    for other in others:
        proof = ItemProof(
            42,
            signed(made.blocks[42][RESULT], [*made.within(42, RESULT), *other, *end]),
            unsigned(made.blocks[42][0], [*made.within(42, 0), *other, *end]),
            under_header,
        )
        assert is_refused(proof)


# --- headers of other blocks --------------------------------------------------------------------------------


@both_layouts
def test_the_header_of_another_block_under_the_same_root_is_refused(minor: int) -> None:
    made = chain(minor)
    rest_of = {number: made.under(number, LAST) for number in (2, 3)}
    under_header = unsigned(made.blocks[LAST][0], made.within(LAST, 0))
    items = {n: signed(made.blocks[n][RESULT], [*made.within(n, RESULT), *rest_of[n]]) for n in (2, 3)}
    headers = {n: unsigned(made.blocks[n][0], [*made.within(n, 0), *rest_of[n]]) for n in (2, 3)}
    for number in (2, 3):
        assert not is_refused(ItemProof(number, items[number], headers[number], under_header))
        assert is_refused(ItemProof(number, items[number], headers[5 - number], under_header))
        assert is_refused(ItemProof(number, items[5 - number], headers[number], under_header))


@both_layouts
def test_links_to_blocks_before_do_not_move_an_item_to_one_of_them(minor: int) -> None:
    """Items and headers of blocks 58 to 61, each by links to the blocks after it, up to 61."""
    made = chain(minor)
    links: dict[int, list[Sibling]] = {61: []}
    for later, number in pairwise(range(61, 57, -1)):
        links[number] = [*made.to_previous(later), *links[later]]
    for of_item in links:
        item = signed(made.blocks[of_item][RESULT], [*made.within(of_item, RESULT), *links[of_item]])
        assert climbed(item.item, item.siblings) == made.roots[61]
        for of_header in links:
            for by_links in links:
                path = [*made.within(of_header, 0), *links[by_links]]
                header = unsigned(made.blocks[of_header][0], path)
                for number in links:
                    is_true = number == of_item == of_header == by_links
                    assert is_refused(ItemProof(number, item, header)) is not is_true


@both_layouts
def test_the_later_block_is_that_of_its_header_alone(minor: int) -> None:
    """Among 33 to 64 blocks, the siblings of block 7 are on the same sides, and only the last is another."""
    made = chain(minor)
    proof = proof_under(made, 7, 40)
    assert not is_refused(proof)

    def others() -> Iterator[ContentsProof | None]:
        yield None
        for number in (6, 7, 8, 39, 41, 63, LAST):
            yield unsigned(made.blocks[number][0], made.within(number, 0))
            yield unsigned(made.blocks[number][0], made.within(40, 0))
            yield unsigned(header_item(number, minor=minor), made.within(40, 0))
        yield unsigned(made.blocks[40][0], [*made.within(40, 0), *made.to_previous(41)])
        yield unsigned(made.blocks[40][RESULT], made.within(40, RESULT))
        yield proof.header

    for other in others():
        assert is_refused(ItemProof(7, proof.item, proof.header, other))


@both_layouts
def test_two_trees_of_all_blocks_on_one_way_are_refused(minor: int) -> None:
    """Block 3 by the tree of a block, and that by the tree of a later one, which may have the same number."""
    made = chain(minor)
    in_tree = way_among(3, made.roots[:LAST])
    beside = [*made.within(LAST, 0), *in_tree]
    twin = made_block(LAST, climbed(made.blocks[LAST][0], beside), minor)
    twin_way = [*in_tree, *twin.path_of_tree()]
    for middle, end, end_way in (
        (40, made.provable(LAST), made.under(40, LAST)),
        (LAST, twin, twin_way),
    ):
        rest = [*made.under(3, middle), *end_way]
        item = signed(made.blocks[3][RESULT], [*made.within(3, RESULT), *rest])
        assert climbed(item.item, item.siblings) == end.summary.root_hash
        header = unsigned(made.blocks[3][0], [*made.within(3, 0), *rest])
        for under in (
            unsigned(end.items[0], end.path_of(0)),
            unsigned(made.blocks[middle][0], [*made.within(middle, 0), *end_way]),
            None,
        ):
            assert is_refused(ItemProof(3, item, header, under))


@both_layouts
def test_a_later_block_beside_the_way_is_refused(minor: int) -> None:
    """Else anybody could say of a block that it was proved under another."""
    made = chain(minor)
    item = signed(made.blocks[9][RESULT], made.within(9, RESULT))
    header = unsigned(made.blocks[9][0], made.within(9, 0))
    assert not is_refused(ItemProof(9, item, header))
    for later in (10, 40, LAST):
        under = unsigned(made.blocks[later][0], made.within(later, 0))
        assert is_refused(ItemProof(9, item, header, under))


@both_layouts
def test_a_tree_of_all_blocks_of_another_shape_is_refused(minor: int) -> None:
    """Even if the network has signed a block with that tree: its leaves are not at the places they claim."""
    made = chain(minor)
    honest = way_among(42, made.roots[:LAST])
    for flipped in range(-1, len(honest)):
        tree = [Sibling(side.is_left ^ (at == flipped), side.hash) for at, side in enumerate(honest)]
        later = made_block(LAST, climbed(made.blocks[42][0], [*made.within(42, 0), *tree]), minor)
        rest = [*tree, *later.path_of_tree()]
        proof = ItemProof(
            42,
            signed(made.blocks[42][RESULT], [*made.within(42, RESULT), *rest]),
            unsigned(made.blocks[42][0], [*made.within(42, 0), *rest]),
            unsigned(later.items[0], later.path_of(0)),
        )
        assert is_refused(proof) is (flipped >= 0)


# --- items and siblings -------------------------------------------------------------------------------------


def spoiled(path: Path, place: int) -> Iterator[list[Sibling]]:
    """A path with one more node with a single child, with one instead of another, and with another side."""
    single = Sibling(False, b"")
    side = path[place]
    yield [*path[:place], single, *path[place:]]
    if side.hash:
        if place != len(path) - 2:  # there, it would make layout 8 of layout 16
            yield [*path[:place], single, *path[place + 1 :]]
        yield [*path[:place], Sibling(not side.is_left, side.hash), *path[place + 1 :]]
    else:
        yield [*path[:place], *path[place + 1 :]]


@both_layouts
def test_siblings_of_no_layout_are_refused_even_if_the_network_signs_where_they_lead(minor: int) -> None:
    made = chain(minor)
    path, header_path = made.within(9, RESULT), made.within(9, 0)
    within = 2  # of three outputs; above, both have the same siblings
    assert path[within:] == header_path[within:]
    for place in range(len(path)):
        for changed, header_changed in zip(spoiled(path, place), spoiled(header_path, place), strict=True):
            proof = signed(made.blocks[9][RESULT], changed)
            for beside in (header_path, header_changed):
                assert is_refused(ItemProof(9, proof, unsigned(made.blocks[9][0], beside)))
            assert is_refused(ItemProof(9, signed(made.blocks[9][0], header_changed), None))


@both_layouts
def test_an_item_in_the_subtree_of_another_kind_is_refused(minor: int) -> None:
    """Among them are items that no root hash covers: a footer, a proof, and some kinds of later versions."""
    made = chain(minor)
    header, above = made.blocks[9][0], made.within(9, 0)[2:]
    for kind in (5, 2, 3, 4, 7, 8, 9, 11, 12, 13, 19, 20, 23, 24, 26, 28, 35, 39, 40, 1008):
        item = field_item(kind, b"another")
        header_path = [Sibling(False, sha384(b"\x00", item)), *above]
        proof = signed(item, [Sibling(True, sha384(b"\x00", header)), *above])
        assert is_refused(ItemProof(9, proof, unsigned(header, header_path))) is (kind != 5)


def test_no_other_encoding_of_a_file_is_taken() -> None:
    proof = proof_under(chain(), 42)
    data = proof.to_bytes()
    message = item_proof_pb2.ItemProof.FromString(data)
    fields = [
        bytes([number << 3 | 2]) + _sized(part.SerializeToString())
        for number, part in ((2, message.item), (3, message.header), (4, message.under_header))
    ]
    number = b"\x08\x2a"
    assert number + b"".join(fields) == data
    item, header, under = fields
    for other in (
        b"".join((item, number, header, under)),
        number + number + b"".join(fields),
        b"\x08\xaa\x00" + b"".join(fields),
        b"\x88\x00\x2a" + b"".join(fields),
        data + b"\x28\x01",
        data + b"\x2a\x00",
        number + item + item + header + under,
        data + under,
        data[:-1],
        data + b"\x00",
        b"",
    ):
        with pytest.raises(ProofDataError):
            verify_item_proof(other, VERIFIER)


def _sized(payload: bytes) -> bytes:
    assert 0x80 <= len(payload) < 1 << 14
    return bytes([len(payload) & 0x7F | 0x80, len(payload) >> 7]) + payload


# --- record files -------------------------------------------------------------------------------------------


def test_a_record_file_shows_what_its_nodes_have_signed_and_nothing_else() -> None:
    contents = record_files.contents(5)
    signature = record_files.record_file_proof([(node, record_files.sign(contents, node)) for node in (0, 1)])
    verifier = ProofVerifier(TrustedKeys(()), "full", None, RsaBook(record_files.book_bytes(4)))

    def proves(item: bytes, number: int = 5, proof: bytes = signature, siblings: Path = ()) -> bytes:
        message = item_proof_pb2.ItemProof(block_number=number)
        message.item.CopyFrom(ContentsProof(item, tuple(siblings), proof).message())
        return message.SerializeToString(deterministic=True)

    signed_part = field_item(ItemKind.RECORD_FILE, field_item(2, contents))
    assert verify_item_proof(proves(signed_part), verifier).item == signed_part
    other = field_item(ItemKind.RECORD_FILE, field_item(2, record_files.contents(6)))
    too_long = field_item(2, contents)[:1] + bytes([len(contents) | 0x80, 0]) + contents
    for data in (
        proves(other, 6),
        proves(signed_part, 6),
        proves(record_files.record_file_item(contents)),  # with a time that nobody has signed
        proves(field_item(ItemKind.RECORD_FILE, field_item(2, contents) + field_item(3, b"sidecar"))),
        proves(field_item(ItemKind.RECORD_FILE, too_long)),
        proves(signed_part, siblings=[Sibling(False, bytes(48))]),
        proves(field_item(ItemKind.TRANSACTION_OUTPUT, field_item(2, contents))),
        proves(signed_part, proof=signature[:2]),
        proves(signed_part, proof=b"\x08\x05" + signature[2:]),
        proves(signed_part, proof=b""),
    ):
        with pytest.raises((BlockRefused, ProofDataError)):
            verify_item_proof(data, verifier)
    with pytest.raises(BlockRefused):
        verify_item_proof(proves(signed_part), trusted_root_hash=sha384(b"\x00", signed_part))
