"""Proofs of single items: block contents proofs, which show without the block that an item is in it.

Pure. A path of hashes leads from the item's leaf to the root hash of its block, and on to a root hash that
the network has signed: that of the block, or of a later one. A verifier reads where each block begins on the
way from the sides of the siblings, so that an item cannot pass for one of another block. The header of the
same block says its number, and needs a path of its own.

Source: docs/spec/proofs.md section 6; docs/verification.md, "Proofs to take away".
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from sluice.gateway.api import item_proof_pb2, proof_pb2
from sluice.gateway.blocks.errors import BlockRefused, ItemError, LayoutError, NotProvable, ProofDataError
from sluice.gateway.blocks.items import (
    ItemKind,
    field_item,
    fields_of,
    item_name,
    kind_of,
    kinds_of,
    payload_of,
    proof_of,
    read_footer,
    read_header,
    refused,
)
from sluice.gateway.blocks.merkle import (
    HASH_SIZE,
    SINGLE_CHILD,
    Sibling,
    audit_path,
    climb,
    leaf_hash,
    sides_of,
    tree_root,
)
from sluice.gateway.blocks.proofs import ProofKind, ProofVerifier, kind_of_proof, kind_of_signature
from sluice.gateway.blocks.proofs.record_file import VERSION, read_record_file, read_record_file_proof
from sluice.gateway.blocks.proofs.state_proof import STATE_PROOF_SIBLINGS_MAX, path_to_signed_root
from sluice.gateway.blocks.refusal import RefusalKind
from sluice.gateway.blocks.root_hash import (
    NOT_HASHED,
    TOP_LEAF_OF_SUBTREE_0,
    BlockHasher,
    BlockSummary,
    subtree_of,
    top_leaves,
)

__all__ = [
    "ITEM_PROOF_BYTES_MAX",
    "ContentsProof",
    "ItemProof",
    "ProvableBlock",
    "ProvenItem",
    "claim_of",
    "is_of_record_file",
    "verify_item_proof",
]

ITEM_PROOF_BYTES_MAX: Final = 131_072_000
"""Bytes of a proof's file: those of the longest message, so of the longest item."""
SIBLINGS_MAX: Final = STATE_PROOF_SIBLINGS_MAX * 5 // 4 + 256
"""Siblings of a path: those of the longest state proof, with its nodes of one child, and below them a block,
a tree of all block hashes and the block of that."""
_WHAT: Final = "item proof"
_ALL_BLOCKS_LEAF, _PREVIOUS_BLOCK_LEAF = 1, 0
"""Leaves of the top tree: two hashes of the footer."""


class ContentsProof(NamedTuple):
    """A block contents proof.

    Its signature is that of the root hash to which the siblings lead; of a record file whose nodes have
    signed it alone, it is their serialized SignedRecordFileProof.
    """

    item: bytes
    siblings: tuple[Sibling, ...]
    """From the item's leaf up."""
    signature: bytes = b""

    def message(self) -> proof_pb2.BlockContentsProof:
        """Return it as it is sent."""
        return proof_pb2.BlockContentsProof(
            block_item=self.item,
            sibling_hashes=[
                proof_pb2.MerkleSiblingHash(is_first=is_left, sibling_hash=sibling)
                for is_left, sibling in self.siblings
            ],
            block_signature=self.signature,
        )

    @classmethod
    def of(cls, message: proof_pb2.BlockContentsProof, what: str = _WHAT) -> ContentsProof:
        """Read a message. Raises ProofDataError."""
        if len(message.sibling_hashes) > SIBLINGS_MAX:
            raise ProofDataError(what, f"{len(message.sibling_hashes)} siblings", f"at most {SIBLINGS_MAX}")
        siblings = []
        for place, one in enumerate(message.sibling_hashes):
            if len(one.sibling_hash) != HASH_SIZE and (one.sibling_hash or one.is_first):
                got = f"{'is_first and ' if one.is_first else ''}{len(one.sibling_hash)} bytes"
                raise ProofDataError(f"{what}: sibling {place}", got, f"{HASH_SIZE} bytes, or nothing at all")
            siblings.append(Sibling(one.is_first, one.sibling_hash))
        return cls(message.block_item, tuple(siblings), message.block_signature)


# --- making -------------------------------------------------------------------------------------------------


