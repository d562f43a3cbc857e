"""Tests of `cluster.role_file`: what is written comes back, and what cannot be read is never guessed."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from gateway.cluster.role_file import ROLE_FILE_NAME, read_role, write_role
from gateway.cluster.roles import RoleRecord
from gateway.errors import Fatal


@pytest.mark.parametrize(
    "record", [RoleRecord("active"), RoleRecord("standby"), RoleRecord("standby", "[2001:db8::1]:40840")]
)
def test_what_is_written_comes_back(tmp_path: Path, record: RoleRecord) -> None:
    assert read_role(tmp_path) is None
    write_role(tmp_path, RoleRecord("active"))
    write_role(tmp_path, record)
    assert read_role(tmp_path) == record
    assert [path.name for path in tmp_path.iterdir()] == [ROLE_FILE_NAME]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"role": "leader"}',
        '{"role": 1}',
        '{"role": "standby", "followed": "somewhere"}',
        '{"role": "standby", "followed": 7}',
        '{"role": "standby", "followed": "192.0.2.7:0"}',
        "[" * 100_000,
    ],
)
def test_what_cannot_be_read_is_fatal(tmp_path: Path, text: str) -> None:
    path = tmp_path / ROLE_FILE_NAME
    path.write_text(text)
    with pytest.raises(Fatal) as caught:
        read_role(tmp_path)
    assert str(caught.value) == (
        f"{path}: got {text[:200]!r}, "
        'expected an object such as {"role": "standby", "followed": "host:port"}'
    )


def test_a_disk_that_refuses_leaves_what_was_remembered(tmp_path: Path) -> None:
    write_role(tmp_path, RoleRecord("standby"))
    (tmp_path / "role.new").mkdir()
    with pytest.raises(IsADirectoryError):
        write_role(tmp_path, RoleRecord("active"))
    assert read_role(tmp_path) == RoleRecord("standby")


@pytest.mark.parametrize("before", [None, RoleRecord("standby", "192.0.2.7:40840")])
def test_a_disk_that_refuses_the_folder_leaves_what_was_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: RoleRecord | None
) -> None:
    """The last step: the new file is in its place by then, and a restart would find it."""
    if before is not None:
        write_role(tmp_path, before)
    flush = os.fsync

    def refuse_folders(number: int) -> None:
        if stat.S_ISDIR(os.fstat(number).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        flush(number)

    monkeypatch.setattr(os, "fsync", refuse_folders)
    with pytest.raises(OSError, match=r"^\[Errno 5\] Input/output error$"):
        write_role(tmp_path, RoleRecord("active"))
    assert read_role(tmp_path) == before
