"""The bare loop for publishing: a grpcio server that does only the unavoidable work.

It receives the same messages, hashes the same items with hashlib (once each, no tree), writes them to a file,
flushes as often as the node did, and acknowledges. It checks nothing. gRPC's poller and malloc are set up as
in the node.

    python -m benchmarks.bare_server FILE WORK BLOCKS_PER_FLUSH BLOCKS

    hash, echo    as above; echo hashes nothing
    race          as hash, for several publishers: the first to offer a block sends it, the others skip it,
                  and all get its acknowledgement
    take          acknowledges, and does nothing else
    items         as take, and has the protobuf library make the items
    root          as items, and hashes a message's items in one native call, and a tree over those of a block
    proof         as root, and checks one signature for each block
    work          as proof, and writes as echo does: all the work of a node that nobody can leave out

The server prints its port, and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any

from sluice.gateway.node.grpc_engine import use_poller

use_poller(os.environ, version("grpcio"))  # as the node does, before it loads gRPC
import grpc  # noqa: E402
import uvloop  # noqa: E402
from grpc import aio  # noqa: E402
from nacl.bindings import crypto_sign_open  # noqa: E402
from nacl.signing import SigningKey  # noqa: E402

from sluice.gateway.api import publish_pb2  # noqa: E402
from sluice.gateway.blocks.items import ItemKind, block_number_of  # noqa: E402
from sluice.gateway.blocks.merkle import StreamingTree, leaf_hashes  # noqa: E402
from sluice.gateway.node.run import NodeLoop  # noqa: E402
from sluice.gateway.workers.malloc import keep_freed_memory  # noqa: E402

SERVICE = "org.hiero.block.api.BlockStreamPublishService"
_Request = publish_pb2.PublishStreamRequest
_Response = publish_pb2.PublishStreamResponse
_STEPS = ("take", "items", "root", "proof", "work")
_ITEMS_TAG = 0x0A  # the first byte of a message with items


class BareServer:
    """A server for one publisher."""

    def __init__(self, file: int, *, hashes: bool, blocks_per_pair: float, block_count: int) -> None:
        self._block_count = block_count
        self._file = file
        self._hashes = hashes
        self._blocks_per_pair = blocks_per_pair

    async def publish(self, _: object, context: aio.ServicerContext[Any, Any]) -> None:
        """Take blocks and acknowledge them, a group at a time."""
        await context.send_initial_metadata(())
        loop = asyncio.get_running_loop()
        waiting: list[int] = []
        parts: list[bytes] = []
        sha384 = hashlib.sha384
        due = self._blocks_per_pair
        block_count = 0
        while True:
            request = await context.read()
            if request is aio.EOF:
                return
            if request.HasField("block_items"):
                items = list(request.block_items.block_items)
                if self._hashes:
                    for item in items:
                        sha384(item).digest()
                parts += items
                continue
            waiting.append(request.end_of_block.block_number)
            block_count += 1
            last = request.end_of_block.block_number + 1 == self._block_count
            if block_count >= due or last:
                due += self._blocks_per_pair
                await loop.run_in_executor(None, self._commit, parts)
                parts = []
                await _acknowledge(context, waiting)
                waiting = []

    def _commit(self, parts: list[bytes]) -> None:
        os.write(self._file, b"".join(parts))
        os.fdatasync(self._file)
        os.pwrite(self._file, bytes(38), 16)
        os.fdatasync(self._file)


class BareSteps(BareServer):
    """A server for one publisher that does some first steps of a node's work; it gets serialized messages."""

    def __init__(self, file: int, work: str, *, blocks_per_pair: float, block_count: int) -> None:
        super().__init__(file, hashes=False, blocks_per_pair=blocks_per_pair, block_count=block_count)
        step = _STEPS.index(work)
        self._makes_items, self._makes_root, self._checks, self._writes = (
            step >= _STEPS.index(name) for name in _STEPS[1:]
        )
        key = SigningKey(bytes(range(32)))
        self._key, self._signed = bytes(key.verify_key), bytes(key.sign(bytes(48)))

    async def publish(self, _: object, context: aio.ServicerContext[Any, Any]) -> None:
        """Take blocks and acknowledge them, a group at a time."""
        await context.send_initial_metadata(())
        loop = asyncio.get_running_loop()
        waiting: list[int] = []
        parts: list[bytes] = []
        tree, subtree_of_kind = StreamingTree(), {int(ItemKind.SIGNED_TRANSACTION): 0}
        due, block_count = self._blocks_per_pair, 0
        while (message := await context.read()) is not aio.EOF:
            if message[0] == _ITEMS_TAG:
                if self._makes_items:
                    items = list(_Request.FromString(message).block_items.block_items)
                    if self._makes_root:
                        kinds = bytes([ItemKind.SIGNED_TRANSACTION]) * len(items)
                        tree.extend(leaf_hashes(items, kinds, subtree_of_kind, 1)[0])
                    if self._writes:
                        parts += items
                continue
            if self._makes_root:
                tree.root()
                tree = StreamingTree()
            if self._checks:
                crypto_sign_open(self._signed, self._key)
            number = _Request.FromString(message).end_of_block.block_number
            waiting.append(number)
            block_count += 1
            if block_count >= due or number + 1 == self._block_count:
                due += self._blocks_per_pair
                if self._writes:
                    await loop.run_in_executor(None, self._commit, parts)
                    parts = []
                await _acknowledge(context, waiting)
                waiting = []


