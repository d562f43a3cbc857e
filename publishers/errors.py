"""What can go wrong on the publisher side.

    PublisherError
    ├── BadBlock                a block that no gateway would take: its number and why
    ├── BlockFileError          a block file cannot be used: which and why
    ├── BlockListError          a folder's block files do not make one chain: same number twice, one missing
    ├── BlockOrderError         a source gave a block out of order
    ├── CheckpointError         a checkpoint folder is of something else, or in use
    ├── FrameError              a DataFrame's blocks do not make one chain, or not in this order
    ├── ItemTooLarge            an item does not fit in any message
    ├── MakerOptionError        an option of the block maker makes no sense
    ├── OptionError             an option of a Spark data source cannot be used
    ├── PrepareError            a block cannot be hashed, linked, signed or made: its number and why
    ├── SchemaError             a DataFrame does not have the columns of blocks
    ├── PublishFailed           a publisher gave up; holds the report
    ├── PublishStopped          a task was told to stop, and did after the block in flight
    ├── SourceCancelled         a source of blocks was cancelled, and its publishers were not
    ├── SourceRefused           a source that is read over the network does not have what is wanted
    ├── SourceUnreachable       a source that is read over the network gave nothing in time
    ├── TurnTimeout             the blocks before a part of the chain were not stored in time
    ├── SparkJobFailed          a Spark job that publishes gave up; holds the line that matters
    ├── SparkUnavailable        Spark cannot start here: no Java, an old Java, no PySpark
    └── MachineError            a misuse of the publish machine by its shell: our bug

Every error can be pickled, because Spark carries them from worker to driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from publishers.report import PublishReport

__all__ = [
    "BadBlock",
    "BlockFileError",
    "BlockListError",
    "BlockOrderError",
    "CheckpointError",
    "FrameError",
    "ItemTooLarge",
    "MachineError",
    "MakerOptionError",
    "OptionError",
    "PrepareError",
    "PublishFailed",
    "PublishStopped",
    "PublisherError",
    "SchemaError",
    "SourceCancelled",
    "SourceRefused",
    "SourceUnreachable",
    "SparkJobFailed",
    "SparkUnavailable",
    "TurnTimeout",
]


class PublisherError(Exception):
    """Base of all errors of this package."""


class BadBlock(PublisherError):
    """A block that no gateway would take; it was not offered, nor was any after it.

    Fields: `number` of the block, `reason` in words.
    """

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(number, reason)
        self.number = number
        self.reason = reason

    def __str__(self) -> str:
        return f"block {self.number} is bad, it and what follows was not sent: {self.reason}"


class BlockFileError(PublisherError):
    """A block file cannot be read or written.

    Fields: `path` of the file, `reason` in words.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class ArchiveError(PublisherError):
    """A zip or a tar cannot be read.

    Field: `reason` in words; who has opened the file says which it is.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class BlockListError(PublisherError):
    """The block files of a folder do not make one chain.

    Fields: `folder`, `reason` in words.
    """

    def __init__(self, folder: str, reason: str) -> None:
        super().__init__(folder, reason)
        self.folder = folder
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.folder}: {self.reason}"


class BlockOrderError(PublisherError):
    """A source gave a block that does not follow the one before it.

    Fields: `expected` and `got`, block numbers.
    """

    def __init__(self, expected: int, got: int) -> None:
        super().__init__(expected, got)
        self.expected = expected
        self.got = got

    def __str__(self) -> str:
        if self.got < self.expected:
            return f"block {self.got} comes twice or out of order: block {self.expected} was expected"
        missing = (
            f"block {self.expected} is"
            if self.got == self.expected + 1
            else (f"blocks {self.expected} to {self.got - 1} are")
        )
        return f"{missing} missing: block {self.got} came after block {self.expected - 1}"


class SourceCancelled(PublisherError):
    """A source of blocks raised a cancellation of its own: that is no end of the source.

    Fields: `last_block`, the last that it gave; None: it gave none.
    """

    def __init__(self, last_block: int | None) -> None:
        super().__init__(last_block)
        self.last_block = last_block

    def __str__(self) -> str:
        where = "before its first block" if self.last_block is None else f"after block {self.last_block}"
        return f"the source of blocks was cancelled {where}"


class CheckpointError(PublisherError):
    """A checkpoint folder cannot be used.

    Fields: `folder`, `reason` in words.
    """

    def __init__(self, folder: str, reason: str) -> None:
        super().__init__(folder, reason)
        self.folder = folder
        self.reason = reason

    def __str__(self) -> str:
        return f"checkpoint {self.folder}: {self.reason}"


class FrameError(PublisherError):
    """The blocks of a DataFrame cannot be published as they are.

    Fields: `reason`, and `remedy`: what to do about it.
    """

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason, remedy)
        self.reason = reason
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.reason}; {self.remedy}"


class ItemTooLarge(PublisherError):
    """An item does not fit in a message.

    Fields: `block_number`, `item_index` (0-based), `size_bytes` and `limit_bytes`, both with the item's tag
    and length in the set.
    """

    def __init__(self, block_number: int, item_index: int, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(block_number, item_index, size_bytes, limit_bytes)
        self.block_number = block_number
        self.item_index = item_index
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes

    def __str__(self) -> str:
        return (
            f"block {self.block_number}: item {self.item_index} takes {self.size_bytes} bytes in a message, "
            f"at most {self.limit_bytes} are allowed"
        )


class MakerOptionError(PublisherError):
    """An option of the block maker is out of range.

    Fields: `option`, `got`, `expected`.
    """

    exit_status = 2

    def __init__(self, option: str, got: object, expected: str) -> None:
        super().__init__(option, got, expected)
        self.option = option
        self.got = got
        self.expected = expected

    def __str__(self) -> str:
        return f"{self.option}: got {self.got}, expected {self.expected}"


class OptionError(PublisherError):
    """An option of a Spark data source cannot be used.

    Fields: `option`, `got`, `expected`.
    """

    def __init__(self, option: str, got: str, expected: str) -> None:
        super().__init__(option, got, expected)
        self.option = option
        self.got = got
        self.expected = expected

    def __str__(self) -> str:
        return f"option {self.option!r}: got {self.got}, expected {self.expected}"


class PrepareError(PublisherError):
    """A block cannot be hashed, linked, signed or made out of records.

    Fields: `block_number`, None where that cannot be known; `reason` in words.
    """

    def __init__(self, block_number: int | None, reason: str) -> None:
        super().__init__(block_number, reason)
        self.block_number = block_number
        self.reason = reason

    def __str__(self) -> str:
        what = "the blocks" if self.block_number is None else f"block {self.block_number}"
        return f"{what} cannot be prepared: {self.reason}"


class SchemaError(PublisherError):
    """A DataFrame does not have the columns of blocks.

    Fields: `column`, `got` and `expected` types.
    """

    def __init__(self, column: str, got: str, expected: str) -> None:
        super().__init__(column, got, expected)
        self.column = column
        self.got = got
        self.expected = expected

    def __str__(self) -> str:
        return f"column {self.column!r}: got {self.got}, expected {self.expected}"


class PublishFailed(PublisherError):
    """A publisher gave up.

    Fields: `reason` in words, `report` with what was done until then.
    """

    def __init__(self, reason: str, report: PublishReport) -> None:
        super().__init__(reason, report)
        self.reason = reason
        self.report = report

    def __str__(self) -> str:
        return f"publisher {self.report.publisher_id}: {self.reason}"


class PublishStopped(PublisherError):
    """A task was told to stop: it finished the block in flight and ended; what is stored is stored.

    Fields: `task`, its name.
    """

    def __init__(self, task: str) -> None:
        super().__init__(task)
        self.task = task

    def __str__(self) -> str:
        return f"publisher {self.task} was told to stop"


class SourceRefused(PublisherError):
    """A source that is read over the network says that it cannot give what is wanted.

    Fields: `wanted`: what was asked for; `answer`: what the source said.
    """

    def __init__(self, wanted: str, answer: str) -> None:
        super().__init__(wanted, answer)
        self.wanted = wanted
        self.answer = answer

    def __str__(self) -> str:
        return f"{self.wanted} cannot be had: {self.answer}"


class SourceUnreachable(PublisherError):
    """A source that is read over the network gave nothing in time.

    Fields: `wanted`: what was asked for; `seconds` waited, None where everybody was asked once only;
    `trouble`: the last thing that went wrong.
    """

    def __init__(self, wanted: str, seconds: float | None, trouble: str) -> None:
        super().__init__(wanted, seconds, trouble)
        self.wanted = wanted
        self.seconds = seconds
        self.trouble = trouble

    def __str__(self) -> str:
        within = "" if self.seconds is None else f" within {self.seconds:g} s"
        return f"{self.wanted} did not come{within} ({self.trouble or 'no answer'})"


class SparkJobFailed(PublisherError):
    """A Spark job that publishes gave up. What was acknowledged is stored, and running it again goes on.

    Fields: `reason`: the line that matters of all that Spark reports.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the Spark job failed: {self.reason}"


