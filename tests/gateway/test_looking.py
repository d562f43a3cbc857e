"""Tests of `gateway.looking`: at once, in a turn or in a thread, and always the same."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Sequence

import pytest
import uvloop

from gateway import looking
from gateway.errors import ItemError
from gateway.item_set import ItemSet, inspect
from gateway.items import ItemKind, field_item
from gateway.limits import CROWD_ITEMS_MIN, INLINE_HASH_ITEMS_MAX, TURN_ITEMS_MIN
from gateway.looking import Looking
from gateway.turns import Turns
from tests.gateway.rounds import Rounds

SHORT = field_item(ItemKind.SIGNED_TRANSACTION, b"")
HEADER = field_item(ItemKind.BLOCK_HEADER, b"\x18\x07")  # number = 7
BAD = SHORT + SHORT


class Items(Sequence[bytes]):
    """Items of a message, that tell how many of them are taken in which round, and in which thread."""

    def __init__(self, items: list[bytes], rounds: Rounds | None = None) -> None:
        self._items = items
        self._rounds = rounds
        self.threads: set[str] = set()

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:  # type: ignore[override]
        assert isinstance(index, slice)
        taken = self._items[index]
        self.threads.add(threading.current_thread().name)
        if self._rounds is not None:
            for item in taken:
                self._rounds.note(item)
        return taken


def look(items: Items) -> ItemSet:
    return uvloop.run(Looking(Turns()).look(items))


def test_a_message_of_too_many_items_is_refused_before_one_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "SET_ITEMS_MAX", 2_000)
    assert len(look(Items([HEADER, *[SHORT] * 1_999])).items) == 2_000
    items = Items([HEADER, *[SHORT] * 2_000])
    with pytest.raises(ItemError, match=r"^item set: got 2001 items, expected at most 2000$"):
        look(items)
    assert items.threads == set()


def test_few_items_need_no_turn() -> None:
    assert Looking.is_quick([SHORT] * (TURN_ITEMS_MIN - 1))
    assert not Looking.is_quick([SHORT] * TURN_ITEMS_MIN)


@pytest.mark.parametrize("tag", [b"\x0a", b"\x8a\x00", b"\x8a\x80\x00"])
def test_a_message_of_very_many_items_is_a_crowd_however_they_are_written(tag: bytes) -> None:
    item = tag + b"\x02" + SHORT
    assert Looking(Turns()).is_crowd(item * (CROWD_ITEMS_MIN + CROWD_ITEMS_MIN // 8))
    assert not Looking(Turns()).is_crowd(item * (CROWD_ITEMS_MIN - CROWD_ITEMS_MIN // 8))


@pytest.mark.parametrize("seed", range(8))
def test_a_crowd_does_not_hide_behind_a_long_item(seed: int) -> None:
    long, short = bytes(4_000_000), (b"\x0a\x02" + SHORT) * 1_000_000
    looking = Looking(Turns(), random.Random(seed))
    assert looking.is_crowd(long + short)
    assert looking.is_crowd(short + long)


def test_long_items_are_no_crowd() -> None:
    assert not Looking(Turns()).is_crowd(random.Random(1).randbytes(8 * 1024 * 1024))


@pytest.mark.parametrize(
    ("size", "in_thread"),
    [(TURN_ITEMS_MIN, False), (INLINE_HASH_ITEMS_MAX, False), (INLINE_HASH_ITEMS_MAX + 1, True)],
)
def test_what_is_seen_does_not_depend_on_where(size: int, in_thread: bool) -> None:
    everything = [HEADER, *[SHORT] * (size - 1)]
    items = Items(everything)
    assert look(items) == inspect(everything)
    assert (items.threads == {threading.main_thread().name}) != in_thread


@pytest.mark.parametrize("size", [TURN_ITEMS_MIN, 3 * INLINE_HASH_ITEMS_MAX])
@pytest.mark.parametrize("bad", [[BAD], [HEADER]])
def test_a_refusal_does_not_depend_on_where(size: int, bad: list[bytes]) -> None:
    everything = [*[SHORT] * (size - 1), *bad]
    with pytest.raises(ItemError) as expected:
        inspect(everything)
    with pytest.raises(ItemError) as caught:
        look(Items(everything))
    assert str(caught.value) == str(expected.value)


def test_no_round_takes_more_than_one_message_of_all_that_have_come() -> None:
    """Three long messages at once: between two looks at timers and sockets there are 1,024 items at most."""
    size = INLINE_HASH_ITEMS_MAX

    async def main() -> None:
        rounds, turns = Rounds(), Turns()
        try:
            messages = [Items([SHORT] * size, rounds) for _ in range(3)]
            sets = await asyncio.gather(*(Looking(turns).look(message) for message in messages))
            assert [len(one.items) for one in sets] == [size] * 3
            assert len(rounds.all) == 3 * size
            assert rounds.most == size
        finally:
            rounds.stop()

    uvloop.run(main())


def test_what_was_looked_at_in_a_thread_is_handled_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "INLINE_HASH_ITEMS_MAX", 1)

    async def main() -> None:
        rounds, turns = Rounds(), Turns()
        try:

            async def handle() -> None:
                await Looking(turns).look(Items([SHORT] * 2))
                rounds.note("handled")

            await asyncio.gather(*(handle() for _ in range(8)))
            assert rounds.all == ["handled"] * 8
            assert rounds.most == 1
        finally:
            rounds.stop()

    uvloop.run(main())
