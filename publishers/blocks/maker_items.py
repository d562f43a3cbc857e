"""The items of made blocks, encoded like those of a real network, field by field.

Pure. Shapes and sizes follow real blocks of HAPI 0.78: events with parents, transfers of about 200 bytes,
topic messages of any size, account creations with an output, and each transaction's result and state changes.
Source: docs/spec/wire.md section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

from sluice.gateway.blocks.items import ItemKind, WireType, field_item, varint

__all__ = ["ITEM_BYTES_MIN", "MadeTransaction", "event_header", "round_header", "timestamp", "transaction"]

HASH_SIZE: Final = 48
NODE_COUNT: Final = 4
ACCOUNT_FIRST: Final = 1001
ACCOUNT_COUNT: Final = 200
FEE_ACCOUNT: Final = 802
STATUS_SUCCESS: Final = 22
ITEM_BYTES_MIN: Final = 256

_STATE_ACCOUNTS: Final = 2
_STATE_TOPICS: Final = 21
_VALID_SECONDS: Final = 120
_EXPIRY_SECONDS: Final = 7_776_000


def number(field: int, value: int) -> bytes:
    """Encode a varint field; 0 is left out, as in proto3."""
    return varint(field << 3 | WireType.VARINT) + varint(value) if value else b""


def message(field: int, *parts: bytes) -> bytes:
    """Encode a message or bytes field, even if it is empty."""
    return field_item(field, b"".join(parts))


def timestamp(at_ns: int) -> bytes:
    """Encode the content of a Timestamp; `at_ns` is in nanoseconds since 1970."""
    seconds, nanos = divmod(at_ns, 1_000_000_000)
    return number(1, seconds) + number(2, nanos)


def round_header(round_number: int) -> bytes:
    """Return a round header item."""
    return message(ItemKind.ROUND_HEADER, number(1, round_number))


def event_header(rng: Random, round_number: int, creator: int, at_ns: int, events_before: int) -> bytes:
    """Return an event header.

    Args:
        creator: node that created it, 0-based.
        events_before: events of this block so far; the last two are its parents.
    """
    core = message(1, number(1, creator), number(2, round_number), message(3, timestamp(at_ns)))
    parents = []
    for age in (1, 2):
        if events_before >= age:
            parents.append(message(2, number(2, events_before - age)))
        else:
            descriptor = message(1, rng.randbytes(HASH_SIZE)) + number(3, max(1, round_number - 1))
            parents.append(message(2, message(1, descriptor)))
    return message(ItemKind.EVENT_HEADER, core, *parents)


@dataclass(frozen=True, slots=True)
class MadeTransaction:
    """The items of one transaction, in the order of the block."""

    items: tuple[bytes, ...]
    """Signed transaction, result, sometimes an output, state changes."""
    state_changes: bytes


def transaction(rng: Random, at_ns: int, item_bytes: int) -> MadeTransaction:
    """Return one transaction: half are topic messages, the rest transfers, and a few new accounts."""
    payer = _some_account(rng)
    fee = rng.randrange(80_000, 700_000)
    draw = rng.random()
    output = b""
    transfers: tuple[tuple[int, int], ...]
    if draw < 0.5:
        topic = _account(_some_account(rng))
        signed = _topic_message(rng, at_ns, payer, fee, topic, item_bytes)
        changes = _change(_STATE_TOPICS, message(12, topic), message(13, message(1, topic)))
        transfers = ((FEE_ACCOUNT, fee), (payer, -fee))
    elif draw < 0.95:
        receiver, amount = _some_account(rng), rng.randrange(1, 1_000_000)
        transfers = ((FEE_ACCOUNT, fee), (receiver, amount), (payer, -fee - amount))
        signed = _signed(rng, _body(at_ns, payer, fee, message(14, message(1, *_amounts(transfers[1:])))))
        changes = _account_change(rng, receiver)
    else:
        created = ACCOUNT_FIRST + ACCOUNT_COUNT + rng.randrange(100_000)
        key = message(2, rng.randbytes(32))
        signed = _signed(rng, _body(at_ns, payer, fee, message(11, message(1, key), number(2, 1_000_000))))
        output = message(ItemKind.TRANSACTION_OUTPUT, message(7, message(1, _account(created))))
        changes = _account_change(rng, created)
        transfers = ((FEE_ACCOUNT, fee), (payer, -fee))
    when = message(1, timestamp(at_ns))
    result = message(
        ItemKind.TRANSACTION_RESULT,
        number(1, STATUS_SUCCESS),
        message(2, timestamp(at_ns)),
        number(6, fee),
        message(7, *_amounts(transfers)),
    )
    state_changes = message(ItemKind.STATE_CHANGES, when, changes, _account_change(rng, payer))
    items = (signed, result, output, state_changes) if output else (signed, result, state_changes)
    return MadeTransaction(items, state_changes)


def _some_account(rng: Random) -> int:
    return ACCOUNT_FIRST + rng.randrange(ACCOUNT_COUNT)


def _account(account: int) -> bytes:
    """Shard 11, realm 12, as in the public test networks."""
    return number(1, 11) + number(2, 12) + number(3, account)


def _amounts(transfers: tuple[tuple[int, int], ...]) -> list[bytes]:
    return [
        message(1, message(1, _account(account)), number(2, amount << 1 ^ amount >> 63))
        for account, amount in transfers
    ]


def _body(at_ns: int, payer: int, fee: int, data: bytes) -> bytes:
    transaction_id = message(1, message(1, timestamp(at_ns - 5_000_000_000)), message(2, _account(payer)))
    node = message(2, _account(3 + payer % NODE_COUNT))
    return transaction_id + node + number(3, 10 * fee) + message(4, number(1, _VALID_SECONDS)) + data


def _signed(rng: Random, body: bytes) -> bytes:
    pair = message(1, message(1, rng.randbytes(32)), message(3, rng.randbytes(64)))
    return message(ItemKind.SIGNED_TRANSACTION, message(1, body), message(2, pair))


def _topic_message(rng: Random, at_ns: int, payer: int, fee: int, topic: bytes, item_bytes: int) -> bytes:
    """The item has `item_bytes`, or a byte less if no length gives that."""
    text_bytes = item_bytes - _TOPIC_OVERHEAD_MIN
    seed = rng.getrandbits(64)  # so that the sizes tried below do not change what follows
    while True:
        draws = Random(seed)
        data = message(27, message(1, topic), message(2, draws.randbytes(text_bytes)))
        item = _signed(draws, _body(at_ns, payer, fee, data))
        if len(item) <= item_bytes:
            return item
        text_bytes -= len(item) - item_bytes


_TOPIC_OVERHEAD_MIN: Final = 160


def _change(state: int, key: bytes, value: bytes) -> bytes:
    """Return a StateChange that puts `value` at `key` of map `state`."""
    return message(2, number(1, state), message(5, message(1, key), message(2, value)))


def _account_change(rng: Random, account: int) -> bytes:
    expiry = 1_794_174_533 + rng.randrange(_EXPIRY_SECONDS)
    value = message(
        1,
        message(1, _account(account)),
        message(3, message(2, rng.randbytes(32))),
        number(4, expiry),
        number(5, rng.randrange(10**12)),
        number(26, _EXPIRY_SECONDS),
    )
    return _change(_STATE_ACCOUNTS, message(1, _account(account)), value)
