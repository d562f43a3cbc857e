"""The network's own transport, PBJ over Helidon, as processes; consensus nodes and Java block nodes use it.

`java/NetworkClient.java` and `java/NetworkServer.java` are compiled once against the jars named in
`java/pom.xml`. This needs JDK 21 or later, and the jars in the folder SLUICE_NETWORK_JARS or in Maven's own.
An archive of the classes that they load halves the processor time of each start.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

__all__ = ["NetworkProcess", "NetworkSoftware", "NetworkSoftwareMissing"]

JAVA_AT_LEAST: Final = 21
SOURCES: Final = Path(__file__).parent / "java"
MAVEN: Final = ("mvn", "--batch-mode", "--quiet", "--file", str(SOURCES / "pom.xml"))
CLASSPATH: Final = "dependency:build-classpath"
"""Maven's plugin that lists the jars, and downloads missing ones when online."""
QUICK: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""The processes are short-lived, on a shared machine: little warm-up."""
JVM_OPTIONS: Final = (*QUICK, "-Xmx1g")
COMMAND_SECONDS: Final = 120.0
ANSWER_SECONDS: Final = 30.0


class NetworkSoftwareMissing(Exception):
    """The JDK or the jars are missing; the text says how to get them."""


class NetworkProcess:
    """A running `NetworkClient` or `NetworkServer`; collects its lines."""

    def __init__(self, command: Sequence[str], error_path: Path) -> None:
        self._errors = error_path
        with error_path.open("ab") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self._lines: list[str] = []
        self._seen = 0
        self._is_over = False
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    @property
    def lines(self) -> list[str]:
        """All lines so far."""
        with self._changed:
            return list(self._lines)

    def next(self) -> str:
        """Wait for the next unread line."""
        with self._changed:
            came = self._changed.wait_for(
                lambda: len(self._lines) > self._seen or self._is_over, ANSWER_SECONDS
            )
            if not came or len(self._lines) == self._seen:
                raise AssertionError(f"no further line after {self._lines[-5:]}; {self.last_words()}")
            self._seen += 1
            return self._lines[self._seen - 1]

    def expect(self, *lines: str) -> None:
        """Assert the next lines."""
        got = []
        for line in lines:
            got.append(self.next())
            if got[-1] != line:
                break
        assert got == list(lines), self.last_words()

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait for an unread line that matches a pattern as a whole."""
        while True:
            if found := re.fullmatch(pattern, self.next()):
                return found

    def say(self, *commands: str) -> None:
        """Write commands to its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write("".join(f"{command}\n" for command in commands))
        self._process.stdin.flush()

    def ended(self) -> int:
        """Wait for its end; return the exit status."""
        status = self._process.wait(COMMAND_SECONDS)
        self._reader.join(ANSWER_SECONDS)
        return status

    def kill(self) -> None:
        """Kill it with SIGKILL, if it still runs."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(COMMAND_SECONDS)

    def last_words(self) -> str:
        """The end of its standard error."""
        return f"its errors end with: {self._errors.read_text('utf-8', 'replace')[-2000:]}"

    def __enter__(self) -> Self:
        """Return self."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Leave no process behind."""
        self.kill()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._reader.join(ANSWER_SECONDS)
        self._process.stdout.close()
        with suppress(BrokenPipeError):  # a command that it did not read
            self._process.stdin.close()


