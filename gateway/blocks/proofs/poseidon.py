"""Poseidon, the hash of field elements of TSS signatures, over the scalar field of BN254.

Pure. Drawing the constants from the shift register Grain takes 0.03 s.
Source: docs/spec/tss.md section 2.5; Grassi et al.: "Poseidon: A New Hash Function for Zero-Knowledge Proof
Systems" (2021), section 2.3 and appendices E and F.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain, islice
from typing import Final, NamedTuple

from sluice.gateway.blocks.proofs.baby_jubjub import FIELD_PRIME
from sluice.gateway.blocks.proofs.encoding import SCALAR_SIZE, scalar_bytes

__all__ = ["LANES", "hash_array", "hash_array_number", "permute", "poseidon", "round_constants"]

q: Final = FIELD_PRIME

LANES: Final = 5
"""t, the elements of the state (2.5)."""
RATE: Final = LANES - 1
FULL_ROUNDS: Final = 8
"""R_F: half before the partial rounds, half after them."""
PARTIAL_ROUNDS: Final = 60
"""R_P (2.5)."""
ROUNDS: Final = FULL_ROUNDS + PARTIAL_ROUNDS

DISCARDED_BITS: Final = 160
"""Bits that the register discards first (2.5)."""

_FIELD_BITS: Final = 254
assert q.bit_length() == _FIELD_BITS


class Constants(NamedTuple):
    """The constants of the permutation."""

    ark: tuple[tuple[int, ...], ...]  # a row for each round
    mds: tuple[tuple[int, ...], ...]
    """Five rows of five; a Cauchy matrix."""


def poseidon(elements: Sequence[int]) -> int:
    """Return the hash of field elements, each below q; of none, 0 (2.5).

    There is no length or padding, so [1] and [1, 0] have the same hash.
    """
    state = [0] * LANES
    for start in range(0, len(elements), RATE):
        for lane, element in enumerate(elements[start : start + RATE], 1):
            state[lane] += element
        state = permute(state)
    return state[1]


def hash_array_number(data: bytes) -> int:
    """Return hashArray as a field element (2.5).

    Pieces of 32 bytes that differ by q have one hash: equal hashes do not mean equal bytes.
    """
    pieces = range(0, len(data), SCALAR_SIZE)
    return poseidon([int.from_bytes(data[start : start + SCALAR_SIZE], "little") % q for start in pieces])


def hash_array(data: bytes) -> bytes:
    """Return hashArray in 32 bytes (2.5)."""
    return scalar_bytes(hash_array_number(data))


def permute(state: Sequence[int]) -> list[int]:
    """Return the permutation of five lanes (2.5)."""
    ark, mds = round_constants()
    full_before, full_after = FULL_ROUNDS // 2, ROUNDS - FULL_ROUNDS // 2
    lanes = list(state)
    for index, (k0, k1, k2, k3, k4) in enumerate(ark):
        a, b, c, d, e = lanes[0] + k0, lanes[1] + k1, lanes[2] + k2, lanes[3] + k3, lanes[4] + k4
        a = pow(a, 5, q)
        if index < full_before or index >= full_after:
            b, c, d, e = pow(b, 5, q), pow(c, 5, q), pow(d, 5, q), pow(e, 5, q)
        lanes = [(m0 * a + m1 * b + m2 * c + m3 * d + m4 * e) % q for m0, m1, m2, m3, m4 in mds]
    return lanes


# --- the constants ------------------------------------------------------------------------------------------


@cache
def round_constants() -> Constants:
    """Draw ARK and MDS from the Grain register, once in each process (2.5)."""
    bits = _grain_bits()
    ark = []
    for _ in range(ROUNDS):
        row: list[int] = []
        while len(row) < LANES:
            drawn = _drawn_integer(bits)
            if drawn < q:
                row.append(drawn)
        ark.append(tuple(row))
    xs = [_drawn_integer(bits) % q for _ in range(LANES)]
    ys = [_drawn_integer(bits) % q for _ in range(LANES)]
    mds = tuple(tuple(pow(x + y, -1, q) for y in ys) for x in xs)
    return Constants(tuple(ark), mds)


def _drawn_integer(bits: Iterator[str]) -> int:
    return int("".join(islice(bits, _FIELD_BITS)), 2)


def _grain_bits() -> Iterator[str]:
    """Yield the register's bits in self-shrinking mode."""
    raw = islice(chain.from_iterable(_grain_register()), DISCARDED_BITS, None)
    return (bit for chosen, bit in zip(raw, raw, strict=True) if chosen == "1")


def _grain_register() -> Iterator[str]:
    started = (
        f"{1:02b}"  # a prime field
        f"{0:04b}"  # the S-box is x^alpha
        f"{_FIELD_BITS:012b}{LANES:012b}{FULL_ROUNDS:010b}{PARTIAL_ROUNDS:010b}"
        f"{'1' * 30}"
    )
    assert len(started) == 80
    state = int(started, 2)  # bit 0 of the register is the highest
    while True:
        # The taps (2.5; appendix E of the paper). A new bit comes to a tap after 18 steps: so many are made
        # at once.
        taps = state ^ state << 13 ^ state << 23 ^ state << 38 ^ state << 51 ^ state << 62
        new = taps >> 62 & (1 << 18) - 1
        state = (state << 18 | new) & (1 << 80) - 1
        yield f"{new:018b}"
