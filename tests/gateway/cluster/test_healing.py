"""Damaged pages of real nodes: never served over TCP or gRPC, reported, healed from a second node."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.datastream import StreamClient
from sluice.datastream.errors import CommandRefused, ConnectionEnded, EntriesDisagree
from sluice.datastream.layout import PAGE_SIZE, Committed, page_start
from sluice.gateway.addresses import Address, parse_address
from sluice.gateway.api import node_pb2
from sluice.gateway.blocks.stream_layout import BlockDecoder, bookmark_of
from sluice.gateway.cluster.limits import ClusterLimits
from sluice.gateway.node.node import Node
from sluice.gateway.node.rules import NodeLimits
from sluice.gateway.store.page_blocks import PageBuilder
from tests.gateway.fake_peer import FakePeer, Script, fake_peer, honest, items_of, says, silent
from tests.gateway.node.test_node import get
from tests.nodes import ANSWER_SECONDS, running_node, stream_bytes, wire_to
from tests.rotten import drop_sums, flip, large_blocks, page_bytes, store, stored_sums

BLOCKS = large_blocks(24, 150_000)
"""About five to a page."""
SOON = NodeLimits(cluster=ClusterLimits(heal_pause_seconds=0.05), unproven_pause_seconds=0.05)
"""Peers that cannot heal a page are soon asked again, and unproven pages are soon read again."""
Code = node_pb2.BlockResponse.Code


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data_dir = tmp_path_factory.mktemp("template") / "data"
    store(data_dir, BLOCKS)
    assert len(stored_sums(data_dir)) == 5
    return data_dir


@pytest.fixture
def folder(template: Path, tmp_path: Path) -> Path:
    """A folder of the blocks, to be damaged."""
    return Path(shutil.copytree(template, tmp_path / "data"))


async def until(condition: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(ANSWER_SECONDS):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def over_tcp(node: Node, start: int = 0) -> list[tuple[bytes, ...]]:
    """Return the items of the blocks that a data-streamer client gets before the node ends the stream."""
    decoder, blocks = BlockDecoder(), []
    host, port = node.tcp_address.host, node.tcp_address.port
    total = node.store.streamer.committed.total_entries
    async with StreamClient.connect(host, port) as client, asyncio.timeout(ANSWER_SECONDS):
        await client.start(start)
        try:
            async for entry in client.entries():
                stored = decoder.feed(entry.type, entry.data)
                if stored is not None:
                    blocks.append(stored.items)
                if entry.number == total - 1:
                    break
        except ConnectionEnded:
            pass
    return blocks


def address_of(peer: FakePeer | Node) -> Address:
    return parse_address(str(peer.grpc_address if isinstance(peer, Node) else peer.address))


# --- never a wrong byte -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "position",
    [
        0,
        pytest.param(3, marks=pytest.mark.slow),
        pytest.param(30, marks=pytest.mark.slow),
        70_000,
        PAGE_SIZE - 1,
    ],
)
async def test_a_damaged_page_is_not_served_and_named(
    folder: Path, position: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip(folder, 1, position)

    async with (
        running_node(folder, SOON, scrub_bytes_per_second=0) as node,
        wire_to(node) as wire,
    ):
        got = await over_tcp(node)
        assert got == [block.items for block in BLOCKS[: len(got)]]
        bad_from = len(got)
        assert 0 < bad_from < len(BLOCKS)
        reader = await wire.subscribe(0)
        *blocks, status = await reader.rest()
        assert (blocks, status) == (BLOCKS[:bad_from], "ERROR")
        codes = [(await wire.get_block(block.number)) for block in BLOCKS]
        for block, answer in zip(BLOCKS, codes, strict=True):
            if answer.status == Code.SUCCESS:
                assert tuple(answer.block.items) == block.items
            else:
                assert answer.status == Code.NOT_FOUND
        refused = [block.number for block, answer in zip(BLOCKS, codes, strict=True) if answer.status != 1]
        assert refused == list(range(bad_from, refused[-1] + 1))
        assert refused[-1] < BLOCKS[-1].number
        # Blocks behind the page are served, from the first one that begins there.
        behind = node.store.streamer.get_bookmark(bookmark_of(refused[-1] + 1))
        assert behind >= node.store.streamer.sums.entry_range(1)[1]
        assert await over_tcp(node, behind) == [block.items for block in BLOCKS[refused[-1] + 1 :]]
        await until(lambda: bool(node._healers[0]._reasons), "the healer has looked")
        http_status, text = await get(node, "/readyz")
        assert http_status == 200, text
        words = node._healers[0].words()
        assert len(words) == 1
        for part in ("datastream.bin", "data page 1, entries ", f"blocks {bad_from} to {refused[-1]}"):
            assert part in words[0]
        assert "not healed: no peer is configured" in words[0]
        page = (await get(node, "/status.json"))[1]
        assert "data page 1, entries" in page
        metrics = (await get(node, "/metrics"))[1]
        assert "sluice_bad_pages 1.0" in metrics
        assert node._healers[0].words(0) == ("and 1 more",)
    lines = [record for record in caplog.records if "it is not served" in record.message]
    assert len(lines) == 1


async def test_a_node_with_a_damaged_page_takes_blocks(folder: Path) -> None:
    flip(folder, 1, 4711)

    more = large_blocks(26, 150_000)[24:]
    async with (
        running_node(folder, SOON, scrub_bytes_per_second=0) as node,
        wire_to(node) as wire,
    ):
        await over_tcp(node)
        alice = await wire.publisher("alice")
        sending = asyncio.ensure_future(alice.block(*more))
        await alice.expect("ack 24", "ack 25")
        await sending


# --- healed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "position"),
    [
        pytest.param(page, position, marks=[] if page == at else pytest.mark.slow)
        for page in range(3)
        for at, position in enumerate((0, 70_000, PAGE_SIZE - 1))
    ],
)
async def test_a_page_is_healed_from_a_second_node(
    template: Path, folder: Path, tmp_path: Path, page: int, position: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    flip(folder, page, position)
    shutil.copytree(template, tmp_path / "other")

    async with (
        running_node(tmp_path / "other", SOON) as other,
        running_node(folder, SOON, peers=(address_of(other),)) as node,
    ):
        healed = node.metrics.pages_healed
        await until(lambda: healed._value.get() == 1, "healed")  # the scrubber found it
        assert not node.store.streamer.sums.bad
        assert page_bytes(folder, page) == page_bytes(template, page)
        assert await over_tcp(node) == [block.items for block in BLOCKS]
        assert node._healers[0].words() == ()
        (line,) = [record for record in caplog.records if record.message == "page healed"]
        assert str(address_of(other)) in str(vars(line))
    assert stream_bytes(folder) == stream_bytes(template)


async def test_a_block_over_many_pages_and_its_neighbours_are_healed(tmp_path: Path) -> None:
    blocks = large_blocks(6, 2_500_000)
    store(tmp_path / "a", blocks)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    good = stream_bytes(tmp_path / "a")
    pages = len(stored_sums(tmp_path / "a"))
    assert pages > 9
    for page in range(pages):  # also those of the last block
        flip(tmp_path / "a", page, 2000 + 1000 * page)

    async with (
        running_node(tmp_path / "b") as other,
        running_node(
            tmp_path / "a", SOON, peers=(address_of(other),), scrub_bytes_per_second=1 << 30
        ) as node,
    ):
        await until(lambda: node.metrics.pages_healed._value.get() == pages, "healed")
        assert await over_tcp(node) == [block.items for block in blocks]
    assert stream_bytes(tmp_path / "a") == good


def liar_with(change: Callable[[list[bytes]], list[bytes]]) -> Script:
    """Send the requested blocks with the second one changed."""

    async def script(peer: FakePeer, start: int, end: int) -> AsyncIterator[Any]:
        async for response in honest(peer, start, end):
            items = list(response.block_items.block_items)
            is_changed = items == list(BLOCKS[start + 1].items)
            yield items_of(*change(items)) if is_changed else response

    return script


def _other_byte(items: list[bytes]) -> list[bytes]:
    longest = max(range(len(items)), key=lambda at: len(items[at]))
    item = bytearray(items[longest])
    item[-9] ^= 1
    return [*items[:longest], bytes(item), *items[longest + 1 :]]


async def _endless(peer: FakePeer, start: int, end: int) -> AsyncIterator[Any]:
    yield items_of(*BLOCKS[start].items)
    while True:
        yield items_of(BLOCKS[start].items[-1])
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (liar_with(_other_byte), "expected"),
        pytest.param(liar_with(lambda items: items[:-1]), "expected", marks=pytest.mark.slow),
        (liar_with(lambda items: [*items, items[-1][:-1] + b"x"]), "does not fit"),
        (says(), "0 of them"),
        (silent, "takes too long"),
        pytest.param(_endless, "takes too long", marks=pytest.mark.slow),
    ],
    ids=["other bytes", "a proof less", "a later proof", "nothing", "silent", "endless"],
)
async def test_a_peer_that_lies_has_nothing_written_and_the_next_one_heals(
    template: Path, folder: Path, tmp_path: Path, script: Script, why: str
) -> None:
    limits = replace(SOON.cluster, heal_attempt_seconds_max=1.0)
    flip(folder, 1, 90_000)
    damaged = stream_bytes(folder)

    async with fake_peer(BLOCKS, script) as liar:
        settings = {"peers": (address_of(liar),), "catchup_stall_seconds": 1.0}
        async with running_node(folder, NodeLimits(cluster=limits), **settings) as node:
            await until(lambda: bool(node._healers[0]._reasons), "the healer has asked")
            reason = node._healers[0]._reasons[1]
            assert why in reason
            assert str(liar.address) in reason
            assert stream_bytes(folder) == damaged
    shutil.copytree(template, tmp_path / "other")
    async with (
        fake_peer(BLOCKS, script) as liar,
        running_node(tmp_path / "other", SOON) as other,
    ):
        settings["peers"] = (address_of(liar), address_of(other))
        async with running_node(folder, NodeLimits(cluster=limits), **settings) as node:
            await until(lambda: node.metrics.pages_healed._value.get() == 1, "healed")
    assert stream_bytes(folder) == stream_bytes(template)


async def test_peers_without_the_blocks_or_away_are_named_and_asked_again(
    template: Path, folder: Path, tmp_path: Path
) -> None:
    flip(folder, 1, 90_000)

    async with running_node(tmp_path / "empty") as empty:
        gone = parse_address("127.0.0.1:1")
        peers = (gone, address_of(empty))
        async with running_node(folder, SOON, peers=peers, catchup_stall_seconds=1.0) as node:
            await until(lambda: bool(node._healers[0]._reasons), "the healer has asked")
            reason = node._healers[0]._reasons[1]
            assert "127.0.0.1:1: UNAVAILABLE" in reason
            assert f"{address_of(empty)} takes too long" in reason  # it waits for the blocks, too
            # That node gets the blocks; now it can help.
            async with wire_to(empty) as wire:
                alice = await wire.publisher("alice")
                sending = asyncio.ensure_future(alice.block(*BLOCKS))
                await alice.expect(*(f"ack {block.number}" for block in BLOCKS))
                await sending
            await until(lambda: not node.store.streamer.sums.bad, "healed")
    assert stream_bytes(folder) == stream_bytes(template)


# --- pages without a sum ------------------------------------------------------------------------------------


def inside_page_1() -> int:
    """A position on page 1 within a block that lies wholly on it."""
    position = 0
    builder = PageBuilder(1, Committed(4096, 0), 2)
    for block in BLOCKS:
        builder.add(block.number, block.items, bytes(48))
        offset = builder._group.base[0] - page_start(1)
        if position > 0 and offset < PAGE_SIZE:
            return (position + offset) // 2
        position = offset
    raise AssertionError


@pytest.mark.parametrize("place", ["a block", pytest.param("padding", marks=pytest.mark.slow)])
async def test_a_damaged_page_without_a_sum_is_found_by_its_blocks_and_healed_by_them(
    template: Path, folder: Path, tmp_path: Path, place: str
) -> None:
    drop_sums(folder)
    flip(folder, 1, inside_page_1() if place == "a block" else PAGE_SIZE - 1)
    shutil.copytree(template, tmp_path / "other")

    async with running_node(folder, SOON, scrub_bytes_per_second=0) as node:
        got = await over_tcp(node)
        assert got == [block.items for block in BLOCKS[: len(got)]]
        assert len(got) < len(BLOCKS)
        assert list(node.store.streamer.sums.bad) == [1]
    async with (
        running_node(tmp_path / "other", SOON) as other,
        running_node(folder, SOON, peers=(address_of(other),)) as node,
    ):
        await until(lambda: node.metrics.pages_healed._value.get() == 1, "healed")
        sums = node.store.streamer.sums
        await until(lambda: all(map(sums.has_sum, range(5))), "scrubbed")
    assert stream_bytes(folder) == stream_bytes(template)
    assert stored_sums(folder) == set(range(5))


async def test_a_liar_heals_no_page_without_a_sum(folder: Path) -> None:
    drop_sums(folder)
    flip(folder, 1, inside_page_1())
    damaged = stream_bytes(folder)

    other = large_blocks(24, 150_000, seed=8)
    async with (
        fake_peer(other) as liar,
        running_node(folder, SOON, peers=(address_of(liar),)) as node,
    ):
        await until(lambda: bool(node._healers[0]._reasons), "the healer has asked")
        assert "previous root hash" in node._healers[0]._reasons[1]
    assert stream_bytes(folder) == damaged


async def test_the_healer_waits_for_nothing_when_it_is_closed(folder: Path) -> None:
    flip(folder, 1, 90_000)

    async with fake_peer(BLOCKS, silent) as mute:
        async with running_node(folder, SOON, peers=(address_of(mute),)) as node:
            await until(lambda: bool(mute.asked), "it was asked")
        assert isinstance(node.broken, asyncio.Future)


# --- anywhere -----------------------------------------------------------------------------------------------


def damage_at_random(data_dir: Path, rng: random.Random) -> int:
    """Flip a bit, or overwrite a stretch of a full page; return its number."""
    page, position = rng.randrange(5), rng.choice((rng.randrange(PAGE_SIZE), rng.randrange(100)))
    if rng.random() < 0.5:
        flip(data_dir, page, position, 1 << rng.randrange(8))
        return page
    size = min(rng.choice((1, 17, 512, 4096, PAGE_SIZE)), PAGE_SIZE - position)
    with (data_dir / "datastream.bin").open("r+b") as file:
        file.seek(page_start(page) + position)
        file.write(bytes(size) if rng.random() < 0.5 else rng.randbytes(size))
    return page


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=[] if seed < 3 else pytest.mark.slow)
        for seed in range(200 if os.environ.get("SLUICE_LONG") else 8)
    ],
)
async def test_damage_anywhere_on_full_pages_is_never_served_and_always_healed(
    template: Path, folder: Path, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    damaged = {damage_at_random(folder, rng) for _ in range(rng.choice((1, 1, 1, 2, 5)))}
    has_no_sums = rng.random() < 0.2
    if has_no_sums:
        drop_sums(folder)

    async def main() -> None:
        async with (
            running_node(folder, SOON, scrub_bytes_per_second=0) as node,
            wire_to(node) as wire,
        ):
            with contextlib.suppress(CommandRefused):
                got = await over_tcp(node)
                assert got == [block.items for block in BLOCKS[: len(got)]]
            for block in BLOCKS:
                answer = await wire.get_block(block.number)
                if answer.status == Code.SUCCESS:
                    assert tuple(answer.block.items) == block.items
                else:
                    assert answer.status == Code.NOT_FOUND
        shutil.copytree(template, tmp_path / "other")
        async with (
            running_node(tmp_path / "other", SOON) as other,
            running_node(folder, SOON, peers=(address_of(other),), scrub_bytes_per_second=1 << 30) as node,
        ):
            sums = node.store.streamer.sums
            ended = node.metrics.scrub_pass_end
            await until(lambda: ended._value.get() > 0 and not sums.bad, "healed")
            await until(lambda: all(sums.has_sum(page) for page in range(5)), "proven")
            assert await over_tcp(node) == [block.items for block in BLOCKS]

    try:
        await main()
    except EntriesDisagree:
        # An unreadable page refuses the start if there are no checksums, or if the last full page is damaged,
        # too: they may be another stream's.
        assert has_no_sums or len(damaged) > 1
    else:
        assert stream_bytes(folder) == stream_bytes(template)
