"""Tests of `gateway.blocks.proofs.hints`: known answers, each equation, each boundary."""

from __future__ import annotations

import dataclasses
import hashlib
from functools import cache
from random import Random
from typing import Any

import pytest

from sluice.gateway.blocks.errors import ProofDataError
from sluice.gateway.blocks.proofs import hints
from sluice.gateway.blocks.proofs.bls12_381 import GROUP_ORDER, G1Point, G2Point
from sluice.gateway.blocks.proofs.encoding import scalar_bytes
from sluice.gateway.blocks.proofs.hints import HintsKey, HintsSignature, check, read_key, read_signature
from sluice.gateway.blocks.refusal import Refusal, RefusalKind
from tests.gateway.blocks.proofs import real
from tests.gateway.blocks.proofs.encoders import g1_bytes, g2_bytes
from tests.gateway.blocks.proofs.tss_network import TssNetwork

r = GROUP_ORDER
ROOT = bytes(range(48))
WHAT = "hinTS signature"


def bits(count: int) -> int:
    """Random factors that are the same in every run."""
    return Random(count).getrandbits(count)


def refused(part: str, got: str, expected: str) -> Refusal:
    return Refusal(RefusalKind.BAD_PROOF, f"{WHAT}: {part}", got, expected)


def false_pairings(name: str) -> Refusal:
    return refused(f"pairings {name} (tss.md 4.5)", "a product other than 1", "1")


def false_identity(name: str) -> Refusal:
    return refused(f"identity {name} (tss.md 4.4)", "two sides that differ", "equal ones")


def too_light(weight: int, total: int) -> Refusal:
    got = f"weight {weight} of {total}"
    return refused("weight that signed (tss.md 4.1)", got, "more than half of the total weight")


@cache
def made(
    weights: tuple[int, ...] = (1, 1, 1, 1), signers: tuple[int, ...] = (0, 1, 2)
) -> tuple[HintsKey, HintsSignature]:
    network = TssNetwork(weights)
    return read_key(network.vk), read_signature(network.hints_signature(ROOT, signers))


# --- known answers ------------------------------------------------------------------------------------------


@real.needs_real_blocks
def test_known_answers_of_a_real_block() -> None:
    signature = real.signature("signed-chain", 5)
    key, pi = read_key(signature[:1096]), read_signature(signature[1096:2728])
    digest = "db7eaa55cd1b66f5d494cd159525847d4c765b14daad46ec384d2562d9a4d404"
    assert hashlib.sha256(signature).hexdigest() == digest
    assert (key.n, key.total_weight, pi.weight) == (8, 4, 3)
    assert key.w == 0x345766F603FA66E78C0625CD70D77CE2B38B21C28713B7007228FD3397743F7A
    rho = 0x5DAD304647DE4EE7B06A7A2F876C7A236D18EA2B90737D6CD7ACB820730E9AFC
    assert hints.challenge(key, pi) == rho
    root_hash = real.summary("signed-chain", 5).root_hash
    assert root_hash.hex() == (
        "1c417b370965dd85e274b568694d0a5b3325b39f619a840df0161339864a30e389ba3aec4c7763236d2f4c505d031921"
    )
    assert check(key, pi, root_hash, bits) is None
    assert check(key, pi, ROOT, bits) == false_pairings("1: e(apk, H(m)) = e(g0, asig)")
    points = hints.evaluation_points(key, rho)
    assert points is not None
    assert [holds for _, holds in hints.scalar_identities(pi, points)] == [True] * 4
    assert [relation.name[0] for relation in hints.pairing_relations(key, pi, points)] == list("2345")


