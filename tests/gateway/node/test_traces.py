"""Traces of blocks: real nodes, real publishers, and a collector that is a real OTLP/gRPC server."""

from __future__ import annotations

import importlib
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from sluice.gateway.addresses import Address
from sluice.gateway.errors import SettingError
from sluice.gateway.node.node import Node
from sluice.gateway.node.rules import NodeLimits
from sluice.gateway.node.start_check import check_start
from sluice.publishers.blocks.maker import key_of_seed
from tests.certificates import Authority
from tests.gateway.block_makers import summary_of
from tests.gateway.conducting import logged
from tests.nodes import AT_ITS_END, LOOPBACK, Wire, make_blocks, node_settings, running_node, until, wire_to
from tests.serving import free_port

BLOCKS = make_blocks(40)
STAGES = ["receive", "verify", "await order", "await commit", "write", "acknowledge"]
LOST = "traces are lost: the collector does not take them"


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """A collector that keeps what it gets; without `answers` it keeps quiet until the test is over."""

    def __init__(self, *, answers: bool = True) -> None:
        self.go_on = threading.Event()
        self.asked = threading.Event()
        self.resources: list[dict[str, str]] = []
        self.spans: list[Span] = []
        if answers:
            self.go_on.set()

    def Export(self, request: Any, context: Any) -> Any:
        self.asked.set()
        self.go_on.wait()
        for of_resource in request.resource_spans:
            attributes = of_resource.resource.attributes
            self.resources.append({one.key: one.value.string_value for one in attributes})
            for of_scope in of_resource.scope_spans:
                self.spans += of_scope.spans
        return trace_service_pb2.ExportTraceServiceResponse()

    def of(self, number: int) -> list[Span]:
        """Return the spans of a block, in order of their begin, parents first."""
        found = [span for span in self.spans if facts(span)["sluice.block.number"] == number]
        return sorted(found, key=lambda span: (span.start_time_unix_nano, -span.end_time_unix_nano))

    def root(self, number: int) -> Span:
        (root,) = [span for span in self.of(number) if not span.parent_span_id]
        return root


@contextmanager
def listening(
    collector: Collector, credentials: grpc.ServerCredentials | None = None, address: str = "127.0.0.1:0"
) -> Iterator[str]:
    """Serve a collector; yield its address."""
    server = grpc.server(ThreadPoolExecutor(4))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    if credentials is None:
        port = server.add_insecure_port(address)
    else:
        port = server.add_secure_port(address, credentials)
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        collector.go_on.set()
        server.stop(None).wait()


def facts(span: Span | Span.Event) -> dict[str, str | int]:
    """Return the attributes."""
    return {
        one.key: one.value.string_value if one.value.HasField("string_value") else one.value.int_value
        for one in span.attributes
    }


def children(spans: list[Span], parent: Span) -> list[Span]:
    return [span for span in spans if span.parent_span_id == parent.span_id]


def names(spans: list[Span]) -> list[str]:
    return [span.name for span in spans]


def is_error(span: Span) -> bool:
    return span.status.code == Status.STATUS_CODE_ERROR


async def publish(wire: Wire, count: int) -> None:
    """Publish the first blocks, and wait for each acknowledgement."""
    alice = await wire.publisher("alice")
    for block in BLOCKS[:count]:
        await alice.block(block)
        await alice.expect(f"ack {block.number}")


# --- what a trace shows -------------------------------------------------------------------------------------


async def test_a_trace_shows_the_way_of_a_block(tmp_path: Path) -> None:
    collector = Collector()
    with listening(collector) as address:
        async with running_node(tmp_path, otel_endpoint=f"http://{address}") as node, wire_to(node) as wire:
            await publish(wire, 3)
    for number in range(3):
        spans, root = collector.of(number), collector.root(number)
        assert root.name == "block"
        assert root.kind == Span.SPAN_KIND_SERVER
        assert len({span.span_id for span in spans}) == len(spans) == 9
        assert {span.trace_id for span in spans} == {root.trace_id}
        assert facts(root) == {
            "sluice.block.number": number,
            "sluice.publisher": "claimed:alice",
            "sluice.outcome": "acknowledged",
            "sluice.block.bytes": sum(map(len, BLOCKS[number].items)),
            "sluice.block.items": len(BLOCKS[number].items),
            "sluice.block.root_hash": summary_of(list(BLOCKS[number].items)).root_hash.hex()[:16],
            "sluice.commit.group_blocks": 1,
        }
        stages = children(spans, root)
        assert names(stages) == STAGES
        assert stages[0].start_time_unix_nano == root.start_time_unix_nano
        assert stages[-1].end_time_unix_nano == root.end_time_unix_nano
        for before, after in pairwise(stages):
            assert before.end_time_unix_nano == after.start_time_unix_nano
        verify = stages[1]
        hashing, proof = children(spans, verify)
        assert names([hashing, proof]) == ["hash", "proof"]
        assert hashing.start_time_unix_nano == verify.start_time_unix_nano
        assert hashing.end_time_unix_nano == proof.start_time_unix_nano
        assert proof.end_time_unix_nano == verify.end_time_unix_nano
        assert not any(map(is_error, spans))
    assert len({collector.root(number).trace_id for number in range(3)}) == 3


