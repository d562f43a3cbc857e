"""The page of the cluster, `/cluster`: each node's role, head and chain, as this node sees them.

A shell: `ClusterPage` asks the peers of this node when somebody looks, with the question of `sluice status`;
`render_cluster` is pure.

    node               role     ready  last block on disk  behind  unacknowledged  chain
    this node          active   yes    1200                0       0
    10.0.0.6:40840     standby  yes    1199                1       0               the same at block 1199
    10.0.0.7:40840     does not answer: UNAVAILABLE: …

A peer's name is a link where its page is known: a peer says at which address it serves HTTP. The link stays
while the peer does not answer. There is none if it serves its own machine only and is on another one, or if
it is no Sluice node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from typing import Final

from grpc import aio

from sluice.datastream.errors import DatastreamError
from sluice.datastream.file.page_sums import without_fetching
from sluice.gateway.addresses import parse_address
from sluice.gateway.api import node_pb2_grpc
from sluice.gateway.cluster.node_status import NodeAnswer, ask_node, said_as_text
from sluice.gateway.errors import AddressError, GatewayError
from sluice.gateway.status.node_report import NodeReport
from sluice.gateway.status.status_page import document, moment
from sluice.gateway.store.block_store import BlockStore
from sluice.gateway.transport.channels import ClientTls, open_channel, relayed_if_refused
from sluice.gateway.transport.failures import why_failed

__all__ = ["ClusterPage", "NodeLine", "page_of", "render_cluster"]

ASK_SECONDS_MAX: Final = 2.0
"""The page waits for the slowest peer."""
FRESH_SECONDS: Final = 4.0
"""The peers are not asked more often, however many browsers look."""

READS_MAX: Final = 3
"""Root hashes read at once."""

_HEADS: Final = (
    *("node", "role", "ready", "last block on disk", "behind", "unacknowledged", "publishers", "chain"),
)
_STYLE: Final = """
.wide .nodes th,.wide .nodes td:last-child{white-space:normal}
@media (max-width:52rem){.nodes tr:first-child{display:none}.nodes td,.wide .nodes td{display:block;padding:0;
white-space:normal}.nodes tr{display:block;padding:.5rem 0;border-bottom:1px solid var(--line)}
.nodes td:empty{display:none}.nodes td[data-head]::before{content:attr(data-head) ": ";color:var(--quiet)}}
""".strip()
"""Where the table is too wide, each node is a paragraph."""
_OPTIONS: Final = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", 64 * 1024))


@dataclass(frozen=True, slots=True)
class NodeLine:
    """One node of the cluster."""

    address: str
    role: str = ""
    """Empty: it is no Sluice node."""
    is_ready: bool | None = None
    first: int | None = None
    last: int | None = None
    """Its durable height: the last block on its disk."""
    awaiting: int | None = None
    """Blocks on its disk that it has not acknowledged, because standbys lack them."""
    publishers: int | None = None
    has_same_chain: bool | None = None
    """None: nothing to compare."""
    compared_at: int | None = None
    own_error: str = ""
    """Why this node has no root hash to compare."""
    error: str | None = None
    """Why it is not reachable."""
    page: str | None = None
    is_own: bool = False


class ClusterPage:
    """The peers of one node, asked when somebody looks at its page of the cluster.

    Args:
        report: gathers the node's report.
        peers: the other nodes, `host:port` each.
        ask_seconds: the longest time for an answer, and for a reading of the own disk.
    """

    def __init__(
        self,
        report: Callable[[], NodeReport],
        store: BlockStore,
        peers: Sequence[str],
        tls: ClientTls | None = None,
        ask_seconds: float = ASK_SECONDS_MAX,
    ) -> None:
        self._ask_seconds = ask_seconds
        self._report = report
        self._store = store
        self._peers = peers
        self._tls = tls
        self._lines: tuple[NodeLine, ...] = ()
        self._looked_at = -FRESH_SECONDS
        self._looking: asyncio.Task[None] | None = None
        self._readings: dict[int, asyncio.Future[bytes | None]] = {}
        """Of root hashes, by the block's number."""

    @property
    def pages(self) -> dict[str, str]:
        """The pages of the peers that told of theirs, by address."""
        return {line.address: line.page for line in self._lines if line.page is not None}

    def begin_look(self) -> asyncio.Task[None] | None:
        """Ask the peers, unless they were asked just now."""
        loop = asyncio.get_running_loop()
        if self._looking is None and loop.time() - self._looked_at >= FRESH_SECONDS:
            self._looking = loop.create_task(self._look())
        return self._looking

    async def lines(self) -> list[NodeLine]:
        """Return this node and its peers."""
        looking = self.begin_look()
        if looking is not None:
            await asyncio.shield(looking)  # others may wait for it, too
        report = self._report()
        own = NodeLine(
            f"this node, {report.grpc_address}",
            role=report.phase,
            is_ready=not report.problems,
            first=report.first_block,
            last=report.last_block,
            awaiting=report.awaiting_standbys,
            publishers=report.publisher_count,
            is_own=True,
        )
        return [own, *self._lines]

    def close(self) -> None:
        """End questions under way."""
        if self._looking is not None:
            self._looking.cancel()

    async def _look(self) -> None:
        known = self.pages
        try:
            lines = await asyncio.gather(*map(self._ask, self._peers))
            self._lines = tuple(
                line if line.error is None else replace(line, page=known.get(line.address)) for line in lines
            )
            self._looked_at = asyncio.get_running_loop().time()
        finally:
            self._looking = None

    async def _ask(self, address: str) -> NodeLine:
        try:
            return await relayed_if_refused(address, lambda: self._ask_directly(address))
        except aio.AioRpcError as error:
            return NodeLine(address, error=why_failed(error))
        except (GatewayError, DatastreamError, OSError) as error:
            return NodeLine(address, error=str(error))

    async def _ask_directly(self, address: str) -> NodeLine:
        number = self._store.last_number
        async with open_channel(address, self._tls, _OPTIONS) as channel:
            stub = node_pb2_grpc.BlockNodeServiceStub(channel)
            said = await ask_node(stub, self._ask_seconds, root_of_block=number)
            if number is not None and said.last is not None and said.last < number:
                number = said.last
                said = await ask_node(stub, self._ask_seconds, root_of_block=number)
        root, own_root = said.report.get("root_hash"), None
        own_error = ""
        if number is not None and root is not None:
            try:
                own_root = await self._own_root(number)
            except TimeoutError:
                own_error = "its disk does not answer in time"
            except (DatastreamError, OSError) as error:
                own_error = str(error)
        has_same_chain = None if own_root is None else root == own_root.hex()
        return _line(address, said, has_same_chain, number, own_error)

    async def _own_root(self, number: int) -> bytes | None:
        """Read a root hash of this node, without its archive. A disk that hangs keeps few threads.

        Raises:
            TimeoutError: the disk is too slow.
            DatastreamError, OSError: the block cannot be read here.
        """

        def read() -> bytes | None:
            with without_fetching():
                return self._store.root_hash_at(number)

        if (reading := self._readings.get(number)) is None:
            if len(self._readings) >= READS_MAX:
                raise TimeoutError
            reading = self._readings[number] = asyncio.ensure_future(asyncio.to_thread(read))
            reading.add_done_callback(partial(self._end_reading, number))
        async with asyncio.timeout(self._ask_seconds):
            return await asyncio.shield(reading)

    def _end_reading(self, number: int, reading: asyncio.Future[bytes | None]) -> None:
        del self._readings[number]
        if not reading.cancelled():
            reading.exception()  # nobody may wait for it any more


