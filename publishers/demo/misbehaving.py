"""A publisher that misbehaves to order, for `sluice misbehave` and the demo.

It offers the block that the gateway wants next until it is the winner of one. Then it does what it was told
to, and hears what the gateway answers.

Source: docs/protocol.md, "What the node answers to a block's header"; docs/spec/wire.md section 2.1.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import grpc.aio

from sluice.gateway.api import node_pb2, node_pb2_grpc, publish_pb2_grpc
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.items import ItemKind, kind_of
from sluice.gateway.services.node_service import held_of
from sluice.gateway.transport.channels import ClientTls, open_channel
from sluice.publishers import limits
from sluice.publishers.blocks.block_items import header_item
from sluice.publishers.client.client import (
    PUBLISHER_ID_METADATA,
    REFUSAL_SECONDS_MAX,
    REFUSAL_STATUS_SECONDS_MAX,
    event_of,
    request_of,
)
from sluice.publishers.errors import MisbehaviourFailed
from sluice.publishers.protocol.item_sets import split_items
from sluice.publishers.protocol.messages import (
    Acknowledged,
    EndCode,
    Event,
    NodeBehind,
    ResendAsked,
    SendEndOfBlock,
    SendItems,
    Skipped,
    StreamEnded,
)

__all__ = ["Misbehaviour", "Outcome", "misbehave"]


class Misbehaviour(StrEnum):
    """The things that a publisher does wrong."""

    HANG = "hang"
    """It sends half of a block, and then nothing."""
    DISCONNECT = "disconnect"
    """It sends half of a block, and is gone."""
    BAD_PROOF = "bad-proof"
    """It sends a block whose proof is of another block."""
    REPEAT = "repeat"
    """It offers blocks that are stored: the last one, then the first one."""
    AHEAD = "ahead"
    """It offers a block far above the next one."""


AHEAD_BLOCKS: Final = 1_000
_QUIET_SECONDS: Final = 0.2
"""Most gateways say in this time that another publisher has the block."""
_LOST_SECONDS: Final = 1.0
"""Longest wait for that word before a connection is closed."""
_ENDS: Final = {
    Misbehaviour.HANG: EndCode.TIMEOUT,
    Misbehaviour.BAD_PROOF: EndCode.BAD_BLOCK_PROOF,
    Misbehaviour.REPEAT: EndCode.DUPLICATE_BLOCK,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a misbehaviour."""

    number: int
    """The block that it misbehaved with."""
    answers: tuple[str, ...]
    """The gateway's answers, as docs/protocol.md names them; acknowledgements are left out."""
    is_expected: bool
    """True if the protocol has these answers."""


async def misbehave(
    kind: Misbehaviour,
    gateway: str,
    block_of: Callable[[int], Block | None],
    *,
    publisher_id: str,
    tls: ClientTls | None = None,
    patience_seconds: float,
    say: Callable[[str], None],
) -> Outcome:
    """Publish one block wrongly, and return what the gateway made of it.

    Args:
        gateway: `host:port`.
        block_of: returns a block of the chain; None: the chain does not have it.
        patience_seconds: longest wait for an answer.
        say: told what is sent and heard, a line each.

    Raises:
        AioRpcError: the gateway cannot be reached, or refuses the stream.
        MisbehaviourFailed: there was no block to misbehave with.
    """
    channel = open_channel(gateway, tls)
    metadata = ((PUBLISHER_ID_METADATA, publisher_id),)
    deadline = time.monotonic() + patience_seconds
    known: int | None = None
    try:
        while True:
            first, last = await _held(channel)
            if known is not None:  # a gateway may not serve its status
                last = known if last is None else max(known, last)
            stub = publish_pb2_grpc.BlockStreamPublishServiceStub(channel)
            call: Any = stub.publishBlockStream(metadata=metadata)
            stream = _Stream(kind, call, block_of, patience_seconds, say)
            reading = asyncio.create_task(stream.read())
            try:
                if known is None:
                    await _admitted(call)
                outcome = await stream.run(first, last)
            finally:
                call.cancel()
            await reading
            if stream.error is not None and not (outcome is not None and outcome.is_expected):
                raise stream.error
            if outcome is not None:
                return outcome
            known = stream.last_told
            if time.monotonic() > deadline:
                raise MisbehaviourFailed(f"other publishers had every block for {patience_seconds:g} s")
    finally:
        await channel.close()


