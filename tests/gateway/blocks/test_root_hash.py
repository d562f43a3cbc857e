"""Tests of `gateway.blocks.root_hash`."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.datastream.layout import DATA_SIZE_MAX
from sluice.gateway.api import block_pb2
from sluice.gateway.blocks.errors import BlockRefused
from sluice.gateway.blocks.items import ItemKind, field_item, kinds_of, payload_of, stream_entry_item
from sluice.gateway.blocks.merkle import EMPTY_HASH
from sluice.gateway.blocks.root_hash import (
    NOT_HASHED,
    PROOFS_BYTES_MAX,
    PROOFS_PER_BLOCK_MAX,
    BlockHasher,
    BlockSummary,
    RootLayout,
    subtree_of,
)
from tests.gateway.block_makers import (
    STATE_HASH,
    body_items,
    footer_item,
    header_item,
    proof_item,
    summary_of,
)

# The subtrees of items, written independently of the code.
CATEGORIES = ("C", "I", "O", "S", "X", "E0", "E1", "E2", "E3", "E4", "E5", "E6", "E7")
CATEGORY_OF_KIND = {1: "O", 2: "C", 3: "C", 4: "I", 5: "O", 6: "O", 7: "S", 10: "O", 11: "X"}
CATEGORY_OF_REMAINDER = {
    0: "-",
    3: "C",
    4: "I",
    5: "O",
    6: "S",
    7: "X",
    19: "-",
    **{8 + number: f"E{number}" for number in range(8)},
}


def sha384(*parts: bytes) -> bytes:
    return hashlib.sha384(b"".join(parts)).digest()


def tree(leaves: list[bytes]) -> bytes:
    """A tree's root by its recursive definition."""
    if len(leaves) < 2:
        return leaves[0] if leaves else sha384(b"\x00")
    split = 1 << (len(leaves) - 1).bit_length() - 1
    return sha384(b"\x02", tree(leaves[:split]), tree(leaves[split:]))


def defined_root(items: list[bytes], layout: int, state: bytes) -> bytes:
    """The root hash of a block 0 by its definition."""
    leaves: dict[str, list[bytes]] = {category: [] for category in (*CATEGORIES, "-")}
    for item, kind in zip(items, kinds_of(items), strict=True):
        if kind not in (9, 12):
            category = CATEGORY_OF_REMAINDER[kind % 20] if kind >= 20 else CATEGORY_OF_KIND[kind]
            leaves[category].append(sha384(b"\x00", item))
    roots = [tree(leaves[category]) for category in CATEGORIES]
    timestamp = sha384(b"\x00", bytes.fromhex("0880e2cfaa061005"))  # what header_item() has by default
    top = [EMPTY_HASH, EMPTY_HASH, state]
    if layout == 8:
        return sha384(b"\x02", timestamp, sha384(b"\x01", tree(top + roots[:5])))
    return sha384(b"\x02", timestamp, tree(top + roots))


def whole(body: list[bytes], *, minor: int = 78, state: bytes = STATE_HASH) -> list[bytes]:
    return [header_item(minor=minor), *body, footer_item(state=state), proof_item()]


def refusal_of(items: list[bytes], root_layout: RootLayout = "auto") -> str:
    with pytest.raises(BlockRefused) as caught:
        summary_of(items, root_layout)
    return str(caught.value)


# --- the hash -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("minor", "layout"), [(73, 8), (77, 8), (78, 16), (80, 16)])
@pytest.mark.parametrize("count", [0, 1, 2, 5, 17, 100])
def test_the_root_is_the_defined_one(minor: int, layout: int, count: int) -> None:
    items = whole(body_items(count), minor=minor)
    summary = summary_of(items)
    assert summary.root_layout == layout
    assert summary.root_hash == defined_root(items, layout, STATE_HASH)
    assert summary.root_hash_other_layout == defined_root(items, 24 - layout, STATE_HASH)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([2, 3, 4, 5, 6, 7, 11, 20, 23, 28, 35, 39, 43, 1008]), st.binary(max_size=9)
        )
    ),
    st.lists(st.integers(1, 30)),
)
def test_how_items_are_cut_into_calls_does_not_matter(body: list[tuple[int, bytes]], cuts: list[int]) -> None:
    items = whole(
        [
            stream_entry_item(1, payload) if kind == 1008 else field_item(kind, payload)
            for kind, payload in body
        ]
    )
    hasher, at = BlockHasher(), 0
    for size in [*cuts, len(items)]:
        hasher.add(items[at : at + size])
        at += size
    summary = hasher.finish()
    assert summary == summary_of(items)
    assert summary.root_hash == defined_root(items, 16, STATE_HASH)