async def _acknowledge(context: aio.ServicerContext[Any, Any], numbers: list[int]) -> None:
    for number in numbers:
        acknowledgement = _Response.BlockAcknowledgement(block_number=number)
        await context.write(_Response(acknowledgement=acknowledgement))


class BareRace(BareServer):
    """A server for publishers that all offer every block, its header in a message of its own."""

    def __init__(self, file: int) -> None:
        super().__init__(file, hashes=True, blocks_per_pair=1, block_count=0)
        self._streams: list[tuple[asyncio.Lock, aio.ServicerContext[Any, Any]]] = []
        self._offered = -1
        self._disk = ThreadPoolExecutor(1)
        self._committing: set[asyncio.Task[None]] = set()

    async def publish(self, _: object, context: aio.ServicerContext[Any, Any]) -> None:
        """Take new blocks, and skip the others."""
        await context.send_initial_metadata(())
        lock = asyncio.Lock()
        self._streams.append((lock, context))
        sha384 = hashlib.sha384
        parts: list[bytes] = []
        while (request := await context.read()) is not aio.EOF:
            if request.HasField("end_of_block"):
                storing = asyncio.ensure_future(self._store(request.end_of_block.block_number, parts))
                self._committing.add(storing)
                storing.add_done_callback(self._committing.discard)
                parts = []
                continue
            items = list(request.block_items.block_items)
            if not parts:
                number = block_number_of(items[0])
                if number <= self._offered:
                    skip = _Response(skip_block=_Response.SkipBlock(block_number=number))
                    async with lock:
                        await context.write(skip)
                    continue
                self._offered = number
            for item in items:
                sha384(item).digest()
            parts += items

    async def _store(self, number: int, parts: list[bytes]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._disk, self._commit, parts)
        acknowledgement = _Response(acknowledgement=_Response.BlockAcknowledgement(block_number=number))

        async def tell(lock: asyncio.Lock, context: aio.ServicerContext[Any, Any]) -> None:
            async with lock:  # gRPC takes one write of a call at a time
                await context.write(acknowledgement)

        await asyncio.gather(*(tell(*stream) for stream in self._streams))


async def serve(path: str, work: str, *, blocks_per_pair: float, block_count: int) -> None:
    """Serve until standard input ends."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    if work == "race":
        bare: BareServer = BareRace(file)
    elif work in _STEPS:
        bare = BareSteps(file, work, blocks_per_pair=blocks_per_pair, block_count=block_count)
    else:
        hashes = work == "hash"
        bare = BareServer(file, hashes=hashes, blocks_per_pair=blocks_per_pair, block_count=block_count)
    server = aio.server()
    handler = grpc.stream_stream_rpc_method_handler(
        bare.publish,
        request_deserializer=None if work in _STEPS else _Request.FromString,
        response_serializer=_Response.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, {"publishBlockStream": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(0)


if __name__ == "__main__":
    keep_freed_memory(os.environ)
    uvloop.run(
        serve(
            sys.argv[1],
            sys.argv[2],
            blocks_per_pair=float(sys.argv[3]),
            block_count=int(sys.argv[4]),
        ),
        loop_factory=NodeLoop,
    )
