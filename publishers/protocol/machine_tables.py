"""One publisher's side of the protocol as tables: what each event means in each state.

Pure. `TABLE` has every (state, event); `REFUSE` marks the impossible ones.

    IDLE ─────block──> CONNECTING ──connected──> STREAMING ──all safe──> FINISHING ──disconnected──> DONE
       ^                 ^    ^                    │  │
       │nothing to offer │    └────disconnected────┘  │ the gateway ends it, or we do
       └─────────────────┴──── LEAVING <──────────────┘            ──> FAILED (gave up), STOPPED (user)

Source: docs/protocol.md, "What the node says, and what to do".
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum
from typing import Final

from sluice.publishers.protocol.messages import EndCode, EventKind

__all__ = [
    "ADVICE",
    "ENDINGS",
    "FINAL_STATES",
    "TABLE",
    "Ending",
    "Gateway",
    "MachineState",
    "MachineStep",
    "Pace",
    "advice_table",
    "endings_table",
]


class MachineState(Enum):
    """The state of a publisher."""

    IDLE = "idle"
    CONNECTING = "connecting"
    STREAMING = "streaming"
    STOPPING = "stopping"
    """The user wants to end; the block in flight comes first."""
    LEAVING = "leaving"
    FINISHING = "finishing"
    """Every block is stored; our side is closed."""
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


FINAL_STATES: Final = frozenset({MachineState.DONE, MachineState.FAILED, MachineState.STOPPED})


class MachineStep(Enum):
    """Each is one method of `PublisherMachine`."""

    NOTHING = "nothing"
    REFUSE = "refuse"
    """Raise `MachineError`."""
    TAKE_BLOCK = "take block"
    END_SOURCE = "end source"
    FAIL = "fail"
    LEAVE_BROKEN = "leave broken"
    """The source failed: EndStream(ERROR), then fail."""
    BEGIN = "begin"
    RETRY = "retry"
    SEND = "send"
    SEND_PARTING = "send parting"
    """Send the stream's last messages."""
    WATCH = "watch"
    CLOSE_OVERDUE = "close overdue"
    """Cancel a call that the gateway does not end."""
    COUNT_SAFE = "count safe"
    SKIP = "skip"
    RESEND = "resend"
    BEHIND = "behind"
    LEARN_FIRST = "learn first"
    """Count the gateway's acknowledgements, or leave it."""
    OBEY_END = "obey end"
    STOP_AFTER_BLOCK = "stop after block"
    STOP_NOW = "stop now"
    STOP_CLOSED = "stop closed"
    DEPART = "depart"
    FINISHED = "finished"
    CLOSE = "close"


_ANSWERS: Final = (
    EventKind.ACKNOWLEDGED,
    EventKind.SKIPPED,
    EventKind.RESEND_ASKED,
    EventKind.NODE_BEHIND,
    EventKind.STREAM_ENDED,
)

_NO_STREAM: Final = {
    EventKind.WRITABLE: MachineStep.REFUSE,
    EventKind.FIRST_TOLD: MachineStep.REFUSE,
    **dict.fromkeys(_ANSWERS, MachineStep.REFUSE),
}

_OVER: Final = dict.fromkeys(EventKind, MachineStep.NOTHING)

