"""The names of `sluice publish --source`: a format, and where the blocks are.

A path without a format is what lies there, or else a folder of block files. Several sources of block files
are one chain together.
Source: docs/spark.md, "sluice publish".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, get_args

from sluice.datastream.layout import HEADER_OFFSET, MAGIC
from sluice.gateway.addresses import parse_addresses
from sluice.gateway.errors import AddressError
from sluice.publishers.blocks.block_layouts import has_glob, is_archive_name, is_block_name
from sluice.publishers.errors import OptionError
from sluice.publishers.sources.stream_runs import STREAM_FILE_NAME
from sluice.publishers.spark.options import required

__all__ = ["SourceKind", "SourceName", "parse_source", "parse_sources"]

SourceKind = Literal["blockfiles", "datastream", "blockstream", "server", "file", "parquet", "table"]
_KINDS: Final[tuple[SourceKind, ...]] = get_args(SourceKind)

_PREFIX: Final = re.compile(r"(?P<word>[A-Za-z_][A-Za-z0-9_-]*):(?!//)(?P<rest>.*)", re.DOTALL)
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_FORMS: Final = (
    "a folder or archive of block files, blockfiles:PATH, datastream:PATH, datastream:HOST:PORT, "
    "blockstream:HOST:PORT, server:HOST:PORT, file:PATH, parquet:PATH or table:NAME"
)
NETWORK_KINDS: Final = frozenset(("server", "file"))
"""The sources with the entries of a network's stream, of which blocks are made."""


@dataclass(frozen=True, slots=True)
class SourceName:
    """A source by its name; nothing of it is read yet."""

    kind: SourceKind
    location: str
    """An absolute path, a URL, addresses or a name."""
    is_server: bool = False
    """True for a `datastream` over TCP, and for `server`."""
    options: Mapping[str, str] = field(default_factory=dict)
    """The options of the format."""
    further: tuple[str, ...] = ()
    """Further locations of `blockfiles`."""

    @property
    def is_network(self) -> bool:
        """True if blocks are made of the entries of a network's stream."""
        return self.kind in NETWORK_KINDS

    @property
    def locations(self) -> tuple[str, ...]:
        """All locations."""
        return (self.location, *self.further)

    def __str__(self) -> str:
        """Return the text that can be parsed again."""
        return " ".join(f"{self.kind}:{location}" for location in self.locations)


def parse_sources(texts: Sequence[str], options: Mapping[str, str] | None = None) -> SourceName:
    """Parse the names of one source or, of block files, several.

    Raises OptionError.
    """
    sources = [parse_source(text, options) for text in texts]
    for source in sources:
        if len(sources) > 1 and source.kind != "blockfiles":
            raise OptionError("source", f"{source} among several", "block files, where there are several")
    return replace(sources[0], further=tuple(source.location for source in sources[1:]))


def parse_source(text: str, options: Mapping[str, str] | None = None) -> SourceName:
    """Parse the name of a source; without a format, what is there decides.

    Raises OptionError.
    """
    given = dict(options or {})
    text = required({"source": text}, "source", _FORMS)
    match = _PREFIX.fullmatch(text)
    for kind in _KINDS:
        if match is not None and match["word"].lower() == kind:
            return _named(kind, match["rest"].strip(), given)
    if _URL.match(text):
        return SourceName("blockfiles", text, options=given)
    path = Path(text)
    if path.exists():
        return SourceName(_kind_at(path), str(path.absolute()), options=given)
    if has_glob(text) and not _is_addresses(text):
        return SourceName("blockfiles", str(path.absolute()), options=given)
    if _is_addresses(text):
        expected = f"blockstream:{text} for a node's gRPC address, or datastream:{text} for a data streamer"
        raise OptionError("source", f"{text!r}, which may be either", expected)
    if match is not None and "/" not in match["word"]:
        raise OptionError("source", f"{text!r}, a format that is not known", _FORMS)
    raise OptionError("source", f"{text!r}, which is not there", _FORMS)


def _named(kind: SourceKind, location: str, options: dict[str, str]) -> SourceName:
    if not location:
        raise OptionError("source", f"{kind}: and nothing", f"{kind}: and where the blocks are")
    if kind == "table":
        return SourceName("table", location, options=options)
    if kind == "blockstream":
        if not _is_addresses(location):
            raise OptionError("source", repr(f"{kind}:{location}"), "blockstream:HOST:PORT")
        return SourceName("blockstream", location, options=options)
    if kind == "server":
        if not _is_addresses(location):
            raise OptionError("source", repr(f"server:{location}"), "server:HOST:PORT")
        return SourceName("server", location, is_server=True, options=options)
    if kind == "datastream" and not Path(location).exists() and _is_addresses(location):
        return SourceName("datastream", location, is_server=True, options=options)
    if _URL.match(location) and kind not in ("datastream", "file"):
        return SourceName(kind, location, options=options)
    path = Path(location)
    if not path.exists() and not (kind == "blockfiles" and has_glob(location)):
        raise OptionError("source", f"{location!r}, which is not there", f"a path after {kind}:")
    return SourceName(kind, str(path.absolute()), options=options)


def _kind_at(path: Path) -> SourceKind:
    if path.is_dir():
        names = [child.name for child in path.iterdir()]
        if any(is_block_name(name) or is_archive_name(name) for name in names):
            return "blockfiles"
        if STREAM_FILE_NAME in names:
            return "datastream"
        return "parquet" if any(name.endswith(".parquet") for name in names) else "blockfiles"
    if path.suffix == ".parquet":
        return "parquet"
    if _is_stream_file(path):
        return "datastream"
    if is_block_name(path.name) or is_archive_name(path.name):
        return "blockfiles"
    raise OptionError("source", f"{str(path)!r}, a file of no kind that is known", _FORMS)


def _is_stream_file(path: Path) -> bool:
    if not path.is_file():  # opening a pipe would wait for a writer
        return False
    with path.open("rb") as file:
        return file.read(HEADER_OFFSET) == MAGIC


def _is_addresses(text: str) -> bool:
    try:
        parse_addresses(text, port_min=1)
    except AddressError:
        return False
    return True
