"""`chain.json` of a data folder: a snapshot of the chain's state that spares a start reading root hashes.

    {"chain": Chain.state(), "stream_layout" and "cut_to", "sha256": of that as JSON with sorted keys}

Layout 1 is not written, as earlier versions know none.

`cut_to` is there while a native chain is cut to the last block of the snapshot: the entries that stay in
`blocks.bin` and in `datastream.bin`. No block is committed before a snapshot without it is on disk.

The snapshot is written after its blocks, and before blocks are cut off, so it is never ahead of the stream.
One that is ahead shows that blocks are missing (`gateway/store/evidence.py`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from sluice.gateway.blocks.chain import Chain
from sluice.gateway.blocks.errors import ChainStateError
from sluice.gateway.blocks.stream_layout import LAYOUTS
from sluice.gateway.errors import Fatal

__all__ = ["SNAPSHOT_NAME", "CutMark", "Snapshot", "pack", "read_snapshot", "snapshot_if_whole"]

SNAPSHOT_NAME = "chain.json"
_LAYOUT_KEY: Final = "stream_layout"
_CUT_KEY: Final = "cut_to"


class CutMark(NamedTuple):
    """The entries that a cut of a native chain leaves."""

    blocks: int
    network: int


class Snapshot(NamedTuple):
    """The chain's state, and the layout of its stream."""

    chain: Chain
    layout: int
    cut: CutMark | None = None
    """A native chain is being cut to the chain's last block."""


def read_snapshot(data_dir: Path) -> Snapshot | None:
    """Read the snapshot of a data folder; None without one.

    Raises:
        OSError, ValueError, ChainStateError: it cannot be read, or is not whole.
        Fatal: a later version wrote the stream, in a layout that this one does not know.
    """
    try:
        text = (data_dir / SNAPSHOT_NAME).read_text("utf-8")
    except FileNotFoundError:
        return None
    state = dict(_unpack(text))
    layout = state.pop(_LAYOUT_KEY, 1)
    if layout not in LAYOUTS:
        known = " or ".join(map(str, LAYOUTS))
        raise Fatal(
            f"{data_dir / SNAPSHOT_NAME}: {_LAYOUT_KEY}",
            got=str(layout),
            expected=f"{known}; a later version of Sluice wrote this folder",
        )
    cut = _cut_mark(state.pop(_CUT_KEY, None))
    return Snapshot(Chain.from_state(state), layout, cut)


def snapshot_if_whole(data_dir: Path) -> Snapshot | None:
    """Read the snapshot; None too where it cannot be read.

    Raises:
        Fatal: as `read_snapshot`.
    """
    with contextlib.suppress(OSError, ValueError, ChainStateError):
        return read_snapshot(data_dir)
    return None


def _cut_mark(value: object) -> CutMark | None:
    if value is None:
        return None
    if not isinstance(value, list) or [type(count) for count in value] != [int, int] or min(value) < 0:
        raise ChainStateError(f"chain snapshot: {_CUT_KEY}", repr(value), "two numbers of entries")
    return CutMark(*value)


def pack(snapshot: Snapshot) -> str:
    """Return the text of a snapshot."""
    state = snapshot.chain.state()
    if snapshot.layout > 1:
        state |= {_LAYOUT_KEY: snapshot.layout}
    if snapshot.cut is not None:
        state |= {_CUT_KEY: list(snapshot.cut)}
    return json.dumps({"chain": state, "sha256": _digest(state)})


def _unpack(text: str) -> Mapping[str, object]:
    """Return a snapshot's state. The digest guards it: a wrong tree would refuse every further block.

    Raises ValueError or ChainStateError.
    """
    snapshot = json.loads(text)
    if not isinstance(snapshot, dict) or not isinstance(state := snapshot.get("chain"), dict):
        raise ChainStateError(
            "chain snapshot", f"{len(text)} characters of JSON", "an object that has a chain"
        )
    digest = _digest(state)
    if snapshot.get("sha256") != digest:
        raise ChainStateError("chain snapshot: sha256", repr(snapshot.get("sha256")), digest)
    return state


def _digest(state: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode("utf-8")).hexdigest()