class ProvableBlock:
    """A whole block whose items can be proved.

    Args:
        root_hash: the block's, which decides its layout; None: its version does.

    Raises:
        BlockRefused: the items are no block.
        LayoutError: the block has another root hash.
    """

    def __init__(self, items: Sequence[bytes], root_hash: bytes | None = None) -> None:
        self.items = items
        self._kinds = kinds_of(items)
        hasher = BlockHasher()
        hasher.add(items)
        summary = hasher.finish()
        if root_hash not in (None, summary.root_hash):
            other = summary.in_other_layout()
            if other is None or other.root_hash != root_hash:
                assert root_hash is not None
                what = f"root hash of block {summary.number}"
                raise LayoutError(what, summary.root_hash.hex(), root_hash.hex())
            summary = other
        self.summary: BlockSummary = summary
        self._top = top_leaves(summary.root_layout, read_footer(summary.footer), hasher.subtree_roots())

    def places_of_hash(self, digest: bytes) -> list[int]:
        """Return the places of the items with this hash, of their leaf or of their bytes."""
        return [
            place
            for place, item in enumerate(self.items)
            if digest in (leaf_hash(item), hashlib.sha384(item).digest())
        ]

    def path_of(self, index: int) -> list[Sibling]:
        """Return the siblings from an item's leaf to the block's root hash. Raises NotProvable."""
        kind = self._kinds[index]
        subtree = subtree_of(kind)
        if subtree is None or subtree == NOT_HASHED:
            what = f"block {self.summary.number} item {index}"
            raise NotProvable(what, item_name(kind), "an item that the root hash covers")
        beside = [place for place, other in enumerate(self._kinds) if subtree_of(other) == subtree]
        leaves = [leaf_hash(self.items[place]) for place in beside]
        within = audit_path(beside.index(index), len(leaves), lambda begin, end: tree_root(leaves[begin:end]))
        return within + self._path_of_top(TOP_LEAF_OF_SUBTREE_0 + subtree)

    def path_of_tree(self) -> list[Sibling]:
        """Return the siblings from the root over the hashes of all blocks before to the block's root hash."""
        return self._path_of_top(_ALL_BLOCKS_LEAF)

    def _path_of_top(self, leaf: int) -> list[Sibling]:
        top = self._top
        path = audit_path(leaf, len(top), lambda begin, end: tree_root(top[begin:end]))
        if self.summary.root_layout == 8:
            path.append(SINGLE_CHILD)
        return [*path, Sibling(True, leaf_hash(self.summary.timestamp))]

    def path_to_signature(self) -> tuple[list[Sibling], bytes]:
        """Return the siblings from the block's root hash to the signed one, and its signature.

        Raises NotProvable if no proof of the block signs a root hash.
        """
        for item in self.summary.proofs:
            proof = proof_of(item)
            kind = kind_of_proof(proof)
            if kind in (ProofKind.TSS, ProofKind.ED25519):
                return [], proof.signed_block_proof.block_signature
            if kind is ProofKind.STATE:
                try:
                    return path_to_signed_root(proof.block_state_proof, self.summary)
                except (ProofDataError, BlockRefused) as error:
                    raise NotProvable(error.what, error.got, error.expected) from error
        kinds = ", ".join(kind_of_proof(proof_of(item)) for item in self.summary.proofs)
        raise NotProvable(f"proofs of block {self.summary.number}", kinds, "one that signs the root hash")

    def prove(self, index: int) -> ContentsProof:
        """Return the proof of an item. Raises NotProvable.

        Nodes that sign a record file sign nothing else of its block.
        """
        path, item = self.path_of(index), self.items[index]
        try:
            following, signature = self.path_to_signature()
        except NotProvable:
            for proof in map(proof_of, self.summary.proofs):
                if item is self.summary.record_file and kind_of_proof(proof) is ProofKind.RECORD_FILE:
                    return ContentsProof(item, tuple(path), proof.signed_record_file_proof)
            raise
        return ContentsProof(item, (*path, *following), signature)

    def prove_under(self, index: int, later: ProvableBlock, tree: Sequence[Sibling]) -> ContentsProof:
        """Return the proof of an item under a later block. Raises NotProvable.

        Args:
            tree: from this block's root hash to the root over the hashes of all blocks before the later one.
        """
        following, signature = later.path_to_signature()
        siblings = (*self.path_of(index), *tree, *later.path_of_tree(), *following)
        return ContentsProof(self.items[index], siblings, signature)


