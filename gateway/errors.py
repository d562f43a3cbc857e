"""The errors of the gateway, each with whose fault it is.

    GatewayError             everything the gateway raises on purpose; `exit_status` if it ends a command
    ├── SettingError         how it was told to run: the setting, its value, where that came from (exit 2)
    ├── AddressError         a text that is not `host:port` (exit 2)
    ├── GotExpected          those that have an object, got, expected and a place
    │   ├── TlsError         a certificate or key file that cannot be used (exit 2)
    │   ├── Fatal            the environment: a busy port, an unreadable folder, `python -O`
    │   ├── KeyFileError     a private key file that cannot be read or written
    │   └── InvalidInput     bytes or behaviour of somebody else
    │       └── SubscriptionError  a node that was subscribed to breaks the rules of its stream
    ├── StartAbandoned       a node was told to stop before it had started
    ├── RoleRefused          the role of a node cannot change so now
    ├── NodeCallFailed       a node did not do what it was asked over its control address
    ├── FailoverFailed       a failover was not possible; it says which node is active
    │   └── FailoverInterrupted  it was interrupted; it says what both nodes are (exit 130)
    └── WorkerProcessLost    a worker process is gone, or does not answer

Those about blocks are in `gateway.blocks.errors`. A message says object, got, expected and place; the same
facts are fields. A bare `Exception` is never raised.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "AddressError",
    "FailoverFailed",
    "FailoverInterrupted",
    "Fatal",
    "GatewayError",
    "GotExpected",
    "InvalidInput",
    "KeyFileError",
    "NodeCallFailed",
    "RoleRefused",
    "SettingError",
    "StartAbandoned",
    "SubscriptionError",
    "TlsError",
    "WorkerProcessLost",
]


class GatewayError(Exception):
    """The root of the gateway's errors. One that reaches the command line is printed in one line."""

    exit_status: ClassVar[int] = 1
    """Exit status of a command that this error ends: 1 it failed, 2 it was told to do what it cannot,
    130 it was interrupted."""


class GotExpected(GatewayError):
    """The root of the errors that say object, got, expected and place; the fields have the same words."""

    def __init__(self, what: str, got: str, expected: str, where: str = "") -> None:
        place = f"{where}: " if where else ""
        super().__init__(f"{place}{what}: got {got}, expected {expected}")
        self.what = what
        """The object that is wrong: a setting, a file, a folder, a port, a part of a message."""
        self.got = got
        """What it is."""
        self.expected = expected
        """What it would have to be, in words."""
        self.where = where
        """The place of the object, empty where it has none."""


# --- how the node was told to run ---------------------------------------------------------------------------


class SettingError(GatewayError):
    """A setting has a value that it cannot have, or is not a setting at all."""

    exit_status = 2

    def __init__(self, name: str, *, got: str, expected: str, where: str) -> None:
        super().__init__(f"{name}: got {got}, expected {expected} ({where})")
        self.name = name
        """The setting's dotted name, `publish.max_block_bytes`."""
        self.got = got
        """The value as it was written, quoted if it was text."""
        self.expected = expected
        """What would have been accepted, in words."""
        self.where = where
        """The flag, the environment variable, or the file that gave the value."""


class AddressError(GatewayError, ValueError):
    """A text is not a network address of the form `host:port`."""

    exit_status = 2

    def __init__(self, text: str, expected: str) -> None:
        super().__init__(f"address: got {text!r}, expected {expected}")
        self.text = text
        """The text as it was written."""
        self.expected = expected
        """What would have been accepted, in words."""


class TlsError(GotExpected):
    """A certificate or key file cannot be used for TLS. The message never quotes what is in it."""

    exit_status = 2


class Fatal(GotExpected):
    """The environment does not let this process do its work; nobody's message is to blame."""


class StartAbandoned(GatewayError):
    """A node was told to stop before it had started; nothing is left open."""

    def __init__(self) -> None:
        super().__init__("start: got an order to stop, expected the time to open the stream")


class RoleRefused(GatewayError):
    """The role of a node cannot change in this way now; nothing has changed."""

    def __init__(self, what: str, *, got: str, expected: str) -> None:
        super().__init__(f"{what}: got a node that is {got}, expected one that is {expected}")
        self.what = what
        """The change that was asked for."""
        self.got = got
        """What the node is."""
        self.expected = expected
        """What it would have to be."""


class NodeCallFailed(GatewayError):
    """A node did not do what it was asked, or its answer was lost."""

    def __init__(
        self, address: str, reason: str, *, is_refused: bool = False, is_unanswered: bool = False
    ) -> None:
        super().__init__(f"{address}: {reason}")
        self.address = address
        """The control address that was called."""
        self.reason = reason
        """What it said, or that it did not answer."""
        self.is_refused = is_refused
        """It is not what it would have to be for this; what it had begun it has undone."""
        self.is_unanswered = is_unanswered
        """Nobody answered there, as where the node is dead."""


class FailoverFailed(GatewayError):
    """A failover was not possible."""

    def __init__(self, reason: str, outcome: str) -> None:
        super().__init__(f"failover: {reason}; {outcome}" if outcome else f"failover: {reason}")
        self.reason = reason
        """Which step failed, and why."""
        self.outcome = outcome
        """How things stand now, or what to do."""


class FailoverInterrupted(FailoverFailed):
    """A failover was interrupted."""

    exit_status = 130

    def __init__(self, reason: str, outcome: str, *, is_done: bool = False) -> None:
        super().__init__(reason, outcome)
        self.is_done = is_done
        """The interruption came too late: the target is active."""


# --- bytes of others ----------------------------------------------------------------------------------------


class KeyFileError(GotExpected):
    """A private key file cannot be read or written."""


class InvalidInput(GotExpected):
    """A publisher, a peer or a block file gave bytes that cannot be accepted."""


class SubscriptionError(InvalidInput):
    """A node that was subscribed to sent what the rules of its stream do not allow."""


class WorkerProcessLost(GatewayError):
    """A worker process is gone, or did not answer."""

    def __init__(self, name: str, got: str, *, is_first: bool, was_ready: bool = False) -> None:
        super().__init__(f"{name}: got {got}, expected an answer")
        self.got = got
        """What became of it."""
        self.is_first = is_first
        """It was at work on this request; else the request waited behind another."""
        self.was_ready = was_ready
        """It had answered before; else no request can have been too much for it."""
