"""Ledger data: a network publishes them once, in block 0, and they check every TSS signature.

Pure. `refusal_of` makes the two checks that a publication must pass. The ledger id does not cover the WRAPS
key: a node that must not believe a stranger's takes the publication from a file.
Source: docs/spec/tss.md sections 1.1, 5.1 and 7.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from sluice.gateway.blocks.errors import BlockRefused, ItemError, ProofDataError
from sluice.gateway.blocks.items import ItemField, ItemKind, WireType, fields_of, kind_of, payload_of, varint
from sluice.gateway.blocks.proofs.baby_jubjub import FIELD_PRIME, POINT_SIZE, Point, read_point
from sluice.gateway.blocks.proofs.encoding import scalar_bytes
from sluice.gateway.blocks.proofs.poseidon import poseidon
from sluice.gateway.blocks.proofs.schnorr import (
    ATTESTED_KEY_SIZE,
    MEMBERS_MAX,
    AttestedKey,
    knows_secret,
    read_attested_key,
)
from sluice.gateway.blocks.proofs.wraps import WRAPS_KEY_SIZE
from sluice.gateway.blocks.refusal import Refusal, RefusalKind
from sluice.gateway.blocks.trusted_keys import LEDGER_ID_SIZE

__all__ = [
    "PADDING_KEY",
    "PUBLICATION_FIELD",
    "PUBLICATION_SIZE_MAX",
    "SENTINEL_KEY",
    "LedgerData",
    "LedgerNode",
    "SearchLimits",
    "address_book_hash",
    "may_publish",
    "publications_in",
    "published_ledger",
    "publishing_items",
    "read_publication",
    "refusal_of",
]

PUBLICATION_FIELD: Final = 77
"""Of `TransactionBody` (1.1)."""
PUBLICATION_SIZE_MAX: Final = 64 * 1024
"""Bytes of a publication; one of 128 nodes has 29,000."""

FIELDS_TO_BEGIN: Final = 6
"""The cost of a message, in fields: a block may have two million short messages."""

SENTINEL_KEY: Final[Point] = (
    6920711939553923913704084943758410605317685431754228119541520748680721639445,
    15864855719970161306208030973550124391814615182611152827202991785986622293039,
)
"""The key of a node without one (tss.md 7.1; a test derives it). Its proof of knowledge is not checked."""

PADDING_KEY: Final[Point] = (
    12242143994000228932794072931472805933014698661472621875120544547182037447307,
    18632581597336484007639911068407412014942769995951822776505801470647807372989,
)
"""P0, which fills the address book (tss.md 7.2; a test derives it)."""
PADDING_WEIGHT: Final = 0
PADDING_NODE_ID: Final = FIELD_PRIME - 1

_WHAT: Final = "ledger id publication"
_WEIGHT_MAX: Final = (1 << 63) - 1  # tss.md 5.1
_PUBLICATION_TAG: Final = varint(PUBLICATION_FIELD << 3 | WireType.LEN)


@dataclass(frozen=True, slots=True)
class LedgerNode:
    """One node of the first address book."""

    node_id: int
    weight: int
    key: AttestedKey  # with the proof that it knows the secret


@dataclass(frozen=True, slots=True)
class LedgerData:
    """A decoded publication; `refusal_of` decides whether to believe it."""

    ledger_id: bytes
    wraps_vk: bytes  # 1,768 bytes, or none
    nodes: tuple[LedgerNode, ...]  # in the order of the address book
    publication: bytes = field(compare=False, repr=False)  # as it was published

    @property
    def total_weight(self) -> int:
        """The weight of all nodes."""
        return sum(node.weight for node in self.nodes)


FIELDS_MAX: Final = 50_000
"""Fields that the search reads in block 0, some 0.04 s. It reads only transactions that hold the two bytes of
the tag of field 77, which random bytes do once in 65 kB."""

PUBLISHING_BYTES_MAX: Final = 2 << 20
"""Bytes of these transactions, which go to a worker process."""


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """Limits of the search for publications in block 0."""

    fields_max: int = FIELDS_MAX
    bytes_max: int = PUBLISHING_BYTES_MAX


_LIMITS: Final = SearchLimits()


def may_publish(item: bytes) -> bool:
    """Return whether an item can hold a publication. Nearly none can."""
    try:
        return _PUBLICATION_TAG in item and kind_of(item) == ItemKind.SIGNED_TRANSACTION
    except ItemError:
        return False


def publishing_items(items: Iterable[bytes], limits: SearchLimits = _LIMITS) -> list[bytes]:
    """Return the items of block 0 that `may_publish`; if they are too many, enough to be refused for it."""
    found: list[bytes] = []
    size_bytes = 0
    for item in filter(may_publish, items):
        found.append(item)
        size_bytes += len(item)
        if len(found) * FIELDS_TO_BEGIN > limits.fields_max or size_bytes > limits.bytes_max:
            break
    return found


def publications_in(items: Iterable[bytes], limits: SearchLimits = _LIMITS) -> list[bytes]:
    """Return the publications in block 0, each once, unchecked.

    Raises BlockRefused if they exceed the limits.
    """
    return _publications(items, _Walk(limits))


class _Walk:
    """Counts what is read in block 0. Raises BlockRefused beyond the limits."""

    def __init__(self, limits: SearchLimits) -> None:
        self._limits = limits
        self._fields = 0
        self._bytes = 0

    def enter(self, transaction: bytes) -> None:
        self._bytes += len(transaction)
        if self._bytes > self._limits.bytes_max:
            raise self._refused("bytes", self._limits.bytes_max)

    def take(self, field_count: int) -> None:
        self._fields += field_count
        if self._fields > self._limits.fields_max:
            raise self._refused("fields", self._limits.fields_max)

    @staticmethod
    def _refused(unit: str, most: int) -> BlockRefused:
        what = "transactions of block 0 that may publish a ledger id"
        return BlockRefused(Refusal(RefusalKind.UNSUPPORTED, what, f"more {unit}", f"at most {most} in all"))


def _publications(items: Iterable[bytes], walk: _Walk) -> list[bytes]:
    found: dict[bytes, None] = {}
    for item in items:
        if not may_publish(item):
            continue
        walk.enter(item)
        try:
            for body in _messages(payload_of(item), 1, walk):
                found.update(dict.fromkeys(_messages(body, PUBLICATION_FIELD, walk)))
        except ItemError:
            continue
    return list(found)


def published_ledger(
    items: Iterable[bytes], ledger_id: bytes | None = None, limits: SearchLimits = _LIMITS
) -> LedgerData | None:
    """Return the checked ledger data that a block 0 publishes, if any.

    Args:
        items: of block 0, or those that `may_publish`.
        ledger_id: the expected id; None: any. Publications of another id are skipped if there are several.

    Raises:
        BlockRefused: the publication is malformed, not credible, or of another id; or there are two.

    Raises:
        BlockRefused: the publication is malformed, not credible, or of another id; or there are two.
    """
    walk = _Walk(limits)
    found = _publications(items, walk)
    if not found:
        return None
    if len(found) > 1 and ledger_id is not None:
        # Decoding those of other ids takes up to half a second each.
        claiming = [publication for publication in found if _claimed_id(publication, walk) == ledger_id]
        found = claiming or found[:1]
    if len(found) > 1:
        what = f"{_WHAT} in block 0"
        raise BlockRefused(Refusal(RefusalKind.BAD_PROOF, what, f"{len(found)} that differ", "one"))
    try:
        ledger = read_publication(found[0])
    except ProofDataError as error:
        refusal = Refusal(RefusalKind.CANNOT_PARSE, error.what, error.got, error.expected)
        raise BlockRefused(refusal) from error
    if ledger_id is not None and ledger.ledger_id != ledger_id:
        got, expected = ledger.ledger_id.hex(), f"{ledger_id.hex()}, the ledger key"
        raise BlockRefused(Refusal(RefusalKind.BAD_PROOF, f"{_WHAT}: ledger id", got, expected))
    refused = refusal_of(ledger)
    if refused is not None:
        raise BlockRefused(refused)
    return ledger


def read_publication(publication: bytes) -> LedgerData:
    """Decode a publication (1.1); skip fields of later versions. Raises ProofDataError."""
    if len(publication) > PUBLICATION_SIZE_MAX:
        raise ProofDataError(_WHAT, f"{len(publication)} bytes", f"at most {PUBLICATION_SIZE_MAX}")
    ledger_id, wraps_vk = b"", b""
    contributions: list[bytes] = []
    seen: set[int] = set()
    for number, wire_type, value in _fields(publication, _WHAT):
        if number not in (1, 2, 3):
            continue
        if wire_type != WireType.LEN or not isinstance(value, bytes):
            raise ProofDataError(f"{_WHAT}: field {number}", f"wire type {wire_type.value}", "2")
        if number == 3:
            contributions.append(value)
            continue
        if number in seen:
            raise ProofDataError(f"{_WHAT}: field {number}", "it twice", "at most once")
        seen.add(number)
        if number == 1:
            ledger_id = value
        else:
            wraps_vk = value
    if len(ledger_id) != LEDGER_ID_SIZE:
        raise ProofDataError(f"{_WHAT}: ledger id", f"{len(ledger_id)} bytes", f"{LEDGER_ID_SIZE}")
    if len(wraps_vk) not in (0, WRAPS_KEY_SIZE):
        raise ProofDataError(f"{_WHAT}: WRAPS key", f"{len(wraps_vk)} bytes", f"{WRAPS_KEY_SIZE}, or none")
    if not 1 <= len(contributions) <= MEMBERS_MAX:
        raise ProofDataError(f"{_WHAT}: nodes", f"{len(contributions)}", f"1 to {MEMBERS_MAX}")
    nodes = tuple(_read_node(encoded, index) for index, encoded in enumerate(contributions))
    node_ids = [node.node_id for node in nodes]
    if len(set(node_ids)) < len(node_ids):
        twice = next(node_id for node_id in node_ids if node_ids.count(node_id) > 1)
        raise ProofDataError(f"{_WHAT}: node {twice}", "it twice", "at most once")
    return LedgerData(ledger_id, wraps_vk, nodes, publication)


def refusal_of(ledger: LedgerData) -> Refusal | None:
    """Return why the ledger id (7.2) or a proof of knowledge (5.1) does not hold, or None."""
    book_hash = address_book_hash(ledger.nodes)
    if book_hash != ledger.ledger_id:
        return Refusal(
            RefusalKind.BAD_PROOF,
            f"{_WHAT}: ledger id (tss.md 7.2)",
            ledger.ledger_id.hex(),
            f"{book_hash.hex()}, the address book's hash",
        )
    for node in ledger.nodes:
        if node.key.Y != SENTINEL_KEY and not knows_secret(node.key):
            return Refusal(
                RefusalKind.BAD_PROOF,
                f"{_WHAT}: node {node.node_id}",
                "a proof of knowledge that does not hold (tss.md 5.1)",
                "one that does",
            )
    return None


@lru_cache(maxsize=8)
def address_book_hash(nodes: tuple[LedgerNode, ...]) -> bytes:
    """7.2: the Poseidon hash of 128 x, 128 y, 128 weights and 128 node ids."""
    padding_count = MEMBERS_MAX - len(nodes)
    keys = [node.key.Y for node in nodes] + [PADDING_KEY] * padding_count
    weights = [node.weight for node in nodes] + [PADDING_WEIGHT] * padding_count
    node_ids = [node.node_id for node in nodes] + [PADDING_NODE_ID] * padding_count
    elements = [*(x for x, _ in keys), *(y for _, y in keys), *weights, *node_ids]
    return scalar_bytes(poseidon(elements))


def _claimed_id(publication: bytes, walk: _Walk) -> bytes | None:
    """Return the ledger id that a publication names; None if it is unreadable."""
    if len(publication) > PUBLICATION_SIZE_MAX:
        return None
    try:
        named = _messages(publication, 1, walk)
    except ItemError:
        return None
    return named[0] if len(named) == 1 else None


def _messages(message: bytes, number: int, walk: _Walk) -> list[bytes]:
    """Return the length-delimited fields of that number. Raises ItemError."""
    walk.take(FIELDS_TO_BEGIN)
    found = []
    for one in fields_of(message):
        walk.take(1)
        if one.number == number and isinstance(one.value, bytes) and one.wire_type == WireType.LEN:
            found.append(one.value)
    return found


def _fields(message: bytes, what: str) -> list[ItemField]:
    try:
        return list(fields_of(message))
    except ItemError as error:
        raise ProofDataError(f"{what}: {error.what}", error.got, error.expected) from None


def _read_node(encoded: bytes, index: int) -> LedgerNode:
    what = f"{_WHAT}: entry {index}"
    values: dict[int, int | bytes] = {1: 0, 2: 0, 3: b""}
    seen: set[int] = set()
    for number, wire_type, value in _fields(encoded, what):
        if number not in values:
            continue
        expected = WireType.LEN if number == 3 else WireType.VARINT
        if wire_type != expected:
            raise ProofDataError(
                f"{what} field {number}", f"wire type {wire_type.value}", f"{expected.value}"
            )
        if number in seen:
            raise ProofDataError(f"{what} field {number}", "it twice", "at most once")
        seen.add(number)
        values[number] = value
    node_id, weight, key = values[1], values[2], values[3]
    assert isinstance(node_id, int)
    assert isinstance(weight, int)
    assert isinstance(key, bytes)
    if weight > _WEIGHT_MAX:
        raise ProofDataError(f"{what} weight", str(weight), f"at most {_WEIGHT_MAX}")
    if len(key) != ATTESTED_KEY_SIZE:
        raise ProofDataError(f"{what} key", f"{len(key)} bytes", f"{ATTESTED_KEY_SIZE}")
    attested = read_attested_key(key, f"{what} key")
    if attested.Y == SENTINEL_KEY:  # its proof, which would cover R, is not checked
        read_point(key[POINT_SIZE : 2 * POINT_SIZE], f"{what} key: R")
    return LedgerNode(node_id, weight, attested)
