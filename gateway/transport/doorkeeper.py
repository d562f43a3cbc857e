"""The doorkeeper: who may connect, how long a connection may take over each step, how much noise it may make.

Pure. The door asks, and ends connections by closing its own sockets.

    a connection                                             ends, or is not taken, because of
    beyond `connections_max`, but for the places kept        "connections"
    beyond `connections_per_address_max`                     "connections of an address"
    without TLS or the client's preface in time              "handshake"
    without a call in time                                   "no call"
    with a header block that is not whole in time            "header block"
    with more bytes of frames without data than its budget   "control frames"

Places are kept for `peers`, and for those whose certificate is on the list of publishers. A budget refills
with time, and with the data that the connection carries: who reads much sends many WINDOW_UPDATEs. The budget
of an address is that of a few connections; one that finds it empty is read later, and nothing is lost.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Final

from gateway.transport.frames import ConnectionBreach, ErrorCode

__all__ = ["DoorLimits", "Doorkeeper", "Visit"]

SECOND_NS: Final = 1_000_000_000
CONTROL_BYTES_PER_SECOND: Final = 64 * 1024
"""Bytes of frames without data that a connection may send in a second; it may save up four times as many. A
client of Helidon sends 26 for each answer, and the answers themselves allow some more."""
CONTROL_BYTES_SAVED: Final = 4 * CONTROL_BYTES_PER_SECOND
ADDRESS_SHARE: Final = 4
"""How many connections' budgets an address has."""
CONNECTION_COST: Final = 4_096
"""What a new connection costs its address, in bytes of that budget."""
DATA_PER_CONTROL: Final = 8
"""Bytes of data that allow one byte of other frames. A client that reads frames of 16 KiB answers each with
two WINDOW_UPDATEs of 13 bytes; one that reads single small messages with as many."""
ADDRESSES_KEPT: Final = 10_000
"""Addresses whose budget is remembered; the one seen longest ago is forgotten first."""


@dataclass(frozen=True, slots=True)
class DoorLimits:
    """What an operator has set."""

    connections_max: int = 4_096
    """Connections at once."""
    connections_per_address_max: int = 1_024
    """The same from one network address."""
    kept_places: int = 64
    """Of `connections_max`, the places for `peers` and for listed publishers."""
    handshake_seconds: float = 20.0
    """Time for TLS and the client's preface."""
    first_call_seconds: float = 60.0
    """Time until the first call."""
    header_block_seconds: float = 10.0
    """Time for one header block, from its first frame to its last."""


@dataclass(slots=True)
class Visit:
    """One connection, as the doorkeeper knows it."""

    address: str
    """The network address of the client, without the port."""
    began_ns: int
    """When it was taken."""
    is_kept: bool = False
    """It has one of the places that are kept."""
    is_guess: bool = False
    """It has that place only until TLS has told who it is."""
    has_shaken_hands: bool = False
    """TLS and the preface are through."""
    has_called: bool = False
    """It has begun a call."""
    _budget: _Budget = field(default_factory=lambda: _Budget(CONTROL_BYTES_SAVED))


class Doorkeeper:
    """Counts the connections of one address that is listened at."""

    def __init__(self, limits: DoorLimits) -> None:
        self._limits = limits
        self._by_address: Counter[str] = Counter()
        self._count = self._kept_count = 0
        self._budgets: OrderedDict[str, _Budget] = OrderedDict()

    @property
    def count(self) -> int:
        """Connections now."""
        return self._count

    def admit(self, address: str, now_ns: int, *, is_kept: bool, may_be_listed: bool) -> Visit | str:
        """Count a new connection, or say why it is not taken: a label of metrics.

        Args:
            address: where it comes from, without the port.
            now_ns: a monotonic clock's time.
            is_kept: it comes from one of `peers`.
            may_be_listed: TLS may show that it is a listed publisher; it takes a kept place until then.

        Returns:
            A visit; `leave` it when the connection has ended.
        """
        limits = self._limits
        if not is_kept and self._by_address[address] >= limits.connections_per_address_max:
            return "connections of an address"
        is_guess = False
        strangers = self._count - self._kept_count
        if not is_kept and strangers >= limits.connections_max - limits.kept_places:
            if not may_be_listed:
                return "connections"
            is_kept = is_guess = True
        if self._count >= limits.connections_max:
            return "connections"
        self._count += 1
        self._kept_count += is_kept
        self._by_address[address] += 1
        shared = self._budget_of(address, now_ns)
        if shared.left > 0:  # else those who stay would pay for all who come and go
            shared.take(CONNECTION_COST)
        return Visit(address, now_ns, is_kept, is_guess)

    def known(self, visit: Visit, *, is_listed: bool) -> str | None:
        """TLS has told who the client is; say why it may not stay, if it may not."""
        if is_listed and not visit.is_kept:
            visit.is_kept = True
            self._kept_count += 1
        elif visit.is_guess and not is_listed:
            if self._strangers_are_full:
                return "connections"
            visit.is_kept = False
            self._kept_count -= 1
        visit.is_guess = False
        return None

    @property
    def _strangers_are_full(self) -> bool:
        return self._count - self._kept_count >= self._limits.connections_max - self._limits.kept_places

    def leave(self, visit: Visit) -> None:
        """The connection has ended."""
        self._count -= 1
        self._kept_count -= visit.is_kept
        self._by_address[visit.address] -= 1
        if not self._by_address[visit.address]:
            del self._by_address[visit.address]

    def spend(self, visit: Visit, cost: int, data_bytes: int, now_ns: int) -> int:
        """Take what a connection has sent off its budget; give the ns to wait before it is read again.

        Args:
            visit: the connection.
            cost: bytes of frames without data.
            data_bytes: bytes of data, both ways.
            now_ns: as for `admit`.

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
        shared.left = max(shared.left, -per_second)  # others of the address wait no longer than a second, too
        return -shared.left * SECOND_NS // per_second

    def overdue(self, visit: Visit, block_began_ns: int | None, now_ns: int) -> ConnectionBreach | None:
        """Say what a connection has taken too long for, if it has."""
        limits = self._limits
        if not visit.has_shaken_hands:
            since, most, what = visit.began_ns, limits.handshake_seconds, "handshake"
        elif block_began_ns is not None:
            since, most, what = block_began_ns, limits.header_block_seconds, "header block"
        elif not visit.has_called:
            since, most, what = visit.began_ns, limits.first_call_seconds, "no call"
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
    """Bytes that may be spent."""

    left: int
    at_ns: int = 0

    def refill(self, now_ns: int, bytes_per_second: int, most: int) -> None:
        self.left = min(most, self.left + (now_ns - self.at_ns) * bytes_per_second // SECOND_NS)
        self.at_ns = now_ns

    def take(self, size: int) -> None:
        self.left -= size
