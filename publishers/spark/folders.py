"""The places that `blockfiles` reads and writes: on a disk that all workers see, or in an object store.

    chain/  chain/00/0.zip  blocks/**/*.zip     paths and globs         read with the file system
    file:///data/chain                          a URL of one            read with the file system
    s3://bucket/chain                           an object store, HDFS   read with pyarrow.fs; s3a, s3n mean s3

Without the extra `spark` there are only disks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from sluice.publishers.blocks.block_layouts import has_glob
from sluice.publishers.blocks.block_places import (
    BlockFileReader,
    BlockPlace,
    FileStore,
    LocalStore,
    WritableStore,
    find_blocks,
)
from sluice.publishers.errors import BlockListError, OptionError
from sluice.publishers.number_range import NumberRange

if TYPE_CHECKING:
    from sluice.publishers.spark.remote_store import RemoteStore

__all__ = ["BlockFolders", "folder_of", "target_of"]

_URL: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+)://")
_ALL: Final = NumberRange()


def folder_of(path: str, option: str = "path") -> Path:
    """Return a path, which may be a file: URL; raise OptionError for another URL."""
    if _is_remote(path):
        raise OptionError(option, repr(path), "a path, or a file: URL")
    parts = urlsplit(path)
    return Path(unquote(parts.path)) if parts.scheme == "file" else Path(path)


class BlockFolders:
    """Folders, files, archives and globs; they travel to the workers, and connect on use.

    Raises:
        OptionError: they are not all on disks or in one object store.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        if not paths or not all(path.strip() for path in paths):
            raise OptionError("path", "nothing", "the folder of block files")
        if len({_store_name(path) for path in paths}) > 1:
            raise OptionError("paths", ", ".join(paths), "paths on disks, or in one object store")
        self.path = ", ".join(paths)
        self._paths = tuple(paths)

    @property
    def is_remote(self) -> bool:
        """True if pyarrow.fs reads them."""
        return _is_remote(self._paths[0])

    def roots(self) -> list[str]:
        """Return the folders, files, archives and globs as the store names them."""
        if self.is_remote:
            return [_remote(path).root() for path in self._paths]
        return [str(folder_of(path)) for path in self._paths]

    def blocks(
        self, numbers: NumberRange = _ALL, *, is_growing: bool = False, store: FileStore | None = None
    ) -> list[BlockPlace]:
        """Find the blocks, in order of number, by another store than `store()` if one is given; see
        `find_blocks`.
        """
        return find_blocks(store or self.store(), self.roots(), numbers, is_growing=is_growing)

    def store(self) -> FileStore:
        """Return the store of the files."""
        return _remote(self._paths[0]) if self.is_remote else LocalStore()

    def behind(self, path: str) -> FileStore | None:
        """Return a store that lists only the names behind a file's; None: a disk, or a store that cannot."""
        return _remote(self._paths[0]).behind(path) if self.is_remote else None

    def reader(self) -> BlockFileReader:
        """Return a reader of the blocks."""
        return BlockFileReader(self.store())


def target_of(path: str) -> tuple[WritableStore, str]:
    """Return the store of a folder to write to, and the folder's path in it.

    Raises:
        OptionError: it is no folder's name.
        BlockListError: the store cannot be connected to.
    """
    if not path.strip():
        raise OptionError("path", "nothing", "the folder to write to, or its URL")
    if not _is_remote(path):
        return LocalStore(), str(folder_of(path).absolute())  # a worker has another working directory
    if has_glob(path):
        raise OptionError("path", repr(path), "a folder, not a glob")
    store = _remote(path)
    return store, store.root()


def _remote(url: str) -> RemoteStore:
    try:
        from sluice.publishers.spark.remote_store import RemoteStore
    except ImportError as error:  # without the extra `spark`
        raise BlockListError(url, f"object stores need the extra spark ({error})") from error
    return RemoteStore(url)


def _is_remote(path: str) -> bool:
    match = _URL.match(path)
    return match is not None and match["scheme"].lower() != "file"


def _store_name(path: str) -> str:
    parts = urlsplit(path)
    return f"{parts.scheme.lower()}://{parts.netloc}" if _is_remote(path) else ""
