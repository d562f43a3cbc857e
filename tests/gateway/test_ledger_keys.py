"""Tests of `gateway.ledger_keys`."""

from __future__ import annotations

import pytest

from gateway.errors import LedgerKeyError
from gateway.ledger_keys import LedgerKeys, ed25519_text
from gateway.limits import LEDGER_KEYS_MAX

ONE, TWO = bytes(range(32)), bytes(range(1, 33))


def test_keys_read_back() -> None:
    assert ed25519_text(ONE) == f"ed25519:{ONE.hex()}"
    assert LedgerKeys.parse([ed25519_text(ONE), ed25519_text(TWO)]) == LedgerKeys((ONE, TWO))
    assert LedgerKeys.parse([f"  ed25519:{ONE.hex().upper()}\n"]) == LedgerKeys((ONE,))
    assert LedgerKeys.parse([]) == LedgerKeys()


def test_a_key_that_is_given_twice_counts_once() -> None:
    assert LedgerKeys.parse([ed25519_text(ONE)] * 3) == LedgerKeys((ONE,))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "ledger key '': got no kind, expected ed25519:HEX"),
        ("00ff", "ledger key '00ff': got no kind, expected ed25519:HEX"),
        ("ed25519", "ledger key 'ed25519': got no kind, expected ed25519:HEX"),
        ("ED25519:00", "ledger key 'ED25519:00': got unknown kind 'ED25519', expected ed25519:HEX"),
        ("x25519:00", "ledger key 'x25519:00': got unknown kind 'x25519', expected ed25519:HEX"),
        (
            "rsa:book.json",
            "ledger key 'rsa:book.json': got kind 'rsa', which is not supported yet, expected ed25519:HEX",
        ),
        (
            "tss:block0",
            "ledger key 'tss:block0': got kind 'tss', which is not supported yet, expected ed25519:HEX",
        ),
        (
            "ed25519:",
            "ledger key 'ed25519:': got 0 hex digits, expected 64, the 32 bytes of the public key",
        ),
        (
            "ed25519:00ff",
            "ledger key 'ed25519:00ff': got 4 hex digits, expected 64, the 32 bytes of the public key",
        ),
        (
            "ed25519:key.pem",
            "ledger key 'ed25519:key.pem': got a value that is not hex, expected hex digits only",
        ),
        (
            f"ed25519:{'00 ' * 32}",
            f"ledger key 'ed25519:{'00 ' * 23}...': got a value that is not hex, expected hex digits only",
        ),
    ],
)
def test_keys_that_cannot_be_used_are_refused(text: str, message: str) -> None:
    with pytest.raises(LedgerKeyError) as caught:
        LedgerKeys.parse([ed25519_text(ONE), text])
    assert str(caught.value) == message
    assert caught.value.exit_status == 2


def test_the_count_of_keys_is_limited() -> None:
    texts = [ed25519_text(bytes([index]) * 32) for index in range(LEDGER_KEYS_MAX + 1)]
    assert len(LedgerKeys.parse(texts[:-1]).ed25519) == LEDGER_KEYS_MAX
    with pytest.raises(LedgerKeyError) as caught:
        LedgerKeys.parse(texts)
    assert str(caught.value) == "ledger keys: got 65, expected at most 64"


def test_mode_full_needs_a_key_and_mode_hash_none() -> None:
    LedgerKeys().require_for("hash")
    LedgerKeys((ONE,)).require_for("full")
    with pytest.raises(LedgerKeyError) as caught:
        LedgerKeys().require_for("full")
    assert str(caught.value) == (
        "ledger keys: got none, expected at least one --ledger-key for verification mode full "
        "(`sluice keygen` makes a key; --verify hash checks no signatures)"
    )
