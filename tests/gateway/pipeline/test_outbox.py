"""Tests of `gateway.pipeline.conductor`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from sluice.gateway.pipeline.conductor import Outbox
from sluice.gateway.race.actions import Acknowledgement, PublisherId, Response


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


class Line:
    """A way to the publisher that takes a response when the test says so."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self._taken: asyncio.Future[None] | None = None

    async def send(self, response: Response) -> None:
        """Send; 7 fails in the end."""
        assert isinstance(response, Acknowledgement)
        number = response.block_number
        self.steps.append(f"begun {number}")
        self._taken = asyncio.get_running_loop().create_future()
        await self._taken
        if number == 7:
            raise ConnectionResetError("block 7")
        self.steps.append(f"sent {number}")

    async def take(self) -> None:
        """Have what is being sent arrive."""
        assert self._taken is not None
        self._taken.set_result(None)
        await settle()


async def settle() -> None:
    """Let the event loop come to the task that sends."""
    for _ in range(3):
        await asyncio.sleep(0)


def with_line(play: Callable[[Outbox, Line, asyncio.Task[None]], Awaitable[None]]) -> None:
    """Play a scene with an outbox for three whose responses are being sent."""

    async def main() -> None:
        outbox, line = Outbox(PublisherId(1), "alice", 3), Line()
        sending = asyncio.ensure_future(outbox.send_all(line.send))
        await settle()
        await play(outbox, line, sending)
        assert sending.done()

    asyncio.run(main())


def test_nothing_is_sent_behind_a_response_for_which_there_was_no_room() -> None:
    """Found by the simulation, seed 503552: one that came later was sent, though others were missing."""

    async def play(outbox: Outbox, line: Line, sending: asyncio.Task[None]) -> None:
        outbox.put(Acknowledgement(0))
        await settle()
        for number in (1, 2, 3, 8):
            outbox.put(Acknowledgement(number))
        assert outbox.overflow.is_set()
        assert outbox.over.is_set()
        for _ in range(4):
            await line.take()
        outbox.put(Acknowledgement(4))
        assert line.steps[-2:] == ["begun 3", "sent 3"]
        outbox.close()
        await sending

    with_line(play)


def test_responses_are_sent_one_after_the_other_before_the_end() -> None:
    async def play(outbox: Outbox, line: Line, sending: asyncio.Task[None]) -> None:
        for number in range(3):
            outbox.put(Acknowledgement(number))
        await settle()
        assert line.steps == ["begun 0"]
        outbox.close()
        outbox.close()
        for number in range(3):
            assert line.steps[-1] == f"begun {number}"
            assert not sending.done()
            await line.take()
        await sending
        assert line.steps == [f"{step} {number}" for number in range(3) for step in ("begun", "sent")]

    with_line(play)


def test_the_end_wakes_who_has_nothing_to_send() -> None:
    async def play(outbox: Outbox, line: Line, sending: asyncio.Task[None]) -> None:
        outbox.close()
        await sending
        assert line.steps == []

    with_line(play)


def test_what_goes_wrong_is_raised_to_who_sends_and_not_to_who_puts_it_in() -> None:
    async def play(outbox: Outbox, line: Line, sending: asyncio.Task[None]) -> None:
        for number in (7, 0):
            outbox.put(Acknowledgement(number))
        await settle()
        await line.take()
        outbox.put(Acknowledgement(1))
        with pytest.raises(ConnectionResetError, match=r"^block 7$"):
            await sending
        assert line.steps == ["begun 7"]

    with_line(play)
