"""What the simulation and reviewers found in the arbiter, each as the story of who did what."""

from __future__ import annotations

from gateway.limits import ITEM_OVERHEAD_BYTES
from gateway.race_facts import RaceRules
from tests.gateway.racing import ITEM, PROOF, Race

RACING_CLOSELY = RaceRules(duplicate_skip_window=100)


def test_who_has_heard_of_a_later_block_is_not_told_of_an_earlier_one() -> None:
    """Bob comes late, hears of block 9 first, and is then skipped for the old blocks that he still offers.

    He was owed a word about those, and got acknowledgement 8 after acknowledgement 9.
    """
    race = Race(8, rules=RACING_CLOSELY)
    race.connect("Alice", "Bob")
    race.block("Alice", 9)
    race.expect("Bob", "ack 9")
    race.block("Bob", 6, 7)
    race.expect("Bob", "skip 6", "skip 7")
    race.wait(2)
    race.expect("Bob")


def test_who_is_owed_a_word_gets_it_once() -> None:
    """Bob comes late, and nothing happens any more: he hears that what he was skipped for is safe."""
    race = Race(8, rules=RACING_CLOSELY)
    race.connect("Bob")
    race.block("Bob", 7)
    race.wait(2)
    race.expect("Bob", "skip 7", "ack 8")
    race.block("Bob", 8)
    race.wait(2)
    race.expect("Bob", "skip 8")


def test_a_beginning_that_is_not_committed_makes_nothing_below_it_safe() -> None:
    """Alice offers block 7 to an empty node that begins anywhere, and vanishes; Bob has blocks 0 to 9.

    Bob heard DUPLICATE_BLOCK with last block 6 to his header of block 0, and forgot seven blocks that no
    node had.
    """
    race = Race(None, first=None)
    race.connect("Alice", "Bob")
    race.header("Alice", 7)
    race.header("Bob", 0)
    race.expect("Bob", "skip 0")
    race.wait(2)
    race.expect("Bob")  # he is not owed a word about block 6 either
    race.leave("Alice")
    race.expect("Bob", "resend 0")
    race.block("Bob", 0, 1)
    race.expect("Bob", "ack 0", "ack 1")
    race.connect("Alice")
    race.block("Alice", 2)
    race.expect("Alice", "ack 2")


def test_a_beginning_that_is_committed_makes_what_is_below_it_old() -> None:
    race = Race(None, first=None)
    race.connect("Alice", "Bob")
    race.block("Alice", 7)
    race.expect("Bob", "ack 7")
    race.header("Bob", 0)
    race.expect("Bob", "end DUPLICATE_BLOCK last 7 about 0")


def test_when_a_beginning_fails_what_was_to_follow_it_fails_too() -> None:
    """Alice begins the chain with block 2 and vanishes; Carol has sent block 3 whole, Bob waits with block 0.

    Block 3 was held for ever, and so the node wanted block 2, which nobody had any more.
    """
    race = Race(None, first=None)
    race.connect("Alice", "Bob", "Carol")
    race.header("Alice", 2)
    race.block("Carol", 3)
    race.header("Bob", 0)
    race.expect("Bob", "skip 0")
    race.leave("Alice")
    assert race.dropped == [(2, "LEFT"), (3, "NODE")]
    race.expect("Bob", "resend 0")
    race.expect("Carol", "resend 2")
    race.block("Bob", 0)
    race.expect("Bob", "ack 0")


def test_a_later_block_makes_way_also_when_the_one_that_was_asked_for_is_safe_by_now() -> None:
    """Bob leaves 9, Carol is asked for it in mid-11; Dave breaks 10 off and brings 9 before she reads that.

    Then nobody sends 10, Carol may, and is read; her 11 grew without bound, since 9 was not open any more.
    """
    race = Race(8, rules=RaceRules(inflight_bytes_max=3 * ITEM_OVERHEAD_BYTES))
    race.connect("Bob", "Dave", "Carol")
    race.header("Bob", 9)
    race.header("Dave", 10)
    race.header("Carol", 11)
    race.leave("Bob")
    race.expect("Carol", "resend 9")
    race.block("Dave", 9)
    race.expect("Carol", "ack 9")
    for _ in range(3):
        race.items("Carol", ITEM, ITEM)
    assert race.dropped[-1] == (11, "SENT_BACK")
    assert race.arbiter.inflight_bytes == 0
    race.block("Carol", 10, 11)
    race.expect("Carol", "ack 10", "ack 11")


def test_whoever_is_timed_out_by_an_error_was_still_a_source() -> None:
    """Alice's ERROR completes block 10, which had its proof; that stalls Bob, who has block 9.

    Bob was there when Alice said it, so subscribers are not told. The simulation expected that they are.
    """
    race = Race(8, rules=RaceRules(stall_blocks=1))
    race.connect("Alice", "Bob")
    race.header("Bob", 9)
    race.header("Alice", 10, proven=True)
    race.end_stream("Alice", is_error=True)
    race.expect("Bob", "end TIMEOUT last 8 about 9")
    assert race.source_errors == []


def test_who_went_on_with_what_it_was_asked_for_is_asked_for_the_beginning() -> None:
    """Bob is asked for block 1, and told Behind for block 2, which was on its way; he sends block 1.

    Then Carol leaves, with whose block 0 the chain was to begin. The simulation took Bob for one who comes to
    block 0 by himself, since Behind had told him of it before he sent block 1.
    """
    race = Race(None, first=None)
    race.connect("Alice", "Bob", "Carol")
    race.header("Alice", 2)
    race.header("Bob", 0)
    race.header("Bob", 1)
    race.leave("Alice")
    race.expect("Bob", "skip 0", "skip 1", "resend 1")
    race.header("Carol", 0)
    race.header("Bob", 2)
    race.expect("Bob", "behind None")
    race.header("Bob", 1)
    race.leave("Carol")
    race.expect("Bob", "resend 0")


