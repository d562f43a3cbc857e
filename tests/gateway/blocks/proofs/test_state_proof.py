"""Tests of `gateway.blocks.proofs.state_proof`: the three forms, the general walk, and what is refused."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Literal, NamedTuple

import pytest

from sluice.gateway.api import block_pb2
from sluice.gateway.blocks.errors import ProofDataError
from sluice.gateway.blocks.items import ItemKind, proof_of, read_header
from sluice.gateway.blocks.merkle import inner_hash, leaf_hash, tree_root, unary_hash
from sluice.gateway.blocks.proofs.state_proof import (
    STATE_PROOF_PATHS_MAX,
    STATE_PROOF_SIBLINGS_MAX,
    StateProofCheck,
    read_state_proof,
)
from sluice.gateway.blocks.proofs.tss import TssCheck
from sluice.gateway.blocks.refusal import Refusal, RefusalKind
from sluice.gateway.blocks.root_hash import BlockSummary
from tests.gateway.block_makers import header_item
from tests.gateway.blocks.proofs import real
from tests.gateway.blocks.proofs.state_proofs import (
    END,
    SIGNATURE,
    FakeBlock,
    Sibling,
    chain,
    direct_paths,
    form_a_paths,
    h,
    hops,
    len_field,
    path,
    proof,
    varint_field,
)

LONG = os.environ.get("SLUICE_LONG") == "1"
Layouts = Sequence[Literal[8, 16]]
C_CHAIN = chain([16] * 6)
B_CHAIN = chain([8] * 6)


def signs(root_hash: bytes) -> StateProofCheck:
    """A check that accepts one signature of one root hash."""

    def tss_check(signature: bytes, signed: bytes) -> Refusal | None:
        if (signature, signed) == (SIGNATURE, root_hash):
            return None
        return Refusal(RefusalKind.BAD_PROOF, "signature", signed.hex(), root_hash.hex())

    return StateProofCheck(tss_check)


def check(blocks: Sequence[FakeBlock], k: int, paths: Sequence[bytes]) -> Refusal | None:
    return signs(blocks[-1].root).check(proof(paths), blocks[k].summary)


# --- the forms ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "layouts",
    [[16] * 6, [8] * 6, [8, 8, 8, 16, 16, 16], [16, 8, 16, 8, 16, 8]],
    ids=["C", "B", "B to C", "mixed"],
)
@pytest.mark.parametrize("k", range(5))
def test_forms_b_and_c(layouts: Layouts, k: int) -> None:
    blocks = chain(layouts)
    assert check(blocks, k, direct_paths(blocks, k)) is None
    for other in range(6):
        if other != k:
            refusal = check(blocks, other, direct_paths(blocks, k))
            assert refusal is not None
            assert refusal.what == "state proof: paths"
            assert refusal.got == "no hash that is the block's root hash"


@pytest.mark.parametrize("k", range(5))
def test_form_a(k: int) -> None:
    assert check(B_CHAIN, k, form_a_paths(B_CHAIN, k)) is None
    for other in range(6):
        if other != k:
            assert check(B_CHAIN, other, form_a_paths(B_CHAIN, k)) is not None


def test_form_a_of_another_block_that_follows_the_same() -> None:
    """In a fork, both blocks have the same previous root, and only one leads to the signed root."""
    summary = B_CHAIN[2].summary
    fork = FakeBlock(2, 16, B_CHAIN[2].previous_root).summary
    paths = proof(form_a_paths(B_CHAIN, 2))
    assert signs(B_CHAIN[-1].root).check(paths, summary) is None
    refusal = signs(B_CHAIN[-1].root).check(paths, fork)
    assert refusal == Refusal(
        RefusalKind.BAD_PROOF,
        "state proof: root hash after the first time",
        summary.root_hash.hex(),
        f"{fork.root_hash.hex()}, of the block",
    )


def test_form_a_holds_for_layout_8_alone() -> None:
    assert check(C_CHAIN, 2, form_a_paths(C_CHAIN, 2)) is not None


@pytest.mark.parametrize("at", range(7))
def test_form_a_with_a_sibling_on_the_other_side_or_gone(at: int) -> None:
    """Block 4 of 6: R R R L R R R."""
    times, end = form_a_paths(B_CHAIN, 4)[0], form_a_paths(B_CHAIN, 4)[2]
    right: list[Sibling] = [*B_CHAIN[4].right, (leaf_hash(B_CHAIN[4].time),), *B_CHAIN[5].right]
    spoiled = list(right)
    one = right[at]
    assert one is not None
    spoiled[at] = one[0] if isinstance(one, tuple) else (one,)
    without = [*right[:at], None, *right[at + 1 :]]
    for siblings in (spoiled, without, [*right[:at], *right[at + 1 :]], [*right, h("more")]):
        paths = [times, path((3, B_CHAIN[4].previous_root), siblings, 2), end]
        assert check(B_CHAIN, 4, paths) is not None
    if at != 3:  # else there is no left sibling at the fourth place, and it is no form A
        refusal = check(B_CHAIN, 4, [times, path((3, B_CHAIN[4].previous_root), without, 2), end])
        assert refusal == Refusal(
            RefusalKind.BAD_PROOF, f"state proof: form A sibling {at}", "another", "a hash on the right"
        )


@pytest.mark.parametrize(
    ("time", "hash_next", "end", "what"),
    [
        (([h("more")], 2), 2, ([], END), "paths of form A"),
        (([], 1), 2, ([], END), "paths of form A"),
        (([], END), 2, ([], END), "paths of form A"),
        (([], 2), END, ([], END), "paths of form A"),
        (([], 2), 2, ([h("more")], END), "path 2 of form A"),
        (([], 2), 2, ([None], END), "path 2 of form A"),
        (([], 2), 2, ([], 2), "path 2 of form A"),
        (([], 2), 2, ([], 0), "path 2 of form A"),
    ],
)
def test_form_a_has_one_shape(
    time: tuple[list[Sibling], int], hash_next: int, end: tuple[list[Sibling], int], what: str
) -> None:
    """Parts that the walk of form A skips must be absent: nothing would cover those bytes."""
    siblings: list[Sibling] = [*B_CHAIN[4].right, (leaf_hash(B_CHAIN[4].time),), *B_CHAIN[5].right]
    hash_path = path((3, B_CHAIN[4].previous_root), siblings, hash_next)
    refusal = check(B_CHAIN, 4, [path((6, B_CHAIN[5].time), *time), hash_path, path(None, *end)])
    assert refusal is not None
    assert (refusal.kind, refusal.what) == (RefusalKind.BAD_PROOF, f"state proof: {what}")


def test_form_a_has_three_paths() -> None:
    """The general walk takes a further path, and there a hash of the block before proves nothing."""
    time, hash_path, end = form_a_paths(B_CHAIN, 4)
    for further in (path(None, [], END), path((4, b"item"), [], 2)):
        refusal = check(B_CHAIN, 4, [time, hash_path, end, further])
        assert refusal is not None
        assert refusal.kind is RefusalKind.BAD_PROOF
    siblings: list[Sibling] = [*B_CHAIN[4].right, (leaf_hash(B_CHAIN[4].time),), *B_CHAIN[5].right]
    to_join = path((3, B_CHAIN[4].previous_root), siblings, 3)
    refusal = check(B_CHAIN, 4, [time, to_join, end, path(None, [], 2), path((4, b"item"), [], 3)])
    assert refusal == Refusal(
        RefusalKind.BAD_PROOF,
        "state proof: paths",
        "no hash that is the block's root hash",
        B_CHAIN[4].root.hex(),
    )


def test_form_a_has_its_paths_in_order() -> None:
    time, hash_path, end = form_a_paths(B_CHAIN, 4)
    refusal = check(B_CHAIN, 4, [end, hash_path, time])
    assert refusal is not None
    assert (refusal.kind, refusal.what) == (RefusalKind.BAD_PROOF, "state proof: paths of form A")


def test_form_a_ends_below_the_time_of_the_signed_block() -> None:
    """A further time on top leads to a value that is no root, whoever signs it."""
    times, _, end = form_a_paths(B_CHAIN, 4)
    last = B_CHAIN[5]
    siblings: list[Sibling] = [*B_CHAIN[4].right, (leaf_hash(B_CHAIN[4].time),), *last.right]
    above = inner_hash(leaf_hash(last.time), unary_hash(last.root))
    paths = [times, path((3, B_CHAIN[4].previous_root), [*siblings, (leaf_hash(last.time),)], 2), end]
    assert signs(above).check(proof(paths), B_CHAIN[4].summary) == Refusal(
        RefusalKind.BAD_PROOF, "state proof: form A", "8 siblings", "four a block, three for the last"
    )


def test_a_proof_by_way_of_the_tree_of_all_blocks() -> None:
    """docs/spec/proofs.md: root(1) leads up the tree of blocks 0 to 5, then up the signed block."""
    roots = [block.root for block in C_CHAIN]
    all_blocks = tree_root(roots)
    assert all_blocks == inner_hash(tree_root(roots[:4]), tree_root(roots[4:]))
    previous, state, inputs, extension = h("p"), h("s"), h("i"), h("e")
    top = inner_hash(inner_hash(inner_hash(inner_hash(previous, all_blocks), state), inputs), extension)
    time = C_CHAIN[5].time
    audit: list[Sibling] = [(roots[0],), inner_hash(roots[2], roots[3]), inner_hash(roots[4], roots[5])]
    paths = [
        path((6, time), [], 2),
        path((3, roots[1]), [*audit, (previous,), state, inputs, extension], 2),
        path(None, [], END),
    ]
    signed = signs(inner_hash(leaf_hash(time), top))
    assert signed.check(proof(paths), C_CHAIN[1].summary) is None
    assert signed.check(proof(paths), C_CHAIN[2].summary) is not None


# --- the general walk ---------------------------------------------------------------------------------------


def test_joins_may_stand_anywhere() -> None:
    time, hash_path = C_CHAIN[-1].time, (3, C_CHAIN[2].root)
    siblings = hops(C_CHAIN[3:])
    first = [path(None, [], END), path((6, time), [], 0), path(hash_path, siblings, 0)]
    between = [path((6, time), [], 1), path(None, [], END), path(hash_path, siblings, 1)]
    assert check(C_CHAIN, 2, first) is None
    assert check(C_CHAIN, 2, between) is None
    # the lower path is the left child, so the hash path must not come before the time
    swapped = [path(hash_path, siblings, 2), path((6, time), [], 2), path(None, [], END)]
    refusal = check(C_CHAIN, 2, swapped)
    assert refusal is not None
    assert refusal.what == "state proof: signature"


def test_more_leaves_join_on_the_way() -> None:
    """The path of a state item joins the hash path in the signed block."""
    signed = C_CHAIN[-1]
    all_blocks, _, inputs = signed.right
    item, headers = b"an item of the state", h("headers")
    top = inner_hash(signed.previous_root, all_blocks)
    state = inner_hash(leaf_hash(item), headers)
    root = inner_hash(
        leaf_hash(signed.time), inner_hash(inner_hash(inner_hash(top, state), inputs), signed.extension)
    )
    paths = [
        path((6, signed.time), [], 4),
        path((3, signed.previous_root), [all_blocks], 3),
        path((4, item), [headers], 3),
        path(None, [inputs, signed.extension], 4),
        path(None, [], END),
    ]
    assert signs(root).check(proof(paths), C_CHAIN[-2].summary) is None
    paths[2] = path((4, item + b"!"), [headers], 3)
    assert signs(root).check(proof(paths), C_CHAIN[-2].summary) is not None


class Side(NamedTuple):
    """A path, and everything below it."""

    lowest: int
    """Index of the lowest leaf path in it."""
    place: int
    content: tuple[int, bytes] | None
    siblings: list[Sibling]
    value: bytes
    """At its upper end."""

    def leading_to(self, next_index: int) -> bytes:
        """Encode it."""
        return path(self.content, self.siblings, next_index)


def climbed(value: bytes, siblings: Sequence[Sibling]) -> bytes:
    for one in siblings:
        if one is None:
            value = unary_hash(value)
        else:
            value = inner_hash(one[0], value) if isinstance(one, tuple) else inner_hash(value, one)
    return value


@pytest.mark.parametrize("seed", range(30))
def test_any_tree_of_paths(seed: int) -> None:
    """Leaf paths and joins come in any order: the side with the lowest leaf path is the left one."""
    rng = random.Random(seed)
    leaf_count = rng.randint(2, 9)
    places = rng.sample(range(2 * leaf_count - 1), 2 * leaf_count - 1)

    def some_siblings() -> list[Sibling]:
        return rng.choices([h("right"), (h("left"),), None], k=rng.randint(0, 3))

    contents = [(3, C_CHAIN[2].root), (6, C_CHAIN[-1].time)]
    contents += [(rng.choice((3, 4, 5)), h(f"content {at}")) for at in range(2, leaf_count)]
    sides: list[Side] = []
    paths: dict[int, bytes] = {}
    for place, content in zip(places, contents, strict=False):
        siblings = some_siblings()
        start = content[1] if content[0] == 3 else leaf_hash(content[1])
        sides.append(Side(place, place, content, siblings, climbed(start, siblings)))
    for place in places[leaf_count:]:
        left, right = sorted(sides.pop(rng.randrange(len(sides))) for _ in range(2))
        paths[left.place], paths[right.place] = left.leading_to(place), right.leading_to(place)
        siblings = some_siblings()
        value = climbed(inner_hash(left.value, right.value), siblings)
        sides.append(Side(left.lowest, place, None, siblings, value))
    [top] = sides
    paths[top.place] = top.leading_to(END)
    serialized = proof([paths[place] for place in sorted(paths)])
    assert signs(top.value).check(serialized, C_CHAIN[2].summary) is None
    assert signs(top.value).check(serialized, C_CHAIN[3].summary) is not None


def test_the_blocks_root_hash_is_a_hash_and_no_leaf() -> None:
    """A leaf path proves that a leaf is in the signed block; only a `hash` proves a block."""
    item = b"what a state item says"
    summary = C_CHAIN[2].summary
    for root_hash, content in ((summary.root_hash, summary.root_hash), (leaf_hash(item), item)):
        for kind in (4, 5):
            value = inner_hash(inner_hash(leaf_hash(C_CHAIN[5].time), h("other")), leaf_hash(content))
            paths = [
                path((6, C_CHAIN[5].time), [], 3),
                path((3, h("other")), [], 3),
                path((kind, content), [], 4),
                path(None, [], 4),
                path(None, [], END),
            ]
            refusal = signs(value).check(proof(paths), summary._replace(root_hash=root_hash))
            assert refusal == Refusal(
                RefusalKind.BAD_PROOF,
                "state proof: paths",
                "no hash that is the block's root hash",
                root_hash.hex(),
            )


TIMES = path((6, C_CHAIN[-1].time), [], 2)


def hash_and_time(k: int = 2) -> tuple[bytes, bytes]:
    return path((3, C_CHAIN[k].root), hops(C_CHAIN[k + 1 :]), 2), path((6, C_CHAIN[-1].time), [], 2)


@pytest.mark.parametrize(
    ("paths", "what", "got"),
    [
        ([TIMES, TIMES, path(None, [], END)], "three paths", "no content, timestamp_leaf, timestamp_leaf"),
        ([hash_and_time()[0]] * 2 + [path(None, [], END)], "paths", "no timestamp leaf"),
        (
            [path((4, b"x"), [], 2), hash_and_time()[0], path(None, [], END)],
            "paths",
            "no timestamp leaf",
        ),
        ([hash_and_time()[1], hash_and_time()[0], path(None, [], 3)], "path 1", "next path 3"),
        ([hash_and_time()[1], hash_and_time()[0], path(None, [], 0)], "path 1", "next path 0"),
        ([hash_and_time()[1], hash_and_time()[0], path(None, [], 2)], "paths", "an end that is not reached"),
        (
            [hash_and_time()[1], path((3, C_CHAIN[2].root), [], END), path(None, [], END)],
            "paths",
            "an end that is not reached",
        ),
        (
            [path((6, C_CHAIN[-1].time), [], END), hash_and_time()[0], path(None, [], END)],
            "path 1",
            "it after the end was reached",
        ),
        (
            [hash_and_time()[1], hash_and_time()[0], path(None, [], END), path(None, [], END)],
            "paths",
            "1 that lead nowhere",
        ),
        (
            [hash_and_time()[1], hash_and_time()[0], path(None, [], 3), path(None, [], 2)],
            "paths",
            "an end that is not reached",
        ),
    ],
)  # fmt: skip
def test_paths_that_do_not_join_into_one(paths: list[bytes], what: str, got: str) -> None:
    refusal = check(C_CHAIN, 2, paths)
    assert refusal is not None
    assert (refusal.kind, refusal.what, refusal.got) == (RefusalKind.BAD_PROOF, f"state proof: {what}", got)


def test_a_third_path_to_one_join_is_refused() -> None:
    hash_path, time = hash_and_time()
    refusal = check(C_CHAIN, 2, [time, hash_path, path(None, [], END), path((4, b"x"), [], 2)])
    assert refusal is not None
    assert refusal.got == "it after the end was reached"


def test_a_refused_signature_says_of_what_proof() -> None:
    refusal = signs(h("other")).check(proof(direct_paths(C_CHAIN, 2)), C_CHAIN[2].summary)
    root = C_CHAIN[-1].root.hex()
    assert refusal == Refusal(RefusalKind.BAD_PROOF, "state proof: signature", root, h("other").hex())


def test_no_signature() -> None:
    summary = C_CHAIN[2].summary
    expected = Refusal(RefusalKind.MISSING_FIELD, "state proof: signed_block_proof", "no signature", "one")
    without = b"".join(len_field(1, each) for each in direct_paths(C_CHAIN, 2))
    for serialized in (proof(direct_paths(C_CHAIN, 2), b""), without, without + len_field(2, b"")):
        assert signs(C_CHAIN[-1].root).check(serialized, summary) == expected


# --- reading ------------------------------------------------------------------------------------------------

TIME = C_CHAIN[0].time
SPOILED = {
    "no path": ("state proof: got 0 paths, expected at least 3", b""),
    "a path's unknown field": ("state proof path 0: got field 7 of wire type 2", len_field(7, b"")),
    "two contents": (
        "state proof path 0: got hash and timestamp_leaf, expected one content",
        len_field(3, h("a")) + len_field(6, TIME),
    ),
    "a short hash": ("state proof path 0: hash: got 47 bytes, expected 48", len_field(3, h("a")[1:])),
    "an empty hash": ("state proof path 0: hash: got 0 bytes, expected 48", len_field(3, b"")),
    "an empty leaf": ("state proof path 0: state_item_leaf: got no bytes", len_field(4, b"")),
    "a time and a field": ("state proof path 0: timestamp_leaf: got field 3", len_field(6, b"\x18\x01")),
    "a time of 0 nanos": (
        "state proof path 0: timestamp_leaf: got 08051000, expected a canonical Timestamp",
        len_field(6, b"\x08\x05\x10\x00"),
    ),
    "a time of too many nanos": (
        "state proof path 0: timestamp_leaf: got 10ffffffff7f, expected a canonical Timestamp",
        len_field(6, b"\x10\xff\xff\xff\xff\x7f"),
    ),
    "an end other than -1": (
        "state proof path 0: next_path_index: got 4294967294, expected 1 to 63 or 4294967295 (-1)",
        varint_field(2, END - 1),
    ),
    "an index of more than 32 bits": (
        "state proof path 0: next_path_index: got 8589934591, expected 1 to 63",
        varint_field(2, 2 * END + 1),
    ),
    "an index 0": ("state proof path 0: next_path_index: got 0, expected 1", varint_field(2, 0)),
    "an index above all": ("state proof path 0: next_path_index: got 64, expected 1", varint_field(2, 64)),
    "is_left of 3": (
        "state proof path 0: sibling is_left: got 3, expected 1, or left out",
        len_field(1, varint_field(1, 3) + len_field(2, h("a"))),
    ),
    "is_left of 0": (
        "state proof path 0: sibling is_left: got 0, expected 1, or left out",
        len_field(1, varint_field(1, 0) + len_field(2, h("a"))),
    ),
    "is_left alone": (
        "state proof path 0: sibling: got is_left without a hash, expected both, or neither",
        len_field(1, varint_field(1, 1)),
    ),
    "a sibling's short hash": (
        "state proof path 0: sibling hash: got 47 bytes, expected 48, or left out",
        len_field(1, len_field(2, h("a")[1:])),
    ),
    "a sibling's empty hash": (
        "state proof path 0: sibling hash: got 0 bytes, expected 48, or left out",
        len_field(1, len_field(2, b"")),
    ),
    "a sibling's unknown field": (
        "state proof path 0: sibling: got field 3 of wire type 2",
        len_field(1, len_field(2, h("a")) + len_field(3, b"")),
    ),
    "a sibling's hash twice": (
        "state proof path 0: sibling: got field 2 after field 2",
        len_field(1, len_field(2, h("a")) * 2),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILED)
def test_messages_have_one_encoding(name: str) -> None:
    text, spoiled = SPOILED[name]
    serialized = len_field(1, spoiled) if spoiled else b""
    with pytest.raises(ProofDataError) as caught:
        read_state_proof(serialized)
    assert str(caught.value).startswith(text)
    refusal = signs(h("any")).check(serialized, C_CHAIN[0].summary)
    assert refusal is not None
    assert refusal.kind is RefusalKind.CANNOT_PARSE


@pytest.mark.parametrize(("seconds", "nanos"), [(-1, 0), (-2, 999_999_999), (-(1 << 63), -(1 << 31)), (0, 1)])
def test_a_time_is_any_that_a_header_may_have(seconds: int, nanos: int) -> None:
    """The longest has 22 bytes: two negative numbers."""
    time = block_pb2.Timestamp(seconds=seconds, nanos=nanos).SerializeToString()
    header = read_header(header_item(seconds=seconds, nanos=nanos), ItemKind.BLOCK_HEADER)
    assert header.timestamp == time
    paths = [path((6, time), [], 2), path((3, h("a")), [], 2), path(None, [], END)]
    assert read_state_proof(proof(paths)).paths[0].content == time


def test_the_order_of_fields_is_fixed() -> None:
    paths = direct_paths(C_CHAIN, 2)
    good = proof(paths)
    signature = good[sum(len(len_field(1, each)) for each in paths) :]
    for spoiled in (signature + good[: -len(signature)], good + signature, good + len_field(3, b"")):
        refusal = signs(C_CHAIN[-1].root).check(spoiled, C_CHAIN[2].summary)
        assert refusal is not None
        assert (refusal.kind, refusal.what) == (RefusalKind.CANNOT_PARSE, "state proof")


def test_beside_the_signature_there_is_nothing() -> None:
    paths = b"".join(len_field(1, each) for each in direct_paths(C_CHAIN, 2))
    signature = len_field(1, SIGNATURE)
    for signed, got in (
        (signature + len_field(2, b"x"), "field 2 of wire type 2"),
        (signature + varint_field(1, 1), "field 1 of wire type 0"),
        (signature * 2, "field 1 after field 1"),
    ):
        refusal = signs(C_CHAIN[-1].root).check(paths + len_field(2, signed), C_CHAIN[2].summary)
        assert refusal is not None
        assert (refusal.kind, refusal.got) == (RefusalKind.CANNOT_PARSE, got)
        assert refusal.what == "state proof: signed_block_proof"


def test_paths_and_siblings_are_counted_before_anything_is_hashed() -> None:
    many = proof([path(None, [], 1)] * (STATE_PROOF_PATHS_MAX + 1))
    with pytest.raises(ProofDataError, match=r"^state proof: got more paths, expected at most 64$"):
        read_state_proof(many)
    assert len(read_state_proof(proof([path(None, [], 1)] * STATE_PROOF_PATHS_MAX)).paths) == 64
    full = [path((6, TIME), [], 2), path((3, h("a")), [None] * STATE_PROOF_SIBLINGS_MAX, 2)]
    end = path(None, [], END)
    assert len(read_state_proof(proof([*full, end])).paths) == 3
    with pytest.raises(
        ProofDataError, match=r"^state proof path 2: got more siblings, expected at most 20000 in all$"
    ):
        read_state_proof(proof([*full, path(None, [None], END)]))


# --- real blocks --------------------------------------------------------------------------------------------


def state_proof(summary: BlockSummary) -> bytes:
    return proof_of(summary.proofs[0]).block_state_proof


@real.needs_real_blocks
@pytest.mark.parametrize(("name", "signed"), [("signed-chain", 5), ("layout-8-chain", 4)])
def test_blocks_of_real_networks(name: str, signed: int) -> None:
    checker = StateProofCheck(TssCheck(real.ledger(name)).check)
    for number in range(1, signed):
        summary = real.summary(name, number)
        assert checker.check(state_proof(summary), summary) is None
        read = read_state_proof(state_proof(summary))
        assert read.signature == real.signature(name, signed)
        for other in range(1, signed):
            if other != number:
                refusal = checker.check(state_proof(real.summary(name, other)), summary)
                assert refusal is not None
                assert refusal.kind is RefusalKind.BAD_PROOF


@real.needs_real_blocks
def test_a_state_proof_of_another_network() -> None:
    summary = real.summary("signed-chain", 3)
    refusal = StateProofCheck(TssCheck(real.ledger("layout-8-chain")).check).check(
        state_proof(summary), summary
    )
    assert refusal is not None
    assert refusal.kind is RefusalKind.BAD_PROOF
    assert refusal.what.startswith("state proof: ")


# --- tampering ----------------------------------------------------------------------------------------------


@real.needs_real_blocks
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("name", "number"), [("signed-chain", 3), ("layout-8-chain", 2)])
def test_no_altered_bit_of_a_state_proof_is_accepted(name: str, number: int) -> None:
    """Forms C and A, with the bits that the reference ignores (docs/spec/proofs.md section 5.3)."""
    checker = StateProofCheck(TssCheck(real.ledger(name)).check)
    summary = real.summary(name, number)
    good = state_proof(summary)
    assert checker.check(good, summary) is None
    bits: Sequence[int] = range(8 * len(good))
    if not LONG:
        bits = random.Random(8).sample(bits, 150)
    accepted = []
    for bit in bits:
        altered = bytearray(good)
        altered[bit // 8] ^= 1 << bit % 8
        if checker.check(bytes(altered), summary) is None:
            accepted.append(bit)
    assert accepted == []
