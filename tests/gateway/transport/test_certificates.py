"""Tests of `gateway.transport.certificates`: errors name unusable files, and show nothing of a key."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding

from sluice.gateway.errors import TlsError
from sluice.gateway.transport.certificates import certificates_in, check_key
from tests.certificates import Authority, Pair

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
    """The check takes a second, and a server with bad files reads them at each handshake."""
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


def rsa_of(p: int, q: int) -> rsa.RSAPrivateKey:
    """Make a key of a length that no tool makes, or not in time."""
    d = pow(65537, -1, (p - 1) * (q - 1))
    crt = rsa.rsa_crt_dmp1(d, p), rsa.rsa_crt_dmq1(d, q), rsa.rsa_crt_iqmp(p, q)
    numbers = rsa.RSAPrivateNumbers(p, q, d, *crt, rsa.RSAPublicNumbers(65537, p * q))
    return numbers.private_key(unsafe_skip_rsa_key_validation=True)


MERSENNE = 2**9689 - 1, 2**9941 - 1
USABLE: dict[str, Callable[[], CertificateIssuerPrivateKeyTypes]] = {
    "RSA": lambda: rsa.generate_private_key(65537, 1024),
    "RSA of 2048": lambda: rsa.generate_private_key(65537, 2048),
    "RSA of 4096": lambda: rsa.generate_private_key(65537, 4096),
    "RSA of 15636": lambda: rsa_of(2**4423 - 1, 2**11213 - 1),
    "P-256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "P-384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "P-521": lambda: ec.generate_private_key(ec.SECP521R1()),
    "Ed25519": ed25519.Ed25519PrivateKey.generate,
}
UNUSABLE: dict[str, Callable[[], CertificateIssuerPrivateKeyTypes]] = {
    "19630 bits": lambda: rsa_of(*MERSENNE),
    "the kind secp192r1": lambda: ec.generate_private_key(ec.SECP192R1()),
    "the kind secp224r1": lambda: ec.generate_private_key(ec.SECP224R1()),
    "the kind secp256k1": lambda: ec.generate_private_key(ec.SECP256K1()),
    "the kind brainpoolP256r1": lambda: ec.generate_private_key(ec.BrainpoolP256R1()),
    "the kind DSA": lambda: dsa.generate_private_key(1024),
    "the kind Ed448": ed448.Ed448PrivateKey.generate,
}


def grpc_listens_with(pair: Pair) -> bool:
    """Return whether gRPC itself takes a server's files."""
    server = grpc.server(ThreadPoolExecutor(1))
    files = (pair.key.read_bytes(), pair.certificate.read_bytes())
    try:
        server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([files]))
    except RuntimeError:
        return False
    finally:
        server.stop(None)
    return True


@pytest.mark.parametrize("kind", USABLE)
def test_kinds_of_key_that_grpc_takes_are_taken(tmp_path: Path, kind: str) -> None:
    pair = Authority(tmp_path).issue("alice", key=USABLE[kind]())
    certificate = certificates_in(pair.certificate.read_bytes(), pair.certificate, "")[0]
    assert check_key(pair.key.read_bytes(), pair.key, "", certificate, "", is_quick=True) == kind.split()[0]
    assert grpc_listens_with(pair)


@pytest.mark.parametrize("kind", UNUSABLE)
def test_kinds_of_key_that_grpc_does_not_take_are_named(tmp_path: Path, kind: str) -> None:
    """gRPC would only say that it cannot listen, and nothing at a renewal."""
    pair = Authority(tmp_path).issue("alice", key=UNUSABLE[kind]())
    assert refused_kind(pair) == kind
    assert not grpc_listens_with(pair)


def test_an_rsa_key_that_is_too_short_to_sign_a_handshake_is_named(tmp_path: Path) -> None:
    """gRPC listens with it, and fails at each handshake."""
    assert refused_kind(Authority(tmp_path).issue("alice", key=rsa_of(2**127 - 1, 2**89 - 1))) == "216 bits"


def test_an_rsa_key_for_one_kind_of_signature_only_is_named(tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue("alice", key=rsa.generate_private_key(65537, 2048))
    one, other = "2a864886f70d0101010500", "2a864886f70d01010a3000"  # RSA, and RSASSA-PSS, with parameters
    der = x509.load_pem_x509_certificate(pair.certificate.read_bytes()).public_bytes(Encoding.DER)
    der = der.replace(bytes.fromhex(one), bytes.fromhex(other))
    pair.certificate.write_bytes(x509.load_der_x509_certificate(der).public_bytes(Encoding.PEM))
    assert refused_kind(pair) == "the kind RSASSA-PSS"
    assert not grpc_listens_with(pair)


def test_a_certificate_whose_key_nobody_can_read_has_another_key(tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue("alice")
    der = x509.load_pem_x509_certificate(pair.certificate.read_bytes()).public_bytes(Encoding.DER)
    der = der.replace(bytes.fromhex("2a8648ce3d030107"), bytes.fromhex("2a8648ce3d030104"))  # prime239v1
    certificate = x509.load_der_x509_certificate(der)
    with pytest.raises(TlsError, match="another certificate's key"):
        check_key(pair.key.read_bytes(), pair.key, "", certificate, "")


def refused_kind(pair: Pair) -> str:
    certificate = certificates_in(pair.certificate.read_bytes(), pair.certificate, "")[0]
    with pytest.raises(TlsError) as caught:
        check_key(pair.key.read_bytes(), pair.key, "key file", certificate, "", is_quick=True)
    start, end = (
        f"key file: got {pair.key}, a key of ",
        (", expected RSA of 522 to 16384 bits, P-256 or P-384"),
    )
    said = str(caught.value)
    assert said.startswith(start), said
    assert said.endswith(end), said
    return said.removeprefix(start).removesuffix(end)
