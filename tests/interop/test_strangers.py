"""Strangers that take every place open to them, on every node: acknowledgements go on.

Real processes. Nodes know one another by address 127.0.0.1; strangers come from other addresses.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest

from sluice.datastream import BlockingStreamClient
from sluice.gateway.addresses import Address, parse_address
from sluice.gateway.api import node_pb2, subscribe_pb2
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.block_numbers import U64_MAX
from sluice.gateway.logs import LINES_PER_MESSAGE
from sluice.gateway.services.height_service import STANDBY_STREAMS_MAX
from sluice.gateway.transport.frames import Flag, FrameKind, frame
from sluice.gateway.transport.header_blocks import header_frames
from sluice.publishers.demo.node_process import NodeProcess
from tests.attacks import HELLO, PUBLISH, request
from tests.floods import FLOODS, flood, lines_of
from tests.interop.test_standbys import BLOCKS, ClusterNode, Publishing, last_of
from tests.nodes import ledger_key, until
from tests.serving import Listener

ADDRESSES = [f"127.0.0.{number}" for number in range(2, 10)]
"""The strangers' addresses: more than enough to get round each limit by address."""
SOON = 15.0
"""Seconds; strangers are still there then: a node ends the calls of a silent reader after 30."""
CONNECTIONS_MAX = 64
SUBSCRIBERS_MAX = 200
API = "/org.hiero.block.api"
SUBSCRIBE = f"{API}.BlockStreamSubscribeService/subscribeBlockStream"
GET_BLOCK = f"{API}.BlockAccessService/getBlock"
WATCH = "/sluice.standby.NodeLevel/watch"
LIVE = subscribe_pb2.SubscribeStreamRequest(start_block_number=U64_MAX, end_block_number=U64_MAX)
LATEST = node_pb2.BlockRequest(retrieve_latest=True)


class Stranger:
    """A connection that makes calls and reads nothing."""

    def __init__(self, address: Address, source: str) -> None:
        self.socket = socket.create_connection((address.host, address.port), 10, (source, 0))
        self._stream_id = 1
        self.send(HELLO)

    def send(self, data: bytes) -> None:
        """Send, whether or not the node accepts it."""
        with suppress(OSError):
            self.socket.sendall(data)

    def call(self, path: str, message: bytes | None = None) -> None:
        """Begin a call, and send its one message."""
        head = header_frames(self._stream_id, request(path), ends_stream=False)
        if message is not None:
            body = b"\0" + len(message).to_bytes(4, "big") + message
            head += frame(FrameKind.DATA, Flag.END_STREAM, self._stream_id, body)
        self.send(head)
        self._stream_id += 2

    @property
    def is_taken(self) -> bool:
        """Return whether the node accepted it: gRPC greets."""
        self.socket.settimeout(10)
        with suppress(OSError):
            return bool(self.socket.recv(1))
        return False


