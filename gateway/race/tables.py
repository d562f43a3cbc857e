"""The tables of the publish race: what each publisher hears, and what becomes of each block.

Pure values; `gateway.race.arbiter` says how they work together.

Source: gateway/README.md, "The publish race"; docs/protocol.md, "The node's tables"; docs/spec/wire.md
section 2.1.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum
from typing import Final

__all__ = [
    "BLOCK_TABLE",
    "CONSEQUENCES",
    "GONE",
    "LIVE",
    "ON_HEADER",
    "STREAM_TABLE",
    "BlockEvent",
    "BlockState",
    "Consequence",
    "EndStatus",
    "Failure",
    "HeaderAnswer",
    "Reaction",
    "Standing",
    "StreamEvent",
    "StreamState",
    "failure_rules",
    "header_rules",
    "mermaid",
    "reaction_legend",
    "stream_rules",
]


class EndStatus(Enum):
    """EndOfStream.Code (docs/spec/wire.md section 2.1)."""

    SUCCESS = 1
    INVALID_REQUEST = 2
    ERROR = 3
    TIMEOUT = 4
    DUPLICATE_BLOCK = 5
    BAD_BLOCK_PROOF = 6
    PERSISTENCE_FAILED = 7


class _Key(Enum):
    __hash__ = object.__hash__  # Enum's own is a slow Python function, and every message looks a key up


# --- 1. A header is offered -------------------------------------------------------------------------------


class Standing(_Key):
    """The standing of block N when publisher P offers its header."""

    COMMITTED = "N <= L"
    COMMITTED_JUST_NOW = "N <= L, inside the duplicate skip window"
    BELOW_FIRST = "N is below the first block that the node holds or begins with"
    STREAMING = "another publisher is sending it"
    HEADER_OF_NEWCOMER = "a newcomer has sent its header alone, and P, who delivers blocks, is preferred"
    RECEIVED = "received whole, not yet acknowledged"
    STARTED_OVER = "P is sending it, and starts it over"
    WANTED = "N <= U, and nobody is sending it"
    WANTED_BUT_LOST_BY_P = "N <= U, nobody is sending it, P failed it, and somebody else may bring it"
    WANTED_BUT_P_STANDS_BACK = "nobody is sending it, P stands back, and somebody else may bring it"
    AHEAD = "N > U"


class HeaderAnswer(_Key):
    """The answer to a header."""

    ACCEPT = "nothing: it is the winner"
    SKIP = "SkipBlock(N)"
    BEHIND = "BehindPublisher(L)"
    END_DUPLICATE = "EndOfStream(DUPLICATE_BLOCK, L)"
    END_BELOW_FIRST = "EndOfStream(ERROR, none, N)"


ON_HEADER: Final[dict[Standing, HeaderAnswer]] = {
    Standing.COMMITTED: HeaderAnswer.END_DUPLICATE,
    Standing.COMMITTED_JUST_NOW: HeaderAnswer.SKIP,
    # This node will never hold N, and P must not take N for stored. On ERROR a consensus node tries another
    # node for a while; on the other codes it starts again behind L.
    Standing.BELOW_FIRST: HeaderAnswer.END_BELOW_FIRST,
    Standing.STREAMING: HeaderAnswer.SKIP,
    Standing.HEADER_OF_NEWCOMER: HeaderAnswer.ACCEPT,
    Standing.RECEIVED: HeaderAnswer.SKIP,
    # Even if it failed the block before or a block below is open again.
    Standing.STARTED_OVER: HeaderAnswer.ACCEPT,
    Standing.WANTED: HeaderAnswer.ACCEPT,
    # "The previous winner cannot be selected for the failed block". P goes on behind N, and hears
    # ResendBlock(N) when all others have left or let their time go by: somebody may always send N.
    Standing.WANTED_BUT_LOST_BY_P: HeaderAnswer.SKIP,
    # P may come beyond U this way, and hears ResendBlock then.
    Standing.WANTED_BUT_P_STANDS_BACK: HeaderAnswer.SKIP,
    Standing.AHEAD: HeaderAnswer.BEHIND,
}


# --- 2. One publisher's stream ----------------------------------------------------------------------------


class StreamState(_Key):
    """The state of one publisher's stream."""

    FRESH = "no header yet"
    SENDING = "its items go to the block that it won"
    PROVEN = "as SENDING, and the last item was a proof"
    DROPPING = "its items are dropped until its next header"
    BETWEEN = "the block that it sent is complete"
    FINISHED = "it sends nothing more; it hears of its blocks until they are settled"
    ENDED = "the node has ended it; what still comes is drained"


GONE: Final = (StreamState.FINISHED, StreamState.ENDED)
"""The states in which a stream brings no further block."""


class StreamEvent(_Key):
    """An event on a stream; a message's form is checked before."""

    HEADER = "an item set that begins with a header"
    ITEMS = "an item set that begins with neither a header nor a proof"
    PROOFS = "an item set of proofs only"
    BLOCK_END = "end_of_block with the number of the stream's block"
    OTHER_BLOCK_END = "end_of_block with another number"
    GOODBYE = "EndStream, or the publisher closed its sending side in order"
    LOST = "the connection broke or the call was cancelled"


