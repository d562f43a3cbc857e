"""A node that records when each block reaches each stage, in a file.

    python -m benchmarks.traced_node serve …

It needs one publisher that sends each block once, in order; `benchmarks.block_times` reads the file.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sluice.gateway.node.grpc_engine import use_poller

use_poller(os.environ, version("grpcio"))  # as the node does, before it loads gRPC
import sluice.gateway.node.node  # noqa: E402
import sluice.gateway.node.run  # noqa: E402
from sluice.gateway.commands.cli import main  # noqa: E402
from sluice.gateway.node.node import Node  # noqa: E402
from sluice.gateway.race.actions import Action, AttemptId, PublisherId  # noqa: E402
from sluice.gateway.race.arbiter import Arbiter  # noqa: E402
from sluice.gateway.store.block_store import BlockStore, VerifiedBlock  # noqa: E402

__all__ = ["Moment", "TracedNode", "moments_in"]

FILE_NAME = "moments.json"


class Moment(StrEnum):
    """The stages of a block, in order."""

    OFFERED = "its header is in the event loop"
    LINKED = "it is verified and linked"
    BEGUN = "the thread that commits has it"
    ENTRIES_ON_DISK = "its entries are flushed"
    ON_DISK = "its header is flushed, its bookmarks written"
    TOLD = "the event loop knows"


_noted: dict[Moment, dict[int, int]] = {moment: {} for moment in Moment}
"""For each moment, `time.perf_counter_ns` by block number."""


class _TracedArbiter(Arbiter):
    """An arbiter that records its blocks."""

    def header(self, publisher_id: PublisherId, number: int, *arguments: Any, **named: Any) -> list[Action]:
        """Record a block's header."""
        _note(Moment.OFFERED, number)
        return super().header(publisher_id, number, *arguments, **named)

    def linked(self, attempt_id: AttemptId, now_ns: int) -> list[Action]:
        """Record that a block is to be committed."""
        _note(Moment.LINKED, self.attempts[attempt_id].number)
        return super().linked(attempt_id, now_ns)

    def committed(self, attempt_id: AttemptId, now_ns: int) -> list[Action]:
        """Record that the event loop knows of a commit."""
        _note(Moment.TOLD, self.attempts[attempt_id].number)
        return super().committed(attempt_id, now_ns)


class _TracedStore(BlockStore):
    """A block store that records commits that are begun and finished, as those of small blocks are."""

    _begun: Sequence[int] = ()

    def begin(self, blocks: Sequence[VerifiedBlock]) -> None:
        """Record when entries are on disk, and with them the blocks before."""
        numbers = [block.number for block in blocks]
        _note(Moment.BEGUN, *numbers)
        super().begin(blocks)
        _note(Moment.ENTRIES_ON_DISK, *numbers)
        _note(Moment.ON_DISK, *self._begun)
        self._begun = numbers

    def finish(self) -> None:
        """Record when blocks are on disk."""
        super().finish()
        _note(Moment.ON_DISK, *self._begun)
        self._begun = ()


class TracedNode(Node):
    """A node that writes its moments to a file at its end."""

    async def stop(self) -> None:
        """Stop, and write the file."""
        await super().stop()
        _write(Path(self.settings.data_dir, FILE_NAME))


def _write(path: Path) -> None:
    path.write_text(json.dumps({moment.name: _noted[moment] for moment in Moment}), "utf-8")


def moments_in(data_dir: Path) -> dict[Moment, dict[int, int]]:
    """Read the moments of a node that has ended: for each, nanoseconds by block number."""
    found = json.loads(Path(data_dir, FILE_NAME).read_text("utf-8"))
    return {Moment[name]: {int(number): at for number, at in of.items()} for name, of in found.items()}


def _note(moment: Moment, *block_numbers: int) -> None:
    _noted[moment].update(dict.fromkeys(block_numbers, time.perf_counter_ns()))


if __name__ == "__main__":
    sluice.gateway.node.node.Arbiter = _TracedArbiter  # type: ignore[attr-defined]
    sluice.gateway.node.node.BlockStore = _TracedStore  # type: ignore[attr-defined]
    sluice.gateway.node.run.Node = TracedNode  # type: ignore[attr-defined]
    main()
