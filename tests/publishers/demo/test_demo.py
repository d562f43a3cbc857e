"""What the demo claims of what happened; `commands/test_demo.py` runs the whole of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.gateway.blocks.trusted_keys import TrustedKeys
from sluice.publishers.blocks.block_places import read_chain
from sluice.publishers.demo.demo import (
    DemoOptions,
    DemoProgress,
    Show,
    _chain,
    _claims_of_chain,
    _claims_of_race,
    _node_words,
    run_demo,
)
from sluice.publishers.demo.misbehaving import Misbehaviour, Outcome
from sluice.publishers.demo.reading import ReadTotals
from sluice.publishers.errors import BlockListError
from sluice.publishers.report import JobFailure, JobReport, PublishReport


class Shown(Show):
    """Keeps what is shown."""

    def __init__(self) -> None:
        self.steps: list[DemoProgress] = []

    def progress(self, progress: DemoProgress) -> None:
        self.steps.append(progress)


ONE = PublishReport("publisher-1", blocks=3, won=2, skipped=1, acknowledged=3, resent=1, safe_through=2)
TWO = PublishReport("publisher-2", blocks=3, won=1, skipped=2, acknowledged=3, safe_through=2)
GOOD = JobReport(0, 2, (ONE, TWO), (), 1.0)
READ = ReadTotals(blocks=3, last_number=2)


def failing_of_chain(
    report: JobReport = GOOD, read: ReadTotals = READ, digests: tuple[str, ...] = ("a",) * 3
) -> list[str]:
    reader: Any = SimpleNamespace(totals=read, failure=None)
    claims = _claims_of_chain(report, 3, {"TCP reader": reader}, list(digests))
    return [claim.name for claim in claims if not claim.holds]


def failing_of_race(
    report: JobReport = GOOD, mode: str = "full", publishers: int = 2, **changes: Any
) -> list[str]:
    outcomes = {kind: Outcome(1, ("said",), True) for kind in Misbehaviour}
    made: dict[str, Any] = {"outcomes": outcomes, "is_taken_over": True, "error": None} | changes
    timeline: Any = SimpleNamespace(**made)
    claims = _claims_of_race(report, timeline, mode, publishers)
    return [claim.name for claim in claims if not claim.holds]


def test_every_claim_about_the_chain_can_fail() -> None:
    assert failing_of_chain() == []
    failed = replace(GOOD, failures=(JobFailure("publisher-1", "gave up"),))
    assert failing_of_chain(failed) == ["acknowledged"]
    assert failing_of_chain(read=ReadTotals(blocks=2, last_number=1)) == ["lost"]
    assert failing_of_chain(read=ReadTotals(blocks=4, repeated=1)) == ["repeated", "out of order"]
    assert failing_of_chain(read=ReadTotals(blocks=2, missing=1)) == ["lost", "out of order"]
    assert failing_of_chain(read=ReadTotals(blocks=3, differing=1)) == ["changed"]
    assert failing_of_chain(digests=("a", "a", "b")) == ["identical"]


def test_every_claim_about_the_race_can_fail() -> None:
    assert failing_of_race() == []
    assert failing_of_race(replace(GOOD, publishers=(ONE, replace(TWO, won=0)))) == ["race"]
    assert failing_of_race(replace(GOOD, publishers=(replace(ONE, skipped=0), replace(TWO, skipped=0)))) == [
        "skip"
    ]
    assert failing_of_race(replace(GOOD, publishers=(replace(ONE, resent=0), TWO))) == ["resend"]
    assert failing_of_race(outcomes={}) == ["hang", "bad-proof", "repeat"]
    assert failing_of_race(outcomes={}, mode="hash") == ["hang", "repeat"]
    assert failing_of_race(is_taken_over=False) == ["failover"]
    assert failing_of_race(error=OSError("no")) == ["failover"]
    assert failing_of_race(replace(GOOD, publishers=(replace(ONE, won=3),)), publishers=1) == []


def test_made_blocks_have_a_key_of_their_own(tmp_path: Path) -> None:
    shown = Shown()
    options = DemoOptions(tmp_path, block_count=3)
    source, arguments = _chain(options, shown), _node_words(options, 0)
    assert [block.number for block in read_chain(source)] == [0, 1, 2]
    assert arguments[0] == "--ledger-key"
    assert TrustedKeys.parse([arguments[1]]).ed25519
    assert [(step.phase, step.done) for step in shown.steps] == [
        ("making blocks", done) for done in (1, 2, 3)
    ]


def test_a_source_without_a_key_is_checked_by_hash_alone(tmp_path: Path) -> None:
    (tmp_path / "0.blk").touch()
    options = DemoOptions(tmp_path, source=tmp_path)
    assert (_chain(options, Show()), _node_words(options, 0)) == (tmp_path, ["--verify", "hash"])
    trusted = DemoOptions(tmp_path, source=tmp_path, ledger_keys=("ed25519:00",))
    assert (_chain(trusted, Show()), _node_words(trusted, 0)) == (tmp_path, ["--ledger-key", "ed25519:00"])
    assert _node_words(trusted, 7) == ["--ledger-key", "ed25519:00", "--first-block", "7"]


def test_a_source_without_blocks_is_refused_before_anything_starts(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(BlockListError, match="no block files"):
        run_demo(DemoOptions(tmp_path, source=empty), Show())
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