def _line(
    address: str, said: NodeAnswer, has_same_chain: bool | None, number: int | None, own_error: str
) -> NodeLine:
    def count(name: str) -> int | None:
        found = said.report.get(name)
        return found if isinstance(found, int) else None

    ready = said.report.get("ready")
    return NodeLine(
        address,
        role=said.role,
        is_ready=ready if isinstance(ready, bool) else None,
        first=said.first,
        last=said.last,
        awaiting=count("awaiting_standbys"),
        publishers=count("publishers"),
        has_same_chain=has_same_chain,
        compared_at=number,
        own_error=own_error,
        page=page_of(address, said_as_text(said.report.get("http_address"))),
    )


def page_of(peer: str, http_address: str) -> str | None:
    """Return the address of a peer's page.

    Args:
        peer: the address where this node reaches it.
        http_address: the one where it says that it serves HTTP.

    Returns:
        None: it does not say so, or serves its own machine only, which `peer` shows to be another one.
    """
    try:
        at, served = parse_address(peer), parse_address(http_address, port_min=1)
    except AddressError:
        return None
    if served.is_loopback and not at.is_loopback:
        return None
    return f"http://{served.reached_by(at.host)}/"


def render_cluster(
    lines: Sequence[NodeLine],
    faults: Sequence[str] = (),
    now_unix_seconds: float = 0.0,
    *,
    is_held: bool = False,
) -> str:
    """Return the page as an HTML document.

    Args:
        faults: of the cluster, as this node sees them.
        is_held: the browser does not reload the page.
    """
    highest = max((line.last for line in lines if line.last is not None), default=None)
    head = "".join(f"<th scope=col>{name}</th>" for name in _HEADS)
    rows = "".join(_row(line, highest) for line in lines)
    table = f"<table class=nodes><tr>{head}</tr>{rows}</table>"
    body = (
        f"<h1>Sluice: the cluster</h1>"
        f"<div class=quiet>{moment(now_unix_seconds, '/cluster', is_held=is_held)}</div>"
        '<nav><a href="/">this node</a> · <a href="/operations">operations</a></nav>'
        f"{_verdict(lines, faults)}<div class=wide role=region aria-label=nodes tabindex=0>{table}</div>"
    )
    return document("Sluice: cluster", body, is_live=not is_held, style=_STYLE)


