"""The wheel: everything that a user installs is in it, under one package, and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.test_tidy import PACKAGES, ROOT, repository_files

LONG = os.environ.get("SLUICE_LONG") == "1"


@pytest.mark.slow
@pytest.mark.parametrize(
    "compiler", ["cc", pytest.param("false", marks=pytest.mark.skipif(not LONG, reason="SLUICE_LONG=1"))]
)
def test_a_wheel_has_the_modules_of_all_three_packages(tmp_path: Path, compiler: str) -> None:
    """The folder sluice/ has links to them, which a wheel cannot have. Without a compiler it has all but the
    compiled module.
    """
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
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
    environ = os.environ | {"CC": compiler}
    done = subprocess.run(words, capture_output=True, text=True, timeout=200, check=False, env=environ)
    if "No matching distribution found for setuptools" in done.stderr:
        pytest.skip("needs a package index, for setuptools")
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    compiled = {name for name in names if name.endswith(".so")}
    wanted_compiled = {
        "sluice/gateway/blocks/_many_items",
        "sluice/datastream/file/_many_entries",
        "sluice/datastream/server/_many_clients",
    }
    assert {name.split(".")[0] for name in compiled} == (wanted_compiled if compiler == "cc" else set())
    modules = {path for path in repository_files() if path.endswith((".py", ".pyi", "py.typed"))}
    wanted = {f"sluice/{path}" for path in modules if path.split("/")[0] in PACKAGES}
    wanted |= {path for path in modules if path.startswith(("sluice/", "pyspark_"))}
    data = {
        path
        for path in repository_files()
        if path.startswith("gateway/status/pages/") or path == "gateway/commands/completions.json"
    }
    assert names - compiled == wanted | {f"sluice/{path}" for path in data}
