"""The watch over standbys: a stream to each listed node keeps the quorum's durable heights up to date.

It watches the nodes in the setting `peers`: nobody becomes a standby by connecting here.

    watch   one stream for each node brings its durable height, at once and whenever it rises; a new stream
            replaces one that broke, or whose far end the quorum no longer knows. With an election, it names
            the epoch of this node's term
    ask     asks nodes that are ahead whether they have our last block, while a block or publishers wait for
            it

A node that is silent or hangs delays only the blocks that wait for it. So does one that lies: the watch takes
its reports at a bounded rate, and ends a stream in which the process changes or the last block goes back.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc
from grpc import aio

from sluice.datastream.errors import DatastreamError
from sluice.gateway.api import standby_pb2, standby_pb2_grpc
from sluice.gateway.backoff import ENOUGH_FAILURES, backoff
from sluice.gateway.blocks.block_numbers import BLOCK_NUMBER_MAX, U64_MAX
from sluice.gateway.blocks.merkle import HASH_SIZE
from sluice.gateway.cluster.limits import CLUSTER_LIMITS, ClusterLimits
from sluice.gateway.cluster.node_status import INSTANCE_CHARACTERS_MAX
from sluice.gateway.errors import GatewayError, InvalidInput
from sluice.gateway.limits import KEEPALIVE_ANSWER_SECONDS, KEEPALIVE_PEER_SECONDS, PEER_STATUS_SECONDS_MAX
from sluice.gateway.logs import fields
from sluice.gateway.pipeline.conductor import Conductor
from sluice.gateway.pipeline.replication_quorum import DurableHeight, ReplicationQuorum
from sluice.gateway.store.block_store import BlockStore
from sluice.gateway.transport.channels import ClientTls, keepalive, open_channel
from sluice.gateway.transport.failures import why_failed

__all__ = ["StandbyWatch", "is_ending"]

log = logging.getLogger(__name__)

STANDBY_ASK_SECONDS: Final = 0.1
"""Time between two questions to standbys that are ahead."""

_OPTIONS = (
    *keepalive(KEEPALIVE_PEER_SECONDS, KEEPALIVE_ANSWER_SECONDS),
    ("grpc.http2.max_pings_without_data", 0),  # a quiet network is no reason to stop pinging
    # A new connection for each attempt: gRPC would reuse one that hangs.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", 4_096),  # a report has some 80 bytes
)

REPORTS_MAX: Final = 100
"""Further ones wait and become one. A node that stores blocks at full speed sends 80."""

REPORTS_SECONDS: Final = 0.1

STEADY_SECONDS: Final = 10.0
"""After a stream of this length the backoff begins anew."""

_HEIGHT: Final = "durable height"


class StandbyWatch:
    """The watch of one node; it runs until `close`.

    Args:
        epoch: of this node's term; 0: there is no election.
        candidate: the name of this process, with an epoch.
        outdated: called with a higher epoch that a watched node has promised.
    """

    def __init__(
        self,
        conductor: Conductor,
        quorum: ReplicationQuorum,
        store: BlockStore,
        addresses: Sequence[str],
        tls: ClientTls | None = None,
        *,
        limits: ClusterLimits = CLUSTER_LIMITS,
        epoch: int = 0,
        candidate: str = "",
        outdated: Callable[[int], None] = lambda epoch: None,
    ) -> None:
        self._epoch, self._candidate = epoch, candidate
        self._outdated = outdated
        self._conductor = conductor
        self._quorum = quorum
        self._store = store
        self._tls = tls
        self._limits = limits
        self._stubs: dict[str, standby_pb2_grpc.NodeLevelAsyncStub] = {}
        self._calls: dict[str, Any] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self._unlisten = store.on_advance(self._on_stored)
        self._addresses = tuple(dict.fromkeys(addresses))
        self._tasks = [asyncio.ensure_future(self._watch(address)) for address in self._addresses]
        self._tasks.append(asyncio.ensure_future(self._ask()))
        for task in self._tasks:
            task.add_done_callback(_on_done)
        self._settle()

    async def close(self) -> None:
        """Stop watching: what was reported does not count any more."""
        self._unlisten()
        tasks = [*self._tasks, *self._asking.values()]
        for task in tasks:
            task.cancel()
        self._forget()  # at once: a next watch may begin before these tasks have ended
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self) -> None:
        for address in self._addresses:
            self._quorum.opening(address)
            self._quorum.lost(address, "this node does not watch it")

    # --- reports -------------------------------------------------------------------------------------------

    async def _watch(self, address: str) -> None:
        failures_count = 0
        while True:
            reason, began_at = "the stream has ended", time.monotonic()
            self._quorum.opening(address)
            try:
                async with open_channel(address, self._tls, _OPTIONS) as channel:
                    stub: standby_pb2_grpc.NodeLevelAsyncStub = standby_pb2_grpc.NodeLevelStub(channel)
                    call: Any = stub.watch(
                        standby_pb2.WatchRequest(epoch=self._epoch, candidate=self._candidate)
                    )
                    self._calls[address] = call
                    try:
                        await self._hear(address, stub, call)
                    finally:  # before the connection closes: nobody may ask over it any more
                        self._stubs.pop(address, None)
                        self._calls.pop(address, None)
                        call.cancel()
            except aio.AioRpcError as error:
                reason = why_failed(error)
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    reason = "it does not serve sluice.standby.NodeLevel, which other nodes wait for"
            except InvalidInput as error:  # an impossible report
                reason, failures_count = str(error), ENOUGH_FAILURES
            except GatewayError as error:  # a certificate that cannot be read
                reason = str(error)
            except asyncio.CancelledError:
                if is_ending():
                    raise
                # gRPC also raises this for a call that `_settle` cancelled.
                began_at = -math.inf
            except Exception as error:  # the next attempt may go better
                log.exception("watching a standby failed", extra=fields(peer=address))
                reason = f"{type(error).__name__}: {error}"
            self._quorum.lost(address, reason)
            self._settle()
            if time.monotonic() - began_at >= STEADY_SECONDS:
                failures_count = 0
            least, most = self._limits.standby_retry_seconds, self._limits.standby_retry_seconds_max
            await asyncio.sleep(backoff(least, most, failures_count))
            failures_count += 1

    async def _hear(self, address: str, stub: standby_pb2_grpc.NodeLevelAsyncStub, call: Any) -> None:
        """Raises InvalidInput for a report that cannot be true."""
        loop, before, count, since = asyncio.get_running_loop(), None, 0, 0.0
        # Do not iterate: a call and its iterator keep each other alive, and so the socket.
        while (message := await call.read()) is not aio.EOF:
            self._check_epoch(message)
            height = _height_of(message)
            if before is not None:
                _check_follows(before, height)
            self._stubs[address], before = stub, height
            self._quorum.heard(address, height)
            self._settle()
            if loop.time() - since >= REPORTS_SECONDS:
                count, since = 0, loop.time()
            count += 1
            if count >= REPORTS_MAX:
                await asyncio.sleep(REPORTS_SECONDS)

    def _check_epoch(self, message: standby_pb2.Level | None) -> None:
        """Raises InvalidInput for a report to another epoch than this node's."""
        if message is None or message.epoch == self._epoch:
            return
        got, expected = f"epoch {message.epoch}", f"{self._epoch}"
        if message.epoch > self._epoch:
            self._outdated(message.epoch)
        elif message.epoch == 0:
            got = "no epoch: failover.automatic is off there, or its version is older"
        raise InvalidInput(_HEIGHT, got, expected)

    def _settle(self) -> None:
        """Release confirmed blocks, restart stale streams, and wake the questions."""
        self._conductor.acknowledging.release()
        for address in self._quorum.stale():
            if (call := self._calls.get(address)) is not None:
                call.cancel()  # its task opens another
        if self._quorum.unknown() is not None or self._quorum.ahead()[1]:
            self._wake.set()

    def _on_stored(self) -> None:
        # Later: the quorum hears of the block after the store does.
        asyncio.get_running_loop().call_soon(self._wake_to_ask)

    def _wake_to_ask(self) -> None:
        if self._quorum.ahead()[1]:
            self._wake.set()

    # --- questions -----------------------------------------------------------------------------------------

    async def _ask(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._ask_once()
            except Exception:  # the next report may be another one
                log.exception("asking standbys failed")
                await asyncio.sleep(STANDBY_ASK_SECONDS)
                self._wake.set()  # the question is still open, and there may be no further report

    async def _ask_once(self) -> None:
        if (number := self._quorum.unknown()) is not None:
            self._quorum.recalled(number, await self._own_root(number))
            self._settle()
            await asyncio.sleep(STANDBY_ASK_SECONDS if self._quorum.unknown() is not None else 0)
        last, addresses = self._quorum.ahead()
        if addresses and self._is_waited_for():
            for address in addresses:
                if address not in self._asking:  # one silent node delays no other
                    self._asking[address] = asyncio.ensure_future(self._ask_one(address, last))
            await asyncio.sleep(STANDBY_ASK_SECONDS)

    def _is_waited_for(self) -> bool:
        acknowledging = self._conductor.acknowledging
        if acknowledging.awaiting is not None:
            return True
        return self._conductor.arbiter.retired is None and acknowledging.refusal() is not None

    async def _own_root(self, number: int) -> bytes | None:
        try:
            return await asyncio.to_thread(self._store.root_hash_at, number)
        except (OSError, GatewayError, DatastreamError) as error:
            log.error("a root hash cannot be read", extra=fields(block=number, got=str(error)))
            return None

    async def _ask_one(self, address: str, number: int) -> None:
        stub = self._stubs.get(address)
        try:
            if stub is not None:
                request = standby_pb2.LevelAtRequest(
                    block_number=number, epoch=self._epoch, candidate=self._candidate
                )
                answer = await stub.levelAt(request, timeout=PEER_STATUS_SECONDS_MAX)
                self._check_epoch(answer)
                self._quorum.holds(address, _height_of(answer))
        except (aio.AioRpcError, InvalidInput) as error:
            log.debug("a standby does not answer", extra=fields(peer=address, reason=str(error)))
        except asyncio.CancelledError:
            # gRPC also raises this when the stream to that node ended and its connection was closed.
            if is_ending():
                raise
        except Exception:  # the next answer may be another one
            log.exception("asking a standby failed", extra=fields(peer=address))
        finally:
            self._asking.pop(address, None)
        self._settle()


def is_ending() -> bool:
    """Return whether the current task is cancelled, not only its gRPC call."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _on_done(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("watching standbys stopped on an internal error", exc_info=error)


def _height_of(message: standby_pb2.Level | None) -> DurableHeight:
    """Raises InvalidInput for a report that cannot be true."""
    if message is None:  # gRPC returns None for bytes that do not parse
        raise InvalidInput(_HEIGHT, "a message that does not parse", "a Level")
    if message.block_number == U64_MAX:
        return DurableHeight(message.instance, None, b"")
    if message.block_number > BLOCK_NUMBER_MAX:
        raise InvalidInput(_HEIGHT, f"block {message.block_number}", f"at most {BLOCK_NUMBER_MAX}")
    if len(message.root_hash) != HASH_SIZE or not 0 < len(message.instance) <= INSTANCE_CHARACTERS_MAX:
        instance = message.instance[: INSTANCE_CHARACTERS_MAX + 1]
        raise InvalidInput(
            _HEIGHT,
            f"a root hash of {len(message.root_hash)} bytes and instance {instance!r}",
            f"{HASH_SIZE} bytes and a name of at most {INSTANCE_CHARACTERS_MAX} characters",
        )
    return DurableHeight(message.instance, message.block_number, message.root_hash)


def _check_follows(before: DurableHeight, height: DurableHeight) -> None:
    """Raises InvalidInput if it is of another process, or the last block went back."""
    if height.instance != before.instance:
        raise InvalidInput(_HEIGHT, f"process {height.instance!r}", f"{before.instance!r}, as before")
    if before.number is not None and (height.number is None or height.number < before.number):
        got = "no block" if height.number is None else f"block {height.number}"
        raise InvalidInput(_HEIGHT, got, f"block {before.number}, as before, or a later one")
