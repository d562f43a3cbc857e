"""The replication quorum: which blocks are on disk at enough other nodes.

Pure.

    its report                              counts as
    our block N, with our root hash         having every block up to N
    a block N that we do not have yet       what it counted as before, until we have N or ask (`ahead`)
    a block N with another root hash        nothing: it has another chain
    none, or one before our first           nothing
    from this node itself                   nothing, whatever the address
    from one process at two addresses       one node

Invariants
  - A report counts only while its node is connected, because the node may lose blocks meanwhile.
  - A process that appears in the place of another one may have its disk, or the address leads elsewhere now
    and both run. So older streams that may lead to the other one are `stale`: only what comes over a later
    stream counts. Two processes that run at a time have two disks.
  - A node with our block N has every block before it: each names the root of the one before, and both nodes
    have checked that.
  - `confirmed` never exceeds this node's last block. It may fall.

Source: docs/operations.md, "Acknowledge what is on several disks".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sluice.gateway.blocks.block_numbers import height_of
from sluice.gateway.blocks.chain import Chain

__all__ = ["DurableHeight", "QuorumState", "ReplicationQuorum", "StandbyNote", "unconfirmed"]

OWN_ROOTS_KEPT: Final = 4_096
"""100 bytes each. Each report of a standby further behind costs a read of the stream."""


_NOT_YET = "not reached yet"
_REPLACED = "another process has taken its place"


@dataclass(frozen=True, slots=True)
class DurableHeight:
    """A node's report of its last block on disk."""

    instance: str
    """The name of its process, the same at each of its addresses."""
    number: int | None
    root_hash: bytes
    """48 bytes; empty without a block."""


@dataclass(frozen=True, slots=True)
class StandbyNote:
    """A log line about a watched node."""

    address: str
    text: str
    is_trouble: bool


@dataclass(frozen=True, slots=True)
class QuorumState:
    """The state of the quorum, for reports."""

    min_standbys: int
    states: tuple[tuple[str, str], ...]
    """Each watched node and its state."""
    refusal: str | None = None
    awaiting: tuple[int, int] | None = None
    awaiting_seconds: float = 0.0
    other_chains: tuple[str, ...] = ()
    behind_blocks: tuple[int, ...] = ()
    """How far each node that reports, and has this chain, is behind."""


@dataclass(slots=True)
class _Peer:
    address: str
    said: DurableHeight | None = None
    """Its last report; None: it is not connected."""
    reason: str = _NOT_YET
    instance: str = ""
    """The process that reported last."""
    height: int | None = None
    highest: int = -1
    """The highest block ever found there, in any process."""
    other_chain: int | None = None
    is_unknown: bool = False
    """The root hash of our block of that number has to be looked up."""
    is_stale: bool = False
    """Its stream may still lead to a process that was replaced."""


