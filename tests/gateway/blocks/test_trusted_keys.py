"""Tests of `gateway.blocks.trusted_keys`."""

from __future__ import annotations

import pytest

from sluice.gateway.blocks.errors import LedgerKeyError
from sluice.gateway.blocks.trusted_keys import LEDGER_KEYS_MAX, TrustedKeys

ONE, TWO = bytes(range(32)), bytes(range(1, 33))


def ed25519_text(public_key: bytes) -> str:
    """A key as an operator writes it."""
    return f"ed25519:{public_key.hex()}"


def test_keys_are_read() -> None:
    assert TrustedKeys.parse([ed25519_text(ONE), ed25519_text(TWO)]) == TrustedKeys((ONE, TWO))
    assert TrustedKeys.parse([f"  ed25519:{ONE.hex().upper()}\n"]) == TrustedKeys((ONE,))
    assert TrustedKeys.parse([]) == TrustedKeys()


def test_a_key_that_is_given_twice_counts_once() -> None:
    assert TrustedKeys.parse([ed25519_text(ONE)] * 3) == TrustedKeys((ONE,))


KINDS = "ed25519:HEX, tss:FILE, tss:id=HEX, tss:block0 or rsa:ADDRESS_BOOK.json"


def test_each_kind_of_key() -> None:
    keys = TrustedKeys.parse(
        [ed25519_text(ONE), " tss:a:b.bin ", f"tss:id={TWO.hex().upper()}", "rsa:book.json", "tss:block0"]
    )
    assert keys == TrustedKeys((ONE,), "a:b.bin", TWO, True, "book.json")


def test_block_0_is_believed_where_no_key_is_given_or_the_operator_says_so() -> None:
    table = {
        (): (True, True),
        ("tss:block0",): (True, True),
        ("tss:block0", ed25519_text(ONE)): (True, True),
        (f"tss:id={TWO.hex()}",): (False, True),
        (f"tss:id={TWO.hex()}", "tss:block0"): (False, True),
        ("tss:file",): (False, False),
        ("tss:file", "tss:block0"): (True, False),
        ("tss:file", f"tss:id={TWO.hex()}"): (False, False),
        (ed25519_text(ONE),): (False, False),
        ("rsa:book.json",): (False, False),
    }
    for texts, (any_block_0, from_block_0) in table.items():
        keys = TrustedKeys.parse(texts)
        assert (keys.trusts_any_block_0, keys.takes_tss_from_block_0) == (any_block_0, from_block_0), texts


@pytest.mark.parametrize(
    ("texts", "got"),
    [
        (("tss:a", "tss:b"), "2 different tss:FILE"),
        (("rsa:a", "rsa:b", "rsa:c"), "3 different rsa:ADDRESS_BOOK.json"),
        ((f"tss:id={ONE.hex()}", f"tss:id={TWO.hex()}"), "2 different tss:id=HEX"),
    ],
)
def test_there_is_one_network_and_one_address_book(texts: tuple[str, ...], got: str) -> None:
    assert TrustedKeys.parse((texts[0], texts[0])) == TrustedKeys.parse(texts[:1])
    with pytest.raises(LedgerKeyError) as caught:
        TrustedKeys.parse(texts)
    assert str(caught.value) == f"ledger keys: got {got}, expected one at most"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", f"ledger key '': got no kind, expected {KINDS}"),
        ("00ff", f"ledger key '00ff': got no kind, expected {KINDS}"),
        ("ed25519", f"ledger key 'ed25519': got no kind, expected {KINDS}"),
        ("ED25519:00", f"ledger key 'ED25519:00': got unknown kind 'ED25519', expected {KINDS}"),
        ("x25519:00", f"ledger key 'x25519:00': got unknown kind 'x25519', expected {KINDS}"),
        ("rsa:", f"ledger key 'rsa:': got no value, expected {KINDS}"),
        ("tss:", f"ledger key 'tss:': got no value, expected {KINDS}"),
        ("tss:a\0b", f"ledger key 'tss:a\\x00b': got a zero byte, expected {KINDS}"),
        (
            "tss:id=00",
            "ledger key 'tss:id=00': got 2 hex digits, expected 64, the 32 bytes of the ledger id",
        ),
        ("tss:id=0x", "ledger key 'tss:id=0x': got a value that is not hex, expected hex digits only"),
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
        TrustedKeys.parse([ed25519_text(ONE), text])
    assert str(caught.value) == message
    assert caught.value.exit_status == 2


def test_the_count_of_keys_is_limited() -> None:
    texts = [ed25519_text(bytes([index]) * 32) for index in range(LEDGER_KEYS_MAX + 1)]
    assert len(TrustedKeys.parse(texts[:-1]).ed25519) == LEDGER_KEYS_MAX
    with pytest.raises(LedgerKeyError) as caught:
        TrustedKeys.parse(texts)
    assert str(caught.value) == "ledger keys: got 65, expected at most 64"
