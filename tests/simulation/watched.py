"""A watched arbiter: each event and its actions go to the oracle."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from sluice.gateway.race.actions import Action, PublisherId, Response
from sluice.gateway.race.arbiter import Arbiter
from sluice.gateway.race.records import BlockRecord, RaceRules, StreamRecord
from sluice.gateway.race.tables import BlockEvent, EndStatus, Failure, StreamEvent
from tests.simulation.coverage import Coverage
from tests.simulation.oracle import Oracle

_EVENTS = (
    *("connected", "header", "items", "block_end", "end_stream", "half_closed", "left", "bad_request"),
    *(
        "publisher_failed",
        "verified",
        "linked",
        "refused",
        "committed",
        "commit_failed",
        "shutdown",
        "give_up",
        "tick",
        "retire",
    ),
)


class WatchedArbiter(Arbiter):
    def __init__(
        self,
        last_number: int | None,
        first_number: int | None,
        rules: RaceRules,
        oracle: Oracle,
        coverage: Coverage,
    ) -> None:
        super().__init__(last_number, first_number, rules)
        self._oracle = oracle
        self._coverage = coverage
        for name in _EVENTS:
            setattr(self, name, self._watched(name, getattr(self, name)))

    def _watched(self, name: str, method: Callable[..., list[Action]]) -> Callable[..., list[Action]]:
        oracle, coverage = self._oracle, self._coverage

        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> list[Action]:
            actions = method(*args, **kwargs)
            if not oracle.dead:
                coverage.count("arbiter event", name)
                oracle.event(name, args, kwargs, actions)
            return actions

        return call

    def disk_recovered(self) -> None:
        super().disk_recovered()
        self._coverage.count("arbiter event", "disk_recovered")
        self._oracle.disk_recovered()

    def reinstate(self) -> None:
        super().reinstate()
        self._coverage.count("arbiter event", "reinstate")
        self._oracle.reinstated()

    def forget_catch_up_target(self) -> None:
        super().forget_catch_up_target()
        self._oracle.target = None

    def pause_reading(self, publisher_id: PublisherId) -> None:
        super().pause_reading(publisher_id)
        self._coverage.count("arbiter event", "pause_reading")
        self._oracle.reading_paused(publisher_id)

    def resume_reading(self, publisher_id: PublisherId, now_ns: int) -> None:
        super().resume_reading(publisher_id, now_ns)
        if not self._oracle.dead:
            self._oracle.resume_reading(publisher_id)

    def delay(self, publisher_id: PublisherId, now_ns: int) -> None:
        super().delay(publisher_id, now_ns)
        self._coverage.count("arbiter event", "delay")
        self._oracle.delayed(publisher_id)

    def go_on(self, publisher_id: PublisherId, now_ns: int) -> None:
        super().go_on(publisher_id, now_ns)
        if not self._oracle.dead:
            self._oracle.goes_on(publisher_id)

    def stood_still(self, for_ns: int, now_ns: int) -> None:
        super().stood_still(for_ns, now_ns)
        self._coverage.count("arbiter event", "stood_still")
        self._oracle.stood_still(for_ns)

    def _react(self, stream: StreamRecord, event: StreamEvent, said: Any) -> list[Action]:
        self._coverage.count("STREAM_TABLE", f"{stream.state.name} {event.name}")
        return super()._react(stream, event, said)

    def _standing(self, stream: StreamRecord, said: Any) -> Any:
        standing = super()._standing(stream, said)
        self._coverage.count("ON_HEADER", standing.name)
        return standing

    def _move(self, block: BlockRecord, event: BlockEvent) -> None:
        self._coverage.count("BLOCK_TABLE", f"{block.state.name} {event.name}")
        if event is BlockEvent.COMMITTED and block.winner_name.startswith("peer "):
            self._coverage.count("peer", "a block of a peer is stored")
        super()._move(block, event)

    def _fail(self, block: BlockRecord, failure: Failure, reason: str) -> None:
        self._coverage.count("CONSEQUENCES", failure.name)
        super()._fail(block, failure, reason)

    def _send(self, stream: StreamRecord, response: Response) -> None:
        self._coverage.count("answer", type(response).__name__)
        super()._send(stream, response)

    def _end(self, stream: StreamRecord, status: EndStatus, reason: str, **told: Any) -> None:
        self._coverage.count("EndOfStream", status.name)
        super()._end(stream, status, reason, **told)
