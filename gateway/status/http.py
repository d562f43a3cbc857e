"""The HTTP side of a node: is it alive, is it ready, what has it counted.

    GET /healthz    200 as long as the event loop answers
    GET /readyz     200 "ready", or 503 with one reason per line; as JSON where `Accept` prefers it
    GET /readyz/publishers    the same, and a node that sends publishers elsewhere is not ready for them
    GET /metrics    the Prometheus text format
    GET /           the status page, for people
    GET /status.json    the same facts
    GET /operations     what to do about what the page says: docs/operations.md

A health check must not fail because of what it checks: if asking the node goes wrong, that is a reason not
to be ready, not an error page.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import CONTENT_TYPE_LATEST

from datastream.server.descriptors import client_descriptors_end, descriptors_max
from datastream.server.places import Places, party_of
from gateway.addresses import Address
from gateway.errors import Fatal
from gateway.limits import (
    HTTP_CONNECTIONS_KEPT,
    HTTP_CONNECTIONS_MAX,
    HTTP_SILENT_SECONDS_MAX,
    HTTP_STOP_SECONDS,
    HTTP_UNREAD_SECONDS_MAX,
)
from gateway.metrics import Metrics
from gateway.status.operations_page import render_operations
from gateway.status.status_page import REFRESH_SECONDS, Status, as_json, render

__all__ = ["HttpServer", "NodeView", "make_app", "start_http"]

log = logging.getLogger(__name__)

_requests_log = logging.getLogger(f"{__name__}.requests")
_requests_log.addFilter(lambda record: not _is_about_client(record))

DESCRIPTORS_DIVISOR: Final = 16
"""One in so many of the process's file descriptors may be an HTTP client."""

LISTEN_BACKLOG: Final = 1_024
"""Connections that the kernel holds until they are accepted; the next one tries again after a second."""

