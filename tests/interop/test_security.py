"""A node that wants certificates: who gets in, who does not and what it hears; others do not notice."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio
from tenacity import wait_fixed

from sluice.gateway.api import node_pb2, node_pb2_grpc, publish_pb2_grpc
from sluice.gateway.blocks.block import Block
from sluice.gateway.node.node import Node
from sluice.gateway.transport.channels import ClientTls, open_channel
from sluice.publishers.client.client import ClientOptions, publish_blocks
from sluice.publishers.protocol.machine import MachineLimits
from tests.certificates import Authority
from tests.nodes import LOOPBACK, Publisher, Wire, each, make_blocks, running_node, wire_to


@asynccontextmanager
async def guarded_node(authority: Authority, data_dir: Path, **changes: Any) -> AsyncIterator[Node]:
    """A node with mutual TLS at its publish address."""
    pair = authority.issue("node")
    files = {
        "grpc_tls_certificate": pair.certificate,
        "grpc_tls_key": pair.key,
        "grpc_tls_client_ca": authority.path,
    }
    async with running_node(data_dir, **(files | changes)) as node:
        yield node


async def publish(node: Node, blocks: list[Block], tls: ClientTls | None) -> int:
    """Publish with the real client; give the number of blocks that are acknowledged."""
    options = ClientOptions(tls=tls, wait=wait_fixed(0.05), machine=MachineLimits(deadline_ns=20 * 10**9))
    report = await publish_blocks(each(blocks), [str(node.grpc_address)], "alice", options)
    return report.acknowledged


async def refusal(node: Node, tls: ClientTls | None) -> tuple[grpc.StatusCode, str]:
    """Open a publish stream that is not to be let in; give the status."""
    async with open_channel(str(node.grpc_address), tls) as channel:
        call = publish_pb2_grpc.BlockStreamPublishServiceStub(channel).publishBlockStream(timeout=10)
        with pytest.raises(aio.AioRpcError) as caught:
            await call.read()
        return caught.value.code(), caught.value.details() or ""


async def test_who_has_no_good_certificate_is_refused_and_the_others_do_not_notice(tmp_path: Path) -> None:
    authority, strangers = Authority(tmp_path), Authority(tmp_path, "strangers")
    alice = authority.client(authority.issue("alice"))
    mallory = strangers.issue("mallory")
    wrong = {
        "no certificate": authority.client(),
        "expired": authority.client(authority.issue("expired", days=-1)),
        "of another authority": ClientTls(str(authority.path), str(mallory.certificate), str(mallory.key)),
        "no TLS": None,
    }
    blocks = make_blocks(6)

    async with guarded_node(authority, tmp_path / "data") as node:
        assert await publish(node, blocks[:3], alice) == 3
        for tls in wrong.values():
            code, _ = await refusal(node, tls)
            assert code is grpc.StatusCode.UNAVAILABLE
        assert node.conductor.arbiter.publisher_count == 0
        assert await publish(node, blocks[3:], alice) == 3
        assert node.store.last_number == 5


async def test_a_client_refuses_a_node_of_another_authority(tmp_path: Path) -> None:
    authority, strangers = Authority(tmp_path), Authority(tmp_path, "strangers")

    async with guarded_node(authority, tmp_path / "data", grpc_tls_client_ca=None) as node:
        code, details = await refusal(node, strangers.client())
        assert code is grpc.StatusCode.UNAVAILABLE
        assert "certificate verify failed" in details.lower().replace("_", " ")


async def test_who_is_not_on_the_list_hears_why_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    alice, eve = (authority.client(authority.issue(name)) for name in ("alice", "eve"))

    with caplog.at_level(logging.WARNING):
        reason = (
            "publisher: got O=Net\\, Inc,CN=eve, expected a certificate whose subject is in "
            "publish.allowed_subjects"
        )
        allowed = {"publish_allowed_subjects": ("O=Net\\, Inc,CN=alice",)}
        async with guarded_node(authority, tmp_path / "data", **allowed) as node:
            for _ in range(3):
                assert await refusal(node, eve) == (grpc.StatusCode.PERMISSION_DENIED, reason)
            assert await publish(node, make_blocks(2), alice) == 2
    refused = [record for record in caplog.records if record.message == "publisher refused"]
    assert {record.sluice_fields["publisher"] for record in refused} == {"O=Net\\, Inc,CN=eve"}  # type: ignore[attr-defined]


async def test_a_publisher_is_known_by_its_subject_and_not_by_what_it_calls_itself(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    async with guarded_node(authority, tmp_path / "data", publish_max_streams_per_publisher=1) as node:
        tls = authority.client(authority.issue("alice"))
        async with open_channel(str(node.grpc_address), tls) as channel:
            stub = publish_pb2_grpc.BlockStreamPublishServiceStub(channel)
            first = stub.publishBlockStream(metadata=(("publisher-id", "one"),))
            await first.initial_metadata()
            second = stub.publishBlockStream(metadata=(("publisher-id", "two"),))
            with pytest.raises(aio.AioRpcError) as caught:
                await second.read()
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert caught.value.details() == ("streams of this publisher: got 2, expected at most 1 at once")
            first.cancel()


async def test_a_renewed_certificate_is_served_without_a_restart_and_open_streams_go_on(
    tmp_path: Path,
) -> None:
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    blocks = make_blocks(2)

    async with (
        guarded_node(old, tmp_path / "data", grpc_tls_client_ca=None) as node,
        open_channel(str(node.grpc_address), old.client()) as channel,
    ):
        publisher = Publisher(publish_pb2_grpc.BlockStreamPublishServiceStub(channel).publishBlockStream())
        await publisher.block(blocks[0])
        await publisher.expect("ack 0")
        new.issue("node")  # into the same files
        async with open_channel(str(node.grpc_address), new.client()) as other:
            stub = node_pb2_grpc.BlockNodeServiceStub(other)
            status = await stub.serverStatus(node_pb2.ServerStatusRequest(), timeout=10)
            assert status.last_available_block == 0
        await publisher.block(blocks[1])
        await publisher.expect("ack 1")


async def test_subscribers_have_an_address_and_certificates_of_their_own(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    reader = authority.issue("reader")

    changes = {
        "subscriber_address": LOOPBACK,
        "subscriber_tls_certificate": reader.certificate,
        "subscriber_tls_key": reader.key,
    }
    async with running_node(tmp_path / "data", **changes) as node, wire_to(node) as wire:
        publisher = await wire.publisher("alice")
        await publisher.block(*make_blocks(1))
        await publisher.expect("ack 0")
        assert (await wire.status()).last_available_block == 0
        with pytest.raises(aio.AioRpcError) as caught:
            await wire.get_block(0)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        async with open_channel(str(node.subscriber_address), authority.client()) as channel:
            stub = node_pb2_grpc.BlockAccessServiceStub(channel)
            got = await stub.getBlock(node_pb2.BlockRequest(block_number=0), timeout=10)
            assert got.status == node_pb2.BlockResponse.Code.SUCCESS
            call = publish_pb2_grpc.BlockStreamPublishServiceStub(channel).publishBlockStream()
            with pytest.raises(aio.AioRpcError) as caught:
                await call.read()
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_streams_of_one_address_are_limited_and_come_free_again(tmp_path: Path) -> None:
    async with running_node(tmp_path, publish_max_streams_per_address=2) as node, wire_to(node) as wire:
        publishers = [await wire.publisher(f"publisher-{number}") for number in range(2)]
        assert await _status_of_another(wire) == (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "streams of this address: got 3, expected at most 2 at once",
        )
        await publishers[0].call.done_writing()
        assert await publishers[0].answer() == "closed"
        another = await wire.publisher("publisher-3")
        await another.block(*make_blocks(1))
        await another.expect("ack 0")


async def _status_of_another(wire: Wire) -> tuple[grpc.StatusCode, str]:
    call = publish_pb2_grpc.BlockStreamPublishServiceStub(wire.channel()).publishBlockStream(timeout=10)
    with pytest.raises(aio.AioRpcError) as caught:
        await call.read()
    return caught.value.code(), caught.value.details() or ""


async def test_an_eager_publisher_is_slowed_down_and_loses_nothing(tmp_path: Path) -> None:
    """Thirty messages at 20 a second: the first second's worth at once, the rest at the pace."""
    blocks = make_blocks(15)
    async with running_node(tmp_path, publish_max_messages_per_second=20) as node, wire_to(node) as wire:
        publisher = await wire.publisher("alice")
        began = time.monotonic()
        await publisher.block(*blocks)
        await publisher.expect(*(f"ack {block.number}" for block in blocks))
        assert time.monotonic() - began >= 0.45  # a lower bound, which a slow machine cannot break
