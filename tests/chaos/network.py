"""The network between the nodes: network namespaces if the machine allows, else ports.

    namespaces    each node has its own namespace and address, all on one bridge. A cut takes the node's link
                  down, or its port off the bridge: packets vanish, nobody gets a reset, and publishers,
                  readers, peers and the operator are all cut off.
    ports         all on loopback; other nodes come over a forwarder (`tests.chaos.link`), which is cut
                  silently or with refusals. Publishers and readers are not cut off.

Namespaces need root, `ip` (iproute2), `unshare` and `nsenter` (util-linux). The run itself then lives in a
namespace, too (`enter`), so that the rest of the machine sees nothing of it.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from sluice.gateway.addresses import Address
from tests.chaos.link import Link

__all__ = ["NamespacePlace", "Place", "PortPlace", "enter", "free_ports", "make_places", "why_not_namespaces"]

_INSIDE = "SLUICE_CHAOS_IN_NAMESPACE"
_TOOLS = ("ip", "unshare", "nsenter")
_TRIAL = "ip link set lo up && ip link add b0 type bridge && ip link add v0 type veth peer name v1"
_SUBNET = "10.99.0"
_PORTS = range(20_000, 32_000)
"""Below the ephemeral ports: a client that calls a dead node must not reach itself."""
_WORKERS = 8
"""The ports of each test process: another process must not take a dead node's port."""
_FOREVER_SECONDS = "86400"


class Place(Protocol):
    """The place of one node: its addresses, and the link to it."""

    grpc: Address
    tcp: Address
    http: Address
    control: Address
    for_peers: Address
    """The address at which other nodes subscribe."""
    prefix: Sequence[str]
    """The prefix of its command."""
    cut_factor: float
    """How much longer than other faults a cut lasts, so that those cut off notice it."""

    async def open(self) -> None:
        """Make the way."""

    async def close(self) -> None:
        """Take it away."""

    def cut(self, number: float) -> str:
        """Cut the link, in a way chosen by a number from 0 to 1; return the way in words."""

    def heal(self) -> None:
        """Undo `cut`."""


class PortPlace:
    """A place on loopback, with a forwarder for the other nodes."""

    def __init__(self, ports: Sequence[int]) -> None:
        """`ports`: gRPC, TCP, HTTP, control, and the forwarder's."""
        self.grpc, self.tcp, self.http, self.control, self.for_peers = (
            Address("127.0.0.1", port) for port in ports
        )
        self.prefix: Sequence[str] = ()
        self.cut_factor = 1.0
        self._link = Link(self.for_peers, self.grpc)

    async def open(self) -> None:
        """Listen."""
        await self._link.open()

    async def close(self) -> None:
        """End the forwarder."""
        await self._link.close()

    def cut(self, number: float) -> str:
        """Hand nothing on between nodes."""
        refuse = number < 0.5
        self._link.cut(refuse=refuse)
        return "the other nodes are refused" if refuse else "the other nodes hear nothing"

    def heal(self) -> None:
        """Hand on again."""
        self._link.heal()


class NamespacePlace:
    """A place in its own network namespace, which lives as long as an idle process in it."""

    def __init__(self, index: int) -> None:
        host = f"{_SUBNET}.{index + 1}"
        self.grpc, self.tcp, self.http, self.control = (
            Address(host, port) for port in (40840, 6900, 16007, 40841)
        )
        self.for_peers = self.grpc
        self.cut_factor = 6.0
        self._port = f"node{index}"
        self._anchor = subprocess.Popen(["unshare", "--net", "sleep", _FOREVER_SECONDS])
        self._await_namespace()
        self.prefix: Sequence[str] = ("nsenter", f"--net=/proc/{self._anchor.pid}/ns/net")
        _ip("link", "add", self._port, "type", "veth", "peer", "name", "eth0", "netns", str(self._anchor.pid))
        _ip("link", "set", self._port, "master", "br0", "up")
        inside = (*self.prefix, "ip")
        _run(*inside, "addr", "add", f"{host}/24", "dev", "eth0")
        _run(*inside, "link", "set", "eth0", "up")
        _run(*inside, "link", "set", "lo", "up")

    def _await_namespace(self) -> None:
        """Wait until the process has left our namespace."""
        ours, its_own = Path("/proc/self/ns/net"), Path(f"/proc/{self._anchor.pid}/ns/net")
        while its_own.readlink() == ours.readlink():
            assert self._anchor.poll() is None, "unshare has ended"

    async def open(self) -> None: ...

    async def close(self) -> None:
        """End the namespace, and the link with it."""
        self._anchor.kill()
        self._anchor.wait()

    def cut(self, number: float) -> str:
        if number < 0.5:
            _ip("link", "set", self._port, "down")
            return "its link is down"
        _ip("link", "set", self._port, "nomaster")
        return "its packets are lost"

    def heal(self) -> None:
        _ip("link", "set", self._port, "master", "br0", "up")


def why_not_namespaces() -> str | None:
    """Return why nodes cannot have network namespaces here; None: they can."""
    if os.environ.get(_INSIDE):
        return None
    if os.geteuid() != 0:
        return "they need root"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not installed (iproute2, util-linux)"
    trial = subprocess.run(["unshare", "--net", "sh", "-c", _TRIAL], capture_output=True, check=False)
    return trial.stderr.decode().strip().replace("\n", "; ") or "not allowed" if trial.returncode else None


def enter(module: str, arguments: Sequence[str]) -> None:
    """Re-execute a module once in a network namespace with a bridge."""
    if not os.environ.get(_INSIDE):
        os.environ[_INSIDE] = "1"
        os.execvp("unshare", ["unshare", "--net", sys.executable, "-m", module, *arguments])
    _ip("link", "set", "lo", "up")
    _ip("link", "add", "br0", "type", "bridge")
    _ip("addr", "add", f"{_SUBNET}.254/24", "dev", "br0")
    _ip("link", "set", "br0", "up")


def make_places(count: int) -> list[Place]:
    """Return places for nodes: in namespaces after `enter`, else on ports."""
    if os.environ.get(_INSIDE):
        return [NamespacePlace(index) for index in range(count)]
    ports = free_ports(5 * count)
    return [PortPlace(ports[5 * index : 5 * index + 5]) for index in range(count)]


def free_ports(count: int) -> list[int]:
    """Return free ports that no other process of the same tests gets."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    ours = _PORTS[worker % _WORKERS :: _WORKERS]
    found: list[int] = []
    for port in random.sample(ours, len(ours)):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            break
    return found


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
