"""Starting together."""

from __future__ import annotations

import asyncio
from pathlib import Path

from publishers.spark.start_gate import StartGate


def test_everybody_waits_until_the_gate_is_open(tmp_path: Path) -> None:
    gate = StartGate(tmp_path)

    async def run() -> list[bool]:
        waiting = [asyncio.create_task(gate.wait(name)) for name in ("a", "team/b")]
        while gate.ready_count < 2:  # noqa: ASYNC110 - the gate is files, no event tells of them
            await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        gate.open()
        return await asyncio.gather(*waiting)

    assert asyncio.run(run()) == [True, True]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.ready", "go", "team_b.ready"]


def test_nobody_waits_for_ever(tmp_path: Path) -> None:
    assert asyncio.run(StartGate(tmp_path).wait("a", timeout_seconds=0)) is False


def test_an_open_gate_lets_through_at_once(tmp_path: Path) -> None:
    gate = StartGate(tmp_path)
    gate.open()
    gate.open()
    assert asyncio.run(gate.wait("late", timeout_seconds=0)) is True
