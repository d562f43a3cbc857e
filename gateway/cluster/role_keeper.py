"""The keeper of a node's role: opens and closes the node to publishers, follows peers, remembers the role.

A shell around `cluster.roles`. The order of each change ensures that a crash at any point leaves the old or
the new role on disk, and never two active nodes:

    drain       remember "standby of the successor", then send publishers away and finish complete blocks
    resume      take publishers, then remember "active"
    activate    stop following, remember "active", then take publishers; if the caller has given up by then,
                remember "standby" and resume following
    stand by    remember whom to follow, then follow
    step down   end publishers' streams at once, then remember "standby", then follow

With an election (`cluster.term_keeper`), the node is active only while it has a term: it starts as a standby
whatever it remembers, `activate` gets the term first, and a drained node that may lead no more stands by.

If the disk refuses the role of a node that resumed, the keeper retries until it is written.

The keeper makes one change at a time, and undoes a failed one before it raises the error. When the node
stops, the role on disk stays.

The keeper replaces `role.json` whole, and flushes it before it acts on the new role:

    {"role": "standby", "followed": "192.0.2.7:40840"}

Source: gateway/README.md, "The role of a node"; docs/operations.md, "Fail over".
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from sluice.gateway.addresses import parse_address
from sluice.gateway.cluster.node_status import NodeAnswer
from sluice.gateway.cluster.roles import Phase, RoleEvent, RoleRecord, RoleState
from sluice.gateway.errors import AddressError, Fatal, RoleRefused
from sluice.gateway.limits import DISK_PROBE_SECONDS
from sluice.gateway.logs import fields
from sluice.gateway.pipeline.conductor import Conductor
from sluice.gateway.pipeline.replication_quorum import unconfirmed
from sluice.gateway.regular_files import read_small_text, replace_file
from sluice.gateway.store.block_store import BlockStore

__all__ = ["ROLE_FILE_NAME", "RoleFollower", "RoleKeeper", "read_role", "write_role"]

log = logging.getLogger(__name__)

LEVEL_LOOK_SECONDS: Final = 0.01
"""Time between two checks whether a standby has the last block during a failover."""

ROLE_FILE_NAME = "role.json"
_EXPECTED = 'an object such as {"role": "standby", "followed": "host:port"}'
_RETIRED = "the node is a standby: publish to the active one"


class RoleFollower(Protocol):
    """The follower of other nodes, as the keeper needs it."""

    def catch_up(self, addresses: Sequence[str]) -> None:
        """Catch up from these nodes."""

    def follow(self, addresses: Sequence[str]) -> None:
        """Follow the first of these that works."""

    async def stop(self) -> None:
        """Follow nobody; return when no block of a peer is in flight."""

    async def said_by(self, address: str) -> NodeAnswer:
        """See `PeerFollower.said_by`."""


class Term(Protocol):
    """The term of a node in an election, as the keeper of its role needs it."""

    async def permit(self, timeout_seconds: float) -> None:
        """Get the term and every acknowledged block. Raises RoleRefused, Fatal, OSError."""

    def lead(self) -> None:
        """The node is active."""

    def holds(self) -> bool:
        """Return whether the node has a term that holds."""

    async def offer(self, address: str) -> None:
        """Let the node at this address take the term over."""

    async def withdraw(self) -> None:
        """Take an offer back."""

    async def give_up(self, pause_seconds: float = 0.0) -> None:
        """Have no term any more."""


class RoleKeeper:
    """The keeper of one node's role.

    Args:
        role: the setting, for a node without that file.
        drain_seconds: how long the blocks in flight may take to finish.
        term: the node's part in an election; None: there is none.
    """

    def __init__(
        self,
        data_dir: Path,
        role: RoleRecord,
        conductor: Conductor,
        store: BlockStore,
        following: RoleFollower,
        *,
        peers: Sequence[str],
        drain_seconds: float,
        term: Term | None = None,
    ) -> None:
        remembered = read_role(data_dir)
        self._is_remembered_active = remembered is not None and remembered.role == "active"
        if term is not None:
            remembered = RoleRecord("standby", None if remembered is None else remembered.followed)
        elif remembered is not None and remembered.role != role.role:
            log.warning(
                "the role in the data folder goes before the setting",
                extra=fields(role=remembered.role, setting=role.role),
            )
        self._data_dir = data_dir
        self._state = RoleState(remembered or role)
        self.has_one_active = remembered is not None or role.role == "standby"
        """A failover has set its role, or it is to stand by: one node of its cluster is to be active."""
        self._conductor = conductor
        self._store = store
        self._following = following
        self._peers = tuple(peers)
        self._drain_seconds = drain_seconds
        self._term = term
        self._change = asyncio.Lock()
        self._drain_id = ""
        self._called_back = asyncio.Event()
        self._lease: asyncio.TimerHandle | None = None
        self._resuming: asyncio.Task[None] | None = None
        self._remembering: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def phase(self) -> Phase:
        """The role's phase."""
        return self._state.phase

    @property
    def followed(self) -> str | None:
        """The node that this one was told to follow."""
        return self._state.followed

    async def start(self) -> None:
        """Begin in the remembered role: a standby sends publishers elsewhere and follows."""
        if self.phase is Phase.STANDBY:
            await self._conductor.retire(_RETIRED)
        if self._term is not None and self._is_remembered_active:
            with contextlib.suppress(OSError):  # else it would come back active when the election is off
                await self._remember_now_or_later()
        self._follow()
        log.info("role", extra=fields(role=self.phase.value, followed=self.followed))

    async def close(self) -> None:
        """Follow nobody and refuse changes; the role stays."""
        self._closed = True
        self._end_lease()
        for task in (self._resuming, self._remembering):
            if task is not None:
                task.cancel()
        await self._following.stop()

    # --- changes -------------------------------------------------------------------------------------------

    async def drain(
        self,
        lease_seconds: float,
        successor: str | None,
        drain_id: str = "",
        is_awaited: Callable[[], bool] = lambda: True,
    ) -> None:
        """Finish complete blocks, and send publishers elsewhere.

        Args:
            lease_seconds: after this time the node is active again by itself.
            is_awaited: only a caller that still waits would end the drain before its lease.

        Raises:
            RoleRefused: the node is not active, stops, or was told to resume; or the caller is gone.
            OSError: the disk refused; the node is still active.
            Fatal: the blocks in flight did not finish in time; the node is active again.
        """
        async with self._change:
            self._refuse_if_closed("drain")
            _refuse_if_left("drain", is_awaited)
            if self.phase is Phase.ACTIVE:
                self._refuse_without_term("drain")
            self._called_back.clear()
            self._state.take(RoleEvent.DRAIN, successor)
            self._drain_id = drain_id
            self._end_lease()
            try:
                await self._remember()
                self._refuse_if_closed("drain")
                await self._close_doors()
                self._refuse_if_closed("drain")
                _refuse_if_left("drain", is_awaited)
                if self._term is not None and successor is not None:
                    await self._term.offer(successor)
            except BaseException:
                if not self._closed:
                    await self._open_doors(RoleEvent.RESUME)
                raise
            self._lease_for(lease_seconds)

    async def resume(self, drain_id: str = "") -> None:
        """Take publishers again; this also ends a drain that waits for blocks in flight.

        Args:
            drain_id: the drain to end; empty: any.

        Raises:
            RoleRefused: the node is a standby, stops, or has another drain.
            OSError: the disk refused; the node takes publishers, and retries the disk.
        """
        if drain_id in ("", self._drain_id):
            self._called_back.set()
        async with self._change:
            self._refuse_if_closed("resume")
            is_drained = self.phase in (Phase.DRAINING, Phase.DRAINED)
            if is_drained and drain_id not in ("", self._drain_id):
                raise RoleRefused(
                    "resume", got="drained by another call", expected="drained by the one named"
                )
            self._end_lease()
            await self._open_doors(RoleEvent.RESUME)

    async def activate(self, timeout_seconds: float = math.inf) -> None:
        """Turn a standby into the active node.

        Args:
            timeout_seconds: after that, the source of the failover is active again.

        Raises:
            OSError: the disk refused; the node is still a standby.
            Fatal: the role was not on disk in time; the node is still a standby.
        """
        deadline, term = asyncio.get_running_loop().time() + timeout_seconds, self._term
        if term is not None and self.phase is Phase.STANDBY:
            self._refuse_if_closed("activate")
            await term.permit(timeout_seconds)
        async with self._change:
            self._refuse_if_closed("activate")
            if self.phase is Phase.ACTIVE:
                self._refuse_without_term("activate")
                return
            if self.phase is Phase.STANDBY:
                await self._following.stop()
                self._refuse_if_closed("activate")
                try:
                    await self._remember_active(deadline, timeout_seconds)
                    self._refuse_without_term("activate")
                except BaseException:
                    self._follow()
                    if term is not None:
                        await term.give_up()
                        with contextlib.suppress(OSError):
                            await self._remember_now_or_later()
                    raise
            # Only now: a failover relies on the phase, and it must survive a crash.
            self._state.take(RoleEvent.ACTIVATE)
            if self._closed:
                return  # the next start finds the new role
            if term is not None:
                term.lead()
            self._conductor.reinstate()
            self._follow()
            log.info("the node is active", extra=fields(last_block=self._store.last_number))

    async def stand_by(self, followed: str) -> None:
        """Turn a drained node into a standby, or make a standby follow another node.

        Raises:
            OSError: the disk refused; nothing has changed.
        """
        async with self._change:
            self._refuse_if_closed("stand by")
            await self._stand_by(followed)

    async def step_down(self, reason: str) -> None:
        """Make the node a standby at once: its term has ended, and another node may be active."""
        self._called_back.set()  # a drain that waits for blocks
        async with self._change:
            if not self._closed:
                await self._step_down(reason)

    async def await_block(self, number: int, root_hash: bytes, timeout_seconds: float) -> None:
        """Wait until the node has a block with this root hash.

        Raises:
            TimeoutError: it does not get the block in time.
            RoleRefused: it has another block of this number, or stops.
        """
        async with asyncio.timeout(timeout_seconds):
            while self._store.last_number is None or self._store.last_number < number:
                self._refuse_if_closed("take over")
                await asyncio.sleep(LEVEL_LOOK_SECONDS)
        held = await asyncio.to_thread(self._store.root_hash_at, number)
        if held != root_hash:
            got = (
                "without that block" if held is None else f"at root hash {held.hex()[:16]}… of block {number}"
            )
            raise RoleRefused("take over", got=got, expected=f"at root hash {root_hash.hex()[:16]}…")

    # --- small steps ---------------------------------------------------------------------------------------

    async def _stand_by(self, followed: str | None) -> None:
        phase, before = self.phase, self.followed
        self._state.take(RoleEvent.STAND_BY, followed)
        try:
            await self._remember()
        except BaseException:
            self._state.phase, self._state.followed = phase, before
            raise
        self._end_lease()
        await self._following.stop()
        self._follow()
        if self._term is not None:
            await self._term.give_up()
        log.info("the node is a standby", extra=fields(followed=self.followed))

    async def _step_down(self, reason: str) -> None:
        """The disk may refuse the new role: with an election, a start does not go by it."""
        if self.phase is Phase.STANDBY:
            return
        self._state.take(RoleEvent.STEP_DOWN)
        self._end_lease()
        await self._conductor.step_down(_RETIRED)
        with contextlib.suppress(OSError):
            await self._remember_now_or_later()
        await self._following.stop()
        self._follow()
        log.warning("the node stands by", extra=fields(reason=reason, last_block=self._store.last_number))

    def _refuse_without_term(self, change: str) -> None:
        """Raises RoleRefused if an election has taken the term away."""
        if self._term is not None and not self._term.holds():
            raise RoleRefused(change, got="without a term", expected="the one that has it")

    async def _close_doors(self) -> None:
        await self._following.stop()
        retiring = asyncio.ensure_future(self._conductor.retire(_RETIRED))
        called_back = asyncio.ensure_future(self._called_back.wait())
        both: set[asyncio.Future[Any]] = {retiring, called_back}
        try:
            await asyncio.wait(both, timeout=self._drain_seconds, return_when=asyncio.FIRST_COMPLETED)
            if not retiring.done():
                if self._called_back.is_set():
                    raise RoleRefused("drain", got="told to resume", expected="left to finish its blocks")
                raise Fatal(
                    "blocks in flight",
                    got=f"some after {self._drain_seconds:g} s",
                    expected=f"them to be acknowledged{self._why_not()}",
                )
            retiring.result()
        finally:
            retiring.cancel()
            called_back.cancel()
        self._state.take(RoleEvent.IDLE)
        log.info("the node is drained", extra=fields(last_block=self._store.last_number))

    def _why_not(self) -> str:
        state = self._conductor.acknowledging.quorum_state()
        return "" if state is None or state.awaiting is None else f"; {unconfirmed(state, state.awaiting)}"

    async def _open_doors(self, event: RoleEvent) -> None:
        was_active = self.phase is Phase.ACTIVE
        if self._term is not None and self.phase in (Phase.DRAINING, Phase.DRAINED):
            await self._term.withdraw()
            if not self._term.holds():
                await self._step_down("its term has ended")
            self._refuse_without_term(event.value)
        self._state.take(event)
        if was_active:
            return
        self._conductor.reinstate()  # first: a network without an active node is worse than a stale file
        await self._following.stop()  # it still runs if a drain could not be remembered
        self._follow()
        log.info("the node is active again", extra=fields(because=event.value))
        await self._remember_now_or_later()

    async def _remember_active(self, deadline: float, timeout_seconds: float) -> None:
        """If that takes too long, write the old role again."""
        clock = asyncio.get_running_loop().time
        is_late = clock() >= deadline
        if not is_late:
            await self._remember(RoleRecord("active"))
            if is_late := clock() >= deadline:
                await self._remember_now_or_later()
        if is_late:
            raise Fatal(
                "activate",
                got=f"no role on disk in {timeout_seconds:g} s",
                expected="it while the caller waits",
            )

    async def _remember_now_or_later(self) -> None:
        """Raises OSError if the disk refuses; the keeper retries later."""
        try:
            await self._remember()
        except OSError:
            if self._remembering is None or self._remembering.done():
                self._remembering = asyncio.get_running_loop().create_task(self._remember_later())
            raise

    async def _remember_later(self) -> None:
        """Retry until the disk takes the role: a restart would find the old one."""
        while True:
            await asyncio.sleep(DISK_PROBE_SECONDS)
            async with self._change:
                if self._closed:
                    return
                with contextlib.suppress(OSError):
                    await self._remember()
                    log.info("the role is remembered", extra=fields(role=self.phase.value))
                    return

    def _lease_for(self, seconds: float) -> None:
        self._lease = asyncio.get_running_loop().call_later(seconds, self._on_lease_ended)

    def _on_lease_ended(self) -> None:
        self._lease = None
        self._resuming = asyncio.get_running_loop().create_task(self._resume_by_itself())

    async def _resume_by_itself(self) -> None:
        async with self._change:
            if self._closed or self._lease is not None or self.phase not in (Phase.DRAINED, Phase.DRAINING):
                return  # the node stops, or another change came first and has its own lease
            try:
                if self.phase is Phase.DRAINED and await self._successor_is_active():
                    log.warning("nobody finished the failover: the node stands by, its successor is active")
                    await self._stand_by(self.followed)
                else:
                    log.warning("nobody finished the failover: publishers are taken again")
                    await self._open_doors(RoleEvent.LEASE_ENDED)
            except RoleRefused as error:
                log.warning("the node stands by", extra=fields(reason=str(error)))
            except OSError as error:
                log.error("the role cannot be remembered", extra=fields(got=str(error)))
                if self.phase is Phase.DRAINED:
                    self._lease_for(DISK_PROBE_SECONDS)

    async def _successor_is_active(self) -> bool:
        if self.followed is None:
            return False
        said, last = await self._following.said_by(self.followed), self._store.last_number
        return said.role == Phase.ACTIVE.value and (
            last is None or (said.last is not None and said.last >= last)
        )

    def _refuse_if_closed(self, change: str) -> None:
        if self._closed:
            raise RoleRefused(change, got="stopping", expected="running")

    def _end_lease(self) -> None:
        if self._lease is not None:
            self._lease.cancel()
            self._lease = None

    def _follow(self) -> None:
        if self._closed:
            return
        if self.phase is Phase.ACTIVE:
            if self._peers:
                self._following.catch_up(self._peers)
            return
        told = () if self.followed is None else (self.followed,)
        self._following.follow(tuple(dict.fromkeys((*told, *self._peers))))

    async def _remember(self, record: RoleRecord | None = None) -> None:
        await asyncio.to_thread(write_role, self._data_dir, record or self._state.record())
        self.has_one_active = True


