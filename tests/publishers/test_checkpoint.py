"""Whose checkpoint it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from publishers.checkpoint import FollowCheckpoint
from publishers.errors import CheckpointError

SOURCE = "blockstream:a:40840"


def refusal(folder: Path, source: str = SOURCE, first_block: int = 0) -> str:
    with pytest.raises(CheckpointError) as caught, FollowCheckpoint(folder, source, first_block):
        pass
    assert caught.value.folder == str(folder)
    return caught.value.reason


def test_it_is_made_and_taken_again(tmp_path: Path) -> None:
    for _ in range(2):
        with FollowCheckpoint(tmp_path / "a" / "b", SOURCE, 5) as checkpoint:
            assert checkpoint.of("team/p-1") == str(tmp_path / "a" / "b" / "team_p-1")


def test_one_of_another_source_is_refused_and_left_alone(tmp_path: Path) -> None:
    with FollowCheckpoint(tmp_path, SOURCE, 0):
        pass
    before = (tmp_path / "sluice.json").read_bytes()
    assert refusal(tmp_path, "blockfiles:/x") == f"it was begun with --source {SOURCE}, not blockfiles:/x"
    assert refusal(tmp_path, SOURCE, 7) == "it was begun with --from 0, not 7"
    assert (tmp_path / "sluice.json").read_bytes() == before
    with FollowCheckpoint(tmp_path, SOURCE, 0):
        pass


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    with FollowCheckpoint(tmp_path, SOURCE, 0):
        assert refusal(tmp_path) == "another `sluice publish` is using it"
    with FollowCheckpoint(tmp_path, SOURCE, 0):
        pass


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    assert refusal(tmp_path) == "it is not empty and not of this command (offsets)"
    assert not (tmp_path / "sluice.json").exists()


def test_a_damaged_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sluice.json").write_text("{")
    assert refusal(tmp_path).startswith("sluice.json: ")
    (tmp_path / "sluice.json").write_text("[]")
    assert refusal(tmp_path) == f"it was begun with --source unknown, not {SOURCE}"


def test_one_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert refusal(tmp_path / "file" / "x") == "Not a directory"
