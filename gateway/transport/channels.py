"""Connections to gRPC servers, with or without TLS, for publishers, peers and commands.

A shell: it reads files. `ClientTls` holds paths only, so it can be sent to other processes and printed; no
key appears in a plan or log.
"""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import grpc
from grpc import aio

from sluice.datastream.client.blocking_client import TlsContext
from sluice.gateway.errors import TlsError
from sluice.gateway.limits import BLOCK_ANSWER_BYTES_MAX, TLS_FILE_BYTES_MAX
from sluice.gateway.regular_files import open_regular
from sluice.gateway.transport import outgoing

__all__ = [
    "WHOLE_BLOCKS",
    "ClientTls",
    "call_once",
    "connecting_context",
    "keepalive",
    "open_blocking_channel",
    "open_channel",
    "refused_headers",
    "relayed_if_refused",
]

log = logging.getLogger(__name__)

T = TypeVar("T")
_Options = Sequence[tuple[str, str | int]]
_ALWAYS: _Options = (
    ("grpc.enable_http_proxy", 0),
    # gRPC at once repeats a call that a GOAWAY left untouched. A server that always answers so would hang the
    # thread and fill memory.
    ("grpc.enable_retries", 0),
)
WHOLE_BLOCKS: _Options = (("grpc.max_receive_message_length", BLOCK_ANSWER_BYTES_MAX),)
"""Options for channels that receive whole blocks, as `getBlock` sends them."""

# gRPC reports a file of another kind on standard error only, and then fails to connect.
_CERTIFICATE = re.compile(rb"-----BEGIN (X509 |TRUSTED )?CERTIFICATE-----")
_TRUSTED = b"-----BEGIN TRUSTED CERTIFICATE-----"
_REFUSED_HEADERS = "GOAWAY received; Error code: 1;"
"""gRPC's text for PROTOCOL_ERROR, Helidon's answer to the first call."""
_KEY = re.compile(rb"-----BEGIN ([A-Z0-9]+ )*PRIVATE KEY-----")


def keepalive(quiet_seconds: float, answer_seconds: float) -> list[tuple[str, int]]:
    """Return the options that make gRPC ping a quiet peer and close a connection without an answer."""
    return [
        ("grpc.keepalive_time_ms", int(quiet_seconds * 1000)),
        ("grpc.keepalive_timeout_ms", int(answer_seconds * 1000)),
        # grpcio 1.85 reads this one; its default is 60 s.
        ("grpc.http2.ping_timeout_ms", int(answer_seconds * 1000)),
    ]


@dataclass(frozen=True, slots=True)
class ClientTls:
    """The client's side of a TLS connection."""

    ca_file: str | None = None
    """PEM file; None: the system's authorities."""
    certificate_file: str | None = None
    key_file: str | None = None
    server_name: str | None = None
    """The name in the server's certificate, if not the host's."""

    def __post_init__(self) -> None:
        if (self.certificate_file is None) != (self.key_file is None):
            given, missing = ("certificate", "key") if self.key_file is None else ("key", "certificate")
            raise TlsError("client TLS", got=f"a {given} without a {missing}", expected="both, or neither")

    def credentials(self) -> grpc.ChannelCredentials:
        """Read the files.

        Raises:
            TlsError: one is unusable, or the key is not the certificate's.
        """
        from sluice.gateway.transport.certificates import certificates_in, check_key  # 0.1 s

        ca = _read(self.ca_file, "CA file", _CERTIFICATE)
        certificate = _read(self.certificate_file, "certificate file", _CERTIFICATE)
        key = _read(self.key_file, "key file", _KEY)
        if ca is not None and self.ca_file is not None and _TRUSTED not in ca:
            certificates_in(ca, self.ca_file, "CA file")
        file = self.certificate_file
        if certificate is not None and file is not None and _TRUSTED not in certificate:
            own = certificates_in(certificate, file, "certificate file")[0]
            if key is not None and self.key_file is not None:
                check_key(key, self.key_file, "key file", own, file, is_quick=True)
        return grpc.ssl_channel_credentials(ca, key, certificate)

    def context(self, *, is_http2: bool = True) -> ssl.SSLContext:
        """Return the OpenSSL context of relayed connections, or of those to a stream server."""
        self.credentials()  # checks the files with readable errors
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.certificate_file is not None:
                context.load_cert_chain(self.certificate_file, self.key_file)
        except OSError as error:
            raise TlsError("client TLS", got=str(error), expected="files that can be used") from error
        if is_http2:
            context.set_alpn_protocols(["h2"])
        return context

    def options(self) -> _Options:
        """Return its channel options."""
        return () if self.server_name is None else (("grpc.ssl_target_name_override", self.server_name),)


