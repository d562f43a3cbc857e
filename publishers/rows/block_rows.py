"""A row a block (`decode=headers` and `decode=hashes`), and a row an item (`decode=items`).

Pure. A block is hashed only if a column needs it: its root hash.
Source: docs/analytics.md, "Columns".
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import pyarrow as pa

from sluice.gateway.blocks.items import ItemKind, footer_of, header_of, proof_of
from sluice.publishers.rows.table import SIZES, TEXTS, TIME, BlockView, Decode, Table
from sluice.publishers.rows.values import as_micros, as_nanos, version_of

__all__ = ["HASHES", "HEADERS", "ITEM_ROWS"]

_KIND_NAMES: Final = {int(kind): kind.name.lower() for kind in ItemKind}


def _kind_name(kind: int) -> str:
    return _KIND_NAMES.get(kind) or f"field_{kind}"


def _headers(block: BlockView, wanted: Collection[str]) -> Table:
    items, kinds = block.items, block.kinds
    header = header_of(items[0])
    time = header.block_timestamp if header.HasField("block_timestamp") else None
    table: Table = {
        "block_number": [block.number],
        "consensus_time": [time and as_micros(time)],
        "consensus_ns": [time and as_nanos(time)],
        "hapi_version": [version_of(header.hapi_proto_version)],
        "software_version": [
            version_of(header.software_version) if header.HasField("software_version") else None
        ],
    }
    if "root_hash" in wanted:
        table["root_hash"] = [block.summary.root_hash]
    footer = footer_of(items[kinds.index(ItemKind.BLOCK_FOOTER)]) if ItemKind.BLOCK_FOOTER in kinds else None
    table["previous_root_hash"] = [footer and footer.previous_block_root_hash]
    table["all_blocks_root_hash"] = [footer and footer.root_hash_of_all_block_hashes_tree]
    table["state_root_hash"] = [(footer and footer.start_of_block_state_root_hash) or None]
    proofs = [proof_of(item) for kind, item in zip(kinds, items, strict=True) if kind == ItemKind.BLOCK_PROOF]
    table["proof_kinds"] = [[proof.WhichOneof("proof") or "unknown" for proof in proofs]]
    counts: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for kind, item in zip(kinds, items, strict=True):
        name = _kind_name(kind)
        counts[name] = counts.get(name, 0) + 1
        sizes[name] = sizes.get(name, 0) + len(item)
    table["item_count"] = [len(items)]
    table["size_bytes"] = [sum(sizes.values())]
    table["item_counts"] = [list(counts.items())]
    table["item_bytes"] = [list(sizes.items())]
    return table


HEADERS: Final = Decode(
    {
        "block_number": pa.int64(),
        "consensus_time": TIME,
        "consensus_ns": pa.int64(),
        "hapi_version": pa.string(),
        "software_version": pa.string(),
        "root_hash": pa.binary(),
        "previous_root_hash": pa.binary(),
        "all_blocks_root_hash": pa.binary(),
        "state_root_hash": pa.binary(),
        "proof_kinds": TEXTS,
        "item_count": pa.int64(),
        "size_bytes": pa.int64(),
        "item_counts": SIZES,
        "item_bytes": SIZES,
    },
    _headers,
)
"""A row a block."""


def _items(block: BlockView, wanted: Collection[str]) -> Table:
    count = len(block.items)
    header = header_of(block.items[0])
    time = as_micros(header.block_timestamp) if header.HasField("block_timestamp") else None
    return {
        "block_number": [block.number] * count,
        "consensus_time": [time] * count,
        "item_index": list(range(count)),
        "kind": [_KIND_NAMES.get(kind) or _kind_name(kind) for kind in block.kinds],
        "item": list(block.items),
    }


ITEM_ROWS: Final = Decode(
    {
        "block_number": pa.int64(),
        "consensus_time": TIME,
        "item_index": pa.int64(),
        "kind": pa.string(),
        "item": pa.binary(),
    },
    _items,
)
"""A row an item; the time is that of the block."""


def _hashes(block: BlockView, wanted: Collection[str]) -> Table:
    summary = block.summary
    return {
        "block_number": [summary.number],
        "root_hash": [summary.root_hash],
        "root_layout": [summary.root_layout],
        "previous_root_hash": [summary.previous_root_hash],
        "all_blocks_root_hash": [summary.all_blocks_root_hash],
    }


HASHES: Final = Decode(
    {
        "block_number": pa.int64(),
        "root_hash": pa.binary(),
        "root_layout": pa.int64(),
        "previous_root_hash": pa.binary(),
        "all_blocks_root_hash": pa.binary(),
    },
    _hashes,
)
"""A row a block: its root hash and its links."""
