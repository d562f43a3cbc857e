"""Tests of `gateway.transport.message_shares`: the budget, fair shares, and bounded waits."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.gateway.limits import STREAM_WINDOW_BYTES
from sluice.gateway.transport.message_shares import (
    LARGE_BYTES_PER_SECOND,
    LARGE_GRACE_NS,
    SMALL_BYTES,
    MessageShares,
    StreamKey,
)

SECOND_NS = 1_000_000_000
ALICE, BOB, CAROL = "192.0.2.1", "192.0.2.2", "192.0.2.3"

# A budget of 400, messages of up to 100: R is 100.
BUDGET, MOST, SMALL, PACE = 400, 100, 10, 20


def shares_of(budget_bytes: int = BUDGET) -> MessageShares:
    return MessageShares(budget_bytes, MOST, small_bytes=SMALL, bytes_per_second=PACE, grace_ns=2 * SECOND_NS)


def key(address: str, connection: int = 1, stream: int = 1) -> StreamKey:
    return StreamKey(address, connection, stream)


def test_a_small_message_and_one_that_is_refused_anyway_are_not_counted() -> None:
    shares = shares_of()
    for number in range(1_000):
        assert shares.ask(key(ALICE, number), SMALL, 0)
        assert shares.ask(key(ALICE, number), MOST + 1, 0)
    assert (shares.held_bytes, shares.waiting_count) == (0, 0)
    assert shares.ask(key(BOB), SMALL + 1, 0)
    assert shares.held_bytes == SMALL + 1


def test_a_window_holds_what_is_not_counted() -> None:
    assert SMALL_BYTES == STREAM_WINDOW_BYTES


def test_one_message_is_possible_below_any_budget() -> None:
    shares = shares_of(budget_bytes=1)
    assert shares.ask(key(ALICE), MOST, 0)
    assert not shares.ask(key(BOB), MOST, 0)
    assert shares.done(key(ALICE), 0) == [key(BOB)]


def test_one_connection_leaves_room_for_two_and_one_address_for_one() -> None:
    shares = shares_of()
    assert [shares.ask(key(ALICE, 1, stream), MOST, 0) for stream in (1, 3, 5)] == [True, True, False]
    assert shares.ask(key(ALICE, 2), MOST, 0)
    assert not shares.ask(key(ALICE, 3), MOST, 0)
    assert shares.ask(key(BOB), MOST, 0)
    assert shares.held_bytes == BUDGET


def test_addresses_take_turns() -> None:
    shares = shares_of(budget_bytes=MOST)
    assert shares.ask(key(ALICE, 1), MOST, 0)
    for waiting in (key(ALICE, 2), key(ALICE, 3), key(BOB, 4), key(CAROL, 5)):
        assert not shares.ask(waiting, MOST, 0)
    # Alice has waited longest, but a sender goes behind the others after a grant.
    order, holder = [], key(ALICE, 1)
    while granted := shares.done(holder, 0):
        (holder,) = granted
        order.append(holder)
    assert order == [key(ALICE, 2), key(BOB, 4), key(CAROL, 5), key(ALICE, 3)]


def test_connections_of_one_address_take_turns() -> None:
    shares = shares_of(budget_bytes=MOST)
    assert shares.ask(key(ALICE, 1), MOST, 0)
    for waiting in (key(ALICE, 2, 1), key(ALICE, 2, 3), key(ALICE, 3, 1)):
        assert not shares.ask(waiting, MOST, 0)
    order, holder = [], key(ALICE, 1)
    while granted := shares.done(holder, 0):
        (holder,) = granted
        order.append(holder)
    assert order == [key(ALICE, 2, 1), key(ALICE, 3, 1), key(ALICE, 2, 3)]


def test_small_messages_do_not_overtake_a_large_one_for_ever() -> None:
    shares = shares_of(budget_bytes=MOST)
    assert shares.ask(key(ALICE), 11, 0)
    assert not shares.ask(key(BOB), MOST, 0)
    assert not shares.ask(key(CAROL), 11, 0)  # there would be room
    assert shares.done(key(ALICE), 0) == [key(BOB)]
    assert shares.done(key(BOB), 0) == [key(CAROL)]


def test_small_messages_of_one_address_do_not_overtake_a_large_one_of_it_for_ever() -> None:
    shares = shares_of()
    for stream in (1, 2):
        assert shares.ask(key(BOB, 1, stream), MOST, 0)
    assert shares.ask(key(ALICE, 1), 50, 0)
    assert not shares.ask(key(ALICE, 2), 90, 0)
    assert not shares.ask(key(ALICE, 3), 11, 0)
    assert shares.ask(key(CAROL), 11, 0)  # another address is not blocked
    assert shares.done(key(ALICE, 1), 0) == [key(ALICE, 2)]


def test_who_gives_up_makes_way_and_loses_nobody_their_turn() -> None:
    shares = shares_of(budget_bytes=MOST)
    assert shares.ask(key(ALICE), 50, 0)
    assert not shares.ask(key(BOB, 1, 1), MOST, 0)
    assert not shares.ask(key(BOB, 1, 3), 60, 0)
    assert not shares.ask(key(CAROL), 50, 0)
    assert shares.done(key(BOB, 1, 1), 0) == []
    assert shares.done(key(BOB, 1, 3), 0) == [key(CAROL)]
    assert shares.done(key(BOB, 1, 3), 0) == []
    assert shares.waiting_count == 0


def test_a_stream_asks_for_one_message_at_a_time() -> None:
    shares = shares_of()
    shares.ask(key(ALICE), MOST, 0)
    with pytest.raises(AssertionError, match="has not ended its last message"):
        shares.ask(key(ALICE), MOST, 0)


def test_who_holds_up_others_is_named_after_a_while() -> None:
    shares = shares_of(budget_bytes=MOST)
    shares.ask(key(ALICE), MOST, 0)
    assert shares.tick(60 * SECOND_NS) == []  # nobody waits
    start_ns = 100 * SECOND_NS
    shares.ask(key(BOB), MOST, start_ns)
    assert shares.tick(start_ns + 2 * SECOND_NS) == []
    assert shares.tick(start_ns + 2 * SECOND_NS + 1) == [key(ALICE)]
    assert shares.done(key(ALICE), start_ns) == [key(BOB)]
    assert shares.tick(start_ns + 99 * SECOND_NS) == []


def test_one_urgent_message_is_granted_beyond_the_budget_and_only_one() -> None:
    """The budget's holders wait for that block's commit."""
    shares = shares_of(budget_bytes=MOST)
    assert shares.ask(key(ALICE), MOST, 0)
    for waiting in (key(BOB, 1, 1), key(BOB, 1, 3), key(CAROL)):
        assert not shares.ask(waiting, MOST, 0)
    assert shares.hurry(lambda one: False, 0) == []
    assert shares.hurry(lambda one: one == key(BOB, 1, 3), 0) == [key(BOB, 1, 3)]
    assert shares.hurry(lambda one: True, 0) == []
    assert shares.held_bytes == 2 * MOST
    assert shares.done(key(BOB, 1, 3), 0) == []
    assert shares.hurry(lambda one: one == key(CAROL), 0) == [key(CAROL)]
    assert shares.done(key(ALICE), 0) == []
    assert shares.done(key(CAROL), 0) == [key(BOB, 1, 1)]


def test_what_came_before_others_waited_is_no_credit() -> None:
    shares = shares_of(budget_bytes=MOST)
    shares.ask(key(ALICE), MOST, 0)
    shares.progressed(key(ALICE), MOST - 1)
    shares.ask(key(BOB), MOST, 0)
    assert shares.tick(3 * SECOND_NS) == [key(ALICE)]


def test_who_has_delivered_all_is_not_slow_though_it_is_not_passed_on() -> None:
    shares = shares_of(budget_bytes=MOST)
    shares.ask(key(ALICE), MOST, 0)
    shares.progressed(key(ALICE), MOST)
    shares.ask(key(BOB), MOST, 0)
    assert shares.tick(99 * SECOND_NS) == []


def test_the_messages_of_a_connection_share_its_pace() -> None:
    shares = shares_of()
    for stream in (1, 3):
        assert shares.ask(key(ALICE, 1, stream), MOST, 0)
    assert not shares.ask(key(ALICE, 1, 5), MOST, 0)
    shares.tick(2 * SECOND_NS)
    shares.progressed(key(ALICE, 1, 1), PACE // 2)
    shares.progressed(key(ALICE, 1, 3), PACE // 2 - 1)
    assert shares.tick(3 * SECOND_NS) == [key(ALICE, 1, 3)]


def test_bytes_of_a_message_that_is_not_counted_are_not_noted() -> None:
    shares = shares_of()
    shares.progressed(key(ALICE), 7)
    assert shares.done(key(ALICE), 0) == []


def test_the_real_pace_lets_the_longest_message_through_in_some_two_minutes() -> None:
    seconds = LARGE_GRACE_NS / SECOND_NS + 131_072_000 / LARGE_BYTES_PER_SECOND
    assert 60 < seconds < 150


# --- anything, in any order ---------------------------------------------------------------------------------


@dataclass
class Sender:
    """One stream that sends one large message after the other."""

    key: StreamKey
    pace: float
    """Bytes in a second; 0: it stalls."""
    sizes: random.Random = field(default_factory=random.Random)
    left: float = 0.0
    asked_at: int | None = None
    granted_at: int | None = None
    granted_count: int = 0
    is_ended: bool = False

    @property
    def is_honest(self) -> bool:
        return self.pace >= 2 * PACE


class World:
    """Senders at a door, in steps of a tenth of a second."""

    def __init__(self, senders: list[Sender], budget_bytes: int) -> None:
        self.shares = shares_of(budget_bytes)
        self.senders = {sender.key: sender for sender in senders}
        self.now_ns = 0
        self.longest_wait_ns = 0

    def step(self) -> None:
        self.now_ns += SECOND_NS // 10
        for sender in self.senders.values():
            if sender.is_ended:
                continue
            if sender.asked_at is None:
                self._ask(sender)
            elif sender.granted_at is not None:
                self._deliver(sender)
        for named in self.shares.tick(self.now_ns):
            sender = self.senders[named]
            assert not sender.is_honest, f"{named} delivers {sender.pace} a second and is named"
            sender.is_ended = True
            self._granted(self.shares.done(named, self.now_ns))
        self._check()

    def _ask(self, sender: Sender) -> None:
        size = sender.sizes.randint(SMALL + 1, MOST)
        sender.left, sender.asked_at, sender.granted_at = size, self.now_ns, None
        if self.shares.ask(sender.key, size, self.now_ns):
            self._granted([sender.key])

    def _deliver(self, sender: Sender) -> None:
        # The messages of a connection share its line.
        holding = sum(
            other.key[:2] == sender.key[:2] and other.granted_at is not None and not other.is_ended
            for other in self.senders.values()
        )
        size = min(sender.left, sender.pace / 10 / holding)
        sender.left -= size
        self.shares.progressed(sender.key, int(size) if sender.left else int(size) + 1)
        if sender.left <= 0:
            sender.asked_at = sender.granted_at = None
            self._granted(self.shares.done(sender.key, self.now_ns))

    def _granted(self, keys: list[StreamKey]) -> None:
        for one in keys:
            sender = self.senders[one]
            assert sender.asked_at is not None, f"{one} has not asked"
            assert sender.granted_at is None, f"{one} is granted twice"
            self.longest_wait_ns = max(self.longest_wait_ns, self.now_ns - sender.asked_at)
            sender.granted_at = self.now_ns
            sender.granted_count += 1

    def _check(self) -> None:
        shares = self.shares
        alive = [sender for sender in self.senders.values() if not sender.is_ended]
        holders = [sender for sender in alive if sender.granted_at is not None]
        waiters = [sender for sender in alive if sender.asked_at is not None and sender.granted_at is None]
        assert shares.held_bytes <= shares.budget_bytes
        assert shares.waiting_count == len(waiters)
        assert set(shares._held) == {sender.key for sender in holders}
        assert set(shares._held_by_address) == {sender.key.address for sender in holders}
        assert set(shares._held_by_connection) == {sender.key[:2] for sender in holders}
        assert holders or not waiters, "all wait, and nobody holds anything"


PLACES = st.tuples(st.sampled_from([ALICE, BOB, CAROL]), st.integers(0, 3), st.integers(0, 3))
PACES = st.sampled_from([0, PACE / 5, PACE, 2 * PACE, 10 * PACE])


@settings(max_examples=60, deadline=None)
@given(
    paces=st.dictionaries(PLACES, PACES, min_size=1, max_size=16),
    budget_bytes=st.sampled_from([1, MOST, 150, BUDGET, 1_000]),
    seed=st.integers(0, 1_000),
)
def test_the_budget_holds_and_every_wait_is_bounded(
    paces: dict[tuple[str, int, int], float], budget_bytes: int, seed: int
) -> None:
    # A connection number belongs to one address.
    senders = [
        Sender(StreamKey(address, len(address) * 1000 + ord(address[-1]) * 10 + connection, stream), pace)
        for (address, connection, stream), pace in paces.items()
    ]
    for sender in senders:
        sender.sizes.seed(f"{seed} {sender.key}")
        # One slow stream slows its whole line.
        sender.pace = min(one.pace for one in senders if one.key[:2] == sender.key[:2])
    world = World(senders, budget_bytes)
    for _ in range(1_500):
        world.step()
    # A sender holds the budget no longer than this, and each other one may be ahead twice.
    turn_seconds = 2 + world.shares.budget_bytes / PACE
    for sender in senders:
        if sender.asked_at is not None and sender.granted_at is None and not sender.is_ended:
            waited_ns = world.now_ns - sender.asked_at
            world.longest_wait_ns = max(world.longest_wait_ns, waited_ns)
    assert world.longest_wait_ns <= 2 * len(senders) * turn_seconds * SECOND_NS


def test_many_rogue_connections_of_one_address_leave_a_place_for_others_at_once() -> None:
    rogues = [Sender(StreamKey(ALICE, number, 1), pace=PACE + 1) for number in range(50)]
    honest = Sender(StreamKey(BOB, 99, 1), pace=10 * PACE)
    world = World([*rogues, honest], BUDGET)
    waits = []
    for _ in range(2_000):
        before = honest.granted_count
        world.step()
        if honest.granted_count > before:
            assert honest.granted_at is not None
            assert honest.asked_at is not None
            waits.append(honest.granted_at - honest.asked_at)
    assert len(waits) > 200
    assert max(waits) == 0


def test_rogues_from_everywhere_that_stall_cost_one_grace() -> None:
    rogues = [Sender(StreamKey(f"203.0.113.{number}", number, 1), pace=0) for number in range(4)]
    for rogue in rogues:
        rogue.sizes = random.Random(4)
    honest = Sender(StreamKey(BOB, 99, 1), pace=10 * PACE)
    world = World([*rogues, honest], 100)
    for _ in range(200):
        world.step()
    assert all(rogue.is_ended for rogue in rogues)
    assert world.longest_wait_ns <= 4 * 2.2 * SECOND_NS
    assert honest.granted_count > 10


def test_thousands_that_wait_cost_little_to_look_through() -> None:
    """A grant looks at one connection more than hold a message."""
    shares = shares_of()
    for number in range(5_000):
        shares.ask(key(ALICE, number), MOST, 0)
    looked_at = 0

    class Counting(dict[tuple[str, int | str], int]):
        def __contains__(self, one: object) -> bool:
            nonlocal looked_at
            looked_at += 1
            return super().__contains__(one)

    shares._held_by_connection = Counting(shares._held_by_connection)
    shares.done(key(ALICE, 0), 0)
    assert looked_at <= 10
