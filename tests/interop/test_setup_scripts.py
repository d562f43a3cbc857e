"""The scripts that set up Python and Java, and `make constraints`, on made-up machines: a PATH with only what
each has.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
TOOLS = ("dirname", "env", "head", "id", "mktemp", "rm", "sed", "sh", "tr")


class Machine:
    """A machine with a shell, a few tools, and the commands that a test puts there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.environment = {"PATH": str(self.bin), "JVM_FOLDER": str(folder / "jvm")}
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found is not None, f"the tests need {tool}"
            (self.bin / tool).symlink_to(found)
        self.has("id", "echo 1000")  # an ordinary user, without sudo

    def has(self, name: str, script: str) -> Path:
        """Put a command into the machine, in place of one of the same name."""
        path = self.bin / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    def has_java(self, name: str, version: str, home: Path) -> Path:
        """Put a Java there that says its version, as Java does, on standard error."""
        lines = f'java.home = {home}\nopenjdk version "{version}" 2025-04-15'
        return self.has(name, "\n".join(f"echo '    {line}' >&2" for line in lines.splitlines()))

    def run(self, script: str, *arguments: str) -> tuple[int, str, str]:
        """Run a script of deploy/: status, output, errors."""
        command = [str(self.bin / "sh"), str(DEPLOY / script), *arguments]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_java_home_goes_first(machine: Machine, tmp_path: Path) -> None:
    home = tmp_path / "a jdk"
    machine.has_java(str(home / "bin" / "java"), "21.0.1", home)
    machine.has_java("java", "17.0.15", tmp_path / "other")
    machine.environment["JAVA_HOME"] = str(home)
    assert machine.run("java.sh") == (0, f"{home}\n", "")


@pytest.mark.parametrize("version", ["17", "17.0.15", "25-ea"])
def test_java_on_the_path_is_asked_for_its_home(machine: Machine, tmp_path: Path, version: str) -> None:
    machine.has_java("java", version, tmp_path / "jdk")
    machine.environment["JAVA_HOME"] = str(tmp_path / "not there")
    assert machine.run("java.sh") == (0, f"{tmp_path / 'jdk'}\n", "")


def test_a_java_that_is_not_on_the_path_is_found(machine: Machine, tmp_path: Path) -> None:
    machine.has_java(str(tmp_path / "jvm" / "11" / "bin" / "java"), "11.0.22", tmp_path / "jvm" / "11")
    machine.has_java(str(tmp_path / "jvm" / "17" / "bin" / "java"), "17.0.15", tmp_path / "jvm" / "17")
    assert machine.run("java.sh") == (0, f"{tmp_path / 'jvm' / '17'}\n", "")


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.22"])
def test_an_old_java_is_refused_with_what_to_run(machine: Machine, tmp_path: Path, version: str) -> None:
    machine.has_java("java", version, tmp_path / "jdk")
    status, output, errors = machine.run("java.sh")
    assert (status, output) == (1, "")
    assert "Spark needs Java 17 or later, and none was found" in errors
    assert "    sudo apt-get install openjdk-17-jre-headless " in errors


def test_root_installs_java_17_or_else_the_default(machine: Machine, tmp_path: Path) -> None:
    machine.has("id", "echo 0")
    java = machine.has_java("later", "21.0.1", tmp_path / "jdk")
    move = f"{shutil.which('mv')} {shlex.quote(str(java))} {shlex.quote(str(java.with_name('java')))}"
    machine.has("apt-get", f'case "$*" in *17*) exit 100 ;; *default-jre-headless) {move} ;; esac')
    status, output, errors = machine.run("java.sh")
    assert (status, output) == (0, f"{tmp_path / 'jdk'}\n")
    assert "apt-get could not install openjdk-17-jre-headless." in errors


def test_no_python(machine: Machine, tmp_path: Path) -> None:
    status, output, errors = machine.run("venv.sh", str(tmp_path / "venv"))
    assert (status, output) == (1, "")
    assert "Sluice needs Python 3.11 or later, and there is no 'python3'." in errors
    assert "make PYTHON=python3.12" in errors


