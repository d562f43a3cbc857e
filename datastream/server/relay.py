"""A relay: follows a master, stores its stream in a file of its own, and serves that to its own clients.

Invariants
  - The relay's entries are the master's, with the same numbers, in the same order. So its data pages equal
    the master's byte by byte, as far as it has come. So do version, system id and stream type.
  - A master with another stream is refused, and nothing changes.
  - Killed at any moment, it continues after its last committed entry.

The TCP stream does not mark atomic operations, and the relay commits the arrived whole entries as one. So a
Header, Entry or Bookmark command to a relay may see part of a master's operation; a streaming client sees no
difference.

Of the master's later updates the relay notices only those of the last entries. A truncated master is behind
until it has grown again, and refused if it then has other entries.

Source: zkevm-data-streamer README, "STREAM RELAY"; datastream/README.md, "Following, and the relay".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from sluice.datastream.client.blocking_client import TlsContext
from sluice.datastream.client.client import StreamClient
from sluice.datastream.client.follower import StreamFollower
from sluice.datastream.errors import CommitFailed, DatastreamError, EntryNotRelayed, MisuseError
from sluice.datastream.file.operation import OperationGroup
from sluice.datastream.file.page_sums import PageSums
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.layout import PAGE_SIZE, Committed, Entry, StreamHeader, page_start
from sluice.datastream.limits import FollowLimits, ServerLimits
from sluice.datastream.protocol.commands import OnCommandError
from sluice.datastream.protocol.follow_core import COMPARED_ENTRIES_COUNT, Address
from sluice.datastream.server.in_thread import finish, open_in_thread
from sluice.datastream.server.server import StreamServer

__all__ = ["Relay"]

_logger = logging.getLogger(__name__)

HEAL_PAUSE_SECONDS = 60.0
"""Pause after no master could heal a damaged page."""
HEAL_SECONDS_MAX = 30.0
"""Time for the entries of one page from a master."""


class _FileEntries:
    """The relay's own entries, to compare with a master's."""

    def __init__(self, streamer: DataStreamer) -> None:
        self._streamer = streamer

    def before(self, number: int) -> Sequence[Entry]:
        end = min(number, self._streamer.committed.total_entries)
        return list(self._streamer.read_entries(max(0, end - COMPARED_ENTRIES_COUNT), end))

    def remember(self, entries: Sequence[Entry]) -> None:
        """Do nothing: commits remember them."""


class Relay:
    """Relays a stream; see the module.

    Args:
        masters: (host, port) of the stream's servers, in the order of preference; relays too.
        path: the relay's stream file; a missing one is made with the master's version and system id.
        host, port: where it serves its clients; port 0 takes a free one, see `address`.
        follow_limits, server_limits, on_command_error, tls: as in `StreamFollower` and `StreamServer`.
        master_tls, master_tls_server_name: `tls` and `tls_server_name` of the `StreamFollower`.
        beside: what runs while the stream is open.
        sleep: pauses in seconds (tests).
    """

    def __init__(
        self,
        masters: Sequence[Address],
        path: Path | str,
        host: str = "127.0.0.1",
        port: int = 7900,
        *,
        stream_type: int = 1,
        follow_limits: FollowLimits | None = None,
        server_limits: ServerLimits | None = None,
        on_command_error: OnCommandError = "keep",
        tls: TlsContext | None = None,
        master_tls: TlsContext | None = None,
        master_tls_server_name: str | None = None,
        beside: Callable[[DataStreamer], AbstractContextManager[None]] = lambda streamer: nullcontext(),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._beside = beside
        self._masters = masters
        self._path = Path(path)
        self._listen_at = (host, port)
        self._stream_type = stream_type
        self._follow_limits = follow_limits
        self._server_limits = server_limits
        self._on_command_error = on_command_error
        self._tls = tls
        self._master_tls, self._master_tls_server_name = master_tls, master_tls_server_name
        self._sleep = sleep
        self._streamer: DataStreamer | None = None
        self._server: StreamServer | None = None
        self._healing: asyncio.Task[None] | None = None
        self.started = asyncio.Event()
        """Set when the relay serves clients: at once with a file, else when it has reached a master."""

    @property
    def address(self) -> Address:
        """The address at which it serves its clients."""
        return self._listen_at if self._server is None else self._server.address

    @property
    def committed(self) -> Committed | None:
        """The committed totals; None before there is a file."""
        return None if self._streamer is None else self._streamer.committed

    async def run(self) -> None:
        """Follow and serve until cancelled.

        Raises:
            StreamContradicts, ServerSpokeWrongly: no master has the stream that the file holds.
            EntryNotRelayed: the master has an entry that the data streamer cannot hold.
            StreamFileRefused, EnvironmentFault: the file cannot be opened, the address is taken.
        """
        follower: StreamFollower | None = None
        try:
            if await asyncio.to_thread(os.path.lexists, self._path):  # a broken link is refused at once
                streamer = await self._open(None)
                follower = self._follow(streamer)
            else:
                # The new file takes version and system id from a master.
                follower = self._follow(None)
                header = await follower.reach()
                streamer = await self._open(header)
            with self._beside(streamer):
                await self._serve(streamer)
                while True:
                    await self._keep(streamer, follower, await follower.receive())
        finally:
            if self._healing is not None:
                self._healing.cancel()
                await asyncio.wait({self._healing})
            try:
                if follower is not None:
                    await follower.close()
            finally:  # also when cancelled once more
                if self._server is not None:
                    await self._server.close()
                if self._streamer is not None:
                    self._streamer.close()

    async def _open(self, header: StreamHeader | None) -> DataStreamer:
        version, system_id = (1, 137) if header is None else (header.version, header.system_id)
        self._streamer = await open_in_thread(
            self._path, stream_type=self._stream_type, version=version, system_id=system_id
        )
        return self._streamer

    def _follow(self, streamer: DataStreamer | None) -> StreamFollower:
        return StreamFollower(
            self._masters,
            from_entry=0 if streamer is None else streamer.committed.total_entries,
            stream_type=self._stream_type,
            limits=self._follow_limits,
            known=None if streamer is None else _FileEntries(streamer),
            identity=None if streamer is None else streamer.header,
            tls=self._master_tls,
            tls_server_name=self._master_tls_server_name,
            sleep=self._sleep,
        )

    async def _serve(self, streamer: DataStreamer) -> None:
        host, port = self._listen_at
        server = StreamServer(streamer, host, port, self._server_limits, self._on_command_error, self._tls)
        await server.start()
        self._server = server
        self._healing = asyncio.ensure_future(self._heal(streamer))
        self.started.set()

    async def _heal(self, streamer: DataStreamer) -> None:
        sums, changed, loop = streamer.sums, asyncio.Event(), asyncio.get_running_loop()

        def on_change() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(changed.set)

        sums.on_change = on_change
        while True:
            changed.clear()
            for page_number in sorted(sums.bad):
                for master in self._masters:
                    if await self._heal_from(master, sums, page_number):
                        break
            # Retry failed pages later, new ones at once.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEAL_PAUSE_SECONDS if sums.bad else None):
                    await changed.wait()

    async def _heal_from(self, master: Address, sums: PageSums, page_number: int) -> bool:
        first, end = sums.entry_range(page_number)
        group = OperationGroup((page_start(page_number), first), PAGE_SIZE)
        group.begin()
        try:
            async with (
                asyncio.timeout(HEAL_SECONDS_MAX),
                StreamClient.connect(
                    *master,
                    self._stream_type,
                    tls=self._master_tls,
                    tls_server_name=self._master_tls_server_name,
                ) as client,
            ):
                await client.start(first)
                async for entry in client.entries():
                    group.add_entry(entry.type, entry.data)
                    if entry.number >= end - 1:
                        break
            page = bytes(group.buffer).ljust(PAGE_SIZE, b"\0")
            await asyncio.to_thread(sums.heal, page_number, page)
        except (DatastreamError, OSError, TimeoutError) as error:
            _logger.warning("data page %d is not healed by %s:%d: %s", page_number, *master, error)
            return False
        _logger.warning("data page %d was healed with the entries of %s:%d", page_number, *master)
        return True

    async def _keep(self, streamer: DataStreamer, follower: StreamFollower, entries: Sequence[Entry]) -> None:
        """Commit entries; if the disk refuses them, receive them again later."""
        try:
            await finish(lambda: _commit(streamer, entries))
        except CommitFailed as error:
            await follower.give_back(streamer.committed.total_entries, error)
            return
        _logger.debug("%d entries committed, up to %d", len(entries), entries[-1].number)


def _commit(streamer: DataStreamer, entries: Sequence[Entry]) -> None:
    assert entries[0].number == streamer.committed.total_entries
    streamer.start_atomic_op()
    for entry in entries:
        try:
            streamer.add_copy(entry)
        except MisuseError as error:
            streamer.rollback_atomic_op()
            raise EntryNotRelayed(entry.number, str(error)) from error
    streamer.commit_atomic_op()
    assert streamer.committed.total_entries == entries[-1].number + 1
