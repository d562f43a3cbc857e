"""TLS of one client of the server, over its non-blocking socket.

OpenSSL reads from memory, never from the socket: `SSL_read` of a socket goes on while handshake records come,
so a client that sends key updates without end would keep the event loop (1.1 s for 2.7 MB of them). Each call
here takes RECEIVE_BYTES at most.

Source: RFC 8446 sections 4.6.3 and 5.1.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from contextlib import suppress

from sluice.datastream.limits import RECEIVE_BYTES

__all__ = ["HANDSHAKE_RECORD", "SecureSocket", "why_refused"]

HANDSHAKE_RECORD = b"\x16"
"""First byte of a TLS connection; no command begins with it."""
RECORD_BYTES = 1 << 14
"""Most bytes of one TLS record."""


class SecureSocket:
    """Encrypts what goes to a socket, and decrypts what comes.

    Args:
        sock: connected and non-blocking; it stays the caller's.
        on_sent: called with the number of bytes that the kernel took.
    """

    __slots__ = ("_has_ended", "_incoming", "_on_sent", "_outgoing", "_socket", "_tls", "_unsent")

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, on_sent: Callable[[int], None]) -> None:
        self._socket = sock
        self._on_sent = on_sent
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._unsent = b""
        self._has_ended = False

    @property
    def has_unsent(self) -> bool:
        """Whether encrypted bytes wait for room in the kernel; `send` waits for them."""
        return bool(self._unsent)

    def shake_hands(self) -> bool:
        """Take what the client has sent; return whether the handshake is done.

        Then commands may have come with its end: see `read`.

        Raises:
            BlockingIOError: nothing has come.
            ssl.SSLError: the handshake failed; the client is told if possible.
            ConnectionError: the client is gone.
        """
        data = self._socket.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionAbortedError("closed in the TLS handshake")
        self._incoming.write(data)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        finally:
            self._send_outgoing()
        return True

    def receive(self) -> tuple[bytes, bool]:
        """Return what has come of the client's bytes, and whether it has closed its sending side.

        Raises:
            BlockingIOError: nothing has come.
            ssl.SSLError: the client violates TLS.
        """
        data = self._socket.recv(RECEIVE_BYTES)
        self._incoming.write(data)
        return self.read(is_end=not data)

    def read(self, *, is_end: bool = False) -> tuple[bytes, bool]:
        """As `receive`, of what came earlier."""
        parts: list[bytes] = []
        try:
            while part := self._tls.read(RECORD_BYTES):
                parts.append(part)
            is_end = True  # the alert close_notify
        except ssl.SSLWantReadError:
            pass
        finally:
            self._send_outgoing()  # an alert, or the answer to a key update
        return b"".join(parts), is_end

    def send(self, data: bytes) -> int:
        """Encrypt all of `data`, and send what the kernel takes; return its size.

        Raises:
            BlockingIOError: earlier bytes are unsent.
        """
        self.flush()
        view, taken = memoryview(data), 0
        while taken < len(data):
            taken += self._tls.write(view[taken:])
        self._send_outgoing()
        return taken

    def flush(self) -> None:
        """Send what is unsent.

        Raises:
            BlockingIOError: some of it still is.
        """
        while self._unsent:
            count = self._socket.send(self._unsent)
            self._unsent = self._unsent[count:]
            self._on_sent(count)

    def end(self) -> bool:
        """Tell the client that no more comes; return whether everything is sent."""
        if not self._has_ended:
            self._has_ended = True
            with suppress(OSError):  # it does not wait for the client's answer
                self._tls.unwrap()
            self._send_outgoing()
        return not self._try_flush()

    def _send_outgoing(self) -> None:
        if self._outgoing.pending:
            self._unsent += self._outgoing.read()
            self._try_flush()

    def _try_flush(self) -> bool:
        with suppress(BlockingIOError, InterruptedError):
            self.flush()
        return self.has_unsent


def why_refused(error: ssl.SSLError) -> str:
    """Return OpenSSL's reason, such as PEER_DID_NOT_RETURN_A_CERTIFICATE."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message.rstrip(".")
    return str(error.reason or error.strerror or error)
