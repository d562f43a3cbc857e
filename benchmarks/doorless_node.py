"""A node without its front door: gRPC listens at the address itself, without limits.

    python -m benchmarks.doorless_node serve …

`benchmarks.front_door` compares the node with it. It has no TLS.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.metadata import version
from typing import cast

from sluice.gateway.node.grpc_engine import use_poller

use_poller(os.environ, version("grpcio"))  # as the node does, before it loads gRPC
from grpc import aio  # noqa: E402

import sluice.gateway.node.servers  # noqa: E402
from sluice.gateway.addresses import Address  # noqa: E402
from sluice.gateway.commands.cli import main  # noqa: E402
from sluice.gateway.transport.grpc_server import GrpcServer, ServerPlan, options_of  # noqa: E402


class _NoDoor:
    """A door that counts nothing."""

    connection_count = 0


class DoorlessServer:
    """The part of `gateway.transport.grpc_server.GrpcServer` that a node uses."""

    def __init__(self, server: aio.Server, address: Address) -> None:
        self.address = address
        self.door = _NoDoor()
        self._server = server

    async def stop(self, grace_seconds: float) -> None:
        """Stop the server."""
        await self._server.stop(grace_seconds)


async def start_doorless(
    plan: ServerPlan, add_services: Callable[[aio.Server], None], *_: object
) -> GrpcServer:
    """Start a server like `gateway.transport.grpc_server.start_server`, but without the door."""
    server = aio.server(options=options_of(plan))
    add_services(server)
    port = server.add_insecure_port(str(plan.address))
    await server.start()
    return cast(GrpcServer, DoorlessServer(server, Address(plan.address.host, port)))


if __name__ == "__main__":
    sluice.gateway.node.servers.start_server = start_doorless  # type: ignore[attr-defined,assignment]
    main()
