"""Real blocks with one bit altered: what the root hash and both links cover.

SLUICE_LONG=1 flips every bit of header and footer of a block of each kind, and one bit of every other item;
the short run takes a sample. The proofs' own tests flip their bits. Only the links cover what a record file's
proof does not (docs/spec/proofs.md section 4.4).
"""

from __future__ import annotations

import os
import random

import pytest

from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.chain import Chain
from sluice.gateway.blocks.errors import BlockRefused
from sluice.gateway.blocks.items import ItemKind, kinds_of
from sluice.gateway.blocks.proofs import ProofVerifier, RsaBook
from sluice.gateway.blocks.refusal import RefusalKind
from sluice.gateway.blocks.root_hash import BlockHasher
from sluice.gateway.blocks.trusted_keys import TrustedKeys
from sluice.gateway.blocks.verification import BlockVerifier
from tests.gateway.blocks.proofs import real

LONG = os.environ.get("SLUICE_LONG") == "1"
KINDS = {
    "TSS with Schnorr": ("signed-chain", 5),
    "TSS in layout 8": ("layout-8-chain", 4),
    "TSS with WRAPS": ("wraps-chain", 391),
    "state proof": ("signed-chain", 2),
    "state proof in layout 8": ("layout-8-chain", 2),
}

pytestmark = [real.needs_real_blocks, pytest.mark.timeout(3600)]


def verifier_of(chain: str) -> BlockVerifier:
    """What checks the blocks of a chain."""
    if chain != "record-file-chain":
        return BlockVerifier(ProofVerifier(TrustedKeys(), "full", real.ledger(chain)))
    book = RsaBook((real.FOLDER / chain / "address-book.json").read_bytes())
    return BlockVerifier(ProofVerifier(TrustedKeys(rsa_file="book"), "full", None, book))


def is_accepted(verifier: BlockVerifier, items: list[bytes]) -> bool:
    """Check a block; return any refusal in one form."""
    hasher = BlockHasher()
    try:
        hasher.add(items)
        verifier.check(hasher.finish(), items)
    except BlockRefused:
        return False
    return True


def bits_of(block: Block, seed: int) -> list[tuple[int, int]]:
    """Item and bit: of header and footer all, of other items one each; or some of them."""
    rng = random.Random(seed)
    frame, body = [], []
    for index, kind in enumerate(kinds_of(block.items)):
        size = 8 * len(block.items[index])
        if kind in (ItemKind.BLOCK_HEADER, ItemKind.BLOCK_FOOTER):
            frame += [(index, bit) for bit in range(size)]
        elif kind != ItemKind.BLOCK_PROOF:
            body.append((index, rng.randrange(size)))
    return [*frame, *body] if LONG else [*rng.sample(frame, 24), *rng.sample(body, min(8, len(body)))]


def flipped(items: tuple[bytes, ...], index: int, bit: int) -> list[bytes]:
    item = bytearray(items[index])
    item[bit // 8] ^= 1 << bit % 8
    return [*items[:index], bytes(item), *items[index + 1 :]]


@pytest.mark.parametrize("kind", KINDS)
def test_no_altered_block_is_accepted(kind: str) -> None:
    chain, number = KINDS[kind]
    block, verifier = real.block(chain, number), verifier_of(chain)
    assert is_accepted(verifier, list(block.items))
    accepted = [
        (index, bit)
        for index, bit in bits_of(block, 7)
        if is_accepted(verifier, flipped(block.items, index, bit))
    ]
    assert accepted == []


@pytest.mark.parametrize("chain", ["signed-chain", "layout-8-chain", "record-file-chain"])
@pytest.mark.parametrize("field", [1, 2])
def test_both_links_of_the_footer_are_checked(chain: str, field: int) -> None:
    """A block whose footer names other blocks does not continue this chain, whatever its proof."""
    links = Chain()
    for number in range(3):
        summary = real.summary(chain, number)
        block = real.block(chain, number)
        [footer_index] = [
            index for index, kind in enumerate(kinds_of(block.items)) if kind == ItemKind.BLOCK_FOOTER
        ]
        # The item ends with three fields of 50 bytes: tag, length, 48 bytes of hash.
        at = len(block.items[footer_index]) - 150 + 50 * (field - 1) + 2
        hasher = BlockHasher()
        hasher.add(flipped(block.items, footer_index, 8 * at + 3))
        refusal = links.check_links(hasher.finish())
        assert refusal is not None
        assert refusal.kind is RefusalKind.BAD_ROOT_HASH
        assert refusal.what.startswith(f"block footer field {field} (")
        assert links.check_links(summary) is None
        links.advance(number, summary.root_hash)


@pytest.mark.parametrize("number", [0, 1])
def test_what_is_altered_in_a_record_file_block_is_refused_by_it_or_by_the_next(number: int) -> None:
    """Its proof covers the contents of the file; file and header agree; all else is fixed by its root hash,
    which the next block names (docs/spec/proofs.md section 4.4)."""
    block, verifier = real.block("record-file-chain", number), verifier_of("record-file-chain")
    following = real.summary("record-file-chain", number + 1)
    roots, covered, named = [real.summary("record-file-chain", at).root_hash for at in range(number)], 0, 0
    [file_index] = [index for index, kind in enumerate(kinds_of(block.items)) if kind == ItemKind.RECORD_FILE]
    file_bits = random.Random(3).sample(range(8 * len(block.items[file_index])), 500 if LONG else 10)
    for index, bit in [*bits_of(block, 11), *((file_index, bit) for bit in file_bits)]:
        items = flipped(block.items, index, bit)
        if not is_accepted(verifier, items):
            covered += 1
            continue
        hasher, links = BlockHasher(), Chain()
        hasher.add(items)
        for at, root_hash in enumerate([*roots, hasher.finish().root_hash]):
            links.advance(at, root_hash)
        refusal = links.check_links(following)
        assert refusal is not None, (index, bit)
        assert refusal.kind is RefusalKind.BAD_ROOT_HASH
        assert index != file_index
        named += 1
    assert covered > len(file_bits)
    assert named > 0


def test_what_a_record_file_proof_does_not_cover_is_held_by_the_next_block() -> None:
    """Another state root: the proof holds, the root hash is another, and block 1 does not link to it."""
    block, verifier = real.block("record-file-chain", 0), verifier_of("record-file-chain")
    [footer_index] = [
        index for index, kind in enumerate(kinds_of(block.items)) if kind == ItemKind.BLOCK_FOOTER
    ]
    altered = flipped(block.items, footer_index, 8 * len(block.items[footer_index]) - 1)
    assert is_accepted(verifier, altered)
    hasher = BlockHasher()
    hasher.add(altered)
    links = Chain()
    links.advance(0, hasher.finish().root_hash)
    refusal = links.check_links(real.summary("record-file-chain", 1))
    assert refusal is not None
    assert refusal.kind is RefusalKind.BAD_ROOT_HASH
