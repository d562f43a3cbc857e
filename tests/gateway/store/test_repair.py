"""The repair: what is offered, found again under the locks, and done."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.datastream.errors import StreamInUse
from sluice.gateway.errors import Fatal
from sluice.gateway.store.block_store import BlockStore
from sluice.gateway.store.repair import Found, Offer, RepairChoice, find, take
from tests.gateway.commands.test_truncate import blocks_in
from tests.gateway.store.test_block_store import BLOCKS, filled
from tests.gateway.store.test_evidence import filled_in_groups, held, put_header


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Make a folder of eight blocks whose header counts five."""
    headers = filled_in_groups(tmp_path, BLOCKS[:5], BLOCKS[5:])
    put_header(tmp_path, headers[0])
    return tmp_path


def test_what_is_found_and_offered(data_dir: Path) -> None:
    before = held(data_dir)
    found = find(data_dir / "datastream.bin", 1)
    assert held(data_dir) == before
    assert (found.is_node, found.damage) == (True, None)
    assert found.refusal is not None
    forward, as_it_is = found.offers
    assert (forward.choice, forward.totals.total_entries, forward.last_block) == (
        RepairChoice.ENTRIES,
        145,
        7,
    )
    assert (forward.cut_entries, forward.cut_bytes, forward.why_no_more) == (0, 0, None)
    assert (as_it_is.choice, as_it_is.totals.total_entries, as_it_is.last_block) == (
        RepairChoice.HEADER,
        91,
        4,
    )
    assert as_it_is.cut_entries == 54
    assert forward.totals.total_length - as_it_is.totals.total_length == as_it_is.cut_bytes


def test_nothing_is_offered_where_nothing_is_wrong(tmp_path: Path) -> None:
    filled(tmp_path)
    found = find(tmp_path / "datastream.bin", 1)
    assert (found.refusal, found.offers) == (None, ())


def test_who_does_not_agree_has_changed_nothing(data_dir: Path) -> None:
    before = held(data_dir)
    asked: list[RepairChoice] = []

    def agree(found: Found, offer: Offer, place: Path | None) -> None:
        asked.append(offer.choice)
        raise Fatal("leave", got="no", expected="yes")

    for choice in (RepairChoice.ENTRIES, RepairChoice.HEADER):
        with pytest.raises(Fatal, match="leave: got no"):
            take(data_dir / "datastream.bin", 1, choice, None, agree)
    with pytest.raises(Fatal, match="got sound, expected entries or header"):
        take(data_dir / "datastream.bin", 1, RepairChoice.SOUND, None, agree)
    assert asked == [RepairChoice.ENTRIES, RepairChoice.HEADER]
    assert held(data_dir) == before
    assert not list(data_dir.glob("cut-*"))


def test_it_is_asked_under_the_locks(data_dir: Path) -> None:
    def agree(found: Found, offer: Offer, place: Path | None) -> None:
        with pytest.raises(StreamInUse):
            BlockStore.open(data_dir)
        with pytest.raises(StreamInUse):
            find(data_dir / "datastream.bin", 1)

    offer, place = take(data_dir / "datastream.bin", 1, RepairChoice.ENTRIES, None, agree)
    assert (offer.last_block, place) == (7, None)
    assert blocks_in(data_dir) == list(range(8))
