"""Tests of `gateway.transport.doorkeeper`."""

from __future__ import annotations

import pytest

from gateway.transport.doorkeeper import Doorkeeper, DoorLimits, Visit
from gateway.transport.frames import (
    ConnectionBreach,
    Flag,
    Kind,
    frame,
)
from gateway.transport.server_relay import ServerRelay
from tests.gateway.transport.lines import Wire


def _admitted(keeper: Doorkeeper, address: str, *, is_kept: bool = False) -> Visit:
    visit = keeper.admit(address, 0, is_kept=is_kept, may_be_listed=True)
    assert isinstance(visit, Visit)
    return visit


def test_a_peer_keeps_its_place_though_its_certificate_is_not_on_the_list() -> None:
    keeper = Doorkeeper(DoorLimits(connections_max=3, kept_places=1))
    for _ in range(2):
        assert keeper.known(_admitted(keeper, "192.0.2.1"), is_listed=False) is None
    peer = _admitted(keeper, "192.0.2.9", is_kept=True)
    assert keeper.known(peer, is_listed=False) is None


def test_strangers_do_not_stay_in_the_places_that_are_kept() -> None:
    keeper = Doorkeeper(DoorLimits(connections_max=3, kept_places=1))
    first, _ = (_admitted(keeper, "192.0.2.1") for _ in range(2))
    guessed = _admitted(keeper, "192.0.2.1")
    keeper.leave(first)
    assert keeper.known(guessed, is_listed=False) is None  # there is room for strangers now
    assert keeper.known(_admitted(keeper, "192.0.2.1"), is_listed=False) == "connections"


def _spend(what: bytes, *, further: int = 0) -> None:
    """Let a client send the same again and again, and take it off its budget."""
    wire, keeper = Wire(ServerRelay()), Doorkeeper(DoorLimits())
    visit = _admitted(keeper, "192.0.2.1")
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


def test_connections_that_come_and_go_do_not_silence_their_address_for_long() -> None:
    keeper = Doorkeeper(DoorLimits())
    stays = _admitted(keeper, "192.0.2.1")
    for _ in range(100_000):
        keeper.leave(_admitted(keeper, "192.0.2.1"))
    assert keeper.spend(stays, 2_048, 0, 0) < 1_000_000_000
