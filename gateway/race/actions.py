"""The actions that the arbiter returns, as values.

Pure. The shell (`gateway.pipeline.conductor`) performs them in the order given and decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NewType

from sluice.gateway.race.reputation import BackedOff
from sluice.gateway.race.tables import EndStatus, Failure

__all__ = [
    "Acknowledgement",
    "Action",
    "AimCatchUp",
    "Append",
    "AttemptId",
    "Begin",
    "Behind",
    "CheckLink",
    "Commit",
    "Drop",
    "EndOfStream",
    "EndResponses",
    "Idle",
    "PublisherId",
    "Resend",
    "Response",
    "SendResponse",
    "Skip",
    "SourceError",
    "Stray",
    "Verify",
]

PublisherId = NewType("PublisherId", int)
"""One stream of one publisher; given by the shell, never used twice."""

AttemptId = NewType("AttemptId", int)
"""One try at one block by one publisher; counted from 1, never used twice."""


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """This block and all before it are verified and on disk."""

    block_number: int


@dataclass(frozen=True, slots=True)
class Skip:
    """Another publisher is sending this block, or has sent it."""

    block_number: int


@dataclass(frozen=True, slots=True)
class Resend:
    """Go back to this block's header."""

    block_number: int
    failure: Failure | None = field(default=None, compare=False)
    """Why the block is needed again, for the metrics; not sent. None: publishers passed it for a first block
    that has failed."""


@dataclass(frozen=True, slots=True)
class Behind:
    """The offered block is ahead of this node."""

    last_number: int | None  # the last committed block; None: there is none


@dataclass(frozen=True, slots=True)
class EndOfStream:
    """The last word on a stream."""

    status: EndStatus
    last_number: int | None  # the last committed block; None: there is none
    proximate_number: int | None = None
    """The block that the status is about; None: no block (0 on the wire)."""
    reason: str = ""  # for the log: what, got, expected. Not sent


Response = Acknowledgement | Skip | Resend | Behind | EndOfStream


@dataclass(frozen=True, slots=True)
class SendResponse:
    """Queue a response to a publisher. An EndOfStream is followed by nothing on that stream."""

    publisher_id: PublisherId
    response: Response


@dataclass(frozen=True, slots=True)
class EndResponses:
    """End the stream with status OK, once all its responses are sent."""

    publisher_id: PublisherId


@dataclass(frozen=True, slots=True)
class Begin:
    """A publisher has won a block: open a buffer and a hasher for it."""

    attempt_id: AttemptId
    block_number: int
    publisher_id: PublisherId


@dataclass(frozen=True, slots=True)
class Append:
    """Add items to the attempt's buffer and hash them; report a refusal with `refused`."""

    attempt_id: AttemptId
    items: Sequence[bytes]
    kinds: Sequence[int]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Verify:
    """Check root hash and proof; report with `verified` or `refused`."""

    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class CheckLink:
    """Check that the attempt continues the block before it; report with `linked` or `refused`.

    In order of number, each block once the one before it is linked or committed.
    """

    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class Commit:
    """Write the block to the block store; report with `committed` or `commit_failed`. In order of number."""

    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget the attempt. Nothing of it may reach the block store."""

    attempt_id: AttemptId
    block_number: int
    failure: Failure
    reason: str  # for the log: what, got, expected


@dataclass(frozen=True, slots=True)
class Idle:
    """Shutdown has finished what was complete; every stream is ended."""


@dataclass(frozen=True, slots=True)
class SourceError:
    """The last publisher sent EndStream(ERROR): tell live subscribers that their source is gone."""

    publisher_id: PublisherId


@dataclass(frozen=True, slots=True)
class Stray:
    """A message that belongs to no block was dropped."""

    publisher_id: PublisherId
    reason: str  # for the log: what, got, expected
    is_first: bool  # it is the first one in a row


@dataclass(frozen=True, slots=True)
class AimCatchUp:
    """A publisher has named a block further ahead than any before; once for each rise."""

    target_number: int
    """The highest block offered beyond what this node could take, or named by TOO_FAR_BEHIND. Advisory."""


Action = (
    SendResponse
    | EndResponses
    | Begin
    | Append
    | Verify
    | CheckLink
    | Commit
    | Drop
    | Idle
    | SourceError
    | Stray
    | BackedOff
    | AimCatchUp
)
