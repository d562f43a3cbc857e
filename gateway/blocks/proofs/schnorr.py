"""The Schnorr address-book proof: members of a ledger's first address book vouch for a hinTS key.

Pure. The proofs of knowledge, checked once for an address book, keep a member from choosing a key that
cancels others'. Stricter than the reference: a bit without a member, and a book without weight, are refused.
Source: docs/spec/tss.md section 5.
"""

from collections.abc import Sequence
from hashlib import blake2s
from typing import Final, NamedTuple

from sluice.gateway.blocks.errors import ProofDataError
from sluice.gateway.blocks.proofs.baby_jubjub import (
    BASE,
    POINT_SIZE,
    SUBGROUP_ORDER,
    Point,
    add,
    compressed,
    point_bytes,
    read_curve_point,
    read_point,
    weighted_sum,
)
from sluice.gateway.blocks.proofs.encoding import SCALAR_SIZE, LayoutReader, scalar_bytes
from sluice.gateway.blocks.proofs.hash_to_field import hash_to_field
from sluice.gateway.blocks.refusal import Refusal, RefusalKind

__all__ = [
    "ATTESTED_KEY_SIZE",
    "MEMBERS_MAX",
    "SIGNATURE_SIZE",
    "AttestedKey",
    "RosterMember",
    "Signature",
    "attested_key_bytes",
    "challenge",
    "check",
    "knowledge_challenge",
    "knows_secret",
    "read_attested_key",
    "read_signature",
    "signed_message",
]

l: Final = SUBGROUP_ORDER  # noqa: E741 - its name in tss.md

MEMBERS_MAX: Final = 128
"""Entries of the longest address book (5.1)."""
ATTESTED_KEY_SIZE: Final = 2 * POINT_SIZE + 2 * SCALAR_SIZE
SIGNATURE_SIZE: Final = MEMBERS_MAX + 2 * SCALAR_SIZE

_CHALLENGE_SIZE: Final = 31  # 5.4; so every challenge is below l
_WHAT: Final = "Schnorr address-book proof"


class AttestedKey(NamedTuple):
    """A public key Y and the proof that its owner knows the secret."""

    Y: Point
    R: Point
    c: int
    z: int


class RosterMember(NamedTuple):
    """An entry of the address book."""

    Y: Point
    weight: int


class Signature(NamedTuple):
    """A decoded signature."""

    bitmap: bytes  # 128 bytes, 1 for a member that signed
    z: int  # below l
    c: int  # below l


def read_attested_key(encoded: bytes, what: str) -> AttestedKey:
    """Decode an attested key (5.1); `knows_secret` checks its proof.

    If the proof holds, R = z*G - c*Y is in the subgroup. So R need only be on the curve here: checking its
    order would add a third to the cost of a publication.
    """
    reader = LayoutReader(encoded, what)
    key = AttestedKey(
        read_point(reader.take(POINT_SIZE, "Y"), reader.named("Y")),
        read_curve_point(reader.take(POINT_SIZE, "R"), reader.named("R")),
        reader.scalar(l, "c"),
        reader.scalar(l, "z"),
    )
    reader.finish()
    return key


def attested_key_bytes(key: AttestedKey) -> bytes:
    """Encode an attested key (5.1)."""
    return point_bytes(key.Y) + point_bytes(key.R) + scalar_bytes(key.c) + scalar_bytes(key.z)


def knowledge_challenge(Y: Point, R: Point) -> int:
    """Return the challenge of a proof of knowledge (5.1)."""
    return hash_to_field(compressed(BASE) + compressed(Y) + compressed(R), b"", l)[0]


def knows_secret(key: AttestedKey) -> bool:
    """Return whether the proof of knowledge holds (5.1)."""
    if key.c != knowledge_challenge(key.Y, key.R):
        return False
    # z*G - c*Y, since Y is of order l, and each point has one affine form.
    return weighted_sum([(key.z, BASE), ((l - key.c) % l, key.Y)]) == key.R


def read_signature(encoded: bytes) -> Signature:
    """Decode a signature (5). Raises ProofDataError."""
    reader = LayoutReader(encoded, _WHAT)
    bitmap = reader.take(MEMBERS_MAX, "bitmap")
    if max(bitmap) > 1:
        raise ProofDataError(reader.named("bitmap"), f"a byte {max(bitmap)}", "0 or 1 in every byte")
    signature = Signature(bitmap, reader.scalar(l, "z"), reader.scalar(l, "c"))
    reader.finish()
    return signature


def signed_message(ledger_id: bytes, vk_hash: bytes) -> bytes:
    """Return msg', from the ledger id and hashArray(VK) (5.2)."""
    assert len(ledger_id) == len(vk_hash) == SCALAR_SIZE
    return ledger_id + vk_hash


def challenge(A: Point, K: Point, message: bytes) -> int:
    """Return the first 31 bytes of BLAKE2s-256( A || K || msg' ) (5.4)."""
    digest = blake2s(point_bytes(A) + point_bytes(K) + message).digest()
    return int.from_bytes(digest[:_CHALLENGE_SIZE], "little")


def check(members: Sequence[RosterMember], encoded: bytes, message: bytes) -> Refusal | None:
    """Return why at least half of the members' weight did not sign the message (5.3, 5.4), or None.

    The proofs of knowledge of the members were checked. Raises ProofDataError if the signature is malformed.
    """
    signature = read_signature(encoded)
    beyond = signature.bitmap[len(members) :]
    if any(beyond):
        got = f"a bit for entry {len(members) + beyond.index(1)}"
        return _refusal("bitmap (tss.md 5.3)", got, f"bits for {len(members)} entries")
    signers = [member for member, bit in zip(members, signature.bitmap, strict=False) if bit]
    W, TOT = sum(member.weight for member in signers), sum(member.weight for member in members)
    if TOT == 0:
        return _refusal("weight that signed (tss.md 5.3)", "a book of weight 0", "some weight")
    if TOT > 2 * W:
        return _refusal("weight that signed (tss.md 5.3)", f"{W} of {TOT}", "at least half")
    A = add(member.Y for member in signers)
    K = weighted_sum([(signature.z, BASE), (signature.c, A)])
    if challenge(A, K, message) != signature.c:
        return _refusal("challenge (tss.md 5.4)", "another hash", "the challenge of the signature")
    return None


def _refusal(part: str, got: str, expected: str) -> Refusal:
    return Refusal(RefusalKind.BAD_PROOF, f"{_WHAT}: {part}", got, expected)
