"""The arbiter of a node that sends its publishers elsewhere for a while: retire and reinstate."""

from __future__ import annotations

import pytest

from sluice.gateway.race.actions import Idle
from tests.gateway.racing import Race

END = "end SUCCESS last {} about 0"


def test_retiring_finishes_what_is_complete_and_gives_up_the_rest() -> None:
    race = Race(8, "Alice", "Bob", hold="committed")
    race.block("Alice", 9)
    race.header("Bob", 10)
    race.retire()
    race.expect("Alice")
    race.expect("Bob")
    race.commit(9)
    race.expect("Alice", "ack 9", END.format(9))
    race.expect("Bob", "ack 9", END.format(9))
    assert race.dropped == [(10, "NODE")]
    assert race.log.count(Idle()) == 1
    assert race.arbiter.idle


def test_while_it_retires_nothing_is_accepted_and_nobody_is_asked_to_resend() -> None:
    race = Race(8, "Alice", "Bob", hold="committed")
    race.block("Alice", 9)
    race.header("Bob", 10)
    race.retire()
    race.header("Alice", 10)
    race.connect("Carol", "Peer", is_peer=False)
    race.connect("Peer", is_peer=True)
    for name in ("Carol", "Peer"):
        race.expect(name, END.format(8))
    race.commit(9)
    race.expect("Alice", "ack 9", END.format(9))


def test_a_retired_node_takes_blocks_from_its_peers_and_sends_publishers_elsewhere() -> None:
    race = Race(8)
    race.retire()
    race.connect("Alice")
    race.expect("Alice", END.format(8))
    race.connect("Peer", is_peer=True)
    race.block("Peer", 9, 10)
    race.expect("Peer", "ack 9", "ack 10")
    assert race.committed == [9, 10]
    race.connect("Bob")
    race.expect("Bob", END.format(10))


def test_a_block_of_a_peer_that_fails_is_asked_of_the_other_peer() -> None:
    race = Race(8, hold="verified")
    race.retire()
    race.connect("Peer 1", "Peer 2", is_peer=True)
    race.block("Peer 1", 9)
    race.block("Peer 2", 9)
    race.refused(9)
    race.expect("Peer 1", "end BAD_BLOCK_PROOF last 8 about 9")
    race.expect("Peer 2", "skip 9", "resend 9")


def test_a_reinstated_node_takes_publishers_again() -> None:
    race = Race(8, "Alice")
    race.header("Alice", 9)
    race.retire()
    race.expect("Alice", END.format(8))
    race.arbiter.reinstate()
    race.connect("Alice", "Bob")
    race.block("Alice", 9)
    race.header("Bob", 9)
    race.expect("Alice", "ack 9")
    race.expect("Bob", "ack 9", "end DUPLICATE_BLOCK last 9 about 0")


def test_one_that_is_reinstated_before_it_was_idle_goes_on_with_its_streams() -> None:
    race = Race(8, "Alice", "Bob", hold="committed")
    race.block("Alice", 9)
    race.header("Bob", 10)
    race.retire()
    race.arbiter.reinstate()
    race.commit(9)
    race.expect("Alice", "ack 9")
    race.expect("Bob", "ack 9", "resend 10")
    race.items("Bob")  # of the dropped attempt
    race.block("Bob", 10)
    assert race.winner_of == {9: "Alice", 10: "Bob"}


def test_retiring_twice_is_once() -> None:
    race = Race(8, "Alice")
    race.retire()
    race.retire()
    race.expect("Alice", END.format(8))
    assert race.log.count(Idle()) == 1


@pytest.mark.parametrize("peer_is_in_mid_block", [False, True])
def test_a_standby_shuts_down_in_order(peer_is_in_mid_block: bool) -> None:
    race = Race(8)
    race.retire()
    race.connect("Peer", is_peer=True)
    if peer_is_in_mid_block:
        race.header("Peer", 9)
    race.shutdown()
    race.expect("Peer", END.format(8))
    assert race.log.count(Idle()) == 2
    race.connect("Peer 2", is_peer=True)
    race.expect("Peer 2", END.format(8))


def test_a_node_that_shuts_down_does_not_retire() -> None:
    race = Race(8)
    race.shutdown()
    race.retire()
    assert race.arbiter.retired is None
    race.arbiter.reinstate()
    race.connect("Alice")
    race.expect("Alice", END.format(8))


# --- the time that a peer has -------------------------------------------------------------------------------


def test_a_peer_that_goes_on_sending_has_its_time() -> None:
    race = Race(8)
    race.connect("Peer", is_peer=True)
    race.connect("Alice")
    assert (race.arbiter.source_count, race.arbiter.publisher_count) == (2, 1)
    race.header("Alice", 30)
    race.expect("Alice", "behind 8")
    race.header("Peer", 9)
    for _ in range(10):
        race.wait(5)
        race.items("Peer")
    race.finish("Peer", 9)
    race.expect("Peer", "ack 9")
    race.header("Peer", 10)
    race.wait(6)
    race.expect("Peer", "end TIMEOUT last 9 about 10")


def test_a_peer_has_no_longer_than_others_when_a_publisher_has_the_block_too() -> None:
    race = Race(8)
    race.connect("Peer", is_peer=True)
    race.header("Peer", 9)
    race.wait(5)
    race.items("Peer")
    race.connect("Alice")
    race.header("Alice", 9)
    race.wait(2)
    race.expect("Peer", "end TIMEOUT last 8 about 9")
    race.expect("Alice", "skip 9", "resend 9")
