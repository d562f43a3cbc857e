"""Tests of `gateway.regular_files`, and what may stand in a file's place."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sluice.gateway.regular_files import make_folder, open_regular, replace_file


def test_a_file_and_a_link_to_it_are_read(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_bytes(b"content")
    link.symlink_to(file)
    for path in (file, link):
        with open_regular(path) as opened:
            assert opened.read() == b"content"


def test_nothing_else_is_opened_or_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, link, folder = tmp_path / "pipe", tmp_path / "link", tmp_path / "folder"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    folder.mkdir()
    listening = socket.socket(socket.AF_UNIX)
    monkeypatch.chdir(tmp_path)
    listening.bind("socket")  # a socket's path has at most 107 bytes
    for path, reason in (
        (pipe, "Not a regular file"),
        (link, "Not a regular file"),
        (Path("/dev/zero"), "Not a regular file"),
        (folder, "Is a directory"),
        (tmp_path / "socket", "No such device or address"),
        (tmp_path / "nothing", "No such file or directory"),
    ):
        with pytest.raises(OSError, match=reason) as caught:
            open_regular(path)
        assert caught.value.strerror == reason
    listening.close()
    left_open = [name for name in opened() if name == "/dev/zero" or name.startswith(str(tmp_path))]
    assert left_open == []


def opened() -> Iterator[str]:
    """The names of this process's open files."""
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the folder itself, as it was read
            yield str(entry.readlink())


@pytest.mark.parametrize("flush", [True, False])
def test_a_file_is_replaced_by_a_new_one(tmp_path: Path, flush: bool) -> None:
    path, left = tmp_path / "role.json", tmp_path / "role.new"
    left.write_bytes(b"left by a crash" * 1000)
    with left.open("rb") as left_file:
        replace_file(path, b"one", flush=flush)
        assert path.stat().st_ino != os.fstat(left_file.fileno()).st_ino
    replace_file(path, b"two", flush=flush)
    assert path.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_whose_flush_failed_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "role.json"
    replace_file(path, b"one")

    def refuse(number: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(OSError, match="Input/output error"):
            replace_file(path, b"two")
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_folder_is_in_those_above_it_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[Path] = []
    monkeypatch.setattr("sluice.gateway.regular_files.flush_folder", flushed.append)
    make_folder(tmp_path / "a" / "b")
    assert sorted(flushed) == [tmp_path, tmp_path / "a"]
    make_folder(tmp_path / "a" / "b")
    assert len(flushed) == 2
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        make_folder(tmp_path / "file")
