"""A TSS network whose secrets are all here: it publishes a ledger id and signs block roots.

The hinTS part knows the secret tau of its setup, so each commitment is the value of a polynomial at tau times
the generator; a real prover, who does not know tau, gets to the same points the long way. It is made from the
equations of tss.md section 4, and the checks of `blocks.proofs.hints` hold for what it makes because real
signatures hold for them too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random

from py_arkworks_bls12381 import Scalar

from sluice.gateway.blocks.proofs import baby_jubjub as jubjub
from sluice.gateway.blocks.proofs import hints, schnorr
from sluice.gateway.blocks.proofs.bls12_381 import GROUP_ORDER as r
from sluice.gateway.blocks.proofs.bls12_381 import G1Point, G2Point, hash_to_g2
from sluice.gateway.blocks.proofs.encoding import scalar_bytes
from sluice.gateway.blocks.proofs.ledger_data import (
    LedgerData,
    LedgerNode,
    address_book_hash,
    read_publication,
)
from sluice.gateway.blocks.proofs.poseidon import hash_array
from tests.gateway.blocks.proofs.encoders import g1_bytes, g2_bytes, publication_bytes

Polynomial = list[int]


@dataclass
class TssNetwork:
    """A network of some nodes, each with its own Schnorr key and hinTS key."""

    weights: Sequence[int] = (1, 1, 1, 1)
    """Weight of each node, in the address book and in the hinTS key."""
    seed: int = 1
    """The seed of its secrets."""
    wraps_vk: bytes = b""
    """The WRAPS key that it publishes."""

    def __post_init__(self) -> None:
        rng = Random(self.seed)
        self.schnorr_secrets = [rng.randrange(1, jubjub.SUBGROUP_ORDER) for _ in self.weights]
        self.nonces = [rng.randrange(1, jubjub.SUBGROUP_ORDER) for _ in self.weights]
        self.tau = rng.randrange(1, r)
        self.bls_secrets = [rng.randrange(1, r) for _ in self.weights]
        self.node_ids = list(range(len(self.weights)))
        # One more slot than nodes: the last of the domain balances the sum.
        self.n = 1 << len(self.weights).bit_length()
        self.w = pow(7, (r - 1) // self.n, r)

    # --- the address book --------------------------------------------------------------------------------

    @cached_property
    def public_keys(self) -> list[jubjub.Point]:
        """The Schnorr keys."""
        return [jubjub.multiply(secret, jubjub.BASE) for secret in self.schnorr_secrets]

    @cached_property
    def attested_keys(self) -> list[bytes]:
        """The Schnorr keys with their proofs of knowledge."""
        return [
            attested_key(secret, nonce)
            for secret, nonce in zip(self.schnorr_secrets, self.nonces, strict=True)
        ]

    @cached_property
    def publication(self) -> bytes:
        """The publication of its ledger id."""
        return self.publication_of(list(zip(self.node_ids, self.weights, self.attested_keys, strict=True)))

    def publication_of(self, contributions: Sequence[tuple[int, int, bytes]]) -> bytes:
        """A publication with other entries, whose ledger id is right."""
        unnamed = read_publication(publication_bytes(b"\x01" * 32, self.wraps_vk, contributions))
        return publication_bytes(address_book_hash(unnamed.nodes), self.wraps_vk, contributions)

    @cached_property
    def ledger(self) -> LedgerData:
        """Its ledger data."""
        return read_publication(self.publication)

    @property
    def members(self) -> list[schnorr.RosterMember]:
        """The address book in the form for Schnorr proofs."""
        return [
            schnorr.RosterMember(key, weight)
            for key, weight in zip(self.public_keys, self.weights, strict=True)
        ]

    def vouch(self, message: bytes, signers: Sequence[int], bitmap: bytes | None = None) -> bytes:
        """The Schnorr signature of a message by some of the nodes."""
        if bitmap is None:
            bitmap = bytes(index in signers for index in range(schnorr.MEMBERS_MAX))
        A = jubjub.add(self.public_keys[index] for index in signers)
        secret = sum(self.schnorr_secrets[index] for index in signers)
        nonce = 0x5EED
        e = schnorr.challenge(A, jubjub.multiply(nonce, jubjub.BASE), message)
        z = (nonce - e * secret) % jubjub.SUBGROUP_ORDER
        return bitmap + scalar_bytes(z) + scalar_bytes(e)

    # --- hinTS -------------------------------------------------------------------------------------------

    @cached_property
    def vk(self) -> bytes:
        """The hinTS verification key."""
        total = sum(self.weights) % r
        return b"".join(
            (
                self.n.to_bytes(8, "little"),
                scalar_bytes(total),
                g1_bytes(G1Point()),
                g2_bytes(G2Point()),
                g2_bytes(_g2(self.tau)),
                g1_bytes(_g1(self._at(self._interpolate([0] * (self.n - 1) + [1]), self.tau))),
                g1_bytes(_g1(self._at(self._weight_polynomial, self.tau))),
                g2_bytes(_g2(self._at(self._key_polynomial, self.tau))),
                g2_bytes(_g2(pow(self.tau, self.n, r) - 1)),
            )
        )

    def sign(
        self, root_hash: bytes, signers: Sequence[int] | None = None, vouchers: Sequence[int] | None = None
    ) -> bytes:
        """A whole TSS signature by some nodes, by default all.

        The vouchers, by default the signers, sign the address-book proof. Real networks do that once for each
        key.
        """
        signers = range(len(self.weights)) if signers is None else signers
        message = schnorr.signed_message(self.ledger.ledger_id, hash_array(self.vk))
        proof = self.vouch(message, signers if vouchers is None else vouchers)
        return self.vk + self.hints_signature(root_hash, signers) + proof

    def hints_signature(
        self, root_hash: bytes, signers: Sequence[int], *, weight: int | None = None
    ) -> bytes:
        """The hinTS signature PI; a `weight` that the signers do not have makes it false."""
        made = self._statement(tuple(signers), weight)
        asig = hash_to_g2(root_hash) * Scalar(made.apk)
        return made.before_asig + g2_bytes(asig) + made.after_asig

    def _statement(self, signers: tuple[int, ...], weight: int | None) -> _Statement:
        known = self.__dict__.setdefault("_statements", {})
        if (signers, weight) not in known:
            known[signers, weight] = self._make_statement(signers, weight)
        statement = known[signers, weight]
        assert isinstance(statement, _Statement)
        return statement

    def _make_statement(self, signers: tuple[int, ...], weight: int | None) -> _Statement:
        """Everything of PI that does not depend on the message."""
        n, w, tau = self.n, self.w, self.tau
        bits = [int(index in signers) for index in range(n - 1)] + [1]
        claimed = sum(self.weights[index] for index in signers) if weight is None else weight
        weights = self._padded(self.weights)
        weights[n - 1] = -claimed % r
        sums, total = [], 0
        for bit, one_weight in zip(bits, weights, strict=True):
            total = (total + bit * one_weight) % r
            sums.append(total)
        B, W, P = self._interpolate(bits), self._interpolate(weights), self._interpolate(sums)
        last = self._interpolate([0] * (n - 1) + [1])
        shifted = [coefficient * pow(w, -index, r) % r for index, coefficient in enumerate(P)]  # P(X/w)

        product = _multiply(B, self._key_polynomial)
        Qz, rest = self._divide(product)
        apk, Qx = rest[0], rest[1:]
        Q1, _ = self._divide(_subtract(_subtract(P, shifted), _multiply(W, B)))
        Q2, _ = self._divide(_subtract(_multiply(B, B), B))
        Q3, _ = self._divide(_multiply(last, P))
        Q4, _ = self._divide(_multiply(last, _subtract(B, [1])))

        at_tau = {
            name: self._at(polynomial, tau)
            for name, polynomial in (("B", B), ("Qx", Qx), ("Qz", Qz), ("P", P), ("Q1", Q1), ("Q2", Q2))
        } | {"Q3": self._at(Q3, tau), "Q4": self._at(Q4, tau)}
        commitments = [
            *(at_tau["B"], at_tau["Qx"], tau * at_tau["Qx"], at_tau["Qz"], at_tau["P"]),
            *(at_tau["Q1"], at_tau["Q3"], at_tau["Q2"], at_tau["Q4"]),
        ]
        head = g1_bytes(_g1(apk)) + scalar_bytes(claimed % r)
        middle = b"".join(g1_bytes(_g1(value)) for value in commitments)

        # The challenge depends on the commitments alone, so a draft with zeros gives it.
        draft = head + g2_bytes(G2Point()) + middle + g1_bytes(G1Point()) * 2 + bytes(8 * 32)
        rho = hints.challenge(hints.read_key(self.vk), hints.read_signature(draft))
        opened = [P, W, B, Q1, Q3, Q2, Q4]
        values = [self._at(polynomial, rho) for polynomial in opened]
        quotient = sum(
            pow(rho, index, r) * (self._at(polynomial, tau) - value)
            for index, (polynomial, value) in enumerate(zip(opened, values, strict=True))
        ) * pow(tau - rho, -1, r)
        s = rho * pow(w, -1, r) % r
        p_rw = self._at(P, s)
        quotient_w = (at_tau["P"] - p_rw) * pow(tau - s, -1, r)
        p_r, w_r, b_r, q1_r, q3_r, q2_r, q4_r = values
        tail = g1_bytes(_g1(quotient)) + g1_bytes(_g1(quotient_w))
        scalars = (p_r, p_rw, w_r, b_r, q1_r, q3_r, q2_r, q4_r)
        return _Statement(apk, head, middle + tail + b"".join(map(scalar_bytes, scalars)))

    @cached_property
    def _weight_polynomial(self) -> Polynomial:
        return self._interpolate(self._padded(self.weights))

    @cached_property
    def _key_polynomial(self) -> Polynomial:
        return self._interpolate(self._padded(self.bls_secrets))

    def _padded(self, values: Sequence[int]) -> list[int]:
        return [*values, *[0] * (self.n - len(values))]

    def _interpolate(self, values: Sequence[int]) -> Polynomial:
        """The polynomial with values[i] at w^i: the inverse of the discrete Fourier transform."""
        inverse_n = pow(self.n, -1, r)
        return [
            sum(value * pow(self.w, -index * power, r) for index, value in enumerate(values)) * inverse_n % r
            for power in range(self.n)
        ]

    def _divide(self, polynomial: Polynomial) -> tuple[Polynomial, Polynomial]:
        """Divide by X^n - 1."""
        rest, quotient = list(polynomial), [0] * max(len(polynomial) - self.n, 1)
        for power in range(len(rest) - 1, self.n - 1, -1):
            quotient[power - self.n] = rest[power]
            rest[power - self.n] = (rest[power - self.n] + rest[power]) % r
            rest[power] = 0
        return quotient, rest[: self.n]

    @staticmethod
    def _at(polynomial: Polynomial, x: int) -> int:
        value = 0
        for coefficient in reversed(polynomial):
            value = (value * x + coefficient) % r
        return value


@dataclass
class _Statement:
    apk: int
    before_asig: bytes
    after_asig: bytes


def attested_key(secret: int, nonce: int) -> bytes:
    """A Schnorr public key, 192 bytes, with the proof that the secret is known."""
    Y, R = jubjub.multiply(secret, jubjub.BASE), jubjub.multiply(nonce, jubjub.BASE)
    c = schnorr.knowledge_challenge(Y, R)
    z = (nonce + c * secret) % jubjub.SUBGROUP_ORDER
    return jubjub.point_bytes(Y) + jubjub.point_bytes(R) + scalar_bytes(c) + scalar_bytes(z)


def attested_key_of(node: LedgerNode) -> bytes:
    """The 192 bytes of a node's key."""
    key = node.key
    points = jubjub.point_bytes(key.Y) + jubjub.point_bytes(key.R)
    return points + scalar_bytes(key.c) + scalar_bytes(key.z)


def _multiply(left: Polynomial, right: Polynomial) -> Polynomial:
    product = [0] * (len(left) + len(right) - 1)
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            product[i + j] = (product[i + j] + a * b) % r
    return product


def _subtract(left: Polynomial, right: Polynomial) -> Polynomial:
    size = max(len(left), len(right))
    padded = [[*polynomial, *[0] * (size - len(polynomial))] for polynomial in (left, right)]
    return [(a - b) % r for a, b in zip(*padded, strict=True)]


def _g1(scalar: int) -> G1Point:
    return G1Point() * Scalar(scalar % r)


def _g2(scalar: int) -> G2Point:
    return G2Point() * Scalar(scalar % r)