class ReplicationQuorum:
    """The blocks on disk elsewhere, for one node."""

    def __init__(
        self,
        min_standbys: int,
        instance: str,
        addresses: Sequence[str],
        chain: Chain | None = None,
        own_roots_kept: int = OWN_ROOTS_KEPT,
    ) -> None:
        self._own_roots_kept = own_roots_kept
        self.min_standbys = min_standbys
        self.confirmed: int | None = None
        """The highest block on `min_standbys` other nodes."""
        self._instance = instance
        self._peers = {address: _Peer(address) for address in dict.fromkeys(addresses)}
        self._first_number: int | None = None
        self._last_number = -1
        self._own: dict[int, bytes] = {}
        self._notes: list[StandbyNote] = []
        if chain is not None and chain.last_number is not None and chain.last_root_hash is not None:
            self._first_number = chain.first_number
            self.stored(chain.last_number, chain.last_root_hash)

    # --- what happens --------------------------------------------------------------------------------------

    def stored(self, number: int, root_hash: bytes) -> None:
        """This node has its next block on disk."""
        if self._first_number is None:
            self._first_number = number
        self._own[number] = root_hash
        self._own.pop(number - self._own_roots_kept, None)
        self._last_number = number
        for peer in self._peers.values():
            if peer.said is not None and peer.said.number == number:
                self._judge(peer, number, peer.said.root_hash)
        self._count()

    def opening(self, address: str) -> None:
        """A stream to a watched node opens: its reports come from a running process."""
        self._peers[address].is_stale = False

    def heard(self, address: str, report: DurableHeight) -> None:
        """A watched node reports its last block."""
        peer = self._peers[address]
        if peer.is_stale:
            return  # the report may be old; the next stream brings a true one
        if report.instance != peer.instance:
            self._forget_process(peer.instance, peer)
            peer.instance, peer.height, peer.other_chain = report.instance, None, None
        was_connected, peer.said, peer.is_unknown = peer.said is not None, report, False
        number = height_of(report.number)
        if number < peer.highest:
            self._note(
                peer, f"has {_block(report.number)}, and had block {peer.highest}: was its disk replaced?"
            )
            peer.height, peer.highest = None, number
        elif not was_connected:
            self._note(peer, f"reports {_block(report.number)}", is_trouble=False)
        if report.number is None or report.number < (self._first_number or 0):
            peer.height = None
        elif report.number <= self._last_number:
            self._judge(peer, report.number, report.root_hash)
        self._count()

    def holds(self, address: str, report: DurableHeight) -> None:
        """A watched node, asked for one of our blocks, has it or a lower last block."""
        peer = self._peers[address]
        if peer.said is None or report.instance != peer.instance or report.number is None:
            return  # it has gone, or has reported this already
        if height_of(peer.height) < report.number and (own := self._own.get(report.number)) is not None:
            self._compare(peer, report.number, report.root_hash, own)
            self._count()

    def recalled(self, number: int, root_hash: bytes | None) -> None:
        """The root hash that `unknown` asked for; None: it cannot be read."""
        for peer in self._peers.values():
            if peer.is_unknown and peer.said is not None and peer.said.number == number:
                peer.is_unknown = False
                if root_hash is not None:
                    self._compare(peer, number, peer.said.root_hash, root_hash)
        self._count()

    def lost(self, address: str, reason: str) -> None:
        """A watched node is not connected."""
        peer = self._peers[address]
        if peer.is_stale:
            return  # the next stream shows whether the node is there
        if peer.said is not None or peer.reason in (_NOT_YET, _REPLACED):
            self._note(peer, f"does not report: {reason}")
        peer.said, peer.height, peer.reason = None, None, reason
        self._count()

    # --- what to do ----------------------------------------------------------------------------------------

    def unknown(self) -> int | None:
        """Return a block of ours whose root hash `recalled` needs."""
        peers = self._peers.values()
        return min(
            (height_of(peer.said.number) for peer in peers if peer.said and peer.is_unknown), default=None
        )

    def ahead(self) -> tuple[int, list[str]]:
        """Return our last block, and the nodes to ask for it: they are ahead, and not known to have it."""
        last = self._last_number
        return last, [
            peer.address
            for peer in self._peers.values()
            if peer.said is not None
            and not self._is_here(peer)
            and height_of(peer.said.number) > last >= 0
            and peer.height != last
            and peer.other_chain is None
        ]

    def stale(self) -> list[str]:
        """Return the nodes whose stream must be opened anew."""
        return [peer.address for peer in self._peers.values() if peer.is_stale]

    def take_notes(self) -> list[StandbyNote]:
        """Return the new log lines."""
        notes, self._notes = self._notes, []
        return notes

    # --- what people see -----------------------------------------------------------------------------------

    def states(self) -> list[tuple[str, str]]:
        """Return each watched node and its state."""
        return [(peer.address, self._state(peer)) for peer in self._peers.values()]

    def other_chains(self) -> list[str]:
        """Return the nodes with another chain, in words."""
        return [
            f"{peer.address} {self._state(peer)}"
            for peer in self._peers.values()
            if peer.said is not None and peer.other_chain is not None
        ]

    def behind_blocks(self) -> list[int]:
        """Return by how many blocks each connected node with this node's chain is behind."""
        return [
            max(0, self._last_number - height_of(peer.said.number))
            for peer in self._counted()
            if peer.said is not None and peer.other_chain is None
        ]

    def promises(self) -> list[int | None]:
        """Return the last block of each connected node with this node's chain, once for each process."""
        lasts: dict[str, int | None] = {}
        for peer in self._counted():
            if peer.said is not None and peer.other_chain is None:
                lasts[peer.instance] = max(peer.said.number, lasts.get(peer.instance), key=height_of)
        return list(lasts.values())

    def connected_count(self) -> int:
        """Return the number of connected nodes with this node's chain."""
        return len({peer.instance for peer in self._counted() if peer.other_chain is None})

    def _state(self, peer: _Peer) -> str:
        if peer.said is None:
            return f"does not report: {peer.reason}"
        if self._is_here(peer):
            return "leads to this node itself"
        if peer.other_chain is not None:
            return f"has another chain: its block {peer.other_chain} has another root hash"
        return f"has {_block(peer.said.number)}"

    # --- small steps ---------------------------------------------------------------------------------------

    def _is_here(self, peer: _Peer) -> bool:
        return peer.instance == self._instance

    def _counted(self) -> list[_Peer]:
        return [peer for peer in self._peers.values() if peer.said is not None and not self._is_here(peer)]

    def _judge(self, peer: _Peer, number: int, root_hash: bytes) -> None:
        """Compare a report with our block, or have that looked up."""
        own = self._own.get(number)
        if own is not None:
            self._compare(peer, number, root_hash, own)
        else:
            peer.is_unknown = True
            if height_of(peer.height) > number:
                peer.height = None

    def _compare(self, peer: _Peer, number: int, root_hash: bytes, own: bytes) -> None:
        if root_hash == own:
            peer.height, peer.other_chain, peer.highest = number, None, max(peer.highest, number)
            return
        if peer.other_chain is None and not self._is_here(peer):
            self._note(
                peer,
                f"has another chain: block {number} has root hash {root_hash.hex()[:16]}… there, "
                f"{own.hex()[:16]}… here",
            )
        peer.height, peer.other_chain = None, number

    def _forget_process(self, instance: str, successor: _Peer) -> None:
        """Stop counting what a replaced process said at other addresses: its successor may have the same
        disk. If it still runs there, it reports again."""
        if not instance:
            return
        for peer in self._peers.values():
            if peer.instance == instance and peer.said is not None:
                peer.said, peer.height, peer.reason = None, None, _REPLACED
            # A node without a report may have a stream to the replaced process.
            if peer is not successor and peer.instance in (instance, ""):
                peer.is_stale = True

    def _count(self) -> None:
        heights: dict[str, int] = {}
        for peer in self._counted():
            if peer.height is not None:
                heights[peer.instance] = max(heights.get(peer.instance, -1), peer.height)
        ranked = sorted(heights.values(), reverse=True)
        self.confirmed = ranked[self.min_standbys - 1] if len(ranked) >= self.min_standbys else None

    def _note(self, peer: _Peer, text: str, *, is_trouble: bool = True) -> None:
        self._notes.append(StandbyNote(peer.address, text, is_trouble))


def unconfirmed(quorum: QuorumState, awaiting: tuple[int, int]) -> str:
    """Return which blocks wait, and for which nodes."""
    first, last = awaiting
    blocks, them = f"blocks {first} to {last} are", "them"
    if first == last:
        blocks, them = f"block {first} is", "it"
    nodes = "node" if quorum.min_standbys == 1 else "nodes"
    states = "; ".join(f"{address} {state}" for address, state in quorum.states)
    return (
        f"{blocks} not acknowledged before {quorum.min_standbys} other {nodes} (commit.min_standbys) have "
        f"{them} on disk: {states}"
    )


def _block(number: int | None) -> str:
    return "no block" if number is None else f"block {number}"
