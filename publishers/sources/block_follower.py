"""Follows a chain over `subscribeBlockStream`, with several gateways in turn: never a gap, never a repeat.

A shell around `cluster.catch_up` (which gateway is tried next) and `services.subscription_client` (what it
may send). Where to begin is made a block number before the first subscription, so that a connection that
breaks before the first block loses none either. What an empty gateway expects may not be what its chain then
begins with: where it refuses that number, it is asked for its first block.
Source: docs/spec/wire.md section 2.2.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from grpc import aio

from gateway.api import node_pb2, node_pb2_grpc, subscribe_pb2, subscribe_pb2_grpc
from gateway.blocks.block import Block
from gateway.blocks.block_numbers import to_wire
from gateway.cluster.catch_up import AttemptOutcome, CatchUp, CatchUpRules, Try
from gateway.errors import SubscriptionError, TlsError
from gateway.services.node_service import begins_with, held_of
from gateway.services.subscription_client import BlockAssembler, status_name
from gateway.transport.channels import ClientTls, keepalive, open_channel, refused_headers
from gateway.transport.message_size import why_too_long
from publishers import limits
from publishers.errors import SourceRefused, SourceUnreachable

__all__ = ["BlockFollower", "Received", "Start"]

log = logging.getLogger(__name__)

Start = int | Literal["first", "new"]
"""A block number; the first block that the gateway has; the first one that is committed from now on."""

_Code = subscribe_pb2.SubscribeStreamResponse.Code
_REFUSALS: Final = frozenset(
    {
        _Code.INVALID_REQUEST,
        _Code.INVALID_START_BLOCK_NUMBER,
        _Code.INVALID_END_BLOCK_NUMBER,
        _Code.NOT_AVAILABLE,
    }
)
_RULES: Final = CatchUpRules(backoff_ns=250_000_000, backoff_max_ns=5_000_000_000)
_CHANNEL_OPTIONS: Final = (
    *keepalive(10, 10),
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(frozen=True, slots=True)
class Received:
    """A block, and who sent it."""

    block: Block
    address: str


class BlockFollower:
    """One subscription that outlives its connections.

    Args:
        addresses: the gateways, `host:port` each, the preferred one first.
        start: where to begin.
        end: the last block wanted; None without end.
        tls: None: connect without.
        patience_seconds: give up when no gateway could be subscribed to for so long; 0: never. How long a
            subscription was quiet before it was lost does not count.
        on_trouble: is told in one line why a gateway was left.
        message_bytes_max: the longest message that is taken; an item may be as long.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        start: Start,
        end: int | None = None,
        *,
        tls: ClientTls | None = None,
        patience_seconds: float = 30.0,
        on_trouble: Callable[[str], None] = lambda line: None,
        message_bytes_max: int = limits.MESSAGE_BYTES_MAX,
    ) -> None:
        self.next_number = start if isinstance(start, int) else None
        """The block that comes next; None before it is known."""
        self._start = start
        self._end = end
        self._tls = tls
        self._patience_seconds = patience_seconds
        self._on_trouble = on_trouble
        self._channel_options = (
            *_CHANNEL_OPTIONS,
            ("grpc.max_receive_message_length", message_bytes_max),
        )
        self._machine = CatchUp(tuple(addresses), _RULES, live=True)
        self._refusals: dict[str, str] = {}
        self._has_begun = False
        self._is_expected_only = False
        """Whether `next_number` is what an empty gateway expected, and has not come."""
        self._has_read_tls = False
        self._is_subscribed = False
        """Whether a gateway has taken the subscription of this attempt."""
        self._heard_at = time.monotonic()
        """When a gateway was there last."""

    async def blocks(self) -> AsyncIterator[Received]:
        """Give the blocks in order, up to the last one wanted.

        Raises:
            SourceRefused: every gateway says that it cannot serve what is asked for, or the next block has an
                item that is longer than `message_bytes_max`.
            SourceUnreachable: no gateway could be subscribed to for `patience_seconds`.
            TlsError: a file of `tls` cannot be read; later than at the first connection it is tried again.
        """
        machine = self._machine
        self._heard_at = time.monotonic()
        while True:
            now_ns = time.monotonic_ns()
            step = machine.step(self.next_number or 0, now_ns)
            if not isinstance(step, Try):
                until_ns = getattr(step, "until_ns", None) or now_ns
                await asyncio.sleep(max(0.01, (until_ns - now_ns) / 1e9))
                continue
            outcome, reason = AttemptOutcome.UNREACHABLE, "gone"
            self._is_subscribed = False
            try:
                async for received in self._subscribe(step.address):
                    yield received
                    self._heard_at = time.monotonic()
                return
            except SubscriptionError as error:
                outcome, reason = AttemptOutcome.LIED, str(error)
            except aio.AioRpcError as error:
                if refused_headers(step.address, error):
                    continue
                reason = f"{error.code().name}: {error.details() or 'no details'}"
                if why := why_too_long(reason, "--max-message-bytes here"):
                    # Another gateway would send the same item.
                    raise SourceRefused(self._what(), f"{step.address}: {why}") from error
            except _Ended as ended:
                outcome, reason = AttemptOutcome.BROKE_OFF, str(ended)
            except TlsError as error:  # when they were good before, somebody is renewing the files
                if not self._has_read_tls:
                    raise
                reason = str(error)
            if self._is_subscribed:  # until now, however long there was no block
                self._heard_at = time.monotonic()
            machine.ended(step.address, outcome, reason, self.next_number or 0, time.monotonic_ns())
            self._on_trouble(f"{step.address}: {reason}")
            self._check_patience(machine, f"{step.address}: {reason}")

    def _check_patience(self, machine: CatchUp, trouble: str) -> None:
        """Give up if everybody has refused from the beginning, or nobody was there for too long."""
        if not self._has_begun and set(self._refusals) == set(machine.addresses):
            raise SourceRefused(self._what(), "; ".join(sorted(self._refusals.values())))
        if self._patience_seconds and time.monotonic() - self._heard_at >= self._patience_seconds:
            raise SourceUnreachable(self._what(), self._patience_seconds, trouble)

    def _what(self) -> str:
        return f"the {self._start} block" if self.next_number is None else f"block {self.next_number}"

    async def _subscribe(self, address: str) -> AsyncIterator[Received]:
        """Give the blocks of one subscription; it returns after the last one wanted."""
        channel = open_channel(address, self._tls, self._channel_options)
        self._has_read_tls = True
        try:
            if self.next_number is None:
                self.next_number = await self._resolve_start(channel)
            assembler = BlockAssembler(self.next_number, self._end)
            async for block in self._blocks_of(channel, assembler):
                yield Received(block, address)
            if assembler.status == _Code.INVALID_START_BLOCK_NUMBER and self._is_expected_only:
                # The chain has begun, and elsewhere.
                self.next_number = await self._resolve_start(channel)
                assembler = BlockAssembler(self.next_number, self._end)
                async for block in self._blocks_of(channel, assembler):
                    yield Received(block, address)
            if assembler.complete:
                return
            if assembler.status in _REFUSALS:
                assert assembler.status is not None
                self._refusals[address] = f"{address} says {status_name(assembler.status)}"
            raise _Ended("no status" if assembler.status is None else status_name(assembler.status))
        finally:
            await channel.close()

    async def _blocks_of(self, channel: aio.Channel, assembler: BlockAssembler) -> AsyncIterator[Block]:
        """Give the blocks of one call, up to its end; what it ended with is known to `assembler`."""
        if assembler.complete:  # the start is above the last block wanted
            return
        call: Any = subscribe_pb2_grpc.BlockStreamSubscribeServiceStub(channel).subscribeBlockStream(
            subscribe_pb2.SubscribeStreamRequest(
                start_block_number=to_wire(assembler.next_number), end_block_number=to_wire(self._end)
            )
        )
        await call.wait_for_connection()
        self._is_subscribed = True
        async for response in call:
            if response is None:  # what gRPC gives for bytes that do not parse
                raise _nonsense("subscription", "a SubscribeStreamResponse")
            block = assembler.feed(response)
            self._heard_at = time.monotonic()
            if block is not None:
                self._has_begun, self._is_expected_only = True, False
                self.next_number = block.number + 1
                yield block

    async def _resolve_start(self, channel: aio.Channel) -> int | None:
        """Ask a gateway where its first block is, or its next; None: with whatever its chain will begin."""
        call: Any = node_pb2_grpc.BlockNodeServiceStub(channel).serverStatus(
            node_pb2.ServerStatusRequest(), timeout=limits.STATUS_SECONDS
        )
        status: node_pb2.ServerStatusResponse | None = await call
        if status is None:
            raise _nonsense("its status", "a ServerStatusResponse")
        _, last = held_of(status)
        self._is_expected_only = last is None
        if last is None:
            self._start = "first"  # all that will come is new
        if last is None or self._start == "first":
            return begins_with(status)
        return last + 1


def _nonsense(what: str, expected: str) -> SubscriptionError:
    return SubscriptionError(what, "a message that does not parse", expected)


class _Ended(Exception):
    """A gateway has ended the subscription before the last block wanted; the text is its status."""

    def __str__(self) -> str:
        return f"the subscription ended with {self.args[0]}"