class Reaction(_Key):
    """One step of the arbiter."""

    OFFER = "look the block up in ON_HEADER"
    APPEND = "add the items to the block"
    COMPLETE = "the block is complete: verify it"
    ABANDON = "drop the block in progress"
    FINISH = "close the stream once the blocks that it offered are settled"
    LEAVE = "the publisher is gone"
    STRAY = "drop and count it; beyond publish.stray_messages_max in a row, EndOfStream(INVALID_REQUEST)"
    REFUSE = "EndOfStream(INVALID_REQUEST)"


_S, _E, _R = StreamState, StreamEvent, Reaction
STREAM_TABLE: Final[dict[StreamState, dict[StreamEvent, tuple[Reaction, ...]]]] = {
    _S.FRESH: {
        _E.HEADER: (_R.OFFER,),
        _E.ITEMS: (_R.STRAY,),
        _E.PROOFS: (_R.STRAY,),
        _E.BLOCK_END: (_R.STRAY,),
        _E.OTHER_BLOCK_END: (_R.STRAY,),
        _E.GOODBYE: (_R.FINISH,),
        _E.LOST: (_R.LEAVE,),
    },
    _S.SENDING: {
        _E.HEADER: (_R.ABANDON, _R.OFFER),
        _E.ITEMS: (_R.APPEND,),
        _E.PROOFS: (_R.APPEND,),
        _E.BLOCK_END: (_R.COMPLETE,),
        _E.OTHER_BLOCK_END: (_R.REFUSE,),
        _E.GOODBYE: (_R.ABANDON, _R.FINISH),
        _E.LOST: (_R.ABANDON, _R.LEAVE),
    },
    _S.PROVEN: {
        _E.HEADER: (_R.COMPLETE, _R.OFFER),
        _E.ITEMS: (_R.REFUSE,),
        _E.PROOFS: (_R.APPEND,),
        _E.BLOCK_END: (_R.COMPLETE,),
        _E.OTHER_BLOCK_END: (_R.REFUSE,),
        _E.GOODBYE: (_R.COMPLETE, _R.FINISH),
        # More proofs may have been on their way: a block's bytes must not depend on when a line broke.
        _E.LOST: (_R.ABANDON, _R.LEAVE),
    },
    _S.DROPPING: {
        _E.HEADER: (_R.OFFER,),
        _E.ITEMS: (),
        _E.PROOFS: (),
        _E.BLOCK_END: (),
        _E.OTHER_BLOCK_END: (),
        _E.GOODBYE: (_R.FINISH,),
        _E.LOST: (_R.LEAVE,),
    },
    _S.BETWEEN: {
        _E.HEADER: (_R.OFFER,),
        _E.ITEMS: (_R.STRAY,),
        # Nothing followed the block's proof in time, so it was taken as complete: these are too late.
        _E.PROOFS: (_R.STRAY,),
        _E.BLOCK_END: (),
        _E.OTHER_BLOCK_END: (_R.STRAY,),
        _E.GOODBYE: (_R.FINISH,),
        _E.LOST: (_R.LEAVE,),
    },
    _S.FINISHED: dict.fromkeys(StreamEvent, ()) | {_E.LOST: (_R.LEAVE,)},
    _S.ENDED: dict.fromkeys(StreamEvent, ()) | {_E.LOST: (_R.LEAVE,)},
}


# --- 3. One block -----------------------------------------------------------------------------------------


class BlockState(_Key):
    """The state of one block above L."""

    OPEN = "begun once and failed: anybody may send it"
    STREAMING = "its winner is sending it"
    COMPLETE = "received whole, root hash and proof being checked"
    VERIFIED = "root hash and proof are right; waits for the block before it"
    COMMITTING = "linked to the block before it; on its way to disk, here and wherever else it has to be"
    COMMITTED = "on disk and acknowledged"


# A tuple: that is faster than a set of a few members.
LIVE: Final = (BlockState.STREAMING, BlockState.COMPLETE, BlockState.VERIFIED, BlockState.COMMITTING)


class BlockEvent(_Key):
    """An event of a block."""

    HEADER_ACCEPTED = "a publisher won it"
    ENDED = "end_of_block, or the proof and then a header, an end or silence"
    VERIFIED = "root hash and proof are right"
    LINKED = "it continues the block before it"
    COMMITTED = "it is on disk, here and wherever else it has to be"
    FAILED = "see Failure"


_B, _X = BlockState, BlockEvent
BLOCK_TABLE: Final[dict[BlockState, dict[BlockEvent, BlockState]]] = {
    _B.OPEN: {_X.HEADER_ACCEPTED: _B.STREAMING},
    _B.STREAMING: {_X.ENDED: _B.COMPLETE, _X.FAILED: _B.OPEN},
    _B.COMPLETE: {_X.VERIFIED: _B.VERIFIED, _X.FAILED: _B.OPEN},
    _B.VERIFIED: {_X.LINKED: _B.COMMITTING, _X.FAILED: _B.OPEN},
    _B.COMMITTING: {_X.COMMITTED: _B.COMMITTED, _X.FAILED: _B.OPEN},
    _B.COMMITTED: {},
}


