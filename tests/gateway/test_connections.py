"""A connection is ended at its socket: that one, and no other."""

from __future__ import annotations

import fcntl
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.connections import cut_off
from tests.datastream.serving import has_ipv6


def connected(host: str, family: socket.AddressFamily) -> tuple[socket.socket, socket.socket]:
    """A client's socket, and the server's."""
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.bind((host, 0))
        listener.listen()
        client = socket.create_connection(listener.getsockname()[:2])
        server, _ = listener.accept()
        return client, server


@pytest.mark.parametrize(
    ("host", "family", "form"),
    [
        ("127.0.0.1", socket.AF_INET, "ipv4:127.0.0.1:{}"),
        ("::1", socket.AF_INET6, "ipv6:%5B::1%5D:{}"),
        ("::1", socket.AF_INET6, "ipv6:[::1]:{}"),
    ],
)
def test_the_connection_of_a_client_is_ended_and_no_other(
    host: str, family: socket.AddressFamily, form: str
) -> None:
    if family == socket.AF_INET6 and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    client, server = connected(host, family)
    other, its_server = connected(host, family)
    with client, server, other, its_server:
        assert cut_off(form.format(client.getsockname()[1]))
        assert client.recv(1) == b""
        assert server.recv(1) == b""
        its_server.sendall(b"x")
        assert other.recv(1) == b"x"


@pytest.mark.parametrize(
    "peer", ["unix:socket", "ipv4:127.0.0.1:1", "ipv4:nonsense:5", "ipv4:127.0.0.1:many", ""]
)
def test_who_is_not_connected_is_not_found(peer: str) -> None:
    assert not cut_off(peer)


def test_without_a_free_file_descriptor_nothing_is_found_and_nothing_raised() -> None:
    client, server = connected("127.0.0.1", socket.AF_INET)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with client, server:
        peer = f"ipv4:127.0.0.1:{client.getsockname()[1]}"
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            assert not cut_off(peer)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert cut_off(peer)


LOOKING = """
import os, socket, sys
from gateway.connections import cut_off

def open_files():
    found = set()
    for entry in os.scandir("/proc/self/fd"):
        try:
            found.add((entry.name, os.readlink(entry)))
        except FileNotFoundError:  # the folder itself, as it was read
            continue
    return found

reading, writing = os.pipe()
file = open(sys.argv[1], "w")
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
server, _ = listener.accept()
before = open_files()
for _ in range(3):
    assert not cut_off("ipv4:127.0.0.1:1")
assert cut_off(f"ipv4:127.0.0.1:{client.getsockname()[1]}")
after = open_files()
assert after == before, (after, before)
"""


def test_looking_for_a_connection_opens_nothing_and_closes_nothing(tmp_path: Path) -> None:
    """It once left a copy of every file behind: a node that cut off ten clients had no file to open.

    In a process of its own: here gRPC may still be closing what tests before this one have opened.
    """
    words = [sys.executable, "-c", LOOKING, str(tmp_path / "file")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_file_lock_of_this_process_outlives_the_search(tmp_path: Path) -> None:
    """POSIX drops all locks of a process on a file as soon as it closes any descriptor of it."""
    lock = tmp_path / "LOCK"
    attempt = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    with lock.open("w") as held:
        fcntl.lockf(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert not cut_off("ipv4:127.0.0.1:1")
        other = subprocess.run([sys.executable, "-c", attempt, lock], capture_output=True, text=True)
    assert "BlockingIOError" in other.stderr
