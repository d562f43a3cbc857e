"""The root hash of a block, computed while its items come in.

Pure. Each item's leaf goes into a subtree as it arrives, so only the top is left to hash at the block's end.

Invariants
  - A call of `add` that raises leaves the hasher unchanged.
  - The root depends on the items alone, not on how calls of `add` divide them.
  - Different threads may call, one after the other.
Source: docs/spec/block-hash.md sections 2 and 3.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from sluice.gateway.blocks.errors import ItemError
from sluice.gateway.blocks.items import (
    Footer,
    Header,
    ItemKind,
    cannot_parse,
    check_proof,
    item_name,
    kinds_of,
    read_footer,
    read_header,
    refused,
    stream_entry_of,
)
from sluice.gateway.blocks.merkle import (
    EMPTY_HASH,
    HASH_SIZE,
    StreamingTree,
    inner_hash,
    leaf_hash,
    leaf_hashes,
    tree_root,
    unary_hash,
)
from sluice.gateway.blocks.refusal import RefusalKind

__all__ = [
    "NOT_HASHED",
    "TOP_LEAF_OF_SUBTREE_0",
    "BlockHasher",
    "BlockSummary",
    "RootLayout",
    "hash_into",
    "subtree_of",
    "top_leaves",
]

PROOFS_BYTES_MAX: Final = 1_250_000
"""Bytes of all proofs of one block. Real ones have 4,000 at most, the longest valid state proof some
1,080,000. The event loop parses a MB in 1 ms."""
PROOFS_PER_BLOCK_MAX: Final = 4
"""Real blocks carry one proof. Each costs a signature check of up to 40 ms."""

RootLayout = Literal["auto", 8, 16]
"""Setting `verification.root_layout`; `auto` goes by the version in the header."""

HAPI_MINOR_LAYOUT_16: Final = 78

CONSENSUS_HEADERS, INPUTS, OUTPUTS, STATE_CHANGES, TRACE_DATA, EXTENSION_0 = range(6)
SUBTREE_COUNT: Final = EXTENSION_0 + 8
NOT_HASHED: Final = -1
TOP_LEAF_OF_SUBTREE_0: Final = 3
"""Leaves of the top tree before those of the subtrees: the footer's."""
_CORE_LEAVES: Final = TOP_LEAF_OF_SUBTREE_0 + EXTENSION_0
"""All leaves of layout 8, and half of those of layout 16."""

_SUBTREE_OF_KIND: Final[dict[int, int]] = {
    ItemKind.BLOCK_HEADER: OUTPUTS,
    ItemKind.EVENT_HEADER: CONSENSUS_HEADERS,
    ItemKind.ROUND_HEADER: CONSENSUS_HEADERS,
    ItemKind.SIGNED_TRANSACTION: INPUTS,
    ItemKind.TRANSACTION_RESULT: OUTPUTS,
    ItemKind.TRANSACTION_OUTPUT: OUTPUTS,
    ItemKind.STATE_CHANGES: STATE_CHANGES,
    ItemKind.RECORD_FILE: OUTPUTS,
    ItemKind.TRACE_DATA: TRACE_DATA,
}
_SUBTREE_OF_REMAINDER: Final[Mapping[int, int]] = {
    0: NOT_HASHED,
    3: CONSENSUS_HEADERS,
    4: INPUTS,
    5: OUTPUTS,
    6: STATE_CHANGES,
    7: TRACE_DATA,
    **{8 + number: EXTENSION_0 + number for number in range(8)},
    19: NOT_HASHED,
}
# Members of a class are slower.
_FOOTER: Final = ItemKind.BLOCK_FOOTER
_PROOF: Final = ItemKind.BLOCK_PROOF
_RECORD_FILE: Final = ItemKind.RECORD_FILE
_STREAM_ENTRY: Final = ItemKind.STREAM_ENTRY
# Between header and footer, these need no other check.
_BODY_KINDS: Final = frozenset(_SUBTREE_OF_KIND) - {ItemKind.BLOCK_HEADER, ItemKind.RECORD_FILE}
_BODY_BYTES: Final = bytes(_BODY_KINDS)
# For fewer items, pushing leaves one by one is faster.
_FEW_ITEMS: Final = 3
# The right half of layout 16 in every block so far.
_NO_EXTENSIONS: Final = [EMPTY_HASH] * 8
_EMPTY_EXTENSION_HALF: Final = tree_root(_NO_EXTENSIONS)
# An absent state root in layout 8.
_ABSENT_STATE_LAYOUT_8: Final = bytes(HASH_SIZE)


