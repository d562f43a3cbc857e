"""The running counts of one publisher. Pure."""

from __future__ import annotations

from collections import Counter, deque

from sluice.publishers.limits import LATENCY_SAMPLES_MAX, OFFERS_MAX
from sluice.publishers.report import PublishReport, RefusedBlock

__all__ = ["Tally"]


class Tally:
    """The running counts of one publisher; `PublishReport` says what the fields mean."""

    def __init__(self, publisher_id: str) -> None:
        """Start at zero."""
        self.publisher_id = publisher_id
        self.first_block: int | None = None
        self.last_block: int | None = None
        self.blocks = 0
        self.offered = 0
        self.won = 0
        self.skipped = 0
        self.acknowledged = 0
        self.duplicate = 0
        self.resent = 0
        self.behind = 0
        self.too_far_behind = 0
        self.streams = 0
        self.failovers = 0
        self.bytes_sent = 0
        self.failure: str | None = None
        self.trouble: str | None = None
        self.stored_from: int | None = None
        self._gateway: int | None = None
        self._refusals: Counter[int] = Counter()
        self._refusal_codes: dict[int, str] = {}
        self._latency_ns: deque[int] = deque(maxlen=LATENCY_SAMPLES_MAX)
        self._stream_wins: deque[int] = deque(maxlen=OFFERS_MAX)

    def begin_stream(self, gateway: int = 0) -> None:
        """Count a stream to the gateway at a 0-based position; wins of earlier streams stand."""
        self.streams += 1
        self.failovers += self._gateway not in (None, gateway)
        self._gateway = gateway
        self._stream_wins.clear()

    def took(self, number: int) -> None:
        """Count a block taken from the source."""
        if self.first_block is None:
            self.first_block = number
        self.last_block = number
        self.blocks += 1

    def skip(self, *, again: bool) -> None:
        """Count a skip, once for each block; it confirms the wins before."""
        self._stream_wins.clear()
        self.skipped += not again

    def skip_stored(self, number: int) -> None:
        """Count a skip of a stored block: another publisher won it after all.

        A gateway with a duplicate window answers so instead of with DUPLICATE_BLOCK. It has passed all
        headers before, which confirms their wins.
        """
        wins = self._stream_wins
        while wins and wins[0] < number:
            wins.popleft()
        if wins and wins[0] == number:
            if len(self._latency_ns) >= len(wins):
                del self._latency_ns[-len(wins)]
            wins.popleft()
            self.won -= 1
            self.skipped += 1

    def safe(self, *, acknowledged: bool) -> None:
        """Count a block that is known to be stored."""
        if acknowledged:
            self.acknowledged += 1
        else:
            self.duplicate += 1

    def win(self, number: int, latency_ns: int) -> None:
        """Count a block that seems to be won here, acknowledged `latency_ns` after its last byte."""
        self.won += 1
        self._latency_ns.append(latency_ns)
        self._stream_wins.append(number)

    def retract_wins(self, from_number: int) -> None:
        """Retract the unconfirmed wins of this stream from a block on; 0: from all.

        An acknowledgement of another publisher's block can cross with our header of it, and looks like a win.
        When the gateway reaches that header, it ends the stream with DUPLICATE_BLOCK and accepts nothing from
        there on.
        """
        while self._stream_wins and self._stream_wins[-1] >= from_number:
            self._stream_wins.pop()
            self.won -= 1
            if self._latency_ns:
                self._latency_ns.pop()

    def refuse(self, number: int, code: str) -> int:
        """Count a refusal of a block; return its count."""
        self._refusals[number] += 1
        self._refusal_codes[number] = code
        return self._refusals[number]

    def report(self, safe_through: int | None, elapsed_ns: int) -> PublishReport:
        """`elapsed_ns` counts from the publisher's first event."""
        refused = tuple(
            RefusedBlock(number, self._refusal_codes[number], count)
            for number, count in sorted(self._refusals.items())
        )
        return PublishReport(
            publisher_id=self.publisher_id,
            first_block=self.first_block,
            last_block=self.last_block,
            safe_through=safe_through,
            stored_from=self.stored_from,
            blocks=self.blocks,
            offered=self.offered,
            won=self.won,
            skipped=self.skipped,
            acknowledged=self.acknowledged,
            duplicate=self.duplicate,
            resent=self.resent,
            behind=self.behind,
            too_far_behind=self.too_far_behind,
            reconnects=max(0, self.streams - 1),
            failovers=self.failovers,
            bytes_sent=self.bytes_sent,
            refused=refused,
            elapsed_ns=elapsed_ns,
            latency_ns=tuple(self._latency_ns),
            failure=self.failure,
            trouble=self.trouble,
        )
