"""Which blocks are on disk at enough other nodes: what each watched node has reported, what that confirms.

Pure. The shell (`cluster.standby_watch`) watches the nodes that the operator has listed and reports what they
say; `gateway.pipeline.acknowledging` acknowledges a block when its number is `confirmed`.

    its report                              counts as
    our block N, with our root hash         having every block up to N
    a block N that we do not have yet       what it counted as before, until we have N or ask (`ahead`)
    a block N with another root hash        nothing: it has another chain
    none, or one before our first           nothing
    from this node itself                   nothing, whatever the address
    from one process at two addresses       one node

Invariants
  - What a node reported counts while it is connected to, so that what it lost meanwhile is not believed.
  - Where a process is found in the place of another one, the other one may be gone, and its disk be that of
    the new one; or the address leads elsewhere now, and both run. So a stream that was opened before and may
    lead to the other one is `stale`: what it brings is not believed, only what comes over a later one. Two
    that run at a time have two disks.
  - Having block N with the same root hash is having every block before it: each names the root of the one
    before, and both nodes have checked that.
  - `confirmed` never goes beyond this node's own last block; it may go back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sluice.gateway.blocks.chain import Chain

__all__ = ["DurableHeight", "QuorumState", "ReplicationQuorum", "StandbyNote", "unconfirmed"]

OWN_ROOTS_KEPT: Final = 4_096
"""Root hashes of this node's last blocks that are kept to compare reports of standbys with, 100 bytes each. A
standby that is further behind costs a reading of the stream for each of its reports."""


_NOT_YET = "not reached yet"
_REPLACED = "another process has taken its place"


@dataclass(frozen=True, slots=True)
class DurableHeight:
    """What a node says that it has on disk."""

    instance: str
    """What its process calls itself: another one for every process, the same at each of its addresses."""
    number: int | None
    """Its last block; None: it has none."""
    root_hash: bytes
    """That block's root hash, 48 bytes; empty where there is none."""


@dataclass(frozen=True, slots=True)
class StandbyNote:
    """Something about a watched node that people should hear of."""

    address: str
    """The node."""
    text: str
    """What it is."""
    is_trouble: bool
    """It is to be looked into."""


@dataclass(frozen=True, slots=True)
class QuorumState:
    """What an active node is asked whose acknowledgements wait for other nodes."""

    min_standbys: int
    """How many must have a block."""
    states: tuple[tuple[str, str], ...]
    """Each watched node, and what is known of it, in words."""
    refusal: str | None = None
    """Why publishers are refused, while they are."""
    awaiting: tuple[int, int] | None = None
    """The first and the last block that wait."""
    awaiting_seconds: float = 0.0
    """How long the first of them has waited."""
    other_chains: tuple[str, ...] = ()
    """Those that have another chain, in words."""


@dataclass(slots=True)
class _Peer:
    """A watched node."""

    address: str
    said: DurableHeight | None = None
    """Its last report; None while it is not connected to."""
    reason: str = _NOT_YET
    """Why it is not."""
    instance: str = ""
    """The process that reported last."""
    level: int | None = None
    """It has our chain up to this block."""
    highest: int = -1
    """The highest block that was ever found to be there, by whatever process."""
    other_chain: int | None = None
    """The block that it has with another root hash."""
    is_unknown: bool = False
    """Whether the root hash of our block of that number is to be looked up."""
    is_stale: bool = False
    """Whether the stream to it was opened before a process was replaced that may be behind it."""