def _refuse_if_left(change: str, is_awaited: Callable[[], bool]) -> None:
    if not is_awaited():
        raise RoleRefused(change, got="asked by a caller that is gone", expected="asked by one that waits")


def read_role(data_dir: Path) -> RoleRecord | None:
    """None: there is none.

    Raises:
        Fatal: the file cannot be read. A node that guesses its role could be a second active one.
    """
    path = data_dir / ROLE_FILE_NAME
    text = read_small_text(path, _EXPECTED)
    if text is None:
        return None
    try:
        found = json.loads(text)
        role, followed = found["role"], found.get("followed")
        if role not in ("active", "standby"):
            raise ValueError(f"role {role!r}")
        if followed is not None:
            parse_address(followed, port_min=1)
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError, AddressError):
        raise Fatal(str(path), got=repr(text[:200]), expected=_EXPECTED) from None
    return RoleRecord(role, followed)


def write_role(data_dir: Path, record: RoleRecord) -> None:
    """Write a role; it is on disk on return.

    Raises:
        OSError: the disk refused; the old role is still on disk.
    """
    path = data_dir / ROLE_FILE_NAME
    before = path.read_bytes() if path.exists() else None
    content: dict[str, str] = {"role": record.role}
    if record.followed is not None:
        content["followed"] = record.followed
    try:
        replace_file(path, (json.dumps(content) + "\n").encode())
    except OSError:
        # Nobody acts on the new role, so a restart must not find it: it could be a second active node.
        with contextlib.suppress(OSError):
            if before is None:
                path.unlink()
            else:
                replace_file(path, before)
        raise
