"""The certificates of a gRPC server: read, checked, and read anew when their files change.

A shell around three PEM files. gRPC asks for the certificate at every handshake; the files are looked at
then, so an operator renews a certificate by replacing files, and no connection that is open notices.

    certificate, key            who this node is: the chain from its own certificate up, and the private key
    client_ca                   if given, a client without a certificate of one of these authorities is
                                refused in the handshake, and so is one whose certificate has expired

Invariants
  - What cannot be used is an error at start. Later it is one log line, and the last good files stay in use:
    a half-written renewal never takes a node off the network. It is tried again at each look, as it may be
    mended without a change of the files: a certificate that is not valid yet is taken up when it is.
  - The certificate and the key that are handed to gRPC fit each other.
  - Nothing of a key is ever logged; a certificate is logged as its SHA-256 fingerprint and its end.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from gateway.errors import TlsError
from gateway.limits import CERTIFICATE_WARNING_DAYS, TLS_FILE_BYTES_MAX
from gateway.logs import fields
from gateway.pem import certificates_in, check_key
from gateway.regular_files import open_regular

__all__ = ["ServerTls", "TlsFiles"]

log = logging.getLogger(__name__)

_Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where the PEM files of one server are."""

    certificate: Path
    """The server's certificate, then those between it and the root."""
    key: Path
    """Its private key, without a passphrase."""
    client_ca: Path | None = None
    """Certificates of the authorities whose clients may connect; None: any client, without a certificate."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    """One consistent reading of the files."""

    certificate_pem: bytes
    key_pem: bytes
    client_ca_pem: bytes | None
    fingerprint: str
    """SHA-256 of the server's own certificate, hexadecimal."""
    not_after: datetime
    """The certificate's end, UTC."""


class ServerTls:
    """The TLS side of one gRPC server. gRPC calls it in threads of its own.

    Args:
        files: where the PEM files are.
        setting: the name that messages blame, `grpc.tls`.

    Raises:
        TlsError: a file cannot be read or used.
    """

    def __init__(self, files: TlsFiles, setting: str) -> None:
        self._files = files
        self._setting = setting
        self._lock = threading.Lock()
        self._stamp = self._look()
        self._loaded = _load(files, setting)
        self._handed_over = self._loaded
        """What gRPC has."""
        self.setting = setting
        """The name that messages blame."""
        self.problem: str | None = None
        """Why the files as they are now cannot be used, while that is so; the last good ones are in use."""
        self._log_loaded("certificate loaded")

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the certificate in use, hexadecimal."""
        return self._loaded.fingerprint

    @property
    def not_after(self) -> datetime:
        """The end of the certificate in use, UTC."""
        return self._loaded.not_after

    @property
    def requires_client_certificate(self) -> bool:
        """Whether clients must show a certificate."""
        return self._files.client_ca is not None

    def credentials(self) -> grpc.ServerCredentials:
        """Give what a server listens with; it goes on asking this object as long as it lives."""
        return grpc.dynamic_ssl_server_credentials(
            _configuration(self._loaded),
            self._fetch,  # type: ignore[arg-type]  # None is allowed: keep what you have
            require_client_authentication=self.requires_client_certificate,
        )

    def reload_if_changed(self) -> bool:
        """Read the files if they are new or could not be used; say whether new ones are in use now.

        What cannot be used is logged once for each reason, and the certificate in use stays.
        """
        with self._lock:
            stamp = self._look()
            if stamp == self._stamp and self.problem is None:
                return False  # with a problem it is not enough: no stamp tells that a file may now be read
            self._stamp = stamp
            try:
                loaded = _load(self._files, self._setting)
            except TlsError as error:
                if str(error) != self.problem:
                    self.problem = str(error)
                    log.error(
                        "certificate not renewed, the old one stays in use", extra=fields(got=self.problem)
                    )
                return False
            self.problem = None
            if loaded == self._loaded:
                return False
            self._loaded = loaded
        self._log_loaded("certificate renewed")
        return True

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Answer gRPC at a handshake: a new configuration, or None for the one it has.

        Where clients show certificates it is new each time. One that gRPC has kept would let a client resume
        its session, and nobody looks again whether its certificate has ended.
        """
        self.reload_if_changed()
        loaded = self._loaded
        if loaded is self._handed_over and not self.requires_client_certificate:
            return None
        self._handed_over = loaded
        return _configuration(loaded)

    def ends_soon(self, now: datetime) -> bool:
        """Whether the certificate in use ends within `CERTIFICATE_WARNING_DAYS`."""
        return self._loaded.not_after - now < timedelta(days=CERTIFICATE_WARNING_DAYS)

    def _look(self) -> _Stamp:
        """Give what changes when a file is replaced: its inode, time and size; zeros for one that is gone."""
        stamp = []
        for path in (self._files.certificate, self._files.key, self._files.client_ca):
            try:
                found = path.stat() if path is not None else None
            except OSError:
                found = None
            stamp.append((found.st_ino, found.st_mtime_ns, found.st_size) if found else (0, 0, 0))
        return tuple(stamp)

    def _log_loaded(self, message: str) -> None:
        loaded = self._loaded
        soon = self.ends_soon(datetime.now(UTC))
        log.log(
            logging.WARNING if soon else logging.INFO,
            f"{message}, it ends soon" if soon else message,
            extra=fields(
                setting=self._setting,
                sha256=loaded.fingerprint,
                ends=loaded.not_after.isoformat(timespec="seconds"),
                client_certificates="required" if self.requires_client_certificate else "not asked for",
            ),
        )


