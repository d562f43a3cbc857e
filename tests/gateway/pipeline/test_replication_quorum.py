"""The replication quorum: which blocks count as durable elsewhere, whatever nodes report."""

from __future__ import annotations

import hashlib
import random

import pytest

from sluice.gateway.blocks.chain import Chain
from sluice.gateway.pipeline.replication_quorum import OWN_ROOTS_KEPT, DurableHeight, ReplicationQuorum

SELF = "this-process"


def root(number: int, chain: str = "ours") -> bytes:
    return hashlib.sha384(f"{chain} {number}".encode()).digest()


def at(instance: str, number: int | None, chain: str = "ours") -> DurableHeight:
    return DurableHeight(instance, number, b"" if number is None else root(number, chain))


def quorum_at(last: int | None, *addresses: str, least: int = 1, first: int = 0) -> ReplicationQuorum:
    """Make the quorum of a node that has blocks up to `last`, all of them in memory."""
    quorum = ReplicationQuorum(least, SELF, addresses or ("b",))
    for number in range(first, -1 if last is None else last + 1):
        quorum.stored(number, root(number))
    return quorum


def texts(quorum: ReplicationQuorum) -> list[str]:
    """Return the notes as `address text`, with an exclamation mark for trouble."""
    return [f"{'! ' * note.is_trouble}{note.address} {note.text}" for note in quorum.take_notes()]


# --- one standby --------------------------------------------------------------------------------------------


def test_nothing_is_confirmed_before_a_report() -> None:
    quorum = quorum_at(5)
    assert quorum.confirmed is None
    assert quorum.states() == [("b", "does not report: not reached yet")]
    assert quorum.connected_count() == 0


def test_a_standby_confirms_what_it_has() -> None:
    quorum = quorum_at(5)
    quorum.heard("b", at("two", 3))
    assert quorum.confirmed == 3
    assert quorum.states() == [("b", "has block 3")]
    assert quorum.connected_count() == 1
    quorum.heard("b", at("two", 5))
    assert quorum.confirmed == 5
    assert texts(quorum) == ["b reports block 3"]


def test_how_far_standbys_are_behind() -> None:
    quorum = quorum_at(5, "b", "c", "d", "e", "f")
    assert quorum.behind_blocks() == []
    quorum.heard("b", at("two", 3))
    quorum.heard("c", at("three", 9))
    quorum.heard("d", at("four", None))
    quorum.heard("e", at("five", 4, "theirs"))
    quorum.heard("f", at(SELF, 5))
    assert quorum.behind_blocks() == [2, 0, 6]
    quorum.lost("d", "gone")
    assert quorum.behind_blocks() == [2, 0]


def test_a_standby_without_blocks_confirms_nothing() -> None:
    quorum = quorum_at(5)
    quorum.heard("b", at("two", None))
    assert quorum.confirmed is None
    assert quorum.states() == [("b", "has no block")]
    assert quorum.connected_count() == 1


def test_block_0_can_be_confirmed() -> None:
    quorum = quorum_at(None)
    quorum.heard("b", at("two", 0))
    assert quorum.confirmed is None
    assert quorum.ahead() == (-1, [])
    quorum.stored(0, root(0))
    assert quorum.confirmed == 0


def test_a_standby_that_is_ahead_counts_when_this_node_has_its_block() -> None:
    quorum = quorum_at(5)
    quorum.heard("b", at("two", 4))
    quorum.heard("b", at("two", 7))
    assert quorum.confirmed == 4
    assert quorum.ahead() == (5, ["b"])
    quorum.stored(6, root(6))
    assert quorum.confirmed == 4
    quorum.stored(7, root(7))
    assert (quorum.confirmed, quorum.ahead()) == (7, (7, []))


def test_a_standby_that_is_ahead_of_another_chain_is_found_out_when_this_node_has_that_block() -> None:
    quorum = quorum_at(5)
    quorum.heard("b", at("two", 6, "other"))
    quorum.stored(6, root(6))
    assert quorum.confirmed is None
    assert quorum.other_chains() == ["b has another chain: its block 6 has another root hash"]


