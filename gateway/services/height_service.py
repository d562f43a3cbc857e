"""The durable height of this node, told to other nodes: the gRPC service `sluice.standby.NodeLevel`.

A watcher gets the last block at once and after each commit, one message for what it has not read. If it reads
nothing for long, it loses its connection.

With an election (`cluster.election`), a watcher names the epoch of its term, and the node promises it: a
stream of a lower epoch ends, with a message that has the promised one.

Source: docs/operations.md, "Acknowledge what is on several disks".
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from sluice.gateway.api import standby_pb2
from sluice.gateway.blocks.block_numbers import to_wire
from sluice.gateway.errors import RoleRefused
from sluice.gateway.logs import caused_by, fields
from sluice.gateway.store.block_store import BlockStore
from sluice.gateway.transport.callers import Caller, caller_of
from sluice.gateway.transport.known_nodes import KnownNodes

__all__ = ["SERVICE_NAME", "HeightLimits", "HeightService", "Promises"]

log = logging.getLogger(__name__)

STANDBY_STREAMS_MAX: Final = 256
"""A cluster has a few nodes."""
STANDBY_STREAMS_PER_ADDRESS_MAX: Final = 64
"""The same from one address, which many may share behind a proxy."""
STANDBY_WRITE_SECONDS_MAX: Final = 30.0
"""Time for a watcher to take a message of some 80 bytes; then its connection ends."""

SERVICE_NAME = standby_pb2.DESCRIPTOR.services_by_name["NodeLevel"].full_name

_Context = aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class HeightLimits:
    """The limits of the service."""

    streams_max: int = STANDBY_STREAMS_MAX
    streams_per_address_max: int = STANDBY_STREAMS_PER_ADDRESS_MAX
    write_seconds_max: float = STANDBY_WRITE_SECONDS_MAX


class Promises(Protocol):
    """The promises of a node that takes part in an election."""

    @property
    def promised(self) -> int:
        """The highest epoch that was promised."""

    @property
    def why_no_member(self) -> str | None:
        """Why a promise of this node would not count; None: it counts."""

    def on_promise(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each higher promise."""

    async def promise_to(self, epoch: int, candidate: str) -> int:
        """Promise an epoch to a process, on disk; return the promised one, which may be higher.

        Raises:
            RoleRefused: it was promised to another process, or the coordinator has not granted it.
            OSError: the disk refused.
        """