def test_the_domain_is_what_its_root_of_unity_makes() -> None:
    for exponent in (1, 3, 32):
        n = 1 << exponent
        key = read_key(n.to_bytes(8, "little") + TssNetwork().vk[8:])
        assert key.w == pow(7, (r - 1) // n, r)
        assert pow(key.w, n, r) == 1 != pow(key.w, n // 2, r)


# --- thresholds and weights ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "signers", "refusal"),
    [
        ((1, 1, 1, 1), (0, 1, 2, 3), None),
        ((1, 1, 1, 1), (1, 2, 3), None),
        ((1, 1, 1, 1), (0, 3), too_light(2, 4)),  # exactly half is not enough
        ((1, 1, 1), (0, 2), None),
        ((1, 1, 1), (0,), too_light(1, 3)),
        ((3, 2, 1, 0), (0, 3), too_light(3, 6)),
        ((3, 2, 1, 0), (0, 2), None),
        ((3, 2, 1, 0), (1, 2, 3), too_light(3, 6)),
        ((5,), (0,), None),
        ((5,), (), too_light(0, 5)),
        ((0, 0), (0, 1), too_light(0, 0)),
        ((1,) * 9, (0, 1, 2, 3, 4), None),
        ((1,) * 9, (5, 6, 7, 8), too_light(4, 9)),
        (((1 << 63) - 1, (1 << 63) - 2), (0,), None),
    ],
)
def test_more_than_half_of_the_weight_has_to_sign(
    weights: tuple[int, ...], signers: tuple[int, ...], refusal: Refusal | None
) -> None:
    assert check(*made(weights, signers), ROOT, bits) == refusal


def test_a_weight_is_doubled_modulo_r() -> None:
    """As in the reference, a weight of about r/2 counts little, though it is a large number."""
    key, signature = made()
    half = (r + 1) // 2
    assert not hints.threshold(key, dataclasses.replace(signature, weight=half))  # 2 * half mod r = 1
    assert hints.threshold(key, dataclasses.replace(signature, weight=half - 1))  # 2 * weight = r - 1
    assert hints.threshold(dataclasses.replace(key, total_weight=5), dataclasses.replace(signature, weight=3))


def test_a_weight_that_the_signers_do_not_have_is_refused() -> None:
    """One node of four claims the weight of three; nothing else is altered."""
    network = TssNetwork()
    false = read_signature(network.hints_signature(ROOT, [0], weight=3))
    refusal = check(read_key(network.vk), false, ROOT, bits)
    assert refusal is not None
    assert refusal.kind is RefusalKind.BAD_PROOF


# --- each equation alone ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "refusal"),
    [
        ("p_r", false_identity("p_r - p_rw - w_r*b_r = q1_r*z")),
        ("p_rw", false_identity("p_r - p_rw - w_r*b_r = q1_r*z")),
        ("w_r", false_identity("p_r - p_rw - w_r*b_r = q1_r*z")),
        ("q1_r", false_identity("p_r - p_rw - w_r*b_r = q1_r*z")),
        ("b_r", false_identity("p_r - p_rw - w_r*b_r = q1_r*z")),
        ("q3_r", false_identity("L*p_r = z*q3_r")),
        ("q2_r", false_identity("b_r^2 - b_r = q2_r*z")),
        ("q4_r", false_identity("L*(b_r - 1) = z*q4_r")),
        ("asig", false_pairings("1: e(apk, H(m)) = e(g0, asig)")),
        ("O_r", false_pairings("2: e(M, h0) = e(O_r, h1 - rho*h0)")),
        ("O_rw", false_pairings("3: e(Pc - p_rw g0, h0) = e(O_rw, h1 - s*h0)")),
    ],
)
def test_an_altered_value_breaks_its_equation(field: str, refusal: Refusal) -> None:
    """The challenge covers none of these, so everything else stays the same."""
    key, signature = made()
    value = getattr(signature, field)
    changes: dict[str, Any] = {field: (value + 1) % r if isinstance(value, int) else value + type(value)()}
    assert check(key, dataclasses.replace(signature, **changes), ROOT, bits) == refusal


@pytest.mark.parametrize(
    "field", ["apk", "Bc", "Qx", "Qxt", "Qz", "Pc", "Q1c", "Q2c", "Q3c", "Q4c", "weight"]
)
def test_an_altered_commitment_changes_the_challenge(field: str) -> None:
    key, signature = made()
    value = getattr(signature, field)
    changes: dict[str, Any] = {field: value + 1 if isinstance(value, int) else value + G1Point()}
    altered = dataclasses.replace(signature, **changes)
    assert hints.challenge(key, altered) != hints.challenge(key, signature)
    assert check(key, altered, ROOT, bits) is not None


@pytest.mark.parametrize(
    ("names", "relation"),
    [
        (("Qx", "Qz"), "4: e(Bc, SKc) = e(Qz, Zc) * e(Qx, h1) * e(apk, h0)"),
        (("Qxt",), "5: e(Qx, h1) = e(Qxt, h0)"),
    ],
)
def test_the_last_relations_are_checked_too(names: tuple[str, ...], relation: str) -> None:
    """An altered signature changes the challenge and cannot reach them, so they are tested alone."""
    key, signature = made()
    points = hints.evaluation_points(key, hints.challenge(key, signature))
    assert points is not None
    altered = dataclasses.replace(signature, **{name: getattr(signature, name) + G1Point() for name in names})
    g2 = {"h0": key.h0, "h1": key.h1, "SKc": key.SKc, "Zc": key.Zc}
    [found] = [each for each in hints.pairing_relations(key, altered, points) if each.name == relation]
    assert not hints._holds(found, g2)
    [found] = [each for each in hints.pairing_relations(key, signature, points) if each.name == relation]
    assert hints._holds(found, g2)


@pytest.mark.parametrize("field", ["g0", "h0", "h1", "Lc", "Wc", "SKc", "Zc", "n", "w"])
def test_another_key_does_not_verify(field: str) -> None:
    key, signature = made()
    value = getattr(key, field)
    changes: dict[str, Any] = {field: value * 2 if isinstance(value, int) else value + type(value)()}
    assert check(dataclasses.replace(key, **changes), signature, ROOT, bits) is not None


