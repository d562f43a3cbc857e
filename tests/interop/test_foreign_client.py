"""A publisher, readers and a file reader that share no code with us (`foreign.py`), on one node.

Requests and answers are bare bytes; docs/spec spells out what the node must say and write.
"""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sluice.datastream.file.index_database import plyvel
from sluice.publishers.demo.node_process import NodeProcess
from tests.interop.foreign import (
    Block,
    Chain,
    Tcp,
    bytes_field,
    entries_of,
    entry_bytes,
    number_field,
    pages_of,
    split_fields,
)

SERVICES = "/org.hiero.block.api"
U64_MAX = (1 << 64) - 1
KEYS = [Ed25519PrivateKey.from_private_bytes(bytes([seed] * 32)) for seed in (1, 2)]
ANSWER_SECONDS = 30


def chain() -> list[Block]:
    """Items that are cut, as long as a page may take, without content, and of kinds that nobody knows."""
    make = Chain(KEYS).block
    long = random.Random(7).randbytes(3_000_000)
    page = bytes_field(4, bytes((1 << 20) - 17 - 4))
    assert len(page) == (1 << 20) - 17
    return [
        make(
            bytes_field(2, b"\n\1e"),
            bytes_field(4, b"transaction"),
            bytes_field(5, b""),
            bytes_field(7, b"s"),
        ),
        make(
            bytes_field(4, long), bytes_field(4, b""), page, bytes_field(25, b"later"), bytes_field(28, b"x")
        ),
        make(),
        *(make(bytes_field(3, b""), bytes_field(4, bytes([number]) * 300)) for number in range(40)),
    ]


BLOCKS = chain()
ENTRIES = [entry for block in BLOCKS for entry in entries_of(block)]


def item_set(items: Sequence[bytes]) -> bytes:
    """A BlockItemSet."""
    return b"".join(bytes_field(1, item) for item in items)


