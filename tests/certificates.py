"""Certificates for tests: an authority, and the files that an operator has."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.x509.oid import NameOID

from sluice.gateway.transport.channels import ClientTls
from sluice.gateway.transport.tls import TlsFiles

_KEY_USAGES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


class Pair(NamedTuple):
    """The files of one certificate."""

    certificate: Path
    key: Path


class Authority:
    """Issues certificates for 127.0.0.1 and localhost into a folder."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._path = folder / f"{name}.crt"
        self._path.write_bytes(_pem(self._sign(self._subject, self._key, days=90, is_ca=True)))

    @property
    def path(self) -> Path:
        """Return the authority's own certificate."""
        return self._path

    def issue(
        self,
        name: str,
        *,
        file: str | None = None,
        organization: str = "Net, Inc",
        days: int = 90,
        begins: datetime | None = None,
        key: CertificateIssuerPrivateKeyTypes | None = None,
        further_names: Sequence[x509.GeneralName] = (),
    ) -> Pair:
        """Issue a certificate that began 30 days ago and ends in some days (negative: has ended)."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [
                x509.NameAttribute(NameOID.COMMON_NAME, name),
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization),
            ]
        )
        pair = Pair(self.folder / f"{file or name}.crt", self.folder / f"{file or name}.key")
        signed = self._sign(subject, key, days=days, is_ca=False, begins=begins, further_names=further_names)
        pair.certificate.write_bytes(_pem(signed))
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return pair

    def server_files(self, pair: Pair, *, mutual: bool) -> TlsFiles:
        """Return the files of a server with that certificate."""
        return TlsFiles(pair.certificate, pair.key, self.path if mutual else None)

    def context(self, name: str) -> ssl.SSLContext:
        """Return the TLS of a server of Python's, with a certificate of that name."""
        pair, context = self.issue(name), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(pair.certificate, pair.key)
        return context

    def client(self, pair: Pair | None = None) -> ClientTls:
        """Return a client's TLS, with a certificate if one is given."""
        if pair is None:
            return ClientTls(str(self.path))
        return ClientTls(str(self.path), str(pair.certificate), str(pair.key))

    def _sign(
        self,
        subject: x509.Name,
        key: CertificateIssuerPrivateKeyTypes,
        *,
        days: int,
        is_ca: bool,
        begins: datetime | None = None,
        further_names: Sequence[x509.GeneralName] = (),
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        names: list[x509.GeneralName] = [
            x509.DNSName("localhost"),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
            *further_names,
        ]
        # Python 3.13 and later ask for all that RFC 5280 does.
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins or now - timedelta(days=30))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )
        if is_ca:
            usage = dict.fromkeys(_KEY_USAGES, False) | {"key_cert_sign": True, "crl_sign": True}
            builder = builder.add_extension(x509.KeyUsage(**usage), critical=True)
        return builder.sign(self._key, hashes.SHA256())


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
