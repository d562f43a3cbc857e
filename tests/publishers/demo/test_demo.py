"""What the demo makes of its options and results; `commands/test_demo.py` runs the whole of it."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.gateway.blocks.trusted_keys import TrustedKeys
from sluice.publishers.blocks.block_places import read_chain
from sluice.publishers.demo import demo as demo_module
from sluice.publishers.demo.demo import (
    DemoOptions,
    DemoProgress,
    DemoResult,
    PublisherResult,
    _chain,
    run_demo,
)
from sluice.publishers.errors import BlockListError
from sluice.publishers.sources.stream_reader import ReadTotals


def result(
    *, acknowledged: int = 3, failure: str | None = None, blocks: int = 3, differing: int = 0
) -> DemoResult:
    """A chain of three blocks, as it went."""
    share = PublisherResult("publisher-1", 3, 0, acknowledged, 1000, failure)
    read = ReadTotals(blocks=blocks, differing=differing)
    return DemoResult(0, 2, read, (share,), 1, 2, 1.0, "full", Path("demo"), Path("demo/blocks"))


def test_it_is_good_when_all_is_acknowledged_and_read_back() -> None:
    assert result().block_count == 3
    assert result().is_good
    assert not result(acknowledged=2).is_good
    assert not result(failure="gave up").is_good
    assert not result(blocks=2).is_good
    assert not result(differing=1).is_good


def test_made_blocks_have_a_key_of_their_own(tmp_path: Path) -> None:
    steps: list[DemoProgress] = []
    source, arguments = _chain(DemoOptions(tmp_path, block_count=3), steps.append)
    assert [block.number for block in read_chain(source)] == [0, 1, 2]
    assert arguments[0] == "--ledger-key"
    assert TrustedKeys.parse([arguments[1]]).ed25519
    assert [(step.step, step.done) for step in steps] == [("making blocks", done) for done in (1, 2, 3)]


def test_a_source_without_a_key_is_checked_by_hash_alone(tmp_path: Path) -> None:
    (tmp_path / "0.blk").touch()
    assert _chain(DemoOptions(tmp_path, source=tmp_path), lambda _: None) == (tmp_path, ["--verify", "hash"])
    trusted = DemoOptions(tmp_path, source=tmp_path, node_arguments=("--ledger-key", "ed25519:00"))
    assert _chain(trusted, lambda _: None) == (tmp_path, [])


def test_a_source_without_blocks_is_refused_before_anything_starts(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(BlockListError, match="no block files"):
        run_demo(DemoOptions(tmp_path, source=empty), lambda _: None)
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_publishers_whose_blocks_are_not_stored_give_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a node with a full disk they would go on for ever, and nothing would say why."""
    given: list[dict[str, Any]] = []

    def publish(*_: object, **named: Any) -> None:
        given.append(named)
        raise BlockListError("here", "this far and no further")

    node = nullcontext(SimpleNamespace(tcp=("127.0.0.1", 1), grpc="127.0.0.1:1"))
    reader = SimpleNamespace(start=lambda: None, stop=lambda: None)
    monkeypatch.setattr(demo_module, "NodeProcess", lambda *_, **__: node)
    monkeypatch.setattr(demo_module, "StreamReader", lambda *_: reader)
    monkeypatch.setattr(demo_module, "build_session", lambda *_, **__: SimpleNamespace(stop=lambda: None))
    monkeypatch.setattr(demo_module, "leave_signals_to_python", lambda _: None)
    monkeypatch.setattr(demo_module, "publish", publish)
    with pytest.raises(BlockListError, match="this far"):
        run_demo(DemoOptions(tmp_path, block_count=1), lambda _: None)
    assert [named.get("deadline_seconds") for named in given] == [demo_module.STORE_SECONDS]
