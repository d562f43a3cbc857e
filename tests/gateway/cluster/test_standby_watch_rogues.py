"""Rogue standbys over real gRPC: an honest one still confirms the blocks."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from sluice.gateway.api import standby_pb2
from sluice.gateway.cluster import standby_watch
from sluice.gateway.cluster.limits import ClusterLimits
from sluice.gateway.node.node import Node
from sluice.gateway.services import height_service
from tests.gateway.cluster.test_standby_watch import active, publisher_that_stored, state_of, until
from tests.gateway.conducting import logged
from tests.gateway.heights import BLOCKS, ROOTS, Told, told
from tests.nodes import wire_to

Level = standby_pb2.Level


def level(number: int, root_hash: bytes = bytes(48), instance: str = "rogue") -> Level:
    return Level(block_number=number, root_hash=root_hash, instance=instance)


@asynccontextmanager
async def rogue(reports: Callable[[], Iterator[Level]], *, hangs: bool = False) -> AsyncIterator[str]:
    """Yield the address of a standby that sends these reports at full speed, then nothing."""

    async def watch(request: bytes, context: Any) -> AsyncIterator[bytes]:
        for report in reports():
            yield report.SerializeToString()
        await asyncio.Event().wait()

    async def level_at(request: bytes, context: Any) -> bytes:
        if hangs:
            await asyncio.Event().wait()
        return level(1 << 40).SerializeToString()

    stream: grpc.RpcMethodHandler[Any, Any] = grpc.unary_stream_rpc_method_handler(watch)
    answer: grpc.RpcMethodHandler[Any, Any] = grpc.unary_unary_rpc_method_handler(level_at)
    handlers = {"watch": stream, "levelAt": answer}
    server = aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(height_service.SERVICE_NAME, handlers),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def follow(node: Node, standby: Told) -> None:
    """Make an honest standby store the node's blocks."""
    while True:
        have = -1 if standby.block_store.last_number is None else standby.block_store.last_number
        if (node.store.last_number or 0) > have or (have == -1 and node.store.last_number == 0):
            standby.store(have + 1)
        await asyncio.sleep(0.002)


def changes_its_name() -> Iterator[Level]:
    """Alternate between the honest standby's name and another."""
    for name in itertools.cycle(("honest", "rogue")):
        yield level(0, ROOTS[0], name)


def goes_back() -> Iterator[Level]:
    """Lose a block, then have it again."""
    for number in itertools.cycle((1, 0)):
        yield level(number, ROOTS[number])


def floods() -> Iterator[Level]:
    """Repeat one report."""
    while True:
        yield level(0, ROOTS[0])


def reports_what_nobody_has() -> Iterator[Level]:
    """Be further ahead each time."""
    for number in itertools.count(1 << 40):
        yield level(number)


def has_a_long_name() -> Iterator[Level]:
    """Have a new name of a megabyte each time."""
    for number in itertools.count():
        yield level(0, ROOTS[0], f"{number}" + "x" * 1_000_000)


@pytest.mark.parametrize(
    "reports",
    [
        changes_its_name,
        pytest.param(goes_back, marks=pytest.mark.slow),
        floods,
        pytest.param(reports_what_nobody_has, marks=pytest.mark.slow),
        has_a_long_name,
    ],
)
async def test_an_honest_standby_beside_a_rogue_has_blocks_acknowledged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, reports: Callable[[], Iterator[Level]]
) -> None:
    caplog.set_level(logging.INFO)

    async def main() -> list[float]:
        waits = []
        async with (
            rogue(reports, hangs=True) as address,
            told(tmp_path / "b", instance="honest") as honest,
            active(tmp_path, address, honest.address) as node,
            wire_to(node) as wire,
        ):
            following = asyncio.ensure_future(follow(node, honest))
            await until(lambda: not state_of(node, honest.address).startswith("does not report"))
            alice = await wire.publisher("alice")
            for number, block in enumerate(BLOCKS):
                begun_at = time.monotonic()
                await alice.block(block)
                await alice.expect(f"ack {number}")
                waits.append(time.monotonic() - begun_at)
                await asyncio.sleep(0.1)
            following.cancel()
        return waits

    begun_at = time.monotonic()
    waits = sorted(await main())
    assert waits[len(waits) // 2] < 1.0, waits
    assert waits[-1] < 5.0, waits
    # The node connects to it every two seconds.
    assert len(logged(caplog, "standby")) < 12 + 3 * (time.monotonic() - begun_at)


async def test_the_questions_to_standbys_that_are_ahead_do_not_wait_for_one_that_does_not_answer(
    tmp_path: Path,
) -> None:
    async with (
        rogue(lambda: iter((level(1 << 40),)), hangs=True) as address,
        told(tmp_path / "b", instance="honest") as honest,
    ):
        async with active(tmp_path, honest.address) as node, wire_to(node) as wire:
            await publisher_that_stored(node, wire, *BLOCKS[:3])
        honest.store(*range(10))
        async with active(tmp_path, address, honest.address) as node, wire_to(node) as wire:
            async with asyncio.timeout(4):  # each question may take five seconds
                while node.reporter.readiness():  # noqa: ASYNC110
                    await asyncio.sleep(0.002)
                alice = await wire.publisher("alice")
                await alice.block(*BLOCKS[3:6])
                await alice.expect("ack 3", "ack 4", "ack 5")


async def test_old_blocks_that_a_rogue_reports_are_looked_up_one_at_a_time_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each costs a read of the disk, and pending ones must not pile up."""
    limits = ClusterLimits(own_roots_kept=1)
    looked: list[int] = []

    def old_ones() -> Iterator[Level]:
        for number in range(11):
            yield level(number, ROOTS[number])

    async with (
        told(tmp_path / "b", instance="honest") as honest,
        active(tmp_path, honest.address, limits=limits) as node,
        wire_to(node) as wire,
    ):
        await publisher_that_stored(node, wire, *BLOCKS)
    async with rogue(old_ones) as address, active(tmp_path, address, limits=limits) as node:
        own_root = standby_watch.StandbyWatch._own_root

        async def count(watch: standby_watch.StandbyWatch, number: int) -> bytes | None:
            looked.append(number)
            return await own_root(watch, number)

        monkeypatch.setattr(standby_watch.StandbyWatch, "_own_root", count)
        await until(lambda: state_of(node, address) == "has block 10")
        await until(lambda: looked and looked[-1] == 10)
        gate = node.conductor.acknowledging.quorum
        assert gate is not None
        await until(lambda: gate.unknown() is None)
    assert len(looked) < 11


@pytest.mark.parametrize(
    ("reports", "got"),
    [
        ((level(3, ROOTS[3]), level(2, ROOTS[2])), "block 2, expected block 3, as before, or a later one"),
        pytest.param(
            (level(3, ROOTS[3]), level((1 << 64) - 1, b"")),
            "no block, expected block 3, as before, or a later one",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            (level(3, ROOTS[3]), level(4, ROOTS[4], "other")),
            "process 'other', expected 'rogue', as before",
            marks=pytest.mark.slow,
        ),
    ],
)
async def test_what_no_process_does_ends_its_stream_and_it_is_left_alone_for_a_while(
    tmp_path: Path, reports: tuple[Level, ...], got: str
) -> None:
    opened = []

    def report() -> Iterator[Level]:
        opened.append(time.monotonic())
        return iter(reports)

    async with rogue(report) as address, active(tmp_path, address) as node:
        await until(lambda: state_of(node, address) == f"does not report: durable height: got {got}")
        await until(lambda: len(opened) == 2)
    assert opened[1] - opened[0] >= 1.9
