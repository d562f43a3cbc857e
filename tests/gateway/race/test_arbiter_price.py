"""The price of winning blocks and not bringing them; nobody else pays it."""

from __future__ import annotations

import pytest

from sluice.gateway.race.records import RaceRules
from tests.gateway.racing import ITEM, PROOF, Race

TIME = 6.0


def race_with_bob(*rogues: str, address: str = "far", rules: RaceRules | None = None) -> Race:
    """Bob has delivered blocks up to 40; rogues have just come."""
    race = Race(8, rules=rules)
    race.connect("Bob", address="home")
    race.block("Bob", *range(9, 41))
    race.heard["Bob"].clear()
    race.connect(*rogues, address=address)
    return race


def fail_twice(race: Race, name: str = "Mallory") -> None:
    """Let a newcomer time out with two blocks, which Bob brings."""
    for _ in range(2):
        number = race.arbiter.next_number
        race.header(name, number)
        race.items(name, ITEM)
        race.header("Bob", number)
        race.wait(TIME)
        assert race.dropped[-1] == (number, "TIMED_OUT")
        race.leave(name)
        race.connect(name, address="far")
        race.block("Bob", number)
    for heard in race.heard.values():
        heard.clear()


# --- who stands back ----------------------------------------------------------------------------------------


def test_the_first_failure_costs_nothing_but_the_block() -> None:
    race = race_with_bob("Mallory")
    race.header("Mallory", 41)
    race.leave("Mallory")
    race.connect("Mallory", address="far")
    race.header("Mallory", 41)
    race.expect("Mallory", "skip 41")
    race.block("Bob", 41)
    race.header("Mallory", 42)
    race.expect("Mallory", "ack 41")
    assert race.winner_of[42] == "Mallory"


def test_who_failed_twice_is_skipped_for_a_while_and_a_new_name_does_not_help() -> None:
    race = race_with_bob("Mallory")
    fail_twice(race)
    race.connect("Oscar", address="elsewhere")
    for name in ("Mallory", "Oscar"):
        race.header(name, 43)
        race.header(name, 44)  # after it, though nobody sends 43 yet
        race.expect(name, "skip 43", "skip 44")
    race.block("Bob", 43)
    race.wait(2 * TIME)
    race.header("Oscar", 44)
    race.expect("Oscar", "ack 43", "resend 44")
    assert race.winner_of[44] == "Oscar"


def test_who_stands_back_and_is_ahead_of_what_it_was_skipped_for_is_behind() -> None:
    race = race_with_bob("Mallory")
    fail_twice(race)
    race.header("Mallory", 45)
    race.header("Mallory", 43)
    race.header("Mallory", 45)
    race.expect("Mallory", "behind 42", "skip 43", "behind 42")
    assert race.targets[-1] == 45


def test_newcomers_alone_stand_back_behind_nobody() -> None:
    race = Race(8)
    race.connect("Mallory", "Oscar", address="far")
    for _ in range(5):
        for name in ("Mallory", "Oscar"):
            race.header(name, 9)
            race.leave(name)
            race.connect(name, address="far")
    race.block("Oscar", 9)
    race.expect("Oscar", "ack 9")


def test_newcomers_of_another_address_stand_before_those_of_one_that_failed() -> None:
    race = Race(8)
    race.connect("Alice", address="home")
    race.connect("Mallory", "Oscar", address="far")
    for name in ("Mallory", "Oscar"):
        race.header(name, 9)
        race.leave(name)
    race.connect("Trudy", address="far")
    race.header("Trudy", 9)
    race.expect("Trudy", "skip 9")
    race.block("Alice", 9)
    race.expect("Alice", "ack 9")


def test_when_the_others_leave_who_stands_back_is_asked() -> None:
    race = race_with_bob("Mallory")
    fail_twice(race)
    race.header("Mallory", 43)
    race.header("Mallory", 44)
    race.expect("Mallory", "skip 43", "skip 44")
    race.leave("Bob")
    race.expect("Mallory", "resend 43")
    race.block("Mallory", 43)
    race.expect("Mallory", "ack 43")


