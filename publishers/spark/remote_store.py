"""An object store, or HDFS, as a store of block files: `pyarrow.fs`, which comes with the extra `spark`.

It has S3, Google storage (gs), Azure (abfss) and HDFS, with the usual environment variables for credentials.
A Python data source cannot reach Spark's Hadoop connectors in the JVM.
"""

from __future__ import annotations

import io
import mmap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, BinaryIO, Final
from urllib.parse import urlsplit

from pyarrow import fs, py_buffer

from sluice.gateway.archive.errors import ArchiveRefused, ArchiveUnavailable
from sluice.gateway.archive.objects import ArchiveStore, open_store
from sluice.gateway.errors import Fatal
from sluice.publishers.blocks.block_layouts import has_glob, split_glob
from sluice.publishers.blocks.block_places import BlockFileState
from sluice.publishers.errors import BlockListError

__all__ = ["RemoteStore"]

_SAME_SCHEMES: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss"}
_OBJECT_STORES: Final = ("s3", "gcs", "abfs")
_ONE_PUT: Final = "?allow_delayed_open=true"
"""Otherwise a small object takes three requests."""
_FETCH_BYTES: Final = 1 << 20  # of an archive, whose members are mostly read in order


class RemoteStore:
    """An object store, given a URL of anything in it."""

    def __init__(self, url: str) -> None:
        self._url = url

    def is_folder(self, path: str) -> bool | None:
        """Return whether a path is a folder; None: nothing is there."""
        from pyarrow import fs

        kind = self._info(path).type
        return None if kind == fs.FileType.NotFound else bool(kind == fs.FileType.Directory)

    def parts(self, path: str) -> Sequence[str]:
        """Cut a path into parts, from the bucket on."""
        return [part for part in path.split("/") if part]

    def walk(self, root: str) -> Iterator[tuple[str, list[str]]]:
        """Yield each folder with the names of its files, sorted."""
        with _named(self._url):
            found = self._system().get_file_info(fs.FileSelector(root, recursive=True))
        yield from _by_folder(info.path for info in found if info.type == fs.FileType.File)

    def behind(self, path: str) -> RemoteStore | None:
        """Return the same store, whose `walk` has only the names behind `path`; None: it cannot do that.

        S3 and Google storage list names in order. pyarrow.fs always begins at the first; `obstore`, of the
        extra `archive`, does not.
        """
        objects = _objects(self._url)
        return None if objects is None else _LaterFiles(self._url, objects, path)

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

    def root(self) -> str:
        """Return the path, or glob, of the URL in the store; raise BlockListError if it has no such store."""
        with _named(self._url):
            return _connect(self._url)[1]


class _LaterFiles(RemoteStore):
    def __init__(self, url: str, objects: ArchiveStore, path: str) -> None:
        super().__init__(url)
        self._objects = objects
        self._path = path

    def walk(self, root: str) -> Iterator[tuple[str, list[str]]]:
        bucket, _, folder = root.strip("/").partition("/")
        after = self._path.removeprefix(f"{bucket}/")
        try:
            found = list(self._objects.names(f"{folder}/" if folder else "", after))
        except (ArchiveUnavailable, ArchiveRefused) as error:
            raise BlockListError(root, _first_line(error)) from error
        yield from _by_folder(f"{bucket}/{name}" for name in found)


@lru_cache(maxsize=8)
def _objects(url: str) -> ArchiveStore | None:
    """Return the bucket of a URL as `obstore` reads it, if that can be."""
    parts = urlsplit(url)
    scheme = _SAME_SCHEMES.get(parts.scheme.lower(), parts.scheme.lower())
    if scheme not in ("s3", "gs") or "@" in parts.netloc:  # keys in a URL are for pyarrow
        return None
    try:
        return open_store(f"{scheme}://{parts.netloc}")
    except Fatal:
        return None


def _by_folder(paths: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    folders: dict[str, list[str]] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        folders.setdefault(folder, []).append(name)
    for folder in sorted(folders):
        yield folder, sorted(folders[folder])


@lru_cache(maxsize=8)
def _connect(path: str) -> tuple[Any, str]:
    """Return the file system, and the root or glob in it."""
    scheme, _, rest = path.partition("://")
    scheme, pattern = scheme.lower(), ""
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
