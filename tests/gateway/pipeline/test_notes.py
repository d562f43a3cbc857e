"""The log lines and metrics of answers and of lost blocks."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from sluice.gateway.blocks.refusal import Refusal, RefusalKind
from sluice.gateway.metrics import Metrics
from sluice.gateway.pipeline.dispute import Disputed
from sluice.gateway.pipeline.notes import note_answer, note_dispute, note_drop, note_refusal, note_stray
from sluice.gateway.race.actions import (
    Acknowledgement,
    AttemptId,
    Behind,
    Drop,
    EndOfStream,
    PublisherId,
    Resend,
    Response,
    Skip,
    Stray,
)
from sluice.gateway.race.tables import EndStatus, Failure


def metrics() -> Metrics:
    return Metrics(verification_mode="full")


@pytest.mark.parametrize("failure", Failure)
def test_every_failure_has_a_reason_of_its_own_among_what_was_resent(failure: Failure) -> None:
    counted = metrics()
    note_answer(counted, "alice", Resend(9, failure))
    labels = {"reason": failure.name.lower()}
    assert counted.registry.get_sample_value("sluice_blocks_resent_total", labels) == 1


def test_a_block_that_was_passed_for_a_beginning_is_resent_for_that() -> None:
    counted = metrics()
    note_answer(counted, "alice", Resend(9))
    value = counted.registry.get_sample_value("sluice_blocks_resent_total", {"reason": "beginning"})
    assert value == 1


def test_stray_messages_are_counted_and_the_first_in_a_row_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counted = metrics()
    for is_first in (True, False):
        note_stray(counted, "alice", Stray(PublisherId(1), "got 2 items", is_first))
    assert counted.registry.get_sample_value("sluice_stray_messages_total") == 2
    assert [record.message for record in caplog.records] == ["stray message dropped"]


def test_what_a_resend_was_for_does_not_make_it_another_answer() -> None:
    assert Resend(9, Failure.LEFT) == Resend(9)


def test_skips_are_counted() -> None:
    counted = metrics()
    note_answer(counted, "alice", Skip(9))
    assert counted.registry.get_sample_value("sluice_blocks_skipped_total") == 1


@pytest.mark.parametrize(
    ("response", "level"),
    [
        (EndOfStream(EndStatus.SUCCESS, 9), logging.INFO),
        (EndOfStream(EndStatus.DUPLICATE_BLOCK, 9), logging.INFO),
        (EndOfStream(EndStatus.TIMEOUT, 9, 10, "not complete"), logging.WARNING),
        (EndOfStream(EndStatus.BAD_BLOCK_PROOF, 9, 10), logging.WARNING),
        (Skip(9), logging.DEBUG),
        (Behind(9), logging.DEBUG),
        (Acknowledgement(9), None),
    ],
)
def test_how_loud_an_answer_is(
    response: Response, level: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "sluice"):
        note_answer(metrics(), "alice", response)
    assert [record.levelno for record in caplog.records] == ([] if level is None else [level])


@pytest.mark.parametrize("failure", Failure)
def test_how_loud_a_lost_block_is(failure: Failure, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "sluice"):
        note_drop("alice", Drop(AttemptId(1), 9, failure, "because"))
    if failure in (Failure.REFUSED, Failure.UNCHECKED, Failure.DISPUTED):
        assert caplog.records == []
        return
    expected = logging.WARNING if failure in (Failure.TIMED_OUT, Failure.NODE) else logging.INFO
    assert [(record.message, record.levelno) for record in caplog.records] == [("block dropped", expected)]


def test_a_refused_block_is_logged_and_counted_by_its_kind(caplog: pytest.LogCaptureFixture) -> None:
    counted = metrics()
    refusal = Refusal(RefusalKind.BAD_PROOF, "signature", "another key's", "the ledger's")
    note_refusal(counted, 9, "alice", refusal)
    labels = {"reason": RefusalKind.BAD_PROOF.value}
    assert counted.registry.get_sample_value("sluice_blocks_refused_total", labels) == 1
    note_refusal(counted, 9, "alice", replace(refusal, kind=RefusalKind.MISSING_VERIFICATION_DATA))
    assert [record.message for record in caplog.records] == ["block refused", "block cannot be checked"]


@pytest.mark.parametrize("is_dead_end", [True, False])
def test_a_dispute_is_logged_in_the_words_of_its_finding(
    is_dead_end: bool, caplog: pytest.LogCaptureFixture
) -> None:
    disputed = Disputed(9, b"\1" * 48, b"\2" * 48, ("alice",), is_dead_end)
    note_dispute(disputed)
    [record] = caplog.records
    assert record.message == disputed.text
    assert record.levelno == (logging.ERROR if is_dead_end else logging.WARNING)
