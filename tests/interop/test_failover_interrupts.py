"""`sluice failover` between real nodes: interrupted at each of its calls, and with a dying target."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from sluice.gateway.cluster.role_keeper import read_role
from sluice.gateway.cluster.roles import Phase, RoleRecord
from sluice.gateway.errors import FailoverFailed
from sluice.gateway.node.node import Node
from tests.interop.test_failover import fail_over
from tests.nodes import ANSWER_SECONDS, make_blocks, running_node, until, wire_to
from tests.serving import SLUICE

BLOCKS = make_blocks(4)
TAKEN_SECONDS = 0.1
"""Time in which a node has acted on a call whose answer is held."""
# The nodes run in the tests' process, which may be too busy to answer at once.
PATIENT = """
import sys
from sluice.gateway.commands import cli
from sluice.gateway.cluster import failover
failover.FAILOVER_LOOK_SECONDS = 60.0
sys.exit(cli.main())
"""


class Gate:
    """A forwarder to a control address that holds requests or answers from one call on."""

    def __init__(self, node: Node) -> None:
        self.address = ""
        self.reached = asyncio.Event()
        """The call has arrived."""
        self._target = node.control_address
        self._method, self._hold = b"", ""
        self._open = asyncio.Event()
        self._requests = b""
        self._writers: list[asyncio.StreamWriter] = []

    def hold(self, method: str, what: str) -> None:
        """Hold the "request" or the "answer" of a NodeControl method, and everything after it."""
        self._method, self._hold = f"NodeControl/{method}".encode(), what

    async def asked(self, method: str) -> None:
        """Wait until a method has been called."""
        await until(lambda: f"NodeControl/{method}".encode() in self._requests)

    def release(self) -> None:
        """Forward what was held, and everything else."""
        self._open.set()

    def cut(self) -> None:
        """Close open connections, and forward nothing of them."""
        for writer in self._writers:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection."""
        self._writers.append(writer)
        with suppress(OSError):
            there, back = await asyncio.open_connection(self._target.host, self._target.port)
            self._writers.append(back)
            await asyncio.gather(self._pump(reader, back, "request"), self._pump(there, writer, "answer"))
        self.cut()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, what: str) -> None:
        while chunk := await reader.read(1 << 16):
            if what == "request":
                self._requests += chunk
                if self._method and self._method in chunk:
                    self.reached.set()
            if self.reached.is_set() and self._hold == what:
                await self._open.wait()
            writer.write(chunk)
            await writer.drain()
        writer.write_eof()


@asynccontextmanager
async def gate_to(node: Node) -> AsyncIterator[Gate]:
    """Yield a listening gate."""
    gate = Gate(node)
    server = await asyncio.start_server(gate.serve, "127.0.0.1", 0)
    gate.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield gate
    finally:
        gate.release()
        server.close()


class Scene:
    """An active node A with a block, its standby B with the same block, and the command between two gates."""

    def __init__(self, a: Node, b: Node, gates: tuple[Gate, Gate]) -> None:
        self.a, self.b = a, b
        self.gate_a, self.gate_b = gates
        self.output = self.errors = ""
        self._process: Process | None = None

    def gate(self, name: str) -> Gate:
        """The gate to A or B."""
        return self.gate_a if name == "A" else self.gate_b

    async def begin_and_stop_at(
        self, name: str, method: str, held: str, *options: str, output: int = PIPE
    ) -> None:
        """Start the command, and wait until a call is held."""
        gate = self.gate(name)
        gate.hold(method, held)
        words = ["failover", "--from", self.gate_a.address, "--to", self.gate_b.address, *options]
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PATIENT, *words, stdout=output, stderr=PIPE
        )
        await asyncio.wait_for(gate.reached.wait(), ANSWER_SECONDS)
        await asyncio.sleep(TAKEN_SECONDS)

    async def interrupt(self, number: signal.Signals) -> str:
        """Interrupt the command; return its immediate words."""
        self.send(number)
        assert self._process is not None
        assert self._process.stderr is not None
        line = await asyncio.wait_for(self._process.stderr.readline(), ANSWER_SECONDS)
        return line.decode().rstrip()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    async def end(self) -> int:
        """Wait for its end; return its status."""
        assert self._process is not None
        output, errors = await asyncio.wait_for(self._process.communicate(), ANSWER_SECONDS)
        self.output, self.errors = (self._named((text or b"").decode()) for text in (output, errors))
        assert self._process.returncode is not None
        return self._process.returncode

    def _named(self, text: str) -> str:
        grpc = (str(self.a.grpc_address), "grpc-of-A"), (str(self.b.grpc_address), "grpc-of-B")
        for address, name in (*grpc, (self.gate_a.address, "A"), (self.gate_b.address, "B")):
            text = text.replace(address, name)
        return text

    @property
    def active(self) -> str:
        """Return the names of the active nodes, now and after a restart."""
        both = (("A", self.a), ("B", self.b))
        now = "".join(name for name, node in both if node.keeper.phase is Phase.ACTIVE)
        roles = {name: read_role(node.settings.data_dir) for name, node in both}
        # A node without a remembered role starts by its setting: A active, B as a standby.
        then = "".join(
            name for name, record in roles.items() if (record.role == "active" if record else name == "A")
        )
        assert now == then
        return now