def test_the_challenge_may_not_be_the_last_point_of_the_domain() -> None:
    key, _ = made()
    w_last = pow(key.w, key.n - 1, r)
    assert hints.evaluation_points(key, w_last) is None
    assert hints.evaluation_points(key, (w_last + 1) % r) is not None


def test_other_points_of_the_domain_have_a_lagrange_value_of_zero() -> None:
    key, _ = made()
    points = hints.evaluation_points(key, 1)
    assert points is not None
    assert (points.z, points.L, points.s) == (0, 0, pow(key.w, -1, r))


# --- batching -----------------------------------------------------------------------------------------------


def test_relations_that_cancel_without_random_factors_are_refused() -> None:
    """The failures of two relations are opposite, so their product is 1; only the factors reveal them."""
    key, signature = made()
    altered = dataclasses.replace(signature, O_r=signature.O_r + G1Point(), O_rw=signature.O_rw + -G1Point())
    points = hints.evaluation_points(key, hints.challenge(key, altered))
    assert points is not None
    relations = hints.pairing_relations(key, altered, points)
    assert [hints._holds(relation, {"h0": key.h0, "h1": key.h1}) for relation in relations[:2]] == [
        False,
        False,
    ]
    assert check(key, altered, ROOT, bits) == false_pairings("2: e(M, h0) = e(O_r, h1 - rho*h0)")
    assert check(key, altered, ROOT, lambda count: 1) == false_pairings("2: e(M, h0) = e(O_r, h1 - rho*h0)")


def test_four_fresh_factors_of_128_bits_are_drawn_for_each_check() -> None:
    asked: list[int] = []

    def counting(count: int) -> int:
        asked.append(count)
        return bits(count) + len(asked)

    assert check(*made(), ROOT, counting) is None
    assert asked == [128] * 4
    check(*made(), ROOT, counting)
    assert asked == [128] * 8


# --- parsing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        *(
            (
                0,
                n.to_bytes(8, "little"),
                f"hinTS verification key: n: got {n}, expected a power of two from 2 to 2^32",
            )
            for n in (0, 1, 3, 9, 1 << 33, (1 << 64) - 1)
        ),
        (
            8,
            scalar_bytes(r),
            f"hinTS verification key: total_weight: got {r:#x}, expected less than {r:#x}",
        ),
        (
            40,
            bytes(96),
            "hinTS verification key: g0: got zeros alone, expected a point; infinity is 0x40 and zeros",
        ),
        (
            904,
            b"\x80" + bytes(191),
            "hinTS verification key: Zc: got flags 0x80, expected 0, or 0x40 for infinity",
        ),
    ],
)
def test_what_is_no_key_is_refused(at: int, value: bytes, message: str) -> None:
    vk = TssNetwork().vk
    with pytest.raises(ProofDataError) as caught:
        read_key(vk[:at] + value + vk[at + len(value) :])
    assert str(caught.value) == message


@pytest.mark.parametrize("extra", [-1, 1])
def test_another_size_is_refused(extra: int) -> None:
    network = TssNetwork()
    pi = network.hints_signature(ROOT, [0, 1, 2])
    for read, encoded in ((read_key, network.vk), (read_signature, pi)):
        with pytest.raises(ProofDataError):
            read((encoded + b"\0")[: len(encoded) + extra])


def test_the_fields_lie_where_the_table_says() -> None:
    key, signature = made()
    vk, pi = TssNetwork().vk, TssNetwork().hints_signature(ROOT, [0, 1, 2])
    for offset, point in ((40, key.g0), (520, key.Lc), (616, key.Wc)):
        assert vk[offset : offset + 96] == g1_bytes(point)
    for offset, wide in ((136, key.h0), (328, key.h1), (712, key.SKc), (904, key.Zc)):
        assert vk[offset : offset + 192] == g2_bytes(wide)
    names = ("Bc", "Qx", "Qxt", "Qz", "Pc", "Q1c", "Q3c", "Q2c", "Q4c", "O_r", "O_rw")
    for index, name in enumerate(names):
        assert pi[320 + 96 * index : 416 + 96 * index] == g1_bytes(getattr(signature, name))
    for index, name in enumerate(("p_r", "p_rw", "w_r", "b_r", "q1_r", "q3_r", "q2_r", "q4_r")):
        assert pi[1376 + 32 * index : 1408 + 32 * index] == scalar_bytes(getattr(signature, name))
    assert pi[:96] == g1_bytes(signature.apk)
    assert pi[96:128] == scalar_bytes(signature.weight)
    assert pi[128:320] == g2_bytes(signature.asig)


def test_a_signature_of_points_at_infinity_is_refused() -> None:
    zero_1, zero_2 = g1_bytes(G1Point.identity()), g2_bytes(G2Point.identity())
    pi = zero_1 + scalar_bytes(3) + zero_2 + zero_1 * 11 + bytes(8 * 32)
    key, _ = made()
    assert check(key, read_signature(pi), ROOT, bits) == false_identity("L*(b_r - 1) = z*q4_r")
