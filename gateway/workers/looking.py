"""Inspection of the items of a message: at once, in a slot of the event loop, or in a thread.

A shell around `blocks.item_set`. To take a thousand items out of a message and read their kinds takes some
0.15 ms, and a message may have 500,000. This bounds the event loop's pauses and the memory; it makes nothing
faster.

    items of the message    inspected
    up to 127               at once
    up to 1,024             in the event loop, in a slot (`gateway.workers.loop_slots`)
    more                    in a thread; then the event loop goes on with them in a slot

The result is the same wherever it is done.

A *crowd* is a message that may have very many items for its bytes; parsed, it takes many times its bytes. A
crowd stays unparsed until no other crowd, of any publisher, is parsed or inspected; other messages pass it
by.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Final

from sluice.gateway.blocks.errors import ItemError
from sluice.gateway.blocks.item_set import ItemSet, inspect
from sluice.gateway.limits import INLINE_HASH_ITEMS_MAX
from sluice.gateway.workers.loop_slots import LoopSlots

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
    """Inspects messages of many items.

    Args:
        slots: of the event loop.
        rng: chooses where samples are taken.
    """

    def __init__(self, slots: LoopSlots, rng: random.Random | None = None) -> None:
        self._slots = slots
        self._rng = rng or random.Random()
        self.one_crowd = asyncio.Lock()
        """Held while a crowd is parsed, inspected and handled."""

    def is_crowd(self, message: bytes) -> bool:
        """Return whether a message has very many items, judged by samples: each item follows the tag of field
        1.

        The tag also has longer forms. Bytes of items that look like it count too: of random bytes one in 128.
        Samples are taken at random places, so that no sender can avoid them.
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

    async def look(self, items: Sequence[bytes]) -> ItemSet:
        """Check the form of an item set; return in a slot, so that the caller can go on with it.

        Args:
            items: of a message as protobuf gives them, so that each slice makes its items.

        Raises:
            ItemError: as `inspect`; or they are more than SET_ITEMS_MAX.
        """
        if len(items) > SET_ITEMS_MAX:
            raise ItemError("item set", f"{len(items)} items", f"at most {SET_ITEMS_MAX}")
        if len(items) <= INLINE_HASH_ITEMS_MAX:
            await self._slots.take()
            return _look(items)
        item_set = await asyncio.to_thread(_look, items)
        await self._slots.take()
        return item_set


def _look(items: Sequence[bytes]) -> ItemSet:
    taken: list[bytes] = []
    for start in range(0, len(items), INLINE_HASH_ITEMS_MAX):  # in pieces, so that other threads run between
        taken += items[start : start + INLINE_HASH_ITEMS_MAX]
    return inspect(taken)
