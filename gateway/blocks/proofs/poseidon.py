"""Poseidon, the hash of field elements of TSS signatures, over the scalar field of BN254.

Pure. Drawing the constants from the shift register Grain and regrouping the rounds takes 0.03 s.
Source: docs/spec/tss.md section 2.5; Grassi et al.: "Poseidon: A New Hash Function for Zero-Knowledge Proof
Systems" (2021), section 2.3 and appendices B, E and F.
"""

from collections.abc import Sequence
from functools import cache, reduce
from itertools import compress, islice
from operator import mul, xor
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

_TAPS: Final = (0, 13, 23, 38, 51, 62)
"""Of the register (2.5; appendix E of the paper)."""
_RAW_BITS: Final = 500_000
"""Bits of the register: a fourth is left, and a fourth of the integers is not below q."""

Matrix = Sequence[Sequence[int]]

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
    before, partial, after = _rounds()
    lanes = list(state)
    for ark, matrix in before:
        lanes = _full_round(lanes, ark, matrix)
    a, b, c, d, e = lanes
    for k, m0, m1, m2, m3, m4, n1, n2, n3, n4 in partial:
        a = pow(a + k, 5, q)
        first = (m0 * a + m1 * b + m2 * c + m3 * d + m4 * e) % q
        b, c, d, e = b + n1 * a, c + n2 * a, d + n3 * a, e + n4 * a  # 60 sums add six bits
        a = first
    lanes = [a, b, c, d, e]
    for ark, matrix in after:
        lanes = _full_round(lanes, ark, matrix)
    return lanes


def _full_round(lanes: Sequence[int], ark: Sequence[int], matrix: Matrix) -> list[int]:
    a, b, c, d, e = (pow(lane + k, 5, q) for lane, k in zip(lanes, ark, strict=True))
    return [(m0 * a + m1 * b + m2 * c + m3 * d + m4 * e) % q for m0, m1, m2, m3, m4 in matrix]


# --- the constants ------------------------------------------------------------------------------------------


@cache
def round_constants() -> Constants:
    """Draw ARK and MDS from the Grain register, once in each process (2.5)."""
    drawn = _drawn_integers()
    below = iter([number for number in drawn if number < q])
    ark = tuple(tuple(islice(below, LANES)) for _ in range(ROUNDS))
    after = drawn.index(ark[-1][-1]) + 1
    xs, ys = drawn[after : after + LANES], drawn[after + LANES : after + 2 * LANES]
    mds = tuple(tuple(pow(x + y, -1, q) for y in ys) for x in xs)
    return Constants(ark, mds)


def _drawn_integers() -> list[int]:
    """Return the register's integers, in self-shrinking mode."""
    raw = _grain_register(_RAW_BITS)[DISCARDED_BITS:].encode()
    chosen = raw[::2].translate(bytes.maketrans(b"01", b"\0\1"))
    bits = bytes(compress(raw[1::2], chosen))
    return [
        int(bits[start : start + _FIELD_BITS], 2)
        for start in range(0, len(bits) - _FIELD_BITS + 1, _FIELD_BITS)
    ]


def _grain_register(count: int) -> str:
    """Return the first bits that the register gives.

    Bit n + 80 is the sum of the bits n + tap. Squared, the rule holds for twice the distances, and so on, and
    from the highest tap on they give 18, 36, … bits at once.
    """
    started = (
        f"{1:02b}"  # a prime field
        f"{0:04b}"  # the S-box is x^alpha
        f"{_FIELD_BITS:012b}{LANES:012b}{FULL_ROUNDS:010b}{PARTIAL_ROUNDS:010b}"
        f"{'1' * 30}"
    )
    size = len(started)
    assert size == 80
    bits = int(started[::-1], 2)  # bit n of it is bit n of the register
    length, scale = size, 1
    while length < size + count:
        while 2 * scale * size <= length:
            scale *= 2
        last = bits >> length - scale * size
        new = reduce(xor, (last >> scale * tap for tap in _TAPS)) & (1 << scale * (size - _TAPS[-1])) - 1
        bits |= new << length
        length += scale * (size - _TAPS[-1])
    return f"{bits:0{length}b}"[::-1][size : size + count]


class Rounds(NamedTuple):
    """The rounds of the permutation, regrouped."""

    before: list[tuple[Sequence[int], Matrix]]  # the full rounds: what is added, and the matrix
    partial: list[tuple[int, ...]]
    """What lane 0 gets, row 0 of the matrix, and column 0 below it: it has no other elements than ones."""
    after: list[tuple[Sequence[int], Matrix]]


@cache
def _rounds() -> Rounds:
    """Regroup the rounds as appendix B of the paper does, once in each process: half the time.

    A partial round raises lane 0 alone, so a matrix D that mixes the others can go before it, and so can what
    is added to them. Each MDS is A D: A is sparse, and D becomes a part of the round before.
    """
    ark, mds = round_constants()
    full_before, full_after = FULL_ROUNDS // 2, ROUNDS - FULL_ROUNDS // 2
    matrix: Matrix = mds
    sparse = []
    for _ in range(PARTIAL_ROUNDS):
        (corner, *row), inner = matrix[0], [rest[1:] for rest in matrix[1:]]
        sparse.append((corner, *_product([row], _inverse(inner))[0], *(rest[0] for rest in matrix[1:])))
        matrix = _product([(1, *[0] * RATE), *((0, *rest) for rest in inner)], mds)
    moved, added = [0] * LANES, []
    for constants in ark[full_before:full_after]:
        first, *others = ((k + more) % q for k, more in zip(constants, moved, strict=True))
        added.append(first)
        moved = [sum(map(mul, row[1:], others)) % q for row in mds]
    before: list[tuple[Sequence[int], Matrix]] = [(constants, mds) for constants in ark[:full_before]]
    before[-1] = (ark[full_before - 1], matrix)
    after: list[tuple[Sequence[int], Matrix]] = [(constants, mds) for constants in ark[full_after:]]
    after[0] = ([k + more for k, more in zip(ark[full_after], moved, strict=True)], mds)
    return Rounds(before, [(k, *row) for k, row in zip(added, reversed(sparse), strict=True)], after)


def _product(one: Matrix, other: Matrix) -> Matrix:
    columns = list(zip(*other, strict=True))
    return [[sum(map(mul, row, column)) % q for column in columns] for row in one]


def _inverse(matrix: Matrix) -> Matrix:
    """Gauss and Jordan; the minors of a Cauchy matrix, and of these products, are not zero."""
    size = len(matrix)
    rows = [[*row, *(int(at == column) for column in range(size))] for at, row in enumerate(matrix)]
    for at in range(size):
        scale = pow(rows[at][at], -1, q)
        pivot = rows[at] = [element * scale % q for element in rows[at]]
        for other in range(size):
            if other != at:
                factor = rows[other][at]
                rows[other] = [(e - factor * p) % q for e, p in zip(rows[other], pivot, strict=True)]
    return [row[size:] for row in rows]
