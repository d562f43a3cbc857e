"""State proofs: hash paths from an unsigned block to the root hash of a later, signed one.

Pure. Form C is that of layout 16, B and A those of layout 8. Stricter than the reference (5.3): each message
has one encoding. `_general_walk` takes C, B, changes of layout on the way, paths through the tree of all
block hashes, and any number of paths with joins anywhere.
Source: docs/spec/proofs.md section 5 (5.2 is `_general_walk`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from sluice.gateway.api import block_pb2
from sluice.gateway.blocks.errors import BlockRefused, ProofDataError
from sluice.gateway.blocks.items import WireType
from sluice.gateway.blocks.merkle import (
    HASH_SIZE,
    SINGLE_CHILD,
    Sibling,
    climb,
    inner_hash,
    leaf_hash,
)
from sluice.gateway.blocks.proofs.strict_message import bytes_of, integer_of, strict_fields
from sluice.gateway.blocks.refusal import Refusal, RefusalKind
from sluice.gateway.blocks.root_hash import BlockSummary

__all__ = [
    "MerklePath",
    "SiblingCount",
    "StateProof",
    "StateProofCheck",
    "path_to_signed_root",
    "read_state_proof",
]

STATE_PROOF_PATHS_MAX: Final = 64
"""A block's proof has three paths; a proof of several leaves has two more for each."""
STATE_PROOF_SIBLINGS_MAX: Final = 20_000
"""Siblings of all state proofs of a block: enough for a network that signs one block of 4,000. They take some
0.06 s, or twice that if both layouts are tried."""

PATHS_MIN: Final = 3
"""The least number of paths (docs/spec/proofs.md section 5.2)."""
END_OF_PATHS: Final = 0xFFFF_FFFF
"""`next_path_index` of the last path: -1 in 32 bits."""
HASH, STATE_ITEM_LEAF, BLOCK_ITEM_LEAF, TIMESTAMP_LEAF = 3, 4, 5, 6
"""Field numbers of a path's content (docs/spec/proofs.md section 1)."""

_PATH_NAMES: Final = {
    1: "siblings",
    2: "next_path_index",
    HASH: "hash",
    STATE_ITEM_LEAF: "state_item_leaf",
    BLOCK_ITEM_LEAF: "block_item_leaf",
    TIMESTAMP_LEAF: "timestamp_leaf",
}


class SiblingCount:
    """Counts the siblings of the state proofs of one block."""

    def __init__(self, siblings_max: int = STATE_PROOF_SIBLINGS_MAX) -> None:
        self._siblings_max = siblings_max
        self._count = 0

    def take(self, what: str) -> None:
        """Count one more. Raises ProofDataError, of `what`, if it is one too many."""
        self._count += 1
        if self._count > self._siblings_max:
            raise ProofDataError(what, "more siblings", f"at most {self._siblings_max} in all")


@dataclass(frozen=True, slots=True)
class MerklePath:
    """One path: from its content, or from a join, up to another path or the end."""

    content_kind: int  # HASH (3) or a leaf's field number (4, 5, 6); 0 for a join
    content: bytes  # a hash or a leaf

    siblings: tuple[Sibling, ...]  # from the bottom up
    next_index: int  # the path that this one leads to, or END_OF_PATHS

    @property
    def start(self) -> bytes:
        """Its hash at the bottom."""
        return self.content if self.content_kind == HASH else leaf_hash(self.content)


@dataclass(frozen=True, slots=True)
class StateProof:
    """A parsed state proof."""

    paths: tuple[MerklePath, ...]
    signature: bytes
    """Of the root hash at the end, or none."""


class StateProofCheck:
    """Checks the paths of state proofs."""

    def __init__(self, tss_check: Callable[[bytes, bytes], Refusal | None]) -> None:
        """`tss_check` takes (signature, root hash)."""
        self._tss_check = tss_check

    def check(
        self, state_proof: bytes, summary: BlockSummary, siblings: SiblingCount | None = None
    ) -> Refusal | None:
        """Return why a serialized StateProof does not prove the block, or None.

        `siblings` counts those of all state proofs of a block.
        """
        try:
            proof = read_state_proof(state_proof, siblings)
            if not proof.signature:
                return Refusal(
                    RefusalKind.MISSING_FIELD, "state proof: signed_block_proof", "no signature", "one"
                )
            root_hash, _ = _signed_root(proof, summary)
        except ProofDataError as error:
            return Refusal(RefusalKind.CANNOT_PARSE, error.what, error.got, error.expected)
        except BlockRefused as error:
            return error.refusal
        refusal = self._tss_check(proof.signature, root_hash)
        if refusal is None:
            return None
        return Refusal(refusal.kind, f"state proof: {refusal.what}", refusal.got, refusal.expected)


def path_to_signed_root(state_proof: bytes, summary: BlockSummary) -> tuple[list[Sibling], bytes]:
    """Return the siblings from a block's root hash to the signed one, and the signature.

    Raises ProofDataError or BlockRefused if the paths do not lead there.
    """
    proof = read_state_proof(state_proof)
    return _signed_root(proof, summary)[1], proof.signature


