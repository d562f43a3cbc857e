"""Inspection of the items of a message: at once, in a slot of the event loop, or in a thread.

A shell. A thousand items take some 0.15 ms:

    items of the message    inspected
    up to 127               at once
    up to 1,024             in the event loop, in a slot (`gateway.workers.loop_slots`)
    more                    in a thread; then the event loop goes on with them in a slot

The publish service splits most messages (`item_set.split`), whose items are then inspected at once; from 128
items on they wait for the slot all the same.

A *crowd* is a message with very many items; parsed, it takes many times its bytes. Only one crowd of all
publishers is parsed or inspected at a time; other messages pass it.
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
"""Inspecting and hashing them takes half a second, 15 ms of it in the event loop."""

CROWD_ITEMS_MIN: Final = 256 * 1024
"""Each takes some 90 bytes, so a few dozen such messages would fill the memory."""

CROWD_ITEM_BYTES: Final = 24
"""Average bytes of a crowd's items, which take five times as much when parsed."""

CROWD_BYTES_MIN: Final = 16 * 1024
"""The smallest crowd; a shorter message takes 0.8 MB at most."""

_SAMPLES, _SAMPLE_BYTES = 64, 1_024
"""Samples of a long message and the bytes of each; counting all items takes 2 ms a megabyte."""
_FEW_SAMPLES, _SHORT_SAMPLE_BYTES = 8, 128
"""The same for messages below CROWD_ITEMS_MIN bytes."""


class Looking:
    """Inspects messages of many items.

    Args:
        rng: chooses where samples are taken.
    """

    def __init__(
        self,
        slots: LoopSlots,
        rng: random.Random | None = None,
        *,
        set_items_max: int = SET_ITEMS_MAX,
        inline_items_max: int = INLINE_HASH_ITEMS_MAX,
    ) -> None:
        self._slots = slots
        self._set_items_max = set_items_max
        self._inline_items_max = inline_items_max
        self._rng = rng or random.Random()
        self.one_crowd = asyncio.Lock()
        """Held while a crowd is parsed, inspected and handled."""

    def is_crowd(self, message: bytes) -> bool:
        """Return whether a message has very many items, judged by samples of the tag in front of each item.

        Random places keep senders from evading the samples. Equal bytes inside items count too, one in 128 of
        random bytes.
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
        """Check the form of an item set; return in a slot.

        Args:
            items: as protobuf gives them: each slice makes its items.

        Raises:
            ItemError: as `inspect`; or they are too many.
        """
        if len(items) > self._set_items_max:
            raise ItemError("item set", f"{len(items)} items", f"at most {self._set_items_max}")
        if len(items) <= self._inline_items_max:
            await self._slots.take()
            return _look(items)
        item_set = await asyncio.to_thread(_look, items)
        await self._slots.take()
        return item_set


def _look(items: Sequence[bytes]) -> ItemSet:
    taken: list[bytes] = []
    for start in range(0, len(items), INLINE_HASH_ITEMS_MAX):  # in pieces, for other threads' sake
        taken += items[start : start + INLINE_HASH_ITEMS_MAX]
    return inspect(taken)
