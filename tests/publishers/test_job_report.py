"""The figures of a race, added up."""

from __future__ import annotations

from publishers.job_report import JobFailure, JobReport
from publishers.report import PublishReport, safe_through_of


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
