"""When one publisher tries again, at which gateway, and when it gives up.

Pure. `GatewayChoice` picks the next gateway and the wait before it, `Refusals` counts what gateways refused.

A publisher stays with a gateway as long as that works. After trouble it goes to the next one at once, as long
as there is one that it has not tried since a block last became safe; then it waits, longer each time. After
gateways that ended the stream in order it first waits shortly, as the load may be moving from one to the
other. The waits themselves are the shell's.

A refusal may be the gateway's fault (a wrong key, another chain), so every gateway of the list is tried once,
and each refusal is retried some times:

    refused with       counted                                          the count ends
    BAD_BLOCK_PROOF    for each block                                   never; a block that is stored is gone
    INVALID_REQUEST    streams in a row, as the fault may be anywhere   when a block becomes safe
    message too long   streams in a row                                 when a block becomes safe

A block below the first one of every gateway of the list is stored by none of them: that is final at once.

Source: docs/protocol.md, "Trying again".
"""

from __future__ import annotations

from typing import Final

from sluice.publishers.protocol.machine_tables import Gateway, Pace
from sluice.publishers.protocol.messages import ConnectGateway, EndCode
from sluice.publishers.protocol.tally import Tally

__all__ = ["GatewayChoice", "Refusals"]

SOON_TRIES_MAX: Final = 50
"""So many of these waits in a row, without a block becoming safe, before the growing ones: 5 seconds, well
over a failover, and so few that gateways which are all standbys are not bothered for long."""
_BAD_PROOF_MEANS: Final = (
    ": its proof is not of the gateway's ledger keys, or it does not continue the gateway's chain; "
    "the gateway's log says which"
)


class GatewayChoice:
    """The list of gateways, and how much trouble there was."""

    def __init__(self, gateway_count: int) -> None:
        """Start at the first gateway of at least one."""
        assert gateway_count >= 1, "a publisher needs a gateway"
        self._gateway_count = gateway_count
        self._gateway = 0
        self._tries = 0  # streams that ended or did not open, with backoff, since a block last became safe
        self._soon_count = 0  # short waits since then

    def progress(self) -> None:
        """Note that a block became safe: the trouble is over."""
        self._tries = self._soon_count = 0

    def first(self) -> ConnectGateway:
        """Connect at once, to the gateway of the last stream or the one that was aimed at."""
        return ConnectGateway(self._gateway, attempt=0)

    def aim(self, gateway: Gateway) -> None:
        """Note where the next stream begins, after one that ended with nothing left to offer."""
        if gateway is Gateway.NEXT:
            self._gateway = (self._gateway + 1) % self._gateway_count

    def after(self, gateway: Gateway, pace: Pace) -> ConnectGateway:
        """Connect after a stream that ended.

        Returns:
            `attempt` 0 means at once, k after the wait before the k-th retry; `is_soon` means a short wait.
        """
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
        if gateway is Gateway.NEXT and self._tries < self._gateway_count:
            return ConnectGateway(self._gateway, attempt=0)
        return ConnectGateway(self._gateway, attempt=max(1, self._tries - self._gateway_count + 1))


class Refusals:
    """The refusals of one publisher, and when they are final."""

    def __init__(
        self, tally: Tally, gateway_count: int, bad_proof_retries_max: int, invalid_request_retries_max: int
    ) -> None:
        """Start with none.

        Args:
            tally: keeps the count for each block.
            gateway_count: how many gateways there are to try.
            bad_proof_retries_max: how often a block is offered again after BAD_BLOCK_PROOF.
            invalid_request_retries_max: how many streams in a row INVALID_REQUEST may end before it is final.
        """
        self._tally = tally
        self._gateway_count = gateway_count
        self._bad_proof_retries_max = bad_proof_retries_max
        self._invalid_request_retries_max = invalid_request_retries_max
        self._invalid_streak = self._too_long_streak = 0
        self._firsts: dict[int, int] = {}

    def progress(self) -> None:
        """Note that a block became safe: requests are valid."""
        self._invalid_streak = self._too_long_streak = 0

    def begins_with(self, gateway: int, first: int) -> None:
        """Note the first block that a gateway, at a 0-based position in the list, stores."""
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
        """Count BAD_BLOCK_PROOF for a block; return why it is final, None if it is not."""
        refused_count = self._tally.refuse(number, EndCode.BAD_BLOCK_PROOF.name)
        if refused_count <= self._bad_proof_retries_max or refused_count < self._gateway_count:
            return None
        return f"block {number} was refused {refused_count} times with BAD_BLOCK_PROOF{_BAD_PROOF_MEANS}"

    def too_long(self) -> bool:
        """Count a stream that ended because a message was too long; return whether that is final.

        It takes two at least: the second stream to a gateway first hears of the blocks before that message.
        """
        self._too_long_streak += 1
        return self._too_long_streak >= max(2, self._gateway_count)

    def invalid_request(self, number: int, *, is_held: bool) -> str | None:
        """Count a stream that INVALID_REQUEST ended; return why it is final, None if it is not.

        Args:
            number: the block that was sent last.
            is_held: whether this publisher holds it, so that the refusal is about it.
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
