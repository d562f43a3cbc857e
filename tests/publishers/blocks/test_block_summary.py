"""What is said of a block."""

from __future__ import annotations

import pytest

from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.items import stream_entry_item
from sluice.publishers.blocks.block_summary import size_text, summarize
from tests.gateway.block_makers import block_items, header_item, summary_of


def test_a_block() -> None:
    items = block_items(0)
    summary = summarize(Block(0, tuple(items)))
    assert summary.root_hash == summary_of(items).root_hash.hex()
    assert summary.as_json() == {
        "number": 0,
        "items": len(items),
        "bytes": sum(map(len, items)),
        "timestamp": "2023-11-14T22:13:20Z",
        "root_hash": summary.root_hash,
        "problem": None,
        "kinds": {
            "block_header": 1,
            "event_header": 1,
            "round_header": 1,
            "signed_transaction": 1,
            "transaction_result": 1,
            "transaction_output": 1,
            "block_footer": 1,
            "block_proof": 1,
        },
    }


def test_stream_entries_have_a_name() -> None:
    items = block_items(0)
    items[1:1] = [stream_entry_item(0xB0, b"\x08\x02"), stream_entry_item(2, b"")]
    summary = summarize(Block(0, tuple(items)))
    assert (summary.problem, summary.kinds["stream_entry"]) == (None, 2)


def test_a_block_that_cannot_be_hashed_is_described_all_the_same() -> None:
    summary = summarize(Block(5, (header_item(5, seconds=2**62), b"\xba\x01\x00")))
    assert (summary.root_hash, summary.timestamp) == (None, None)
    assert summary.problem is not None
    assert summary.problem.startswith("missing item: ")
    assert summary.kinds == {"block_header": 1, "field_23": 1}


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (3 << 50, "3072.0 TiB")],
)
def test_sizes(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text