def test_an_absent_state_root_counts_as_the_empty_tree_in_layout_16_and_as_zeros_in_layout_8() -> None:
    items = whole(body_items(), state=b"")
    summary = summary_of(items)
    assert summary.root_hash == defined_root(items, 16, EMPTY_HASH)
    assert summary.root_hash_other_layout == defined_root(items, 8, bytes(48))


@pytest.mark.parametrize("kind", [*range(1, 65), 1008, 1023, 536_870_911])
def test_every_field_number_has_its_subtree_or_is_refused(kind: int) -> None:
    categories = CATEGORY_OF_REMAINDER if kind >= 20 else CATEGORY_OF_KIND
    category = categories.get(kind % 20 if kind >= 20 else kind)
    if category is None:
        assert subtree_of(kind) is None
    else:
        assert subtree_of(kind) == (NOT_HASHED if category == "-" else CATEGORIES.index(category))


def test_stream_entries_are_hashed_in_extension_subtree_0() -> None:
    """docs/spec/block-hash.md section 6 has this block's hashes."""
    entries = [(0xB0, b"\x08\x01"), (1, b"\x10\x01\x20\x8b\x06"), (0xB0, b"\x08\x02")]
    body = [stream_entry_item(entry_type, data) for entry_type, data in entries]
    leaves = [sha384(b"\x00", item) for item in body]
    subtree = sha384(b"\x02", sha384(b"\x02", *leaves[:2]), leaves[2])
    items = whole(body)
    hasher = BlockHasher()
    hasher.add(items)
    assert hasher.subtree_roots()[5:] == [subtree, *[EMPTY_HASH] * 7]
    summary = hasher.finish()
    assert summary.root_hash == defined_root(items, 16, STATE_HASH)
    assert summary.root_hash.hex() == (
        "af31224a382eaa252035f3dcf11e2c1365d984a3d7388bb4efd9523d6b73a335c24aa43ad5113d935fe24cc29d2beb49"
    )
    assert summary.root_hash_other_layout is None


@pytest.mark.parametrize("kind", [20, 39, 40, 59])
def test_items_that_are_not_hashed_change_no_root_but_are_counted(kind: int) -> None:
    without, with_it = (
        summary_of(whole(body_items())),
        summary_of(whole([*body_items(), field_item(kind, b"x")])),
    )
    assert with_it.root_hash == without.root_hash
    assert with_it.item_count == without.item_count + 1


def test_the_order_of_items_is_covered_within_a_subtree_alone() -> None:
    """As docs/verification.md warns."""
    first, second, result = field_item(4, b"a"), field_item(4, b"b"), field_item(5, b"r")
    roots = [
        summary_of(whole(items)).root_hash
        for items in ([first, second, result], [first, result, second], [second, first, result])
    ]
    assert roots[1] == roots[0]
    assert roots[2] != roots[0]


@pytest.mark.parametrize("kind", [8, 13, 14, 15, 16, 17, 18, 19, 21, 22, 36, 37, 38, 41, 176, 177])
def test_items_that_cannot_be_processed_are_refused_by_their_number(kind: int) -> None:
    text = refusal_of(whole([*body_items(2), field_item(kind, b"x")]))
    names = {8: "filtered single item (field 8)", 19: "redacted item (field 19)"}
    name = names.get(kind, f"item field {kind}")
    assert text == f"unsupported: item 3: got {name}, expected an item that can be hashed"


@pytest.mark.parametrize(
    ("major", "minor", "layout"), [(0, 0, 8), (0, 77, 8), (0, 78, 16), (1, 0, 16), (1, 77, 16), (2, 80, 16)]
)
def test_the_version_suggests_the_layout(major: int, minor: int, layout: int) -> None:
    """A major version comes after all minor ones before it."""
    header = block_pb2.BlockHeader(
        hapi_proto_version=block_pb2.SemanticVersion(major=major, minor=minor),
        block_timestamp=block_pb2.Timestamp(seconds=5),
    )
    items = [field_item(ItemKind.BLOCK_HEADER, header.SerializeToString()), *whole(body_items())[1:]]
    assert summary_of(items).root_layout == layout


def test_the_layout_may_be_a_setting() -> None:
    items = whole(body_items(), minor=77)
    for layout in (8, 16):
        summary = summary_of(items, root_layout=layout)
        assert summary.root_layout == layout
        assert summary.root_hash == defined_root(items, layout, STATE_HASH)
        assert summary.root_hash_other_layout is None
        assert summary.in_other_layout() is None


def test_the_summary_in_the_other_layout_is_the_same_block() -> None:
    summary = summary_of(whole(body_items(), minor=77))
    other = summary.in_other_layout()
    assert other is not None
    assert (other.root_layout, other.root_hash) == (16, summary.root_hash_other_layout)
    assert other.in_other_layout() == summary