def subtree_of(kind: int) -> int | None:
    """Return the subtree of a body item; NOT_HASHED: none; None: the item is refused."""
    if kind < 20:
        return _SUBTREE_OF_KIND.get(kind)
    return _SUBTREE_OF_REMAINDER.get(kind % 20)


class BlockSummary(NamedTuple):
    """All that links, proofs, acknowledgements and status need of a whole block."""

    number: int
    timestamp_seconds: int  # consensus time, seconds since 1970
    timestamp: bytes
    """The serialized Timestamp of the header."""
    hapi_minor: int
    root_layout: Literal[8, 16]  # of `root_hash`
    root_hash: bytes
    root_hash_other_layout: bytes | None
    """None if the block cannot have the other layout."""
    previous_root_hash: bytes  # footer field 1
    all_blocks_root_hash: bytes  # footer field 2
    proofs: tuple[bytes, ...]  # items, in order; at least one
    record_file: bytes | None  # an item, which the proof of such a block signs
    header: bytes
    footer: bytes
    item_count: int
    size_bytes: int

    def in_other_layout(self) -> "BlockSummary | None":
        """Return the same block with the root of the other layout, if there is one."""
        if self.root_hash_other_layout is None:
            return None
        return self._replace(
            root_layout=8 if self.root_layout == 16 else 16,
            root_hash=self.root_hash_other_layout,
            root_hash_other_layout=self.root_hash,
        )


