"""`chain.json` of a data folder: a snapshot of the chain's state that spares a start reading root hashes.

    {"chain": Chain.state() and "stream_layout", "sha256": of that as JSON with sorted keys}

Layout 1 is not written, as earlier versions know none.

The snapshot is written after its blocks, and before blocks are cut off, so it is never ahead of the stream.
One that is ahead shows that blocks are missing (`gateway/store/evidence.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from sluice.gateway.blocks.chain import Chain
from sluice.gateway.blocks.errors import ChainStateError
from sluice.gateway.blocks.stream_layout import LAYOUTS
from sluice.gateway.errors import Fatal

__all__ = ["SNAPSHOT_NAME", "Snapshot", "pack", "read_snapshot"]

SNAPSHOT_NAME = "chain.json"
_LAYOUT_KEY: Final = "stream_layout"


class Snapshot(NamedTuple):
    """The chain's state, and the layout of its stream."""

    chain: Chain
    layout: int


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
    return Snapshot(Chain.from_state(state), layout)


def pack(snapshot: Snapshot) -> str:
    """Return the text of a snapshot."""
    state = snapshot.chain.state()
    if snapshot.layout > 1:
        state |= {_LAYOUT_KEY: snapshot.layout}
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
