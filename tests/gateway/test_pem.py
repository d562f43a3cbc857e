"""Tests of `gateway.pem`: what cannot be used is named, and nothing of a key is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from gateway.errors import TlsError
from gateway.pem import certificates_in, check_key
from tests.certificates import Authority

BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda pem: b"",
    "noise": lambda pem: bytes(range(256)),
    "half": lambda pem: pem[: len(pem) // 2],
    "a line turned round": lambda pem: b"\n".join(
        line[::-1] if number == 1 else line for number, line in enumerate(pem.splitlines())
    ),
}


@pytest.mark.parametrize("how", BROKEN)
def test_what_cannot_be_used_is_named(tmp_path: Path, how: str) -> None:
    pair = Authority(tmp_path).issue("alice")
    with pytest.raises(TlsError) as caught:
        certificates_in(BROKEN[how](pair.certificate.read_bytes()), pair.certificate, "certificate file")
    assert str(caught.value) == (
        f"certificate file: got {pair.certificate}, which cannot be used, expected a PEM file of certificates"
    )
    certificate = certificates_in(pair.certificate.read_bytes(), pair.certificate, "")[0]
    for is_quick in (False, True):
        with pytest.raises(TlsError) as caught:
            check_key(
                BROKEN[how](pair.key.read_bytes()),
                pair.key,
                "key file",
                certificate,
                pair.certificate,
                is_quick=is_quick,
            )
        assert str(caught.value) == (
            f"key file: got {pair.key}, which cannot be used, expected a PEM private key without a passphrase"
        )
        assert caught.value.__cause__ is None


def test_a_key_is_compared_with_its_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    alice, bob = authority.issue("alice"), authority.issue("bob")
    certificate = certificates_in(alice.certificate.read_bytes(), alice.certificate, "")[0]
    for is_quick in (False, True):
        check_key(alice.key.read_bytes(), alice.key, "", certificate, "", is_quick=is_quick)
        with pytest.raises(TlsError) as caught:
            check_key(
                bob.key.read_bytes(), bob.key, "key file", certificate, alice.certificate, is_quick=is_quick
            )
        assert str(caught.value) == (
            f"key file: got {bob.key}, another certificate's key, expected the key of {alice.certificate}"
        )


def test_whether_an_rsa_keys_numbers_go_together_is_looked_at_last_and_not_where_it_is_to_be_quick(
    tmp_path: Path,
) -> None:
    """It takes a second, and a server asks at each handshake while its files cannot be used."""
    authority = Authority(tmp_path)
    other = authority.issue("bob")
    good = rsa.generate_private_key(65537, 2048).private_numbers()
    broken = rsa.RSAPrivateNumbers(
        good.p, good.q, good.d + 2, good.dmp1, good.dmq1, good.iqmp, good.public_numbers
    )
    alice = authority.issue("alice", key=broken.private_key(unsafe_skip_rsa_key_validation=True))
    pem = alice.key.read_bytes()
    certificate = certificates_in(alice.certificate.read_bytes(), alice.certificate, "")[0]
    another = certificates_in(other.certificate.read_bytes(), other.certificate, "")[0]
    check_key(pem, alice.key, "", certificate, "", is_quick=True)
    for of, got in ((certificate, "which cannot be used"), (another, "another certificate's key")):
        with pytest.raises(TlsError, match=got):
            check_key(pem, alice.key, "", of, "")
