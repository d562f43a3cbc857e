"""The gRPC services that tell what a node holds: `BlockNodeService` and `BlockAccessService`.

`sluice status` sends `serverStatus` with the metadata `sluice-status: N`. Trailing metadata of the same name
carry a JSON object: the node's report and the root hash of block N, or null.

Source: docs/spec/wire.md section 2.3; docs/protocol.md, "Limits".
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from sluice.gateway.api import block_pb2, node_pb2, node_pb2_grpc
from sluice.gateway.blocks.block_numbers import U64_MAX, from_wire, to_wire
from sluice.gateway.errors import InvalidInput
from sluice.gateway.services.block_answers import AccessLimits, BlockAnswers, Trouble
from sluice.gateway.store.block_store import BlockStore

__all__ = [
    "INSTANCE_KEY",
    "STATUS_KEY",
    "BlockAccessService",
    "BlockNodeService",
    "StatusReport",
    "ask_status",
    "begins_with",
    "held_of",
    "read_report",
]

ACCESS_SERVICE_NAME = "org.hiero.block.api.BlockAccessService"
STATUS_KEY = "sluice-status"

INSTANCE_KEY = "instance"
"""The report's key for the process's name, by which a node recognizes itself behind another address."""

ROOT_READS_MAX: Final = 2
"""Root hashes read at once: anybody may ask, and the threads also serve other nodes."""

StatusReport = Callable[[], dict[str, object]]
_Code = node_pb2.BlockResponse.Code
_CODE_OF_TROUBLE: Final = {
    Trouble.NOT_LOCAL: _Code.NOT_AVAILABLE,
    Trouble.UNREADABLE: _Code.NOT_FOUND,
    Trouble.BUG: _Code.ERROR,
}
Detail = Callable[[int | None, int | None], node_pb2.ServerStatusDetailResponse]
"""Makes the answer to `serverStatusDetail` from the first and last block held."""


class BlockNodeService(node_pb2_grpc.BlockNodeServiceServicer):
    """The service of `serverStatus` and `serverStatusDetail`."""

    def __init__(
        self, store: BlockStore, first_number: int | None, report: StatusReport, detail: Detail
    ) -> None:
        self._store = store
        self._first_number = first_number
        self._report = report
        self._detail = detail
        self._reading = asyncio.Semaphore(ROOT_READS_MAX)

    async def serverStatus(
        self, request: node_pb2.ServerStatusRequest, context: aio.ServicerContext[Any, Any]
    ) -> node_pb2.ServerStatusResponse:
        """Return the first and last block held, and the next one expected."""
        for key, value in context.invocation_metadata() or ():
            if key == STATUS_KEY:
                context.set_trailing_metadata(((STATUS_KEY, await self._more(str(value))),))
                break
        first, last = self._store.first_available, self._store.last_number
        if first is None or last is None:
            return node_pb2.ServerStatusResponse(
                first_available_block=U64_MAX,
                last_available_block=U64_MAX,
                next_expected_block=to_wire(self._first_number),
            )
        return node_pb2.ServerStatusResponse(
            first_available_block=first, last_available_block=last, next_expected_block=last + 1
        )

    async def _more(self, asked: str) -> str:
        report = self._report()
        if asked.isascii() and asked.isdecimal() and len(asked) <= len(str(U64_MAX)):
            async with self._reading:
                root_hash = await asyncio.to_thread(self._store.root_hash_at, int(asked))
            report["root_hash"] = None if root_hash is None else root_hash.hex()
        return json.dumps(report)

    async def serverStatusDetail(
        self, request: node_pb2.ServerStatusRequest, context: object
    ) -> node_pb2.ServerStatusDetailResponse:
        """Return versions, ranges of blocks, and the network data."""
        return self._detail(self._store.first_available, self._store.last_number)


def held_of(status: node_pb2.ServerStatusResponse) -> tuple[int | None, int | None]:
    """Return the first and last block of an answer; None twice for an empty node, of old versions, too."""
    last = from_wire(status.last_available_block)
    return (None, None) if last is None else (status.first_available_block, last)


def begins_with(status: node_pb2.ServerStatusResponse) -> int | None:
    """Return the first block that a node holds, or will hold; None: not settled."""
    first, last = held_of(status)
    return from_wire(status.next_expected_block) if last is None else first


def read_report(text: str | bytes) -> dict[str, Any]:
    """Return the report of an answer; empty if it is no JSON object."""
    try:
        report = json.loads(text)
    except (ValueError, RecursionError):  # RecursionError: some thousand brackets
        return {}
    return report if isinstance(report, dict) else {}


async def ask_status(
    stub: node_pb2_grpc.BlockNodeServiceAsyncStub, asked: str, timeout_seconds: float
) -> tuple[node_pb2.ServerStatusResponse, dict[str, Any]]:
    """Ask a node for its `serverStatus` and its report, which is empty for other software.

    Args:
        asked: the number, in digits, of the block whose root hash is wanted; empty: none.

    Raises:
        grpc.aio.AioRpcError: it does not answer.
        InvalidInput: its answer does not parse.
    """
    call: Any = stub.serverStatus(
        node_pb2.ServerStatusRequest(), metadata=((STATUS_KEY, asked),), timeout=timeout_seconds
    )
    status: node_pb2.ServerStatusResponse | None = await call
    if status is None:  # gRPC's result for bytes that do not parse
        raise InvalidInput("its status", "a message that does not parse", "a ServerStatusResponse")
    report: dict[str, Any] = {}
    for key, value in await call.trailing_metadata() or ():
        if key == STATUS_KEY:
            report = read_report(value)
    return status, report


class BlockAccessService:
    """The service of `getBlock`.

    Args:
        ensure: raises if a block is not what was committed; called in a thread, before each read.
    """

    def __init__(
        self,
        store: BlockStore,
        ensure: Callable[[int], None] = lambda number: None,
        limits: AccessLimits | None = None,
    ) -> None:
        self._store = store
        self._ensure = ensure
        self.answers = BlockAnswers(limits or AccessLimits())

    def add_to(self, server: aio.Server) -> None:
        """Register the service, by hand: unreadable requests have answers, and threads serialize."""
        handler: grpc.RpcMethodHandler[Any, Any] = grpc.unary_unary_rpc_method_handler(
            self.get_block, request_deserializer=_parse, response_serializer=None
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(ACCESS_SERVICE_NAME, {"getBlock": handler}),)
        )

    async def get_block(
        self, request: node_pb2.BlockRequest | None, context: aio.ServicerContext[Any, Any]
    ) -> bytes:
        """`request` is None if it does not parse.

        Source: docs/subscribing.md, "From a program".
        """
        first, last = self._store.first_available, self._store.last_number
        kind = None if request is None else request.WhichOneof("block_specifier")
        if request is None or kind is None or (kind == "retrieve_latest" and not request.retrieve_latest):
            return _only(_Code.INVALID_REQUEST)
        if first is None or last is None:
            return _only(_Code.NOT_AVAILABLE)
        latest = kind == "retrieve_latest" or request.block_number == U64_MAX
        number = last if latest else request.block_number
        if not first <= number <= last:
            return _only(_Code.NOT_AVAILABLE)
        answer = await self.answers.read(number, lambda: self._read(number), context)
        return answer if isinstance(answer, bytes) else _only(_CODE_OF_TROUBLE[answer])

    def _read(self, number: int) -> bytes:
        self._ensure(number)
        stored = self._store.read_block(number)
        assert stored is not None
        block = block_pb2.Block(items=stored.items)
        return node_pb2.BlockResponse(status=_Code.SUCCESS, block=block).SerializeToString()


def _only(status: node_pb2.BlockResponse.Code.ValueType) -> bytes:
    return node_pb2.BlockResponse(status=status).SerializeToString()


def _parse(message: bytes) -> node_pb2.BlockRequest | None:
    try:
        return node_pb2.BlockRequest.FromString(message)
    except DecodeError:
        return None
