"""Answers that are made of a stored block, within limits: for `getBlock` and `getBlockContentsProof`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Final

import grpc
from grpc import aio

from sluice.datastream import DatastreamError
from sluice.datastream.errors import PageNotLocal, PageUnchecked
from sluice.datastream.file.page_sums import without_fetching
from sluice.gateway.blocks.errors import LayoutError
from sluice.gateway.logs import caused_by
from sluice.gateway.transport.callers import Caller, caller_of

__all__ = ["AccessLimits", "AnswerShares", "BlockAnswers", "Trouble"]

log = logging.getLogger(__name__)

ACCESS_BYTES_MAX: Final = 512 * 1024 * 1024
"""Bytes of `getBlock` answers in memory, here and in gRPC; one block is always possible."""
ACCESS_ADDRESS_BYTES_MAX: Final = 128 * 1024 * 1024
"""The same to one network address."""
ACCESS_READS_MAX: Final = 2
"""Blocks read at once; more would only take more memory."""
ACCESS_SECONDS_MAX: Final = 300.0
"""Time for a client to receive a block; then its connection ends."""


class Trouble(Enum):
    """A reason for having no answer."""

    NOT_LOCAL = "the block is in an archive that does not give it"
    UNREADABLE = "the block should be here, and cannot be read"
    BUG = "something else failed"


@dataclass(frozen=True, slots=True)
class AccessLimits:
    """The limits of `getBlock`."""

    bytes_max: int = ACCESS_BYTES_MAX
    address_bytes_max: int = ACCESS_ADDRESS_BYTES_MAX
    seconds_max: float = ACCESS_SECONDS_MAX


class BlockAnswers:
    """The reading of blocks for answers, and the answers on their way."""

    def __init__(self, limits: AccessLimits) -> None:
        self._limits = limits
        # Nodes have their own limits: strangers cannot use them up.
        self.of_strangers, self._of_nodes = _Answers(limits), _Answers(limits)

    async def read(
        self, number: int, make: Callable[[], bytes], context: aio.ServicerContext[Any, Any]
    ) -> bytes | Trouble:
        """Return what `make`, called in a thread, makes of a block. It ends the call of a greedy client."""
        caller = caller_of(context)
        address = caller.address
        answers = self._of_nodes if caller.is_node() else self.of_strangers
        async with answers.reading:
            refusal = answers.shares.refusal(address)
            if refusal is not None:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, refusal)
            answer = await self._make_or_say(partial(_make_local, make), number, address)
            if isinstance(answer, bytes):
                self._count(answers.shares, caller, len(answer), context)
        if answer is None:  # it is in the archive: its readers hold up nobody else
            async with answers.fetching:
                answer = await self._make_or_say(make, number, address)
                if isinstance(answer, bytes):
                    self._count(answers.shares, caller, len(answer), context)
        return answer or Trouble.BUG

    async def _make_or_say(
        self, make: Callable[[], bytes | None], number: int, address: str
    ) -> bytes | Trouble | None:
        """Return the answer, or why there is none; None: the archive has to be read."""
        try:
            return await asyncio.to_thread(make)
        except PageNotLocal as error:
            log.warning("block cannot be read", extra=caused_by(address, block=number, got=str(error)))
            return Trouble.NOT_LOCAL
        except Exception as error:  # at the edge: a damaged block must not look like a missing one
            extra = caused_by(address, block=number, got=str(error))
            log.exception("block cannot be read", extra=extra)
            is_unreadable = isinstance(error, OSError | DatastreamError | LayoutError)
            return Trouble.UNREADABLE if is_unreadable else Trouble.BUG

    def _count(
        self, shares: AnswerShares, caller: Caller, size_bytes: int, context: aio.ServicerContext[Any, Any]
    ) -> None:
        """Cut off a client that takes too long."""
        address, seconds = caller.address, self._limits.seconds_max
        shares.take(address, size_bytes)
        too_long = asyncio.get_running_loop().call_later(seconds, _cut_off_slow, caller, seconds)

        def over(_: aio.ServicerContext[Any, Any]) -> None:
            too_long.cancel()
            shares.give_back(address, size_bytes)

        context.add_done_callback(over)  # type: ignore[arg-type]  # the stub has a callback without arguments


def _make_local(make: Callable[[], bytes]) -> bytes | None:
    """Make an answer; None if the archive has to be read."""
    try:
        with without_fetching():
            return make()
    except PageUnchecked:
        return None


class AnswerShares:
    """The bytes of answers on their way to clients: in all, and to each network address.

    gRPC keeps an answer in memory until the client has taken it. An address, or all together, gets no further
    answer once its share is on the way; one is always possible.
    """

    def __init__(self, bytes_max: int, address_bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._address_bytes_max = address_bytes_max
        self._held: dict[str, int] = {}
        self.bytes_held = 0

    def refusal(self, address: str) -> str | None:
        """Return why an address gets no further answer now (what, got, expected), if so."""
        for who, held_bytes, most_bytes in (
            ("this address", self._held.get(address, 0), self._address_bytes_max),
            ("all clients", self.bytes_held, self._bytes_max),
        ):
            if held_bytes >= most_bytes:
                return (
                    f"blocks on their way to {who}: got {held_bytes} bytes that were not taken yet, "
                    f"expected less than {most_bytes}"
                )
        return None

    def take(self, address: str, size_bytes: int) -> None:
        """Count an answer; `give_back` it when the client has it or has left."""
        self._held[address] = self._held.get(address, 0) + size_bytes
        self.bytes_held += size_bytes

    def give_back(self, address: str, size_bytes: int) -> None:
        """Forget an answer that `take` counted."""
        held_bytes = self._held[address] - size_bytes
        assert held_bytes >= 0, f"{address} has no answer of {size_bytes} bytes to give back"
        self.bytes_held -= size_bytes
        if held_bytes:
            self._held[address] = held_bytes
        else:
            del self._held[address]


class _Answers:
    def __init__(self, limits: AccessLimits) -> None:
        self.shares = AnswerShares(limits.bytes_max, limits.address_bytes_max)
        self.reading = asyncio.Semaphore(ACCESS_READS_MAX)
        self.fetching = asyncio.Semaphore(ACCESS_READS_MAX)


def _cut_off_slow(caller: Caller, seconds: float) -> None:
    extra = caused_by(caller.address, client=caller.peer, seconds=seconds)
    log.warning("client does not take its block, and is cut off", extra=extra)
    caller.cut_off()
