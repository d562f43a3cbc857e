"""Tests of `gateway.outbox`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from gateway.begun import Begun
from gateway.outbox import Outbox
from gateway.race_actions import Acknowledgement, PublisherId, Response


def test_an_outbox_gives_what_it_was_given_and_then_its_end() -> None:
    async def main() -> None:
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

    asyncio.run(main())


def test_one_response_too_many_sets_overflow() -> None:
    async def main() -> None:
        outbox = Outbox(PublisherId(1), "alice", 2)
        for number in range(2):
            outbox.put(Acknowledgement(number))
        assert not outbox.overflow.is_set()
        outbox.put(Acknowledgement(2))
        assert outbox.overflow.is_set()
        assert await outbox.get() == [Acknowledgement(0), Acknowledgement(1)]

    asyncio.run(main())


# --- sending ------------------------------------------------------------------------------------------------


class Line:
    """A way to the publisher that takes a response when the test says so."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self._taken: asyncio.Future[None] | None = None

    def begin(self, response: Response) -> Begun[None]:
        """Begin to send."""
        return Begun(self._send(response))

    def take(self) -> None:
        """Have what is being sent arrive."""
        assert self._taken is not None
        self._taken.set_result(None)

    async def _send(self, response: Response) -> None:
        assert isinstance(response, Acknowledgement)
        number = response.block_number
        self.steps.append(f"begun {number}")
        self._taken = asyncio.get_running_loop().create_future()
        try:
            await self._taken
        except GeneratorExit:
            self.steps.append(f"given up {number}")
            raise
        if number == 7:
            raise ConnectionResetError("block 7")
        self.steps.append(f"sent {number}")


def with_line(play: Callable[[Outbox, Line], Awaitable[None]]) -> None:
    async def main() -> None:
        await play(Outbox(PublisherId(1), "alice", 3), Line())

    asyncio.run(main())


def test_nothing_is_sent_behind_a_response_for_which_there_was_no_room() -> None:
    """Found by the simulation, seed 503552: one that came later was sent, though others were missing."""

    async def play(outbox: Outbox, line: Line) -> None:
        for number in range(4):
            outbox.put(Acknowledgement(number))
        assert outbox.overflow.is_set()
        for _ in range(3):
            sending = asyncio.ensure_future(outbox.send_next(line.begin))
            await asyncio.sleep(0)
            line.take()
            assert await sending
        waiting = asyncio.ensure_future(outbox.send_next(line.begin))
        await asyncio.sleep(0)
        outbox.put(Acknowledgement(4))
        await asyncio.sleep(0)
        assert not waiting.done()
        assert line.steps[-1] == "sent 2"
        outbox.close()
        assert not await waiting

    with_line(play)


def test_a_response_that_is_waited_for_is_begun_with_as_it_is_put_in_and_others_wait_their_turn() -> None:
    async def play(outbox: Outbox, line: Line) -> None:
        sending = asyncio.ensure_future(outbox.send_next(line.begin))
        await asyncio.sleep(0)
        outbox.put(Acknowledgement(0))
        assert line.steps == ["begun 0"]
        for number in range(1, 4):
            outbox.put(Acknowledgement(number))
        assert not outbox.overflow.is_set()
        await asyncio.sleep(0)
        assert line.steps == ["begun 0"]
        line.take()
        assert await sending
        for number in range(1, 4):
            sending = asyncio.ensure_future(outbox.send_next(line.begin))
            await asyncio.sleep(0)
            assert line.steps[-1] == f"begun {number}"
            line.take()
            assert await sending
        assert line.steps == [f"{step} {number}" for number in range(4) for step in ("begun", "sent")]

    with_line(play)


def test_what_is_in_an_outbox_is_sent_before_its_end() -> None:
    async def play(outbox: Outbox, line: Line) -> None:
        outbox.put(Acknowledgement(0))
        outbox.close()
        sending = asyncio.ensure_future(outbox.send_next(line.begin))
        await asyncio.sleep(0)
        line.take()
        assert await sending
        assert not await outbox.send_next(line.begin)
        assert line.steps == ["begun 0", "sent 0"]

    with_line(play)


def test_the_end_wakes_who_waits_for_a_response() -> None:
    async def play(outbox: Outbox, line: Line) -> None:
        sending = asyncio.ensure_future(outbox.send_next(line.begin))
        await asyncio.sleep(0)
        outbox.close()
        outbox.close()
        assert not await sending
        assert line.steps == []

    with_line(play)


def test_what_goes_wrong_is_raised_to_who_sends_and_not_to_who_puts_it_in() -> None:
    async def play(outbox: Outbox, line: Line) -> None:
        sending = asyncio.ensure_future(outbox.send_next(line.begin))
        await asyncio.sleep(0)
        outbox.put(Acknowledgement(7))
        line.take()
        with pytest.raises(ConnectionResetError, match=r"^block 7$"):
            await sending

    with_line(play)


def test_nothing_is_begun_with_for_one_that_was_cancelled() -> None:
    async def play(outbox: Outbox, line: Line) -> None:
        sending = asyncio.ensure_future(outbox.send_next(line.begin))
        await asyncio.sleep(0)
        sending.cancel()
        outbox.put(Acknowledgement(0))  # before it has noticed
        await asyncio.wait({sending})
        outbox.put(Acknowledgement(1))  # and after
        assert sending.cancelled()
        assert line.steps == []
        assert await outbox.get() == [Acknowledgement(0), Acknowledgement(1)]

    with_line(play)


def test_what_was_begun_with_is_given_up_with_the_one_that_sends() -> None:
    async def play(outbox: Outbox, line: Line) -> None:
        sending = asyncio.ensure_future(outbox.send_next(line.begin))
        await asyncio.sleep(0)
        outbox.put(Acknowledgement(0))
        sending.cancel()  # before it has noticed that one was put in
        await asyncio.wait({sending})
        assert sending.cancelled()
        assert line.steps == ["begun 0", "given up 0"]

    with_line(play)
