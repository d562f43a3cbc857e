"""A finder and a reader of blocks in folders, files, archives and globs.

    sources ──► files, folder by folder ──► block files, members of archives ──► one place for each block

Links are followed; each folder is read once. A block may lie in two places if both hold the same.

Source: docs/spark.md, "Block files".
"""

from __future__ import annotations

import itertools
import mmap
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, Protocol

from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.errors import ItemError
from sluice.gateway.blocks.items import ItemKind, kind_of
from sluice.gateway.regular_files import open_regular
from sluice.publishers.blocks.block_archives import Archive, ArchiveMember
from sluice.publishers.blocks.block_files import decode_block, stored_bytes_max, sync_folder
from sluice.publishers.blocks.block_layouts import (
    bucket_digits,
    has_glob,
    is_archive_name,
    is_block_name,
    is_passed_over,
    matches,
    number_of_name,
    number_of_parts,
    split_glob,
    unfinished,
)
from sluice.publishers.errors import ArchiveError, BlockFileError, BlockListError
from sluice.publishers.number_range import NumberRange

__all__ = [
    "FILE_LOOK_SECONDS",
    "FILE_WRITE_SECONDS_MAX",
    "NO_BLOCKS",
    "ArchiveLists",
    "BlockFileReader",
    "BlockFileState",
    "BlockPlace",
    "FileStore",
    "LocalStore",
    "WritableStore",
    "blocks_in",
    "check_no_gaps",
    "find_blocks",
    "missing_before",
    "missing_text",
    "read_chain",
    "read_if_whole",
]

ARCHIVE_MEMBERS_KEPT: Final = 1_000_000
"""Some 200 bytes each, so that a stream need not list all archives again."""

FILE_UNCHANGED_SECONDS: Final = 5.0
"""An unreadable block file that was changed within this time is taken for unfinished: some writers do not
write under another name first."""
FILE_WRITE_SECONDS_MAX: Final = 300.0
"""Longest wait of a reader that follows a folder for a file that is being written."""
FILE_LOOK_SECONDS: Final = 0.2
"""Time between two looks at it."""

NO_BLOCKS: Final = "no block files (N.blk, N.blk.gz, N.blk.zst, alone or in a zip or a tar)"
_ALL: Final = NumberRange()


class BlockPlace(NamedTuple):
    """The place of one block. Of millions a tuple is made in a third of a dataclass's time."""

    number: int
    path: str
    """Of the block file or the archive."""
    member: str = ""
    """Its name in the archive."""
    entry: int = -1
    """Its position in the archive; -1: the block has its own file."""
    size_bytes: int = -1
    """Stored size of the member."""
    changed_ns: int = 0
    """The time of the archive's last change, as listed."""

    def __str__(self) -> str:
        return self.path if self.entry < 0 else f"{self.path}!{self.member}"

    @property
    def name(self) -> str:
        """The last part of its name."""
        return (self.path if self.entry < 0 else self.member).rsplit("/", 1)[-1]


@dataclass(frozen=True, slots=True)
class BlockFileState:
    """The state of an unread file."""

    size_bytes: int
    changed_ns: int
    identity: tuple[int, int] | None = None
    """The same for all names of one file; None: unknown."""