class ReplicationQuorum:
    """What is on disk elsewhere, for one node.

    Args:
        min_standbys: how many other nodes must have a block, at least 1.
        instance: what this node's process calls itself.
        addresses: of the watched nodes, `host:port` each.
        chain: what this node has on disk already.
    """

    def __init__(
        self,
        min_standbys: int,
        instance: str,
        addresses: Sequence[str],
        chain: Chain | None = None,
    ) -> None:
        self.min_standbys = min_standbys
        self.confirmed: int | None = None
        """The highest block that is on `min_standbys` other nodes; None: none is."""
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
        self._own.pop(number - OWN_ROOTS_KEPT, None)
        self._last_number = number
        for peer in self._peers.values():
            if peer.said is not None and peer.said.number == number:
                self._judge(peer, number, peer.said.root_hash)
        self._count()

    def opening(self, address: str) -> None:
        """A stream to a watched node is opened: what comes over it is said by a process that runs now."""
        self._peers[address].is_stale = False

    def heard(self, address: str, level: DurableHeight) -> None:
        """A watched node has reported its last block."""
        peer = self._peers[address]
        if peer.is_stale:
            return  # it may have been on its way for long; what is true of it comes over the next stream
        if level.instance != peer.instance:
            self._forget_process(peer.instance, peer)
            peer.instance, peer.level, peer.other_chain = level.instance, None, None
        was_connected, peer.said, peer.is_unknown = peer.said is not None, level, False
        number = _number(level.number)
        if number < peer.highest:
            self._note(
                peer, f"has {_block(level.number)}, and had block {peer.highest}: was its disk replaced?"
            )
            peer.level, peer.highest = None, number
        elif not was_connected:
            self._note(peer, f"reports {_block(level.number)}", is_trouble=False)
        if level.number is None or level.number < (self._first_number or 0):
            peer.level = None
        elif level.number <= self._last_number:
            self._judge(peer, level.number, level.root_hash)
        self._count()

    def holds(self, address: str, level: DurableHeight) -> None:
        """A watched node, asked for one block of this node's chain, has that one, or a lower last one."""
        peer = self._peers[address]
        if peer.said is None or level.instance != peer.instance or level.number is None:
            return  # it went away meanwhile, or its report says it already
        if _number(peer.level) < level.number and (own := self._own.get(level.number)) is not None:
            self._compare(peer, level.number, level.root_hash, own)
            self._count()

    def recalled(self, number: int, root_hash: bytes | None) -> None:
        """The root hash of an older block of this node, as `unknown` asked for; None: it cannot be read."""
        for peer in self._peers.values():
            if peer.is_unknown and peer.said is not None and peer.said.number == number:
                peer.is_unknown = False
                if root_hash is not None:
                    self._compare(peer, number, peer.said.root_hash, root_hash)
        self._count()

    def lost(self, address: str, reason: str) -> None:
        """A watched node is not connected to, or not any more; `reason` is for people."""
        peer = self._peers[address]
        if peer.is_stale:
            return  # the stream was ended for that; whether the node is there is found out by the next one
        if peer.said is not None or peer.reason in (_NOT_YET, _REPLACED):
            self._note(peer, f"does not report: {reason}")
        peer.said, peer.level, peer.reason = None, None, reason
        self._count()

    # --- what to do ----------------------------------------------------------------------------------------

    def unknown(self) -> int | None:
        """A block of this node whose root hash is to be read and given to `recalled`; None: none."""
        peers = self._peers.values()
        return min(
            (_number(peer.said.number) for peer in peers if peer.said and peer.is_unknown), default=None
        )

    def ahead(self) -> tuple[int, list[str]]:
        """This node's last block, and who is to be asked for it: they are ahead, and not known to have it."""
        last = self._last_number
        return last, [
            peer.address
            for peer in self._peers.values()
            if peer.said is not None
            and not self._is_here(peer)
            and _number(peer.said.number) > last >= 0
            and peer.level != last
            and peer.other_chain is None
        ]

    def stale(self) -> list[str]:
        """The nodes to which a stream, where one is open, is to be ended and opened anew."""
        return [peer.address for peer in self._peers.values() if peer.is_stale]

    def take_notes(self) -> list[StandbyNote]:
        """What people should hear of, since this was asked last."""
        notes, self._notes = self._notes, []
        return notes

    # --- what people see -----------------------------------------------------------------------------------

    def states(self) -> list[tuple[str, str]]:
        """Each watched node and what is known of it, in words."""
        return [(peer.address, self._state(peer)) for peer in self._peers.values()]

    def other_chains(self) -> list[str]:
        """The watched nodes that have another chain, in words."""
        return [
            f"{peer.address} {self._state(peer)}"
            for peer in self._peers.values()
            if peer.said is not None and peer.other_chain is not None
        ]

    def connected_count(self) -> int:
        """How many other nodes are connected to and have this node's chain, however far."""
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
            if _number(peer.level) > number:
                peer.level = None

    def _compare(self, peer: _Peer, number: int, root_hash: bytes, own: bytes) -> None:
        if root_hash == own:
            peer.level, peer.other_chain, peer.highest = number, None, max(peer.highest, number)
            return
        if peer.other_chain is None and not self._is_here(peer):
            self._note(
                peer,
                f"has another chain: block {number} has root hash {root_hash.hex()[:16]}… there, "
                f"{own.hex()[:16]}… here",
            )
        peer.level, peer.other_chain = None, number

    def _forget_process(self, instance: str, successor: _Peer) -> None:
        """A process is gone from one of its addresses: what it said at others is not to count beside what the
        one in its place says, which may have the same disk. If it still runs there, it will say it again."""
        if not instance:
            return
        for peer in self._peers.values():
            if peer.instance == instance and peer.said is not None:
                peer.said, peer.level, peer.reason = None, None, _REPLACED
            # One that has never reported may be about to, over a stream to the process that is gone.
            if peer is not successor and peer.instance in (instance, ""):
                peer.is_stale = True

    def _count(self) -> None:
        levels: dict[str, int] = {}
        for peer in self._counted():
            if peer.level is not None:
                levels[peer.instance] = max(levels.get(peer.instance, -1), peer.level)
        ranked = sorted(levels.values(), reverse=True)
        self.confirmed = ranked[self.min_standbys - 1] if len(ranked) >= self.min_standbys else None

    def _note(self, peer: _Peer, text: str, *, is_trouble: bool = True) -> None:
        self._notes.append(StandbyNote(peer.address, text, is_trouble))


def unconfirmed(facts: QuorumState, awaiting: tuple[int, int]) -> str:
    """Say which blocks wait for standbys, the first and the last of them given, and for which nodes."""
    first, last = awaiting
    blocks, them = f"blocks {first} to {last} are", "them"
    if first == last:
        blocks, them = f"block {first} is", "it"
    nodes = "node" if facts.min_standbys == 1 else "nodes"
    states = "; ".join(f"{address} {state}" for address, state in facts.states)
    return (
        f"{blocks} not acknowledged before {facts.min_standbys} other {nodes} (commit.min_standbys) have "
        f"{them} on disk: {states}"
    )


def _number(number: int | None) -> int:
    """A block number to compare with; below all of them where there is none."""
    return -1 if number is None else number


def _block(number: int | None) -> str:
    return "no block" if number is None else f"block {number}"
