"""The send window of one publisher: the blocks it holds, and where the stream is among them.

Pure. As in go-back-N, two edges move over the chain, and answers move them:

                 first              cursor                   next
    ──stored─────┤ held, offered    ┤ held, to be offered    ┤ still to come from the source──►
                 └── window_blocks_max at most ──┘

    answer                              moves
    acknowledged, duplicate, behind     `first` behind the last stored block, and `cursor` with it
    skipped                             `cursor` to the next block
    resend, behind                      `cursor` back, in mid-block too; all from there is offered again

Invariants
  - A block leaves only when a gateway says that it is stored; skipped is not stored.
  - The publisher sends no more of a block that is known to be stored.
  - Every stream begins with the oldest block held.
  - An answer to a header from before the stream went back moves nothing.

Source: docs/protocol.md, "What the node says, and what to do".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from sluice.publishers import limits
from sluice.publishers.errors import BlockOrderError
from sluice.publishers.protocol.item_sets import ItemSet
from sluice.publishers.protocol.messages import BlockReady, SendEndOfBlock, SendItems
from sluice.publishers.protocol.tally import Tally

__all__ = ["BlockCache", "HeldBlock", "HeldState", "Offers", "SendWindow"]

READ_AHEAD_BLOCKS: Final = 32
"""Most blocks ahead of the cursor."""
BEHIND_ANSWERS_MAX: Final = 16
"""Most answers on one stream without a newly stored block; an honest gateway needs one."""
RESEND_ANSWERS_MAX: Final = 128
"""The same for ResendBlock: each follows another publisher's failure, and many may race."""


class HeldState(Enum):
    """A block number's place relative to the cache."""

    HELD = "held"
    GONE = "gone"
    """Dropped as stored, or never come from the source."""
    COMING = "coming"


@dataclass(slots=True)
class HeldBlock:
    """A block, and its marks."""

    number: int
    sets: tuple[ItemSet, ...]
    size_bytes: int
    whole_at_ns: int | None = None
    """The time when its end was sent on this stream."""
    skipped: bool = False
    offered_ever: bool = False
    skipped_ever: bool = False

    def clear_marks(self) -> None:
        """Clear the marks of the present stream."""
        self.whole_at_ns = None
        self.skipped = False


class BlockCache:
    """The blocks that no gateway is known to store: consecutive, the oldest first."""

    def __init__(self, size_bytes_max: int) -> None:
        """Start empty; the caller adds no block from `size_bytes_max` on."""
        self._blocks: deque[HeldBlock] = deque()
        self._next: int | None = None
        self.size_bytes = 0
        self.size_bytes_max = size_bytes_max

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def first(self) -> int | None:
        """The oldest block held."""
        return self._blocks[0].number if self._blocks else None

    @property
    def next_number(self) -> int | None:
        """The number that the source must yield next."""
        return self._next

    @property
    def is_full(self) -> bool:
        """True if the caller should add no more."""
        return self.size_bytes >= self.size_bytes_max

    def check_order(self, number: int) -> None:
        """Raises BlockOrderError if `number` is not the source's next."""
        if self._next is not None and number != self._next:
            raise BlockOrderError(self._next, number)

    def add(self, block: HeldBlock) -> None:
        """Hold the source's next block; raise as `check_order`."""
        self.check_order(block.number)
        self._blocks.append(block)
        self.size_bytes += block.size_bytes
        self._next = block.number + 1

    def pass_over(self, number: int) -> None:
        """Pass over the source's next block, already stored; raise as `check_order`."""
        self.check_order(number)
        assert not self._blocks, "a safe block cannot follow one that is held"
        self._next = number + 1

    def get(self, number: int) -> HeldBlock | None:
        """Return a block."""
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
        """Return the blocks from `number` on."""
        return (block for block in self._blocks if block.number >= number)


