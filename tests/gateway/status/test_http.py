"""Tests of `gateway.status.http` over real sockets."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import aiohttp
import pytest
import uvloop

from sluice.gateway.addresses import Address
from sluice.gateway.cluster.cluster_view import ClusterFault
from sluice.gateway.errors import Fatal, GatewayError
from sluice.gateway.metrics import Metrics
from sluice.gateway.status import http
from sluice.gateway.status.history import History
from sluice.gateway.status.http import HTTP_STOP_SECONDS, DrawnCharts, HttpLimits, start_http
from sluice.gateway.status.node_report import NodeReport
from tests.gateway.status.test_status_page import EMPTY, problem

ANY_PORT = Address("127.0.0.1", 0)


class FakeNode:
    """A node with the readiness that a test sets."""

    def __init__(self) -> None:
        self.metrics = Metrics(verification_mode="full")
        self.reasons: list[str] = []
        self.error: GatewayError | None = None
        self.elsewhere: str | None = None
        self.faults: tuple[tuple[ClusterFault, str], ...] = ()

    def report(self, *, for_page: bool = False) -> NodeReport:
        if self.error is not None:
            raise self.error
        findings = tuple(map(problem, self.reasons))
        return replace(EMPTY, findings=findings, sent_elsewhere=self.elsewhere, cluster_faults=self.faults)


Get = Callable[..., Awaitable[tuple[int, str, str]]]


@asynccontextmanager
async def serving(node: FakeNode) -> AsyncIterator[Get]:
    """Serve `node`; give a function from a path to status, content type and body."""
    server = await start_http(node, ANY_PORT)
    async with aiohttp.ClientSession() as session:

        async def get(path: str, accept: str = "*/*") -> tuple[int, str, str]:
            async with session.get(f"http://{server.address}{path}", headers={"Accept": accept}) as response:
                return response.status, response.headers["Content-Type"], await response.text()

        yield get
    await server.close()
    await server.close()


TEXT = "text/plain; charset=utf-8"
JSON = "application/json; charset=utf-8"


async def test_alive() -> None:
    async with serving(FakeNode()) as get:
        assert await get("/healthz") == (200, TEXT, "ok\n")
        assert (await get("/other"))[0] == 404


async def test_ready_and_not() -> None:
    node = FakeNode()
    async with serving(node) as get:
        assert await get("/readyz") == (200, TEXT, "ready\n")
        assert await get("/readyz", "application/json") == (200, JSON, '{"ready": true, "reasons": []}')
        node.reasons = ["the disk is full", "behind by 3 blocks"]
        assert await get("/readyz") == (503, TEXT, "the disk is full\nbehind by 3 blocks\n")
        assert await get("/readyz", "application/json;q=0.9, */*") == (
            503,
            JSON,
            '{"ready": false, "reasons": ["the disk is full", "behind by 3 blocks"]}',
        )
        assert (await get("/readyz", "text/plain, application/json"))[1] == TEXT
        node.reasons = []
        assert (await get("/readyz"))[0] == 200


async def test_a_ready_node_notes_what_is_wrong_with_its_cluster() -> None:
    node = FakeNode()
    node.faults = ((ClusterFault.NO_ACTIVE, "no node is active: b:1 does not answer"),)
    async with serving(node) as get:
        note = "no node is active: b:1 does not answer"
        assert await get("/readyz") == (200, TEXT, f"ready\nnote: {note}\n")
        _, _, text = await get("/readyz", "application/json")
        assert json.loads(text) == {"ready": True, "reasons": [], "notes": [note]}
        node.reasons = ["the disk is full"]
        assert await get("/readyz") == (
            503,
            TEXT,
            "the disk is full\n",
        )  # one reason a line, and nothing else


async def test_a_node_that_cannot_tell_is_alive_and_not_ready() -> None:
    node = FakeNode()
    node.error = GatewayError("the state is gone")
    async with serving(node) as get:
        assert await get("/readyz") == (503, TEXT, "internal error, see the log\n")
        assert (await get("/healthz"))[0] == 200
        assert "\nsluice_ready 0.0\n" in (await get("/metrics"))[2]


async def test_metrics_are_up_to_date() -> None:
    node = FakeNode()
    node.metrics.blocks_acknowledged.inc(3)
    async with serving(node) as get:
        status, content_type, body = await get("/metrics")
        assert (status, content_type.partition(";")[0]) == (200, "text/plain")
        assert "\nsluice_blocks_acknowledged_total 3.0\n" in body
        assert "\nsluice_ready 1.0\n" in body
        node.reasons = ["the disk is full"]
        assert "\nsluice_ready 0.0\n" in (await get("/metrics"))[2]


async def test_a_busy_port_and_an_address_that_is_not_ours_are_fatal() -> None:
    server = await start_http(FakeNode(), ANY_PORT)
    with pytest.raises(Fatal) as caught:
        await start_http(FakeNode(), server.address)
    assert str(caught.value) == (
        f"http.address {server.address}: got Address already in use, expected an address that is free here"
    )
    await server.close()
    again = await start_http(FakeNode(), server.address)
    await again.close()
    with pytest.raises(Fatal, match=r"192\.0\.2\.1:1: got Cannot assign requested address"):
        await start_http(FakeNode(), Address("192.0.2.1", 1))


async def test_a_standby_is_ready_but_not_for_publishers() -> None:
    node = FakeNode()
    async with serving(node) as get:
        assert (await get("/readyz/publishers"))[::2] == (200, "ready\n")
        node.elsewhere = "the node is a standby"
        assert (await get("/readyz"))[::2] == (200, "ready\n")
        assert (await get("/readyz/publishers"))[::2] == (503, "the node is a standby\n")
        node.reasons = ["the disk is full"]
        assert (await get("/readyz/publishers"))[::2] == (
            503,
            "the disk is full\nthe node is a standby\n",
        )


async def test_pages_let_nothing_in_and_browsers_find_no_error() -> None:
    server = await start_http(FakeNode(), ANY_PORT)
    async with aiohttp.ClientSession(f"http://{server.address}") as session:
        for path in ("/", "/?over=day&hold=on", "/?over=" + "x" * 7_000, "/operations", "/guide/archive"):
            async with session.get(path) as answer:
                assert answer.status == 200
                policy = answer.headers["Content-Security-Policy"]
                for words in ("default-src 'none'", "frame-ancestors 'none'", "form-action 'none'"):
                    assert words in policy
                assert answer.headers["Referrer-Policy"] == "no-referrer"
                length = len(await answer.read())
            async with session.head(path) as answer:
                assert answer.status == 200
                assert "Content-Security-Policy" in answer.headers
            assert length > 1_000
        for path, status in (("/favicon.ico", 204), ("/metrics", 200), ("/readyz", 200), ("/none", 404)):
            async with session.get(path) as answer:
                assert answer.status == status
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert answer.headers["Server"] == "sluice"
        for method in ("POST", "PUT", "DELETE", "TRACE"):
            async with session.request(method, "/") as answer:
                assert answer.status == 405
        async with session.get("/", headers={"If-None-Match": "*", "Range": "bytes=0-9"}) as answer:
            assert answer.status == 200
    await server.close()


async def test_what_to_do_is_a_page_too() -> None:
    async with serving(FakeNode()) as get:
        status, kind, page = await get("/operations")
        assert (status, kind) == (200, "text/html; charset=utf-8")
        assert '<h3 id="a-node-is-behind">A node is behind</h3>' in page
        assert '<a href="/guide/archive#set-it-up">' in page
        status, kind, page = await get("/guide/archive")
        assert (status, kind) == (200, "text/html; charset=utf-8")
        assert '<h2 id="set-it-up">' in page
        for path in ("/guide/", "/guide/none", "/guide/..%2foperations", "/guide/settings.md"):
            assert (await get(path))[0] == 404


async def test_charts_are_drawn_once_for_all_browsers_and_anew_for_each_sample() -> None:
    history = History()
    drawn = DrawnCharts(history)
    assert "The first figures come within 5 s." in await drawn.over("hour")
    assert "The first figures come within 120 s." in await drawn.over("day")
    for number in range(30):
        history.note(1_700_000_000 + 5 * number, {"blocks": 3.0 + number})
        again = await asyncio.gather(*(drawn.over("hour") for _ in range(5)))
        assert f"{3.0 + number} /s" in again[0]
        assert all(html is again[0] for html in again)
    assert await drawn.over("<b>") is again[0]
    assert "32.0 /s" not in await drawn.over("day")


async def test_the_status_is_a_page_and_json() -> None:
    async with serving(FakeNode()) as get:
        status, kind, page = await get("/")
        assert (status, kind) == (200, "text/html; charset=utf-8")
        assert "active node, version 0.1.0" in page
        status, kind, text = await get("/status.json")
        assert (status, kind) == (200, "application/json; charset=utf-8")
        assert '"phase": "active"' in text


@pytest.mark.parametrize(
    "request_", [b"GET / HTTP/1.1\r\n\r\n", b"\xff\x00\r\n\r\n", b"GET /%s HTTP/1.1\r\n\r\n" % (b"a" * 9_000)]
)
async def test_what_is_not_http_is_answered_and_not_logged(
    request_: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    server = await start_http(FakeNode(), ANY_PORT)
    reader, writer = await asyncio.open_connection(server.address.host, server.address.port)
    writer.write(request_)
    assert await reader.readline() == b"HTTP/1.0 400 Bad Request\r\n"
    writer.close()
    await server.close()
    assert caplog.records == []


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run])
def test_a_probe_gets_in_whoever_holds_all_places(
    run: Callable[[Coroutine[None, None, None]], None],
) -> None:
    """Idle connections once kept out the probe, and the node was killed."""

    async def main() -> None:
        server = await start_http(FakeNode(), ANY_PORT, HttpLimits(connections_max=3))
        where = (server.address.host, server.address.port)
        older = await asyncio.open_connection(*where)
        crowd = [await asyncio.open_connection(*where, local_addr=("127.0.0.2", 0)) for _ in range(9)]
        assert await crowd[0][0].read() == b""  # its address has most
        for reader, writer in (older, crowd[-1], await asyncio.open_connection(*where)):
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            writer.close()
        for _, writer in crowd:
            writer.close()
        await server.close()

    run(main())


async def test_a_client_that_is_gone_holds_no_place() -> None:
    server = await start_http(FakeNode(), ANY_PORT, HttpLimits(connections_max=2))
    where = (server.address.host, server.address.port)
    reader, writer = await asyncio.open_connection(*where)
    for _ in range(20):
        _, other = await asyncio.open_connection(*where)
        other.close()
        await asyncio.sleep(0.02)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.close()
    await server.close()


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run])
def test_a_client_that_is_gone_when_it_is_accepted_is_no_error(
    run: Callable[[Coroutine[None, None, None]], None], caplog: pytest.LogCaptureFixture
) -> None:
    """The kernel no longer knows its address."""

    async def main() -> None:
        server = await start_http(FakeNode(), ANY_PORT)
        where = (server.address.host, server.address.port)
        for _ in range(50):  # they wait in the kernel, and are reset there
            client = socket.create_connection(where)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
        reader, writer = await asyncio.open_connection(*where)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()
        await server.close()

    run(main())
    assert caplog.records == []


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run])
def test_the_last_files_of_the_process_are_for_a_few_connections_and_no_more(
    monkeypatch: pytest.MonkeyPatch, run: Callable[[Coroutine[None, None, None]], None]
) -> None:
    """HTTP clients once took the last ones from publishers and the bookmark index."""
    monkeypatch.setattr(http, "client_descriptors_end", lambda: 0)

    async def main() -> None:
        server = await start_http(FakeNode(), ANY_PORT, HttpLimits(connections_kept=2))
        where = (server.address.host, server.address.port)
        streams = [await asyncio.open_connection(*where) for _ in range(3)]
        assert await streams[0][0].read() == b""  # the oldest gives way
        for reader, writer in streams[1:]:
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        for _, each in streams:
            each.close()
        await server.close()

    run(main())


async def test_a_client_that_asks_nothing_is_closed() -> None:
    server = await start_http(FakeNode(), ANY_PORT, HttpLimits(silent_seconds_max=0.1))
    for begun in (b"", b"GET /healthz HT"):
        reader, writer = await asyncio.open_connection(server.address.host, server.address.port)
        writer.write(begun)
        with suppress(ConnectionResetError):  # if the server has not read the beginning
            assert await asyncio.wait_for(reader.read(), 20) == b""
        writer.close()
    await server.close()


async def test_nothing_is_left_of_a_client_that_is_gone_in_the_middle_of_its_request() -> None:
    """A task once waited ten seconds for the rest of each such request."""

    server = await start_http(FakeNode(), ANY_PORT)
    before = asyncio.all_tasks()
    reader, writer = await asyncio.open_connection(server.address.host, server.address.port)
    writer.write(b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n1")
    assert await reader.readline() == b"HTTP/1.1 405 Method Not Allowed\r\n"
    writer.transport.abort()
    async with asyncio.timeout(5):
        while asyncio.all_tasks() != before:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
    await server.close()


async def test_a_client_that_is_gone_before_its_answer_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    request = b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n"

    server = await start_http(FakeNode(), ANY_PORT)
    for _ in range(20):
        with socket.create_connection((server.address.host, server.address.port)) as client:
            client.sendall(request)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await asyncio.sleep(0.01)
    await server.close()
    assert caplog.records == []


async def deaf_client(host: str, port: int) -> socket.socket:
    """A client that asks until its connection is full or closed, and reads nothing."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    client.connect((host, port))
    client.setblocking(False)
    with suppress(BlockingIOError, ConnectionError):
        while True:
            client.send(b"GET /operations HTTP/1.1\r\nHost: x\r\n\r\n" * 20_000)
            await asyncio.sleep(0.05)
    return client


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="needs TCP_USER_TIMEOUT, which Linux has")
async def test_a_client_that_does_not_read_its_answers_is_closed() -> None:
    """It once kept its place for ever, and such clients kept out operators."""
    server = await start_http(FakeNode(), ANY_PORT, HttpLimits(connections_max=1, unread_seconds_max=0.5))
    where = (server.address.host, server.address.port)
    with await deaf_client(*where):
        answer = b""
        async with asyncio.timeout(60):
            while not answer:
                await asyncio.sleep(0.1)
                reader, writer = await asyncio.open_connection(*where)
                writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                with suppress(ConnectionError):  # the place is still taken
                    answer = await reader.readline()
                writer.close()
        assert answer == b"HTTP/1.1 200 OK\r\n"
    await server.close()


async def test_a_client_that_does_not_read_its_answers_does_not_hold_up_the_end() -> None:
    """It once did for two minutes, longer than service managers wait."""

    server = await start_http(FakeNode(), ANY_PORT)
    with await deaf_client(server.address.host, server.address.port):
        await asyncio.wait_for(server.close(), 10 * HTTP_STOP_SECONDS)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(server.address.host, server.address.port)
