"""What is in PEM files of certificates and keys: that it can be used, and that the two fit each other.

Pure: bytes in, values or errors out. gRPC tells of what it cannot use on standard error only, and without the
name of the file. Nothing of a key is in any error.
"""

from __future__ import annotations

from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

from gateway.errors import TlsError

__all__ = ["certificates_in", "check_key"]

_Named = Path | str


def certificates_in(pem: bytes, file: _Named, what: str) -> list[x509.Certificate]:
    """Read the certificates of a file, at least one; `what` is the name that the error blames.

    Raises:
        TlsError: they cannot be used.
    """
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
) -> None:
    """See that a private key is that of a certificate.

    Args:
        pem: the key, without a passphrase.
        file: where it is.
        what: the name that the error blames.
        certificate: the certificate.
        certificate_file: where that is.
        is_quick: leave out what takes a second with a long RSA key, whether its numbers go together.

    Raises:
        TlsError: the key cannot be used, or is another one.
    """
    key = _private_key(pem, file, what, is_quick=True)
    if _public_bytes(key.public_key()) != _public_bytes(certificate.public_key()):
        raise TlsError(
            what, got=f"{file}, another certificate's key", expected=f"the key of {certificate_file}"
        )
    if not is_quick:  # last: a key that is another one is met at each handshake until it is replaced
        _private_key(pem, file, what, is_quick=False)


def _private_key(pem: bytes, file: _Named, what: str, *, is_quick: bool) -> PrivateKeyTypes:
    try:
        return serialization.load_pem_private_key(pem, password=None, unsafe_skip_rsa_key_validation=is_quick)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise TlsError(
            what, got=f"{file}, which cannot be used", expected="a PEM private key without a passphrase"
        ) from None  # the cause could quote the key


def _public_bytes(key: object) -> bytes:
    assert hasattr(key, "public_bytes"), "every public key has a serialized form"
    public: bytes = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return public
