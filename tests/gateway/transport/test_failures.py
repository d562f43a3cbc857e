"""Tests of `gateway.transport.failures`: what each wrong connection is told, by real servers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from grpc import aio

from sluice.gateway.addresses import Address
from sluice.gateway.api import node_pb2, node_pb2_grpc
from sluice.gateway.transport import failures
from sluice.gateway.transport.channels import ClientTls, open_channel
from sluice.gateway.transport.failures import Speaks, trouble_at, why_failed, why_failed_at
from tests.certificates import Authority
from tests.nodes import ANSWER_SECONDS, running_node
from tests.serving import free_port


@pytest.fixture(autouse=True)
def _forget() -> None:
    failures._probed.clear()


async def words(address: object, tls: ClientTls | None = None) -> str:
    """Ask a node for its status, which fails; return why, as a command says it."""
    async with open_channel(str(address), tls) as channel:
        stub: node_pb2_grpc.BlockNodeServiceAsyncStub = node_pb2_grpc.BlockNodeServiceStub(channel)
        with pytest.raises(aio.AioRpcError) as caught:
            await stub.serverStatus(node_pb2.ServerStatusRequest(), timeout=ANSWER_SECONDS)
    text = await asyncio.to_thread(why_failed_at, str(address), caught.value, tls)
    code, _, why = text.partition(": ")
    assert code == caught.value.code().name
    return why


async def test_nobody_listens_and_a_name_that_nobody_has() -> None:
    assert await words(f"127.0.0.1:{free_port()}") == "nobody listens there"
    assert await words("nobody.invalid:40840") == "the name does not resolve"


async def test_ports_of_a_node_that_are_not_grpc(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        assert await words(node.http_address) == (
            "that is an HTTP port, for browsers and probes; gRPC is at 40840 by default"
        )
        assert await words(node.tcp_address) == (
            "that is the port of a data streamer, for readers over TCP; gRPC is at 40840 by default"
        )
        tls = ClientTls(server_name="x")
        assert await words(node.tcp_address, tls) == await words(node.tcp_address)
        assert await words(node.http_address, tls) == await words(node.http_address)
        assert await words(node.grpc_address, tls) == "TLS was offered, and the server has none there"
        assert await asyncio.to_thread(trouble_at, str(node.grpc_address), None) is None


async def test_a_data_streamer_client_at_other_ports(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:

        async def found(address: Address) -> str | None:
            return await asyncio.to_thread(trouble_at, str(address), None, Speaks.STREAM)

        assert await found(node.tcp_address) is None
        assert await found(node.grpc_address) == (
            "that is a gRPC port; a data streamer is at 6900 by default"
        )
        assert (await found(node.http_address) or "").startswith("that is an HTTP port")


@pytest.mark.parametrize("is_mutual", [False, True])
async def test_a_server_with_tls(tmp_path: Path, is_mutual: bool) -> None:
    authority, strangers = Authority(tmp_path), Authority(tmp_path, "strangers")
    pair, mallory = authority.issue("node"), strangers.issue("mallory")
    settings = {"grpc_tls_certificate": pair.certificate, "grpc_tls_key": pair.key}
    if is_mutual:
        settings["grpc_tls_client_ca"] = authority.path
    async with running_node(tmp_path / "data", **settings) as node:
        address = node.grpc_address
        assert await words(address) == "the server expects TLS, and none was offered"
        assert (await words(address, strangers.client())).startswith(
            "the server's certificate is not accepted: "
        )
        other_name = ClientTls(str(authority.path), server_name="elsewhere.example")
        assert "elsewhere.example" in await words(address, other_name)
        if is_mutual:
            assert (await words(address, authority.client())).startswith(
                "the server wants a client certificate, and none was shown"
            )
            wrong = ClientTls(str(authority.path), str(mallory.certificate), str(mallory.key))
            assert (await words(address, wrong)).startswith(
                "the server does not accept the client certificate"
            )


@contextmanager
def mute() -> Iterator[str]:
    """A server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


async def test_a_server_that_says_nothing_keeps_grpcs_words() -> None:
    with mute() as address:
        assert await asyncio.to_thread(trouble_at, address, None, probe_seconds=0.05) is None
        async with open_channel(address) as channel:
            stub: node_pb2_grpc.BlockNodeServiceAsyncStub = node_pb2_grpc.BlockNodeServiceStub(channel)
            with pytest.raises(aio.AioRpcError) as caught:
                await stub.serverStatus(node_pb2.ServerStatusRequest(), timeout=0.2)
        words = why_failed_at(address, caught.value, None, probe_seconds=0.05)
        assert words == "DEADLINE_EXCEEDED: no answer in time"


async def test_an_address_that_fails_again_and_again_is_looked_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[str] = []

    def look(address: str, tls: ClientTls | None, *, probe_seconds: float) -> str | None:
        looked.append(address)
        return "nobody listens there"

    monkeypatch.setattr(failures, "trouble_at", look)
    address = f"127.0.0.1:{free_port()}"
    assert {await words(address), await words(address)} == {"nobody listens there"}
    assert looked == [address]


TRIED = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Failed to connect: "


def error(code: grpc.StatusCode, details: str | None) -> aio.AioRpcError:
    return aio.AioRpcError(code, aio.Metadata(), aio.Metadata(), details)


@pytest.mark.parametrize(
    ("details", "text"),
    [
        (f"{TRIED}connect: Connection refused (111)", "nobody listens there"),
        (
            f"{TRIED}connect: No route to host (113)",
            "Failed to connect: connect: No route to host (113)",
        ),
        ("DNS resolution failed for a:1: C-ares status is not ARES_SUCCESS", "the name does not resolve"),
        ("connection attempt timed out before receiving SETTINGS frame", "no answer in time"),
        ("x" * 900, "x" * 500),
        ("two\nlines", "two\\nlines"),
        ("", "no details"),
        (None, "no details"),
    ],
)
def test_words_without_a_look(details: str | None, text: str) -> None:
    assert why_failed(error(grpc.StatusCode.UNAVAILABLE, details)) == f"UNAVAILABLE: {text}"


def test_a_server_that_answers_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "trouble_at", None)
    refused = error(grpc.StatusCode.PERMISSION_DENIED, "not you")
    assert why_failed_at("127.0.0.1:1", refused, None) == "PERMISSION_DENIED: not you"
