"""Ed25519 block proofs, for networks that run with Sluice's own keys.

Pure.
Source: docs/verification.md, "What is checked"; RFC 8032 section 5.1.
"""

from collections.abc import Iterable
from typing import Final

from nacl.bindings import crypto_sign_open
from nacl.exceptions import BadSignatureError

from sluice.gateway.blocks.refusal import Refusal, RefusalKind

__all__ = ["SIGNATURE_SIZE", "Ed25519Check"]

SIGNATURE_SIZE: Final = 64
"""Bytes, which tell this proof from TSS ones."""


class Ed25519Check:
    """Checks signatures with a set of public keys."""

    def __init__(self, public_keys: Iterable[bytes]) -> None:
        self._keys = list(public_keys)

    def check(self, signature: bytes, root_hash: bytes) -> Refusal | None:
        """Return why a signature does not prove a block with this root, or None."""
        if not self._keys:
            return Refusal(
                RefusalKind.MISSING_VERIFICATION_DATA,
                "Ed25519 block proof",
                "no Ed25519 ledger key",
                "at least one --ledger-key ed25519:HEX",
            )
        signed = signature + root_hash
        # The rest of a longer one would count as part of the message.
        for key in self._keys if len(signature) == SIGNATURE_SIZE else ():
            try:
                crypto_sign_open(signed, key)
            except BadSignatureError:
                continue
            return None
        return Refusal(
            RefusalKind.BAD_PROOF,
            "Ed25519 block proof",
            f"signature {signature[:8].hex()}…, which no ledger key verifies",
            f"a signature of block root {root_hash.hex()}",
        )
