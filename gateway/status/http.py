"""The HTTP server of a node: probes, metrics and the status page.

A probe always gets an answer: an error of ours is a reason not to be ready. `/readyz` is JSON where `Accept`
prefers it. A node that is ready adds what it sees wrong with its cluster, as notes.

Source: docs/operations.md, "Watch it".
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import CONTENT_TYPE_LATEST

from sluice.datastream.server.descriptors import client_descriptors_end, descriptors_max
from sluice.datastream.server.places import Places, party_of
from sluice.gateway.addresses import Address
from sluice.gateway.errors import Fatal
from sluice.gateway.metrics import Metrics
from sluice.gateway.status.charts import charts
from sluice.gateway.status.cluster_page import ClusterPage, render_cluster
from sluice.gateway.status.events import Event
from sluice.gateway.status.guide import PAGES, guide_page
from sluice.gateway.status.history import History
from sluice.gateway.status.node_report import NodeReport
from sluice.gateway.status.status_page import Colours, render

__all__ = ["DrawnCharts", "HttpLimits", "HttpServer", "NodeView", "PageSources", "make_app", "start_http"]

log = logging.getLogger(__name__)

HTTP_CONNECTIONS_MAX: Final = 256
"""Connections at once: probes, a scraper, a few browsers."""

HTTP_CONNECTIONS_KEPT: Final = 8
"""Connections that may take the last file descriptors: without one, probes would have the node killed."""

HTTP_SILENT_SECONDS_MAX: Final = 75.0
"""Time without a whole request; scrapers ask again within a minute."""

HTTP_STOP_SECONDS: Final = 1.0
"""A stopping node waits so long for clients to take answers, and as long again for begun requests."""

HTTP_UNREAD_SECONDS_MAX: Final = 60.0
"""The time that a client may take nothing of an answer."""

_requests_log = logging.getLogger(f"{__name__}.requests")
_requests_log.addFilter(lambda record: not _is_about_client(record))

DESCRIPTORS_DIVISOR: Final = 16
"""One in so many file descriptors may be an HTTP client."""

LISTEN_BACKLOG: Final = 1_024

STARTING_SECONDS: Final = 2
"""Time after which the browser asks a starting node again."""

_NODE: web.AppKey[NodeView] = web.AppKey("node")
_SOURCES: web.AppKey[PageSources] = web.AppKey("sources")
_CHARTS: web.AppKey[DrawnCharts] = web.AppKey("charts")
_NO_STORE = {"Cache-Control": "no-store"}
_PAGE_HEADERS = {
    **_NO_STORE,
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}
_ALL_HEADERS = {"X-Content-Type-Options": "nosniff", "Server": "sluice"}
_STARTING_HEADERS = {**_NO_STORE, "Refresh": str(STARTING_SECONDS)}  # makes a browser ask again


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """The limits of an HTTP server."""

    connections_max: int = HTTP_CONNECTIONS_MAX
    connections_kept: int = HTTP_CONNECTIONS_KEPT
    silent_seconds_max: float = HTTP_SILENT_SECONDS_MAX
    unread_seconds_max: float = HTTP_UNREAD_SECONDS_MAX


class NodeView(Protocol):
    """The node, for the HTTP server."""

    @property
    def metrics(self) -> Metrics:
        """The node's metrics."""

    def report(self, *, for_page: bool = False) -> NodeReport:
        """Gather the node's report; `for_page` with what only the status page shows."""


@dataclass(frozen=True, slots=True)
class PageSources:
    """The sources of the pages, beside the node's report."""

    history: History = field(default_factory=History)
    events: Callable[[], Sequence[Event]] = tuple
    """Returns the last events, the newest first."""
    cluster: ClusterPage | None = None
    colours: Colours = field(default_factory=Colours)


