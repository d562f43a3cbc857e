"""Tests of `gateway.cluster.cluster_watch` beside a peer that nobody is; tests/interop has real clusters."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest

from sluice.gateway.cluster.cluster_view import START_SECONDS, ClusterFault, Statement
from sluice.gateway.cluster.cluster_watch import ClusterWatch
from sluice.gateway.cluster.limits import CLUSTER_LIMITS
from sluice.gateway.metrics import Metrics
from tests.nodes import until

NOBODY = "127.0.0.1:1"
BLIND = "the faults of the cluster cannot be told"
STANDBY = Statement("own", "standby", 7, True, True, True, frozenset())


async def test_a_verdict_does_not_outlive_an_error_of_ours_nor_the_watch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics, statements = Metrics(verification_mode="full"), [STANDBY]

    def own() -> Statement:
        return statements[-1]

    def value() -> float | None:
        return metrics.registry.get_sample_value("sluice_cluster_fault", {"fault": "no_active"})

    watch = ClusterWatch([NOBODY], metrics, limits=replace(CLUSTER_LIMITS, peer_poll_seconds=0.01))
    watch._view.started_at = -2 * START_SECONDS  # so long ago that it has waited for peers
    watching = asyncio.ensure_future(watch.watch(own))
    await until(lambda: ClusterFault.NO_ACTIVE in watch.faults)
    assert value() == 1
    said = statements.pop()
    await until(lambda: not watch.faults)
    assert value() == 0
    statements.append(said)
    await until(lambda: ClusterFault.NO_ACTIVE in watch.faults)
    assert value() == 1
    assert [record.message for record in caplog.records].count(BLIND) == 1
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    assert (watch.faults, value()) == ({}, 0)
