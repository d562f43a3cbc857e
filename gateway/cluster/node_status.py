"""The status of other nodes: `ask_node` asks one over gRPC, `collect` compares several in a table.

    node             role    ready  first  last  root hash     publishers  tcp  subscribers  behind  missing
    127.0.0.1:40840  active  yes    0      41    5d0a7c3e9b21  3           10   5            0       0

Any block node answers. For a node that is not Sluice (`services.node_service`) the columns that only Sluice
reports stay blank, and `collect` computes the root hash from the block, in both layouts if either is
possible.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from grpc import aio

from sluice.gateway.api import node_pb2, node_pb2_grpc
from sluice.gateway.blocks.errors import BlockRefused
from sluice.gateway.blocks.root_hash import BlockHasher
from sluice.gateway.errors import InvalidInput, TlsError
from sluice.gateway.limits import PEER_STATUS_SECONDS_MAX
from sluice.gateway.logs import one_line
from sluice.gateway.services.node_service import INSTANCE_KEY, ask_status, held_of
from sluice.gateway.services.status_detail import as_json as detail_as_json
from sluice.gateway.services.status_detail import lines as detail_lines
from sluice.gateway.table_lines import table_lines
from sluice.gateway.transport.channels import WHOLE_BLOCKS, ClientTls, open_channel, relayed_if_refused
from sluice.gateway.transport.failures import why_failed, why_failed_at

__all__ = [
    "CLUSTER_KEY",
    "INSTANCE_CHARACTERS_MAX",
    "NodeAnswer",
    "NodeRow",
    "NodesView",
    "ask_node",
    "collect",
    "said_as_text",
]

CLUSTER_KEY = "cluster"
"""The report's key for what a node says about its cluster (`cluster.cluster_view`)."""

INSTANCE_CHARACTERS_MAX: Final = 64
"""Sluice's own names have 16. They stay in memory, and this node repeats them: none may be long."""
ROLE_CHARACTERS_MAX: Final = 32
CELL_CHARACTERS_MAX: Final = 100
"""Characters of a cell of the table, and of a root hash in hex."""

_ROOT_CHARACTERS = 12
_OPTIONS = (*WHOLE_BLOCKS, ("grpc.use_local_subchannel_pool", 1))


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """The answer of a node to `serverStatus`."""

    first: int | None = None
    last: int | None = None
    instance: str = ""
    """Empty for other block nodes."""
    role: str = ""
    """Its `gateway.cluster.roles.Phase`."""
    report: dict[str, Any] = field(default_factory=dict)
    """Empty for other block nodes."""

    @property
    def stream_layout(self) -> int | None:
        """The layout of its stream's blocks; None: it holds none, or is no Sluice node."""
        return None if self.last is None else _layout_in(self.report)


def _layout_in(report: dict[str, Any]) -> int | None:
    """Return the layout that a node with blocks reports; earlier versions have layout 1 and report none."""
    layout = report.get("stream_layout", 1) if report else None
    return layout if isinstance(layout, int) else None


def _faults_in(report: dict[str, Any]) -> list[str]:
    about = report.get(CLUSTER_KEY)
    faults = about.get("faults") if isinstance(about, dict) else None
    return [said_as_text(one) for one in faults] if isinstance(faults, list) else []


def said_as_text(said: object, characters_max: int | None = None) -> str:
    """Return a value of a node's report as text for people: one line of printable characters, cut."""
    try:
        text = said if isinstance(said, str) else "" if said is None else repr(said)
    except RecursionError:  # a list in a list, some hundred times
        text = type(said).__name__
    return one_line(text[:characters_max])[:characters_max]


async def ask_node(
    stub: node_pb2_grpc.BlockNodeServiceAsyncStub,
    timeout_seconds: float,
    *,
    root_of_block: int | None = None,
) -> NodeAnswer:
    """Ask a node for its status.

    Args:
        root_of_block: a block whose root hash the report should contain.

    Raises:
        grpc.aio.AioRpcError: it does not answer.
        InvalidInput: its answer does not parse.
    """
    asked = "" if root_of_block is None else str(root_of_block)
    status, report = await ask_status(stub, asked, timeout_seconds)
    first, last = held_of(status)
    instance = said_as_text(report.pop(INSTANCE_KEY, None), INSTANCE_CHARACTERS_MAX)
    role = said_as_text(report.get("role"), ROLE_CHARACTERS_MAX)
    root_hash = report.get("root_hash")
    if "root_hash" in report and not isinstance(root_hash, str):
        report["root_hash"] = None
    return NodeAnswer(first, last, instance, role, report)


