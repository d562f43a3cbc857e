"""A data folder is damaged at random places: no start loses a block, what is served is what was committed.

`SLUICE_LONG=1` tries 2,000 places of a larger folder; `python -m tests.damage` any number.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sluice.datastream.file.recovery import IndexState
from sluice.gateway.store import block_store as ledger
from sluice.gateway.store import evidence
from tests import damage

LONG = os.environ.get("SLUICE_LONG") == "1"


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("places", "blocks"),
    [(24, 60), pytest.param(2000 if LONG else 60, 400 if LONG else 120, marks=pytest.mark.slow)],
)
def test_no_start_loses_what_was_committed(places: int, blocks: int) -> None:
    result = damage.run(places, 11, block_count=blocks, served_every=50 if LONG else 12)
    assert result.failures == []
    assert sum(result.counts.values()) == places
    for what in ("roll back: refused", "flip: refused", "cut: refused"):
        assert result.counts[what], result.counts


def test_a_start_that_believes_the_header_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As starts once did: the test above can fail."""
    monkeypatch.setattr(evidence, "refusal_of", lambda *arguments: None)
    monkeypatch.setattr("sluice.datastream.file.opening.index_state_of", _believing)
    result = damage.run(25, 11, block_count=60, served_every=1000)
    assert any("the node starts with block" in failure for failure in result.failures)
    assert ledger.STREAM_FILE_NAME == damage.STREAM


def _believing(*arguments: object, **more: object) -> object:

    return IndexState.AHEAD


def test_the_folder_is_restored_in_between(tmp_path: Path) -> None:
    folder = damage.Folder(tmp_path / "base", 60)
    place = tmp_path / "damaged"
    place.mkdir()
    for name in ("datastream.bin", "chain.json", "strange", "datastream.db/000099.log"):
        folder.restore(place)
        (place / name).write_bytes(b"x")
        folder.restore(place)
        assert damage._files_of(place) == folder.files
