"""The outbox of a publisher: order, end and overflow."""

from __future__ import annotations

import asyncio

from sluice.gateway.pipeline.conductor import Outbox
from sluice.gateway.race.actions import Acknowledgement, PublisherId


async def test_an_outbox_gives_what_it_was_given_and_then_its_end() -> None:
    outbox = Outbox(PublisherId(1), "alice", 3)
    getting = asyncio.ensure_future(outbox.get())
    await asyncio.sleep(0)
    assert not getting.done()
    for number in range(3):
        outbox.put(Acknowledgement(number))
    assert await getting == [Acknowledgement(number) for number in range(3)]
    outbox.put(Acknowledgement(3))
    outbox.close()
    assert await outbox.get() == [Acknowledgement(3)]
    assert await outbox.get() == []
    assert not outbox.overflow.is_set()


async def test_one_response_too_many_sets_overflow() -> None:
    outbox = Outbox(PublisherId(1), "alice", 2)
    for number in range(2):
        outbox.put(Acknowledgement(number))
    assert not outbox.overflow.is_set()
    outbox.put(Acknowledgement(2))
    assert outbox.overflow.is_set()
    assert await outbox.get() == [Acknowledgement(0), Acknowledgement(1)]
