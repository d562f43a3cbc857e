"""The dispute over the last stored block N: block N + 1 of others names another root hash for it than ours.

Pure. A record-file proof does not sign the root hash of its block, and mode `hash` checks no proof. So a
block can be stored whose root nobody else has, and then no honest block N + 1 links to it, for ever. A liar
who sends a false link looks the same. This rule tells the two apart:

    root of N here   who names one other root for it, and no N + 1 was stored   then
    signed           anybody                                                    a liar; nothing is said
    not signed       1 source, for `SETTLE_NS`                                  a doubt: worth a look
    not signed       `SOURCES_MIN` or more, for `SETTLE_NS`                     a dead end: the node cannot
                                                                                go on

One liar makes no dead end, because a source is counted by what one party cannot have twice:

    a peer                           the address that the operator has set
    a publisher with a certificate   its subject
    any other publisher              its network, whatever it calls itself: the IPv4 address, or the 64 bits
                                     of an IPv6 address that one subscriber gets

A source has one claim, the last. Two liars make a dead end only until an honest publisher brings block N + 1:
a block that links to ours is stored, and the dispute is over. Nobody is refused meanwhile who would be taken
otherwise. A liar who has deceived a peer with the same false blocks before can do the same. So the rule says
that somebody has to compare, and never who is right.

Source: docs/verification.md, "What each proof proves".
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from dataclasses import dataclass
from typing import Final, NamedTuple

__all__ = ["SETTLE_NS", "SOURCES_KEPT", "SOURCES_MIN", "Dispute", "Disputed", "Source", "source_of"]

SETTLE_NS: Final = 10_000_000_000
"""How long enough sources must agree. Honest publishers bring the next block sooner, at any block time up to
half of it, so that two liars do not make a load balancer see the node go and come back."""
SOURCES_MIN: Final = 2
"""Sources that make a dead end: one may be a liar."""
SOURCES_KEPT: Final = 64
"""Claims that are remembered; beyond that the oldest one of the root that fewest name is forgotten."""
_IPV6_NETWORK_BITS: Final = 64
_NAMES_SHOWN: Final = 5
_HASH_DIGITS_SHOWN: Final = 16


class Source(NamedTuple):
    """Who sends blocks, as a dispute counts it."""

    name: str
    """For people."""
    key: str
    """What one party cannot have twice."""


def source_of(name: str, address: str, *, is_peer: bool = False, has_certificate: bool = False) -> Source:
    """Tell by what a publisher or a peer is counted.

    Args:
        name: of the publisher or the peer, as the race knows it.
        address: the network address that it comes from.
        is_peer: it is this node's own subscription to another node.
        has_certificate: its name is the subject of a certificate that TLS has checked.
    """
    if is_peer:
        return Source(name, f"peer {name}")
    if has_certificate:
        return Source(name, f"certificate {name}")
    return Source(name, f"network {_network_of(address)}")


def _network_of(address: str) -> str:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:  # a Unix socket
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found.packed, _IPV6_NETWORK_BITS), strict=False))
    return str(found)


@dataclass(frozen=True, slots=True)
class Disputed:
    """A dispute as it stands."""

    number: int
    """The last stored block, N."""
    own_root: bytes
    """Its root hash here, 48 bytes."""
    named_root: bytes
    """The `previous_block_root_hash` of others' block N + 1."""
    sources: tuple[str, ...]
    """Names of those who name it."""
    is_dead_end: bool
    """The node cannot go on; else it is a doubt."""

    @property
    def text(self) -> str:
        """The dispute in words."""
        shown = ", ".join(self.sources[:_NAMES_SHOWN])
        if len(self.sources) > _NAMES_SHOWN:
            shown += f" and {len(self.sources) - _NAMES_SHOWN} more"
        agree = f"{len(self.sources)} sources agree" if len(self.sources) > 1 else "1 source"
        begins = "the chain cannot go on from" if self.is_dead_end else "somebody disputes"
        return (
            f"{begins} block {self.number} as it is stored here: it has root hash "
            f"{_short(self.own_root)}, which no checked signature covers, and block {self.number + 1} of "
            f"others names {_short(self.named_root)} as previous_block_root_hash ({agree}: {shown})"
        )


def _short(root_hash: bytes) -> str:
    return f"{root_hash.hex()[:_HASH_DIGITS_SHOWN]}…"


class _Claim(NamedTuple):
    """What a source says."""

    name: str
    named_root: bytes
    since_ns: int


class Dispute:
    """What sources say of the last stored block of one node."""

    def __init__(self) -> None:
        self._number: int | None = None
        self._own_root = b""
        self._is_signed: bool | None = None
        self._claims: dict[str, _Claim] = {}

    def is_signed(self, number: int) -> bool | None:
        """Whether a signature covers the root of block `number`; None: `judge` has not been told."""
        return self._is_signed if number == self._number else None

    def claim(self, number: int, own_root: bytes, source: Source, named_root: bytes, now_ns: int) -> None:
        """Block `number` + 1 of a source names another root than that of the last stored block.

        Args:
            number: of the last stored block.
            own_root: its root hash here.
            source: who has sent block `number` + 1.
            named_root: what that names as `previous_block_root_hash`.
            now_ns: monotonic time.
        """
        if (number, own_root) != (self._number, self._own_root):
            self._number, self._own_root, self._is_signed = number, own_root, None
            self._claims.clear()
        before = self._claims.get(source.key)
        if before is not None and before.named_root == named_root:
            return
        self._claims[source.key] = _Claim(source.name, named_root, now_ns)
        if len(self._claims) > SOURCES_KEPT:
            counts = Counter(one.named_root for one in self._claims.values())
            others = [key for key in self._claims if key != source.key]
            del self._claims[
                min(
                    others, key=lambda key: (counts[self._claims[key].named_root], self._claims[key].since_ns)
                )
            ]

    def judge(self, number: int, *, is_signed: bool) -> None:
        """Take note whether a signature that was checked covers the root hash of block `number`."""
        if number == self._number:
            self._is_signed = is_signed

    def state(self, last_number: int | None, now_ns: int) -> Disputed | None:
        """Tell how the dispute stands; None: there is none.

        Args:
            last_number: the last stored block now.
            now_ns: monotonic time.
        """
        if self._number is None or self._number != last_number or self._is_signed is not False:
            return None
        by_root: dict[bytes, list[_Claim]] = {}
        for claim in self._claims.values():
            by_root.setdefault(claim.named_root, []).append(claim)
        if not by_root:
            return None
        named_root, agreeing = max(
            by_root.items(), key=lambda one: (len(one[1]), -min(claim.since_ns for claim in one[1]))
        )
        agreeing.sort(key=lambda claim: claim.since_ns)
        settled_count = sum(now_ns - claim.since_ns >= SETTLE_NS for claim in agreeing)
        if not settled_count:
            return None
        names = tuple(claim.name for claim in agreeing)
        return Disputed(self._number, self._own_root, named_root, names, settled_count >= SOURCES_MIN)
