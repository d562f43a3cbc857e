"""The doorkeeper: who may connect, how long each step may take, how many control frames a client may send.

Pure. Each expected kind keeps some of the M = `connections_max` places for itself:

    kind       who                                             takes places up to
    node       another node of the cluster                     M without the places kept for the kinds below
    listed     its certificate is on the list of the address   M without the places kept for other kinds
    unknown    TLS will tell which of these it is              its own places, once strangers have none left
    stranger   anybody else                                    M without all kept places

Without a place left, a newcomer may replace another (`datastream.server.places`): among strangers, the newest
connection of the address with most gives way to another address; among the unknown, the oldest. So neither a
few addresses nor silent connections keep others out.

A budget refills with time and with data, since a client that reads much sends many WINDOW_UPDATEs. An address
shares the budget of a few connections; when it is empty, its connections are read later.

Source: docs/operations.md, "The front door".
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from sluice.datastream.server.places import Places
from sluice.gateway.transport.frames import ConnectionBreach, ErrorCode

__all__ = ["DoorLimits", "DoorTimes", "Doorkeeper", "Guest", "Visit"]

SECOND_NS: Final = 1_000_000_000
CONTROL_BYTES_PER_SECOND: Final = 64 * 1024
"""Bytes of frames without data in a second. A Helidon client sends 26 for each answer."""
CONTROL_BYTES_SAVED: Final = 4 * CONTROL_BYTES_PER_SECOND
ADDRESS_SHARE: Final = 4
"""An address's budget, in budgets of one connection."""
CONNECTION_COST: Final = 4_096
"""The cost of a new connection, in bytes of the address's budget."""
DATA_PER_CONTROL: Final = 8
"""Bytes of data that allow one byte of other frames. A client answers each frame of 16 KiB, or each small
message, with two WINDOW_UPDATEs of 13 bytes."""
ADDRESSES_KEPT: Final = 10_000
"""The address seen longest ago is forgotten first."""


class Guest(Enum):
    """The kinds of clients (table above)."""

    NODE = "node"
    LISTED = "listed"
    UNKNOWN = "unknown"
    STRANGER = "stranger"


@dataclass(frozen=True, slots=True)
class DoorTimes:
    """Limits of a client's steps."""

    handshake_seconds: float = 20.0
    """Time for TLS and the client's preface."""
    first_call_seconds: float = 60.0
    header_block_seconds: float = 10.0
    """Time from its first frame to its last."""


@dataclass(frozen=True, slots=True)
class DoorLimits:
    """The limits of one door."""

    connections_max: int = 4_096
    connections_per_address_max: int = 1_024
    node_places: int = 0
    """Places kept for other nodes; 0: none can come."""
    listed_places: int = 0
    """Places kept for certificates on the address's list."""
    unknown_places: int = 0
    """Places kept for clients whose kind TLS will tell."""
    times: DoorTimes = DoorTimes()


@dataclass(slots=True, eq=False)
class Visit:
    """One connection."""

    address: str
    began_ns: int
    guest: Guest = Guest.STRANGER
    has_shaken_hands: bool = False
    """TLS and the preface are done."""
    has_called: bool = False
    _budget: _Budget = field(default_factory=lambda: _Budget(CONTROL_BYTES_SAVED))