class NetworkSoftware:
    """The compiled client and server. Make one with `find`."""

    def __init__(self, java_home: Path, classpath: str, folder: Path) -> None:
        self._java = str(java_home / "bin" / "java")
        self._classpath = classpath
        self._folder = folder
        self.archive = folder / "classes.jsa"
        """The classes that a start loads, ready for use."""

    @classmethod
    def find(cls, folder: Path) -> Self:
        """Find a JDK and the jars, and compile into a folder, unless that is done.

        Raises:
            NetworkSoftwareMissing: one of them is missing.
        """
        java_home, compiled = _java_home(), folder / "compiled"
        if compiled.exists():
            return cls(java_home, compiled.read_text("utf-8"), folder)
        tools, classes, ours = java_home / "bin", folder / "classes", folder / "ours.jar"
        classpath = os.pathsep.join([str(ours), *_jars(java_home, folder)])
        software = cls(java_home, classpath, folder)
        sources = sorted(str(path) for path in SOURCES.glob("*.java"))
        quick = [f"-J{option}" for option in QUICK]
        _make(tools / "javac", *quick, "-d", classes, "-cp", classpath, *sources)
        _make(tools / "jar", "--create", "--file", ours, "-C", classes, ".")
        # It only fails to connect, but loads most classes. Without an archive all works, too.
        archive = (f"-XX:ArchiveClassesAtExit={software.archive}",)
        software.run("NetworkClient", "status", "http://127.0.0.1:1", options=archive)
        compiled.write_text(classpath, "utf-8")
        return software

    def start(self, name: str, *arguments: object, options: Sequence[str] = ()) -> NetworkProcess:
        """Start `NetworkClient` or `NetworkServer`."""
        options = options or (f"-XX:SharedArchiveFile={self.archive}",)
        words = (*JVM_OPTIONS, *options, "-cp", self._classpath, name)
        command = [self._java, *words, *map(str, arguments)]
        return NetworkProcess(command, self._folder / f"{name}-{time.monotonic_ns()}.log")

    def run(self, name: str, *arguments: object, options: Sequence[str] = ()) -> tuple[int, list[str]]:
        """Run one to its end; return exit status and lines."""
        with self.start(name, *arguments, options=options) as process:
            return process.ended(), process.lines


def _make(*command: object) -> None:
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
    if done.returncode:
        raise AssertionError(f"the network's software does not compile: {done.stderr}")


def _java_home() -> Path:
    for home in _java_homes():
        version = _java_version(home)
        if version >= JAVA_AT_LEAST and (home / "bin" / "javac").is_file():
            return home
    raise NetworkSoftwareMissing(
        f"no JDK of {JAVA_AT_LEAST} or later in JAVA_HOME, PATH or /usr/lib/jvm: "
        f"install one, such as the package openjdk-{JAVA_AT_LEAST}-jdk-headless"
    )


def _java_homes() -> Iterator[Path]:
    if named := os.environ.get("JAVA_HOME"):
        yield Path(named)
    if on_path := shutil.which("javac"):
        yield Path(on_path).resolve().parent.parent
    yield from sorted(Path("/usr/lib/jvm").glob("*"))


def _java_version(home: Path) -> int:
    """The major version that a JDK's file `release` names; 0 where there is none."""
    try:
        release = (home / "release").read_text("utf-8", "replace")
    except OSError:
        return 0
    found = re.search(r'^JAVA_VERSION="(\d+)', release, re.MULTILINE)
    return int(found[1]) if found else 0


def _jars(java_home: Path, folder: Path) -> Sequence[str]:
    """Return the jars' paths: from the named folder, or from offline Maven."""
    if named := os.environ.get("SLUICE_NETWORK_JARS"):
        jars = sorted(map(str, Path(named).glob("*.jar")))
        if not jars:
            raise NetworkSoftwareMissing(f"SLUICE_NETWORK_JARS: {named} has no jars")
        return jars
    to_get = f"`{' '.join(MAVEN)} {CLASSPATH}` fetches it, or SLUICE_NETWORK_JARS names a folder of jars"
    if shutil.which(MAVEN[0]) is None:
        raise NetworkSoftwareMissing(f"the network's software: no Maven; where there is one, {to_get}")
    listing = folder / "classpath"
    done = subprocess.run(
        [*MAVEN, "--offline", CLASSPATH, f"-Dmdep.outputFile={listing}"],
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
        env=os.environ | {"JAVA_HOME": str(java_home), "MAVEN_OPTS": " ".join(QUICK)},
    )
    if done.returncode:
        raise NetworkSoftwareMissing(f"Maven has not the network's software: {to_get}")
    return listing.read_text("utf-8").strip().split(os.pathsep)
