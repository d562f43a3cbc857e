"""Every command of docs/operations.md, on real nodes while blocks come."""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
import signal
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sluice.datastream.layout import HEADER_PAGE_SIZE
from sluice.gateway.addresses import Address
from sluice.gateway.blocks.block import Block
from sluice.publishers.blocks.maker import BlockMaker
from sluice.publishers.client.client import ClientOptions
from sluice.publishers.demo.node_process import environment_without_settings
from sluice.publishers.protocol.machine import SECOND_NS, MachineLimits
from tests.nodes import ANSWER_SECONDS, KEY, SMALL, each, ledger_key, make_blocks, until
from tests.serving import SLUICE, Listener, ServeProcess

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
BLOCKS_MAX = 2000
"""The chain is made on demand, and nobody reaches its end."""
OPTIONS = ClientOptions(machine=MachineLimits(deadline_ns=90 * SECOND_NS))
Places = dict[str, str]


class HasGrpc(Protocol):
    """A node that runs."""

    grpc_address: Address


PRINT_CONFIG = "sluice serve --config /etc/sluice/sluice.toml --print-config"
SERVE = "sluice serve --data-dir /var/lib/sluice --ledger-key ed25519:HEX --config /etc/sluice/sluice.toml"
STATUS = "sluice status HOST:40840 OTHER:40840"
READY = "curl -s http://HOST:16007/readyz"
COMPARE = "sluice check /var/lib/sluice --against /var/lib/other"
TRUNCATE = "sluice truncate /var/lib/sluice --to-block 41"
LOOK = "sluice repair /var/lib/sluice"
TAKE = "sluice repair /var/lib/sluice --take entries"
CHECK = "sluice check /var/lib/sluice"
REPAIR = "sluice check --repair /var/lib/sluice"
FAIL_OVER = "sluice failover --from A:40841 --to B:40841"
FORCE = "sluice failover --from A:40841 --to B:40841 --force"
BACK_UP = "cp --sparse=always /var/lib/sluice/datastream.bin /backup/datastream.bin"
CHECK_BACKUP = "sluice check --repair /backup"
RESTORE = "cp --sparse=always /backup/datastream.bin /var/lib/restored/datastream.bin"
SERVE_RESTORED = (
    "sluice serve --data-dir /var/lib/restored --peer OTHER:40840 --config /etc/sluice/sluice.toml"
)
SERVE_EMPTY = "sluice serve --data-dir /var/lib/empty --peer OTHER:40840 --config /etc/sluice/sluice.toml"


def documented() -> set[str]:
    """The command lines of the page."""
    lines = PAGE.read_text("utf-8").splitlines()
    return {line for line in lines if line.startswith(("sluice ", "cp ", "curl "))}


def test_every_command_of_the_page_is_tried_here() -> None:
    tried = {PRINT_CONFIG, SERVE, STATUS, READY, COMPARE, CHECK, REPAIR, FAIL_OVER, FORCE}
    tried |= {LOOK, TAKE, TRUNCATE, BACK_UP, CHECK_BACKUP, RESTORE, SERVE_RESTORED, SERVE_EMPTY}
    assert documented() == tried


def words_of(line: str, places: Places) -> list[str]:
    """Return the words of a line of the page, with this test's places."""
    words = shlex.split(line)  # first: a folder of this test may have a space in its name
    # At once: what is put in may have what another place is called.
    names = "|".join(map(re.escape, sorted(places, key=len, reverse=True)))
    if names:
        words = [re.sub(names, lambda found: places[found[0]], word) for word in words]
    return [*SLUICE, *words[1:]] if words[0] == "sluice" else words


async def ask(line: str, places: Places, *, status: int = 0, answer: bytes | None = None) -> str:
    """Run a line of the page, answer its question, and return its output."""
    process = await asyncio.create_subprocess_exec(
        *words_of(line, places),
        stdin=None if answer is None else asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment_without_settings(),
    )
    out, _ = await asyncio.wait_for(process.communicate(answer), 3 * ANSWER_SECONDS)
    assert process.returncode == status, out.decode()
    return out.decode()


@asynccontextmanager
async def served(line: str, places: Places) -> AsyncIterator[ServeProcess]:
    """Run a line of the page that starts a node."""
    words = words_of(line, places)[len(SLUICE) + 1 :]
    data_dir = Path(words[words.index("--data-dir") + 1])
    with ServeProcess(data_dir, *words) as node:
        await node.start(key=False)
        yield node
        node.send(signal.SIGTERM)
        assert await node.ended() == 0


