"""What can go wrong in the gateway, and whose fault each is.

    GatewayError             everything the gateway raises on purpose; `exit_status` if it ends a command
    ├── SettingError         how it was told to run: the setting, its value, where that came from (exit 2)
    ├── AddressError         a text that is not `host:port` (exit 2)
    └── Fatal                the environment: a busy port, an unreadable folder, `python -O`

A message says object, got, expected and place; the same facts are fields. A bare `Exception` is never raised.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = ["AddressError", "Fatal", "GatewayError", "SettingError"]


class GatewayError(Exception):
    """The root of the gateway's errors. One that reaches the command line is printed in one line."""

    exit_status: ClassVar[int] = 1
    """Exit status of a command that this error ends: 1 it failed, 2 it was told to do what it cannot."""


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


class Fatal(GatewayError):
    """The environment does not let this process do its work; nobody's message is to blame."""

    def __init__(self, what: str, *, got: str, expected: str) -> None:
        super().__init__(f"{what}: got {got}, expected {expected}")
        self.what = what
        """The thing that is not as it must be: a folder, a port, the interpreter."""
        self.got = got
        """How it is."""
        self.expected = expected
        """How it must be."""