class SendWindow:
    """The blocks held, and which one is sent next; it also counts."""

    def __init__(self, tally: Tally, cache_bytes_max: int, blocks_max: int) -> None:
        """Want no block from `cache_bytes_max` on."""
        self._tally = tally
        self._blocks_max = blocks_max
        self._cache = BlockCache(cache_bytes_max)
        self._cursor = 0  # the block that is being sent, or comes next
        self._position = 0  # sets of it that were sent; its end follows the last
        self._offers = Offers(limits.OFFERS_MAX)
        self._offered_first: int | None = None  # on the present stream; no later one is lower
        self._behind_count = 0  # on the present stream, since a block was last stored
        self._resend_count = 0  # the same
        self._acked_through = -1
        self._safe_through = -1

    @property
    def place(self) -> tuple[int, int, int, int]:
        """An answer that leaves it unchanged says nothing new."""
        return self._safe_through, self._cursor, self._position, len(self._offers)

    # --- what is held ---------------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """True if no block is held."""
        return not self._cache

    @property
    def first(self) -> int | None:
        """The oldest block held."""
        return self._cache.first

    @property
    def safe_through(self) -> int | None:
        """The last block that is known to be stored, with all before it."""
        return self._safe_through if self._safe_through >= 0 else None

    @property
    def wants_block(self) -> bool:
        """True if there is room for the source's next block."""
        first, following = self._cache.first, self._cache.next_number
        if first is None or following is None:
            return True
        return not self._cache.is_full and following - max(self._cursor, first) < READ_AHEAD_BLOCKS

    def range_held(self) -> tuple[int, int]:
        """Return the first and the last block held; if none is held, the last one that was, twice."""
        latest = max(0, (self._cache.next_number or 0) - 1)
        earliest = self._cache.first
        return (latest if earliest is None else earliest), latest

    def holds(self, number: int) -> bool:
        """Return whether a block is held."""
        return self._cache.get(number) is not None

    def take(self, block: BlockReady) -> None:
        """Hold the source's next block, unless it is stored already; raise as `BlockCache.check_order`."""
        self._cache.check_order(block.number)
        self._tally.took(block.number)
        if block.number <= self._safe_through:
            self._cache.pass_over(block.number)
            self._tally.safe(acknowledged=block.number <= self._acked_through)
            return
        if not self._cache:
            self._cursor = max(self._cursor, block.number)
        self._cache.add(HeldBlock(block.number, block.sets, block.size_bytes))

    # --- sending --------------------------------------------------------------------------------------------

    @property
    def is_between_blocks(self) -> bool:
        """True if the next message would be a header."""
        return self._position == 0

    @property
    def is_owed(self) -> bool:
        """True if the gateway owes an answer: an offered block is not stored."""
        return bool(self._cache) and (self._cursor, self._position) != (self._cache.first, 0)

    def begin_stream(self) -> None:
        """Go to the oldest block held."""
        self._offers.clear()
        self._offered_first = None
        self._behind_count = self._resend_count = 0
        self._position = 0
        self._cursor = self._cache.first if self._cache.first is not None else self._cursor
        for block in self._cache.blocks_from(self._cursor):
            block.clear_marks()

    def next_message(self, now_ns: int) -> SendItems | SendEndOfBlock | None:
        """Return the next message, which then counts as sent; None: the window is full or has no block."""
        block = self._cache.get(self._cursor)
        if block is None:
            return None
        if self._position == 0:
            first = self._cache.first
            if first is not None and self._cursor - first >= self._blocks_max:
                return None
            self._offers.sent(block.number)
            if self._offered_first is None:
                self._offered_first = block.number
            self._tally.offered += not block.offered_ever
            block.offered_ever = True
        if self._position < len(block.sets):
            items = block.sets[self._position]
            self._position += 1
            self._tally.bytes_sent += sum(map(len, items))
            return SendItems(block.number, items)
        block.whole_at_ns = now_ns
        self._move_to(block.number + 1)
        return SendEndOfBlock(block.number)

    @property
    def has_offered(self) -> bool:
        """True if a block was offered on the present stream."""
        return self._offered_first is not None

    def has_offered_through(self, number: int) -> bool:
        """Return whether a block up to `number` was offered on the present stream."""
        return self._offered_first is not None and self._offered_first <= number

    def last_sent(self, said: int) -> int:
        """Return the block that a refusal is about; `said` is what the gateway names, 0 perhaps for none."""
        number = said if self._cache.get(said) else self._cursor
        if self._position == 0 and number == self._cursor and self._cache.get(number - 1):
            number -= 1  # the block just sent whole
        return number

    # --- answers --------------------------------------------------------------------------------------------

    def stored(self, number: int, now_ns: int, *, acknowledged: bool) -> bool:
        """Drop every block up to `number`, which a gateway has on disk; return whether that is news.

        The block need not be held, or have come yet.
        """
        if acknowledged:
            self._acked_through = max(self._acked_through, number)
        if number <= self._safe_through:
            return False
        self._safe_through = number
        self._behind_count = self._resend_count = 0
        for block in self._cache.drop_through(number):
            self._tally.safe(acknowledged=acknowledged)
            if acknowledged and block.whole_at_ns is not None and not block.skipped:
                self._tally.win(block.number, now_ns - block.whole_at_ns)
        if self._cursor <= number:
            # Perhaps the block in flight: nobody wants the rest of it.
            self._move_to(number + 1)
        self._offers.drop_through(number)
        return True

    def skip(self, number: int) -> None:
        """Send no more of a block: another publisher sends it."""
        is_present = self._offers.answered(lambda offered: offered == number)
        block = self._cache.get(number)
        if number <= self._safe_through:  # answers come in order: stored before our header came
            self._tally.skip_stored(number)
            return
        if not is_present or block is None:
            return  # never offered here, or late
        block.skipped = True
        self._tally.skip(again=block.skipped_ever)
        block.skipped_ever = True
        if self._cursor == number:
            self._move_to(number + 1)

    def resend(self, number: int) -> bool:
        """Go back to a block that the gateway asks for again.

        Returns:
            False: the block is gone, or the gateway has asked too often without taking it.
        """
        standing = self._cache.standing_of(number)
        if standing is HeldState.GONE:
            return False
        if standing is HeldState.COMING or (self._cursor, self._position) <= (number, 0):
            return True  # it comes later on this stream
        self._resend_count += 1
        if self._resend_count > RESEND_ANSWERS_MAX:
            return False  # or it would repeat at line speed
        self._tally.resent += 1
        self._go_back_to(number)
        return True

    def hear_behind(self, wanted: int) -> bool | None:
        """Match an answer "behind", of a gateway that needs block `wanted`, to its header, as
        `Offers.answered`.

        Call `go_on_from` next.
        """
        return self._offers.answered(lambda offered: offered > wanted)

    def go_on_from(self, wanted: int, *, is_late: bool) -> bool:
        """Go back to the block that a gateway needs that is behind; return as `resend`.

        `is_late` says whether `hear_behind` returned False.
        """
        standing = self._cache.standing_of(wanted)
        if standing is HeldState.GONE:
            return False
        self._tally.behind += 1
        if standing is not HeldState.HELD or is_late or (self._cursor, self._position) <= (wanted, 0):
            return True
        self._behind_count += 1
        if self._behind_count > BEHIND_ANSWERS_MAX:
            return False  # or it would repeat at line speed
        self._go_back_to(wanted)
        return True

    def _move_to(self, number: int) -> None:
        self._cursor = number
        self._position = 0

    def _go_back_to(self, number: int) -> None:
        self._offers.sent_back()
        self._move_to(number)
        for block in self._cache.blocks_from(number):
            block.clear_marks()


