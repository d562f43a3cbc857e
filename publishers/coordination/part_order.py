"""The part order: a part of a chain is offered when everything before it is stored.

A task whose part is not next asks the gateways for their last blocks. It has no stream open meanwhile, so
nothing on a gateway waits for it.

    the first gateway that answers holds the block before        the part is next, at that gateway
    it is behind and has not moved for a while, but another      the part is next, at that other gateway
    holds the block before
    else                                                         wait, as long as last blocks change; or, if
                                                                 no gateway answers, until the deadline

Source: docs/spark.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from sluice.publishers.errors import PartOrderTimeout, SourceUnreachable
from sluice.publishers.sources.block_gateways import HeldRange

__all__ = ["UNREACHABLE", "await_part_order", "gateway_for_part"]

PART_POLL_SECONDS: Final = 0.1
"""Time between two questions to a gateway."""
PART_PATIENCE_SECONDS: Final = 5.0
"""Longest wait for a preferred gateway that stands still, if another has the blocks."""
UNREACHABLE: Final = -2
"""The last block of a gateway that does not answer."""
_EMPTY: Final = -1


def gateway_for_part(lasts: Sequence[int], before: int, *, is_patient: bool) -> int | None:
    """Return the position of the gateway to begin with; None: the part is not next.

    Args:
        lasts: the last block of each gateway in order of preference; -1: none; or UNREACHABLE.
        is_patient: whether the part still waits for a preferred gateway that is behind.
    """
    for position, last in enumerate(lasts):
        if last >= before:
            return position
        if last != UNREACHABLE and is_patient:
            return None
    return None


async def await_part_order(
    gateways: Sequence[str],
    first_block: int,
    ask: Callable[[str], HeldRange],
    timeout_seconds: float | None,
    deadline_seconds: float | None = None,
    *,
    poll_seconds: float = PART_POLL_SECONDS,
    patience_seconds: float = PART_PATIENCE_SECONDS,
) -> tuple[str, ...]:
    """Wait until a part is next.

    Args:
        ask: returns what a gateway holds, or raises SourceUnreachable; it may block, and runs in a thread.
        timeout_seconds: how long gateways may answer without progress; None: for ever.
        deadline_seconds: how long no gateway may answer; None: for ever.

    Returns:
        The gateways: the one to begin with, then the others in their order.

    Raises:
        PartOrderTimeout: after `timeout_seconds` or `deadline_seconds`.
    """
    loop = asyncio.get_running_loop()
    seen: tuple[int, ...] = ()
    changed_at = answered_at = time.monotonic()
    with ThreadPoolExecutor(len(gateways), thread_name_prefix="part-order") as threads:
        while True:
            asked = [loop.run_in_executor(threads, _asked, ask, address) for address in gateways]
            answers = await asyncio.gather(*asked)
            lasts = tuple(_last_of(answer) for answer in answers)
            now = time.monotonic()
            if max(lasts) != UNREACHABLE:
                answered_at = now
            elif deadline_seconds is not None and now - answered_at >= deadline_seconds:
                raise PartOrderTimeout(first_block, None, deadline_seconds, _trouble_in(answers))
            if lasts != seen or max(lasts) == UNREACHABLE:
                seen, changed_at = lasts, now
            still_seconds = now - changed_at
            is_patient = still_seconds < patience_seconds
            position = gateway_for_part(lasts, first_block - 1, is_patient=is_patient)
            if position is not None:
                return (gateways[position], *gateways[:position], *gateways[position + 1 :])
            if timeout_seconds is not None and still_seconds >= timeout_seconds:
                best = max(lasts)
                raise PartOrderTimeout(first_block, None if best < 0 else best, timeout_seconds)
            await asyncio.sleep(poll_seconds)


def _asked(ask: Callable[[str], HeldRange], address: str) -> HeldRange | SourceUnreachable:
    try:
        return ask(address)
    except SourceUnreachable as error:
        return error


def _last_of(answer: HeldRange | SourceUnreachable) -> int:
    if isinstance(answer, SourceUnreachable):
        return UNREACHABLE
    return _EMPTY if answer.last is None else answer.last


def _trouble_in(answers: Sequence[HeldRange | SourceUnreachable]) -> str:
    return [answer.trouble for answer in answers if isinstance(answer, SourceUnreachable)][-1]
