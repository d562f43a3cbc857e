"""What is looked at before Spark starts, with real interpreters and folders."""

from __future__ import annotations

import os
import sys
import tempfile
from importlib import metadata
from pathlib import Path

import pytest

from sluice.publishers.errors import SparkUnavailable
from sluice.publishers.spark import preflight
from sluice.publishers.spark.preflight import (
    check_libraries,
    check_local_folder,
    check_spark_home,
    check_temporary_folder,
    check_worker_python,
    worker_environment,
)

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
INSTALL = "; pip install 'sluice-gateway[spark]' brings those that fit"


def script(path: Path, says: str) -> str:
    """An interpreter that says this and nothing else."""
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return str(path)


def package(folder: Path, name: str, code: str = "") -> str:
    """A folder for PYTHONPATH with a package in it."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(code)
    return str(folder)


# --- libraries and folders ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "version", "said"),
    [
        ("pandas", "3.0.1", "Spark needs pandas 2.2 or later, below 3; version 3.0.1 is installed"),
        ("pandas", "2.1.4", "Spark needs pandas 2.2 or later, below 3; version 2.1.4 is installed"),
        ("pyarrow", "17.0.0", "Spark needs pyarrow 18 or later; version 17.0.0 is installed"),
        ("pyarrow", None, "Spark needs pyarrow 18 or later, which is not installed"),
    ],
)
def test_libraries_out_of_bounds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, version: str | None, said: str
) -> None:
    check_libraries()
    if version is None:
        paths = [path for path in sys.path if not any(Path(path).glob(f"{name}-*.dist-info"))]
        (tmp_path / "pandas-2.3.0.dist-info").mkdir()
        (tmp_path / "pandas-2.3.0.dist-info" / "METADATA").write_text("Name: pandas\nVersion: 2.3.0\n")
        monkeypatch.setattr(sys, "path", [str(tmp_path), *paths])
    else:
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
        monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SparkUnavailable) as caught:
        check_libraries()
    assert str(caught.value) == said + INSTALL


def test_bounds_are_those_of_the_distribution() -> None:
    required = [text for text in metadata.requires("sluice-gateway") or () if text.startswith("pandas")]
    if not required:
        pytest.skip("needs sluice-gateway as a distribution; pip install -e . installs it")
    assert "<3" in required[0]
    assert ">=2.2" in required[0]


def test_a_local_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    check_local_folder({}, {})
    check_local_folder({"SPARK_LOCAL_DIRS": f"{tmp_path}/new"}, {})
    (tmp_path / "file").touch()
    for environment, settings, folder, why in (
        ({"SPARK_LOCAL_DIRS": f"{tmp_path},{tmp_path}/file/x"}, {}, f"{tmp_path}/file/x", "Not a directory"),
        ({}, {"spark.local.dir": "/proc/spark"}, "/proc/spark", "No such file or directory"),
    ):
        with pytest.raises(SparkUnavailable) as caught:
            check_local_folder(environment, settings)
        assert str(caught.value) == (
            f"Spark's folder for temporary files, {folder}, cannot be written to: {why}; "
            "set SPARK_LOCAL_DIRS to a folder on a disk with space"
        )


@pytest.mark.parametrize("locale", ["C", "POSIX"])
def test_a_folder_for_temporary_files_that_java_cannot_name(
    monkeypatch: pytest.MonkeyPatch, locale: str
) -> None:
    """PySpark and its JVM once waited for each other for ever."""
    check_temporary_folder({"LC_ALL": locale})
    monkeypatch.setattr(tempfile, "tempdir", "/a/müller")
    for fine in ({}, {"LANG": locale}, {"LC_ALL": "C.UTF-8"}):
        check_temporary_folder(fine)
    with pytest.raises(SparkUnavailable) as caught:
        check_temporary_folder({"LC_ALL": locale})
    assert str(caught.value) == (
        f"Java cannot name the folder for temporary files, /a/müller, with LC_ALL={locale}; "
        "set TMPDIR to another, or LC_ALL to C.UTF-8"
    )


def test_a_local_folder_without_space(tmp_path: Path) -> None:
    with pytest.raises(
        SparkUnavailable, match=r"has \d+ bytes of space, and 4611686018427387904 are the least"
    ):
        check_local_folder({"SPARK_LOCAL_DIRS": str(tmp_path)}, {}, bytes_min=1 << 62)


def test_a_spark_home_of_another_version(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="needs the extra spark")
    check_spark_home({})
    version = metadata.version("pyspark")
    (tmp_path / "jars").mkdir()
    with pytest.raises(SparkUnavailable, match="has no Spark in it; unset SPARK_HOME"):
        check_spark_home({"SPARK_HOME": str(tmp_path)})
    jar = tmp_path / "jars" / f"spark-core_2.13-{version}.jar"
    jar.touch()
    check_spark_home({"SPARK_HOME": str(tmp_path)})
    jar.rename(jar.with_name("spark-core_2.12-3.5.1.jar"))
    with pytest.raises(SparkUnavailable) as caught:
        check_spark_home({"SPARK_HOME": str(tmp_path)})
    assert caught.value.reason == f"SPARK_HOME ({tmp_path}) is Spark 3.5.1, and PySpark is {version}"


# --- the workers' interpreter -------------------------------------------------------------------------------


def refusal(**environment: str) -> SparkUnavailable:
    with pytest.raises(SparkUnavailable) as caught:
        check_worker_python({**os.environ, "PYTHONSAFEPATH": "1", **environment})
    return caught.value


def test_the_drivers_own_interpreter_is_taken() -> None:
    environment = worker_environment({})
    assert environment == {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONSAFEPATH": "1",
    }
    check_worker_python(environment)
    assert worker_environment({"PYSPARK_PYTHON": "python9"})["PYSPARK_PYTHON"] == "python9"


def test_an_interpreter_of_another_version(tmp_path: Path) -> None:
    other = script(tmp_path / "python", '{"version": "3.8"}')
    error = refusal(PYSPARK_PYTHON=other)
    assert error.reason == f"the workers' interpreter {other} is Python 3.8, and this is Python {HERE}"
    assert error.remedy == (
        "set PYSPARK_PYTHON to the interpreter that has sluice-gateway[spark], such as " + sys.executable
    )


def test_an_interpreter_that_is_none(tmp_path: Path) -> None:
    missing = str(tmp_path / "python9")
    assert refusal(PYSPARK_PYTHON=missing).reason == (
        f"the workers' interpreter {missing} (PYSPARK_PYTHON) does not start: No such file or directory"
    )
    odd = script(tmp_path / "odd", "no JSON")
    assert refusal(PYSPARK_PYTHON=odd).reason == (
        f"the workers' interpreter {odd} (PYSPARK_PYTHON) does not run Python: no JSON"
    )


def test_a_module_that_hides_ours(tmp_path: Path) -> None:
    path = package(tmp_path / "clash", "sluice")
    error = refusal(PYSPARK_PYTHON=sys.executable, PYTHONPATH=path)
    assert error.reason == (f"the workers import another module 'sluice': {path}/sluice/__init__.py")
    assert error.remedy == "remove it from PYTHONPATH"


def test_a_protobuf_that_does_not_fit(tmp_path: Path) -> None:
    code = """
class VersionError(Exception):
    pass
raise VersionError("Detected incompatible Protobuf Gencode/Runtime versions: gencode 7 runtime 5")
"""
    path = package(tmp_path / "clash", "google")
    package(tmp_path / "clash" / "google", "protobuf", code)
    error = refusal(PYSPARK_PYTHON=sys.executable, PYTHONPATH=path)
    assert error.reason == (
        f"the workers' interpreter {sys.executable} cannot run Sluice: VersionError: Detected incompatible "
        "Protobuf Gencode/Runtime versions: gencode 7 runtime 5"
    )


def test_a_path_that_hides_nothing_is_fine(tmp_path: Path) -> None:
    path = package(tmp_path, "proto")  # another distribution's, which many clusters have
    root = str(Path(preflight.__file__).parents[2])
    check_worker_python(
        {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": f"{path}{os.pathsep}{root}"}
    )
