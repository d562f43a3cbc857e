"""The status of other nodes: asked over gRPC (`ask_node`), and of several compared in a table (`collect`).

    node             role    ready  first  last  root hash     publishers  tcp  subscribers  behind  missing
    127.0.0.1:40840  active  yes    0      41    5d0a7c3e9b21  3           10   5            0       0

Any block node can be asked. Facts that only Sluice tells (`services.node_service`) are blank for others, and
their root hash is computed from the block, in both layouts if either may be its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

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

__all__ = ["NodeAnswer", "NodeRow", "NodesView", "ask_node", "collect"]

_ROOT_CHARACTERS = 12
_OPTIONS = (*WHOLE_BLOCKS, ("grpc.use_local_subchannel_pool", 1))


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """The answer of a node to `serverStatus`."""

    first: int | None = None
    """Its first block; None: it is empty, or did not answer."""
    last: int | None = None
    """Its last block."""
    instance: str = ""
    """The name of its process; empty for what is no Sluice node."""
    role: str = ""
    """Its `gateway.cluster.roles.Phase`; the same."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What a Sluice node says beside the protocol; empty for others."""


async def ask_node(
    stub: node_pb2_grpc.BlockNodeServiceAsyncStub,
    timeout_seconds: float,
    *,
    root_of_block: int | None = None,
) -> NodeAnswer:
    """Ask a node for its status: the one way to do so.

    Args:
        root_of_block: a block whose root hash is to be among the facts.

    Raises:
        grpc.aio.AioRpcError: it does not answer.
        InvalidInput: its answer does not parse.
    """
    asked = "" if root_of_block is None else str(root_of_block)
    status, facts = await ask_status(stub, asked, timeout_seconds)
    first, last = held_of(status)
    instance = str(facts.pop(INSTANCE_KEY, ""))
    return NodeAnswer(first, last, instance, str(facts.get("role", "")), facts)


@dataclass(slots=True)
class NodeRow:
    """One node in the table."""

    address: str
    first: int | None = None
    """Its first block; None: it holds none, or did not answer."""
    last: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    """As in `NodeAnswer`."""
    root_hash: str | None = None
    """Hex, of the last block that all nodes have."""
    other_root_hash: str | None = None
    """The same in the other layout, if it was computed from the block and may be either."""
    error: str | None = None
    """Why it did not answer."""
    detail: dict[str, Any] | None = None
    """Its detail (`services.status_detail.as_json`); None: it was not asked, or does not say."""

    def as_json(self) -> dict[str, Any]:
        """The object that `--json` prints for it."""
        return {
            **self.facts,
            "node": self.address,
            "first_block": self.first,
            "last_block": self.last,
            "root_hash": self.root_hash,
            "error": self.error,
            "detail": self.detail,
        }


@dataclass(frozen=True, slots=True)
class NodesView:
    """Several nodes, compared."""

    reports: Sequence[NodeRow]
    common: int | None
    """The last block of every node that answered and has blocks; None: there is none."""

    @property
    def agree(self) -> bool | None:
        """Whether the nodes have the same root hash for that block; None: there are not two to compare."""
        hashes = [
            {report.root_hash, report.other_root_hash or report.root_hash}
            for report in self.reports
            if report.root_hash is not None
        ]
        return None if len(hashes) < 2 else bool(set.intersection(*hashes))

    @property
    def healthy(self) -> bool:
        """Whether every node answered, and no two differ."""
        return self.agree is not False and all(report.error is None for report in self.reports)

    def as_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return {
            "nodes": [report.as_json() for report in self.reports],
            "common_block": self.common,
            "agree": self.agree,
        }

    def lines(self, width: int | None = None) -> list[str]:
        """Return the table, and in words what follows from it.

        Args:
            width: characters of a line of the terminal; None: there is none.
        """
        head = ("node", "role", "ready", "first", "last", "root hash", "publishers", "tcp", "subscribers")
        rows: list[tuple[str, ...]] = [(*head, "behind", "missing", "verify")]
        highest = max((report.last for report in self.reports if report.last is not None), default=None)
        rows += [self._row(report, highest) for report in self.reports]
        lines = table_lines(rows, width)
        failed = [report for report in self.reports if report.error is not None]
        lines += [f"{report.address}: {one_line(report.error or '')}" for report in failed]
        if self.agree is not None:
            verdict = "agree" if self.agree else "DO NOT AGREE"
            lines.append(f"the nodes {verdict} on block {self.common}")
        for report in self.reports:
            if report.detail is not None:
                lines += ["", report.address, *(f"  {line}" for line in detail_lines(report.detail))]
        return lines

    def _row(self, report: NodeRow, highest: int | None) -> tuple[str, ...]:
        facts = report.facts
        if report.error is not None:
            return (report.address, "no answer", *("",) * 10)
        ready = "yes" if facts.get("ready") is True else "no" if facts.get("ready") is False else ""
        behind = "" if highest is None or report.last is None else str(highest - report.last)
        return (
            report.address,
            str(facts.get("role", "")),
            ready,
            "none" if report.first is None else str(report.first),
            "none" if report.last is None else str(report.last),
            (report.root_hash or "")[:_ROOT_CHARACTERS],
            *(str(facts.get(name, "")) for name in ("publishers", "tcp_clients", "subscribers")),
            behind,
            str(facts.get("missing_blocks", "")),
            str(facts.get("verification_mode", "")),
        )


