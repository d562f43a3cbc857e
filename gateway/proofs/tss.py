"""TSS block signatures: a network's ledger id vouches for a hinTS key, and the key has signed the block.

Pure. A signature is three parts after one another, without framing; its size alone says which proof is last:

    0      1,096 bytes   VK      hinTS verification key
    1096   1,632 bytes   PI      hinTS aggregate signature of the block's root hash under VK
    2728   192 bytes     address-book proof, Schnorr    2,920 in all
           704 bytes     address-book proof, WRAPS      3,432 in all

It holds if both do:
  1. the address-book proof shows that the ledger vouches for VK (`gateway.proofs.schnorr`, `.wraps`);
  2. PI is a signature of the root hash under VK by more than half of its weight (`gateway.proofs.hints`).

The first does not depend on the block, so a key that was vouched for is remembered, and a steady chain pays
for the second alone. Of the second, all but asig depends on who signed and not on what, so it is remembered
too: a network of four has five sets of nodes with enough weight. What is remembered is compared byte by byte,
never by hashArray, which two keys may share.
Source: tss.md section 1.
"""

import secrets
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from gateway.errors import BlockRefused, ProofDataError
from gateway.merkle import HASH_SIZE
from gateway.proofs import hints, schnorr, wraps
from gateway.proofs.bls12_381 import G1Point
from gateway.proofs.ledger_data import LedgerData
from gateway.proofs.poseidon import hash_array, hash_array_number
from gateway.verdict import Refusal, RefusalKind

__all__ = ["TSS_SIGNATURE_SIZES", "TssCheck"]

_PROOF_OFFSET: Final = hints.VK_SIZE + hints.PI_SIZE
TSS_SIGNATURE_SIZES: Final = (_PROOF_OFFSET + schnorr.SIGNATURE_SIZE, _PROOF_OFFSET + wraps.WRAPS_PROOF_SIZE)
"""Bytes of a signature with a Schnorr and with a WRAPS address-book proof."""
assert TSS_SIGNATURE_SIZES == (2920, 3432)

VOUCHED_KEYS_MAX: Final = 64
"""Keys that are remembered, each some 10 kB. A network has one at a time, and changes it with its address
book; only what the ledger vouches for gets here."""
STATEMENTS_MAX: Final = 256
"""Statements of signatures that are remembered, each some 5 kB. Large networks have more sets of nodes that
may sign; theirs are checked each time, in some 3 ms more."""

_WHAT: Final = "TSS block proof"


class TssCheck:
    """Checks signatures against one ledger. Several threads may call it at once.

    Args:
        ledger: believed; who made this has checked it with `ledger_data.refusal_of`.
        random_bits: see `hints.check`; another one only in tests.
    """

    def __init__(self, ledger: LedgerData, random_bits: Callable[[int], int] = secrets.randbits) -> None:
        self.ledger = ledger
        """What signatures are checked against."""
        self._members = [schnorr.Member(node.key.Y, node.weight) for node in ledger.nodes]
        self._random_bits = random_bits
        # Errors are not remembered: nobody fills these with what does not hold.
        self._vouched_key = lru_cache(VOUCHED_KEYS_MAX)(self._check_key)
        self._held: dict[tuple[bytes, bytes], G1Point] = {}
        self._wraps_key = lru_cache(1)(wraps.prepare)

    def check(self, signature: bytes, root_hash: bytes) -> Refusal | None:
        """1: why the signature is no proof of a block with this root, or None if it is one.

        Args:
            signature: `SignedBlockProof.block_signature`.
            root_hash: 48 bytes.
        """
        assert len(root_hash) == HASH_SIZE
        if len(signature) not in TSS_SIGNATURE_SIZES:
            expected = " or ".join(map(str, TSS_SIGNATURE_SIZES))
            return Refusal(RefusalKind.CANNOT_PARSE, _WHAT, f"{len(signature)} bytes", expected)
        vk = signature[: hints.VK_SIZE]
        pi = signature[hints.VK_SIZE : _PROOF_OFFSET]
        try:
            key = self._vouched_key(vk, signature[_PROOF_OFFSET:])
            return self._check_pi(key, vk, pi, root_hash)
        except ProofDataError as error:
            return Refusal(RefusalKind.CANNOT_PARSE, f"{_WHAT}: {error.what}", error.got, error.expected)
        except BlockRefused as error:
            return error.refusal

    def _check_pi(self, key: hints.HintsKey, vk: bytes, pi: bytes, root_hash: bytes) -> Refusal | None:
        """Check the aggregate signature; of a known statement, only that it is of this root.

        Raises:
            ProofDataError: it cannot be decoded.
        """
        statement, asig = hints.split(pi)
        apk = self._held.get((vk, statement))
        if apk is not None:
            return hints.check_message(key, apk, hints.read_asig(asig), root_hash)
        signature = hints.read_signature(pi)
        refusal = hints.check(key, signature, root_hash, self._random_bits)
        if refusal is None:
            # The oldest go first. Each step is whole by itself, so that threads need no lock.
            self._held[vk, statement] = signature.apk
            for oldest in list(self._held)[: max(0, len(self._held) - STATEMENTS_MAX)]:
                self._held.pop(oldest, None)
        return refusal

    def _check_key(self, vk: bytes, proof: bytes) -> hints.HintsKey:
        """Return the hinTS key that the proof vouches for.

        Raises:
            ProofDataError: key or proof cannot be decoded.
            BlockRefused: the proof does not hold.
        """
        if len(proof) == wraps.WRAPS_PROOF_SIZE:
            refusal = self._check_wraps(vk, proof)
        else:
            message = schnorr.signed_message(self.ledger.ledger_id, hash_array(vk))
            refusal = schnorr.check(self._members, proof, message)
        if refusal is not None:
            raise BlockRefused(refusal)
        return hints.read_key(vk)

    def _check_wraps(self, vk: bytes, proof: bytes) -> Refusal | None:
        if not self.ledger.wraps_vk:
            return Refusal(
                RefusalKind.MISSING_VERIFICATION_DATA,
                f"{_WHAT}: WRAPS address-book proof",
                "no WRAPS key in the ledger data",
                "one, to check the proof with",
            )
        key = self._wraps_key(self.ledger.wraps_vk)
        ledger_id, vk_hash = self.ledger.ledger_id, hash_array_number(vk)
        return wraps.check(key, proof, ledger_id, vk_hash, random_bits=self._random_bits)