def test_an_old_python(machine: Machine, tmp_path: Path) -> None:
    machine.has("python3", 'case "$2" in *sys.exit*) exit 1 ;; *) echo 3.9.2 ;; esac')
    status, _, errors = machine.run("venv.sh", str(tmp_path / "venv"))
    assert status == 1
    assert "Sluice needs Python 3.11 or later; 'python3' is 3.9.2." in errors
    assert not (tmp_path / "venv").exists()


def test_a_folder_that_is_no_environment_is_left_alone(machine: Machine, tmp_path: Path) -> None:
    machine.environment["PYTHON"] = sys.executable
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("precious")
    status, _, errors = machine.run("venv.sh", str(tmp_path / "mine"))
    assert status == 1
    assert "is there and is no virtual environment; it is left as it is" in errors
    assert (tmp_path / "mine" / "file").read_text() == "precious"


def debian_python(machine: Machine, *, has_pip: bool) -> None:
    """A Python as Debian ships it: no ensurepip, no virtualenv, perhaps pip."""
    machine.has(
        "python3",
        f"""case "$*" in
            *ensurepip*) exit 1 ;;
            *"-m venv"*) exit 1 ;;
            *"-m virtualenv --version"*) exit 1 ;;
            *"-m pip --version"*) exit {0 if has_pip else 1} ;;
            *"-m pip install"*virtualenv) exit 0 ;;
            *"-m virtualenv"*) {shutil.which("mkdir")} -p "$4" && echo made >"$4/pyvenv.cfg" ;;
            *) exec {shlex.quote(sys.executable)} "$@" ;;
        esac""",
    )


def test_pip_brings_virtualenv(machine: Machine, tmp_path: Path) -> None:
    debian_python(machine, has_pip=True)
    machine.environment["TMPDIR"] = str(tmp_path)
    assert machine.run("venv.sh", str(tmp_path / "venv"))[0] == 0
    assert (tmp_path / "venv" / "pyvenv.cfg").read_text() == "made\n"
    assert {path.name for path in tmp_path.iterdir()} == {"bin", "venv"}  # and nothing is left over


def test_without_anything_what_to_run_is_said(machine: Machine, tmp_path: Path) -> None:
    debian_python(machine, has_pip=False)
    status, _, errors = machine.run("venv.sh", str(tmp_path / "venv"))
    assert status == 1
    package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
    assert f"    sudo apt-get install {package} " in errors


def test_an_environment_that_works_is_kept(machine: Machine, tmp_path: Path) -> None:
    python = machine.has(str(tmp_path / "venv" / "bin" / "python"), 'test "$*" = "-m pip --version"')
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    machine.environment["PYTHON"] = sys.executable
    assert machine.run("venv.sh", str(tmp_path / "venv")) == (0, "", "")
    assert python.exists()


@pytest.mark.slow
def test_an_environment_is_made_once_and_kept(machine: Machine, tmp_path: Path) -> None:
    pytest.importorskip("ensurepip", reason="without it, virtualenv comes from a package index")
    venv = tmp_path / "venv"
    machine.environment["PYTHON"] = sys.executable
    assert machine.run("venv.sh", str(venv)) == (0, "", "")
    (venv / "mark").write_text("kept")
    assert machine.run("venv.sh", str(venv)) == (0, "", "")
    assert (venv / "mark").exists()
    assert os.access(venv / "bin" / "python", os.X_OK)


BINDINGS = pytest.mark.parametrize("binding", ["plyvel", "plyvel-next"])


def python_without_leveldb(machine: Machine, binding: str, *, has_wheel: bool) -> Path:
    """An interpreter that has a binding of LevelDB, in whose environment it is still to be installed."""
    return machine.has(
        "python",
        f"""case "$*" in
            *"version_info"*) echo {binding} ;;
            *"import plyvel"*) exit 1 ;;
            *"-m pip install"*--dry-run*" {binding}>="*) exit {0 if has_wheel else 1} ;;
            *sysconfig*) echo /usr/include/python3 ;;
            *) exit 3 ;;
        esac""",
    )


@BINDINGS
def test_a_binding_that_is_there_or_has_a_wheel_needs_nothing(machine: Machine, binding: str) -> None:
    there = machine.has("python", f"""case "$*" in *"version_info"*) echo {binding} ;; esac""")
    assert machine.run("leveldb.sh", str(there)) == (0, "", "")
    python = python_without_leveldb(machine, binding, has_wheel=True)
    assert machine.run("leveldb.sh", str(python)) == (0, "", "")


