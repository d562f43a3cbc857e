"""Bookmark folders that Go programs made: found by their names, adopted, and never another stream's."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import pytest

from sluice.datastream.errors import BookmarksUnavailable, StreamInUse
from sluice.datastream.file.index_database import plyvel
from sluice.datastream.file.streamer import DataStreamer
from tests.datastream.streams import bookmark, commit, pairs_in, stored_in, u64


def make_stream(path: Path, first: int = 0) -> dict[bytes, bytes]:
    """Make a stream without a folder; return its bookmarks, as a Go program keeps them."""
    path.parent.mkdir(exist_ok=True)
    with DataStreamer.open(path, initial_pages=1) as streamer:
        for number in range(first, first + 5):
            commit(streamer, bookmark(number), (1, b"x" * number))
        held = {entry.data: u64(entry.number) for entry in streamer.read_entries(0) if entry.is_bookmark}
    for found in path.parent.glob("*.db"):
        found.unlink() if found.is_symlink() else shutil.rmtree(found)
    return held


def make_folder(folder: Path, pairs: Mapping[bytes, bytes]) -> None:
    with contextlib.closing(plyvel.DB(str(folder), create_if_missing=True)) as database:
        for key, value in pairs.items():
            database.put(key, value)
    (folder / "LOG").write_text(
        "=============== Nov 27, 2026 (UTC) ===============\n04:00:00.1 db@open opening\n"
    )


def check_adopted(path: Path, folder: Path) -> None:
    """Check that our name leads to the folder, and that a Go program finds there what we add."""
    for number in (70, 71):
        with DataStreamer.open(path) as streamer:
            assert streamer.get_bookmark(bookmark(3)[1]) == 6
            commit(streamer, bookmark(number), (1, b"ours"), flush=True)
            with contextlib.suppress(OSError), (folder / "LOCK").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                pytest.fail("a Go program could open the folder")
            newest = {
                entry.data: u64(entry.number) for entry in streamer.read_entries(0) if entry.is_bookmark
            }
        assert pairs_in(folder) == newest
    own = path.with_name(path.name.split(".")[0] + ".db")
    assert os.path.realpath(own) == os.path.realpath(folder)
    assert own == folder or own.is_symlink()


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("s.bin", "s.db"),
        ("s.a.b.bin", "s.a.b.db"),  # of the fork
        ("v1.2/s.bin", "v1.db"),  # of the reference
        ("v1.2/s.a.bin", "v1.db"),
        ("v1.2/s.a.bin", "v1.2/s.a.db"),
        ("v1.2/s.a.bin", "v1.2/s.db"),
        ("v1.2/s.bin", "v1.2/.db"),  # of the reference that was given ./s.bin
    ],
)
def test_a_folder_of_a_go_program_is_adopted(tmp_path: Path, name: str, folder: str) -> None:
    make_folder(tmp_path / folder, make_stream(tmp_path / name))
    check_adopted(tmp_path / name, tmp_path / folder)


def test_a_folder_under_the_name_that_a_link_leads_to_is_adopted(tmp_path: Path) -> None:
    make_folder(tmp_path / "s.db", make_stream(tmp_path / "s.bin"))
    (tmp_path / "other").mkdir()
    link = tmp_path / "other" / "l.k.bin"
    link.symlink_to("../s.bin")
    check_adopted(link, tmp_path / "s.db")
    assert (tmp_path / "other" / "l.db").readlink() == Path("../s.db")


def test_an_empty_folder_beside_the_file_is_adopted(tmp_path: Path) -> None:
    make_stream(tmp_path / "s.a.bin")
    make_folder(tmp_path / "s.a.db", {})
    check_adopted(tmp_path / "s.a.bin", tmp_path / "s.a.db")


@pytest.mark.parametrize(
    ("folder", "others"),
    [
        *product(["v1.db", "v1.2/.db"], ["all", "some", "none"]),
        ("v1.2/s.a.db", "all"),  # it is named after the file, and adopted otherwise
    ],
)
def test_a_folder_with_bookmarks_of_other_files_stays(tmp_path: Path, folder: str, others: str) -> None:
    """Making its index anew would take their bookmarks from the Go programs of these files."""
    path = tmp_path / "v1.2" / "s.a.bin"
    held = make_stream(path)
    if others == "all":
        held = {bookmark(number)[1]: u64(2 * number + 1) for number in range(5)}
    elif others == "some":
        held[b"z"] = u64(1)
    else:
        held = {}
    make_folder(tmp_path / folder, held)
    with DataStreamer.open(path) as streamer:
        commit(streamer, bookmark(70), (1, b"ours"), flush=True)
    assert pairs_in(tmp_path / folder) == held
    assert not path.with_name("s.db").is_symlink()


def test_the_fork_finds_the_folder_that_we_made(tmp_path: Path) -> None:
    path = tmp_path / "s.a.bin"
    with DataStreamer.open(path, initial_pages=1) as streamer:
        commit(streamer, bookmark(1), (1, b"x"), flush=True)
    assert (tmp_path / "s.a.db").readlink() == Path("s.db")
    with DataStreamer.open(path) as streamer:  # by the link, too
        assert streamer.get_bookmark(bookmark(1)[1]) == 0
    assert sorted(one.name for one in tmp_path.iterdir()) == ["s.a.bin", "s.a.db", "s.db"]


@pytest.mark.parametrize("name", ["s.a.db", "s.db.db", ".hidden", "plain"])
def test_a_stream_s_own_name_is_no_folder(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    for _ in range(2):
        with DataStreamer.open(path, initial_pages=1) as streamer:
            commit(streamer, bookmark(1), (1, b"x"), flush=True)
    assert path.is_file()
    assert not path.is_symlink()


def test_two_folders_are_told_and_one_is_adopted_once_ours_is_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, folder = tmp_path / "v1.2" / "s.bin", tmp_path / "v1.db"
    held = make_stream(path)
    DataStreamer.open(path).close()
    make_folder(folder, dict(list(held.items())[2:]))
    with caplog.at_level(logging.WARNING):
        DataStreamer.open(path).close()
    (text,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert text == (
        f"{path}: its bookmarks are in {path.with_suffix('.db')}; a Go program that uses {folder} "
        "does not find those added since. For both to use that one, close the stream, delete s.db, "
        "and open it again"
    )
    shutil.rmtree(path.with_suffix(".db"))
    check_adopted(path, folder)


def test_a_folder_that_a_go_program_has_open_refuses(tmp_path: Path) -> None:
    path, folder = tmp_path / "v1.2" / "s.bin", tmp_path / "v1.db"
    make_folder(folder, make_stream(path))
    with (folder / "LOCK").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StreamInUse, match=r"v1\.db/LOCK"):
            DataStreamer.open(path)
    assert not path.with_suffix(".db").exists()
    check_adopted(path, folder)


def test_a_link_to_a_folder_that_is_gone(tmp_path: Path) -> None:
    path, folder = tmp_path / "v1.2" / "s.bin", tmp_path / "v1.db"
    make_folder(folder, make_stream(path))
    DataStreamer.open(path).close()
    shutil.rmtree(folder)
    what = (
        r"it is a link to \.\./v1\.db, and there is no folder; delete the link, and the bookmarks are taken"
    )
    with pytest.raises(BookmarksUnavailable, match=what):
        DataStreamer.open(path)
    path.with_suffix(".db").unlink()
    with DataStreamer.open(path) as streamer:
        assert streamer.get_bookmark(bookmark(3)[1]) == 6
    assert len(stored_in(path.with_suffix(".db"))) > 5
