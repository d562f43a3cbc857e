"""Proofs: milliseconds of processor time for each kind, beside the time to hash a block.

    python -m benchmarks.proofs [--quick]

*Uncached* is the first block under a key, *steady* one under a known key by another set of nodes than before,
*same signers* one by a set that has signed before; *together* is the time of each of eight waiting blocks, by
eight such sets. The blocks have 400 kB in items of 107 bytes, as real ones. `benchmarks.tss_blocks` measures
a node with them. WRAPS and state proofs are those of real blocks, which are beside the repository; without
them these rows are left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.chains import KEY
from benchmarks.measuring import Rows, print_rows
from benchmarks.tss_blocks import ITEM_BYTES, ITEMS_PER_BLOCK
from sluice.gateway.blocks.items import ItemKind, field_item, proof_of
from sluice.gateway.blocks.proofs.address_book import read_address_book
from sluice.gateway.blocks.proofs.ed25519 import Ed25519Check
from sluice.gateway.blocks.proofs.ledger_data import read_publication, refusal_of
from sluice.gateway.blocks.proofs.record_file import RecordFileCheck
from sluice.gateway.blocks.proofs.state_proof import StateProofCheck
from sluice.gateway.blocks.proofs.tss import TssCheck
from sluice.gateway.blocks.root_hash import BlockHasher
from tests.gateway.blocks.proofs import real, record_files
from tests.gateway.blocks.proofs.tss_network import TssNetwork

__all__ = ["run"]

NETWORK = TssNetwork((1, 1, 1, 1))
ROOT = bytes(range(48))


def run(quick: bool = False) -> Rows:
    """Measure all; return a label and a text for each figure."""
    rounds = 5 if quick else 30
    return [*_hashing(rounds), *_kinds(rounds)]


def _milliseconds(work: Callable[[], object], rounds: int) -> float:
    """Return the best processor time of some rounds."""
    best = float("inf")
    for _ in range(rounds):
        started = time.process_time()
        work()
        best = min(best, time.process_time() - started)
    return best * 1e3


def _hashing(rounds: int) -> Rows:
    items = [
        field_item(ItemKind.SIGNED_TRANSACTION, index.to_bytes(4, "big") + bytes(ITEM_BYTES - 6))
        for index in range(ITEMS_PER_BLOCK)
    ]
    header = field_item(ItemKind.BLOCK_HEADER, bytes.fromhex("0a02104e22020801"))
    taken = _milliseconds(lambda: BlockHasher().add([header, *items]), rounds)
    return [("hashing 400 kB in items of 107 B", f"{taken:.2f} ms a block")]


def _kinds(rounds: int) -> Rows:
    rows = []
    ed25519, signature = Ed25519Check([KEY.public_key().public_bytes_raw()]), KEY.sign(ROOT)
    taken = _milliseconds(lambda: ed25519.check(signature, ROOT), rounds)
    rows.append(("Ed25519 block proof", f"{taken:.2f} ms"))

    rows.append(("TSS with Schnorr proof", _tss(NETWORK.sign(ROOT), ROOT, rounds)))
    if real.FOLDER.is_dir():
        ledger, root_hash = real.ledger("wraps-chain"), real.summary("wraps-chain", 391).root_hash
        wraps = real.signature("wraps-chain", 391)
        first = _milliseconds(lambda: TssCheck(ledger).check(wraps, root_hash), 3)
        warm = TssCheck(ledger)
        assert warm.check(wraps, root_hash) is None
        uncached = _milliseconds(lambda: warm._check_key(wraps[:1096], wraps[2728:]), 5)
        text = f"uncached {first:.1f} ms, of which the proof {uncached:.1f} ms; steady as with Schnorr proofs"
        rows.append(("TSS with WRAPS proof", text))
        summary = real.summary("signed-chain", 1)
        state_proof = proof_of(summary.proofs[0]).block_state_proof
        state = StateProofCheck(TssCheck(real.ledger("signed-chain")).check)
        assert state.check(state_proof, summary) is None
        steady = _milliseconds(lambda: state.check(state_proof, summary), rounds)
        rows.append(("state proof of 4 blocks, with its TSS signature", f"steady {steady:.1f} ms"))
    proof, summary = record_files.signed([0, 1])
    book = RecordFileCheck(read_address_book(record_files.book_bytes(4)))
    assert book.check(proof, summary) is None
    taken = _milliseconds(lambda: book.check(proof, summary), rounds)
    rows.append(("RSA record-file proof, 2 signatures", f"{taken:.2f} ms"))

    taken = _milliseconds(lambda: refusal_of(read_publication(NETWORK.publication)), 3)
    rows.append(("ledger id publication of 4 nodes, once", f"{taken:.0f} ms"))
    return rows


def _tss(signature: bytes, root_hash: bytes, rounds: int) -> str:
    uncached = _milliseconds(lambda: TssCheck(NETWORK.ledger).check(signature, root_hash), rounds)
    check = TssCheck(NETWORK.ledger)
    assert check.check(signature, root_hash) is None

    def other_signers() -> None:
        check._held.clear()
        assert check.check(signature, root_hash) is None

    steady = _milliseconds(other_signers, rounds)
    same = _milliseconds(lambda: check.check(signature, root_hash), rounds)
    together = _milliseconds(_eight_together(), max(3, rounds // 4)) / 8
    return (
        f"uncached {uncached:.1f} ms, steady {steady:.1f} ms, together {together:.1f} ms, "
        f"same signers {same:.1f} ms"
    )


def _eight_together() -> Callable[[], None]:
    """Return the check of eight signatures at once, each by nine other nodes of thirteen."""
    network = TssNetwork((1,) * 13)
    claims = [
        (network.sign(root, [node for node in range(13) if (node - first) % 13 < 9], range(13)), root)
        for first, root in ((first, bytes((first,)) * 48) for first in range(8))
    ]
    check = TssCheck(network.ledger)
    assert check.check(*claims[0]) is None

    def work() -> None:
        check._held.clear()
        check.check_ahead(claims)
        assert [check.check(*claim) for claim in claims] == [None] * 8

    return work


if __name__ == "__main__":
    print_rows(run)
