"""Checks of proofs for the event loop: at once where they are quick, else in a worker process.

A shell. A few Ed25519 proofs, 0.05 ms each, are checked in the event loop, all others in
`workers.proof_process`. While a TSS network's ledger data are still to come from block 0, no proof of a later
block can be judged:

    block    ledger data          what happens
    0        to come              checked with what it publishes; believed once it is committed, and kept
    later    to come, from a 0    waits
             that is still to be
             committed
    later    to come, but the     refused: nothing can be checked
             chain has begun
             without block 0
    any      known                checked
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from sluice.gateway.blocks.errors import BlockRefused, ItemError
from sluice.gateway.blocks.proofs import signs_root
from sluice.gateway.blocks.proofs.ledger_data import LedgerData, publishing_items
from sluice.gateway.blocks.root_hash import BlockHasher, BlockSummary
from sluice.gateway.blocks.stream_layout import StoredBlock
from sluice.gateway.blocks.verification import BlockVerifier, Verdict
from sluice.gateway.workers.proof_process import ProofProcesses

__all__ = ["ProofChecks"]


class ProofChecks:
    """Checks the proofs of one node's blocks.

    Args:
        keep: stores the ledger data of a committed block 0; called in a thread.
        processes: closed with this; None: new ones.
    """

    def __init__(
        self,
        verifier: BlockVerifier,
        keep: Callable[[LedgerData], None] | None = None,
        processes: ProofProcesses | None = None,
    ) -> None:
        self.hasher: Callable[[], BlockHasher] = verifier.hasher
        self._verifier = verifier
        self._keep = keep
        self._known = asyncio.Event()
        if not verifier.awaits_block_0:
            self._known.set()
        self._processes = processes or ProofProcesses()
        self._thread = ThreadPoolExecutor(1, "ledger data")

    @property
    def ledger(self) -> LedgerData | None:
        """The ledger data of the checks, if known."""
        return self._verifier.proofs.ledger

    @property
    def process_ids(self) -> list[int]:
        """The ids of the worker processes."""
        return self._processes.pids

    def warm_up(self) -> None:
        """Start the process if blocks will need it."""
        proofs = self._verifier.proofs
        if proofs.mode == "full" and (proofs.needs_process or self._verifier.awaits_block_0):
            self._processes.start()

    def check_now(self, summary: BlockSummary) -> BlockSummary | None:
        """Check the proofs here, in the event loop, if that is quick; else return None, and `check` has to.

        Returns:
            The summary, with the root that the proofs fit.

        Raises:
            BlockRefused: they do not hold.
        """
        proofs = self._verifier.proofs
        if (
            summary.number == 0
            and proofs.mode == "full"
            and not (self._known.is_set() and proofs.ledger is None)
        ):
            return None  # `check` reads what it publishes
        return self._verifier.check(summary).summary if proofs.is_quick(summary) else None

    def signs_root(self, summary: BlockSummary) -> bool:
        """Return whether a checked signature covers the root hash of an accepted block."""
        return self._verifier.proofs.mode == "full" and signs_root(summary)

    def signs_stored_root(self, stored: StoredBlock) -> bool:
        """Return the same of a stored block, checked here; takes long, call in a thread."""
        if self._verifier.proofs.mode == "hash":
            return False
        hasher = self._verifier.hasher()
        try:
            hasher.add(stored.items)
            summary = self._verifier.verify(hasher, stored.items)
        except (BlockRefused, ItemError):
            return False
        return summary.root_hash == stored.root_hash and signs_root(summary)

    async def check(
        self,
        summary: BlockSummary,
        items: Sequence[bytes],
        *,
        block_0_comes: Callable[[], bool],
        more_come: bool = False,
    ) -> Verdict:
        """Check the proofs of a block in a worker process; of its items only block 0's are read.

        Args:
            block_0_comes: returns whether the chain has yet to begin, with block 0.
            more_come: another block is on its way, to be checked together.

        Raises:
            BlockRefused: they do not hold.
        """
        if summary.number != 0 and not self._known.is_set() and block_0_comes():
            await self._known.wait()
        publishing: list[bytes] = []
        if summary.number == 0:  # in a thread: there may be millions
            loop = asyncio.get_running_loop()
            publishing = await loop.run_in_executor(self._thread, publishing_items, items)
        return await self._processes.check(self._verifier.proofs, summary, publishing, more_come=more_come)

    async def block_0_committed(self, published: LedgerData | None) -> None:
        """Believe what block 0 published, unless ledger data are known; release waiting blocks."""
        if self._known.is_set():
            return
        if published is not None:
            self._verifier.believe(published)
        self._known.set()
        if published is not None and self._keep is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._keep, published)

    def close(self) -> None:
        """End the processes; a waiting check fails."""
        self._processes.close()
        self._thread.shutdown()