class FileStore(Protocol):
    """A disk or an object store. A method raises OSError for an unreadable file, `walk` BlockListError."""

    def is_folder(self, path: str) -> bool | None:
        """Return whether a path is a folder; None: nothing is there."""

    def parts(self, path: str) -> Sequence[str]:
        """Return the known folders and the name of a path."""

    def walk(self, root: str) -> Iterator[tuple[str, list[str]]]:
        """Yield each folder, the root first, with the names of its files, sorted."""

    def state(self, path: str) -> BlockFileState:
        """Return the state of a file."""

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading."""

    def is_being_written(self, path: str) -> bool:
        """Return whether a file has just been changed."""


class WritableStore(FileStore, Protocol):
    """A store that is also written to. A method raises OSError if it refuses."""

    def put(self, path: str, data: bytes | mmap.mmap, part: str) -> None:
        """Write a file, and its folders; it appears whole or not at all.

        `part` is its temporary path, in a hidden folder; an object store needs none.
        """

    def flush(self, folder: str) -> None:
        """Make the names in a folder durable."""

    def remove(self, path: str) -> None:
        """Remove a file, and folders that are empty without it. It may be gone already."""

    def remove_folder(self, path: str) -> None:
        """Remove a folder of temporary files, which may be gone already."""


class LocalStore:
    """The files of a disk."""

    def is_folder(self, path: str) -> bool | None:
        """See `FileStore`."""
        found = Path(path)
        if found.is_dir():
            return True
        return False if found.exists() or found.is_symlink() else None

    def parts(self, path: str) -> Sequence[str]:
        """See `FileStore`; from the root of the file system on."""
        return Path(path).absolute().parts

    def walk(self, root: str) -> Iterator[tuple[str, list[str]]]:
        """See `FileStore`. A folder that disappears had no blocks: a block node removes empty folders."""
        pending, seen = [root], set()
        while pending:
            folder = pending.pop()
            try:
                status = Path(folder).stat()
                if (status.st_dev, status.st_ino) in seen:  # a link back, or a second link
                    continue
                seen.add((status.st_dev, status.st_ino))
                with os.scandir(folder) as entries:
                    listed = list(entries)
            except OSError as error:
                if isinstance(error, FileNotFoundError) and folder != root:
                    continue
                raise BlockListError(folder, _reason(error)) from error
            names, below = [], []
            for entry in listed:
                # A folder with the name of a block file is reported when it is read, and so is a link to
                # itself.
                is_file = entry.is_file(follow_symlinks=False)
                if is_file or is_block_name(entry.name) or not entry.is_dir():
                    names.append(entry.name)
                elif not is_passed_over(entry.name):
                    below.append(entry.path)
            names.sort()
            yield folder, names
            pending.extend(sorted(below, reverse=True))

    def state(self, path: str) -> BlockFileState:
        """See `FileStore`."""
        status = Path(path).stat()
        return BlockFileState(status.st_size, status.st_mtime_ns, (status.st_dev, status.st_ino))

    def open(self, path: str) -> BinaryIO:
        """See `FileStore`."""
        return open_regular(Path(path))

    def is_being_written(self, path: str) -> bool:
        """See `FileStore`."""
        try:
            changed_at = Path(path).stat().st_mtime
        except OSError:
            return False
        return abs(time.time() - changed_at) <= FILE_UNCHANGED_SECONDS

    def put(self, path: str, data: bytes | mmap.mmap, part: str) -> None:
        """See `WritableStore`."""
        temporary = Path(part)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        temporary.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise

    def flush(self, folder: str) -> None:
        """See `WritableStore`."""
        sync_folder(Path(folder))

    def remove(self, path: str) -> None:
        """See `WritableStore`."""
        Path(path).unlink(missing_ok=True)
        with suppress(OSError):  # one that is not empty
            for folder in Path(path).parents:
                folder.rmdir()

    def remove_folder(self, path: str) -> None:
        """See `WritableStore`."""
        shutil.rmtree(path, ignore_errors=True)


# --- finding ------------------------------------------------------------------------------------------------


def find_blocks(
    store: FileStore, sources: Sequence[str], numbers: NumberRange = _ALL, *, is_growing: bool = False
) -> list[BlockPlace]:
    """Find the blocks of some folders, files, archives and globs.

    Args:
        sources: paths and globs; an existing name with a `*` is a path.
        is_growing: files are being written, so incomplete or missing archives have no blocks.

    Returns:
        One place for each block, by number; numbers may be missing.

    Raises:
        BlockListError: a source is missing or unreadable, an archive is damaged, or two places hold different
            blocks of one number.
    """
    found: dict[int, BlockPlace] = {}
    again = []
    first, end = numbers.first, numbers.end
    for source in sources:
        for place in _places(store, source, is_growing):
            if not (first <= place.number and (end is None or place.number < end)):
                continue
            known = found.setdefault(place.number, place)
            if known is not place and (known.path, known.entry) != (place.path, place.entry):
                again.append(place)
    if again:
        with BlockFileReader(store) as one, BlockFileReader(store) as other:
            comparison = _Comparison(store, is_growing, one, other)
            for place in again:
                found[place.number] = comparison.one_of(found[place.number], place)
    return [found[number] for number in sorted(found)]


def blocks_in(path: Path, numbers: NumberRange = _ALL) -> list[BlockPlace]:
    """Find the blocks of one folder, file or archive on a disk."""
    return find_blocks(LocalStore(), [str(path)], numbers)


def check_no_gaps(where: str, places: Sequence[BlockPlace]) -> None:
    """Raises BlockListError, naming `where`, if there is no block, or a number is missing."""
    if not places:
        raise BlockListError(where, NO_BLOCKS)
    for one, following in itertools.pairwise(places):
        if following.number != one.number + 1:
            raise missing_before(where, one.number + 1, following)


def missing_before(where: str, first: int, later: BlockPlace) -> BlockListError:
    """Return the error that names the blocks missing from `first` to before a place."""
    return BlockListError(where, missing_text(first, later.number, later.name))


def missing_text(first: int, end: int, later: str) -> str:
    """Name the blocks that are missing from `first` to before `end`, which is at `later`."""
    missing = f"block {first} is" if end == first + 1 else f"blocks {first} to {end - 1} are"
    return f"{missing} missing (before {later})"


def read_chain(folder: Path) -> Iterator[Block]:
    """Return the blocks of a folder in order, read one by one."""
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
    digits = bucket_digits(store.parts(folder))
    open_blocks = unfinished(names)
    for name in wanted:
        number = number_of_name(name, digits)
        if number is not None:
            if name not in open_blocks:
                yield BlockPlace(number, folder + name)
        elif is_archive_name(name):
            yield from _members(store, folder + name, is_growing)


class ArchiveLists:
    """The archive members listed last, `members_max` in all."""

    def __init__(self, members_max: int = ARCHIVE_MEMBERS_KEPT) -> None:
        self._members_max = members_max
        self._lists: dict[tuple[str, BlockFileState], tuple[ArchiveMember, ...]] = {}  # the oldest first

    def members(self, store: FileStore, path: str, state: BlockFileState) -> tuple[ArchiveMember, ...]:
        """Return the blocks in an archive. Raises OSError or ArchiveError if it cannot be listed."""
        lists = self._lists
        members = lists.pop((path, state), None)
        if members is None:
            with store.open(path) as file:
                members = tuple(Archive(file, state.size_bytes).members())
        lists[path, state] = members
        while len(lists) > 1 and sum(map(len, lists.values())) > self._members_max:
            del lists[next(iter(lists))]
        return members


_lists = ArchiveLists()


def _members(store: FileStore, path: str, is_growing: bool) -> Iterator[BlockPlace]:
    try:
        state = store.state(path)
        members = _lists.members(store, path, state)
    except (OSError, ArchiveError) as error:
        if is_growing and (isinstance(error, FileNotFoundError) or store.is_being_written(path)):
            return
        raise BlockListError(path, _reason(error)) from error
    for member in members:
        yield BlockPlace(member.number, path, member.name, member.entry, member.size_bytes, state.changed_ns)


def _reason(error: OSError | ArchiveError) -> str:
    """One line: an object store may say more."""
    text = error.strerror if isinstance(error, OSError) else error.reason
    return (text or str(error) or type(error).__name__).split("\n", 1)[0]


# --- reading ------------------------------------------------------------------------------------------------


class BlockFileReader:
    """A reader of blocks, fastest in stored order: the last archive stays open. Use with `with`."""

    def __init__(self, store: FileStore) -> None:
        self._store = store
        self._file: BinaryIO | None = None
        self._open: tuple[tuple[str, int], Archive] | None = None

    def __enter__(self) -> BlockFileReader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the open archive."""
        self._open = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def read(self, place: BlockPlace) -> Block:
        """Read one block. Raises BlockFileError as `decode_block`, or if it is unreadable."""
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


def read_if_whole(store: FileStore, reader: BlockFileReader, place: BlockPlace) -> Block | None:
    """Read a block whose file may still be written to; None: it is, and has no whole block yet.

    A file that was not changed lately is whole. Raises as `BlockFileReader.read`.
    """
    if place.entry >= 0 or not store.is_being_written(place.path):
        return reader.read(place)
    with suppress(BlockFileError, ItemError):
        block = reader.read(place)
        # A file cut off between two items can be read; a whole one ends with a proof.
        if kind_of(block.items[-1]) == ItemKind.BLOCK_PROOF:
            return block
    return None


class _Comparison:
    """Compares blocks that lie in two places."""

    def __init__(self, store: FileStore, is_growing: bool, *readers: BlockFileReader) -> None:
        self._store = store
        self._is_growing = is_growing
        self._readers = readers

    def one_of(self, one: BlockPlace, other: BlockPlace) -> BlockPlace:
        """Return the place from which to read a block. Raises BlockListError if they differ or are
        unreadable.
        """
        try:
            states = [self._store.state(place.path) for place in (one, other)]
        except OSError:  # a block node removes files that it has put into a zip
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
"""Pairs of places with the same block, and the states of their files."""
