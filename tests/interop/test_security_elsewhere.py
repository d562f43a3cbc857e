"""Certificates at the addresses of readers and operators, and renewals while streams are open."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import grpc
import pytest
from grpc import aio
from tenacity import wait_fixed

from sluice.datastream import StreamClient
from sluice.datastream.errors import ConnectionEnded
from sluice.gateway.addresses import Address
from sluice.gateway.api import node_pb2, node_pb2_grpc, publish_pb2_grpc, subscribe_pb2, subscribe_pb2_grpc
from sluice.gateway.blocks.block import Block
from sluice.gateway.cluster.control_client import ControlClient
from sluice.gateway.cluster.roles import Phase
from sluice.gateway.errors import NodeCallFailed, TlsError
from sluice.gateway.node.node import Node
from sluice.gateway.transport.channels import ClientTls, open_channel
from sluice.publishers.client.client import ClientOptions, publish_blocks
from sluice.publishers.sources.block_follower import BlockFollower
from tests.certificates import Authority
from tests.interop.test_security import guarded_node, publish
from tests.nodes import ANSWER_SECONDS, LOOPBACK, Publisher, Reader, each, make_blocks, running_node, until
from tests.serving import SLUICE, Listener, free_port

BLOCKS = make_blocks(6)


def wrong_ones(tmp_path: Path, authority: Authority) -> dict[str, ClientTls | None]:
    """Clients that are not to be let in."""
    stranger = Authority(tmp_path, "strangers").issue("mallory")
    return {
        "no certificate": authority.client(),
        "expired": authority.client(authority.issue("expired", days=-1)),
        "of another authority": ClientTls(str(authority.path), str(stranger.certificate), str(stranger.key)),
        "no TLS": None,
    }


async def subscribe(channel: aio.Channel, start: int, end: int) -> Reader:
    """Subscribe over a channel."""
    stub = subscribe_pb2_grpc.BlockStreamSubscribeServiceStub(channel)
    request = subscribe_pb2.SubscribeStreamRequest(start_block_number=start, end_block_number=end)
    return Reader(stub.subscribeBlockStream(request, timeout=20), start, end)


async def test_readers_without_a_good_certificate_are_refused_and_publishers_do_not_notice(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("node")
    reader = authority.client(authority.issue("reader"))

    files = {
        "subscriber_address": LOOPBACK,
        "subscriber_tls_certificate": pair.certificate,
        "subscriber_tls_key": pair.key,
        "subscriber_tls_client_ca": authority.path,
    }
    async with running_node(tmp_path / "data", **files) as node:
        assert await publish(node, BLOCKS[:3], None) == 3
        for tls in wrong_ones(tmp_path, authority).values():
            async with open_channel(str(node.subscriber_address), tls) as channel:
                with pytest.raises(aio.AioRpcError) as caught:
                    await (await subscribe(channel, 0, 2)).rest()
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
                stub = node_pb2_grpc.BlockAccessServiceStub(channel)
                with pytest.raises(aio.AioRpcError):
                    await stub.getBlock(node_pb2.BlockRequest(block_number=0), timeout=10)
        assert node.subscribe_service.stream_count == 0
        async with open_channel(str(node.subscriber_address), reader) as channel:
            assert await (await subscribe(channel, 0, 2)).numbers() == [0, 1, 2, "SUCCESS"]
        assert await publish(node, BLOCKS[3:], None) == 3


async def test_operators_without_a_good_certificate_change_nothing(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("node")
    operator = authority.issue("operator")

    files = {
        "control_tls_certificate": pair.certificate,
        "control_tls_key": pair.key,
        "control_tls_client_ca": authority.path,
    }
    async with running_node(tmp_path / "data", **files) as node:
        for tls in wrong_ones(tmp_path, authority).values():
            async with ControlClient(str(node.control_address), tls) as control:
                for call in (control.state(), control.drain(5.0, "", "1")):
                    with pytest.raises(NodeCallFailed) as caught:
                        await call
                    assert caught.value.reason.startswith("UNAVAILABLE: ")
        assert node.keeper.phase is Phase.ACTIVE
        assert await publish(node, BLOCKS[:2], None) == 2
        async with ControlClient(str(node.control_address), authority.client(operator)) as control:
            assert (await control.state()).last_number == 1
        assert await failover_of(node, authority, operator.certificate, operator.key) == (
            f"sluice: failover: 127.0.0.1:{node.control_address.port} and "
            f"localhost:{node.control_address.port} are the same node; nothing has changed\n"
        )


@pytest.mark.slow
async def test_stream_clients_without_a_good_certificate_are_refused_and_a_renewed_one_is_shown(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("node")
    reader = authority.client(authority.issue("reader"))
    files = {
        "tcp_tls_certificate": pair.certificate,
        "tcp_tls_key": pair.key,
        "tcp_tls_client_ca": authority.path,
    }

    async def shown(tls: ClientTls | None) -> tuple[int, object]:
        """Return the server's number of entries, and the end of its certificate."""
        context = None if tls is None else partial(tls.context, is_http2=False)
        async with StreamClient.connect("127.0.0.1", node.tcp_address.port, tls=context) as client:
            ssl_object = client._writer.get_extra_info("ssl_object")
            return (await client.header()).total_entries, ssl_object.getpeercert()["notAfter"]

    async with running_node(tmp_path / "data", **files) as node:
        assert await publish(node, BLOCKS[:2], None) == 2
        for tls in wrong_ones(tmp_path, authority).values():
            with pytest.raises((OSError, ConnectionEnded)):
                await shown(tls)
        entries, before = await shown(reader)
        assert entries == node.store.streamer.committed.total_entries > 0
        authority.issue("node", days=2)
        assert (await shown(reader))[1] != before
        setting = {"setting": "tcp.tls"}

        def ends() -> float | None:
            return node.metrics.registry.get_sample_value("sluice_tls_certificate_end_seconds", setting)

        await until(lambda: (ends() or float("inf")) < time.time() + 3 * 86_400)
    with pytest.raises(TlsError, match="another certificate's key"):
        async with running_node(tmp_path / "data", **files | {"tcp_tls_key": authority.issue("other").key}):
            pass


