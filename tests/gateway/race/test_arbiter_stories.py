"""What the simulation and reviewers found in the arbiter, each as a story."""

from __future__ import annotations

from sluice.gateway.limits import ITEM_OVERHEAD_BYTES
from sluice.gateway.race.records import RaceRules
from tests.gateway.racing import ITEM, PROOF, Race

RACING_CLOSELY = RaceRules(duplicate_skip_window=100)


def test_who_has_heard_of_a_later_block_is_not_told_of_an_earlier_one() -> None:
    """Bob comes late, hears of block 9 first, and then skips the old blocks that he still offers."""
    race = Race(8, "Alice", "Bob", rules=RACING_CLOSELY)
    race.block("Alice", 9)
    race.expect("Bob", "ack 9")
    race.block("Bob", 6, 7)
    race.expect("Bob", "skip 6", "skip 7")
    race.wait(2)
    race.expect("Bob")


def test_who_is_owed_a_word_gets_it_once() -> None:
    """Bob comes late, and nothing else happens: he hears that the block he skipped is safe."""
    race = Race(8, "Bob", rules=RACING_CLOSELY)
    race.block("Bob", 7)
    race.wait(2)
    race.expect("Bob", "skip 7", "ack 8")
    race.block("Bob", 8)
    race.wait(2)
    race.expect("Bob", "skip 8")


def test_a_beginning_that_is_not_committed_makes_nothing_below_it_safe() -> None:
    """Alice offers block 7 to an empty node that begins anywhere, and vanishes; Bob has blocks 0 to 9.

    With DUPLICATE_BLOCK and last block 6 he would forget seven blocks that no node has.
    """
    race = Race(None, "Alice", "Bob", first=None)
    race.header("Alice", 7)
    race.header("Bob", 0)
    race.expect("Bob", "end ERROR last None about 0")
    race.leave("Alice")
    race.connect("Bob")
    race.block("Bob", 0, 1)
    race.expect("Bob", "ack 0", "ack 1")
    race.connect("Alice")
    race.block("Alice", 2)
    race.expect("Alice", "ack 2")


def test_a_beginning_that_is_committed_makes_nothing_below_it_safe() -> None:
    race = Race(None, "Alice", "Bob", first=None)
    race.block("Alice", 7)
    race.expect("Bob", "ack 7")
    race.header("Bob", 0)
    race.expect("Bob", "end ERROR last None about 0")


def test_when_a_beginning_fails_what_was_to_follow_it_fails_too() -> None:
    """Alice begins the chain with block 2 and vanishes; Carol has sent block 3 whole, Bob waits with block 0.

    While block 3 stands, the node wants block 2, which nobody has.
    """
    race = Race(None, "Alice", "Bob", "Carol", first=None)
    race.header("Alice", 2)
    race.block("Carol", 3)
    race.header("Bob", 0)
    race.expect("Bob", "end ERROR last None about 0")
    race.leave("Alice")
    assert race.dropped == [(2, "LEFT"), (3, "NODE")]
    race.expect("Carol", "resend 2")
    race.connect("Bob")
    race.block("Bob", 0)
    race.expect("Bob", "ack 0")


