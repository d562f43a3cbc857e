"""The reason to refuse a block, as a value.

Pure. The caller adds the block's number and its publisher.
Source: docs/spec/block-hash.md sections 2.1 and 4; docs/spec/proofs.md sections 2, 4 and 5.
"""

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final

__all__ = ["FAULTS", "Fault", "Refusal", "RefusalKind"]


class Fault(Enum):
    """The party that has to change something before the block can be accepted."""

    SENDER = "whoever made or delivered the block: it was checked, and is wrong"
    NODE = "this node: it lacks what the proof is checked with"
    UNKNOWN = "nobody can tell: the block was not checked to the end"


class RefusalKind(StrEnum):
    """The class of a refusal. Its value appears in logs and metrics labels."""

    BAD_PROOF = "bad proof"
    """A proof of a known kind does not hold."""
    BAD_ROOT_HASH = "bad root hash"
    """A link of the footer, or the block number, does not continue the chain."""
    CANNOT_PARSE = "cannot parse"
    """The bytes are malformed, or the items are in a wrong order."""
    MISSING_ITEM = "missing item"
    """The block lacks its header, footer or proof."""
    MISSING_FIELD = "missing field"
    """A header, footer or proof lacks a field."""
    MISSING_VERIFICATION_DATA = "missing verification data"
    """The node lacks the key or data for a proof of a known kind."""
    UNSUPPORTED = "unsupported"
    """The node cannot process an item or a proof."""
    NOT_CHECKED = "not checked"

    @property
    def fault(self) -> Fault:
        """The party at fault."""
        return FAULTS[self]


FAULTS: Final[dict[RefusalKind, Fault]] = {
    RefusalKind.BAD_PROOF: Fault.SENDER,
    RefusalKind.BAD_ROOT_HASH: Fault.SENDER,
    RefusalKind.CANNOT_PARSE: Fault.SENDER,
    RefusalKind.MISSING_ITEM: Fault.SENDER,
    RefusalKind.MISSING_FIELD: Fault.SENDER,
    RefusalKind.MISSING_VERIFICATION_DATA: Fault.NODE,
    RefusalKind.UNSUPPORTED: Fault.UNKNOWN,
    RefusalKind.NOT_CHECKED: Fault.UNKNOWN,
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """One reason to refuse a block."""

    kind: RefusalKind
    what: str
    """The wrong part, e.g. `footer field 1 (previous_block_root_hash)`."""
    got: str  # short enough for a log line
    expected: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}: got {self.got}, expected {self.expected}"
