"""The gate: which block is on disk at enough other nodes, whatever they report, however they come and go."""

from __future__ import annotations

import hashlib
import random

import pytest

from sluice.gateway.blocks.chain import Chain
from sluice.gateway.pipeline.replication_quorum import OWN_ROOTS_KEPT, DurableHeight, ReplicationQuorum

SELF = "this-process"


def root(number: int, chain: str = "ours") -> bytes:
    """The root hash of a block."""
    return hashlib.sha384(f"{chain} {number}".encode()).digest()


def at(instance: str, number: int | None, chain: str = "ours") -> DurableHeight:
    """A report."""
    return DurableHeight(instance, number, b"" if number is None else root(number, chain))


def gate_at(last: int | None, *addresses: str, least: int = 1, first: int = 0) -> ReplicationQuorum:
    """A gate of a node that has blocks up to `last`, all of them in memory."""
    gate = ReplicationQuorum(least, SELF, addresses or ("b",))
    for number in range(first, -1 if last is None else last + 1):
        gate.stored(number, root(number))
    return gate


def texts(gate: ReplicationQuorum) -> list[str]:
    """The notes, as `address text`, with an exclamation mark for trouble."""
    return [f"{'! ' * note.is_trouble}{note.address} {note.text}" for note in gate.take_notes()]


# --- one standby --------------------------------------------------------------------------------------------


def test_nothing_is_confirmed_before_a_report() -> None:
    gate = gate_at(5)
    assert gate.confirmed is None
    assert gate.states() == [("b", "does not report: not reached yet")]
    assert gate.connected_count() == 0


def test_a_standby_confirms_what_it_has() -> None:
    gate = gate_at(5)
    gate.heard("b", at("two", 3))
    assert gate.confirmed == 3
    assert gate.states() == [("b", "has block 3")]
    assert gate.connected_count() == 1
    gate.heard("b", at("two", 5))
    assert gate.confirmed == 5
    assert texts(gate) == ["b reports block 3"]


def test_a_standby_without_blocks_confirms_nothing() -> None:
    gate = gate_at(5)
    gate.heard("b", at("two", None))
    assert gate.confirmed is None
    assert gate.states() == [("b", "has no block")]
    assert gate.connected_count() == 1


def test_block_0_can_be_confirmed() -> None:
    gate = gate_at(None)
    gate.heard("b", at("two", 0))
    assert gate.confirmed is None
    assert gate.ahead() == (-1, [])
    gate.stored(0, root(0))
    assert gate.confirmed == 0


def test_a_standby_that_is_ahead_counts_when_this_node_has_its_block() -> None:
    gate = gate_at(5)
    gate.heard("b", at("two", 4))
    gate.heard("b", at("two", 7))
    assert gate.confirmed == 4
    assert gate.ahead() == (5, ["b"])
    gate.stored(6, root(6))
    assert gate.confirmed == 4
    gate.stored(7, root(7))
    assert (gate.confirmed, gate.ahead()) == (7, (7, []))


def test_a_standby_that_is_ahead_of_another_chain_is_found_out_when_this_node_has_that_block() -> None:
    gate = gate_at(5)
    gate.heard("b", at("two", 6, "other"))
    gate.stored(6, root(6))
    assert gate.confirmed is None
    assert gate.other_chains() == ["b has another chain: its block 6 has another root hash"]


def test_a_standby_that_is_ahead_can_be_asked() -> None:
    gate = gate_at(5)
    gate.heard("b", at("two", 900))
    gate.holds("b", at("two", 5))
    assert (gate.confirmed, gate.ahead()) == (5, (5, []))
    gate.stored(6, root(6))
    assert (gate.confirmed, gate.ahead()) == (5, (6, ["b"]))
    gate.holds("b", at("three", 6))  # of another process: the answer is about another disk, perhaps
    assert gate.confirmed == 5
    gate.holds("b", at("two", 6, "other"))
    assert gate.confirmed is None
    assert gate.ahead() == (6, [])
    gate.lost("b", "gone")
    gate.holds("b", at("two", 6))
    assert gate.confirmed is None


