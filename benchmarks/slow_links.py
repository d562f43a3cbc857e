"""Catching up over slow links: from three peers at once, against one peer in the same run.

    python -m benchmarks.slow_links [--quick]

Each node is a process of its own (`sluice serve`, mode full, Ed25519 proofs). A link is a relay that passes
4 MB a second of what the peer sends, 15 ms late. A publisher offers the node the chain's last block; the time
until the node holds the chain counts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager

import uvloop

from benchmarks.catch_up import catch_up
from benchmarks.chains import Chain, make_chain
from benchmarks.measuring import Rows, print_rows
from benchmarks.publish_processes import node, publish

__all__ = ["measure", "run", "slow_link"]

LINK_BYTES_PER_SECOND = 4_000_000
LINK_DELAY_SECONDS = 0.015
PEERS = 3
_PIECE_BYTES = 16 * 1024


async def _pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, bytes_per_second: float
) -> None:
    """Pass bytes on at this pace, each piece some time after it has come."""
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def read() -> None:
        free_at = loop.time()
        with contextlib.suppress(OSError):
            while piece := await reader.read(_PIECE_BYTES):
                free_at = max(free_at, loop.time()) + len(piece) / bytes_per_second
                await asyncio.sleep(free_at - loop.time())
                pieces.put_nowait((free_at + LINK_DELAY_SECONDS, piece))
        pieces.put_nowait((0.0, b""))

    reading = asyncio.ensure_future(read())
    try:
        while True:
            at, piece = await pieces.get()
            await asyncio.sleep(at - loop.time())
            if not piece:
                return
            writer.write(piece)
            await writer.drain()
    finally:
        reading.cancel()
        writer.close()


@asynccontextmanager
async def slow_link(address: str, bytes_per_second: float = LINK_BYTES_PER_SECOND) -> AsyncIterator[str]:
    """Yield the address of a slow link to another address."""
    host, _, port = address.rpartition(":")
    relays = set[asyncio.Task[None]]()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await asyncio.open_connection(host, int(port))
            await asyncio.gather(
                _pass_on(reader, there_writer, 1e9), _pass_on(there_reader, writer, bytes_per_second)
            )
        except OSError:
            pass  # one side is gone
        finally:
            writer.close()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relays.add(asyncio.ensure_future(relay(reader, writer)))

    server = await asyncio.start_server(begin, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for one in relays:
            one.cancel()
        await asyncio.gather(*relays, return_exceptions=True)


async def _over_links(chain: Chain, addresses: Sequence[str]) -> float:
    async with AsyncExitStack() as stack:
        links = [await stack.enter_async_context(slow_link(address)) for address in addresses]
        with node(chain, [word for link in links for word in ("--peer", link)]) as behind:
            return (await catch_up(behind.address, chain)).seconds


def measure(chain: Chain) -> tuple[float, float]:
    """Fill three nodes; return the seconds to catch up from one of them, and from all."""
    with ExitStack() as stack:
        addresses = [stack.enter_context(node(chain)).address for _ in range(PEERS)]
        for address in addresses:
            uvloop.run(publish(address, chain))
        return uvloop.run(_over_links(chain, addresses[:1])), uvloop.run(_over_links(chain, addresses))


def run(quick: bool = False) -> Rows:
    """Run both kinds of chain; return a label and a text for each."""
    cases = [("blocks of 0.5 MB", make_chain(60 if quick else 120, 1_000, 500))]
    if not quick:
        cases.append(("small blocks, 30 items, 5 kB", make_chain(10_000, 30, 165)))
    rows = []
    for label, chain in cases:
        alone, together = measure(chain)
        megabytes = chain.size_bytes / 1e6
        text = (
            f"{megabytes / together:,.1f} MB/s over {PEERS} links of {LINK_BYTES_PER_SECOND / 1e6:g} MB/s, "
            f"{megabytes / alone:,.1f} MB/s over one: ratio {alone / together:.2f}"
        )
        rows.append((f"catch-up over slow links, {label}", text))
    return rows


if __name__ == "__main__":
    print_rows(run)
