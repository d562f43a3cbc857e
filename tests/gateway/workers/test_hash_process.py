"""Tests of `gateway.workers.hash_process`: a real process that hashes, dies, hangs and is replaced."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import uvloop

from sluice.gateway.blocks.items import ItemKind, field_item
from sluice.gateway.blocks.root_hash import BlockHasher, ItemLook
from sluice.gateway.errors import WorkerProcessLost
from sluice.gateway.workers.hash_process import HASH_PROCESS_SECONDS_MAX, WARM_UP_SECONDS_MAX, HashProcess
from tests.gateway.block_makers import body_items, footer_item, header_item, proof_item
from tests.gateway.conducting import logged
from tests.nodes import ANSWER_SECONDS

# Tags of two bytes, an extension's subtree, an item of no subtree, and a field number above a byte's.
ODD_ITEMS = [
    field_item(28, b"one"),
    field_item(40, b"two"),
    field_item(304, b"three"),
    field_item(ItemKind.SIGNED_TRANSACTION, bytes(5_000)),
]
GONE = {
    f"hash process: got {got}, expected an answer"
    for got in (
        "the end of its socket",
        "[Errno 104] Connection reset by peer",
        "[Errno 32] Broken pipe",
    )  # it had read everything, or not
}
ITEMS = [header_item(), *body_items(500), *ODD_ITEMS]


def with_process(
    play: Callable[[HashProcess], Awaitable[None]], *, run: Callable[..., None] = uvloop.run, **limits: Any
) -> None:
    """Run a scene with a process, and close it."""

    async def main() -> None:
        process = HashProcess(**limits)
        try:
            await play(process)
        finally:
            process.close()
        assert process.pid is None
        assert not process.ready.is_set()

    run(main())


async def started(process: HashProcess) -> int:
    process.start()
    await process.ready.wait()
    assert process.pid is not None
    return process.pid


def looked_at(hasher: BlockHasher, items: list[bytes]) -> ItemLook:
    looked = hasher.look(items)
    assert looked is not None
    return looked


async def refusal(process: HashProcess) -> str:
    """Ask, and return why there is no answer."""
    hasher = BlockHasher()
    with pytest.raises(WorkerProcessLost) as caught:
        await process.hash(hasher.trees, looked_at(hasher, ITEMS).leaves)
    assert hasher.item_count == 0
    return str(caught.value)


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run])
def test_it_hashes_as_it_is_done_here(run: Callable[..., None]) -> None:
    here = BlockHasher()
    here.add(ITEMS)

    async def play(process: HashProcess) -> None:
        await started(process)
        for cut in (1, 2, 17, 300, len(ITEMS)):
            there = BlockHasher()
            for part in filter(None, (ITEMS[:cut], ITEMS[cut:])):
                looked = looked_at(there, part)
                there.take(looked, await process.hash(there.trees, looked.leaves))
            assert there.subtree_roots() == here.subtree_roots()
            assert (there.item_count, there.size_bytes) == (here.item_count, here.size_bytes)

    with_process(play, run=run)


def test_items_without_any_leaf_change_nothing() -> None:
    """Proofs in a set of their own."""

    async def play(process: HashProcess) -> None:
        await started(process)
        hasher = BlockHasher()
        hasher.add([header_item(), *body_items(5), footer_item()])
        before = hasher.subtree_roots()
        looked = looked_at(hasher, [proof_item(), proof_item(signature=bytes(64))])
        assert await process.hash(hasher.trees, looked.leaves) == {}
        hasher.take(looked, {})
        assert (hasher.item_count, hasher.subtree_roots()) == (9, before)

    with_process(play)


def test_a_process_has_so_many_bytes_at_hand_and_further_requests_wait() -> None:
    """A request that was sent cannot be taken back, not even when its block is dropped."""
    here = BlockHasher()
    here.add(ITEMS)

    async def add(process: HashProcess, hasher: BlockHasher) -> None:
        looked = looked_at(hasher, ITEMS)
        hasher.take(looked, await process.hash(hasher.trees, looked.leaves))

    async def measure(process: HashProcess) -> None:
        await started(process)
        adding = asyncio.ensure_future(add(process, BlockHasher()))
        await asyncio.sleep(0)
        sizes.append((process.waiting_bytes, process.waiting_items))
        await adding

    async def play(process: HashProcess) -> None:
        os.kill(await started(process), signal.SIGSTOP)
        hashers = [BlockHasher() for _ in range(4)]
        adding = []
        for hasher, sent_count in zip(hashers, sent_counts, strict=True):
            adding.append(asyncio.ensure_future(add(process, hasher)))
            await asyncio.sleep(0)
            assert process.waiting_items == sent_count * item_count
            assert process.waiting_bytes == sent_count * size_bytes
        adding[1].cancel()  # sent, or waits for room
        adding[2].cancel()  # waits for room
        assert process.pid is not None
        os.kill(process.pid, signal.SIGCONT)
        await asyncio.wait(adding)
        assert [one.cancelled() for one in adding] == [False, True, True, False]
        assert hashers[0].subtree_roots() == hashers[3].subtree_roots() == here.subtree_roots()
        assert (process.waiting_items, process.waiting_bytes) == (0, 0)

    sizes: list[tuple[int, int]] = []
    with_process(measure)
    ((size_bytes, item_count),) = sizes
    for limit, sent_counts in ((size_bytes, (1, 1, 1, 1)), (size_bytes + 1, (1, 2, 2, 2))):  # noqa: B007
        with_process(play, waiting_bytes_max=limit)


def test_requests_are_answered_in_order_and_one_that_was_given_up_is_passed_over() -> None:
    async def play(process: HashProcess) -> None:
        await started(process)
        hashers = [BlockHasher() for _ in range(5)]
        looks = [
            looked_at(hasher, [header_item(index), *body_items(50 * index)])
            for index, hasher in enumerate(hashers)
        ]
        asked = [
            asyncio.ensure_future(process.hash(hasher.trees, looked.leaves))
            for hasher, looked in zip(hashers, looks, strict=True)
        ]
        await asyncio.sleep(0)
        asked[2].cancel()
        for index in (0, 1, 3, 4):
            hashers[index].take(looks[index], await asked[index])
            here = BlockHasher()
            here.add([header_item(index), *body_items(50 * index)])
            assert hashers[index].subtree_roots() == here.subtree_roots()

    with_process(play)


def test_one_that_is_not_ready_is_started_and_does_not_keep_anybody_waiting() -> None:
    async def play(process: HashProcess) -> None:
        assert process.pid is None
        assert await refusal(process) == "hash process: got none that is ready, expected an answer"
        first = process.pid
        assert first is not None
        await started(process)
        assert process.pid == first

    with_process(play)


def test_who_waits_for_one_that_starts_hears_when_it_is_ready() -> None:
    async def play(process: HashProcess) -> None:
        assert not await process.started(0.0)  # there is none
        process.start()
        assert not await process.started(0.0)  # not yet
        assert await process.started(ANSWER_SECONDS)
        assert await process.started(0.0)
        process.close()
        assert not await process.started(0.0)

    with_process(play)


def test_who_waits_for_one_that_dies_while_it_starts_does_not_wait_on() -> None:
    async def play(process: HashProcess) -> None:
        process.start()
        waiting = asyncio.ensure_future(process.started(ANSWER_SECONDS))
        await asyncio.sleep(0)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        assert not await waiting
        assert process.pid is None

    with_process(play)


def test_one_that_was_killed_is_replaced_though_nobody_asks() -> None:
    """Sets of up to 1,024 items go to the event loop then, and once none of them brought the process back."""

    async def play(process: HashProcess) -> None:
        first = await started(process)
        os.kill(first, signal.SIGKILL)
        async with asyncio.timeout(ANSWER_SECONDS):
            while process.pid in (first, None):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
            await process.ready.wait()
        assert process.pid not in (first, None)

    with_process(play, backoff_seconds=0.05)


def test_one_that_was_killed_is_replaced_after_a_backoff(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(process: HashProcess) -> None:
        first = await started(process)
        os.kill(first, signal.SIGSTOP)  # before it answers
        refused = asyncio.ensure_future(refusal(process))
        await asyncio.sleep(0)
        os.kill(first, signal.SIGKILL)
        assert await refused in GONE
        assert process.pid is None
        assert await refusal(process) == "hash process: got none that is ready, expected an answer"
        assert process.pid is None  # it backs off
        monkeypatch.setattr(process, "_start_at", 0.0)
        second = await started(process)
        assert second != first
        await process.hash(BlockHasher().trees, looked_at(BlockHasher(), ITEMS).leaves)

    with_process(play, backoff_seconds=600.0)
    (line,) = logged(caplog, "hash process lost")
    assert line["next_in_seconds"] == 600.0


def test_one_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(process: HashProcess) -> None:
        os.kill(await started(process), signal.SIGSTOP)
        monkeypatch.setattr(process._worker, "_seconds_max", 0.05)
        process._worker._watch_over()
        assert await refusal(process) == "hash process: got no answer in 0.05 s, expected an answer"
        assert process.pid is None

    with_process(play)


def test_one_that_does_not_get_ready_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The process's interpreter ends at once, or there is none."""

    async def play(process: HashProcess) -> None:
        process.start()
        assert not await process.started(ANSWER_SECONDS)
        assert process.pid is None

    for executable in ("/bin/false", "/no/such/python"):
        monkeypatch.setattr(sys, "executable", executable)
        with_process(play)
    ended, missing = (line["got"] for line in logged(caplog, "hash process lost"))
    assert ended == "the end of its socket"
    assert missing == "[Errno 2] No such file or directory: '/no/such/python'"


def test_once_closed_it_is_not_started_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    async def play(process: HashProcess) -> None:
        await started(process)
        process.close()
        process.close()
        process.start()
        assert process.pid is None

    with_process(play)
    assert logged(caplog, "hash process lost") == []


def test_one_that_takes_long_to_start_is_not_waited_for_beyond_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The defaults are seconds."""
    assert signature(HashProcess.started).parameters["seconds_max"].default == WARM_UP_SECONDS_MAX
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(slow))

    async def play(process: HashProcess) -> None:
        assert process._worker._seconds_max == HASH_PROCESS_SECONDS_MAX > WARM_UP_SECONDS_MAX
        process.start()
        assert not await process.started(0.01)
        assert process.pid is not None  # it may still get ready

    with_process(play)
