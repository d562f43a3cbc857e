"""What a node is to its publishers, as a table: active, standby, and the way from one to the other.

Pure. A planned failover takes the active node through DRAINING and DRAINED to STANDBY, and the standby to
ACTIVE; whatever goes wrong on the way, the drained node is active again by itself.

    phase       publishers                        what it holds
    ACTIVE      taken                             grows by what they send
    DRAINING    sent elsewhere                    grows by what was complete
    DRAINED     sent elsewhere                    does not grow: the other node can become level
    STANDBY     sent elsewhere                    grows by what the node that it follows sends

Invariants
  - A drained node is remembered as a standby of its successor: if it is lost in the middle of a failover it
    does not come back as a second active node. One that is resumed is remembered as active.
  - A hold that runs out is a resume: a failover command that dies leaves no network without an active node.
  - A node is drained for one failover at a time: two successors would be two active nodes.
Source: gateway/README.md, "The role of a node".
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

from gateway.errors import RoleRefused

__all__ = ["ROLE_TABLE", "Phase", "RoleEvent", "RoleRecord", "RoleState", "role_rules"]


class Phase(Enum):
    """Where a node stands; the value is its name for people."""

    ACTIVE = "active"
    DRAINING = "draining"
    DRAINED = "drained"
    STANDBY = "standby"


class RoleEvent(Enum):
    """What can happen to a role; the value is said in refusals."""

    DRAIN = "drain"
    IDLE = "blocks in flight are finished"
    RESUME = "resume"
    HOLD_ENDED = "the hold has run out"
    ACTIVATE = "activate"
    STAND_BY = "stand by"


_P, _E = Phase, RoleEvent
ROLE_TABLE: Final[dict[Phase, dict[RoleEvent, Phase]]] = {
    _P.ACTIVE: {_E.DRAIN: _P.DRAINING, _E.RESUME: _P.ACTIVE, _E.ACTIVATE: _P.ACTIVE},
    _P.DRAINING: {_E.IDLE: _P.DRAINED, _E.RESUME: _P.ACTIVE, _E.HOLD_ENDED: _P.ACTIVE},
    _P.DRAINED: {_E.RESUME: _P.ACTIVE, _E.HOLD_ENDED: _P.ACTIVE, _E.STAND_BY: _P.STANDBY},
    _P.STANDBY: {_E.ACTIVATE: _P.ACTIVE, _E.STAND_BY: _P.STANDBY},
}
"""What is not in the table is refused, with what would have been possible."""


@dataclass(frozen=True, slots=True)
class RoleRecord:
    """What is remembered of a role over a restart."""

    role: Literal["active", "standby"]
    """How the node starts."""
    followed: str | None = None
    """For a standby: the gRPC address of the node that it was told to follow, `host:port`."""


class RoleState:
    """The role of one node. It decides; opening doors, following and remembering are for its shell."""

    def __init__(self, record: RoleRecord) -> None:
        self.phase = Phase.ACTIVE if record.role == "active" else Phase.STANDBY
        """Where the node stands."""
        self.followed = record.followed if record.role == "standby" else None
        """The node that it was told to follow, or that takes over from it."""

    def take(self, event: RoleEvent, followed: str | None = None) -> Phase:
        """Take an event; return the new phase.

        Args:
            event: what happens.
            followed: with DRAIN the successor, with STAND_BY the node to follow, as `host:port`.

        Raises:
            RoleRefused: it is not possible in this phase; nothing has changed.
        """
        target = ROLE_TABLE[self.phase].get(event)
        if target is None:
            possible = [phase.value for phase in Phase if event in ROLE_TABLE[phase]]
            raise RoleRefused(event.value, got=self.phase.value, expected=" or ".join(possible))
        self.phase = target
        if target is Phase.ACTIVE:
            self.followed = None
        elif followed is not None:
            self.followed = followed
        return target

    def record(self) -> RoleRecord:
        """What to remember now."""
        if self.phase is Phase.ACTIVE:
            return RoleRecord("active")
        return RoleRecord("standby", self.followed)


def role_rules() -> str:
    """Return ROLE_TABLE as a markdown table."""
    lines = ["| | " + " | ".join(phase.value for phase in Phase) + " |", "|---|" + "---|" * len(Phase)]
    for event in RoleEvent:
        cells = [
            target.value if (target := ROLE_TABLE[phase].get(event)) is not None else "refused"
            for phase in Phase
        ]
        lines.append(f"| {event.value} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(role_rules())