def _verdict(lines: Sequence[NodeLine], faults: Sequence[str]) -> str:
    silent = sum(line.error is not None for line in lines)
    others = [line.address for line in lines if line.has_same_chain is False]
    unready = [line.address for line in lines if line.is_ready is False]
    said = []
    if others:
        said.append(f"<p class=bad>Not the chain of this node: {escape(', '.join(others))}.</p>")
    said += [f"<p class=note>{escape(fault[:1].upper() + fault[1:])}.</p>" for fault in faults]
    if unready:
        said.append(f"<p class=note>Not ready: {escape('; '.join(unready))}.</p>")
    if silent:
        verb = "does" if silent == 1 else "do"
        said.append(f"<p class=note>{silent} of {len(lines)} nodes {verb} not answer this one.</p>")
    if len(lines) == 1:
        said.append("<p>This node has no peers (setting <code>peers</code>).</p>")
    elif not said:
        said.append("<p class=ok>All nodes answer and are ready, and none has another chain.</p>")
    return "".join(said)


def _row(line: NodeLine, highest: int | None) -> str:
    name = escape(line.address)
    if line.page is not None:
        name = f'<a href="{escape(line.page)}">{name}</a>'
    if line.error is not None:
        return f"<tr><td>{name}</td><td colspan=7 class=free>does not answer: {escape(line.error)}</td></tr>"
    behind = "" if highest is None or line.last is None else f"{highest - line.last:,}"
    cells = (
        line.role or "another block node",
        {True: "yes", False: "no", None: ""}[line.is_ready],
        "none" if line.last is None else str(line.last),
        behind,
        "" if line.awaiting is None else f"{line.awaiting:,}",
        "" if line.publishers is None else f"{line.publishers:,}",
        _chain(line),
    )
    named = zip(_HEADS[1:], cells, strict=True)
    rest = "".join(f'<td data-head="{head}">{escape(cell)}</td>' for head, cell in named)
    return f"<tr><td>{name}</td>{rest}</tr>"


def _chain(line: NodeLine) -> str:
    if line.is_own:
        return ""
    if line.own_error:
        return f"not compared: this node cannot read its block {line.compared_at}: {line.own_error}"
    if line.has_same_chain is None:
        return "nothing to compare"
    return f"{'the same' if line.has_same_chain else 'ANOTHER'} at block {line.compared_at}"