class BlockHasher:
    """Takes the items of one block as they come, and gives its summary at the end.

    The caller passes every item to `add` once, in order, then calls `finish`.
    """

    def __init__(self, root_layout: RootLayout = "auto") -> None:
        self._root_layout: RootLayout = root_layout
        self._trees: defaultdict[int, StreamingTree] = defaultdict(StreamingTree)  # those that have leaves
        self._header: Header | None = None
        self._footer: Footer | None = None
        self._record_file: bytes | None = None
        self._proofs: tuple[bytes, ...] = ()
        self._item_count = 0
        self._size_bytes = 0

    @property
    def number(self) -> int | None:
        """The block's number, once known."""
        return None if self._header is None else self._header.number

    @property
    def item_count(self) -> int:
        """Items so far."""
        return self._item_count

    @property
    def size_bytes(self) -> int:
        """Bytes of the items so far."""
        return self._size_bytes

    def add(
        self, items: Sequence[bytes], kinds: Sequence[int] | None = None, size_bytes: int | None = None
    ) -> None:
        """Take the next items of the block.

        `kinds` and `size_bytes` are computed unless passed. Raises BlockRefused for an item that is
        malformed, unsupported or in the wrong place.
        """
        if kinds is None:
            try:
                kinds = kinds_of(items, self._item_count)
            except ItemError as error:
                raise cannot_parse(error) from error
        if not kinds:
            return
        header, footer, proofs = self._header, self._footer, self._proofs
        rest = _other_than_body(kinds)
        body_start, body_end = 0, len(kinds)
        if header is None:
            header = read_header(items[0], kinds[0])
            body_start = 1
        if footer is not None:
            body_end = 0
            proofs = self._with_proofs(items, kinds, 0, header.number)
        elif _FOOTER in rest:
            body_end = kinds.index(_FOOTER)
            footer = read_footer(items[body_end])
            proofs = self._with_proofs(items, kinds, body_end + 1, header.number)
        record_file, subtree_of_kind = self._record_file, _SUBTREE_OF_KIND
        if body_end - body_start != len(kinds):
            rest = _other_than_body(kinds[body_start:body_end])
        if rest:
            record_file, subtree_of_kind = self._look_at_body(items, kinds, body_start, body_end)
        item_count = len(items)
        if size_bytes is None:
            size_bytes = sum(map(len, items))
        if body_end < item_count:
            items, kinds = items[:body_end], kinds[:body_end]
        hash_into(self._trees, items, kinds, subtree_of_kind)  # nothing fails from here on
        self._header, self._footer, self._proofs = header, footer, proofs
        self._record_file = record_file
        self._item_count += item_count
        self._size_bytes += size_bytes

    def subtree_roots(self) -> list[bytes]:
        """Return the root of each subtree so far."""
        trees = self._trees
        return [trees[at].root() if at in trees else EMPTY_HASH for at in range(SUBTREE_COUNT)]

    def finish(self) -> BlockSummary:
        """Return the block's summary. Raises BlockRefused if header, footer or proof is missing."""
        header, footer = self._header, self._footer
        if header is None:
            raise refused(RefusalKind.MISSING_ITEM, "block", "no items", "a block header first")
        if footer is None:
            raise refused(RefusalKind.MISSING_ITEM, "block", "no block footer", "one after the other items")
        if not self._proofs:
            raise refused(
                RefusalKind.MISSING_ITEM, "block", "no block proof", "at least one after the footer"
            )
        layout, root_hash, other = self._roots(header, footer)
        return BlockSummary(
            number=header.number,
            timestamp_seconds=header.timestamp_seconds,
            timestamp=header.timestamp,
            hapi_minor=header.hapi_minor,
            root_layout=layout,
            root_hash=root_hash,
            root_hash_other_layout=other,
            previous_root_hash=footer.previous_root_hash,
            all_blocks_root_hash=footer.all_blocks_root_hash,
            proofs=self._proofs,
            record_file=self._record_file,
            header=header.item,
            footer=footer.item,
            item_count=self._item_count,
            size_bytes=self._size_bytes,
        )

    def _roots(self, header: Header, footer: Footer) -> tuple[Literal[8, 16], bytes, bytes | None]:
        roots = self.subtree_roots()
        extensions = roots[EXTENSION_0:]
        has_extension = extensions != _NO_EXTENSIONS
        time_leaf = leaf_hash(header.timestamp)

        core = tree_root(top_leaves(16, footer, roots)[:_CORE_LEAVES])
        extension = tree_root(extensions) if has_extension else _EMPTY_EXTENSION_HALF
        root_16 = inner_hash(time_leaf, inner_hash(core, extension))

        if not footer.state_root_hash:
            core = tree_root(top_leaves(8, footer, roots))
        root_8 = inner_hash(time_leaf, unary_hash(core))

        if self._root_layout == 16:
            return 16, root_16, None
        if self._root_layout == 8:
            assert not has_extension
            return 8, root_8, None
        if has_extension:
            return 16, root_16, None
        if (header.hapi_major, header.hapi_minor) >= (0, HAPI_MINOR_LAYOUT_16):
            return 16, root_16, root_8
        return 8, root_8, root_16

    def _with_proofs(
        self, items: Sequence[bytes], kinds: Sequence[int], start: int, block_number: int
    ) -> tuple[bytes, ...]:
        proofs = self._proofs
        for index in range(start, len(items)):
            what = f"item {self._item_count + index}"
            if kinds[index] != _PROOF:
                got = f"{item_name(kinds[index])} after the footer"
                raise refused(RefusalKind.CANNOT_PARSE, what, got, "only block proofs")
            if len(proofs) == PROOFS_PER_BLOCK_MAX:
                more = f"more than {PROOFS_PER_BLOCK_MAX} proofs"
                raise refused(RefusalKind.UNSUPPORTED, what, more, f"at most {PROOFS_PER_BLOCK_MAX}")
            size_bytes = sum(map(len, proofs)) + len(items[index])
            if size_bytes > PROOFS_BYTES_MAX:
                got = f"{size_bytes} bytes of proofs"
                raise refused(RefusalKind.UNSUPPORTED, what, got, f"at most {PROOFS_BYTES_MAX}")
            if items[index] in proofs:
                # The root hash does not cover proofs: with a copy, other bytes would be a valid block.
                got = "a proof that was there before"
                raise refused(RefusalKind.CANNOT_PARSE, what, got, "each proof once")
            check_proof(items[index], block_number)
            proofs = (*proofs, items[index])
        return proofs

    def _check_stream_entries(
        self, items: Sequence[bytes], kinds: Sequence[int], start: int, end: int
    ) -> None:
        """Refuse, in nodes of any layout, what no stream can have."""
        for index in range(start, end):
            if kinds[index] == _STREAM_ENTRY:
                try:
                    stream_entry_of(items[index])
                except ItemError as error:
                    where = f"item {self._item_count + index}"
                    raise cannot_parse(
                        ItemError(error.what, error.got, error.expected, where=where)
                    ) from error

    def _look_at_body(
        self, items: Sequence[bytes], kinds: Sequence[int], start: int, end: int
    ) -> tuple[bytes | None, dict[int, int]]:
        """Check body items of unusual kinds; return the record file and the subtrees of all kinds."""
        record_file = self._record_file
        subtrees = dict(_SUBTREE_OF_KIND)
        body = kinds[start:end]
        first_of = dict(zip(reversed(body), range(end - 1, start - 1, -1), strict=True))
        unusual = [(index, kind) for kind, index in first_of.items() if kind not in _BODY_KINDS]
        if _STREAM_ENTRY in first_of:
            self._check_stream_entries(items, kinds, start, end)
        if body.count(_RECORD_FILE) > 1:
            unusual.append((kinds.index(_RECORD_FILE, first_of[_RECORD_FILE] + 1), _RECORD_FILE))
        for index, kind in sorted(unusual):
            what = f"item {self._item_count + index}"
            if kind == ItemKind.BLOCK_HEADER:
                raise refused(RefusalKind.CANNOT_PARSE, what, "a second block header", "one, the first item")
            if kind == ItemKind.BLOCK_PROOF:
                raise refused(RefusalKind.MISSING_ITEM, what, "a block proof", "the block footer before it")
            if kind == _RECORD_FILE:
                if record_file is not None:
                    raise refused(RefusalKind.CANNOT_PARSE, what, "a second record file", "at most one")
                record_file = items[index]
                continue
            subtree = subtree_of(kind)
            if subtree is None:
                raise refused(RefusalKind.UNSUPPORTED, what, item_name(kind), "an item that can be hashed")
            if subtree >= EXTENSION_0 and self._root_layout == 8:
                expected = "an item that root layout 8 has a subtree for"
                raise refused(RefusalKind.UNSUPPORTED, what, item_name(kind), expected)
            subtrees[kind] = subtree
        return record_file, subtrees


