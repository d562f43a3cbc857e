"""The client's side of `subscribeBlockStream`: checks of responses, and whole blocks out of them.

Pure, but for `subscribe_to`, which begins a call. One `BlockAssembler`, or one `SubscriptionOrder` to handle
blocks set by set, follows one call.

Invariants
  - Blocks come out in order of number without gaps, from `start_number` or else from the first one that came.
  - Each of these is a `SubscriptionError` and leaves the assembler unchanged: a wrong block number, items
    without a header before them, a set that spans blocks, an end of another block, a block or a set beyond
    the limits, an unknown message, anything after the status.

Source: docs/spec/wire.md section 2.2; docs/subscribing.md, "From a program".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sluice.gateway.api import subscribe_pb2
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.block_numbers import to_wire
from sluice.gateway.blocks.errors import ItemError
from sluice.gateway.blocks.item_set import ItemSet, inspect, split
from sluice.gateway.errors import SubscriptionError
from sluice.gateway.limits import BLOCK_ITEMS_MAX, INLINE_HASH_ITEMS_MAX, STORED_BLOCK_BYTES_MAX

__all__ = ["BlockAssembler", "Received", "SubscriptionOrder", "read_response", "status_name", "subscribe_to"]

_Response = subscribe_pb2.SubscribeStreamResponse
_Code = _Response.Code

_METHOD: Final = "/org.hiero.block.api.BlockStreamSubscribeService/subscribeBlockStream"

Received = _Response | ItemSet | ItemError
"""A response; or the item set of one, or the error in its form."""


def subscribe_to(channel: Any, start_number: int | None, end_number: int | None) -> Any:
    """Begin a call for these blocks on a gRPC channel, blocking or not; it gives one `Received` a message.

    Args:
        start_number: None: the server decides (start 2^64 - 1).
        end_number: None: there is no end.
    """
    method = channel.unary_stream(
        _METHOD,
        request_serializer=subscribe_pb2.SubscribeStreamRequest.SerializeToString,
        response_deserializer=read_response,
    )
    return method(
        subscribe_pb2.SubscribeStreamRequest(
            start_block_number=to_wire(start_number), end_block_number=to_wire(end_number)
        )
    )


def read_response(message: bytes) -> Received:
    """Read a serialized response; most with an item set need no parser. Raises DecodeError."""
    try:
        found = split(message, INLINE_HASH_ITEMS_MAX, field=_Response.BLOCK_ITEMS_FIELD_NUMBER)
    except ItemError as error:
        return error
    return _Response.FromString(message) if found is None else found


class SubscriptionOrder:
    """The order of one subscription's responses.

    Args:
        start_number: the first block; None: the server decides (start 2^64 - 1).
    """

    def __init__(
        self,
        start_number: int | None,
        end_number: int | None = None,
        *,
        block_bytes_max: int = STORED_BLOCK_BYTES_MAX,
        block_items_max: int = BLOCK_ITEMS_MAX,
    ) -> None:
        self.next_number = start_number
        """The next block or the one under way; None until one has begun."""
        self.in_block = False
        self.status: int | None = None
        self._end_number = end_number
        self._block_bytes_max = block_bytes_max
        self._block_items_max = block_items_max
        self._size_bytes = 0
        self._item_count = 0

    @property
    def complete(self) -> bool:
        """True if every block of the request has come."""
        return (
            self._end_number is not None
            and self.next_number is not None
            and self.next_number > self._end_number
        )

    def take(self, received: Received) -> ItemSet | int | None:
        """Take one response.

        Returns:
            Its item set; the number of the block that it ends; None for the status.

        Raises:
            SubscriptionError: it breaks a rule above; nothing was taken.
        """
        kind = received.WhichOneof("response") if isinstance(received, _Response) else "block_items"
        if self.status is not None:
            got = f"{kind or 'a message'} after the status {status_name(self.status)}"
            raise SubscriptionError(self._where(), got, "the end of the stream")
        if not isinstance(received, _Response):
            return self._items(received)
        if kind == "block_items":
            return self._items(_inspected(received.block_items.block_items))
        if kind == "end_of_block":
            return self._end(received.end_of_block.block_number)
        if kind != "status":
            expected = "block_items, end_of_block or status"
            raise SubscriptionError(self._where(), "a message of no known kind", expected)
        self.status = received.status
        return None

    def refuse_too_many(self, item_count: int) -> None:
        """Refuse a message of too many items for the block, before they are inspected.

        Raises:
            SubscriptionError: it has too many.
        """
        item_count += self._item_count
        if item_count > self._block_items_max:
            raise SubscriptionError(self._where(), f"{item_count} items", f"at most {self._block_items_max}")

    def _items(self, item_set: ItemSet | ItemError) -> ItemSet:
        if isinstance(item_set, ItemError):
            error = item_set
            what = f"{self._where()}: {error.where + ': ' if error.where else ''}{error.what}"
            raise SubscriptionError(what, error.got, error.expected) from error
        number = item_set.block_number
        if self.in_block:
            if number is not None:
                got = f"the header of block {number}"
                raise SubscriptionError(self._where(), got, f"the rest of block {self.next_number}")
        elif number is None:
            raise SubscriptionError(self._where(), "items without a header before them", "a block header")
        else:
            self._check_number(number)
        size_bytes = self._size_bytes + item_set.size_bytes
        item_count = self._item_count + len(item_set.items)
        for got_count, most, unit in (
            (size_bytes, self._block_bytes_max, "bytes of items"),
            (item_count, self._block_items_max, "items"),
        ):
            if got_count > most:
                what = f"block {self.next_number if number is None else number}"
                raise SubscriptionError(what, f"{got_count} {unit}", f"at most {most}")
        if number is not None:
            self.next_number, self.in_block = number, True
        self._size_bytes, self._item_count = size_bytes, item_count
        return item_set

    def _check_number(self, number: int) -> None:
        if self.next_number is not None and number != self.next_number:
            raise SubscriptionError(
                self._where(), f"the header of block {number}", f"that of block {self.next_number}"
            )
        if self._end_number is not None and number > self._end_number:
            expected = f"the status: block {self._end_number} was the last one asked for"
            raise SubscriptionError(self._where(), f"the header of block {number}", expected)

    def _end(self, number: int) -> int:
        if not self.in_block:
            raise SubscriptionError(self._where(), f"end_of_block({number})", "a block header")
        if number != self.next_number:
            raise SubscriptionError(
                self._where(), f"end_of_block({number})", f"end_of_block({self.next_number})"
            )
        self.next_number, self.in_block = number + 1, False
        self._size_bytes = self._item_count = 0
        return number

    def _where(self) -> str:
        if self.in_block:
            return f"subscription, in block {self.next_number}"
        if self.next_number is None:
            return "subscription, before its first block"
        return f"subscription, before block {self.next_number}"


class BlockAssembler(SubscriptionOrder):
    """The blocks of one subscription, assembled from its responses."""

    def __init__(
        self,
        start_number: int | None,
        end_number: int | None = None,
        *,
        block_bytes_max: int = STORED_BLOCK_BYTES_MAX,
        block_items_max: int = BLOCK_ITEMS_MAX,
    ) -> None:
        super().__init__(
            start_number, end_number, block_bytes_max=block_bytes_max, block_items_max=block_items_max
        )
        self._assembled: list[bytes] = []

    def feed(self, received: Received) -> Block | None:
        """Take one response; return the block that it ends, if any.

        Raises:
            SubscriptionError: it breaks a rule above; nothing was taken.
        """
        taken = self.take(received)
        if isinstance(taken, ItemSet):
            self._assembled += taken.items
        elif taken is not None:
            items, self._assembled = self._assembled, []
            return Block(taken, tuple(items))
        return None


def _inspected(items: Sequence[bytes]) -> ItemSet | ItemError:
    try:
        return inspect(list(items))
    except ItemError as error:
        return error


def status_name(code: int) -> str:
    """Return the name of a status code, or the number of an unknown one."""
    return _Code.Name(code) if code in _Code.values() else str(code)  # type: ignore[arg-type]
