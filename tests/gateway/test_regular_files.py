"""Tests of `gateway.regular_files`, with what may stand in a file's place."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.regular_files import flush_folder, open_regular


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
    listening.bind("socket")  # whose path has 107 bytes at most, and the folder's may have more
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
    """The names of the files that this process has open."""
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the folder itself, as it was read
            yield str(entry.readlink())


def test_the_names_in_a_folder_are_flushed_by_its_own_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[Path] = []
    descriptors = Path("/proc/self/fd")
    monkeypatch.setattr(os, "fsync", lambda number: flushed.append((descriptors / str(number)).readlink()))
    flush_folder(tmp_path)
    assert flushed == [tmp_path]
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        flush_folder(tmp_path / "file")
