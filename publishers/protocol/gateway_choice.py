"""Which gateway to connect to next, and after which wait.

Pure. A publisher has a list of gateways. It stays with one as long as that works; after trouble it goes to
the next at once, as long as there is one that was not tried since a block last became safe; then it waits,
longer with each round trip of trouble. After gateways that ended the stream in order it waits shortly for a
while, as the load may be moving from one to the other. The waits themselves are the shell's (limits.py:
RETRY_…, SOON_…).

Source: docs/protocol.md, "Trying again".
"""

from __future__ import annotations

from publishers import limits
from publishers.protocol.machine_tables import Gateway, Pace
from publishers.protocol.messages import ConnectGateway

__all__ = ["GatewayChoice"]


class GatewayChoice:
    """The list of gateways and the trouble there was."""

    def __init__(self, gateway_count: int) -> None:
        """Start at the first gateway.

        Args:
            gateway_count: at least 1.
        """
        assert gateway_count >= 1, "a publisher needs a gateway"
        self._gateway_count = gateway_count
        self._gateway = 0
        self._soon_count = 0  # short waits, since then
        self._tries = 0  # streams ended or not opened, with backoff, since a block last became safe

    def progress(self) -> None:
        """A block became safe: the trouble is over."""
        self._tries = self._soon_count = 0

    def first(self) -> ConnectGateway:
        """Connect with nothing to wait for: at once, where we were last or were told to go."""
        return ConnectGateway(self._gateway, attempt=0)

    def rest(self, gateway: Gateway) -> None:
        """Note where the next stream begins, after one that ended when there was nothing left to offer."""
        if gateway is Gateway.NEXT:
            self._gateway = (self._gateway + 1) % self._gateway_count

    def after(self, gateway: Gateway, pace: Pace) -> ConnectGateway:
        """Connect after a stream that ended.

        Returns:
            `attempt` 0 means at once, k means after the wait before the k-th retry; `is_soon` a short wait.
        """
        self.rest(gateway)
        if pace is Pace.AT_ONCE:
            return ConnectGateway(self._gateway, attempt=0)
        if pace is Pace.SOON and self._gateway_count > 1 and self._soon_count < limits.SOON_TRIES_MAX:
            self._soon_count += 1
            if self._tries + 1 < self._gateway_count:
                self._tries += 1
                return ConnectGateway(self._gateway, attempt=0)
            return ConnectGateway(self._gateway, attempt=1, is_soon=True)
        self._tries += 1
        if gateway is Gateway.NEXT and self._tries < self._gateway_count:
            return ConnectGateway(self._gateway, attempt=0)
        return ConnectGateway(self._gateway, attempt=max(1, self._tries - self._gateway_count + 1))
