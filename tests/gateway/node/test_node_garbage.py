"""Tests of what a node leaves to the garbage collector, which runs seldom (`GC_OBJECTS_MIN`): no blocks."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.message import Message

from tests.nodes import Wire, make_blocks, running_node, wire_to

BLOCKS, OTHERS = make_blocks(4), make_blocks(4, seed=8)
SIZE_BYTES = min(sum(map(len, block.items)) for block in (*BLOCKS, *OTHERS))


@pytest.fixture
def garbage() -> Iterator[list[object]]:
    """Objects that reference counts do not free, found by `gc.collect`."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    yield gc.garbage
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


async def taken(wire: Wire) -> None:
    """Committed blocks."""
    alice = await wire.publisher("alice")
    await alice.block(*BLOCKS[:2])
    await alice.expect("ack 0", "ack 1")


async def refused(wire: Wire) -> None:
    """A block with another chain's items, and a block with a malformed item."""
    mallory = await wire.publisher("mallory")
    await mallory.block(OTHERS[2])
    await mallory.expect("end BAD_BLOCK_PROOF last 1 about 2", "closed")
    mallory = await wire.publisher("mallory")
    await mallory.items(*BLOCKS[2].items[:-2], b"\x0a\xff\x01")
    assert (await mallory.answer()).startswith("end ")


async def left(wire: Wire) -> None:
    """A block without an end."""
    carol = await wire.publisher("carol")
    await carol.items(*BLOCKS[2].items[:-2])
    await carol.call.done_writing()
    await carol.expect("closed")


async def read(wire: Wire) -> None:
    """A subscriber that leaves early."""
    reader = await wire.subscribe(0)
    assert await reader.next() == BLOCKS[0]
    reader.call.cancel()


async def test_no_block_waits_for_the_garbage_collector(tmp_path: Path, garbage: list[object]) -> None:
    async with running_node(tmp_path) as node, wire_to(node) as wire:
        for play in (taken, refused, left, read):
            await play(wire)
        assert (await wire.status()).last_available_block == 1
        gc.collect()  # now: a stopped node is garbage itself
    held = {id(value): value for one in garbage for value in gc.get_referents(one)}
    assert garbage  # the search works: gRPC's streams leave some
    assert not [value for value in held.values() if isinstance(value, Message)]
    assert sum(len(value) for value in held.values() if isinstance(value, bytes)) < SIZE_BYTES
