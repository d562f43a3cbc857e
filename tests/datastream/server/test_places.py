"""Which client gives way when all places are taken."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.datastream.server.places import Places, party_of

CROWD, LONER = "192.0.2.1", "192.0.2.2"


def full(spares: str, count: int = 3) -> Places[str]:
    """All places are taken by one address."""
    places: Places[str] = Places(count, spares)  # type: ignore[arg-type]
    for number in range(count):
        assert not places.are_taken
        places.add(f"crowd {number}", CROWD)
    assert places.are_taken
    return places


def test_where_old_clients_are_spared_the_newest_of_the_crowd_gives_way_to_another_address() -> None:
    places = full("old")
    assert places.who_gives_way(LONER) == "crowd 2"
    assert places.who_gives_way(CROWD) is None


def test_where_new_clients_are_spared_the_oldest_of_the_crowd_gives_way_to_all() -> None:
    places = full("new")
    assert places.who_gives_way(LONER) == places.who_gives_way(CROWD) == "crowd 0"


def test_addresses_that_share_evenly_keep_what_they_have() -> None:
    places: Places[str] = Places(4, "old")
    for number in range(4):
        places.add(f"client {number}", f"192.0.2.{number % 2}")
    assert [places.who_gives_way(f"192.0.2.{number}") for number in range(3)] == [None, None, "client 2"]
    places.remove("client 2")
    places.add("third", LONER)
    assert places.who_gives_way("192.0.2.3") == "client 3"
    assert places.who_gives_way(LONER) is None


def test_a_newcomer_among_loners_has_no_place_where_old_ones_are_spared() -> None:
    for spares, gives_way in (("old", None), ("new", "client 0")):
        places: Places[str] = Places(2, spares)  # type: ignore[arg-type]
        for number in range(2):
            places.add(f"client {number}", f"192.0.2.{number}")
        assert places.who_gives_way("192.0.2.9") == gives_way


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4)), max_size=60), st.sampled_from(["old", "new"]))
def test_nobody_with_fewer_gives_way_to_one_with_more(steps: list[tuple[bool, int]], spares: str) -> None:
    places: Places[int] = Places(6, spares)  # type: ignore[arg-type]
    here: dict[int, str] = {}
    for number, (comes, which) in enumerate(steps):
        address = f"192.0.2.{which}"
        if comes:
            counts = Counter(here.values())
            if places.are_taken:
                gone = places.who_gives_way(address)
                if gone is None:
                    assert counts[address] + 1 >= max(counts.values())
                    continue
                if here[gone] != address:
                    assert (
                        counts[here[gone]] == max(counts.values()) >= counts[address] + (spares == "old") * 2
                    )
                places.remove(gone)
                del here[gone]
            places.add(number, address)
            here[number] = address
        elif leaving := [client for client, where in here.items() if where == address]:
            places.remove(leaving[0])
            places.remove(leaving[0])  # a second time does nothing
            del here[leaving[0]]
        assert len(places) == len(here) <= 6
        assert places.clients() == list(here)
    for client in places.clients():
        places.remove(client)
    assert (places._by_address, places._by_count, places._most) == ({}, {}, 0)


@pytest.mark.parametrize(
    ("host", "party"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::", "2001:db8:1:3::/64"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("::1", "::1"),
        ("fe80::1", "fe80::1"),
    ],
)
def test_one_party_has_an_address_or_a_64(host: str, party: str) -> None:
    assert party_of(host) == party


# --- file descriptors -----------------------------------------------------------------------------------


READ = "from sluice.datastream.server import descriptors as d; import resource; "
LIMIT = "resource.setrlimit(resource.RLIMIT_NOFILE, ({}, {})); "


def say(program: str) -> str:
    command = [sys.executable, "-c", READ + program]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(("most", "end"), [(1024, 960), (129, 65), (128, 64), (100, 50)])
def test_the_last_ones_are_not_for_clients(most: int, end: int) -> None:
    program = LIMIT.format(most, most) + "print(d.descriptors_max(), d.client_descriptors_end())"
    assert say(program) == f"{most} {end}"


def test_the_limit_is_raised_as_far_as_is_allowed() -> None:
    limits = "print(*resource.getrlimit(resource.RLIMIT_NOFILE)); "
    program = LIMIT.format(100, 200) + (limits + "d.raise_descriptors_max(); ") * 2 + limits
    assert say(program).splitlines() == ["100 200", "200 200", "200 200"]


def test_no_limit() -> None:
    program = (
        "resource.getrlimit = lambda _: (resource.RLIM_INFINITY,) * 2; d.raise_descriptors_max(); "
        "print(d.descriptors_max(), d.client_descriptors_end())"
    )
    assert say(program) == "None None"