def test_nobody_waits_longer_than_the_time_of_a_block_for_those_who_are_silent_and_only_once() -> None:
    race = race_with_bob("Mallory")
    fail_twice(race)
    race.connect("Carol", address="home")  # a newcomer, but behind fewer failures than Mallory
    race.wait(TIME / 2)
    race.header("Mallory", 43)
    race.header("Carol", 43)
    race.wait(TIME - 0.1)  # from now on, not from when 42 was stored
    race.expect("Mallory", "skip 43")
    race.wait(0.2)
    race.expect("Mallory", "resend 43")
    race.block("Carol", 43)
    race.expect("Carol", "skip 43", "resend 43", "ack 43")
    race.block("Mallory", 44)  # nobody waits for Bob again
    race.expect("Mallory", "ack 43", "skip 44")
    race.block("Carol", 44)
    race.expect("Carol", "ack 44")
    race.header("Bob", 45)
    assert race.winner_of[45] == "Bob"


def test_who_says_that_it_is_another_one_costs_that_one_nothing() -> None:
    race = race_with_bob("Carol", address="home")
    bob = race.ids["Bob"]
    for number, bringer in ((41, "Carol"), (42, "Bob")):
        race.connect("Bob", address="far")  # it claims
        race.header("Bob", number)
        race.leave("Bob")
        race.ids["Bob"] = bob
        race.block(bringer, number)  # the second time Carol stands back, with a single delivered block
    assert race.dropped == [(41, "LEFT"), (42, "LEFT")]
    race.connect("Oscar", address="far")
    race.header("Oscar", 43)  # it backs off with her
    race.expect("Oscar", "skip 43")
    race.header("Bob", 43)
    assert race.winner_of[43] == "Bob"


def test_one_publisher_that_fails_pays_and_the_other_carries_on() -> None:
    race = race_with_bob("Carol")
    race.block("Carol", *range(41, 61))
    for number in (61, 62):
        race.header("Carol", number)
        race.leave("Carol")
        race.block("Bob", number)
        race.connect("Carol", address="far")
    race.header("Carol", 63)
    race.expect("Carol", "skip 63")
    race.wait(2 * TIME)
    race.header("Carol", 63)
    assert race.winner_of[63] == "Carol"


# --- shares of open blocks ----------------------------------------------------------------------------------


def test_one_name_holds_one_block_open_however_many_streams_it_has() -> None:
    race = race_with_bob("Mallory")
    streams = [race.ids["Mallory"]]
    for _ in range(5):
        race.connect("Mallory", address="far")
        streams.append(race.ids["Mallory"])
    for number, stream in enumerate(streams, 41):
        race.ids["Mallory"] = stream
        race.header("Mallory", number)
    sent = [block.number for block in race.arbiter.sent_blocks()]
    assert sent == [41]


def test_newcomers_hold_so_many_blocks_open_by_address_and_in_all() -> None:
    names = [f"rogue-{index}" for index in range(20)]
    race = race_with_bob()
    for index, name in enumerate(names):
        race.connect(name, address=f"far-{index // 6}")
        for number in range(41, 62):
            race.header(name, number)
            if race.arbiter.streams[race.ids[name]].block is not None:
                break
    sent = list(race.arbiter.sent_blocks())
    assert [block.number for block in sent] == list(range(41, 41 + len(sent)))
    held = [block.winner_address for block in sent]
    assert [held.count(f"far-{index}") for index in range(4)] == [4, 4, 0, 0]


def test_while_newcomers_have_failed_of_late_they_hold_one_in_all() -> None:
    race = race_with_bob("Mallory")
    fail_twice(race)
    race.wait(2 * TIME)
    race.connect("Oscar", address="elsewhere")
    race.header("Mallory", 43)
    for number in (43, 44, 45):
        race.header("Oscar", number)
    race.expect("Oscar", "skip 43", "skip 44", "skip 45")
    assert [block.number for block in race.arbiter.sent_blocks()] == [43]