def test_a_later_block_makes_way_also_when_the_one_that_was_asked_for_is_safe_by_now() -> None:
    """Bob leaves 9, Carol is asked for it in mid-11; Dave breaks 10 off and brings 9 before she reads that.

    Then nobody sends 10, and Carol, who may, is read: her 11 must not grow without bound.
    """
    race = Race(8, "Bob", "Dave", "Carol", rules=RaceRules(inflight_bytes_max=3 * ITEM_OVERHEAD_BYTES))
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

    Bob was there when Alice said it, so subscribers do not hear of it.
    """
    race = Race(8, "Alice", "Bob", rules=RaceRules(stall_blocks=1))
    race.header("Bob", 9)
    race.header("Alice", 10, proven=True)
    race.end_stream("Alice", is_error=True)
    race.expect("Bob", "end TIMEOUT last 8 about 9")
    assert race.source_errors == []


def test_a_peer_is_a_source_too() -> None:
    """Subscribers hear nothing when the last publisher says ERROR while a peer brings blocks."""
    race = Race(8, "Alice")
    race.connect("Peer", is_peer=True)
    race.end_stream("Alice", is_error=True)
    assert race.source_errors == []


def test_two_who_are_read_again_at_once_do_not_stall_each_other() -> None:
    """Alice has block 9 and Bob block 10; both were paused and are read again at the same time, Bob first.

    The time of both begins now, so neither stalls the other.
    """
    race = Race(8, "Alice", "Bob", rules=RaceRules(stall_blocks=1))
    race.header("Alice", 9)
    race.header("Bob", 10)
    for name in ("Alice", "Bob"):
        race.arbiter.pause_reading(race.ids[name])
    race.arbiter.resume_reading(race.ids["Bob"], race.now_ns)
    race.items("Bob", ITEM, PROOF)
    race.end("Bob", 10)
    race.arbiter.resume_reading(race.ids["Alice"], race.now_ns)
    race.wait(0)
    race.expect("Alice")
    race.finish("Alice", 9)
    race.expect("Alice", "ack 9", "ack 10")


def test_who_closes_its_side_ahead_of_all_blocks_waits_for_those_that_it_was_skipped_for_alone() -> None:
    """Bob skips 9, hears Behind for 40, and closes his side: he does not wait for block 40."""
    race = Race(8, "Alice", "Bob")
    race.header("Alice", 9)
    for number in (9, 40):
        race.header("Bob", number)
    race.half_close("Bob")
    race.expect("Bob", "skip 9", "behind 8")
    assert race.closed == []
    race.items("Alice", ITEM, PROOF)
    race.header("Alice", 10)
    race.expect("Bob", "ack 9")
    assert race.closed == ["Bob"]


def test_who_has_come_back_from_ahead_has_come_to_what_it_offers_now_and_no_further() -> None:
    """A peer sends block 9 slowly; Bob heard Behind for 40, and has offered 8 since. He does not have 9."""
    race = Race(8, rules=RaceRules(duplicate_skip_window=1))
    race.connect("Peer", is_peer=True)
    race.connect("Bob")
    race.header("Peer", 9)
    for number in (40, 8):
        race.header("Bob", number)
    race.expect("Bob", "behind 8", "skip 8")
    for _ in range(3):
        race.wait(5)
        race.items("Peer", ITEM)
    race.expect("Peer")


def test_who_starts_its_block_over_and_over_is_timed_out_all_the_same() -> None:
    """Alice wins block 9 and begins it again each second, while everybody skips it."""
    race = Race(8, "Alice", "Bob")
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
    race = Race(8, "Alice", "Bob")
    race.header("Alice", 9)
    race.block("Bob", 10, 11)
    race.header("Bob", 12)
    race.header("Alice", 9)
    race.expect("Alice")
    race.items("Bob", ITEM, PROOF)
    race.end("Bob", 12)
    race.expect("Alice", "end TIMEOUT last 8 about 9")


def test_who_starts_a_block_over_that_it_had_failed_stays_its_winner() -> None:
    """Alone, Alice failed block 9 and won it again; Bob comes, and she starts it over."""
    race = Race(8, "Alice")
    race.header("Alice", 9)
    race.header("Alice", 10)  # breaks 9 off
    race.expect("Alice", "behind 8")
    race.header("Alice", 9)
    race.connect("Bob")
    race.header("Alice", 9)
    race.expect("Alice")
    race.header("Bob", 9)
    race.expect("Bob", "skip 9")
    race.finish("Alice", 9)
    race.expect("Alice", "ack 9")
    race.expect("Bob", "ack 9")


def test_who_fails_a_block_after_it_started_it_over_is_blamed_as_before() -> None:
    race = Race(8, "Alice")
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

    He goes on with 10, and comes back to 9 then.
    """
    race = Race(8, "Alice")
    race.connect("Bob")
    race.header("Alice", 9)
    race.header("Bob", 9)
    race.expect("Bob", "skip 9")
    race.header("Bob", 10)
    race.leave("Alice")
    race.expect("Bob", "resend 9")
    race.header("Bob", 10)
    race.expect("Bob")
    race.finish("Bob", 10)
    race.block("Bob", 9)
    race.expect("Bob", "ack 9", "ack 10")