async def control_of(node: ServeProcess) -> str:
    """Where its control address is."""
    return str(node.logged("node started")[0]["control"])


async def last_of(node: HasGrpc, places: Places) -> int:
    """Return its last block from `sluice status`; -1: none."""
    text = await ask(STATUS, places | {"HOST:40840": str(node.grpc_address)})
    last = text.splitlines()[1].split()[4]
    return -1 if last == "none" else int(last)


async def has_block(node: HasGrpc, places: Places, number: int) -> bool:
    """Whether `sluice status` says that it has a block."""
    return await last_of(node, places) >= number


class Publishing:
    """A publisher that keeps publishing while the nodes are operated."""

    def __init__(
        self, nodes: Sequence[HasGrpc], key: Ed25519PrivateKey = KEY, *, pause_seconds: float = 0.02
    ) -> None:
        self._key, self._pause_seconds = key, pause_seconds
        self.client = Listener([str(node.grpc_address) for node in nodes], "alice", OPTIONS)
        self._ended = asyncio.Event()
        self._goes_on = asyncio.Event()
        self._goes_on.set()
        self._last_number = -1
        self._task = asyncio.ensure_future(self.client.publish(self._source()))

    async def _source(self) -> AsyncIterator[Block]:
        for block in BlockMaker(7, self._key, SMALL).blocks(BLOCKS_MAX):
            if self._ended.is_set():
                return
            await asyncio.sleep(self._pause_seconds)
            await self._goes_on.wait()
            self._last_number = block.number
            yield block

    async def more(self, count: int = 10) -> None:
        """Wait for this many further acknowledgements."""
        wanted = len(self.client.acknowledged) + count
        await until(lambda: len(self.client.acknowledged) >= wanted)

    @asynccontextmanager
    async def pause(self, standby: ServeProcess, places: Places) -> AsyncIterator[None]:
        """Pause; everything acknowledged is on the standby, too.

        A forced failover may lose a block that only the dead node has.
        """
        self._goes_on.clear()
        await until(lambda: has_block(standby, places, self._last_number), 0.05)
        yield
        self._goes_on.set()

    async def end(self) -> None:
        """No more blocks; all are acknowledged."""
        self._ended.set()
        assert (await self._task).unacknowledged == 0


@pytest.mark.slow
async def test_nodes_are_run_watched_failed_over_and_backed_up(tmp_path: Path) -> None:
    backup, config = tmp_path / "backup", tmp_path / "sluice.toml"
    backup.mkdir()
    (tmp_path / "restored").mkdir()
    config.write_text(f'ledger_keys = ["{ledger_key()}"]\n')

    with ServeProcess(tmp_path / "a") as a:
        await a.start()
        with ServeProcess(tmp_path / "b", "--role", "standby", "--peer", a.grpc_address) as b:
            await b.start()
            places = {
                "HOST:40840": str(a.grpc_address),
                "OTHER:40840": str(b.grpc_address),
                "A:40841": await control_of(a),
                "B:40841": await control_of(b),
                "HOST:16007": str(a.http_address),
                "/var/lib/sluice": str(a.data_dir),
                "/var/lib/other": str(b.data_dir),
                "/var/lib/restored": str(tmp_path / "restored"),
                "/backup": str(backup),
                "/etc/sluice/sluice.toml": str(config),
            }
            publishing = Publishing([a, b])
            await publishing.more()
            await watch(places)
            await ask(BACK_UP, places)
            assert "sound" in await ask(CHECK_BACKUP, places)
            text = await ask(FAIL_OVER, places)
            assert text.endswith(f"{places['B:40841']} is active\n")
            for path in ("/", "/readyz", "/healthz", "/metrics", "/status.json", "/operations"):
                address = f"http://{a.http_address}{path}"
                with await asyncio.to_thread(urllib.request.urlopen, address, timeout=10) as answer:
                    assert answer.status == 200
            await publishing.more()
            async with publishing.pause(a, places):
                await lose(b, places)
            await publishing.more()
            places["B:40841"] = await come_back(b, places)
            await publishing.end()
            assert "agree" in await ask(STATUS, places | {"OTHER:40840": str(b.grpc_address)})
            assert "same" in (await ask(COMPARE, places)).lower()
            await ask(RESTORE, places)
            async with served(SERVE_RESTORED, places | {"OTHER:40840": str(a.grpc_address)}) as restored:
                assert restored.logged("node started")[0]["last_block"] >= 9


