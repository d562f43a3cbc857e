"""Asks gateways how far they are, over connections that stay open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import grpc

from gateway.api import node_pb2, node_pb2_grpc
from gateway.services.node_service import held_of
from gateway.transport.channels import ClientTls, open_blocking_channel, refused_headers

__all__ = ["GatewayStatus"]

_STATUS_TIMEOUT_SECONDS: Final = 1.0


class GatewayStatus:
    """The last block of the first gateway that answers.

    Args:
        gateways: `host:port` each, in the order in which they are asked.
        tls: None: connect without.
    """

    def __init__(self, gateways: Sequence[str], tls: ClientTls | None = None) -> None:
        self._gateways = tuple(gateways)
        self._tls = tls
        self._channels = [open_blocking_channel(address, tls) for address in gateways]

    def __enter__(self) -> GatewayStatus:
        """Return self."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the connections."""
        for channel in self._channels:
            channel.close()

    def ask(self) -> tuple[int | None, bool]:
        """Ask all gateways at once, and believe the first of them, in their order, that answers.

        Returns:
            Its last block, None if it has none; and whether one answered.
        """
        calls = [
            node_pb2_grpc.BlockNodeServiceStub(channel).serverStatus.future(
                node_pb2.ServerStatusRequest(), timeout=_STATUS_TIMEOUT_SECONDS
            )
            for channel in self._channels
        ]
        try:
            for at, call in enumerate(calls):
                try:
                    _, last = held_of(call.result())
                except grpc.RpcError as error:
                    if refused_headers(self._gateways[at], error):  # it answers the next time
                        self._channels[at].close()
                        self._channels[at] = open_blocking_channel(self._gateways[at], self._tls)
                    continue
                return last, True
            return None, False
        finally:
            for call in calls:
                call.cancel()
