"""Where the items of a message are looked at: at once, in a turn of the event loop, or in a thread.

A shell around `gateway.item_set`. To take the items out of a message and to learn the kind of each takes some
0.15 ms for a thousand, and there could be millions.

    items of the message    looked at
    up to 127               at once
    up to 1,024             in the event loop, in a turn (`gateway.turns`)
    more                    in a thread; then the event loop goes on with them in a turn

What comes out is the same wherever it is done.

A message that may have very many items, a crowd, takes many times its bytes once it is parsed. It stays as it
came until no other crowd is being parsed or looked at, whosever that is; all other messages pass it by.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from gateway.errors import ItemError
from gateway.item_set import ItemSet, inspect
from gateway.limits import (
    CROWD_ITEMS_MIN,
    CROWD_SAMPLE_BYTES,
    CROWD_SAMPLES,
    INLINE_HASH_ITEMS_MAX,
    SET_ITEMS_MAX,
    TURN_ITEMS_MIN,
)
from gateway.turns import Turns

__all__ = ["Looking"]


class Looking:
    """Looks at messages of many items.

    Args:
        turns: of the event loop that this is used in.
        rng: says where samples are taken.
    """

    def __init__(self, turns: Turns, rng: random.Random | None = None) -> None:
        self._turns = turns
        self._rng = rng or random.Random()
        self.one_crowd = asyncio.Lock()
        """Held while a crowd is parsed, looked at and handled."""

    def is_crowd(self, message: bytes) -> bool:
        """Tell whether a message has very many items, going by samples: before each is the tag of field 1.

        The tag has longer forms, too. What looks like it within items is counted as well: of random bytes,
        one in 128. Where the samples are taken is not to be foreseen, so that nobody can make room for them.
        """
        size = len(message)
        if size < CROWD_ITEMS_MIN:
            return False
        seen = 0
        for _ in range(CROWD_SAMPLES):
            offset = self._rng.randrange(max(1, size - CROWD_SAMPLE_BYTES))
            sample = message[offset : offset + CROWD_SAMPLE_BYTES]
            seen += sample.count(b"\x0a") + sample.count(b"\x8a")
        return seen * size >= CROWD_ITEMS_MIN * CROWD_SAMPLES * CROWD_SAMPLE_BYTES

    @staticmethod
    def is_quick(items: Sequence[bytes]) -> bool:
        """Tell whether items may be looked at, and what follows be done, without a turn."""
        return len(items) < TURN_ITEMS_MIN

    async def look(self, items: Sequence[bytes]) -> ItemSet:
        """Check the form of an item set; return in a turn, for what is to be done with it.

        Args:
            items: of a message as protobuf gives them, so that each slice makes its items.

        Raises:
            ItemError: as `inspect`; or they are more than SET_ITEMS_MAX.
        """
        if len(items) > SET_ITEMS_MAX:
            raise ItemError("item set", f"{len(items)} items", f"at most {SET_ITEMS_MAX}")
        if len(items) <= INLINE_HASH_ITEMS_MAX:
            await self._turns.take()
            return _look(items)
        item_set = await asyncio.to_thread(_look, items)
        await self._turns.take()
        return item_set


def _look(items: Sequence[bytes]) -> ItemSet:
    taken: list[bytes] = []
    for start in range(0, len(items), INLINE_HASH_ITEMS_MAX):  # in pieces, so that other threads have turns
        taken += items[start : start + INLINE_HASH_ITEMS_MAX]
    return inspect(taken)
