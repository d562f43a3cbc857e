"""`sluice ds client` against servers in this process."""

from __future__ import annotations

import json
import re
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from sluice.datastream import DataStreamer, Entry, FollowLimits, StreamFollower
from sluice.datastream.events.events import event_of
from sluice.datastream.events.network_events import BatchStart, Bookmark, Debug, Transaction
from sluice.datastream.events.original_events import OriginalBookmark
from sluice.datastream.events.sample_operations import sample_operation
from sluice.datastream.layout import StreamHeader, encode_entry, encode_header
from sluice.datastream.protocol.packets import encode_result
from sluice.gateway.blocks.stream_layout import encode
from sluice.gateway.commands import cli, ds_client
from sluice.gateway.commands.ds_client import bookmarks_of, entry_line, header_line
from sluice.gateway.commands.ds_entries import EntryReader
from tests.certificates import Authority
from tests.datastream.masters import ScriptedServer
from tests.datastream.serving import ServerThread, contexts
from tests.datastream.streams import commit, entries, sample_file
from tests.reference_data import needs_stream
from tests.vectors.maker import expanded, read_file

ITEMS = [item for number in range(6) for item in sample_operation(number, 1_700_000_000)]
CLIENT = ["ds", "client", "--log", "error"]


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with DataStreamer.open(tmp_path / "s.bin", initial_pages=1) as streamer:
        commit(streamer, *ITEMS)
        with ServerThread(streamer) as serving:
            yield f"{serving.host}:{serving.port}"


@pytest.fixture
def sample_address(tmp_path: Path) -> Iterator[str]:
    with (
        DataStreamer.open(sample_file(tmp_path), read_only=True) as streamer,
        ServerThread(streamer) as serving,
    ):
        yield f"{serving.host}:{serving.port}"


def test_queries(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    client = [*CLIENT, "--server", address]
    assert cli.main([*client, "--header"]) == 0
    assert " total_entries=30\n" in capsys.readouterr().out
    assert cli.main([*client, "--entry", "6"]) == 0
    assert capsys.readouterr().out == "entry 6  Bookmark  type=l2_block number=1\n"
    assert cli.main([*client, "--bookmark", "3", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["entry"], shown["event"], shown["values"]["block_number"]) == (17, "StartL2Block", 3)
    assert cli.main([*client, "--bookmark", "3", "--bookmarktype", "1"]) == 0
    assert capsys.readouterr().out.startswith("entry 17  StartL2Block  ")


def test_a_server_with_tls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ca, other = tmp_path / "ca.pem", Authority(tmp_path, "other").path
    ca.write_text("".join(ssl.DER_cert_to_PEM_cert(der) for der in contexts()[1].get_ca_certs(True)))
    with DataStreamer.open(tmp_path / "s.bin", initial_pages=1) as streamer:
        commit(streamer, *ITEMS)
        with ServerThread(streamer, loop="uvloop, TLS") as serving:
            client = [*CLIENT, "--server", f"{serving.host}:{serving.port}"]
            for work in (["--entry", "6"], ["--from", "6", "--no-live"], ["--dumpbatch", "1"]):
                assert cli.main([*client, "--tls-ca", str(ca), *work]) == 0
                assert capsys.readouterr().out.startswith("entry ")
            named = ["--tls-server-name", "another.net"]
            for options, words in (
                (["--tls-ca", str(ca), *named], "Hostname mismatch"),
                (["--tls-ca", str(other)], "certificate verify failed"),
                (["--tls"], "certificate verify failed"),
                ([], "closed the connection while answering Header"),
            ):
                assert cli.main([*client, *options, "--header"]) == 1
                assert words in capsys.readouterr().err
            assert cli.main([*client, "--tls-ca", str(tmp_path / "none"), "--header"]) == 2
            assert "CA file: got" in capsys.readouterr().err
        with ServerThread(streamer) as bare:
            client = [*CLIENT, "--server", f"{bare.host}:{bare.port}", "--tls-ca", str(ca), "--header"]
            assert cli.main(client) == 1
            why = "the server ended the connection (TLS was offered, and the server has none there)"
            assert f"sluice: {bare.host}:{bare.port}: cannot connect: {why}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--entry", "30"], "sluice: entry 30: not found"),
        (["--bookmark", "30"], "sluice: bookmark 0802101e: not found"),
        (
            ["--frombookmark", "3", "--bookmarktype", "9"],
            "sluice: bookmark 090000000000000003: not found",
        ),
        (["--dumpbatch", "6"], "sluice: bookmark 08011006: not found"),
        (["--from", "31"], "sluice: entry 31: not found; the stream has 30 entries"),
        (["--from", "31", "--sanitycheck"], "sluice: {address}: server: Start: error 3 Bad from entry"),
    ],
)
def test_what_is_not_there(
    address: str, words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*CLIENT, "--server", address, *words]) == 1
    printed = capsys.readouterr()
    assert printed.err.splitlines() == [line.format(address=address)]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--from", "first"], "Invalid value for '--from': 'first' is not a valid integer range"),
        (
            ["--bookmarktype", "256"],
            "Invalid value for '--bookmarktype': '256' is not l2block, batch, or a number from 0 to 255",
        ),
        (
            ["--bookmarktype", "9" * 5000],
            f"Invalid value for '--bookmarktype': '{'9' * 5000}' is not l2block,",
        ),
        (["--server", "x:y"], "Invalid value for '--node' / '--server': address: got 'x:y', expected"),
    ],
)
def test_bad_usage(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*CLIENT, *words]) == 2
    assert capsys.readouterr().err.startswith(f"sluice ds client: {text}")


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*CLIENT, "--server", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().err == "sluice: 127.0.0.1:1: cannot connect: Connection refused\n"


