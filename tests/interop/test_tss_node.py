"""Nodes of TSS networks over gRPC: their initial trust, and what no publisher can change.

The tests make the networks, so that their nodes can sign anything; `tests/interop/test_main_job.py` has real
chains.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.errors import LedgerKeyError
from sluice.gateway.blocks.items import field_item
from sluice.gateway.store.trust_store import KEPT_NAME
from tests.gateway.blocks.proofs import real
from tests.gateway.blocks.proofs.made_chain import BlockPlan, MadeChain
from tests.gateway.blocks.proofs.tss_chain import TssChain
from tests.gateway.blocks.proofs.tss_network import TssNetwork
from tests.gateway.conducting import logged
from tests.nodes import AT_ITS_END, KEY, Wire, ledger_key, make_blocks, running_node, wire_to

NETWORK, OTHER = TssNetwork((1, 1, 1)), TssNetwork((1, 1, 1), seed=2)
CHAIN, OTHER_CHAIN = TssChain(NETWORK), TssChain(OTHER)
ID = NETWORK.ledger.ledger_id


@asynccontextmanager
async def playing(data_dir: Path, keys: Sequence[str] = (), **changes: Any) -> AsyncIterator[Wire]:
    """A node with these ledger keys, and connections to it."""
    settings = {**AT_ITS_END, "ledger_keys": tuple(keys), **changes}
    async with running_node(data_dir, **settings) as node, wire_to(node) as wire:
        yield wire


async def play(
    data_dir: Path,
    scene: Callable[[Wire], Awaitable[None]],
    keys: Sequence[str] = (),
    **changes: Any,
) -> None:
    """Run a node with these ledger keys, and a scene with it."""
    async with playing(data_dir, keys, **changes) as wire:
        await scene(wire)


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the refusal of each refused block."""
    return [refused["what"] for refused in logged(caplog, "block refused")]


async def test_blocks_that_come_all_at_once_wait_for_block_0(tmp_path: Path) -> None:
    async def scene(wire: Wire) -> None:
        publisher = await wire.publisher("alice")
        await publisher.block(*CHAIN.blocks(6))
        await publisher.expect(*(f"ack {number}" for number in range(6)))

    await play(tmp_path, scene)
    assert (tmp_path / KEPT_NAME).read_bytes() == NETWORK.publication

    async def later(wire: Wire) -> None:
        publisher = await wire.publisher("alice")
        await publisher.block(CHAIN.block(6), CHAIN.block(7))
        await publisher.expect("ack 6", "ack 7")

    await play(tmp_path, later, [f"tss:id={ID.hex()}"])


async def test_a_chain_of_both_layouts_that_is_signed_now_and_then(tmp_path: Path) -> None:
    """A state proof is enough for an unsigned block, before the signed one has come."""
    plans = [
        BlockPlan(8, 73),
        BlockPlan(8, 77, body=(field_item(11, b"trace"),), is_signed=False),
        BlockPlan(16, 77, state=b"", is_signed=False),
        BlockPlan(16, 78, body=(field_item(28, b"extension"), field_item(20, b"")), is_signed=False),
        BlockPlan(16, 79),
    ]
    chain = MadeChain(NETWORK, plans)
    blocks = chain.blocks()
    async with playing(tmp_path) as wire:
        publisher = await wire.publisher("alice")
        for block in blocks:
            await publisher.block(block)
            await publisher.expect(f"ack {block.number}")
        assert wire.node.store.chain.last_root_hash == chain.roots[-1]
        stored = [wire.node.store.read_block(number) for number in range(len(plans))]
        assert [one.root_hash for one in stored if one is not None] == chain.roots