def hold_all_places(node: ClusterNode, stack: ExitStack) -> None:
    """Take every place that strangers can have."""
    strangers = [Stranger(node.grpc, source) for source in ADDRESSES]
    for stranger in strangers:
        stack.callback(stranger.socket.close)
        for _ in range(2 * SUBSCRIBERS_MAX // len(ADDRESSES)):
            stranger.call(SUBSCRIBE, LIVE.SerializeToString())
        for _ in range(2 * STANDBY_STREAMS_MAX // len(ADDRESSES)):
            stranger.call(WATCH, b"")
        for _ in range(10):
            stranger.call(PUBLISH)
            stranger.call(GET_BLOCK, LATEST.SerializeToString())
    for number in range(10 * CONNECTIONS_MAX):
        stranger = Stranger(node.grpc, ADDRESSES[number % len(ADDRESSES)])
        stack.callback(stranger.socket.close)
        if not stranger.is_taken:
            return
    raise AssertionError("strangers got all the connections that they asked for")


@contextmanager
def places_held(nodes: Sequence[ClusterNode]) -> Iterator[None]:
    """Have strangers hold all places of these nodes."""
    with ExitStack() as stack:
        for node in nodes:
            hold_all_places(node, stack)
        yield


@asynccontextmanager
async def three_nodes(tmp_path: Path) -> AsyncIterator[list[ClusterNode]]:
    """Three nodes, not started; two must have a block."""
    with ExitStack() as stack:
        nodes = [stack.enter_context(ClusterNode(tmp_path / name)) for name in "abc"]
        for index, node in enumerate(nodes):
            node.introduce([one for one in nodes if one is not node], 1, "standby" if index else "active")
            limits = {"--grpc-max-connections": CONNECTIONS_MAX, "--subscriber-max-streams": SUBSCRIBERS_MAX}
            node._arguments += [str(word) for pair in limits.items() for word in pair]
        yield nodes


@pytest.mark.slow
async def test_acknowledgements_go_on_whatever_strangers_hold(tmp_path: Path) -> None:
    """Strangers' calls must not take the standbys' places."""

    async with three_nodes(tmp_path) as (a, b, c):
        with ExitStack() as stack:
            for node in (a, b, c):  # strangers are there first
                await node.start()
                await asyncio.to_thread(hold_all_places, node, stack)
            publishing = Publishing([a])
            async with asyncio.timeout(SOON):
                await publishing.reach(60)
            assert (await a.facts())["subscribers"] >= SUBSCRIBERS_MAX  # the nodes are beside them
            # Each standby leaves and comes back in turn, and finds its places.
            for away in (b, c):
                await away.kill()
                async with asyncio.timeout(SOON):
                    await publishing.reach(publishing.acknowledged + 40)
                await away.start()
                await asyncio.to_thread(hold_all_places, away, stack)
                acknowledged = publishing.acknowledged
                await until(lambda: has(away, acknowledged))  # noqa: B023 - it is alive
            count = await publishing.end()
            for node in (b, c):
                await until(lambda: has(node, count - 1))  # noqa: B023
            (refused,) = {line["reason"][:39] for line in b.logged("watcher refused")}
            assert refused == "sluice.standby.NodeLevel is for other nodes: "[:39]
        for node in (a, b, c):
            node.send(signal.SIGTERM)
            assert await node.ended() == 0
            assert "Traceback" not in node.log_text()


FLOOD_COUNT = 1_000


@pytest.fixture(scope="module")
def flooded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """One node for all floods."""
    folder = tmp_path_factory.mktemp("flooded")
    with NodeProcess(folder / "data", folder / "log", ["--ledger-key", ledger_key()]) as node:
        yield node


OFTEN = (
    "publishers that come and go",
    "blocks with a bad proof",
    "subscribers that ask nonsense",
    "another protocol",
)
"""Floods that are played by default."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in OFTEN else pytest.mark.slow) for name in FLOODS]
)
def test_no_flood_of_wrong_calls_fills_the_log(flooded: NodeProcess, name: str) -> None:
    """Each second of a flood may write only a few lines."""
    log = flooded.log_path
    before = lines_of(log)
    flood(flooded.grpc, name, FLOOD_COUNT, per_second=10_000)
    flooded.metrics()  # it answers
    found = lines_of(log) - before
    assert max(found.values(), default=0) <= LINES_PER_MESSAGE
    assert found.total() <= 4 * LINES_PER_MESSAGE
    assert "Traceback" not in log.read_text("utf-8")


CROWD = 20_000
PATIENCE = 30.0
"""Seconds; the kernel retries a dropped handshake after 1, 3, 7 s."""
FILES = 1_024
"""The node's file descriptors, as from a shell."""


def connect_again_and_again(address: Address, count: int, is_enough: threading.Event) -> None:
    """Open this many connections or more from several addresses; keep the last ones."""
    held: deque[socket.socket] = deque()
    for number in itertools.count():
        if number >= count and is_enough.is_set():
            break
        sock = socket.socket()
        sock.setblocking(False)
        sock.bind((ADDRESSES[number % len(ADDRESSES)], 0))
        with suppress(BlockingIOError):
            sock.connect((address.host, address.port))
        held.append(sock)
        if len(held) > 2 * FILES:
            held.popleft().close()
        if number % 25 == 0:
            time.sleep(0.01)  # the node may run out of places, not of time
    for sock in held:
        sock.close()


@pytest.mark.slow
async def test_20_000_connections_to_each_port_keep_out_neither_readers_nor_probes(tmp_path: Path) -> None:
    """Nobody may stop acknowledgements by taking a port's places or all descriptors."""
    few_files = ["sh", "-c", f'ulimit -n {FILES}; exec "$@"', "sh"]
    words = ["--ledger-key", ledger_key()]
    with NodeProcess(tmp_path / "data", tmp_path / "log", words, prefix=few_files) as node:
        ports = [parse_address(node.grpc), Address(*node.tcp), parse_address(node.http)]
        folder = Path(f"/proc/{node.process_id}/fd")
        waited: list[float] = []
        is_enough = threading.Event()
        most_files = 0

        def look_after_it() -> None:
            """Probe the node and read a block over TCP, each over a new connection."""
            nonlocal most_files
            began = time.monotonic()
            with socket.create_connection((ports[2].host, ports[2].port), PATIENCE) as probe:
                probe.sendall(b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n")
                assert probe.recv(12) == b"HTTP/1.1 200"
            with BlockingStreamClient(*node.tcp, timeout_seconds=PATIENCE) as client:
                assert client.header().total_entries > 0
            waited.append(time.monotonic() - began)
            most_files = max(most_files, len(list(folder.iterdir())))

        async def main() -> None:
            async def source() -> AsyncIterator[Block]:
                for block in BLOCKS[:100]:
                    yield block
                    await asyncio.sleep(0.02)
                    if block.number == 80:
                        await asyncio.shield(crowds)

            async def few() -> AsyncIterator[Block]:
                for block in BLOCKS[:10]:
                    yield block

            listener, late = Listener([node.grpc], "alice"), Listener([node.grpc], "bob")
            publishing = asyncio.ensure_future(listener.publish(source()))
            crowds = asyncio.gather(
                *(asyncio.to_thread(connect_again_and_again, port, CROWD, is_enough) for port in ports)
            )
            await until(lambda: len(listener.acknowledged) > 1)
            coming = asyncio.ensure_future(late.publish(few()))
            try:
                while not crowds.done():
                    with suppress(TimeoutError):  # the kernel dropped its handshakes
                        await asyncio.to_thread(look_after_it)
                    if len(waited) >= 5 and coming.done():
                        is_enough.set()
                    await asyncio.sleep(0.05)
            finally:
                is_enough.set()
            await crowds
            report = await publishing
            assert (report.unacknowledged, report.reconnects) == (0, 0)
            assert (await coming).unacknowledged == 0  # one that came among all the strangers

        await main()
        assert len(waited) >= 5
        assert most_files < FILES - 20
        log = (tmp_path / "log").read_text("utf-8")
        assert "Traceback" not in log
        assert "Too many open files" not in log


async def has(node: ClusterNode, number: int) -> bool:
    """Whether a block is on its disk."""
    return await last_of(node) >= number


async def test_no_stranger_confirms_a_block(tmp_path: Path) -> None:
    """A reader of all blocks is no standby: without standbys nothing is acknowledged."""

    async with three_nodes(tmp_path) as (a, b, c):
        for node in (a, b, c):
            await node.start()
        publishing = Publishing([a])
        await publishing.reach(10)
        with places_held([a]):  # also at 127.0.0.1, which counts as a node's address
            reader = Stranger(a.grpc, "127.0.0.1")
            reader.call(SUBSCRIBE, LIVE.SerializeToString())
            reader.call(WATCH, b"")
            for away in (b, c):
                away.send(signal.SIGSTOP)
            await publishing.stands_still(a)
            reader.socket.close()
            for away in (b, c):
                away.send(signal.SIGCONT)
            await publishing.reach(publishing.acknowledged + 30)
        count = await publishing.end()
        assert await last_of(a) == count - 1
