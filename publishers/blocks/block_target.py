"""A folder that many tasks write blocks to, side by side, on a disk or in an object store.

    task        one file a block; `historic`: a zip whose blocks all come to the task, others in `staging/`
    at the end  one process makes the zips whose blocks are all in `staging/`, as block nodes do

A file appears whole or not at all, and the same blocks give the same bytes. So a task that runs twice, or a
job that runs again, changes nothing. A file with another block is refused, or replaced if told so.

Source: docs/spark.md, "Write block files".
"""

from __future__ import annotations

import mmap
import secrets
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sluice.gateway.blocks.block import Block
from sluice.publishers.blocks.block_archives import write_zip
from sluice.publishers.blocks.block_files import decode_block, encode_block_file, stored_bytes_max
from sluice.publishers.blocks.block_layouts import (
    STAGING,
    ZIP_DIGITS,
    BlockFormat,
    BlockLayout,
    marker_name,
    member_name,
    path_in,
    zip_of,
)
from sluice.publishers.blocks.block_places import BlockFileReader, BlockPlace, WritableStore, find_blocks
from sluice.publishers.errors import BlockFileError
from sluice.publishers.limits import BLOCK_FILE_BYTES_MAX

__all__ = ["BlockTarget", "TargetWriter", "make_zips"]

ZIP_LISTS_KEPT: Final = 16
"""Zips that were there before and whose members a task remembers, some 2 MB each."""
_REMEDY: Final = "mode overwrite replaces it"


