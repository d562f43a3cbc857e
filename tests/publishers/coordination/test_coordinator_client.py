"""A task's side of a race."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator

import pytest

from sluice.gateway.blocks.block import Block
from sluice.publishers.client.client import ClientOptions, PublishClient
from sluice.publishers.coordination.coordinator import Coordinator
from sluice.publishers.coordination.coordinator_client import CoordinatorClient
from sluice.publishers.errors import PublishStopped
from tests.nodes import make_blocks
from tests.publishers.fake_node import FakeNode, FakeStream

BLOCKS = make_blocks(4)


async def test_without_a_coordinator_nothing_is_waited_for() -> None:
    async with CoordinatorClient(None, "p", "p") as link:
        await link.go()
        link.check()


async def test_a_coordinator_that_is_not_there_is_done_without(caplog: pytest.LogCaptureFixture) -> None:
    with Coordinator() as coordinator:
        address = str(coordinator.address)

    with caplog.at_level(logging.WARNING):
        async with CoordinatorClient(address, "p", "p") as link:
            await link.go()
    assert caplog.messages[0].startswith("p: no coordinator, starting alone: ")


async def test_a_coordinator_that_goes_opens_the_gate() -> None:
    with Coordinator() as coordinator:
        async with CoordinatorClient(str(coordinator.address), "p", "p") as link:
            while not coordinator.ready_count:  # noqa: ASYNC110 - the coordinator is in other threads
                await asyncio.sleep(0)
            assert not link._go.is_set()
            await asyncio.to_thread(coordinator.close)
            await link.go()
            assert link._go.is_set()


async def test_a_coordinator_that_reads_nothing_any_more_holds_up_no_task() -> None:
    """As of a driver that is suspended, or whose machine went away."""

    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as deaf:
            address = f"127.0.0.1:{deaf.getsockname()[1]}/x"
            link = CoordinatorClient(address, "p", "p", close_seconds=0.2)
            async with link:
                assert link._writer is not None
                link._writer.write(bytes(32 << 20))  # more than any socket takes

    await asyncio.wait_for(run(), 30)


def test_stop_ends_waiting_and_refuses_to_go_on() -> None:
    async def run(coordinator: Coordinator) -> None:
        async with CoordinatorClient(str(coordinator.address), "p-1", "p-1-2") as link:
            waiting = asyncio.create_task(link.unless_stopped(asyncio.Event().wait()))
            await asyncio.sleep(0)
            coordinator.stop()
            with pytest.raises(PublishStopped) as caught:
                await waiting
            assert str(caught.value) == "publisher p-1-2 was told to stop"
            with pytest.raises(PublishStopped):
                await link.go()

    with Coordinator() as coordinator:
        asyncio.run(run(coordinator))
        assert coordinator.await_idle(10)


def test_stop_finishes_the_block_in_flight_and_tells_what_was_done() -> None:
    async def run(coordinator: Coordinator) -> FakeNode:
        release = asyncio.Event()

        async def slow(stream: FakeStream) -> None:
            number, items = await stream.header()
            coordinator.stop()
            await release.wait()
            await stream.rest(number, items)
            await stream.drain()  # and then: which blocks it holds is said before it hears that one is safe
            await stream.acknowledge(number)

        async with (
            FakeNode(default=slow) as node,
            CoordinatorClient(str(coordinator.address), "p-1", "p-1", batch=3) as link,
        ):
            options = ClientOptions(set_bytes_max=1)  # each item in a message of its own
            client = PublishClient([node.address], "p-1", options)
            link.watch(client)

            async def source() -> AsyncIterator[Block]:
                for block in BLOCKS:
                    yield block
                await asyncio.Event().wait()

            publishing = asyncio.create_task(client.publish(source()))
            with pytest.raises(PublishStopped):
                await link.unless_stopped(asyncio.Event().wait())
            release.set()
            report = await publishing
            late = PublishClient([node.address], "late")
            link.watch(late)
            assert late.report().blocks == 0
        assert (report.won, report.safe_through) == (1, 0)
        return node

    with Coordinator() as coordinator:
        node = asyncio.run(run(coordinator))
        assert coordinator.await_idle(10)
        told = coordinator.reports("p-1")
    assert node.received == BLOCKS[:1]
    assert node.words == ["RESET(0, 3)"]
    assert [(one.publisher_id, one.safe_through, len(one.latency_ns)) for one in told] == [
        ("p-1", 0, 1),
        ("late", None, 0),
    ]
