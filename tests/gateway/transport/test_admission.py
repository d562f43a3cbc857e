"""Tests of `gateway.transport.admission`: admission, and the pace of messages."""

from __future__ import annotations

import pytest

from sluice.gateway.transport.admission import (
    MESSAGE_PACES_KEPT,
    Admission,
    AdmissionLimits,
    DenialKind,
    Denied,
    MessagePace,
)

NOBODY: frozenset[str] = frozenset()
ALICE = frozenset({"O=Net,CN=alice", "CN=alice"})


def test_anybody_is_admitted_where_there_is_no_list() -> None:
    admission = Admission(AdmissionLimits())
    assert admission.admit("alice", "192.0.2.1", NOBODY) is None


@pytest.mark.parametrize("entry", ["CN=alice", "O=Net,CN=alice"])
def test_the_list_takes_the_whole_subject_or_the_common_name(entry: str) -> None:
    admission = Admission(AdmissionLimits(frozenset({entry})))
    assert admission.admit("alice", "192.0.2.1", ALICE) is None


def test_who_is_not_on_the_list_is_denied_and_told_why() -> None:
    admission = Admission(AdmissionLimits(frozenset({"CN=bob"})))
    assert admission.admit("alice", "192.0.2.1", ALICE) == Denied(
        DenialKind.NOT_ALLOWED,
        "publisher: got O=Net,CN=alice, expected a certificate whose subject is in publish.allowed_subjects",
    )
    denied = admission.admit("eve", "192.0.2.1", NOBODY)
    assert denied is not None
    assert denied.reason == (
        "publisher: got no client certificate, expected a certificate whose subject is in "
        "publish.allowed_subjects"
    )


def test_a_pace_is_of_a_publisher_and_of_an_address_and_outlives_a_stream() -> None:
    second_ns = 1_000_000_000
    admission = Admission(AdmissionLimits(messages_per_second=2, messages_per_second_per_address=3))
    assert [admission.wait_ns("alice", "192.0.2.1", 0) for _ in range(3)] == [0, 0, second_ns // 2]
    admission.admit("alice", "192.0.2.1", NOBODY)
    admission.release("alice", "192.0.2.1")
    assert admission.wait_ns("alice", "192.0.2.2", 0) == second_ns
    assert admission.wait_ns("bob", "192.0.2.1", 0) == pytest.approx(second_ns / 3, abs=2)
    assert admission.wait_ns("bob", "192.0.2.9", 10 * second_ns) == 0


def test_without_a_limit_nobody_waits() -> None:
    admission = Admission(AdmissionLimits())
    assert {admission.wait_ns("alice", "192.0.2.1", 0) for _ in range(1000)} == {0}


def test_the_pace_that_was_idle_longest_is_forgotten_first() -> None:
    admission = Admission(AdmissionLimits(messages_per_second=1))
    for name in ("first", "second"):
        assert admission.wait_ns(name, "", 0) == 0
    assert admission.wait_ns("first", "", 0) > 0
    for number in range(MESSAGE_PACES_KEPT - 1):
        admission.wait_ns(f"publisher-{number}", "", 0)
    assert admission.wait_ns("first", "", 0) > 0
    assert admission.wait_ns("second", "", 0) == 0


def test_whoever_invents_names_pushes_out_no_other_kind() -> None:
    admission = Admission(AdmissionLimits(messages_per_second=1, messages_per_second_per_address=1000))
    for name in ("CN=alice", "claimed:CN=alice"):
        assert admission.wait_ns(name, "", 0) == 0
    for number in range(MESSAGE_PACES_KEPT):
        admission.wait_ns(f"claimed:{number}", "", 0)
    assert admission.wait_ns("CN=alice", "", 0) > 0
    assert admission.wait_ns("claimed:CN=alice", "", 0) < admission.wait_ns("CN=alice", "", 0)


def test_a_publisher_has_its_number_of_streams_and_no_more() -> None:
    admission = Admission(AdmissionLimits(streams_per_publisher_max=2))
    assert admission.admit("alice", "192.0.2.1", NOBODY) is None
    assert admission.admit("alice", "192.0.2.2", NOBODY) is None
    assert admission.admit("alice", "192.0.2.3", NOBODY) == Denied(
        DenialKind.PUBLISHER_STREAMS,
        "streams of this publisher: got 3, expected at most 2 at once",
    )
    assert admission.admit("bob", "192.0.2.3", NOBODY) is None
    admission.release("alice", "192.0.2.2")
    assert admission.admit("alice", "192.0.2.3", NOBODY) is None


def test_an_address_has_its_number_of_streams_and_no_more() -> None:
    admission = Admission(AdmissionLimits(streams_per_address_max=2))
    assert admission.admit("alice", "192.0.2.1", NOBODY) is None
    assert admission.admit("bob", "192.0.2.1", NOBODY) is None
    assert admission.admit("carol", "192.0.2.1", NOBODY) == Denied(
        DenialKind.ADDRESS_STREAMS, "streams of this address: got 3, expected at most 2 at once"
    )
    assert admission.admit("carol", "192.0.2.2", NOBODY) is None
    admission.release("bob", "192.0.2.1")
    assert admission.admit("dave", "192.0.2.1", NOBODY) is None


def test_a_denied_stream_is_not_counted() -> None:
    admission = Admission(AdmissionLimits(streams_per_publisher_max=1, streams_per_address_max=1))
    assert admission.admit("alice", "192.0.2.1", NOBODY) is None
    for _ in range(3):
        assert admission.admit("alice", "192.0.2.1", NOBODY) is not None
    admission.release("alice", "192.0.2.1")
    assert admission.admit("alice", "192.0.2.1", NOBODY) is None


def test_releasing_what_was_not_admitted_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="alice has no stream to release"):
        Admission(AdmissionLimits()).release("alice", "192.0.2.1")


def test_of_streams_that_are_over_nothing_is_kept() -> None:
    """Publishers without a name have a new one with each connection, and would fill the memory."""
    admission = Admission(AdmissionLimits())
    for number in range(3):
        for _ in range(2):
            assert (
                admission.admit(f"ipv4:192.0.2.{number}:{5000 + number}", f"192.0.2.{number}", NOBODY) is None
            )
    for number in range(3):
        admission.release(f"ipv4:192.0.2.{number}:{5000 + number}", f"192.0.2.{number}")
    assert (len(admission._by_publisher), len(admission._by_address)) == (3, 3)
    for number in range(3):
        admission.release(f"ipv4:192.0.2.{number}:{5000 + number}", f"192.0.2.{number}")
    assert (len(admission._by_publisher), len(admission._by_address)) == (0, 0)


def test_a_seconds_worth_of_messages_may_come_at_once_and_the_next_waits_its_turn() -> None:
    pace = MessagePace(4, now_ns=0)
    assert [pace.wait_ns(0) for _ in range(6)] == [0, 0, 0, 0, 250_000_000, 500_000_000]


def test_a_quiet_time_fills_the_bucket_but_not_more_than_full() -> None:
    pace = MessagePace(4, now_ns=0)
    assert [pace.wait_ns(0) for _ in range(4)] == [0] * 4
    assert [pace.wait_ns(100_000_000_000) for _ in range(5)] == [0, 0, 0, 0, 250_000_000]


def test_an_even_pace_never_waits() -> None:
    pace = MessagePace(4, now_ns=0)
    assert {pace.wait_ns(number * 250_000_000) for number in range(100)} == {0}
