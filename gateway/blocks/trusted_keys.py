"""The ledger keys that an operator configures with `--ledger-key`, each as `kind:value`.

Pure: `gateway.store.trust_store` reads the files. No key at all means `tss:block0`; a key of another kind
does not imply it.
Source: docs/verification.md, "How trust begins"; docs/spec/tss.md section 1.1.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, Self

from sluice.gateway.blocks.errors import LedgerKeyError

__all__ = ["ED25519_KEY_SIZE", "LEDGER_ID_SIZE", "TrustedKeys", "VerificationMode"]

LEDGER_KEYS_MAX: Final = 64
"""A proof is tried with all keys of its kind, 0.1 ms each."""

VerificationMode = Literal["full", "hash"]
"""Setting `verification.mode`: `hash` checks no signatures."""

ED25519_KEY_SIZE: Final = 32
LEDGER_ID_SIZE: Final = 32

_EXPECTED: Final = "ed25519:HEX, tss:FILE, tss:id=HEX, tss:block0 or rsa:ADDRESS_BOOK.json"


@dataclass(frozen=True, slots=True)
class TrustedKeys:
    """Public keys that check proofs, and the paths of those in files."""

    ed25519: tuple[bytes, ...] = ()
    """One of them must verify a proof."""
    tss_file: str | None = None
    tss_id: bytes | None = None
    tss_block0: bool = False
    """Believe the publication of block 0, whatever its ledger id."""
    rsa_file: str | None = None

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Self:
        """Read keys as an operator writes them; a key given twice counts once. Raises LedgerKeyError."""
        values: dict[str, dict[bytes | str, None]] = {}
        count = 0
        for text in texts:
            kind, value = _parse_one(text)
            found = values.setdefault(kind, {})
            count += value not in found
            found[value] = None
        if count > LEDGER_KEYS_MAX:
            raise LedgerKeyError("ledger keys", got=f"{count}", expected=f"at most {LEDGER_KEYS_MAX}")
        for kind, name in (("tss", "tss:FILE"), ("tss:id", "tss:id=HEX"), ("rsa", "rsa:ADDRESS_BOOK.json")):
            if len(values.get(kind, ())) > 1:
                got = f"{len(values[kind])} different {name}"
                raise LedgerKeyError("ledger keys", got=got, expected="one at most")
        return cls(
            ed25519=tuple(key for key in values.get("ed25519", ()) if isinstance(key, bytes)),
            tss_file=next((path for path in values.get("tss", ()) if isinstance(path, str)), None),
            tss_id=next((key for key in values.get("tss:id", ()) if isinstance(key, bytes)), None),
            tss_block0="tss:block0" in values,
            rsa_file=next((path for path in values.get("rsa", ()) if isinstance(path, str)), None),
        )

    @property
    def trusts_any_block_0(self) -> bool:
        """A publication in block 0 is believed unconditionally."""
        return self.tss_id is None and (self.tss_block0 or self == TrustedKeys())

    @property
    def takes_tss_from_block_0(self) -> bool:
        """Block 0 is the source of the ledger data."""
        return self.tss_file is None and (self.tss_id is not None or self.trusts_any_block_0)


def _parse_one(text: str) -> tuple[str, bytes | str]:
    """Return kind and value of a key; `tss:id` and `tss:block0` are kinds here."""
    kind, colon, value = text.strip().partition(":")
    what = f"ledger key {text if len(text) <= 80 else f'{text[:77]}...'!r}"
    if not colon:
        raise LedgerKeyError(what, got="no kind", expected=_EXPECTED)
    if kind not in ("ed25519", "tss", "rsa"):
        raise LedgerKeyError(what, got=f"unknown kind {kind!r}", expected=_EXPECTED)
    if kind == "ed25519":
        return kind, _hex(what, value, ED25519_KEY_SIZE, "the public key")
    if not value:
        raise LedgerKeyError(what, got="no value", expected=_EXPECTED)
    if "\0" in value:
        raise LedgerKeyError(what, got="a zero byte", expected=_EXPECTED)
    if kind == "tss" and value == "block0":
        return "tss:block0", value
    if kind == "tss" and value.startswith("id="):
        return "tss:id", _hex(what, value.removeprefix("id="), LEDGER_ID_SIZE, "the ledger id")
    return kind, value


def _hex(what: str, value: str, size: int, name: str) -> bytes:
    if not all(digit in "0123456789abcdefABCDEF" for digit in value):
        raise LedgerKeyError(what, got="a value that is not hex", expected="hex digits only")
    if len(value) != 2 * size:
        expected = f"{2 * size}, the {size} bytes of {name}"
        raise LedgerKeyError(what, got=f"{len(value)} hex digits", expected=expected)
    return bytes.fromhex(value)
