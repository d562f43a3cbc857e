"""The fields of the curve BN254 (alt_bn128): Fp, Fp2, and Fp12, which has the values of pairings.

Pure. Elements are tuples of plain integers in [0, p), lowest coefficient first:

    Fp2  = Fp[i] / (i^2 + 1)           (a0, a1)          a0 + a1 i
    Fp6  = Fp2[v] / (v^3 - xi)         6 integers        xi = 9 + i, no cube and no square in Fp2
    Fp12 = Fp6[w] / (w^2 - v)          12 integers       the first 6 are the part without w; so w^6 = xi

Products add up as integers of any size and are reduced once per coefficient: a reduction costs as much as two
products.
Source: docs/spec/tss.md section 6; Barreto and Naehrig 2005, "Pairing-friendly elliptic curves of prime
order"; Granger and Scott 2009, "Faster squaring in the cyclotomic subgroup of sixth degree extensions"
(`cyclotomic_square`).
"""

from typing import Final

__all__ = [
    "FP2_ONE",
    "FP12_ONE",
    "ORDER",
    "PRIME",
    "TRACE",
    "XI",
    "XI_POWERS",
    "Fp2",
    "Fp12",
    "X",
    "cyclotomic_square",
    "fp2_inverse",
    "fp2_multiply",
    "fp2_power",
    "fp2_square",
    "fp2_square_root",
    "fp12_conjugate",
    "fp12_frobenius",
    "fp12_inverse",
    "fp12_multiply",
    "fp12_multiply_by_line",
    "fp12_square",
    "fp_square_root",
]

Fp2 = tuple[int, int]
Fp6 = tuple[int, int, int, int, int, int]
Fp12 = tuple[int, int, int, int, int, int, int, int, int, int, int, int]

X: Final = 4965661367192848881
"""The curve's parameter (tss.md section 6)."""
PRIME: Final = 36 * X**4 + 36 * X**3 + 24 * X**2 + 6 * X + 1
ORDER: Final = 36 * X**4 + 36 * X**3 + 18 * X**2 + 6 * X + 1
"""q of tss.md: the prime order of G1, G2 and GT; the scalar field."""
TRACE: Final = 6 * X**2 + 1
"""t, the trace of Frobenius: ORDER = p + 1 - t."""

# As in tss.md sections 6 and 2.4.
assert PRIME == 21888242871839275222246405745257275088696311157297823662689037894645226208583
assert ORDER == 21888242871839275222246405745257275088548364400416034343698204186575808495617
assert PRIME + 1 - TRACE == ORDER
assert PRIME % 4 == 3  # so a^((p+1)/4) is a square root of a square

