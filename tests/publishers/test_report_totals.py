"""Reports of a whole job or query, added up."""

from __future__ import annotations

from publishers.report import PublishReport, RefusedBlock
from publishers.report_totals import QueryTotals, add_reports, by_publisher

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
