"""TSS block signatures: a network's ledger id vouches for a hinTS key, and the key has signed the block.

Pure. Vouched keys and statements of who signed are cached. The caches compare bytes, or SHA-384, never
hashArray, which two keys may share.
Source: docs/spec/tss.md section 1.
"""

import secrets
from collections.abc import Callable, Iterable
from functools import lru_cache
from hashlib import sha384
from typing import Final

from sluice.gateway.blocks.errors import BlockRefused, ProofDataError
from sluice.gateway.blocks.merkle import HASH_SIZE
from sluice.gateway.blocks.proofs import hints, schnorr, wraps
from sluice.gateway.blocks.proofs.bls12_381 import G1Point
from sluice.gateway.blocks.proofs.ledger_data import LedgerData
from sluice.gateway.blocks.proofs.poseidon import hash_array, hash_array_number
from sluice.gateway.blocks.refusal import Refusal, RefusalKind

__all__ = ["TSS_SIGNATURE_SIZES", "TssCheck"]

_PROOF_OFFSET: Final = hints.VK_SIZE + hints.PI_SIZE
TSS_SIGNATURE_SIZES: Final = (_PROOF_OFFSET + schnorr.SIGNATURE_SIZE, _PROOF_OFFSET + wraps.WRAPS_PROOF_SIZE)
"""Bytes of a signature with a Schnorr and with a WRAPS address-book proof (1)."""
assert TSS_SIGNATURE_SIZES == (2920, 3432)

VOUCHED_KEYS_MAX: Final = 64
"""Cached keys, some 10 kB each. A network has one at a time."""
STATEMENTS_MAX: Final = 4096
"""Cached statements, some 500 bytes each: all sets of more than half of 13 equal nodes."""
ALONE_AFTER_BAD: Final = 64
"""Signatures that are checked alone after a bad one."""

_WHAT: Final = "TSS block proof"


class TssCheck:
    """Checks signatures against one checked ledger. Several threads may call it at once."""

    def __init__(
        self,
        ledger: LedgerData,
        random_bits: Callable[[int], int] = secrets.randbits,
        *,
        statements_max: int = STATEMENTS_MAX,
    ) -> None:
        self.ledger = ledger
        self._members = [schnorr.RosterMember(node.key.Y, node.weight) for node in ledger.nodes]
        self._random_bits = random_bits
        self._statements_max = statements_max
        # Errors are not cached, so bad signatures cannot fill the caches.
        self._vouched_key = lru_cache(VOUCHED_KEYS_MAX)(self._check_key)
        self._held: dict[bytes, G1Point] = {}  # by `_digest`
        self._ahead: set[tuple[bytes, bytes]] = set()
        self._alone_count = 0
        self._wraps_key = lru_cache(1)(wraps.prepare)

    def check(self, signature: bytes, root_hash: bytes) -> Refusal | None:
        """Return why a signature does not prove a block with this root (1, 1.2), or None."""
        assert len(root_hash) == HASH_SIZE
        if len(signature) not in TSS_SIGNATURE_SIZES:
            expected = " or ".join(map(str, TSS_SIGNATURE_SIZES))
            return Refusal(RefusalKind.CANNOT_PARSE, _WHAT, f"{len(signature)} bytes", expected)
        if (signature, root_hash) in self._ahead:
            return None
        vk, pi, proof = _parts(signature)
        try:
            key = self._vouched_key(vk, proof)
            return self._check_pi(key, vk, pi, root_hash)
        except ProofDataError as error:
            return Refusal(RefusalKind.CANNOT_PARSE, f"{_WHAT}: {error.what}", error.got, error.expected)
        except BlockRefused as error:
            return error.refusal

    def check_ahead(self, claims: Iterable[tuple[bytes, bytes]]) -> None:
        """Check (signature, root hash) pairs together, which is cheaper; then `check` knows those that hold.

        After a bad one, which costs its batch a second check, signatures are checked alone for a while.
        """
        self._ahead = set()
        opened: dict[tuple[bytes, bytes], hints.Claim] = {}
        for signature, root_hash in claims:
            if self._alone_count:
                self._alone_count -= 1
            elif len(signature) in TSS_SIGNATURE_SIZES:
                try:
                    opened[signature, root_hash] = self._open(signature, root_hash)
                except (ProofDataError, BlockRefused):
                    self._alone_count = ALONE_AFTER_BAD
        if len(opened) < 2:
            return
        if not hints.hold_together(list(opened.values()), self._random_bits):
            self._alone_count = ALONE_AFTER_BAD
            return
        self._ahead = set(opened)
        for (signature, _), claim in opened.items():
            if claim.statement is not None:
                vk, pi, _ = _parts(signature)
                self._remember(_digest(vk, hints.split(pi)[0]), claim.apk)

    def _open(self, signature: bytes, root_hash: bytes) -> hints.Claim:
        vk, pi, proof = _parts(signature)
        key = self._vouched_key(vk, proof)
        statement, asig = hints.split(pi)
        apk = self._held.get(_digest(vk, statement))
        if apk is not None:
            return hints.Claim(key, root_hash, apk, hints.read_asig(asig), None)
        opened = hints.read_signature(pi)
        return hints.Claim(key, root_hash, opened.apk, opened.asig, opened)

    def _check_pi(self, key: hints.HintsKey, vk: bytes, pi: bytes, root_hash: bytes) -> Refusal | None:
        """Check the aggregate signature; of a known statement, only that it is of this root."""
        statement, asig = hints.split(pi)
        apk = self._held.get(_digest(vk, statement))
        if apk is not None:
            return hints.check_message(key, apk, hints.read_asig(asig), root_hash)
        signature = hints.read_signature(pi)
        refusal = hints.check(key, signature, root_hash, self._random_bits)
        if refusal is None:
            self._remember(_digest(vk, statement), signature.apk)
        return refusal

    def _remember(self, statement: bytes, apk: G1Point) -> None:
        """Cache that the statement with this digest holds; the oldest go first."""
        # Each step is atomic, so threads need no lock.
        self._held[statement] = apk
        if len(self._held) > self._statements_max:
            for oldest in list(self._held)[: len(self._held) - self._statements_max]:
                self._held.pop(oldest, None)

    def _check_key(self, vk: bytes, proof: bytes) -> hints.HintsKey:
        """Return the hinTS key that the proof vouches for.

        Raises ProofDataError if key or proof is malformed, BlockRefused if the proof does not hold.
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
                "no WRAPS key that is believed",
                "one, of tss:FILE or of a block 0 that has a Schnorr address-book proof",
            )
        key = self._wraps_key(self.ledger.wraps_vk)
        ledger_id, vk_hash = self.ledger.ledger_id, hash_array_number(vk)
        return wraps.check(key, proof, ledger_id, vk_hash, random_bits=self._random_bits)


def _parts(signature: bytes) -> tuple[bytes, bytes, bytes]:
    return signature[: hints.VK_SIZE], signature[hints.VK_SIZE : _PROOF_OFFSET], signature[_PROOF_OFFSET:]


def _digest(vk: bytes, statement: bytes) -> bytes:
    return sha384(vk + statement).digest()
