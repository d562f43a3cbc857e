"""Proofs: milliseconds a block for each kind, beside the cost of hashing it, and a node's speed with them.

    python -m benchmarks.proofs [--quick]

*Uncached* is the first block under a key, *steady* one under a known key by another set of nodes than before,
*same signers* one by a set that has signed before. The blocks have 400 kB in items of 107 bytes, the shape of
a real block of that size. For the throughput a node (a process of its own, and its proof process beside it)
takes the same TSS blocks in mode `hash` and in mode `full`, all signed under one hinTS key; the clock starts
when block 0 is acknowledged. The worst pause is the longest that the node's event loop did not come round,
and in brackets the longest of what the node itself was at work, without what other processes took meanwhile.
WRAPS and state proofs are those of real blocks, which are beside the repository; without them these rows are
left out.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from random import Random

import uvloop

from benchmarks.chains import KEY, Chain, make_chain
from benchmarks.publish_processes import node, publish
from gateway.items import ItemKind, field_item, proof_of
from gateway.proofs.address_book import read_address_book
from gateway.proofs.ed25519 import Ed25519Check
from gateway.proofs.ledger_data import read_publication, refusal_of
from gateway.proofs.record_file import RecordFileCheck
from gateway.proofs.state_proof import StateProofCheck
from gateway.proofs.tss import TssCheck
from gateway.root_hash import BlockHasher
from tests.gateway.proofs import real, record_files
from tests.gateway.proofs.tss_chain import publishing_transaction
from tests.gateway.proofs.tss_network import TssNetwork

__all__ = ["run"]

ITEMS_PER_BLOCK, ITEM_BYTES = 3_740, 107
NETWORK = TssNetwork((1, 1, 1, 1))
ROOT = bytes(range(48))


def run(quick: bool = False) -> list[tuple[str, str]]:
    """Measure all; return a label and a text for each figure."""
    rounds = 5 if quick else 30
    return [*_hashing(rounds), *_kinds(rounds), *_throughput(30 if quick else 150, 1 if quick else 3)]


def _milliseconds(work: Callable[[], object], rounds: int) -> float:
    """Return the best time of some rounds."""
    best = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return best * 1e3


def _hashing(rounds: int) -> list[tuple[str, str]]:
    items = [
        field_item(ItemKind.SIGNED_TRANSACTION, index.to_bytes(4, "big") + bytes(ITEM_BYTES - 6))
        for index in range(ITEMS_PER_BLOCK)
    ]
    header = field_item(ItemKind.BLOCK_HEADER, bytes.fromhex("0a02104e22020801"))
    taken = _milliseconds(lambda: BlockHasher().add([header, *items]), rounds)
    return [("hashing 400 kB in items of 107 B", f"{taken:.2f} ms a block")]


def _kinds(rounds: int) -> list[tuple[str, str]]:
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
    return f"uncached {uncached:.1f} ms, steady {steady:.1f} ms, same signers {same:.1f} ms"


def _throughput(block_count: int, rounds: int) -> list[tuple[str, str]]:
    """Publish the same TSS blocks in both modes, in turns; the best of each counts."""
    rows = []
    for label, network, signers in (
        ("4 nodes", TssNetwork((1,) * 4), lambda number: (0, 1, 2, 3)),
        ("13 nodes, each by others", TssNetwork((1,) * 13), _nine_of_thirteen),
    ):
        chain = _chain(network, signers, block_count)
        hashed, full = [], []
        for _ in range(rounds):
            hashed.append(_published(chain, "hash"))
            full.append(_published(chain, "full"))
        hash_seconds, full_seconds = min(hashed)[0], min(full)[0]
        pauses = [
            f"{min(pause for _, pause, _ in runs) * 1e3:.1f} ms ({min(own for *_, own in runs) * 1e3:.1f} ms)"
            for runs in (hashed, full)
        ]
        text = (
            f"mode hash {block_count / hash_seconds:,.0f} blocks/s, mode full "
            f"{block_count / full_seconds:,.0f} blocks/s; ratio {hash_seconds / full_seconds:.2f}; worst "
            f"pause of the loop {pauses[0]} and {pauses[1]}"
        )
        rows.append((f"publish {block_count} TSS blocks of 400 kB, {label}", text))
    return rows


def _nine_of_thirteen(number: int) -> tuple[int, ...]:
    """Return nine nodes, others for nearly every number."""
    return tuple(sorted(Random(number).sample(range(13), 9)))


def _chain(network: TssNetwork, signers: Callable[[int], tuple[int, ...]], block_count: int) -> Chain:
    numbers = itertools.count()
    return make_chain(
        block_count + 1,
        ITEMS_PER_BLOCK,
        ITEM_BYTES,
        sign=lambda root_hash: network.sign(root_hash, signers(next(numbers))),
        published=[publishing_transaction(network.publication)],
        ledger_key="tss:block0",
    )


def _published(chain: Chain, mode: str) -> tuple[float, float, float]:
    """Return the seconds from the first acknowledgement to the last, the worst pause, and its own part."""
    with node(chain, ["--verify", mode]) as facts:
        uvloop.run(publish(facts.address, replace(chain, messages=chain.messages[:1])))
        seconds = uvloop.run(publish(facts.address, replace(chain, messages=chain.messages[1:]), first=1))
    return seconds, facts.worst_pause_seconds, facts.worst_own_pause_seconds


if __name__ == "__main__":
    for label, text in run(quick="--quick" in sys.argv):
        print(f"{label}: {text}")
