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
"""One stream of one publisher. The shell gives it and never reuses it."""

AttemptId = NewType("AttemptId", int)
"""One try at one block by one publisher, counted from 1."""


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
    """The reason why the block is needed again, for the metrics; not sent. None: publishers passed it for a
    first block that failed."""


@dataclass(frozen=True, slots=True)
class Behind:
    """The offered block is ahead of this node."""

    last_number: int | None


@dataclass(frozen=True, slots=True)
class EndOfStream:
    """The last response on a stream."""

    status: EndStatus
    last_number: int | None
    proximate_number: int | None = None
    """The block that the status is about; None is 0 on the wire."""
    reason: str = ""  # for the log: what, got, expected. Not sent


Response = Acknowledgement | Skip | Resend | Behind | EndOfStream


@dataclass(frozen=True, slots=True)
class SendResponse:
    """Nothing follows an EndOfStream."""

    publisher_id: PublisherId
    response: Response


@dataclass(frozen=True, slots=True)
class EndResponses:
    """End the stream with status OK after all its responses."""

    publisher_id: PublisherId


@dataclass(frozen=True, slots=True)
class Begin:
    """A publisher has won a block: open a buffer and a hasher."""

    attempt_id: AttemptId
    block_number: int
    publisher_id: PublisherId


@dataclass(frozen=True, slots=True)
class Append:
    """Buffer and hash items; report a refusal with `refused`."""

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
    """Check that the block continues the one before it; report with `linked` or `refused`.

    In order of number, each block once the one before it is linked or committed.
    """

    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class Commit:
    """Store the block; report with `committed` or `commit_failed`. In order of number."""

    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget the attempt. Nothing of it may be stored."""

    attempt_id: AttemptId
    block_number: int
    failure: Failure
    reason: str


@dataclass(frozen=True, slots=True)
class Idle:
    """The shutdown is done."""


@dataclass(frozen=True, slots=True)
class SourceError:
    """The last publisher sent EndStream(ERROR): tell live subscribers."""

    publisher_id: PublisherId


@dataclass(frozen=True, slots=True)
class Stray:
    """A message that belongs to no block was dropped."""

    publisher_id: PublisherId
    reason: str
    is_first: bool  # of several in a row


@dataclass(frozen=True, slots=True)
class AimCatchUp:
    """A publisher has named a higher block than any before."""

    target_number: int
    """Highest block offered beyond U, or named by TOO_FAR_BEHIND. Advisory."""


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
