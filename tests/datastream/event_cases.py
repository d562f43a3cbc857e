"""Events and their bytes: one list drives encoder and decoder."""

from __future__ import annotations

from sluice.datastream.events.events import Event, Generation, RawEvent
from sluice.datastream.events.network_events import (
    BatchEnd,
    BatchStart,
    BatchType,
    Bookmark,
    BookmarkType,
    Debug,
    L2Block,
    L2BlockEnd,
    Transaction,
    UpdateGer,
)
from sluice.datastream.events.original_events import (
    EndL2Block,
    L2Tx,
    OriginalBookmark,
    OriginalBookmarkType,
    OriginalUpdateGer,
    StartL2Block,
)

A32 = bytes(range(32))
B32 = bytes(range(32, 64))
C20 = bytes(range(100, 120))
U64_MAX = (1 << 64) - 1

NETWORK: list[tuple[str, Event, str]] = [
    ("batch start, as in the sample", BatchStart(0, 0, 8, 1003), "18 08 20 eb07"),
    (
        "batch start, every field",
        BatchStart(1, BatchType.REGULAR, 2, 300, Debug("né")),
        "08 01 10 01 18 02 20 ac02 2a 05 0a 03 6ec3a9",
    ),
    ("batch start, all defaults", BatchStart(), ""),
    ("batch start, an unknown type", BatchStart(type=77), "10 4d"),
    ("block end, an unknown field", L2BlockEnd(1, bytes.fromhex("1005")), "08 01 10 05"),
    (
        "block end, unknown fixed fields",
        L2BlockEnd(1, bytes.fromhex("1501020304 190102030405060708")),
        "08 01 15 01020304 19 0102030405060708",
    ),
    (
        "bookmark, unknown fields alone",
        Bookmark(unknown_fields=bytes.fromhex("1a03616263 2001")),
        "1a 03 616263 20 01",
    ),
    (
        "block, base fee and what is not known yet, in it and in its note",
        L2Block(9, debug=Debug("n", b"\x10\x07"), base_fee=A32[:4], unknown_fields=b"\x80\x01\x05"),
        "08 09 72 05 0a 01 6e 10 07 7a 04 00010203 80 01 05",
    ),
    ("batch start, empty note", BatchStart(debug=Debug()), "2a 00"),
    (
        "block, every field",
        L2Block(1, 2, 3, 4, 5, A32, 6, B32, b"\1", b"\2", C20, U64_MAX, b"\3", Debug("d")),
        "0801 1002 1803 2004 2805 3220" + A32.hex() + "3806 4220" + B32.hex() + "4a0101 520102 5a14"
        + C20.hex() + "60 ffffffffffffffffff01 6a0103 72030a0164",
    ),
    ("block, greatest u32", L2Block(delta_timestamp=(1 << 32) - 1), "20 ffffffff0f"),
    (
        "transaction",
        Transaction(1, 2, True, b"\xf9\x02", 255, A32),
        "0801 1002 1801 2202 f902 28ff01 3220" + A32.hex(),
    ),
    ("transaction of 300 bytes", Transaction(encoded=b"x" * 300), "22 ac02" + b"x".hex() * 300),
    ("batch end", BatchEnd(7, A32, B32), "0807 1220" + A32.hex() + "1a20" + B32.hex()),
    (
        "update of the exit root",
        UpdateGer(1, 2, b"\1", b"\2", 3, 4, b"\5", Debug("x")),
        "0801 1002 1a0101 220102 2803 3004 3a0105 42030a0178",
    ),
    ("block end", L2BlockEnd(128), "08 8001"),
    ("bookmark of a batch", Bookmark(BookmarkType.BATCH), "0801"),
    ("bookmark of a block", Bookmark(BookmarkType.L2_BLOCK, 300), "0802 10ac02"),
]  # fmt: skip

ORIGINAL: list[tuple[str, Event, str]] = [
    (
        "block start",
        StartL2Block(101, 1337, 1_700_000_000, A32, B32, A32, C20, 5),
        "0000000000000065 0000000000000539 000000006553f100" + A32.hex() + B32.hex() + A32.hex()
        + C20.hex() + "0005",
    ),
    ("transaction", L2Tx(128, 1, A32, b"\1\2\3\4\5"), "80 01" + A32.hex() + "00000005 0102030405"),
    ("transaction without bytes", L2Tx(255, 0), "ff 00" + bytes(32).hex() + "00000000"),
    ("block end", EndL2Block(1337, A32, B32), "0000000000000539" + A32.hex() + B32.hex()),
    (
        "update of the exit root",
        OriginalUpdateGer(1, 2, A32, C20, 65_535, B32),
        "0000000000000001 0000000000000002" + A32.hex() + C20.hex() + "ffff" + B32.hex(),
    ),
    (
        "bookmark of a block",
        OriginalBookmark(OriginalBookmarkType.L2_BLOCK, U64_MAX),
        "00 ffffffffffffffff",
    ),
    ("bookmark of a batch", OriginalBookmark(OriginalBookmarkType.BATCH, 7), "01 0000000000000007"),
]  # fmt: skip

CASES: list[tuple[Generation, str, Event, bytes]] = [
    (generation, name, event, bytes.fromhex(data))
    for generation, cases in ((Generation.NETWORK, NETWORK), (Generation.ORIGINAL, ORIGINAL))
    for name, event, data in cases
]

RAW: list[tuple[str, RawEvent]] = [
    ("unknown type", RawEvent(7, b"anything")),
    ("an unknown field before a known one", RawEvent(6, bytes.fromhex("1005 0801"))),
    ("a default that is sent", RawEvent(6, bytes.fromhex("0800"))),
    ("fields in another order", RawEvent(0xB0, bytes.fromhex("1001 0802"))),
    ("a field twice", RawEvent(6, bytes.fromhex("0801 0802"))),
    ("a long varint", RawEvent(6, bytes.fromhex("088100"))),
    ("a u32 that is too large", RawEvent(2, bytes.fromhex("20 8080808010"))),
    ("a bool of 2", RawEvent(3, bytes.fromhex("1802"))),
]
"""Valid protobuf that would not come back as the same bytes."""
