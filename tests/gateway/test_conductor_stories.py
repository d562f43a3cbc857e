"""What the simulation found in the conductor, each as the story of who did what."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gateway.outbox import Outbox
from gateway.race_actions import Acknowledgement, EndOfStream, PublisherId
from gateway.race_tables import EndStatus
from tests.gateway.conducting import Stage, on_stage
from tests.nodes import make_blocks


def test_a_proof_that_is_refused_as_it_comes_has_its_consequences(tmp_path: Path) -> None:
    """Mallory ends block 0 with the proof of block 1, in a message of its own; Alice waits.

    The refusal came while the message was added to the block, and what the arbiter wanted done about it was
    lost: Mallory heard nothing, and Alice was never asked for the block.
    """
    first, second = make_blocks(2)

    async def play(stage: Stage) -> None:
        mallory, alice = stage.publisher("Mallory"), stage.publisher("Alice")
        mallory.items(*first.items[:-1])
        alice.block(first)
        await alice.expect("skip 0")
        mallory.items(second.items[-1])
        await mallory.expect_end("end BAD_BLOCK_PROOF last None about 0")
        await alice.expect("resend 0")
        alice.block(first)
        await alice.expect("ack 0")

    on_stage(tmp_path, play)


def test_after_an_answer_without_room_come_no_further_ones() -> None:
    """A publisher does not read; one answer is too many, then it reads two, then the node has another one.

    That one was sent, although the one before it never was: an acknowledgement was missing in their order.
    """

    async def main() -> None:
        outbox = Outbox(PublisherId(1), "slow", 2)
        for number in (6, 7, 8):
            outbox.put(Acknowledgement(number))
        assert outbox.overflow.is_set()
        assert await outbox.get() == [Acknowledgement(6), Acknowledgement(7)]
        outbox.put(EndOfStream(EndStatus.DUPLICATE_BLOCK, 8))
        outbox.close()
        assert await outbox.get() == []

    asyncio.run(main())