@dataclass(frozen=True)
class BlockTarget:
    """A folder to write blocks to. Jobs that write at the same time have different `parts`."""

    store: WritableStore
    root: str
    """Path of the folder in the store."""
    layout: BlockLayout
    block_format: BlockFormat
    zip_digits: int = ZIP_DIGITS
    is_overwrite: bool = False
    parts: str = ".parts"
    """Name of the folder for files that are not whole, which no reader looks into."""

    def path(self, name: str) -> str:
        """Return the path of a file."""
        return f"{self.root}/{name}"

    def put(self, name: str, data: bytes | mmap.mmap) -> None:
        """Write a file. Raises BlockFileError if the store refuses."""
        path = self.path(name)
        with _named(path):
            self.store.put(path, data, self.path(f"{self.parts}/{secrets.token_hex(8)}"))

    def put_zip(self, name: str, blocks: Iterable[tuple[int, bytes]], folder: str | None) -> None:
        """Write a zip of encoded blocks, by way of a file in a temporary folder.

        Raises BlockFileError if the disk or the store refuses, or as `blocks` does.
        """
        ending = f".{self.block_format}"
        with _named(self.path(name)), tempfile.TemporaryFile(dir=folder) as file:
            write_zip(file, ((member_name(number, ending), data) for number, data in blocks))
            file.flush()
            self.put(name, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def flush(self, names: Iterable[str]) -> None:
        """Make files durable by name, and their folders. Raises BlockFileError if the store refuses."""
        folders = {""}
        for name in names:
            while name := name.rpartition("/")[0]:
                folders.add(name)
        for path in (self.path(folder).rstrip("/") or "/" for folder in sorted(folders)):
            with _named(path):
                self.store.flush(path)

    def clear(self) -> None:
        """Remove what killed tasks have left."""
        self.store.remove_folder(self.path(self.parts))


class TargetWriter:
    """The writer of one task, for blocks in any order. Use with `with`; a writer that fails is not closed.

    Args:
        folder: for the blocks of zips that are not complete; None: the system's own for temporary files.
        size_bytes_max: the longest block that can be read back.
    """

    def __init__(
        self,
        target: BlockTarget,
        folder: str | None = None,
        *,
        size_bytes_max: int = BLOCK_FILE_BYTES_MAX,
    ) -> None:
        self._size_bytes_max = size_bytes_max
        self.zips: set[str] = set()
        """Names of the zips to which its blocks belong."""
        self.staged: set[str] = set()
        """Names of those of which it has staged blocks."""
        self._target = target
        self._reader = BlockFileReader(target.store)
        self._temporary = tempfile.TemporaryDirectory(prefix="sluice-zips-", dir=folder)
        self._pending: dict[str, _Pending] = {}
        self._there: dict[str, dict[int, BlockPlace] | None] = {}
        self._written: dict[str, str] = {}  # one file of each folder

    def __enter__(self) -> TargetWriter:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        try:
            if kind is None:
                self.close()
        finally:
            self._reader.close()
            self._temporary.cleanup()

    def write(self, block: Block) -> None:
        """Write a block.

        Raises:
            BlockFileError: it is too long, the store refuses, or another block of this number is there.
            OptionError: the layout has no name for so large a number.
        """
        target = self._target
        if target.layout == "historic":
            self._write_to_zip(block)
            return
        name = path_in(target.layout, block.number, target.block_format)
        self._put(name, block.number, self._encoded(block))
        if target.layout == "consensus":
            folder, slash, file_name = name.rpartition("/")
            marker = folder + slash + marker_name(file_name)
            if self._stored(marker) is None:
                self._put_file(marker, b"")

    def close(self) -> None:
        """Stage the blocks of incomplete zips, and make all names durable. Raises BlockFileError."""
        target = self._target
        for name, pending in self._pending.items():
            self.staged.add(name)
            for number, data in pending.blocks():
                self._put(path_in("historic", number, target.block_format), number, data)
        self._pending.clear()
        if self._written:
            target.flush(self._written.values())

    def _encoded(self, block: Block) -> bytes:
        if block.size_bytes > self._size_bytes_max:
            got = f"{block.size_bytes} bytes, at most {self._size_bytes_max} can be read back"
            raise BlockFileError(self._target.root, f"block {block.number} has {got}")
        return encode_block_file(block, self._target.block_format)

    def _put(self, name: str, number: int, data: bytes) -> None:
        if not self._target.is_overwrite and (stored := self._stored(name)) is not None:
            path = self._target.path(name)
            if stored != data and decode_block(stored, path, number) != decode_block(data, path, number):
                raise BlockFileError(path, f"another block {number} is there; {_REMEDY}")
            return
        self._put_file(name, data)

    def _put_file(self, name: str, data: bytes) -> None:
        self._target.put(name, data)
        self._written[name.rpartition("/")[0]] = name

    def _stored(self, name: str) -> bytes | None:
        path = self._target.path(name)
        with _named(path):
            try:
                with self._target.store.open(path) as file:
                    return file.read(stored_bytes_max() + 1)
            except FileNotFoundError:
                return None

    # --- historic -------------------------------------------------------------------------------------------

    def _write_to_zip(self, block: Block) -> None:
        target = self._target
        name, numbers = zip_of(block.number, target.zip_digits)
        self.zips.add(name)
        if not target.is_overwrite and (places := self._places(name)) is not None:
            _check_in_zip(self._reader, target.path(name), places, block)
            return
        pending = self._pending.get(name)
        if pending is None:
            pending = _Pending(Path(self._temporary.name, str(numbers.start)))
            self._pending[name] = pending
        pending.add(block.number, self._encoded(block))
        if len(pending) == len(numbers):
            target.put_zip(name, pending.blocks(), self._temporary.name)
            self._written[name.rpartition("/")[0]] = name
            pending.remove()
            del self._pending[name]
            self._there.pop(name, None)

    def _places(self, name: str) -> dict[int, BlockPlace] | None:
        if name not in self._there:
            if len(self._there) >= ZIP_LISTS_KEPT:
                del self._there[next(iter(self._there))]
            self._there[name] = _places_in_zip(self._target, name)
        return self._there[name]


class _Pending:
    """Encoded blocks of a zip that is not complete, in a file on the worker's disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: dict[int, tuple[int, int]] = {}
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._places)

    def add(self, number: int, data: bytes) -> None:
        """Add a block; it may come twice if it is the same."""
        with _named(str(self._path)):
            if number in self._places:
                if self._read(number) != data:
                    raise BlockFileError(f"block {number}", "comes twice, and not the same")
                return
            with self._path.open("ab") as file:
                file.write(data)
        self._places[number] = (self._size_bytes, len(data))
        self._size_bytes += len(data)

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """Yield all blocks in order of number."""
        for number in sorted(self._places):
            yield number, self._read(number)

    def remove(self) -> None:
        """Remove the file."""
        self._path.unlink()

    def _read(self, number: int) -> bytes:
        start, count = self._places[number]
        with self._path.open("rb") as file:
            file.seek(start)
            return file.read(count)


def make_zips(
    target: BlockTarget, zips: Collection[str], staged: Collection[str], folder: str | None = None
) -> dict[str, list[int]]:
    """Make the zips whose blocks are all staged, and remove staged blocks that are in a zip.

    Args:
        zips: names of the zips that tasks have had blocks of.
        staged: names of those of which tasks have staged blocks.
        folder: as of `TargetWriter`.

    Returns:
        The numbers of the staged blocks of each zip that is not complete, in order.

    Raises:
        BlockFileError: the store refuses, a staged block is damaged, or it is another one than in the zip.
        BlockListError: the folder cannot be read.
    """
    waiting: dict[str, list[int]] = {}
    with BlockFileReader(target.store) as reader:
        for name, places in _staged_places(target, zips).items():
            _, numbers = zip_of(places[0].number, target.zip_digits)
            there = _places_in_zip(target, name)
            if len(places) == len(numbers) and (there is None or (target.is_overwrite and name in staged)):
                read = ((place.number, _read(reader, place, target.block_format)) for place in places)
                target.put_zip(name, read, folder)
            elif there is None:
                waiting[name] = [place.number for place in places]
                continue
            elif not target.is_overwrite or name in staged:
                with BlockFileReader(target.store) as zip_reader:
                    for place in places:
                        _check_in_zip(zip_reader, target.path(name), there, reader.read(place))
            # A reader finds each block twice until these are gone.
            target.flush([name])
            with _named(target.path(STAGING)):
                for place in places:
                    target.store.remove(place.path)
    return waiting


def _staged_places(target: BlockTarget, zips: Collection[str]) -> Mapping[str, list[BlockPlace]]:
    staging = target.path(STAGING)
    found: dict[str, list[BlockPlace]] = {}
    with _named(staging):
        is_there = bool(zips) and target.store.is_folder(staging)
    for place in find_blocks(target.store, [staging]) if is_there else ():
        name, _ = zip_of(place.number, target.zip_digits)
        if name in zips:
            found.setdefault(name, []).append(place)
    return found


def _places_in_zip(target: BlockTarget, name: str) -> dict[int, BlockPlace] | None:
    """Return the blocks of a zip; None: it is not there."""
    path = target.path(name)
    with _named(path):
        if target.store.is_folder(path) is None:
            return None
    return {place.number: place for place in find_blocks(target.store, [path])}


def _check_in_zip(reader: BlockFileReader, path: str, places: Mapping[int, BlockPlace], block: Block) -> None:
    place = places.get(block.number)
    if place is None or reader.read(place) != block:
        got = f"no block {block.number} is" if place is None else f"another block {block.number} is"
        remedy = "mode overwrite replaces it, with all its blocks"
        raise BlockFileError(path, f"{got} in this zip, and a zip is not changed; {remedy}")


def _read(reader: BlockFileReader, place: BlockPlace, block_format: BlockFormat) -> bytes:
    return encode_block_file(reader.read(place), block_format)


@contextmanager
def _named(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BlockFileError(path, error.strerror or str(error)) from error