def test_what_a_standby_answers_beyond_or_below_is_no_news() -> None:
    gate = gate_at(5)
    gate.heard("b", at("two", 900))
    for number in (6, None):
        gate.holds("b", at("two", number))
        assert gate.confirmed is None
    gate.holds("b", at("two", 5))
    gate.holds("b", at("two", 4))
    assert gate.confirmed == 5


# --- what must not count ------------------------------------------------------------------------------------


def test_another_chain_does_not_count_and_is_said_once() -> None:
    gate = gate_at(5)
    gate.heard("b", at("two", 4, "other"))
    gate.heard("b", at("two", 5, "other"))
    assert gate.confirmed is None
    assert gate.connected_count() == 0
    assert gate.states() == [("b", "has another chain: its block 5 has another root hash")]
    hashes = f"{root(4, 'other').hex()[:16]}… there, {root(4).hex()[:16]}… here"
    other = f"! b has another chain: block 4 has root hash {hashes}"
    assert texts(gate) == ["b reports block 4", other]
    gate.heard("b", at("three", 5))  # it was started anew on the right data
    assert gate.other_chains() == []
    assert gate.connected_count() == 1


def test_this_node_itself_does_not_count_under_any_address() -> None:
    gate = gate_at(5, "b", "c", least=1)
    gate.heard("b", at(SELF, 5))
    assert gate.confirmed is None
    assert gate.states()[0] == ("b", "leads to this node itself")
    gate.heard("c", at("two", 2))
    assert gate.confirmed == 2
    gate.heard("b", at(SELF, 9))
    assert gate.ahead() == (5, [])


def test_two_addresses_of_one_node_count_once() -> None:
    gate = gate_at(5, "b", "also-b", "c", least=2)
    gate.heard("b", at("two", 5))
    gate.heard("also-b", at("two", 5))
    assert (gate.confirmed, gate.connected_count()) == (None, 1)
    gate.heard("c", at("three", 4))
    assert (gate.confirmed, gate.connected_count()) == (4, 2)


def test_a_node_that_started_anew_does_not_count_twice_while_its_old_stream_seems_open() -> None:
    gate = gate_at(5, "b", "also-b", least=2)
    gate.heard("b", at("old", 5))
    gate.heard("also-b", at("old", 5))
    gate.lost("b", "reset")
    gate.heard("b", at("new", 5))
    assert gate.confirmed is None
    assert gate.states()[1] == ("also-b", "does not report: another process has taken its place")


def test_a_pending_report_of_a_process_that_was_replaced_is_forgotten() -> None:
    gate = gate_at(5, "b", "also-b", least=2)
    gate.heard("b", at("old", 6))
    gate.heard("also-b", at("old", 6))
    gate.heard("b", at("new", 6))
    gate.stored(6, root(6))
    assert gate.confirmed is None


def moved_address() -> ReplicationQuorum:
    """A gate of which one address led to process `two`, as another still does, and leads to `three` now."""
    gate = gate_at(5, "vip", "b", "c", least=2)
    for address, instance in (("vip", "two"), ("b", "two"), ("c", "three")):
        gate.opening(address)
        gate.heard(address, at(instance, 4))
    gate.heard("b", at("two", 5))
    gate.lost("vip", "reset")
    gate.opening("vip")
    gate.heard("vip", at("three", 4))
    assert (gate.confirmed, gate.stale()) == (None, ["b"])
    return gate


def test_a_process_that_still_runs_where_another_address_has_left_it_counts_over_a_new_stream() -> None:
    """Its stream was open and well, and what it said was forgotten for good: blocks waited for ever."""
    gate = moved_address()
    gate.heard("b", at("two", 5))  # it may have been on its way when the process was lost
    gate.lost("b", "cancelled")
    assert dict(gate.states())["b"] == "does not report: another process has taken its place"
    gate.opening("b")
    gate.heard("b", at("two", 5))
    assert (gate.confirmed, gate.stale()) == (4, [])
    gate.heard("c", at("three", 5))
    assert (gate.confirmed, gate.connected_count()) == (5, 2)
    assert [text for text in texts(gate) if text.startswith("!")] == ["! vip does not report: reset"]