@asynccontextmanager
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    """Both nodes, level at block 0."""
    changes: dict[str, Any] = {"role": "standby", "catchup_backoff_seconds": 0.05}
    async with AsyncExitStack() as stack:
        a = await stack.enter_async_context(running_node(tmp_path / "a"))
        changes["peers"] = (a.grpc_address,)
        b = await stack.enter_async_context(running_node(tmp_path / "b", **changes))
        await takes_a_block(a, 0)
        await until(lambda: b.store.last_number == 0)
        gates = [await stack.enter_async_context(gate_to(node)) for node in (a, b)]
        yield Scene(a, b, (gates[0], gates[1]))


async def takes_a_block(node: Node, number: int) -> None:
    """Assert that a node accepts publishers."""
    async with wire_to(node) as wire:
        publisher = await wire.publisher("bob")
        await publisher.block(BLOCKS[number])
        await publisher.expect(f"ack {number}")


NOTHING = "nothing has changed (A is active, B is standby)"
UNDONE = "A is active again (A is active, B is standby)"
DONE = "the failover is done (A is standby, B is active)"
AT_ONCE = {
    NOTHING: "nothing has changed yet",
    UNDONE: "undoing what was done",
    DONE: "finishing what has to follow",
}
CALLS = [
    ("A", "getState", NOTHING),
    ("B", "getState", NOTHING),
    ("A", "drain", UNDONE),
    ("B", "awaitBlock", UNDONE),
    ("B", "activate", DONE),
    ("A", "standBy", DONE),
]


