"""The nodes of a run: processes at fixed addresses, each with a small disk."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError

from sluice.datastream.layout import HEADER_OFFSET, HEADER_SIZE, decode_header
from sluice.gateway.addresses import Address
from sluice.gateway.cluster.control_client import ControlClient
from sluice.gateway.cluster.failover import NodeStatus
from sluice.gateway.errors import NodeCallFailed
from sluice.gateway.store.block_store import Layout
from sluice.publishers.demo.node_process import NodeProcess
from tests.chaos.network import Place, make_places
from tests.nodes import ledger_key

__all__ = ["ChaosNode", "make_nodes"]

_DISK_BYTES = 64 << 20
_LOG_ROOM_BYTES = 1 << 20
_STEADY = (
    *("--block-time", "1", "--catchup-stall-seconds", "2", "--catchup-backoff-seconds", "0.2"),
    *("--catchup-max-backoff-seconds", "1", "--shutdown-grace-seconds", "5"),
)


class ChaosNode:
    """One node, which can start and die repeatedly on the same ports and disk.

    Args:
        name: of its folder and its log.
        folder: of the run.
        role: its first role.
        place: its addresses, and the link to it.
        min_standbys: how many other nodes its acknowledgements wait for.
        layout: of its stream.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        role: str,
        place: Place,
        min_standbys: int = 0,
        layout: Layout = "block",
    ) -> None:
        self.name = name
        self.place = place
        self.grpc, self.tcp, self.http, self.control = place.grpc, place.tcp, place.http, place.control
        self.data_dir = folder / name
        self.log_path = folder / f"{name}.log"
        self.process: NodeProcess | None = None
        self.peers: tuple[Address, ...] = ()
        self._role = role
        self._min_standbys = min_standbys
        self._layout = layout
        self._is_mounted = False

    def __str__(self) -> str:
        return self.name

    # --- disk ----------------------------------------------------------------------------------------------

    def mount(self) -> None:
        """Mount a small file system for the node, if allowed."""
        self.data_dir.mkdir()
        mount = shutil.which("mount")
        if os.geteuid() == 0 and mount is not None:
            command = [mount, "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "tmpfs", str(self.data_dir)]
            self._is_mounted = not subprocess.run(command, capture_output=True, check=False).returncode

    def unmount(self) -> None:
        """Unmount the file system, and lose all files on it."""
        if self._is_mounted:
            subprocess.run(["umount", "-l", str(self.data_dir)], check=False)
            self._is_mounted = False

    def fill_disk(self) -> None:
        """Fill the disk; without a small file system, forbid files to grow."""
        if self._is_mounted:
            with suppress(OSError), (self.data_dir / "ballast").open("ab", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass
        elif self.process is not None:
            most = max(self.total_length(), self.log_path.stat().st_size + _LOG_ROOM_BYTES)
            self._limit_files(most)

    def free_disk(self) -> None:
        """Undo `fill_disk`."""
        if self._is_mounted:
            (self.data_dir / "ballast").unlink(missing_ok=True)
        else:
            self._limit_files(resource.RLIM_INFINITY)

    def replace_disk(self) -> None:
        """Delete everything; the dead node begins anew as a standby."""
        for path in self.data_dir.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        self._role = "standby"

    def _limit_files(self, size_bytes: int) -> None:
        if self.process is not None:
            limits = (size_bytes, resource.RLIM_INFINITY)
            resource.prlimit(self.process.process_id, resource.RLIMIT_FSIZE, limits)

    def total_length(self) -> int:
        """Return the committed bytes of its stream file."""
        with (self.data_dir / "datastream.bin").open("rb") as file:
            head = file.read(HEADER_OFFSET + HEADER_SIZE)
        return decode_header(head[HEADER_OFFSET:]).header.total_length

    # --- process -------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the node, and wait until it listens."""
        words = [*("--ledger-key", ledger_key()), *("--role", self._role), *_STEADY]
        words += ["--commit-min-standbys", str(self._min_standbys), "--stream-layout", self._layout]
        words += ["--grpc-advertised-address", str(self.place.for_peers)]
        for flag, address in zip(
            ("--grpc", "--tcp", "--http", "--control"),
            (self.grpc, self.tcp, self.http, self.control),
            strict=True,
        ):
            words += [flag, str(address)]
        for peer in self.peers:
            words += ["--peer", str(peer)]
        self.process = await asyncio.to_thread(
            NodeProcess, self.data_dir, self.log_path, words, prefix=self.place.prefix
        )

    async def stop(self) -> int:
        """Send SIGTERM; return the exit status."""
        process, self.process = self.process, None
        return 0 if process is None else await asyncio.to_thread(process.stop)

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process = None

    # --- questions -----------------------------------------------------------------------------------------

    async def state(self) -> NodeStatus | None:
        """Return its role; None: it does not answer."""
        if self.process is None:
            return None
        try:
            async with ControlClient(str(self.control)) as control:
                return await control.state()
        except NodeCallFailed:
            return None

    async def is_ready(self) -> bool:
        """Return whether /readyz reports ready."""
        process = self.process
        if process is None:
            return False
        try:
            await asyncio.to_thread(process.get, "/readyz")
        except (HTTPError, OSError):
            return False
        return True

    def problems_logged(self) -> list[str]:
        """Return the lines of its log that a run must not leave."""
        text = self.log_path.read_text("utf-8", errors="replace") if self.log_path.exists() else ""
        words = ("Traceback", '"level": "CRITICAL"', '"level": "critical"', "internal error")
        return [line for line in text.splitlines() if any(word in line for word in words)]


def make_nodes(
    folder: Path, roles: Sequence[str], min_standbys: int = 0, layout: Layout = "block"
) -> list[ChaosNode]:
    """Return nodes that know each other, not started."""
    nodes = [
        ChaosNode(f"node-{'abc'[index]}", folder, role, place, min_standbys, layout)
        for index, (role, place) in enumerate(zip(roles, make_places(len(roles)), strict=True))
    ]
    for node in nodes:
        node.peers = tuple(other.place.for_peers for other in nodes if other is not node)
        node.mount()
    return nodes
