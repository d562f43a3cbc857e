"""The reputation of publishers: what they have delivered and failed, and how long they back off.

Pure. `gateway.race.arbiter` asks before a publisher wins a block.

Invariants
  - A publisher in backoff pays nothing for blocks that it had begun before.
  - Records are bounded. Only a delivered block makes a record of a name.

Source: gateway/README.md, "The price of a block that fails".
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

__all__ = ["BACKOFF_FAILURES_MAX", "FORGIVING_BLOCKS", "BackedOff", "Reputation", "Reputations"]

BACKOFF_FAILURES_MAX: Final = 7
"""Failures in a row after which the backoff no longer grows: 64 times the time of a block."""
FORGIVING_BLOCKS: Final = 16
"""With 1, failing every other block would cost nothing."""
FORGET_TIMES: Final = 32
"""Block times without a failure after which a shared record is reset."""
DELIVERED_MAX: Final = 1 << 10
"""With it, eleven failures in a row make anybody a newcomer."""
REPUTATIONS_KEPT: Final = 1_000
"""Publishers, and addresses, with a record of some 300 bytes; the least recently used goes."""


@dataclass(slots=True)
class Reputation:
    """The record of a publisher, an address, or all newcomers."""

    failure_count: int = 0
    until_ns: int = 0
    """The end of its last backoff; its last failure, where that cost none."""
    delivered_count: int = 0
    """Blocks with the right root hash and proof; each failure halves it."""


@dataclass(frozen=True, slots=True)
class BackedOff:
    """A backoff of a publisher, an address or all newcomers. It is an action when it begins."""

    name: str
    """The publisher; "" for an address or all newcomers."""
    address: str  # "" for all newcomers
    failure_count: int
    left_ns: int

    def words(self) -> str:
        """Return who backs off, in words."""
        if self.name:
            return f"{self.name} ({self.address})" if self.address else self.name
        newcomers = "publishers that have delivered no block"
        return f"{newcomers}, at {self.address}" if self.address else newcomers


class Reputations:
    """The records of one race.

    Args:
        block_timeout_ns: the time for a block; 0: nobody ever backs off.
    """

    def __init__(
        self,
        block_timeout_ns: int,
        *,
        forgiving_blocks: int = FORGIVING_BLOCKS,
        kept_max: int = REPUTATIONS_KEPT,
    ) -> None:
        self.newcomers = Reputation()
        self._forgiving_blocks = forgiving_blocks
        self._kept_max = kept_max
        self._block_timeout_ns = block_timeout_ns
        self._names: OrderedDict[tuple[str, str], Reputation] = OrderedDict()
        self._addresses: OrderedDict[str, Reputation] = OrderedDict()
        self._last_until_ns = 0

    def is_newcomer(self, name: str, address: str) -> bool:
        """Return whether a publisher has no credit."""
        record = self._names.get((name, address))
        return record is None or not record.delivered_count

    def fears_newcomers(self, now_ns: int) -> bool:
        """Return whether newcomers have failed more than one block recently."""
        record = self.newcomers
        return record.failure_count > 1 and not self._is_forgotten(record, now_ns)

    def delivered(self, name: str, address: str) -> None:
        """Note a block with the right root hash and proof."""
        record = self._of_name(name, address)
        record.delivered_count = min(record.delivered_count + 1, DELIVERED_MAX)
        if record.failure_count and not record.delivered_count % self._forgiving_blocks:
            record.failure_count -= 1

    def failed(self, name: str, address: str, now_ns: int) -> list[BackedOff]:
        """Note a failed block; return the backoffs that begin."""
        records = []
        own = self._names.get((name, address))
        if own is not None:
            own.delivered_count //= 2
            self._names.move_to_end((name, address))
            records.append(((name, address), own))
        if own is None or not own.delivered_count:
            records += [(("", address), self._of_address(address)), (("", ""), self.newcomers)]
        backed_off = []
        for (of_name, of_address), record in records:
            if now_ns < record.until_ns:
                continue
            if record is not own and self._is_forgotten(record, now_ns):
                record.failure_count = 0
            record.failure_count = min(record.failure_count + 1, BACKOFF_FAILURES_MAX)
            for_ns = self._block_timeout_ns << (record.failure_count - 1) if record.failure_count > 1 else 0
            record.until_ns = now_ns + for_ns
            self._last_until_ns = max(self._last_until_ns, record.until_ns)
            if for_ns:
                backed_off.append(BackedOff(of_name, of_address, record.failure_count, for_ns))
        return backed_off

    def backoff(self, name: str, address: str, now_ns: int) -> int:
        """Return the failures that a publisher backs off for; 0: it does not."""
        if now_ns >= self._last_until_ns:
            return 0
        own, behind, earned = self._names.get((name, address)), 0, 0
        if own is not None:
            earned = own.delivered_count.bit_length()
            behind = own.failure_count if now_ns < own.until_ns else 0
        for record in (self._addresses.get(address), self.newcomers):
            if record is not None and now_ns < record.until_ns:
                behind += max(0, record.failure_count - earned)
        return behind

    def backing_off(self, now_ns: int) -> list[BackedOff]:
        """Return the present backoffs, most failures first."""
        if now_ns >= self._last_until_ns:
            return []
        records = [
            *((name, address, record) for (name, address), record in self._names.items()),
            *(("", address, record) for address, record in self._addresses.items()),
            ("", "", self.newcomers),
        ]
        found = [
            BackedOff(name, address, record.failure_count, record.until_ns - now_ns)
            for name, address, record in records
            if now_ns < record.until_ns
        ]
        return sorted(found, key=lambda one: -one.failure_count)

    def _is_forgotten(self, record: Reputation, now_ns: int) -> bool:
        return now_ns >= record.until_ns + FORGET_TIMES * self._block_timeout_ns

    def _of_name(self, name: str, address: str) -> Reputation:
        record = self._names.setdefault((name, address), Reputation())
        self._names.move_to_end((name, address))
        if len(self._names) > self._kept_max:
            self._names.popitem(last=False)
        return record

    def _of_address(self, address: str) -> Reputation:
        record = self._addresses.setdefault(address, Reputation())
        self._addresses.move_to_end(address)
        if len(self._addresses) > self._kept_max:
            self._addresses.popitem(last=False)
        return record