def test_who_has_started_a_block_over_is_not_blamed_for_it() -> None:
    """Alice leaves block 10, which she has started over, when she is asked for 9; then it is hers again.

    Carol has delivered as much as she, so a blamed Alice would hear SkipBlock.
    """
    race = Race(7, "Alice", "Bob", "Carol")
    race.block("Carol", 8)
    race.header("Bob", 9)
    race.header("Alice", 9)
    race.expect("Alice", "ack 8", "skip 9")
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
    """Its proof ended the block when the next header came, though that has the same number."""
    race = Race(8, "Alice")
    race.connect("Bob")
    race.header("Alice", 9)
    race.header("Bob", 9)
    race.expect("Bob", "skip 9")
    race.header("Bob", 10)
    race.items("Bob", PROOF)
    race.header("Bob", 10)
    race.expect("Bob", "skip 10")


def test_who_is_owed_a_word_is_owed_it_from_its_first_old_block_on() -> None:
    """Else each skipped block would delay the acknowledgement by a second, through the whole window."""
    race = Race(8, "Bob", rules=RACING_CLOSELY)
    for number in (3, 4):
        race.header("Bob", number)
        race.wait(0.6)
    race.expect("Bob", "skip 3", "skip 4", "ack 8")


def test_who_was_asked_for_a_block_that_others_sent_is_asked_for_a_later_one_too() -> None:
    """Bob finishes block 10 while Carol brings the 9 that he was asked for. He must be asked for 11, too."""
    race = Race(8, "Alice", "Bob", "Carol", "Dave")
    race.header("Alice", 9)
    race.header("Bob", 10)
    race.leave("Alice")
    race.expect("Bob", "resend 9")
    race.block("Carol", 9)
    race.finish("Bob", 10)
    race.expect("Bob", "ack 9", "ack 10")
    race.header("Dave", 11)
    race.header("Bob", 11)
    race.header("Bob", 12)
    race.expect("Bob", "skip 11")
    race.leave("Dave")
    race.expect("Bob", "resend 11")


def test_who_was_behind_a_block_that_others_sent_counts_as_one_that_has_come_to_the_next() -> None:
    """Alice hears Behind(8) and goes on with block 10 once Carol has stored 9: she could send it herself.

    So a peer that dribbles block 10 does not keep the chain waiting.
    """
    race = Race(8, "Alice", "Carol")
    race.header("Alice", 11)
    race.expect("Alice", "behind 8")
    race.block("Carol", 9)
    race.connect("Peer", is_peer=True)
    race.header("Peer", 10)
    race.header("Alice", 10)
    assert race.arbiter.stream(race.ids["Alice"]).behind_from is None  # for the status page
    for _ in range(7):
        race.wait(1)
        if "Peer" not in race.closed:
            race.items("Peer", ITEM)
    race.expect("Alice", "ack 9", "skip 10", "resend 10")
    assert race.closed == ["Peer"]


def test_each_block_that_is_stored_does_not_let_in_one_more_that_is_in_the_way() -> None:
    """Bob's share is full, and his stream full of blocks from before he was asked for 9."""
    rules = RaceRules(publisher_bytes_max=ITEM_OVERHEAD_BYTES)
    race = Race(8, "Alice", "Bob", "Carol", rules=rules, hold="committed")
    race.header("Alice", 9)
    race.header("Carol", 10)
    race.block("Bob", 11)
    race.leave("Alice")
    race.header("Carol", 9)  # breaks 10 off, as she was asked to
    race.finish("Carol", 9)
    race.commit(9)
    held_bytes = race.arbiter.inflight_bytes
    race.header("Bob", 12)
    assert race.dropped == [(9, "LEFT"), (10, "SENT_BACK"), (12, "SENT_BACK")]
    assert race.arbiter.inflight_bytes == held_bytes
    race.expect("Bob", "resend 9", "ack 9", "resend 10")
