"""`ProofService` of a real node: which item a request names, what proves it, and why nothing may."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from sluice.gateway.api import proof_pb2, proof_pb2_grpc
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.errors import LayoutError
from sluice.gateway.blocks.items import field_item
from sluice.gateway.blocks.proofs import ProofVerifier
from sluice.gateway.blocks.proofs.contents import ContentsProof, ItemProof, ProvenItem, verify_item_proof
from sluice.gateway.blocks.trusted_keys import TrustedKeys
from sluice.gateway.node.node import Node
from sluice.gateway.services.block_answers import ACCESS_BYTES_MAX
from sluice.gateway.services.proof_service import PROOF_SERVICE_NAME, REASON_KEY, UNDER_KEY
from sluice.gateway.store.block_hash_tree import GROUP_BLOCKS
from sluice.gateway.store.block_store import BlockStore
from tests.gateway.block_makers import footer_item, header_item, proof_item, summary_of
from tests.nodes import ANSWER_SECONDS, KEY, Wire, make_blocks, make_network_blocks, running_node, wire_to
from tests.publishers.node_thread import store

BLOCKS = make_blocks(6)
Code = proof_pb2.BlockContentsProofResponse.Code
Request = proof_pb2.BlockContentsProofRequest
METHOD = f"/{PROOF_SERVICE_NAME}/getBlockContentsProof"
KEYS = ProofVerifier(TrustedKeys(ed25519=(KEY.public_key().public_bytes_raw(),)))


@asynccontextmanager
async def serving(tmp_path: Path, blocks: Sequence[Block] = BLOCKS) -> AsyncIterator[Wire]:
    """Yield connections to a node with these blocks."""
    if blocks:
        store(tmp_path, blocks)
    async with running_node(tmp_path) as node, wire_to(node) as wire:
        yield wire


async def ask(
    wire: Wire, request: proof_pb2.BlockContentsProofRequest, under: object = None
) -> tuple[proof_pb2.BlockContentsProofResponse, str]:
    """Ask for a proof; return the answer and the reason beside it."""
    metadata = () if under is None else ((UNDER_KEY, str(under)),)
    stub: Any = proof_pb2_grpc.ProofServiceStub(wire.channel())
    call = stub.getBlockContentsProof(request, metadata=metadata, timeout=ANSWER_SECONDS)
    response = await call
    reasons = [str(value) for key, value in await call.trailing_metadata() or () if key == REASON_KEY]
    return response, "".join(reasons)


async def proved(
    wire: Wire, request: proof_pb2.BlockContentsProofRequest, under: int | None = None
) -> ProvenItem:
    """Ask for an item and the headers, and check what they show with the network's key."""
    number = request.block_number
    asked = [(request, under), (Request(block_number=number, block_item_index=0), under)]
    if under is not None:
        asked.append((Request(block_number=under, block_item_index=0), None))
    parts = []
    for one in asked:
        response, reason = await ask(wire, *one)
        assert (response.status, reason) == (Code.SUCCESS, "")
        parts.append(ContentsProof.of(response.block_content_proof))
    if parts[0].item == parts[1].item:
        parts[1:2] = [None]  # type: ignore[list-item]
    return verify_item_proof(ItemProof(number, *parts).to_bytes(), KEYS)


def climbed(proof: proof_pb2.BlockContentsProof) -> bytes:
    """The root hash that a proof leads to, as a client that knows only the message computes it."""
    value = hashlib.sha384(b"\0" + proof.block_item).digest()
    for one in proof.sibling_hashes:
        left, right = (one.sibling_hash, value) if one.is_first else (value, one.sibling_hash)
        value = hashlib.sha384(b"\2" + left + right).digest()
    return value


async def test_an_item_is_named_by_its_place_its_bytes_or_a_hash(tmp_path: Path) -> None:
    async with serving(tmp_path) as wire:
        item = BLOCKS[3].items[1]
        for request in (
            Request(block_number=3, block_item_index=1),
            Request(block_number=3, complete_block_item=item),
            Request(block_number=3, block_item_hash=hashlib.sha384(b"\0" + item).digest()),
            Request(block_number=3, block_item_hash=hashlib.sha384(item).digest()),
        ):
            shown = await proved(wire, request)
            assert (shown.block_number, shown.item) == (3, item)


async def test_a_client_that_knows_the_message_alone_comes_to_the_signed_root_hash(tmp_path: Path) -> None:
    async with serving(tmp_path) as wire:
        for index in range(len(BLOCKS[2].items) - 2):
            response, _ = await ask(wire, Request(block_number=2, block_item_index=index))
            proof = response.block_content_proof
            assert proof.block_item == BLOCKS[2].items[index]
            KEY.public_key().verify(proof.block_signature, climbed(proof))


