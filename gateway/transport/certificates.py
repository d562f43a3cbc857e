"""Certificates and keys: those of PEM files that gRPC can use and that fit each other, and a client's names.

Pure. Importing this takes 0.1 s, so it is imported where there is TLS. gRPC names no unusable file. No error
shows anything of a key. Keys with grpcio 1.85 (BoringSSL):

    RSA, P-256, P-384     work for servers and clients
    P-521, Ed25519        work for a server whose clients use Go or OpenJDK, and for a client of a server in
                          Go. BoringSSL, and so Sluice itself, does not offer such signatures
    anything else         does not work
"""

from __future__ import annotations

from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes
from cryptography.x509.oid import PublicKeyAlgorithmOID

from sluice.gateway.errors import TlsError

__all__ = ["certificates_in", "check_key", "fingerprint_of", "subjects_of"]

_Named = Path | str

_RSA_BITS_MIN, _RSA_BITS_MAX = 522, 16_384
"""A shorter modulus cannot sign a handshake (PSS with SHA-256), BoringSSL loads no longer one."""
_CURVES = {"secp256r1": "P-256", "secp384r1": "P-384", "secp521r1": "P-521"}
_USABLE = frozenset({"RSA", *_CURVES.values(), "Ed25519"})
_EXPECTED = f"RSA of {_RSA_BITS_MIN} to {_RSA_BITS_MAX} bits, P-256 or P-384"  # usable by anybody


def certificates_in(pem: bytes, file: _Named, what: str) -> list[x509.Certificate]:
    """Read the certificates of a file, at least one; errors blame `what`."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise TlsError(
            what, got=f"{file}, which cannot be used", expected="a PEM file of certificates"
        ) from None


def check_key(
    pem: bytes,
    file: _Named,
    what: str,
    certificate: x509.Certificate,
    certificate_file: _Named,
    *,
    is_quick: bool = False,
) -> str:
    """Check that a private key belongs to a certificate, and that gRPC can use it; return the key's kind.

    Args:
        pem: the key, without a passphrase.
        what: the name that errors blame.
        is_quick: skip a check of the key's numbers that takes a second with a long RSA key.

    Raises:
        TlsError: the key is unusable, or is not the certificate's.
    """
    key = _private_key(pem, file, what, is_quick=True).public_key()
    kind = _kind(key)
    if kind == "RSA" and certificate.public_key_algorithm_oid == PublicKeyAlgorithmOID.RSASSA_PSS:
        kind = "RSASSA-PSS"
    if kind not in _USABLE:
        raise TlsError(what, got=f"{file}, a key of the kind {kind}", expected=_EXPECTED)
    if isinstance(key, rsa.RSAPublicKey) and not _RSA_BITS_MIN <= key.key_size <= _RSA_BITS_MAX:
        raise TlsError(what, got=f"{file}, a key of {key.key_size} bits", expected=_EXPECTED)
    if not _is_key_of(key, certificate):
        raise TlsError(
            what, got=f"{file}, another certificate's key", expected=f"the key of {certificate_file}"
        )
    if not is_quick:  # last: a wrong key shows at each handshake anyway
        _private_key(pem, file, what, is_quick=False)
    return kind


def _private_key(pem: bytes, file: _Named, what: str, *, is_quick: bool) -> PrivateKeyTypes:
    try:
        return serialization.load_pem_private_key(pem, password=None, unsafe_skip_rsa_key_validation=is_quick)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise TlsError(
            what, got=f"{file}, which cannot be used", expected="a PEM private key without a passphrase"
        ) from None  # the cause could quote the key


def _kind(key: PublicKeyTypes) -> str:
    if isinstance(key, ec.EllipticCurvePublicKey):
        return _CURVES.get(key.curve.name, key.curve.name)
    return type(key).__name__.removesuffix("PublicKey")


def _is_key_of(key: PublicKeyTypes, certificate: x509.Certificate) -> bool:
    try:
        return _public_bytes(key) == _public_bytes(certificate.public_key())
    except UnsupportedAlgorithm:  # the certificate's: the key has been read
        return False


def _public_bytes(key: object) -> bytes:
    assert hasattr(key, "public_bytes"), "every public key has a serialized form"
    public: bytes = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return public


def fingerprint_of(certificate: x509.Certificate) -> str:
    """Return the SHA-256 of a certificate, hexadecimal."""
    return certificate.fingerprint(hashes.SHA256()).hex()


# --- a client's names ---------------------------------------------------------------------------------------

_NAMES = {
    x509.NameOID.EMAIL_ADDRESS: "emailAddress",
    x509.NameOID.SERIAL_NUMBER: "serialNumber",
    x509.NameOID.GIVEN_NAME: "GN",
    x509.NameOID.SURNAME: "SN",
    x509.NameOID.TITLE: "title",
}
"""Names as `openssl x509 -nameopt RFC2253` writes them; RFC 4514 lacks these."""


_NOT_READ = (x509.UnsupportedGeneralNameType, x509.DuplicateExtension, x509.InvalidVersion)
"""`cryptography` raises these for certificates that OpenSSL accepts."""


def subjects_of(certificate_der: bytes) -> tuple[str, ...]:
    """Return the names that a client's certificate proves, best first.

    They are the whole subject as `openssl x509 -nameopt RFC2253` prints it (`CN=alice,O=Net`), `CN=` and each
    common name, then the alternative names: `URI:spiffe://net/alice`, `DNS:alice.net`, `IP:192.0.2.1`,
    `email:alice@net`.
    """
    found: list[str] = []
    try:
        certificate = x509.load_der_x509_certificate(certificate_der)
        subject = certificate.subject
        if list(subject):
            text = subject.rfc4514_string(_NAMES)
            escaped = "".join(
                character if character.isascii() else "".join(f"\\{byte:02X}" for byte in character.encode())
                for character in text
            )
            found += dict.fromkeys((escaped, text))
        found += (
            x509.Name([attribute]).rfc4514_string(_NAMES)  # escaped: a comma must not make it a whole subject
            for attribute in subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        )
        alternative = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound, *_NOT_READ):
        return tuple(dict.fromkeys(found))
    for kind, label in (
        (x509.UniformResourceIdentifier, "URI"),
        (x509.DNSName, "DNS"),
        (x509.IPAddress, "IP"),
        (x509.RFC822Name, "email"),
    ):
        found += (f"{label}:{value}" for value in alternative.get_values_for_type(kind))
    return tuple(dict.fromkeys(found))