async def watch(places: Places) -> None:
    """What an operator looks at."""
    assert ledger_key() in await ask(PRINT_CONFIG, places)
    assert "active" in await ask(STATUS, places)
    assert await ask(READY, places) == "ready\n"


async def lose(b: ServeProcess, places: Places) -> None:
    """The active node B dies; A, its standby, takes over by force."""
    await b.kill()
    swapped = places | {"A:40841": places["B:40841"], "B:40841": places["A:40841"]}
    text = await ask(FAIL_OVER, swapped, status=1)
    assert "if that node is dead: --force" in text
    text = await ask(FORCE, swapped)
    assert text.endswith(f"{places['A:40841']} is active\n")


async def come_back(b: ServeProcess, places: Places) -> str:
    """B comes back as active, and becomes a standby; return its new control address."""
    await b.start()
    control = await control_of(b)
    now = places | {"OTHER:40840": str(b.grpc_address), "A:40841": control, "B:40841": places["A:40841"]}
    assert (await ask(STATUS, now)).count("active") == 2
    await ask(FAIL_OVER, now)
    text = await ask(STATUS, now)
    assert (text.count("active"), text.count("standby")) == (1, 1)
    return control


@pytest.mark.slow
async def test_a_stream_that_is_damaged_is_found_repaired_or_filled_anew(tmp_path: Path) -> None:
    config = tmp_path / "sluice.toml"
    config.write_text("block_time_seconds = 1.0\n")
    places = {
        "ed25519:HEX": ledger_key(),
        "/var/lib/sluice": str(tmp_path / "a"),
        "/var/lib/other": str(tmp_path / "b"),
        "/var/lib/empty": str(tmp_path / "empty"),
        "/etc/sluice/sluice.toml": str(config),
    }

    with ServeProcess(tmp_path / "b") as b:
        await b.start()
        places["OTHER:40840"] = str(b.grpc_address)
        async with served(SERVE, places) as a:
            publishing = Publishing([a])
            await publishing.more()
            await publishing.end()
            last = await last_of(a, places)
            there = Listener([str(b.grpc_address)], "bob", OPTIONS)
            assert (await there.publish(each(make_blocks(last + 1)))).unacknowledged == 0
        assert "sound" in await ask(CHECK, places)
        for part in (tmp_path / "a" / "datastream.db").iterdir():
            shutil.rmtree(part) if part.is_dir() else part.unlink()
        assert "the index does not say what it covers" in await ask(CHECK, places)
        assert "sound" in await ask(REPAIR, places)
        with (tmp_path / "a" / "datastream.bin").open("r+b") as file:
            file.seek(HEADER_PAGE_SIZE + 200)
            byte = file.read(1)[0]
            file.seek(HEADER_PAGE_SIZE + 200)
            file.write(bytes([byte ^ 1]))
        await ask(CHECK, places, status=1)
        assert "differ" in await ask(COMPARE, places, status=1)
        await ask(REPAIR, places, status=1)
        config.write_text(f'ledger_keys = ["{ledger_key()}"]\n')
        async with served(SERVE_EMPTY, places) as empty:
            await until(lambda: has_block(empty, places, last), 0.05)
        places["/var/lib/sluice"] = places["/var/lib/empty"]
        assert "sound" in await ask(CHECK, places)
        await ask(COMPARE, places)
        places["41"] = str(last - 2)
        shutil.copytree(places["/var/lib/sluice"], tmp_path / "went back")
        text = await ask(TRUNCATE, places, answer=b"y\n")
        assert f"goes   blocks {last - 1} to {last} of " in text
        assert f"ends with block {last - 2}, " in text
        assert f"{last - 1} blocks: sound" in await ask(CHECK, places)
        with (Path(places["/var/lib/sluice"]) / "datastream.bin").open("rb") as file:
            header_page = file.read(HEADER_PAGE_SIZE)
        places["/var/lib/sluice"] = str(tmp_path / "went back")
        with (tmp_path / "went back" / "datastream.bin").open("r+b") as file:
            file.write(header_page)
        text = await ask(LOOK, places, status=1)
        assert f"with blocks {last - 1} to {last}" in text
        await ask(CHECK, places, status=1)
        text = await ask(TAKE, places, answer=b"y\n")
        assert f"ends with block {last}, " in text
        assert f"{last + 1} blocks: sound" in await ask(CHECK, places)
