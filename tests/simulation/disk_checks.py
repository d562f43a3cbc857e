"""What is on the disk, and what readers see, compared with the true chain, byte for byte."""

from __future__ import annotations

from gateway.store.block_store import BlockStore
from tests.simulation.options import Options
from tests.simulation.storage import Storage
from tests.simulation.true_chain import image_from
from tests.simulation.world import World

HEADER_PAGE_SIZE = 4096


class DiskChecks:
    """Checks of one life of the node.

    Args:
        world: is told of broken rules.
        options: of the run.
        storage: what is on the disk.
        ledger: what the node shows of it.
    """

    def __init__(self, world: World, options: Options, storage: Storage, store: BlockStore) -> None:
        self._world, self._options, self._storage, self._store = world, options, storage, store

    def durable_through(self) -> int:
        """The last block that is on disk for sure, every byte compared; what is below the first counts."""
        durable = self._storage.durable
        length = int.from_bytes(durable[38:46], "big")
        entries = int.from_bytes(durable[46:54], "big")
        first = self._store.first_number
        if length == HEADER_PAGE_SIZE or first is None:
            begin = self._options.first_block
            return begin - 1 if isinstance(begin, int) else -1
        image = image_from(first)
        number = image.number_at.get(length)
        if number is None or image.entries_of[number] != entries:
            self._world.break_rule("What is on disk ends with a block", f"{length} bytes, {entries} entries")
            return -1
        size = length - HEADER_PAGE_SIZE
        if durable[HEADER_PAGE_SIZE:length] != image.data[:size]:
            self._world.break_rule("What is on disk is the true chain, byte for byte", f"{length} bytes")
        return number

    def check_visible(self, length: int) -> None:
        """What readers see is on disk, and a prefix of the true chain."""
        store = self._store
        if store.first_number is None:
            if length == HEADER_PAGE_SIZE:
                return
            # The reader is a step ahead of the ledger: it learns of its first block right after.
            first = int.from_bytes(store.streamer.get_entry(1).data[1:], "big")
        else:
            first = store.first_number
        image = image_from(first)
        self._world.expect(length in image.number_at, "Readers see whole blocks", f"{length} bytes")
        seen = store.streamer.read_bytes(length - HEADER_PAGE_SIZE, HEADER_PAGE_SIZE)
        self._world.expect(
            seen == image.data[: len(seen)], "Readers see a prefix of the chain", f"{length} bytes"
        )
        on_disk = int.from_bytes(self._storage.durable[38:46], "big")
        self._world.expect(
            length <= on_disk, "Readers see only what is on disk", f"{length}, {on_disk} bytes"
        )
