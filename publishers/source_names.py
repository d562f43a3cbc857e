"""What `sluice publish --source` names: one of a few formats, and where the blocks lie.

blockfiles:PATH        a folder of block files, or the URL of one in an object store
datastream:PATH        a stream file, or the data folder of a node
datastream:HOST:PORT   a data streamer over TCP; a comma list of several
blockstream:HOST:PORT  the gRPC address of a node; a comma list of several
parquet:PATH           a lake table of block_number and items, by its path
table:NAME             the same by its name in Spark's catalog
PATH                   whichever of them is there, else a folder of block files
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, get_args

from datastream.layout import HEADER_OFFSET, MAGIC
from gateway.addresses import parse_addresses
from gateway.errors import AddressError
from publishers.errors import OptionError
from publishers.spark.options import required
from publishers.stream_runs import STREAM_FILE_NAME

__all__ = ["SourceKind", "SourceName", "parse_source"]

SourceKind = Literal["blockfiles", "datastream", "blockstream", "parquet", "table"]
"""The formats."""

_PREFIX: Final = re.compile(r"(?P<word>[A-Za-z_][A-Za-z0-9_-]*):(?!//)(?P<rest>.*)", re.DOTALL)
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_BLOCK_FILE: Final = re.compile(r"[0-9]+\.blk(\.gz|\.zst)?")
_FORMS: Final = (
    "a folder of block files, blockfiles:PATH, datastream:PATH, datastream:HOST:PORT, blockstream:HOST:PORT, "
    "parquet:PATH or table:NAME"
)


@dataclass(frozen=True, slots=True)
class SourceName:
    """A source, named and not yet looked into."""

    kind: SourceKind
    location: str
    """Path (absolute), URL, addresses or name, as the format has it."""
    is_server: bool = False
    """With `datastream`: whether it is read over TCP."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Further options of the format."""

    def __str__(self) -> str:
        """Write it so that it can be read again."""
        return f"{self.kind}:{self.location}"


def parse_source(text: str, options: Mapping[str, str] | None = None) -> SourceName:
    """Read the name of a source; of one without a format, look what is there.

    Args:
        text: as given.
        options: of the format.

    Raises:
        OptionError: it cannot be told what it is, or it is not there.
    """
    given = dict(options or {})
    text = required({"source": text}, "source", _FORMS)
    match = _PREFIX.fullmatch(text)
    if match is not None and match["word"].lower() in get_args(SourceKind):
        return _named(match["word"].lower(), match["rest"].strip(), given)
    if _URL.match(text):
        return SourceName("blockfiles", text, options=given)
    path = Path(text)
    if path.exists():
        return _found(path, given)
    if _is_addresses(text):
        expected = f"blockstream:{text} for a node's gRPC address, or datastream:{text} for a data streamer"
        raise OptionError("source", f"{text!r}, which may be either", expected)
    if match is not None and "/" not in match["word"]:
        raise OptionError("source", f"{text!r}, a format that is not known", _FORMS)
    raise OptionError("source", f"{text!r}, which is not there", _FORMS)


def _named(kind: str, location: str, options: dict[str, str]) -> SourceName:
    if not location:
        raise OptionError("source", f"{kind}: and nothing", f"{kind}: and where the blocks are")
    if kind == "table":
        return SourceName("table", location, options=options)
    if kind == "blockstream":
        if not _is_addresses(location):
            raise OptionError("source", repr(f"{kind}:{location}"), "blockstream:HOST:PORT")
        return SourceName("blockstream", location, options=options)
    if kind == "datastream" and not Path(location).exists() and _is_addresses(location):
        return SourceName("datastream", location, is_server=True, options=options)
    if _URL.match(location) and kind != "datastream":
        return SourceName("parquet" if kind == "parquet" else "blockfiles", location, options=options)
    path = Path(location)
    if not path.exists():
        raise OptionError("source", f"{location!r}, which is not there", f"a path after {kind}:")
    absolute = str(path.absolute())
    if kind == "parquet":
        return SourceName("parquet", absolute, options=options)
    if kind == "datastream":
        return SourceName("datastream", absolute, options=options)
    if not path.is_dir():
        raise OptionError("source", f"{location!r}, which is a file", "the folder that block files are in")
    return SourceName("blockfiles", absolute, options=options)


def _found(path: Path, options: dict[str, str]) -> SourceName:
    """Look at what is there."""
    absolute = str(path.absolute())
    if path.is_dir():
        names = [child.name for child in path.iterdir()]
        if any(_BLOCK_FILE.fullmatch(name) for name in names):
            return SourceName("blockfiles", absolute, options=options)
        if STREAM_FILE_NAME in names:
            return SourceName("datastream", absolute, options=options)
        if any(name.endswith(".parquet") for name in names):
            return SourceName("parquet", absolute, options=options)
        return SourceName("blockfiles", absolute, options=options)
    if path.suffix == ".parquet":
        return SourceName("parquet", absolute, options=options)
    if _is_stream_file(path):
        return SourceName("datastream", absolute, options=options)
    if _BLOCK_FILE.fullmatch(path.name):
        expected = f"the folder {str(path.parent)!r}; --from and --to choose blocks of it"
        raise OptionError("source", f"{str(path)!r}, one block file", expected)
    raise OptionError("source", f"{str(path)!r}, a file of no kind that is known", _FORMS)


def _is_stream_file(path: Path) -> bool:
    if not path.is_file():  # to open a pipe waits for who writes to it
        return False
    with path.open("rb") as file:
        return file.read(HEADER_OFFSET) == MAGIC


def _is_addresses(text: str) -> bool:
    try:
        parse_addresses(text, port_min=1)
    except AddressError:
        return False
    return True
