"""Whose turn it is: a part of a chain is offered when everything before it is stored.

The parts are prepared at once and sent one after the other. A part that is not next asks the gateways how far
they are; it has no stream open meanwhile, so nothing on the gateway waits for it.

    the first gateway that answers holds the block before        its turn, with that gateway first
    it is behind, and has not moved for a while, but another     its turn, with that other one first
    holds the block before
    else                                                         wait, as long as heads move, or as no
                                                                 gateway answers: then nobody can go on,
                                                                 and the deadline of publishers counts
Source: docs/spark.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from publishers import limits
from publishers.errors import SourceUnreachable, TurnTimeout
from publishers.sources.block_gateways import HeldRange

__all__ = ["UNREACHABLE", "await_turn", "gateway_of_turn"]

UNREACHABLE: Final = -2
"""Head of a gateway that does not answer."""
_EMPTY: Final = -1


def gateway_of_turn(heads: Sequence[int], before: int, *, is_patient: bool) -> int | None:
    """Decide whether it is the turn of a part.

    Args:
        heads: the last block of each gateway in order of preference; -1: it has none; UNREACHABLE.
        before: the block before the part's first.
        is_patient: whether a preferred gateway that is behind is still waited for.

    Returns:
        0-based position of the gateway to begin with, None: not yet.
    """
    for position, head in enumerate(heads):
        if head >= before:
            return position
        if head != UNREACHABLE and is_patient:
            return None
    return None


async def await_turn(
    gateways: Sequence[str],
    first_block: int,
    ask: Callable[[str], HeldRange],
    timeout_seconds: float | None,
    deadline_seconds: float | None = None,
) -> tuple[str, ...]:
    """Wait until it is a part's turn.

    Args:
        gateways: in order of preference.
        first_block: of the part.
        ask: says what a gateway holds, or raises SourceUnreachable; it may block, and is called in a thread.
        timeout_seconds: give up after so long in which gateways answer, and no head changes; None: never.
        deadline_seconds: give up after so long in which no gateway answers; None: never.

    Returns:
        The gateways, the one to begin with first, the others in their order.

    Raises:
        TurnTimeout: no head changed for `timeout_seconds`, though a gateway answered; or none answered for
            `deadline_seconds`.
    """
    loop = asyncio.get_running_loop()
    seen: tuple[int, ...] = ()
    changed_at = answered_at = time.monotonic()
    with ThreadPoolExecutor(len(gateways), thread_name_prefix="turn") as threads:
        while True:
            asked = [loop.run_in_executor(threads, _asked, ask, address) for address in gateways]
            answers = await asyncio.gather(*asked)
            heads = tuple(_head(answer) for answer in answers)
            now = time.monotonic()
            if max(heads) != UNREACHABLE:
                answered_at = now
            elif deadline_seconds is not None and now - answered_at >= deadline_seconds:
                raise TurnTimeout(first_block, None, deadline_seconds, _trouble_in(answers))
            if heads != seen or max(heads) == UNREACHABLE:
                seen, changed_at = heads, now
            still_seconds = now - changed_at
            is_patient = still_seconds < limits.TURN_PATIENCE_SECONDS
            position = gateway_of_turn(heads, first_block - 1, is_patient=is_patient)
            if position is not None:
                return (gateways[position], *gateways[:position], *gateways[position + 1 :])
            if timeout_seconds is not None and still_seconds >= timeout_seconds:
                best = max(heads)
                raise TurnTimeout(first_block, None if best < 0 else best, timeout_seconds)
            await asyncio.sleep(limits.TURN_POLL_SECONDS)


def _asked(ask: Callable[[str], HeldRange], address: str) -> HeldRange | SourceUnreachable:
    try:
        return ask(address)
    except SourceUnreachable as error:
        return error


def _head(answer: HeldRange | SourceUnreachable) -> int:
    if isinstance(answer, SourceUnreachable):
        return UNREACHABLE
    return _EMPTY if answer.last is None else answer.last


def _trouble_in(answers: Sequence[HeldRange | SourceUnreachable]) -> str:
    return [answer.trouble for answer in answers if isinstance(answer, SourceUnreachable)][-1]
