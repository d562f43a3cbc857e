"""Tests of `gateway.transport.doorkeeper`: each row of its table, at the limit and one past it."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.transport.doorkeeper import (
    ADDRESS_SHARE,
    ADDRESSES_KEPT,
    CONNECTION_COST,
    CONTROL_BYTES_PER_SECOND,
    CONTROL_BYTES_SAVED,
    DATA_PER_CONTROL,
    SECOND_NS,
    Doorkeeper,
    DoorLimits,
    Visit,
)
from gateway.transport.frames import ConnectionBreach, ErrorCode, Flag, Kind, frame
from gateway.transport.server_relay import ServerRelay
from tests.gateway.transport.lines import Wire

SMALL = DoorLimits(connections_max=5, connections_per_address_max=4, kept_places=2)
STRANGER, OTHER, PEER = "192.0.2.1", "192.0.2.2", "192.0.2.9"


def ask(keeper: Doorkeeper, address: str, *, is_kept: bool = False, has_list: bool = False) -> Visit | str:
    return keeper.admit(address, 0, is_kept=is_kept, may_be_listed=has_list)


def enter(keeper: Doorkeeper, address: str, *, is_kept: bool = False, has_list: bool = False) -> Visit:
    visit = ask(keeper, address, is_kept=is_kept, has_list=has_list)
    assert isinstance(visit, Visit)
    return visit


# --- places -------------------------------------------------------------------------------------------------


def test_an_address_has_so_many_connections_and_another_address_has_its_own() -> None:
    keeper = Doorkeeper(DoorLimits(connections_per_address_max=2))
    first = enter(keeper, STRANGER)
    enter(keeper, STRANGER)
    assert ask(keeper, STRANGER) == ask(keeper, STRANGER, has_list=True) == "connections of an address"
    enter(keeper, OTHER)
    enter(keeper, STRANGER, is_kept=True)  # a peer behind the same address
    keeper.leave(first)
    assert ask(keeper, STRANGER) == "connections of an address"  # the peer counts, too
    assert keeper.count == 3


def test_strangers_do_not_get_the_places_of_peers() -> None:
    keeper = Doorkeeper(SMALL)
    visits = [enter(keeper, f"192.0.2.{number}") for number in range(3)]
    assert ask(keeper, OTHER) == "connections"
    visits += [enter(keeper, PEER, is_kept=True) for _ in range(2)]
    assert ask(keeper, PEER, is_kept=True) == "connections"
    assert keeper.count == 5
    keeper.leave(visits[-1])
    assert ask(keeper, OTHER) == "connections"
    keeper.leave(visits[0])
    enter(keeper, OTHER)


def test_who_may_be_listed_has_a_kept_place_until_tls_tells() -> None:
    keeper = Doorkeeper(SMALL)
    strangers = [enter(keeper, f"192.0.2.{number}", has_list=True) for number in range(3)]
    assert [keeper.known(visit, is_listed=False) for visit in strangers] == [None] * 3
    publisher, stranger = enter(keeper, OTHER, has_list=True), enter(keeper, OTHER, has_list=True)
    assert ask(keeper, OTHER, has_list=True) == "connections"
    assert keeper.known(publisher, is_listed=True) is None
    assert keeper.known(stranger, is_listed=False) == "connections"
    keeper.leave(stranger)
    assert keeper.known(publisher, is_listed=True) is None  # to know it twice changes nothing
    assert keeper.count == 4
    assert ask(keeper, OTHER) == "connections"


def test_a_listed_publisher_that_came_early_leaves_its_place_to_a_stranger() -> None:
    keeper = Doorkeeper(SMALL)
    publisher = enter(keeper, STRANGER, has_list=True)
    for _ in range(2):
        assert keeper.known(enter(keeper, OTHER, has_list=True), is_listed=False) is None
    assert ask(keeper, OTHER) == "connections"
    assert keeper.known(publisher, is_listed=True) is None
    enter(keeper, OTHER)
    assert ask(keeper, PEER) == "connections"


def test_a_peer_keeps_its_place_though_its_certificate_is_not_on_the_list() -> None:
    keeper = Doorkeeper(DoorLimits(connections_max=3, kept_places=1))
    for _ in range(2):
        assert keeper.known(enter(keeper, STRANGER, has_list=True), is_listed=False) is None
    peer = enter(keeper, PEER, is_kept=True, has_list=True)
    assert keeper.known(peer, is_listed=False) is None


def test_strangers_do_not_stay_in_the_places_that_are_kept() -> None:
    keeper = Doorkeeper(DoorLimits(connections_max=3, kept_places=1))
    first, _ = (enter(keeper, STRANGER, has_list=True) for _ in range(2))
    guessed = enter(keeper, STRANGER, has_list=True)
    keeper.leave(first)
    assert keeper.known(guessed, is_listed=False) is None  # there is room for strangers now
    assert keeper.known(enter(keeper, STRANGER, has_list=True), is_listed=False) == "connections"


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("admit"), st.sampled_from([STRANGER, OTHER, PEER]), st.booleans()),
            st.tuples(st.just("known"), st.integers(0, 5), st.booleans()),
            st.tuples(st.just("leave"), st.integers(0, 5), st.just(False)),
        ),
        max_size=40,
    )
)
def test_counts_keep_to_the_limits_and_come_back_to_zero(
    steps: list[tuple[str, str | int, bool]],
) -> None:
    keeper, here, unknown = Doorkeeper(SMALL), list[Visit](), list[Visit]()
    for what, which, flag in steps:
        if isinstance(which, str):
            visit = ask(keeper, which, is_kept=which == PEER, has_list=flag)
            if isinstance(visit, Visit):
                here.append(visit)
                unknown.append(visit)
        elif what == "known" and which < len(unknown):
            visit = unknown.pop(which)
            if keeper.known(visit, is_listed=flag) is not None:
                keeper.leave(visit)
                here.remove(visit)
        elif what == "leave" and which < len(here):
            visit = here.pop(which)
            unknown = [one for one in unknown if one is not visit]
            keeper.leave(visit)
        assert keeper.count == len(here) <= SMALL.connections_max
        strangers = [visit for visit in here if not visit.is_kept]
        assert len(strangers) <= SMALL.connections_max - SMALL.kept_places
        by_address = Counter(visit.address for visit in strangers)
        assert all(count <= SMALL.connections_per_address_max for count in by_address.values())
    for visit in here:
        keeper.leave(visit)
    assert keeper.count == 0
    assert [isinstance(ask(keeper, STRANGER), Visit) for _ in range(4)] == [True] * 3 + [False]
    assert [isinstance(ask(keeper, PEER, is_kept=True), Visit) for _ in range(3)] == [True] * 2 + [False]


# --- budgets ------------------------------------------------------------------------------------------------


def test_a_connection_ends_one_byte_past_its_budget_which_refills_with_time() -> None:
    keeper = Doorkeeper(DoorLimits())
    visit = enter(keeper, STRANGER)
    assert keeper.spend(visit, CONTROL_BYTES_SAVED, 0, 0) == 0
    assert keeper.spend(visit, CONTROL_BYTES_PER_SECOND, 0, SECOND_NS) == 0
    assert keeper.spend(visit, CONTROL_BYTES_SAVED, 0, 100 * SECOND_NS) == 0  # and no more is saved
    with pytest.raises(ConnectionBreach, match="control frames") as caught:
        keeper.spend(visit, 1, 0, 100 * SECOND_NS)
    assert caught.value.code is ErrorCode.ENHANCE_YOUR_CALM


def test_data_pays_for_other_frames_as_far_as_it_goes() -> None:
    keeper = Doorkeeper(DoorLimits())
    visit = enter(keeper, STRANGER)
    for _ in range(1_000):
        assert keeper.spend(visit, 1_000, 1_000 * DATA_PER_CONTROL, 0) == 0
    keeper.spend(visit, CONTROL_BYTES_SAVED, 0, 0)  # nothing was taken, and nothing saved
    assert keeper.spend(visit, 10, 10 * DATA_PER_CONTROL, 0) == 0
    with pytest.raises(ConnectionBreach):
        keeper.spend(visit, 11, 10 * DATA_PER_CONTROL, 0)


def test_much_data_does_not_pay_for_any_number_of_frames_at_once() -> None:
    keeper = Doorkeeper(DoorLimits())
    assert keeper.spend(enter(keeper, STRANGER), 2 * CONTROL_BYTES_SAVED, 1 << 40, 0) == 0
    with pytest.raises(ConnectionBreach):
        keeper.spend(enter(keeper, STRANGER), 2 * CONTROL_BYTES_SAVED + 1, 1 << 40, 0)


def test_an_address_past_its_budget_waits_for_a_second_at_most_and_no_other_address_does() -> None:
    keeper = Doorkeeper(DoorLimits())
    visits = [enter(keeper, STRANGER) for _ in range(ADDRESS_SHARE + 1)]
    in_all = ADDRESS_SHARE * CONTROL_BYTES_SAVED - len(visits) * CONNECTION_COST
    for visit in visits[:-2]:
        assert keeper.spend(visit, CONTROL_BYTES_SAVED, 0, 0) == 0
    rest = in_all - (len(visits) - 2) * CONTROL_BYTES_SAVED
    assert keeper.spend(visits[-2], rest, 0, 0) == 0
    per_second = ADDRESS_SHARE * CONTROL_BYTES_PER_SECOND
    assert keeper.spend(visits[-1], 1, 0, 0) == SECOND_NS // per_second
    assert keeper.spend(visits[-1], per_second // 2 - 1, 0, 0) == SECOND_NS // 2
    assert keeper.spend(visits[-1], CONTROL_BYTES_SAVED - per_second // 2, 0, 0) == SECOND_NS
    assert keeper.spend(visits[-2], CONTROL_BYTES_SAVED - rest, 0, 0) == SECOND_NS
    assert keeper.spend(enter(keeper, OTHER), CONTROL_BYTES_SAVED, 0, 0) == 0
    assert keeper.spend(visits[-1], per_second // ADDRESS_SHARE, 0, 3 * SECOND_NS) == 0


def test_budgets_of_addresses_are_remembered_up_to_a_limit() -> None:
    def wait_after(others: int) -> int:
        keeper = Doorkeeper(DoorLimits(connections_max=1 << 20))
        visits = [enter(keeper, STRANGER) for _ in range(ADDRESS_SHARE + 1)]
        for visit in visits[:-1]:
            keeper.spend(visit, CONTROL_BYTES_SAVED, 0, 0)
        for number in range(others):
            keeper.leave(enter(keeper, f"address {number}"))
        assert keeper.spend(visits[0], 0, 0, 0) == 0
        keeper.leave(enter(keeper, OTHER))  # not the oldest is forgotten, but who was seen longest ago
        return keeper.spend(visits[-1], 1, 0, 0)

    assert wait_after(ADDRESSES_KEPT - 1) > 0
    assert wait_after(ADDRESSES_KEPT) == 0


def test_connections_that_come_and_go_do_not_silence_their_address_for_long() -> None:
    keeper = Doorkeeper(DoorLimits())
    stays = enter(keeper, STRANGER)
    for _ in range(10 * ADDRESS_SHARE * CONTROL_BYTES_SAVED // CONNECTION_COST):
        keeper.leave(enter(keeper, STRANGER))
    assert 0 < keeper.spend(stays, 2_048, 0, 0) < SECOND_NS


def _spend(what: bytes, *, further: int = 0) -> None:
    """Let a client send the same again and again, and take it off its budget."""
    wire, keeper = Wire(ServerRelay()), Doorkeeper(DoorLimits())
    visit = enter(keeper, STRANGER)
    wire.outside(wire.request(1))
    wire.relay.data_bytes += further
    for _ in range(100):
        wire.outside(what)
        keeper.spend(visit, wire.relay.cost, wire.relay.data_bytes, 0)
        wire.relay.cost = wire.relay.data_bytes = 0


@pytest.mark.parametrize("further", [0, 1 << 30])
def test_tiny_and_padded_data_is_not_free(further: int) -> None:
    padded = frame(Kind.DATA, Flag.PADDED, 1, b"\0")
    with pytest.raises(ConnectionBreach, match="control frames"):
        _spend(padded * 1_000, further=further)
    with pytest.raises(ConnectionBreach, match="control frames"):
        _spend(frame(Kind.DATA, 0, 1, b"x") * 1_000, further=further)
    _spend(frame(Kind.DATA, 0, 1, b"x" * 100) * 1_000)


# --- time ---------------------------------------------------------------------------------------------------

BEGAN_NS = 7 * SECOND_NS


@pytest.mark.parametrize(
    ("has_shaken_hands", "has_called", "block_began_ns", "seconds", "what"),
    [
        (False, False, None, 3, "handshake"),
        (False, False, BEGAN_NS + SECOND_NS, 3, "handshake"),
        (True, False, None, 5, "no call"),
        (True, False, BEGAN_NS, 0.5, "header block"),
        (True, True, BEGAN_NS + 60 * SECOND_NS, 60.5, "header block"),
    ],
)
def test_each_step_may_take_its_time_and_no_longer(
    has_shaken_hands: bool, has_called: bool, block_began_ns: int | None, seconds: float, what: str
) -> None:
    keeper = Doorkeeper(DoorLimits(handshake_seconds=3, first_call_seconds=5, header_block_seconds=0.5))
    visit = Visit(STRANGER, BEGAN_NS, has_shaken_hands=has_shaken_hands, has_called=has_called)
    last_ns = BEGAN_NS + int(seconds * SECOND_NS)
    assert keeper.overdue(visit, block_began_ns, last_ns) is None
    breach = keeper.overdue(visit, block_began_ns, last_ns + 1)
    assert breach is not None
    assert breach.what == what
    # Who only has no call is told so politely: it did nothing wrong.
    assert breach.code is (ErrorCode.NO_ERROR if what == "no call" else ErrorCode.ENHANCE_YOUR_CALM)


def test_who_has_called_may_stay_for_ever() -> None:
    visit = Visit(STRANGER, 0, has_shaken_hands=True, has_called=True)
    assert Doorkeeper(DoorLimits()).overdue(visit, None, 1 << 62) is None
