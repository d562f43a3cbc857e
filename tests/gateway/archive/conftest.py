"""The chains of `chains` and `native_chains`, made once for all tests of this room."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.gateway.archive.chains import archive, fill
from tests.gateway.archive.native_chains import archive_native


@pytest.fixture
def tmp_path(memory_path: Path) -> Path:
    """A folder in memory: most tests copy a chain of 200 MB, and none asks what a disk keeps."""
    return memory_path


@pytest.fixture(scope="session")
def filled(memory_folder: Path) -> Path:
    """A data folder of the chain. Tests copy it."""
    fill(memory_folder / "filled")
    return memory_folder / "filled"


@pytest.fixture
def folder(filled: Path, tmp_path: Path) -> Path:
    """A copy of that folder."""
    return Path(shutil.copytree(filled, tmp_path / "node"))


@pytest.fixture(scope="session")
def archived(filled: Path, memory_folder: Path) -> Path:
    """The archive of the chain: three segments. Tests that change it use `place`."""
    made = memory_folder / "archived"
    shutil.copytree(filled, made / "node")
    archive(made / "node", made / "archive")
    shutil.rmtree(made / "node")
    return made / "archive"


@pytest.fixture
def place(archived: Path, tmp_path: Path) -> Path:
    """A copy of that archive."""
    return Path(shutil.copytree(archived, tmp_path / "archive"))


@pytest.fixture(scope="session")
def native(memory_folder: Path) -> Path:
    """A folder with `node`, a data folder of the native layout, and `archive`. Tests copy them."""
    made = memory_folder / "native"
    archive_native(made / "node", made / "archive")
    return made
