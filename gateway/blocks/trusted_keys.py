"""The keys that this node believes: what `--ledger-key` may say.

Pure: names are read here, files in `gateway.store.trust_store`. Each is `kind:value`:

    ed25519:HEX              the 32 bytes of an Ed25519 public key in 64 hex digits; may be given repeatedly
    tss:FILE                 the publication of a TSS network's ledger id, or the block file that it is in
    tss:id=HEX               the ledger id, 32 bytes; what block 0 or a file publishes has to match it
    tss:block0               what block 0 publishes is believed, once, and kept
    rsa:ADDRESS_BOOK.json    the address book that signs record files

Without any key, `tss:block0` is meant: a fresh node of a TSS network starts with nothing but block 0. With
keys of other kinds it is not: who names a key does not want one from a publisher. There is one TSS network
and one address book; a file and an id may be given together, and have to agree.
Source: docs/verification.md, "How trust begins"; docs/spec/tss.md section 1.1.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, Self

from gateway.blocks.errors import LedgerKeyError

__all__ = ["ED25519_KEY_SIZE", "LEDGER_ID_SIZE", "TrustedKeys", "VerificationMode"]

LEDGER_KEYS_MAX: Final = 64
"""Ledger keys that may be configured. A proof is tried against each key of its kind, 0.1 ms each at most."""

VerificationMode = Literal["full", "hash"]
"""Setting `verification.mode`: `full` checks signatures; `hash` checks root and links, and that a proof is
there."""

ED25519_KEY_SIZE: Final = 32
"""Bytes of an Ed25519 public key."""
LEDGER_ID_SIZE: Final = 32
"""Bytes of a TSS network's ledger id."""

_EXPECTED: Final = "ed25519:HEX, tss:FILE, tss:id=HEX, tss:block0 or rsa:ADDRESS_BOOK.json"


@dataclass(frozen=True, slots=True)
class TrustedKeys:
    """The public keys that block proofs are checked with, and where to find those that are in files."""

    ed25519: tuple[bytes, ...] = ()
    """Ed25519 public keys, 32 bytes each; a proof must hold with one of them."""
    tss_file: str | None = None
    """Path of a publication."""
    tss_id: bytes | None = None
    """The ledger id that any publication has to have, 32 bytes."""
    tss_block0: bool = False
    """Whether what block 0 publishes is believed, whatever its ledger id; said by the operator."""
    rsa_file: str | None = None
    """Path of an address book."""

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Self:
        """Read ledger keys as an operator writes them; a key given twice counts once.

        Raises:
            LedgerKeyError: one is malformed or of an unknown kind, two contradict each other, or there are
                too many.
        """
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
        """Whether a publication is believed for nothing but being in block 0."""
        return self.tss_id is None and (self.tss_block0 or self == TrustedKeys())

    @property
    def takes_tss_from_block_0(self) -> bool:
        """Whether block 0 is where the ledger data come from, if nothing else has them."""
        return self.tss_file is None and (self.tss_id is not None or self.trusts_any_block_0)


def _parse_one(text: str) -> tuple[str, bytes | str]:
    """Return a key's kind (`tss:id` and `tss:block0` are kinds of their own here) and value."""
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
