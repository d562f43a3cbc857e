"""Poseidon, the hash of field elements of TSS signatures, over the scalar field of BN254.

Pure. A permutation of 5 lanes, lane 0 the capacity, lanes 1 to 4 the rate; the same as circom's Poseidon(4):

    68 rounds           4 full, 60 partial, 4 full
    round i             add ARK[i] to the lanes; x^5 of all lanes (full) or of lane 0 (partial);
                        multiply by MDS: new[a] = sum over b of MDS[a][b] * old[b]

The shift register Grain, started with these parameters, gives ARK and MDS; drawing them takes 0.03 s. The
sponge absorbs up to 4 elements at a time and returns lane 1, without padding.
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
"""Elements that one permutation absorbs."""
FULL_ROUNDS: Final = 8
"""R_F: half before the partial rounds, half after them (2.5)."""
PARTIAL_ROUNDS: Final = 60
"""R_P (2.5)."""
ROUNDS: Final = FULL_ROUNDS + PARTIAL_ROUNDS

DISCARDED_BITS: Final = 160
"""Bits that the register discards first (2.5)."""

_FIELD_BITS: Final = 254
assert q.bit_length() == _FIELD_BITS


class Constants(NamedTuple):
    """The constants of the permutation."""

    ark: tuple[tuple[int, ...], ...]  # ARK: a row of 5 for each round
    mds: tuple[tuple[int, ...], ...]
    """MDS: 5 rows of 5, a matrix whose square submatrices are all invertible (Cauchy)."""


def poseidon(elements: Sequence[int]) -> int:
    """Return the hash of field elements, each below q; of none, 0 (2.5).

    There is no length, padding or domain tag, so [1] and [1, 0] have the same hash.
    """
    state = [0] * LANES
    for start in range(0, len(elements), RATE):
        for lane, element in enumerate(elements[start : start + RATE], 1):
            state[lane] += element
        state = permute(state)
    return state[1]


def hash_array_number(data: bytes) -> int:
    """Return hashArray as a field element (2.5): the hash of 32-byte pieces, each LE and reduced mod q.

    Two pieces that differ by q have the same hash, so equal hashes do not mean equal bytes.
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
    """Yield the register's bits in self-shrinking mode: the second of each pair whose first is 1."""
    raw = islice(chain.from_iterable(_grain_register()), DISCARDED_BITS, None)
    return (bit for chosen, bit in zip(raw, raw, strict=True) if chosen == "1")


def _grain_register() -> Iterator[str]:
    """Yield every new bit of the 80-bit register, started with the parameters of the permutation."""
    started = (
        f"{1:02b}"  # a prime field
        f"{0:04b}"  # the S-box is x^alpha
        f"{_FIELD_BITS:012b}{LANES:012b}{FULL_ROUNDS:010b}{PARTIAL_ROUNDS:010b}"
        f"{'1' * 30}"
    )
    assert len(started) == 80
    state = int(started, 2)  # bit 0 of the register is the highest
    while True:
        # The taps of the 80-bit Grain, 62, 51, 38, 23, 13 and 0 (2.5; appendix E of the paper). A new bit
        # comes to a tap after 18 steps: so many are made at once.
        taps = state ^ state << 13 ^ state << 23 ^ state << 38 ^ state << 51 ^ state << 62
        new = taps >> 62 & (1 << 18) - 1
        state = (state << 18 | new) & (1 << 80) - 1
        yield f"{new:018b}"
