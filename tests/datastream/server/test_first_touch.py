"""The first read of pages over TCP: real sockets, real files, slow and failing disks."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.datastream.file.disk import RealDisk
from sluice.datastream.file.page_sums import PageState, ScrubResult
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.layout import PAGE_SIZE, Entry, encode_entry, page_start
from sluice.datastream.protocol.commands import Command, encode_command
from sluice.datastream.protocol.packets import encode_result
from tests.datastream.fake_disk import FailingDisk
from tests.datastream.serving import ServerThread, read_exactly, read_to_end
from tests.datastream.streams import commit

OK = encode_result(0, "OK")
PAGES = 8
PER_PAGE = 10
SIZE = PAGE_SIZE // PER_PAGE - 17 - 5
"""Data bytes of an entry: ten to a page, and some padding."""


def entry(number: int) -> Entry:
    return Entry(1, number, number.to_bytes(4, "big") * (SIZE // 4))


def stream_of(first: int, end: int) -> bytes:
    return b"".join(encode_entry(entry(number)) for number in range(first, end))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "s.bin"
    with DataStreamer.open(path) as streamer:
        commit(streamer, *[(1, entry(number).data) for number in range(PAGES * PER_PAGE + 3)], flush=True)
        assert streamer.sums.full_count == PAGES
    return path


class GatedDisk(FailingDisk):
    """A disk that delays reads of pages from some place on."""

    def __init__(self, path: Path, page_number: int) -> None:
        super().__init__(RealDisk(path))
        self.gate = threading.Event()
        self.waited = threading.Event()
        self._from = page_start(page_number)

    def pread(self, size: int, offset: int) -> bytes:
        if size == PAGE_SIZE and offset >= self._from:
            self.waited.set()
            assert self.gate.wait(20)
        return super().pread(size, offset)


@pytest.fixture
def gated(path: Path) -> Iterator[tuple[DataStreamer, GatedDisk]]:
    """The open stream, on a disk that is slow from page 4 on."""
    disk = GatedDisk(path, 4)
    disk.gate.set()
    with DataStreamer.open(path, disk=disk) as streamer:
        disk.gate.clear()
        disk.waited.clear()
        yield streamer, disk
        disk.gate.set()


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes((byte ^ 4,)))


def start(sock: socket.socket, number: int) -> None:
    sock.sendall(encode_command(Command.START, 1, number))
    assert read_exactly(sock, len(OK)) == OK


@pytest.mark.parametrize("position", [0, 1, 17, 5000, PAGE_SIZE - 1])
def test_a_stream_ends_before_the_damaged_page(path: Path, position: int) -> None:
    flip(path, page_start(5) + position)
    with DataStreamer.open(path) as streamer, ServerThread(streamer) as server, server.connect() as sock:
        start(sock, 3)
        assert read_to_end(sock) == stream_of(3, 5 * PER_PAGE)
        for number, command in ((55, Command.START), (50, Command.ENTRY), (59, Command.ENTRY)):
            with server.connect() as other:
                other.sendall(encode_command(command, 1, number))
                error = encode_result(3, "Bad from entry")
                assert read_exactly(other, len(error)) == error
                other.sendall(encode_command(Command.START, 1, 60))  # the connection stays
                assert read_exactly(other, len(OK)) == OK
                rest = stream_of(60, PAGES * PER_PAGE + 3)
                assert read_exactly(other, len(rest)) == rest


def test_a_bookmark_on_a_damaged_page_is_an_error_and_not_absent(tmp_path: Path) -> None:
    path = tmp_path / "s.bin"
    with DataStreamer.open(path) as streamer:
        commit(streamer, (0xB0, b"mark"), *[(1, entry(number).data) for number in range(PER_PAGE * 2)])
    flip(path, page_start(0) + 9000)
    with DataStreamer.open(path) as streamer, ServerThread(streamer) as server, server.connect() as sock:
        error = encode_result(4, "Bad from bookmark")
        for command in (Command.START_BOOKMARK, Command.BOOKMARK):
            sock.sendall(encode_command(command, 1, b"mark"))
            assert read_exactly(sock, len(error)) == error


def test_a_slow_disk_delays_only_those_who_need_it(gated: tuple[DataStreamer, GatedDisk]) -> None:
    streamer, disk = gated
    with ServerThread(streamer) as server, server.connect() as slow, server.connect() as asking:
        start(slow, 0)
        begin = stream_of(0, 4 * PER_PAGE)
        assert read_exactly(slow, len(begin)) == begin
        assert disk.waited.wait(10)
        asking.sendall(encode_command(Command.ENTRY, 1, 65))  # on a page that is slow, too
        with server.connect() as quick:
            start(quick, 20)
            part = stream_of(20, 4 * PER_PAGE)
            assert read_exactly(quick, len(part)) == part
        with server.connect() as live:
            start(live, PAGES * PER_PAGE + 3)
            commit(streamer, (7, b"new"))
            new = encode_entry(Entry(7, PAGES * PER_PAGE + 3, b"new"))
            assert read_exactly(live, len(new)) == new
        slow.settimeout(0.2)
        with pytest.raises(TimeoutError):
            slow.recv(1)
        disk.gate.set()
        slow.settimeout(20)
        rest = stream_of(4 * PER_PAGE, PAGES * PER_PAGE + 3) + new
        assert read_exactly(slow, len(rest)) == rest
        answer = OK + b"\xfe" + encode_entry(entry(65))[1:]
        assert read_exactly(asking, len(answer)) == answer


def test_clients_that_leave_while_a_page_is_checked_are_forgotten(
    gated: tuple[DataStreamer, GatedDisk],
) -> None:
    streamer, disk = gated
    with ServerThread(streamer) as server:
        with server.connect() as sock:
            sock.sendall(encode_command(Command.START, 1, 50))
            assert disk.waited.wait(10)
        disk.gate.set()
        with server.connect() as other:
            start(other, 50)
            rest = stream_of(50, PAGES * PER_PAGE + 3)
            assert read_exactly(other, len(rest)) == rest
        assert not server.context.first_touch._waiting


def test_a_server_that_closes_while_a_page_is_checked_waits_for_it(
    gated: tuple[DataStreamer, GatedDisk],
) -> None:
    streamer, disk = gated
    threading.Timer(0.3, disk.gate.set).start()
    with ServerThread(streamer) as server, server.connect() as sock:
        sock.sendall(encode_command(Command.START, 1, 50))
        assert disk.waited.wait(10)
    assert disk.gate.is_set()


def test_a_page_that_becomes_bad_while_it_is_streamed_ends_there(path: Path) -> None:
    with DataStreamer.open(path) as streamer, ServerThread(streamer) as server:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with sock:
            sock.connect((server.host, server.port))
            start(sock, 0)
            begin = read_exactly(sock, PAGE_SIZE)  # then it waits for room, somewhere behind page 0
            streamer._file.disk = _Rotten(streamer._file.disk, page_start(7))  # type: ignore[assignment]
            flip(path, page_start(7) + 300_000)
            assert streamer.sums.scrub(7) is ScrubResult.BAD
            got = begin + read_to_end(sock)
        whole = stream_of(0, PAGES * PER_PAGE + 3)
        assert got == whole[: len(got)]
        assert len(got) == len(stream_of(0, 7 * PER_PAGE))


class _Rotten:
    """A disk without a page cache, so that the scrubber reads what readers would."""

    def __init__(self, below: object, offset: int) -> None:
        self._below = below
        self._offset = offset

    def __getattr__(self, name: str) -> object:
        return getattr(self._below, name)


def test_a_disk_that_refuses_ends_the_client_and_the_page_is_tried_again(path: Path) -> None:
    disk = FailingDisk(RealDisk(path))
    with DataStreamer.open(path, disk=disk) as streamer, ServerThread(streamer) as server:
        pread = disk.pread

        def broken(size: int, offset: int) -> bytes:
            if size == PAGE_SIZE and offset >= page_start(4):
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
            return pread(size, offset)

        disk.pread = broken  # type: ignore[method-assign]
        with server.connect() as sock:
            start(sock, 0)
            assert read_to_end(sock) == stream_of(0, 4 * PER_PAGE)
        assert streamer.sums.state(4) is PageState.UNKNOWN
        disk.pread = pread  # type: ignore[method-assign]
        with server.connect() as sock:
            start(sock, 0)
            whole = stream_of(0, PAGES * PER_PAGE + 3)
            assert read_exactly(sock, len(whole)) == whole
