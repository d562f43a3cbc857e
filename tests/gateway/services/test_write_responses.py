"""How the publish service writes the responses in an outbox."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from sluice.gateway.api import publish_pb2
from sluice.gateway.pipeline.conductor import Outbox
from sluice.gateway.race.actions import Acknowledgement, PublisherId
from sluice.gateway.services.publish_service import write_responses


class Line:
    """A publisher's call, which takes a response when the test says so."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self._taken: asyncio.Future[None] | None = None

    async def send_initial_metadata(self, metadata: tuple[()]) -> None:
        """Take the metadata."""

    async def write(self, response: publish_pb2.PublishStreamResponse) -> None:
        """Write; 7 fails in the end."""
        number = response.acknowledgement.block_number
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
        sending = asyncio.ensure_future(write_responses(outbox, line))  # type: ignore[arg-type]
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
