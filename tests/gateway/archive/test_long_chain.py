"""`python -m tests.gateway.archive.long_chain`, in a small size."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

import pytest

from sluice.datastream.events.sanity import SanityCheck
from sluice.publishers.blocks.linking import sign_block
from sluice.publishers.sources.stream_runs import PagesReader
from tests.datastream.streams import sample_file
from tests.gateway.archive.long_chain import LongChain, network_blocks, repeated_entries
from tests.nodes import KEY
from tests.reference_data import needs_stream

MIB = 1 << 20
LONG = os.environ.get("SLUICE_LONG") == "1"
COPY_ENTRIES = 13_617
"""Those of the sample up to its last batch, which has no end."""

long = pytest.mark.skipif(not LONG, reason="ten nodes and nine clients; SLUICE_LONG=1 runs it")


@long
def test_a_chain_that_is_longer_than_the_disk(tmp_path: Path) -> None:
    chain = LongChain(tmp_path / "chain", 200 * MIB, 64 * MIB, 64 * MIB, seed=1)
    chain.run()
    assert chain.verdicts.failed == []


@long
@needs_stream
def test_a_networks_stream_that_is_longer_than_the_disk(tmp_path: Path) -> None:
    stream = sample_file(tmp_path)
    chain = LongChain(tmp_path / "chain", 224 * MIB, 64 * MIB, 64 * MIB, seed=1, stream=stream)
    chain.run()
    assert chain.verdicts.failed == []
    assert "a new node has every full page, or its verified digest" in chain.verdicts.held


@needs_stream
def test_a_networks_stream_repeated_is_one_stream(tmp_path: Path) -> None:
    stream = sample_file(tmp_path)
    with PagesReader(stream) as reader:
        own = [entry for page in reader.pages_from(reader.run_from(0)) for entry in page][:COPY_ENTRIES]
    entries = list(islice(repeated_entries(stream), COPY_ENTRIES + 1_000))
    assert entries[:COPY_ENTRIES] == own
    check = SanityCheck()
    assert [line for entry in entries[COPY_ENTRIES - 1_000 :] for line in check.feed(entry)] == []
    kinds = [(entry.type, len(entry.data)) for entry in entries]
    again = kinds[COPY_ENTRIES:]
    assert [kind for kind, _ in again] == [kind for kind, _ in kinds[: len(again)]]
    assert all(0 <= size - before <= 5 for (_, size), (_, before) in zip(again, kinds, strict=False))
    blocks = list(network_blocks(20_000, 0, stream, "l2block"))
    assert [block.number for block in blocks] == list(range(len(blocks)))
    assert all(block.items == sign_block(block.number, block.items, KEY) for block in blocks)
