"""The price of failed blocks by the rules: who stands back, and for how long.

It follows gateway/README.md, not the node's records: plain counts that nobody forgets.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

NEWCOMERS = ("", "")
"""All newcomers; `("", address)` is those of an address."""
Who = tuple[str, str]


@dataclass(slots=True)
class Record:
    """Failures in a row, and the end of the backoff for them."""

    failures: int = 0
    until_ns: int = 0


class Prices:
    """The records of a run."""

    def __init__(self, time_ns: int, good_blocks: int) -> None:
        self._time_ns, self._good_blocks = time_ns, good_blocks
        self._records: dict[Who, Record] = defaultdict(Record)
        self._delivered: dict[Who, int] = {}

    def has_delivered(self, who: Who) -> bool:
        return self._delivered.get(who, 0) > 0

    def deliver(self, who: Who) -> None:
        count = self._delivered[who] = min(1024, self._delivered.get(who, 0) + 1)
        if count % self._good_blocks == 0 and self._records[who].failures:
            self._records[who].failures -= 1

    def fail(self, who: Who, now_ns: int) -> list[tuple[str, str, int, int]]:
        """Count a failed block; return who backs off, for how many failures and how long."""
        payers = []
        if who in self._delivered:
            self._delivered[who] //= 2
            payers.append(who)
        if not self.has_delivered(who):
            payers += [("", who[1]), NEWCOMERS]
        told = []
        for payer in payers:
            record = self._records[payer]
            if record.until_ns > now_ns:
                continue
            if payer != who and now_ns >= record.until_ns + 32 * self._time_ns:
                record.failures = 0
            record.failures = min(7, record.failures + 1)
            for_ns = 0 if record.failures == 1 else self._time_ns * 2 ** (record.failures - 1)
            record.until_ns = now_ns + for_ns
            if for_ns:
                told.append((*payer, record.failures, for_ns))
        return told

    def newcomers_failed(self, now_ns: int) -> bool:
        """Return whether newcomers have failed more than one block recently."""
        record = self._records[NEWCOMERS]
        return record.failures > 1 and now_ns < record.until_ns + 32 * self._time_ns

    def distance(self, who: Who, now_ns: int) -> int:
        def failures(payer: Who) -> int:
            record = self._records[payer]
            return record.failures if now_ns < record.until_ns else 0

        doublings = len(f"{self._delivered.get(who, 0):b}") if self.has_delivered(who) else 0
        own = failures(who) if who in self._delivered else 0
        return own + sum(max(0, failures(payer) - doublings) for payer in (("", who[1]), NEWCOMERS))
