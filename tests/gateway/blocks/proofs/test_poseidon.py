"""Tests of `gateway.blocks.proofs.poseidon`: the known answers of tss.md section 2.5."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluice.gateway.blocks.proofs.baby_jubjub import FIELD_PRIME
from sluice.gateway.blocks.proofs.encoding import scalar_bytes
from sluice.gateway.blocks.proofs.poseidon import (
    LANES,
    ROUNDS,
    hash_array,
    hash_array_number,
    permute,
    poseidon,
    round_constants,
)


def test_the_constants_are_drawn_as_defined() -> None:
    ark, mds = round_constants()
    assert ark[0][0] == 6652655389322448471317061533546982911992554640679550674058582942754771150993
    assert mds[0][0] == 16789463359527776692258765063233607350971630674230623383979223533600140787105
    assert [len(ark), {len(row) for row in ark}, len(mds), {len(row) for row in mds}] == [68, {5}, 5, {5}]
    assert ROUNDS == 68
    assert all(0 <= constant < FIELD_PRIME for row in (*ark, *mds) for constant in row)
    assert round_constants() is round_constants()


def test_the_permutation() -> None:
    assert permute([0, 1, 2, 3, 4])[0] == (
        18821383157269793795438455681495246036402687001665670618754263018637548127333
    )
    assert len(permute([0] * LANES)) == LANES


_ELEMENTS = st.integers(0, FIELD_PRIME - 1)


@given(st.lists(_ELEMENTS, min_size=LANES, max_size=LANES))
def test_the_regrouped_rounds_give_what_the_defined_ones_give(state: list[int]) -> None:
    assert permute(state) == _as_defined(state)
    above = [element + FIELD_PRIME for element in state]  # as the sponge adds to lanes
    assert permute(above) == permute(state)


def _as_defined(state: list[int]) -> list[int]:
    ark, mds = round_constants()
    for index, row in enumerate(ark):
        lanes = [lane + constant for lane, constant in zip(state, row, strict=True)]
        raised = len(lanes) if index < 4 or index >= 64 else 1
        lanes[:raised] = [lane**5 for lane in lanes[:raised]]
        state = [sum(m * lane for m, lane in zip(line, lanes, strict=True)) % FIELD_PRIME for line in mds]
    return state


def test_the_sponge_gives_lane_1_and_has_no_padding() -> None:
    assert poseidon([1]) == 7195641749805210724996949585413696003422398574800331622160669465078063062672
    five = poseidon([1, 2, 3, 4, 5])
    assert five == 2006158340318488760025443826385193554248487533762005435528482214650964641219
    assert poseidon([1, 0]) == poseidon([1])
    assert poseidon([1, 2, 3, 4]) == permute([0, 1, 2, 3, 4])[1]
    assert poseidon([]) == 0


def test_bytes_are_cut_into_pieces_of_32() -> None:
    assert hash_array(b"\1" * 40).hex() == "5071f2f9a26cfc5fd17e47ba4da1e3609e6f82f2b56b47736dbe9a5fb61c9405"
    assert hash_array(b"\1" * 40) == scalar_bytes(hash_array_number(b"\1" * 40))
    whole, short = int.from_bytes(b"\1" * 32, "little"), int.from_bytes(b"\1" * 8, "little")
    assert hash_array_number(b"\1" * 40) == poseidon([whole % FIELD_PRIME, short])


def test_two_pieces_that_differ_by_the_prime_have_one_hash() -> None:
    """So keys are compared by their bytes, never by this hash (tss.md section 9, pitfall 7)."""
    assert hash_array(scalar_bytes(7)) == hash_array(scalar_bytes(7 + FIELD_PRIME))
