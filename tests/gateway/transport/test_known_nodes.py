"""Tests of `gateway.transport.known_nodes`: which callers count as other nodes, which peer is this one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest

from sluice.gateway.addresses import parse_address
from sluice.gateway.transport.known_nodes import LOOK_SECONDS_MIN, RESOLVE_SECONDS_MAX, KnownNodes, leads_here
from tests.nodes import ANSWER_SECONDS

A, B = "a.net:40840", "b.net:40840"
HOST_A, HOST_B, MOVED, STRANGER = "192.0.2.1", "2001:db8::2", "192.0.2.9", "198.51.100.7"
ALICE = ("O=Net,CN=a", "CN=a")


class Names:
    """Resolves names."""

    def __init__(self) -> None:
        self.leads = {A: {HOST_A}, B: {HOST_B}}
        self.asked = 0

    async def __call__(self, peers: Iterable[str]) -> frozenset[str]:
        self.asked += 1
        (peer,) = peers
        return frozenset(self.leads.get(peer, ()))


def nodes_of(names: Names, **rules: Any) -> KnownNodes:
    """Nodes of a cluster of three."""
    nodes = KnownNodes(resolve=names, **rules)
    nodes.peers = (A, B)
    return nodes


async def test_who_comes_from_where_a_name_in_peers_leads_is_a_node() -> None:
    nodes = nodes_of(Names())
    assert not nodes.has(HOST_A, ())
    await nodes.look()
    assert [nodes.has(host, ()) for host in (HOST_A, HOST_B, STRANGER, "", "unix:")] == [True] * 2 + [
        False
    ] * 3
    assert not nodes.has(STRANGER, ALICE)  # an unlisted certificate does not count


def test_behind_nat_a_network_counts() -> None:
    nodes = nodes_of(Names(), networks=("198.51.100.0/24", "2001:db8:1::/48"))
    hosts = (STRANGER, "198.51.101.1", "2001:db8:1::5", "2001:db8:2::5", "unix:/run/grpc")
    assert [nodes.has(host, ()) for host in hosts] == [True, False, True, False, False]


async def test_where_subjects_are_listed_no_address_counts() -> None:
    nodes = nodes_of(Names(), subjects=("CN=a",))
    await nodes.look()
    assert nodes.has(STRANGER, ALICE)
    assert not nodes.has(HOST_A, ())
    assert not nodes.has(HOST_A, ("CN=b", "claimed:CN=a"))


@pytest.mark.parametrize("look_seconds_min", [ANSWER_SECONDS, 0.0])
async def test_a_node_that_has_moved_is_recognized_when_it_calls(look_seconds_min: float) -> None:
    """Acknowledgements wait for that node."""

    names = Names()
    nodes = nodes_of(names, look_seconds_min=look_seconds_min)
    await nodes.look()
    names.leads[A] = {MOVED}
    is_due = look_seconds_min == 0.0
    assert await nodes.recognize(MOVED, ()) is is_due
    assert nodes.has(HOST_A, ()) is not is_due


async def test_strangers_do_not_have_names_resolved_at_will() -> None:
    names = Names()
    nodes = nodes_of(names)
    assert LOOK_SECONDS_MIN > 0
    assert not any([await nodes.recognize(STRANGER, ()) for _ in range(100)])
    assert names.asked == 2  # each name once
    proven = nodes_of(names, subjects=("CN=a",))
    assert not await proven.recognize(STRANGER, ())
    assert names.asked == 2


async def test_a_name_that_is_not_known_now_leads_where_it_led() -> None:
    names = Names()
    nodes = nodes_of(names)
    await nodes.look()
    del names.leads[A]
    await nodes.look()
    assert nodes.has(HOST_A, ())
    assert nodes.has(HOST_B, ())


def test_nobody_is_expected_where_nothing_is_set() -> None:
    assert not KnownNodes().are_expected
    assert not KnownNodes().has("127.0.0.1", ALICE)
    assert KnownNodes(subjects=("CN=a",)).are_expected
    assert KnownNodes(networks=("10.0.0.0/8",)).are_expected
    assert nodes_of(Names()).are_expected
    assert "peer_subjects" in KnownNodes(subjects=("CN=a",)).rule
    assert "peer_networks" in KnownNodes().rule


# --- this node itself, under the names of one machine ------------------------------------------------------


@pytest.mark.parametrize(
    ("peer", "listens_at", "expected"),
    [
        ("127.0.0.1:40840", "127.0.0.1:40840", True),
        ("localhost:40840", "127.0.0.1:40840", True),
        ("127.0.0.1:40840", "localhost:40840", True),
        ("localhost:40840", "0.0.0.0:40840", True),
        ("127.0.0.1:40840", "0.0.0.0:40840", True),
        ("127.0.0.2:40840", "0.0.0.0:40840", True),
        ("no-such-host.invalid:40840", "no-such-host.invalid:40840", True),
        ("127.0.0.1:40842", "127.0.0.1:40840", False),
        ("127.0.0.2:40840", "127.0.0.1:40840", False),
        ("192.0.2.1:40840", "0.0.0.0:40840", False),
        ("no-such-host.invalid:40840", "0.0.0.0:40840", False),
    ],
)
async def test_what_leads_here(peer: str, listens_at: str, expected: bool) -> None:
    # this machine's own names resolve, however long it takes
    seconds = ANSWER_SECONDS if expected else RESOLVE_SECONDS_MAX
    here = [parse_address(listens_at)]
    assert await leads_here(parse_address(peer), here, resolve_seconds_max=seconds) is expected


async def test_one_of_several_addresses_is_enough() -> None:
    leads = partial(leads_here, parse_address("localhost:2"), resolve_seconds_max=ANSWER_SECONDS)
    listens_at = [parse_address("192.0.2.1:1"), parse_address("127.0.0.1:2")]
    assert await leads(listens_at)
    assert not await leads([])


async def test_a_name_that_is_not_found_in_time_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", hang)
    here = [parse_address("127.0.0.1:1")]
    assert not await leads_here(parse_address("slow:1"), here, resolve_seconds_max=0.01)
