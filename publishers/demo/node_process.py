"""A node in its own process: starts `sluice serve` on free ports, asks it, stops it.

For the demo, tests and benchmarks. The node logs as JSON to a file, which also tells its addresses. `python
-m sluice.publishers.demo.node_process serve …` is a bound node, which ends with its starter:

    starter                 node
    end of a pipe   ──►     end of standard input, which is SIGTERM
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final

from sluice.publishers.errors import PublisherError

__all__ = ["START_SECONDS", "NodeNotStarted", "NodeProcess", "environment_without_settings"]

START_SECONDS: Final = 60.0
"""Longest wait for a node to open its block store and listen."""
STOP_SECONDS: Final = 20.0
"""Time from SIGTERM until a node is killed."""
_LOOK_SECONDS: Final = 0.02
_WITHOUT_PROXY: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""The node is on this machine; `http_proxy` is for others."""
_LOG_LINES_SHOWN: Final = 3
_STANDARD_INPUT: Final = 0


class NodeNotStarted(PublisherError):
    """A node ended before it listened, or did not listen in time."""

    def __init__(self, got: str, last_words: str) -> None:
        super().__init__(f"node: got {got}, expected its addresses; its log ends with: {last_words}")
        self.got = got
        self.last_words = last_words


def environment_without_settings() -> dict[str, str]:
    """Return the environment without the variables that `sluice serve` reads."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}


class NodeProcess:
    """One `sluice serve`. Use with `with`, or call `stop`.

    Args:
        arguments: further words for `sluice serve`.
        prefix: the first words of the command, for another starter of the node.
        is_bound: whether it ends with this process, even a killed one; only with the default module.
        start_seconds: longest wait for it to listen.
    """

    def __init__(
        self,
        data_dir: Path,
        log_path: Path,
        arguments: Sequence[str] = (),
        module: str = "sluice.gateway.commands.cli",
        *,
        prefix: Sequence[str] = (),
        is_bound: bool = False,
        start_seconds: float = START_SECONDS,
    ) -> None:
        if is_bound:
            module = __name__
        self.data_dir = data_dir
        self.log_path = log_path
        words = ["serve", "--data-dir", str(data_dir), "--log-format", "json"]
        for flag in ("--grpc", "--tcp", "--http", "--control"):
            if flag not in arguments:
                words += [flag, "127.0.0.1:0"]
        with log_path.open("ab") as log:
            log_start = log.tell()
            self._process = subprocess.Popen(
                [*prefix, sys.executable, "-m", module, *words, *arguments],
                stdin=subprocess.PIPE if is_bound else subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment_without_settings(),
                # Not in our process group: on Ctrl-C we stop the node last.
                start_new_session=True,
            )
        try:
            self._addresses = self._await_start(log_start, start_seconds)
        except BaseException:
            self.kill()
            raise

    @property
    def grpc(self) -> str:
        """`host:port`."""
        return self._addresses["grpc"]

    @property
    def tcp(self) -> tuple[str, int]:
        """Host and port."""
        host, _, port = self._addresses["tcp"].rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def http(self) -> str:
        """`host:port`."""
        return self._addresses["http"]

    @property
    def control(self) -> str:
        """`host:port`."""
        return self._addresses["control"]

    @property
    def process_id(self) -> int:
        """The id of its process."""
        return self._process.pid

    def get(self, path: str) -> str:
        """Get a page of its HTTP side; a status of 4xx or 5xx raises `urllib.error.HTTPError`."""
        with _WITHOUT_PROXY.open(f"http://{self.http}{path}", timeout=10) as answer:
            text: str = answer.read().decode()
            return text

    def metrics(self) -> dict[str, float]:
        """Return its metrics: name with labels -> value."""
        lines = (line for line in self.get("/metrics").splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    def send(self, signal_number: signal.Signals) -> None:
        """Send a signal, if it runs."""
        self._process.send_signal(signal_number)

    def wait(self, seconds: float | None = None) -> int:
        """Wait for its end; return its exit status, or the negative number of the signal that ended it."""
        status = self._process.wait(seconds)
        if self._process.stdin is not None:
            self._process.stdin.close()
        return status

    def stop(self) -> int:
        """Stop it (SIGTERM) and return its exit status; kill it if it takes too long."""
        self.send(signal.SIGTERM)
        try:
            return self.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.wait()

    def kill(self) -> None:
        """Kill it (SIGKILL), as a crash would."""
        self.send(signal.SIGKILL)
        self.wait()

    def __enter__(self) -> NodeProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _await_start(self, log_start: int, start_seconds: float) -> dict[str, str]:
        deadline = time.monotonic() + start_seconds
        with self.log_path.open() as log:
            log.seek(log_start)
            while True:
                has_ended = self._process.poll() is not None
                found = _started_entry(log)
                if found is not None:
                    return found
                if has_ended:
                    raise NodeNotStarted(
                        f"exit status {self._process.returncode}", self._last_words(log_start)
                    )
                if time.monotonic() > deadline:
                    raise NodeNotStarted(f"silence for {start_seconds:g} s", self._last_words(log_start))
                time.sleep(_LOOK_SECONDS)

    def _last_words(self, log_start: int) -> str:
        with self.log_path.open() as log:
            log.seek(log_start)
            lines = [line.strip() for line in log if line.strip()]
        refusal = _refusal(lines[-1]) if lines else "nothing in its log"
        return refusal or " | ".join(lines[-_LOG_LINES_SHOWN:])


def _refusal(line: str) -> str | None:
    """Return what the last line says if the node refused to start; else None."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return str(entry["message"]) if entry.get("level") == "critical" else None


def _started_entry(log: IO[str]) -> dict[str, str] | None:
    """Read on in the log for the entry "node started"."""
    place = log.tell()
    while (line := log.readline()).endswith("\n"):
        place = log.tell()
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # no log line
        if isinstance(entry, dict) and entry.get("message") == "node started":
            return entry
    log.seek(place)  # read an unfinished line again
    return None


# --- in the node's own process ------------------------------------------------------------------------------


def _end_with_standard_input() -> None:
    while os.read(_STANDARD_INPUT, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":  # a bound node: standard input is a pipe, which ends with its holder
    from sluice.gateway.commands.start import main

    threading.Thread(target=_end_with_standard_input, name="pipe", daemon=True).start()
    sys.exit(main())
