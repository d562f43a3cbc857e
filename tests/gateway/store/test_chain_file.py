"""`chain.json`: what was written is read, and nothing else is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sluice.gateway.blocks.chain import Chain
from sluice.gateway.blocks.errors import ChainStateError
from sluice.gateway.blocks.merkle import HASH_SIZE
from sluice.gateway.store.chain_file import SNAPSHOT_NAME, pack, read_snapshot


def chain_of(count: int) -> Chain:
    chain = Chain()
    for number in range(count):
        chain.advance(number, bytes([number]) * HASH_SIZE)
    return chain


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert read_snapshot(tmp_path) is None
    for count in (0, 1, 5):
        (tmp_path / SNAPSHOT_NAME).write_text(pack(chain_of(count).state()))
        found = read_snapshot(tmp_path)
        assert found is not None
        assert found.state() == chain_of(count).state()


def test_a_change_anywhere_is_seen(tmp_path: Path) -> None:
    """It is evidence of the last block."""
    text = pack(chain_of(3).state()).encode()
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
