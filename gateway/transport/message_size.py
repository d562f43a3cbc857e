"""The refusal of a long message, read from the status text of several gRPC libraries.

Pure. A receiver refuses a long message by the length in front of it. No library has a code for it, but all
put both numbers into the text:

    gRPC core  RESOURCE_EXHAUSTED  SERVER: Received message larger than max (5000 vs. 2000)
    Go         RESOURCE_EXHAUSTED  grpc: received message larger than max (5000 vs. 2000)
    Java       RESOURCE_EXHAUSTED  gRPC message exceeds maximum size 2000: 5000
    Rust       OUT_OF_RANGE        decoded message length too large: found 5000 bytes, the limit is: 2000
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

__all__ = ["TooLong", "too_long", "why_too_long"]


class TooLong(NamedTuple):
    """A message that was refused for its length."""

    size_bytes: int
    limit_bytes: int


_FORMS: Final = (
    re.compile(r"message larger than max \((?P<size>\d{1,20}) vs\.? (?P<limit>\d{1,20})\)"),
    re.compile(r"message exceeds maximum size (?P<limit>\d{1,20}): (?P<size>\d{1,20})"),
    re.compile(r"length too large: found (?P<size>\d{1,20}) bytes, the limit is: (?P<limit>\d{1,20})"),
)


def too_long(details: str | None) -> TooLong | None:
    """Read the text of a status; None if it is not about a message's length."""
    for form in _FORMS:
        if found := form.search(details or ""):
            return TooLong(int(found["size"]), int(found["limit"]))
    return None


def why_too_long(details: str | None, setting: str) -> str | None:
    """Return a text with both lengths and the setting to change, if that is the failure."""
    found = too_long(details)
    if found is None:
        return None
    return f"message: got {found.size_bytes} bytes, expected at most {found.limit_bytes}; raise {setting}"