class SparkUnavailable(PublisherError):
    """Spark cannot start on this machine.

    Fields: `reason`, and `remedy`: what to do about it.
    """

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason, remedy)
        self.reason = reason
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.reason}; {self.remedy}"


class TurnTimeout(PublisherError):
    """The blocks before a part of the chain were not stored in time, so that it could not be its turn.

    Fields: `first_block` of the part, `head`: the last block stored (None: none is), `seconds` without a
    change of it, or without an answer; `trouble`: the last thing that went wrong where no gateway answered,
    else None.
    """

    def __init__(
        self, first_block: int, head: int | None, seconds: float, trouble: str | None = None
    ) -> None:
        super().__init__(first_block, head, seconds, trouble)
        self.first_block = first_block
        self.head = head
        self.seconds = seconds
        self.trouble = trouble

    def __str__(self) -> str:
        waits = f"block {self.first_block} cannot be sent before block {self.first_block - 1} is stored"
        if self.trouble is not None:
            return f"{waits}; no gateway has answered for {self.seconds:g} s ({self.trouble})"
        stuck = "none is stored" if self.head is None else f"block {self.head} is the last that is stored"
        return f"{waits}; {stuck}, without change for {self.seconds:g} s"


class MachineError(PublisherError):
    """An event that the publish machine cannot take in its state; the state is unchanged.

    Fields: `event`, `state`, by name.
    """

    def __init__(self, event: str, state: str) -> None:
        super().__init__(event, state)
        self.event = event
        self.state = state

    def __str__(self) -> str:
        return f"publisher: can't handle {self.event} in state {self.state}"