def test_extension_items_have_a_place_in_layout_16_only() -> None:
    items = whole([field_item(28, b"x")], minor=77)
    summary = summary_of(items)
    assert summary.root_layout == 16
    assert summary.root_hash == defined_root(items, 16, STATE_HASH)
    assert summary.root_hash_other_layout is None
    text = "got item field 28, expected an item that root layout 8 has a subtree for"
    assert refusal_of(items, root_layout=8) == f"unsupported: item 1: {text}"


def test_the_summary_says_what_the_block_is() -> None:
    record_file = field_item(ItemKind.RECORD_FILE, b"records")
    items = [header_item(7, minor=79), record_file, footer_item(b"p" * 48, b"a" * 48)]
    items += [proof_item(7), proof_item(7, b"\x02" * 64)]
    summary = summary_of(items)
    assert summary == BlockSummary(
        number=7,
        timestamp_seconds=1_700_000_000,
        timestamp=bytes.fromhex("0880e2cfaa061005"),
        hapi_minor=79,
        root_layout=16,
        root_hash=summary.root_hash,
        root_hash_other_layout=summary.root_hash_other_layout,
        previous_root_hash=b"p" * 48,
        all_blocks_root_hash=b"a" * 48,
        proofs=(proof_item(7), proof_item(7, b"\x02" * 64)),
        record_file=record_file,
        header=items[0],
        footer=items[2],
        item_count=5,
        size_bytes=sum(map(len, items)),
    )


def test_calls_may_come_from_different_threads() -> None:
    items = whole(body_items(200))
    hasher = BlockHasher()
    with ThreadPoolExecutor(4) as pool:
        for at in range(0, len(items), 7):
            pool.submit(hasher.add, items[at : at + 7]).result()
        summary = pool.submit(hasher.finish).result()
    assert summary == summary_of(items)


def test_kinds_that_the_caller_knows_are_not_looked_up_again() -> None:
    items = whole(body_items())
    hasher = BlockHasher()
    hasher.add(items, kinds_of(items))
    assert hasher.finish() == summary_of(items)


# --- the structure ------------------------------------------------------------------------------------------

HEADER, FOOTER, PROOF = header_item(), footer_item(), proof_item()
BODY = body_items(2)

REFUSED = {
    "items before the header": (
        [*BODY, HEADER, FOOTER, PROOF],
        "missing item: first item: got event header (field 2), expected a block header",
    ),
    "no header": (
        [FOOTER, PROOF],
        "missing item: first item: got block footer (field 12), expected a block header",
    ),
    "two headers": (
        [HEADER, *BODY, HEADER, FOOTER, PROOF],
        "cannot parse: item 3: got a second block header, expected one, the first item",
    ),
    "two footers": (
        [HEADER, *BODY, FOOTER, FOOTER, PROOF],
        "cannot parse: item 4: got block footer (field 12) after the footer, expected only block proofs",
    ),
    "an item after the footer": (
        [HEADER, FOOTER, *BODY, PROOF],
        "cannot parse: item 2: got event header (field 2) after the footer, expected only block proofs",
    ),
    "an item after the proof": (
        [HEADER, *BODY, FOOTER, PROOF, field_item(20, b"")],
        "cannot parse: item 5: got item field 20 after the footer, expected only block proofs",
    ),
    "a proof before the footer": (
        [HEADER, *BODY, PROOF, FOOTER],
        "missing item: item 3: got a block proof, expected the block footer before it",
    ),
    "two record files": (
        [HEADER, *[field_item(10, b"r")] * 2, FOOTER, PROOF],
        "cannot parse: item 2: got a second record file, expected at most one",
    ),
    "one proof too many": (
        [HEADER, FOOTER, *(proof_item(0, bytes([n]) * 64) for n in range(PROOFS_PER_BLOCK_MAX + 1))],
        "unsupported: item 6: got more than 4 proofs, expected at most 4",
    ),
    "proofs of too many bytes": (
        [
            HEADER,
            FOOTER,
            PROOF,
            field_item(9, b"\xff" * (PROOFS_BYTES_MAX - len(PROOF) - 3)),
        ],  # none, to parse
        f"unsupported: item 3: got {PROOFS_BYTES_MAX + 1} bytes of proofs, expected at most 1250000",
    ),
    "the same proof twice": (
        [HEADER, FOOTER, PROOF, proof_item(0, b"\x02" * 64), PROOF],
        "cannot parse: item 4: got a proof that was there before, expected each proof once",
    ),
    "a proof of another block": (
        [HEADER, FOOTER, proof_item(1)],
        "bad proof: block proof field 1 (block): got 1, expected 0, as in the header",
    ),
    "a malformed item": (
        [HEADER, *BODY, b"\x22\x05", FOOTER, PROOF],
        "cannot parse: item 3: length of item field 4: got 5 bytes, expected 0, all that follow",
    ),
    "an empty item": (
        [HEADER, b"", FOOTER, PROOF],
        "cannot parse: item 1: item: got no bytes, expected one length-delimited field",
    ),
}