_NODE: web.AppKey[NodeView] = web.AppKey("node")
_NO_STORE = {"Cache-Control": "no-store"}
_PAGE_HEADERS = {**_NO_STORE, "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
_STARTING_HEADERS = {**_NO_STORE, "Refresh": str(REFRESH_SECONDS)}  # a browser asks again by itself
_OPERATIONS = Path(__file__).with_name("operations.md")


class NodeView(Protocol):
    """What the HTTP side needs to know of a node."""

    @property
    def metrics(self) -> Metrics:
        """The node's metrics."""

    def readiness(self) -> list[str]:
        """Say why the node does not take or serve blocks now, in words; nothing to say means ready."""

    def status(self) -> Status | None:
        """Say what the node knows of itself; None while it is starting."""

    def publishers_sent_elsewhere(self) -> str | None:
        """Say why publishers are sent elsewhere, in words; None: they are taken."""


class HttpServer:
    """A running HTTP server."""

    def __init__(self, runner: web.AppRunner, listener: asyncio.Server, address: Address) -> None:
        self._runner = runner
        self._listener = listener
        self.address = address
        """Where it listens; a port 0 has become the real one."""

    async def close(self) -> None:
        """Stop listening and close what is open. Closing twice does nothing."""
        self._listener.close()
        await self._runner.cleanup()


class _Clients:
    """The clients of an HTTP server. One that comes when all places are taken gets that of an older one.

    A probe asks at once, and its answer takes milliseconds; who holds a place and asks nothing is older.
    """

    def __init__(self) -> None:
        self._descriptors_end = client_descriptors_end()
        descriptors = descriptors_max()
        self._most = HTTP_CONNECTIONS_MAX
        if descriptors is not None:
            self._most = max(HTTP_CONNECTIONS_KEPT, min(self._most, descriptors // DESCRIPTORS_DIVISOR))
        self._places: Places[asyncio.Transport] = Places(self._most, spares="new")

    def take(self, transport: asyncio.Transport) -> None:
        """Count a client, and close an older one if there are too many."""
        for client in self._places.clients():
            if client.is_closing():  # aiohttp does not tell
                self._places.remove(client)
        end, most = self._descriptors_end, self._most
        if end is not None and transport.get_extra_info("socket").fileno() >= end:
            most = HTTP_CONNECTIONS_KEPT  # a node that others have filled is still alive, and says so
        name: tuple[str, int] | None = transport.get_extra_info("peername")  # None: it is gone already
        party = party_of(name[0].partition("%")[0]) if name else ""
        if len(self._places) >= most and (older := self._places.who_gives_way(party)) is not None:
            self._places.remove(older)
            older.abort()
        self._places.add(transport, party)


class _Arrival(asyncio.Protocol):
    """A new connection, until it is counted.

    Args:
        server: aiohttp's, which serves it then.
        clients: all of them.
    """

    def __init__(self, server: web.Server, clients: _Clients) -> None:
        self._server, self._clients = server, clients

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Hand it on."""
        self._clients.take(transport)
        handler = self._server()
        transport.set_protocol(handler)
        handler.connection_made(transport)


def make_app(node: NodeView) -> web.Application:
    """Make the application that answers for `node`."""
    app = web.Application()
    app[_NODE] = node
    app.router.add_get("/healthz", _healthz)
    app.router.add_get("/readyz", _readyz)
    app.router.add_get("/readyz/publishers", _readyz_for_publishers)
    app.router.add_get("/metrics", _metrics)
    app.router.add_get("/", _page)
    app.router.add_get("/status.json", _status)
    app.router.add_get("/operations", _operations)
    return app


async def start_http(node: NodeView, address: Address) -> HttpServer:
    """Listen at `address` and answer for `node` until the server is closed.

    Raises:
        Fatal: the address cannot be listened at.
    """
    runner = web.AppRunner(
        make_app(node),
        access_log=None,
        logger=_requests_log,
        handle_signals=False,
        keepalive_timeout=HTTP_SILENT_SECONDS_MAX,
        # Else the rest of a request is waited for where its client is gone, which no limit would count.
        handler_cancellation=True,
        shutdown_timeout=HTTP_STOP_SECONDS,
    )
    await runner.setup()
    server = runner.server
    assert server is not None  # since it is set up

    clients = _Clients()
    try:
        listener = await asyncio.get_running_loop().create_server(
            lambda: _Arrival(server, clients), address.host, address.port, backlog=LISTEN_BACKLOG
        )
    except OSError as error:
        await runner.cleanup()
        number = error.errno or 0  # below 0 when the host's name was not found
        got = os.strerror(number) if number > 0 else str(error)
        raise Fatal(f"http.address {address}", got=got, expected="an address that is free here") from error
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux: connections have it from their listener
        for each in listener.sockets:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(HTTP_UNREAD_SECONDS_MAX * 1000))
    return HttpServer(runner, listener, Address(address.host, listener.sockets[0].getsockname()[1]))


def _is_about_client(record: logging.LogRecord) -> bool:
    """Whether a request was not HTTP, or its client is gone: aiohttp logs a traceback for each."""
    error = None if record.exc_info is None else record.exc_info[1]
    return isinstance(error, HttpProcessingError | ConnectionError)


def _reasons(node: NodeView) -> list[str]:
    """Ask the node; an error while asking is a reason, too."""
    try:
        return node.readiness()
    except Exception:  # the edge of a shell: a probe must get an answer
        log.exception("the readiness of the node could not be found out")
        return ["internal error, see the log"]


async def _healthz(_: web.Request) -> web.Response:
    """Answer; that is all that is asked."""
    return web.Response(text="ok\n", headers=_NO_STORE)


async def _readyz(request: web.Request) -> web.Response:
    """Answer 200, or 503 with the reasons."""
    return _readiness(request, _reasons(request.app[_NODE]))


async def _readyz_for_publishers(request: web.Request) -> web.Response:
    """Answer as `_readyz`; for load balancers in front of publishers."""
    node = request.app[_NODE]
    elsewhere = node.publishers_sent_elsewhere()
    return _readiness(request, _reasons(node) + ([] if elsewhere is None else [elsewhere]))


def _readiness(request: web.Request, reasons: list[str]) -> web.Response:
    status = 503 if reasons else 200
    if _prefers_json(request.headers.get("Accept", "")):
        return web.json_response({"ready": not reasons, "reasons": reasons}, status=status, headers=_NO_STORE)
    text = _lines(reasons or ["ready"])
    return web.Response(text=text, status=status, headers=_NO_STORE)


def _lines(texts: Iterable[str]) -> str:
    return "".join(f"{text}\n" for text in texts)


async def _page(request: web.Request) -> web.Response:
    """Write the status page."""
    node = request.app[_NODE]
    status = node.status()
    if status is None:
        return web.Response(text=_lines(_reasons(node)), status=503, headers=_STARTING_HEADERS)
    page = render(status)
    return web.Response(text=page, content_type="text/html", headers=_PAGE_HEADERS)


async def _operations(_: web.Request) -> web.Response:
    """Write the page about operations; it comes with the code."""
    text = await asyncio.to_thread(_OPERATIONS.read_text, "utf-8")
    return web.Response(text=render_operations(text), content_type="text/html", headers=_PAGE_HEADERS)


async def _status(request: web.Request) -> web.Response:
    """Write the facts of the status page as JSON."""
    node = request.app[_NODE]
    status = node.status()
    if status is None:
        return web.json_response({"problems": _reasons(node)}, status=503, headers=_NO_STORE)
    return web.json_response(as_json(status), headers=_NO_STORE)


async def _metrics(request: web.Request) -> web.Response:
    """Write the metrics; `sluice_ready` is brought up to date first."""
    node = request.app[_NODE]
    node.metrics.ready.set(0 if _reasons(node) else 1)
    headers = {**_NO_STORE, "Content-Type": CONTENT_TYPE_LATEST}
    return web.Response(body=node.metrics.exposition(), headers=headers)


def _prefers_json(accept: str) -> bool:
    """Whether `application/json` stands before `text/plain` in an Accept header; `*/*` alone prefers text."""
    kinds = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    wanted = [kind for kind in kinds if kind in ("application/json", "text/plain", "text/*")]
    return bool(wanted) and wanted[0] == "application/json"
