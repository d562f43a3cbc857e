"""Where the items of a message are looked at: at once, in a turn of the event loop, or in a thread.

A shell around `blocks.item_set`. To take the items out of a message and to learn the kind of each takes some
0.15 ms for a thousand, and there could be millions.

    items of the message    looked at
    up to 127               at once
    up to 1,024             in the event loop, in a turn (`gateway.workers.loop_slots`)
    more                    in a thread; then the event loop goes on with them in a turn

What comes out is the same wherever it is done.

A message that may have very many items for its bytes, a crowd, takes many times these once it is parsed. It
stays as it came until no other crowd is being parsed or looked at, whosever that is; all other messages pass
it by.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Final

from gateway.blocks.errors import ItemError
from gateway.blocks.item_set import ItemSet, inspect
from gateway.limits import (
    INLINE_HASH_ITEMS_MAX,
    TURN_ITEMS_MIN,
)
from gateway.workers.loop_slots import LoopSlots

__all__ = ["Looking"]

SET_ITEMS_MAX: Final = 500_000
"""Items in one message of a publisher. To look at one and to hash it takes a microsecond, however short it
is, so this is half a second, and some 15 ms of the event loop. Of a message of 125 MB they have 260 bytes."""

CROWD_ITEMS_MIN: Final = 256 * 1024
"""Items of one message from which on it is parsed, and looked at, only while no other such message is: they
take some 90 bytes each, however short they are, and some tens of streams would fill the memory with them."""

CROWD_ITEM_BYTES: Final = 24
"""The same where items have fewer bytes on average: real ones have hundreds, these take five times theirs."""

CROWD_BYTES_MIN: Final = 16 * 1024
"""A shorter message is none: parsed, it takes 0.8 MB at most."""

_SAMPLES, _SAMPLE_BYTES = 64, 1_024
"""Places of a long message at which its items are counted, and bytes of each: to count them all takes 2 ms a
megabyte."""
_FEW_SAMPLES, _SHORT_SAMPLE_BYTES = 8, 128
"""The same of a message of less than CROWD_ITEMS_MIN bytes: a publisher may send some hundred in 100 ms."""


class Looking:
    """Looks at messages of many items.

    Args:
        turns: of the event loop that this is used in.
        rng: says where samples are taken.
    """

    def __init__(self, turns: LoopSlots, rng: random.Random | None = None) -> None:
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
        if size < CROWD_BYTES_MIN:
            return False
        is_long = size >= CROWD_ITEMS_MIN
        count, sample_bytes = (_SAMPLES, _SAMPLE_BYTES) if is_long else (_FEW_SAMPLES, _SHORT_SAMPLE_BYTES)
        seen, places = 0, size - sample_bytes
        for _ in range(count):
            offset = int(self._rng.random() * places)
            sample = message[offset : offset + sample_bytes]
            seen += sample.count(b"\x0a") + sample.count(b"\x8a")
        return seen * size >= min(CROWD_ITEMS_MIN, size // CROWD_ITEM_BYTES) * count * sample_bytes

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
