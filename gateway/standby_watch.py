"""Watches the nodes that acknowledgements wait for: keeps a stream to each, and the gate up to date.

A shell around `gateway.standby_gate`. The nodes are those that the operator has listed (`peers`): nobody can
make itself a standby by connecting here. They are watched in whatever role this node is, so that it knows
where it stands when it becomes active.

    watch   one stream for each node: its level, at once and whenever it has risen; anew when it breaks, or
            where the gate cannot know any more who is at its other end
    ask     those that are ahead whether they have our last block, while a block or publishers wait for it;
            and the ledger, for roots of blocks that are no longer in memory

A node that is silent or hangs holds up nothing but what waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import grpc
from grpc import aio

from datastream.errors import DatastreamError
from gateway.api import standby_pb2, standby_pb2_grpc
from gateway.block_numbers import BLOCK_NUMBER_MAX, U64_MAX
from gateway.channels import ClientTls, keepalive, open_channel
from gateway.conductor import Conductor
from gateway.errors import GatewayError
from gateway.ledger import Ledger
from gateway.limits import (
    KEEPALIVE_ANSWER_SECONDS,
    KEEPALIVE_PEER_SECONDS,
    PEER_STATUS_SECONDS_MAX,
    STANDBY_ASK_SECONDS,
    STANDBY_RETRY_SECONDS,
    STANDBY_RETRY_SECONDS_MAX,
)
from gateway.logs import fields
from gateway.merkle import HASH_SIZE
from gateway.standby_gate import Level, StandbyGate

__all__ = ["StandbyWatch"]

log = logging.getLogger(__name__)

_OPTIONS = (
    *keepalive(KEEPALIVE_PEER_SECONDS, KEEPALIVE_ANSWER_SECONDS),
    ("grpc.http2.max_pings_without_data", 0),  # a quiet network is no reason to stop asking
    # A connection of its own for each attempt: one that hangs is not to be used again.
    ("grpc.use_local_subchannel_pool", 1),
)


class StandbyWatch:
    """Watches nodes, from when it is made until it is closed.

    Args:
        conductor: acknowledges what the gate confirms.
        gate: is told.
        ledger: has the older root hashes.
        addresses: of the nodes, `host:port` each.
        tls: how they are connected to.
    """

    def __init__(
        self,
        conductor: Conductor,
        gate: StandbyGate,
        ledger: Ledger,
        addresses: Sequence[str],
        tls: ClientTls | None = None,
    ) -> None:
        self._conductor = conductor
        self._gate = gate
        self._ledger = ledger
        self._tls = tls
        self._stubs: dict[str, standby_pb2_grpc.NodeLevelAsyncStub] = {}
        self._calls: dict[str, Any] = {}
        """The streams that are open, or being opened."""
        self._wake = asyncio.Event()
        self._unlisten = ledger.on_advance(self._on_stored)
        self._tasks = [asyncio.ensure_future(self._watch(address)) for address in dict.fromkeys(addresses)]
        self._tasks.append(asyncio.ensure_future(self._ask()))
        for task in self._tasks:
            task.add_done_callback(_on_done)
        self._settle()

    async def close(self) -> None:
        """Watch nobody any more."""
        self._unlisten()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- levels --------------------------------------------------------------------------------------------

    async def _watch(self, address: str) -> None:
        """Keep a stream to one node, until cancelled."""
        rest_seconds = STANDBY_RETRY_SECONDS
        while True:
            reason = "the stream has ended"
            self._gate.opening(address)
            try:
                async with open_channel(address, self._tls, _OPTIONS) as channel:
                    stub: standby_pb2_grpc.NodeLevelAsyncStub = standby_pb2_grpc.NodeLevelStub(channel)
                    call: Any = stub.watch(standby_pb2.WatchRequest())
                    self._calls[address] = call
                    try:
                        # Not by iteration: a call and its iterator keep one another, and so the socket.
                        while (message := await call.read()) is not aio.EOF:
                            self._stubs[address] = stub
                            self._gate.heard(address, _level_of(message))
                            self._settle()
                            rest_seconds = STANDBY_RETRY_SECONDS
                    finally:  # before the connection is closed: nobody may ask over it any more
                        self._stubs.pop(address, None)
                        self._calls.pop(address, None)
                        call.cancel()
            except aio.AioRpcError as error:
                reason = f"{error.code().name}: {error.details()}"
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    reason = "it does not serve sluice.standby.NodeLevel, which other nodes wait for"
            except (GatewayError, ValueError) as error:  # a certificate that cannot be read; a wrong message
                reason = str(error)
            except asyncio.CancelledError:
                if _is_ending():
                    raise
                # gRPC says this, too, of a call that `_settle` has cancelled.
            except Exception as error:  # the edge of a shell: the next attempt may go better
                log.exception("watching a standby failed", extra=fields(peer=address))
                reason = f"{type(error).__name__}: {error}"
            self._gate.lost(address, reason)
            self._settle()
            await asyncio.sleep(rest_seconds)
            rest_seconds = min(2 * rest_seconds, STANDBY_RETRY_SECONDS_MAX)

    def _settle(self) -> None:
        """Do what follows from what the gate knows now."""
        self._conductor.acknowledging.release()
        for address in self._gate.stale():
            if (call := self._calls.get(address)) is not None:
                call.cancel()  # its task opens the next one
        if self._gate.unknown() is not None or self._gate.ahead()[1]:
            self._wake.set()

    def _on_stored(self) -> None:
        if self._gate.ahead()[1]:
            self._wake.set()

    # --- questions -----------------------------------------------------------------------------------------

    async def _ask(self) -> None:
        """Find out what the reports leave open, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._ask_once()
            except Exception:  # the edge of a shell: the next report may be another one
                log.exception("asking standbys failed")
                await asyncio.sleep(STANDBY_ASK_SECONDS)
                self._wake.set()  # what was asked is still open, and perhaps nobody reports again

    async def _ask_once(self) -> None:
        while (number := self._gate.unknown()) is not None:
            self._gate.recalled(number, await self._own_root(number))
            self._settle()
        last, addresses = self._gate.ahead()
        if addresses and self._is_waited_for():
            await asyncio.gather(*(self._ask_one(address, last) for address in addresses))
            self._settle()
            await asyncio.sleep(STANDBY_ASK_SECONDS)

    def _is_waited_for(self) -> bool:
        acknowledging = self._conductor.acknowledging
        if acknowledging.awaiting is not None:
            return True
        return self._conductor.arbiter.retired is None and acknowledging.refusal() is not None

    async def _own_root(self, number: int) -> bytes | None:
        try:
            return await asyncio.to_thread(self._ledger.root_hash_at, number)
        except (OSError, GatewayError, DatastreamError) as error:
            log.error("a root hash cannot be read", extra=fields(block=number, got=str(error)))
            return None

    async def _ask_one(self, address: str, number: int) -> None:
        stub = self._stubs.get(address)
        if stub is None:
            return
        try:
            request = standby_pb2.LevelAtRequest(block_number=number)
            answer = await stub.levelAt(request, timeout=PEER_STATUS_SECONDS_MAX)
            self._gate.holds(address, _level_of(answer))
        except (aio.AioRpcError, ValueError) as error:
            log.debug("a standby does not answer", extra=fields(peer=address, reason=str(error)))
        except asyncio.CancelledError:
            # gRPC says this, too, when the stream to that node has ended and its connection was closed.
            if _is_ending():
                raise


def _is_ending() -> bool:
    """Whether the task that runs is cancelled, and not only a call of gRPC's that it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _on_done(task: asyncio.Task[None]) -> None:
    """An error in our own code ends a task, and is to be seen."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("watching standbys stopped on an internal error", exc_info=error)


def _level_of(message: standby_pb2.Level | None) -> Level:
    """Read what a node said.

    Raises:
        ValueError: it cannot be.
    """
    if message is None:  # what gRPC gives for bytes that do not parse
        raise ValueError("level: got a message that does not parse, expected a Level")
    if message.block_number == U64_MAX:
        return Level(message.instance, None, b"")
    if message.block_number > BLOCK_NUMBER_MAX:
        raise ValueError(f"level: got block {message.block_number}, expected at most {BLOCK_NUMBER_MAX}")
    if len(message.root_hash) != HASH_SIZE or not message.instance:
        raise ValueError(
            f"level: got a root hash of {len(message.root_hash)} bytes and instance {message.instance!r}, "
            f"expected {HASH_SIZE} bytes and a name"
        )
    return Level(message.instance, message.block_number, message.root_hash)