# --- 4. A block fails -------------------------------------------------------------------------------------


class Failure(Enum):
    """The reason why an attempt at a block fails."""

    REFUSED = "root hash, link or proof is wrong"
    DISPUTED = (
        "it links to another block N - 1 than the node has, as those of others do, and no signature decides"
    )
    UNCHECKED = "the node cannot check it: a key or data are missing here, or it does not know an item"
    BAD_REQUEST = "a message breaks the protocol"
    TOO_LARGE = "more bytes or items than a block may have"
    TIMED_OUT = "not complete in time"
    STALLED = "another publisher completed a block far ahead"
    LEFT = "the winner left in mid-block"
    ABANDONED = "the winner began another block in mid-block"
    SENT_BACK = "the winner went back because the node asked for an earlier block"
    RESTARTED = "the winner began the same block again"
    GAVE_WAY = "the winner, a newcomer, had sent its header alone, and one who is preferred offered it"
    STREAM_ENDED = "the node ended the winner's stream for another reason"
    NODE = "the node could not go on: disk, shutdown"


@dataclass(frozen=True, slots=True)
class Consequence:
    """The consequence of a failure for the winner."""

    end_status: EndStatus | None
    """The code that ends its stream; None: the stream goes on."""
    blamed: bool
    """It may not win the block again while others are connected, and pays (`race.reputation`)."""
    skips: bool = False


CONSEQUENCES: Final[dict[Failure, Consequence]] = {
    Failure.REFUSED: Consequence(EndStatus.BAD_BLOCK_PROOF, blamed=True),
    # Nobody knows who is wrong, so the others go first.
    Failure.DISPUTED: Consequence(EndStatus.ERROR, blamed=True),
    # Others may have proofs that this node can check, so they go first.
    Failure.UNCHECKED: Consequence(EndStatus.ERROR, blamed=True),
    Failure.BAD_REQUEST: Consequence(EndStatus.INVALID_REQUEST, blamed=True),
    Failure.TOO_LARGE: Consequence(EndStatus.INVALID_REQUEST, blamed=True),
    Failure.TIMED_OUT: Consequence(EndStatus.TIMEOUT, blamed=True),
    Failure.STALLED: Consequence(EndStatus.TIMEOUT, blamed=True),
    Failure.LEFT: Consequence(None, blamed=True),
    Failure.ABANDONED: Consequence(None, blamed=True),
    Failure.SENT_BACK: Consequence(None, blamed=False),
    Failure.RESTARTED: Consequence(None, blamed=False),
    Failure.GAVE_WAY: Consequence(None, blamed=False, skips=True),
    Failure.STREAM_ENDED: Consequence(None, blamed=False),
    Failure.NODE: Consequence(None, blamed=False),
}


def mermaid() -> str:
    """Return BLOCK_TABLE as a mermaid state diagram."""
    lines = ["stateDiagram-v2", "    [*] --> OPEN"]
    for state, row in BLOCK_TABLE.items():
        lines += [f"    {state.name} --> {target.name}: {event.name}" for event, target in row.items()]
    lines.append("    COMMITTED --> [*]")
    return "\n".join(lines) + "\n"


def header_rules() -> str:
    """Return ON_HEADER as a markdown table."""
    lines = ["| block N, when publisher P offers its header | P hears |", "|---|---|"]
    lines += [f"| {standing.value} | {answer.value} |" for standing, answer in ON_HEADER.items()]
    return "\n".join(lines) + "\n"


def failure_rules() -> str:
    """Return CONSEQUENCES as a markdown table."""
    lines = ["| an attempt fails because | its winner hears | may win it again |", "|---|---|---|"]
    for failure, consequence in CONSEQUENCES.items():
        status = consequence.end_status
        hears = "SkipBlock(N)" if consequence.skips else "nothing"
        if status is not None:
            hears = f"EndOfStream({status.name}, L, N)"
        again = "only if nobody else brings it" if consequence.blamed else "yes"
        lines.append(f"| {failure.value} | {hears} | {again} |")
    return "\n".join(lines) + "\n"


def stream_rules() -> str:
    """Return STREAM_TABLE as a markdown table."""
    lines = ["| stream | " + " | ".join(event.value for event in StreamEvent) + " |"]
    lines.append("|---" * (len(StreamEvent) + 1) + "|")
    for state, row in STREAM_TABLE.items():
        cells = [" + ".join(reaction.name for reaction in row[event]) or "·" for event in StreamEvent]
        lines.append(f"| {state.name}: {state.value} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def reaction_legend() -> str:
    """Return the reactions of `stream_rules` as a markdown list."""
    lines = [f"- {reaction.name}: {reaction.value}" for reaction in Reaction]
    return "\n".join([*lines, "- ·: nothing; what came is dropped"]) + "\n"


if __name__ == "__main__":
    parts = (mermaid(), header_rules(), failure_rules(), stream_rules(), reaction_legend())
    sys.stdout.write("\n".join(parts))
