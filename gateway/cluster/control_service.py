"""The control service `sluice.control.NodeControl`, by which operators change the role of a node.

It listens at its own address (`control.address`, by default on the loopback interface), because its callers
can take a node out of service.

    the role table refuses, or another chain         FAILED_PRECONDITION
    too late                                         DEADLINE_EXCEEDED
    the disk refused or is damaged, or blocks did
    not finish                                       INTERNAL
    an invalid argument                              INVALID_ARGUMENT
    the caller's certificate proves no name in
    `control.allowed_subjects`                       PERMISSION_DENIED
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import grpc
from grpc import aio

from sluice.datastream.errors import DatastreamError
from sluice.gateway.addresses import parse_address
from sluice.gateway.api import control_pb2, control_pb2_grpc
from sluice.gateway.blocks.block_numbers import to_wire
from sluice.gateway.blocks.merkle import HASH_SIZE
from sluice.gateway.cluster.role_keeper import RoleKeeper
from sluice.gateway.cluster.roles import Phase
from sluice.gateway.errors import AddressError, GatewayError, RoleRefused
from sluice.gateway.logs import caused_by, fields
from sluice.gateway.store.block_store import BlockStore
from sluice.gateway.transport.callers import caller_of

__all__ = ["ControlReport", "ControlService", "IsItself"]

log = logging.getLogger(__name__)

CONTROL_SECONDS_MAX: Final = 3_600
"""The longest wait or lease that a control call may ask for, in seconds."""

_Context = aio.ServicerContext[Any, Any]

_PHASE = {phase: control_pb2.Phase.Value(phase.name) for phase in Phase}


class ControlReport(Protocol):
    """The part of the node's report that the control service returns beside role and chain."""

    @property
    def grpc_address(self) -> str:
        """The address for publishers."""

    @property
    def subscriber_address(self) -> str:
        """The address for subscribers; empty: `grpc_address`."""

    @property
    def publisher_count(self) -> int:
        """Connected publishers."""

    @property
    def verification_mode(self) -> str:
        """`full` or `hash`."""

    @property
    def problems(self) -> tuple[str, ...]:
        """The reasons why the node is not ready."""


IsItself = Callable[[str], Awaitable[bool]]


