"""Bytes of answers on their way: each address has its share, and all together have theirs."""

from __future__ import annotations

import pytest

from gateway.limits import ACCESS_ADDRESS_BYTES_MAX, ACCESS_BYTES_MAX
from gateway.services.answer_shares import AnswerShares

ALICE, BOB, CAROL = "192.0.2.1", "192.0.2.2", "192.0.2.3"


def test_an_address_at_its_share_waits_and_the_others_do_not() -> None:
    shares = AnswerShares(bytes_max=250, address_bytes_max=100)
    shares.take(ALICE, 99)
    assert shares.refusal(ALICE) is None
    shares.take(ALICE, 1)
    assert shares.refusal(ALICE) == (
        "blocks on their way to this address: got 100 bytes that were not taken yet, expected less than 100"
    )
    assert shares.refusal(BOB) is None
    shares.give_back(ALICE, 1)
    assert shares.refusal(ALICE) is None


def test_all_together_have_a_share() -> None:
    shares = AnswerShares(bytes_max=250, address_bytes_max=200)
    shares.take(ALICE, 150)
    shares.take(BOB, 99)
    assert shares.refusal(CAROL) is None
    shares.take(CAROL, 1)
    assert shares.refusal(CAROL) == (
        "blocks on their way to all clients: got 250 bytes that were not taken yet, expected less than 250"
    )
    shares.give_back(BOB, 99)
    assert shares.refusal(CAROL) is None


def test_an_answer_above_every_share_goes_out() -> None:
    shares = AnswerShares(bytes_max=10, address_bytes_max=5)
    assert shares.refusal(ALICE) is None
    shares.take(ALICE, 1_000)
    assert shares.refusal(ALICE) is not None
    assert shares.refusal(BOB) is not None


def test_who_has_no_answers_is_forgotten() -> None:
    shares = AnswerShares(bytes_max=10, address_bytes_max=5)
    for size_bytes in (3, 0):
        shares.take(ALICE, size_bytes)
    for size_bytes in (0, 3):
        shares.give_back(ALICE, size_bytes)
    assert (shares._held, shares.bytes_held) == ({}, 0)


def test_nothing_is_given_back_twice() -> None:
    shares = AnswerShares(bytes_max=10, address_bytes_max=5)
    shares.take(ALICE, 3)
    with pytest.raises(AssertionError, match=r"192\.0\.2\.1 has no answer of 4 bytes to give back"):
        shares.give_back(ALICE, 4)
    assert shares.bytes_held == 3


def test_one_block_is_always_possible_and_a_further_one_only_below_the_share() -> None:
    shares = AnswerShares(ACCESS_BYTES_MAX, ACCESS_ADDRESS_BYTES_MAX)
    shares.take(ALICE, ACCESS_ADDRESS_BYTES_MAX - 1)
    assert shares.refusal(ALICE) is None
    shares.take(ALICE, 2 * ACCESS_BYTES_MAX)
    assert shares.refusal(ALICE) is not None
    assert shares.refusal(BOB) is not None
    shares.give_back(ALICE, 2 * ACCESS_BYTES_MAX)
    shares.take(BOB, ACCESS_BYTES_MAX - ACCESS_ADDRESS_BYTES_MAX)
    assert shares.refusal(CAROL) is None
    shares.take(BOB, 1)
    assert shares.refusal(CAROL) is not None
