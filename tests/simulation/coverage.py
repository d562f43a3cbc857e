"""The coverage of tables, answers and faults over all runs of a process."""

from __future__ import annotations

from collections import Counter

from sluice.gateway.race.tables import (
    BLOCK_TABLE,
    CONSEQUENCES,
    ON_HEADER,
    STREAM_TABLE,
    EndStatus,
    Failure,
)
from sluice.publishers.protocol.machine_tables import FINAL_STATES, TABLE, MachineStep
from sluice.publishers.protocol.messages import EndStreamCode

FAULTS = (
    *(
        "power lost",
        "process killed",
        "power lost in a commit",
        "process killed in a commit",
        "graceful restart",
        "disk full",
        "disk error",
    ),
    *(
        "bookmark DB error",
        "connection broken",
        "publisher stalls",
        "publisher restarts",
        "publisher returns",
    ),
    *("publisher loses its cache", "publisher stops", "source fails", "end of process in shutdown"),
    *("trouble at the start", "role change", "the node stands still"),
    *("a publisher goes to another node", "header goes back"),
    *("only the node notices a break", "only the publisher notices a break"),
)


class Coverage:
    """Counts by kind and name."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {kind: Counter() for kind in EXPECTED}

    def count(self, kind: str, name: str) -> None:
        self.counts[kind][name] += 1

    def missing(self) -> dict[str, list[str]]:
        return {
            kind: missing
            for kind, names in EXPECTED.items()
            if (missing := [name for name in names if name not in self.counts[kind]])
        }

    def summary(self) -> list[str]:
        lines = []
        for kind, names in EXPECTED.items():
            reached = sum(name in self.counts[kind] for name in names)
            lines.append(f"{kind}: {reached} of {len(names)}")
        return lines


EXPECTED: dict[str, list[str]] = {
    "ON_HEADER": [standing.name for standing in ON_HEADER],
    "STREAM_TABLE": [f"{state.name} {event.name}" for state, row in STREAM_TABLE.items() for event in row],
    "BLOCK_TABLE": [f"{state.name} {event.name}" for state, row in BLOCK_TABLE.items() for event in row],
    # All blocks are signed, so none is disputed.
    "CONSEQUENCES": [failure.name for failure in CONSEQUENCES if failure is not Failure.DISPUTED],
    "answer": ["Acknowledgement", "Skip", "Resend", "Behind", "EndOfStream"],
    "EndOfStream": [status.name for status in EndStatus],
    "EndStream": [code.name for code in EndStreamCode],
    "arbiter event": [
        *("connected", "header", "items", "block_end", "end_stream", "half_closed", "left", "bad_request"),
        *("publisher_failed", "verified", "linked", "refused", "committed", "commit_failed", "shutdown"),
        *("give_up", "tick", "disk_recovered", "retire", "reinstate", "pause_reading"),
        *("delay", "stood_still"),
    ],
    "machine": [
        f"{state.name} {event.name}"
        for state, row in TABLE.items()
        if state not in FINAL_STATES
        for event, step in row.items()
        if step is not MachineStep.REFUSE
    ],
    "commit": [
        *("with the event loop", "begun", "flush shared", "finished by itself", "several blocks"),
        *("refused behind another one", "power lost or killed behind another one"),
    ],
    "fault": list(FAULTS),
    "rogue": [],
}
"""The names by kind that a run of many seeds should reach."""
