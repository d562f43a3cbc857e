"""The commands of docs/operations.md, on two real nodes while blocks come."""

from __future__ import annotations

import asyncio
import shlex
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

from gateway.block import Block
from publishers.client import ClientOptions
from publishers.machine import SECOND_NS, MachineLimits
from publishers.node_process import environment_without_settings
from tests.nodes import ANSWER_SECONDS, ledger_key, make_blocks
from tests.serving import SLUICE, Listener, ServeProcess

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
BLOCKS = make_blocks(1000)
OPTIONS = ClientOptions(machine=MachineLimits(deadline_ns=60 * SECOND_NS))


def documented() -> list[str]:
    """The command lines of the page."""
    return [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith(("sluice ", "cp "))]


async def ask(line: str, places: dict[str, str], *, status: int = 0) -> str:
    """Run a line of the page, with places of this test for those of the page; give what it prints."""
    assert line in documented(), f"{line}: not in the page any more"
    for place in sorted(places, key=len, reverse=True):
        line = line.replace(place, places[place])
    words = shlex.split(line)
    command = [*SLUICE, *words[1:]] if words[0] == "sluice" else words
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment_without_settings(),
    )
    out, _ = await asyncio.wait_for(process.communicate(), 3 * ANSWER_SECONDS)
    assert process.returncode == status, out.decode()
    return out.decode()


def test_the_commands_of_the_page(tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    backup.mkdir()
    config = tmp_path / "sluice.toml"
    config.write_text(f'ledger_keys = ["{ledger_key()}"]\n')
    ended = asyncio.Event()

    async def source() -> AsyncIterator[Block]:
        for block in BLOCKS:
            if ended.is_set():
                return
            await asyncio.sleep(0.02)
            yield block

    async def main() -> None:
        with ServeProcess(tmp_path / "a") as a:
            await a.start()
            with ServeProcess(tmp_path / "b", "--role", "standby", "--peer", a.grpc_address) as b:
                await b.start()
                places = {
                    "HOST:40840": str(a.grpc_address),
                    "OTHER:40840": str(b.grpc_address),
                    "A:40841": str(a.logged("node started")[0]["control"]),
                    "B:40841": str(b.logged("node started")[0]["control"]),
                    "/var/lib/sluice": str(a.data_dir),
                    "/backup": str(backup),
                    "/etc/sluice/sluice.toml": str(config),
                }
                publisher = Listener([str(a.grpc_address), str(b.grpc_address)], "alice", OPTIONS)
                publishing = asyncio.ensure_future(publisher.publish(source()))
                async with asyncio.timeout(ANSWER_SECONDS):
                    while len(publisher.acknowledged) < 10:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                text = await ask("sluice serve --config /etc/sluice/sluice.toml --print-config", places)
                assert ledger_key() in text
                assert "active" in await ask("sluice status HOST:40840 OTHER:40840", places)
                copy = "cp --sparse=always /var/lib/sluice/datastream.bin /backup/datastream.bin"
                await ask(copy, places)
                assert "sound" in await ask("sluice check --repair /backup", places)
                text = await ask("sluice failover --from A:40841 --to B:40841", places)
                assert text.endswith(f"{places['B:40841']} is active\n")
                for path in ("/", "/readyz", "/healthz", "/metrics", "/status.json"):
                    address = f"http://{a.http_address}{path}"
                    with await asyncio.to_thread(urllib.request.urlopen, address, timeout=10) as answer:
                        assert answer.status == 200
                ended.set()
                report = await publishing
                assert report.unacknowledged == 0
                await a.kill()
                assert "sound" in await ask("sluice check --repair /var/lib/sluice", places)
                assert "sound" in await ask("sluice check /var/lib/sluice", places)
        with ServeProcess(backup) as restored:
            await restored.start()
            assert restored.logged("node started")[0]["last_block"] >= 9

    asyncio.run(main())
