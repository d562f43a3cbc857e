"""The errors of the gateway.

    GatewayError
    ├── SettingError                   exit status 2
    ├── AddressError                   exit status 2
    ├── GotExpected
    │   ├── TlsError                   exit status 2
    │   ├── Fatal
    │   ├── KeyFileError
    │   └── InvalidInput
    │       └── SubscriptionError
    ├── StartAbandoned
    ├── RoleRefused
    ├── CoordinatorAway
    ├── NodeCallFailed
    ├── FailoverFailed
    │   └── FailoverInterrupted        exit status 130
    └── WorkerProcessLost

`gateway.blocks.errors` has those about blocks. A message says object, got, expected and place, and the fields
have the same words. Nothing raises a bare `Exception`.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "AddressError",
    "CoordinatorAway",
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
    """The root of the gateway's errors. The command line prints one in one line."""

    exit_status: ClassVar[int] = 1
    """Exit status of a command that the error ends: 1 failed, 2 bad usage, 130 interrupted."""


class GotExpected(GatewayError):
    """The root of the errors that say object, got, expected and place."""

    def __init__(self, what: str, got: str, expected: str, where: str = "") -> None:
        place = f"{where}: " if where else ""
        super().__init__(f"{place}{what}: got {got}, expected {expected}")
        self.what = what
        """The wrong object: a setting, a file, a port, a part of a message."""
        self.got = got
        self.expected = expected
        """The right value, in words."""
        self.where = where
        """The place of the object, or ""."""


# --- how the node was told to run ---------------------------------------------------------------------------


class SettingError(GatewayError):
    """A setting has an invalid value, or does not exist."""

    exit_status = 2

    def __init__(self, name: str, *, got: str, expected: str, where: str) -> None:
        super().__init__(f"{name}: got {got}, expected {expected} ({where})")
        self.name = name
        """The dotted name, `publish.max_block_bytes`."""
        self.got = got
        """The value as written, quoted if it was text."""
        self.expected = expected
        self.where = where
        """The flag, environment variable or file that gave the value."""


class AddressError(GatewayError, ValueError):
    """A text is not a network address `host:port`."""

    exit_status = 2

    def __init__(self, text: str, expected: str) -> None:
        super().__init__(f"address: got {text!r}, expected {expected}")
        self.text = text
        self.expected = expected


class TlsError(GotExpected):
    """A certificate or key file is unusable for TLS. The message never quotes its content."""

    exit_status = 2


class Fatal(GotExpected):
    """The environment keeps this process from its work; nobody's message is to blame."""


class StartAbandoned(GatewayError):
    """A node was told to stop before it had started; nothing is left open."""

    def __init__(self) -> None:
        super().__init__("start: got an order to stop, expected the time to open the stream")


class RoleRefused(GatewayError):
    """The role of a node cannot change like this now; nothing has changed."""

    def __init__(self, what: str, *, got: str, expected: str) -> None:
        super().__init__(f"{what}: got a node that is {got}, expected one that is {expected}")
        self.what = what
        """The requested change."""
        self.got = got
        """The node's state."""
        self.expected = expected
        """The required state."""


class CoordinatorAway(GatewayError):
    """The coordinator of an election does not answer, or answers what it cannot."""


class NodeCallFailed(GatewayError):
    """A node did not do what a call asked, or its answer was lost."""

    def __init__(
        self, address: str, reason: str, *, is_refused: bool = False, is_unanswered: bool = False
    ) -> None:
        super().__init__(f"{address}: {reason}")
        self.address = address
        self.reason = reason
        """The node's words, or that it did not answer."""
        self.is_refused = is_refused
        """The node is in the wrong state for the call; it has undone what it began."""
        self.is_unanswered = is_unanswered
        """Nobody answered there, as if the node were dead."""


class FailoverFailed(GatewayError):
    """A failover was not possible."""

    def __init__(self, reason: str, outcome: str) -> None:
        super().__init__(f"failover: {reason}; {outcome}" if outcome else f"failover: {reason}")
        self.reason = reason
        """The failed step, and why."""
        self.outcome = outcome
        """The state of the nodes, or what to do."""


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
    """A publisher, a peer or a block file gave unacceptable bytes."""


class SubscriptionError(InvalidInput):
    """A node broke the rules of its subscription stream."""


class WorkerProcessLost(GatewayError):
    """A worker process is gone, or did not answer."""

    def __init__(self, name: str, got: str, *, is_first: bool, was_ready: bool = False) -> None:
        super().__init__(f"{name}: got {got}, expected an answer")
        self.got = got
        self.is_first = is_first
        """It was working on this request; else the request waited behind another."""
        self.was_ready = was_ready
        """It had answered before; else no request can have been too much for it."""