@pytest.mark.parametrize(
    ("held", "number"),
    [("request", signal.SIGINT), pytest.param("answer", signal.SIGTERM, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize(
    ("node", "method", "outcome"),
    [
        pytest.param(*call, id=call[1], marks=[] if call[1] in ("drain", "activate") else pytest.mark.slow)
        for call in CALLS
    ],
)
async def test_one_that_is_interrupted_at_a_call_leaves_one_active_node_and_says_which(
    tmp_path: Path, node: str, method: str, outcome: str, held: str, number: signal.Signals
) -> None:
    async with scene(tmp_path) as play:
        await play.begin_and_stop_at(node, method, held)
        said = await play.interrupt(number)
        assert said == f"sluice: failover: interrupted: {AT_ONCE[outcome]} (once more: end at once)"
        play.gate(node).release()
        assert (await play.end(), play.errors) == (130, f"sluice: failover: interrupted; {outcome}\n")
        assert play.active == ("B" if outcome == DONE else "A")
        await takes_a_block(play.b if outcome == DONE else play.a, 1)


@pytest.mark.parametrize(
    ("node", "method", "last", "step"),
    [("A", "drain", "resume", "undo: resume A"), ("B", "activate", "activate", "activate B")],
)
async def test_a_second_interruption_ends_it_at_once_and_says_what_to_look_at(
    tmp_path: Path, node: str, method: str, last: str, step: str
) -> None:
    async with scene(tmp_path) as play:
        await play.begin_and_stop_at(node, method, "answer")
        await play.interrupt(signal.SIGINT)
        await play.gate(node).asked(last)
        play.send(signal.SIGINT)
        assert await play.end() == 130  # the gate is closed: nobody has answered
        assert play.errors == (
            f"sluice: failover: interrupted twice and ended at once, in the step: {step}; look at both "
            "nodes with: sluice status grpc-of-A grpc-of-B; one that is drained follows the other "
            "after 30 s, if that is active, or is active again; if both are active then, run the "
            "failover again\n"
        )


async def test_one_by_force_that_is_interrupted_while_the_standby_is_activated_is_done(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path) as play:
        await play.a.stop()
        await play.begin_and_stop_at("B", "activate", "request", "--force", "--json")
        await play.interrupt(signal.SIGTERM)
        play.gate_b.release()
        assert await play.end() == 130
        outcome = "interrupted; the failover is done (A does not answer, B is active)"
        assert play.errors == f"sluice: failover: {outcome}\n"
        printed = json.loads(play.output)
        assert (printed["active"], printed["error"]) == ("B", f"failover: {outcome}")
        await takes_a_block(play.b, 1)


async def test_one_whose_terminal_is_closed_and_whose_output_nobody_reads_is_finished(tmp_path: Path) -> None:
    async with scene(tmp_path) as play:
        read, write = os.pipe()
        os.close(read)
        await play.begin_and_stop_at("B", "activate", "request", output=write)
        os.close(write)
        play.send(signal.SIGHUP)
        await asyncio.sleep(TAKEN_SECONDS)
        play.gate_b.release()
        assert await play.end() == 130
        assert play.active == "B"
        assert play.a.keeper.phase is Phase.STANDBY


# --- a standby that is lost as it becomes active ------------------------------------------------------------


async def rows_of(*nodes: Node) -> list[tuple[str, str]]:
    """Return role and blocks behind from `sluice status`, for each node."""
    words = ["status", *(str(node.grpc_address) for node in nodes)]
    process = await asyncio.create_subprocess_exec(*SLUICE, *words, stdout=PIPE, stderr=PIPE)
    output, _ = await asyncio.wait_for(process.communicate(), ANSWER_SECONDS)
    head, *rows = (line.split() for line in output.decode().splitlines()[: 1 + len(nodes)])
    behind = head.index("behind") - 1  # "root hash" is two words
    return [(row[1], row[behind]) for row in rows]


@pytest.mark.parametrize(
    "remedy",
    [
        pytest.param("to the first", marks=pytest.mark.slow),
        pytest.param("to the one that is ahead", marks=pytest.mark.slow),
        "started as a standby",
    ],
)
async def test_a_standby_that_dies_as_it_becomes_active_comes_back_active_and_docs_say_what_to_do(
    tmp_path: Path, remedy: str
) -> None:
    async with scene(tmp_path) as play:
        await play.begin_and_stop_at("B", "activate", "answer")
        await until(lambda: read_role(tmp_path / "b") == RoleRecord("active"))
        assert play.b.keeper.phase is Phase.ACTIVE
        await play.b.stop()
        play.gate_b.cut()
        assert await play.end() == 1
        assert play.errors.endswith(
            "; A is active again, and B may be, too, when it comes back: see with sluice status "
            "grpc-of-A grpc-of-B, and run a failover to the one that is ahead\n"
        )
        await takes_a_block(play.a, 1)
        settings: dict[str, Any] = {"peers": (play.a.grpc_address,), "role": "standby"}
        settings["catchup_stall_seconds"] = (
            0.5  # the time after which an active node looks for blocks at others
        )
        if remedy == "started as a standby":
            (tmp_path / "b" / "role.json").unlink()
        async with running_node(tmp_path / "b", **settings) as b:
            await until(lambda: b.store.last_number == 1)
            if remedy == "started as a standby":
                assert await rows_of(play.a, b) == [("active", "0"), ("standby", "0")]
                return
            assert await rows_of(play.a, b) == [("active", "0"), ("active", "0")]
            active, standby = play.a, b
            if remedy == "to the one that is ahead":
                await takes_a_block(b, 2)
                assert await rows_of(play.a, b) == [("active", "1"), ("active", "0")]
                with pytest.raises(FailoverFailed, match="await block 2: got block 1"):
                    await fail_over(b, play.a, level_seconds=0.1)  # A has no peer to take it from
                active, standby = b, play.a
            await fail_over(standby, active)
            await until(lambda: standby.store.last_number == active.store.last_number)
            assert await rows_of(active, standby) == [("active", "0"), ("standby", "0")]
            await takes_a_block(active, 3 if active is b else 2)