async def test_a_bad_proof_a_loser_and_the_winner_are_in_one_trace(tmp_path: Path) -> None:
    """Mallory's proof is wrong, Alice brings the block, Bob comes second."""
    collector = Collector()
    wrong = make_blocks(1, key=key_of_seed(8))[0]
    with listening(collector) as address:
        async with (
            running_node(tmp_path, otel_endpoint=address, **AT_ITS_END) as node,
            wire_to(node) as wire,
        ):
            mallory, alice, bob = [await wire.publisher(name) for name in ("mallory", "alice", "bob")]
            await mallory.block(wrong)
            await mallory.expect("end BAD_BLOCK_PROOF last none about 0")
            await alice.items(*BLOCKS[0].items[:2])
            await wire.begun(0)
            await bob.block(BLOCKS[0])
            while await bob.answer() != "skip 0":
                pass
            await alice.items(*BLOCKS[0].items[2:])
            await alice.end(0)
            await bob.expect("ack 0")
    spans, root = collector.of(0), collector.root(0)
    failed, *stages = children(spans, root)
    assert names([failed, *stages]) == ["failed attempt", *STAGES]
    assert is_error(failed)
    assert facts(failed)["sluice.publisher"] == "claimed:mallory"
    assert facts(failed)["sluice.outcome"] == "refused"
    assert "signature" in failed.status.message
    assert failed.start_time_unix_nano == root.start_time_unix_nano
    receive, verify = children(spans, failed)
    assert names([receive, verify]) == ["receive", "verify"]
    hashing, proof = children(spans, verify)
    assert [is_error(span) for span in (receive, verify, hashing, proof)] == [False, True, False, True]
    assert [(event.name, facts(event)) for event in root.events] == [
        ("skipped", {"sluice.publisher": "claimed:bob"})
    ]
    assert facts(root)["sluice.publisher"] == "claimed:alice"
    assert not is_error(root)
    assert not any(map(is_error, stages))


async def test_an_attempt_that_times_out_is_in_the_trace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    collector = Collector()
    with listening(collector) as address:
        settings = {"otel_endpoint": address, "publish_block_timeout_seconds": 0.3}
        async with running_node(tmp_path, **settings) as node, wire_to(node) as wire:
            carol, alice = await wire.publisher("carol"), await wire.publisher("alice")
            await carol.items(*BLOCKS[0].items[:2])
            await wire.begun(0)
            await alice.block(BLOCKS[0])
            await until(lambda: logged(caplog, "block dropped"))
            await alice.block(BLOCKS[0])
            while await alice.answer() != "ack 0":
                pass
    spans, root = collector.of(0), collector.root(0)
    failed, *stages = children(spans, root)
    assert names([failed, *stages]) == ["failed attempt", *STAGES]
    assert facts(failed) == {
        "sluice.block.number": 0,
        "sluice.publisher": "claimed:carol",
        "sluice.outcome": "timed_out",
        "sluice.block.bytes": sum(map(len, BLOCKS[0].items[:2])),
        "sluice.block.items": 2,
    }
    (receive,) = children(spans, failed)
    assert is_error(receive)
    assert receive.end_time_unix_nano - receive.start_time_unix_nano >= 300_000_000
    assert facts(root)["sluice.outcome"] == "acknowledged"


async def test_nodes_share_the_trace_of_a_block(tmp_path: Path) -> None:
    """The standby's wait is in the active node's trace, and beside it the standby's own way of the block."""
    collector = Collector()
    with listening(collector) as address:
        a_address, b_address = Address("127.0.0.1", free_port()), Address("127.0.0.1", free_port())
        common: dict[str, Any] = {"otel_endpoint": address, "peers": (a_address, b_address)}
        async with (
            running_node(tmp_path / "a", **common, grpc_address=a_address, commit_min_standbys=1) as a,
            running_node(tmp_path / "b", **common, grpc_address=b_address, role="standby"),
            wire_to(a) as wire,
        ):
            await until(lambda: a.conductor.acknowledging.refusal() is None)
            await publish(wire, 2)
    for number in range(2):
        spans = collector.of(number)
        assert len({span.trace_id for span in spans}) == 1
        roots = [span for span in spans if not span.parent_span_id]
        of_a, of_b = sorted(roots, key=lambda root: facts(root)["sluice.publisher"] != "claimed:alice")
        assert names(children(spans, of_a)) == [*STAGES[:5], "await standbys", "acknowledge"]
        assert names(children(spans, of_b)) == STAGES
        wait = children(spans, of_a)[5]
        assert wait.start_time_unix_nano <= of_b.end_time_unix_nano
    assert {one["sluice.node"] for one in collector.resources} == {str(a_address), str(b_address)}


