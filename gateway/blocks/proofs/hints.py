"""hinTS: one short signature of a message by enough weight of a committee, under one verification key.

Pure. The key `VK` commits to the members' public keys and weights. The signature `PI` carries the aggregate
of the keys that signed, its weight, and a proof that the two belong together. Only asig depends on the
message. The rest of PI, the statement, says who signed, and callers may cache it. Readers raise
ProofDataError.
Source: docs/spec/tss.md sections 3 and 4.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from sluice.gateway.blocks.errors import ProofDataError
from sluice.gateway.blocks.proofs.bls12_381 import (
    G1_SIZE,
    G2_SIZE,
    GROUP_ORDER,
    G1Point,
    G2Point,
    hash_to_g2,
    pairing_product_is_one,
    read_g1,
    read_g2,
    weighted_sum,
    weighted_sum_g2,
)
from sluice.gateway.blocks.proofs.encoding import SCALAR_SIZE, LayoutReader, scalar_bytes
from sluice.gateway.blocks.proofs.hash_to_field import hash_to_field
from sluice.gateway.blocks.refusal import Refusal, RefusalKind

__all__ = [
    "PI_SIZE",
    "VK_SIZE",
    "Challenge",
    "Claim",
    "HintsKey",
    "HintsSignature",
    "challenge",
    "check",
    "check_message",
    "evaluation_points",
    "hold_together",
    "pairing_relations",
    "read_asig",
    "read_key",
    "read_signature",
    "root_of_unity",
    "scalar_identities",
    "split",
    "threshold",
]

r: Final = GROUP_ORDER

VK_SIZE: Final = 8 + SCALAR_SIZE + 3 * G1_SIZE + 4 * G2_SIZE
PI_SIZE: Final = 12 * G1_SIZE + G2_SIZE + 9 * SCALAR_SIZE
ASIG_OFFSET: Final = G1_SIZE + SCALAR_SIZE
assert (VK_SIZE, PI_SIZE, ASIG_OFFSET) == (1096, 1632, 128)

CHALLENGE_DST: Final = b"HINTS_SIG_BLS12381:FIAT_SHAMIR"

DOMAIN_SIZE_MAX: Final = 1 << 32
"""The largest power of two that divides r - 1."""
assert (r - 1) % DOMAIN_SIZE_MAX == 0 != (r - 1) % (2 * DOMAIN_SIZE_MAX)

MULTIPLICATIVE_GENERATOR: Final = 7
"""Generates the multiplicative group of Fr (tss.md 4.3): its power (r - 1) / n is a root of unity of
order n."""
assert pow(MULTIPLICATIVE_GENERATOR, (r - 1) // 2, r) == r - 1

_OF_ONE_SIGNATURE: Final = ("H(m)", "asig")
"""Points of G2 that no two signatures share."""

_SUMMED_IN_G2_MIN: Final = 3
"""From this count on, a sum of multiples in G2 costs less than a pairing for each."""

BATCH_BITS: Final = 128
"""Bits of each random factor (4.6): a false relation passes with 2^-128."""

_WHAT: Final = "hinTS signature"


@dataclass(frozen=True, slots=True)
class HintsKey:
    """A verification key `VK`; its points are in their groups."""

    n: int
    total_weight: int  # below r
    g0: G1Point
    h0: G2Point
    h1: G2Point
    Lc: G1Point
    Wc: G1Point
    SKc: G2Point
    Zc: G2Point
    w: int  # the domain's root of unity (4.3), below r


@dataclass(frozen=True, slots=True)
class HintsSignature:
    """An aggregate signature `PI`; its points are in their groups, its scalars below r."""

    apk: G1Point
    weight: int
    asig: G2Point
    Bc: G1Point
    Qx: G1Point
    Qxt: G1Point
    Qz: G1Point
    Pc: G1Point
    Q1c: G1Point
    Q3c: G1Point
    Q2c: G1Point
    Q4c: G1Point
    O_r: G1Point
    O_rw: G1Point
    p_r: int
    p_rw: int
    w_r: int
    b_r: int
    q1_r: int
    q3_r: int
    q2_r: int
    q4_r: int


def read_key(vk: bytes) -> HintsKey:
    """Decode a verification key (3)."""
    reader = LayoutReader(vk, "hinTS verification key")
    n = reader.u64("n")
    # The reference does not check this, but no other n has a root of unity (4.3).
    if not 2 <= n <= DOMAIN_SIZE_MAX or n & (n - 1):
        raise ProofDataError(reader.named("n"), str(n), "a power of two from 2 to 2^32")
    key = HintsKey(
        n=n,
        total_weight=reader.scalar(r, "total_weight"),
        g0=_g1(reader, "g0"),
        h0=_g2(reader, "h0"),
        h1=_g2(reader, "h1"),
        Lc=_g1(reader, "Lc"),
        Wc=_g1(reader, "Wc"),
        SKc=_g2(reader, "SKc"),
        Zc=_g2(reader, "Zc"),
        w=root_of_unity(n),
    )
    reader.finish()
    return key


def read_signature(pi: bytes) -> HintsSignature:
    """Decode an aggregate signature (3)."""
    reader = LayoutReader(pi, "hinTS signature")
    signature = HintsSignature(
        apk=_g1(reader, "apk"),
        weight=reader.scalar(r, "weight"),
        asig=_g2(reader, "asig"),
        Bc=_g1(reader, "Bc"),
        Qx=_g1(reader, "Qx"),
        Qxt=_g1(reader, "Qxt"),
        Qz=_g1(reader, "Qz"),
        Pc=_g1(reader, "Pc"),
        Q1c=_g1(reader, "Q1c"),
        Q3c=_g1(reader, "Q3c"),
        Q2c=_g1(reader, "Q2c"),
        Q4c=_g1(reader, "Q4c"),
        O_r=_g1(reader, "O_r"),
        O_rw=_g1(reader, "O_rw"),
        p_r=reader.scalar(r, "p_r"),
        p_rw=reader.scalar(r, "p_rw"),
        w_r=reader.scalar(r, "w_r"),
        b_r=reader.scalar(r, "b_r"),
        q1_r=reader.scalar(r, "q1_r"),
        q3_r=reader.scalar(r, "q3_r"),
        q2_r=reader.scalar(r, "q2_r"),
        q4_r=reader.scalar(r, "q4_r"),
    )
    reader.finish()
    return signature


def split(pi: bytes) -> tuple[bytes, bytes]:
    """Split a PI into its statement, all but asig, and asig."""
    assert len(pi) == PI_SIZE
    end = ASIG_OFFSET + G2_SIZE
    return pi[:ASIG_OFFSET] + pi[end:], pi[ASIG_OFFSET:end]


def read_asig(encoded: bytes) -> G2Point:
    """Decode asig."""
    return read_g2(encoded, f"{_WHAT}: asig")


def check(
    key: HintsKey, signature: HintsSignature, message: bytes, random_bits: Callable[[int], int]
) -> Refusal | None:
    """Return why more than half of the key's weight did not sign the message, or None.

    `random_bits` returns bits that the sender cannot foresee.
    """
    relations = _relations(key, signature)
    if isinstance(relations, Refusal):
        return relations
    g2_points = _g2_points(key, signature.asig, message)
    if _batched_hold([(relations, g2_points)], random_bits):
        return None
    for relation in relations:
        if not _holds(relation, g2_points):
            return _refusal(f"pairings {relation.name} (tss.md 4.5)", "a product other than 1", "1")
    # If each holds, their batch does too.
    raise AssertionError("pairing relations hold one by one and not together")


def check_message(key: HintsKey, apk: G1Point, asig: G2Point, message: bytes) -> Refusal | None:
    """Return why `asig` is no signature of the message by `apk`, or None.

    This suffices if the statement is known to hold under the key.
    """
    relation = _message_relation(key, apk)
    if _holds(relation, {"H(m)": hash_to_g2(message), "asig": asig}):
        return None
    return _refusal(f"pairings {relation.name} (tss.md 4.5)", "a product other than 1", "1")


class Claim(NamedTuple):
    """A claim that a message was signed."""

    key: HintsKey  # that somebody vouches for
    message: bytes  # 48 bytes
    apk: G1Point
    asig: G2Point
    statement: HintsSignature | None
    """The signature; None: its statement is known to hold."""


def hold_together(claims: Sequence[Claim], random_bits: Callable[[int], int]) -> bool:
    """Return whether all claims hold, with one product (4.6); claims of one key are cheapest together."""
    batch = []
    for key, message, apk, asig, statement in claims:
        relations = (_message_relation(key, apk),) if statement is None else _relations(key, statement)
        if isinstance(relations, Refusal):
            return False
        batch.append((relations, _g2_points(key, asig, message)))
    return _batched_hold(batch, random_bits)


def _relations(key: HintsKey, signature: HintsSignature) -> tuple["_Relation", ...] | Refusal:
    """Return the relations of 4.5, or a refusal if 4.1 to 4.4 do not hold."""
    if not threshold(key, signature):
        got = f"weight {signature.weight} of {key.total_weight}"
        return _refusal("weight that signed (tss.md 4.1)", got, "more than half of the total weight")
    points = evaluation_points(key, challenge(key, signature))
    if points is None:
        return _refusal("challenge (tss.md 4.3)", "the point w' of the domain", "any other")
    for name, holds in scalar_identities(signature, points):
        if not holds:
            return _refusal(f"identity {name} (tss.md 4.4)", "two sides that differ", "equal ones")
    return (_message_relation(key, signature.apk), *pairing_relations(key, signature, points))


def _g2_points(key: HintsKey, asig: G2Point, message: bytes) -> dict[str, G2Point]:
    return {
        "H(m)": hash_to_g2(message),
        "asig": asig,
        "h0": key.h0,
        "h1": key.h1,
        "SKc": key.SKc,
        "Zc": key.Zc,
    }


# --- the equations, in the order and with the names of tss.md section 4 -------------------------------------


def threshold(key: HintsKey, signature: HintsSignature) -> bool:
    """4.1: (2 * weight mod r) > (1 * total_weight mod r), as integers; exactly half is not enough."""
    return 2 * signature.weight % r > key.total_weight


def challenge(key: HintsKey, signature: HintsSignature) -> int:
    """4.2: rho, the point at which the committed polynomials are evaluated.

    The order here is Qx, Qz, Qxt and Q1c, Q2c, Q3c, Q4c, unlike that of PI.
    """
    pi = signature
    transcript = b"".join(
        (
            key.SKc.to_compressed_bytes(),
            key.h1.to_compressed_bytes(),
            pi.apk.to_compressed_bytes(),
            scalar_bytes(pi.weight),
            *(
                point.to_compressed_bytes()
                for point in (key.Wc, pi.Bc, pi.Pc, pi.Qx, pi.Qz, pi.Qxt, pi.Q1c, pi.Q2c, pi.Q3c, pi.Q4c)
            ),
        )
    )
    assert len(transcript) == 752
    return hash_to_field(transcript, CHALLENGE_DST, r)[0]


def root_of_unity(n: int) -> int:
    """4.3: w = 7^((r-1)/n) mod r, whose powers are the domain of size n."""
    return pow(MULTIPLICATIVE_GENERATOR, (r - 1) // n, r)


class Challenge(NamedTuple):
    """4.3: the challenge and what follows from it, all below r."""

    rho: int
    z: int  # the vanishing polynomial of the domain at rho
    L: int  # the Lagrange polynomial of the domain's last point there
    s: int  # rho / w: one point of the domain before


def evaluation_points(key: HintsKey, rho: int) -> Challenge | None:
    """4.3: z = rho^n - 1; w' = w^(n-1); L = (w'/n) * z/(rho - w'); s = rho/w. None if rho is w'."""
    w_inverse = pow(key.w, -1, r)  # = w^(n-1) = w', since w^n = 1
    if rho == w_inverse:
        return None
    z = (pow(rho, key.n, r) - 1) % r
    L = w_inverse * z * pow(key.n * (rho - w_inverse), -1, r) % r
    return Challenge(rho, z, L, rho * w_inverse % r)


def scalar_identities(signature: HintsSignature, points: Challenge) -> Iterator[tuple[str, bool]]:
    """4.4: yield each identity of the claimed evaluations, and whether it holds."""
    pi, z, L = signature, points.z, points.L
    yield "p_r - p_rw - w_r*b_r = q1_r*z", (pi.p_r - pi.p_rw - pi.w_r * pi.b_r - pi.q1_r * z) % r == 0
    yield "L*p_r = z*q3_r", (L * pi.p_r - z * pi.q3_r) % r == 0
    yield "b_r^2 - b_r = q2_r*z", (pi.b_r * pi.b_r - pi.b_r - pi.q2_r * z) % r == 0
    yield "L*(b_r - 1) = z*q4_r", (L * (pi.b_r - 1) - z * pi.q4_r) % r == 0


class _Relation(NamedTuple):
    """A product that must be 1: for each point of G2, the sum of scalar * point of G1."""

    name: str
    factors: dict[str, list[tuple[int, G1Point]]]


def _message_relation(key: HintsKey, apk: G1Point) -> _Relation:
    """4.5, identity 1."""
    return _Relation("1: e(apk, H(m)) = e(g0, asig)", {"H(m)": [(1, apk)], "asig": [(-1, key.g0)]})


def pairing_relations(key: HintsKey, signature: HintsSignature, points: Challenge) -> tuple[_Relation, ...]:
    """4.5, identities 2 to 5, each as a product that must be 1."""
    pi, g0, rho = signature, key.g0, points.rho
    opened = [  # commitment, its claimed value at rho; 3 before 2, as in tss.md
        (pi.Pc, pi.p_r),
        (key.Wc, pi.w_r),
        (pi.Bc, pi.b_r),
        (pi.Q1c, pi.q1_r),
        (pi.Q3c, pi.q3_r),
        (pi.Q2c, pi.q2_r),
        (pi.Q4c, pi.q4_r),
    ]
    powers = [pow(rho, exponent, r) for exponent in range(len(opened))]
    M = [(power, commitment) for power, (commitment, _) in zip(powers, opened, strict=True)]
    M.append((-rho * pi.weight, key.Lc))  # Wc - weight*Lc
    M.append((-sum(power * value for power, (_, value) in zip(powers, opened, strict=True)), g0))
    return (
        _Relation(
            "2: e(M, h0) = e(O_r, h1 - rho*h0)",
            {"h0": [*M, (rho, pi.O_r)], "h1": [(-1, pi.O_r)]},
        ),
        _Relation(
            "3: e(Pc - p_rw g0, h0) = e(O_rw, h1 - s*h0)",
            {"h0": [(1, pi.Pc), (-pi.p_rw, g0), (points.s, pi.O_rw)], "h1": [(-1, pi.O_rw)]},
        ),
        _Relation(
            "4: e(Bc, SKc) = e(Qz, Zc) * e(Qx, h1) * e(apk, h0)",
            {"SKc": [(1, pi.Bc)], "Zc": [(-1, pi.Qz)], "h1": [(-1, pi.Qx)], "h0": [(-1, pi.apk)]},
        ),
        _Relation("5: e(Qx, h1) = e(Qxt, h0)", {"h1": [(1, pi.Qx)], "h0": [(-1, pi.Qxt)]}),
    )


# --- pairings -----------------------------------------------------------------------------------------------


def _batched_hold(
    batch: Sequence[tuple[tuple[_Relation, ...], dict[str, G2Point]]], random_bits: Callable[[int], int]
) -> bool:
    """4.6: raise the relations to 1 and fresh random powers, and check the product of all at once.

    Pairings with the same point are merged, so several signatures under a key cost little more than one
    pairing each.
    """
    terms: dict[int, dict[int, tuple[int, G1Point]]] = {}  # by the points' identity: of G2, then of G1
    points: dict[int, G2Point] = {}
    own: dict[int, tuple[G1Point, list[tuple[int, G2Point]]]] = {}  # by the identity of the point of G1
    for relations, g2_points in batch:
        for relation in relations:
            power = random_bits(BATCH_BITS) if points or own else 1
            for g2_name, factors in relation.factors.items():
                g2_point = g2_points[g2_name]
                if g2_name in _OF_ONE_SIGNATURE:
                    [(scalar, point)] = factors
                    own.setdefault(id(point), (point, []))[1].append((power * scalar, g2_point))
                    continue
                points[id(g2_point)] = g2_point
                sums = terms.setdefault(id(g2_point), {})
                for scalar, point in factors:
                    before = sums.get(id(point), (0, point))[0]
                    sums[id(point)] = (before + power * scalar, point)
    pairs = [(_sum(list(sums.values())), points[g2_id]) for g2_id, sums in terms.items()]
    for point, multiples in own.values():
        pairs += _own_pairs(point, multiples)
    return pairing_product_is_one([g1 for g1, _ in pairs], [g2 for _, g2 in pairs])


def _own_pairs(point: G1Point, multiples: Sequence[tuple[int, G2Point]]) -> list[tuple[G1Point, G2Point]]:
    """Return pairs whose pairings have the product of e(point, other)^scalar."""
    if len(multiples) < _SUMMED_IN_G2_MIN:
        return [(_sum([(scalar, point)]), other) for scalar, other in multiples]
    sign = -1 if multiples[0][0] < 0 else 1  # short scalars are cheaper, and -1 modulo r is long
    others = weighted_sum_g2([other for _, other in multiples], [sign * scalar for scalar, _ in multiples])
    return [(_sum([(sign, point)]), others)]


def _holds(relation: _Relation, g2_points: dict[str, G2Point]) -> bool:
    g1 = [_sum(terms) for terms in relation.factors.values()]
    return pairing_product_is_one(g1, [g2_points[g2_name] for g2_name in relation.factors])


def _sum(terms: Sequence[tuple[int, G1Point]]) -> G1Point:
    return weighted_sum([point for _, point in terms], [scalar for scalar, _ in terms])


def _g1(reader: LayoutReader, name: str) -> G1Point:
    return read_g1(reader.take(G1_SIZE, name), reader.named(name))


def _g2(reader: LayoutReader, name: str) -> G2Point:
    return read_g2(reader.take(G2_SIZE, name), reader.named(name))


def _refusal(part: str, got: str, expected: str) -> Refusal:
    return Refusal(RefusalKind.BAD_PROOF, f"{_WHAT}: {part}", got, expected)