def _configuration(loaded: _Loaded) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(loaded.key_pem, loaded.certificate_pem)], root_certificates=loaded.client_ca_pem
    )


def _load(files: TlsFiles, setting: str) -> _Loaded:
    """Read the files and see that gRPC can use them: it would not say what is wrong.

    Raises:
        TlsError: one cannot be read, is not PEM, is not valid yet, has ended, or the two do not fit.
    """
    certificate_pem = _read(files.certificate, f"{setting}_certificate")
    key_pem = _read(files.key, f"{setting}_key")
    client_ca_pem = None if files.client_ca is None else _read(files.client_ca, f"{setting}_client_ca")
    own = certificates_in(certificate_pem, files.certificate, f"{setting}_certificate")[0]
    if client_ca_pem is not None:
        assert files.client_ca is not None
        certificates_in(client_ca_pem, files.client_ca, f"{setting}_client_ca")
    _check_times(own, files.certificate, f"{setting}_certificate", datetime.now(UTC))
    check_key(key_pem, files.key, f"{setting}_key", own, files.certificate)
    fingerprint = own.fingerprint(hashes.SHA256()).hex()
    return _Loaded(certificate_pem, key_pem, client_ca_pem, fingerprint, own.not_valid_after_utc)


def _check_times(certificate: x509.Certificate, file: Path, setting: str, now: datetime) -> None:
    """See that clients with this clock would take it: to the second, as the next look is not far."""
    if certificate.not_valid_before_utc > now:
        raise TlsError(
            setting,
            got=f"{file}, which is valid from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M:%S} UTC on",
            expected="one that is valid already by this machine's clock",
        )
    if certificate.not_valid_after_utc <= now:
        raise TlsError(
            setting,
            got=f"{file}, which ended on {certificate.not_valid_after_utc:%Y-%m-%d}",
            expected="one that has not ended",
        )


def _read(path: Path, setting: str) -> bytes:
    try:
        with open_regular(path) as file:  # in the event loop, which must not wait for a pipe
            content = file.read(TLS_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise TlsError(
            setting, got=f"{path} ({error.strerror})", expected="a file that can be read"
        ) from error
    if len(content) > TLS_FILE_BYTES_MAX:
        raise TlsError(
            setting,
            got=f"{path}, more than {TLS_FILE_BYTES_MAX} bytes",
            expected=f"at most {TLS_FILE_BYTES_MAX} bytes",
        )
    return content