class Offers:
    """The headers sent on one stream, oldest first, each with its epoch.

    A gateway answers headers in order, and an accepted one not at all. So an answer (skip, behind) is about
    the oldest header that fits it, and the gateway accepted all before. Going back (resend, behind) begins a
    new epoch and makes all headers so far late: their blocks will be offered again, and those offers get
    their own answers.
    """

    def __init__(self, count_max: int) -> None:
        """Forget the oldest beyond `count_max`."""
        self._offers: deque[tuple[int, int]] = deque(maxlen=count_max)
        self._epoch = 0

    def __len__(self) -> int:
        return len(self._offers)

    def clear(self) -> None:
        """Begin a new stream."""
        self._offers.clear()
        self._epoch = 0

    def sent(self, number: int) -> None:
        """Note a header."""
        self._offers.append((number, self._epoch))

    def sent_back(self) -> None:
        """Begin a new epoch: the stream goes back."""
        self._epoch += 1

    def drop_through(self, number: int) -> None:
        """Forget the headers of blocks up to `number`."""
        while self._offers and self._offers[0][0] <= number:
            self._offers.popleft()

    def answered(self, fits: Callable[[int], bool]) -> bool | None:
        """Take an answer: forget the oldest header that it fits, and those before.

        Returns:
            True: the header is of the present; False: it is late; None: no header fits.
        """
        for index, (number, epoch) in enumerate(self._offers):
            if fits(number):
                for _ in range(index + 1):
                    self._offers.popleft()
                return epoch == self._epoch
        return None
