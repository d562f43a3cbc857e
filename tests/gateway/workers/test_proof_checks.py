"""Tests of `gateway.workers.proof_checks`: what is checked at once, and what waits for what."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sluice.gateway.blocks.errors import BlockRefused
from sluice.gateway.blocks.proofs import ProofVerifier, RsaBook
from sluice.gateway.blocks.proofs.ledger_data import LedgerData
from sluice.gateway.blocks.stream_layout import StoredBlock
from sluice.gateway.blocks.trusted_keys import TrustedKeys
from sluice.gateway.blocks.verification import BlockVerifier
from sluice.gateway.workers.proof_checks import ProofChecks
from sluice.gateway.workers.proof_process import PROOF_CHECK_SECONDS_MAX, ProofProcess, ProofProcesses
from tests.gateway.block_makers import PUBLIC_KEY, block_items, summary_of
from tests.gateway.blocks.proofs import record_files
from tests.gateway.blocks.proofs.tss_chain import TssChain
from tests.gateway.blocks.proofs.tss_network import TssNetwork

NETWORK = TssNetwork((1, 1, 1))
CHAIN = TssChain(NETWORK)
SUMMARIES = [summary_of(list(block.items)) for block in CHAIN.blocks(3)]
NO_KEYS = TrustedKeys()
OWN_KEY = TrustedKeys((PUBLIC_KEY,))


def yes() -> bool:
    return True


def no() -> bool:
    return False


def with_checks(
    play: Callable[[ProofChecks], Awaitable[None]],
    keys: TrustedKeys = NO_KEYS,
    ledger: LedgerData | None = None,
    keep: Callable[[LedgerData], None] | None = None,
    check_seconds_max: float = PROOF_CHECK_SECONDS_MAX,
) -> None:
    """Run a scene with the checks of a node that has these keys."""

    async def main() -> None:
        processes = ProofProcesses(1, lambda: ProofProcess(check_seconds_max=check_seconds_max))
        checks = ProofChecks(BlockVerifier(ProofVerifier(keys, "full", ledger)), keep, processes)
        try:
            await asyncio.wait_for(play(checks), 60)
        finally:
            checks.close()

    asyncio.run(main())


def test_what_is_quick_is_checked_at_once() -> None:
    async def play(checks: ProofChecks) -> None:
        own = summary_of(block_items(3))
        assert checks.check_now(own) == own._replace(root_hash_other_layout=None)
        assert checks.check_now(SUMMARIES[1]) is None
        assert checks.check_now(summary_of(block_items(0))) is not None
        checks.warm_up()
        assert not checks.process_ids  # Ed25519 keys need none

    with_checks(play, OWN_KEY)


def test_block_0_is_looked_at_where_it_may_publish() -> None:
    own = summary_of(block_items(0))

    async def awaiting(checks: ProofChecks) -> None:
        assert checks.check_now(own) is None

    async def knowing(checks: ProofChecks) -> None:
        assert checks.check_now(own) is None
        assert checks.check_now(summary_of(block_items(1))) is not None

    with_checks(awaiting)
    with_checks(knowing, OWN_KEY, NETWORK.ledger)


def test_later_blocks_wait_for_block_0() -> None:
    kept: list[LedgerData] = []

    async def play(checks: ProofChecks) -> None:
        later = [
            asyncio.create_task(checks.check(SUMMARIES[number], (), block_0_comes=yes)) for number in (2, 1)
        ]
        verdict = await checks.check(SUMMARIES[0], CHAIN.block(0).items, block_0_comes=yes)
        assert verdict.published == NETWORK.ledger
        assert checks.ledger is None
        assert not any(task.done() for task in later)
        await checks.block_0_committed(verdict.published)
        assert checks.ledger == NETWORK.ledger
        assert kept == [NETWORK.ledger]
        assert [(await task).summary.number for task in later] == [2, 1]
        await checks.block_0_committed(TssNetwork((1, 1, 1), seed=2).ledger)  # never replaced
        assert checks.ledger == NETWORK.ledger
        assert kept == [NETWORK.ledger]

    with_checks(play, keep=kept.append)


def test_a_chain_without_block_0_has_nothing_to_wait_for() -> None:
    async def play(checks: ProofChecks) -> None:
        with pytest.raises(BlockRefused) as caught:
            await checks.check(SUMMARIES[1], (), block_0_comes=no)
        assert str(caught.value.refusal) == (
            "missing verification data: TSS block proof: got no ledger data, expected a --ledger-key "
            "tss:FILE, or a publication in block 0 and --ledger-key tss:block0 or tss:id=HEX"
        )

    with_checks(play)


def test_a_block_0_that_publishes_nothing_ends_the_waiting() -> None:
    async def play(checks: ProofChecks) -> None:
        waiting = asyncio.create_task(checks.check(SUMMARIES[1], (), block_0_comes=yes))
        await asyncio.sleep(0)
        await checks.block_0_committed(None)
        with pytest.raises(BlockRefused, match="no ledger data"):
            await waiting
        assert checks.ledger is None

    with_checks(play, TrustedKeys((PUBLIC_KEY,), tss_block0=True))


HANGING = """
import time
from sluice.gateway.workers import proof_process
from sluice.gateway.blocks.verification import BlockVerifier

