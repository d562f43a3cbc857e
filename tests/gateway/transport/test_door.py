"""Tests of `gateway.transport.door`: a gRPC server behind its door, and clients of every kind."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from grpc import aio

from sluice.gateway.addresses import Address
from sluice.gateway.transport import callers
from sluice.gateway.transport.callers import caller_of
from sluice.gateway.transport.channels import open_blocking_channel
from sluice.gateway.transport.door import Door, look_at_shares
from sluice.gateway.transport.door_notes import DoorNotes
from sluice.gateway.transport.doorkeeper import DoorLimits, DoorTimes
from sluice.gateway.transport.frames import CLIENT_PREFACE, ConnectionBreach, ErrorCode, FrameKind, frame
from sluice.gateway.transport.grpc_server import ConnectionLimits, GrpcServer, ServerPlan, start_server
from sluice.gateway.transport.header_blocks import header_frames
from sluice.gateway.transport.known_nodes import KnownNodes
from sluice.gateway.transport.message_shares import MessageShares
from sluice.gateway.transport.tls import ServerTls
from tests.attacks import HELLO, ended_within, request
from tests.certificates import Authority
from tests.network_double import NetworkDouble

ANSWER_SECONDS = 20.0
SOON = 0.5
"""Short limits, in seconds."""
LOOPBACK = Address("127.0.0.1", 0)
SERVICE = "org.hiero.block.api.Test"
PUBLISH = "org.hiero.block.api.BlockStreamPublishService"
STRANGER, FRIEND = "127.0.0.2", "127.0.0.3"
LARGE = 2 << 20
BUDGET = 3 << 20


def plan(**changes: Any) -> ServerPlan:
    values: dict[str, Any] = {"address": LOOPBACK, "keepalive_seconds": 0, "connections_max": 100}
    return ServerPlan(setting="grpc.listen", message_bytes_max=BUDGET, **(values | changes))


class Notes(DoorNotes):
    def __init__(self) -> None:
        super().__init__("grpc.listen")
        self.endings: list[str] = []
        self.got: list[str] = []
        self.refusals: list[tuple[str, str]] = []

    def refused(self, address: str, reason: str) -> None:
        self.refusals.append((address, reason))
        super().refused(address, reason)

    def ended(self, address: str, breach: ConnectionBreach) -> None:
        self.endings.append(breach.what)
        self.got.append(breach.got)
        super().ended(address, breach)


class Served:
    """A server in a thread of its own.

    `Test/who` names its caller, `Test/hold` never ends, and the publish service takes over a message when
    told to.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, notes: Notes, shares: MessageShares | None) -> None:
        self.loop = loop
        self.notes = notes
        self.shares = shares
        self.server: GrpcServer
        self.received: list[str] = []
        """Addresses of publishers whose message has come."""
        self.take_over = asyncio.Event()
        self.is_node = False
        """Whether the last caller is another node."""

    @property
    def address(self) -> str:
        return str(self.server.address)

    def add(self, server: aio.Server) -> None:
        test: dict[str, Any] = {
            "who": grpc.unary_unary_rpc_method_handler(self._who),
            "hold": grpc.unary_stream_rpc_method_handler(self._hold),
        }
        publish: dict[str, Any] = {"publishBlockStream": grpc.stream_stream_rpc_method_handler(self._publish)}
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(SERVICE, test),
                grpc.method_handlers_generic_handler(PUBLISH, publish),
            )
        )

    async def _who(self, _: bytes, context: aio.ServicerContext[Any, Any]) -> bytes:
        caller = caller_of(context)
        self.is_node = caller.is_node()
        return "\n".join((caller.peer, caller.address, *caller.subjects)).encode()

    async def _hold(self, _: bytes, context: aio.ServicerContext[Any, Any]) -> AsyncIterator[bytes]:
        yield b"held"
        await asyncio.Event().wait()

    async def _publish(
        self, messages: AsyncIterator[bytes], context: aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[bytes]:
        caller = caller_of(context)
        key = caller.key_of(context)
        assert key is not None
        async for _ in messages:
            self.received.append(caller.address)
            await self.take_over.wait()
            caller.taken(key.stream)
            yield b""

    def await_refusals(self, *refusals: tuple[str, str]) -> None:
        """Wait for the notes of refusals, which come after the connection's end."""
        wait_until(lambda: len(self.notes.refusals) >= len(refusals), "the note of a refusal")
        assert self.notes.refusals == list(refusals)

    def do(self, what: Callable[[], object]) -> None:
        """Call something in the server's thread."""
        done = threading.Event()
        self.loop.call_soon_threadsafe(what)
        self.loop.call_soon_threadsafe(done.set)
        assert done.wait(ANSWER_SECONDS)


@contextmanager
def serving(the_plan: ServerPlan | None = None, shares: MessageShares | None = None) -> Iterator[Served]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> Served:
        served = Served(loop, Notes(), shares)
        served.server = await start_server(the_plan or plan(), served.add, served.notes, shares)
        return served

    try:
        served = asyncio.run_coroutine_threadsafe(start(), loop).result(ANSWER_SECONDS)
        try:
            yield served
        finally:
            asyncio.run_coroutine_threadsafe(served.server.stop(0), loop).result(ANSWER_SECONDS)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(ANSWER_SECONDS)
        loop.close()


def wait_until(is_so: Callable[[], object], what: str) -> None:
    until = time.monotonic() + ANSWER_SECONDS
    while not is_so():
        assert time.monotonic() < until, f"{what} did not come"
        time.sleep(0.01)


def who(channel: grpc.Channel) -> list[str]:
    ask: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{SERVICE}/who", bytes, bytes)
    return ask(b"", timeout=ANSWER_SECONDS).decode().split("\n")


def who_is(double: NetworkDouble, **words: int) -> list[str]:
    """Ask with a double of the network's client."""
    double.call("Test/who", **words)
    double.send(b"", ends=True)
    return double.next().decode().split("\n")


def stranger(served: Served, hello: bytes = b"", source: str = STRANGER) -> socket.socket:
    """Connect, and send something."""
    where = served.server.address
    sock = socket.create_connection((where.host, where.port), ANSWER_SECONDS, (source, 0))
    sock.sendall(hello)
    return sock


def last_words(sock: socket.socket) -> bytes:
    """Return the bytes until the end of a connection."""
    words = b""
    sock.settimeout(ANSWER_SECONDS)
    with suppress(ConnectionError):
        while got := sock.recv(1 << 16):
            words += got
    return words


def is_taken(sock: socket.socket) -> bool:
    """Return whether the door takes a connection that has greeted: then gRPC greets, too."""
    sock.settimeout(ANSWER_SECONDS)
    with suppress(ConnectionError):
        return bool(sock.recv(1 << 16))
    return False


# --- who calls ----------------------------------------------------------------------------------------------


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.parametrize(
    ("host", "client", "peer"),
    [
        ("127.0.0.1", "127.0.0.1", "ipv4:127.0.0.1:"),
        ("::1", "::1", "ipv6:%5B::1%5D:"),
        ("::", "127.0.0.1", "ipv4:127.0.0.1:"),
    ],
)
def test_the_address_of_a_caller_is_told(host: str, client: str, peer: str) -> None:
    """A client that reaches an IPv6 socket over IPv4 has its IPv4 address."""
    if ":" in host and not has_ipv6():
        pytest.skip("needs IPv6, which the kernel has switched off here")
    with serving(plan(address=Address(host, 0))) as served:
        where = Address(client, served.server.address.port)
        with open_blocking_channel(str(where)) as channel:
            told = who(channel)
        assert told[0].startswith(peer)
        assert told[0].removeprefix(peer).isdigit()
        assert told[1:] == [client]


def test_the_names_in_a_callers_certificate_are_told(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    names = [
        x509.UniformResourceIdentifier("spiffe://net/alice"),
        x509.RFC822Name("alice@net"),
        x509.IPAddress(ipaddress.ip_address("2001:db8::1")),
    ]
    alice = authority.issue("alice", organization="Net", further_names=names)
    tls = ServerTls(authority.server_files(authority.issue("localhost"), mutual=True), "grpc.tls")
    with serving(plan(tls=tls)) as served:
        with open_blocking_channel(served.address, authority.client(alice)) as channel:
            told = who(channel)
        assert told[1:] == [
            "127.0.0.1",
            "O=Net,CN=alice",
            "CN=alice",
            "URI:spiffe://net/alice",
            "DNS:localhost",
            "IP:127.0.0.1",
            "IP:2001:db8::1",
            "email:alice@net",
        ]
        with (
            open_blocking_channel(served.address, authority.client()) as channel,
            pytest.raises(grpc.RpcError),
        ):
            who(channel)


@pytest.mark.parametrize(
    ("who_is_it", "words"),
    [
        ("expired", "certificate has expired"),
        ("from elsewhere", "unable to get local issuer certificate"),
        ("nobody", "PEER_DID_NOT_RETURN_A_CERTIFICATE"),
    ],
)
def test_it_is_noted_why_a_certificate_is_refused(tmp_path: Path, who_is_it: str, words: str) -> None:
    authority, another = Authority(tmp_path), Authority(tmp_path, "another")
    tls = ServerTls(authority.server_files(authority.issue("localhost"), mutual=True), "grpc.tls")
    pairs = {"expired": authority.issue("alice", days=-1), "from elsewhere": another.issue("bob")}
    with serving(plan(tls=tls)) as served:
        context = ssl.create_default_context(cafile=str(authority.path))
        if pair := pairs.get(who_is_it):
            context.load_cert_chain(pair.certificate, pair.key)
        with (
            stranger(served) as sock,
            suppress(OSError),
            context.wrap_socket(sock, server_hostname="localhost") as secured,
        ):
            last_words(secured)
        wait_until(lambda: served.notes.got, "the note of a handshake")
        assert (served.notes.endings, served.notes.got) == (["handshake"], [words])


def pin_of(certificate: Path) -> str:
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate.read_text())).hexdigest()


