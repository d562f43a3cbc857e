"""The checkpoint folder of `sluice publish --follow`: one source, and one command at a time.

    CHECKPOINT/
      sluice.json       the source, and where it began
      sluice.lock       locked while a command follows
      publisher-1/      Spark's own checkpoint of one publisher's query
      publisher-2/
      progress.json     without Spark: the block that all publishers of the command go on with

Spark's checkpoint holds block or entry numbers, but not their source: with another source Spark would go on
at the same number of another chain. So `sluice.json` names the source, and the engine if that is not Spark:
neither engine reads the progress of the other.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Final, Literal, Self

from sluice.publishers.blocks.block_files import sync_folder
from sluice.publishers.errors import CheckpointError

__all__ = ["Engine", "FollowCheckpoint", "engine_in"]

Engine = Literal["local", "spark"]

_FACTS: Final = "sluice.json"
_LOCK: Final = "sluice.lock"
_PROGRESS: Final = "progress.json"
_REMEDY: Final = "begin with a new folder: what is stored is passed over"


class FollowCheckpoint:
    """The folder, locked from `__enter__` to `__exit__`, or to the end of the process.

    `first_block` is `--from`, or 0, and `group_by` is `--group-by` of a source that has it.
    """

    def __init__(
        self,
        folder: Path,
        source: str,
        first_block: int,
        group_by: str | None = None,
        *,
        engine: Engine = "spark",
    ) -> None:
        self.folder = folder.absolute()
        self._facts: dict[str, str | int] = {"source": source, "from": first_block}
        if group_by is not None:
            self._facts["group-by"] = group_by
        if engine != "spark":  # checkpoints of earlier versions name none
            self._facts["engine"] = engine
        self._noted: int | None = None
        self._lock: int | None = None
        self._made_lock = False

    # --- progress without Spark -----------------------------------------------------------------------------

    def next_block(self) -> int | None:
        """Return the block to go on with; None: none was found yet. Raises CheckpointError."""
        path = self.folder / _PROGRESS
        try:
            number = json.loads(path.read_text())["next"]
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CheckpointError(str(self.folder), f"{_PROGRESS}: {error.strerror}") from error
        except (ValueError, LookupError, TypeError):
            number = None
        if not isinstance(number, int) or number < 0:
            raise CheckpointError(str(self.folder), f"{_PROGRESS} is damaged; {_REMEDY}")
        self._noted = number
        return number

    def note(self, next_block: int) -> None:
        """Write the block to go on with, if that is news; it survives a loss of power.

        Raises CheckpointError.
        """
        if self._noted is not None and next_block <= self._noted:
            return
        path = self.folder / _PROGRESS
        temporary = path.with_suffix(".part")
        try:
            with temporary.open("w") as file:
                file.write(json.dumps({"next": next_block}) + "\n")
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            sync_folder(self.folder)
        except OSError as error:
            raise CheckpointError(str(self.folder), f"{_PROGRESS}: {error.strerror}") from error
        self._noted = next_block

    # --- progress of Spark ----------------------------------------------------------------------------------

    def of(self, publisher_id: str) -> str:
        """Return the folder of one publisher's query."""
        return str(self.folder / publisher_id.replace("/", "_"))

    def committed_next(self, publisher_id: str) -> int | None:
        """Return the number after the last that a publisher's query has committed; None: unknown.

        Spark writes `commits/B` when batch B is done, that is, all its blocks are stored. The third line of
        `offsets/B` has its end.
        """
        try:
            batch = self.committed_batch(publisher_id)
            lines = (Path(self.of(publisher_id)) / "offsets" / str(batch)).read_text().splitlines()
            number = json.loads(lines[2])["next"]
        except (OSError, ValueError, LookupError, TypeError):
            return None
        return number if isinstance(number, int) and number >= 0 else None

    def committed_batch(self, publisher_id: str) -> int:
        """Return the number of the last batch that a publisher's query has committed; -1: none."""
        commits = Path(self.of(publisher_id)) / "commits"
        return max((int(path.name) for path in commits.glob("[0-9]*") if path.name.isdecimal()), default=-1)

    def damage(self, publisher_id: str) -> CheckpointError | None:
        """Return the damage in the folder of a query that failed."""
        folder = Path(self.of(publisher_id))
        metadata = folder / "metadata"
        if metadata.exists() and not _has_json(metadata, 0):
            return CheckpointError(str(self.folder), f"{metadata} is damaged; {_REMEDY}")
        for path in sorted((*folder.glob("offsets/[0-9]*"), *folder.glob("commits/[0-9]*"))):
            if not _has_json(path, 1):
                return CheckpointError(str(self.folder), f"{path} is damaged; {_REMEDY}")
        for path in sorted(folder.glob("commits/[0-9]*")):
            offsets = folder / "offsets" / path.name
            if not offsets.exists():
                return CheckpointError(str(self.folder), f"{offsets} is missing; {_REMEDY}")
        return None

    # --- whose it is ----------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Lock the folder, and compare or write its source.

        Raises:
            CheckpointError: it is in use, belongs to another source, or cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._made_lock = not (self.folder / _LOCK).exists()
            self._lock = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise CheckpointError(str(self.folder), error.strerror or str(error)) from error
        try:
            self._claim()
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._release()

    def _claim(self) -> None:
        assert self._lock is not None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CheckpointError(str(self.folder), "another `sluice publish` is using it") from error
        path = self.folder / _FACTS
        try:
            if path.exists():
                self._compare(_facts_in(path))
                return
            temporary = path.with_suffix(".part")
            ours = (_LOCK, temporary.name)  # perhaps half a file, after a full disk
            others = [child.name for child in self.folder.iterdir() if child.name not in ours]
            if others:
                if self._made_lock:  # leave a strange folder as it was
                    (self.folder / _LOCK).unlink()
                raise CheckpointError(
                    str(self.folder), f"it is not empty and not of this command ({others[0]})"
                )
            temporary.write_text(json.dumps(self._facts) + "\n")
            temporary.replace(path)
        except (OSError, ValueError) as error:
            raise CheckpointError(str(self.folder), f"{_FACTS}: {error}") from error

    def _compare(self, facts: object) -> None:
        if facts == self._facts:
            return
        got = {"engine": "spark", **(facts if isinstance(facts, dict) else {})}
        for name, expected in {"engine": "spark", **self._facts}.items():
            if got.get(name) != expected:
                there = got.get(name, "unknown")
                reason = f"it was begun with --{name} {there}, not {expected}"
                remedy = f"; {_REMEDY}" if name == "engine" else ""
                raise CheckpointError(str(self.folder), reason + remedy)

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def engine_in(folder: Path) -> Engine | None:
    """Return the engine that a checkpoint was begun with; None: it is new, or cannot be read."""
    try:
        facts = json.loads((folder / _FACTS).read_text())
    except (OSError, ValueError):
        return None
    return "local" if isinstance(facts, dict) and facts.get("engine") == "local" else "spark"


def _facts_in(path: Path) -> object:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise CheckpointError(str(path.parent), f"{_FACTS} is damaged; {_REMEDY}") from error


def _has_json(path: Path, version_lines: int) -> bool:
    """Return whether there are the version lines, and then lines of JSON or `-`."""
    try:
        lines = path.read_text().splitlines()
        for line in lines[version_lines:]:
            if line != "-":
                json.loads(line)
    except (OSError, ValueError):
        return False
    return len(lines) > version_lines and all(line.startswith("v") for line in lines[:version_lines])
