"""Block proofs: which kind a proof is, and whether the proofs of a block hold.

Pure. The content of a `BlockProof` decides who checks it:

    BlockProof field            size of the signature     kind
    2 signed_block_proof        64                        Ed25519 over the root hash
    2 signed_block_proof        2,920 or 3,432            TSS: known, not verified by this version
    3 block_state_proof                                   state proof: known, not verified by this version
    4 signed_record_file_proof                            RSA record file: known, not verified by this version
    any other field                                       unknown, passed over

Rules
  - Every proof of a known kind must hold; a proof that cannot be verified here does not hold.
  - A block without a proof of a known kind is refused.
  - In mode `hash` a proof is there (`BlockHasher` sees to that) and nothing of it is checked.
Source: design.md, "Verification"; wire.md section 6 (BlockProof); proofs.md sections 2 and 7.
"""

from enum import StrEnum
from typing import Final

from gateway.api import block_pb2
from gateway.errors import ItemError
from gateway.items import proof_of
from gateway.ledger_keys import LedgerKeys, VerificationMode
from gateway.proofs.ed25519 import SIGNATURE_SIZE, Ed25519Check
from gateway.root_hash import BlockSummary
from gateway.verdict import Refusal, RefusalKind

__all__ = ["TSS_SIGNATURE_SIZES", "ProofKind", "ProofVerifier", "kind_of_proof"]

TSS_SIGNATURE_SIZES: Final = (2920, 3432)
"""Bytes of the TSS signatures that exist: with a Schnorr and with a WRAPS address-book proof."""


class ProofKind(StrEnum):
    """What a block proof is; the value is its name for people."""

    ED25519 = "Ed25519 block proof"
    TSS = "TSS block proof"
    STATE = "state proof"
    RECORD_FILE = "RSA record-file proof"
    UNKNOWN_SIGNATURE = "signed block proof"
    UNKNOWN = "block proof of an unknown kind"


def kind_of_proof(proof: block_pb2.BlockProof) -> ProofKind:
    """Return what a parsed proof is; nothing of it is checked."""
    field = proof.WhichOneof("proof")
    if field == "block_state_proof":
        return ProofKind.STATE
    if field == "signed_record_file_proof":
        return ProofKind.RECORD_FILE
    if field != "signed_block_proof":
        return ProofKind.UNKNOWN
    signature_size = len(proof.signed_block_proof.block_signature)
    if signature_size == SIGNATURE_SIZE:
        return ProofKind.ED25519
    return ProofKind.TSS if signature_size in TSS_SIGNATURE_SIZES else ProofKind.UNKNOWN_SIGNATURE


class ProofVerifier:
    """Checks the proofs of blocks with the keys of this node. Several threads may call it at once."""

    def __init__(self, keys: LedgerKeys, mode: VerificationMode = "full") -> None:
        """Take the keys.

        Raises:
            LedgerKeyError: mode `full` needs a key and has none. This is an error at start.
        """
        keys.require_for(mode)
        self._mode: VerificationMode = mode
        self._ed25519 = Ed25519Check(keys.ed25519)

    @property
    def mode(self) -> VerificationMode:
        """`full` or `hash`."""
        return self._mode

    def verify(self, summary: BlockSummary) -> Refusal | None:
        """Return why the proofs do not hold for the summary's root hash, or None if they do.

        Where the root layout is not certain, the caller may try `summary.in_other_layout()` too.
        """
        if self._mode == "hash":
            return None
        held_count = 0
        for item in summary.proofs:
            try:
                proof = proof_of(item)
            except ItemError as error:
                return Refusal(RefusalKind.CANNOT_PARSE, error.what, error.got, error.expected)
            kind = kind_of_proof(proof)
            if kind is ProofKind.UNKNOWN:
                continue
            refusal = self._verify_one(kind, proof, summary)
            if refusal is not None:
                return refusal
            held_count += 1
        if held_count == 0:
            return Refusal(
                RefusalKind.BAD_PROOF,
                "block proofs",
                "only unknown kinds",
                "at least one of a known kind",
            )
        return None

    def _verify_one(
        self, kind: ProofKind, proof: block_pb2.BlockProof, summary: BlockSummary
    ) -> Refusal | None:
        signature = proof.signed_block_proof.block_signature
        if kind is ProofKind.ED25519:
            return self._ed25519.check(signature, summary.root_hash)
        if kind is ProofKind.UNKNOWN_SIGNATURE:
            sizes = f"{SIGNATURE_SIZE} (Ed25519), {' or '.join(map(str, TSS_SIGNATURE_SIZES))} (TSS)"
            return Refusal(RefusalKind.BAD_PROOF, kind.value, f"a signature of {len(signature)} bytes", sizes)
        return Refusal(
            RefusalKind.UNSUPPORTED,
            kind.value,
            "a proof that this version cannot verify",
            "an Ed25519 block proof, or verification mode hash",
        )
