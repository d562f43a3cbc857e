"""Chains in which no proof tells the layout of a root hash: the next block does, on every node alike."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from sluice.datastream.errors import CommitFailed
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.root_hash import BlockHasher, BlockSummary
from sluice.gateway.commands.check import command as check
from sluice.gateway.store.block_store import BlockStore
from sluice.publishers.commands.verify import command as verify
from tests.gateway.blocks.proofs import real
from tests.gateway.blocks.proofs.made_chain import BlockPlan, MadeChain
from tests.gateway.blocks.proofs.tss_network import TssNetwork
from tests.nodes import running_node, stream_bytes, wire_to

NETWORK = TssNetwork((1, 1, 1))
PLANS = {
    "the version misleads": [BlockPlan(8, 78)] * 6,
    "the version misleads the other way": [BlockPlan(16, 77)] * 6,
    "the layout changes within a version": [BlockPlan(8, 77)] * 3 + [BlockPlan(16, 77)] * 3,
    "and with it": [BlockPlan(8, 78)] * 2 + [BlockPlan(16, 79)] * 2 + [BlockPlan(8, 79)] * 2,
    "to and fro": [BlockPlan(layout, 78) for layout in (8, 16, 16, 8, 16, 8)],
}


def summaries(blocks: Sequence[Block]) -> list[BlockSummary]:
    made = []
    for block in blocks:
        hasher = BlockHasher()
        hasher.add(block.items)
        made.append(hasher.finish())
    return made


def publish(data_dir: Path, *blocks: Block) -> None:
    """Have a node take these blocks, each in turn, and stop."""

    async def main() -> None:
        async with (
            running_node(data_dir, verification_mode="hash", ledger_keys=()) as node,
            wire_to(node) as wire,
        ):
            publisher = await wire.publisher("alice")
            await publisher.block(*blocks)
            await publisher.expect(*(f"ack {block.number}" for block in blocks))

    asyncio.run(main())


def stored_roots(data_dir: Path) -> list[bytes]:
    store = BlockStore.open(data_dir)
    try:
        stored = [store.read_block(number) for number in range((store.last_number or 0) + 1)]
    finally:
        store.close()
    return [block.root_hash for block in stored if block is not None]


@pytest.mark.parametrize(
    "plans",
    [
        pytest.param(plans, id=name, marks=[] if name in ("and with it", "to and fro") else pytest.mark.slow)
        for name, plans in PLANS.items()
    ],
)
def test_every_node_has_the_same_bytes_however_the_blocks_came(
    tmp_path: Path, plans: list[BlockPlan]
) -> None:
    chain = MadeChain(NETWORK, plans)
    blocks = chain.blocks()
    publish(tmp_path / "at once", *blocks)
    for block in blocks:  # with a start between any two: nothing is remembered but what is on disk
        publish(tmp_path / "one by one", block)
    publish(tmp_path / "halves", *blocks[:3])
    publish(tmp_path / "halves", *blocks[3:])
    same = stream_bytes(tmp_path / "at once")
    assert stream_bytes(tmp_path / "one by one") == same
    assert stream_bytes(tmp_path / "halves") == same
    assert stored_roots(tmp_path / "at once")[:-1] == chain.roots[:-1]


@pytest.mark.parametrize("plans", PLANS.values(), ids=PLANS)
def test_the_commands_go_by_the_same_rule(tmp_path: Path, plans: list[BlockPlan]) -> None:
    publish(tmp_path, *MadeChain(NETWORK, plans).blocks())
    result = CliRunner().invoke(check, [str(tmp_path)])
    assert (result.exit_code, "sound" in result.output) == (0, True), result.output
    result = CliRunner().invoke(verify, [str(tmp_path), "--verify", "hash"])
    assert result.exit_code == 0, result.output


def test_a_stop_after_the_root_was_settled_and_before_the_block_that_settled_it(tmp_path: Path) -> None:
    chain = MadeChain(NETWORK, PLANS["the version misleads"])
    blocks = chain.blocks()
    publish(tmp_path / "other", *blocks)
    publish(tmp_path / "stopped", blocks[0])
    store = BlockStore.open(tmp_path / "stopped")
    store.settle(chain.roots[0])
    store.close()
    assert stored_roots(tmp_path / "stopped") == chain.roots[:1]
    publish(tmp_path / "stopped", *blocks[1:])
    assert stream_bytes(tmp_path / "stopped") == stream_bytes(tmp_path / "other")


def test_a_disk_that_refuses_the_block_that_settles_a_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = MadeChain(NETWORK, PLANS["the version misleads"])
    blocks = chain.blocks()
    publish(tmp_path / "other", *blocks)
    appended = BlockStore.append
    refused: list[bytes | None] = []

    def append(self: BlockStore, group: Sequence[object]) -> None:
        if self.last_number == 0 and not refused:
            refused.append(self.root_hash_at(0))
            raise CommitFailed("disk", "header", OSError(errno.EIO, "it is ill"))
        appended(self, group)  # type: ignore[arg-type]

    monkeypatch.setattr(BlockStore, "append", append)

    async def main() -> None:
        async with (
            running_node(tmp_path / "ill", verification_mode="hash", ledger_keys=()) as node,
            wire_to(node) as wire,
        ):
            alice = await wire.publisher("alice")
            await alice.block(blocks[0])
            await alice.expect("ack 0")
            await alice.block(blocks[1])
            await alice.expect("end PERSISTENCE_FAILED last 0 about 1")
            assert refused == [chain.roots[0]]  # it was settled before
            while node.conductor.arbiter.persistence_failed is not None:  # noqa: ASYNC110 - has no event
                await asyncio.sleep(0.05)
            bob = await wire.publisher("bob")
            await bob.block(*blocks[1:])
            await bob.expect(*(f"ack {block.number}" for block in blocks[1:]))

    asyncio.run(main())
    assert stream_bytes(tmp_path / "ill") == stream_bytes(tmp_path / "other")


@real.needs_real_blocks
def test_the_chain_of_the_references_simulator(tmp_path: Path) -> None:
    blocks = [real.block("simulator-chain", number) for number in range(30)]
    publish(tmp_path / "node", *blocks[:7])
    publish(tmp_path / "node", *blocks[7:])
    made = summaries(blocks)
    proven = [after.previous_root_hash for _, after in pairwise(made)]
    assert proven != [one.root_hash for one in made[:-1]]  # the version misleads
    roots = stored_roots(tmp_path / "node")
    assert roots[:-1] == proven
    assert roots[-1] == made[-1].root_hash_other_layout
    for command, arguments in ((check, []), (verify, ["--verify", "hash"])):
        result = CliRunner().invoke(command, [str(tmp_path / "node"), *arguments])
        assert result.exit_code == 0, result.output