def connecting_context(tls: ClientTls | None) -> TlsContext | None:
    """Return the context of each next connection, from the files of that moment.

    Raises:
        TlsError: a file is unusable. Later, the connection fails with an OSError.
    """
    if tls is None:
        return None
    tls.context(is_http2=False)

    def context() -> ssl.SSLContext:
        try:
            return tls.context(is_http2=False)
        except TlsError as error:
            raise OSError(str(error)) from error

    return context


def open_channel(address: str, tls: ClientTls | None = None, options: _Options = ()) -> aio.Channel:
    """Open an asyncio channel to `host:port`; it sends nothing before the first call."""
    if outgoing.is_relayed(address):
        return aio.insecure_channel(outgoing.relayed(address, tls), options=_relayed(address, options))
    if tls is None:
        return aio.insecure_channel(address, options=(*_ALWAYS, *options))
    return aio.secure_channel(address, tls.credentials(), options=(*_ALWAYS, *tls.options(), *options))


def open_blocking_channel(address: str, tls: ClientTls | None = None, options: _Options = ()) -> grpc.Channel:
    """Open a blocking channel to `host:port`, as `open_channel` does."""
    if outgoing.is_relayed(address):
        return grpc.insecure_channel(outgoing.relayed(address, tls), options=_relayed(address, options))
    if tls is None:
        return grpc.insecure_channel(address, options=(*_ALWAYS, *options))
    return grpc.secure_channel(address, tls.credentials(), options=(*_ALWAYS, *tls.options(), *options))


def _relayed(address: str, options: _Options) -> _Options:
    return (*_ALWAYS, *options, ("grpc.default_authority", address))


def refused_headers(address: str, error: grpc.RpcError | str | None) -> bool:
    """Return whether a call failed because the server refuses gRPC core's header encoding.

    If so, a new channel to this address is relayed: try the call again on one.
    """
    if outgoing.is_relayed(address):
        return False
    details = error.details() if isinstance(error, grpc.Call) else error
    if isinstance(error, aio.AioRpcError):
        details = error.details()
    if not isinstance(details, str):
        return False
    return _REFUSED_HEADERS in details and outgoing.learn(address)


async def relayed_if_refused(address: str, attempt: Callable[[], Awaitable[T]]) -> T:
    """Make an attempt that opens a channel; repeat it once if the address must be relayed."""
    try:
        return await attempt()
    except grpc.RpcError as error:
        if not refused_headers(address, error):
            raise
    return await attempt()


def call_once(
    address: str, tls: ClientTls | None, call: Callable[[grpc.Channel], T], options: _Options = ()
) -> T:
    """Open a blocking channel for one call, relayed if the server needs it."""
    try:
        with open_blocking_channel(address, tls, options) as channel:
            return call(channel)
    except grpc.RpcError as error:
        if not refused_headers(address, error):
            raise
    with open_blocking_channel(address, tls, options) as channel:
        return call(channel)


def _read(file: str | None, what: str, kind: re.Pattern[bytes]) -> bytes | None:
    if file is None:
        return None
    try:
        with open_regular(Path(file)) as opened:  # an event loop must not wait for a pipe
            data = opened.read(TLS_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise TlsError(what, got=f"{file} ({error.strerror})", expected="a file that can be read") from error
    if len(data) > TLS_FILE_BYTES_MAX:
        got, expected = f"{file}, more than {TLS_FILE_BYTES_MAX} bytes", f"at most {TLS_FILE_BYTES_MAX} bytes"
        raise TlsError(what, got=got, expected=expected)
    if not kind.search(data):
        expected = f"a PEM file with a {'private key' if kind is _KEY else 'certificate'}"
        raise TlsError(what, got=f"{file}, which has none", expected=expected)
    return data