async def test_each_item_of_a_block_is_proved_under_a_later_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as wire:
        for number, under in ((0, 1), (0, 5), (2, 4)):
            for index in range(len(BLOCKS[number].items) - 2):
                shown = await proved(wire, Request(block_number=number, block_item_index=index), under)
                assert (shown.block_number, shown.item, shown.under_number) == (
                    number,
                    BLOCKS[number].items[index],
                    under,
                )
        response, _ = await ask(wire, Request(block_number=0, block_item_index=1), 5)
        KEY.public_key().verify(
            response.block_content_proof.block_signature, climbed(response.block_content_proof)
        )


async def test_an_item_that_is_there_twice_is_proved_by_its_place(tmp_path: Path) -> None:
    twice = field_item(5, b"the same")
    items = [header_item(), twice, field_item(5, b"another"), twice, footer_item()]
    root_hash = summary_of([*items, proof_item()]).root_hash
    block = Block.from_items([*items, proof_item(0, KEY.sign(root_hash))])
    async with serving(tmp_path, [block]) as wire:
        for request in (
            Request(complete_block_item=twice),
            Request(block_item_hash=hashlib.sha384(twice).digest()),
        ):
            response, reason = await ask(wire, request)
            assert response.status == Code.DUPLICATE_HASH_ITEM_FOUND
            assert "expected one: ask by its index" in reason
        ways = [(await ask(wire, Request(block_item_index=index)))[0] for index in (1, 3)]
        assert [one.block_content_proof.block_item for one in ways] == [twice, twice]
        assert ways[0].block_content_proof.sibling_hashes != ways[1].block_content_proof.sibling_hashes
        assert (await proved(wire, Request(block_item_index=3))).item == twice


async def test_items_of_a_native_chain_are_proved(tmp_path: Path) -> None:
    blocks = make_network_blocks(12)
    store(tmp_path, blocks, stream="native")
    async with running_node(tmp_path) as node, wire_to(node) as wire:
        for index in range(len(blocks[5].items) - 2):
            shown = await proved(wire, Request(block_number=5, block_item_index=index), 11)
            assert (shown.item, shown.under_number) == (blocks[5].items[index], 11)


@pytest.mark.parametrize(
    ("request_", "under", "status", "words"),
    [
        (Request(block_number=1), None, Code.INVALID_REQUEST, "got no block_item"),
        (
            Request(block_number=1, block_item_index=99),
            None,
            Code.ITEM_NOT_FOUND,
            "got item 99, expected one of",
        ),
        (Request(block_number=1, block_item_hash=b""), None, Code.ITEM_NOT_FOUND, "got no such item"),
        (Request(block_number=1, complete_block_item=b"x"), None, Code.ITEM_NOT_FOUND, "got no such item"),
        (Request(block_number=6, block_item_index=0), None, Code.NOT_AVAILABLE, "blocks 0 to 5"),
        (Request(block_number=(1 << 64) - 1, block_item_index=0), None, Code.NOT_AVAILABLE, "blocks 0 to 5"),
        (Request(block_number=1, block_item_index=0), 6, Code.NOT_AVAILABLE, "block 6: got none"),
        (Request(block_number=1, block_item_index=0), 1, Code.INVALID_REQUEST, "a block number above 1"),
        (Request(block_number=1, block_item_index=0), "x", Code.INVALID_REQUEST, "a block number above 1"),
        (
            Request(block_number=1, block_item_index=0),
            1 << 64,
            Code.INVALID_REQUEST,
            "a block number above 1",
        ),
        (
            Request(block_number=1, block_item_index=0),
            "9" * 99,
            Code.INVALID_REQUEST,
            "a block number above 1",
        ),
    ],
)
async def test_no_proof_has_a_reason(
    tmp_path: Path, request_: proof_pb2.BlockContentsProofRequest, under: object, status: int, words: str
) -> None:
    async with serving(tmp_path) as wire:
        response, reason = await ask(wire, request_, under)
        assert response.status == status
        assert not response.HasField("block_content_proof")
        assert words in reason


async def test_nothing_proves_footer_and_proof(tmp_path: Path) -> None:
    async with serving(tmp_path) as wire:
        count = len(BLOCKS[1].items)
        for index, name in ((count - 2, "block footer"), (count - 1, "block proof")):
            response, reason = await ask(wire, Request(block_number=1, block_item_index=index))
            assert response.status == Code.NOT_AVAILABLE
            assert f"block 1 item {index}: got {name}" in reason


