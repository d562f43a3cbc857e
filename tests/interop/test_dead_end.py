"""A node whose last block no other node has: its report, a single liar's power, and the way back.

Real nodes and publishers. The chain of record files is real (see tests.gateway.blocks.proofs.real): its
proofs do not cover the state root in the footer.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from grpc import aio

from sluice.gateway.addresses import Address
from sluice.gateway.api import publish_pb2_grpc
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.chain import Chain
from sluice.gateway.blocks.errors import LedgerKeyError
from sluice.gateway.blocks.items import ItemKind, kinds_of
from sluice.gateway.errors import Fatal
from sluice.gateway.node.node import Node
from sluice.gateway.node.rules import NodeLimits
from sluice.gateway.pipeline.limits import PipelineLimits
from sluice.gateway.transport.channels import ClientTls, open_channel
from tests.certificates import Authority
from tests.gateway.block_makers import body_items, footer_item, header_item, proof_item, summary_of
from tests.gateway.blocks.proofs import real
from tests.gateway.node.test_node import get
from tests.gateway.store.test_last_block import change_end
from tests.nodes import ANSWER_SECONDS, Publisher, make_blocks, running_node, until, wire_to
from tests.serving import free_port, sluice

SETTLE_SECONDS = 0.5
LIMITS = NodeLimits(pipeline=PipelineLimits(dispute_settle_ns=int(SETTLE_SECONDS * 1e9)))
"""Sources have to agree for half a second, and not for ten."""
BLOCKS, OTHERS = make_blocks(4), make_blocks(4, seed=8)
CHAIN = "record-file-chain"
BOOK = real.FOLDER / CHAIN / "address-book.json"
HASH_MODE: dict[str, Any] = {"verification_mode": "hash", "ledger_keys": ()}
SHORT_TURNS: dict[str, Any] = {"publish_block_timeout_seconds": 0.5}
"""Publishers that fail blocks stand back no longer than this if nobody else brings the block."""
RECORD_FILES: dict[str, Any] = {"ledger_keys": (f"rsa:{BOOK}",)}


def altered(block: Block) -> Block:
    """Return the block with the last bit of its footer flipped, part of the state root."""
    index = list(kinds_of(block.items)).index(ItemKind.BLOCK_FOOTER)
    footer = block.items[index]
    items = [*block.items[:index], footer[:-1] + bytes([footer[-1] ^ 1]), *block.items[index + 1 :]]
    return Block(block.number, tuple(items))


@asynccontextmanager
async def elsewhere(node: Node, local_host: str = "127.0.0.2") -> AsyncIterator[aio.Channel]:
    """Yield a channel from another address of this machine."""

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = node.grpc_address
        there, back = await asyncio.open_connection(address.host, address.port, local_addr=(local_host, 0))

        async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while data := await source.read(1 << 16):
                target.write(data)
                await target.drain()
            target.close()

        await asyncio.gather(pump(reader, back), pump(there, writer), return_exceptions=True)

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1))
    async with server, aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        yield channel


async def offer(publisher: Publisher, block: Block) -> str:
    """Send a block, again on request; return the last answer, which may follow others."""
    await publisher.block(block)
    while (answer := await publisher.answer()) != f"ack {block.number}":
        if answer == f"resend {block.number}":  # it had to stand back
            await publisher.block(block)
        elif answer.split()[0] not in ("ack", "skip"):
            break
    return answer


async def readiness(node: Node) -> str:
    """What /readyz says."""
    return (await get(node, "/readyz"))[1]


async def until_not_ready(node: Node, begins: str) -> str:
    """Wait until /readyz says so."""
    async with asyncio.timeout(ANSWER_SECONDS):
        while begins not in (text := await readiness(node)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return text


async def until_ready(node: Node) -> None:
    """Wait until /readyz says so."""

    async def is_ready() -> bool:
        return await readiness(node) == "ready\n"

    await until(is_ready, 0.05)


def truncated(data_dir: Path, last_number: int) -> None:
    """Cut a folder with the command, like an operator; raise if it fails."""
    sluice("truncate", data_dir, "--to-block", last_number, "--yes").check_returncode()


async def test_publishers_of_two_addresses_show_a_dead_end_and_one_that_links_ends_it(tmp_path: Path) -> None:
    async with (
        running_node(tmp_path, LIMITS, **HASH_MODE, **SHORT_TURNS) as node,
        wire_to(node) as wire,
        elsewhere(node) as far,
    ):
        assert await offer(await wire.publisher("first"), BLOCKS[0]) == "ack 0"
        wrong = "end BAD_BLOCK_PROOF last 0 about 1"
        assert await offer(await wire.publisher("alice"), OTHERS[1]) == wrong
        assert await offer(await wire.publisher("bob", far), OTHERS[1]) == wrong
        assert await readiness(node) == "ready\n"  # it may be momentary
        said = await until_not_ready(node, "the chain cannot go on")
        assert "from block 0 as it is stored here" in said
        assert "block 1 of others names" in said
        assert "(2 sources agree: claimed:alice, claimed:bob)" in said
        assert (await get(node, "/readyz"))[0] == 503
        page = (await get(node, "/"))[1]
        assert "the chain cannot go on from block 0" in page
        assert "sluice truncate DATA_DIR" in page
        [finding] = [
            one for one in json.loads((await get(node, "/status.json"))[1])["findings"] if one["is_problem"]
        ]
        assert finding["section"] == "The last block fits nobody"
        # The fault is unknown: nobody is blamed for a bad proof.
        assert await offer(await wire.publisher("carol"), OTHERS[1]) == "end ERROR last 0 about 1"
        # And the node accepts a block that links to ours.
        assert await offer(await wire.publisher("dave"), BLOCKS[1]) == "ack 1"
        assert await readiness(node) == "ready\n"


async def test_one_liar_under_many_names_leaves_the_node_ready_and_is_told_that_he_is_wrong(
    tmp_path: Path,
) -> None:
    async with running_node(tmp_path, LIMITS, **HASH_MODE, **SHORT_TURNS) as node, wire_to(node) as wire:
        assert await offer(await wire.publisher("first"), BLOCKS[0]) == "ack 0"
        for count in range(8):
            liar = await wire.publisher(f"liar {count}")
            assert await offer(liar, OTHERS[1]) == "end BAD_BLOCK_PROOF last 0 about 1"
            await asyncio.sleep(SETTLE_SECONDS / 4)
        assert await readiness(node) == "ready\n"
        page = (await get(node, "/"))[1]
        assert "somebody disputes block 0 as it is stored here" in page
        assert await offer(await wire.publisher("honest"), BLOCKS[1]) == "ack 1"
        assert "somebody disputes" not in (await get(node, "/"))[1]


async def test_publishers_of_one_address_are_told_apart_by_their_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.server_files(authority.issue("node"), mutual=True)
    tls: dict[str, Any] = {
        "grpc_tls_certificate": files.certificate,
        "grpc_tls_key": files.key,
        "grpc_tls_client_ca": files.client_ca,
    }
    alice, bob = (authority.client(authority.issue(name)) for name in ("alice", "bob"))

    async with running_node(tmp_path / "data", LIMITS, **HASH_MODE, **tls) as node:

        async def send(tls: ClientTls, block: Block) -> str:
            async with open_channel(str(node.grpc_address), tls) as channel:
                stub = publish_pb2_grpc.BlockStreamPublishServiceStub(channel)
                return await offer(Publisher(stub.publishBlockStream()), block)

        assert await send(alice, BLOCKS[0]) == "ack 0"
        for _ in range(3):
            assert (await send(alice, OTHERS[1])).startswith("end BAD_BLOCK_PROOF")
            await asyncio.sleep(SETTLE_SECONDS / 2)
        assert await readiness(node) == "ready\n"
        assert (await send(bob, OTHERS[1])).startswith("end BAD_BLOCK_PROOF")
        assert "2 sources agree" in await until_not_ready(node, "the chain cannot go on from block 0")


async def test_a_block_that_is_signed_is_never_disputed_before_and_after_a_restart(tmp_path: Path) -> None:
    for is_first in (True, False):
        async with (
            running_node(tmp_path, LIMITS, **SHORT_TURNS) as node,
            wire_to(node) as wire,
            elsewhere(node) as far,
        ):
            if is_first:
                assert await offer(await wire.publisher("first"), BLOCKS[0]) == "ack 0"
            for count in range(3):
                for name, channel in (("alice", None), ("bob", far)):
                    liar = await wire.publisher(f"{name} {count}", channel)
                    assert await offer(liar, OTHERS[1]) == "end BAD_BLOCK_PROOF last 0 about 1"
                await asyncio.sleep(SETTLE_SECONDS)
            assert node.conductor.in_flight.disputed is None
            assert await readiness(node) == "ready\n"


async def test_what_mode_hash_has_taken_is_refused_by_mode_full_if_its_proof_does_not_hold_and_is_cut(
    tmp_path: Path,
) -> None:
    unsigned = Block(1, (*BLOCKS[1].items[:-1], OTHERS[1].items[-1]))  # another block's proof

    async with running_node(tmp_path, LIMITS, **HASH_MODE) as node, wire_to(node) as wire:
        publisher = await wire.publisher("first")
        assert await offer(publisher, BLOCKS[0]) == "ack 0"
        assert await offer(publisher, unsigned) == "ack 1"
    with pytest.raises(LedgerKeyError, match=r"block 1, the last in .* sluice truncate"):
        async with running_node(tmp_path, LIMITS):
            pass
    await asyncio.to_thread(truncated, tmp_path, 0)
    async with running_node(tmp_path, LIMITS) as node, wire_to(node) as wire:
        assert await offer(await wire.publisher("second"), BLOCKS[1]) == "ack 1"


async def test_a_last_block_that_is_damaged_is_cut_and_brought_again(tmp_path: Path) -> None:
    async with running_node(tmp_path, LIMITS) as node, wire_to(node) as wire:
        publisher = await wire.publisher("first")
        for block in BLOCKS[:2]:
            assert await offer(publisher, block) == f"ack {block.number}"
    change_end(tmp_path, bytes(48))
    with pytest.raises(Fatal, match=r"block 1, the last in .*: root hash in its end"):
        async with running_node(tmp_path, LIMITS):
            pass
    await asyncio.to_thread(truncated, tmp_path, 0)
    async with running_node(tmp_path, LIMITS) as node, wire_to(node) as wire:
        assert await offer(await wire.publisher("second"), BLOCKS[1]) == "ack 1"


@pytest.mark.slow
@real.needs_real_blocks
async def test_a_wrong_record_file_block_is_named_cut_and_brought_again(tmp_path: Path) -> None:
    """With a peer on the network's chain, and one publisher."""
    blocks = [real.block(CHAIN, number) for number in range(3)]
    wrong = altered(blocks[1])

    async with running_node(tmp_path / "peer", LIMITS, **RECORD_FILES) as peer, wire_to(peer) as wire:
        publisher = await wire.publisher("honest")
        for block in blocks:
            assert await offer(publisher, block) == f"ack {block.number}"
        peers: dict[str, Any] = {
            "peers": (peer.grpc_address,),
            "catchup_stall_seconds": 1.0,
            "catchup_backoff_seconds": 0.1,
        }
        async with running_node(tmp_path / "node", LIMITS, **RECORD_FILES) as node, wire_to(node) as wire:
            liar = await wire.publisher("liar")
            assert await offer(liar, blocks[0]) == "ack 0"
            assert await offer(liar, wrong) == "ack 1"
        # After a restart, the node looks up block 1's signatures on disk.
        async with (
            running_node(tmp_path / "node", LIMITS, **RECORD_FILES, **peers) as node,
            wire_to(node) as wire,
        ):
            assert (await offer(await wire.publisher("alice"), blocks[2])).startswith("end ")
            said = await until_not_ready(node, "the chain cannot go on from block 1")
            assert "(2 sources agree: " in said
            assert f"peer {peer.grpc_address}" in said
            assert "alice" in said
            assert await offer(await wire.publisher("alice"), blocks[2]) == "end ERROR last 1 about 2"
            with pytest.raises(subprocess.CalledProcessError, match="returned non-zero exit status 1"):
                await asyncio.to_thread(truncated, tmp_path / "node", 0)  # it runs
        await asyncio.to_thread(truncated, tmp_path / "node", 0)
        async with running_node(tmp_path / "node", LIMITS, **RECORD_FILES) as node, wire_to(node) as wire:
            publisher = await wire.publisher("alice")
            for block in blocks[1:]:
                assert await offer(publisher, block) == f"ack {block.number}"
            assert await readiness(node) == "ready\n"
    content = [(tmp_path / name / "datastream.bin").read_bytes() for name in ("peer", "node")]
    assert content[0] == content[1]


