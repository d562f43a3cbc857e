"""The retries of one publisher: when, at which gateway, and when it gives up.

Pure. A newly stored block starts the retries over.

A refusal may be the gateway's fault (a wrong key, another chain). So no refusal is final before every gateway
was tried; each kind has its count:

    refused with       counted                                          the count ends
    BAD_BLOCK_PROOF    for each block                                   never; a block that is stored is gone
    INVALID_REQUEST    streams in a row, as the fault may be anywhere   when a block is stored
    message too long   streams in a row                                 when a block is stored

Source: docs/protocol.md, "Trying again".
"""

from __future__ import annotations

from typing import Final

from sluice.publishers.protocol.machine_tables import Gateway, Pace
from sluice.publishers.protocol.messages import ConnectGateway, EndCode
from sluice.publishers.protocol.tally import Tally

__all__ = ["GatewayChoice", "Refusals"]

SOON_TRIES_MAX: Final = 50
"""Short waits in a row before growing ones: 5 seconds, well over a planned failover."""
LOST_ATTEMPTS_MAX: Final = 2
"""The wait grows to that of so many attempts, 2 s, while nodes are away or stand by: one of them becomes
active when the lease of a dead one has ended."""
_BAD_PROOF_MEANS: Final = (
    ": its proof is not of the gateway's ledger keys, or it does not continue the gateway's chain; "
    "the gateway's log says which"
)


class GatewayChoice:
    """The trouble since a block was last stored."""

    def __init__(self, gateway_count: int) -> None:
        """Start at the first of at least one gateway."""
        assert gateway_count >= 1, "a publisher needs a gateway"
        self._gateway_count = gateway_count
        self._gateway = 0
        self._tries = 0  # failed streams since a block was last stored
        self._soon_count = 0  # short waits among them

    def progress(self) -> None:
        """Note a newly stored block."""
        self._tries = self._soon_count = 0

    def first(self) -> ConnectGateway:
        """Connect at once, to the gateway of the last stream or of `aim`."""
        return ConnectGateway(self._gateway, attempt=0)

    def aim(self, gateway: Gateway) -> None:
        """Choose the next stream's gateway, after one that ended with nothing left to offer."""
        if gateway is Gateway.NEXT:
            self._gateway = (self._gateway + 1) % self._gateway_count

    def after(self, gateway: Gateway, pace: Pace) -> ConnectGateway:
        """Connect after a stream that ended."""
        self.aim(gateway)
        if pace is Pace.AT_ONCE:
            return ConnectGateway(self._gateway, attempt=0)
        if pace is Pace.SOON and self._gateway_count > 1 and self._soon_count < SOON_TRIES_MAX:
            self._soon_count += 1
            if self._tries + 1 < self._gateway_count:
                self._tries += 1
                return ConnectGateway(self._gateway, attempt=0)
            return ConnectGateway(self._gateway, attempt=1, is_soon=True)
        self._tries += 1
        rounds, tried = divmod(self._tries, self._gateway_count)
        if gateway is Gateway.NEXT and tried:
            return ConnectGateway(self._gateway, attempt=0)
        is_bounded = self._gateway_count > 1 and pace is not Pace.BACKOFF
        attempt = min(rounds, LOST_ATTEMPTS_MAX) if is_bounded else rounds
        return ConnectGateway(self._gateway, attempt=max(1, attempt))


class Refusals:
    """The refusals of one publisher, and when they are final."""

    def __init__(
        self, tally: Tally, gateway_count: int, bad_proof_retries_max: int, invalid_request_retries_max: int
    ) -> None:
        """Start with none; the maxima are those of `MachineLimits`."""
        self._tally = tally
        self._gateway_count = gateway_count
        self._bad_proof_retries_max = bad_proof_retries_max
        self._invalid_request_retries_max = invalid_request_retries_max
        self._invalid_streak = self._too_long_streak = 0
        self._firsts: dict[int, int] = {}

    def progress(self) -> None:
        """Note a newly stored block."""
        self._invalid_streak = self._too_long_streak = 0

    def begins_with(self, gateway: int, first: int) -> None:
        """Note the first block of a gateway."""
        self._firsts[gateway] = first

    def stored_nowhere(self, number: int) -> str | None:
        """Return why no gateway stores a block, which is final; None: one may, or has yet to tell."""
        if len(self._firsts) < self._gateway_count or (first := min(self._firsts.values())) <= number:
            return None
        self._tally.stored_from = first
        blocks = f"block {number}" if number == first - 1 else f"blocks {number} to {first - 1}"
        gateways = "the gateway" if self._gateway_count == 1 else "of the gateways the earliest"
        return f"no gateway stores {blocks}: {gateways} begins with block {first}"

    def bad_proof(self, number: int) -> str | None:
        """Count BAD_BLOCK_PROOF for a block; return why it is final."""
        refused_count = self._tally.refuse(number, EndCode.BAD_BLOCK_PROOF.name)
        if refused_count <= self._bad_proof_retries_max or refused_count < self._gateway_count:
            return None
        return f"block {number} was refused {refused_count} times with BAD_BLOCK_PROOF{_BAD_PROOF_MEANS}"

    def too_long(self) -> bool:
        """Count a stream that a too long message ended; return whether that is final.

        It takes at least two: the second stream first learns which blocks before that message are stored.
        """
        self._too_long_streak += 1
        return self._too_long_streak >= max(2, self._gateway_count)

    def invalid_request(self, number: int, *, is_held: bool) -> str | None:
        """Count a stream that INVALID_REQUEST ended; return why it is final.

        `number` is the block that was sent last, which this publisher may no longer hold.
        """
        self._invalid_streak += 1
        if is_held:
            self._tally.refuse(number, EndCode.INVALID_REQUEST.name)
        streak, retries_max = self._invalid_streak, self._invalid_request_retries_max
        if streak <= retries_max or streak < self._gateway_count:
            return None
        return (
            f"the gateway answered INVALID_REQUEST {streak} times in a row, "
            f"last at block {number}; see its log"
        )
