"""Links without Spark: every root that comes out is the root that a gateway computes."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.gateway.blocks.chain import Chain
from sluice.gateway.blocks.items import ItemKind, field_item
from sluice.gateway.blocks.merkle import EMPTY_HASH, StreamingTree
from sluice.gateway.blocks.proofs.ed25519 import Ed25519Check
from sluice.gateway.blocks.root_hash import BlockHasher, BlockSummary, RootLayout
from sluice.publishers.blocks.block_files import read_block_file
from sluice.publishers.blocks.block_items import footer_item, header_item, proof_item
from sluice.publishers.blocks.block_places import blocks_in
from sluice.publishers.blocks.linking import (
    ChainStart,
    Linker,
    LinkPath,
    Links,
    open_block,
    sign_block,
    summary_of,
)
from sluice.publishers.blocks.maker import BlockMaker, MakerOptions, key_of_seed
from sluice.publishers.errors import PrepareError
from tests.publishers.data import REAL_BLOCKS, needs_real_blocks

KEY = key_of_seed(3)
BLOCKS = list(BlockMaker(3, KEY, MakerOptions(1, 1, 2, 300)).blocks(9))
LINK = bytes(range(48))
OTHER_LAYOUT: dict[str, RootLayout] = {"simulator-chain": 16}


def summary(items: tuple[bytes, ...], layout: RootLayout = "auto") -> BlockSummary:
    hasher = BlockHasher(layout)
    hasher.add(items)
    return hasher.finish()


@pytest.mark.parametrize("layout", [8, 16])
@pytest.mark.parametrize("state", [b"", LINK])
@pytest.mark.parametrize("minor_body", [(), (field_item(20, b"x"),), (field_item(27, b"later"),)])
def test_a_path_leads_to_the_root(layout: RootLayout, state: bytes, minor_body: tuple[bytes, ...]) -> None:
    """Field 20 is hashed nowhere; 27 modulo 20 is 7, trace data."""
    items = (*BLOCKS[1].items[:-2], *minor_body, footer_item(LINK, EMPTY_HASH, state), BLOCKS[1].items[-1])
    path = open_block(1, items).path(layout)
    assert LinkPath.from_bytes(path.to_bytes()) == path
    assert len(path.to_bytes()) == (192 if layout == 16 else 144)
    assert path.root(LINK, EMPTY_HASH) == summary(items, layout).root_hash


def test_extensions_are_part_of_the_path_in_layout_16_alone() -> None:
    items = (*BLOCKS[0].items[:-2], field_item(28, b"extension 0"), *BLOCKS[0].items[-2:])
    found = summary(items)
    root = open_block(0, items).path().root(found.previous_root_hash, found.all_blocks_root_hash)
    assert root == found.root_hash
    with pytest.raises(PrepareError) as caught:
        open_block(0, items).path(8)
    assert str(caught.value) == (
        f"block 0 cannot be prepared: unsupported: item {len(items) - 3}: got item field 28, "
        "expected an item that root layout 8 has a subtree for"
    )


@needs_real_blocks
@pytest.mark.parametrize("folder", sorted(REAL_BLOCKS.glob("*-chain")), ids=lambda path: path.name)
def test_real_chains_are_linked_as_they_are(folder: Path) -> None:
    listed = [read_block_file(Path(place.path)) for place in blocks_in(folder)]
    blocks = [block for index, block in enumerate(listed) if block.number == index]  # up to the first gap
    assert blocks
    # The headers of the reference's simulator have the other layout's version.
    layout: RootLayout = OTHER_LAYOUT.get(folder.name, "auto")
    linker = Linker(ChainStart())
    for block in blocks:
        opened = open_block(block.number, block.items)
        closed = opened.closed(linker.link(block.number, opened.path(layout)))
        assert closed == block.items[: len(closed)]


def test_blocks_are_linked_as_their_maker_did() -> None:
    linker, chain, ends = Linker(ChainStart()), Chain(), [ChainStart()]
    for block in BLOCKS:
        opened = open_block(block.number, block.items[:-1])
        links = linker.link(block.number, opened.path())
        assert opened.closed(links) == block.items[:-1]
        assert links.root_hash == summary(block.items).root_hash
        assert chain.check_links(summary(block.items)) is None
        chain.advance(block.number, links.root_hash)
        ends.append(linker.end)
    for start in ends:
        assert ChainStart.from_json(start.to_json()) == start
        again, follower = Linker(start), Linker(start)
        for block in BLOCKS[start.next_number :]:
            links = again.link(block.number, open_block(block.number, block.items).path())
            follower.follow(block.number, links)
        assert again.end == follower.end == ends[-1]


def test_a_block_without_a_footer_names_the_empty_state() -> None:
    opened = open_block(0, BLOCKS[0].items[:-2])
    links = Linker(ChainStart()).link(0, opened.path())
    assert opened.closed(links)[-1] == footer_item(EMPTY_HASH, EMPTY_HASH, EMPTY_HASH)
    assert summary_of(0, opened.closed(links)).root_hash == links.root_hash


def test_a_signature_is_of_the_root_and_replaces_what_was_there() -> None:
    unsigned = BLOCKS[2].items[:-1]
    assert sign_block(2, unsigned, KEY) == BLOCKS[2].items
    others = (proof_item(2, bytes(64)), proof_item(2, b"\x01" * 64))
    assert sign_block(2, (*unsigned, *others), KEY) == BLOCKS[2].items
    check = Ed25519Check([KEY.public_key().public_bytes_raw()])
    found = summary(sign_block(2, unsigned, KEY))
    assert check.check(KEY.sign(found.root_hash), found.root_hash) is None
    older = sign_block(2, unsigned, KEY, 8)
    assert older == (*unsigned, proof_item(2, KEY.sign(summary(BLOCKS[2].items, 8).root_hash)))
    assert older != BLOCKS[2].items


HEADER, ITEM = header_item(5, 0), field_item(4, b"x")
FOOTER = footer_item(LINK, LINK, LINK)


@pytest.mark.parametrize(
    ("items", "reason"),
    [
        ((), "it has no items before the footer"),
        ((FOOTER,), "it has no items before the footer"),
        ((ITEM,), "missing item: first item: got signed transaction (field 4), expected a block header"),
        ((header_item(6, 0), ITEM), "its header says that it is block 6"),
        ((HEADER, b"\x22\x05x"), "item 1: length of item field 4: got 5 bytes, expected 1, all that follow"),
        ((HEADER, FOOTER, ITEM), "item 2, of field 4, stands after the footer"),
        ((HEADER, FOOTER, FOOTER), "item 2, of field 12, stands after the footer"),
        (
            (HEADER, proof_item(5, bytes(64))),
            "missing item: item 1: got a block proof, expected the block footer before it",
        ),
        (
            (HEADER, field_item(ItemKind.BLOCK_FOOTER, b"")),
            "missing field: block footer field 1 (previous_block_root_hash): got nothing, expected 48 bytes",
        ),
        (
            (HEADER, field_item(8, b"")),
            "unsupported: item 1: got filtered single item (field 8), expected an item that can be hashed",
        ),
    ],
)
def test_what_is_no_block_is_refused_with_number_and_reason(items: tuple[bytes, ...], reason: str) -> None:
    with pytest.raises(PrepareError) as caught:
        open_block(5, items).path()
    assert str(caught.value) == f"block 5 cannot be prepared: {reason}"


@pytest.mark.parametrize(
    ("items", "reason"),
    [
        ((), "missing item: block: got no items, expected a block header first"),
        (
            (HEADER, ITEM),
            "missing item: block: got no block footer, expected one after the other items",
        ),
        ((HEADER, b""), "item 1: item: got no bytes, expected one length-delimited field"),
        ((header_item(4, 0), FOOTER), "its header says that it is block 4"),
        (
            (HEADER, FOOTER, proof_item(4, bytes(64))),
            "bad proof: block proof field 1 (block): got 4, expected 5, as in the header",
        ),
    ],
)
def test_what_cannot_be_hashed_cannot_be_signed(items: tuple[bytes, ...], reason: str) -> None:
    with pytest.raises(PrepareError) as caught:
        sign_block(5, items, KEY)
    assert str(caught.value) == f"block 5 cannot be prepared: {reason}"


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (2, "it is there more than once"),
        (4, "block 3 is missing before it"),
        (9, "blocks 3 to 8 are missing before it"),
    ],
)
def test_gaps_and_repeated_numbers_are_named_and_change_nothing(number: int, reason: str) -> None:
    linker, path = Linker(ChainStart()), LinkPath(LINK, LINK, LINK, LINK)
    for before in range(3):
        linker.link(before, path)
    end = linker.end
    for step in (lambda: linker.link(number, path), lambda: linker.follow(number, Links(LINK, LINK, LINK))):
        with pytest.raises(PrepareError) as caught:
            step()
        assert str(caught.value) == f"block {number} cannot be prepared: {reason}"
    assert linker.end == end


def test_the_first_block_must_be_that_of_the_start() -> None:
    with pytest.raises(PrepareError) as caught:
        Linker(ChainStart()).link(5, LinkPath(LINK, LINK, LINK, LINK))
    assert str(caught.value) == (
        "block 5 cannot be prepared: it is the first block, but the chain goes on with block 0 "
        "(give the chain's start)"
    )


def test_wrong_links_are_named() -> None:
    linker, right = Linker(ChainStart()), StreamingTree().root()
    with pytest.raises(PrepareError) as caught:
        linker.follow(0, Links(LINK, right, LINK))
    assert str(caught.value) == (
        f"block 0 cannot be prepared: previous_block_root_hash: got {LINK.hex()}, expected {right.hex()}"
    )
    with pytest.raises(PrepareError, match="root_hash_of_all_block_hashes_tree: got 000102"):
        linker.follow(0, Links(right, LINK, LINK))
    assert linker.end == ChainStart()


@pytest.mark.parametrize(
    ("number", "previous", "stack", "reason"),
    [
        (
            0,
            LINK,
            (),
            f"previous_root_hash of the chain's start: got {LINK.hex()}, expected the root before it",
        ),
        (1, EMPTY_HASH, (LINK,), "previous_root_hash of the chain's start: got bec021b4"),
        (2, b"short", (LINK,), "previous_root_hash of the chain's start: got 73686f7274"),
        (2, LINK, (), "tree state: got 0 hashes of [] bytes for 2 leaves"),
        (2, LINK, (b"x",), "tree state: got 1 hashes of [1] bytes for 2 leaves"),
        (-1, LINK, (), "tree state: got 0 hashes of [] bytes for -1 leaves"),
    ],
)
def test_a_start_that_cannot_be(number: int, previous: bytes, stack: tuple[bytes, ...], reason: str) -> None:
    with pytest.raises(PrepareError) as caught:
        ChainStart(number, previous, stack)
    assert caught.value.reason.startswith(reason)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"next_number": 0, "previous_root_hash": 5, "tree_stack": []}']
)
def test_the_text_of_a_start_is_read_strictly(text: str) -> None:
    with pytest.raises(PrepareError) as caught:
        ChainStart.from_json(text)
    assert caught.value.reason == "the text of a chain's start is not what to_json writes"