async def collect(
    addresses: Sequence[str], tls: ClientTls | None = None, *, detail: bool = False
) -> NodesView:
    """Ask the nodes, all at once; the row of one that does not answer has the reason.

    Args:
        addresses: of the nodes.
        tls: for the connections; None: without TLS.
        detail: ask for the detail as well.

    Raises:
        TlsError: a file of `tls` cannot be read.
    """
    reports = [NodeRow(address) for address in addresses]
    channels: dict[int, aio.Channel] = {}  # by the row's place: an address may be named twice

    async def ask(place: int) -> None:
        if (failed := channels.pop(place, None)) is not None:
            await failed.close()
        channels[place] = open_channel(addresses[place], tls, _OPTIONS)
        await _ask(reports[place], channels[place], detail=detail)

    try:
        await asyncio.gather(*(_reached(report, partial(ask, place)) for place, report in enumerate(reports)))
        lasts = [report.last for report in reports if report.last is not None]
        common = min(lasts, default=None)
        firsts = [report.first for report in reports if report.first is not None]
        if common is None or max(firsts) > common:
            return NodesView(reports, None)
        held = [place for place, report in enumerate(reports) if report.last is not None]
        await asyncio.gather(*(_ask_root(reports[place], channels[place], common) for place in held))
        return NodesView(reports, common)
    finally:
        for channel in channels.values():
            await channel.close()


async def _reached(report: NodeRow, ask: Callable[[], Awaitable[None]]) -> None:
    """Ask one node, or note why it does not answer."""
    try:
        await relayed_if_refused(report.address, ask)
    except (aio.AioRpcError, InvalidInput, TlsError) as error:
        report.error = _reason(error)


async def _ask(report: NodeRow, channel: aio.Channel, *, detail: bool) -> None:
    """Ask one node for its status."""
    answer = await ask_node(node_pb2_grpc.BlockNodeServiceStub(channel), PEER_STATUS_SECONDS_MAX)
    report.first, report.last, report.facts = answer.first, answer.last, answer.facts
    if detail:
        await _ask_detail(report, channel)


async def _ask_detail(report: NodeRow, channel: aio.Channel) -> None:
    """Ask one node that has answered for its detail; no answer is no error."""
    call: Any = node_pb2_grpc.BlockNodeServiceStub(channel).serverStatusDetail(
        node_pb2.ServerStatusRequest(), timeout=PEER_STATUS_SECONDS_MAX
    )
    with suppress(aio.AioRpcError):  # a node of an older version
        answer: node_pb2.ServerStatusDetailResponse | None = await call
        report.detail = None if answer is None else detail_as_json(answer)


async def _ask_root(report: NodeRow, channel: aio.Channel, number: int) -> None:
    """Ask one node for the root hash of a block, or compute it from the block."""
    try:
        if report.facts:
            stub = node_pb2_grpc.BlockNodeServiceStub(channel)
            answer = await ask_node(stub, PEER_STATUS_SECONDS_MAX, root_of_block=number)
            report.facts = answer.facts or report.facts
            report.root_hash = report.facts.pop("root_hash", None)
            return
        call: Any = node_pb2_grpc.BlockAccessServiceStub(channel).getBlock(
            node_pb2.BlockRequest(block_number=number), timeout=PEER_STATUS_SECONDS_MAX
        )
        response: node_pb2.BlockResponse | None = await call
        if response is None:  # what gRPC gives for bytes that do not parse
            raise InvalidInput(f"block {number}", "a message that does not parse", "a BlockResponse")
        hasher = BlockHasher()
        hasher.add(list(response.block.items))
        summary = hasher.finish()
        report.root_hash = summary.root_hash.hex()
        if summary.root_hash_other_layout is not None:
            report.other_root_hash = summary.root_hash_other_layout.hex()
    except aio.AioRpcError as error:
        report.error = _reason(error)
    except BlockRefused as refused:
        report.error = f"block {number}: {refused}"
    except InvalidInput as error:
        report.error = _reason(error)


def _reason(error: aio.AioRpcError | InvalidInput | TlsError) -> str:
    if isinstance(error, aio.AioRpcError):
        return f"{error.code().name}: {error.details() or 'no details'}"
    return str(error)
