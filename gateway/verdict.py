"""Why a block is refused, as a value.

Pure. Verification never answers with a bare boolean: a block is accepted, or there is one `Refusal` that says
what was looked at, what was found and what had to be there. The caller adds the block's number and its
publisher.
Source: wire.md section 7, proofs.md sections 3 to 7; the kinds follow the reference's verification failures.
"""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Refusal", "RefusalKind"]


class RefusalKind(StrEnum):
    """The class of a refusal; its value is the text in logs and metrics labels."""

    BAD_PROOF = "bad proof"
    """A recognised proof does not hold, or no recognised proof is there."""
    BAD_ROOT_HASH = "bad root hash"
    """A link of the footer, or a block number, does not continue the chain."""
    CANNOT_PARSE = "cannot parse"
    """Bytes that are not what they must be, or items in an order that makes no block."""
    MISSING_ITEM = "missing item"
    """The block lacks its header, its footer or its proof."""
    MISSING_FIELD = "missing field"
    """A header, footer or proof lacks a field that verification needs."""
    MISSING_VERIFICATION_DATA = "missing verification data"
    """The proof is of a kind that this node knows, but no key of that kind is configured."""
    UNSUPPORTED = "unsupported"
    """An item or a proof that this node cannot process."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One reason to refuse a block."""

    kind: RefusalKind
    """The class of the reason."""
    what: str
    """The object looked at, e.g. `footer field 1 (previous_block_root_hash)`."""
    got: str
    """What was found there, short enough for a log line."""
    expected: str
    """What had to be there."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}: got {self.got}, expected {self.expected}"
