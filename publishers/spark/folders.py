"""A folder of block files: on a disk that all workers see, or in an object store.

    chain/                  a path                          read with the file system
    file:///data/chain      a URL of it                     read with the file system
    s3://bucket/chain       an object store or HDFS         read with pyarrow.fs; s3a and s3n mean s3

Spark's own Hadoop connectors are in the JVM and not within reach of a Python data source; `pyarrow.fs` has
S3, Google storage (gs), Azure (abfss) and HDFS, with the usual environment variables for credentials.
"""

from __future__ import annotations

import re
import time
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from pyarrow import fs

from gateway.block import Block
from publishers import limits
from publishers.block_files import (
    list_block_files,
    numbered_block_files,
    read_block_file,
    read_block_from,
)
from publishers.errors import BlockFileError, BlockListError, OptionError

__all__ = ["BlockFolder", "folder_of"]

_URL: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+)://")
_SAME_SCHEMES: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss"}


def folder_of(path: str, option: str = "path") -> Path:
    """Make a folder of what an option says: a path, or a file: URL.

    Args:
        path: as it was given.
        option: for the error.

    Raises:
        OptionError: it is the URL of something that is not on a disk.
    """
    match = _URL.match(path)
    if match is not None and match["scheme"].lower() != "file":
        raise OptionError(option, repr(path), "a path, or a file: URL")
    parts = urlsplit(path)
    return Path(unquote(parts.path)) if parts.scheme == "file" else Path(path)


class BlockFolder:
    """One folder; it travels to the workers, and connects where it is used.

    Args:
        path: a path or a URL, as `load` was given it.

    Raises:
        OptionError: there is none.
    """

    def __init__(self, path: str) -> None:
        if not path.strip():
            raise OptionError("path", "nothing", "the folder of block files")
        self.path = path

    @property
    def is_remote(self) -> bool:
        """Whether it is read with pyarrow.fs."""
        match = _URL.match(self.path)
        return match is not None and match["scheme"].lower() != "file"

    def files(self) -> list[tuple[int, str]]:
        """List the block files by number: pairs of block number and full path.

        Raises:
            BlockListError: the folder cannot be read, or has a number twice.
        """
        if not self.is_remote:
            return [(number, str(path)) for number, path in list_block_files(folder_of(self.path))]
        try:
            system, root = _connect(self.path)
            found = system.get_file_info(fs.FileSelector(root))
        except (OSError, ValueError, NotImplementedError) as error:
            raise BlockListError(self.path, _first_line(error)) from error
        names = [info.base_name for info in found if info.type == fs.FileType.File]
        return [(number, f"{root}/{name}") for number, name in numbered_block_files(self.path, names)]

    def read(self, path: str) -> Block:
        """Read one of the files.

        Args:
            path: as `files` gave it.

        Raises:
            BlockFileError: it cannot be read, or holds no block.
        """
        if not self.is_remote:
            return read_block_file(Path(path))
        try:
            system, _ = _connect(self.path)
            with system.open_input_file(path) as file:
                return read_block_from(file, path)
        except (OSError, ValueError, NotImplementedError) as error:
            raise BlockFileError(path, _first_line(error)) from error

    def is_being_written(self, path: str) -> bool:
        """Whether somebody has changed one of the files a moment ago. What an object store shows is whole."""
        if self.is_remote:
            return False
        try:
            changed_at = Path(path).stat().st_mtime
        except OSError:
            return False
        return abs(time.time() - changed_at) <= limits.FILE_REST_SECONDS


@lru_cache(maxsize=8)
def _connect(path: str) -> tuple[Any, str]:
    """Give the file system and the root in it; each process keeps its connections."""
    match = _URL.match(path)
    assert match is not None
    scheme = match["scheme"].lower()
    rest = path[match.end() :]
    system, root = fs.FileSystem.from_uri(f"{_SAME_SCHEMES.get(scheme, scheme)}://{rest}")
    return system, root.rstrip("/")


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).split("\n", 1)[0]
