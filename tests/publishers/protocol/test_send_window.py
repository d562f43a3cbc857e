"""The send window: both edges, and what each answer does to them."""

from __future__ import annotations

import pytest

from sluice.publishers.protocol.send_window import BEHIND_ANSWERS_MAX, READ_AHEAD_BLOCKS, Offers, SendWindow
from sluice.publishers.protocol.tally import Tally
from sluice.publishers.report import PublishReport
from tests.publishers.scenario import block_ready, word


class Window:
    """A send window with verbs, and what it counted."""

    def __init__(self, cache_bytes_max: int = 1000, blocks_max: int = 128) -> None:
        self.tally = Tally("alice")
        self.edges = SendWindow(self.tally, cache_bytes_max, blocks_max)
        self.now_ns = 0

    @property
    def report(self) -> PublishReport:
        return self.tally.report(self.edges.safe_through, 0)

    def take(self, *numbers: int, set_count: int = 1) -> Window:
        for number in numbers:
            self.edges.take(block_ready(number, set_count))
        return self

    def send(self, count: int = 1000) -> list[str]:
        """Send so many messages, or all that can be sent: `9` a set of block 9, `9.` its end."""
        words: list[str] = []
        while len(words) < count and (message := self.edges.next_message(self.now_ns)) is not None:
            words.append(word(message))
        return words

    def ack(self, number: int) -> bool:
        return self.edges.stored(number, self.now_ns, acknowledged=True)

    def behind(self, wanted: int) -> bool:
        return self.edges.go_on_from(wanted, is_late=self.edges.hear_behind(wanted) is False)


# --- what is held -------------------------------------------------------------------------------------------


def test_a_window_begins_empty_and_wants_blocks() -> None:
    edges = Window().edges
    assert (edges.is_empty, edges.first, edges.safe_through) == (True, None, None)
    assert edges.wants_block
    assert edges.range_held() == (0, 0)
    assert edges.next_message(0) is None


def test_the_range_held_is_the_last_block_twice_when_all_are_stored() -> None:
    window = Window().take(5, 6, 7)
    assert window.edges.range_held() == (5, 7)
    window.ack(7)
    assert window.edges.range_held() == (7, 7)


def test_a_block_that_is_stored_already_is_counted_and_not_held() -> None:
    window = Window().take(5)
    window.ack(6)
    window.edges.stored(7, 0, acknowledged=False)
    window.take(6, 7)
    assert window.edges.is_empty
    assert (window.report.blocks, window.report.acknowledged, window.report.duplicate) == (3, 2, 1)
    assert window.take(8).send() == ["8", "8."]


def test_room_ends_with_the_bytes_of_the_cache_and_with_the_read_ahead() -> None:
    window = Window(cache_bytes_max=20).take(5)
    assert window.edges.wants_block
    assert not window.take(6).edges.wants_block
    ahead = Window().take(*range(READ_AHEAD_BLOCKS - 1))
    assert ahead.edges.wants_block
    assert not ahead.take(READ_AHEAD_BLOCKS - 1).edges.wants_block
    ahead.send(2)  # the read-ahead is counted from where the stream is
    assert ahead.edges.wants_block


# --- sending ------------------------------------------------------------------------------------------------


def test_a_block_goes_out_set_by_set_and_then_its_end() -> None:
    window = Window().take(5, 6, set_count=2)
    assert window.edges.is_between_blocks
    assert window.send(2) == ["5", "5"]
    assert not window.edges.is_between_blocks
    assert window.send(1) == ["5."]
    assert window.edges.is_between_blocks
    assert window.send() == ["6", "6", "6."]
    assert (window.report.offered, window.report.bytes_sent) == (2, 40)


def test_a_block_that_is_offered_again_counts_once() -> None:
    window = Window().take(5)
    window.send()
    assert window.edges.resend(5)
    assert window.send() == ["5", "5."]
    assert (window.report.offered, window.report.resent) == (1, 1)


def test_one_block_beyond_the_window_waits() -> None:
    window = Window(blocks_max=2).take(5, 6, 7)
    assert window.send() == ["5", "5.", "6", "6."]
    window.edges.skip(6)
    assert window.send() == []
    window.ack(5)
    assert window.send() == ["7", "7."]


def test_an_answer_is_owed_from_the_first_header_until_all_is_stored() -> None:
    window = Window().take(5)
    assert not window.edges.is_owed
    window.send(1)
    assert window.edges.is_owed
    window.ack(5)
    assert not window.edges.is_owed


def test_a_new_stream_begins_with_the_oldest_block_and_has_heard_of_nothing() -> None:
    window = Window().take(5, 6, set_count=2)
    window.send(4)
    window.edges.skip(5)
    assert window.edges.has_offered_through(5)
    window.edges.begin_stream()
    assert not window.edges.has_offered_through(6)
    assert window.send() == ["5", "5", "5.", "6", "6", "6."]
    window.ack(6)
    assert window.report.won == 2  # the skip was of the stream before


def test_what_the_stream_before_has_not_heard_of_is_not_waited_for() -> None:
    """It was sent back, and broke: no answer on the next stream is about a header from before that."""
    window = Window().take(9, 10, 11, set_count=2)
    window.send()
    assert window.edges.resend(9)
    window.edges.begin_stream()
    window.send()
    assert window.behind(9)
    assert window.send(1) == ["9"]
    window.edges.skip(9)
    assert window.send(1) == ["10"]


