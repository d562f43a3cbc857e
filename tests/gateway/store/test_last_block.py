"""The check of the last block at a start, by its fault and the node's keys."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.errors import LedgerKeyError
from sluice.gateway.blocks.proofs import ProofVerifier, RsaBook
from sluice.gateway.blocks.proofs.ledger_data import LedgerData
from sluice.gateway.blocks.root_hash import RootLayout
from sluice.gateway.blocks.stream_layout import BLOCK_END_TYPE
from sluice.gateway.blocks.trusted_keys import TrustedKeys, VerificationMode
from sluice.gateway.blocks.verification import BlockVerifier
from sluice.gateway.errors import Fatal
from sluice.gateway.store.block_store import BlockStore
from sluice.gateway.store.last_block import LastBlock, look_at_last_block
from sluice.publishers.blocks.maker import key_of_seed
from tests.gateway.block_makers import proof_item
from tests.gateway.blocks.proofs import real, record_files
from tests.gateway.blocks.proofs.tss_chain import TssChain
from tests.gateway.blocks.proofs.tss_network import TssNetwork
from tests.gateway.conducting import logged
from tests.gateway.store.test_trust_store import stored
from tests.nodes import ledger_key, make_blocks, running_node, wire_to

BLOCKS = make_blocks(3)
OWN = TrustedKeys.parse((ledger_key(),))
STRANGE_KEY = ledger_key(key_of_seed(99))
NETWORK, OTHER = TssNetwork((1, 1, 1)), TssNetwork((1, 1, 1), seed=2)


def look(
    data_dir: Path,
    blocks: Sequence[Block],
    keys: TrustedKeys = OWN,
    *,
    mode: VerificationMode = "full",
    ledger_data: LedgerData | None = None,
    book: RsaBook | None = None,
    root_layout: RootLayout = "auto",
) -> LastBlock | None:
    store = stored(data_dir, blocks)
    try:
        proofs = ProofVerifier(keys, mode, ledger_data, book)
        return look_at_last_block(store, BlockVerifier(proofs, root_layout))
    finally:
        store.close()


def change_end(data_dir: Path, changed: bytes) -> None:
    store = BlockStore.open(data_dir)
    streamer = store.streamer
    number = streamer.committed.total_entries - 1
    end = streamer.get_entry(number)
    streamer.update_entry_data(number, BLOCK_END_TYPE, end.data[:8] + changed)
    streamer.close()  # without a snapshot


def test_an_empty_folder_has_none(tmp_path: Path) -> None:
    assert look(tmp_path, []) is None


def test_a_block_that_the_keys_verify(tmp_path: Path) -> None:
    found = look(tmp_path, BLOCKS)
    assert found is not None
    assert found.lack is None
    assert (found.layout.root_layout, found.layout.other_root_hash) == (16, None)


def test_keys_that_contradict_the_block_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LedgerKeyError) as caught:
        look(tmp_path, BLOCKS, TrustedKeys.parse((STRANGE_KEY,)))
    assert str(caught.value).startswith(
        f"ledger keys: Ed25519 block proof of block 2, the last in {tmp_path}"
    )
    assert "which no ledger key verifies" in str(caught.value)
    assert "both where its key has changed" in str(caught.value)
    both = look(tmp_path, [], TrustedKeys.parse((STRANGE_KEY, ledger_key())))
    assert both is not None
    assert both.lack is None


def test_ledger_data_that_contradict_the_block_are_refused(tmp_path: Path) -> None:
    chain = TssChain(NETWORK)
    blocks = [chain.block(0), chain.block(1)]
    keys = TrustedKeys.parse(("tss:block0",))
    with pytest.raises(LedgerKeyError, match="block 1, the last in"):
        look(tmp_path, blocks, keys, ledger_data=OTHER.ledger)
    found = look(tmp_path, [], keys, ledger_data=NETWORK.ledger)
    assert found is not None
    assert found.lack is None


def test_a_key_that_is_missing_is_a_lack(tmp_path: Path) -> None:
    """The keys do not contradict the block; a network may go on with another kind of proof."""
    found = look(tmp_path, [TssChain(NETWORK).block(0)])
    assert found is not None
    assert found.lack is not None
    assert found.lack.startswith(
        f"block 0, the last in {tmp_path}, cannot be checked: missing verification data"
    )


@real.needs_real_blocks
def test_an_address_book_that_does_not_fit_is_a_lack(tmp_path: Path) -> None:
    """A book changes with its network, and a node has only one."""
    blocks = [real.block("record-file-chain", 0)]
    keys = TrustedKeys(rsa_file="book")
    found = look(tmp_path, blocks, keys, book=RsaBook(record_files.book_bytes(4)))
    assert found is not None
    assert found.lack is not None
    assert "which its key does not verify" in found.lack
    own = RsaBook((real.FOLDER / "record-file-chain" / "address-book.json").read_bytes())
    found = look(tmp_path, [], keys, book=own)
    assert found is not None
    assert found.lack is None
    assert found.layout.other_root_hash is not None  # its proof does not sign its root


def test_a_root_hash_that_is_not_the_blocks_is_damage(tmp_path: Path) -> None:
    """Else every honest publisher's next block would be refused for ever."""
    store = stored(tmp_path, BLOCKS)
    root_hash = store.root_hash_at(2)
    store.close()
    assert root_hash is not None
    change_end(tmp_path, bytes([root_hash[0] ^ 1]) + root_hash[1:])
    for mode in ("full", "hash"):
        with pytest.raises(
            Fatal, match=r"block 2, the last in .*: root hash in its end: got .*sluice check.*sluice truncate"
        ):
            look(tmp_path, [], mode=mode)


