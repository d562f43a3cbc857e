"""Failed connections in words: the one place where commands, peers and publishers learn what went wrong.

A shell: `why_failed` only reads gRPC's text; `why_failed_at` also connects to the address, since gRPC has the
same text for many failures ("Socket closed"). Who waits for a command gets the second, a log the first.

    what is there               this side came    the words
    nobody, no such name        …                 nobody listens there; the name does not resolve
    a server with TLS           without           it expects TLS
    a server without TLS        with              it has no TLS
    a server with TLS           with              whose certificate is not accepted, and why
    HTTP, a data streamer       …                 what it is, and where gRPC is by default
    gRPC                        …                 gRPC's own text

Source: docs/operations.md, "Name the nodes".
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from enum import Enum
from typing import Final

import grpc
from grpc import aio

from sluice.datastream.protocol.commands import Command, encode_command
from sluice.gateway.addresses import parse_address
from sluice.gateway.errors import AddressError, TlsError
from sluice.gateway.logs import one_line
from sluice.gateway.transport.channels import ClientTls

__all__ = ["Speaks", "is_somebody_there", "trouble_at", "why_failed", "why_failed_at"]

PROBE_SECONDS: Final = 1.0
"""The time that a probe waits for each answer; a node answers in milliseconds."""

PROBES_APART_SECONDS: Final = 30.0
"""Time between two probes of one address: a command that tries again and again is no port scanner."""

DETAILS_CHARACTERS_MAX: Final = 500
"""Characters of a server's own text in our log lines and errors."""

_NOBODY: Final = "nobody listens there"
_NO_NAME: Final = "the name does not resolve"
_NO_ANSWER: Final = "no answer: the machine is off, or a firewall drops what is sent there"
_EXPECTS_TLS: Final = "the server expects TLS, and none was offered"
_NO_TLS: Final = "TLS was offered, and the server has none there"
_WANTS_CERTIFICATE: Final = "the server wants a client certificate, and none was shown"
_REFUSES_CERTIFICATE: Final = "the server does not accept the client certificate"
_UNTRUSTED: Final = "the server's certificate is not accepted"

_KNOWN: Final = (
    (re.compile(r"Connection refused"), _NOBODY),
    (re.compile(r"DNS resolution failed|Domain name not found|Name or service not known"), _NO_NAME),
    (re.compile(r"WRONG_VERSION_NUMBER"), _NO_TLS),
    (re.compile(r"http1\.x server"), "that is an HTTP port, not gRPC"),
    (re.compile(r"^Deadline Exceeded$|timed out before receiving SETTINGS"), "no answer in time"),
)
"""gRPC's texts that can mean one thing only."""

# What gRPC writes before the reason.
_GRPC_PROSE: Final = re.compile(r"^failed to connect to all addresses; last error: \w+: (ipv[46]:\S+: )?")

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_SETTINGS_FRAME: Final = 4
_HEADER_COMMAND: Final = encode_command(Command.HEADER, 1)
_RESULT: Final = 0xFF
"""The first byte of a data streamer's answer to a command."""
_MAYBE_UNREACHED: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class Speaks(Enum):
    """The protocol of a port."""

    GRPC = "gRPC"
    TLS = "TLS"
    HTTP = "HTTP"
    STREAM = "the data streamer's protocol"


_WHERE: Final = {
    Speaks.HTTP: "that is an HTTP port, for browsers and probes",
    Speaks.STREAM: "that is the port of a data streamer, for readers over TCP",
    Speaks.GRPC: "that is a gRPC port",
}
_DEFAULT_PORTS: Final = {
    Speaks.GRPC: "gRPC is at 40840 by default",
    Speaks.STREAM: "a data streamer is at 6900 by default",
}


def why_failed(error: grpc.RpcError) -> str:
    """Return on one line of bounded length how a call failed: gRPC's code, and why, in words."""
    code, details = _status_of(error)
    if code is None:
        return one_line(str(error)[:DETAILS_CHARACTERS_MAX]) or type(error).__name__
    words = next((known for pattern, known in _KNOWN if pattern.search(details)), None)
    if words is None:
        words = one_line(_GRPC_PROSE.sub("", details)[:DETAILS_CHARACTERS_MAX]) or "no details"
    return f"{code.name}: {words}"


_probed: dict[tuple[str, ClientTls | None], tuple[float, str | None]] = {}


def why_failed_at(
    address: str, error: grpc.RpcError, tls: ClientTls | None, probe_seconds: float = PROBE_SECONDS
) -> str:
    """Return how a call to `host:port` failed; connect there to find out, in some seconds at most."""
    code, _ = _status_of(error)
    if code not in _MAYBE_UNREACHED:
        return why_failed(error)
    at, words = _probed.get((address, tls), (float("-inf"), None))
    if time.monotonic() - at >= PROBES_APART_SECONDS:
        words = trouble_at(address, tls, probe_seconds=probe_seconds)
        _probed[address, tls] = time.monotonic(), words
    return why_failed(error) if code is None or words is None else f"{code.name}: {words}"


