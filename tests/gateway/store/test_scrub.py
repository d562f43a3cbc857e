"""The scrubber over real folders: pace, passes, its place after a restart, and what it finds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sluice.datastream.layout import PAGE_SIZE
from sluice.gateway.metrics import Metrics
from sluice.gateway.store.block_store import BlockStore
from sluice.gateway.store.page_blocks import PageBlocks
from sluice.gateway.store.scrub import PLACE_KEPT_PAGES, PLACE_KEY, Scrubber
from tests.rotten import drop_sums, flip, large_blocks, page_bytes, store, stored_sums

BLOCKS = large_blocks(12, 400_000)
PAGES = 7
PACE = 10 * PAGE_SIZE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store(tmp_path / "data", BLOCKS)
    assert len(stored_sums(tmp_path / "data")) == PAGES
    return tmp_path / "data"


class Pauses:
    """Does not sleep, records how long it should have, and blocks after so many calls."""

    def __init__(self, count: int) -> None:
        self.seconds: list[float] = []
        self.over = asyncio.Event()
        self._count = count

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        if len(self.seconds) == self._count:
            self.over.set()
            await asyncio.Event().wait()


@asynccontextmanager
async def scrubbing(folder: Path, pauses: int) -> AsyncIterator[tuple[Scrubber, BlockStore, Metrics, Pauses]]:
    """Run a scrubber until it has made so many pauses."""
    store, metrics, sleep = BlockStore.open(folder), Metrics(verification_mode="full"), Pauses(pauses)
    scrubber = Scrubber(PageBlocks(store), metrics, PACE, sleep=sleep)
    task = asyncio.ensure_future(scrubber.run())
    try:
        async with asyncio.timeout(20):
            await sleep.over.wait()
        yield scrubber, store, metrics, sleep
    finally:
        task.cancel()
        scrubber.close()
        store.close()


async def test_a_pass_reads_every_page_at_its_pace_and_the_next_one_waits(folder: Path) -> None:
    async with scrubbing(folder, PAGES + 1) as (scrubber, store, metrics, sleep):
        assert metrics.scrubbed_bytes._value.get() == PAGES * PAGE_SIZE
        assert metrics.scrub_pass_end._value.get() > 1_700_000_000
        assert all(0 <= seconds <= PAGE_SIZE / PACE for seconds in sleep.seconds[:-1])
        assert 3500 < sleep.seconds[-1] <= 3600  # a short stream is not scrubbed without pause
        assert not store.streamer.sums.bad
        assert scrubber.next_page == 0


async def test_it_goes_on_where_it_was(folder: Path) -> None:
    async with scrubbing(folder, 2) as (scrubber, _, _, _):
        assert scrubber.next_page == 2
    async with scrubbing(folder, PAGES - 2 + 1) as (scrubber, store, metrics, _):
        assert metrics.scrubbed_bytes._value.get() == (PAGES - 2) * PAGE_SIZE
        ended_at = metrics.scrub_pass_end._value.get()
        store.streamer.notes.put(PLACE_KEY, b"nonsense")
    async with scrubbing(folder, 1) as (scrubber, _, metrics, _):
        assert scrubber.next_page == 1
        assert metrics.scrub_pass_end._value.get() == ended_at > 0


async def test_a_kill_loses_few_pages_of_the_place(folder: Path) -> None:
    async with scrubbing(folder, 2) as (scrubber, store, _, _):
        scrubber.next_page = PLACE_KEPT_PAGES - 1
        store.streamer.notes.put(PLACE_KEY, None)
        scrubber._keep_place()
        assert store.streamer.notes.get(PLACE_KEY) is not None


async def test_what_it_finds_is_found_again_at_once_after_a_restart(folder: Path) -> None:
    flip(folder, 1, 5000)

    for _ in range(2):
        async with scrubbing(folder, PAGES + 1) as (scrubber, store, _, _):
            assert list(store.streamer.sums.bad) == [1]
    async with scrubbing(folder, 1) as (scrubber, store, _, _):
        assert list(store.streamer.sums.bad) == [1]
        assert scrubber.next_page == 2


async def test_pages_without_a_sum_get_one_when_their_blocks_are_right(folder: Path) -> None:
    drop_sums(folder)

    async with scrubbing(folder, PAGES + 1) as (_, store, _, _):
        assert not store.streamer.sums.bad
        assert all(store.streamer.sums.has_sum(page) for page in range(PAGES))
    assert stored_sums(folder) == set(range(PAGES))


async def test_a_wrong_disk_is_mended_from_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = page_bytes(folder, 2)

    store, metrics = BlockStore.open(folder), Metrics(verification_mode="full")
    scrubber = Scrubber(PageBlocks(store), metrics, PACE)
    flip(folder, 2, 5000)
    # Readers get the right bytes from memory.
    monkeypatch.setattr(store.streamer.sums, "_read", lambda page: good)
    await scrubber._look_at(2)
    assert metrics.pages_healed._value.get() == 1
    scrubber.close()
    store.close()
    assert page_bytes(folder, 2) == good


async def test_a_disk_that_cannot_be_read_is_logged_and_the_scrubber_goes_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store, metrics = BlockStore.open(folder), Metrics(verification_mode="full")
    scrubber = Scrubber(PageBlocks(store), metrics, PACE)

    def refuse(page_number: int) -> object:
        raise OSError(12, "no memory")

    monkeypatch.setattr(store.streamer.sums, "scrub", refuse)
    await scrubber._look_at(2)
    assert "page cannot be scrubbed" in caplog.text
    assert metrics.scrubbed_bytes._value.get() == 0
    scrubber.close()
    store.close()
