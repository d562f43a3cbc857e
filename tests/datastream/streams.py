"""Small streams for tests, and helpers to make them."""

from __future__ import annotations

import contextlib
import gzip
import shutil
from collections.abc import Sequence
from pathlib import Path

from sluice.datastream.file.bookmarks import LAST_KEY
from sluice.datastream.file.index_database import COVERED_KEY, UPDATE_KEY, own_folder, plyvel
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.layout import BOOKMARK_TYPE, Entry
from tests.reference_data import STREAM

Item = tuple[int, bytes]
"""(entry type, data); type 0xb0 is a bookmark."""


def bookmark(number: int) -> Item:
    return BOOKMARK_TYPE, b"\0" + number.to_bytes(8, "big")


def add(streamer: DataStreamer, items: Sequence[Item]) -> list[int]:
    """Add items to the open operation; return their entry numbers."""
    return [
        streamer.add_stream_bookmark(data) if kind == BOOKMARK_TYPE else streamer.add_stream_entry(kind, data)
        for kind, data in items
    ]


def commit(streamer: DataStreamer, *items: Item, flush: bool = False) -> list[int]:
    """Commit one operation; return the entry numbers."""
    streamer.start_atomic_op()
    numbers = add(streamer, items)
    streamer.commit_atomic_op(flush=flush)
    return numbers


def entries(*items: Item) -> list[Entry]:
    """Return the entries that a stream of these items holds."""
    return [Entry(kind, number, data) for number, (kind, data) in enumerate(items)]


def operation(number: int) -> tuple[Item, ...]:
    """Return a small operation like those of the demo app: two bookmarks, three events."""
    return (
        bookmark(number),
        (BOOKMARK_TYPE, b"\1" + number.to_bytes(8, "big")),
        (1, f"start {number}".encode()),
        (2, b"x" * (number % 97)),
        (3, f"end {number}".encode()),
    )


def change_database(folder: Path, **changes: bytes | None) -> None:
    """Put or delete (None) bookmarks and our keys behind the streamer's back."""
    for key, value in changes.items():
        name = COVERED_KEY if key == "covered" else key.encode()
        is_own = name.startswith(b"sluice/") and name != UPDATE_KEY
        with contextlib.closing(plyvel.DB(str(own_folder(folder) if is_own else folder))) as database:
            if value is None:
                database.delete(name)
            else:
                database.put(name, value)


def pairs_in(folder: Path) -> dict[bytes, bytes]:
    """Return what a LevelDB holds."""
    with contextlib.closing(plyvel.DB(str(folder))) as database:
        return dict(database)


def stored_in(folder: Path) -> dict[bytes, bytes]:
    """Return the bookmarks and our keys of a bookmark folder."""
    return {**pairs_in(folder), **pairs_in(own_folder(folder))}


def make_old(folder: Path) -> None:
    """Turn a bookmark folder into one of an earlier version: one DB for bookmarks and our keys."""
    keys = pairs_in(own_folder(folder))
    keys.pop(LAST_KEY, None)
    shutil.rmtree(own_folder(folder))
    with contextlib.closing(plyvel.DB(str(folder))) as database:
        for key, value in keys.items():
            database.put(key, value)


def contents(folder: Path) -> frozenset[tuple[str, bytes]]:
    """Return the bytes of the files below a folder, without LevelDB's logs for people; it may be gone."""
    paths = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("LOG"))
    return frozenset((str(path.relative_to(folder)), path.read_bytes()) for path in paths)


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def u64(number: int) -> bytes:
    return number.to_bytes(8, "big")


def sample_file(folder: Path) -> Path:
    """Unpack the zkEVM sample into `folder`; for tests with the mark `needs_stream`."""
    path = folder / "sample.bin"
    path.write_bytes(gzip.decompress(STREAM.read_bytes()))
    return path