@dataclass(slots=True)
class NodeRow:
    """One row of the table."""

    address: str
    first: int | None = None
    last: int | None = None
    report: dict[str, Any] = field(default_factory=dict)
    root_hash: str | None = None
    """Of the last common block, in hex."""
    other_root_hash: str | None = None
    """The same in the other layout."""
    error: str | None = None
    detail: dict[str, Any] | None = None
    """Its detail (`services.status_detail.as_json`); None: not asked for, or not reported."""

    def as_json(self) -> dict[str, Any]:
        """The object for `--json`."""
        return {
            **self.report,
            "node": self.address,
            "first_block": self.first,
            "last_block": self.last,
            "root_hash": self.root_hash,
            "error": self.error,
            "detail": self.detail,
        }


@dataclass(frozen=True, slots=True)
class NodesView:
    """A comparison of several nodes."""

    rows: Sequence[NodeRow]
    common: int | None
    """The last block that every answering, non-empty node has."""

    @property
    def agree(self) -> bool | None:
        """True if the nodes have the same root hash for that block; None: fewer than two to compare."""
        hashes = [
            {row.root_hash, row.other_root_hash or row.root_hash}
            for row in self.rows
            if row.root_hash is not None
        ]
        return None if len(hashes) < 2 else bool(set.intersection(*hashes))

    @property
    def layouts(self) -> dict[int, list[str]]:
        """The nodes that hold blocks, by the layout of their streams."""
        found: dict[int, list[str]] = {}
        for row in self.rows:
            if row.last is not None and (layout := _layout_in(row.report)) is not None:
                found.setdefault(layout, []).append(row.address)
        return found

    @property
    def cluster_faults(self) -> list[tuple[str, str]]:
        """The nodes that see a fault of their cluster, and each fault in words."""
        return [(row.address, fault) for row in self.rows for fault in _faults_in(row.report)]

    @property
    def healthy(self) -> bool:
        """True if every node answered and none disagree, an entry has the same number everywhere, and no node
        sees a fault of its cluster."""
        is_same = self.agree is not False and len(self.layouts) < 2
        return is_same and not self.cluster_faults and all(row.error is None for row in self.rows)

    def as_json(self) -> dict[str, Any]:
        """The object for `--json`."""
        return {
            "nodes": [row.as_json() for row in self.rows],
            "common_block": self.common,
            "agree": self.agree,
        }

    def lines(self, width: int | None = None) -> list[str]:
        """Return the table, then failures and the verdict in words."""
        head = ("node", "role", "ready", "first", "last", "root hash", "publishers", "tcp", "subscribers")
        cells: list[tuple[str, ...]] = [(*head, "behind", "missing", "verify")]
        highest = max((row.last for row in self.rows if row.last is not None), default=None)
        cells += [self._row(row, highest) for row in self.rows]
        lines = table_lines(cells, width)
        failed = [row for row in self.rows if row.error is not None]
        lines += [f"{row.address}: {one_line(row.error or '')}" for row in failed]
        if self.agree is not None:
            verdict = "agree" if self.agree else "DO NOT AGREE"
            lines.append(f"the nodes {verdict} on block {self.common}")
        if len(self.layouts) > 1:
            which = "; ".join(
                f"{layout}: {', '.join(nodes)}" for layout, nodes in sorted(self.layouts.items())
            )
            lines.append(f"their streams HAVE DIFFERENT LAYOUTS, so entry numbers differ: {which}")
        lines += [f"{address} says: {fault}" for address, fault in self.cluster_faults]
        for row in self.rows:
            if row.detail is not None:
                lines += ["", row.address, *(f"  {one_line(line)}" for line in detail_lines(row.detail))]
        return lines

    def _row(self, row: NodeRow, highest: int | None) -> tuple[str, ...]:
        report = row.report
        if row.error is not None:
            return (row.address, "no answer", *("",) * 10)
        ready = "yes" if report.get("ready") is True else "no" if report.get("ready") is False else ""
        behind = "" if highest is None or row.last is None else str(highest - row.last)

        def said(name: str) -> str:
            return said_as_text(report.get(name), CELL_CHARACTERS_MAX)

        return (
            row.address,
            said("role"),
            ready,
            "none" if row.first is None else str(row.first),
            "none" if row.last is None else str(row.last),
            said_as_text(row.root_hash, _ROOT_CHARACTERS),
            *(said(name) for name in ("publishers", "tcp_clients", "subscribers")),
            behind,
            said("missing_blocks"),
            said("verification_mode"),
        )


