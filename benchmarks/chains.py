"""Chains for benchmarks: blocks of a given number of items of a given size, ready to be sent.

They are valid (links, root hash, Ed25519 proof), so a node does all of its work on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sluice.gateway.api import block_items_pb2, publish_pb2
from sluice.gateway.blocks.items import ItemKind, field_item
from sluice.gateway.blocks.merkle import EMPTY_HASH, StreamingTree
from sluice.gateway.blocks.root_hash import BlockHasher
from sluice.gateway.key_files import public_key_hex
from sluice.publishers.blocks.block_items import (
    SECOND_NS,
    SIGNATURE_SIZE,
    footer_item,
    header_item,
    proof_item,
)

__all__ = ["SET_BYTES", "Chain", "make_chain"]

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
SET_BYTES = 64 * 1024
_STEP = 7_919
"""Between the places of two items in the pool."""
_START_SECONDS = 1_767_225_600
_Request = publish_pb2.PublishStreamRequest


@dataclass(frozen=True, slots=True)
class Chain:
    """A chain as the messages that publish it."""

    messages: list[list[bytes]]
    """The serialized requests of each block, end_of_block last."""
    item_count: int
    size_bytes: int
    """The bytes of all items."""
    ledger_key: str


def make_chain(
    block_count: int,
    items_per_block: int,
    item_bytes: int,
    *,
    header_apart: bool = False,
    sign: Callable[[bytes], bytes] = KEY.sign,
    published: Sequence[bytes] = (),
    ledger_key: str = f"ed25519:{public_key_hex(KEY)}",
    set_bytes: int = SET_BYTES,
    pool: bytes = b"",
) -> Chain:
    """Make blocks 0 to block_count - 1, each with `items_per_block` items of `item_bytes` as its body.

    Args:
        block_count: number of blocks.
        items_per_block: items between header and footer.
        item_bytes: size of each of them.
        header_apart: put the header into an item set of its own.
        sign: returns the signature of a root hash.
        published: further items of block 0.
        ledger_key: the key that checks the signatures.
        set_bytes: most bytes of items in one item set.
        pool: the items have bytes of it, each others; empty: zeros.
    """
    tree, previous = StreamingTree(), EMPTY_HASH
    messages, item_count, size_bytes = [], 0, 0
    payload = bytes(item_bytes - (2 if item_bytes < 130 else 3))
    for number in range(block_count):
        stamp = number.to_bytes(8, "big")
        items = [
            header_item(number, (_START_SECONDS + 2 * number) * SECOND_NS),
            *(published if number == 0 else ()),
        ]
        for index in range(items_per_block):
            if pool:
                begin = (number * items_per_block + index) * _STEP % (len(pool) - len(payload))
                payload = pool[begin : begin + len(payload)]
            content = stamp + index.to_bytes(4, "big") + payload[12:]
            items.append(field_item(ItemKind.SIGNED_TRANSACTION, content))
        items.append(footer_item(previous, tree.root(), EMPTY_HASH))
        hasher = BlockHasher()
        hasher.add([*items, proof_item(number, bytes(SIGNATURE_SIZE))])
        root = hasher.finish().root_hash
        items.append(proof_item(number, sign(root)))
        tree.push(root)
        previous = root
        messages.append(_messages(number, items, header_apart, set_bytes))
        item_count += len(items)
        size_bytes += sum(map(len, items))
    return Chain(messages, item_count, size_bytes, ledger_key)


def _messages(number: int, items: list[bytes], header_apart: bool, set_bytes: int) -> list[bytes]:
    """Return a block as item sets of at most `set_bytes`, and its end."""
    sets: list[list[bytes]] = [[]]
    size = 0
    for item in items:
        full = size + len(item) > set_bytes or (header_apart and item is items[1])
        if sets[-1] and full:
            sets.append([])
            size = 0
        sets[-1].append(item)
        size += len(item)
    requests = [_Request(block_items=block_items_pb2.BlockItemSet(block_items=one)) for one in sets]
    requests.append(_Request(end_of_block=block_items_pb2.BlockEnd(block_number=number)))
    return [request.SerializeToString() for request in requests]
