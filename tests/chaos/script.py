"""The script of one run of chaos: the roles of the nodes, and which fault comes after which block.

Pure: a seed gives the same script each time. What a fault hits is a number from 0 to 1, so that it means
something whatever the nodes are by then; `choose` turns it into one of those that it can hit.

    fail over      the load moves from an active node to another one
    lost           a node is killed in the middle of a failover
    kill           SIGKILL; if no other node is active, a standby takes over with --force; it comes back later
    cut            a node cannot be reached: by nobody, or by the other nodes (see `tests.chaos.network`)
    fill           a node's disk is full for a while
    restart        SIGTERM, and again
    ruin           SIGKILL, and its disk is thrown away: only where acknowledgements wait for another node
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
    """The kind of a fault; its value is its name for people and for `--kinds`."""

    FAIL_OVER = "fail-over"
    LOST = "lost"
    KILL = "kill"
    CUT = "cut"
    FILL = "fill"
    RESTART = "restart"
    RUIN = "ruin"


USUAL: Final = tuple(kind for kind in FaultKind if kind is not FaultKind.RUIN)
"""What nothing acknowledged may be lost by, even if it was acknowledged when it was on one disk."""


ROLES: Final = (
    ("active", "standby", "standby"),
    ("active", "active", "standby"),
    ("active", "active", "active"),
)
"""What three nodes may be."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong."""

    kind: FaultKind
    after_block: int
    """It comes when this block is acknowledged to somebody."""
    hits: float
    """From 0 to 1: which node."""
    also: float
    """From 0 to 1: which other node, where there is one."""
    seconds: float
    """How long it lasts, or when the second half comes."""

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
    """Make a script.

    Args:
        seed: of everything.
        block_count: blocks of the chain; faults are spread over them.
        fault_count: faults, one after the other.
        kinds: each comes once before any comes again.
        seconds_max: a fault lasts this long at most.
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
    """Take one of the candidates, at least one, with a number from 0 to 1."""
    return candidates[min(len(candidates) - 1, int(number * len(candidates)))]
