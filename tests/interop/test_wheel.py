"""The wheel: everything that a user installs is in it, under one package, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.test_tidy import PACKAGES, ROOT, repository_files


@pytest.mark.slow
def test_a_wheel_has_the_modules_of_all_three_packages(tmp_path: Path) -> None:
    """The folder sluice/ has links to them, which a wheel cannot have."""
    tree = tmp_path / "tree"
    for path in repository_files():
        if path.split("/")[0] not in ("tests", "benchmarks", "deploy"):
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, tree / path, follow_symlinks=False)
    for package in PACKAGES:
        (tree / "sluice" / package).symlink_to(Path("..") / package)
    words = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(tmp_path),
        str(tree),
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200, check=False)
    if "No matching distribution found for setuptools" in done.stderr:
        pytest.skip("needs a package index, for setuptools")
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    modules = {path for path in repository_files() if path.endswith((".py", ".pyi", "py.typed"))}
    wanted = {f"sluice/{path}" for path in modules if path.split("/")[0] in PACKAGES}
    wanted |= {path for path in modules if path.startswith(("sluice/", "pyspark_"))}
    data = {
        path
        for path in repository_files()
        if path.startswith("gateway/status/pages/") or path == "gateway/commands/completions.json"
    }
    assert names == wanted | {f"sluice/{path}" for path in data}