def trouble_at(
    address: str,
    tls: ClientTls | None,
    expected: Speaks = Speaks.GRPC,
    probe_seconds: float = PROBE_SECONDS,
) -> str | None:
    """Connect to `host:port` and return what is wrong there; None: nothing that this finds.

    Args:
        tls: as the failed connection had it.
        expected: GRPC or STREAM.
        probe_seconds: how long each connection waits for an answer.
    """
    try:
        parsed = parse_address(address, port_min=1)
        where = parsed.host, parsed.port
        if tls is None:
            found = _protocol(where, probe_seconds)
            return None if found in (expected, None) else _mismatch(found, expected)
        return _trouble_of_tls(where, tls, expected, probe_seconds)
    except socket.gaierror:
        return _NO_NAME
    except ConnectionRefusedError:
        return _NOBODY
    except TimeoutError:
        return _NO_ANSWER
    except (AddressError, TlsError):
        return None
    except OSError as error:
        return error.strerror


def is_somebody_there(reason: str) -> bool:
    """Return whether a failure's words tell of a server that speaks, and not of a dead node."""
    words = (_EXPECTS_TLS, _NO_TLS, _WANTS_CERTIFICATE, _REFUSES_CERTIFICATE, _UNTRUSTED, *_WHERE.values())
    return any(one in reason for one in words)


def _status_of(error: grpc.RpcError) -> tuple[grpc.StatusCode | None, str]:
    if isinstance(error, grpc.Call | aio.AioRpcError):
        return error.code(), error.details() or ""
    return None, ""


def _mismatch(found: Speaks, expected: Speaks) -> str:
    if found is Speaks.TLS:
        return _EXPECTS_TLS
    return f"{_WHERE[found]}; {_DEFAULT_PORTS[expected]}"


def _protocol(where: tuple[str, int], probe_seconds: float) -> Speaks | None:
    """Return what a port speaks to a client without TLS; raise OSError if it cannot be connected to."""
    said = _answer(where, _PREFACE, probe_seconds)
    if said.startswith(b"HTTP/1"):
        return Speaks.HTTP
    if len(said) > _SETTINGS_FRAME - 1 and said[3] == _SETTINGS_FRAME:
        return Speaks.GRPC
    if _answer(where, _HEADER_COMMAND, probe_seconds)[:1] == bytes((_RESULT,)):
        return Speaks.STREAM
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        _handshake(where, context, probe_seconds)
    except ssl.SSLError as error:  # an alert is an answer in TLS
        return Speaks.TLS if "ALERT" in (error.reason or "") else None
    except OSError:
        return None
    return Speaks.TLS


def _answer(where: tuple[str, int], request: bytes, probe_seconds: float) -> bytes:
    """Return the first bytes of an answer; none if the server closes the connection, or waits for more."""
    with socket.create_connection(where, probe_seconds) as connection:
        try:
            connection.sendall(request)
            return connection.recv(64)
        except OSError:
            return b""


def _trouble_of_tls(
    where: tuple[str, int], tls: ClientTls, expected: Speaks, probe_seconds: float
) -> str | None:
    try:
        context = tls.context(is_http2=expected is Speaks.GRPC)
        said = _handshake(where, context, probe_seconds, tls.server_name)
    except ssl.SSLCertVerificationError as error:
        return f"{_UNTRUSTED}: {error.verify_message}"
    except ssl.SSLError as error:
        reason = (error.reason or "").replace("_", " ").lower()
        if "ALERT" not in (error.reason or ""):
            found = _protocol(where, probe_seconds)
            return None if found in (Speaks.TLS, None) else _without_tls(found, expected)
        if tls.certificate_file is None:
            return f"{_WANTS_CERTIFICATE} ({reason})"
        return f"{_REFUSES_CERTIFICATE} ({reason})"
    except ConnectionError:
        found = _protocol(where, probe_seconds)
        return None if found in (Speaks.TLS, None) else _without_tls(found, expected)
    return _mismatch(Speaks.HTTP, expected) if said.startswith(b"HTTP/1") else None


def _without_tls(found: Speaks, expected: Speaks) -> str:
    return _NO_TLS if found is expected else _mismatch(found, expected)


def _handshake(
    where: tuple[str, int], context: ssl.SSLContext, probe_seconds: float, name: str | None = None
) -> bytes:
    """Shake hands, and return the first bytes: with TLS 1.3 a refusal of the client comes only then."""
    with (
        socket.create_connection(where, probe_seconds) as connection,
        context.wrap_socket(connection, server_hostname=name or where[0]) as secured,
    ):
        secured.sendall(_PREFACE)
        try:
            return secured.recv(64)
        except ssl.SSLError:
            raise
        except OSError:
            return b""
