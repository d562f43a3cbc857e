"""The soak in short, so that it works when an hour is to be given to it; and what it calls a leak."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.soak.__main__ import problems_of, soak
from tests.soak.watch import MIB, Sample, growth_of, leaks_of

IDLE = Sample(
    seconds=0.0,
    last_block=-1,
    publishers=0,
    anonymous_bytes=40 * MIB,
    resident_bytes=70 * MIB,
    descriptors=30,
    threads=14,
    tasks=14,
    data_bytes=0,
)


@pytest.mark.slow
async def test_a_node_does_not_grow_in_seconds(tmp_path: Path) -> None:
    outcome = await soak(tmp_path, seconds=4, blocks_per_second=25, data_bytes_max=1 << 30, seed=1)
    assert outcome.leaks == []
    assert outcome.after.last_block == 99
    assert outcome.samples[0].client_anonymous_bytes > 0
    assert outcome.after.client_descriptors == 0
    assert max(sample.publishers for sample in outcome.samples) > 1
    assert outcome.after.publishers == 0
    assert "stuck subscriber cut off: " in outcome.said


async def test_a_full_data_folder_ends_a_soak(tmp_path: Path) -> None:
    outcome = await soak(tmp_path, seconds=30, blocks_per_second=25, data_bytes_max=1, seed=1)
    assert outcome.leaks[0] == f"the data folder has reached {1 / MIB:g} MiB"
    assert outcome.after.seconds < 20


def test_a_chain_that_stands_still_ends_a_soak() -> None:
    at = [replace(IDLE, seconds=seconds, last_block=block) for seconds, block in ((0, 5), (10, 7), (70, 7))]
    assert problems_of(at, 3600, 1) == []
    assert problems_of([*at, replace(IDLE, seconds=70.5, last_block=8)], 3600, 1) == []
    assert problems_of([*at, replace(IDLE, seconds=70.5, last_block=7)], 3600, 1) == [
        "the chain stands still: no block after 7 in 60 s"
    ]
    assert problems_of(at, 9.5, 1) == ["the chain did not come to its end: the last block is 7"]


def test_growth_is_seen_between_the_second_quarter_and_the_last() -> None:
    warm = [replace(IDLE, anonymous_bytes=size * MIB) for size in (10, 40, 40, 41, 41, 41, 60, 62)]
    assert growth_of(warm) == 61 * MIB - 40.5 * MIB
    assert growth_of(warm[:3]) == 0
    assert leaks_of(IDLE, warm, IDLE) == [
        "anonymous memory: grew by 20.5 MiB from the second quarter to the last, expected at most 16 MiB"
    ]


@pytest.mark.parametrize(
    ("after", "leak"),
    [
        (replace(IDLE, publishers=1), "publishers: 1 when all publishers had gone, expected at most 0"),
        (replace(IDLE, tasks=15), "asyncio tasks: 15 when all publishers had gone, expected at most 14"),
        (
            replace(IDLE, descriptors=35),
            "file descriptors: 35 when all publishers had gone, expected at most 34",
        ),
        (replace(IDLE, threads=23), "threads: 23 when all publishers had gone, expected at most 22"),
    ],
)
def test_what_is_left_over_is_a_leak(after: Sample, leak: str) -> None:
    assert leaks_of(IDLE, [IDLE] * 8, after) == [leak]
    assert leaks_of(IDLE, [IDLE] * 8, IDLE) == []
