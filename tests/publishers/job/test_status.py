"""Asking gateways how far they are."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from sluice.gateway.api import node_pb2, node_pb2_grpc
from sluice.publishers.job.job import GatewayStatus
from tests.nodes import make_blocks
from tests.publishers.node_thread import node_thread, store


def test_gateways_that_do_not_answer_are_unreachable() -> None:
    with GatewayStatus(["127.0.0.1:1"]) as status:
        assert status.ask() == (None, False)


def test_the_first_gateway_that_answers_is_believed(tmp_path: Path) -> None:
    store(tmp_path, make_blocks(3))
    with node_thread(tmp_path) as node, GatewayStatus(["127.0.0.1:1", str(node.grpc_address)]) as status:
        assert status.ask() == (2, True)


def test_an_empty_gateway_has_no_last_block(tmp_path: Path) -> None:
    with node_thread(tmp_path) as node, GatewayStatus([str(node.grpc_address)]) as status:
        assert status.ask() == (None, True)


class Waiting(node_pb2_grpc.BlockNodeServiceServicer):
    """Says what its last block is once all gateways of a test have been asked."""

    def __init__(self, last: int, asked: threading.Barrier) -> None:
        self._last, self._asked = last, asked

    def serverStatus(self, request: Any, context: Any) -> node_pb2.ServerStatusResponse:
        self._asked.wait()
        return node_pb2.ServerStatusResponse(last_available_block=self._last)

    def serverStatusDetail(self, request: Any, context: Any) -> node_pb2.ServerStatusDetailResponse:
        """Nothing; nobody asks for it."""
        return node_pb2.ServerStatusDetailResponse()


def test_gateways_are_asked_at_once_so_that_mute_ones_cost_one_second_together() -> None:
    asked = threading.Barrier(3, timeout=60)
    with ThreadPoolExecutor(3) as threads:
        servers, addresses = [], []
        for last in range(3):
            server = grpc.server(threads)
            node_pb2_grpc.add_BlockNodeServiceServicer_to_server(Waiting(last, asked), server)
            addresses.append(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
            server.start()
            servers.append(server)
        with GatewayStatus(addresses, timeout_seconds=60.0) as status:
            assert status.ask() == (0, True)
        for server in servers:
            server.stop(None).wait()