def test_a_standby_that_is_ahead_can_be_asked() -> None:
    quorum = quorum_at(5)
    quorum.heard("b", at("two", 900))
    quorum.holds("b", at("two", 5))
    assert (quorum.confirmed, quorum.ahead()) == (5, (5, []))
    quorum.stored(6, root(6))
    assert (quorum.confirmed, quorum.ahead()) == (5, (6, ["b"]))
    quorum.holds("b", at("three", 6))  # another process answers, perhaps about another disk
    assert quorum.confirmed == 5
    quorum.holds("b", at("two", 6, "other"))
    assert quorum.confirmed is None
    assert quorum.ahead() == (6, [])
    quorum.lost("b", "gone")
    quorum.holds("b", at("two", 6))
    assert quorum.confirmed is None


def test_what_a_standby_answers_beyond_or_below_is_no_news() -> None:
    quorum = quorum_at(5)
    quorum.heard("b", at("two", 900))
    for number in (6, None):
        quorum.holds("b", at("two", number))
        assert quorum.confirmed is None
    quorum.holds("b", at("two", 5))
    quorum.holds("b", at("two", 4))
    assert quorum.confirmed == 5


# --- what must not count ------------------------------------------------------------------------------------


def test_another_chain_does_not_count_and_is_said_once() -> None:
    quorum = quorum_at(5)
    quorum.heard("b", at("two", 4, "other"))
    quorum.heard("b", at("two", 5, "other"))
    assert quorum.confirmed is None
    assert quorum.connected_count() == 0
    assert quorum.states() == [("b", "has another chain: its block 5 has another root hash")]
    hashes = f"{root(4, 'other').hex()[:16]}… there, {root(4).hex()[:16]}… here"
    other = f"! b has another chain: block 4 has root hash {hashes}"
    assert texts(quorum) == ["b reports block 4", other]
    quorum.heard("b", at("three", 5))  # it was restarted on the right data
    assert quorum.other_chains() == []
    assert quorum.connected_count() == 1


def test_this_node_itself_does_not_count_under_any_address() -> None:
    quorum = quorum_at(5, "b", "c", least=1)
    quorum.heard("b", at(SELF, 5))
    assert quorum.confirmed is None
    assert quorum.states()[0] == ("b", "leads to this node itself")
    quorum.heard("c", at("two", 2))
    assert quorum.confirmed == 2
    quorum.heard("b", at(SELF, 9))
    assert quorum.ahead() == (5, [])


def test_two_addresses_of_one_node_count_once() -> None:
    quorum = quorum_at(5, "b", "also-b", "c", least=2)
    quorum.heard("b", at("two", 5))
    quorum.heard("also-b", at("two", 5))
    assert (quorum.confirmed, quorum.connected_count()) == (None, 1)
    quorum.heard("c", at("three", 4))
    assert (quorum.confirmed, quorum.connected_count()) == (4, 2)


def test_a_node_that_started_anew_does_not_count_twice_while_its_old_stream_seems_open() -> None:
    quorum = quorum_at(5, "b", "also-b", least=2)
    quorum.heard("b", at("old", 5))
    quorum.heard("also-b", at("old", 5))
    quorum.lost("b", "reset")
    quorum.heard("b", at("new", 5))
    assert quorum.confirmed is None
    assert quorum.states()[1] == ("also-b", "does not report: another process has taken its place")


def test_a_pending_report_of_a_process_that_was_replaced_is_forgotten() -> None:
    quorum = quorum_at(5, "b", "also-b", least=2)
    quorum.heard("b", at("old", 6))
    quorum.heard("also-b", at("old", 6))
    quorum.heard("b", at("new", 6))
    quorum.stored(6, root(6))
    assert quorum.confirmed is None


def moved_address() -> ReplicationQuorum:
    """One address led to process `two`, as another one still does, and leads to `three` now."""
    quorum = quorum_at(5, "vip", "b", "c", least=2)
    for address, instance in (("vip", "two"), ("b", "two"), ("c", "three")):
        quorum.opening(address)
        quorum.heard(address, at(instance, 4))
    quorum.heard("b", at("two", 5))
    quorum.lost("vip", "reset")
    quorum.opening("vip")
    quorum.heard("vip", at("three", 4))
    assert (quorum.confirmed, quorum.stale()) == (None, ["b"])
    return quorum