@pytest.mark.parametrize(("items", "text"), REFUSED.values(), ids=REFUSED)
def test_structures_that_are_refused(items: list[bytes], text: str) -> None:
    assert refusal_of(items) == text


@pytest.mark.parametrize(("items", "text"), REFUSED.values(), ids=REFUSED)
def test_they_are_refused_item_by_item_too(items: list[bytes], text: str) -> None:
    hasher = BlockHasher()

    def add_each() -> None:
        for item in items:
            hasher.add([item])

    with pytest.raises(BlockRefused) as caught:
        add_each()
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("items", "text"),
    [
        ([], "missing item: block: got no items, expected a block header first"),
        ([HEADER, *BODY], "missing item: block: got no block footer, expected one after the other items"),
        (
            [HEADER, *BODY, FOOTER],
            "missing item: block: got no block proof, expected at least one after the footer",
        ),
    ],
)
def test_what_is_missing_is_named_at_the_end(items: list[bytes], text: str) -> None:
    assert refusal_of(items) == text


def test_a_refused_call_takes_nothing() -> None:
    good = whole(body_items(30))
    for bad in (
        [*body_items(20), b""],
        [*body_items(3), field_item(8, b"")],
        [*body_items(3), HEADER],
        [*body_items(3), FOOTER, *BODY],
        [*body_items(3), field_item(10, b""), FOOTER, proof_item(9)],
    ):
        hasher = BlockHasher()
        hasher.add(good[:10])
        with pytest.raises(BlockRefused):
            hasher.add(bad)
        assert (hasher.number, hasher.item_count) == (0, 10)
        hasher.add(good[10:])
        assert hasher.finish() == summary_of(good)


def test_progress_can_be_followed() -> None:
    hasher = BlockHasher()
    hasher.add([])
    assert (hasher.number, hasher.item_count, hasher.size_bytes) == (None, 0, 0)
    hasher.add([header_item(4)])
    assert (hasher.number, hasher.item_count, hasher.size_bytes) == (4, 1, len(header_item(4)))


def test_every_bit_of_a_hashed_item_or_a_link_changes_the_root() -> None:
    items = whole(body_items(2))
    root_hash = summary_of(items).root_hash
    for index in (1, 2, 3):
        payload = payload_of(items[index])
        for bit in range(8 * len(payload)):
            flipped = bytearray(payload)
            flipped[bit // 8] ^= 1 << bit % 8
            changed = [*items]
            changed[index] = field_item(kinds_of([items[index]])[0], bytes(flipped))
            try:
                assert summary_of(changed).root_hash != root_hash
            except BlockRefused:
                assert index == 3  # a footer that is no footer any more


def test_so_many_proofs_are_taken() -> None:
    proofs = [proof_item(0, bytes([number]) * 64) for number in range(PROOFS_PER_BLOCK_MAX)]
    assert len(summary_of([HEADER, FOOTER, *proofs]).proofs) == PROOFS_PER_BLOCK_MAX


def test_proofs_of_so_many_bytes_are_taken() -> None:
    overhead = len(proof_item(0, bytes(PROOFS_BYTES_MAX // 2))) - PROOFS_BYTES_MAX // 2
    long = proof_item(0, bytes(PROOFS_BYTES_MAX - len(PROOF) - overhead))
    assert sum(map(len, summary_of([HEADER, FOOTER, PROOF, long]).proofs)) == PROOFS_BYTES_MAX


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (
            stream_entry_item(0xFFFF_FFFF, b"x"),
            "item 1: stream entry: type: got 0xffffffff, expected another",
        ),
        (stream_entry_item(2, bytes(DATA_SIZE_MAX + 1)), f"got {DATA_SIZE_MAX + 1} bytes, expected at most"),
        (
            bytes.fromhex("823f0408021200"),
            "item 1: stream entry: got 7 bytes that are not its canonical form",
        ),
        (bytes.fromhex("823f0100"), "item 1: stream entry: got 4 bytes that do not parse"),
    ],
    ids=["not found", "too long", "another encoding", "no message"],
)
def test_what_no_stream_can_have_as_an_entry_is_refused(item: bytes, text: str) -> None:
    """By nodes of every layout: a chain is valid everywhere, or nowhere."""
    hasher = BlockHasher()
    with pytest.raises(BlockRefused) as caught:
        hasher.add(whole([item]))
    assert text in str(caught.value)