async def collect(
    addresses: Sequence[str],
    tls: ClientTls | None = None,
    *,
    detail: bool = False,
    timeout_seconds: float = PEER_STATUS_SECONDS_MAX,
) -> NodesView:
    """Ask all nodes at once; a failure becomes the row's `error`.

    Raises:
        TlsError: a file of `tls` cannot be read.
    """
    rows = [NodeRow(address) for address in addresses]
    channels: dict[int, aio.Channel] = {}  # by index: an address may be named twice

    async def ask(place: int) -> None:
        if (failed := channels.pop(place, None)) is not None:
            await failed.close()
        channels[place] = open_channel(addresses[place], tls, _OPTIONS)
        await _ask(rows[place], channels[place], timeout_seconds, detail=detail)

    try:
        await asyncio.gather(*(_reached(row, partial(ask, place), tls) for place, row in enumerate(rows)))
        lasts = [row.last for row in rows if row.last is not None]
        common = min(lasts, default=None)
        firsts = [row.first for row in rows if row.first is not None]
        if common is None or max(firsts) > common:
            return NodesView(rows, None)
        held = [place for place, row in enumerate(rows) if row.last is not None]
        await asyncio.gather(
            *(_ask_root(rows[place], channels[place], common, timeout_seconds) for place in held)
        )
        return NodesView(rows, common)
    finally:
        for channel in channels.values():
            await channel.close()


async def _reached(row: NodeRow, ask: Callable[[], Awaitable[None]], tls: ClientTls | None) -> None:
    try:
        await relayed_if_refused(row.address, ask)
    except aio.AioRpcError as error:
        row.error = await asyncio.to_thread(why_failed_at, row.address, error, tls)
    except (InvalidInput, TlsError) as error:
        row.error = str(error)


async def _ask(row: NodeRow, channel: aio.Channel, timeout_seconds: float, *, detail: bool) -> None:
    answer = await ask_node(node_pb2_grpc.BlockNodeServiceStub(channel), timeout_seconds)
    row.first, row.last, row.report = answer.first, answer.last, answer.report
    if detail:
        await _ask_detail(row, channel, timeout_seconds)


async def _ask_detail(row: NodeRow, channel: aio.Channel, timeout_seconds: float) -> None:
    """Older nodes have none."""
    call: Any = node_pb2_grpc.BlockNodeServiceStub(channel).serverStatusDetail(
        node_pb2.ServerStatusRequest(), timeout=timeout_seconds
    )
    with suppress(aio.AioRpcError):
        answer: node_pb2.ServerStatusDetailResponse | None = await call
        row.detail = None if answer is None else detail_as_json(answer)


async def _ask_root(row: NodeRow, channel: aio.Channel, number: int, timeout_seconds: float) -> None:
    try:
        if row.report:
            stub = node_pb2_grpc.BlockNodeServiceStub(channel)
            answer = await ask_node(stub, timeout_seconds, root_of_block=number)
            row.report = answer.report or row.report
            row.root_hash = row.report.pop("root_hash", None)
            return
        call: Any = node_pb2_grpc.BlockAccessServiceStub(channel).getBlock(
            node_pb2.BlockRequest(block_number=number), timeout=timeout_seconds
        )
        response: node_pb2.BlockResponse | None = await call
        if response is None:  # what gRPC gives for bytes that do not parse
            raise InvalidInput(f"block {number}", "a message that does not parse", "a BlockResponse")
        hasher = BlockHasher()
        hasher.add(list(response.block.items))
        summary = hasher.finish()
        row.root_hash = summary.root_hash.hex()
        if summary.root_hash_other_layout is not None:
            row.other_root_hash = summary.root_hash_other_layout.hex()
    except aio.AioRpcError as error:
        row.error = why_failed(error)
    except BlockRefused as refused:
        row.error = f"block {number}: {refused}"
    except InvalidInput as error:
        row.error = str(error)
