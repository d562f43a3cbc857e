"""Tests of `gateway.blocks.refusal`."""

from __future__ import annotations

import dataclasses

import pytest

from gateway.blocks.refusal import FAULTS, Fault, Refusal, RefusalKind


def test_a_refusal_says_kind_object_got_and_expected() -> None:
    refusal = Refusal(RefusalKind.BAD_ROOT_HASH, "block footer field 1", "aa", "bb")
    assert str(refusal) == "bad root hash: block footer field 1: got aa, expected bb"


def test_a_refusal_is_a_value() -> None:
    refusal = Refusal(RefusalKind.BAD_PROOF, "proof", "a", "b")
    assert refusal == Refusal(RefusalKind.BAD_PROOF, "proof", "a", "b")
    with pytest.raises(dataclasses.FrozenInstanceError):
        refusal.got = "c"  # type: ignore[misc]


def test_the_kinds_have_texts_that_differ() -> None:
    assert len({kind.value for kind in RefusalKind}) == len(RefusalKind) == 8


def test_nobody_is_blamed_for_what_was_not_checked() -> None:
    assert set(FAULTS) == set(RefusalKind)
    unblamed = {kind for kind in RefusalKind if kind.fault is not Fault.SENDER}
    assert unblamed == {
        RefusalKind.MISSING_VERIFICATION_DATA,
        RefusalKind.UNSUPPORTED,
        RefusalKind.NOT_CHECKED,
    }
    assert RefusalKind.MISSING_VERIFICATION_DATA.fault is Fault.NODE
