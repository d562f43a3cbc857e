"""Where the items of a message are looked at: at once, in turns of the event loop, or in a thread.

A shell around `gateway.item_set`. To take the items out of a message and to learn the kind of each takes some
0.15 ms for a thousand, and there could be millions.

    items of the message    looked at
    up to 127               at once
    up to 8,192             in the event loop, 1,024 in a turn (`gateway.turns`)
    more                    in a thread, which costs the loop more: it waits for the interpreter

What comes out is the same wherever it is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway.item_set import ItemSet, inspect
from gateway.items import kinds_of
from gateway.limits import INLINE_HASH_ITEMS_MAX, ITEMS_IN_TURNS_MAX, TURN_ITEMS_MIN
from gateway.turns import Turns

__all__ = ["Looking"]


class Looking:
    """Looks at messages of many items.

    Args:
        turns: of the event loop that this is used in.
    """

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    @staticmethod
    def is_quick(items: Sequence[bytes]) -> bool:
        """Tell whether items may be looked at, and what follows be done, without a turn."""
        return len(items) < TURN_ITEMS_MIN

    async def look(self, items: Sequence[bytes]) -> ItemSet:
        """Check the form of an item set; return in a turn, for what is to be done with it.

        Args:
            items: of a message as protobuf gives them, so that each slice makes its items.

        Raises:
            ItemError: as `inspect`.
        """
        if len(items) > ITEMS_IN_TURNS_MAX:
            item_set = await asyncio.to_thread(_look_in_thread, items)
            await self._turns.take()
            return item_set
        taken: list[bytes] = []
        kinds: list[int] = []
        for start in range(0, len(items), INLINE_HASH_ITEMS_MAX):
            await self._turns.take()
            piece = items[start : start + INLINE_HASH_ITEMS_MAX]
            kinds += kinds_of(piece, start)
            taken += piece
        return inspect(taken, kinds)


def _look_in_thread(items: Sequence[bytes]) -> ItemSet:
    taken: list[bytes] = []
    for start in range(0, len(items), INLINE_HASH_ITEMS_MAX):  # in pieces, so that other threads have turns
        taken += items[start : start + INLINE_HASH_ITEMS_MAX]
    return inspect(taken)