async def test_a_forged_block_is_refused_and_the_real_one_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with playing(tmp_path) as wire:
        mallory = await wire.publisher("mallory")
        await mallory.block(CHAIN.block(0))
        await mallory.expect("ack 0")  # else the forged one may be refused before it
        await mallory.block(CHAIN.block(1, signed_by=OTHER))
        await mallory.expect("end BAD_BLOCK_PROOF last 0 about 1")
        alice = await wire.publisher("alice")
        await alice.block(CHAIN.block(1))
        await alice.expect("ack 1")
    assert refusals(caplog) == ["Schnorr address-book proof: challenge (tss.md 5.4)"]


async def test_a_block_0_that_is_not_believed_leaves_nothing_behind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Signed by others than it publishes; the next block 0 may be of any network."""
    async with playing(tmp_path) as wire:
        mallory = await wire.publisher("mallory")
        await mallory.block(CHAIN.block(0, signed_by=OTHER))
        await mallory.expect("end BAD_BLOCK_PROOF last none about 0")
        assert not (tmp_path / KEPT_NAME).exists()
        alice = await wire.publisher("alice")
        await alice.block(OTHER_CHAIN.block(0), OTHER_CHAIN.block(1))
        await alice.expect("ack 0", "ack 1")
    assert (tmp_path / KEPT_NAME).read_bytes() == OTHER.publication


async def test_a_pinned_id_takes_the_network_it_names_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with playing(tmp_path, [f"tss:id={ID.hex()}"]) as wire:
        mallory = await wire.publisher("mallory")
        await mallory.block(OTHER_CHAIN.block(0))
        await mallory.expect("end BAD_BLOCK_PROOF last none about 0")
        alice = await wire.publisher("alice")
        await alice.block(CHAIN.block(0), CHAIN.block(1))
        await alice.expect("ack 0", "ack 1")
    assert refusals(caplog) == ["ledger id publication: ledger id"]


@pytest.mark.slow
async def test_a_file_serves_a_chain_that_begins_later(tmp_path: Path) -> None:
    path = tmp_path / "publication"
    path.write_bytes(NETWORK.publication)

    async def scene(wire: Wire) -> None:
        publisher = await wire.publisher("alice")
        await publisher.block(CHAIN.block(4), CHAIN.block(5))
        await publisher.expect("ack 4", "ack 5")

    await play(tmp_path / "file", scene, [f"tss:{path}"], first_block=4)
    await play(tmp_path / "any", scene, [f"tss:{path}"], first_block="any")
    with pytest.raises(
        LedgerKeyError, match="the chain is to begin with block 4, and only block 0 publishes"
    ):
        await play(tmp_path / "none", scene, first_block=4)


async def test_a_chain_that_begins_later_without_a_file_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with playing(tmp_path, first_block="any") as wire:
        publisher = await wire.publisher("alice")
        await publisher.block(CHAIN.block(4))
        await publisher.expect("end ERROR last none about 4")
        [problem] = wire.node.reporter.readiness()
        assert problem.startswith(
            "block 4 of claimed:alice cannot be checked: missing verification data: TSS block"
        )
    assert refusals(caplog) == []
    assert [line["what"] for line in logged(caplog, "block cannot be checked")] == ["TSS block proof"]


async def test_an_operator_without_a_key_is_told_which_one_is_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A network with keys of its own: block 0 publishes nothing."""
    async with playing(tmp_path) as wire:
        publisher = await wire.publisher("alice")
        await publisher.block(*make_blocks(1))
        await publisher.expect("end ERROR last none about 0")
        assert len(wire.node.reporter.readiness()) == 1
    [refused] = logged(caplog, "block cannot be checked")
    assert (refused["kind"], refused["what"], refused["expected"]) == (
        "missing verification data",
        "Ed25519 block proof",
        "at least one --ledger-key ed25519:HEX",
    )
    [believed] = [record for record in caplog.records if record.message.startswith("no ledger key: ")]
    assert believed.levelname == "WARNING"


