"""The link from the other nodes to one node: a TCP forwarder that can be cut and healed."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from sluice.gateway.addresses import Address

__all__ = ["Link"]

_CHUNK_BYTES = 1 << 16


class Link:
    """Forwards connections from `address` to `target`.

    Cut silently, it accepts connections and bytes but forwards nothing, like a network that drops packets;
    once healed, it forwards what it held back. Cut with refusal, it closes connections and accepts none.
    """

    def __init__(self, address: Address, target: Address) -> None:
        self.address = address
        """The address for the other nodes."""
        self._target = target
        self._server: asyncio.Server | None = None
        self._flows = asyncio.Event()
        self._flows.set()
        self._refuses = False
        self._writers: set[asyncio.StreamWriter] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, self.address.host, self.address.port)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._drop()

    def cut(self, *, refuse: bool) -> None:
        """Forward nothing from now on."""
        self._flows.clear()
        self._refuses = refuse
        if refuse:
            self._drop()

    def heal(self) -> None:
        """Forward what was held back, and everything after it."""
        self._refuses = False
        self._flows.set()

    def _drop(self) -> None:
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refuses:
            writer.transport.abort()
            return
        self._writers.add(writer)
        try:
            await self._flows.wait()
            there, back = await asyncio.open_connection(self._target.host, self._target.port)
        except OSError:
            self._writers.discard(writer)
            writer.transport.abort()
            return
        self._writers.add(back)
        try:
            await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
        finally:
            for one in (writer, back):
                self._writers.discard(one)
                one.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while chunk := await reader.read(_CHUNK_BYTES):
                await self._flows.wait()
                writer.write(chunk)
                await writer.drain()
        with suppress(OSError):
            if writer.can_write_eof():
                writer.write_eof()
