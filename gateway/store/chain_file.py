"""`chain.json` of a data folder: a snapshot of the chain's state that spares a start reading root hashes.

    {"chain": Chain.state(), "sha256": of that as JSON with sorted keys}

The snapshot is written after its blocks, and before blocks are cut off, so it is never ahead of the stream.
One that is ahead shows that blocks are missing (`gateway/store/evidence.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from sluice.gateway.blocks.chain import Chain
from sluice.gateway.blocks.errors import ChainStateError

__all__ = ["SNAPSHOT_NAME", "pack", "read_snapshot"]

SNAPSHOT_NAME = "chain.json"


def read_snapshot(data_dir: Path) -> Chain | None:
    """Read the snapshot of a data folder; None without one.

    Raises:
        OSError, ValueError, ChainStateError: it cannot be read, or is not whole.
    """
    try:
        text = (data_dir / SNAPSHOT_NAME).read_text("utf-8")
    except FileNotFoundError:
        return None
    return Chain.from_state(_unpack(text))


def pack(state: Mapping[str, object]) -> str:
    """Return the text of a snapshot."""
    return json.dumps({"chain": state, "sha256": _digest(state)})


def _unpack(text: str) -> Mapping[str, object]:
    """Return a snapshot's state. The digest guards it: a wrong tree would refuse every further block.

    Raises:
        ValueError, ChainStateError: the text is not a whole snapshot.
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