def test_the_other_root_than_the_one_that_is_signed_is_damage(tmp_path: Path) -> None:
    blocks = make_blocks(1)
    other = real_other_root(blocks[0])
    stored(tmp_path, blocks).close()
    change_end(tmp_path, other)
    with pytest.raises(Fatal, match="root hash in its end"):
        look(tmp_path, [])
    found = look(tmp_path, [], mode="hash")
    assert found is not None
    assert found.layout.root_layout == 8


def real_other_root(block: Block) -> bytes:
    hasher = BlockVerifier(ProofVerifier(OWN, "hash")).hasher()
    hasher.add(block.items)
    other = hasher.finish().root_hash_other_layout
    assert other is not None
    return other


def flip_root(data_dir: Path, number: int) -> None:
    store = BlockStore.open(data_dir)
    root_hash = store.root_hash_at(number)
    store.streamer.close()  # without a snapshot
    assert root_hash is not None
    path = data_dir / "datastream.bin"
    content = bytearray(path.read_bytes())
    # The end of the block comes before the next block's footer, which names the root too.
    content[content.index(root_hash) + 7] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize("has_snapshot", [True, False])
@pytest.mark.parametrize("number", [0, 1])
def test_a_root_hash_of_an_earlier_block_is_damage(tmp_path: Path, has_snapshot: bool, number: int) -> None:
    """Without a snapshot the tree over all roots would be wrong, and every further block refused."""
    stored(tmp_path, BLOCKS).close()
    flip_root(tmp_path, number)
    if not has_snapshot:
        (tmp_path / "chain.json").unlink()
    else:
        before = (tmp_path / "chain.json").read_bytes()
    for _ in range(2):
        with pytest.raises(Fatal, match=rf"block {number} in .*: got block {number}: root hash .* is stored"):
            look(tmp_path, [])
    # A doubted chain is not written: the snapshot would outlive the damage.
    assert has_snapshot == (tmp_path / "chain.json").exists()
    assert not has_snapshot or (tmp_path / "chain.json").read_bytes() == before


def test_a_root_hash_on_an_earlier_page_is_damage_where_the_links_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BlockStore, "first_on_last_page", lambda store: store.last_number)
    stored(tmp_path, BLOCKS).close()
    flip_root(tmp_path, 0)
    assert look(tmp_path, []) is not None  # the snapshot's chain
    (tmp_path / "chain.json").unlink()
    for _ in range(2):
        with pytest.raises(Fatal, match=r"block 2, the last in .*: footer field 2 .*sluice check says where"):
            look(tmp_path, [])
    flip_root(tmp_path, 1)
    with pytest.raises(Fatal, match=r"block 2, the last in .*: footer field 1 .*sluice check says where"):
        look(tmp_path, [])


def test_a_snapshot_of_a_block_that_is_stored_otherwise_tells_which_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a kill, when the snapshot is of an earlier block."""
    monkeypatch.setattr(BlockStore, "first_on_last_page", lambda store: store.last_number)
    stored(tmp_path / "short", BLOCKS[:2]).close()
    stored(tmp_path / "node", BLOCKS).close()
    (tmp_path / "short" / "chain.json").replace(tmp_path / "node" / "chain.json")
    flip_root(tmp_path / "node", 1)
    with pytest.raises(Fatal, match=r"block 1 in .*: got block 1: root hash"):
        look(tmp_path / "node", [])


def test_a_block_on_the_last_page_that_was_changed_is_damage(tmp_path: Path) -> None:
    stored(tmp_path, BLOCKS).close()
    path = tmp_path / "datastream.bin"
    content = bytearray(path.read_bytes())
    item = BLOCKS[0].items[3]
    content[content.index(item) + len(item) - 1] ^= 1
    path.write_bytes(content)
    with pytest.raises(Fatal, match=r"block 0 in .*: got block 0: root hash"):
        look(tmp_path, [])


# --- the node -----------------------------------------------------------------------------------------------


def start(data_dir: Path, **settings: Any) -> list[str]:
    """Start a node; return why it is not ready."""

    async def main() -> list[str]:
        async with running_node(data_dir, **settings) as node:
            return node.reporter.readiness()

    return asyncio.run(main())


def test_a_wrong_key_is_said_before_anybody_is_served(tmp_path: Path) -> None:
    stored(tmp_path, BLOCKS).close()
    with pytest.raises(LedgerKeyError, match="Ed25519 block proof of block 2"):
        start(tmp_path, ledger_keys=(STRANGE_KEY,))
    assert start(tmp_path) == []
    assert start(tmp_path, ledger_keys=(STRANGE_KEY,), verification_mode="hash") == []


async def test_a_node_that_lacks_the_key_of_its_last_block_is_not_ready_until_it_takes_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    foreign = Block(2, (*BLOCKS[2].items[:-1], proof_item(2, bytes(2920))))
    stored(tmp_path, [*BLOCKS[:2], foreign]).close()

    caplog.set_level(logging.ERROR)
    async with running_node(tmp_path) as node, wire_to(node) as wire:
        [problem] = node.reporter.readiness()
        assert problem.startswith("block 2, the last in ")
        [line] = logged(caplog, "the last block cannot be checked with these ledger keys")
        assert line["reason"] == problem
        publisher = await wire.publisher("alice")
        await publisher.block(make_blocks(4)[3])
        await publisher.expect("ack 3")
        assert node.reporter.readiness() == []