@pytest.mark.slow
async def test_nothing_is_acknowledged_before_the_standby_is_cut_as_well(tmp_path: Path) -> None:
    """Two nodes with `commit.min_standbys` 1, whose block 1 must be replaced."""
    at = [Address("127.0.0.1", free_port()) for _ in range(2)]
    both: dict[str, Any] = {**HASH_MODE, "commit_min_standbys": 1, "catchup_backoff_seconds": 0.1}
    a_is: dict[str, Any] = {**both, "grpc_address": at[0], "peers": (at[1],)}
    b_is: dict[str, Any] = {**both, "grpc_address": at[1], "peers": (at[0],), "role": "standby"}
    right_1 = altered(OTHERS[1])
    right_2 = make_second(right_1)

    async with (
        running_node(tmp_path / "b", LIMITS, **b_is),
        running_node(tmp_path / "a", LIMITS, **a_is) as a,
    ):
        await until_ready(a)
        async with wire_to(a) as wire:
            publisher = await wire.publisher("first")
            assert await offer(publisher, OTHERS[0]) == "ack 0"
            assert await offer(publisher, OTHERS[1]) == "ack 1"
    await asyncio.to_thread(truncated, tmp_path / "a", 0)
    async with running_node(tmp_path / "a", LIMITS, **a_is) as a, wire_to(a) as wire:
        async with running_node(tmp_path / "b", LIMITS, **b_is):
            await until_ready(a)
            publisher = await wire.publisher("honest")
            await publisher.block(right_1)
            said = await until_not_ready(a, "block 1 is not acknowledged")
            assert f"{at[1]} has another chain: its block 1 has another root hash" in said
        await asyncio.to_thread(truncated, tmp_path / "b", 0)
        async with running_node(tmp_path / "b", LIMITS, **b_is) as b:
            assert await publisher.answer() == "ack 1"
            assert await offer(publisher, right_2) == "ack 2"
            await until_ready(a)
            assert b.store.chain.last_root_hash == a.store.chain.last_root_hash


