"""The summary of a block in one line, for people and for scripts.

Pure. Proofs are not checked.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.errors import BlockRefused, ItemError
from sluice.gateway.blocks.items import ItemKind, header_of, kinds_of
from sluice.gateway.blocks.root_hash import BlockHasher

__all__ = ["BlockSummaryLine", "size_text", "summarize"]


@dataclass(frozen=True, slots=True)
class BlockSummaryLine:
    """The summary of one block."""

    number: int
    items_count: int
    size_bytes: int
    """Of the items."""
    timestamp: str | None
    """Consensus time, ISO 8601; None: it cannot be written so."""
    root_hash: str | None
    """Hex."""
    problem: str | None
    """The reason why it cannot be hashed."""
    kinds: dict[str, int]

    def as_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        return {
            "number": self.number,
            "items": self.items_count,
            "bytes": self.size_bytes,
            "timestamp": self.timestamp,
            "root_hash": self.root_hash,
            "problem": self.problem,
            "kinds": self.kinds,
        }


def summarize(block: Block) -> BlockSummaryLine:
    """Return the summary of a block."""
    hasher = BlockHasher()
    root_hash = problem = None
    try:
        hasher.add(block.items)
        root_hash = hasher.finish().root_hash.hex()
    except BlockRefused as refused:
        problem = str(refused)
    try:
        kinds = dict(Counter(_kind_name(kind) for kind in kinds_of(block.items)))
    except ItemError as error:
        kinds, problem = {}, problem or str(error)
    timestamp = _timestamp(block)
    return BlockSummaryLine(
        block.number, len(block.items), block.size_bytes, timestamp, root_hash, problem, kinds
    )


def size_text(size_bytes: float) -> str:
    """Return a size for people: `812 B`, `4.2 KiB`, `1.0 MiB`."""
    unit = "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size_bytes < 1024:
            break
        size_bytes, unit = size_bytes / 1024, larger
    return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"


def _timestamp(block: Block) -> str | None:
    seconds = header_of(block.items[0]).block_timestamp.seconds
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return None


def _kind_name(kind: int) -> str:
    try:
        return ItemKind(kind).name.lower()
    except ValueError:
        return f"field_{kind}"
