"""A maker of chains of blocks that look and link like real ones, signed with an Ed25519 key.

Pure: the same seed, options and key give the same bytes on every machine, whichever blocks of the chain are
made.

    header | per round: round header, per event: event header, its transactions … | state changes | footer |
    proof

    footer   previous root   root of block N-1, or the empty-tree hash for block 0
             all blocks      streaming tree over the roots 0 … N-1
             state           SHA-384(state before ‖ leaf hashes of the state changes), a stand-in

Source: docs/spec/wire.md section 3; docs/spec/block-hash.md sections 3.1 and 4.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.merkle import EMPTY_HASH, StreamingTree, leaf_hash
from sluice.publishers.blocks.block_items import SECOND_NS, footer_item, header_item, proof_item
from sluice.publishers.blocks.linking import summary_of
from sluice.publishers.blocks.maker_items import (
    ITEM_BYTES_MIN,
    NODE_COUNT,
    event_header,
    message,
    round_header,
    timestamp,
    transaction,
)
from sluice.publishers.errors import MakerOptionError
from sluice.publishers.limits import BLOCK_FILE_BYTES_MAX, ITEM_BYTES_MAX

__all__ = ["BlockMaker", "MakerOptions", "key_of_seed"]

MAKER_ITEM_BYTES_MAX: Final = ITEM_BYTES_MAX - 16
"""Largest transaction: with its tags and lengths it fits in a message."""

MAKER_COUNT_MAX: Final = 100_000
"""The most rounds, transactions, and events of a round."""

MAKER_EVENTS_MAX: Final = 1_000_000
"""Half the items of a block that a gateway takes."""

MAKER_BLOCK_BYTES_MAX: Final = BLOCK_FILE_BYTES_MAX
"""No node takes a larger one."""

_STATE_CHANGES_KIND: Final = 7


@dataclass(frozen=True, slots=True)
class MakerOptions:
    """The shape of the blocks."""

    rounds_per_block: int = 2
    events_per_round: int = 4
    transactions_per_block: int = 10
    """Spread evenly over the events."""
    item_bytes: int = 1024
    """Size of a topic message's item; half of the transactions are topic messages."""
    block_time_seconds: float = 2.0
    """Between the timestamps of consecutive blocks."""
    start_seconds: int = 1_767_225_600
    """Timestamp of block 0, seconds since 1970."""

    def check(self) -> None:
        """Check the ranges. Raises MakerOptionError, naming the option of `sluice generate`."""
        for option, got, least, most in (
            ("--rounds-per-block", self.rounds_per_block, 1, MAKER_COUNT_MAX),
            ("--events-per-round", self.events_per_round, 1, MAKER_COUNT_MAX),
            ("--transactions-per-block", self.transactions_per_block, 0, MAKER_COUNT_MAX),
            ("--item-bytes", self.item_bytes, ITEM_BYTES_MIN, MAKER_ITEM_BYTES_MAX),
            ("--block-time", self.block_time_seconds, 0.001, 86_400),
        ):
            if not least <= got <= most:
                raise MakerOptionError(option, got, f"{least} to {most}")
        for options, product, most in (
            (
                "--rounds-per-block times --events-per-round",
                self.rounds_per_block * self.events_per_round,
                MAKER_EVENTS_MAX,
            ),
            (
                "half of --transactions-per-block times --item-bytes",
                self.transactions_per_block * self.item_bytes // 2,
                MAKER_BLOCK_BYTES_MAX,
            ),
        ):
            if product > most:
                raise MakerOptionError(options, product, f"at most {most}")


def key_of_seed(seed: int) -> Ed25519PrivateKey:
    """Derive a signing key from a seed, for tests and demos: whoever knows the seed has the key."""
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(f"sluice generate {seed}".encode()).digest())


class BlockMaker:
    """A maker of the blocks of one chain."""

    def __init__(self, seed: int, key: Ed25519PrivateKey, options: MakerOptions | None = None) -> None:
        """The seed decides the content, the key signs each block's root."""
        self._seed = seed
        self._key = key
        self._options = options or MakerOptions()
        self._options.check()

    def blocks(self, count: int, first_number: int = 0) -> Iterator[Block]:
        """Yield `count` blocks from `first_number` on.

        It makes the blocks before them too, since the links lead through those.
        """
        tree = StreamingTree()
        previous_root = EMPTY_HASH
        state_root = hashlib.sha384(f"state {self._seed}".encode()).digest()
        for number in range(first_number + count):
            body, state_after = self._body(number, state_root)
            items = [*body, footer_item(previous_root, tree.root(), state_root)]
            root = summary_of(number, items, 16).root_hash
            items.append(proof_item(number, self._key.sign(root)))
            tree.push(root)
            previous_root, state_root = root, state_after
            if number >= first_number:
                yield Block(number, tuple(items))

    def _body(self, number: int, state_root: bytes) -> tuple[list[bytes], bytes]:
        """Return the items up to the footer, and the state root after it."""
        options = self._options
        rng = Random(f"{self._seed}:{number}")
        start_ns = options.start_seconds * SECOND_NS + round(number * options.block_time_seconds * SECOND_NS)
        items = [header_item(number, start_ns)]
        changes = hashlib.sha384(state_root)
        event_count = options.rounds_per_block * options.events_per_round
        made = 0
        for event in range(event_count):
            round_index, in_round = divmod(event, options.events_per_round)
            round_number = 1 + number * options.rounds_per_block + round_index
            at_ns = start_ns + event * 1_000_000 + rng.randrange(1000) * 1000
            if in_round == 0:
                items.append(round_header(round_number))
            items.append(event_header(rng, round_number, event % NODE_COUNT, at_ns, event))
            due = options.transactions_per_block * (event + 1) // event_count
            for _ in range(due - made):
                made += 1
                made_transaction = transaction(rng, at_ns + made, options.item_bytes)
                items.extend(made_transaction.items)
                changes.update(leaf_hash(made_transaction.state_changes))
        last = message(_STATE_CHANGES_KIND, message(1, timestamp(start_ns + event_count * 1_000_000)))
        items.append(last)
        changes.update(leaf_hash(last))
        return items, changes.digest()