# --- the file -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ItemProof:
    """A proof to take away: of an item, of its block's number, and of the later block that is trusted."""

    block_number: int
    item: ContentsProof
    header: ContentsProof | None
    """None: the item is the header, or a record file that its nodes have signed alone."""
    under_header: ContentsProof | None = None
    """The header of a later block, if the paths go through its tree of all block hashes."""

    def to_bytes(self) -> bytes:
        """Return the bytes of the file. Only the item's path has a signature there."""

        def message(proof: ContentsProof | None) -> proof_pb2.BlockContentsProof | None:
            return None if proof is None else proof._replace(signature=b"").message()

        return item_proof_pb2.ItemProof(
            block_number=self.block_number,
            item=_signed_part(self.item).message(),
            header=message(self.header),
            under_header=message(self.under_header),
        ).SerializeToString(deterministic=True)

    @classmethod
    def from_bytes(cls, data: bytes) -> ItemProof:
        """Read a file. Raises ProofDataError if it is none, or another encoding of one."""
        if len(data) > ITEM_PROOF_BYTES_MAX:
            raise ProofDataError(_WHAT, f"{len(data)} bytes", f"at most {ITEM_PROOF_BYTES_MAX}")
        message = item_proof_pb2.ItemProof()
        _check_sibling_counts(data)
        try:
            message.ParseFromString(data)
        except DecodeError:
            raise ProofDataError(
                _WHAT, f"{len(data)} bytes that do not parse", "a file of `sluice prove`"
            ) from None
        message.DiscardUnknownFields()
        canonical = message.SerializeToString(deterministic=True)
        if canonical != data:
            form = "not its canonical form" if canonical else "something else"
            raise ProofDataError(_WHAT, f"{len(data)} bytes that are {form}", "a file of `sluice prove`")
        if not message.HasField("item"):
            raise ProofDataError(_WHAT, "no item", "one")
        parts = {}
        for name in ("header", "under_header"):
            if message.HasField(name):
                parts[name] = ContentsProof.of(getattr(message, name), f"{_WHAT}: {name}")
                if parts[name].signature:
                    raise ProofDataError(f"{_WHAT}: {name}", "a signature", "none: the item has it")
        proof = ContentsProof.of(message.item, f"{_WHAT}: item")
        return cls(message.block_number, proof, parts.get("header"), parts.get("under_header"))


def _check_sibling_counts(data: bytes) -> None:
    """Refuse too many siblings before they are parsed: that takes 25 times their bytes."""
    try:
        for part in fields_of(data):
            if isinstance(part.value, bytes):
                count = sum(field.number == 2 for field in islice(fields_of(part.value), SIBLINGS_MAX + 3))
                if count > SIBLINGS_MAX:
                    raise ProofDataError(_WHAT, "more siblings", f"at most {SIBLINGS_MAX} in a part")
    except ItemError as error:
        raise ProofDataError(f"{_WHAT}: {error.what}", error.got, error.expected) from error


def is_of_record_file(proof: ContentsProof) -> bool:
    """Return whether nodes have signed the item, a record file, and no root hash.

    Raises ItemError if the item is none.
    """
    if kind_of(proof.item) != ItemKind.RECORD_FILE:
        return False
    try:
        version, signatures = read_record_file_proof(proof.signature)
    except ProofDataError:
        return False
    return version == VERSION and bool(signatures)


def _signed_part(proof: ContentsProof) -> ContentsProof:
    """Return a proof without what nodes have not signed of a record file."""
    if not is_of_record_file(proof):
        return proof
    contents = field_item(2, read_record_file(proof.item).contents)
    return ContentsProof(field_item(ItemKind.RECORD_FILE, contents), (), proof.signature)


class ProvenItem(NamedTuple):
    """A proven item: the facts that a proof has shown."""

    block_number: int
    item: bytes
    """Of a record file that its nodes have signed alone: without what they have not signed."""
    kind: int  # its field number
    timestamp_seconds: int | None
    """The consensus time of the block; None for such a record file."""
    root_hash: bytes | None
    """Of the block; None for such a record file."""
    under_number: int | None
    """The later block whose tree of all block hashes the proof goes through."""
    signed_by: ProofKind | None
    """The kind of the signature; None: the caller trusts a root hash."""


