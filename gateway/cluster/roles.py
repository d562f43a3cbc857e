"""The role of a node as a table: active, standby, and the way between them.

Pure.

    phase       publishers                        its chain
    ACTIVE      taken                             grows by their blocks
    DRAINING    sent elsewhere                    grows by complete blocks in flight
    DRAINED     sent elsewhere                    does not grow, so that the other node can reach its end
    STANDBY     sent elsewhere                    grows by the blocks of the node that it follows

Invariants
  - On disk, a drained node is a standby of its successor: if it dies in mid-failover, it does not come back
    as a second active node. A resume writes "active".
  - An expired lease is a resume: a failover command that dies leaves no network without an active node.
  - A node is drained for one failover at a time: two successors would be two active nodes.
  - A node whose term has ended (`cluster.election`) is a standby at once: another one may be active.
Source: gateway/README.md, "The role of a node".
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

from sluice.gateway.errors import RoleRefused

__all__ = ["ROLE_TABLE", "Phase", "RoleEvent", "RoleRecord", "RoleState", "role_rules"]


class Phase(Enum):
    """The phase of a role; the value is for people."""

    ACTIVE = "active"
    DRAINING = "draining"
    DRAINED = "drained"
    STANDBY = "standby"


class RoleEvent(Enum):
    """An event of a role."""

    DRAIN = "drain"
    IDLE = "blocks in flight are finished"
    RESUME = "resume"
    LEASE_ENDED = "the lease has run out"
    ACTIVATE = "activate"
    STAND_BY = "stand by"
    STEP_DOWN = "the term has ended"


_P, _E = Phase, RoleEvent
ROLE_TABLE: Final[dict[Phase, dict[RoleEvent, Phase]]] = {
    _P.ACTIVE: {
        _E.DRAIN: _P.DRAINING,
        _E.RESUME: _P.ACTIVE,
        _E.ACTIVATE: _P.ACTIVE,
        _E.STEP_DOWN: _P.STANDBY,
    },
    _P.DRAINING: {
        _E.IDLE: _P.DRAINED,
        _E.RESUME: _P.ACTIVE,
        _E.LEASE_ENDED: _P.ACTIVE,
        _E.STEP_DOWN: _P.STANDBY,
    },
    _P.DRAINED: {
        _E.RESUME: _P.ACTIVE,
        _E.LEASE_ENDED: _P.ACTIVE,
        _E.STAND_BY: _P.STANDBY,
        _E.STEP_DOWN: _P.STANDBY,
    },
    _P.STANDBY: {_E.ACTIVATE: _P.ACTIVE, _E.STAND_BY: _P.STANDBY, _E.STEP_DOWN: _P.STANDBY},
}
"""RoleState refuses an event that is not in the table, and names the phases that allow it."""


@dataclass(frozen=True, slots=True)
class RoleRecord:
    """The state that a node keeps over a restart."""

    role: Literal["active", "standby"]
    followed: str | None = None


class RoleState:
    """The role of one node."""

    def __init__(self, record: RoleRecord) -> None:
        self.phase = Phase.ACTIVE if record.role == "active" else Phase.STANDBY
        self.followed = record.followed if record.role == "standby" else None
        """The node that it was told to follow, or its successor."""

    def take(self, event: RoleEvent, followed: str | None = None) -> Phase:
        """Take an event, and return the new phase.

        Args:
            event: the event.
            followed: with DRAIN the successor, with STAND_BY the node to follow, as `host:port`.

        Raises:
            RoleRefused: this phase does not allow the event; nothing has changed.
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
        """Return the role to write to disk."""
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
