"""Writers exclude everybody, readers exclude writers; `test_bookmarks.py` has other processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sluice.datastream.errors import BookmarksUnavailable, StreamInUse
from sluice.datastream.file.folder_lock import FolderLock, SharedFolderLock

STREAM = Path("s.bin")
TRY = """
import sys
from pathlib import Path
from sluice.datastream.file import folder_lock
from sluice.datastream.errors import StreamInUse
try:
    getattr(folder_lock, sys.argv[1])(Path("s.bin"), Path(sys.argv[2]))
except StreamInUse:
    sys.exit(7)
"""


def elsewhere(kind: str, folder: Path) -> bool:
    status = subprocess.run([sys.executable, "-c", TRY, kind, str(folder)], check=False, timeout=60)
    assert status.returncode in (0, 7)
    return status.returncode == 0


def test_a_writer_keeps_out_everybody(tmp_path: Path) -> None:
    folder = tmp_path / "s.db"
    lock = FolderLock(STREAM, folder)
    for kind in (FolderLock, SharedFolderLock):
        with pytest.raises(StreamInUse):
            kind(STREAM, folder)
        assert not elsewhere(kind.__name__, folder)
    lock.release()
    lock.release()
    assert elsewhere("FolderLock", folder)


def test_readers_keep_out_writers(tmp_path: Path) -> None:
    folder = tmp_path / "s.db"
    FolderLock(STREAM, folder).release()
    readers = [SharedFolderLock(STREAM, folder) for _ in range(2)]
    assert elsewhere("SharedFolderLock", folder)
    for reader in readers:
        with pytest.raises(StreamInUse):
            FolderLock(STREAM, folder)
        assert not elsewhere("FolderLock", folder)
        reader.release()
    FolderLock(STREAM, folder).release()


def test_a_reader_makes_nothing(tmp_path: Path) -> None:
    SharedFolderLock(STREAM, tmp_path / "s.db").release()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_a_lock_on_a_file_that_was_taken_away_is_none(tmp_path: Path, is_made_anew: bool) -> None:
    """Nobody else would meet a lock on the deleted file."""
    folder = tmp_path / "s.db"
    lock = FolderLock(STREAM, folder)
    lock.check()
    folder.rename(tmp_path / "away")
    if is_made_anew:
        folder.mkdir()
        (folder / "LOCK").touch()
    for refused in (lock.check, lock.renew):
        with pytest.raises(
            FileNotFoundError, match="LOCK is another file" if is_made_anew else "LOCK is gone"
        ):
            refused()
    if is_made_anew:
        (folder / "LOCK").unlink()
        folder.rmdir()
    (tmp_path / "away").rename(folder)
    lock.renew()
    assert not elsewhere("FolderLock", folder)
    lock.release()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(BookmarksUnavailable, match="No such file or directory"):
        FolderLock(STREAM, tmp_path / "missing" / "s.db")
