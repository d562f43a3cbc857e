"""Whether a peer is the node itself, under the names that one machine has."""

from __future__ import annotations

import asyncio

import pytest

from gateway.addresses import parse_address
from gateway.transport import own_address
from gateway.transport.own_address import leads_here
from tests.nodes import ANSWER_SECONDS


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
def test_what_leads_here(peer: str, listens_at: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if expected:  # names that are here are found, however long it takes
        monkeypatch.setattr(own_address, "RESOLVE_SECONDS_MAX", ANSWER_SECONDS)
    assert asyncio.run(leads_here(parse_address(peer), [parse_address(listens_at)])) is expected


def test_one_of_several_addresses_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_address, "RESOLVE_SECONDS_MAX", ANSWER_SECONDS)
    listens_at = [parse_address("192.0.2.1:1"), parse_address("127.0.0.1:2")]
    assert asyncio.run(leads_here(parse_address("localhost:2"), listens_at))
    assert not asyncio.run(leads_here(parse_address("localhost:2"), []))


def test_a_name_that_is_not_found_in_time_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_address, "RESOLVE_SECONDS_MAX", 0.01)

    async def scenario() -> bool:
        async def hang(*_: object, **__: object) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", hang)
        return await leads_here(parse_address("slow:1"), [parse_address("127.0.0.1:1")])

    assert asyncio.run(scenario()) is False
