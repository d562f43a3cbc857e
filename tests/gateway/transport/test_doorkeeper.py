"""Tests of `gateway.transport.doorkeeper`: each row of its tables, at the limit and one past it."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.gateway.transport.doorkeeper import (
    ADDRESS_SHARE,
    ADDRESSES_KEPT,
    CONNECTION_COST,
    CONTROL_BYTES_PER_SECOND,
    CONTROL_BYTES_SAVED,
    DATA_PER_CONTROL,
    SECOND_NS,
    Doorkeeper,
    DoorLimits,
    DoorTimes,
    Guest,
    Visit,
)
from sluice.gateway.transport.frames import ConnectionBreach, ErrorCode, Flag, FrameKind, frame
from sluice.gateway.transport.relay import ServerRelay
from tests.gateway.transport.lines import Wire

SMALL = DoorLimits(
    connections_max=8, connections_per_address_max=6, node_places=2, listed_places=1, unknown_places=2
)
"""Three are left for strangers."""
STRANGER, OTHER, NODE = "192.0.2.1", "192.0.2.2", "192.0.2.9"


def ask(
    keeper: Doorkeeper, address: str, *, is_node: bool = False, may_be_known: bool = False
) -> Visit | str:
    return keeper.admit(address, 0, is_node=is_node, may_be_known=may_be_known)


def enter(keeper: Doorkeeper, address: str, *, is_node: bool = False, may_be_known: bool = False) -> Visit:
    visit = ask(keeper, address, is_node=is_node, may_be_known=may_be_known)
    assert isinstance(visit, Visit)
    return visit


def fill(keeper: Doorkeeper, guest: Guest) -> int:
    """Let in as many as there are places, each from another address; return the number."""
    for number in range(100):
        is_node = guest is Guest.NODE
        visit = ask(keeper, f"{guest.value} {number}", is_node=is_node, may_be_known=guest is Guest.LISTED)
        assert keeper.to_close() is None
        if isinstance(visit, str):
            return number
        if guest is Guest.LISTED and keeper.known(visit, guest) is not None:
            keeper.leave(visit)
            return number
    raise AssertionError("there is no limit")


# --- places -------------------------------------------------------------------------------------------------


def test_an_address_has_so_many_connections_and_another_address_has_its_own() -> None:
    keeper = Doorkeeper(DoorLimits(connections_per_address_max=2))
    first = enter(keeper, STRANGER)
    enter(keeper, STRANGER)
    assert ask(keeper, STRANGER) == ask(keeper, STRANGER, may_be_known=True) == "connections of an address"
    enter(keeper, OTHER)
    enter(keeper, STRANGER, is_node=True)  # another node behind the same address
    keeper.leave(first)
    assert ask(keeper, STRANGER) == "connections of an address"  # the node counts, too
    assert keeper.count == 3


@pytest.mark.parametrize("first", [Guest.STRANGER, Guest.LISTED, Guest.NODE])
@pytest.mark.parametrize("second", [Guest.STRANGER, Guest.LISTED, Guest.NODE])
def test_whoever_comes_first_leaves_the_others_their_places(first: Guest, second: Guest) -> None:
    keeper = Doorkeeper(SMALL)
    kept = {Guest.NODE: SMALL.node_places, Guest.LISTED: SMALL.listed_places, Guest.STRANGER: 0}
    others = {  # the places kept from strangers
        Guest.NODE: SMALL.listed_places + SMALL.unknown_places,
        Guest.LISTED: SMALL.node_places + SMALL.unknown_places,
        Guest.STRANGER: SMALL.node_places + SMALL.listed_places + SMALL.unknown_places,
    }
    assert fill(keeper, first) == SMALL.connections_max - others[first]
    if second is not first:
        assert fill(keeper, second) == kept[second]
    assert fill(keeper, first) == 0


def test_nothing_is_kept_for_who_cannot_come() -> None:
    keeper = Doorkeeper(DoorLimits(connections_max=3))
    for number in range(3):
        enter(keeper, f"192.0.2.{number}")
    assert ask(keeper, OTHER) == ask(keeper, OTHER, may_be_known=True) == "connections"
    assert ask(keeper, NODE, is_node=True) == "connections"


def test_who_may_be_known_has_a_place_until_tls_tells() -> None:
    keeper = Doorkeeper(SMALL)
    assert fill(keeper, Guest.STRANGER) == 3
    publisher, stranger = (enter(keeper, OTHER, may_be_known=True) for _ in range(2))
    assert {publisher.guest, stranger.guest} == {Guest.UNKNOWN}
    assert keeper.known(publisher, Guest.LISTED) is None
    assert keeper.known(stranger, Guest.STRANGER) == "connections"
    keeper.leave(stranger)
    assert keeper.known(publisher, Guest.LISTED) is None  # identified twice
    second = enter(keeper, OTHER, may_be_known=True)
    assert keeper.known(second, Guest.LISTED) == "connections"
    assert keeper.known(second, Guest.NODE) is None
    assert keeper.count == 5


def test_who_only_connects_keeps_out_nobody_whom_tls_would_show() -> None:
    """Unfinished handshakes once held all kept places for 20 s."""
    keeper = Doorkeeper(SMALL)
    fill(keeper, Guest.STRANGER)
    silent = [enter(keeper, STRANGER, may_be_known=True) for _ in range(2)]
    assert keeper.to_close() is None
    publisher = enter(keeper, OTHER, may_be_known=True)
    assert keeper.to_close() is silent[0]
    keeper.leave(silent[0])
    assert keeper.to_close() is None
    for _ in range(3):  # the address with most gives way, never the loner
        late = enter(keeper, STRANGER, may_be_known=True)
        assert keeper.to_close() is silent[1]
        keeper.leave(silent[1])
        silent[1] = late
    assert keeper.known(publisher, Guest.LISTED) is None


def test_a_listed_publisher_that_came_early_leaves_its_place_to_a_stranger() -> None:
    keeper = Doorkeeper(SMALL)
    publisher = enter(keeper, STRANGER, may_be_known=True)
    for _ in range(2):
        assert keeper.known(enter(keeper, OTHER, may_be_known=True), Guest.STRANGER) is None
    assert ask(keeper, OTHER) == "connections"
    assert keeper.known(publisher, Guest.LISTED) is None
    enter(keeper, OTHER)
    assert keeper.to_close() is None
    assert ask(keeper, OTHER) == "connections"


def test_few_addresses_keep_out_no_other_one() -> None:
    keeper = Doorkeeper(DoorLimits(connections_max=6))
    first = [enter(keeper, address) for address in (STRANGER, OTHER)]
    crowd = [enter(keeper, STRANGER) for _ in range(4)]
    assert ask(keeper, STRANGER) == "connections"
    for late in reversed(crowd[1:]):  # the newest of the address with most
        enter(keeper, OTHER if late is crowd[-1] else NODE)
        assert keeper.to_close() is late
        keeper.leave(late)
    assert keeper.to_close() is None
    assert ask(keeper, NODE) == ask(keeper, OTHER) == "connections"  # two each
    assert first[0].guest is Guest.STRANGER


def test_a_stranger_that_tls_has_told_of_gets_the_place_of_one_of_a_crowd() -> None:
    keeper = Doorkeeper(SMALL)
    crowd = [enter(keeper, STRANGER, may_be_known=True) for _ in range(3)]
    for loner, stays in ((OTHER, True), (STRANGER, False)):
        visit = enter(keeper, loner, may_be_known=True)
        assert visit.guest is Guest.UNKNOWN
        assert keeper.known(visit, Guest.STRANGER) == (None if stays else "connections")
        assert keeper.to_close() is (crowd[-1] if stays else None)
        keeper.leave(crowd[-1] if stays else visit)


def test_a_node_keeps_its_place_whatever_its_certificate_says() -> None:
    keeper = Doorkeeper(SMALL)
    fill(keeper, Guest.STRANGER)
    node = enter(keeper, NODE, is_node=True, may_be_known=True)
    for guest in (Guest.STRANGER, Guest.LISTED):
        assert keeper.known(node, guest) is None
    assert node.guest is Guest.NODE


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("admit"), st.sampled_from([STRANGER, OTHER, NODE]), st.booleans()),
            st.tuples(
                st.just("known"),
                st.integers(0, 5),
                st.sampled_from([Guest.STRANGER, Guest.LISTED, Guest.NODE]),
            ),
            st.tuples(st.just("leave"), st.integers(0, 5), st.just(False)),
        ),
        max_size=60,
    )
)
def test_counts_keep_to_the_limits_and_come_back_to_zero(
    steps: list[tuple[str, str | int, bool | Guest]],
) -> None:
    keeper, here, unknown = Doorkeeper(SMALL), list[Visit](), list[Visit]()

    def goes(visit: Visit) -> None:
        keeper.leave(visit)
        here.remove(visit)
        unknown[:] = [one for one in unknown if one is not visit]

    for what, which, flag in steps:
        if isinstance(which, str):
            visit = ask(keeper, which, is_node=which == NODE, may_be_known=bool(flag))
            if isinstance(visit, Visit):
                here.append(visit)
                unknown.append(visit)
                if (slow := keeper.to_close()) is not None:
                    assert slow is not visit
                    goes(slow)
        elif what == "known" and which < len(unknown):
            visit = unknown.pop(which)
            assert isinstance(flag, Guest)
            if keeper.known(visit, flag) is not None:
                goes(visit)
            if (slow := keeper.to_close()) is not None:
                assert slow is not visit
                goes(slow)
        elif what == "leave" and which < len(here):
            goes(here[which])
        assert keeper.count == len(here) <= SMALL.connections_max
        counts = Counter(visit.guest for visit in here)
        assert counts[Guest.UNKNOWN] <= SMALL.unknown_places
        assert counts[Guest.STRANGER] <= 3
        assert counts[Guest.STRANGER] + counts[Guest.LISTED] <= 4
        by_address = Counter(visit.address for visit in here if visit.address != NODE)
        assert all(count <= SMALL.connections_per_address_max for count in by_address.values())
    for visit in tuple(here):
        goes(visit)
    assert keeper.count == 0
    assert [fill(keeper, guest) for guest in (Guest.STRANGER, Guest.LISTED, Guest.NODE)] == [3, 1, 2]


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
        keeper.leave(enter(keeper, OTHER))  # the one seen longest ago is forgotten, not the oldest
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
    """Charge a client for the same bytes again and again."""
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
    padded = frame(FrameKind.DATA, Flag.PADDED, 1, b"\0")
    with pytest.raises(ConnectionBreach, match="control frames"):
        _spend(padded * 1_000, further=further)
    with pytest.raises(ConnectionBreach, match="control frames"):
        _spend(frame(FrameKind.DATA, 0, 1, b"x") * 1_000, further=further)
    _spend(frame(FrameKind.DATA, 0, 1, b"x" * 100) * 1_000)


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
    keeper = Doorkeeper(DoorLimits(times=DoorTimes(3, 5, 0.5)))
    visit = Visit(STRANGER, BEGAN_NS, has_shaken_hands=has_shaken_hands, has_called=has_called)
    last_ns = BEGAN_NS + int(seconds * SECOND_NS)
    assert keeper.overdue(visit, block_began_ns, last_ns) is None
    breach = keeper.overdue(visit, block_began_ns, last_ns + 1)
    assert breach is not None
    assert breach.what == what
    # A client without a call did nothing wrong.
    assert breach.code is (ErrorCode.NO_ERROR if what == "no call" else ErrorCode.ENHANCE_YOUR_CALM)


def test_who_has_called_may_stay_for_ever() -> None:
    visit = Visit(STRANGER, 0, has_shaken_hands=True, has_called=True)
    assert Doorkeeper(DoorLimits()).overdue(visit, None, 1 << 62) is None