class HeightService:
    """The service of one node.

    Args:
        nodes: the other nodes; None serves everybody.
        promises: None: there is no election.
    """

    def __init__(
        self,
        store: BlockStore,
        instance: str,
        nodes: KnownNodes | None = None,
        limits: HeightLimits = HeightLimits(),
        promises: Promises | None = None,
    ) -> None:
        self._limits = limits
        self._store = store
        self._instance = instance
        self._nodes = nodes
        self._promises = promises
        if promises is not None:
            promises.on_promise(self._wake)
        self._streams: Counter[str] = Counter()
        self._changed = asyncio.Event()
        self._closing = False
        self._unlisten = store.on_advance(self._wake)

    def add_to(self, server: aio.Server) -> None:
        """Register the service, by hand: `watch` takes any bytes as its request."""
        watch: grpc.RpcMethodHandler[Any, Any] = grpc.unary_stream_rpc_method_handler(
            self._watch, response_serializer=standby_pb2.Level.SerializeToString
        )
        level_at: grpc.RpcMethodHandler[Any, Any] = grpc.unary_unary_rpc_method_handler(
            self._level_at,
            standby_pb2.LevelAtRequest.FromString,
            standby_pb2.Level.SerializeToString,
        )
        handlers = {"watch": watch, "levelAt": level_at}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))

    def close(self) -> None:
        """End every stream."""
        self._closing = True
        self._unlisten()
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _watch(self, request: bytes, context: _Context) -> None:
        caller = await self._admit(context)
        asked = _watch_request(request)
        epoch = await self._promise(asked.epoch, asked.candidate, context)
        address = caller.address
        most, most_per_address = self._limits.streams_max, self._limits.streams_per_address_max
        if self._streams.total() >= most or self._streams[address] >= most_per_address:
            reason = f"got another watcher, expected at most {most}, and {most_per_address} of one address"
            log.warning("watcher refused", extra=caused_by(address, watcher=caller.peer, reason=reason))
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
        self._streams[address] += 1
        try:
            while not self._closing:
                changed = self._changed
                await self._tell(caller, context, epoch)
                if self._is_outdated(epoch):
                    break
                await changed.wait()
        finally:
            self._streams -= Counter((address,))  # forgets a count of 0

    async def _admit(self, context: _Context) -> Caller:
        caller, nodes = caller_of(context), self._nodes
        if nodes is None or await nodes.recognize(caller.host, caller.subjects):
            return caller
        got = max(caller.subjects, key=len) if nodes.subjects and caller.subjects else caller.host
        reason = f"{SERVICE_NAME} is for other nodes: got {got}, expected {nodes.rule}"
        log.warning("watcher refused", extra=caused_by(caller.address, watcher=caller.peer, reason=reason))
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)
        raise AssertionError("abort has raised")

    async def _promise(self, epoch: int, candidate: str, context: _Context) -> int:
        """Promise a caller's epoch, and return it; where there is an election, each caller needs one."""
        promises = self._promises
        if promises is None:
            return 0
        reason = promises.why_no_member
        if epoch == 0:
            reason = (
                "epoch: got none, expected one: failover.automatic is on here, and is to be on everywhere"
            )
        if reason is not None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, reason)
        try:
            await promises.promise_to(epoch, candidate)
        except RoleRefused as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except OSError as error:
            reason = f"epoch {epoch} cannot be promised: {error}"
            log.error("a promise cannot be written", extra=fields(epoch=epoch, got=str(error)))
            await context.abort(grpc.StatusCode.UNAVAILABLE, reason)
        return epoch

    def _is_outdated(self, epoch: int) -> bool:
        return self._promises is not None and self._promises.promised > epoch

    async def _tell(self, caller: Caller, context: _Context, epoch: int) -> None:
        """Cut off a watcher that does not read it: nothing else ends its call."""
        seconds = self._limits.write_seconds_max
        too_long = asyncio.get_running_loop().call_later(seconds, _cut_off_deaf, caller, seconds)
        try:
            await context.write(self._last(epoch))
        finally:
            too_long.cancel()

    async def _level_at(self, request: standby_pb2.LevelAtRequest, context: _Context) -> standby_pb2.Level:
        await self._admit(context)
        number = request.block_number
        epoch = await self._promise(request.epoch, request.candidate, context)
        root_hash = await asyncio.to_thread(self._store.root_hash_at, number)
        if root_hash is None or self._is_outdated(epoch):
            return self._last(epoch)
        return standby_pb2.Level(
            block_number=number, root_hash=root_hash, instance=self._instance, epoch=epoch
        )

    def _last(self, epoch: int) -> standby_pb2.Level:
        promises = self._promises
        if promises is not None and self._is_outdated(epoch):
            return standby_pb2.Level(
                block_number=to_wire(None), instance=self._instance, epoch=promises.promised
            )
        chain = self._store.chain
        return standby_pb2.Level(
            block_number=to_wire(chain.last_number),
            root_hash=chain.last_root_hash or b"",
            instance=self._instance,
            epoch=epoch,
        )


def _watch_request(request: bytes) -> standby_pb2.WatchRequest:
    """Read a request; other bytes are an empty one, as earlier versions took any."""
    try:
        return standby_pb2.WatchRequest.FromString(request)
    except DecodeError:
        return standby_pb2.WatchRequest()


def _cut_off_deaf(caller: Caller, seconds: float) -> None:
    extra = caused_by(caller.address, watcher=caller.peer, seconds=seconds)
    log.warning("watcher takes nothing, and is cut off", extra=extra)
    caller.cut_off()