BROKEN = "server: closed the connection while streaming: Connection reset by peer"
QUERIES = [
    ["--header"],
    ["--entry", "6"],
    ["--bookmark", "3"],
    ["--dumpbatch", "2"],
    ["--range", "l2block:1", "l2block:2"],
    ["--from", "0", "--no-live"],
    ["--frombookmark", "3", "--no-live"],
    ["--from", "0", "--no-live", "--sanitycheck"],
]
SILENT = (["--header"], ["--from", "0", "--no-live"])
"""Those that silent servers get in the default run: each waits for seconds."""


@contextmanager
def failing(answer: bytes | None) -> Iterator[str]:
    """Serve connections: send this answer and reset, or stay silent if it is None."""
    listener = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def serve() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                held.append(client)
                if answer is not None:
                    with suppress(OSError):
                        client.recv(16)
                        client.sendall(answer)
                        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    client.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)  # wakes the accept
        listener.close()
        thread.join(10)
        for client in held:
            client.close()


@contextmanager
def resetting(*answers: bytes) -> Iterator[str]:
    """Answer the commands of one connection, and reset it after the client has read the last answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            client, _ = listener.accept()
            with client:
                for answer in answers:
                    client.recv(4096)
                    client.sendall(encode_result(0, "OK") + answer)
                time.sleep(0.3)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(10)


@pytest.mark.parametrize(
    ("answer", "why", "words"),
    [
        pytest.param(
            answer,
            why,
            words,
            id=f"{name}-{' '.join(words)}",
            marks=[pytest.mark.slow] if answer is None and words not in SILENT else [],
        )
        for name, answer, why in (
            ("reset", b"", "Connection reset by peer"),
            ("not the protocol", b"HTTP/1.1 400 Bad Request\r\n", "server: "),
            ("refused", encode_result(9, "Invalid command"), ""),
            ("silent", None, "no answer within 0.2 s"),
        )
        for words in QUERIES
    ],
)
def test_the_next_server_is_asked_when_one_fails_after_connecting(
    address: str,
    words: list[str],
    answer: bytes | None,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if answer is None:
        monkeypatch.setattr(ds_client, "_ANSWER_SECONDS", 0.2)
        limits = FollowLimits(answer_timeout_seconds=0.2)
        monkeypatch.setattr(ds_client, "StreamFollower", partial(StreamFollower, limits=limits))
    assert cli.main([*CLIENT, "--server", address, *words]) == 0
    expected = capsys.readouterr().out
    with failing(answer) as first:
        assert cli.main([*CLIENT, "--server", f"{first},{address}", *words]) == 0
        assert capsys.readouterr().out == expected
        assert cli.main([*CLIENT, "--server", f"127.0.0.1:1,{first}", *words]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"sluice: 127.0.0.1:1: cannot connect: Connection refused; {first}: {why}")


@pytest.mark.parametrize(
    ("words", "out", "err"),
    [
        (["--dumpbatch", "0"], "entry 0  ", f"sluice: {BROKEN}\n"),
        (["--from", "0", "--sanitycheck"], f"{BROKEN}\n1 entries checked, 0 findings\n", ""),
    ],
    ids=["dump", "sanity check"],
)
def test_a_reset_while_streaming_is_one_line_and_status_1(
    words: list[str], out: str, err: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = entries(*ITEMS[:2])
    answers = [encode_header(StreamHeader(1, 137, 1, 5000, 30))]
    if "--dumpbatch" in words:
        answers += [encode_entry(second, 0xFE)]
    with resetting(*answers, encode_entry(first)) as server:
        assert cli.main([*CLIENT, "--server", server, *words]) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith(out)
    assert printed.err == err


def test_streams(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    client = [*CLIENT, "--server", f"127.0.0.1:1,{address}", "--no-live"]
    assert cli.main([*client, "--from", "28"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[:2] for line in lines] == [["entry 28", "L2Tx"], ["entry 29", "EndL2Block"]]
    assert cli.main([*client, "--frombookmark", "4"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 9
    assert cli.main([*client, "--frombookmark", "4", "--bookmarktype", "batch"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 10
    assert cli.main(client) == 0
    assert capsys.readouterr().out == ""


def test_dump_of_a_batch(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    for batch, first in ((2, 10), (5, 25)):
        assert cli.main([*CLIENT, "--server", address, "--dumpbatch", str(batch)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split("  ")[0] for line in lines] == [f"entry {first + at}" for at in range(5)]


def test_sanity_check(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--sanitycheck", "--no-live", "--from", "3"]
    assert cli.main([*CLIENT, "--server", address, *words]) == 0
    assert capsys.readouterr().out == "27 entries checked, 0 findings\n"
    all_entries = entries(*ITEMS)
    with ScriptedServer(all_entries, [*all_entries[:9], *all_entries[10:]]).running() as server:
        host, port = server.address
        words = ["--sanitycheck", "--no-live", "--from", "0"]
        assert cli.main([*CLIENT, "--server", f"{host}:{port}", *words]) == 1
    assert capsys.readouterr().out == (
        "entry 10: entry 10, expected 9\n"
        "entry 12: block 2 begins before 1 has ended\n"
        "29 entries checked, 2 findings\n"
    )


@needs_stream
def test_the_sample_as_typed_events(sample_address: str, capsys: pytest.CaptureFixture[str]) -> None:
    client = [*CLIENT, "--server", sample_address]
    assert cli.main([*client, "--from", "0", "--no-live", "--json"]) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["entry"] for one in shown] == list(range(13_952))
    assert {one["event"] for one in shown} == {
        *("Bookmark", "BatchStart", "L2Block", "Transaction", "L2BlockEnd", "BatchEnd"),
    }
    assert cli.main([*client, "--dumpbatch", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "entry 5  Bookmark  type=batch value=1", (
        "its bookmark is there twice; the newest counts"
    )
    assert lines[-1].split("  ")[1] == "BatchEnd"
    assert cli.main([*client, "--bookmark", "4000"]) == 0
    assert "  L2Block  number=4000 " in capsys.readouterr().out
    assert cli.main([*client, "--from", "0", "--no-live", "--sanitycheck"]) == 0
    assert capsys.readouterr().out == "13952 entries checked, 0 findings\n"


def test_bookmarks() -> None:
    assert bookmarks_of("l2block", 7) == [Bookmark(2, 7).encode(), OriginalBookmark(0, 7).encode()]
    assert bookmarks_of("batch", 7) == [Bookmark(1, 7).encode(), OriginalBookmark(1, 7).encode()]
    assert bookmarks_of("9", 7) == [b"\x09" + bytes(7) + b"\x07"]


@pytest.mark.parametrize(
    ("entry", "text", "values"),
    [
        (
            Entry(0xB0, 4, Bookmark(2, 1).encode()),
            "entry 4  Bookmark  type=l2_block value=1",
            {"entry": 4, "type": 176, "event": "Bookmark", "values": {"type": "l2_block", "value": 1}},
        ),
        (
            Entry(3, 5, Transaction(is_valid=True, encoded=b"\xf9").encode()),
            (
                "entry 5  Transaction  l2block_number=0 index=0 is_valid=true encoded=0xf9 "
                "effective_gas_price_percentage=0"
            ),
            None,
        ),
        (
            Entry(1, 6, BatchStart(debug=Debug("a\nb")).encode()),
            'entry 6  BatchStart  number=0 type=unspecified fork_id=0 chain_id=0 debug="a\\nb"',
            None,
        ),
        (
            Entry(0xB1, 7, b""),
            "entry 7  type 0xb1",
            {"entry": 7, "type": 177, "event": "type 0xb1", "values": {}},
        ),
    ],
)
def test_entries(entry: Entry, text: str, values: dict[str, object] | None) -> None:
    assert entry_line(entry, as_json=False) == text
    if values is not None:
        assert json.loads(entry_line(entry, as_json=True)) == values


# --- streams of blocks -----------------------------------------------------------------------------------


def block_entries(count: int, *, layout: int = 2) -> list[tuple[int, bytes]]:
    """Return the entries of blocks."""
    found = []
    for number in range(count):
        items = tuple(map(expanded, BLOCKS[number]["items"]))
        found += encode(number, items, bytes([number]) * 48, layout)
    return found


BLOCKS = json.loads(read_file("blocks.json"))["blocks"]


def shown(items: list[tuple[int, bytes]]) -> list[tuple[str, dict[str, object]]]:
    reader = EntryReader()
    lines = (entry_line(entry, as_json=True, reader=reader) for entry in entries(*items))
    return [(line["event"], line["values"]) for line in map(json.loads, lines)]


def test_items_of_blocks_have_their_names_in_block_item() -> None:
    items = block_entries(2, layout=1)
    found = shown(items)
    names = [name for name, _ in found]
    assert names[:5] == ["Bookmark", "Bookmark", "block_header", "round_header", "event_header"]
    assert found[2][1] == {
        "number": 0,
        "hapi_proto_version": "0.78.0",
        "software_version": "0.0.0",
        "block_timestamp": f"{found[2][1]['block_timestamp']}",
        "hash_algorithm": 0,
    }
    assert re.fullmatch(r"\d{10}\.\d{9}", str(found[2][1]["block_timestamp"]))
    end = names.index("block_end")
    assert found[end][1] == {"number": 0, "root_hash": "0x" + "00" * 48}
    footer = dict(found)["block_footer"]
    assert list(footer)[:2] == ["previous_block_root_hash", "root_hash_of_all_block_hashes_tree"]
    proof = next(values for name, values in found if name == "block_proof")
    assert (proof["block"], proof["proof"]) == (0, "signed_block_proof")
    pieces = [(name, values["piece"]) for name, values in found if "piece" in values]
    assert pieces == [("signed_transaction", "more"), ("signed_transaction", "last")]
    data = {name: values["data"] for name, values in found if "data" in values and "piece" not in values}
    assert bytes.fromhex(str(data["round_header"])[2:]) == items[3][1]
    assert not any(name.startswith(("type", "Batch", "L2", "Trans", "Update")) for name in names)


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        (Entry(23, 0, bytes.fromhex("ba0100")), "item 23"),
        (Entry(19, 0, bytes.fromhex("9a0100")), "redacted_item"),
        (Entry(1, 0, b"\x0a\x02\xff\xff"), "block_header"),  # it does not parse
        (Entry(1, 0, b"\x0a\x03\xff\xff"), "type 0x1"),  # cut
        (Entry(4, 0, b"\x0a\x02\xff\xff"), "type 0x4"),  # of another kind
        (Entry(0x80000004, 0, b"x"), "signed_transaction"),
        (Entry(0x800000B1, 0, b"x"), "type 0x800000b1"),
        (Entry(0xB1, 0, bytes(55)), "type 0xb1"),
        (Entry(1, 0, b""), "BatchStart"),
    ],
)
def test_what_is_hardly_an_item(entry: Entry, name: str) -> None:
    assert json.loads(entry_line(entry, as_json=True))["event"] == name


@pytest.mark.parametrize("layout", [1, 2])
def test_the_sanity_check_of_blocks(tmp_path: Path, capsys: pytest.CaptureFixture[str], layout: int) -> None:
    items = block_entries(3, layout=layout)
    with DataStreamer.open(tmp_path / "s.bin", initial_pages=4) as streamer:
        commit(streamer, *items)
        with ServerThread(streamer) as serving:
            client = [*CLIENT, "--server", f"{serving.host}:{serving.port}", "--no-live"]
            assert cli.main([*client, "--from", "0", "--sanitycheck"]) == 0
            assert capsys.readouterr().out == f"{len(items)} entries checked, 0 findings\n"
            commit(streamer, *block_entries(2, layout=layout)[-3:])
            assert cli.main([*client, "--from", "0", "--sanitycheck"]) == 1
            assert "end of block 1, expected none\n" in capsys.readouterr().out
            assert cli.main([*client, "--from", "0"]) == 0
            assert "  block_header  number=2 " in capsys.readouterr().out
            assert cli.main([*client, "--bookmark", "1"]) == 0
            assert f"entry {block_start(items, 1)}  block_header  number=1 " in capsys.readouterr().out


def block_start(items: list[tuple[int, bytes]], number: int) -> int:
    return [place for place, (kind, _) in enumerate(items) if kind == 1][number]


@needs_stream
def test_no_entry_of_a_network_is_taken_for_an_item(tmp_path: Path) -> None:
    reader = EntryReader()
    with DataStreamer.open(sample_file(tmp_path), read_only=True) as streamer:
        for entry in streamer.read_entries(0):
            assert reader.read(entry).event == event_of(entry)


# --- ranges ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("between", "numbers"),
    [
        (["l2block:1", "l2block:2"], list(range(6, 12))),
        (["batch:1", "l2block:1"], [5, 6]),
        (["000000000000000001", "1:2"], list(range(6, 11))),
        (["l2block:3", "l2block:3"], [16]),
    ],
)
def test_a_range(
    address: str, capsys: pytest.CaptureFixture[str], between: list[str], numbers: list[int]
) -> None:
    assert cli.main([*CLIENT, "--server", address, "--json", "--range", *between]) == 0
    assert [json.loads(line)["entry"] for line in capsys.readouterr().out.splitlines()] == numbers


@pytest.mark.parametrize(
    ("between", "status", "text"),
    [
        (["l2block:9", "l2block:2"], 1, "sluice: bookmark 08021009: not found"),
        (["l2block:1", "aa"], 1, "sluice: bookmark aa: not found"),
        (["l2block:2", "l2block:1"], 1, "server: RangeBookmark: error 5 Bad to bookmark"),
        (["l2block:2"], 2, "Option '--range' requires 2 arguments"),
        (
            ["l2block:2", "block 3"],
            2,
            "Invalid value for '--range': got 'block 3', expected 1 to 16 bytes in",
        ),
        (["l2block:2", "00" * 17], 2, "Invalid value for '--range': got '00"),
        (["l2block:18446744073709551616", "00"], 2, "Invalid value for '--range': got 'l2block:18446744"),
        (["256:1", "00"], 2, "Invalid value for '--range': got '256:1'"),
    ],
)
def test_a_range_that_is_none(
    address: str, capsys: pytest.CaptureFixture[str], between: list[str], status: int, text: str
) -> None:
    assert cli.main([*CLIENT, "--server", address, "--range", *between]) == status
    printed = capsys.readouterr()
    assert (printed.out, text in printed.err) == ("", True), printed.err


def test_headers() -> None:
    header = StreamHeader(2, 137, 1, 5000, 9)
    assert header_line(header, as_json=False) == (
        "header  version=2 system_id=137 stream_type=1 total_length=5000 total_entries=9"
    )
    assert json.loads(header_line(header, as_json=True))["total_length"] == 5000
