"""Tests of `gateway.node.loop_watch`."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from gateway.node.loop_watch import LoopWatch
from tests.nodes import running_node

HELD_SECONDS = 0.1


def hold_the_loop() -> None:
    """Do what nothing in a node may do: keep the event loop from coming round."""
    time.sleep(HELD_SECONDS)


def test_a_held_loop_is_in_the_next_sample() -> None:
    samples: list[float] = []

    async def watch_once_more(sampled: asyncio.Event) -> None:
        sampled.clear()
        await sampled.wait()

    async def run() -> None:
        sampled = asyncio.Event()

        def late(seconds: float) -> None:
            samples.append(seconds)
            sampled.set()

        watch = LoopWatch(late, 0.001)
        await watch_once_more(sampled)
        count = len(samples)
        hold_the_loop()
        await watch_once_more(sampled)
        assert len(samples) == count + 1
        assert samples[-1] >= HELD_SECONDS - 0.002
        watch.close()
        watch.close()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())
    assert min(samples) >= 0


def test_a_node_samples_its_loop(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_node(tmp_path) as node:

            def value(what: str) -> float:
                name = f"sluice_event_loop_lag_seconds_{what}"
                return node.metrics.registry.get_sample_value(name) or 0.0

            async def another_sample() -> None:
                before = value("count")
                for _ in range(10_000):
                    if value("count") != before:
                        return
                    await asyncio.sleep(0.001)
                raise AssertionError("the loop is not sampled")

            await another_sample()
            hold_the_loop()
            await another_sample()
            assert value("sum") >= HELD_SECONDS / 2

    asyncio.run(run())