def test_a_client_without_alpn_and_without_te_is_answered(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("localhost")
    tls = ServerTls(authority.server_files(pair, mutual=False), "grpc.tls")
    with serving(plan(tls=tls)) as served, NetworkDouble(served.address, pin_of(pair.certificate)) as double:
        assert who_is(double)[1:] == ["127.0.0.1"]
        assert who_is(double)[1:] == ["127.0.0.1"]
    with serving() as served, NetworkDouble(served.address) as double:
        assert who_is(double)[1:] == ["127.0.0.1"]


def test_a_header_block_in_frames_of_one_byte_is_taken() -> None:
    with serving() as served, NetworkDouble(served.address) as double:
        assert who_is(double, frame_bytes_max=1)[1:] == ["127.0.0.1"]
        assert served.notes.endings == []


# --- clients that break the rules --------------------------------------------------------------------------


SHORT_TIMES = ConnectionLimits(times=DoorTimes(SOON, SOON, SOON))


def client_hello() -> bytes:
    """A TLS client's first bytes."""
    coming, going = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(coming, going, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return going.read()


UNFINISHED = HELLO + header_frames(1, request(), ends_stream=False, frame_bytes_max=20)[:29]


@pytest.mark.parametrize(
    ("hello", "what", "code"),
    [
        (b"", "handshake", ErrorCode.ENHANCE_YOUR_CALM),
        pytest.param(CLIENT_PREFACE[:10], "handshake", ErrorCode.ENHANCE_YOUR_CALM, marks=pytest.mark.slow),
        (b"GET / HTTP/1.1\r\nHost: node\r\n\r\n", "preface", ErrorCode.PROTOCOL_ERROR),
        pytest.param(client_hello(), "preface", ErrorCode.PROTOCOL_ERROR, marks=pytest.mark.slow),
        (HELLO, "no call", ErrorCode.NO_ERROR),
        (UNFINISHED, "header block", ErrorCode.ENHANCE_YOUR_CALM),
    ],
    ids=["nothing", "half a preface", "HTTP/1.1", "TLS", "no call", "half a block"],
)
def test_who_does_not_come_to_a_call_is_told_and_ended(hello: bytes, what: str, code: int) -> None:
    with serving(plan(limits=SHORT_TIMES)) as served, stranger(served, hello) as sock:
        words = last_words(sock)
        assert served.notes.endings == [what]
        go_away = words[words.rindex(bytes((FrameKind.GOAWAY, 0, 0, 0, 0, 0))) + 6 :]
        assert int.from_bytes(go_away[4:8], "big") == code
        assert what.encode() in go_away
        wait_until(lambda: not served.server.door.connection_count, "the end of the connection")


def test_a_block_whose_frames_drip_is_ended_all_the_same() -> None:
    with serving(plan(limits=SHORT_TIMES)) as served, stranger(served, UNFINISHED) as sock:
        with suppress(OSError):
            for _ in range(100):
                sock.sendall(frame(FrameKind.CONTINUATION, 0, 1))
                time.sleep(0.05)
        assert served.notes.endings == ["header block"]


@pytest.mark.parametrize("hello", [b"", client_hello()[:-9], HELLO], ids=["nothing", "half", "no TLS"])
def test_who_does_not_come_through_tls_is_ended(tmp_path: Path, hello: bytes) -> None:
    authority = Authority(tmp_path)
    tls = ServerTls(authority.server_files(authority.issue("localhost"), mutual=False), "grpc.tls")
    with serving(plan(tls=tls, limits=SHORT_TIMES)) as served:
        with stranger(served, hello) as sock:
            assert ended_within(sock, ANSWER_SECONDS)
            assert served.notes.endings == ["handshake"]
            wait_until(lambda: not served.server.door.connection_count, "the end of the connection")
        with stranger(served):  # a load balancer that probes the port
            pass
        wait_until(lambda: not served.server.door.connection_count, "the end of the connection")
        assert served.notes.endings == ["handshake"]


def test_a_call_that_is_open_may_take_as_long_as_it_takes() -> None:
    with serving(plan(limits=SHORT_TIMES)) as served, NetworkDouble(served.address) as double:
        double.call("Test/hold")
        double.send(b"", ends=True)
        assert double.next() == b"held"
        time.sleep(3 * SOON)
        assert served.notes.endings == []
        assert who_is(double)[1:] == ["127.0.0.1"]


# --- ends ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_connection_of_age_is_asked_to_go_and_ended_after_its_grace() -> None:
    aged = plan(connection_age_seconds=1, connection_age_grace_seconds=1)
    with serving(aged) as served, NetworkDouble(served.address) as double:
        double.call("Test/hold")
        double.send(b"", ends=True)
        assert double.next() == b"held"
        with pytest.raises(AssertionError, match=r"the stream is over|the server has ended"):
            double.next()
        assert double.went_away
        wait_until(lambda: not served.server.door.connection_count, "the end of the connection")
        assert served.notes.endings == []
        with open_blocking_channel(served.address) as channel:  # it connects anew each time
            for _ in range(4):
                assert who(channel)[1:] == ["127.0.0.1"]
                time.sleep(SOON)


def sockets_of_this_process() -> int:
    count = 0
    for number in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            count += str(number.readlink()).startswith("socket:")
    return count


def test_a_stop_with_clients_connected_leaves_nothing() -> None:
    async def main() -> None:
        served = Served(asyncio.get_running_loop(), Notes(), None)
        served.server = await start_server(plan(), served.add, served.notes)
        folder = served.server.door.grpc_path.parent
        assert folder.exists()
        with stranger(served), stranger(served, HELLO), stranger(served, UNFINISHED):
            clients = [await asyncio.to_thread(NetworkDouble, served.address) for _ in range(2)]
            for double in clients:
                double.call("Test/hold")
                await asyncio.to_thread(double.send, b"", ends=True)
                assert await asyncio.to_thread(double.next) == b"held"
            await served.server.stop(0)
            await served.server.stop(0)
            assert not served.server.door.connections
            assert not folder.exists()
            for double in clients:
                double.socket.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())  # gRPC opens sockets of its own once
    before, known = sockets_of_this_process(), dict(callers._callers)
    asyncio.run(main())
    assert sockets_of_this_process() == before
    assert callers._callers == known


def test_a_certificate_that_is_renewed_counts_from_the_next_handshake_on(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("localhost")
    first = pin_of(pair.certificate)
    tls = ServerTls(authority.server_files(pair, mutual=False), "grpc.tls")
    with serving(plan(tls=tls)) as served, NetworkDouble(served.address, first) as before:
        second = pin_of(authority.issue("localhost").certificate)
        assert second != first
        with NetworkDouble(served.address, second) as after:
            assert who_is(after)[1:] == ["127.0.0.1"]
        assert who_is(before)[1:] == ["127.0.0.1"]
        pair.key.write_text("half of a renewal")
        with NetworkDouble(served.address, second) as after:
            assert who_is(after)[1:] == ["127.0.0.1"]


# --- large messages -----------------------------------------------------------------------------------------


def shares(**changes: int) -> MessageShares:
    """Room for one large message."""
    return MessageShares(BUDGET, BUDGET, **changes)


def publish_large(served: Served, source: str, errors: list[BaseException]) -> threading.Thread:
    """Send one large message from an address, in a thread."""

    def run() -> None:
        try:
            with NetworkDouble(served.address, source=source) as double:
                double.publish()
                double.send(bytes(LARGE))
                assert double.next() == b""
        except BaseException as error:  # the test looks
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_large_message_waits_until_the_one_before_it_is_taken_over() -> None:
    room = shares()
    errors: list[BaseException] = []
    with serving(shares=room) as served:
        threads = [publish_large(served, STRANGER, errors)]
        wait_until(lambda: served.received == [STRANGER], "the first message")
        threads.append(publish_large(served, FRIEND, errors))
        wait_until(lambda: room.waiting_count == 1, "the second message that waits")
        with NetworkDouble(served.address) as double:  # small ones do not wait
            assert who_is(double)[1:] == ["127.0.0.1"]
        time.sleep(SOON)
        assert served.received == [STRANGER]
        assert room.held_bytes == LARGE
        served.do(served.take_over.set)
        wait_until(lambda: served.received == [STRANGER, FRIEND], "the second message")
        for thread in threads:
            thread.join(ANSWER_SECONDS)
        assert errors == []
        wait_until(lambda: not room.held_bytes, "the room of both")


def test_a_large_message_that_does_not_come_is_ended_while_another_waits() -> None:
    room = shares(grace_ns=0)
    errors: list[BaseException] = []
    with serving(shares=room) as served:
        served.do(served.take_over.set)
        begun = header_frames(1, request(f"/{PUBLISH}/publishBlockStream"), ends_stream=False)
        begun += frame(FrameKind.DATA, 0, 1, b"\0" + LARGE.to_bytes(4, "big") + b"x" * 100)
        with stranger(served, HELLO + begun) as slow:
            wait_until(lambda: room.held_bytes == LARGE, "the grant of the slow one")
            thread = publish_large(served, FRIEND, errors)
            wait_until(lambda: room.waiting_count == 1, "the other message that waits")

            def look() -> bool:
                served.do(lambda: look_at_shares(room, lambda _: False))
                return served.received == [FRIEND]

            wait_until(look, "the other's message")
            assert ended_within(slow, ANSWER_SECONDS)
            assert served.notes.endings == ["large message"]
            thread.join(ANSWER_SECONDS)
        assert errors == []


# --- places ----


def test_one_address_does_not_take_all_places() -> None:
    with serving(plan(connections_per_address_max=2)) as served, ExitStack() as stack:
        for _ in range(2):
            assert is_taken(stack.enter_context(stranger(served, HELLO)))
        assert not is_taken(stack.enter_context(stranger(served)))
        served.await_refusals((STRANGER, "connections of an address"))
        assert is_taken(stack.enter_context(stranger(served, HELLO, FRIEND)))


def test_a_crowd_does_not_keep_out_another_address() -> None:
    with serving(plan(connections_max=16)) as served, ExitStack() as stack:
        crowd = [stack.enter_context(stranger(served, HELLO)) for _ in range(16)]
        assert all(map(is_taken, crowd))
        assert not is_taken(stack.enter_context(stranger(served)))
        assert is_taken(stack.enter_context(stranger(served, HELLO, FRIEND)))
        assert ended_within(crowd[-1], ANSWER_SECONDS)
        served.await_refusals((STRANGER, "connections"), (STRANGER, "connections"))


def nodes_at(*hosts: str, subjects: tuple[str, ...] = ()) -> KnownNodes:
    return KnownNodes(hosts, subjects)


def test_places_are_kept_for_other_nodes() -> None:
    """One in sixteen."""
    with serving(plan(connections_max=16, nodes=nodes_at(FRIEND))) as served, ExitStack() as stack:
        for _ in range(15):
            assert is_taken(stack.enter_context(stranger(served, HELLO)))
        assert not is_taken(stack.enter_context(stranger(served)))
        assert is_taken(stack.enter_context(stranger(served, HELLO, FRIEND)))
        assert not is_taken(stack.enter_context(stranger(served, b"", FRIEND)))
        served.await_refusals((STRANGER, "connections"), (FRIEND, "connections"))
        assert served.server.door.connection_count == 16


def test_no_place_is_kept_where_no_node_is_known() -> None:
    with serving(plan(connections_max=16, nodes=nodes_at())) as served, ExitStack() as stack:
        for _ in range(16):
            assert is_taken(stack.enter_context(stranger(served, HELLO)))


class Secured:
    """Clients with certificates."""

    def __init__(self, tmp_path: Path) -> None:
        self.authority = Authority(tmp_path)
        files = self.authority.server_files(self.authority.issue("localhost"), mutual=True)
        self.tls = ServerTls(files, "grpc.tls")

    def connect(self, served: Served, stack: ExitStack, name: str, source: str = STRANGER) -> socket.socket:
        """Connect and greet; the handshake may fail."""
        pair = self.authority.issue(name)
        context = ssl.create_default_context(cafile=str(self.authority.path))
        context.load_cert_chain(pair.certificate, pair.key)
        sock = stack.enter_context(stranger(served, source=source))
        with suppress(OSError):
            sock = stack.enter_context(context.wrap_socket(sock, server_hostname="localhost"))
            sock.sendall(HELLO)
        return sock


@pytest.mark.parametrize("is_node", [True, False])
def test_places_are_kept_for_whose_certificate_is_listed(tmp_path: Path, is_node: bool) -> None:
    secured = Secured(tmp_path)
    listed: dict[str, Any] = {"listed_subjects": frozenset({"CN=alice"})}
    if is_node:
        listed = {"nodes": nodes_at(subjects=("CN=alice",))}
    with serving(plan(connections_max=16, tls=secured.tls, **listed)) as served, ExitStack() as stack:
        for _ in range(14):  # one place is alice's, one for finding out
            assert is_taken(secured.connect(served, stack, "bob"))
        assert not is_taken(secured.connect(served, stack, "bob"))
        assert is_taken(secured.connect(served, stack, "alice"))
        served.await_refusals((STRANGER, "connections"))


def test_handshakes_that_do_not_end_keep_out_nobody_whose_certificate_is_listed(tmp_path: Path) -> None:
    """They once held all kept places for 20 s each."""
    secured = Secured(tmp_path)
    nodes = nodes_at(subjects=("CN=alice",))
    with serving(plan(connections_max=16, tls=secured.tls, nodes=nodes)) as served, ExitStack() as stack:
        silent = [stack.enter_context(stranger(served)) for _ in range(15)]
        wait_until(lambda: served.server.door.connection_count == 15, "all who are silent")
        assert is_taken(secured.connect(served, stack, "alice", FRIEND))
        assert ended_within(silent[-1], ANSWER_SECONDS)
        served.await_refusals((STRANGER, "connections"))
        assert served.server.door.connection_count == 15


def test_a_caller_is_told_to_be_a_node_by_what_is_known_now(tmp_path: Path) -> None:
    nodes = KnownNodes(resolve=lambda _: asyncio.sleep(0, frozenset({"127.0.0.1"})))
    with serving(plan(nodes=nodes)) as served, open_blocking_channel(served.address) as channel:
        assert who(channel)[0].startswith("ipv4:127.0.0.1:")
        assert not served.is_node
        nodes.peers = ("a.net:40840",)
        asyncio.run_coroutine_threadsafe(nodes.look(), served.loop).result(ANSWER_SECONDS)
        who(channel)
        assert served.is_node


# --- descriptors ----

CLIENT_COUNT = 200


def test_many_clients_that_come_at_once_are_all_answered() -> None:
    together = threading.Barrier(CLIENT_COUNT)

    def call(_: int) -> list[str]:
        together.wait(ANSWER_SECONDS)
        with NetworkDouble(served.address) as double:
            told = who_is(double)
            together.wait(ANSWER_SECONDS)  # all connect before the first one leaves
            return told

    with serving(plan(connections_max=2 * CLIENT_COUNT)) as served:  # some places are kept
        with ThreadPoolExecutor(CLIENT_COUNT) as threads:
            told = list(threads.map(call, range(CLIENT_COUNT)))
        assert {address for _, address in told} == {"127.0.0.1"}
        assert len({peer for peer, _ in told}) == CLIENT_COUNT
        wait_until(lambda: not served.server.door.connection_count, "the end of all connections")
        assert (served.notes.refusals, served.notes.endings) == ([], [])


async def test_a_client_for_whom_there_is_no_socket_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> int:
        door = Door(DoorLimits(), DoorNotes("grpc.listen"))
        door.listen([listener])
        with socket.create_connection(listener.getsockname()[:2]) as client:
            while not door.connections:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            with monkeypatch.context() as patch:
                patch.setattr("sluice.gateway.transport.door.socket.socket", _no_socket)
                client.sendall(CLIENT_PREFACE + frame(FrameKind.PING, 0, 0, b"a secret"))
                await asyncio.sleep(0.2)
            count = len(door.connections)
        door.close()
        return count

    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert await main() == 0


def _no_socket(*_: object) -> socket.socket:
    raise OSError(errno.EMFILE, "Too many open files")
