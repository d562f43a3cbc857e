"""The dispute over the last stored block N, for which others' block N + 1 names another root hash.

Pure. Where no signature covers our root hash, it may be wrong; a liar with a false link looks the same. This
rule tells the two apart:

    root of N here   who names one other root for it, and no N + 1 was stored   then
    signed           anybody                                                    a liar; nothing is said
    not signed       1 source, for `SETTLE_NS`                                  a doubt: worth a look
    not signed       `SOURCES_MIN` or more, for `SETTLE_NS`                     a dead end: the node cannot
                                                                                go on

One liar makes no dead end, because a source is counted by what one party cannot have twice:

    a peer                           the address that the operator has set
    a publisher with a certificate   its subject
    any other publisher              its network, whatever its name: the IPv4 address, or the 64 bits of an
                                     IPv6 address that one subscriber gets

Only the last claim of a source counts. Nobody is refused for a dispute. A liar may have deceived a peer
before, so the rule never says who is right.

Source: docs/verification.md, "What each proof proves"; docs/operations.md, "The last block fits nobody".
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from dataclasses import dataclass
from typing import Final, NamedTuple

__all__ = ["SETTLE_NS", "SOURCES_KEPT", "SOURCES_MIN", "Dispute", "Disputed", "Source", "source_of"]

SETTLE_NS: Final = 10_000_000_000
"""Honest publishers bring the next block sooner, at block times up to half of it, so two liars cannot make a
load balancer drop the node again and again."""
SOURCES_MIN: Final = 2
"""One source may be a liar."""
SOURCES_KEPT: Final = 64
"""Beyond it, the oldest claim of the root with fewest claims goes."""
_IPV6_NETWORK_BITS: Final = 64
_NAMES_SHOWN: Final = 5
_HASH_DIGITS_SHOWN: Final = 16


class Source(NamedTuple):
    """A sender of blocks."""

    name: str
    key: str
    """Something that one party cannot have twice."""


def source_of(name: str, address: str, *, is_peer: bool = False, has_certificate: bool = False) -> Source:
    """Return how a publisher or a peer is counted.

    Args:
        has_certificate: TLS has checked a certificate with `name` as its subject.
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
    """Others name another root hash for our last block."""

    number: int
    own_root: bytes
    named_root: bytes
    """The `previous_block_root_hash` of others' block N + 1."""
    sources: tuple[str, ...]
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
    name: str
    named_root: bytes
    since_ns: int


class Dispute:
    """The claims about the last stored block, which count after `settle_ns`."""

    def __init__(self, settle_ns: int = SETTLE_NS) -> None:
        self._settle_ns = settle_ns
        self._number: int | None = None
        self._own_root = b""
        self._is_signed: bool | None = None
        self._claims: dict[str, _Claim] = {}

    def is_signed(self, number: int) -> bool | None:
        """Return whether a signature covers the root of block `number`."""
        return self._is_signed if number == self._number else None

    def claim(self, number: int, own_root: bytes, source: Source, named_root: bytes, now_ns: int) -> None:
        """Note that a source's block `number` + 1 names another root than the last stored block's."""
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
        """Note whether a checked signature covers the root hash of block `number`."""
        if number == self._number:
            self._is_signed = is_signed

    def state(self, last_number: int | None, now_ns: int) -> Disputed | None:
        """Return the dispute over the last stored block."""
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
        settled_count = sum(now_ns - claim.since_ns >= self._settle_ns for claim in agreeing)
        if not settled_count:
            return None
        names = tuple(claim.name for claim in agreeing)
        return Disputed(self._number, self._own_root, named_root, names, settled_count >= SOURCES_MIN)
