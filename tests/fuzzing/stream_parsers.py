"""The parsers of messages and streams: of publishers, servers, and clients over TCP.

As in `tests.fuzzing.parsers`, a function takes any bytes and returns; whatever it raises is a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from sluice.datastream.errors import ServerSpokeWrongly
from sluice.datastream.layout import Entry, StreamHeader, encode_entry, encode_header
from sluice.datastream.protocol.commands import Command, encode_command
from sluice.datastream.protocol.packets import PacketReader, encode_result
from sluice.gateway.api import block_items_pb2, publish_pb2, subscribe_pb2
from sluice.gateway.blocks.errors import BlockRefused, ItemError, LayoutError
from sluice.gateway.blocks.item_set import inspect, split
from sluice.gateway.blocks.proofs.ledger_data import publications_in, published_ledger
from sluice.gateway.blocks.root_hash import BlockHasher
from sluice.gateway.blocks.stream_layout import BlockDecoder, encode
from sluice.gateway.errors import SubscriptionError
from sluice.gateway.services.subscription_client import BlockAssembler, read_response
from tests.datastream.fuzz_commands import STREAM_TYPE, check_request
from tests.gateway.block_makers import block_items
from tests.gateway.blocks.proofs import real
from tests.gateway.blocks.proofs.tss_chain import publishing_transaction

__all__ = ["STREAM_TARGETS", "Target"]

_Publish = publish_pb2.PublishStreamRequest
_Subscribe = subscribe_pb2.SubscribeStreamResponse
_SIZE_BYTES: Final = 2


class Target(NamedTuple):
    """See `parsers.Parser`."""

    name: str
    run: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]
    size_max: int


def _item_set() -> block_items_pb2.BlockItemSet:
    return block_items_pb2.BlockItemSet(block_items=block_items())


def _end() -> block_items_pb2.BlockEnd:
    return block_items_pb2.BlockEnd(block_number=7)


# --- gRPC ---------------------------------------------------------------------------------------------------


def _run_publish_message(data: bytes) -> None:
    """Parse, inspect and hash a publisher's message; what is split off is the same."""
    found = None
    with suppress(ItemError):
        found = split(data, len(data))
    try:
        request = _Publish.FromString(data)
        item_set = inspect(list(request.block_items.block_items))
    except (DecodeError, ItemError):
        assert found is None
        return
    assert found in (None, item_set)
    with suppress(BlockRefused):
        BlockHasher().add(item_set.items, item_set.kinds)


def _publish_messages() -> list[bytes]:
    stop = _Publish.EndStream(end_code=_Publish.EndStream.Code.TOO_FAR_BEHIND, latest_block_number=9)
    messages = (_Publish(block_items=_item_set()), _Publish(end_of_block=_end()), _Publish(end_stream=stop))
    return [message.SerializeToString() for message in messages]


def _framed(messages: Iterable[bytes]) -> bytes:
    return b"".join(len(message).to_bytes(_SIZE_BYTES, "big") + message for message in messages)


def _run_subscription(data: bytes) -> None:
    """Parse a server's messages, each after its size."""
    assembler = BlockAssembler(None, block_bytes_max=10_000, block_items_max=100)
    position = 0
    while position < len(data):
        start = position + _SIZE_BYTES
        position = start + int.from_bytes(data[position:start], "big")
        before = (assembler.next_number, assembler.in_block, assembler.status)
        try:
            assembler.feed(read_response(data[start:position]))
        except DecodeError:
            continue
        except SubscriptionError:
            assert (assembler.next_number, assembler.in_block, assembler.status) == before


def _subscriptions() -> list[bytes]:
    items, end = _Subscribe(block_items=_item_set()), _Subscribe(end_of_block=_end())
    status = _Subscribe(status=_Subscribe.Code.SUCCESS)
    one = [message.SerializeToString() for message in (items, end, status)]
    return [_framed(one), _framed([one[0], one[0], one[1]]), _framed([one[2], one[0]])]


# --- TCP ----------------------------------------------------------------------------------------------------


def _run_commands(data: bytes) -> None:
    """Parse a client's requests, whole and cut after their first bytes."""
    cuts = [data[0], data[-1]] if data else []
    check_request(data, cuts, "close")
    check_request(data, cuts, "keep")


def _commands() -> list[bytes]:
    asked = [
        encode_command(Command.HEADER, STREAM_TYPE),
        encode_command(Command.ENTRY, STREAM_TYPE, 3),
        encode_command(Command.BOOKMARK, STREAM_TYPE, b"b"),
        encode_command(Command.START, STREAM_TYPE, 0),
        encode_command(Command.STOP, STREAM_TYPE),
    ]
    return [*asked, b"".join(asked), encode_command(Command.START_BOOKMARK, STREAM_TYPE, b"sixteen bytes !!")]


def _run_packets(data: bytes) -> None:
    """Parse a server's bytes, whole and in two pieces; decode the entries as blocks."""
    try:
        packets = PacketReader().feed(data)
    except ServerSpokeWrongly:
        return
    cut = len(data) // 2
    pieces = PacketReader()
    assert pieces.feed(data[:cut]) + pieces.feed(data[cut:]) == packets
    decoder = BlockDecoder(100_000)
    for packet in packets:
        if isinstance(packet, Entry):
            number = decoder.block_number
            try:
                decoder.feed(packet.type, packet.data)
            except LayoutError:
                assert decoder.block_number == number


def _packets() -> list[bytes]:
    pairs = encode(7, block_items(), bytes(48))
    entries = b"".join(encode_entry(Entry(kind, number, data)) for number, (kind, data) in enumerate(pairs))
    header = encode_header(StreamHeader(1, 137, STREAM_TYPE, 5000, 9))
    return [encode_result(0, "OK") + header, encode_result(0, "OK") + entries, entries]


# --- the ledger data of a block 0 ---------------------------------------------------------------------------


def _run_transaction(data: bytes) -> None:
    """Parse an item of a block 0, which may publish ledger data."""
    publications_in([data])
    try:
        published_ledger([data])
    except BlockRefused:
        return


def _transactions() -> list[bytes]:
    seeds = [publishing_transaction(b"\x0a\x20" + bytes(32))]
    if real.FOLDER.is_dir():
        seeds.append(publishing_transaction(real.publication("signed-chain")))
    return seeds


STREAM_TARGETS: Final = (
    Target("publish-message", _run_publish_message, _publish_messages, 8_192),
    Target("subscription", _run_subscription, _subscriptions, 8_192),
    Target("tcp-commands", _run_commands, _commands, 512),
    Target("packets", _run_packets, _packets, 8_192),
    Target("transaction", _run_transaction, _transactions, 8_192),
)