def test_two_who_are_read_again_at_once_do_not_stall_each_other() -> None:
    """Alice has block 9 and Bob block 10; both had to wait, and are read again at the same time, Bob first.

    Whose time began last is not stalled by who began before. Both times were equal, and the number of the
    attempt decided: Alice was taken for stalled, which nobody looked at before her next block.
    """
    race = Race(8, rules=RaceRules(stall_blocks=1))
    race.connect("Alice", "Bob")
    race.header("Alice", 9)
    race.header("Bob", 10)
    for name in ("Alice", "Bob"):
        race.arbiter.hold_back(race.ids[name])
    race.arbiter.let_go(race.ids["Bob"], race.now_ns)
    race.items("Bob", ITEM, PROOF)
    race.end("Bob", 10)
    race.arbiter.let_go(race.ids["Alice"], race.now_ns)
    race.wait(0)
    race.expect("Alice")
    race.items("Alice", PROOF)
    race.end("Alice", 9)
    race.expect("Alice", "ack 9", "ack 10")


def test_who_starts_its_block_over_and_over_is_timed_out_all_the_same() -> None:
    """Alice wins block 9 and begins it again each second: everybody was skipped for it, for ever."""
    race = Race(8)
    race.connect("Alice", "Bob")
    race.header("Alice", 9)
    race.header("Bob", 9)
    for _ in range(5):
        race.wait(1)
        race.header("Alice", 9)
    race.expect("Alice")
    race.wait(1)
    race.expect("Alice", "end TIMEOUT last 8 about 9")
    race.expect("Bob", "skip 9", "resend 9")
    assert race.dropped == [(9, "RESTARTED")] * 5 + [(9, "TIMED_OUT")]


def test_who_starts_its_block_over_is_stalled_all_the_same() -> None:
    """Alice starts block 9 over after Bob has begun block 12, and before he completes it."""
    race = Race(8)
    race.connect("Alice", "Bob")
    race.header("Alice", 9)
    race.block("Bob", 10, 11)
    race.header("Bob", 12)
    race.header("Alice", 9)
    race.expect("Alice")
    race.items("Bob", ITEM, PROOF)
    race.end("Bob", 12)
    race.expect("Alice", "end TIMEOUT last 8 about 9")


def test_who_starts_a_block_over_that_it_had_failed_stays_its_winner() -> None:
    """Alice failed block 9 and won it again since nobody else was there; Bob comes, and she starts it over.

    She heard SkipBlock for the block that she was sending, and it waited for Bob, who had not come to it.
    """
    race = Race(8)
    race.connect("Alice")
    race.header("Alice", 9)
    race.header("Alice", 10)  # breaks 9 off
    race.expect("Alice", "behind 8")
    race.header("Alice", 9)
    race.connect("Bob")
    race.header("Alice", 9)
    race.expect("Alice")
    race.header("Bob", 9)
    race.expect("Bob", "skip 9")
    race.items("Alice", PROOF)
    race.end("Alice", 9)
    race.expect("Alice", "ack 9")
    race.expect("Bob", "ack 9")


def test_who_fails_a_block_after_it_started_it_over_is_blamed_as_before() -> None:
    race = Race(8)
    race.connect("Alice")
    race.header("Alice", 9)
    race.header("Alice", 10)
    race.header("Alice", 9)
    race.connect("Bob")
    race.header("Alice", 9)
    race.bad_request("Alice")
    race.connect("Alice")
    race.header("Alice", 9)
    race.expect("Alice", "skip 9")
    race.block("Bob", 9)
    race.expect("Bob", "ack 9")


def test_who_starts_a_block_over_while_one_below_is_open_stays_its_winner() -> None:
    """Bob sends block 10 when Alice breaks 9 off; he was asked for 9, but starts 10 over before he reads it.

    He goes on with 10 as he would have without that header, and comes back to 9 then.
    """
    race = Race(8)
    race.connect("Alice")
    race.connect("Bob")
    race.header("Alice", 9)
    race.header("Bob", 9)
    race.expect("Bob", "skip 9")
    race.header("Bob", 10)
    race.leave("Alice")
    race.expect("Bob", "resend 9")
    race.header("Bob", 10)
    race.expect("Bob")
    race.items("Bob", PROOF)
    race.end("Bob", 10)
    race.block("Bob", 9)
    race.expect("Bob", "ack 9", "ack 10")


def test_who_has_started_a_block_over_is_not_blamed_for_it() -> None:
    """Alice leaves block 10, which she has started over, when she is asked for 9; then it is hers again."""
    race = Race(8)
    race.connect("Alice", "Bob", "Carol")
    race.header("Bob", 9)
    race.header("Alice", 9)
    race.expect("Alice", "skip 9")
    race.header("Alice", 10)
    race.header("Alice", 10)
    race.leave("Bob")
    race.expect("Alice", "resend 9")
    race.block("Alice", 9)
    race.header("Alice", 10)
    race.expect("Alice", "ack 9")
    assert race.dropped[-1] == (10, "SENT_BACK")
    assert race.winner_of[10] == "Alice"


def test_who_offers_a_block_again_that_it_has_sent_whole_does_not_start_it_over() -> None:
    """Its proof ended the block when the next header came, though that is its own once more."""
    race = Race(8)
    race.connect("Alice")
    race.connect("Bob")
    race.header("Alice", 9)
    race.header("Bob", 9)
    race.expect("Bob", "skip 9")
    race.header("Bob", 10)
    race.items("Bob", PROOF)
    race.header("Bob", 10)
    race.expect("Bob", "skip 10")
