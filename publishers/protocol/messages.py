"""The events that the publish machine takes, and the actions that it returns, as values.

Pure. Numbers are block numbers; a last block of None means that there is none (2^64 - 1 on the wire).

Source: docs/spec/wire.md section 2.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import ClassVar

from sluice.publishers.protocol.item_sets import ItemSet

__all__ = [
    "Acknowledged",
    "Action",
    "AskFirst",
    "BlockReady",
    "Clock",
    "CloseStream",
    "ConnectGateway",
    "Connected",
    "Disconnected",
    "EndCode",
    "EndStreamCode",
    "Event",
    "EventKind",
    "Finish",
    "FirstTold",
    "HalfClose",
    "NodeBehind",
    "ResendAsked",
    "SendEndOfBlock",
    "SendEndStream",
    "SendItems",
    "Skipped",
    "SourceEnded",
    "SourceFailed",
    "Stop",
    "StreamEnded",
    "StreamOutcome",
    "Writable",
]


class EndCode(IntEnum):
    """`PublishStreamResponse.EndOfStream.Code`."""

    UNKNOWN = 0
    SUCCESS = 1
    INVALID_REQUEST = 2
    ERROR = 3
    TIMEOUT = 4
    DUPLICATE_BLOCK = 5
    BAD_BLOCK_PROOF = 6
    PERSISTENCE_FAILED = 7


class EndStreamCode(IntEnum):
    """`PublishStreamRequest.EndStream.Code`."""

    UNKNOWN = 0
    RESET = 1
    TIMEOUT = 2
    ERROR = 3
    TOO_FAR_BEHIND = 4


class EventKind(Enum):
    """One column of the machine's table."""

    BLOCK_READY = "block ready"
    SOURCE_ENDED = "source ended"
    SOURCE_FAILED = "source failed"
    CONNECTED = "connected"
    DISCONNECTED = "disconnected"
    WRITABLE = "writable"
    CLOCK = "clock"
    STOP = "stop"
    ACKNOWLEDGED = "acknowledged"
    SKIPPED = "skipped"
    RESEND_ASKED = "resend asked"
    NODE_BEHIND = "node behind"
    STREAM_ENDED = "stream ended"
    FIRST_TOLD = "first told"


# --- events -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BlockReady:
    """The source has its next block."""

    kind: ClassVar = EventKind.BLOCK_READY
    number: int
    sets: tuple[ItemSet, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SourceEnded:
    """The source has no further block."""

    kind: ClassVar = EventKind.SOURCE_ENDED


@dataclass(frozen=True, slots=True)
class SourceFailed:
    """The source failed; the blocks before are good."""

    kind: ClassVar = EventKind.SOURCE_FAILED
    reason: str


@dataclass(frozen=True, slots=True)
class Connected:
    """The stream that `ConnectGateway` asked for is open."""

    kind: ClassVar = EventKind.CONNECTED
    first: int | None = 0
    """None: its status does not settle it."""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The stream is over, or did not open; no further event follows."""

    kind: ClassVar = EventKind.DISCONNECTED
    reason: str
    is_too_long: bool = False
    """True: the gateway refused a message for its length."""


@dataclass(frozen=True, slots=True)
class Writable:
    """The last send is done. Only this event returns sends."""

    kind: ClassVar = EventKind.WRITABLE


@dataclass(frozen=True, slots=True)
class Clock:
    """`wake_at_ns` may have come."""

    kind: ClassVar = EventKind.CLOCK


@dataclass(frozen=True, slots=True)
class Stop:
    """The user wants to end: finish the block in flight, then end the stream."""

    kind: ClassVar = EventKind.STOP


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Block `number` and all before it are verified and on disk."""

    kind: ClassVar = EventKind.ACKNOWLEDGED
    number: int


@dataclass(frozen=True, slots=True)
class Skipped:
    """Another publisher sends block `number`."""

    kind: ClassVar = EventKind.SKIPPED
    number: int


@dataclass(frozen=True, slots=True)
class ResendAsked:
    """The gateway wants block `number` again."""

    kind: ClassVar = EventKind.RESEND_ASKED
    number: int


@dataclass(frozen=True, slots=True)
class NodeBehind:
    """The offered block is ahead of the gateway, whose last block is `last`."""

    kind: ClassVar = EventKind.NODE_BEHIND
    last: int | None


@dataclass(frozen=True, slots=True)
class StreamEnded:
    """The gateway ends the stream."""

    kind: ClassVar = EventKind.STREAM_ENDED
    code: EndCode
    last: int | None
    """Its last block; believed with DUPLICATE_BLOCK only."""
    proximate: int = 0
    """The block that the code is about; 0 can also mean none."""


@dataclass(frozen=True, slots=True)
class FirstTold:
    """The answer to `AskFirst`."""

    kind: ClassVar = EventKind.FIRST_TOLD
    first: int | None
    """None: unknown."""


Event = (
    BlockReady
    | SourceEnded
    | SourceFailed
    | Connected
    | Disconnected
    | Writable
    | Clock
    | Stop
    | Acknowledged
    | Skipped
    | ResendAsked
    | NodeBehind
    | StreamEnded
    | FirstTold
)

# --- actions ------------------------------------------------------------------------------------------------


class StreamOutcome(Enum):
    """The end of a publisher."""

    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ConnectGateway:
    """Open a stream; answer `Connected` or `Disconnected`."""

    gateway: int
    """0-based position in the list."""
    attempt: int
    """0: at once; k: after the wait before the k-th retry."""
    is_soon: bool = False
    """Wait briefly instead."""


@dataclass(frozen=True, slots=True)
class AskFirst:
    """Ask the present gateway for its status; answer `FirstTold` while that stream is open."""


@dataclass(frozen=True, slots=True)
class SendItems:
    """Send one set of a block's items."""

    number: int
    items: ItemSet


@dataclass(frozen=True, slots=True)
class SendEndOfBlock:
    """Send `end_of_block`."""

    number: int


@dataclass(frozen=True, slots=True)
class SendEndStream:
    """Send `end_stream`."""

    code: EndStreamCode
    earliest: int
    latest: int


@dataclass(frozen=True, slots=True)
class HalfClose:
    """Close the sending side; the gateway then ends the stream."""


@dataclass(frozen=True, slots=True)
class CloseStream:
    """End the call; answer `Disconnected` when it is over."""

    reason: str
    force: bool = False
    """True: cancel it. False: send no more and let the gateway end it."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The publisher is done."""

    outcome: StreamOutcome
    reason: str | None = None


Action = (
    ConnectGateway | AskFirst | SendItems | SendEndOfBlock | SendEndStream | HalfClose | CloseStream | Finish
)
