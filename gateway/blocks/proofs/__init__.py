"""Block proofs: the kind of each, and the check of all proofs of a block.

Pure. Every proof of a known kind must hold. The node cannot check a proof without its key, and does not call
it bad (`gateway.blocks.refusal.FAULTS`); a bad proof takes precedence. A block without a proof of a known
kind cannot be checked either. In mode `hash` no proof is checked; `BlockHasher` sees to it that there is one.
Source: docs/verification.md, "What is checked"; docs/spec/wire.md section 3; docs/spec/proofs.md sections 1
and 2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Final

from sluice.gateway.api import block_pb2
from sluice.gateway.blocks.errors import ItemError
from sluice.gateway.blocks.items import proof_of
from sluice.gateway.blocks.proofs.address_book import read_address_book
from sluice.gateway.blocks.proofs.ed25519 import SIGNATURE_SIZE, Ed25519Check
from sluice.gateway.blocks.proofs.ledger_data import LedgerData
from sluice.gateway.blocks.proofs.record_file import DEFAULT_THRESHOLD, RecordFileCheck
from sluice.gateway.blocks.proofs.state_proof import STATE_PROOF_SIBLINGS_MAX, SiblingCount, StateProofCheck
from sluice.gateway.blocks.proofs.tss import TSS_SIGNATURE_SIZES, TssCheck
from sluice.gateway.blocks.refusal import Fault, Refusal, RefusalKind
from sluice.gateway.blocks.root_hash import BlockSummary
from sluice.gateway.blocks.trusted_keys import TrustedKeys, VerificationMode

__all__ = [
    "SIGN_THE_ROOT",
    "TSS_SIGNATURE_SIZES",
    "ProofKind",
    "ProofVerifier",
    "RsaBook",
    "kind_of_proof",
    "kind_of_signature",
    "signs_root",
]

QUICK_PROOFS_BYTES_MAX: Final = 16 * 1024
"""Bytes of a block's proofs that the event loop parses at most, 0.03 ms."""
QUICK_SIGNATURES_MAX: Final = 8
"""Proofs times Ed25519 keys that the event loop checks at most: 0.05 ms a pair and layout."""


class ProofKind(StrEnum):
    """The kind of a block proof; the value is its name for people."""

    ED25519 = "Ed25519 block proof"
    TSS = "TSS block proof"
    STATE = "state proof"
    RECORD_FILE = "RSA record-file proof"
    UNKNOWN_SIGNATURE = "signed block proof"
    UNKNOWN = "block proof of an unknown kind"


SIGN_THE_ROOT: Final = frozenset((ProofKind.ED25519, ProofKind.TSS, ProofKind.STATE))
"""Kinds of proofs that cover the root hash, and so all items."""
_NO_ADDRESS_BOOK: Final = Refusal(
    RefusalKind.MISSING_VERIFICATION_DATA,
    ProofKind.RECORD_FILE.value,
    "no address book",
    "a --ledger-key rsa:ADDRESS_BOOK.json",
)
_NEED_NO_PROCESS: Final = frozenset((ProofKind.ED25519, ProofKind.UNKNOWN_SIGNATURE, ProofKind.UNKNOWN))


def kind_of_proof(proof: block_pb2.BlockProof) -> ProofKind:
    """Return the kind of a parsed proof, unchecked."""
    field = proof.WhichOneof("proof")
    if field == "block_state_proof":
        return ProofKind.STATE
    if field == "signed_record_file_proof":
        return ProofKind.RECORD_FILE
    if field != "signed_block_proof":
        return ProofKind.UNKNOWN
    return kind_of_signature(proof.signed_block_proof.block_signature)


def kind_of_signature(signature: bytes) -> ProofKind:
    """Return the kind of a signature of a root hash, by its length."""
    if len(signature) == SIGNATURE_SIZE:
        return ProofKind.ED25519
    return ProofKind.TSS if len(signature) in TSS_SIGNATURE_SIZES else ProofKind.UNKNOWN_SIGNATURE


def signs_root(summary: BlockSummary) -> bool:
    """Return whether the proofs, if they hold, cover the whole block."""
    return any(kind_of_proof(proof_of(item)) in SIGN_THE_ROOT for item in summary.proofs)


@dataclass(frozen=True, slots=True)
class RsaBook:
    """The operator's address book of record-file signers."""

    serialized: bytes  # readable JSON
    needed_count: int = 0
    """Nodes that must have signed; 0: more than a third of the book's."""

    def check(self) -> RecordFileCheck:
        """Return the check of record-file proofs. Raises ProofDataError."""
        book = read_address_book(self.serialized)
        if not self.needed_count:
            return RecordFileCheck(book, DEFAULT_THRESHOLD)
        return RecordFileCheck(book, Fraction(self.needed_count - 1, book.node_count))