def test_a_process_that_still_runs_where_another_address_has_left_it_counts_over_a_new_stream() -> None:
    """Its stream was open, and its report must not be forgotten for good."""
    quorum = moved_address()
    quorum.heard("b", at("two", 5))  # perhaps sent before the process was lost
    quorum.lost("b", "cancelled")
    assert dict(quorum.states())["b"] == "does not report: another process has taken its place"
    quorum.opening("b")
    quorum.heard("b", at("two", 5))
    assert (quorum.confirmed, quorum.stale()) == (4, [])
    quorum.heard("c", at("three", 5))
    assert (quorum.confirmed, quorum.connected_count()) == (5, 2)
    assert [text for text in texts(quorum) if text.startswith("!")] == ["! vip does not report: reset"]


def test_a_process_that_is_gone_stays_forgotten_and_that_is_said_once() -> None:
    quorum = moved_address()
    quorum.take_notes()
    quorum.lost("b", "cancelled")
    for _ in range(2):
        quorum.opening("b")
        quorum.lost("b", "refused")
    quorum.heard("c", at("three", 5))
    assert texts(quorum) == ["! b does not report: refused"]
    quorum.opening("b")
    quorum.heard("b", at("three", 5))
    assert (quorum.confirmed, quorum.connected_count()) == (None, 1), "it leads to the same process now"


def test_a_first_report_that_was_on_its_way_when_its_process_was_replaced_does_not_count() -> None:
    quorum = quorum_at(5, "vip", "b", "c", least=2)
    for address in ("vip", "b", "c"):
        quorum.opening(address)
    quorum.heard("vip", at("old", 5))
    quorum.heard("c", at("three", 3))
    assert quorum.confirmed == 3
    quorum.lost("vip", "reset")
    quorum.heard("vip", at("new", 5))
    assert quorum.stale() == ["b"], "and not c, of which it is known that it is another one"
    quorum.heard("b", at("old", 5))
    assert quorum.confirmed == 3
    quorum.opening("b")
    quorum.heard("b", at("new", 5))
    assert (quorum.confirmed, quorum.connected_count()) == (3, 2)


def test_a_standby_that_is_not_connected_any_more_does_not_count() -> None:
    quorum = quorum_at(5)
    quorum.heard("b", at("two", 5))
    quorum.lost("b", "UNAVAILABLE: reset")
    assert quorum.confirmed is None
    quorum.lost("b", "UNAVAILABLE: refused")
    assert quorum.states() == [("b", "does not report: UNAVAILABLE: refused")]
    assert texts(quorum) == ["b reports block 5", "! b does not report: UNAVAILABLE: reset"]
    quorum.heard("b", at("three", 5))
    assert quorum.confirmed == 5


def test_one_that_was_never_reached_is_said_once() -> None:
    quorum = quorum_at(5)
    quorum.lost("b", "refused")
    quorum.lost("b", "refused")
    assert texts(quorum) == ["! b does not report: refused"]


@pytest.mark.parametrize("process", ["two", "three"])
def test_a_standby_whose_disk_was_replaced_counts_at_its_new_height(process: str) -> None:
    quorum = quorum_at(9)
    quorum.heard("b", at("two", 8))
    if process == "three":
        quorum.lost("b", "reset")
    quorum.heard("b", at(process, 2))
    assert quorum.confirmed == 2
    assert texts(quorum)[-1] == "! b has block 2, and had block 8: was its disk replaced?"
    quorum.heard("b", at(process, 3))
    assert (quorum.confirmed, texts(quorum)) == (3, [])
    quorum.lost("b", "reset")
    quorum.heard("b", at("four", None))
    assert quorum.confirmed is None
    assert texts(quorum)[-1] == "! b has no block, and had block 3: was its disk replaced?"


def test_a_standby_that_ends_before_this_nodes_first_block_counts_for_nothing() -> None:
    quorum = quorum_at(105, first=100)
    quorum.heard("b", at("two", 99))
    assert (quorum.confirmed, quorum.unknown()) == (None, None)
    quorum.heard("b", at("two", 100))
    assert quorum.confirmed == 100


# --- older blocks, whose root hashes have to be read --------------------------------------------------------


def far_quorum() -> ReplicationQuorum:
    """Make the quorum of a restarted node that has blocks 1 to 4,999."""
    chain = Chain(1)
    for number in range(1, 5_000):
        chain.advance(number, root(number))
    return ReplicationQuorum(1, SELF, ["b"], chain)