async def test_bytes_that_are_no_request_have_an_answer(tmp_path: Path) -> None:
    async with serving(tmp_path) as wire:
        call: Any = wire.channel().unary_unary(METHOD)
        answer = proof_pb2.BlockContentsProofResponse.FromString(await call(b"\xff", timeout=ANSWER_SECONDS))
        assert answer.status == Code.INVALID_REQUEST


async def test_an_empty_node_has_no_proof(tmp_path: Path) -> None:
    async with serving(tmp_path, ()) as wire:
        response, reason = await ask(wire, Request(block_number=0, block_item_index=0))
        assert response.status == Code.NOT_AVAILABLE
        assert "expected one of those here: no blocks" in reason


async def test_a_chain_that_begins_later_has_no_proof_under_a_later_block(tmp_path: Path) -> None:
    async with serving(tmp_path, BLOCKS[2:]) as wire:
        assert (await proved(wire, Request(block_number=3, block_item_index=1))).block_number == 3
        response, reason = await ask(wire, Request(block_number=3, block_item_index=1), 5)
        assert response.status == Code.NOT_AVAILABLE
        assert "got a chain that begins with block 2, expected one that begins with block 0" in reason


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (LayoutError("block 1 at entry 7", "nonsense", "the end of the block"), Code.ERROR),
        (OSError("I/O error"), Code.ERROR),
        (ZeroDivisionError("our bug"), Code.ERROR),
    ],
)
async def test_a_block_that_cannot_be_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    async with serving(tmp_path) as wire:

        def damaged(store: BlockStore, number: int) -> None:
            raise error

        monkeypatch.setattr(BlockStore, "read_block", damaged)
        response, reason = await ask(wire, Request(block_number=1, block_item_index=0))
        assert response.status == status
        assert reason
        monkeypatch.undo()
        assert (await proved(wire, Request(block_number=1, block_item_index=0))).block_number == 1


async def test_whatever_strangers_do_not_take_of_blocks_counts_here_too(tmp_path: Path) -> None:
    async with serving(tmp_path) as wire:
        wire.node.block_access.answers.of_strangers.shares.take("192.0.2.1", ACCESS_BYTES_MAX)
        with pytest.raises(aio.AioRpcError) as caught:
            await ask(wire, Request(block_number=1, block_item_index=0))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_state_proofs_are_not_implemented(tmp_path: Path) -> None:
    async with serving(tmp_path) as wire:
        call: Any = wire.channel().unary_unary(f"/{PROOF_SERVICE_NAME}/getStateProof")
        with pytest.raises(aio.AioRpcError) as caught:
            await call(b"", timeout=ANSWER_SECONDS)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_the_service_has_its_health(tmp_path: Path) -> None:
    async with serving(tmp_path) as wire:
        assert await wire.health(PROOF_SERVICE_NAME) == "SERVING"


async def noted(node: Node, groups: int) -> None:
    """Wait until a node has noted so many groups of block hashes."""
    key = b"sluice/block-hash-group/\1" + (groups - 1).to_bytes(8, "big")
    async with asyncio.timeout(ANSWER_SECONDS):
        while node.store.streamer.notes.get(key) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_longer_chain_is_proved_while_it_grows_and_after_a_start(tmp_path: Path) -> None:
    many = make_blocks(3 * GROUP_BLOCKS + 7)
    store(tmp_path, many[: 2 * GROUP_BLOCKS + 5])
    async with running_node(tmp_path) as node, wire_to(node) as wire:
        await noted(node, 2)
        publisher = await wire.publisher()
        await publisher.block(*many[2 * GROUP_BLOCKS + 5 :])
        await publisher.expect(*(f"ack {block.number}" for block in many[2 * GROUP_BLOCKS + 5 :]))
        await noted(node, 3)
        for number, under in ((0, 3 * GROUP_BLOCKS + 6), (GROUP_BLOCKS, 3 * GROUP_BLOCKS), (700, 701)):
            shown = await proved(wire, Request(block_number=number, block_item_index=1), under)
            assert (shown.block_number, shown.under_number) == (number, under)
    async with running_node(tmp_path) as node, wire_to(node) as wire:
        shown = await proved(wire, Request(block_number=11, block_item_index=1), 3 * GROUP_BLOCKS + 6)
        assert (shown.block_number, shown.item) == (11, many[11].items[1])
