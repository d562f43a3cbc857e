"""Tests of `gateway.status.processor_watch`, also with real processes that get too little."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sluice.gateway.limits import INLINE_HASH_ITEMS_MAX
from sluice.gateway.metrics import Metrics
from sluice.gateway.node.rules import NodeLimits
from sluice.gateway.status.processor_watch import ProcessorWatch, Shortage, Spent
from sluice.publishers.blocks.maker import BlockMaker, MakerOptions
from tests.gateway.store.test_block_store import logged
from tests.nodes import KEY, running_node, wire_to

BUSY = (
    "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); os.nice(int(sys.argv[2]))\nwhile True: pass"
)


def words_after(*looks: Spent) -> str | None:
    shortage = Shortage()
    for at, spent in enumerate(looks):
        shortage.note(float(at), {"proofs": spent, "commits": Spent(0.1, 0.0)})
    return shortage.words


@pytest.mark.parametrize(
    ("spent", "is_short"),
    [
        (Spent(0.1, 0.9), True),
        (Spent(0.4, 0.6), False),  # fair, for four on two cores
        (Spent(0.0, 0.19), False),  # it seldom needs a processor
        (Spent(0.0, 0.21), True),
        (Spent(1.0, 0.0), False),
    ],
)
def test_what_is_too_little(spent: Spent, is_short: bool) -> None:
    words = words_after(*[spent] * 11)
    assert (words is not None) is is_short
    assert words_after(*[spent] * 10) is None, "a start is not judged"


def test_it_says_who_waits_and_how_long_of_the_last_seconds() -> None:
    assert words_after(*[Spent(1.0, 0.0)] * 30, *[Spent(0.1, 0.9)] * 10) == (
        "the node gets too little processor: in 10 s, proofs ran 1.0 s and waited 9.0 s for a processor"
    )
    assert words_after(*[Spent(0.1, 0.9)] * 30, *[Spent(1.0, 0.0)] * 10) is None


@contextmanager
def busy(niceness: int, count: int = 1) -> Iterator[list[int]]:
    """Busy processes on one processor."""
    processor = str(min(os.sched_getaffinity(0)))
    words = [sys.executable, "-c", BUSY, processor, str(niceness)]
    processes = [subprocess.Popen(words) for _ in range(count)]
    try:
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_a_process_that_others_keep_from_running_is_found_and_that_is_over_with_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("needs /proc/*/schedstat: a Linux kernel with CONFIG_SCHED_INFO")
    shortage = Shortage(window_seconds=1.0, waited_seconds_min=0.5)
    caplog.set_level(logging.INFO)
    metrics = Metrics(verification_mode="full")

    async def until(watch: ProcessorWatch, is_short: bool) -> None:
        async with asyncio.timeout(30):
            while (watch.words is not None) is not is_short:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def run() -> None:
        with busy(10) as [pid]:
            watch = ProcessorWatch(
                metrics,
                lambda: [("proofs", pid), ("hashing", None), ("hashing", 1 << 30)],
                shortage=shortage,
                look_seconds=0.05,
            )
            with busy(0, 3):
                await until(watch, is_short=True)
                assert "; proofs ran " in str(watch.words).replace("in 1 s, ", "; ")
            # Nobody waits so long, however busy the machine is.
            shortage._waited_seconds_min = 1e9
            await until(watch, is_short=False)
            await asyncio.sleep(0.2)
            watch.close()
            watch.close()

    asyncio.run(run())
    [line] = logged(caplog, "the node gets too little processor")
    assert str(line["reason"]).startswith("the node gets too little processor: in 1 s, ")
    assert len(logged(caplog, "the node gets the processor that it needs again")) == 1
    assert (
        metrics.registry.get_sample_value("sluice_processor_wait_seconds_total", {"task": "proofs"}) or 0
    ) > 0.5


def test_a_node_watches_its_loop_and_what_blocks_wait_for(tmp_path: Path) -> None:
    async def run() -> None:
        limits = NodeLimits(processor_look_seconds=0.01)
        async with running_node(tmp_path, limits) as node, wire_to(node) as wire:
            node._checks._processes.start()  # Ed25519 proofs do not need it
            publisher = await wire.publisher("one")
            maker = BlockMaker(7, KEY, MakerOptions(transactions_per_block=INLINE_HASH_ITEMS_MAX))
            await publisher.block(*maker.blocks(2))
            await publisher.answer()
            tasks = {"event loop", "commits", "proofs", "hashing"}

            def seen(task: str) -> bool:
                name = "sluice_processor_wait_seconds_total"
                return node.metrics.registry.get_sample_value(name, {"task": task}) is not None

            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(20):
                    while not all(map(seen, tasks)):  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
            assert set(filter(seen, tasks)) == tasks

    asyncio.run(run())