class DrawnCharts:
    """The charts of a history, drawn once for all browsers; in a thread, for the event loop's sake."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._drawn: dict[str, tuple[int, str]] = {}
        self._drawing = asyncio.Lock()

    async def over(self, time: str) -> str:
        """Return the charts of the last `day`, or of the last hour, as HTML."""
        key, ring = ("day", self._history.day) if time == "day" else ("hour", self._history.hour)
        async with self._drawing:
            version, html = self._drawn.get(key, (-1, ""))
            if version != ring.version:
                version = ring.version
                html = await asyncio.to_thread(charts, ring.copy())
                self._drawn[key] = version, html
            return html


class HttpServer:
    """A running HTTP server."""

    def __init__(self, runner: web.AppRunner, listener: asyncio.Server, address: Address) -> None:
        self._runner = runner
        self._listener = listener
        self.address = address

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        self._listener.close()
        await self._runner.cleanup()


class _Clients:
    """The clients of an HTTP server. Without a free place, a newcomer gets that of an older, idle client."""

    def __init__(self, limits: HttpLimits) -> None:
        self._descriptors_end = client_descriptors_end()
        descriptors = descriptors_max()
        self._most, self._kept = limits.connections_max, limits.connections_kept
        if descriptors is not None:
            self._most = max(self._kept, min(self._most, descriptors // DESCRIPTORS_DIVISOR))
        self._places: Places[asyncio.Transport] = Places(self._most, spares="new")

    def take(self, transport: asyncio.Transport) -> None:
        for client in self._places.clients():
            if client.is_closing():  # aiohttp does not tell
                self._places.remove(client)
        end, most = self._descriptors_end, self._most
        if end is not None and transport.get_extra_info("socket").fileno() >= end:
            most = self._kept  # a node that is full of other clients is alive, and says so
        name: tuple[str, int] | None = transport.get_extra_info("peername")  # None: it has left
        party = party_of(name[0].partition("%")[0]) if name else ""
        if len(self._places) >= most and (older := self._places.who_gives_way(party)) is not None:
            self._places.remove(older)
            older.abort()
        self._places.add(transport, party)


class _Arrival(asyncio.Protocol):
    """Holds a new connection until it is counted; aiohttp serves it then."""

    def __init__(self, server: web.Server, clients: _Clients) -> None:
        self._server, self._clients = server, clients

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._clients.take(transport)
        handler = self._server()
        transport.set_protocol(handler)
        handler.connection_made(transport)


def make_app(node: NodeView, sources: PageSources) -> web.Application:
    """Return the application that answers for `node`."""
    app = web.Application()
    app[_NODE], app[_SOURCES], app[_CHARTS] = node, sources, DrawnCharts(sources.history)
    app.router.add_get("/healthz", _healthz)
    app.router.add_get("/readyz", _readyz)
    app.router.add_get("/readyz/publishers", _readyz_for_publishers)
    app.router.add_get("/metrics", _metrics)
    app.router.add_get("/", _page)
    app.router.add_get("/status.json", _status)
    app.router.add_get("/cluster", _cluster)
    app.router.add_get("/operations", _guide)
    app.router.add_get("/guide/{name}", _guide)
    app.router.add_get("/favicon.ico", _no_icon)
    app.on_response_prepare.append(_add_headers)
    return app


async def start_http(
    node: NodeView,
    address: Address,
    limits: HttpLimits = HttpLimits(),
    sources: PageSources | None = None,
) -> HttpServer:
    """Answer for `node` until the server is closed.

    Raises:
        Fatal: the address is not free.
    """
    runner = web.AppRunner(
        make_app(node, sources or PageSources()),
        access_log=None,
        logger=_requests_log,
        handle_signals=False,
        keepalive_timeout=limits.silent_seconds_max,
        # Else the server waits for the rest of a request whose client has left, which no limit counts.
        handler_cancellation=True,
        shutdown_timeout=HTTP_STOP_SECONDS,
    )
    await runner.setup()
    server = runner.server
    assert server is not None  # since it is set up

    clients = _Clients(limits)
    try:
        listener = await asyncio.get_running_loop().create_server(
            lambda: _Arrival(server, clients), address.host, address.port, backlog=LISTEN_BACKLOG
        )
    except OSError as error:
        await runner.cleanup()
        number = error.errno or 0  # negative: the host's name was not found
        got = os.strerror(number) if number > 0 else str(error)
        raise Fatal(f"http.address {address}", got=got, expected="an address that is free here") from error
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux: connections inherit it
        unread_ms = int(limits.unread_seconds_max * 1000)
        for each in listener.sockets:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unread_ms)
    return HttpServer(runner, listener, Address(address.host, listener.sockets[0].getsockname()[1]))


def _is_about_client(record: logging.LogRecord) -> bool:
    error = None if record.exc_info is None else record.exc_info[1]
    return isinstance(error, HttpProcessingError | ConnectionError)


def _report(node: NodeView) -> NodeReport | None:
    try:
        return node.report()
    except Exception:  # the edge of a shell: a probe must get an answer
        log.exception("the readiness of the node could not be found out")
        return None


def _reasons(report: NodeReport | None) -> list[str]:
    return ["internal error, see the log"] if report is None else list(report.problems)


async def _healthz(_: web.Request) -> web.Response:
    return web.Response(text="ok\n", headers=_NO_STORE)


async def _readyz(request: web.Request) -> web.Response:
    report = _report(request.app[_NODE])
    notes = () if report is None else tuple(text for _, text in report.cluster_faults)
    return _readiness(request, _reasons(report), notes)


async def _readyz_for_publishers(request: web.Request) -> web.Response:
    report = _report(request.app[_NODE])
    reasons = _reasons(report)
    if report is not None and report.sent_elsewhere is not None:
        reasons.append(report.sent_elsewhere)
    return _readiness(request, reasons)


def _readiness(request: web.Request, reasons: list[str], notes: Sequence[str] = ()) -> web.Response:
    status = 503 if reasons else 200
    if _prefers_json(request.headers.get("Accept", "")):
        answer = {"ready": not reasons, "reasons": reasons} | ({"notes": list(notes)} if notes else {})
        return web.json_response(answer, status=status, headers=_NO_STORE)
    text = _lines(reasons or ["ready", *(f"note: {note}" for note in notes)])
    return web.Response(text=text, status=status, headers=_NO_STORE)


def _lines(texts: Iterable[str]) -> str:
    return "".join(f"{text}\n" for text in texts)


async def _page(request: web.Request) -> web.Response:
    report, sources = request.app[_NODE].report(for_page=True), request.app[_SOURCES]
    if report.is_starting:
        return web.Response(text=_lines(report.problems), status=503, headers=_STARTING_HEADERS)
    pages = {}
    if sources.cluster is not None:
        sources.cluster.begin_look()  # the page does not wait for peers
        pages = sources.cluster.pages
    over, is_held = request.query.get("over", "hour"), _is_held(request)
    drawn = await request.app[_CHARTS].over(over)
    events = sources.events()
    return _html(render(report, drawn, events, sources.colours, over=over, is_held=is_held, pages=pages))


async def _cluster(request: web.Request) -> web.Response:
    report, cluster = request.app[_NODE].report(), request.app[_SOURCES].cluster
    if report.is_starting:
        return web.Response(text=_lines(report.problems), status=503, headers=_STARTING_HEADERS)
    if cluster is None:
        raise web.HTTPNotFound
    lines, faults = await cluster.lines(), [text for _, text in report.cluster_faults]
    return _html(render_cluster(lines, faults, report.now_unix_seconds, is_held=_is_held(request)))


async def _guide(request: web.Request) -> web.Response:
    name = request.match_info.get("name", "operations")
    if name not in PAGES:
        raise web.HTTPNotFound
    return _html(await asyncio.to_thread(guide_page, name))


async def _no_icon(_: web.Request) -> web.Response:
    """Browsers ask for an icon by themselves."""
    return web.Response(status=204, headers={"Cache-Control": "max-age=86400"})


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_ALL_HEADERS)


def _is_held(request: web.Request) -> bool:
    return request.query.get("hold") == "on"


def _html(page: str) -> web.Response:
    return web.Response(text=page, content_type="text/html", headers=_PAGE_HEADERS)


async def _status(request: web.Request) -> web.Response:
    report = request.app[_NODE].report(for_page=True)
    if report.is_starting:
        return web.json_response({"problems": report.problems}, status=503, headers=_NO_STORE)
    return web.json_response(report.as_json(), headers=_NO_STORE)


async def _metrics(request: web.Request) -> web.Response:
    node = request.app[_NODE]
    node.metrics.ready.set(0 if _reasons(_report(node)) else 1)
    headers = {**_NO_STORE, "Content-Type": CONTENT_TYPE_LATEST}
    return web.Response(body=node.metrics.exposition(), headers=headers)


def _prefers_json(accept: str) -> bool:
    """Return whether an Accept header has `application/json` before `text/plain`; `*/*` prefers text."""
    kinds = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    wanted = [kind for kind in kinds if kind in ("application/json", "text/plain", "text/*")]
    return bool(wanted) and wanted[0] == "application/json"