async def _admitted(call: Any) -> None:
    """Wait briefly for a refusal: gRPC loses the status of a call that is written to after it."""
    with suppress(TimeoutError, grpc.aio.AioRpcError):
        async with asyncio.timeout(REFUSAL_SECONDS_MAX):
            await call.initial_metadata()
        async with asyncio.timeout(REFUSAL_STATUS_SECONDS_MAX):
            await call.code()


async def _held(channel: grpc.aio.Channel) -> tuple[int | None, int | None]:
    status = node_pb2_grpc.BlockNodeServiceStub(channel).serverStatus
    try:
        return held_of(await status(node_pb2.ServerStatusRequest(), timeout=limits.STATUS_SECONDS))
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:  # its answers to headers tell
            return None, None
        raise


class _CallOver(Exception):
    """The gateway ended the call without a word."""


class _Stream:
    """One stream to a gateway."""

    def __init__(
        self,
        kind: Misbehaviour,
        call: Any,
        block_of: Callable[[int], Block | None],
        patience_seconds: float,
        say: Callable[[str], None],
    ) -> None:
        self._kind = kind
        self._call = call
        self._block_of = block_of
        self._patience_seconds = patience_seconds
        self._say = say
        self.error: grpc.aio.AioRpcError | None = None
        """The status with which the gateway ended the call, if it is no OK."""
        self.last_told: int | None = None
        """The gateway's last block, where it ended the stream with DUPLICATE_BLOCK."""
        self._answers: list[str] = []
        self._unsaid: str | None = None
        """A line about the items sent, said once no other publisher has the block."""
        self._heard: asyncio.Queue[Event | None] = asyncio.Queue()

    async def read(self) -> None:
        """Read the answers to the end of the call: gRPC cancels a call of which a read is cancelled."""
        try:
            async for response in self._call:
                event = event_of(response)
                if event is not None:
                    self._heard.put_nowait(event)
        except grpc.aio.AioRpcError as error:
            self.error = error
        except asyncio.CancelledError:
            pass  # by us, as the call
        self._heard.put_nowait(None)

    async def run(self, first: int | None, last: int | None) -> Outcome | None:
        """Misbehave; return None if the blocks moved on, and another stream must begin."""
        last = self._last_heard(last)
        next_number = 0 if last is None else last + 1
        try:
            if self._kind is Misbehaviour.REPEAT:
                if first is None or last is None:
                    raise MisbehaviourFailed("the gateway has no block yet that could be repeated")
                return await self._repeat(first, last)
            if self._kind is Misbehaviour.AHEAD:
                return await self._offer_ahead(next_number)
            return await self._win(next_number)
        except _CallOver:
            return Outcome(next_number, tuple(self._answers), is_expected=False)

    def _last_heard(self, last: int | None) -> int | None:
        """Return the last block, by the acknowledgements that came since the stream is open."""
        heard: list[Event | None] = []
        while not self._heard.empty():
            heard.append(self._heard.get_nowait())
        for event in heard:
            if isinstance(event, Acknowledged):
                last = event.number if last is None else max(last, event.number)
            else:
                self._heard.put_nowait(event)
        return last

    async def _win(self, number: int) -> Outcome | None:
        """Offer the next block until no other publisher has it, and misbehave with it."""
        while True:
            self._unsaid = await self._send_part(number)
            event = await self._answer_to(number, _QUIET_SECONDS, or_stored=True)
            if event is None:
                self._say_sent()
                is_gone = self._kind is Misbehaviour.DISCONNECT
                seconds = _LOST_SECONDS if is_gone else self._patience_seconds
                event = await self._answer_to(number, seconds, or_stored=True)
            if isinstance(event, StreamEnded) and event.code is EndCode.DUPLICATE_BLOCK:
                self.last_told = event.last
                return None
            if isinstance(event, StreamEnded):
                return self._ended(number, event)
            if isinstance(event, NodeBehind):
                number = 0 if event.last is None else event.last + 1
            elif event is not None:
                number += 1
            elif self._kind is Misbehaviour.DISCONNECT:
                self._say("closed the connection")
                return Outcome(number, tuple(self._answers), is_expected=True)
            else:
                return Outcome(number, tuple(self._answers), is_expected=False)

    async def _send_part(self, number: int) -> str:
        block = self._block_of(number)
        if block is None:
            raise MisbehaviourFailed(f"the gateway wants block {number}, which the source does not have")
        count = len(block.items)
        if self._kind is Misbehaviour.BAD_PROOF:
            await self._send(number, _with_bad_proof(block).items)
            await self._write(SendEndOfBlock(number))
            return f"sent block {number}, whose proof is of another block"
        part = max(1, count // 2)
        await self._send(number, block.items[:part])
        return f"sent {part} of the {count} items of block {number}, and now nothing"

    async def _repeat(self, first: int, last: int) -> Outcome:
        for number in (last, first):
            block = self._block_of(number)
            if block is None:
                raise MisbehaviourFailed(f"the source does not have block {number}, which the gateway has")
            self._say(f"offers block {number}, which is stored")
            await self._send(number, block.items[:1])
            event = await self._answer_to(number)
            if isinstance(event, StreamEnded):
                return self._ended(number, event)
        return Outcome(last, tuple(self._answers), is_expected=isinstance(event, Skipped))

    async def _offer_ahead(self, next_number: int) -> Outcome:
        number = next_number + AHEAD_BLOCKS
        self._say(f"offers block {number}, {AHEAD_BLOCKS} above the next one")
        await self._send(number, (header_item(number, 0),))
        event = await self._answer_to(number)
        return Outcome(number, tuple(self._answers), is_expected=isinstance(event, NodeBehind))

    def _ended(self, number: int, event: StreamEnded) -> Outcome:
        return Outcome(number, tuple(self._answers), is_expected=_ENDS.get(self._kind) is event.code)

    async def _answer_to(
        self, number: int, seconds: float | None = None, *, or_stored: bool = False
    ) -> Event | None:
        """Wait for what a gateway says of this block, or of the stream; None: nothing in time.

        With `or_stored` an acknowledgement of the block is an answer, too: another publisher brought it.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self._patience_seconds if seconds is None else seconds)
        while (left := deadline - loop.time()) > 0:
            event = await self._hear(left)
            if event is None or isinstance(event, StreamEnded | NodeBehind):
                return event
            if isinstance(event, Skipped) and event.number == number:
                return event
            if or_stored and isinstance(event, Acknowledged) and event.number >= number:
                return event
        return None

    async def _hear(self, seconds: float) -> Event | None:
        """Return the next answer; None: there was none in time. Raises _CallOver."""
        try:
            event = await asyncio.wait_for(self._heard.get(), seconds)
        except TimeoutError:
            return None
        if event is None:
            raise _CallOver
        if isinstance(event, StreamEnded):
            self._say_sent()
        if not isinstance(event, Acknowledged):
            self._answers.append(_text_of(event))
            self._say(f"heard {self._answers[-1]}")
        return event

    def _say_sent(self) -> None:
        if self._unsaid is not None:
            self._say(self._unsaid)
            self._unsaid = None

    async def _send(self, number: int, items: tuple[bytes, ...]) -> None:
        for items_of_message in split_items(number, items):
            await self._write(SendItems(number, items_of_message))

    async def _write(self, action: SendItems | SendEndOfBlock) -> None:
        with suppress(grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError):
            await self._call.write(request_of(action))  # the next answer says why it failed


def _with_bad_proof(block: Block) -> Block:
    items = list(block.items)
    proofs = [place for place, item in enumerate(items) if kind_of(item) == ItemKind.BLOCK_PROOF]
    if not proofs:
        raise MisbehaviourFailed(f"block {block.number} has no proof that could be wrong")
    at = proofs[-1]
    items[at] = items[at][:-1] + bytes((items[at][-1] ^ 1,))
    return Block(block.number, tuple(items))


def _text_of(event: Event) -> str:
    match event:
        case Skipped(number=number):
            return f"SkipBlock({number})"
        case ResendAsked(number=number):
            return f"ResendBlock({number})"
        case NodeBehind(last=last):
            return f"BehindPublisher({'none' if last is None else last})"
        case StreamEnded(code=code, last=last):
            return f"EndOfStream({code.name}, {'none' if last is None else last})"
    return type(event).__name__