class Doorkeeper:
    """The places and budgets of one door."""

    def __init__(self, limits: DoorLimits) -> None:
        self._limits = limits
        self._by_address: Counter[str] = Counter()
        self._by_guest: Counter[Guest] = Counter()
        self._strangers: Places[Visit] = Places(limits.connections_max, spares="old")
        self._unknown: Places[Visit] = Places(limits.unknown_places, spares="new")
        self._gives_way: Visit | None = None
        self._budgets: OrderedDict[str, _Budget] = OrderedDict()

    @property
    def count(self) -> int:
        """Connections now."""
        return self._by_guest.total()

    def admit(self, address: str, now_ns: int, *, is_node: bool, may_be_known: bool) -> Visit | str:
        """Count a new connection, or return why it is refused, as a label of metrics.

        Close what `to_close` returns then; call `leave` when the connection has ended.

        Args:
            is_node: its address is another node's.
            may_be_known: TLS may show that it is a node, or listed.
        """
        if not is_node and self._by_address[address] >= self._limits.connections_per_address_max:
            return "connections of an address"
        guest = Guest.NODE if is_node else Guest.STRANGER
        if not self._has_place(guest):
            if is_node:
                return "connections"
            if may_be_known and self._limits.unknown_places:
                guest = Guest.UNKNOWN
                if self._unknown.are_taken:
                    self._gives_way = self._unknown.who_gives_way(address)
            elif not self._makes_way(address):
                return "connections"
        visit = Visit(address, now_ns, guest)
        self._by_address[address] += 1
        self._enter(visit)
        shared = self._budget_of(address, now_ns)
        if shared.left > 0:  # else those who stay would pay for those who come and go
            shared.take(CONNECTION_COST)
        return visit

    def to_close(self) -> Visit | None:
        """Return the connection that gives way to the one last admitted or identified."""
        visit, self._gives_way = self._gives_way, None
        return visit

    def known(self, visit: Visit, guest: Guest) -> str | None:
        """Note whom TLS has identified; return why the client may not stay, if so. Ask `to_close` then."""
        if visit.guest is guest or visit.guest is Guest.NODE:
            return None
        if visit.guest is Guest.UNKNOWN:
            is_stranger = guest is Guest.STRANGER
            if not (self._has_place(guest) or (is_stranger and self._makes_way(visit.address))):
                return "connections"
        elif guest is Guest.STRANGER:
            return None
        self._exit(visit)
        visit.guest = guest
        self._enter(visit)
        return None

    def _makes_way(self, address: str) -> bool:
        self._gives_way = self._strangers.who_gives_way(address)
        return self._gives_way is not None

    def _has_place(self, guest: Guest) -> bool:
        limits, count = self._limits, self._by_guest
        most = limits.connections_max - limits.unknown_places
        nodes, listed, strangers = count[Guest.NODE], count[Guest.LISTED], count[Guest.STRANGER]
        leaves_listed = nodes + strangers < most - limits.listed_places
        leaves_nodes = listed + strangers < most - limits.node_places
        if nodes + listed + strangers >= most:
            return False
        if guest is Guest.NODE:
            return leaves_listed
        if guest is Guest.LISTED:
            return leaves_nodes
        leaves_both = strangers < most - limits.node_places - limits.listed_places
        return leaves_listed and leaves_nodes and leaves_both

    def _enter(self, visit: Visit) -> None:
        self._by_guest[visit.guest] += 1
        if (places := self._places_of(visit)) is not None:
            places.add(visit, visit.address)

    def _exit(self, visit: Visit) -> None:
        self._by_guest[visit.guest] -= 1
        if (places := self._places_of(visit)) is not None:
            places.remove(visit)

    def _places_of(self, visit: Visit) -> Places[Visit] | None:
        return {Guest.STRANGER: self._strangers, Guest.UNKNOWN: self._unknown}.get(visit.guest)

    def leave(self, visit: Visit) -> None:
        """Forget a connection that has ended."""
        self._exit(visit)
        self._by_address[visit.address] -= 1
        if not self._by_address[visit.address]:
            del self._by_address[visit.address]

    def spend(self, visit: Visit, cost: int, data_bytes: int, now_ns: int) -> int:
        """Charge a connection for what it sent; return the ns to wait before reading it again.

        Args:
            cost: bytes of frames without data.
            data_bytes: bytes of data, both ways.

        Raises:
            ConnectionBreach: its budget is used up.
        """
        own, shared = visit._budget, self._budget_of(visit.address, now_ns)
        own.refill(now_ns, CONTROL_BYTES_PER_SECOND, CONTROL_BYTES_SAVED)
        cost -= min(data_bytes // DATA_PER_CONTROL, CONTROL_BYTES_SAVED)
        if cost <= 0:
            return 0
        own.take(cost)
        if own.left < 0:
            raise ConnectionBreach(
                "control frames",
                got=f"more than {CONTROL_BYTES_SAVED} bytes of frames without data at once",
                expected=f"at most {CONTROL_BYTES_PER_SECOND} a second",
                code=ErrorCode.ENHANCE_YOUR_CALM,
            )
        shared.take(cost)
        if shared.left >= 0:
            return 0
        per_second = ADDRESS_SHARE * CONTROL_BYTES_PER_SECOND
        shared.left = max(
            shared.left, -per_second
        )  # so the address's other connections wait a second at most
        return -shared.left * SECOND_NS // per_second

    def overdue(self, visit: Visit, block_began_ns: int | None, now_ns: int) -> ConnectionBreach | None:
        """Return the step for which a connection takes too long, if any."""
        times = self._limits.times
        if not visit.has_shaken_hands:
            since, most, what = visit.began_ns, times.handshake_seconds, "handshake"
        elif block_began_ns is not None:
            since, most, what = block_began_ns, times.header_block_seconds, "header block"
        elif not visit.has_called:
            since, most, what = visit.began_ns, times.first_call_seconds, "no call"
        else:
            return None
        if now_ns - since <= most * SECOND_NS:
            return None
        expected = {"handshake": "TLS and the preface", "no call": "a call", "header block": "the rest of it"}
        return ConnectionBreach(
            what,
            got=f"nothing more for {most:g} s",
            expected=expected[what],
            code=ErrorCode.NO_ERROR if what == "no call" else ErrorCode.ENHANCE_YOUR_CALM,
        )

    def _budget_of(self, address: str, now_ns: int) -> _Budget:
        budget = self._budgets.get(address)
        if budget is None:
            budget = self._budgets[address] = _Budget(ADDRESS_SHARE * CONTROL_BYTES_SAVED, now_ns)
            if len(self._budgets) > ADDRESSES_KEPT:
                self._budgets.popitem(last=False)
        else:
            self._budgets.move_to_end(address)
            rate = ADDRESS_SHARE * CONTROL_BYTES_PER_SECOND
            budget.refill(now_ns, rate, ADDRESS_SHARE * CONTROL_BYTES_SAVED)
        return budget


@dataclass(slots=True)
class _Budget:
    left: int
    at_ns: int = 0

    def refill(self, now_ns: int, bytes_per_second: int, most: int) -> None:
        self.left = min(most, self.left + (now_ns - self.at_ns) * bytes_per_second // SECOND_NS)
        self.at_ns = now_ns

    def take(self, size: int) -> None:
        self.left -= size