def _unproven(what: str, got: str, expected: str) -> BlockRefused:
    return BlockRefused(Refusal(RefusalKind.BAD_PROOF, f"state proof: {what}", got, expected))


# --- the walks ----------------------------------------------------------------------------------------------


def _signed_root(proof: StateProof, summary: BlockSummary) -> tuple[bytes, list[Sibling]]:
    """Return the root hash that the paths lead to, past the block's own, and the siblings between these two.

    Raises BlockRefused if there is none.
    """
    paths = proof.paths
    if not any(path.content_kind == TIMESTAMP_LEAF for path in paths):
        raise _unproven("paths", "no timestamp leaf", "the time of the signed block")
    if len(paths) == PATHS_MIN:
        kinds = sorted(path.content_kind for path in paths)
        if kinds != [0, HASH, TIMESTAMP_LEAF]:
            names = ", ".join(_PATH_NAMES.get(kind, "no content") for kind in kinds)
            raise _unproven("three paths", names, "no content, hash, timestamp_leaf")
    if _is_form_a(paths, summary):
        return _form_a_walk(paths, summary.root_hash)
    return _general_walk(paths, summary.root_hash)


def _is_form_a(paths: Sequence[MerklePath], summary: BlockSummary) -> bool:
    """Return whether the paths begin a block early, with footer field 1, and the fourth sibling is left."""
    if len(paths) != PATHS_MIN or paths[1].content_kind != HASH:
        return False
    siblings = paths[1].siblings
    return paths[1].content == summary.previous_root_hash and len(siblings) > 3 and siblings[3].is_left


def _form_a_walk(paths: Sequence[MerklePath], root_hash: bytes) -> tuple[bytes, list[Sibling]]:
    """As `_signed_root`, of form A, whose value after the first left sibling must be the block's own root."""
    time, hops, end = paths
    shape = (time.content_kind, time.next_index, len(time.siblings), hops.next_index)
    if shape != (TIMESTAMP_LEAF, 2, 0, 2):
        raise _unproven("paths of form A", "another shape", "a time and a hash that lead to path 2")
    if (end.content_kind, end.next_index, len(end.siblings)) != (0, END_OF_PATHS, 0):
        raise _unproven("path 2 of form A", "another shape", "the end, without siblings")
    if len(hops.siblings) % 4 != 3:
        raise _unproven("form A", f"{len(hops.siblings)} siblings", "four a block, three for the last")
    siblings: list[Sibling] = []
    for index, sibling in enumerate((*hops.siblings, Sibling(True, time.start))):
        if not sibling.hash or sibling.is_left != (index % 4 == 3):
            expected = "a hash on the left" if index % 4 == 3 else "a hash on the right"
            raise _unproven(f"form A sibling {index}", "another", expected)
        siblings += (SINGLE_CHILD, sibling) if sibling.is_left else (sibling,)
    own, following = siblings[:5], siblings[5:]
    value = climb(hops.content, own)
    if value != root_hash:
        raise _unproven("root hash after the first time", value.hex(), f"{root_hash.hex()}, of the block")
    return climb(root_hash, following), following


def _general_walk(paths: Sequence[MerklePath], root_hash: bytes) -> tuple[bytes, list[Sibling]]:
    """As `_signed_root`: all paths lead to one root, and one of them begins with the block's root hash.

    Each step of the inner loop takes one waiting value away, and each path adds at most one, so the steps are
    bounded.
    """
    # join -> (lowest path index, hash, the siblings from the block's root hash) of its first side
    waiting: dict[int, tuple[int, bytes, list[Sibling] | None]] = {}
    visited: set[int] = set()
    final: bytes | None = None
    matched = False
    found: list[Sibling] | None = None
    for index, path in enumerate(paths):
        if not path.content_kind:
            continue
        if final is not None:
            raise _unproven(f"path {index}", "it after the end was reached", "all paths below the end")
        visited.add(index)
        is_own = not matched and path.content_kind == HASH and path.content == root_hash
        matched |= is_own
        own = list(path.siblings) if is_own else None
        value, low, at = climb(path.start, path.siblings), index, path.next_index
        while at != END_OF_PATHS:
            if at >= len(paths) or paths[at].content_kind:
                raise _unproven(f"path {index}", f"next path {at}", "a path without content")
            visited.add(at)
            if at not in waiting:
                waiting[at] = (low, value, own)
                break
            other_low, other, other_own = waiting.pop(at)
            assert other_low != low  # two sides have no path in common
            if own is not None:
                own.append(Sibling(other_low < low, other))
            elif other_own is not None:
                own = other_own
                own.append(Sibling(low < other_low, value))
            value = inner_hash(other, value) if other_low < low else inner_hash(value, other)
            low = min(low, other_low)
            if own is not None:
                own += paths[at].siblings
            value, at = climb(value, paths[at].siblings), paths[at].next_index
        else:
            final, found = value, own
    if final is None or waiting:
        raise _unproven("paths", "an end that is not reached", "paths that join into one")
    if len(visited) != len(paths):
        raise _unproven("paths", f"{len(paths) - len(visited)} that lead nowhere", "none")
    if found is None:
        raise _unproven("paths", "no hash that is the block's root hash", root_hash.hex())
    return final, found


