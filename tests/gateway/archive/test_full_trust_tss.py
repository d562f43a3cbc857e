"""A node that begins with the archive of a TSS network: block 0 brings the ledger data for all proofs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.items import field_item
from sluice.gateway.errors import GatewayError, StartAbandoned
from sluice.gateway.store.block_store import BlockStore
from tests.gateway.archive.chains import archive
from tests.gateway.archive.test_full_trust import Stop, begin, rules
from tests.gateway.blocks.proofs.tss_chain import TssChain
from tests.gateway.blocks.proofs.tss_network import TssNetwork
from tests.gateway.store.test_block_store import verified
from tests.nodes import running_node

COUNT = 15
"""Blocks of ten pages: two segments, and a part of a third."""
BODY = [field_item(4, bytes([number]) * 700_000) for number in range(10)]


def store(folder: Path, blocks: Iterable[Block]) -> None:
    made = BlockStore.open(folder)
    for block in map(verified, blocks):
        made.append([block])
        made.advance(block)
    made.close()


@pytest.fixture(scope="module")
def chain() -> TssChain:
    return TssChain(TssNetwork((1, 1, 1)), BODY)


@pytest.fixture(scope="module")
def place(chain: TssChain, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    store(folder / "node", chain.blocks(COUNT))
    archive(folder / "node", folder / "archive")
    return folder / "archive"


@pytest.mark.parametrize("trust", [pytest.param("full", marks=pytest.mark.slow), "proof"])
async def test_block_0_is_believed_and_kept(place: Path, chain: TssChain, tmp_path: Path, trust: str) -> None:
    new = tmp_path / "new"
    settings = {"archive_url": f"file://{place}", "archive_trust": trust}
    key = f"tss:id={chain.network.ledger.ledger_id.hex()}"
    async with running_node(new, ledger_keys=(key,), **settings) as node:
        assert node.store.last_number == 11
        assert node.store.streamer.remote.end == 64
    assert (new / "ledger-id.bin").exists()
    assert not (new / "beginning").exists()


def test_a_later_attempt_knows_the_ledger(place: Path, tmp_path: Path) -> None:
    new, keys = tmp_path / "new", ("tss:block0",)
    with pytest.raises(StartAbandoned):
        begin(place, new, rules(keys=keys, go_on=Stop(100)))
    assert (new / "beginning" / "ledger-id.bin").exists()
    assert (new / "beginning" / "chain.json").exists()
    assert begin(place, new, rules(keys=keys))
    assert (new / "ledger-id.bin").exists()


def test_another_ledger_id(place: Path, tmp_path: Path) -> None:
    with pytest.raises(GatewayError, match="block 0: "):
        begin(place, tmp_path / "new", rules(keys=(f"tss:id={bytes(32).hex()}",)))
    assert not any((tmp_path / "new").iterdir())


def test_one_block_that_another_network_signed(chain: TssChain, tmp_path: Path) -> None:
    blocks = chain.blocks(COUNT)
    blocks[5] = chain.block(5, signed_by=TssNetwork((1, 1, 1), seed=2))
    store(tmp_path / "node", blocks)
    archive(tmp_path / "node", tmp_path / "archive")
    with pytest.raises(GatewayError, match=r"block 5: Schnorr address-book proof.* by the keys of this node"):
        begin(tmp_path / "archive", tmp_path / "new", rules(keys=("tss:block0",)))
    assert not any((tmp_path / "new").iterdir())
