"""Publishers that win blocks and bring none, beside two honest ones at a real node: the chain keeps its pace.

`SLUICE_LONG=1` has fifty names at a cold start, too; `python -m tests.rogues` plays more of them, for longer.
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from tests.rogues import PACE_MIN, Scene, play

LONG = os.environ.get("SLUICE_LONG") == "1"


@pytest.mark.slow
@pytest.mark.parametrize(
    "scene",
    [
        Scene("headers", names=1, streams=64),
        *([Scene("headers", names=50, is_cold=True)] if LONG else []),
        Scene("trickle", names=5, many_addresses=True),
        Scene("renames", names=5),
    ],
    ids=lambda scene: f"{scene.way} {scene.names}x{scene.streams}",
)
def test_the_chain_keeps_its_pace_beside_those_who_bring_no_blocks(scene: Scene) -> None:
    seen = play(replace(scene, block_seconds=0.3, seconds=12.0))
    assert seen.pace >= PACE_MIN, seen
    assert set(seen.won) <= {"claimed:honest-1", "claimed:honest-2"}
    assert seen.backoffs