class ControlService(control_pb2_grpc.NodeControlServicer):
    """The servicer that `sluice failover` calls.

    Args:
        is_itself: returns whether an address leads to this node.
        allowed_subjects: names in certificates, of which a caller must prove one.
    """

    def __init__(
        self,
        keeper: RoleKeeper,
        store: BlockStore,
        report: Callable[[], ControlReport],
        is_itself: IsItself,
        instance: str,
        allowed_subjects: frozenset[str] = frozenset(),
    ) -> None:
        self._keeper = keeper
        self._store = store
        self._report = report
        self._is_itself = is_itself
        self._instance = instance
        self._allowed_subjects = allowed_subjects

    async def getState(self, request: control_pb2.StateRequest, context: _Context) -> control_pb2.NodeState:
        """Return the role and the chain."""
        del request
        await self._admit(context)
        return self._state()

    async def drain(self, request: control_pb2.DrainRequest, context: _Context) -> control_pb2.NodeState:
        """Finish complete blocks, send publishers elsewhere, then answer."""
        await self._admit(context)
        lease_seconds = await _seconds(request.hold_seconds, "hold_seconds", context)
        successor = None
        if request.successor:
            successor = await self._other_node(request.successor, "successor", context)
        caller = _Caller()
        draining = self._keeper.drain(lease_seconds, successor, request.drain_id, caller.waits)
        return await self._change("drain", draining, context, caller)

    async def resume(self, request: control_pb2.ResumeRequest, context: _Context) -> control_pb2.NodeState:
        """Make a drained node take publishers again."""
        await self._admit(context)
        return await self._change("resume", self._keeper.resume(request.drain_id), context)

    async def awaitBlock(
        self, request: control_pb2.AwaitBlockRequest, context: _Context
    ) -> control_pb2.NodeState:
        """Wait until this node has a block with a root hash."""
        await self._admit(context)
        timeout_seconds = await _seconds(request.timeout_seconds, "timeout_seconds", context)
        if len(request.root_hash) != HASH_SIZE:
            reason = f"root_hash: got {len(request.root_hash)} bytes, expected {HASH_SIZE}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)
        waiting = self._keeper.await_block(request.block_number, request.root_hash, timeout_seconds)
        what = f"await block {request.block_number}"
        return await self._change(what, waiting, context, is_only_asked=True)

    async def activate(
        self, request: control_pb2.ActivateRequest, context: _Context
    ) -> control_pb2.NodeState:
        """Make a standby active."""
        del request
        await self._admit(context)
        remaining = context.time_remaining()
        activating = self._keeper.activate(math.inf if remaining is None else remaining)
        return await self._change("activate", activating, context)

    async def standBy(self, request: control_pb2.StandByRequest, context: _Context) -> control_pb2.NodeState:
        """Make a drained node a standby of another, or make a standby follow another."""
        await self._admit(context)
        followed = await self._other_node(request.followed, "followed", context)
        return await self._change("stand by", self._keeper.stand_by(followed), context)

    async def _admit(self, context: _Context) -> None:
        caller = caller_of(context)
        if not self._allowed_subjects or not self._allowed_subjects.isdisjoint(caller.subjects):
            return
        got = max(caller.subjects, key=len, default="no client certificate")
        reason = f"caller: got {got}, expected a certificate that proves a name in control.allowed_subjects"
        log.warning("control call refused", extra=caused_by(caller.address, peer=caller.peer, reason=reason))
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)

    async def _other_node(self, text: str, name: str, context: _Context) -> str:
        """Read the address of another node; refuse this node's own."""
        address = await _address(text, name, context)
        if await self._is_itself(address):
            reason = f"{name}: got {address}, which leads to this node itself, expected another node"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)
        return address

    async def _change(
        self,
        what: str,
        change: Awaitable[None],
        context: _Context,
        caller: _Caller | None = None,
        *,
        is_only_asked: bool = False,
    ) -> control_pb2.NodeState:
        """Make a change even if its caller leaves meanwhile, and return the node's new state."""
        asker = caller_of(context)
        extra = fields(change=what, peer=asker.peer, subject=asker.subjects[0] if asker.subjects else None)
        log.info("asked to change", extra=extra)
        changing = asyncio.ensure_future(change)
        changing.add_done_callback(lambda done: _note(what, done))
        try:
            await (changing if is_only_asked else asyncio.shield(changing))
        except RoleRefused as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except TimeoutError:
            last = self._store.last_number
            reason = f"{what}: got block {'none' if last is None else last} in the time given"
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, reason)
        except (GatewayError, DatastreamError, OSError) as error:
            await context.abort(grpc.StatusCode.INTERNAL, f"{what}: {error}")
        except asyncio.CancelledError:
            if caller is not None:
                caller.is_gone = True
            raise
        return self._state()

    def _state(self) -> control_pb2.NodeState:
        report, chain = self._report(), self._store.chain
        return control_pb2.NodeState(
            phase=_PHASE[self._keeper.phase],
            last_block_number=to_wire(chain.last_number),
            last_root_hash=chain.last_root_hash or b"",
            grpc_address=report.grpc_address,
            publisher_count=report.publisher_count,
            followed=self._keeper.followed or "",
            verification_mode=report.verification_mode,
            problems=report.problems,
            instance=self._instance,
            subscriber_address=report.subscriber_address,
        )


class _Caller:
    def __init__(self) -> None:
        self.is_gone = False

    def waits(self) -> bool:
        return not self.is_gone


def _note(what: str, changing: asyncio.Future[None]) -> None:
    """Log a failed change: its caller may be gone."""
    if not changing.cancelled() and (error := changing.exception()) is not None:
        log.warning("not changed", extra=fields(change=what, reason=str(error) or type(error).__name__))


async def _seconds(value: float, name: str, context: _Context) -> float:
    if not 0 < value <= CONTROL_SECONDS_MAX:
        reason = f"{name}: got {value:g}, expected above 0 and at most {CONTROL_SECONDS_MAX}"
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)
    return value


async def _address(text: str, name: str, context: _Context) -> str:
    try:
        return str(parse_address(text, port_min=1))
    except AddressError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{name}: {error}")
        raise  # for the type checker: abort has raised