BlockVerifier.check = lambda *_: time.sleep(3600)
proof_process.main()
"""


def test_a_check_that_takes_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is ready each time, and then does not answer."""
    (tmp_path / "hanging.py").write_text(HANGING)
    monkeypatch.syspath_prepend(tmp_path)

    async def play(checks: ProofChecks) -> None:
        worker = checks._processes._processes[0]._worker
        monkeypatch.setattr(worker, "_module", "hanging")
        ready = worker._on_ready

        def look() -> None:
            ready()
            asyncio.get_running_loop().call_soon(worker._look, worker._asked[0])  # as at its time limit

        monkeypatch.setattr(worker, "_on_ready", look)
        with pytest.raises(BlockRefused, match="got 2 checks that did not come to an end"):
            await checks.check(SUMMARIES[1], (), block_0_comes=no)
        assert worker.start_count == 2

    with_checks(play, ledger=NETWORK.ledger)


def test_a_process_that_takes_too_long_to_start_is_not_waited_for() -> None:
    async def play(checks: ProofChecks) -> None:
        verdict = await checks.check(SUMMARIES[1], (), block_0_comes=no)
        assert verdict.summary.root_hash == SUMMARIES[1].root_hash
        assert not checks.process_ids

    with_checks(play, ledger=NETWORK.ledger, check_seconds_max=0.0)


def test_closing_fails_a_check_that_is_under_way() -> None:
    async def play(checks: ProofChecks) -> None:
        checks.warm_up()
        task = asyncio.create_task(checks.check(SUMMARIES[1], (), block_0_comes=no))
        await asyncio.sleep(0)
        checks.close()
        with pytest.raises(BlockRefused, match="checks that did not come to an end"):
            await task

    with_checks(play, ledger=NETWORK.ledger)


def test_only_a_signature_that_was_checked_covers_a_root_hash() -> None:
    """In a block accepted just now, and in one stored by an earlier run."""
    own = block_items(3)
    root_hash = summary_of(own).root_hash
    record_file = record_files.contents(3)
    proof = record_files.record_file_proof([(0, record_files.sign(record_file, 0))])
    unsigned = record_files.block_items(record_files.record_file_item(record_file), proof, 3)
    stranger = block_items(3, key=Ed25519PrivateKey.from_private_bytes(bytes(32)))
    book = RsaBook(record_files.book_bytes(1))

    def stored(items: list[bytes], root: bytes | None = None) -> StoredBlock:
        return StoredBlock(3, tuple(items), summary_of(items).root_hash if root is None else root)

    async def play(full: ProofChecks) -> None:
        in_mode_hash = ProofChecks(BlockVerifier(ProofVerifier(OWN_KEY, "hash")))
        with_book = ProofChecks(BlockVerifier(ProofVerifier(TrustedKeys(rsa_file="b"), "full", None, book)))
        try:
            assert full.signs_root(summary_of(own))
            assert not in_mode_hash.signs_root(summary_of(own))
            assert not with_book.signs_root(summary_of(unsigned))
            assert full.signs_stored_root(stored(own))
            assert not in_mode_hash.signs_stored_root(stored(own))
            assert not full.signs_stored_root(stored(own, root_hash[:-1] + bytes([root_hash[-1] ^ 1])))
            assert not full.signs_stored_root(stored(stranger))
            assert not full.signs_stored_root(stored([b"\xff", *own[1:]], root_hash))
            with_book.check_now(summary_of(unsigned))  # its proof holds
            assert not with_book.signs_stored_root(stored(unsigned))
        finally:
            in_mode_hash.close()
            with_book.close()

    with_checks(play, OWN_KEY)
