"""Tests of `gateway.transport.door_notes`: what operators see of strangers' events."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from sluice.gateway.metrics import Metrics
from sluice.gateway.transport.door_notes import REASONS_SHOWN, SHOWN_NS, DoorNotes, last_refused_message
from sluice.gateway.transport.frames import ConnectionBreach
from sluice.gateway.transport.message_size import TooLong
from tests.gateway.store.test_block_store import logged
from tests.nodes import running_node

STRANGER, OTHER = "192.0.2.1", "2001:db8::/64"
SETTING = "grpc.listen"
ENDED = "connection ended"
HANDSHAKE = ConnectionBreach("handshake", got="nothing more for 20 s", expected="TLS and the preface")
NO_CALL = ConnectionBreach("no call", got="nothing more for 60 s", expected="a call")


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_ns = 5

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def notes(clock: Clock) -> DoorNotes:
    return DoorNotes(SETTING, now_ns=clock)


def test_lines_are_counted_by_address(notes: DoorNotes, caplog: pytest.LogCaptureFixture) -> None:
    """The log leaves out lines of an address that causes many."""
    notes.refused(OTHER, "connections")
    notes.ended(STRANGER, HANDSHAKE)
    assert [record.caused_by for record in caplog.records] == [OTHER, STRANGER]  # type: ignore[attr-defined]
    (line,) = logged(caplog, ENDED)
    assert (line["setting"], line["reason"], line["address"]) == (SETTING, "handshake", STRANGER)
    assert (line["got"], line["expected"]) == ("nothing more for 20 s", "TLS and the preface")


def test_the_page_tells_of_ten_minutes_and_of_nothing_older(notes: DoorNotes, clock: Clock) -> None:
    notes.refused(STRANGER, "connections of an address")
    notes.refused(OTHER, "connections of an address")
    clock.now_ns += 1
    notes.ended(STRANGER, HANDSHAKE)
    refused = f"{SETTING}: connections refused, too many connections of an address: 2, last from {OTHER}"
    ended = f"{SETTING}: connections ended, handshake: 1, last from {STRANGER}"
    assert notes.words() == (refused, ended)
    clock.now_ns += SHOWN_NS - 2
    assert notes.words() == (refused, ended)
    clock.now_ns += 1
    assert notes.words() == (ended,)
    clock.now_ns += 1
    assert notes.words() == ()


def test_what_is_older_is_not_counted_and_takes_no_place_though_nobody_looks_at_the_page(
    notes: DoorNotes, clock: Clock
) -> None:
    for number in range(REASONS_SHOWN):
        notes.refused(STRANGER, f"reason {number}")
    clock.now_ns += SHOWN_NS
    for reason in ("a further reason", "reason 0"):
        notes.refused(OTHER, reason)
    assert notes.words() == tuple(
        f"{SETTING}: connections refused, too many {reason}: 1, last from {OTHER}"
        for reason in ("a further reason", "reason 0")
    )


def test_the_page_shows_so_many_reasons(notes: DoorNotes) -> None:
    for number in range(REASONS_SHOWN + 1):
        notes.refused(STRANGER, f"reason {number}")
    notes.refused(OTHER, "reason 0")  # a shown event is counted on
    words = notes.words()
    assert len(words) == REASONS_SHOWN
    assert words[0].endswith(f"reason 0: 2, last from {OTHER}")


def test_who_only_has_no_call_is_counted_and_nothing_more(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics(verification_mode="full")
    notes = DoorNotes(SETTING, metrics, now_ns=clock)
    notes.ended(STRANGER, NO_CALL)
    assert notes.words() == ()
    assert logged(caplog, ENDED) == []
    ended = metrics.registry.get_sample_value("sluice_connections_ended_total", {"reason": "no call"})
    assert ended == 1


def test_all_is_counted_by_reason_though_it_is_not_logged(clock: Clock) -> None:
    metrics = Metrics(verification_mode="full")
    notes = DoorNotes(SETTING, metrics, now_ns=clock)
    for _ in range(3):
        notes.refused(STRANGER, "connections")
        notes.ended(STRANGER, HANDSHAKE)
    value = metrics.registry.get_sample_value
    assert value("sluice_connections_refused_total", {"reason": "connections"}) == 3
    assert value("sluice_connections_ended_total", {"reason": "handshake"}) == 3


TOO_LONG = TooLong(size_bytes=200, limit_bytes=100)
REFUSED = "message refused for its length"


def refused_count(metrics: Metrics) -> float | None:
    return metrics.registry.get_sample_value("sluice_messages_refused_total", {"reason": "size"})


def test_each_refused_message_is_counted_and_its_line_is_counted_by_address(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics = Metrics(verification_mode="full")
    notes = DoorNotes("grpc.address", metrics)
    assert refused_count(metrics) == 0
    for address in (STRANGER, OTHER):
        notes.refused_message(address, TOO_LONG)
    assert [(line["address"], line["got"], line["expected_at_most"]) for line in logged(caplog, REFUSED)] == [
        (STRANGER, 200, 100),
        (OTHER, 200, 100),
    ]
    assert [record.caused_by for record in caplog.records] == [STRANGER, OTHER]  # type: ignore[attr-defined]
    assert refused_count(metrics) == 2


def test_the_last_message_that_was_refused_at_any_door_is_told_of_for_a_while(clock: Clock) -> None:
    publishing = DoorNotes("grpc.address", now_ns=clock)
    control = DoorNotes("control.address", now_ns=clock)
    doors = (publishing, control)
    assert last_refused_message(doors) is None
    publishing.refused_message(STRANGER, TOO_LONG)
    assert last_refused_message(doors) == (
        "a message of 200 bytes from 192.0.2.1 to grpc.address was refused, expected at most 100 "
        "(grpc.max_message_bytes)"
    )
    clock.now_ns += SHOWN_NS // 2
    control.refused_message(STRANGER, TOO_LONG)  # no setting limits control's messages
    last = (
        "a message of 200 bytes from 192.0.2.1 to control.address was refused, expected at most 100 "
        "(a request there has no more)"
    )
    assert last_refused_message(doors) == last
    clock.now_ns += SHOWN_NS - 1
    assert last_refused_message(doors) == last
    clock.now_ns += 1
    assert last_refused_message(doors) is None


async def test_the_page_of_a_node_tells_of_a_refused_message_and_the_node_stays_ready(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    async with running_node(tmp_path) as node:
        node.door_notes[0].refused_message(STRANGER, TooLong(200_000_000, 131_072_000))
        [finding] = [one for one in node.reporter.report().findings if "200000000" in one.text]
        assert not finding.is_problem
        assert node.reporter.readiness() == []
        assert refused_count(node.metrics) == 1
    assert logged(caplog, REFUSED)[0]["got"] == 200_000_000