class ProofVerifier:
    """Checks the proofs of blocks with the keys of this node. Several threads may call it at once.

    Args:
        ledger: checked ledger data of the TSS network, once known.
        rsa_book: the one that the keys name, if any.
        siblings_max: of all state proofs of a block.
    """

    def __init__(
        self,
        keys: TrustedKeys,
        mode: VerificationMode = "full",
        ledger: LedgerData | None = None,
        rsa_book: RsaBook | None = None,
        siblings_max: int = STATE_PROOF_SIBLINGS_MAX,
    ) -> None:
        self.keys = keys
        self.ledger = ledger
        self.mode: VerificationMode = mode
        self._ed25519 = Ed25519Check(keys.ed25519)
        self._tss = None if ledger is None else TssCheck(ledger)
        self._state_proofs = StateProofCheck(self._check_tss)
        self._siblings_max = siblings_max
        self._rsa_book = rsa_book
        self._record_files = None if rsa_book is None else rsa_book.check()

    def __reduce__(self) -> tuple[type["ProofVerifier"], tuple[object, ...]]:
        """Pickle the arguments, without the caches."""
        return ProofVerifier, (self.keys, self.mode, self.ledger, self._rsa_book, self._siblings_max)

    @property
    def needs_process(self) -> bool:
        """There are keys for proofs that are not quick."""
        return self.ledger is not None or self._rsa_book is not None

    def with_ledger(self, ledger: LedgerData) -> "ProofVerifier":
        """Return a verifier with these ledger data."""
        return ProofVerifier(self.keys, self.mode, ledger, self._rsa_book, self._siblings_max)

    def is_quick(self, summary: BlockSummary) -> bool:
        """Return whether an event loop may call `verify`, which then takes a millisecond at most."""
        if self.mode == "hash":
            return True
        proofs = summary.proofs
        if len(proofs) * len(self.keys.ed25519) > QUICK_SIGNATURES_MAX:
            return False
        if sum(map(len, proofs)) > QUICK_PROOFS_BYTES_MAX:
            return False
        try:
            kinds = [kind_of_proof(proof_of(item)) for item in proofs]
        except ItemError:
            return True
        return _NEED_NO_PROCESS.issuperset(kinds)

    def check_ahead(self, summaries: Sequence[BlockSummary]) -> None:
        """Check TSS signatures of several blocks together, which is cheaper; `verify` of each comes next."""
        if self._tss is None or self.mode == "hash" or len(summaries) < 2:
            return
        claims = []
        for summary in summaries:
            for item in summary.proofs:
                try:
                    proof = proof_of(item)
                except ItemError:
                    continue
                if kind_of_proof(proof) is ProofKind.TSS:
                    claims.append((proof.signed_block_proof.block_signature, summary.root_hash))
        self._tss.check_ahead(claims)

    def verify(self, summary: BlockSummary) -> Refusal | None:
        """Return why the proofs do not hold for the summary's root hash, or None if they do."""
        if self.mode == "hash":
            return None
        held_count = 0
        unchecked: Refusal | None = None
        siblings: SiblingCount | None = None
        for item in summary.proofs:
            try:
                proof = proof_of(item)
            except ItemError as error:
                return Refusal(RefusalKind.CANNOT_PARSE, error.what, error.got, error.expected)
            kind = kind_of_proof(proof)
            if kind is ProofKind.UNKNOWN:
                continue
            if kind is ProofKind.STATE:
                siblings = siblings or SiblingCount(self._siblings_max)
            refusal = self._verify_one(kind, proof, summary, siblings)
            if refusal is None:
                held_count += 1
            elif refusal.kind.fault is Fault.SENDER:
                return refusal
            else:
                unchecked = unchecked or refusal
        if unchecked is None and held_count == 0:
            got, expected = "only unknown kinds", "at least one of a known kind"
            return Refusal(RefusalKind.UNSUPPORTED, "block proofs", got, expected)
        return unchecked

    def _verify_one(
        self,
        kind: ProofKind,
        proof: block_pb2.BlockProof,
        summary: BlockSummary,
        siblings: SiblingCount | None,
    ) -> Refusal | None:
        if kind is ProofKind.STATE:
            return self._state_proofs.check(proof.block_state_proof, summary, siblings)
        if kind is ProofKind.RECORD_FILE:
            if self._record_files is None:
                return _NO_ADDRESS_BOOK
            return self._record_files.check(proof.signed_record_file_proof, summary)
        return self.check_signature(proof.signed_block_proof.block_signature, summary.root_hash)

    def check_signature(self, signature: bytes, root_hash: bytes) -> Refusal | None:
        """Return why a signature is not one of a root hash, or None if it is."""
        kind = kind_of_signature(signature)
        if kind is ProofKind.ED25519:
            return self._ed25519.check(signature, root_hash)
        if kind is ProofKind.TSS:
            return self._check_tss(signature, root_hash)
        sizes = f"{SIGNATURE_SIZE} (Ed25519), {' or '.join(map(str, TSS_SIGNATURE_SIZES))} (TSS)"
        refused = RefusalKind.UNSUPPORTED if signature else RefusalKind.MISSING_FIELD
        return Refusal(refused, kind.value, f"a signature of {len(signature)} bytes", sizes)

    def check_record_file(self, record_file_proof: bytes, item: bytes) -> Refusal | None:
        """Return why a SignedRecordFileProof does not prove a record file item, or None if it does."""
        return (
            _NO_ADDRESS_BOOK
            if self._record_files is None
            else self._record_files.check_item(record_file_proof, item)
        )

    def _check_tss(self, signature: bytes, root_hash: bytes) -> Refusal | None:
        if self._tss is not None:
            return self._tss.check(signature, root_hash)
        return Refusal(
            RefusalKind.MISSING_VERIFICATION_DATA,
            ProofKind.TSS.value,
            "no ledger data",
            "a --ledger-key tss:FILE, or a publication in block 0 and --ledger-key tss:block0 or tss:id=HEX",
        )
