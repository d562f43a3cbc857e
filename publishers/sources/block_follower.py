"""A follower of a chain over `subscribeBlockStream`, from several gateways: no gap, no repeat.

A shell: `cluster.catch_up` chooses the next gateway, `services.subscription_client` checks what it sends. The
start becomes a block number before the first subscription, so a connection that breaks before its first block
loses none. An empty gateway's chain may begin with another block than it expected; if it refuses that number,
the follower asks for its first block.
Source: docs/spec/wire.md section 2.2.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from grpc import aio

from sluice.gateway.api import node_pb2, node_pb2_grpc, subscribe_pb2
from sluice.gateway.blocks.block import Block
from sluice.gateway.cluster.catch_up import AttemptOutcome, CatchUp, CatchUpRules, Try
from sluice.gateway.errors import SubscriptionError, TlsError
from sluice.gateway.services.node_service import begins_with, held_of
from sluice.gateway.services.subscription_client import BlockAssembler, status_name, subscribe_to
from sluice.gateway.transport.channels import ClientTls, keepalive, open_channel, refused_headers
from sluice.gateway.transport.failures import why_failed, why_failed_at
from sluice.gateway.transport.message_size import why_too_long
from sluice.publishers import limits
from sluice.publishers.errors import SourceRefused, SourceUnreachable
from sluice.publishers.sources.block_gateways import channel_options

__all__ = ["BlockFollower", "Received", "Start"]

Start = int | Literal["first", "new"]
"""A block number; the gateway's first block; the first block committed from now on."""

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


@dataclass(frozen=True, slots=True)
class Received:
    """A block and the gateway that sent it."""

    block: Block
    address: str


class BlockFollower:
    """A subscription that outlives its connections.

    Args:
        addresses: gateways, `host:port` each, in order of preference.
        end: the last block; None: without end.
        patience_seconds: the longest time without a subscription, which may be quiet; 0: no limit.
        on_trouble: called with one line when the follower leaves a gateway.
        message_bytes_max: the longest message.
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
        self._start = start
        self._end = end
        self._tls = tls
        self._patience_seconds = patience_seconds
        self._on_trouble = on_trouble
        self._channel_options = (*keepalive(10, 10), *channel_options(message_bytes_max))
        self._machine = CatchUp(tuple(addresses), _RULES, live=True)
        self._refusals: dict[str, str] = {}
        self._has_begun = False
        self._is_expected_only = False
        """True if an empty gateway only expects `next_number`."""
        self._has_read_tls = False
        self._is_subscribed = False
        """True if a gateway accepted this subscription."""
        self._heard_at = time.monotonic()

    async def blocks(self) -> AsyncIterator[Received]:
        """Yield the blocks in order, up to the last one.

        Raises:
            SourceRefused: every gateway refuses the start, or an item is longer than `message_bytes_max`.
            SourceUnreachable: no gateway accepted a subscription for `patience_seconds`.
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
                if self._is_subscribed:
                    reason = why_failed(error)
                else:
                    reason = await asyncio.to_thread(why_failed_at, step.address, error, self._tls)
                if why := why_too_long(reason, "--max-message-bytes here"):
                    # Another gateway would send the same item.
                    raise SourceRefused(self._what(), f"{step.address}: {why}") from error
            except _Ended as ended:
                outcome, reason = AttemptOutcome.BROKE_OFF, str(ended)
            except TlsError as error:  # somebody is renewing the files
                if not self._has_read_tls:
                    raise
                reason = str(error)
            if self._is_subscribed:  # until now, with or without blocks
                self._heard_at = time.monotonic()
            machine.ended(step.address, outcome, reason, self.next_number or 0, time.monotonic_ns())
            self._on_trouble(f"{step.address}: {reason}")
            self._check_patience(machine, f"{step.address}: {reason}")

    def _check_patience(self, machine: CatchUp, trouble: str) -> None:
        if not self._has_begun and set(self._refusals) == set(machine.addresses):
            raise SourceRefused(self._what(), "; ".join(sorted(self._refusals.values())))
        if self._patience_seconds and time.monotonic() - self._heard_at >= self._patience_seconds:
            raise SourceUnreachable(self._what(), self._patience_seconds, trouble)

    def _what(self) -> str:
        return f"the {self._start} block" if self.next_number is None else f"block {self.next_number}"

    async def _subscribe(self, address: str) -> AsyncIterator[Received]:
        channel = open_channel(address, self._tls, self._channel_options)
        self._has_read_tls = True
        try:
            if self.next_number is None:
                self.next_number = await self._resolve_start(channel)
            for is_last_try in (False, True):
                assembler = BlockAssembler(self.next_number, self._end)
                async for block in self._blocks_of(channel, assembler):
                    yield Received(block, address)
                is_refused = assembler.status == _Code.INVALID_START_BLOCK_NUMBER
                if is_last_try or not (is_refused and self._is_expected_only):
                    break
                # The chain has begun with another block.
                self.next_number = await self._resolve_start(channel)
            if assembler.complete:
                return
            if assembler.status in _REFUSALS:
                assert assembler.status is not None
                self._refusals[address] = f"{address} says {status_name(assembler.status)}"
            raise _Ended("no status" if assembler.status is None else status_name(assembler.status))
        finally:
            await channel.close()

    async def _blocks_of(self, channel: aio.Channel, assembler: BlockAssembler) -> AsyncIterator[Block]:
        """Yield the blocks of one call; `assembler` has its final status."""
        if assembler.complete:  # the start is above the last block wanted
            return
        call = subscribe_to(channel, assembler.next_number, self._end)
        await call.wait_for_connection()
        self._is_subscribed = True
        async for response in call:
            if response is None:  # unparsable bytes
                raise _nonsense("subscription", "a SubscribeStreamResponse")
            block = assembler.feed(response)
            self._heard_at = time.monotonic()
            if block is not None:
                self._has_begun, self._is_expected_only = True, False
                self.next_number = block.number + 1
                yield block

    async def _resolve_start(self, channel: aio.Channel) -> int | None:
        """Ask for the first block, or the next; None: the chain may begin with any block."""
        call: Any = node_pb2_grpc.BlockNodeServiceStub(channel).serverStatus(
            node_pb2.ServerStatusRequest(), timeout=limits.STATUS_SECONDS
        )
        status: node_pb2.ServerStatusResponse | None = await call
        if status is None:
            raise _nonsense("its status", "a ServerStatusResponse")
        _, last = held_of(status)
        self._is_expected_only = last is None
        if last is None:
            self._start = "first"  # every block will be new
        if last is None or self._start == "first":
            return begins_with(status)
        return last + 1


def _nonsense(what: str, expected: str) -> SubscriptionError:
    return SubscriptionError(what, "a message that does not parse", expected)


class _Ended(Exception):
    """A gateway ended the subscription before the last block."""

    def __str__(self) -> str:
        return f"the subscription ended with {self.args[0]}"
