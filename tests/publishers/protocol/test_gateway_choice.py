"""Where a publisher connects next."""

from __future__ import annotations

from publishers import limits
from publishers.protocol.gateway_choice import GatewayChoice
from publishers.protocol.machine_tables import Gateway, Pace
from publishers.protocol.messages import ConnectGateway


def test_one_gateway_is_tried_again_with_growing_waits() -> None:
    route = GatewayChoice(1)
    assert route.first() == ConnectGateway(0, attempt=0)
    attempts = [route.after(Gateway.NEXT, Pace.BACKOFF).attempt for _ in range(3)]
    assert attempts == [1, 2, 3]
    route.progress()
    assert route.after(Gateway.SAME, Pace.BACKOFF) == ConnectGateway(0, attempt=1)


def test_every_gateway_is_tried_before_the_first_wait() -> None:
    route = GatewayChoice(3)
    tries = [route.after(Gateway.NEXT, Pace.BACKOFF) for _ in range(5)]
    assert tries == [
        ConnectGateway(1, 0),
        ConnectGateway(2, 0),
        ConnectGateway(0, 1),
        ConnectGateway(1, 2),
        ConnectGateway(2, 3),
    ]
    assert route.first() == ConnectGateway(2, attempt=0)


def test_the_same_gateway_is_not_asked_again_without_a_wait() -> None:
    assert GatewayChoice(3).after(Gateway.SAME, Pace.BACKOFF) == ConnectGateway(0, attempt=1)


def test_after_ends_in_order_the_waits_are_short_for_a_while() -> None:
    route = GatewayChoice(2)
    assert route.after(Gateway.NEXT, Pace.SOON) == ConnectGateway(1, attempt=0)
    soon = [route.after(Gateway.NEXT, Pace.SOON) for _ in range(limits.SOON_TRIES_MAX - 1)]
    assert soon[:2] == [
        ConnectGateway(0, attempt=1, is_soon=True),
        ConnectGateway(1, attempt=1, is_soon=True),
    ]
    assert all(connect.is_soon for connect in soon)
    growing = [route.after(Gateway.NEXT, Pace.SOON) for _ in range(3)]
    assert [(connect.attempt, connect.is_soon) for connect in growing] == [(1, False), (2, False), (3, False)]
    route.progress()
    assert route.after(Gateway.NEXT, Pace.SOON).attempt == 0
    assert route.after(Gateway.NEXT, Pace.SOON).is_soon


def test_one_gateway_that_ends_in_order_is_given_time() -> None:
    route = GatewayChoice(1)
    assert [route.after(Gateway.NEXT, Pace.SOON) for _ in range(2)] == [
        ConnectGateway(0, 1),
        ConnectGateway(0, 2),
    ]


def test_at_once_is_no_trouble() -> None:
    route = GatewayChoice(1)
    assert route.after(Gateway.SAME, Pace.AT_ONCE) == ConnectGateway(0, attempt=0)
    assert route.after(Gateway.NEXT, Pace.BACKOFF).attempt == 1


def test_after_a_rest_the_next_stream_begins_where_it_was_told_to() -> None:
    route = GatewayChoice(2)
    route.rest(Gateway.SAME)
    assert route.first() == ConnectGateway(0, attempt=0)
    route.rest(Gateway.NEXT)
    assert route.first() == ConnectGateway(1, attempt=0)
    assert route.after(Gateway.NEXT, Pace.BACKOFF) == ConnectGateway(0, attempt=0)