def verify_item_proof(
    data: bytes, proofs: ProofVerifier | None = None, *, trusted_root_hash: bytes | None = None
) -> ProvenItem:
    """Return what the bytes of a file of `sluice prove` show.

    Args:
        proofs: has the network's keys.
        trusted_root_hash: 48 bytes, of a block that the caller trusts, in place of keys: the item's, or a
            later one on the way.

    Raises:
        ProofDataError: the file is malformed.
        BlockRefused: the proof does not hold.
    """
    assert (proofs is None) != (trusted_root_hash is None)
    way, claim = _read(data)
    if proofs is not None:
        if way is None:
            refusal = proofs.check_record_file(claim.signature, claim.shown.item)
        else:
            refusal = proofs.check_signature(claim.signature, way.signed_root_hash)
        if refusal is not None:
            raise BlockRefused(refusal)
        return claim.shown
    assert trusted_root_hash is not None
    root_hashes = [] if way is None else way.block_root_hashes
    if trusted_root_hash not in root_hashes:
        got = ", ".join(one.hex() for one in root_hashes[:3]) or "signatures of a record file alone"
        raise _unproven("root hashes on the way", got, trusted_root_hash.hex())
    assert way is not None
    is_under = way.under_place is not None and way.under_place <= root_hashes.index(trusted_root_hash)
    shown = claim.shown._replace(signed_by=None)
    return shown if is_under else shown._replace(under_number=None)  # nothing speaks for what is above it


def claim_of(data: bytes) -> ProvenItem:
    """Return what the bytes of a file claim: its paths fit together, and no signature is checked.

    Raises as `verify_item_proof`.
    """
    return _read(data)[1].shown


class _Claim(NamedTuple):
    """The proven item of a file, if the signature beside it holds."""

    shown: ProvenItem
    signature: bytes


def _read(data: bytes) -> tuple[_Way | None, _Claim]:
    """Read a file: the item's way, if it has one, and what the file shows if its signature holds."""
    proof = ItemProof.from_bytes(data)
    try:
        kind = kind_of(proof.item.item)
        if kind == ItemKind.RECORD_FILE and not proof.item.siblings:
            return None, _claim_of_record_file(proof)
        return _claim_of_paths(proof, kind)
    except ItemError as error:
        raise ProofDataError(f"{_WHAT}: {error.what}", error.got, error.expected) from error


def _claim_of_record_file(proof: ItemProof) -> _Claim:
    item, _, signature = proof.item
    if proof.header is not None or proof.under_header is not None:
        raise ProofDataError(_WHAT, "headers beside signatures of a record file", "the record file alone")
    if [field.number for field in islice(fields_of(payload_of(item)), 2)] != [2]:
        raise ProofDataError(f"{_WHAT}: record file", "more than its nodes have signed", "its contents alone")
    number = read_record_file(item).block_number
    if number != proof.block_number:
        raise _unproven("block number", str(proof.block_number), f"{number}, as the record file says")
    kind = int(ItemKind.RECORD_FILE)
    return _Claim(ProvenItem(number, item, kind, None, None, None, ProofKind.RECORD_FILE), signature)


def _claim_of_paths(proof: ItemProof, kind: int) -> tuple[_Way, _Claim]:
    under: _Way | None = None
    through: tuple[int, int] | None = None
    if proof.under_header is not None:
        under_number = read_header(proof.under_header.item, kind_of(proof.under_header.item)).number
        if under_number <= proof.block_number:
            raise _unproven("under_header", f"block {under_number}", f"one above block {proof.block_number}")
        under, through = _Way(proof.under_header, "under_header"), (proof.block_number, under_number)
    way = _Way(proof.item, "item", through)
    is_header = kind == ItemKind.BLOCK_HEADER
    if is_header == (proof.header is not None):
        got = "two headers" if is_header else "no header"
        raise ProofDataError(f"{_WHAT}: header", got, "that of the block, once")
    if proof.header is not None:
        way.joint(0).check_holds(_Way(proof.header, "header", through))
    header_item = proof.item.item if proof.header is None else proof.header.item
    header = read_header(header_item, kind_of(header_item))
    if header.number != proof.block_number:
        raise _unproven("header", f"block {header.number}", f"block {proof.block_number}")
    if leaf_hash(header.timestamp) != way.time_leaf:
        raise _unproven("header: block_timestamp", "another time", "that of the block's root hash")
    if under is not None:
        assert way.under is not None
        way.under.check_holds(under)
    signature = proof.item.signature
    shown = ProvenItem(
        header.number,
        proof.item.item,
        kind,
        header.timestamp_seconds,
        way.root_hash,
        None if through is None else through[1],
        kind_of_signature(signature),
    )
    return way, _Claim(shown, signature)