def test_a_report_of_an_old_block_is_looked_up() -> None:
    quorum = far_quorum()
    quorum.heard("b", at("two", 17))
    assert (quorum.confirmed, quorum.unknown()) == (None, 17)
    quorum.recalled(17, root(17))
    assert (quorum.confirmed, quorum.unknown()) == (17, None)
    quorum.heard("b", at("two", 18))
    assert (quorum.confirmed, quorum.unknown()) == (17, 18)  # it still has those
    quorum.heard("b", at("two", 19))
    quorum.recalled(18, root(18))
    assert (quorum.confirmed, quorum.unknown()) == (17, 19)
    quorum.recalled(19, root(19, "other"))
    assert (quorum.confirmed, quorum.unknown()) == (None, None)
    assert quorum.other_chains() != []


def test_an_old_block_that_cannot_be_read_confirms_nothing() -> None:
    quorum = far_quorum()
    quorum.heard("b", at("two", 17))
    quorum.recalled(17, None)
    assert (quorum.confirmed, quorum.unknown(), quorum.other_chains()) == (None, None, [])
    quorum.heard("b", at("two", 4_999))
    assert quorum.confirmed == 4_999


def test_so_many_root_hashes_are_kept_and_no_more() -> None:
    quorum = quorum_at(OWN_ROOTS_KEPT)
    quorum.heard("b", at("two", 1))
    assert quorum.confirmed == 1
    quorum.heard("b", at("three", 0))
    assert quorum.confirmed is None
    assert quorum.unknown() == 0


# --- several ------------------------------------------------------------------------------------------------


def test_the_slowest_of_those_that_are_needed_confirms() -> None:
    quorum = quorum_at(9, "b", "c", "d", least=2)
    quorum.heard("b", at("two", 9))
    assert quorum.confirmed is None
    quorum.heard("c", at("three", 4))
    assert quorum.confirmed == 4
    quorum.heard("d", at("four", 7))
    assert quorum.confirmed == 7
    quorum.lost("b", "gone")
    assert quorum.confirmed == 4


def test_whatever_nodes_report_only_what_they_have_is_confirmed() -> None:
    """Random reports of nodes, compared with their disks."""
    for seed in range(300):
        rng = random.Random(seed)
        least = rng.randint(1, 3)
        disks = {name: (f"{name}-0", -1) for name in "bcd"}
        addresses = {"b": "b", "b2": "b", "c": "c", "d": "d", "me": ""}
        quorum = ReplicationQuorum(least, SELF, list(addresses))
        last = -1
        for step in range(60):
            if rng.random() < 0.4:
                last += 1
                quorum.stored(last, root(last))
            name = rng.choice("bcd")
            instance, height = disks[name]
            match rng.randrange(5):
                case 0:  # it goes on, perhaps beyond this node
                    disks[name] = instance, height + rng.randint(1, 3)
                case 1:  # it is killed with all its streams; its disk may be another one
                    disks[name] = f"{name}-{step}", rng.choice((height, rng.randint(-1, max(height, 0))))
                    for address, other in addresses.items():
                        if other == name:
                            quorum.lost(address, "reset")
                case 2:  # an address leads elsewhere
                    addresses["b2"] = name
                    quorum.lost("b2", "reset")
                case _:
                    report(quorum, rng.choice(list(addresses)), addresses, disks, last)
            if rng.random() < 0.5:
                open_stale_anew(quorum)
            if quorum.confirmed is not None:
                holders = sum(height >= quorum.confirmed for _, height in disks.values())
                assert quorum.confirmed <= last, seed
                assert holders >= least, (seed, step)
        for _ in range(3):
            open_stale_anew(quorum)
            for address in addresses:
                report(quorum, address, addresses, disks, last)
        for address in quorum.ahead()[1]:
            quorum.holds(address, at(disks[addresses[address]][0], last))
        confirmed = sorted(min(height, last) for _, height in disks.values())[-least]
        assert quorum.confirmed == (None if confirmed < 0 else confirmed), (seed, "nobody is forgotten")


def report(
    quorum: ReplicationQuorum,
    address: str,
    addresses: dict[str, str],
    disks: dict[str, tuple[str, int]],
    last: int,
) -> None:
    instance, height = disks.get(addresses[address], (SELF, last))
    quorum.heard(address, at(instance, None if height < 0 else height))


def open_stale_anew(quorum: ReplicationQuorum) -> None:
    for address in quorum.stale():
        quorum.lost(address, "cancelled")
        quorum.opening(address)
