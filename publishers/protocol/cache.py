"""The blocks that one publisher holds because no gateway is known to store them.

Pure. Numbers are consecutive, the oldest first. A block leaves only when it is known to be stored, whatever
happens to streams. The caller keeps the size limit: it takes no block while `is_full`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from sluice.publishers.errors import BlockOrderError
from sluice.publishers.protocol.item_sets import ItemSet

__all__ = ["BlockCache", "HeldBlock", "HeldState"]


class HeldState(Enum):
    """Where a block number stands relative to the cache."""

    HELD = "held"
    GONE = "gone"
    """Below the cache: it was dropped as safe, or never came from the source."""
    COMING = "coming"
    """The source has not given it yet."""


@dataclass(slots=True)
class HeldBlock:
    """A block and its marks, which are about the present stream; a new stream clears them."""

    number: int
    sets: tuple[ItemSet, ...]
    size_bytes: int
    whole_at_ns: int | None = None
    """When its end was sent on this stream; None: not yet."""
    skipped: bool = False
    """The gateway takes it from another publisher."""
    offered_ever: bool = False
    """Its header was sent on some stream."""
    skipped_ever: bool = False
    """It was skipped on some stream."""

    def clear_marks(self) -> None:
        """Forget the marks of the present stream."""
        self.whole_at_ns = None
        self.skipped = False


class BlockCache:
    """Blocks by number, without gaps."""

    def __init__(self, size_bytes_max: int) -> None:
        """Start empty; from `size_bytes_max` on the cache `is_full`."""
        self._blocks: deque[HeldBlock] = deque()
        self._next: int | None = None
        self.size_bytes = 0
        self.size_bytes_max = size_bytes_max

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def first(self) -> int | None:
        """Number of the oldest block held."""
        return self._blocks[0].number if self._blocks else None

    @property
    def next_number(self) -> int | None:
        """The number that the source must yield next; None before its first."""
        return self._next

    @property
    def is_full(self) -> bool:
        """Whether no further block should be taken."""
        return self.size_bytes >= self.size_bytes_max

    def check_order(self, number: int) -> None:
        """Check that `number` is the source's next.

        Raises:
            BlockOrderError: it is not; nothing is changed.
        """
        if self._next is not None and number != self._next:
            raise BlockOrderError(self._next, number)

    def add(self, block: HeldBlock) -> None:
        """Hold the source's next block; raises as `check_order`."""
        self.check_order(block.number)
        self._blocks.append(block)
        self.size_bytes += block.size_bytes
        self._next = block.number + 1

    def pass_over(self, number: int) -> None:
        """Pass over the source's next block, which is safe already; raises as `check_order`."""
        self.check_order(number)
        assert not self._blocks, "a safe block cannot follow one that is held"
        self._next = number + 1

    def get(self, number: int) -> HeldBlock | None:
        """Return a block; None: it is not held."""
        if not self._blocks:
            return None
        index = number - self._blocks[0].number
        return self._blocks[index] if 0 <= index < len(self._blocks) else None

    def standing_of(self, number: int) -> HeldState:
        """Return where a number stands."""
        if self.get(number) is not None:
            return HeldState.HELD
        if self._next is not None and number < self._next:
            return HeldState.GONE
        return HeldState.COMING

    def drop_through(self, number: int) -> list[HeldBlock]:
        """Drop every block up to `number`; return them, oldest first."""
        dropped = []
        while self._blocks and self._blocks[0].number <= number:
            block = self._blocks.popleft()
            self.size_bytes -= block.size_bytes
            dropped.append(block)
        return dropped

    def blocks_from(self, number: int) -> Iterable[HeldBlock]:
        """Return the blocks from `number` on, oldest first."""
        return (block for block in self._blocks if block.number >= number)