def test_a_refusal_is_about_the_block_named_or_sent_last() -> None:
    window = Window().take(5, 6, 7, set_count=2)
    window.send(4)  # in mid-block 6
    assert [window.edges.last_sent(said) for said in (0, 5, 9)] == [6, 5, 6]
    window.send(2)  # 6 whole, 7 not begun
    assert [window.edges.last_sent(said) for said in (0, 5, 7)] == [6, 5, 6]


# --- answers ------------------------------------------------------------------------------------------------


def test_what_is_stored_is_let_go_and_the_rest_of_it_not_sent() -> None:
    window = Window().take(5, 6, 7, set_count=2)
    window.send(4)
    window.now_ns = 7
    assert window.ack(6)
    assert (window.edges.first, window.edges.safe_through) == (7, 6)
    assert not window.edges.holds(6)
    assert window.send() == ["7", "7", "7."]
    assert (window.report.won, window.report.acknowledged, window.report.latency_ns) == (1, 2, (7,))


@pytest.mark.parametrize("number", [4, 6])
def test_what_is_known_to_be_stored_is_no_news(number: int) -> None:
    window = Window().take(5, 6, 7)
    window.ack(6)
    before = window.report
    assert not window.ack(number)
    assert window.report == before


def test_a_skipped_block_is_left_but_held() -> None:
    window = Window().take(5, 6, set_count=2)
    window.send(1)
    window.edges.skip(5)
    assert window.edges.holds(5)
    assert window.send() == ["6", "6", "6."]
    window.ack(6)
    assert (window.report.won, window.report.skipped, window.report.acknowledged) == (1, 1, 2)


def test_a_skip_of_an_earlier_block_does_not_leave_the_one_that_is_being_sent() -> None:
    window = Window().take(9, 10, 11, set_count=2)
    window.send(7)
    window.edges.skip(9)
    assert window.send() == ["11", "11."]


def test_a_skip_of_a_block_that_was_not_offered_changes_nothing() -> None:
    window = Window().take(5, 6)
    window.edges.skip(5)
    assert window.send() == ["5", "5.", "6", "6."]
    assert window.report.skipped == 0


def test_a_skip_of_a_header_from_before_going_back_changes_nothing() -> None:
    window = Window().take(5, 6, set_count=2)
    window.send()
    assert window.edges.resend(5)
    window.send(4)
    window.edges.skip(6)
    assert window.send() == ["6", "6."]
    assert window.report.skipped == 0


def test_resend_goes_back_in_mid_block() -> None:
    window = Window().take(5, 6, set_count=2)
    window.send(4)
    assert window.edges.resend(5)
    assert window.send() == ["5", "5", "5.", "6", "6", "6."]
    assert window.report.resent == 1


@pytest.mark.parametrize("number", [6, 7, 9])
def test_resend_of_what_is_still_to_be_offered_changes_nothing(number: int) -> None:
    window = Window().take(5, 6, 7)
    window.send(2)
    assert window.edges.resend(number)
    assert window.send() == ["6", "6.", "7", "7."]
    assert window.report.resent == 0


def test_a_block_that_is_gone_cannot_be_gone_back_to() -> None:
    window = Window().take(5, 6)
    window.send()
    window.ack(5)
    before = window.report
    assert not window.edges.resend(5)
    assert not window.behind(5)
    assert window.report == before


def test_behind_goes_back_once_for_all_headers_from_before() -> None:
    window = Window().take(5, 6, 7)
    window.send()
    assert window.behind(5)
    assert window.send(1) == ["5"]
    assert window.behind(5)  # about the header of 7, sent before going back
    assert window.send() == ["5.", "6", "6.", "7", "7."]
    assert window.report.behind == 2


def test_behind_about_a_header_from_before_a_resend_moves_nothing() -> None:
    """Not even to a lower block: the next header may be accepted, and is answered if it is not."""
    window = Window().take(0, 1, 2)
    window.send(5)
    window.edges.skip(0)
    window.edges.skip(1)
    assert window.edges.resend(1)
    assert window.behind(0)
    assert window.send(1) == ["1"]


def test_behind_is_obeyed_a_bounded_number_of_times_until_a_block_is_stored() -> None:
    window = Window().take(5, 6, 7)
    for _ in range(BEHIND_ANSWERS_MAX):
        window.send(1)
        assert window.behind(5)
    window.send(1)
    assert not window.behind(5)
    assert window.send() == ["5.", "6", "6.", "7", "7."]  # it did not go back
    window.ack(5)
    assert window.behind(6)
    assert window.send() == ["6", "6.", "7", "7."]


# --- late answers -------------------------------------------------------------------------------------------


def offers_of(*numbers: int, count_max: int = 10) -> Offers:
    offers = Offers(count_max)
    for number in numbers:
        offers.sent(number)
    return offers


def test_an_answer_forgets_its_header_and_those_before() -> None:
    offers = offers_of(5, 6, 7)
    assert offers.answered(lambda number: number == 6) is True
    assert len(offers) == 1
    assert offers.answered(lambda number: number == 6) is None


def test_acknowledged_headers_are_forgotten() -> None:
    offers = offers_of(5, 6, 7)
    offers.drop_through(6)
    assert len(offers) == 1


def test_beyond_the_limit_the_oldest_is_forgotten() -> None:
    offers = offers_of(5, 6, 7, count_max=2)
    assert offers.answered(lambda number: number == 5) is None
    assert len(offers) == 2
