"""The watch over a cluster: asks each peer once a second what it is, and shows the faults of the cluster.

A shell around `cluster.cluster_view`. Every node with `peers` runs it, in any role.

Its clock passes over the time in which this process was stopped or its machine slept: nobody was silent then.

Source: docs/operations.md, "Watch it".
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from grpc import aio

from sluice.gateway.api import node_pb2_grpc
from sluice.gateway.cluster.cluster_view import ClusterFault, ClusterView, Statement
from sluice.gateway.cluster.limits import CLUSTER_LIMITS, ClusterLimits
from sluice.gateway.cluster.node_status import ask_node
from sluice.gateway.cluster.roles import Phase
from sluice.gateway.cluster.standby_watch import is_ending
from sluice.gateway.errors import GatewayError
from sluice.gateway.limits import KEEPALIVE_ANSWER_SECONDS, KEEPALIVE_PEER_SECONDS, REQUEST_BYTES_MAX
from sluice.gateway.logs import fields
from sluice.gateway.metrics import Metrics
from sluice.gateway.transport.channels import ClientTls, keepalive, open_channel, relayed_if_refused
from sluice.gateway.transport.failures import why_failed

__all__ = ["ClusterWatch"]

log = logging.getLogger(__name__)

ASK_SECONDS_MAX: Final = 3.0
"""The time that a peer has to answer: with `HOLD_SECONDS` and a pause, less than ten seconds."""

_OPTIONS = (
    *keepalive(KEEPALIVE_PEER_SECONDS, KEEPALIVE_ANSWER_SECONDS),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
)


class ClusterWatch:
    """The watch of one node.

    Args:
        addresses: the peers that are other nodes, `host:port` each.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        metrics: Metrics,
        tls: ClientTls | None = None,
        *,
        limits: ClusterLimits = CLUSTER_LIMITS,
    ) -> None:
        self.faults: dict[ClusterFault, str] = {}
        """The faults that hold now, in words."""
        self._addresses = tuple(dict.fromkeys(addresses))
        self._metrics = metrics
        self._tls = tls
        self._pause_seconds = limits.peer_poll_seconds
        self._ticked = 0.0
        """The clock's time at the last tick, and of `time.monotonic` then."""
        self._ticked_at = time.monotonic()
        self._view = ClusterView(self._addresses, self._ticked)
        self._is_blind = False

    def hears(self) -> frozenset[str] | None:
        """Return the instances of the peers that answer; None without peers."""
        return self._view.hears()

    def neighbours(self) -> list[Statement]:
        """See `ClusterView.neighbours`."""
        return self._view.neighbours()

    def active_seconds_ago(self, phase: Phase) -> float | None:
        """Return how long ago an active node was known to this one, which is in that phase; None: never."""
        return self._view.active_seconds_ago(phase.value, self._now())

    def _now(self) -> float:
        return self._ticked + min(time.monotonic() - self._ticked_at, 2 * self._pause_seconds)

    async def watch(self, own: Callable[[], Statement]) -> None:
        """Ask the peers and judge, until cancelled.

        Args:
            own: returns the statement of this node.
        """
        if not self._addresses:
            return
        try:
            async with asyncio.TaskGroup() as tasks:
                for address in self._addresses:
                    tasks.create_task(self._ask(address))
                while True:
                    self._judge(own)
                    await asyncio.sleep(self._pause_seconds)
                    self._ticked, self._ticked_at = self._now(), time.monotonic()
        finally:
            self._clear()

    def _judge(self, own: Callable[[], Statement]) -> None:
        """Show the faults that hold; none while an error of ours keeps the node from judging."""
        try:
            found = self._view.judge(own(), self._now())
        except Exception:  # the next statement may be another one
            if not self._is_blind:
                log.exception("the faults of the cluster cannot be told")
            self._is_blind = True
            self._clear()
            return
        self._is_blind = False
        self._show(found)

    def _clear(self) -> None:
        """Show no fault: old ones would stand for ever."""
        for fault in ClusterFault:
            self._metrics.cluster_fault.labels(fault=fault.value).set(0)
        self.faults = {}

    async def _ask(self, address: str) -> None:
        """Ask one peer for ever: a silent one delays no other."""
        while True:
            try:
                await relayed_if_refused(address, lambda: self._keep_asking(address))
            except aio.AioRpcError as error:
                self._view.failed(address, why_failed(error))
            except GatewayError as error:  # a certificate that cannot be read, an answer that does not parse
                self._view.failed(address, str(error))
            except asyncio.CancelledError:
                if is_ending():
                    raise
                self._view.failed(address, "the connection was closed")
            except Exception as error:  # the next answer may be another one
                log.exception("asking a peer for its status failed", extra=fields(peer=address))
                self._view.failed(address, f"{type(error).__name__}: {error}")
            await asyncio.sleep(self._pause_seconds)

    async def _keep_asking(self, address: str) -> None:
        """Ask over one connection until a request fails."""
        async with open_channel(address, self._tls, _OPTIONS) as channel:
            stub = node_pb2_grpc.BlockNodeServiceStub(channel)
            while True:
                asked_at = self._now()
                answer = await ask_node(stub, ASK_SECONDS_MAX)
                self._view.heard(address, Statement.of(answer), self._now(), asked_at)
                await asyncio.sleep(self._pause_seconds)

    def _show(self, faults: dict[ClusterFault, str]) -> None:
        for fault in ClusterFault:
            self._metrics.cluster_fault.labels(fault=fault.value).set(fault in faults)
            if fault in faults and fault not in self.faults:
                log.error("cluster fault", extra=fields(fault=fault.value, reason=faults[fault]))
            elif fault in self.faults and fault not in faults:
                log.info("cluster fault is over", extra=fields(fault=fault.value))
        self.faults = faults