@BINDINGS
def test_a_binding_without_a_wheel_is_built_where_that_can_be(machine: Machine, binding: str) -> None:
    python = python_without_leveldb(machine, binding, has_wheel=False)
    machine.has("g++", "exit 1")  # a compiler, and no headers
    status, _, errors = machine.run("leveldb.sh", str(python))
    assert status == 1
    assert f"{binding} has no wheel for '{python}'" in errors
    assert "    sudo apt-get install g++ python3-dev libleveldb-dev " in errors
    machine.has("g++", "exit 0")
    assert machine.run("leveldb.sh", str(python)) == (0, "", "")


@BINDINGS
def test_what_it_is_built_with_is_installed_where_it_may_be(machine: Machine, binding: str) -> None:
    python = python_without_leveldb(machine, binding, has_wheel=False)
    machine.has("id", "echo 0")
    said = machine.folder / "said"
    compiler = machine.bin / "g++"
    machine.has(
        "apt-get", f"echo \"$@\" >>'{said}'; {shutil.which('ln')} -sf {shutil.which('true')} '{compiler}'"
    )
    assert machine.run("leveldb.sh", str(python))[0] == 0
    update, install = said.read_text().splitlines()
    assert update.startswith("update")
    assert install.endswith("g++ python3-dev libleveldb-dev")


def make_constraints(machine: Machine, **steps: str) -> tuple[int, str, str]:
    """Run `make constraints` with an interpreter whose steps are given: status, errors, the file after it.

    Args:
        steps: what the shell does in place of `version`, `install`, `freeze` and `index`.
    """
    for tool in ("cp", "grep", "make", "mkdir", "mv", "sort"):
        found = shutil.which(tool)
        assert found is not None, f"the test needs {tool}"
        (machine.bin / tool).symlink_to(found)
    shutil.copy(DEPLOY.parent / "Makefile", machine.folder)
    file = machine.folder / "deploy" / "constraints.txt"
    file.parent.mkdir()
    file.write_text("# Renew: make constraints\nold==1\n")
    steps = {
        "version": "exit 0",
        "install": "exit 0",
        "freeze": "echo plyvel==1.5.1; echo blake3==1.0.11",
        "index": "echo 'plyvel-next (2.1.2)'; echo 'Available versions: 2.1.2, 2.1.1'",
    } | steps
    python = machine.has(
        "made-up",
        f"""case "$*" in
            *version_info*) {steps["version"]} ;;
            *"-m pip install "*) {steps["install"]} ;;
            *"-m pip freeze "*) {steps["freeze"]} ;;
            *"-m pip index versions "*) {steps["index"]} ;;
            *) exit 3 ;;
        esac""",
    )
    (file.parent / "venv.sh").write_text(
        f'mkdir -p "$1/bin" && cp {shlex.quote(str(python))} "$1/bin/python"\n'
    )
    done = subprocess.run(
        ["make", "constraints"],
        cwd=machine.folder,
        env=machine.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr, file.read_text()


def test_constraints_have_what_is_installed_and_a_later_python_s_leveldb(machine: Machine) -> None:
    lines = ["# Renew: make constraints", "blake3==1.0.11", "plyvel-next==2.1.2", "plyvel==1.5.1"]
    assert make_constraints(machine) == (0, "", "\n".join(lines) + "\n")
    assert not (machine.folder / "build" / "constraints").exists()


@pytest.mark.parametrize(
    ("step", "script", "words"),
    [
        (
            "version",
            "exit 1",
            "The constraints are made with Python 3.11: make PYTHON=python3.11 constraints",
        ),
        ("install", "exit 1", "Error 1"),
        ("freeze", "echo blake3==1.0.11; exit 1", "Error 1"),
        ("index", "echo 'plyvel-next (2.1.2)'; exit 1", "Error 1"),
        ("index", "echo nothing of that name", "pip index does not say the newest plyvel-next"),
    ],
)
def test_constraints_stay_where_a_step_fails(machine: Machine, step: str, script: str, words: str) -> None:
    status, errors, text = make_constraints(machine, **{step: script})
    assert status != 0
    assert words in errors
    assert text == "# Renew: make constraints\nold==1\n"
