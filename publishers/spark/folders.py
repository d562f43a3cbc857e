"""The places that `blockfiles` reads: on a disk that all workers see, or in an object store.

    chain/  chain/00/0.zip  blocks/**/*.zip     paths and globs         read with the file system
    file:///data/chain                          a URL of one            read with the file system
    s3://bucket/chain                           an object store, HDFS   read with pyarrow.fs; s3a, s3n mean s3

A Python data source cannot reach Spark's Hadoop connectors in the JVM. `pyarrow.fs` has S3, Google storage
(gs), Azure (abfss) and HDFS, with the usual environment variables for credentials.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import unquote, urlsplit

from pyarrow import fs

from sluice.publishers.blocks.block_layouts import has_glob, split_glob
from sluice.publishers.blocks.block_places import (
    BlockFileReader,
    BlockFileState,
    BlockPlace,
    FileStore,
    LocalStore,
    find_blocks,
)
from sluice.publishers.errors import BlockListError, OptionError
from sluice.publishers.number_range import NumberRange

__all__ = ["BlockFolders", "RemoteStore", "folder_of"]

_URL: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+)://")
_SAME_SCHEMES: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss"}
_FETCH_BYTES: Final = 1 << 20  # of an archive, whose members are mostly read in order
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

    def blocks(self, numbers: NumberRange = _ALL, *, is_growing: bool = False) -> list[BlockPlace]:
        """Find the blocks, in order of number; see `find_blocks`."""
        if not self.is_remote:
            sources = [str(folder_of(path)) for path in self._paths]
            return find_blocks(self.store(), sources, numbers, is_growing=is_growing)
        with _named(self.path):
            sources = [_connect(path)[1] for path in self._paths]
        return find_blocks(self.store(), sources, numbers, is_growing=is_growing)

    def store(self) -> FileStore:
        """Return the store of the files."""
        return RemoteStore(self._paths[0]) if self.is_remote else LocalStore()

    def reader(self) -> BlockFileReader:
        """Return a reader of the blocks."""
        return BlockFileReader(self.store())


class RemoteStore:
    """An object store, given a URL of anything in it."""

    def __init__(self, url: str) -> None:
        self._url = url

    def is_folder(self, path: str) -> bool | None:
        """Return whether a path is a folder; None: nothing is there."""
        kind = self._info(path).type
        return None if kind == fs.FileType.NotFound else bool(kind == fs.FileType.Directory)

    def parts(self, path: str) -> Sequence[str]:
        """Cut a path into parts, from the bucket on."""
        return [part for part in path.split("/") if part]

    def walk(self, root: str) -> Iterator[tuple[str, list[str]]]:
        """Yield each folder with the names of its files, sorted."""
        with _named(self._url):
            found = self._system().get_file_info(fs.FileSelector(root, recursive=True))
        folders: dict[str, list[str]] = {}
        for info in found:
            if info.type == fs.FileType.File:
                folder, _, name = info.path.rpartition("/")
                folders.setdefault(folder, []).append(name)
        for folder in sorted(folders):
            yield folder, sorted(folders[folder])

    def state(self, path: str) -> BlockFileState:
        """Return size and time of a file."""
        info = self._info(path)
        if info.type == fs.FileType.NotFound:
            raise FileNotFoundError(2, "No such file or directory")
        return BlockFileState(info.size or 0, info.mtime_ns or 0)

    def open(self, path: str) -> BinaryIO:
        """Open a file to read it."""
        with _as_os_error():
            return io.BufferedReader(self._system().open_input_file(path), _FETCH_BYTES)

    def is_being_written(self, path: str) -> bool:
        """Return False: an object store shows whole files only."""
        return False

    def _info(self, path: str) -> Any:
        with _as_os_error():
            return self._system().get_file_info([path])[0]

    def _system(self) -> Any:
        return _connect(self._url)[0]


def _is_remote(path: str) -> bool:
    match = _URL.match(path)
    return match is not None and match["scheme"].lower() != "file"


def _store_name(path: str) -> str:
    parts = urlsplit(path)
    return f"{parts.scheme.lower()}://{parts.netloc}" if _is_remote(path) else ""


@lru_cache(maxsize=8)
def _connect(path: str) -> tuple[Any, str]:
    """Return the file system, and the root or glob in it."""
    match = _URL.match(path)
    assert match is not None
    scheme = match["scheme"].lower()
    rest, pattern = path[match.end() :], ""
    if has_glob(rest):  # which is no part of a URL
        rest, pattern = split_glob(rest)
    system, root = fs.FileSystem.from_uri(f"{_SAME_SCHEMES.get(scheme, scheme)}://{rest}")
    return system, root.rstrip("/") + (f"/{pattern}" if pattern else "")


@contextmanager
def _named(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, NotImplementedError) as error:
        raise BlockListError(path, _first_line(error)) from error


@contextmanager
def _as_os_error() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, ValueError, NotImplementedError) as error:
        raise OSError(_first_line(error)) from error


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).split("\n", 1)[0]