@pytest.mark.parametrize("is_quiet", [True, False])
def test_who_has_delivered_holds_one_block_open_for_which_nothing_comes(is_quiet: bool) -> None:
    race = race_with_bob("Mallory")
    first = race.ids["Bob"]
    race.connect("Bob", address="home")
    second = race.ids["Bob"]
    race.ids["Bob"] = first
    race.header("Bob", 41)
    race.wait(TIME / 6 + 0.1)
    if not is_quiet:
        race.items("Bob", ITEM)
    race.ids["Bob"] = second
    race.header("Bob", 42)
    race.expect("Bob", *(["skip 42"] if is_quiet else []))
    race.header("Mallory", 41)
    race.header("Mallory", 42)
    race.expect("Mallory", *(["skip 41"] if is_quiet else ["skip 41", "skip 42"]))


def test_alone_a_publisher_holds_open_what_it_likes() -> None:
    race = race_with_bob()
    first = race.ids["Bob"]
    race.connect("Bob", address="home")
    second = race.ids["Bob"]
    race.ids["Bob"] = first
    race.header("Bob", 41)
    race.wait(5)
    race.ids["Bob"] = second
    race.header("Bob", 42)
    race.expect("Bob")


def test_all_that_is_held_open_by_who_backs_off_falls_together() -> None:
    names = [f"rogue-{index}" for index in range(8)]
    race = Race(8)
    for index, name in enumerate(names):
        race.connect(name, address=f"far-{index}")
    race.connect("Bob", address="home")
    for index, name in enumerate(names):
        for number in range(9, 10 + index):
            race.header(name, number)
            race.items(name, ITEM)
    race.header("Bob", 9)
    for number in range(9, 17):
        race.header("Bob", number)
    race.expect("Bob", "skip 9", *(f"skip {number}" for number in range(9, 17)))
    race.wait(TIME)
    race.block("Bob", 9)
    race.wait(TIME)  # the second costs a backoff
    for number in range(10, 17):
        race.block("Bob", number)
        race.wait(0)  # the next one has had its time
    assert race.committed == list(range(9, 17))
    assert race.now_ns == 2 * TIME * 1_000_000_000


# --- a header alone -----------------------------------------------------------------------------------------


def test_a_newcomers_header_gives_way_once_newcomers_have_failed() -> None:
    race = race_with_bob("Mallory")
    fail_twice(race)
    race.wait(2 * TIME)
    race.header("Mallory", 43)
    race.wait(3)
    race.header("Bob", 43)
    race.expect("Mallory", "skip 43")
    race.expect("Bob")
    assert race.dropped[-1] == (43, "GAVE_WAY")
    race.items("Mallory", ITEM, PROOF)  # dropped
    race.finish("Bob", 43)
    race.expect("Bob", "ack 43")
    race.header("Mallory", 44)  # it has not failed that
    assert race.winner_of[44] == "Mallory"


def test_a_newcomers_block_of_which_more_has_come_does_not_give_way() -> None:
    race = race_with_bob("Mallory")
    fail_twice(race)
    race.wait(2 * TIME)
    race.header("Mallory", 43)
    race.items("Mallory", ITEM)
    race.header("Bob", 43)
    race.expect("Bob", "skip 43")


def test_a_header_above_an_open_block_gives_way_too() -> None:
    """The block was in flight when the header came."""
    race = race_with_bob("Mallory")
    race.connect("Carol", address="home")
    race.block("Carol", 41)
    fail_twice(race)
    race.wait(2 * TIME)
    race.header("Carol", 44)
    race.header("Mallory", 45)
    race.leave("Carol")
    race.header("Bob", 45)
    assert race.dropped[-1] == (45, "GAVE_WAY")
    assert race.winner_of[45] == "Bob"


def test_in_peace_the_first_is_the_first() -> None:
    race = race_with_bob("Mallory")
    race.header("Mallory", 41)
    race.header("Bob", 41)
    race.expect("Bob", "skip 41")


def test_nobody_gives_way_to_a_newcomer_nor_one_who_has_delivered() -> None:
    race = race_with_bob("Mallory", "Carol")
    fail_twice(race)
    race.wait(2 * TIME)
    race.header("Bob", 43)
    race.header("Carol", 43)
    race.expect("Carol", "skip 43")
    race.block("Bob", 43)
    race.block("Carol", 44)
    race.header("Bob", 45)
    race.header("Carol", 45)
    race.expect("Carol", "ack 43", "ack 44", "skip 45")
