"""Tests of `gateway.pipeline.outbox`."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable

import pytest

from gateway.pipeline.outbox import Outbox
from gateway.race.actions import Acknowledgement, PublisherId, Response


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

    async def send(self, response: Response) -> None:
        """Send; 5 fails before it waits, 6 has no need to wait, 7 fails in the end."""
        assert isinstance(response, Acknowledgement)
        number = response.block_number
        self.steps.append(f"begun {number}")
        if number == 5:
            raise ConnectionResetError("block 5")
        if number == 6:
            return
        self._taken = asyncio.get_running_loop().create_future()
        try:
            await self._taken
        except GeneratorExit:
            self.steps.append(f"given up {number}")
            raise
        if number == 7:
            raise ConnectionResetError("block 7")
        self.steps.append(f"sent {number}")

    async def take(self) -> None:
        """Have what is being sent arrive."""
        assert self._taken is not None
        self._taken.set_result(None)
        await asyncio.sleep(0)

    async def lose(self, error: BaseException) -> None:
        """Have it fail on its way."""
        assert self._taken is not None
        if isinstance(error, asyncio.CancelledError):
            self._taken.cancel()
        else:
            self._taken.set_exception(error)
        await asyncio.sleep(0)

    def forget(self) -> None:
        """Let go of what was being sent."""
        self._taken = None


def give(outbox: Outbox, response: Response) -> None:
    """Have a response sent."""
    outbox.put(response)
    outbox.send_on()


def with_line(play: Callable[[Outbox, Line, asyncio.Task[None]], Awaitable[None]]) -> None:
    """Play a scene with an outbox for three whose responses are being sent."""

    async def main() -> None:
        outbox, line = Outbox(PublisherId(1), "alice", 3), Line()
        sending = asyncio.ensure_future(outbox.send_all(line.send))
        await asyncio.sleep(0)
        await play(outbox, line, sending)
        assert sending.done()

    asyncio.run(main())


def test_nothing_is_sent_behind_a_response_for_which_there_was_no_room() -> None:
    """Found by the simulation, seed 503552: one that came later was sent, though others were missing."""

    async def play(outbox: Outbox, line: Line, sending: asyncio.Task[None]) -> None:
        for number in (0, 1, 2, 3, 8):
            give(outbox, Acknowledgement(number))
        assert outbox.overflow.is_set()
        assert outbox.over.is_set()
        for _ in range(4):
            await line.take()
        give(outbox, Acknowledgement(4))
        assert line.steps[-2:] == ["begun 3", "sent 3"]
        outbox.close()
        await sending

    with_line(play)


def test_a_response_is_begun_with_at_once_when_it_is_to_be_sent_and_others_wait_their_turn() -> None:
    async def play(outbox: Outbox, line: Line, sending: asyncio.Task[None]) -> None:
        outbox.put(Acknowledgement(0))
        await asyncio.sleep(0)
        assert line.steps == []
        outbox.send_on()
        assert line.steps == ["begun 0"]
        outbox.send_on()
        assert line.steps == ["begun 0"]
        for number in range(1, 4):
            give(outbox, Acknowledgement(number))
        assert not outbox.overflow.is_set()
        await asyncio.sleep(0)
        assert line.steps == ["begun 0"]
        for number in range(1, 4):
            await line.take()
            assert line.steps[-1] == f"begun {number}"
        await line.take()
        assert line.steps == [f"{step} {number}" for number in range(4) for step in ("begun", "sent")]
        assert not sending.done()
        outbox.close()
        await sending

    with_line(play)


def test_what_is_put_in_before_anything_is_sent_is_sent_first() -> None:
    async def main() -> None:
        outbox, line = Outbox(PublisherId(1), "alice", 3), Line()
        for number in (6, 6, 0):
            outbox.put(Acknowledgement(number))
        sending = asyncio.ensure_future(outbox.send_all(line.send))
        await asyncio.sleep(0)
        assert line.steps == ["begun 6", "begun 6", "begun 0"]
        outbox.close()
        await line.take()
        await sending

    asyncio.run(main())


def test_what_is_in_an_outbox_is_sent_before_its_end() -> None:
    async def play(outbox: Outbox, line: Line, sending: asyncio.Task[None]) -> None:
        for number in range(2):
            give(outbox, Acknowledgement(number))
        outbox.close()
        await line.take()
        assert not sending.done()
        await line.take()
        await sending
        assert line.steps == ["begun 0", "sent 0", "begun 1", "sent 1"]

    with_line(play)


def test_the_end_sends_what_was_put_in() -> None:
    async def play(outbox: Outbox, line: Line, sending: asyncio.Task[None]) -> None:
        outbox.put(Acknowledgement(0))
        outbox.close()
        assert line.steps == ["begun 0"]
        await line.take()
        await sending

    with_line(play)


def test_the_end_wakes_who_has_nothing_to_send() -> None:
    async def play(outbox: Outbox, line: Line, sending: asyncio.Task[None]) -> None:
        outbox.close()
        outbox.close()
        await sending
        assert line.steps == []

    with_line(play)


@pytest.mark.parametrize("number", [5, 7])
def test_what_goes_wrong_is_raised_to_who_sends_and_not_to_who_puts_it_in(number: int) -> None:
    async def play(outbox: Outbox, line: Line, sending: asyncio.Task[None]) -> None:
        give(outbox, Acknowledgement(number))
        give(outbox, Acknowledgement(0))
        if number == 7:
            await line.take()
        give(outbox, Acknowledgement(1))  # before it has noticed
        outbox.close()
        with pytest.raises(ConnectionResetError, match=rf"^block {number}$"):
            await sending
        assert line.steps == [f"begun {number}"]

    with_line(play)


def test_a_response_that_is_cancelled_on_its_way_ends_the_sending() -> None:
    async def play(outbox: Outbox, line: Line, sending: asyncio.Task[None]) -> None:
        give(outbox, Acknowledgement(0))
        give(outbox, Acknowledgement(1))
        await line.lose(asyncio.CancelledError())
        await asyncio.wait({sending})
        assert sending.cancelled()
        assert line.steps == ["begun 0"]

    with_line(play)


def test_nothing_is_begun_with_for_one_that_was_cancelled() -> None:
    async def play(outbox: Outbox, line: Line, sending: asyncio.Task[None]) -> None:
        sending.cancel()
        give(outbox, Acknowledgement(0))  # before it has noticed
        await asyncio.wait({sending})
        give(outbox, Acknowledgement(1))  # and after
        outbox.close()
        assert sending.cancelled()
        assert line.steps == []
        assert await outbox.get() == [Acknowledgement(0), Acknowledgement(1)]

    with_line(play)


@pytest.mark.parametrize("error", [None, ConnectionResetError("gone"), asyncio.CancelledError()])
def test_what_was_begun_with_is_given_up_with_the_one_that_sends(error: BaseException | None) -> None:
    """Whatever becomes of it then: nobody minds, and nothing is logged."""
    told: list[dict[str, object]] = []

    async def play(outbox: Outbox, line: Line, sending: asyncio.Task[None]) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        give(outbox, Acknowledgement(0))
        give(outbox, Acknowledgement(1))
        sending.cancel()
        await asyncio.wait({sending})
        assert sending.cancelled()
        assert line.steps == ["begun 0", "given up 0"]
        if error is None:
            await line.take()
        else:
            await line.lose(error)
        line.forget()
        gc.collect()
        assert line.steps == ["begun 0", "given up 0"]

    with_line(play)
    assert told == []


def test_one_that_was_given_up_and_never_arrives_is_no_error() -> None:
    async def play(outbox: Outbox, line: Line, sending: asyncio.Task[None]) -> None:
        give(outbox, Acknowledgement(0))
        sending.cancel()
        await asyncio.wait({sending})
        outbox.close()
        outbox.send_on()
        assert line.steps == ["begun 0", "given up 0"]

    with_line(play)
