"""The front door of one gRPC server: it listens, and relays each connection to gRPC on a private Unix socket.

A shell: `relay` decides what passes, `doorkeeper` who may connect; `pump` moves the bytes.

    client ── TCP, TLS ──▶ door ── Unix socket ──▶ gRPC core ──▶ services
                                                                   │ caller_of(context)
                             callers  ◀── by the name of the socket ┘
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import socket
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Final

from sluice.datastream.server.descriptors import client_descriptors_end
from sluice.datastream.server.places import party_of
from sluice.gateway.limits import STREAM_WINDOW_BYTES
from sluice.gateway.logs import caused_by
from sluice.gateway.transport.callers import Caller, enter, leave
from sluice.gateway.transport.door_notes import DoorNotes
from sluice.gateway.transport.doorkeeper import Doorkeeper, DoorLimits, Guest, Visit
from sluice.gateway.transport.frames import ConnectionBreach
from sluice.gateway.transport.known_nodes import KnownNodes
from sluice.gateway.transport.message_shares import LARGE_BYTES_PER_SECOND, MessageShares, StreamKey
from sluice.gateway.transport.pump import LINGER_SECONDS, READ_BYTES, PrivateFolder, Pump
from sluice.gateway.transport.relay import ServerRelay
from sluice.gateway.transport.tls import ServerTls

__all__ = ["Door", "granted", "look_at_shares"]

log = logging.getLogger(__name__)

ACCEPTED_AT_ONCE: Final = 64
"""Connections accepted in one iteration of the event loop."""
LISTEN_BACKLOG: Final = 1_024
TICK_SECONDS: Final = 0.25
"""Time between two checks for overdue connections."""
COST_LOOKED_AT: Final = 2_048
"""Bytes of frames without data between two questions to the doorkeeper."""
NO_DESCRIPTOR_SECONDS: Final = 0.1
"""Backoff without a free file descriptor."""


class Door:
    """The door of one address.

    Args:
        shares: admit large messages, over all doors of a node; None: all.
        tls: certificates; None: no TLS.
        nodes: the other nodes of the cluster; None: none connects here.
        listed_subjects: names in certificates with kept places.
    """

    def __init__(
        self,
        limits: DoorLimits,
        notes: DoorNotes,
        shares: MessageShares | None = None,
        *,
        tls: ServerTls | None = None,
        nodes: KnownNodes | None = None,
        listed_subjects: frozenset[str] = frozenset(),
    ) -> None:
        self.tls = tls
        self.listed_subjects = listed_subjects
        self.notes = notes
        self.shares = shares
        self.keeper = Doorkeeper(limits)
        self._nodes = nodes
        self._may_be_known = limits.unknown_places > 0
        self.loop = asyncio.get_running_loop()
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.connections: dict[int | str, _Connection] = {}
        self._by_visit: dict[Visit, _Connection] = {}
        # Only this user may enter: who reaches gRPC directly evades the limits.
        self._folder = PrivateFolder()
        self.grpc_path = self._folder.path / "grpc"
        self._listeners: list[socket.socket] = []
        self._ticking: asyncio.TimerHandle | None = None
        self._finished: asyncio.Event | None = None

    @property
    def connection_count(self) -> int:
        """Connections now."""
        return self.keeper.count

    @property
    def has_mended_streams(self) -> bool:
        """True if a connected client has mended streams."""
        return any(connection.relay.has_mended for connection in self.connections.values())

    def listen(self, sockets: Iterable[socket.socket]) -> None:
        """Accept connections at bound sockets."""
        for listener in sockets:
            listener.listen(LISTEN_BACKLOG)
            listener.setblocking(False)
            self._listeners.append(listener)
            self.loop.add_reader(listener.fileno(), self._accept, listener)
        self._ticking = self.loop.call_later(TICK_SECONDS, self._tick)

    def stop_listening(self) -> None:
        """Accept no further connection."""
        for listener in self._listeners:
            self.loop.remove_reader(listener.fileno())
            listener.close()
        self._listeners.clear()

    async def finish(self) -> None:
        """Give clients a moment to read gRPC's last frames."""
        if self.connections:
            self._finished = asyncio.Event()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._finished.wait(), LINGER_SECONDS)

    def close(self) -> None:
        """End everything; idempotent."""
        self.stop_listening()
        if self._ticking is not None:
            self._ticking.cancel()
        for connection in tuple(self.connections.values()):
            connection.close()
        self._folder.close()

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                client, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor left: the kernel keeps the connection
                log.warning("connection not taken", extra=caused_by("", got=error.strerror))
                self.loop.remove_reader(listener.fileno())
                self.loop.call_later(NO_DESCRIPTOR_SECONDS, self._accept_again, listener)
                return
            self._take(client, address)

    def make_way(self) -> None:
        """Close the connection that lost its place, if any."""
        if (visit := self.keeper.to_close()) is not None:
            self.notes.refused(visit.address, "connections")
            self._by_visit[visit].close()

    def is_node(self, host: str, subjects: Collection[str]) -> bool:
        """Return whether a client is known as another node."""
        return self._nodes is not None and self._nodes.has(host, subjects)

    def _accept_again(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            self.loop.add_reader(listener.fileno(), self._accept, listener)

    def _take(self, client: socket.socket, name: tuple[str, int]) -> None:
        host, port = name[0].partition("%")[0], name[1]
        if host.startswith("::ffff:") and "." in host:
            host = host.removeprefix("::ffff:")
        end = client_descriptors_end()
        visit: Visit | str = "descriptors"
        if end is None or client.fileno() < end:
            visit = self.keeper.admit(
                party_of(host),
                time.monotonic_ns(),
                is_node=self.is_node(host, ()),
                may_be_known=self._may_be_known,
            )
        if isinstance(visit, str):
            client.close()
            self.notes.refused(host, visit)
            return
        self.make_way()
        peer = f"ipv6:%5B{host}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"
        connection = self._by_visit[visit] = _Connection(self, client, peer, host, visit)
        try:
            connection.start()
        except OSError as error:  # the client has left
            log.info("connection not taken", extra=caused_by(visit.address, peer=peer, got=str(error)))
            connection.close()

    def _tick(self) -> None:
        self._ticking = self.loop.call_later(TICK_SECONDS, self._tick)
        now_ns = time.monotonic_ns()
        for connection in tuple(self.connections.values()):
            connection.tick(now_ns)

    def gone(self, number: int, visit: Visit) -> None:
        """Forget a connection that has ended."""
        self.keeper.leave(visit)
        del self._by_visit[visit]
        self.connections.pop(number, None)
        _connections.pop(number, None)
        if self._finished is not None and not self.connections:
            self._finished.set()


def granted(keys: Iterable[StreamKey]) -> None:
    """Let streams receive their large messages now, at any door."""
    for key in keys:
        connection = _connections.get(key.connection)
        if connection is not None:
            connection.granted(key.stream)


def look_at_shares(shares: MessageShares, is_urgent: Callable[[StreamKey], bool]) -> None:
    """End connections that keep others waiting, and admit the message that all wait for.

    Call it a few times a second.

    Args:
        is_urgent: returns whether a waiting stream may bring the next block to commit.
    """
    if not shares.waiting_count:
        return
    now_ns = time.monotonic_ns()
    for key in shares.tick(now_ns):
        slow = _connections.get(key.connection)
        if slow is not None:
            slow.breach(
                ConnectionBreach(
                    "large message",
                    got="one that comes too slowly while others wait",
                    expected=f"{LARGE_BYTES_PER_SECOND} bytes a second",
                )
            )
    granted(shares.hurry(is_urgent, now_ns))


_numbers = itertools.count(1)
_connections: dict[int | str, _Connection] = {}
_token = secrets.token_hex(8)


class _Gate:
    """The `MessageGate` of one connection."""

    small_bytes = STREAM_WINDOW_BYTES

    def __init__(self, door: Door, shares: MessageShares, address: str, number: int) -> None:
        self._door, self._shares, self._address, self._number = door, shares, address, number
        self._publish_streams: set[int] = set()
        self._asked: set[int] = set()
        self._next_sizes: dict[int, int] = {}

    def publishes(self, stream_id: int) -> None:
        self._publish_streams.add(stream_id)

    def ask(self, stream_id: int, size: int) -> bool:
        if stream_id in self._asked:  # the service still holds the message before
            self._next_sizes[stream_id] = size
            return False
        self._asked.add(stream_id)
        return self._shares.ask(self._key(stream_id), size, time.monotonic_ns())

    def progressed(self, stream_id: int, size: int) -> None:
        self._shares.progressed(self._key(stream_id), size)

    def came(self, stream_id: int) -> None:
        if stream_id not in self._publish_streams:
            self.taken(stream_id)

    def taken(self, stream_id: int) -> None:
        """Release a stream's large message."""
        self._give_back(stream_id)
        size = self._next_sizes.pop(stream_id, None)
        self._asked.discard(stream_id)
        if size is not None and self.ask(stream_id, size):
            self._door.loop.call_soon(granted, [self._key(stream_id)])

    def done(self, stream_id: int) -> None:
        self._next_sizes.pop(stream_id, None)
        self._publish_streams.discard(stream_id)
        if stream_id in self._asked:
            self._asked.discard(stream_id)
            self._give_back(stream_id)

    def _give_back(self, stream_id: int) -> None:
        keys = self._shares.done(self._key(stream_id), time.monotonic_ns())
        if keys:  # later: a relay may be in the middle of a read
            self._door.loop.call_soon(granted, keys)

    def _key(self, stream_id: int) -> StreamKey:
        return StreamKey(self._address, self._number, stream_id)


class _Connection(Pump[ServerRelay]):
    def __init__(self, door: Door, client: socket.socket, peer: str, host: str, visit: Visit) -> None:
        self.number = next(_numbers)
        self._gate = None if door.shares is None else _Gate(door, door.shares, visit.address, self.number)
        super().__init__(door.loop, door.buffer, ServerRelay(self._gate), client)
        self._door = door
        self._visit = visit
        self._peer = peer
        self._host = host
        self._name = f"sluice-{_token}-{self.number}"
        self._subjects: tuple[str, ...] = ()

    def start(self) -> None:
        self._door.connections[self.number] = _connections[self.number] = self
        self.outside.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tls = self._door.tls
        if tls is None:
            self.outside.read_on()
        else:
            self.start_tls(tls.context(), is_server=True)

    def on_tls_failed(self, reason: str) -> None:
        breach = ConnectionBreach("handshake", got=reason, expected="TLS with a certificate that is taken")
        self._door.notes.ended(self._visit.address, breach)

    def on_secured(self, certificate: bytes | None) -> None:
        if certificate:
            from sluice.gateway.transport.certificates import subjects_of

            self._subjects = subjects_of(certificate)
        guest = Guest.STRANGER
        if self._is_node():
            guest = Guest.NODE
        elif not self._door.listed_subjects.isdisjoint(self._subjects):
            guest = Guest.LISTED
        reason = self._door.keeper.known(self._visit, guest)
        if reason is not None:
            self._door.notes.refused(self._visit.address, reason)
            self.close()
            return
        self._door.make_way()
        self.outside.read_on()

    def _is_node(self) -> bool:
        return self._door.is_node(self._host, self._subjects)

    def on_outside(self) -> None:
        relay = self.relay
        if self.grpc is None and not relay.awaits_preface:
            self._connect()
        if relay.cost >= COST_LOOKED_AT:
            wait_ns = self._door.keeper.spend(self._visit, relay.cost, relay.data_bytes, relay.now_ns)
            relay.cost = relay.data_bytes = 0
            if wait_ns:
                self.pause(wait_ns / 1e9)

    def _connect(self) -> None:
        try:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:  # the relay's input cannot wait: others use its buffer
            self._not_connected(error)
            return
        try:
            sock.bind(b"\0" + self._name.encode())
            caller = Caller(
                self._peer,
                self._visit.address,
                self._subjects,
                cut_off=self.cut_off,
                connection=self.number,
                taken=self._taken,
                host=self._host,
                is_node=self._is_node,
            )
            enter(self._name, caller)
            sock.setblocking(False)
            sock.connect(str(self._door.grpc_path))
        except OSError as error:
            sock.close()
            self._not_connected(error)
            return
        self._visit.has_shaken_hands = True
        self.enter(sock)

    def _not_connected(self, error: OSError) -> None:
        extra = caused_by(self._visit.address, peer=self._peer, got=str(error))
        log.warning("connection not taken", extra=extra)
        self.close()

    def on_grpc(self) -> None:
        refused = self.relay.refused
        if refused:
            for message in refused:
                self._door.notes.refused_message(self._visit.address, message)
            refused.clear()

    def on_breach(self, breach: ConnectionBreach) -> None:
        self._door.notes.ended(self._visit.address, breach)

    def on_left_grpc(self) -> None:
        leave(self._name)

    def on_closed(self) -> None:
        self._door.gone(self.number, self._visit)

    def _taken(self, stream_id: int) -> None:
        if self._gate is not None and not self.is_closed:
            self._gate.taken(stream_id)

    def granted(self, stream_id: int) -> None:
        self.relay.grant(stream_id)
        self.flush()

    def tick(self, now_ns: int) -> None:
        if self.is_over(now_ns):
            return
        relay, visit = self.relay, self._visit
        visit.has_called = bool(relay.streams_begun)
        breach = self._door.keeper.overdue(visit, relay.block_began_ns, now_ns)
        if breach is not None:
            self.breach(breach)
        elif relay.open_streams:
            relay.tick()
            self.flush()
