"""Every event in every state of a publisher's stream: what it hears, and what becomes of block 9.

The expectations come from the protocol, not from the tables, so a changed cell fails here.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sluice.gateway.race.actions import PublisherId, Stray
from sluice.gateway.race.tables import StreamEvent, StreamState
from tests.gateway.racing import ITEM, PROOF, Race

_S, _E = StreamState, StreamEvent
INVALID = "end INVALID_REQUEST last 8 about 0"
INVALID_9 = "end INVALID_REQUEST last 8 about 9"


Step = Callable[[Race], None]
_BETWEEN: tuple[Step, ...] = (lambda race: race.header("Alice", 9), lambda race: race.end("Alice", 9))
REACH: dict[StreamState, tuple[Step, ...]] = {
    _S.FRESH: (),
    _S.SENDING: (lambda race: race.header("Alice", 9),),
    _S.PROVEN: (lambda race: race.header("Alice", 9, proven=True),),
    _S.DROPPING: (*_BETWEEN, lambda race: race.header("Alice", 12)),
    _S.BETWEEN: _BETWEEN,
    _S.FINISHED: (*_BETWEEN, lambda race: race.half_close("Alice")),
    _S.ENDED: (*_BETWEEN, lambda race: race.bad_request("Alice")),
}
SEND: dict[StreamEvent, Step] = {
    _E.HEADER: lambda race: race.header("Alice", 10),
    _E.ITEMS: lambda race: race.items("Alice", ITEM),
    _E.PROOFS: lambda race: race.items("Alice", PROOF),
    _E.BLOCK_END: lambda race: race.end("Alice", 9),
    _E.OTHER_BLOCK_END: lambda race: race.end("Alice", 77),
    _E.GOODBYE: lambda race: race.end_stream("Alice"),
    _E.LOST: lambda race: race.leave("Alice"),
}
# (state, event) -> what Alice hears; the standing of block 9 with its bytes ("-": never begun); her stream,
# whether the node closed it now, and whether the message was counted as a stray
EXPECTED: dict[tuple[StreamState, StreamEvent], tuple[list[str], str, str]] = {
    (_S.FRESH, _E.HEADER): (["behind 8"], "-", "DROPPING"),
    (_S.FRESH, _E.ITEMS): ([], "-", "FRESH stray"),
    (_S.FRESH, _E.PROOFS): ([], "-", "FRESH stray"),
    (_S.FRESH, _E.BLOCK_END): ([], "-", "FRESH stray"),
    (_S.FRESH, _E.OTHER_BLOCK_END): ([], "-", "FRESH stray"),
    (_S.FRESH, _E.GOODBYE): ([], "-", "ENDED closed"),
    (_S.FRESH, _E.LOST): ([], "-", "gone"),
    (_S.SENDING, _E.HEADER): (["behind 8"], "OPEN", "DROPPING"),
    (_S.SENDING, _E.ITEMS): ([], "STREAMING 10", "SENDING"),
    (_S.SENDING, _E.PROOFS): ([], "STREAMING 11", "PROVEN"),
    (_S.SENDING, _E.BLOCK_END): ([], "COMPLETE 6", "BETWEEN"),
    (_S.SENDING, _E.OTHER_BLOCK_END): ([INVALID_9], "OPEN", "ENDED closed"),
    (_S.SENDING, _E.GOODBYE): ([], "OPEN", "ENDED closed"),
    (_S.SENDING, _E.LOST): ([], "OPEN", "gone"),
    (_S.PROVEN, _E.HEADER): ([], "COMPLETE 6", "SENDING"),
    (_S.PROVEN, _E.ITEMS): ([INVALID_9], "OPEN", "ENDED closed"),
    (_S.PROVEN, _E.PROOFS): ([], "STREAMING 11", "PROVEN"),
    (_S.PROVEN, _E.BLOCK_END): ([], "COMPLETE 6", "BETWEEN"),
    (_S.PROVEN, _E.OTHER_BLOCK_END): ([INVALID_9], "OPEN", "ENDED closed"),
    (_S.PROVEN, _E.GOODBYE): ([], "COMPLETE 6", "FINISHED"),
    (_S.PROVEN, _E.LOST): ([], "OPEN", "gone"),
    (_S.DROPPING, _E.HEADER): ([], "COMPLETE 6", "SENDING"),
    (_S.DROPPING, _E.ITEMS): ([], "COMPLETE 6", "DROPPING"),
    (_S.DROPPING, _E.PROOFS): ([], "COMPLETE 6", "DROPPING"),
    (_S.DROPPING, _E.BLOCK_END): ([], "COMPLETE 6", "DROPPING"),
    (_S.DROPPING, _E.OTHER_BLOCK_END): ([], "COMPLETE 6", "DROPPING"),
    (_S.DROPPING, _E.GOODBYE): ([], "COMPLETE 6", "FINISHED"),
    (_S.DROPPING, _E.LOST): ([], "COMPLETE 6", "gone"),
    (_S.BETWEEN, _E.HEADER): ([], "COMPLETE 6", "SENDING"),
    (_S.BETWEEN, _E.ITEMS): ([], "COMPLETE 6", "BETWEEN stray"),
    (_S.BETWEEN, _E.PROOFS): ([], "COMPLETE 6", "BETWEEN stray"),
    (_S.BETWEEN, _E.BLOCK_END): ([], "COMPLETE 6", "BETWEEN"),
    (_S.BETWEEN, _E.OTHER_BLOCK_END): ([], "COMPLETE 6", "BETWEEN stray"),
    (_S.BETWEEN, _E.GOODBYE): ([], "COMPLETE 6", "FINISHED"),
    (_S.BETWEEN, _E.LOST): ([], "COMPLETE 6", "gone"),
    (_S.FINISHED, _E.HEADER): ([], "COMPLETE 6", "FINISHED"),
    (_S.FINISHED, _E.ITEMS): ([], "COMPLETE 6", "FINISHED"),
    (_S.FINISHED, _E.PROOFS): ([], "COMPLETE 6", "FINISHED"),
    (_S.FINISHED, _E.BLOCK_END): ([], "COMPLETE 6", "FINISHED"),
    (_S.FINISHED, _E.OTHER_BLOCK_END): ([], "COMPLETE 6", "FINISHED"),
    (_S.FINISHED, _E.GOODBYE): ([], "COMPLETE 6", "FINISHED"),
    (_S.FINISHED, _E.LOST): ([], "COMPLETE 6", "gone"),
    (_S.ENDED, _E.HEADER): ([], "COMPLETE 6", "ENDED"),
    (_S.ENDED, _E.ITEMS): ([], "COMPLETE 6", "ENDED"),
    (_S.ENDED, _E.PROOFS): ([], "COMPLETE 6", "ENDED"),
    (_S.ENDED, _E.BLOCK_END): ([], "COMPLETE 6", "ENDED"),
    (_S.ENDED, _E.OTHER_BLOCK_END): ([], "COMPLETE 6", "ENDED"),
    (_S.ENDED, _E.GOODBYE): ([], "COMPLETE 6", "ENDED"),
    (_S.ENDED, _E.LOST): ([], "COMPLETE 6", "gone"),
}


def _observe(race: Race, heard: list[str]) -> tuple[list[str], str, str]:
    block = race.arbiter.blocks.get(9)
    size = 0 if block is None else block.size_bytes
    stands = "-" if block is None else block.state.name if size == 0 else f"{block.state.name} {size}"
    stream = race.arbiter.streams.get(PublisherId(1))
    closed = " closed" if "Alice" in race.closed else ""
    stray = " stray" if any(isinstance(action, Stray) for action in race.log) else ""
    return heard, stands, ("gone" if stream is None else stream.state.name) + closed + stray


@pytest.mark.parametrize(
    ("state", "event"), [(state, event) for state in StreamState for event in StreamEvent]
)
def test_an_event_in_a_state(state: StreamState, event: StreamEvent) -> None:
    race = Race(8, "Alice", hold="verified")
    for step in REACH[state]:
        step(race)
    assert race.arbiter.streams[race.ids["Alice"]].state is state
    heard = race.heard["Alice"]
    heard.clear()
    race.closed.clear()
    race.log.clear()
    SEND[event](race)
    assert _observe(race, heard) == EXPECTED[state, event]
