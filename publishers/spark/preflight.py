"""Checks of this machine before Spark starts, besides Java.

Later, an error costs seconds, and another process words it. Workers of a cluster are other machines;
failures.py explains their failures.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from sluice.publishers.errors import SparkUnavailable

__all__ = [
    "check_libraries",
    "check_local_folder",
    "check_spark_home",
    "check_temporary_folder",
    "check_worker_python",
    "worker_environment",
]

SPARK_LOCAL_BYTES_MIN: Final = 64 * 1024 * 1024
"""Space for Spark's temporary files: broadcasts and shuffles of a small chain need some megabytes."""
_INSTALL: Final = "pip install 'sluice-gateway[spark]' brings those that fit"
_BOUNDS: Final = (
    # Name, at least, below; None: no bound. pyproject.toml has the same.
    ("pandas", (2, 2), (3,)),
    ("pyarrow", (18,), None),
)
_ASCII_LOCALES: Final = ("C", "POSIX")
_PROBE_SECONDS: Final = 60
_CORE_JAR: Final = re.compile(r"spark-core_[\d.]+-(?P<version>[\w.-]+)\.jar")
# Runs in the workers' interpreter.
_PROBE: Final = """
import json, sys
found = {"version": "%d.%d" % sys.version_info[:2]}
try:
    import sluice
    found["sluice"] = getattr(sluice, "__file__", None) or "a folder without __init__.py"
    import sluice.publishers.spark.block_sink, pandas
except BaseException as error:
    found["error"] = "%s: %s" % (type(error).__name__, str(error).split("\\n")[0])
print("\\n" + json.dumps(found))
"""


def check_libraries() -> None:
    """Raise SparkUnavailable unless pandas and pyarrow are there, in known versions."""
    for name, least, below in _BOUNDS:
        wanted = f"{_dotted(least)} or later" + (f", below {_dotted(below)}" if below else "")
        try:
            text = metadata.version(name)
        except metadata.PackageNotFoundError:
            raise SparkUnavailable(f"Spark needs {name} {wanted}, which is not installed", _INSTALL) from None
        version = tuple(int(part) for part in re.findall(r"\d+", text)[:3])
        if version < least or (below is not None and version >= below):
            raise SparkUnavailable(f"Spark needs {name} {wanted}; version {text} is installed", _INSTALL)


def check_spark_home(environment: Mapping[str, str]) -> None:
    """Raise SparkUnavailable unless SPARK_HOME, if set, has a Spark of PySpark's version."""
    home = environment.get("SPARK_HOME")
    if not home:
        return
    remedy = "unset SPARK_HOME, and PySpark's own Spark is taken"
    jars = Path(home) / "jars"
    paths = jars.iterdir() if jars.is_dir() else ()
    found = [match["version"] for path in paths if (match := _CORE_JAR.fullmatch(path.name))]
    if not found:
        raise SparkUnavailable(f"SPARK_HOME ({home}) has no Spark in it", remedy)
    expected = metadata.version("pyspark")
    if found[0].split(".")[:2] != expected.split(".")[:2]:
        reason = f"SPARK_HOME ({home}) is Spark {found[0]}, and PySpark is {expected}"
        raise SparkUnavailable(reason, remedy)


def check_local_folder(
    environment: Mapping[str, str], settings: Mapping[str, str], *, bytes_min: int = SPARK_LOCAL_BYTES_MIN
) -> None:
    """Raise SparkUnavailable unless Spark's folders for temporary files are writable and have some space."""
    text = environment.get("SPARK_LOCAL_DIRS") or settings.get("spark.local.dir")
    remedy = "set SPARK_LOCAL_DIRS to a folder on a disk with space"
    try:
        folders = [part.strip() for part in text.split(",")] if text else [tempfile.gettempdir()]
    except OSError as error:
        raise SparkUnavailable(
            f"no folder for temporary files: {_why(error)}", "set TMPDIR to one"
        ) from error
    for folder in folders:
        what = f"Spark's folder for temporary files, {folder},"
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"x")
            space = os.statvfs(folder)
        except OSError as error:
            raise SparkUnavailable(f"{what} cannot be written to: {_why(error)}", remedy) from error
        free_bytes = space.f_bavail * space.f_frsize
        if free_bytes < bytes_min:
            reason = f"{what} has {free_bytes} bytes of space, and {bytes_min} are the least"
            raise SparkUnavailable(reason, remedy)