TABLE: Final[dict[MachineState, dict[EventKind, MachineStep]]] = {
    MachineState.IDLE: {
        **_NO_STREAM,
        EventKind.BLOCK_READY: MachineStep.TAKE_BLOCK,
        EventKind.SOURCE_ENDED: MachineStep.END_SOURCE,
        EventKind.SOURCE_FAILED: MachineStep.FAIL,
        EventKind.CONNECTED: MachineStep.REFUSE,
        EventKind.DISCONNECTED: MachineStep.REFUSE,
        EventKind.CLOCK: MachineStep.NOTHING,
        EventKind.STOP: MachineStep.STOP_NOW,
    },
    MachineState.CONNECTING: {
        **_NO_STREAM,
        EventKind.BLOCK_READY: MachineStep.TAKE_BLOCK,
        EventKind.SOURCE_ENDED: MachineStep.END_SOURCE,
        EventKind.SOURCE_FAILED: MachineStep.FAIL,
        EventKind.CONNECTED: MachineStep.BEGIN,
        EventKind.DISCONNECTED: MachineStep.RETRY,
        EventKind.CLOCK: MachineStep.WATCH,
        EventKind.STOP: MachineStep.STOP_NOW,
    },
    MachineState.STREAMING: {
        EventKind.BLOCK_READY: MachineStep.TAKE_BLOCK,
        EventKind.SOURCE_ENDED: MachineStep.END_SOURCE,
        EventKind.SOURCE_FAILED: MachineStep.LEAVE_BROKEN,
        EventKind.CONNECTED: MachineStep.REFUSE,
        EventKind.DISCONNECTED: MachineStep.RETRY,
        EventKind.WRITABLE: MachineStep.SEND,
        EventKind.CLOCK: MachineStep.WATCH,
        EventKind.STOP: MachineStep.STOP_AFTER_BLOCK,
        EventKind.ACKNOWLEDGED: MachineStep.COUNT_SAFE,
        EventKind.SKIPPED: MachineStep.SKIP,
        EventKind.RESEND_ASKED: MachineStep.RESEND,
        EventKind.NODE_BEHIND: MachineStep.BEHIND,
        EventKind.STREAM_ENDED: MachineStep.OBEY_END,
        EventKind.FIRST_TOLD: MachineStep.LEARN_FIRST,
    },
    MachineState.STOPPING: {
        EventKind.BLOCK_READY: MachineStep.NOTHING,  # not taken, so the report counts it as unacknowledged
        EventKind.SOURCE_ENDED: MachineStep.NOTHING,
        EventKind.SOURCE_FAILED: MachineStep.NOTHING,
        EventKind.CONNECTED: MachineStep.REFUSE,
        EventKind.DISCONNECTED: MachineStep.STOP_NOW,
        EventKind.WRITABLE: MachineStep.SEND,
        EventKind.CLOCK: MachineStep.CLOSE_OVERDUE,
        EventKind.STOP: MachineStep.NOTHING,
        EventKind.ACKNOWLEDGED: MachineStep.COUNT_SAFE,
        EventKind.SKIPPED: MachineStep.SKIP,
        EventKind.RESEND_ASKED: MachineStep.RESEND,
        EventKind.NODE_BEHIND: MachineStep.BEHIND,
        EventKind.STREAM_ENDED: MachineStep.STOP_CLOSED,
        EventKind.FIRST_TOLD: MachineStep.LEARN_FIRST,
    },
    MachineState.LEAVING: {
        EventKind.BLOCK_READY: MachineStep.TAKE_BLOCK,
        EventKind.SOURCE_ENDED: MachineStep.END_SOURCE,
        EventKind.SOURCE_FAILED: MachineStep.LEAVE_BROKEN,
        EventKind.CONNECTED: MachineStep.REFUSE,
        EventKind.DISCONNECTED: MachineStep.DEPART,
        EventKind.WRITABLE: MachineStep.SEND_PARTING,
        EventKind.CLOCK: MachineStep.CLOSE_OVERDUE,
        EventKind.STOP: MachineStep.STOP_AFTER_BLOCK,
        EventKind.ACKNOWLEDGED: MachineStep.COUNT_SAFE,  # still true, and saves an offer
        EventKind.SKIPPED: MachineStep.NOTHING,
        EventKind.RESEND_ASKED: MachineStep.NOTHING,
        EventKind.NODE_BEHIND: MachineStep.NOTHING,
        EventKind.STREAM_ENDED: MachineStep.CLOSE,
        EventKind.FIRST_TOLD: MachineStep.LEARN_FIRST,
    },
    MachineState.FINISHING: {
        EventKind.BLOCK_READY: MachineStep.REFUSE,
        EventKind.SOURCE_ENDED: MachineStep.REFUSE,
        EventKind.SOURCE_FAILED: MachineStep.REFUSE,
        EventKind.CONNECTED: MachineStep.REFUSE,
        EventKind.DISCONNECTED: MachineStep.FINISHED,
        EventKind.WRITABLE: MachineStep.SEND_PARTING,
        EventKind.CLOCK: MachineStep.CLOSE_OVERDUE,
        EventKind.STOP: MachineStep.NOTHING,  # there is nothing left to stop
        EventKind.ACKNOWLEDGED: MachineStep.NOTHING,
        EventKind.SKIPPED: MachineStep.SKIP,  # corrects a block that looked won
        # The gateway acknowledged everything, so it cannot mean our blocks.
        EventKind.RESEND_ASKED: MachineStep.NOTHING,
        EventKind.NODE_BEHIND: MachineStep.NOTHING,
        EventKind.STREAM_ENDED: MachineStep.CLOSE,
        EventKind.FIRST_TOLD: MachineStep.NOTHING,
    },
    MachineState.DONE: _OVER,  # the shell may still pass events
    MachineState.FAILED: _OVER,
    MachineState.STOPPED: _OVER,
}


class Gateway(Enum):
    """The gateway of the next stream."""

    SAME = "same"
    NEXT = "next"
    """The next of the list, in a circle."""


