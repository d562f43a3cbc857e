"""TLS over a non-blocking socket: of one client of the server, or of one connection of a node's front door.

OpenSSL reads from memory, never from the socket: `SSL_read` of a socket goes on while handshake records come,
so a peer that sends key updates without end would keep the event loop (1.1 s for 2.7 MB of them). Each call
here takes `receive_bytes` at most; only `read_into` goes on, while what it takes gives data.

Source: RFC 8446 sections 4.6.3 and 5.1.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import cast

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
        is_server: whether the peer begins the handshake; else `greet` does.
        server_name: whose certificate a client expects.
        receive_bytes: most encrypted bytes taken at once.
    """

    __slots__ = (
        "_has_ended",
        "_incoming",
        "_on_sent",
        "_outgoing",
        "_receive_bytes",
        "_socket",
        "_tls",
        "_unsent",
        "may_hold_data",
    )

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        on_sent: Callable[[int], None] = lambda count: None,
        *,
        is_server: bool = True,
        server_name: str | None = None,
        receive_bytes: int = RECEIVE_BYTES,
    ) -> None:
        self.may_hold_data = True
        """True if `read_into` may find more without another event of the socket.

        uvloop reports a reset once, so whoever left bytes in the kernel must come back for them.
        """
        self._socket = sock
        self._on_sent = on_sent
        self._receive_bytes = receive_bytes
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=is_server, server_hostname=server_name
        )
        self._unsent = b""
        self._has_ended = False

    @property
    def has_unsent(self) -> bool:
        """True if encrypted bytes wait for room in the kernel; `send` waits for them."""
        return bool(self._unsent)

    @property
    def unsent_bytes(self) -> int:
        """Encrypted bytes that wait for room in the kernel."""
        return len(self._unsent)

    @property
    def certificate(self) -> bytes | None:
        """The peer's, in DER."""
        return self._tls.getpeercert(binary_form=True)

    def greet(self) -> None:
        """Send a client's first bytes."""
        with suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()
        self._send_outgoing()

    def shake_hands(self) -> bool:
        """Take what the client has sent; return whether the handshake is done.

        Then commands may have come with its end: see `read`.

        Raises:
            BlockingIOError: nothing has come.
            ssl.SSLError: the handshake failed; the client is told if possible.
            ConnectionError: the client is gone.
        """
        data = self._socket.recv(self._receive_bytes)
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
        data = self._socket.recv(self._receive_bytes)
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

    def read_into(self, buffer: memoryview) -> int | None:
        """Read what there is; return 0 at the end, None if there is nothing now.

        A call ends when `receive_bytes` of what it took gave no data, so key updates and tiny records cost a
        turn of the loop little, and large records fill the buffer.

        Raises:
            OSError: the peer has left, or violates TLS.
        """
        filled = taken = 0
        self.may_hold_data = True
        try:
            while filled < len(buffer):
                try:
                    got = cast(int, self._tls.read(len(buffer) - filled, buffer[filled:]))
                except ssl.SSLWantReadError:
                    if taken - filled >= self._receive_bytes:
                        break
                    data = self._socket.recv(self._receive_bytes)
                    if not data:
                        return filled
                    self._incoming.write(data)
                    taken += len(data)
                else:
                    if not got:  # the alert close_notify
                        return filled
                    filled += got
        except (BlockingIOError, InterruptedError):
            self.may_hold_data = False
        finally:
            self._send_outgoing()
        return filled or None

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
        """Send what is unsent, or raise BlockingIOError."""
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
