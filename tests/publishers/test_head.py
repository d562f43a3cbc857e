"""Asking gateways how far they are."""

from __future__ import annotations

from pathlib import Path

from publishers.head import Head
from tests.nodes import make_blocks
from tests.publishers.node_thread import node_thread, store


def test_a_head_that_nobody_tells_is_unreachable() -> None:
    with Head(["127.0.0.1:1"]) as head:
        assert head.ask() == (None, False)


def test_the_first_gateway_that_answers_is_believed(tmp_path: Path) -> None:
    store(tmp_path, make_blocks(3))
    with node_thread(tmp_path) as node, Head(["127.0.0.1:1", str(node.grpc_address)]) as head:
        assert head.ask() == (2, True)


def test_an_empty_gateway_has_no_head(tmp_path: Path) -> None:
    with node_thread(tmp_path) as node, Head([str(node.grpc_address)]) as head:
        assert head.ask() == (None, True)