class Pace(Enum):
    """The wait before the next stream."""

    AT_ONCE = "at once"
    SOON = "soon"
    """Like LOST, but several gateways get short waits first."""
    LOST = "lost"
    """Like BACKOFF, but where there are several gateways the wait stays short: one of them may take over."""
    BACKOFF = "backoff"
    """The wait of the retry policy; none if a gateway is untried."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The next stream after a gateway's EndOfStream code."""

    gateway: Gateway
    pace: Pace
    why: str


ENDINGS: Final[dict[EndCode, Ending]] = {
    EndCode.SUCCESS: Ending(Gateway.NEXT, Pace.SOON, "the gateway shuts down or is a standby"),
    # Bounded: INVALID_REQUEST_RETRIES_MAX.
    EndCode.INVALID_REQUEST: Ending(Gateway.NEXT, Pace.BACKOFF, "the gateway calls our request invalid"),
    EndCode.ERROR: Ending(
        Gateway.NEXT,
        Pace.BACKOFF,
        "the gateway cannot go on: it lacks what the block is checked with, or failed",
    ),
    EndCode.TIMEOUT: Ending(Gateway.NEXT, Pace.BACKOFF, "the gateway found us too slow"),
    # With backoff if that is no news.
    EndCode.DUPLICATE_BLOCK: Ending(Gateway.SAME, Pace.AT_ONCE, "the gateway has the block already"),
    # Bounded: BAD_PROOF_RETRIES_MAX.
    EndCode.BAD_BLOCK_PROOF: Ending(Gateway.NEXT, Pace.BACKOFF, "the gateway refused the block's proof"),
    EndCode.PERSISTENCE_FAILED: Ending(Gateway.NEXT, Pace.BACKOFF, "the gateway cannot store blocks now"),
    EndCode.UNKNOWN: Ending(Gateway.NEXT, Pace.BACKOFF, "the gateway gave no reason"),
}


# --- for the documents --------------------------------------------------------------------------------------

ADVICE: Final[dict[MachineStep, tuple[str, str]]] = {
    MachineStep.COUNT_SAFE: (
        "BlockAcknowledgement(N)",
        """
        N and all blocks before it are verified and on disk: let go of them. If you are in the middle of one,
        send no more of it and go on with the first that is not acknowledged.
        """,
    ),
    MachineStep.SKIP: (
        "SkipBlock(N)",
        """
        Somebody else sends N. Send no more of it, go on with the header of N + 1 as soon as you have it, and
        keep N until it is acknowledged.
        """,
    ),
    MachineStep.RESEND: (
        "ResendBlock(N)",
        """
        Break off what you are sending and go on from the header of N, with all blocks after it. You may hear
        SkipBlock for any of them. If you have N no more: EndStream(TOO_FAR_BEHIND, earliest, latest).
        """,
    ),
    MachineStep.BEHIND: (
        "BehindPublisher(L)",
        """
        The node has blocks up to L only. If you hold L + 1, go on from its header at once, on this stream.
        Where L is none, that is the next expected block of `serverStatus`, and block 0 where it expects any.
        If you do not hold it: EndStream(TOO_FAR_BEHIND, earliest, latest), and try again with growing waits.
        """,
    ),
    MachineStep.OBEY_END: (
        "EndOfStream(code, L, N)",
        """
        The stream is over: stop sending and close your side. L is the node's last stored block, or none; N is
        the block that the code is about, 0 where there is none. What to do next: the table below.
        """,
    ),
}
"""The advice to any publisher for each answer while streaming."""


def advice_table() -> str:
    """Return ADVICE as a markdown table."""
    lines = ["| the node says | what to do |", "|---|---|"]
    lines += [f"| `{answer}` | {' '.join(advice.split())} |" for answer, advice in ADVICE.values()]
    return "\n".join(lines) + "\n"


def endings_table() -> str:
    """Return ENDINGS as a markdown table."""
    lines = ["| code | | meaning | go on at | when |", "|---|---|---|---|---|"]
    for code, ending in sorted(ENDINGS.items()):
        lines.append(
            f"| {int(code)} | {code.name} | {ending.why} | {_WHERE[ending.gateway]} | {_WHEN[ending.pace]} |"
        )
    return "\n".join(lines) + "\n"


_WHERE: Final = {
    Gateway.SAME: "the same node",
    Gateway.NEXT: "another node, or the same one where there is no other",
}
_WHEN: Final = {
    Pace.AT_ONCE: "at once",
    Pace.SOON: "at once where another node was not tried yet, then after 0.1 s for 5 s, then at most 2 s",
    Pace.LOST: "after a wait that grows to 2 s, unless another node was not tried yet",
    Pace.BACKOFF: "after a growing wait, unless another node was not tried yet",
}


if __name__ == "__main__":
    sys.stdout.write(advice_table() + "\n" + endings_table())
