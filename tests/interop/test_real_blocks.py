"""Blocks of real networks: their root hashes, their links, their way through the stream's layout and back.

Every root but a chain's last is also checked by the footer of the next block.
"""

from __future__ import annotations

import gzip

import pytest

from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.chain import Chain
from sluice.gateway.blocks.items import proof_of
from sluice.gateway.blocks.merkle import EMPTY_HASH
from sluice.gateway.blocks.proofs import ProofKind, ProofVerifier, kind_of_proof
from sluice.gateway.blocks.refusal import RefusalKind
from sluice.gateway.blocks.root_hash import BlockHasher, BlockSummary
from sluice.gateway.blocks.stream_layout import BlockDecoder, StoredBlock, encode
from sluice.gateway.blocks.trusted_keys import TrustedKeys
from tests.reference_data import BLOCKS, needs_blocks

pytestmark = needs_blocks

# Chain -> root layout, first 8 bytes of each root.
CHAINS = {
    "signed-chain": (
        16,
        [
            *("85d7117a94f09115", "9799848eff342061", "0facbf0e5d94d457"),
            *("9d1ac9ba0c57558a", "e313796875ef1006", "1c417b370965dd85"),
        ],
    ),
    "record-file-chain": (16, ["cc2c7c849e986345", "8b70cecb8deabc57", "6cfb9066c335aebe"]),
    "layout-8-chain": (
        8,
        ["abca002469f5a59b", "16be13db66b0ee4b", "ebb69bd6d03e4a15", "ab58d1104bb0a09b", "fedfb3dafcb18673"],
    ),
}
FILES = [
    ("signed-chain", range(6)),
    ("record-file-chain", range(3)),
    ("layout-8-chain", range(5)),
    ("wraps-chain", [0, 391]),
]
ALL_BLOCKS = [(chain, number) for chain, numbers in FILES for number in numbers]


def serialized(chain: str, number: int) -> bytes:
    return gzip.decompress((BLOCKS / chain / f"{number}.blk.gz").read_bytes())


def block(chain: str, number: int) -> Block:
    return Block.from_bytes(serialized(chain, number))


def summary_of(items: tuple[bytes, ...], calls_of: int | None = None) -> BlockSummary:
    hasher = BlockHasher()
    size = calls_of or len(items)
    for at in range(0, len(items), size):
        hasher.add(items[at : at + size])
    return hasher.finish()


@pytest.mark.parametrize(("chain", "number"), ALL_BLOCKS)
def test_a_block_file_reads_back_to_its_bytes(chain: str, number: int) -> None:
    read = block(chain, number)
    assert read.number == number
    assert read.to_bytes() == serialized(chain, number)


@pytest.mark.parametrize("chain", CHAINS)
def test_the_chain_holds_block_by_block(chain: str) -> None:
    layout, roots = CHAINS[chain]
    links = Chain()
    for number, root in enumerate(roots):
        summary = summary_of(block(chain, number).items)
        assert (summary.number, summary.root_layout) == (number, layout)
        assert summary.root_hash.hex()[:16] == root
        assert links.check_links(summary) is None
        links.advance(number, summary.root_hash)
    assert links.next_number == len(roots)


@pytest.mark.parametrize("chain", CHAINS)
def test_no_block_links_to_a_root_of_the_other_layout(chain: str) -> None:
    links = Chain()
    for number in range(2):
        summary = summary_of(block(chain, number).items)
        if number == 1:
            refusal = links.check_links(summary)
            assert refusal is not None
            assert refusal.kind is RefusalKind.BAD_ROOT_HASH
            return
        other = summary.in_other_layout()
        assert other is not None
        links.advance(number, other.root_hash)


def test_a_chain_may_begin_in_the_middle() -> None:
    links = Chain(first_number=391)
    summary = summary_of(block("wraps-chain", 391).items)
    assert links.check_links(summary) is None
    links.advance(391, summary.root_hash)
    assert links.anchor_note is not None
    beginning = summary_of(block("wraps-chain", 0).items)
    assert (beginning.previous_root_hash, beginning.all_blocks_root_hash) == (EMPTY_HASH, EMPTY_HASH)


@pytest.mark.parametrize("calls_of", [1, 7, 500])
@pytest.mark.parametrize(("chain", "number"), [("signed-chain", 2), ("record-file-chain", 0)])
def test_items_may_come_in_any_pieces(chain: str, number: int, calls_of: int) -> None:
    items = block(chain, number).items
    assert summary_of(items, calls_of) == summary_of(items)


@pytest.mark.parametrize(("chain", "number"), ALL_BLOCKS)
def test_a_block_reads_back_from_its_entries(chain: str, number: int) -> None:
    items = block(chain, number).items
    root_hash = summary_of(items).root_hash
    entries = encode(number, items, root_hash)
    assert len(entries) == len(items) + 2
    decoder = BlockDecoder()
    blocks = [stored for entry in entries if (stored := decoder.feed(*entry)) is not None]
    assert blocks == [StoredBlock(number, items, root_hash)]


@pytest.mark.parametrize(
    ("chain", "numbers", "kind"),
    [
        ("signed-chain", [0, 5], ProofKind.TSS),
        ("signed-chain", [1, 2, 3, 4], ProofKind.STATE),
        ("record-file-chain", [0, 1, 2], ProofKind.RECORD_FILE),
        ("layout-8-chain", [0, 4], ProofKind.TSS),
        ("layout-8-chain", [1, 2, 3], ProofKind.STATE),
        ("wraps-chain", [0, 391], ProofKind.TSS),
    ],
)
def test_the_kind_of_each_proof_is_recognised(chain: str, numbers: list[int], kind: ProofKind) -> None:
    for number in numbers:
        summary = summary_of(block(chain, number).items)
        assert [kind_of_proof(proof_of(item)) for item in summary.proofs] == [kind]
        assert ProofVerifier(TrustedKeys(), "hash").verify(summary) is None
        refusal = ProofVerifier(TrustedKeys((bytes(32),)), "full").verify(summary)
        assert refusal is not None
        assert refusal.kind in (RefusalKind.UNSUPPORTED, RefusalKind.MISSING_VERIFICATION_DATA)


def test_a_record_file_is_handed_on_for_its_proof() -> None:
    items = block("record-file-chain", 0).items
    assert summary_of(items).record_file == items[1]
    assert len(items[1]) > 280_000
