"""The chains of `chains` and `native_chains`, made once for all tests of this room."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.archive.chains import archive, fill
from tests.gateway.archive.native_chains import archive_native


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A data folder of the chain. Tests copy it."""
    folder = tmp_path_factory.mktemp("filled")
    fill(folder)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def folder(filled: Path, tmp_path: Path) -> Path:
    """A copy of that folder."""
    return Path(shutil.copytree(filled, tmp_path / "node"))


@pytest.fixture(scope="session")
def archived(filled: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of the chain: three segments. Tests that change it use `place`."""
    made = tmp_path_factory.mktemp("archived")
    shutil.copytree(filled, made / "node")
    archive(made / "node", made / "archive")
    shutil.rmtree(made / "node")
    return made / "archive"


@pytest.fixture
def place(archived: Path, tmp_path: Path) -> Path:
    """A copy of that archive."""
    return Path(shutil.copytree(archived, tmp_path / "archive"))


@pytest.fixture(scope="session")
def native(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with `node`, a data folder of the native layout, and `archive`. Tests copy them."""
    made = tmp_path_factory.mktemp("native")
    archive_native(made / "node", made / "archive")
    yield made
    shutil.rmtree(made)
