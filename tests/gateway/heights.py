"""A node with only a durable height: a real block store and the service that reports it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from grpc import aio

from sluice.gateway.addresses import Address
from sluice.gateway.api import standby_pb2, standby_pb2_grpc
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.root_hash import BlockHasher
from sluice.gateway.limits import REQUEST_BYTES_MAX
from sluice.gateway.services.height_service import HeightLimits, HeightService, Promises
from sluice.gateway.store.block_store import BlockStore, VerifiedBlock
from sluice.gateway.transport.grpc_server import ServerPlan, start_server
from sluice.gateway.transport.known_nodes import KnownNodes
from tests.nodes import make_blocks

BLOCKS = make_blocks(12)


def root_of(block: Block) -> bytes:
    """The root hash of a block."""
    hasher = BlockHasher()
    hasher.add(block.items)
    return hasher.finish().root_hash


ROOTS = [root_of(block) for block in BLOCKS]
OTHER_BLOCKS = make_blocks(12, seed=8)


class Told:
    """A block store with its reporting service and connections to it."""

    def __init__(self, store: BlockStore, service: HeightService, address: str) -> None:
        self.block_store = store
        self.service = service
        self.address = address
        """The service's `host:port`."""
        self.channels: list[aio.Channel] = []

    def stub(self) -> Any:
        options = (("grpc.use_local_subchannel_pool", 1), ("grpc.http2.lookahead_bytes", 1024))
        channel = aio.insecure_channel(self.address, options=options)
        self.channels.append(channel)
        return standby_pb2_grpc.NodeLevelStub(channel)

    def store(self, *numbers: int, chain: Sequence[Block] = BLOCKS) -> None:
        """Commit blocks together."""
        blocks = [VerifiedBlock(number, chain[number].items, root_of(chain[number])) for number in numbers]
        self.block_store.append(blocks)
        for block in blocks:
            self.block_store.advance(block)

    def watch(self, epoch: int = 0) -> Any:
        """Open a stream."""
        return self.stub().watch(standby_pb2.WatchRequest(epoch=epoch))


@asynccontextmanager
async def told(
    data_dir: Path,
    *,
    port: int = 0,
    instance: str = "this-process",
    nodes: KnownNodes | None = None,
    limits: HeightLimits | None = None,
    promises: Promises | None = None,
) -> AsyncIterator[Told]:
    """Yield a running service; `nodes`: its clients, None: everybody."""
    store = BlockStore.open(data_dir)
    service = HeightService(store, instance, nodes, limits or HeightLimits(), promises)
    plan = ServerPlan("subscriber.address", Address("127.0.0.1", port), REQUEST_BYTES_MAX, 0, 100)
    server = await start_server(plan, service.add_to)
    stage = Told(store, service, str(server.address))
    try:
        yield stage
    finally:
        for channel in stage.channels:
            await channel.close()
        service.close()
        await server.stop(0)
        store.close()
