"""Servers to follow: one that can be stopped and restarted, and one that plays a script."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.layout import Entry, StreamHeader, encode_entry, encode_header
from sluice.datastream.protocol.packets import NOT_FOUND_ANSWER, encode_result
from sluice.datastream.server.server import StreamServer

OK = encode_result(0, "OK")


class Pauses:
    """Stands for `sleep`: records the pauses, takes no time, runs a script's steps."""

    def __init__(self, *then: Callable[[], object]) -> None:
        self.seconds: list[float] = []
        self.then = list(then)

    async def sleep(self, seconds: float) -> None:
        self.pause(seconds)
        await asyncio.sleep(0)

    def pause(self, seconds: float) -> None:
        self.seconds.append(seconds)
        assert len(self.seconds) < 100, "it would go on for ever"
        if self.then:
            self.then.pop(0)()


class Master:
    """A stream behind a server on one port that can go away and come back."""

    def __init__(self, streamer: DataStreamer) -> None:
        self.streamer = streamer
        self._server: StreamServer | None = None
        self.port = 0

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    async def start(self) -> None:
        self._server = StreamServer(self.streamer, "127.0.0.1", self.port)
        await self._server.start()
        self.port = self._server.address[1]

    async def stop(self) -> None:
        assert self._server is not None
        await self._server.close()

    async def __aenter__(self) -> Master:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()


class ScriptedServer:
    """Has these entries; on each connection it streams the script's entries instead."""

    def __init__(
        self, entries: list[Entry], *streams: list[Entry] | bytes, header: StreamHeader | None = None
    ) -> None:
        self.entries = entries
        self.header = StreamHeader(1, 137, 1, 4096, len(entries)) if header is None else header
        self.streams = list(streams)
        self.starts: list[int] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()

    def serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client:
                self._serve_one(client)

    def _serve_one(self, client: socket.socket) -> None:
        while len(head := client.recv(16, socket.MSG_WAITALL)) == 16:
            (command,) = struct.unpack_from(">Q", head)
            if command == 3:
                client.sendall(OK + encode_header(self.header))
                continue
            (number,) = struct.unpack(">Q", client.recv(8, socket.MSG_WAITALL))
            if command == 5:
                known = number < len(self.entries)
                client.sendall(OK + (encode_entry(self.entries[number], 0xFE) if known else NOT_FOUND_ANSWER))
                continue
            self.starts.append(number)
            stream = self.streams.pop(0) if self.streams else self.entries[number:]
            if not isinstance(stream, bytes):
                stream = OK + b"".join(encode_entry(entry) for entry in stream)
            client.sendall(stream)
            return

    @contextmanager
    def running(self) -> Iterator[ScriptedServer]:
        thread = threading.Thread(target=self.serve)
        thread.start()
        try:
            yield self
        finally:  # also after a failure, or pytest would wait for the thread
            # A shutdown of the listener wakes an accept; closing it does not.
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            thread.join(10)
        assert not thread.is_alive()
