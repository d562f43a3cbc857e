"""Tests of a node's start: what is ready when publishers are let in."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from gateway.node import node as node_module
from gateway.node import servers as node_servers
from gateway.node.node import Node
from gateway.transport import grpc_server
from gateway.workers.hash_process import HashProcess
from tests.gateway.cluster.test_peer_follower import answer_of, readiness_of
from tests.nodes import ANSWER_SECONDS, node_settings


def test_publishers_are_taken_when_the_hash_processes_are_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they take a core from the first blocks."""
    processes: list[HashProcess] = []
    ready_when_it_listens: list[bool] = []

    class WatchedProcess(HashProcess):
        def __init__(self) -> None:
            super().__init__()
            processes.append(self)

        async def started(self, seconds_max: float = ANSWER_SECONDS) -> bool:
            return await super().started(seconds_max)

    async def start_server(*arguments: Any) -> Any:
        ready_when_it_listens.append(all(process.ready.is_set() for process in processes))
        return await grpc_server.start_server(*arguments)

    monkeypatch.setattr(node_module, "HashProcess", WatchedProcess)
    monkeypatch.setattr(node_servers, "start_server", start_server)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})

    async def main() -> None:
        node = Node(node_settings(tmp_path))
        node.warm_up()
        await node.start()
        await node.stop()
        assert [process.pid for process in processes] == [None, None]

    asyncio.run(main())
    assert ready_when_it_listens == [True, True]  # for publishers, and for those who operate the node


def test_a_node_is_not_ready_before_it_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP answers from early on; who asks it whether to send publishers here would send them too soon."""
    node = Node(node_settings(tmp_path))
    answers: list[tuple[int, str]] = []
    pages: list[tuple[int, str]] = []

    async def start_server(*arguments: Any) -> Any:
        answers.append(await asyncio.to_thread(readiness_of, node))
        pages.extend([await asyncio.to_thread(answer_of, node, path) for path in ("/", "/status.json")])
        return await grpc_server.start_server(*arguments)

    monkeypatch.setattr(node_servers, "start_server", start_server)

    async def main() -> None:
        await node.start()
        answers.append(await asyncio.to_thread(readiness_of, node))
        await node.stop()

    asyncio.run(main())
    assert answers[0] == (503, "the node is starting\n")  # before it listens for publishers
    assert pages[0] == (503, "the node is starting\n")
    assert pages[1] == (503, '{"problems": ["the node is starting"]}')
    assert answers[-1] == (200, "ready\n")