async def test_a_block_that_is_not_acknowledged_has_a_trace_that_says_so(tmp_path: Path) -> None:
    collector = Collector()
    with listening(collector) as address:
        async with running_node(tmp_path, otel_endpoint=address) as node, wire_to(node) as wire:
            alice = await wire.publisher("alice")
            await alice.items(*BLOCKS[0].items[:2])
            await wire.begun(0)
            await node.stop()
    root = collector.root(0)
    assert is_error(root)
    assert facts(root) == {"sluice.block.number": 0, "sluice.outcome": "unfinished"}
    (failed,) = children(collector.of(0), root)
    assert facts(failed)["sluice.outcome"] == "node"


async def test_the_resource_is_the_node_and_what_the_variables_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "gateway-a")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    collector = Collector()
    with listening(collector) as address:
        async with running_node(tmp_path, otel_endpoint=address) as node, wire_to(node) as wire:
            await publish(wire, 1)
    resource = collector.resources[0]
    assert resource["service.name"] == "gateway-a"
    assert resource["deployment.environment"] == "test"
    assert len(resource["service.instance.id"]) == 16
    assert resource["sluice.node"] == str(LOOPBACK)


async def test_traces_go_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("collector")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(authority.path))
    credentials = grpc.ssl_server_credentials([(pair.key.read_bytes(), pair.certificate.read_bytes())])
    collector = Collector()
    with listening(collector, credentials) as address:
        async with (
            running_node(tmp_path / "a", otel_endpoint=f"https://{address}") as node,
            wire_to(node) as wire,
        ):
            await publish(wire, 1)
    assert collector.root(0).name == "block"


# --- a collector that does not take them --------------------------------------------------------------------


@pytest.fixture
def small_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue for a few blocks, sent often."""
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "40")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "20")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")


@pytest.mark.usefixtures("small_queue")
async def test_a_hanging_collector_holds_up_no_block(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    collector = Collector(answers=False)
    with listening(collector) as address:
        settings = {"otel_endpoint": address, "shutdown_grace_seconds": 0.2}
        async with running_node(tmp_path, **settings) as node, wire_to(node) as wire:
            await publish(wire, len(BLOCKS))
            assert collector.asked.wait(20)
        assert not collector.spans  # the node has stopped before the collector answers
    assert len(logged(caplog, LOST)) == 1
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]
    assert not [one for one in threading.enumerate() if one.name.startswith("OtelBatch")]


@pytest.mark.usefixtures("small_queue")
async def test_a_collector_that_is_away_holds_up_no_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It comes, and the node says so."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    caplog.set_level(logging.INFO)
    address = f"127.0.0.1:{free_port()}"
    async with (
        running_node(
            tmp_path,
            NodeLimits(traces_quiet_seconds=0.0),
            otel_endpoint=address,
            shutdown_grace_seconds=0.2,
        ) as node,
        wire_to(node) as wire,
    ):
        await publish(wire, len(BLOCKS))
        await until(lambda: logged(caplog, LOST))
        collector = Collector()
        with listening(collector, address=address):
            await until(lambda: logged(caplog, "the collector takes traces again"))
            assert collector.spans
    lost = logged(caplog, LOST)[0]
    assert lost["endpoint"] == address
    assert lost["got"]
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]


# --- off, and refused ---------------------------------------------------------------------------------------


def test_without_the_setting_nothing_of_opentelemetry_is_imported(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from tests.nodes import make_blocks, running_node, wire_to\n"
        "async def main():\n"
        "    async with running_node(Path(sys.argv[1])) as node, wire_to(node) as wire:\n"
        "        alice = await wire.publisher('alice')\n"
        "        await alice.block(*make_blocks(1))\n"
        "        await alice.expect('ack 0')\n"
        "asyncio.run(main())\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
    )
    words = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


async def test_without_the_extra_a_start_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    importlib.import_module("sluice.gateway.node.span_export")  # so that there is one to take away
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    monkeypatch.delitem(sys.modules, "sluice.gateway.node.span_export")
    monkeypatch.delattr(importlib.import_module("sluice.gateway.node"), "span_export")
    settings = node_settings(tmp_path / "new", otel_endpoint="http://127.0.0.1:4317")
    with pytest.raises(SettingError, match=r"otel\.endpoint: .*pip install 'sluice-gateway\[otel\]'"):
        await Node(settings).start()
    assert not (tmp_path / "new").exists()
    (fault,) = check_start(settings).faults
    assert "pip install 'sluice-gateway[otel]'" in str(fault)


def test_a_check_says_where_traces_go(tmp_path: Path) -> None:
    check = check_start(node_settings(tmp_path, otel_endpoint="http://127.0.0.1:4317", otel_sample=0.25))
    assert ("traces", "25% of blocks to http://127.0.0.1:4317 (not asked)") in check.plan
    assert not check.faults
    assert "traces" not in dict(check_start(node_settings(tmp_path)).plan)


async def test_a_variable_that_the_sdk_cannot_use_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "rar")
    with pytest.raises(SettingError, match=r"rar.*OTEL_"):
        await Node(node_settings(tmp_path, otel_endpoint="http://127.0.0.1:4317")).start()
