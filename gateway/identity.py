"""The name of a publisher: proven, claimed or neither, each kind in its own namespace.

Pure. A name is a plain text, the same in race, limits, log, metrics and page. Its form tells its kind, and
names of different kinds are never equal:

    form                      kind                                                     who vouches for it
    CN=alice,O=Net            the subject of a client certificate                      its authority
    URI:spiffe://net/alice    an alternative name, of a certificate without a subject  its authority
    peer 192.0.2.5:40840      a node of `peers`, to which this node subscribes         this node's operator
    claimed:N3                metadata `publisher-id`, or `hiero-correlation-id`       nobody
    ipv4:192.0.2.1:5000       the connection of an anonymous publisher                 nobody

Invariants
  - A name has at most `NAME_CHARACTERS_MAX` characters; a longer one ends with a digest of all of it.
  - A claimed name is printable ASCII: everything else in it, and the backslash, is escaped.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Final

__all__ = [
    "CORRELATION_ID_KEY",
    "NAME_CHARACTERS_MAX",
    "PUBLISHER_ID_KEY",
    "is_vouched_for",
    "name_of_claim",
    "name_of_peer",
    "name_of_publisher",
]

PUBLISHER_ID_KEY: Final = "publisher-id"
CORRELATION_ID_KEY: Final = "hiero-correlation-id"
"""The metadata of consensus nodes: `N3-STR1` is the first stream of node 3."""
NAME_CHARACTERS_MAX: Final = 256
"""The longest name: names stand in logs, metrics and memory."""

_CLAIMED: Final = "claimed:"
_NOBODY_VOUCHES: Final = (_CLAIMED, "ipv4:", "ipv6:", "unix")
"""The prefixes of names for which nobody vouches. No subject has one: its first attribute ends with `=`, and
alternative names begin with `URI:`, `DNS:`, `IP:` or `email:`."""
_OF_STREAM: Final = re.compile(r"(?P<node>.+)-STR[0-9]+")
_DIGEST_DIGITS: Final = 16


def name_of_publisher(
    subjects: Sequence[str], metadata: Iterable[tuple[str, str | bytes]], connection: str
) -> str:
    """Return the name of a publisher: from its certificate, else its claim, else its connection.

    A claim is `publisher-id`, or the node in `hiero-correlation-id`: all streams of a consensus node are one
    publisher, whatever number follows.

    Args:
        subjects: the names that its certificate proves, best first.
        metadata: of its call.
        connection: gRPC's name of it, `ipv4:192.0.2.1:5000`.
    """
    if subjects:
        return _bounded(subjects[0])
    said: dict[str, str] = {}
    for key, value in metadata:
        if key in (PUBLISHER_ID_KEY, CORRELATION_ID_KEY) and value:
            said.setdefault(key, value if isinstance(value, str) else value.decode("utf-8", "replace"))
    if PUBLISHER_ID_KEY in said:
        return name_of_claim(said[PUBLISHER_ID_KEY])
    correlation = said.get(CORRELATION_ID_KEY)
    if correlation is not None:
        of_stream = _OF_STREAM.fullmatch(correlation)
        return name_of_claim(correlation if of_stream is None else of_stream["node"])
    return connection


def name_of_peer(address: str) -> str:
    """Return the name of this node's own subscription to a peer."""
    return f"peer {address}"


def is_vouched_for(name: str) -> bool:
    """Return whether somebody vouches for a name; anybody can invent others at will."""
    return not name.startswith(_NOBODY_VOUCHES)


def name_of_claim(text: str) -> str:
    """Return the name of a publisher without a certificate that claims to be `text`."""
    return _bounded(_CLAIMED + text.encode("unicode_escape").decode("ascii"))


def _bounded(name: str) -> str:
    if len(name) <= NAME_CHARACTERS_MAX:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "backslashreplace")).hexdigest()[:_DIGEST_DIGITS]
    return f"{name[: NAME_CHARACTERS_MAX - 1 - _DIGEST_DIGITS]}~{digest}"
