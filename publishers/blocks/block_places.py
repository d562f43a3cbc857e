"""Finds blocks in folders, files, archives and globs, and reads them from where they lie.

    sources ──► files, folder by folder ──► block files, members of archives ──► one place for each block

A folder is read with all that is below it. Links are followed, and each folder is read once. Hidden folders,
and those that a block node keeps for itself, are left out; so is a file without the name of a block file or
an archive. An archive is listed, never unpacked. A block may lie in two places if both hold the same. A
`FileStore` knows where the files are: on a disk, or in an object store.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Protocol

from gateway.blocks.block import Block
from gateway.regular_files import open_regular
from publishers.blocks.block_archives import Archive, ArchiveMember
from publishers.blocks.block_files import decode_block, stored_bytes_max
from publishers.blocks.block_layouts import (
    has_glob,
    is_archive_name,
    is_block_name,
    is_passed_over,
    matches,
    number_of_parts,
    split_glob,
    unfinished,
)
from publishers.errors import ArchiveError, BlockFileError, BlockListError
from publishers.number_range import NumberRange

__all__ = [
    "NO_BLOCKS",
    "BlockFileReader",
    "BlockFileState",
    "BlockPlace",
    "FileStore",
    "LocalStore",
    "blocks_in",
    "check_no_gaps",
    "find_blocks",
    "read_chain",
]

ARCHIVE_MEMBERS_KEPT: Final = 1_000_000
"""Members of archives that a process remembers, so that a stream which looks for new files does not read the
lists of all again: some 200 bytes each. The archives that were looked at first are forgotten beyond."""

FILE_REST_SECONDS: Final = 5.0
"""A stream takes a block file that it cannot read for one that is being written, until nobody has changed it
for so long: some writers do not write under another name first."""

NO_BLOCKS: Final = "no block files (N.blk, N.blk.gz, N.blk.zst, alone or in a zip or a tar)"
_ALL: Final = NumberRange()


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """Where one block lies."""

    number: int
    """Block number, by the name."""
    path: str
    """Of the block file, or of the archive."""
    member: str = ""
    """The name in the archive."""
    entry: int = -1
    """Where it is in the archive; below 0: the block has a file of its own."""
    size_bytes: int = -1
    """As it is stored in the archive."""
    changed_ns: int = 0
    """When the archive was changed last, as it was listed: another list belongs to another time."""

    def __str__(self) -> str:
        return self.path if self.entry < 0 else f"{self.path}!{self.member}"

    @property
    def name(self) -> str:
        """The last part of its name."""
        return (self.path if self.entry < 0 else self.member).rsplit("/", 1)[-1]


@dataclass(frozen=True, slots=True)
class BlockFileState:
    """What is known of a file without reading it."""

    size_bytes: int
    changed_ns: int
    identity: tuple[int, int] | None = None
    """The same for all names of one file; None: the store does not know."""


class FileStore(Protocol):
    """Where files lie. A method raises OSError for a file that cannot be read, `walk` BlockListError."""

    def is_folder(self, path: str) -> bool | None:
        """Whether a path is a folder; None: nothing is there."""
        ...

    def parts(self, path: str) -> Sequence[str]:
        """Cut a path into folders and name, as far up as is known."""
        ...

    def walk(self, root: str) -> Iterator[tuple[str, list[str]]]:
        """Give each folder, the root first, with the names of the files in it, sorted."""
        ...

    def state(self, path: str) -> BlockFileState:
        """Look at a file."""
        ...

    def open(self, path: str) -> BinaryIO:
        """Open a file to read it."""
        ...

    def is_being_written(self, path: str) -> bool:
        """Whether somebody has changed a file a moment ago."""
        ...


class LocalStore:
    """Files on a disk."""

    def is_folder(self, path: str) -> bool | None:
        """Whether a path is a folder; None: nothing is there."""
        found = Path(path)
        if found.is_dir():
            return True
        return False if found.exists() or found.is_symlink() else None

    def parts(self, path: str) -> Sequence[str]:
        """Cut a path into folders and name, from the root of the file system on."""
        return Path(path).absolute().parts

    def walk(self, root: str) -> Iterator[tuple[str, list[str]]]:
        """Give each folder, the root first, with the names of the files in it, sorted.

        A folder that is gone when its turn comes had no blocks that anybody can have; a block node removes
        empty ones.
        """
        pending, seen = [root], set()
        while pending:
            folder = pending.pop()
            try:
                status = Path(folder).stat()
                if (status.st_dev, status.st_ino) in seen:  # a link back, or a second link
                    continue
                seen.add((status.st_dev, status.st_ino))
                with os.scandir(folder) as entries:
                    listed = sorted(entries, key=lambda entry: entry.name)
            except OSError as error:
                if isinstance(error, FileNotFoundError) and folder != root:
                    continue
                raise BlockListError(folder, _reason(error)) from error
            names, below = [], []
            for entry in listed:
                # What stands in a block file's place and is a folder is to be said where it is read.
                if is_block_name(entry.name) or not entry.is_dir():
                    names.append(entry.name)
                elif not is_passed_over(entry.name):
                    below.append(entry.path)
            yield folder, names
            pending.extend(reversed(below))

    def state(self, path: str) -> BlockFileState:
        """Look at a file."""
        status = Path(path).stat()
        return BlockFileState(status.st_size, status.st_mtime_ns, (status.st_dev, status.st_ino))

    def open(self, path: str) -> BinaryIO:
        """Open a file to read it; nothing but a regular one."""
        return open_regular(Path(path))

    def is_being_written(self, path: str) -> bool:
        """Whether somebody has changed a file a moment ago."""
        try:
            changed_at = Path(path).stat().st_mtime
        except OSError:
            return False
        return abs(time.time() - changed_at) <= FILE_REST_SECONDS


# --- finding ------------------------------------------------------------------------------------------------


def find_blocks(
    store: FileStore, sources: Sequence[str], numbers: NumberRange = _ALL, *, is_growing: bool = False
) -> list[BlockPlace]:
    """Find the blocks of some folders, files, archives and globs.

    Args:
        store: where they are.
        sources: paths and globs; what is there under a name with a `*` is meant by that name.
        numbers: the blocks that are wanted.
        is_growing: whether files are being written meanwhile: an archive that is not whole yet has no blocks
            yet, and one that is gone none any more.

    Returns:
        A place for each block, by number. There may be gaps, see `check_no_gaps`.

    Raises:
        BlockListError: a source cannot be read or is not there, an archive is damaged, or two places have
            different blocks of one number.
        OptionError: a glob is none.
    """
    found: dict[int, BlockPlace] = {}
    again = []
    for source in sources:
        for place in _places(store, source, is_growing):
            if place.number not in numbers:
                continue
            first = found.setdefault(place.number, place)
            if (first.path, first.entry) != (place.path, place.entry):
                again.append(place)
    if again:
        with _Comparison(store, is_growing) as comparison:
            for place in again:
                found[place.number] = comparison.one_of(found[place.number], place)
    return [found[number] for number in sorted(found)]


def blocks_in(path: Path, numbers: NumberRange = _ALL) -> list[BlockPlace]:
    """Find the blocks of one folder, file or archive on a disk; `find_blocks` has the rest."""
    return find_blocks(LocalStore(), [str(path)], numbers)


def check_no_gaps(where: str, places: Sequence[BlockPlace]) -> None:
    """Check that blocks make one chain: at least one, and no number missing.

    Args:
        where: for the error.
        places: by number, as `find_blocks` gives them.

    Raises:
        BlockListError: naming the numbers that are missing.
    """
    if not places:
        raise BlockListError(where, NO_BLOCKS)
    for one, following in itertools.pairwise(places):
        before, after = one.number, following.number
        if after == before + 2:
            raise BlockListError(where, f"block {before + 1} is missing (before {following.name})")
        if after != before + 1:
            reason = f"blocks {before + 1} to {after - 1} are missing (before {following.name})"
            raise BlockListError(where, reason)


def read_chain(folder: Path) -> Iterator[Block]:
    """Read the blocks of a folder in order of number.

    Raises:
        BlockListError, BlockFileError: as the functions above, the first before the first block.
    """
    places = blocks_in(folder)
    check_no_gaps(str(folder), places)

    def blocks() -> Iterator[Block]:
        with BlockFileReader(LocalStore()) as reader:
            yield from map(reader.read, places)

    return blocks()


def _places(store: FileStore, source: str, is_growing: bool) -> Iterator[BlockPlace]:
    try:
        is_folder = store.is_folder(source)
        if is_folder is None and has_glob(source):
            yield from _matching(store, source, is_growing)
        elif is_folder is None:
            raise BlockListError(source, "No such file or directory")
        elif is_folder:
            yield from _below(store, source, is_growing)
        elif (number := number_of_parts(store.parts(source))) is not None:
            yield BlockPlace(number, source)
        else:
            yield from _members(store, source, is_growing)
    except OSError as error:
        raise BlockListError(source, _reason(error)) from error


def _matching(store: FileStore, source: str, is_growing: bool) -> Iterator[BlockPlace]:
    """Give what a glob describes."""
    root, pattern = split_glob(source)
    expression, is_empty = matches(pattern), True
    prefix = "" if root == "." and not source.startswith("./") else root.rstrip("/") + "/"
    if store.is_folder(root):
        for folder, names in store.walk(root):
            inside = folder[len(root) :].strip("/")
            fitting = [name for name in names if expression.fullmatch(f"{inside}/{name}".lstrip("/"))]
            is_empty = is_empty and not fitting
            yield from _of_names(store, prefix + (f"{inside}/" if inside else ""), names, fitting, is_growing)
    if is_empty and not is_growing:
        raise BlockListError(source, "nothing of this name is there, and no file fits it as a glob")


def _below(store: FileStore, root: str, is_growing: bool) -> Iterator[BlockPlace]:
    for folder, names in store.walk(root):
        yield from _of_names(store, folder.rstrip("/") + "/", names, names, is_growing)


def _of_names(
    store: FileStore, folder: str, names: Sequence[str], wanted: Iterable[str], is_growing: bool
) -> Iterator[BlockPlace]:
    """Give the blocks in some of the files of a folder."""
    parts = tuple(store.parts(folder))
    open_blocks = unfinished(names)
    for name in wanted:
        if is_archive_name(name):
            yield from _members(store, folder + name, is_growing)
        elif name not in open_blocks and (number := number_of_parts((*parts, name))) is not None:
            yield BlockPlace(number, folder + name)


_lists: dict[tuple[str, BlockFileState], tuple[ArchiveMember, ...]] = {}
"""The members of archives that were listed lately, the oldest first."""


def _members(store: FileStore, path: str, is_growing: bool) -> Iterator[BlockPlace]:
    """Give the blocks in an archive."""
    try:
        state = store.state(path)
        members = _lists.pop((path, state), None)
        if members is None:
            with store.open(path) as file:
                members = tuple(Archive(file, state.size_bytes).members())
    except (OSError, ArchiveError) as error:
        if is_growing and (isinstance(error, FileNotFoundError) or store.is_being_written(path)):
            return
        raise BlockListError(path, _reason(error)) from error
    _lists[path, state] = members
    while len(_lists) > 1 and sum(map(len, _lists.values())) > ARCHIVE_MEMBERS_KEPT:
        del _lists[next(iter(_lists))]
    for member in members:
        yield BlockPlace(member.number, path, member.name, member.entry, member.size_bytes, state.changed_ns)


def _reason(error: OSError | ArchiveError) -> str:
    """Say what is wrong in one line; an object store may say more."""
    text = error.strerror if isinstance(error, OSError) else error.reason
    return (text or str(error) or type(error).__name__).split("\n", 1)[0]


# --- reading ------------------------------------------------------------------------------------------------


class BlockFileReader:
    """Reads blocks, quickest in the order in which they lie: the last archive stays open. `with` it.

    Args:
        store: where the files are.
    """

    def __init__(self, store: FileStore) -> None:
        self._store = store
        self._file: BinaryIO | None = None
        self._open: tuple[tuple[str, int], Archive] | None = None

    def __enter__(self) -> BlockFileReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the archive that is open."""
        self._open = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def read(self, place: BlockPlace) -> Block:
        """Read one block.

        Raises:
            BlockFileError: it cannot be read, is truncated, damaged or too large, or another block.
        """
        try:
            stored = self._stored(place, stored_bytes_max())
        except (OSError, ArchiveError) as error:
            raise BlockFileError(str(place), _reason(error)) from error
        return decode_block(stored, str(place), place.number)

    def _stored(self, place: BlockPlace, size_bytes_max: int) -> bytes:
        if place.entry < 0:
            with self._store.open(place.path) as file:
                return file.read(size_bytes_max + 1)
        key = (place.path, place.changed_ns)
        if self._open is None or self._open[0] != key:
            self.close()
            self._file = self._store.open(place.path)
            self._open = (key, Archive(self._file, self._store.state(place.path).size_bytes))
        return self._open[1].read(place.entry, place.size_bytes, size_bytes_max)