def test_a_process_that_is_gone_stays_forgotten_and_that_is_said_once() -> None:
    gate = moved_address()
    gate.take_notes()
    gate.lost("b", "cancelled")
    for _ in range(2):
        gate.opening("b")
        gate.lost("b", "refused")
    gate.heard("c", at("three", 5))
    assert texts(gate) == ["! b does not report: refused"]
    gate.opening("b")
    gate.heard("b", at("three", 5))
    assert (gate.confirmed, gate.connected_count()) == (None, 1), "it leads to the same process now"


def test_a_first_report_that_was_on_its_way_when_its_process_was_replaced_does_not_count() -> None:
    gate = gate_at(5, "vip", "b", "c", least=2)
    for address in ("vip", "b", "c"):
        gate.opening(address)
    gate.heard("vip", at("old", 5))
    gate.heard("c", at("three", 3))
    assert gate.confirmed == 3
    gate.lost("vip", "reset")
    gate.heard("vip", at("new", 5))
    assert gate.stale() == ["b"], "and not c, of which it is known that it is another one"
    gate.heard("b", at("old", 5))
    assert gate.confirmed == 3
    gate.opening("b")
    gate.heard("b", at("new", 5))
    assert (gate.confirmed, gate.connected_count()) == (3, 2)


def test_a_standby_that_is_not_connected_any_more_does_not_count() -> None:
    gate = gate_at(5)
    gate.heard("b", at("two", 5))
    gate.lost("b", "UNAVAILABLE: reset")
    assert gate.confirmed is None
    gate.lost("b", "UNAVAILABLE: refused")
    assert gate.states() == [("b", "does not report: UNAVAILABLE: refused")]
    assert texts(gate) == ["b reports block 5", "! b does not report: UNAVAILABLE: reset"]
    gate.heard("b", at("three", 5))
    assert gate.confirmed == 5


def test_one_that_was_never_reached_is_said_once() -> None:
    gate = gate_at(5)
    gate.lost("b", "refused")
    gate.lost("b", "refused")
    assert texts(gate) == ["! b does not report: refused"]


@pytest.mark.parametrize("process", ["two", "three"])
def test_a_standby_whose_disk_was_replaced_counts_at_its_new_level(process: str) -> None:
    gate = gate_at(9)
    gate.heard("b", at("two", 8))
    if process == "three":
        gate.lost("b", "reset")
    gate.heard("b", at(process, 2))
    assert gate.confirmed == 2
    assert texts(gate)[-1] == "! b has block 2, and had block 8: was its disk replaced?"
    gate.heard("b", at(process, 3))
    assert (gate.confirmed, texts(gate)) == (3, [])
    gate.lost("b", "reset")
    gate.heard("b", at("four", None))
    assert gate.confirmed is None
    assert texts(gate)[-1] == "! b has no block, and had block 3: was its disk replaced?"


def test_a_standby_that_ends_before_this_nodes_first_block_counts_for_nothing() -> None:
    gate = gate_at(105, first=100)
    gate.heard("b", at("two", 99))
    assert (gate.confirmed, gate.unknown()) == (None, None)
    gate.heard("b", at("two", 100))
    assert gate.confirmed == 100


# --- older blocks, whose root hashes have to be read --------------------------------------------------------


def far_gate() -> ReplicationQuorum:
    """A gate that was made anew, of a node that has blocks 1 to 4,999."""
    chain = Chain(1)
    for number in range(1, 5_000):
        chain.advance(number, root(number))
    return ReplicationQuorum(1, SELF, ["b"], chain)


def test_a_report_of_an_old_block_is_looked_up() -> None:
    gate = far_gate()
    gate.heard("b", at("two", 17))
    assert (gate.confirmed, gate.unknown()) == (None, 17)
    gate.recalled(17, root(17))
    assert (gate.confirmed, gate.unknown()) == (17, None)
    gate.heard("b", at("two", 18))
    assert (gate.confirmed, gate.unknown()) == (17, 18)  # what it had it still has
    gate.heard("b", at("two", 19))
    gate.recalled(18, root(18))
    assert (gate.confirmed, gate.unknown()) == (17, 19)
    gate.recalled(19, root(19, "other"))
    assert (gate.confirmed, gate.unknown()) == (None, None)
    assert gate.other_chains() != []


