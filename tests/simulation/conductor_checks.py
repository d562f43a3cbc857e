"""The checks that service and conductor perform the arbiter's actions: all, once, in order, at once.

They compare what the oracle says the arbiter wanted with each stream and each block in flight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sluice.gateway.blocks.errors import BlockRefused
from sluice.gateway.blocks.root_hash import BlockHasher
from sluice.gateway.pipeline.conductor import Conductor
from sluice.gateway.race.actions import PublisherId
from sluice.gateway.services.publish_service import to_wire
from tests.simulation.network import ServerContext
from tests.simulation.oracle import Oracle
from tests.simulation.world import World


class WatchedHasher(BlockHasher):
    """A hasher that remembers a refusal."""

    refused = False

    def add(
        self, items: Sequence[bytes], kinds: Sequence[int] | None = None, size_bytes: int | None = None
    ) -> None:
        try:
            super().add(items, kinds, size_bytes)
        except BlockRefused:
            self.refused = True
            raise


class ConductorChecks:
    """Checks of one life of the node."""

    def __init__(self, world: World, oracle: Oracle) -> None:
        self._world, self._oracle = world, oracle
        self.told: list[object] = []
        """What other parts of the node heard."""

    def listen(self, conductor: Conductor) -> None:
        conductor.on_catch_up_target(self.told.append)
        conductor.on_source_error(lambda: self.told.append("source error"))

    def written(self, context: object, response: Any) -> None:
        """Check that a response is the next that the arbiter gave for its stream."""
        stream = self._oracle.stream_of(context)
        expected = stream.said.popleft() if stream is not None and stream.said else None
        is_right = expected is not None and response == to_wire(expected)
        self._world.expect(is_right, "Answers are sent as given, in order", f"{response!r} for {expected!r}")

    def half_closed(self, context: object) -> None:
        """The service has read the end of a publisher's messages."""
        stream = self._oracle.stream_of(context)
        if stream is not None and stream.half_closed_ns is None:
            stream.half_closed_ns = self._world.now_ns

    def over(self, context: object) -> None:
        """The service has ended a call in order."""
        stream = self._oracle.stream_of(context)
        if stream is not None and stream.said:
            got = f"{stream.name} did not hear {list(stream.said)}"
            self._world.break_rule("A stream ends when all is said", got)

    def check_done(self, conductor: Conductor) -> None:
        """Check what must hold when no callback is left to run."""
        oracle, expect = self._oracle, self._world.expect
        for stream in oracle.streams.values():
            context = stream.context
            if stream.said and isinstance(context, ServerContext) and context.can_write:
                expect(False, "An answer is sent at once", f"{stream.name}: {list(stream.said)}")
            if stream.closed:
                outbox = conductor._outboxes.get(PublisherId(stream.publisher_id))
                expect(outbox is None or outbox.closed, "A stream that is closed ends", stream.name)
        expect(not oracle.idle or conductor.idle.is_set(), "Idle is told", "it is not")
        expect(self.told == oracle.to_tell, "Others are told, once", f"{self.told}, not {oracle.to_tell}")
        self._check_attempts(conductor)

    def _check_attempts(self, conductor: Conductor) -> None:
        expect, attempts = self._world.expect, conductor.in_flight.attempts
        awaiting = {block.attempt_id for block in conductor.acknowledging._awaiting}
        wanted = {
            block.attempt_id: block
            for block in self._oracle.blocks.values()
            if block.attempt_id not in awaiting  # on disk: its items are freed
        }
        if wanted.keys() != attempts.keys():
            got = f"{sorted(attempts)}, wanted {sorted(wanted)}"
            expect(False, "What is in flight is what the arbiter began and did not drop", got)
            return
        for attempt_id, attempt in attempts.items():
            block = wanted[attempt_id]
            same = attempt.number == block.number and attempt.items == block.items
            expect(same, "What is kept of a block are its items, in order", f"block {block.number}")
            hasher = attempt.hasher
            if attempt.hashing is None and isinstance(hasher, WatchedHasher):
                expect(not hasher.refused, "A block that is refused fails at once", f"block {block.number}")
