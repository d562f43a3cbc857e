"""Where a publisher connects next, and when a refusal is final."""

from __future__ import annotations

import pytest

from sluice.publishers.protocol.machine_tables import Gateway, Pace
from sluice.publishers.protocol.messages import ConnectGateway
from sluice.publishers.protocol.retries import SOON_TRIES_MAX, GatewayChoice, Refusals
from sluice.publishers.protocol.tally import Tally
from sluice.publishers.report import RefusedBlock


def test_one_gateway_is_tried_again_with_growing_waits() -> None:
    route = GatewayChoice(1)
    assert route.first() == ConnectGateway(0, attempt=0)
    attempts = [route.after(Gateway.NEXT, Pace.BACKOFF).attempt for _ in range(3)]
    assert attempts == [1, 2, 3]
    route.progress()
    assert route.after(Gateway.SAME, Pace.BACKOFF) == ConnectGateway(0, attempt=1)


def test_every_gateway_is_tried_before_each_wait() -> None:
    route = GatewayChoice(3)
    tries = [route.after(Gateway.NEXT, Pace.BACKOFF) for _ in range(8)]
    assert tries == [
        ConnectGateway(1, 0),
        ConnectGateway(2, 0),
        ConnectGateway(0, 1),
        ConnectGateway(1, 0),
        ConnectGateway(2, 0),
        ConnectGateway(0, 2),
        ConnectGateway(1, 0),
        ConnectGateway(2, 0),
    ]
    assert route.first() == ConnectGateway(2, attempt=0)


def test_the_same_gateway_is_not_asked_again_without_a_wait() -> None:
    assert GatewayChoice(3).after(Gateway.SAME, Pace.BACKOFF) == ConnectGateway(0, attempt=1)


def test_after_ends_in_order_the_waits_are_short_for_a_while() -> None:
    route = GatewayChoice(2)
    assert route.after(Gateway.NEXT, Pace.SOON) == ConnectGateway(1, attempt=0)
    soon = [route.after(Gateway.NEXT, Pace.SOON) for _ in range(SOON_TRIES_MAX - 1)]
    assert soon[:2] == [
        ConnectGateway(0, attempt=1, is_soon=True),
        ConnectGateway(1, attempt=1, is_soon=True),
    ]
    assert all(connect.is_soon for connect in soon)
    growing = [route.after(Gateway.NEXT, Pace.SOON) for _ in range(3)]
    assert [(connect.attempt, connect.is_soon) for connect in growing] == [(1, False), (0, False), (2, False)]
    route.progress()
    assert route.after(Gateway.NEXT, Pace.SOON).attempt == 0
    assert route.after(Gateway.NEXT, Pace.SOON).is_soon


def test_publishers_of_a_dead_node_are_back_soon_where_another_one_may_take_over() -> None:
    """That one becomes active when the lease of the dead one has ended."""
    route = GatewayChoice(2)
    assert [route.after(Gateway.NEXT, Pace.LOST).attempt for _ in range(8)] == [0, 1, 0, 2, 0, 2, 0, 2]
    alone = GatewayChoice(1)
    assert [alone.after(Gateway.NEXT, Pace.LOST).attempt for _ in range(4)] == [1, 2, 3, 4]


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
    route.aim(Gateway.SAME)
    assert route.first() == ConnectGateway(0, attempt=0)
    route.aim(Gateway.NEXT)
    assert route.first() == ConnectGateway(1, attempt=0)
    assert route.after(Gateway.NEXT, Pace.BACKOFF) == ConnectGateway(0, attempt=0)


def refusals_of(gateway_count: int = 1, retries_max: int = 2) -> tuple[Refusals, Tally]:
    tally = Tally("alice")
    return Refusals(tally, gateway_count, retries_max, retries_max), tally


@pytest.mark.parametrize(("gateway_count", "last"), [(1, 3), (3, 3), (5, 5)])
def test_a_bad_proof_is_final_after_the_retries_and_all_gateways(gateway_count: int, last: int) -> None:
    refusals, tally = refusals_of(gateway_count)
    assert [refusals.bad_proof(7) for _ in range(last - 1)] == [None] * (last - 1)
    assert refusals.bad_proof(7) == (
        f"block 7 was refused {last} times with BAD_BLOCK_PROOF: its proof is not of the gateway's ledger "
        "keys, or it does not continue the gateway's chain; the gateway's log says which"
    )
    assert tally.report(None, 0).refused == (RefusedBlock(7, "BAD_BLOCK_PROOF", last),)


def test_bad_proofs_are_counted_for_each_block_and_progress_does_not_end_that() -> None:
    refusals, _ = refusals_of(retries_max=1)
    assert refusals.bad_proof(7) is None
    assert refusals.bad_proof(8) is None
    refusals.progress()
    assert refusals.bad_proof(7) is not None


@pytest.mark.parametrize(("gateway_count", "last"), [(1, 3), (3, 3), (5, 5)])
def test_invalid_requests_are_final_in_a_row_over_all_blocks(gateway_count: int, last: int) -> None:
    refusals, tally = refusals_of(gateway_count)
    for number in range(last - 1):
        assert refusals.invalid_request(number, is_held=True) is None
    assert refusals.invalid_request(9, is_held=False) == (
        f"the gateway answered INVALID_REQUEST {last} times in a row, last at block 9; see its log"
    )
    refused = tuple(RefusedBlock(number, "INVALID_REQUEST", 1) for number in range(last - 1))
    assert tally.report(None, 0).refused == refused  # 9 is not ours


@pytest.mark.parametrize(("gateway_count", "last"), [(1, 2), (2, 2), (5, 5)])
def test_a_message_too_long_is_final_after_all_gateways_and_a_second_look(
    gateway_count: int, last: int
) -> None:
    refusals, _ = refusals_of(gateway_count)
    assert [refusals.too_long() for _ in range(last)] == [False] * (last - 1) + [True]
    refusals, _ = refusals_of(gateway_count)
    for _ in range(5):
        assert not refusals.too_long()
        refusals.progress()