def top_leaves(layout: Literal[8, 16], footer: Footer, subtree_roots: Sequence[bytes]) -> list[bytes]:
    """Return the leaves of a block's top tree: three hashes of the footer, then roots of subtrees."""
    state = footer.state_root_hash or (_ABSENT_STATE_LAYOUT_8 if layout == 8 else EMPTY_HASH)
    leaves = [footer.previous_root_hash, footer.all_blocks_root_hash, state, *subtree_roots]
    return leaves[:_CORE_LEAVES] if layout == 8 else leaves


def _other_than_body(kinds: Sequence[int]) -> Collection[int]:
    """Return those kinds of items that are no usual ones of a block's body."""
    if isinstance(kinds, bytes):
        return kinds.translate(None, _BODY_BYTES)
    return set(kinds) - _BODY_KINDS


def hash_into(
    trees: defaultdict[int, StreamingTree],
    items: Sequence[bytes],
    kinds: Sequence[int],
    subtree_of_kind: dict[int, int],
) -> None:
    """Append each item's leaf to the tree of its subtree, which may be a new one.

    Args:
        kinds: the field number of each item.
        subtree_of_kind: NOT_HASHED: items of this kind have no leaf.
    """
    if len(items) < _FEW_ITEMS:
        for kind, item in zip(kinds, items, strict=True):
            subtree = subtree_of_kind[kind]
            if subtree != NOT_HASHED:
                trees[subtree].push(leaf_hash(item))
        return
    for subtree, hashes in enumerate(leaf_hashes(items, kinds, subtree_of_kind, SUBTREE_COUNT)):
        if hashes:
            trees[subtree].extend(hashes)
