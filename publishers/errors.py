"""The errors of the publisher side.

Every error can be pickled: Spark carries errors from workers to the driver.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sluice.publishers.report import PublishReport

__all__ = [
    "ArchiveError",
    "BadBlock",
    "BlockFileError",
    "BlockListError",
    "BlockOrderError",
    "CheckpointError",
    "FrameError",
    "ItemTooLarge",
    "MachineError",
    "MakerOptionError",
    "MisbehaviourFailed",
    "OptionError",
    "PartOrderTimeout",
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
]


class PublisherError(Exception):
    """The base of all errors of this package, which are dataclasses."""

    def __post_init__(self) -> None:
        """Set `args` to the fields."""
        self.args = tuple(vars(self).values())


@dataclass(eq=False, repr=False)
class ArchiveError(PublisherError):
    """A zip or a tar cannot be read; the caller knows its path."""

    reason: str

    def __str__(self) -> str:
        return self.reason


@dataclass(eq=False, repr=False)
class BadBlock(PublisherError):
    """No gateway would take this block; neither it nor any after it was offered."""

    number: int
    reason: str

    def __str__(self) -> str:
        return f"block {self.number} is bad; neither it nor later blocks were sent: {self.reason}"


@dataclass(eq=False, repr=False)
class BlockFileError(PublisherError):
    """A block file cannot be read or written."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(eq=False, repr=False)
class BlockListError(PublisherError):
    """The block files of a folder do not make one chain."""

    folder: str
    reason: str

    def __str__(self) -> str:
        return f"{self.folder}: {self.reason}"


@dataclass(eq=False, repr=False)
class BlockOrderError(PublisherError):
    """A block of a source does not follow the one before."""

    expected: int
    got: int

    def __str__(self) -> str:
        if self.got < self.expected:
            return f"block {self.got} comes twice or out of order: block {self.expected} was expected"
        missing = f"blocks {self.expected} to {self.got - 1} are"
        if self.got == self.expected + 1:
            missing = f"block {self.expected} is"
        return f"{missing} missing: block {self.got} came after block {self.expected - 1}"


@dataclass(eq=False, repr=False)
class SourceCancelled(PublisherError):
    """A source of blocks was cancelled, and its publishers were not."""

    last_block: int | None
    """None: it gave none."""

    def __str__(self) -> str:
        where = "before its first block" if self.last_block is None else f"after block {self.last_block}"
        return f"the source of blocks was cancelled {where}"


@dataclass(eq=False, repr=False)
class CheckpointError(PublisherError):
    """A checkpoint folder belongs to something else, or is in use."""

    folder: str
    reason: str

    def __str__(self) -> str:
        return f"checkpoint {self.folder}: {self.reason}"


@dataclass(eq=False, repr=False)
class FrameError(PublisherError):
    """The blocks of a DataFrame do not make one chain."""

    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.reason}; {self.remedy}"


@dataclass(eq=False, repr=False)
class ItemTooLarge(PublisherError):
    """An item does not fit in a message. Sizes include its tag and length."""

    block_number: int
    item_index: int
    """0-based."""
    size_bytes: int
    limit_bytes: int

    def __str__(self) -> str:
        return (
            f"block {self.block_number}: item {self.item_index} takes {self.size_bytes} bytes in a message, "
            f"at most {self.limit_bytes} are allowed"
        )


@dataclass(eq=False, repr=False)
class MakerOptionError(PublisherError):
    """An option of the block maker is out of range."""

    exit_status = 2

    option: str
    got: object
    expected: str

    def __str__(self) -> str:
        return f"{self.option}: got {self.got}, expected {self.expected}"


@dataclass(eq=False, repr=False)
class OptionError(PublisherError):
    """An option of a Spark data source is wrong."""

    option: str
    got: str
    expected: str

    def __str__(self) -> str:
        return f"option {self.option!r}: got {self.got}, expected {self.expected}"


@dataclass(eq=False, repr=False)
class PartOrderTimeout(PublisherError):
    """The blocks before a part of the chain were not stored in time."""

    first_block: int
    last_stored: int | None
    """None: no block is stored."""
    seconds: float
    trouble: str | None = None
    """The failure, if no gateway answered."""

    def __str__(self) -> str:
        waits = f"block {self.first_block} cannot be sent before block {self.first_block - 1} is stored"
        if self.trouble is not None:
            return f"{waits}; no gateway has answered for {self.seconds:g} s ({self.trouble})"
        stuck = "none is stored"
        if self.last_stored is not None:
            stuck = f"block {self.last_stored} is the last that is stored"
        return f"{waits}; {stuck}, without change for {self.seconds:g} s"


@dataclass(eq=False, repr=False)
class PrepareError(PublisherError):
    """A block cannot be hashed, linked, signed or made out of records."""

    block_number: int | None
    """None: not known."""
    reason: str

    def __str__(self) -> str:
        what = "the blocks" if self.block_number is None else f"block {self.block_number}"
        return f"{what} cannot be prepared: {self.reason}"


@dataclass(eq=False, repr=False)
class SchemaError(PublisherError):
    """A DataFrame lacks the columns of blocks; `got` and `expected` are types."""

    column: str
    got: str
    expected: str

    def __str__(self) -> str:
        return f"column {self.column!r}: got {self.got}, expected {self.expected}"


@dataclass(eq=False, repr=False)
class PublishFailed(PublisherError):
    """A publisher gave up."""

    reason: str
    report: PublishReport

    def __str__(self) -> str:
        return f"publisher {self.report.publisher_id}: {self.reason}"


@dataclass(eq=False, repr=False)
class MisbehaviourFailed(PublisherError):
    """There is no block to misbehave with."""

    reason: str

    def __str__(self) -> str:
        return self.reason


@dataclass(eq=False, repr=False)
class PublishStopped(PublisherError):
    """A task was told to stop, and did after the block in flight. What is stored stays stored."""

    task: str

    def __str__(self) -> str:
        return f"publisher {self.task} was told to stop"


@dataclass(eq=False, repr=False)
class SourceRefused(PublisherError):
    """A source on the network does not have what is wanted."""

    wanted: str
    answer: str

    def __str__(self) -> str:
        return f"cannot get {self.wanted}: {self.answer}"


@dataclass(eq=False, repr=False)
class SourceUnreachable(PublisherError):
    """A source on the network gave nothing in time."""

    wanted: str
    seconds: float | None
    """None: every server was asked once."""
    trouble: str

    def __str__(self) -> str:
        within = "" if self.seconds is None else f" within {self.seconds:g} s"
        return f"{self.wanted} did not come{within} ({self.trouble or 'no answer'})"


@dataclass(eq=False, repr=False)
class SparkJobFailed(PublisherError):
    """A Spark job that publishes gave up. What was acknowledged is stored; another run continues there."""

    reason: str

    def __str__(self) -> str:
        return f"the Spark job failed: {self.reason}"


@dataclass(eq=False, repr=False)
class SparkUnavailable(PublisherError):
    """Spark cannot start here: no Java, an old Java, no PySpark."""

    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.reason}; {self.remedy}"


@dataclass(eq=False, repr=False)
class MachineError(PublisherError):
    """The shell misused the publish machine, which is our bug; its state is unchanged."""

    event: str
    state: str

    def __str__(self) -> str:
        return f"publisher: can't handle {self.event} in state {self.state}"
