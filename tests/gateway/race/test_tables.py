"""The tables of the race are complete, and the documents show them."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from sluice.gateway.race import tables as race_tables
from sluice.gateway.race.tables import (
    BLOCK_TABLE,
    CONSEQUENCES,
    ON_HEADER,
    STREAM_TABLE,
    BlockEvent,
    BlockState,
    Failure,
    Reaction,
    Standing,
    StreamEvent,
    StreamState,
)
from sluice.gateway.settings.table import SETTINGS

ROOT = Path(__file__).parents[3]
README = ROOT / "gateway" / "README.md"
PROTOCOL = ROOT / "docs" / "protocol.md"


def test_every_standing_has_an_answer() -> None:
    assert set(ON_HEADER) == set(Standing)


def test_every_failure_has_a_consequence() -> None:
    assert set(CONSEQUENCES) == set(Failure)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(StreamState, StreamEvent)))
def test_every_stream_state_knows_every_event(state: StreamState, event: StreamEvent) -> None:
    reactions = STREAM_TABLE[state][event]
    sending = state in (StreamState.SENDING, StreamState.PROVEN)
    needs_block = {Reaction.ABANDON, Reaction.COMPLETE, Reaction.APPEND}.intersection(reactions)
    assert not needs_block or sending, "only a stream that sends a block can complete or lose it"
    assert (reactions[-1:] == (Reaction.LEAVE,)) == (event is StreamEvent.LOST)
    assert (Reaction.OFFER in reactions) <= (event is StreamEvent.HEADER)
    assert len(reactions) <= 2


def test_every_block_state_leads_to_the_end_or_back() -> None:
    assert set(BLOCK_TABLE) == set(BlockState)
    path = [
        BlockEvent.HEADER_ACCEPTED,
        BlockEvent.ENDED,
        BlockEvent.VERIFIED,
        BlockEvent.LINKED,
        BlockEvent.COMMITTED,
    ]
    state = BlockState.OPEN
    for event in path:
        given = set(BLOCK_TABLE[state])
        assert given == ({event} if state is BlockState.OPEN else {event, BlockEvent.FAILED})
        state = BLOCK_TABLE[state][event]
    assert state is BlockState.COMMITTED
    assert BLOCK_TABLE[state] == {}


def test_the_protocols_page_shows_the_tables() -> None:
    page = PROTOCOL.read_text("utf-8")
    parts = (race_tables.mermaid(), race_tables.header_rules(), race_tables.failure_rules())
    for text in (*parts, race_tables.stream_rules(), race_tables.reaction_legend()):
        assert text in page, (
            "docs/protocol.md is stale: python -m sluice.gateway.race.tables prints its tables"
        )


def test_the_protocols_page_has_the_settings_as_they_are() -> None:
    rows = re.findall(
        r"^\| [^|]+ \| `(publish\.\w+)` \| ([^|]+) \|", PROTOCOL.read_text("utf-8"), re.MULTILINE
    )
    assert len(rows) >= 9
    defaults = {setting.name: setting.default_text for setting in SETTINGS}
    assert dict(rows) == {name: defaults[name] for name, _ in rows}


def test_readme_shows_the_tables() -> None:
    readme = README.read_text("utf-8")
    for text in (race_tables.mermaid(), race_tables.header_rules(), race_tables.failure_rules()):
        assert text in readme, (
            "gateway/README.md is stale: python -m sluice.gateway.race.tables prints its tables"
        )