# --- reading ------------------------------------------------------------------------------------------------


def read_state_proof(serialized: bytes, siblings: SiblingCount | None = None) -> StateProof:
    """Read a StateProof message. Raises ProofDataError."""
    siblings = siblings or SiblingCount()
    paths: list[MerklePath] = []
    signature = b""
    for number, value in strict_fields(
        serialized, "state proof", {1: WireType.LEN, 2: WireType.LEN}, repeated=(1,)
    ):
        if number == 2:
            parts = dict(strict_fields(bytes_of(value), "state proof: signed_block_proof", {1: WireType.LEN}))
            signature = bytes_of(parts.get(1, b""))
            continue
        if len(paths) == STATE_PROOF_PATHS_MAX:
            raise ProofDataError("state proof", "more paths", f"at most {STATE_PROOF_PATHS_MAX}")
        paths.append(_read_path(bytes_of(value), len(paths), siblings))
    if len(paths) < PATHS_MIN:
        raise ProofDataError("state proof", f"{len(paths)} paths", f"at least {PATHS_MIN}")
    return StateProof(tuple(paths), signature)


def _read_path(serialized: bytes, index: int, sibling_count: SiblingCount) -> MerklePath:
    what = f"state proof path {index}"
    wire_types = {1: WireType.LEN, 2: WireType.VARINT}
    wire_types |= dict.fromkeys((HASH, STATE_ITEM_LEAF, BLOCK_ITEM_LEAF, TIMESTAMP_LEAF), WireType.LEN)
    siblings: list[Sibling] = []
    next_index = content_kind = 0
    content = b""
    for number, value in strict_fields(serialized, what, wire_types, repeated=(1,)):
        if number == 1:
            sibling_count.take(what)
            siblings.append(_read_sibling(bytes_of(value), what))
        elif number == 2:
            next_index = integer_of(value)
            if not 0 < next_index < STATE_PROOF_PATHS_MAX and next_index != END_OF_PATHS:
                expected = f"1 to {STATE_PROOF_PATHS_MAX - 1} or {END_OF_PATHS} (-1); 0 is left out"
                raise ProofDataError(f"{what}: next_path_index", str(next_index), expected)
        else:
            if content_kind:
                names = f"{_PATH_NAMES[content_kind]} and {_PATH_NAMES[number]}"
                raise ProofDataError(what, names, "one content")
            content_kind, content = number, bytes_of(value)
            _check_content(content_kind, content, what)
    return MerklePath(content_kind, content, tuple(siblings), next_index)


def _check_content(kind: int, content: bytes, what: str) -> None:
    name = f"{what}: {_PATH_NAMES[kind]}"
    if kind == HASH:
        if len(content) != HASH_SIZE:
            raise ProofDataError(name, f"{len(content)} bytes", f"{HASH_SIZE}")
    elif not content:
        raise ProofDataError(name, "no bytes", "a leaf")
    elif kind == TIMESTAMP_LEAF:
        parts = dict(strict_fields(content, name, {1: WireType.VARINT, 2: WireType.VARINT}))
        time = block_pb2.Timestamp()
        if len(content) <= _TIMESTAMP_SIZE_MAX:
            time.MergeFromString(content)
        if not parts or time.SerializeToString(deterministic=True) != content:
            raise ProofDataError(name, content[:_TIMESTAMP_SIZE_MAX].hex(), "a canonical Timestamp")


_TIMESTAMP_SIZE_MAX: Final = 2 * (1 + 10)


def _read_sibling(serialized: bytes, what: str) -> Sibling:
    """Read a SiblingNode; an empty one marks a node with a single child."""
    # Three forms are valid; the rest says what is wrong with others.
    if serialized[:2] == b"\x12\x30" and len(serialized) == 2 + HASH_SIZE:
        return Sibling(False, serialized[2:])
    if serialized[:4] == b"\x08\x01\x12\x30" and len(serialized) == 4 + HASH_SIZE:
        return Sibling(True, serialized[4:])
    if not serialized:
        return SINGLE_CHILD
    parts = dict(strict_fields(serialized, f"{what}: sibling", {1: WireType.VARINT, 2: WireType.LEN}))
    if parts.get(1, 1) != 1:
        raise ProofDataError(f"{what}: sibling is_left", str(parts[1]), "1, or left out")
    value = bytes_of(parts.get(2, b""))
    if 2 in parts and len(value) != HASH_SIZE:
        raise ProofDataError(f"{what}: sibling hash", f"{len(value)} bytes", f"{HASH_SIZE}, or left out")
    if 1 in parts and not value:
        raise ProofDataError(f"{what}: sibling", "is_left without a hash", "both, or neither")
    return Sibling(1 in parts, value)
