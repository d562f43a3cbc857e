"""The certificates of a gRPC server or of the stream: loaded, checked, reloaded when their files change.

A shell around three PEM files, checked at every handshake and every few seconds. An operator renews a
certificate by replacing files; open connections go on.

    certificate, key            the chain from the node's own certificate up, and its private key
    client_ca                   if given, a client must show a current certificate of one of these authorities

Invariants
  - An unusable file is an error at start. Later it is one log line, and the last good files stay in use. Each
    check tries again: a certificate may become valid without a change of its file.
  - The certificate and the key in use fit each other.
  - A log shows a certificate's SHA-256 fingerprint and its end, and nothing of a key.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sluice.gateway.errors import TlsError
from sluice.gateway.limits import TLS_FILE_BYTES_MAX
from sluice.gateway.logs import fields
from sluice.gateway.metrics import Metrics
from sluice.gateway.regular_files import open_regular

if TYPE_CHECKING:  # its import takes a tenth of a second
    from cryptography import x509

__all__ = ["ServerTls", "TlsFiles", "certificate_notes", "watch_certificates"]

log = logging.getLogger(__name__)

CERTIFICATE_LOOK_SECONDS: Final = 5.0
"""Time between two checks, beside those at handshakes."""
CERTIFICATE_WARNING_DAYS: Final = 14
"""Days before a certificate's end in which its loading logs a warning."""
_Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The paths of one server's PEM files."""

    certificate: Path
    """The server's certificate, then its chain without the root."""
    key: Path
    """Without a passphrase."""
    client_ca: Path | None = None
    """Authorities for clients; None: any client."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    certificate_pem: bytes
    key_pem: bytes
    client_ca_pem: bytes | None
    fingerprint: str
    """SHA-256 of the server's own certificate, hexadecimal."""
    not_after: datetime


class ServerTls:
    """The TLS side of one server.

    Args:
        setting: the setting for messages, `grpc.tls`.
        is_http2: offer HTTP/2 in the handshake, as gRPC does.
    """

    def __init__(self, files: TlsFiles, setting: str, *, is_http2: bool = True) -> None:
        self._files = files
        self._is_http2 = is_http2
        self._setting = setting
        self._lock = threading.Lock()
        self._stamp = self._look()
        self._loaded = _load(files, setting)
        self._context = _context(self._loaded, is_http2)
        self.setting = setting
        self.problem: str | None = None
        """The reason why the present files are not in use."""
        self._log_loaded("certificate loaded")

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the certificate in use, hexadecimal."""
        return self._loaded.fingerprint

    @property
    def not_after(self) -> datetime:
        """The end of the certificate in use, UTC."""
        return self._loaded.not_after

    @property
    def requires_client_certificate(self) -> bool:
        """True if clients must show a certificate."""
        return self._files.client_ca is not None

    def context(self) -> ssl.SSLContext:
        """Return the context of the next handshake, from the present files if usable."""
        self.reload_if_changed()
        return self._context

    def reload_if_changed(self) -> bool:
        """Read the files if they are new or were unusable; return whether new ones are in use now."""
        with self._lock:
            stamp = self._look()
            if stamp == self._stamp and self.problem is None:
                return False  # with a problem, try again: a file may have become readable
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
            self._loaded, self._context = loaded, _context(loaded, self._is_http2)
        self._log_loaded("certificate renewed")
        return True

    def ends_soon(self, now: datetime) -> bool:
        """Return whether the certificate in use ends within `CERTIFICATE_WARNING_DAYS`."""
        return self._loaded.not_after - now < timedelta(days=CERTIFICATE_WARNING_DAYS)

    def _look(self) -> _Stamp:
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


def certificate_notes(certificates: Sequence[ServerTls]) -> tuple[str, ...]:
    """Return present and coming problems, as text."""
    notes = []
    now = datetime.now(UTC)
    for tls in certificates:
        end = f"{tls.not_after:%Y-%m-%d %H:%M} UTC"
        if tls.problem is not None:
            notes.append(
                f"{tls.setting}: the new files cannot be used ({tls.problem}); the old ones end {end}"
            )
        elif tls.ends_soon(now):
            notes.append(f"{tls.setting}: the certificate ends {end}")
    return tuple(notes)


async def watch_certificates(certificates: Sequence[ServerTls], metrics: Metrics) -> None:
    """Reload changed files and set the metrics, until cancelled."""
    while True:
        for tls in tuple(certificates):
            await asyncio.to_thread(tls.reload_if_changed)
            metrics.tls_certificate_end_seconds.labels(setting=tls.setting).set(tls.not_after.timestamp())
            metrics.tls_renewal_failed.labels(setting=tls.setting).set(tls.problem is not None)
        await asyncio.sleep(CERTIFICATE_LOOK_SECONDS)


def _context(loaded: _Loaded, is_http2: bool) -> ssl.SSLContext:
    """Make an OpenSSL context from memory: OpenSSL itself reads only files."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if is_http2:
        context.set_alpn_protocols(["h2"])
    with _as_file(loaded.certificate_pem) as certificate, _as_file(loaded.key_pem) as key:
        context.load_cert_chain(certificate, key)
    if loaded.client_ca_pem is not None:
        with _as_file(loaded.client_ca_pem) as authorities:
            context.load_verify_locations(authorities)
        context.verify_mode = ssl.CERT_REQUIRED
        # An authority in the file suffices, root or not, as in gRPC.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        # A resumed session would not check whether the client's certificate has ended.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
    return context


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    number = os.memfd_create("sluice-tls")
    try:
        os.write(number, content)
        yield f"/proc/self/fd/{number}"
    finally:
        os.close(number)


def _load(files: TlsFiles, setting: str) -> _Loaded:
    """Read the files and check that gRPC can use them.

    Raises TlsError if one cannot be read, is not PEM, is not valid yet, has ended, or the two do not fit.
    """
    from sluice.gateway.transport.certificates import certificates_in, check_key, fingerprint_of

    certificate_pem = _read(files.certificate, f"{setting}_certificate")
    key_pem = _read(files.key, f"{setting}_key")
    client_ca_pem = None if files.client_ca is None else _read(files.client_ca, f"{setting}_client_ca")
    own = certificates_in(certificate_pem, files.certificate, f"{setting}_certificate")[0]
    if client_ca_pem is not None:
        assert files.client_ca is not None
        certificates_in(client_ca_pem, files.client_ca, f"{setting}_client_ca")
    _check_times(own, files.certificate, f"{setting}_certificate", datetime.now(UTC))
    check_key(key_pem, files.key, f"{setting}_key", own, files.certificate)
    return _Loaded(certificate_pem, key_pem, client_ca_pem, fingerprint_of(own), own.not_valid_after_utc)


def _check_times(certificate: x509.Certificate, file: Path, setting: str, now: datetime) -> None:
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
        with open_regular(path) as file:  # an event loop must not wait for a pipe
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
