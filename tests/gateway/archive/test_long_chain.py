"""`python -m tests.gateway.archive.long_chain`, in a small size."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.gateway.archive.long_chain import LongChain

MIB = 1 << 20
LONG = os.environ.get("SLUICE_LONG") == "1"


@pytest.mark.skipif(not LONG, reason="ten nodes and nine clients; SLUICE_LONG=1 runs it")
def test_a_chain_that_is_longer_than_the_disk(tmp_path: Path) -> None:
    chain = LongChain(tmp_path / "chain", 200 * MIB, 64 * MIB, 64 * MIB, seed=1)
    chain.run()
    assert chain.verdicts.failed == []