async def test_both_kinds_of_key_may_be_given(tmp_path: Path) -> None:
    own = make_blocks(2, key=KEY)
    async with playing(tmp_path, [ledger_key(), f"tss:id={ID.hex()}"]) as wire:
        publisher = await wire.publisher("alice")
        await publisher.block(*own)
        await publisher.expect("ack 0", "ack 1")
    assert not (tmp_path / KEPT_NAME).exists()


async def test_killing_the_proof_process_costs_nobody_a_block(tmp_path: Path) -> None:
    async with playing(tmp_path) as wire:
        publisher = await wire.publisher("alice")
        await publisher.block(CHAIN.block(0))
        await publisher.expect("ack 0")
        for number in (1, 2, 3):
            [process_id] = wire.node.conductor._checks.process_ids
            os.kill(process_id, signal.SIGKILL)
            await publisher.block(CHAIN.block(number))
            await publisher.expect(f"ack {number}")


async def test_a_node_that_can_start_no_process_checks_by_itself_and_blames_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    async with playing(tmp_path) as wire:
        alice = await wire.publisher("alice")
        await alice.block(*CHAIN.blocks(3))
        await alice.expect("ack 0", "ack 1", "ack 2")
        await alice.block(CHAIN.block(3, signed_by=OTHER))
        await alice.expect("end BAD_BLOCK_PROOF last 2 about 3")
        assert not wire.node.conductor._checks.process_ids
    assert len(refusals(caplog)) == 1


@real.needs_real_blocks
@pytest.mark.parametrize("chain", ["signed-chain", pytest.param("layout-8-chain", marks=pytest.mark.slow)])
async def test_ledger_data_of_another_real_network_refuse(
    chain: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "publication"
    path.write_bytes(real.publication("wraps-chain"))
    blocks: list[Block] = [real.block(chain, 0)]
    async with playing(tmp_path / "data", [f"tss:{path}"]) as wire:
        publisher = await wire.publisher("alice")
        await publisher.block(*blocks)
        await publisher.expect("end BAD_BLOCK_PROOF last none about 0")
    assert refusals(caplog) == ["ledger id publication: ledger id"]


@real.needs_real_blocks
@pytest.mark.parametrize(("needed", "answer"), [(3, "ack 0"), (4, "end BAD_BLOCK_PROOF last none about 0")])
async def test_the_operator_says_how_many_nodes_sign_a_record_file(
    needed: int, answer: str, tmp_path: Path
) -> None:
    """Three of the four nodes have signed these."""
    book = real.FOLDER / "record-file-chain" / "address-book.json"
    async with playing(tmp_path, [f"rsa:{book}"], verification_rsa_threshold=needed) as wire:
        publisher = await wire.publisher("alice")
        await publisher.block(real.block("record-file-chain", 0))
        await publisher.expect(answer)


@pytest.mark.parametrize("layout", [8, pytest.param(16, marks=pytest.mark.slow)])
async def test_the_operator_says_which_layout_blocks_have(tmp_path: Path, layout: Literal[8, 16]) -> None:
    """In hash mode the setting alone decides; in full mode no other layout is tried."""
    own_minor = 78 if layout == 8 else 77  # which suggests the other one
    own = MadeChain(NETWORK, [BlockPlan(layout, own_minor)] * 2)
    other = MadeChain(NETWORK, [BlockPlan(8 if layout == 16 else 16, 78)])

    async def scene(wire: Wire) -> None:
        publisher = await wire.publisher("alice")
        await publisher.block(*own.blocks())
        await publisher.expect("ack 0", "ack 1")
        assert wire.node.store.chain.last_root_hash == own.roots[-1]

    await play(tmp_path / "hash", scene, verification_mode="hash", verification_root_layout=layout)

    async def refused(wire: Wire) -> None:
        publisher = await wire.publisher("alice")
        await publisher.block(other.blocks()[0])
        await publisher.expect("end BAD_BLOCK_PROOF last none about 0")

    await play(tmp_path / "other", refused, verification_root_layout=layout)