class _Comparison:
    """Compares blocks that lie in two places. `with` it.

    Args:
        store: where the files are.
        is_growing: whether one of them may not be whole yet.
    """

    def __init__(self, store: FileStore, is_growing: bool) -> None:
        self._store = store
        self._is_growing = is_growing
        self._readers = BlockFileReader(store), BlockFileReader(store)

    def __enter__(self) -> _Comparison:
        return self

    def __exit__(self, *error: object) -> None:
        for reader in self._readers:
            reader.close()

    def one_of(self, one: BlockPlace, other: BlockPlace) -> BlockPlace:
        """Give the place to read a block from.

        Raises:
            BlockListError: the two have different blocks, or one cannot be read.
        """
        try:
            states = [self._store.state(place.path) for place in (one, other)]
        except OSError:  # one is gone since, which a block node does with what has got into a zip
            return one if self._is_there(one) else other
        key = (one, other, states[0], states[1])
        if key in _same or self._is_one_file(one, other, states):
            return one
        blocks = []
        for reader, place in zip(self._readers, (one, other), strict=True):
            try:
                blocks.append(reader.read(place))
            except BlockFileError as error:
                rest = other if place is one else one
                if not self._is_there(place) or (
                    self._is_growing and self._store.is_being_written(place.path)
                ):
                    return rest
                reason = f"block {one.number} is there twice: {rest}, and {error}"
                raise BlockListError(error.path, reason) from error
        if blocks[0] != blocks[1]:
            reason = f"block {one.number} is there twice, and not the same: {one} and {other}"
            raise BlockListError(other.path, reason)
        if len(_same) >= ARCHIVE_MEMBERS_KEPT:
            _same.clear()
        _same.add(key)
        return one

    def _is_one_file(self, one: BlockPlace, other: BlockPlace, states: Sequence[BlockFileState]) -> bool:
        identities = {state.identity for state in states}
        return one.entry == other.entry and len(identities) == 1 and None not in identities

    def _is_there(self, place: BlockPlace) -> bool:
        with suppress(OSError):
            self._store.state(place.path)
            return True
        return False


_same: set[tuple[BlockPlace, BlockPlace, BlockFileState, BlockFileState]] = set()
"""Pairs of places that were compared and have the same block, as the files were then."""
