"""Dishonest publishers: they lie, send garbage, stand still and do not read.

A rogue knows the whole chain and where the node stands, which is more than a real one would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from sluice.gateway.api import block_items_pb2, publish_pb2
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.block_numbers import BLOCK_NUMBER_MAX, U64_MAX
from tests.simulation.coverage import EXPECTED, Coverage
from tests.simulation.network import POISON, Connection
from tests.simulation.options import Options
from tests.simulation.publishers import Connector
from tests.simulation.true_chain import (
    BLOCKS_MAX,
    forged_blocks,
    other_blocks,
    true_blocks,
    with_altered_item,
    with_body_of_another,
    with_broken_proof,
    with_item_missing,
    with_proof_of_no_key,
)
from tests.simulation.world import MILLISECOND_NS, SECOND_NS, World

_Request = publish_pb2.PublishStreamRequest
_END_CODE = _Request.EndStream.Code


def _items(*items: bytes) -> bytes:
    return _Request(block_items=block_items_pb2.BlockItemSet(block_items=items)).SerializeToString()


def _end(number: int) -> bytes:
    return _Request(end_of_block=block_items_pb2.BlockEnd(block_number=number)).SerializeToString()


def _end_stream(code: int, earliest: int, latest: int) -> bytes:
    message = _Request.EndStream(
        end_code=code,  # type: ignore[arg-type]
        earliest_block_number=earliest,
        latest_block_number=latest,
    )
    return _Request(end_stream=message).SerializeToString()


class Rogue:
    """One publisher that breaks rules.

    Args:
        next_number: tells L + 1 of the node, and whether it is empty.
        malformed: gets each malformed message.
    """

    def __init__(
        self,
        world: World,
        index: int,
        options: Options,
        connect: Connector,
        coverage: Coverage,
        next_number: Callable[[], tuple[int, bool]],
        malformed: set[bytes],
    ) -> None:
        self.world, self.options, self.coverage = world, options, coverage
        self.name = f"R{index}"
        self.connection: Connection | None = None
        self._connect = connect
        self._next_number = next_number
        self._malformed = malformed
        self._index = index
        self._port = 100
        self._script: Iterator[bytes | int] = iter(())
        self._is_over = False
        self._waits_for_room = False
        self._opens = False
        self._acts: tuple[Callable[[], Iterator[bytes | int]], ...] = (
            *(self.whole_block, self.whole_block, self.run_of_blocks, self.part_of_block),
            *(self.false_block, self.false_block, self.garbage, self.garbage, self.misplaced, self.restart),
            *(self.other_header, self.old_block, self.far_ahead, self.goodbye, self.silence, self.too_large),
            *(
                self.no_reading,
                self.bug,
                self.proof_without_end,
                self.wrong_end,
                self.late_proof,
                self.two_proofs,
                self.foreign_proof,
                self.no_proof,
                self.forget,
                self.only_headers,
                self.trickle,
            ),
        )
        world.at(world.between(0, options.chaos_ns // 4), self._open)

    # --- its life ------------------------------------------------------------------------------------------

    def end(self, quiet: bool) -> None:
        self._is_over = True
        if not quiet and self.connection is not None:
            self.connection.break_off("the rogue is gone")

    def _open(self) -> None:
        self._opens = False
        if self._is_over:
            return
        self._port += 1
        name = "P0" if self.options.same_name else self.name if self._index % 2 else None
        self.connection = self._connect(self, (None, name, f"ipv4:10.0.1.{self._index}:{self._port}"))
        self._script = iter(())
        self._later(self._go_on)

    def _later(self, call: Callable[[], None]) -> None:
        pause_ns = self.world.random.choice([0, MILLISECOND_NS, 50 * MILLISECOND_NS, SECOND_NS])
        self.world.at(self.world.between(0, pause_ns), call)

    def _open_later(self) -> None:
        if not self._opens:
            self._opens = True
            self._later(self._open)

    def _go_on(self) -> None:
        """Send the next message of the script, or begin another script."""
        connection = self.connection
        if self._is_over:
            return
        if connection is None or connection.broken:
            self._open_later()
            return
        if not connection.can_send:
            self._waits_for_room = True
            if connection.half_closed or self.world.chance(0.05):
                self._waits_for_room = False
                connection.break_off("the rogue leaves")
                self._open_later()
            return
        step = next(self._script, None)
        if step is None:
            act = self.world.random.choice(self._acts)
            self.coverage.count("rogue", act.__name__)
            self.world.note(f"{self.name}: {act.__name__}")
            self._script = act()
            self._later(self._go_on)
        elif isinstance(step, int):
            self.world.at(step, self._go_on)
        else:
            connection.send(step)
            self._later(self._go_on)

    def on_response(self, message: bytes) -> None:
        """See `Client`: it does not care."""

    def on_room(self) -> None:
        if self._waits_for_room:
            self._waits_for_room = False
            self._go_on()

    def on_end(self, reason: str) -> None:
        self.connection = None
        self._waits_for_room = False
        self._open_later()

    # --- what it does --------------------------------------------------------------------------------------

    def _number(self, *offsets: int) -> int:
        """Return a block near the one that the node wants."""
        number = self._next_number()[0] + self.world.random.choice(offsets or (0, 0, 0, 0, 1, 1, 2, 3))
        return min(max(0, number), BLOCKS_MAX - 1)

    def _sets(self, items: Sequence[bytes]) -> Iterator[bytes]:
        size = self.world.random.choice([1, 2, 6])
        for start in range(0, len(items), size):
            yield _items(*items[start : start + size])

    def _sent(self, block: Block) -> Iterator[bytes]:
        yield from self._sets(block.items)
        yield _end(block.number)

    def whole_block(self) -> Iterator[bytes | int]:
        """A true block."""
        yield from self._sent(true_blocks()[self._number()])

    def run_of_blocks(self) -> Iterator[bytes | int]:
        """A few true blocks in order."""
        number = self._number()
        for block in true_blocks()[number : number + self.world.random.randint(2, 5)]:
            yield from self._sent(block)

    def part_of_block(self) -> Iterator[bytes | int]:
        """The beginning of a block, then a long pause, a goodbye, or the end of the connection."""
        items = true_blocks()[self._number()].items
        yield from self._sets(items[: self.world.random.randint(1, len(items))])
        yield from self._leave()

    def _leave(self) -> Iterator[bytes | int]:
        connection = self.connection
        match self.world.random.randrange(5):
            case 0 if connection is not None:
                connection.break_off("the rogue leaves")
            case 1 if connection is not None:
                connection.half_close()
            case 2:
                yield from self.goodbye()
            case 3:
                yield self.world.between(0, 10 * SECOND_NS)
            case _:
                pass

    def false_block(self) -> Iterator[bytes | int]:
        """A block that looks right and is wrong."""
        number = self._number()
        lies = [with_broken_proof, with_altered_item, with_item_missing, with_body_of_another]
        lies.append(with_proof_of_no_key)
        chains = [forged_blocks()]
        # A signed first block is believed: it links to nothing.
        first, is_empty = self._next_number()
        if not is_empty and number > 0 and number >= first:
            chains.append(other_blocks())
        pick = self.world.random.randrange(len(lies) + len(chains))
        block = lies[pick](number) if pick < len(lies) else chains[pick - len(lies)][number]
        yield from self._sent(block)

    def garbage(self) -> Iterator[bytes | int]:
        """A malformed message somewhere."""
        chance = self.world.random
        header, item, footer, proof = (true_blocks()[self._number()].items[index] for index in (0, 2, 4, 5))
        no_number = b"\x0a\x02\x10\x80"
        message = chance.choice(
            [
                _items(),
                _items(item, header),
                _items(header, header),
                _items(header, item, proof, item),
                _items(header, proof, footer, proof),
                _items(b"\xff\xff\xff"),
                _items(b""),
                _items(header, b"\x22\x7f"),
                _items(no_number),
                b"",
                b"\x0a\xff\xff\xff\xff",
                b"\x9a\x01\x00",
            ]
        )
        self._malformed.add(message)
        if chance.random() < 0.5:
            yield from self._sets(true_blocks()[self._number()].items[: chance.randint(1, 5)])
        yield message

    def misplaced(self) -> Iterator[bytes | int]:
        """Items or an end without a header."""
        items = true_blocks()[self._number()].items
        yield self.world.random.choice([_items(items[2]), _items(items[5]), _end(self._number())])

    def restart(self) -> Iterator[bytes | int]:
        """The same block twice."""
        block = true_blocks()[self._number()]
        yield from self._sets(block.items[: self.world.random.randint(1, 5)])
        yield from self._sent(block)

    def other_header(self) -> Iterator[bytes | int]:
        """The header of another block in mid-block."""
        number = self._number()
        yield from self._sets(true_blocks()[number].items[: self.world.random.randint(1, 5)])
        yield from self._sent(true_blocks()[self._number(-1, 0, 1, 2)])

    def old_block(self) -> Iterator[bytes | int]:
        """A block that is stored long since."""
        yield from self._sent(true_blocks()[self._number(-1, -2, -3, -9)])

    def far_ahead(self) -> Iterator[bytes | int]:
        """A block far ahead, then the right one."""
        yield from self._sent(true_blocks()[self._number(3, 5, 9)])
        yield from self._sent(true_blocks()[self._number(0)])

    def goodbye(self) -> Iterator[bytes | int]:
        code = self.world.random.choice([*_END_CODE.values(), 77])
        earliest, latest = self._number(-3, 0, 3), self._number(-3, 0, 3, 9)
        if self.world.chance(0.3):  # Java's "none", an impossible number, a block that nobody has
            odd = (U64_MAX, BLOCK_NUMBER_MAX + 1, BLOCK_NUMBER_MAX + 5, BLOCK_NUMBER_MAX, 10**15)
            earliest = self.world.random.choice([earliest, *odd])
            latest = self.world.random.choice([latest, *odd])
        if code in _END_CODE.values():
            self.coverage.count("EndStream", _END_CODE.Name(code))  # type: ignore[arg-type]
        yield _end_stream(code, earliest, latest)

    def silence(self) -> Iterator[bytes | int]:
        """Nothing for a while."""
        yield self.world.between(0, 40 * SECOND_NS)

    def too_large(self) -> Iterator[bytes | int]:
        """More bytes than a block may have."""
        block = true_blocks()[self._number()]
        yield _items(*block.items[:3])
        filler = b"\x22\xff\x07" + bytes(1023)
        for _ in range(2 + self.options.block_bytes_max // len(filler)):
            yield _items(filler)

    def only_headers(self) -> Iterator[bytes | int]:
        """Headers of blocks that never follow."""
        number = self._number(0, 0, 1)
        for offset in range(self.world.random.randint(1, 6)):
            yield _items(true_blocks()[min(number + offset, BLOCKS_MAX - 1)].items[0])
            yield self.world.random.choice([0, self.options.block_timeout_ns + SECOND_NS])

    def trickle(self) -> Iterator[bytes | int]:
        """A block that trickles in and never ends."""
        block = true_blocks()[self._number(0, 0, 1)]
        yield _items(*block.items[:2])
        for _ in range(self.world.random.randint(2, 20)):
            yield self.options.block_timeout_ns // 5
            yield _items(block.items[2])

    def forget(self) -> Iterator[bytes | int]:
        """Another connection, while the old one stays open and silent."""
        yield from self._sets(true_blocks()[self._number()].items[:2])
        self.connection = None

    def no_reading(self) -> Iterator[bytes | int]:
        """Headers without end, while the answers stay unread."""
        connection = self.connection
        if connection is not None:
            connection.is_reading = False
        number = self._number(0, 5)
        for _ in range(self.world.random.randint(3, 30)):
            yield _items(true_blocks()[number].items[0])
        if connection is not None and self.world.chance(0.5):
            connection.read_on()

    def bug(self) -> Iterator[bytes | int]:
        """A message that makes our own code fail."""
        if self.world.chance(0.5):
            yield from self._sets(true_blocks()[self._number()].items[:3])
        yield POISON

    def proof_without_end(self) -> Iterator[bytes | int]:
        """A whole block without `end_of_block`, then silence, a goodbye, or the next block."""
        number = self._number()
        yield from self._sets(true_blocks()[number].items)
        if self.world.chance(0.5):
            yield from self._leave()
        else:
            yield from self._sent(true_blocks()[min(number + 1, BLOCKS_MAX - 1)])

    def wrong_end(self) -> Iterator[bytes | int]:
        """`end_of_block` with another number."""
        number = self._number()
        yield from self._sets(true_blocks()[number].items[: self.world.random.randint(1, 6)])
        yield _end(number + self.world.random.choice([-1, 1, 7]) if number else 1)

    def two_proofs(self) -> Iterator[bytes | int]:
        """A false proof after the true one, a copy of the true one, or another item."""
        number = self._number()
        block = true_blocks()[number]
        yield from self._sets(block.items)
        second = [with_broken_proof(number).items[5], block.items[5], block.items[2]]
        yield _items(self.world.random.choice(second))
        yield _end(block.number)

    def no_proof(self) -> Iterator[bytes | int]:
        """The end of a block without a proof."""
        block = true_blocks()[self._number()]
        yield from self._sets(block.items[: self.world.random.randint(1, 5)])
        yield _end(block.number)

    def foreign_proof(self) -> Iterator[bytes | int]:
        """The proof of another block, in a message of its own."""
        number = self._number()
        yield from self._sets(true_blocks()[number].items[:5])
        yield _items(true_blocks()[(number + 1) % BLOCKS_MAX].items[5])
        if self.world.chance(0.5):
            yield _end(number)

    def late_proof(self) -> Iterator[bytes | int]:
        """Items after the end of a block."""
        block = true_blocks()[self._number()]
        yield from self._sent(block)
        yield _items(self.world.random.choice([block.items[5], block.items[2]]))


EXPECTED["rogue"] = [
    *("whole_block", "run_of_blocks", "part_of_block", "false_block", "garbage", "misplaced", "restart"),
    *("other_header", "old_block", "far_ahead", "goodbye", "silence", "too_large", "no_reading", "bug"),
    *("proof_without_end", "wrong_end", "late_proof", "forget"),
    *("two_proofs", "no_proof", "foreign_proof", "only_headers", "trickle"),
]
