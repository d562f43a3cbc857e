"""Whose checkpoint it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sluice.publishers.errors import CheckpointError
from sluice.publishers.job.checkpoint import FollowCheckpoint, engine_in

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
    assert [path.name for path in tmp_path.iterdir()] == ["offsets"]  # not even a lock is left there
    (tmp_path / "sluice.lock").touch()
    assert refusal(tmp_path) == "it is not empty and not of this command (offsets)"
    assert (tmp_path / "sluice.lock").exists()


def test_a_damaged_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sluice.json").write_text("{")
    damaged = "sluice.json is damaged; begin with a new folder: what is stored is passed over"
    assert refusal(tmp_path) == damaged
    (tmp_path / "sluice.json").write_text("[]")
    assert refusal(tmp_path) == f"it was begun with --source unknown, not {SOURCE}"


def test_one_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert refusal(tmp_path / "file" / "x") == "Not a directory"


CLAIM = """
import sys
from pathlib import Path
from sluice.publishers.job.checkpoint import FollowCheckpoint
from sluice.publishers.errors import CheckpointError
try:
    FollowCheckpoint(Path(sys.argv[1]), sys.argv[2], 0).__enter__()
except CheckpointError as error:
    sys.exit(error.reason)
"""


def test_one_that_a_full_disk_left_half_made_is_taken(tmp_path: Path) -> None:
    """What had been written of the facts made it a folder of something else, for ever."""
    words = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", sys.executable, "-c", CLAIM, str(tmp_path), SOURCE]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "sluice.json: [Errno 27] File too large\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sluice.lock", "sluice.part"]
    with FollowCheckpoint(tmp_path, SOURCE, 0):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sluice.json", "sluice.lock"]


def test_what_a_query_has_committed_is_in_its_folder(tmp_path: Path) -> None:
    checkpoint = FollowCheckpoint(tmp_path, SOURCE, 0)
    assert checkpoint.committed_next("p-1") is None
    for name in ("commits", "offsets"):
        (tmp_path / "p-1" / name).mkdir(parents=True)
    assert checkpoint.committed_next("p-1") is None
    for batch, end in ((9, 40), (10, 44), (11, 48)):
        text = f'v1\n{{"batchTimestampMs":1}}\n{{"first": 4, "next": {end}}}'
        (tmp_path / "p-1" / "offsets" / str(batch)).write_text(text)
        if batch < 11:  # the last batch is not done
            (tmp_path / "p-1" / "commits" / str(batch)).write_text("v1\n{}")
            (tmp_path / "p-1" / "commits" / f".{batch}.crc").touch()
    assert checkpoint.committed_next("p-1") == 44


@pytest.mark.parametrize(
    "text", ["", "v1\n{}", "v1\n{}\n-", "v1\n{}\n[]", 'v1\n{}\n{"next": -1}', "v1\n{}\n{}"]
)
def test_what_is_not_known_of_a_query_is_not_guessed(tmp_path: Path, text: str) -> None:
    for name, content in (("commits", ""), ("offsets", text)):
        (tmp_path / "p-1" / name).mkdir(parents=True)
        (tmp_path / "p-1" / name / "0").write_text(content)
    assert FollowCheckpoint(tmp_path, SOURCE, 0).committed_next("p-1") is None


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("metadata", '{"id":"a"}', None),
        ("metadata", "", "metadata is damaged"),
        ("metadata", '{"id', "metadata is damaged"),
        ("offsets/1", "", "offsets/1 is damaged"),
        ("offsets/1", "\0" * 40, "offsets/1 is damaged"),
        ("offsets/1", 'v1\n{"batc', "offsets/1 is damaged"),
        ("offsets/1", 'v1\n{}\n{"next": ', "offsets/1 is damaged"),
        ("offsets/0", None, "offsets/0 is missing"),
        ("commits/0", "v1", "commits/0 is damaged"),
        ("commits/0", "v1\n-", None),
    ],
)
def test_what_is_damaged_of_a_query_is_named_with_the_remedy(
    tmp_path: Path, name: str, content: str | None, expected: str | None
) -> None:
    checkpoint = FollowCheckpoint(tmp_path, SOURCE, 0)
    assert checkpoint.damage("p-1") is None  # the query was never begun
    folder = tmp_path / "p-1"
    for part in ("commits", "offsets"):
        (folder / part).mkdir(parents=True)
    files = {"metadata": "{}", "offsets/0": "v1\n{}\n{}", "offsets/1": "v1\n{}\n{}", "commits/0": "v1\n{}"}
    for each, text in (files | {name: content}).items():
        if text is not None:
            (folder / each).write_text(text)
    found = checkpoint.damage("p-1")
    remedy = "begin with a new folder: what is stored is passed over"
    assert str(found) == (
        "None" if expected is None else f"checkpoint {tmp_path}: {folder}/{expected}; {remedy}"
    )


# --- progress without Spark ---------------------------------------------------------------------------------


def test_progress_is_noted_forwards_only_and_found_again(tmp_path: Path) -> None:
    with FollowCheckpoint(tmp_path, SOURCE, 0, engine="local") as checkpoint:
        assert checkpoint.next_block() is None
        for number in (0, 7, 5, 7):
            checkpoint.note(number)
    with FollowCheckpoint(tmp_path, SOURCE, 0, engine="local") as checkpoint:
        assert checkpoint.next_block() == 7
        checkpoint.note(6)
        assert checkpoint.next_block() == 7
    assert sorted(path.name for path in tmp_path.iterdir()) == ["progress.json", "sluice.json", "sluice.lock"]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"next": -1}', '{"next": "3"}'])
def test_damaged_progress_is_refused(tmp_path: Path, text: str) -> None:
    with FollowCheckpoint(tmp_path, SOURCE, 0, engine="local") as checkpoint:
        (tmp_path / "progress.json").write_text(text)
        with pytest.raises(CheckpointError) as caught:
            checkpoint.next_block()
    remedy = "begin with a new folder: what is stored is passed over"
    assert caught.value.reason == f"progress.json is damaged; {remedy}"


def test_the_engine_is_known_before_it_is_begun(tmp_path: Path) -> None:
    assert engine_in(tmp_path) is None
    with FollowCheckpoint(tmp_path / "a", SOURCE, 0, engine="local"):
        assert engine_in(tmp_path / "a") == "local"
    with FollowCheckpoint(tmp_path / "b", SOURCE, 0):
        assert engine_in(tmp_path / "b") == "spark"
    (tmp_path / "b" / "sluice.json").write_text("{")
    assert engine_in(tmp_path / "b") is None
