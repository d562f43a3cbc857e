"""The script of one run: the roles of the nodes, and which fault comes after which block.

Pure: a seed always gives the same script. A number from 0 to 1 chooses the target of a fault, whatever the
nodes are by then; `choose` turns it into a candidate.

    fail over      the load moves from an active node to another one
    lost           a node is killed in the middle of a failover
    kill           SIGKILL; if no other node is active, a standby takes over with --force; it comes back later
    cut            a node cannot be reached: by nobody, or by the other nodes (see `tests.chaos.network`)
    fill           a node's disk is full for a while
    restart        SIGTERM, and a new start
    ruin           SIGKILL, and its disk is deleted: only if acknowledgements wait for another node
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeVar

__all__ = ["ROLES", "USUAL", "Fault", "FaultKind", "Script", "choose", "draw"]

_Thing = TypeVar("_Thing")


class FaultKind(Enum):
    """The kind of a fault; the value is for people and for `--kinds`."""

    FAIL_OVER = "fail-over"
    LOST = "lost"
    KILL = "kill"
    CUT = "cut"
    FILL = "fill"
    RESTART = "restart"
    RUIN = "ruin"


USUAL: Final = tuple(kind for kind in FaultKind if kind is not FaultKind.RUIN)
"""The kinds that lose nothing acknowledged, even if it was on one disk only."""


ROLES: Final = (
    ("active", "standby", "standby"),
    ("active", "active", "standby"),
    ("active", "active", "active"),
)
"""The possible roles of three nodes."""


@dataclass(frozen=True, slots=True)
class Fault:
    kind: FaultKind
    after_block: int
    """The fault comes when this block is acknowledged."""
    hits: float
    """Chooses the node, from 0 to 1."""
    also: float
    """Chooses the other node, if any, from 0 to 1."""
    seconds: float
    """How long it lasts, or when its second half comes."""

    def __str__(self) -> str:
        return f"{self.kind.value} after block {self.after_block}, for {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class Script:
    """One run."""

    seed: int
    block_count: int
    roles: tuple[str, ...]
    faults: tuple[Fault, ...]

    def lines(self) -> list[str]:
        """Return the script for people."""
        roles = ", ".join(self.roles)
        return [
            f"seed {self.seed}: {self.block_count} blocks, nodes: {roles}",
            *(f"    {fault}" for fault in self.faults),
        ]


def draw(
    seed: int,
    block_count: int,
    fault_count: int,
    kinds: Sequence[FaultKind] = USUAL,
    *,
    seconds_max: float = 4.0,
) -> Script:
    """Return a script.

    Args:
        seed: of everything.
        block_count: blocks of the chain; faults are spread over them.
        fault_count: faults, one after the other.
        kinds: each comes once before any comes again.
        seconds_max: the longest fault.
    """
    rng = random.Random(seed)
    roles = rng.choice(ROLES)
    faults: list[Fault] = []
    deck: list[FaultKind] = []
    for index in range(fault_count):
        if not deck:
            deck = rng.sample(list(kinds), len(kinds))
        spacing = block_count / (fault_count + 1)
        after_block = int(spacing * (index + 0.5 + rng.random() / 2))
        seconds = 0.2 + rng.random() * max(0.0, seconds_max - 0.2)
        faults.append(Fault(deck.pop(), after_block, rng.random(), rng.random(), seconds))
    return Script(seed, block_count, roles, tuple(faults))


def choose(candidates: Sequence[_Thing], number: float) -> _Thing:
    """Choose one of at least one candidates by a number from 0 to 1."""
    return candidates[min(len(candidates) - 1, int(number * len(candidates)))]