def messages_of(block: Block, rng: random.Random) -> Iterator[bytes]:
    """Return the block in arbitrary sets, with unknown fields in messages and sets."""
    items = block.items
    while items:
        count = rng.randrange(1, len(items) + 1)
        yield bytes_field(77, b"?") + bytes_field(1, item_set(items[:count]) + number_field(9, 9))
        items = items[count:]
    if rng.random() < 0.5:
        yield bytes_field(3, number_field(1, block.number))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node to which the whole chain was published; each acknowledgement has come."""
    folder = tmp_path_factory.mktemp("foreign")
    words = [
        word
        for key in KEYS
        for word in ("--ledger-key", f"ed25519:{key.public_key().public_bytes_raw().hex()}")
    ]
    words += ["--tcp-write-timeout-seconds", "60"]  # a test that reads may have no time
    words += ["--publish-stray-messages-max", "0"]  # not even one is dropped
    words += ["--publish-proof-idle-ms", "10000"]  # nor one that has another proof in another message
    rng = random.Random(3)
    with NodeProcess(folder / "data", folder / "log", words) as running:
        assert_it_is_empty(running)
        answers = publish(running, [message for block in BLOCKS for message in messages_of(block, rng)])
        assert answers == [bytes_field(1, number_field(1, block.number)) for block in BLOCKS]
        yield running


def assert_it_is_empty(node: NodeProcess) -> None:
    """First and last 2^64 - 1, next expected 0; no block."""
    assert ask(node, "BlockNodeService/serverStatus") == number_field(1, U64_MAX) + number_field(2, U64_MAX)
    assert [number for number, _ in split_fields(ask(node, "BlockNodeService/serverStatusDetail"))] == [1]
    assert ask(node, "BlockAccessService/getBlock", b"\x08\x00") == number_field(1, 5)


def ask(node: NodeProcess, method: str, request: bytes = b"") -> bytes:
    """One unary call."""
    with grpc.insecure_channel(node.grpc, (("grpc.max_receive_message_length", -1),)) as channel:
        call: Any = channel.unary_unary(f"{SERVICES}.{method}")
        answer: bytes = call(request, timeout=ANSWER_SECONDS)
        return answer


def publish(node: NodeProcess, messages: Sequence[bytes]) -> list[bytes]:
    """Send messages, close the sending side; return all answers until the node closes the stream."""
    with grpc.insecure_channel(node.grpc) as channel:
        call: Any = channel.stream_stream(f"{SERVICES}.BlockStreamPublishService/publishBlockStream")
        return list(call(iter(messages), timeout=ANSWER_SECONDS))


def subscribe(node: NodeProcess, request: bytes) -> list[tuple[int, int | bytes]]:
    """Return the responses to a finite subscription; each has one field."""
    with grpc.insecure_channel(node.grpc, (("grpc.max_receive_message_length", -1),)) as channel:
        call: Any = channel.unary_stream(f"{SERVICES}.BlockStreamSubscribeService/subscribeBlockStream")
        return [field for message in call(request, timeout=ANSWER_SECONDS) for field in split_fields(message)]


def end_of_stream(status: int, about: int = 0) -> bytes:
    """EndOfStream with the last block."""
    last = BLOCKS[-1].number
    return bytes_field(2, number_field(1, status) + number_field(2, last) + number_field(3, about))


# --- gRPC ---------------------------------------------------------------------------------------------------


def test_status(node: NodeProcess) -> None:
    last = BLOCKS[-1].number
    status = number_field(2, last) + number_field(4, last + 1)
    assert ask(node, "BlockNodeService/serverStatus") == status
    detail = split_fields(ask(node, "BlockNodeService/serverStatusDetail"))
    assert [number for number, _ in detail] == [1, 2, 5]
    assert [value for _, value in detail[1:]] == [number_field(2, last)] * 2


@pytest.mark.parametrize(
    ("request_", "number"),
    [(b"\x08\x01", 1), (number_field(1, U64_MAX), BLOCKS[-1].number), (b"\x10\x01", BLOCKS[-1].number)],
)
def test_get_block(node: NodeProcess, request_: bytes, number: int) -> None:
    answer = ask(node, "BlockAccessService/getBlock", request_)
    assert answer == number_field(1, 1) + bytes_field(2, item_set(BLOCKS[number].items))


@pytest.mark.parametrize(
    ("request_", "status"),
    [(number_field(1, BLOCKS[-1].number + 1), 5), (b"", 2), (b"\x10\x00", 2), (b"\xff", 2)],
)
def test_no_block(node: NodeProcess, request_: bytes, status: int) -> None:
    assert ask(node, "BlockAccessService/getBlock", request_) == number_field(1, status)


@pytest.mark.parametrize(("start", "end"), [(0, BLOCKS[-1].number), (U64_MAX, 2), (1, 1)])
def test_subscribe(node: NodeProcess, start: int, end: int) -> None:
    responses = subscribe(node, number_field(1, start) + number_field(2, end))
    assert responses.pop() == (1, 1)
    blocks: list[tuple[int, list[bytes]]] = []
    items: list[bytes] = []
    for number, value in responses:
        assert isinstance(value, bytes)
        if number == 2:
            got = [item for _, item in split_fields(value) if isinstance(item, bytes)]
            assert sum(map(len, got)) <= (1 << 20) or len(got) == 1
            items += got
        else:
            assert number == 3
            blocks.append((next((int(value) for _, value in split_fields(value)), 0), items))
            items = []
    assert items == []
    first = 0 if start == U64_MAX else start
    assert blocks == [(block.number, block.items) for block in BLOCKS[first : end + 1]]


@pytest.mark.parametrize(
    ("start", "end", "status"),
    [(5, 4, 5), (BLOCKS[-1].number + 4_001, U64_MAX, 6), (U64_MAX - 1, U64_MAX, 6)],
)
def test_subscriptions_that_are_refused(node: NodeProcess, start: int, end: int, status: int) -> None:
    assert subscribe(node, number_field(1, start) + number_field(2, end)) == [(1, status)]


HEADER = Chain(KEYS).block().items[0]
"""Of a block 0, which the node has."""
NEXT = len(BLOCKS)
NEW_HEADER = bytes_field(1, b"\n\2\x10\x4e" + number_field(3, NEXT) + bytes_field(4, b"\x08\x01"))
REFUSED: list[tuple[str, list[bytes], bytes]] = [
    ("a block that is there", [bytes_field(1, item_set([HEADER]))], end_of_stream(5)),
    ("an item before a header", [bytes_field(1, item_set([bytes_field(4, b"x")]))], end_of_stream(2)),
    ("no items", [b"\n\0"], end_of_stream(2)),
    ("nothing", [b""], end_of_stream(2)),
    ("a field that nobody knows", [bytes_field(50, b"x")], end_of_stream(2)),
    ("a message cut off", [b"\n\x7f\x01"], end_of_stream(2)),
    ("two headers", [bytes_field(1, item_set([NEW_HEADER, NEW_HEADER]))], end_of_stream(2)),
    (
        "a header that is not first",
        [bytes_field(1, item_set([NEW_HEADER])), bytes_field(1, item_set([b"\x22\0", NEW_HEADER]))],
        end_of_stream(2, NEXT),
    ),
    ("an item without bytes", [bytes_field(1, item_set([NEW_HEADER, b""]))], end_of_stream(2)),
    ("an item of two fields", [bytes_field(1, item_set([NEW_HEADER, b"\x22\0\x2a\0"]))], end_of_stream(2)),
    ("an item that is a number", [bytes_field(1, item_set([NEW_HEADER, b"\x20\x01"]))], end_of_stream(2)),
    (
        "an item behind a proof",
        [bytes_field(1, item_set([NEW_HEADER, b"\x4a\0", b"\x22\0"]))],
        end_of_stream(2),
    ),
    ("a header that does not parse", [bytes_field(1, item_set([b"\n\1\xff"]))], end_of_stream(2)),
    (
        "the end of another block",
        [bytes_field(1, item_set([NEW_HEADER])), bytes_field(3, number_field(1, NEXT + 1))],
        end_of_stream(2, NEXT),
    ),
    (
        "a block that is only a header",
        [bytes_field(1, item_set([NEW_HEADER])), bytes_field(3, number_field(1, NEXT))],
        end_of_stream(6, NEXT),
    ),
    (
        "a block ahead",
        [bytes_field(1, item_set([bytes_field(1, number_field(3, NEXT + 1))]))],
        bytes_field(5, number_field(1, NEXT - 1)),
    ),
]


@pytest.mark.parametrize(
    ("messages", "answer"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_what_cannot_be_taken_is_answered(node: NodeProcess, messages: list[bytes], answer: bytes) -> None:
    assert publish(node, messages) == [answer]
    assert ask(node, "BlockNodeService/serverStatus") == number_field(2, NEXT - 1) + number_field(4, NEXT)


@pytest.mark.parametrize("code", range(6))
def test_a_publisher_that_ends_its_stream_hears_nothing(node: NodeProcess, code: int) -> None:
    assert publish(node, [bytes_field(2, number_field(1, code) + number_field(3, 7))]) == []


# --- TCP and files ------------------------------------------------------------------------------------------


def test_the_stream_over_tcp(node: NodeProcess) -> None:
    tcp = Tcp(node.tcp)
    pages, count = pages_of(ENTRIES)
    tcp.send(3)
    assert tcp.result() == (0, b"OK")
    assert tcp.read(38) == struct.pack(">BIBQQQQ", 1, 38, 1, 137, 1, 4096 + len(pages), count)
    bookmark = number_field(1, 2) + number_field(2, 2)
    at = ENTRIES.index((0xB0, bookmark))
    tcp.send(6, bookmark=bookmark)
    assert tcp.result() == (0, b"OK")
    answer = entry_bytes(at + 1, *ENTRIES[at + 1], packet=0xFE)
    assert tcp.read(len(answer)) == answer
    tcp.send(5, count)
    assert tcp.result() == (0, b"OK")
    assert tcp.read(17) == entry_bytes(0, 0xFFFFFFFF, b"", packet=0xFE)
    tcp.send(1, count + 1)
    assert tcp.result() == (3, b"Bad from entry")
    for start, command in ((at, {"bookmark": bookmark}), (0, {})):
        tcp.send(4 if command else 1, *(() if command else (0,)), **command)
        assert tcp.result() == (0, b"OK")
        expected = b"".join(entry_bytes(number, *ENTRIES[number]) for number in range(start, len(ENTRIES)))
        assert tcp.read(len(expected)) == expected
        tcp.send(2)
        assert tcp.result() == (0, b"OK")
    tcp.send(2)
    assert tcp.result() == (2, b"Already stopped")
    tcp.send(3)  # the connection stays
    assert tcp.result() == (0, b"OK")
    assert tcp.read(38)[:6] == struct.pack(">BIB", 1, 38, 1)
    tcp.close()


def test_the_files(node: NodeProcess, tmp_path: Path) -> None:
    pages, count = pages_of(ENTRIES)
    with (node.data_dir / "datastream.bin").open("rb") as file:
        header_page = file.read(4096)
        assert file.read(len(pages)) == pages
        while rest := file.read(1 << 20):
            assert rest.count(0) == len(rest)
        assert (file.tell() - 4096) % (1 << 20) == 0
    entry = struct.pack(">BIBQQQQ", 1, 38, 1, 137, 1, 4096 + len(pages), count)
    assert header_page == (b"polygonDATSTREAM" + entry).ljust(4096, b"\0")
    copy = tmp_path / "copy.db"
    shutil.copytree(node.data_dir / "datastream.db", copy, ignore=shutil.ignore_patterns("LOCK"))
    with plyvel.DB(str(copy)) as database:
        bookmarks = dict(database)
    assert bookmarks == {
        data: struct.pack(">Q", number) for number, (kind, data) in enumerate(ENTRIES) if kind == 0xB0
    }