_P: Final = PRIME
FP2_ONE: Final[Fp2] = (1, 0)
FP12_ONE: Final[Fp12] = (1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
XI: Final[Fp2] = (9, 1)
"""xi (tss.md section 6: the curve of G2 is y^2 = x^3 + 3/xi)."""


def fp_square_root(a: int) -> int | None:
    """Return a square root in Fp, if there is one."""
    root = pow(a, (_P + 1) // 4, _P)
    return root if root * root % _P == a % _P else None


def fp2_multiply(a: Fp2, b: Fp2) -> Fp2:
    """Return a b."""
    a0, a1 = a
    b0, b1 = b
    low, high = a0 * b0, a1 * b1
    return (low - high) % _P, ((a0 + a1) * (b0 + b1) - low - high) % _P


def fp2_square(a: Fp2) -> Fp2:
    """Return a^2."""
    a0, a1 = a
    return (a0 + a1) * (a0 - a1) % _P, 2 * a0 * a1 % _P


def fp2_inverse(a: Fp2) -> Fp2:
    """Return 1/a = conjugate(a) / norm(a). Raises ZeroDivisionError if a is 0."""
    a0, a1 = a
    norm = (a0 * a0 + a1 * a1) % _P
    if norm == 0:
        raise ZeroDivisionError("0 has no inverse in Fp2")
    inverse = pow(norm, -1, _P)
    return a0 * inverse % _P, -a1 * inverse % _P


def fp2_power(a: Fp2, exponent: int) -> Fp2:
    """Return a^exponent."""
    result = FP2_ONE
    for bit in bin(exponent)[2:]:
        result = fp2_square(result)
        if bit == "1":
            result = fp2_multiply(result, a)
    return result


def fp2_square_root(a: Fp2) -> Fp2 | None:
    """Return a square root in Fp2, if there is one.

    With n = sqrt(norm(a)) in Fp, one of (a0 + n)/2 and (a0 - n)/2 is a square r0^2; the root is r0 + a1/(2
    r0) i.
    """
    a0, a1 = a
    if a1 == 0:  # either a0 or -a0 is a square, since -1 is none
        root = fp_square_root(a0)
        if root is not None:
            return root, 0
        root = fp_square_root(-a0 % _P)
        return None if root is None else (0, root)
    norm_root = fp_square_root((a0 * a0 + a1 * a1) % _P)
    if norm_root is None:
        return None
    half = (_P + 1) // 2
    root = fp_square_root((a0 + norm_root) * half % _P)
    if root is None:
        root = fp_square_root((a0 - norm_root) * half % _P)
    if not root:
        return None
    result = root, a1 * half * pow(root, -1, _P) % _P
    return result if fp2_square(result) == a else None


XI_POWERS: Final[tuple[Fp2, ...]] = tuple(fp2_power(XI, k * (PRIME - 1) // 6) for k in range(6))
"""xi^(k (p-1)/6): (w^k)^p is this times w^k, since w^6 = xi."""


# --- Fp6: only what Fp12 needs, unreduced -------------------------------------------------------------------


def _fp6_product(a: Fp6, b: Fp6) -> Fp6:
    """Return a b, unreduced, by Karatsuba: six products in Fp2."""
    a0, a1, a2, a3, a4, a5 = a
    b0, b1, b2, b3, b4, b5 = b
    x, y = a0 * b0, a1 * b1
    p0, p1 = x - y, (a0 + a1) * (b0 + b1) - x - y
    x, y = a2 * b2, a3 * b3
    q0, q1 = x - y, (a2 + a3) * (b2 + b3) - x - y
    x, y = a4 * b4, a5 * b5
    r0, r1 = x - y, (a4 + a5) * (b4 + b5) - x - y
    # v: A0 B1 + A1 B0 + xi A2 B2
    c0, c1, d0, d1 = a0 + a2, a1 + a3, b0 + b2, b1 + b3
    x, y = c0 * d0, c1 * d1
    s0, s1 = x - y - p0 - q0 + 9 * r0 - r1, (c0 + c1) * (d0 + d1) - x - y - p1 - q1 + 9 * r1 + r0
    # v^2: A0 B2 + A2 B0 + A1 B1
    c0, c1, d0, d1 = a0 + a4, a1 + a5, b0 + b4, b1 + b5
    x, y = c0 * d0, c1 * d1
    t0, t1 = x - y - p0 - r0 + q0, (c0 + c1) * (d0 + d1) - x - y - p1 - r1 + q1
    # 1: A0 B0 + xi (A1 B2 + A2 B1)
    c0, c1, d0, d1 = a2 + a4, a3 + a5, b2 + b4, b3 + b5
    x, y = c0 * d0, c1 * d1
    u0, u1 = x - y - q0 - r0, (c0 + c1) * (d0 + d1) - x - y - q1 - r1
    return p0 + 9 * u0 - u1, p1 + 9 * u1 + u0, s0, s1, t0, t1


def _fp6_product_by_line(f: Fp6, a: Fp2, b: Fp2) -> Fp6:
    """Return f (a + b v), unreduced: five products in Fp2."""
    f0, f1, f2, f3, f4, f5 = f
    a0, a1 = a
    b0, b1 = b
    sum_a, sum_b = a0 + a1, b0 + b1
    x, y = f0 * a0, f1 * a1
    p0, p1 = x - y, (f0 + f1) * sum_a - x - y  # F0 a
    x, y = f2 * b0, f3 * b1
    q0, q1 = x - y, (f2 + f3) * sum_b - x - y  # F1 b
    x, y = f4 * b0, f5 * b1
    r0, r1 = x - y, (f4 + f5) * sum_b - x - y  # F2 b, which xi turns into a part without v
    x, y = f4 * a0, f5 * a1
    s0, s1 = x - y + q0, (f4 + f5) * sum_a - x - y + q1  # v^2: F2 a + F1 b
    c0, c1, d0, d1 = f0 + f2, f1 + f3, a0 + b0, a1 + b1
    x, y = c0 * d0, c1 * d1  # v: F0 b + F1 a
    return (
        p0 + 9 * r0 - r1,
        p1 + 9 * r1 + r0,
        x - y - p0 - q0,
        (c0 + c1) * (d0 + d1) - x - y - p1 - q1,
        s0,
        s1,
    )


# --- Fp12 ---------------------------------------------------------------------------------------------------


def fp12_multiply(a: Fp12, b: Fp12) -> Fp12:
    """Return a b, by Karatsuba over Fp6."""
    a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11 = a
    b0, b1, b2, b3, b4, b5, b6, b7, b8, b9, b10, b11 = b
    l0, l1, l2, l3, l4, l5 = _fp6_product((a0, a1, a2, a3, a4, a5), (b0, b1, b2, b3, b4, b5))
    h0, h1, h2, h3, h4, h5 = _fp6_product((a6, a7, a8, a9, a10, a11), (b6, b7, b8, b9, b10, b11))
    m0, m1, m2, m3, m4, m5 = _fp6_product(
        (a0 + a6, a1 + a7, a2 + a8, a3 + a9, a4 + a10, a5 + a11),
        (b0 + b6, b1 + b7, b2 + b8, b3 + b9, b4 + b10, b5 + b11),
    )
    return (  # the high part times w^2 = v
        (l0 + 9 * h4 - h5) % _P,
        (l1 + 9 * h5 + h4) % _P,
        (l2 + h0) % _P,
        (l3 + h1) % _P,
        (l4 + h2) % _P,
        (l5 + h3) % _P,
        (m0 - l0 - h0) % _P,
        (m1 - l1 - h1) % _P,
        (m2 - l2 - h2) % _P,
        (m3 - l3 - h3) % _P,
        (m4 - l4 - h4) % _P,
        (m5 - l5 - h5) % _P,
    )


def fp12_square(a: Fp12) -> Fp12:
    """Return a^2: with a = A + B w it is (A + B)(A + B v) - A B - A B v + 2 A B w."""
    a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11 = a
    p0, p1, p2, p3, p4, p5 = _fp6_product((a0, a1, a2, a3, a4, a5), (a6, a7, a8, a9, a10, a11))
    s0, s1, s2, s3, s4, s5 = _fp6_product(
        (a0 + a6, a1 + a7, a2 + a8, a3 + a9, a4 + a10, a5 + a11),
        (a0 + 9 * a10 - a11, a1 + 9 * a11 + a10, a2 + a6, a3 + a7, a4 + a8, a5 + a9),
    )
    return (
        (s0 - p0 - 9 * p4 + p5) % _P,
        (s1 - p1 - 9 * p5 - p4) % _P,
        (s2 - p2 - p0) % _P,
        (s3 - p3 - p1) % _P,
        (s4 - p4 - p2) % _P,
        (s5 - p5 - p3) % _P,
        2 * p0 % _P,
        2 * p1 % _P,
        2 * p2 % _P,
        2 * p3 % _P,
        2 * p4 % _P,
        2 * p5 % _P,
    )


def fp12_multiply_by_line(f: Fp12, a: Fp2, b: Fp2) -> Fp12:
    """Return f (1 + a w + b w^3), the form of every line of a Miller loop: w^3 = v w."""
    f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11 = f
    l0, l1, l2, l3, l4, l5 = _fp6_product_by_line((f0, f1, f2, f3, f4, f5), a, b)
    h0, h1, h2, h3, h4, h5 = _fp6_product_by_line((f6, f7, f8, f9, f10, f11), a, b)
    return (  # the high part times w^2 = v
        (f0 + 9 * h4 - h5) % _P,
        (f1 + 9 * h5 + h4) % _P,
        (f2 + h0) % _P,
        (f3 + h1) % _P,
        (f4 + h2) % _P,
        (f5 + h3) % _P,
        (f6 + l0) % _P,
        (f7 + l1) % _P,
        (f8 + l2) % _P,
        (f9 + l3) % _P,
        (f10 + l4) % _P,
        (f11 + l5) % _P,
    )


def fp12_conjugate(a: Fp12) -> Fp12:
    """Return A - B w for A + B w, which is a^(p^6); for elements of norm 1, such as pairings, 1/a."""
    return (*a[:6], *(-c % _P for c in a[6:]))  # type: ignore[return-value]  # 6 + 6


def fp12_frobenius(a: Fp12) -> Fp12:
    """Return a^p: each coefficient in Fp2 conjugated, and that of w^k times xi^(k (p-1)/6)."""
    coefficients: list[int] = []
    for power in (0, 2, 4, 1, 3, 5):  # of w, for the Fp2 coefficients in order: 1, v, v^2, w, vw, v^2 w
        at = len(coefficients)
        coefficients.extend(fp2_multiply((a[at], -a[at + 1]), XI_POWERS[power]))
    return tuple(coefficients)  # type: ignore[return-value]  # 6 pairs


def fp12_inverse(a: Fp12) -> Fp12:
    """Return 1/a = a' / (a a'), a' the product of the other conjugates over Fp2, which are cheap."""
    conjugate = a
    others = FP12_ONE
    for _ in range(5):
        conjugate = fp12_frobenius(fp12_frobenius(conjugate))
        others = fp12_multiply(others, conjugate)
    norm = fp12_multiply(a, others)
    assert not any(norm[2:])
    inverse = fp2_inverse((norm[0], norm[1]))
    result: list[int] = []
    for at in range(0, 12, 2):
        result.extend(fp2_multiply((others[at], others[at + 1]), inverse))
    return tuple(result)  # type: ignore[return-value]  # 6 pairs


def _fp4_square(a0: int, a1: int, b0: int, b1: int) -> tuple[int, int, int, int]:
    """Return (A + B s)^2 with s^2 = xi, unreduced."""
    p0, p1 = (a0 + a1) * (a0 - a1), 2 * a0 * a1
    q0, q1 = (b0 + b1) * (b0 - b1), 2 * b0 * b1
    c0, c1 = a0 + b0, a1 + b1
    return (
        p0 + 9 * q0 - q1,
        p1 + 9 * q1 + q0,
        (c0 + c1) * (c0 - c1) - p0 - q0,
        2 * c0 * c1 - p1 - q1,
    )


def cyclotomic_square(a: Fp12) -> Fp12:
    """Return a^2 for an a with a^(p^4 - p^2 + 1) = 1.

    Over Fp4 = Fp2[s] / (s^2 - xi), s = w^3, such an a = A + B w + C w^2 satisfies a^2 = 3 A^2 - 2 A' + (3 s
    C^2 + 2 B') w + (3 B^2 - 2 C') w^2, where ' conjugates over Fp2 (s goes to -s).
    """
    # A = a0.. + a2.. s, B = b0.. + b2.. s, C = c0.. + c2.. s
    a0, a1, c0, c1, b2, b3, b0, b1, a2, a3, c2, c3 = a
    p0, p1, p2, p3 = _fp4_square(a0, a1, a2, a3)
    q0, q1, q2, q3 = _fp4_square(b0, b1, b2, b3)
    r0, r1, r2, r3 = _fp4_square(c0, c1, c2, c3)
    return (
        (3 * p0 - 2 * a0) % _P,
        (3 * p1 - 2 * a1) % _P,
        (3 * q0 - 2 * c0) % _P,
        (3 * q1 - 2 * c1) % _P,
        (3 * r0 - 2 * b2) % _P,
        (3 * r1 - 2 * b3) % _P,
        (3 * (9 * r2 - r3) + 2 * b0) % _P,
        (3 * (9 * r3 + r2) + 2 * b1) % _P,
        (3 * p2 + 2 * a2) % _P,
        (3 * p3 + 2 * a3) % _P,
        (3 * q2 + 2 * c2) % _P,
        (3 * q3 + 2 * c3) % _P,
    )
