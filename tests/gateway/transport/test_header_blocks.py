"""Tests of `gateway.transport.header_blocks`: blocks assembled, read within limits, and rewritten."""

from __future__ import annotations

import hpack
import pytest

from sluice.gateway.transport.frames import ConnectionBreach, ErrorCode, Flag, FrameKind
from sluice.gateway.transport.header_blocks import (
    BLOCK_BYTES_MAX,
    FIELDS_MAX,
    HeaderBlock,
    HeaderReader,
    HeaderWriter,
    header_field,
    header_frames,
)

FIELDS = [(b":method", b"POST"), (b":path", b"/a/b"), (b"x", b"y" * 50)]


def test_a_block_comes_in_as_many_frames_as_its_sender_likes() -> None:
    block = HeaderBlock.begin(Flag.END_STREAM, 5, b"ab", now_ns=7)
    assert not block.is_whole
    for byte in (b"c", b"", b"d"):
        block.add(FrameKind.CONTINUATION, 0, 5, byte)
    block.add(FrameKind.CONTINUATION, Flag.END_HEADERS, 5, b"e")
    assert block.is_whole
    assert (bytes(block.fragment), block.ends_stream, block.began_ns) == (b"abcde", True, 7)


def test_padding_and_priority_are_not_the_block() -> None:
    flags = Flag.PADDED | Flag.PRIORITY | Flag.END_HEADERS
    block = HeaderBlock.begin(flags, 1, b"\x03" + b"PRIOR" + b"abc" + b"\0\0\0", now_ns=0)
    assert (bytes(block.fragment), block.priority, block.is_whole) == (b"abc", b"PRIOR", True)


@pytest.mark.parametrize(
    ("flags", "payload"),
    [
        (Flag.PADDED, b""),
        (Flag.PADDED, b"\x05abc"),
        (Flag.PRIORITY, b"abc"),
        (Flag.PADDED | Flag.PRIORITY, b"\1abc"),
    ],
)
def test_padding_longer_than_its_frame(flags: int, payload: bytes) -> None:
    with pytest.raises(ConnectionBreach, match="padding longer than its frame"):
        HeaderBlock.begin(flags, 1, payload, now_ns=0)


@pytest.mark.parametrize(
    ("kind", "stream_id"), [(FrameKind.PING, 0), (FrameKind.CONTINUATION, 3), (FrameKind.DATA, 1)]
)
def test_nothing_comes_between_the_frames_of_a_block(kind: int, stream_id: int) -> None:
    block = HeaderBlock.begin(0, 1, b"ab", now_ns=0)
    with pytest.raises(ConnectionBreach, match="expected CONTINUATION on stream 1"):
        block.add(kind, 0, stream_id, b"")


@pytest.mark.parametrize("size", [0, 1, 16_384])
def test_a_block_without_end_is_refused(size: int) -> None:
    """gRPC core kept 1.6 GB of one."""
    block = HeaderBlock.begin(0, 1, b"", now_ns=0)

    def send() -> None:
        for _ in range(BLOCK_BYTES_MAX):
            block.add(FrameKind.CONTINUATION, 0, 1, b"x" * size)

    with pytest.raises(ConnectionBreach) as caught:
        send()
    assert caught.value.code == ErrorCode.ENHANCE_YOUR_CALM
    assert len(block.fragment) <= BLOCK_BYTES_MAX + size


def test_blocks_are_read_in_order_with_their_table() -> None:
    encoder, reader = hpack.Encoder(), HeaderReader()
    for _ in range(2):  # the second time from the table
        assert reader.read(encoder.encode(FIELDS)) == FIELDS
    reader.allow_table(8192)
    encoder.header_table_size = 8192
    assert reader.read(encoder.encode(FIELDS)) == FIELDS


@pytest.mark.parametrize(
    "fragment",
    [
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",  # an index without end
        b"\xbe",  # an unknown entry
        b"\x80",  # index 0
        b"\x40\x05ab",  # cut off
        b"\x3f\xe2\x1f",  # a table above the limit
    ],
)
def test_what_is_no_block(fragment: bytes) -> None:
    with pytest.raises(ConnectionBreach) as caught:
        HeaderReader().read(fragment)
    assert caught.value.code == ErrorCode.COMPRESSION_ERROR


def test_an_entry_is_gone_once_it_is_evicted() -> None:
    encoder, reader = hpack.Encoder(), HeaderReader()
    reader.read(encoder.encode(FIELDS))
    reader.read(b"\x20\x3f\xe1\x1f")  # the table is emptied and restored
    with pytest.raises(ConnectionBreach, match="cannot be read"):
        reader.read(b"\xbe")


def test_a_small_block_may_not_stand_for_a_large_one() -> None:
    """One entry of 4,000 bytes, and many references of one byte to it."""
    encoder, reader = hpack.Encoder(), HeaderReader()
    reader.read(encoder.encode([(b"x", b"y" * 3_900)]))
    assert len(reader.read(b"\xbe" * 16)) == 16
    with pytest.raises(ConnectionBreach, match="fields of more than 65536 bytes"):
        reader.read(b"\xbe" * 17)


def test_fields_are_counted() -> None:
    encoder = hpack.Encoder()
    fields = [(b"a", b"b")] * FIELDS_MAX
    assert len(HeaderReader().read(encoder.encode(fields))) == FIELDS_MAX
    with pytest.raises(ConnectionBreach, match=f"got {FIELDS_MAX + 1} fields"):
        HeaderReader().read(hpack.Encoder().encode([*fields, (b"a", b"b")]))


def test_te_is_added_without_a_change_of_tables() -> None:
    encoder, decoder = hpack.Encoder(), hpack.Decoder()
    for _ in range(3):
        fields = decoder.decode(encoder.encode(FIELDS) + header_field(b"te", b"trailers"), raw=True)
        assert list(fields) == [*FIELDS, (b"te", b"trailers")]


def test_pseudo_headers_are_written_by_index_and_the_table_is_left_alone() -> None:
    """Helidon's servers refuse the literal name; a field beyond their table is an endless loop there."""
    writer, fields = HeaderWriter(), [*FIELDS, (b"long", b"z" * 5_000)]
    first = writer.write(fields)
    assert first == writer.write(fields)
    assert first[0] == 0x83  # :method POST, both in the static table
    assert b":path" not in first
    assert first[1] == 0x14  # never indexed, name 4
    decoder = hpack.Decoder()
    assert list(decoder.decode(first, raw=True)) == fields
    assert decoder.header_table.dynamic_entries == type(decoder.header_table.dynamic_entries)()


@pytest.mark.parametrize("size", [0, 10, 99, 100, 101, 250])
def test_a_block_is_written_in_as_few_frames_as_it_needs(size: int) -> None:
    written = header_frames(7, b"f" * size, ends_stream=True, priority=b"PRIOR", frame_bytes_max=100)
    block, at, count = None, 0, 0
    while at < len(written):
        length, kind, flags = int.from_bytes(written[at : at + 3], "big"), written[at + 3], written[at + 4]
        payload = written[at + 9 : at + 9 + length]
        assert length <= 100
        if block is None:
            assert kind == FrameKind.HEADERS
            block = HeaderBlock.begin(flags, 7, payload, now_ns=0)
        else:
            block.add(kind, flags, 7, payload)
        at, count = at + 9 + length, count + 1
    assert block is not None
    assert block.is_whole
    assert block.ends_stream
    assert (bytes(block.fragment), block.priority) == (b"f" * size, b"PRIOR")
    assert count == max(1, -(-(size + 5) // 100))
