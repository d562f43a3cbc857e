"""The chains of `chains` and `native_chains`, made once for all tests of this room, in all processes."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gateway.archive.chains import archive, fill
from tests.gateway.archive.native_chains import archive_native


@pytest.fixture
def tmp_path(memory_path: Path) -> Path:
    """A folder in memory: most tests copy a chain of 200 MB, and none asks what a disk keeps."""
    return memory_path


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Make a folder, unless another process of the run has."""
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            being_made = folder.with_suffix(".part")
            make(being_made)
            being_made.rename(folder)
    return folder


@pytest.fixture(scope="session")
def filled(memory_folder: Path) -> Path:
    """A data folder of the chain. Tests copy it."""
    return made_once(memory_folder / "filled", fill)


@pytest.fixture
def folder(filled: Path, tmp_path: Path) -> Path:
    """A copy of that folder."""
    return Path(shutil.copytree(filled, tmp_path / "node"))


@pytest.fixture(scope="session")
def archived(filled: Path, memory_folder: Path) -> Path:
    """The archive of the chain: three segments. Tests that change it use `place`."""

    def make(folder: Path) -> None:
        shutil.copytree(filled, folder / "node")
        archive(folder / "node", folder / "archive")
        shutil.rmtree(folder / "node")

    return made_once(memory_folder / "archived", make) / "archive"


@pytest.fixture
def place(archived: Path, tmp_path: Path) -> Path:
    """A copy of that archive."""
    return Path(shutil.copytree(archived, tmp_path / "archive"))


@pytest.fixture(scope="session")
def native(memory_folder: Path) -> Path:
    """A folder with `node`, a data folder of the native layout, and `archive`. Tests copy them."""
    return made_once(
        memory_folder / "native", lambda folder: archive_native(folder / "node", folder / "archive")
    )
