"""Tests of `gateway.workers.looking`: at once, in a slot or in a thread, always with the same result."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Sequence

import pytest
import uvloop

from sluice.gateway.blocks.errors import ItemError
from sluice.gateway.blocks.item_set import ItemSet, inspect
from sluice.gateway.blocks.items import ItemKind, field_item
from sluice.gateway.limits import (
    INLINE_HASH_ITEMS_MAX,
    SLOT_ITEMS_MIN,
)
from sluice.gateway.workers.looking import (
    CROWD_BYTES_MIN,
    CROWD_ITEM_BYTES,
    CROWD_ITEMS_MIN,
    SET_ITEMS_MAX,
    Looking,
)
from sluice.gateway.workers.loop_slots import LoopSlots
from tests.gateway.iterations import Iterations

SHORT = field_item(ItemKind.SIGNED_TRANSACTION, b"")
HEADER = field_item(ItemKind.BLOCK_HEADER, b"\x18\x07")  # number = 7
BAD = SHORT + SHORT


class Items(Sequence[bytes]):
    """Items of a message that note in which iteration and thread they are taken."""

    def __init__(self, items: list[bytes], iterations: Iterations | None = None) -> None:
        self._items = items
        self._iterations = iterations
        self.threads: set[str] = set()

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:  # type: ignore[override]
        assert isinstance(index, slice)
        taken = self._items[index]
        self.threads.add(threading.current_thread().name)
        if self._iterations is not None:
            for item in taken:
                self._iterations.note(item)
        return taken


def look(items: Items, *, set_items_max: int = SET_ITEMS_MAX) -> ItemSet:
    return uvloop.run(Looking(LoopSlots(), set_items_max=set_items_max).look(items))


def test_a_message_of_too_many_items_is_refused_before_one_is_taken() -> None:
    assert len(look(Items([HEADER, *[SHORT] * 1_999]), set_items_max=2_000).items) == 2_000
    items = Items([HEADER, *[SHORT] * 2_000])
    with pytest.raises(ItemError, match=r"^item set: got 2001 items, expected at most 2000$"):
        look(items, set_items_max=2_000)
    assert items.threads == set()


TAGS = (b"\x0a", b"\x8a\x00", b"\x8a\x80\x00")
"""Tags of an item in a message, in forms of one byte and more."""


def of_items(count: int, item_bytes: int, tag: bytes = TAGS[0]) -> bytes:
    """A message of items, each with so many bytes, tag included."""
    payload_bytes = item_bytes - len(tag) - 1
    return (tag + bytes([payload_bytes]) + bytes(payload_bytes)) * count


@pytest.mark.parametrize("tag", TAGS)
def test_a_message_of_very_many_items_is_a_crowd_however_they_are_written(tag: bytes) -> None:
    item_bytes = 2 * CROWD_ITEM_BYTES
    above, below = (CROWD_ITEMS_MIN + change for change in (CROWD_ITEMS_MIN // 8, -CROWD_ITEMS_MIN // 8))
    assert Looking(LoopSlots()).is_crowd(of_items(above, item_bytes, tag))
    assert not Looking(LoopSlots()).is_crowd(of_items(below, item_bytes, tag))


@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("size", [CROWD_BYTES_MIN, CROWD_ITEMS_MIN, 4 * CROWD_ITEMS_MIN])
def test_a_message_of_very_short_items_is_a_crowd_unless_it_is_short_itself(size: int, tag: bytes) -> None:
    """Some hundred streams, each with a message just too short for a crowd, once took 4 GB together."""
    short, long = CROWD_ITEM_BYTES // 2, 2 * CROWD_ITEM_BYTES
    assert Looking(LoopSlots()).is_crowd(of_items(size // short + 1, short, tag))
    assert not Looking(LoopSlots()).is_crowd(of_items(size // long + 1, long, tag))
    assert not Looking(LoopSlots()).is_crowd(of_items((CROWD_BYTES_MIN - 1) // short, short, tag))


@pytest.mark.parametrize("seed", range(8))
def test_a_crowd_does_not_hide_behind_a_long_item(seed: int) -> None:
    long, short = bytes(4_000_000), (b"\x0a\x02" + SHORT) * 1_000_000
    looking = Looking(LoopSlots(), random.Random(seed))
    assert looking.is_crowd(long + short)
    assert looking.is_crowd(short + long)


@pytest.mark.parametrize("size", [CROWD_BYTES_MIN, CROWD_ITEMS_MIN, 8 * 1024 * 1024])
def test_long_items_are_no_crowd(size: int) -> None:
    assert not Looking(LoopSlots()).is_crowd(random.Random(1).randbytes(size))


@pytest.mark.parametrize(
    ("size", "in_thread"),
    [(SLOT_ITEMS_MIN, False), (INLINE_HASH_ITEMS_MAX, False), (INLINE_HASH_ITEMS_MAX + 1, True)],
)
def test_what_is_seen_does_not_depend_on_where(size: int, in_thread: bool) -> None:
    everything = [HEADER, *[SHORT] * (size - 1)]
    items = Items(everything)
    assert look(items) == inspect(everything)
    assert (items.threads == {threading.main_thread().name}) != in_thread


@pytest.mark.parametrize("size", [SLOT_ITEMS_MIN, 3 * INLINE_HASH_ITEMS_MAX])
@pytest.mark.parametrize("bad", [[BAD], [HEADER]])
def test_a_refusal_does_not_depend_on_where(size: int, bad: list[bytes]) -> None:
    everything = [*[SHORT] * (size - 1), *bad]
    with pytest.raises(ItemError) as expected:
        inspect(everything)
    with pytest.raises(ItemError) as caught:
        look(Items(everything))
    assert str(caught.value) == str(expected.value)


def test_no_iteration_takes_more_than_one_message_of_all_that_have_come() -> None:
    """Between two looks at timers and sockets come 1,024 items at most."""
    size = INLINE_HASH_ITEMS_MAX

    async def main() -> None:
        iterations, slots = Iterations(), LoopSlots()
        try:
            messages = [Items([SHORT] * size, iterations) for _ in range(3)]
            sets = await asyncio.gather(*(Looking(slots).look(message) for message in messages))
            assert [len(one.items) for one in sets] == [size] * 3
            assert len(iterations.all) == 3 * size
            assert iterations.most == size
        finally:
            iterations.stop()

    uvloop.run(main())


def test_what_was_looked_at_in_a_thread_is_handled_in_a_slot() -> None:
    async def main() -> None:
        iterations, slots = Iterations(), LoopSlots()
        try:

            async def handle() -> None:
                await Looking(slots, inline_items_max=1).look(Items([SHORT] * 2))
                iterations.note("handled")

            await asyncio.gather(*(handle() for _ in range(8)))
            assert iterations.all == ["handled"] * 8
            assert iterations.most == 1
        finally:
            iterations.stop()

    uvloop.run(main())
