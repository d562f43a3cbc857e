"""The places that `blockfiles` reads and writes: on a disk that all workers see, or in an object store.

    chain/  chain/00/0.zip  blocks/**/*.zip     paths and globs         read with the file system
    file:///data/chain                          a URL of one            read with the file system
    s3://bucket/chain                           an object store, HDFS   read with pyarrow.fs; s3a, s3n mean s3

A Python data source cannot reach Spark's Hadoop connectors in the JVM. `pyarrow.fs` has S3, Google storage
(gs), Azure (abfss) and HDFS, with the usual environment variables for credentials.
"""

from __future__ import annotations

import io
import mmap
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import unquote, urlsplit

from pyarrow import fs, py_buffer

from sluice.publishers.blocks.block_layouts import has_glob, split_glob
from sluice.publishers.blocks.block_places import (
    BlockFileReader,
    BlockFileState,
    BlockPlace,
    FileStore,
    LocalStore,
    WritableStore,
    find_blocks,
)
from sluice.publishers.errors import BlockListError, OptionError
from sluice.publishers.number_range import NumberRange

__all__ = ["BlockFolders", "RemoteStore", "folder_of", "target_of"]

_URL: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+)://")
_SAME_SCHEMES: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss"}
_OBJECT_STORES: Final = ("s3", "gcs", "abfs")
_ONE_PUT: Final = "?allow_delayed_open=true"
"""Otherwise a small object takes three requests."""
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

    def put(self, path: str, data: bytes | mmap.mmap, part: str) -> None:
        """Write a file; one put in an object store, else a temporary file that is then renamed."""
        system = self._system()
        with _as_os_error():
            if system.type_name in _OBJECT_STORES:
                self._write(path, data)
                return
            for folder in (path, part):
                system.create_dir(folder.rpartition("/")[0], recursive=True)
            self._write(part, data)
            if system.get_file_info([path])[0].type == fs.FileType.File:  # HDFS renames to a new name only
                system.delete_file(path)
            system.move(part, path)

    def _write(self, path: str, data: bytes | mmap.mmap) -> None:
        buffer = py_buffer(data)
        file = self._system().open_output_stream(path, compression=None)  # not again, by its name
        # Closing makes an object of what came, so all of it goes in by one call. After an error of the store
        # closing fails.
        try:
            file.write(buffer)
        finally:
            file.close()

    def flush(self, folder: str) -> None:
        """Do nothing: a store has done so."""

    def remove(self, path: str) -> None:
        """Remove a file."""
        with suppress(FileNotFoundError), _as_os_error():
            self._system().delete_file(path)

    def remove_folder(self, path: str) -> None:
        """Remove a folder of temporary files, which an object store does not have."""
        system = self._system()
        if system.type_name not in _OBJECT_STORES:
            with suppress(OSError), _as_os_error():
                system.delete_dir(path)

    def _info(self, path: str) -> Any:
        with _as_os_error():
            return self._system().get_file_info([path])[0]

    def _system(self) -> Any:
        return _connect(self._url)[0]


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
    with _named(path):
        return RemoteStore(path), _connect(path)[1]


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
    url = f"{_SAME_SCHEMES.get(scheme, scheme)}://{rest}"
    if url.startswith("s3:"):
        with suppress(ValueError):  # an option that older versions do not know
            system, root = fs.FileSystem.from_uri(url + _ONE_PUT)
            return system, root.rstrip("/") + (f"/{pattern}" if pattern else "")
    system, root = fs.FileSystem.from_uri(url)
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