class _Way:
    """The way of an item to the signed root hash, read from the sides of its siblings.

    Args:
        through: (number, later number): the way leads through the later block's tree of all block hashes.
    """

    def __init__(self, proof: ContentsProof, what: str, through: tuple[int, int] | None = None) -> None:
        self.what = what
        self._siblings = proof.siblings
        kind = kind_of(proof.item)
        subtree = subtree_of(kind)
        if subtree is None or subtree == NOT_HASHED:
            raise _unproven(what, item_name(kind), "an item that the root hash covers")
        ends: list[int] = []  # of the blocks on the way, from the last to the item's
        place = len(self._siblings)
        under_end: int | None = None
        while True:
            ends.append(place)
            leaf, place = self._top_before(place)
            if leaf == _PREVIOUS_BLOCK_LEAF:
                continue
            if leaf == _ALL_BLOCKS_LEAF and through is not None and under_end is None:
                under_end = ends[-1]
                place = self._tree_before(place, *through)
                continue
            break
        if leaf != TOP_LEAF_OF_SUBTREE_0 + subtree or (through is not None) != (under_end is not None):
            raise self._lost(place)
        within = self._siblings[:place]
        if not all(sibling for _, sibling in within):
            raise self._lost(place)
        if kind == ItemKind.BLOCK_HEADER and any(is_left for is_left, _ in within):
            raise _unproven(what, "a header behind other items", "the first item of its block")
        self.block_root_hashes: list[bytes] = []
        """Of the blocks on the way, from the item's own on."""
        value, begin = leaf_hash(proof.item), 0
        for end in reversed(ends):
            value = climb(value, self._siblings[begin:end])
            begin = end
            self.block_root_hashes.append(value)
        self._ends = ends[::-1]
        self.under_place = None if under_end is None else self._ends.index(under_end)

    @property
    def root_hash(self) -> bytes:
        """The root hash of the item's block, 48 bytes."""
        return self.block_root_hashes[0]

    @property
    def time_leaf(self) -> bytes:
        """The hash of the time of the item's block."""
        return self._siblings[self._ends[0] - 1].hash

    @property
    def signed_root_hash(self) -> bytes:
        """The root hash at the end of the way, 48 bytes."""
        return self.block_root_hashes[-1]

    @property
    def under(self) -> _Joint | None:
        """The later block whose tree the way leads through; None: there is none."""
        return None if self.under_place is None else self.joint(self.under_place)

    def joint(self, place: int) -> _Joint:
        """Return a block on the way; 0: the item's own."""
        return _Joint(self.block_root_hashes[place], self._siblings[self._ends[place] :])

    def _top_before(self, end: int) -> tuple[int, int]:
        """Return the leaf of a block's top tree where the way enters it, and the place of that.

        `end` is the place behind the block's last sibling, the leaf of its time.
        """
        siblings = self._siblings
        if end < 1 or not siblings[end - 1].is_left:
            raise self._lost(end)
        end -= 1
        height = 4
        if end and siblings[end - 1] == SINGLE_CHILD:
            end, height = end - 1, 3
        begin = end - height
        if begin < 0 or not all(sibling for _, sibling in siblings[begin:end]):
            raise self._lost(end)
        return sum(is_left << level for level, (is_left, _) in enumerate(siblings[begin:end])), begin

    def _tree_before(self, end: int, number: int, later_number: int) -> int:
        sides = sides_of(number, later_number)
        begin = end - len(sides)
        passed = self._siblings[max(begin, 0) : end]
        if [is_left for is_left, _ in passed] != sides or not all(sibling for _, sibling in passed):
            expected = f"the way of block {number} among {later_number}"
            raise _unproven(f"{self.what}: tree of all block hashes", "another way", expected)
        return begin

    def _lost(self, place: int) -> BlockRefused:
        expected = "the way from an item through its block to a signed one"
        return _unproven(f"{self.what}: sibling {max(place - 1, 0)}", "another way", expected)


class _Joint(NamedTuple):
    """A block on a way, and what follows it."""

    root_hash: bytes
    following: tuple[Sibling, ...]

    def check_holds(self, way: _Way) -> None:
        """Raise BlockRefused if the item of a way is not in this block."""
        other = way.joint(0)
        if other.root_hash != self.root_hash:
            raise _unproven(way.what, f"root hash {other.root_hash.hex()}", self.root_hash.hex())
        if other.following != self.following:
            raise _unproven(way.what, "another way behind its block", "that of the item")


def _unproven(what: str, got: str, expected: str) -> BlockRefused:
    return refused(RefusalKind.BAD_PROOF, f"{_WHAT}: {what}", got, expected)