def test_an_old_block_that_cannot_be_read_confirms_nothing() -> None:
    gate = far_gate()
    gate.heard("b", at("two", 17))
    gate.recalled(17, None)
    assert (gate.confirmed, gate.unknown(), gate.other_chains()) == (None, None, [])
    gate.heard("b", at("two", 4_999))
    assert gate.confirmed == 4_999


def test_so_many_root_hashes_are_kept_and_no_more() -> None:
    gate = gate_at(OWN_ROOTS_KEPT)
    gate.heard("b", at("two", 1))
    assert gate.confirmed == 1
    gate.heard("b", at("three", 0))
    assert gate.confirmed is None
    assert gate.unknown() == 0


# --- several ------------------------------------------------------------------------------------------------


def test_the_slowest_of_those_that_are_needed_confirms() -> None:
    gate = gate_at(9, "b", "c", "d", least=2)
    gate.heard("b", at("two", 9))
    assert gate.confirmed is None
    gate.heard("c", at("three", 4))
    assert gate.confirmed == 4
    gate.heard("d", at("four", 7))
    assert gate.confirmed == 7
    gate.lost("b", "gone")
    assert gate.confirmed == 4


def test_whatever_nodes_report_only_what_they_have_is_confirmed() -> None:
    """Random reports of nodes with true disks, against a count of the disks themselves."""
    for seed in range(300):
        rng = random.Random(seed)
        least = rng.randint(1, 3)
        disks = {name: (f"{name}-0", -1) for name in "bcd"}
        addresses = {"b": "b", "b2": "b", "c": "c", "d": "d", "me": ""}
        gate = ReplicationQuorum(least, SELF, list(addresses))
        last = -1
        for step in range(60):
            if rng.random() < 0.4:
                last += 1
                gate.stored(last, root(last))
            name = rng.choice("bcd")
            instance, level = disks[name]
            match rng.randrange(5):
                case 0:  # it goes on, perhaps beyond this node
                    disks[name] = instance, level + rng.randint(1, 3)
                case 1:  # it is killed, and every stream to it broke; its disk may be another one
                    disks[name] = f"{name}-{step}", rng.choice((level, rng.randint(-1, max(level, 0))))
                    for address, other in addresses.items():
                        if other == name:
                            gate.lost(address, "reset")
                case 2:  # an address leads elsewhere
                    addresses["b2"] = name
                    gate.lost("b2", "reset")
                case _:
                    report(gate, rng.choice(list(addresses)), addresses, disks, last)
            if rng.random() < 0.5:
                open_stale_anew(gate)
            if gate.confirmed is not None:
                holders = sum(level >= gate.confirmed for _, level in disks.values())
                assert gate.confirmed <= last, seed
                assert holders >= least, (seed, step)
        for _ in range(3):
            open_stale_anew(gate)
            for address in addresses:
                report(gate, address, addresses, disks, last)
        for address in gate.ahead()[1]:
            gate.holds(address, at(disks[addresses[address]][0], last))
        confirmed = sorted(min(level, last) for _, level in disks.values())[-least]
        assert gate.confirmed == (None if confirmed < 0 else confirmed), (seed, "nobody is forgotten")


def report(
    gate: ReplicationQuorum,
    address: str,
    addresses: dict[str, str],
    disks: dict[str, tuple[str, int]],
    last: int,
) -> None:
    """Whoever is at this address says what it has."""
    instance, level = disks.get(addresses[address], (SELF, last))
    gate.heard(address, at(instance, None if level < 0 else level))


def open_stale_anew(gate: ReplicationQuorum) -> None:
    """Do what the shell does."""
    for address in gate.stale():
        gate.lost(address, "cancelled")
        gate.opening(address)
