"""Reports: JSON, sums, jobs."""

from __future__ import annotations

import pytest

from sluice.publishers.report import (
    AcknowledgementRate,
    JobFailure,
    JobReport,
    PublishReport,
    QueryTotals,
    RefusedBlock,
    add_reports,
    by_publisher,
    percentile_ns,
    safe_through_of,
)

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


ONE = PublishReport(
    "team.1",
    first_block=0,
    last_block=4,
    safe_through=4,
    blocks=5,
    offered=5,
    won=4,
    skipped=1,
    acknowledged=5,
    resent=2,
    failovers=1,
    refused=(RefusedBlock(3, "BAD_BLOCK_PROOF", 2),),
    latency_ns=(7,),
    elapsed_ns=10,
    failure="gone",
    trouble="of yesterday",
)
TWO = PublishReport(
    "team-1-attempt-2.1",
    first_block=5,
    last_block=9,
    blocks=5,
    duplicate=4,
    refused=(RefusedBlock(3, "BAD_BLOCK_PROOF", 1), RefusedBlock(9, "INVALID_REQUEST", 1)),
    elapsed_ns=20,
    trouble="refused",
)
BOTH = PublishReport(
    "team.1",
    first_block=0,
    last_block=9,
    safe_through=4,
    blocks=10,
    offered=5,
    won=4,
    skipped=1,
    acknowledged=5,
    duplicate=4,
    resent=2,
    failovers=1,
    refused=(RefusedBlock(3, "BAD_BLOCK_PROOF", 3), RefusedBlock(9, "INVALID_REQUEST", 1)),
    elapsed_ns=30,
    failure="gone",
    trouble="refused",
)


def test_counts_are_added_and_ends_are_those_of_all() -> None:
    assert add_reports("team.1", [ONE, TWO]) == BOTH
    assert BOTH.unacknowledged == 1
    assert add_reports("x", [ONE, ONE], with_latency=True).latency_ns == (7, 7)
    assert add_reports("nobody", []) == PublishReport("nobody")


def test_later_parts_do_not_make_a_beginning_stored_that_no_gateway_stores() -> None:
    early, late = PublishReport("a", stored_from=1000), PublishReport("a-1", safe_through=1999)
    total = add_reports("a", [early, late])
    assert (total.safe_through, total.stored_from) == (None, 1000)


def test_a_publisher_is_one_over_partitions_and_attempts() -> None:
    others = [PublishReport(name, blocks=1) for name in ("team-3.2", "team.10", "team.2", "another")]
    found = by_publisher("team", [*others, ONE, TWO])
    assert [report.publisher_id for report in found] == ["team.1", "team.2", "another", "team.10"]
    assert found[:2] == [BOTH, PublishReport("team.2", blocks=2)]
    alone = [PublishReport("a-1-2", blocks=1), PublishReport("a-1", blocks=1)]  # the name itself has a number
    assert by_publisher("a-1", alone) == [PublishReport("a-1", blocks=2)]


def test_the_last_batch_again_takes_the_place_of_what_it_was() -> None:
    first = QueryTotals("team").through(0, [ONE])
    second = first.through(1, [TWO])
    assert second.total == add_reports("team", [ONE, TWO])
    again = second.through(1, [PublishReport("team.1", blocks=5, duplicate=5)])
    assert (again.batch_id, again.total.duplicate, again.total.blocks) == (1, 5, 10)
    assert again.through(2, []).publishers == again.publishers


def test_a_batch_of_another_query_is_another_batch() -> None:
    first = QueryTotals("team").through(0, [ONE], "a")
    assert first.through(0, [ONE], "a") == first.through(0, [ONE]) == first
    both = first.through(0, [TWO], "b")
    assert (both.query_id, both.total) == ("b", add_reports("team", [ONE, TWO]))
    assert both.through(0, [TWO], "b") == both


def test_totals_travel_as_json() -> None:
    totals = QueryTotals("team").through(0, [ONE]).through(1, [TWO], "a")
    assert QueryTotals.from_json(totals.to_json()) == totals


def report_of(
    *publishers: PublishReport, interrupted: bool = False, failures: tuple[JobFailure, ...] = ()
) -> JobReport:
    return JobReport(0, 1, publishers, failures, 1.25, is_interrupted=interrupted)


def test_a_report_is_complete_when_nobody_failed_and_nothing_is_open() -> None:
    done = PublishReport("a", blocks=2, acknowledged=1, duplicate=1, safe_through=1)
    assert report_of(done).is_complete
    assert not report_of(PublishReport("a", blocks=2, acknowledged=1, safe_through=1)).is_complete
    assert not report_of(done, interrupted=True).is_complete
    assert not report_of(done, failures=(JobFailure("b", "why"),)).is_complete


def test_a_racer_that_gave_up_leaves_the_others_complete() -> None:
    lost = PublishReport("a.1", blocks=2, failure="refused")
    assert report_of(lost, PublishReport("a.2", blocks=2, acknowledged=2, safe_through=1)).is_complete


def test_blocks_that_were_there_and_did_not_come_leave_a_report_open() -> None:
    """A source may have less when it is read than when it was looked at."""
    assert not report_of(PublishReport("a", blocks=1, acknowledged=1, safe_through=0)).is_complete
    assert not report_of().is_complete
    assert JobReport(None, None, (), (), 1.25).is_complete


def test_json_has_the_names_of_the_report() -> None:
    published = PublishReport("a", blocks=2, won=1, latency_ns=(2_000_000, 4_000_000), safe_through=1)
    fields = report_of(published, failures=(JobFailure("b", "block 1 was refused"),)).to_fields()
    assert fields["complete"] is False
    assert fields["failures"] == [{"publisher_id": "b", "reason": "block 1 was refused"}]
    (row,) = fields["publishers"]
    assert (row["won"], row["latency_p50_ns"], row["latency_p99_ns"]) == (1, 2_000_000, 4_000_000)
    assert "latency_ns" not in row
    names = {*fields["publishers"][0]} - {"latency_p50_ns", "latency_p99_ns"}
    assert names == set(PublishReport.__dataclass_fields__) - {"latency_ns"}


def test_nothing_is_known_of_nothing() -> None:
    assert safe_through_of([]) is None
    assert safe_through_of([PublishReport("a"), PublishReport("b", safe_through=0)]) == 0


def test_a_publisher_whose_gateways_do_not_store_all_tells_nothing_of_what_is_stored() -> None:
    short = PublishReport("a", safe_through=7, stored_from=5)
    assert safe_through_of([short]) is None
    assert safe_through_of([short, PublishReport("b", safe_through=6)]) == 6


def test_the_rate_counts_what_a_lost_task_has_heard() -> None:
    rate = AcknowledgementRate()
    assert rate.of([PublishReport("alice")], 10.0, 20.0) == 0.0
    lost = PublishReport("alice", blocks=60, acknowledged=50)
    assert rate.of([lost, PublishReport("bob", blocks=60, acknowledged=40)], 10.0, 20.0) == 5.0
    # The next attempt has found all but one stored.
    assert rate.of([PublishReport("alice", blocks=60, acknowledged=1, duplicate=59)], 10.0, 30.0) == 5.0


def test_the_rate_counts_a_block_once_though_two_attempts_have_heard_of_it() -> None:
    rate = AcknowledgementRate()
    rate.of([PublishReport("alice", blocks=120, acknowledged=120)], 0.0, 10.0)
    assert rate.of([PublishReport("alice", blocks=60, acknowledged=60)], 0.0, 20.0) == 6.0