async def failover_of(node: Node, authority: Authority, certificate: Path, key: Path) -> str:
    """Run `sluice failover` with certificates; from the node to itself, which ends after both were read."""
    port = node.control_address.port
    process = await asyncio.create_subprocess_exec(
        *(*SLUICE, "failover", "--from", f"127.0.0.1:{port}", "--to", f"localhost:{port}"),
        *("--tls-ca", str(authority.path), "--tls-cert", str(certificate), "--tls-key", str(key)),
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    _, error = await process.communicate()
    return error.decode()


async def test_a_renewal_that_cannot_be_used_is_loud_and_changes_nothing_for_anybody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Open streams go on, new ones get the old certificate, and the mended files are taken up."""
    authority = Authority(tmp_path)
    alice = authority.client(authority.issue("alice"))

    caplog.set_level(logging.INFO)
    async with (
        guarded_node(authority, tmp_path / "data") as node,
        open_channel(str(node.grpc_address), alice) as channel,
    ):
        publisher = Publisher(publish_pb2_grpc.BlockStreamPublishServiceStub(channel).publishBlockStream())
        reader = await subscribe(channel, 0, 2)
        await publisher.block(BLOCKS[0])
        await publisher.expect("ack 0")
        (tmp_path / "node.crt").write_text("-----BEGIN CERTIFICATE-----\nhalf\n")
        assert await publish(node, BLOCKS[1:2], alice) == 1
        await publisher.expect("ack 1")
        authority.issue("node")  # into the same files
        assert await publish(node, BLOCKS[2:3], alice) == 1
        await publisher.expect("ack 2")
        assert await reader.numbers() == [0, 1, 2, "SUCCESS"]
    messages = [record.message for record in caplog.records]
    assert "certificate not renewed, the old one stays in use" in messages
    assert messages.count("certificate renewed") == 1
    assert "half" not in caplog.text


async def test_an_authority_that_is_replaced_lets_in_its_own_and_no_longer_those_of_the_old_one(
    tmp_path: Path,
) -> None:
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    trusted = tmp_path / "clients-ca.crt"
    trusted.write_bytes(old.path.read_bytes())
    before, after = old.issue("alice"), new.issue("alice", file="new-alice")

    async with guarded_node(old, tmp_path / "data", grpc_tls_client_ca=trusted) as node:
        known_before = ClientTls(str(old.path), str(before.certificate), str(before.key))
        known_after = ClientTls(str(old.path), str(after.certificate), str(after.key))
        async with open_channel(str(node.grpc_address), known_before) as channel:
            publisher = Publisher(
                publish_pb2_grpc.BlockStreamPublishServiceStub(channel).publishBlockStream()
            )
            await publisher.block(BLOCKS[0])
            await publisher.expect("ack 0")
            trusted.write_bytes(new.path.read_bytes())
            assert await publish(node, BLOCKS[1:2], known_after) == 1
            await publisher.expect("ack 1")
            await publisher.block(BLOCKS[2])  # its stream was let in before, and goes on
            await publisher.expect("ack 2")
        async with open_channel(str(node.grpc_address), known_before) as channel:
            with pytest.raises(aio.AioRpcError) as caught:
                await (await subscribe(channel, 0, 2)).rest()
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_clients_outlive_a_renewal_of_their_certificates_that_is_half_done(tmp_path: Path) -> None:
    """Their node goes away, and they read their files anew while these are written."""
    authority = Authority(tmp_path)
    pair = authority.issue("client")
    good, nothing = pair.key.read_bytes(), f"key file: got {pair.key}, which has none"
    address = Address("127.0.0.1", free_port())
    tls = authority.client(pair)
    options = ClientOptions(tls=tls, wait=wait_fixed(0.05), connect_timeout_seconds=0.2)
    listener = Listener([str(address)], "alice", options)
    troubles: list[str] = []
    follower = BlockFollower([str(address)], 0, 1, tls=tls, on_trouble=troubles.append)

    more = asyncio.Event()

    async def source() -> AsyncIterator[Block]:
        yield BLOCKS[0]
        await more.wait()
        yield BLOCKS[1]

    async def read() -> list[Block]:
        return [received.block async for received in follower.blocks()]

    async with guarded_node(authority, tmp_path / "data", grpc_address=address):
        publishing = asyncio.ensure_future(listener.publish(source()))
        reading = asyncio.ensure_future(read())
        await until(lambda: follower.next_number == 1 and listener.acknowledged)
        pair.key.write_bytes(b"")
    more.set()
    async with asyncio.timeout(ANSWER_SECONDS):
        for lines in (troubles, listener.disconnected):
            while not any(nothing in line for line in lines):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert not publishing.done()
    assert not reading.done()
    pair.key.write_bytes(good)
    async with guarded_node(authority, tmp_path / "data", grpc_address=address):
        assert (await asyncio.wait_for(publishing, ANSWER_SECONDS)).acknowledged == 2
        assert await asyncio.wait_for(reading, ANSWER_SECONDS) == BLOCKS[:2]


async def test_a_file_that_was_never_good_is_an_error_at_once(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("client")
    pair.key.unlink()
    tls = authority.client(pair)

    with pytest.raises(TlsError):
        await publish_blocks(each(BLOCKS), ["127.0.0.1:1"], "alice", ClientOptions(tls=tls))
    with pytest.raises(TlsError):
        await anext(aiter(BlockFollower(["127.0.0.1:1"], 0, tls=tls).blocks()))
