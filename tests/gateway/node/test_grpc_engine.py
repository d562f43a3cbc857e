"""Tests of `gateway.node.grpc_engine`, and that gRPC knows the experiment."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version

import pytest

from sluice.gateway.node.grpc_engine import EXPERIMENTS_VARIABLE, use_poller

SERVER = """
import asyncio
from grpc import aio

async def run() -> None:
    server = aio.server()
    server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await server.stop(None)

asyncio.run(run())
"""


@pytest.mark.parametrize(
    ("before", "grpc_version", "expected"),
    [
        (None, "1.85.1", "-event_engine_listener"),
        (None, "1.85.0", "-event_engine_listener"),
        (None, "1.86.0", None),
        (None, "1.8.5", None),
        ("tcp_rcv_lowat", "1.85.1", "tcp_rcv_lowat"),
        ("", "1.85.1", ""),
    ],
)
def test_the_poller_is_used_where_grpc_knows_it_and_nobody_has_chosen(
    before: str | None, grpc_version: str, expected: str | None
) -> None:
    environment = {} if before is None else {EXPERIMENTS_VARIABLE: before}
    use_poller(environment, grpc_version)
    assert environment.get(EXPERIMENTS_VARIABLE) == expected


@pytest.mark.parametrize(("experiment", "is_known"), [(None, True), ("-no_such_experiment", False)])
def test_grpc_knows_what_it_is_told(experiment: str | None, is_known: bool) -> None:
    environment = {name: value for name, value in os.environ.items() if name != EXPERIMENTS_VARIABLE}
    if experiment is not None:
        environment[EXPERIMENTS_VARIABLE] = experiment
    use_poller(environment, version("grpcio"))
    done = subprocess.run(
        [sys.executable, "-c", SERVER], env=environment, capture_output=True, text=True, check=True
    )
    assert ("Unknown experiment" not in done.stderr) == is_known
    assert (done.stderr == "") == is_known