def check_temporary_folder(environment: Mapping[str, str]) -> None:
    """Raise SparkUnavailable unless Java can encode the name of the folder where PySpark leaves a file for
    the JVM.

    Otherwise both would wait for ever. Without LC_ALL Java can: if LANG is C or unset, Python gives it a
    locale with UTF-8.
    """
    locale = environment.get("LC_ALL")
    if locale in _ASCII_LOCALES and not (folder := tempfile.gettempdir()).isascii():
        reason = f"Java cannot name the folder for temporary files, {folder}, with LC_ALL={locale}"
        raise SparkUnavailable(reason, "set TMPDIR to another, or LC_ALL to C.UTF-8")


def worker_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that workers need.

    Workers run as `python -m`, which looks for modules in the working directory first: a `gateway.py` there
    would hide the package, without PYTHONSAFEPATH.
    """
    return {
        "PYSPARK_PYTHON": environment.get("PYSPARK_PYTHON") or sys.executable,
        "PYSPARK_DRIVER_PYTHON": environment.get("PYSPARK_DRIVER_PYTHON") or sys.executable,
        "PYTHONSAFEPATH": environment.get("PYTHONSAFEPATH") or "1",
    }


def check_worker_python(environment: Mapping[str, str]) -> None:
    """Run the workers' interpreter, and check what it imports: Sluice's own modules and a protobuf that fits
    them.

    The driver's own interpreter without PYTHONPATH needs no check.

    Raises:
        SparkUnavailable: it does not run, is of another version, or does not import Sluice.
    """
    python = environment["PYSPARK_PYTHON"]
    if python == sys.executable and not environment.get("PYTHONPATH"):
        return
    remedy = f"set PYSPARK_PYTHON to the interpreter that has sluice-gateway[spark], such as {sys.executable}"
    what = f"the workers' interpreter {python} (PYSPARK_PYTHON)"
    said = "it says nothing"
    try:
        answer = subprocess.run(
            [python, "-c", _PROBE],
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
        said = ((answer.stderr or answer.stdout).strip() or said).splitlines()[0]
        found = json.loads(answer.stdout.strip().rpartition("\n")[2])
    except OSError as error:
        raise SparkUnavailable(f"{what} does not start: {_why(error)}", remedy) from error
    except (subprocess.TimeoutExpired, ValueError) as error:
        raise SparkUnavailable(f"{what} does not run Python: {said}", remedy) from error
    _check_found(python, found, remedy)


def _check_found(python: str, found: Mapping[str, Any], remedy: str) -> None:
    driver = f"{sys.version_info.major}.{sys.version_info.minor}"
    if found["version"] != driver:
        reason = (
            f"the workers' interpreter {python} is Python {found['version']}, and this is Python {driver}"
        )
        raise SparkUnavailable(reason, remedy)
    ours = str(Path(__file__).parents[2] / "__init__.py")
    # Another interpreter may have its Sluice elsewhere.
    if found.get("sluice", ours) != ours and ("error" in found or python == sys.executable):
        reason = f"the workers import another module 'sluice': {found['sluice']}"
        raise SparkUnavailable(reason, "remove it from PYTHONPATH")
    if "error" in found:
        raise SparkUnavailable(
            f"the workers' interpreter {python} cannot run Sluice: {found['error']}", remedy
        )


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _why(error: OSError) -> str:
    return error.strerror or str(error)
