"""The report and its JSON."""

from __future__ import annotations

import pytest

from publishers.report import PublishReport, RefusedBlock, percentile_ns

FULL = PublishReport(
    publisher_id="alice",
    first_block=0,
    last_block=9,
    safe_through=7,
    blocks=10,
    offered=9,
    won=4,
    skipped=3,
    acknowledged=6,
    duplicate=2,
    resent=1,
    behind=1,
    too_far_behind=0,
    reconnects=2,
    bytes_sent=12345,
    refused=(RefusedBlock(8, "BAD_BLOCK_PROOF", 3),),
    elapsed_ns=5,
    latency_ns=(1, 2, 3),
    failure="block 8 was refused",
    trouble="BAD_BLOCK_PROOF",
)


@pytest.mark.parametrize("report", [FULL, PublishReport("bob")])
def test_json_brings_every_field_back(report: PublishReport) -> None:
    assert PublishReport.from_json(report.to_json()) == report


def test_unacknowledged_is_what_is_left() -> None:
    assert FULL.unacknowledged == 2


def test_json_with_an_unknown_field_is_refused() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'surprise'"):
        PublishReport.from_json('{"publisher_id": "x", "surprise": 1}')


@pytest.mark.parametrize(
    ("samples", "percent", "expected"),
    [((), 50, None), ((7,), 99, 7), ((3, 1, 2), 50, 2), (tuple(range(1, 101)), 99, 99), ((1, 2), 100, 2)],
)
def test_percentiles_are_nearest_rank(samples: tuple[int, ...], percent: float, expected: int | None) -> None:
    assert percentile_ns(samples, percent) == expected
