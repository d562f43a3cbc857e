"""Tests of `gateway.status.sampler` on real nodes, folders and disks."""

from __future__ import annotations

import logging
import math
import os
import random
import shutil
import time
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Histogram

from sluice.gateway.node.rules import NodeLimits
from sluice.gateway.status.history import RING_SLOTS, SAMPLE_SECONDS, History
from sluice.gateway.status.sampler import HISTORY_NAME, quantile, read_history, seconds_to_sample
from tests.disks import small_file_system
from tests.nodes import make_blocks, running_node, until, wire_to

BLOCKS = make_blocks(6)
WRITES = NodeLimits(history_write_seconds=0.0)
"""Each sample is written."""


def newest(history: History, name: str) -> float | None:
    numbers = history.hour.numbers(name)
    return numbers[-1] if numbers else None


async def test_a_sample_has_what_the_node_measured_since_the_last(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, wire_to(node) as wire:
        sampler, history = node.sampler, node.sampler.history
        now = time.time() + 3600  # where the node's own samples are not
        alice, bob = await wire.publisher("alice"), await wire.publisher("bob")
        await alice.block(*BLOCKS[:3])
        await alice.expect("ack 0", "ack 1", "ack 2")
        await bob.expect("ack 0", "ack 1", "ack 2")
        before_bytes = node.store.streamer.committed.total_length
        sampler.take(now, 1e9)
        await alice.items(*BLOCKS[3].items)
        await wire.begun(3)
        await bob.items(*BLOCKS[3].items)
        await bob.expect("skip 3")
        await alice.end(3)
        await alice.expect("ack 3")
        began = time.monotonic()
        sampler.take(now + SAMPLE_SECONDS, 9e8)
        seconds = time.monotonic() - began
        names = set(history.hour.names)
        assert {"blocks", "bytes", "skipped", "inflight_bytes", "loop_lag_p99_seconds"} <= names
        assert not names & {"tcp_lag_bytes", "subscriber_lag_blocks", "standby_lag_blocks", "catch_up_blocks"}
        blocks, skipped, written = (newest(history, name) for name in ("blocks", "skipped", "bytes"))
        assert blocks is not None
        assert blocks > 0
        assert skipped == blocks  # one each, in the same time
        grown_bytes = node.store.streamer.committed.total_length - before_bytes
        assert written == pytest.approx(blocks * grown_bytes)
        length = node.metrics.registry.get_sample_value("sluice_stream_bytes")
        assert length == node.store.streamer.committed.total_length
        won = node.conductor.acknowledging.history.blocks[-1]
        assert newest(history, "latency_p50_seconds") == won.seconds == newest(history, "latency_p99_seconds")
        assert newest(history, "disk_free_bytes") == 9e8
        assert seconds < 5
        sampler.take(now + 2 * SAMPLE_SECONDS, None)
        assert (newest(history, "blocks"), newest(history, "skipped")) == (0.0, 0.0)
        for name in ("latency_p50_seconds", "disk_free_bytes"):
            assert math.isnan(newest(history, name) or 0.0)


async def test_refusals_and_resends_have_their_reasons(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, wire_to(node) as wire:
        now = time.time() + 3600
        alice, bob = await wire.publisher("alice"), await wire.publisher("bob")
        bad = make_blocks(1, seed=8)[0].items
        await alice.items(*bad[:-1], BLOCKS[0].items[-1])
        await wire.begun(0)
        await bob.items(*BLOCKS[0].items)
        await bob.expect("skip 0")
        await alice.end(0)
        assert (await alice.answer()).startswith("end BAD_BLOCK_PROOF")
        await bob.expect("resend 0")
        node.sampler.take(now, None)
        names = node.sampler.history.hour.names
        assert {"refused bad proof", "resent refused"} <= set(names)


async def test_readers_and_standbys_that_are_behind(tmp_path: Path) -> None:
    async with (
        running_node(tmp_path / "a", peer_networks=("127.0.0.0/8",)) as a,
        wire_to(a) as wire,
    ):
        alice = await wire.publisher("alice")
        await alice.block(*BLOCKS)
        await alice.expect(*(f"ack {number}" for number in range(6)))
        address = str(a.grpc_address)
        async with running_node(tmp_path / "b", peers=(a.grpc_address,), commit_min_standbys=1) as b:
            await until(lambda: dict(b.reporter.report().standbys)[address] == "has block 5")
            b.sampler.take(time.time() + 3600, None)
            assert newest(b.sampler.history, "standby_lag_blocks") == 0.0  # it is ahead
            assert newest(b.sampler.history, "catch_up_blocks") is not None


async def test_the_metrics_of_the_disk_are_there_from_the_start_and_ask_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scrape runs in the event loop, which a hanging file system would stop."""
    async with running_node(tmp_path) as node:
        monkeypatch.setattr(os, "statvfs", refuse)
        metrics = node.metrics.registry
        for name in ("sluice_disk_free_bytes", "sluice_disk_size_bytes"):
            assert (metrics.get_sample_value(name) or 0) > 0
        assert await node.sampler.look_at_disk() is None
        for name in ("sluice_disk_free_bytes", "sluice_disk_size_bytes"):
            assert math.isnan(metrics.get_sample_value(name) or 0)


def refuse(folder: Path) -> None:
    raise OSError("it hangs")


async def test_a_node_goes_on_with_the_history_of_the_one_before(tmp_path: Path) -> None:
    async with running_node(tmp_path, WRITES) as node:
        await until(lambda: (tmp_path / HISTORY_NAME).exists(), 0.05)
        first = node.sampler.history.hour.end
    async with running_node(tmp_path) as node:
        ring = node.sampler.history.hour
        assert ring.end >= first
        assert ring.numbers("disk_free_bytes")[0] > 0


async def test_a_node_that_stops_keeps_what_no_write_has_taken_yet(tmp_path: Path) -> None:
    later = time.time() + 3600
    async with running_node(tmp_path, NodeLimits(history_write_seconds=3600.0)) as node:
        node.sampler.take(later, 123.0)
        assert not (tmp_path / HISTORY_NAME).exists()
    assert read_history(tmp_path).hour.numbers("disk_free_bytes")[-1] == 123.0


@pytest.mark.parametrize("content", [b"", b"nonsense", History().pack()[:-3]])
def test_a_damaged_file_is_forgotten_with_one_line(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / HISTORY_NAME).write_bytes(content)
    assert read_history(tmp_path).hour.count == 0
    assert [record.message for record in caplog.records] == [
        "the history of figures begins anew: its file cannot be used"
    ]


def test_a_missing_file_or_folder_is_nothing_to_speak_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert read_history(tmp_path).hour.count == 0
    assert read_history(tmp_path / "none").hour.count == 0
    assert caplog.records == []


def test_a_folder_in_its_place_is_forgotten_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / HISTORY_NAME).mkdir()
    assert read_history(tmp_path).hour.count == 0
    assert len(caplog.records) == 1


async def test_a_disk_that_takes_no_file_stops_nothing_and_is_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "sluice.gateway.status")
    async with running_node(tmp_path / "node") as node:
        sampler = node.sampler
        with small_file_system(tmp_path / "small", 1 << 20):
            sampler._data_dir = tmp_path / "small"
            old, long = sampler.history.copy(), History()
            sampler._write(old)
            dice = random.Random(7)
            for at in range(RING_SLOTS):
                long.note(5.0 * at, {f"series {number}": dice.random() for number in range(10)})
            (tmp_path / "small" / "rest").write_bytes(bytes((1 << 20) - 4096 * 2))
            sampler._write(long)
            sampler._write(long)
            assert (tmp_path / "small" / HISTORY_NAME).read_bytes() == old.pack()
            assert sorted(path.name for path in (tmp_path / "small").iterdir()) == [HISTORY_NAME, "rest"]
        shutil.rmtree(tmp_path / "small")
        sampler._write(old)  # the folder is gone: the same trouble
    assert [record.message for record in caplog.records] == ["the history of figures is not kept"]


@pytest.mark.parametrize(
    ("now", "seconds"),
    [(1000.0, 2.5), (1002.5, 5.0), (1002.499, 5.001), (1002.6, 4.9), (1001.4, 1.1), (1004.9, 2.6)],
)
def test_samples_are_taken_in_the_middle_of_slots(now: float, seconds: float) -> None:
    """After an early timer a second one would come at once, and its rates would say nothing."""
    assert seconds_to_sample(now) == pytest.approx(seconds)


def test_quantiles_of_what_came_between_two_looks() -> None:
    histogram = Histogram("h", "h", buckets=(0.01, 0.1, 1.0), registry=CollectorRegistry())

    def look() -> dict[float, float]:
        return {
            float(one.labels["le"]): one.value
            for metric in histogram.collect()
            for one in metric.samples
            if one.name == "h_bucket"
        }

    before = look()
    assert quantile(before, before, 0.5) is None
    assert quantile({}, {}, 0.5) is None
    for _ in range(99):
        histogram.observe(0.05)
    histogram.observe(7.0)
    now = look()
    assert quantile(before, now, 0.5) == pytest.approx(0.01 + 0.09 * 50 / 99)
    assert quantile(before, now, 0.99) == pytest.approx(0.1)
    assert quantile(before, now, 1.0) == 1.0  # beyond the last bound
    for _ in range(10):
        histogram.observe(0.005)
    assert quantile(now, look(), 0.99) == pytest.approx(0.0099)
