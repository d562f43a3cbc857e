"""A message that gRPC refused is seen: by who reads the log, the metrics, or the status page."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from gateway.metrics import Metrics
from gateway.transport.refused_messages import REMEMBERED_SECONDS, RefusedMessages
from tests.gateway.store.test_block_store import logged
from tests.nodes import running_node

LINE = "message refused for its length"
PEER, OTHER = "192.0.2.1", "2001:db8::1"
DOOR = "grpc.address"


class Clock:
    """Time that a test moves on."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


def count_of(metrics: Metrics) -> float | None:
    return metrics.registry.get_sample_value("sluice_messages_refused_total", {"reason": "size"})


def test_each_is_counted_and_its_line_is_counted_by_address(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics(verification_mode="full")
    refused = RefusedMessages(metrics, Clock())
    assert count_of(metrics) == 0
    for address in (PEER, OTHER):
        refused.note(DOOR, address, 200, 100)
    assert [(line["address"], line["got"], line["expected_at_most"]) for line in logged(caplog, LINE)] == [
        (PEER, 200, 100),
        (OTHER, 200, 100),
    ]
    assert [record.caused_by for record in caplog.records] == [PEER, OTHER]  # type: ignore[attr-defined]
    assert count_of(metrics) == 2


def test_the_last_one_is_told_of_for_a_while() -> None:
    clock = Clock()
    refused = RefusedMessages(Metrics(verification_mode="full"), clock)
    assert refused.recent is None
    refused.note(DOOR, PEER, 200, 100)
    clock.seconds += REMEMBERED_SECONDS - 0.1
    assert refused.recent == (
        "a message of 200 bytes from 192.0.2.1 to grpc.address was refused, expected at most 100 "
        "(grpc.max_message_bytes)"
    )
    clock.seconds += 0.1
    assert refused.recent is None


def test_an_address_without_a_setting_for_it_names_none() -> None:
    refused = RefusedMessages(Metrics(verification_mode="full"), Clock())
    refused.note("control.address", PEER, 200, 100)
    assert refused.recent is not None
    assert refused.recent.endswith("was refused, expected at most 100 (a request there has no more)")


def test_the_page_of_a_node_tells_of_it_and_the_node_stays_ready(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    async def scenario() -> None:
        async with running_node(tmp_path) as node:
            node.refused_messages.note(DOOR, PEER, 200_000_000, 131_072_000)
            status = node.account.report()
            assert status is not None
            [finding] = [one for one in status.findings if "200000000" in one.text]
            assert not finding.is_problem
            assert node.account.readiness() == []
            assert count_of(node.metrics) == 1

    asyncio.run(scenario())
    assert logged(caplog, LINE)[0]["got"] == 200_000_000
