"""The keys that this node believes: what `--ledger-key` may say.

Pure. Each is `kind:value`:

    ed25519:HEX              the 32 bytes of an Ed25519 public key in 64 hex digits; may be given repeatedly
    rsa:ADDRESS_BOOK.json    known by name, not supported yet
    tss:…                    known by name, not supported yet

Source: design.md, "Verification" and "The commands".
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, Self

from gateway.errors import LedgerKeyError
from gateway.limits import LEDGER_KEYS_MAX

__all__ = ["ED25519_KEY_SIZE", "LedgerKeys", "VerificationMode", "ed25519_text"]

VerificationMode = Literal["full", "hash"]
"""Setting `verification.mode`: `full` checks signatures; `hash` checks root and links, and that a proof is
there."""

ED25519_KEY_SIZE: Final = 32
"""Bytes of an Ed25519 public key."""

_NOT_YET: Final = frozenset(("rsa", "tss"))


@dataclass(frozen=True, slots=True)
class LedgerKeys:
    """The public keys that block proofs are checked with."""

    ed25519: tuple[bytes, ...] = ()
    """Ed25519 public keys, 32 bytes each; a proof must hold with one of them."""

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Self:
        """Read ledger keys as an operator writes them; a key given twice counts once.

        Raises:
            LedgerKeyError: one is malformed, or of a kind that is unknown or not supported yet; or there are
                too many.
        """
        ed25519 = tuple(dict.fromkeys(_parse_one(text) for text in texts))
        if len(ed25519) > LEDGER_KEYS_MAX:
            raise LedgerKeyError("ledger keys", got=f"{len(ed25519)}", expected=f"at most {LEDGER_KEYS_MAX}")
        return cls(ed25519)

    def require_for(self, mode: VerificationMode) -> None:
        """Refuse to go on without the keys that a mode needs; called at start, before any block.

        Raises:
            LedgerKeyError: mode `full` has no key.
        """
        if mode == "full" and not self.ed25519:
            raise LedgerKeyError(
                "ledger keys",
                got="none",
                expected="at least one --ledger-key for verification mode full (`sluice keygen` makes a key; "
                "--verify hash checks no signatures)",
            )


def ed25519_text(public_key: bytes) -> str:
    """Return an Ed25519 public key, 32 bytes, in the form that `LedgerKeys.parse` reads."""
    assert len(public_key) == ED25519_KEY_SIZE
    return f"ed25519:{public_key.hex()}"


def _parse_one(text: str) -> bytes:
    kind, colon, value = text.strip().partition(":")
    shown = repr(text if len(text) <= 80 else f"{text[:77]}...")
    if not colon:
        raise LedgerKeyError(f"ledger key {shown}", got="no kind", expected="ed25519:HEX")
    if kind in _NOT_YET:
        raise LedgerKeyError(
            f"ledger key {shown}", got=f"kind {kind!r}, which is not supported yet", expected="ed25519:HEX"
        )
    if kind != "ed25519":
        raise LedgerKeyError(f"ledger key {shown}", got=f"unknown kind {kind!r}", expected="ed25519:HEX")
    if not all(digit in "0123456789abcdefABCDEF" for digit in value):
        raise LedgerKeyError(f"ledger key {shown}", got="a value that is not hex", expected="hex digits only")
    if len(value) != 2 * ED25519_KEY_SIZE:
        expected = f"{2 * ED25519_KEY_SIZE}, the {ED25519_KEY_SIZE} bytes of the public key"
        raise LedgerKeyError(f"ledger key {shown}", got=f"{len(value)} hex digits", expected=expected)
    return bytes.fromhex(value)
