"""`chain.json`: what was written is read, and nothing else is."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from sluice.gateway.blocks.chain import Chain
from sluice.gateway.blocks.errors import ChainStateError
from sluice.gateway.blocks.merkle import HASH_SIZE
from sluice.gateway.blocks.stream_layout import LAYOUTS, NEWEST_LAYOUT
from sluice.gateway.errors import Fatal
from sluice.gateway.store.chain_file import SNAPSHOT_NAME, CutMark, Snapshot, pack, read_snapshot


def chain_of(count: int) -> Chain:
    chain = Chain()
    for number in range(count):
        chain.advance(number, bytes([number]) * HASH_SIZE)
    return chain


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert read_snapshot(tmp_path) is None
    for count in (0, 1, 5):
        for layout in LAYOUTS:
            (tmp_path / SNAPSHOT_NAME).write_text(pack(Snapshot(chain_of(count), layout)))
            found = read_snapshot(tmp_path)
            assert found is not None
            assert (found.chain.state(), found.layout) == (chain_of(count).state(), layout)


def test_the_mark_of_a_cut(tmp_path: Path) -> None:
    path = tmp_path / SNAPSHOT_NAME
    path.write_text(pack(Snapshot(chain_of(3), 3, CutMark(20, 7))))
    found = read_snapshot(tmp_path)
    assert found is not None
    assert (found.chain.last_number, found.cut) == (2, (20, 7))
    wrongs: tuple[object, ...] = ("5", [1], [1, 2, 3], [1, -1], [1, "2"], [True, 2], [1.5, 2], {})
    for wrong in wrongs:
        state = chain_of(3).state() | {"stream_layout": 3, "cut_to": wrong}
        digest = hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()
        path.write_text(json.dumps({"chain": state, "sha256": digest}))
        with pytest.raises(ChainStateError, match=r"cut_to: got .*, expected two numbers of entries"):
            read_snapshot(tmp_path)


def test_a_snapshot_of_an_earlier_version_is_of_layout_1(tmp_path: Path) -> None:
    """And layout 1 is written so that an earlier version reads it."""
    state = chain_of(3).state()
    digest = hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()
    text = json.dumps({"chain": state, "sha256": digest})
    (tmp_path / SNAPSHOT_NAME).write_text(text)
    found = read_snapshot(tmp_path)
    assert found is not None
    assert found.layout == 1
    assert pack(found) == text


def test_the_layout_of_a_later_version_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / SNAPSHOT_NAME).write_text(pack(Snapshot(chain_of(3), 9)))
    with pytest.raises(Fatal) as caught:
        read_snapshot(tmp_path)
    expected = "1 or 2 or 3; a later version of Sluice wrote this folder"
    assert str(caught.value) == f"{tmp_path / SNAPSHOT_NAME}: stream_layout: got 9, expected {expected}"


def test_a_change_anywhere_is_seen(tmp_path: Path) -> None:
    """It is evidence of the last block."""
    text = pack(Snapshot(chain_of(3), NEWEST_LAYOUT)).encode()
    path = tmp_path / SNAPSHOT_NAME
    for at in range(len(text)):
        changed = bytearray(text)
        changed[at] ^= 1
        path.write_bytes(changed)
        with pytest.raises((ValueError, ChainStateError)):
            read_snapshot(tmp_path)
    for size in range(len(text)):
        path.write_bytes(text[:size])
        with pytest.raises((ValueError, ChainStateError)):
            read_snapshot(tmp_path)


@pytest.mark.parametrize("text", ["5", "[{}]", "{}", '{"chain": 5}'])
def test_other_json_is_no_snapshot(tmp_path: Path, text: str) -> None:
    (tmp_path / SNAPSHOT_NAME).write_text(text)
    with pytest.raises(
        ChainStateError, match=r"chain snapshot: got .* characters of JSON, expected an object"
    ):
        read_snapshot(tmp_path)
    assert json.loads(text) is not None