async def test_a_standby_that_is_not_cut_does_not_follow(tmp_path: Path) -> None:
    right_1 = altered(OTHERS[1])

    async with running_node(tmp_path / "a", LIMITS, **HASH_MODE) as a, wire_to(a) as wire:
        publisher = await wire.publisher("honest")
        for block in (OTHERS[0], right_1, make_second(right_1)):
            assert await offer(publisher, block) == f"ack {block.number}"
        async with running_node(tmp_path / "b", LIMITS, **HASH_MODE) as b, wire_to(b) as wire:
            other = await wire.publisher("liar")
            for block in OTHERS[:2]:
                assert await offer(other, block) == f"ack {block.number}"
        standby: dict[str, Any] = {"role": "standby", "peers": (a.grpc_address,)}
        (tmp_path / "b" / "role.json").write_text('{"role": "standby"}')
        async with running_node(tmp_path / "b", LIMITS, **HASH_MODE, **standby) as b:
            said = await until_not_ready(b, "the node cannot follow")
            assert "previous_block_root_hash" in said
        await asyncio.to_thread(truncated, tmp_path / "b", 0)
        async with running_node(tmp_path / "b", LIMITS, **HASH_MODE, **standby) as b:
            await until(lambda: b.store.last_number == 2)
            assert b.store.chain.last_root_hash == a.store.chain.last_root_hash


def make_second(first: Block) -> Block:
    """Return block 2 of the chain of OTHERS[0] and this block 1, without a valid proof."""
    chain = Chain()
    for block in (OTHERS[0], first):
        chain.advance(block.number, summary_of(list(block.items)).root_hash)
    previous, all_blocks = chain.links_of_next()
    assert previous is not None
    assert all_blocks is not None
    return Block(2, (header_item(2), *body_items(), footer_item(previous, all_blocks), proof_item(2)))
