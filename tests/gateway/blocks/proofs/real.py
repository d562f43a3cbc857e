"""Real blocks for the tests of proofs."""

from __future__ import annotations

import gzip
from functools import cache

from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.items import proof_of
from sluice.gateway.blocks.proofs.ledger_data import LedgerData, publications_in, read_publication
from sluice.gateway.blocks.root_hash import BlockHasher, BlockSummary
from tests.reference_data import BLOCKS, needs_blocks

FOLDER = BLOCKS
needs_real_blocks = needs_blocks


@cache
def block(chain: str, number: int) -> Block:
    """A real block."""
    return Block.from_bytes(gzip.decompress((FOLDER / chain / f"{number}.blk.gz").read_bytes()))


@cache
def summary(chain: str, number: int) -> BlockSummary:
    """The summary of a real block."""
    hasher = BlockHasher()
    hasher.add(block(chain, number).items)
    return hasher.finish()


def signature(chain: str, number: int) -> bytes:
    """The signature of a block with a direct TSS proof."""
    return proof_of(summary(chain, number).proofs[0]).signed_block_proof.block_signature


@cache
def publication(chain: str) -> bytes:
    """The publication in block 0 of a chain."""
    [found] = publications_in(block(chain, 0).items)
    return found


@cache
def ledger(chain: str) -> LedgerData:
    """The ledger data of a chain."""
    return read_publication(publication(chain))
