"""The keeper of a node's term: claims, renews and releases the lease, keeps promises, changes the role.

A shell around `cluster.election`, between a coordinator and `cluster.role_keeper`.

    look        once a second, while the node has no term; join the cluster's record if it is not in it
    promise_to  promise another node an epoch, if the coordinator says that it has granted it to that node
    permit      claim the term ──► promise its epoch ──► watch the others with it ──► have what they have
    renew       four times in the length of a lease
    step down   as soon as the term does not hold any more; the node stopped acknowledging before. Also when
                the node has been unable to acknowledge for the length of a lease, so that another one may try

`permit` is a part of the change to the active role, whether the election or `sluice failover` began it.

Source: docs/operations.md, "Let the cluster fail over by itself".
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from sluice.gateway.blocks.block_numbers import height_of
from sluice.gateway.cluster.cluster_view import Statement
from sluice.gateway.cluster.coordinator import Grant, LeaseCoordinator
from sluice.gateway.cluster.election import (
    Election,
    ElectionState,
    Holder,
    Promise,
    TermPhase,
    write_promise,
)
from sluice.gateway.cluster.roles import Phase
from sluice.gateway.errors import CoordinatorAway, Fatal, GatewayError, InvalidInput, RoleRefused
from sluice.gateway.logs import fields
from sluice.gateway.pipeline.replication_quorum import ReplicationQuorum
from sluice.gateway.store.block_store import BlockStore

__all__ = ["EpochWatch", "Role", "TermKeeper", "boot_seconds"]

log = logging.getLogger(__name__)

TERM_LOOK_SECONDS: Final = 0.1
"""The longest time that a node is active without a term; it acknowledges nothing meanwhile."""
TICK_SECONDS: Final = 0.25
"""Time between two checks whether a renewal or a look is due."""
PROMISES_LOOK_SECONDS: Final = 0.02
"""Time between two checks whether enough nodes have promised, and this one has their blocks."""
TAKE_OVER_SECONDS: Final = 30.0
"""The longest time from a claim by itself to the active role; then the node lets others try."""
RELEASE_SECONDS_MAX: Final = 2.0
"""The longest time to end a lease early: it ends by itself."""
CLAIMS_MAX: Final = 3
"""Claims in a row, each after the records changed between a look and a write."""


def boot_seconds() -> float:
    """Return the seconds since the machine started, with those in which it slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Role(Protocol):
    """The keeper of the node's role, as an election needs it."""

    async def activate(self, timeout_seconds: float = ...) -> None:
        """Make the node active; asks for the permission of the election in between."""

    async def step_down(self, reason: str) -> None:
        """Make the node a standby at once."""


class EpochWatch(Protocol):
    """A watch over the other nodes in the name of one epoch."""

    async def close(self) -> None:
        """End it; what the other nodes have reported does not count any more."""


class TermKeeper:
    """The keeper of one node's term.

    Args:
        watch: opens a watch over the other nodes in the name of an epoch.
        neighbours: returns what each other node of the cluster says that answers.
        refusal: why this node is not fit to be active; None: it is.
        is_committing: returns whether blocks are on their way to the disk.
        instance_at: returns the name of the process at an address, "" if it does not answer.
    """

    def __init__(
        self,
        election: Election,
        coordinator: LeaseCoordinator,
        data_dir: Path,
        store: BlockStore,
        quorum: ReplicationQuorum,
        *,
        watch: Callable[[int], EpochWatch],
        neighbours: Callable[[], Sequence[Statement]],
        refusal: Callable[[], str | None],
        is_committing: Callable[[], bool],
        instance_at: Callable[[str], Awaitable[str]],
        clock: Callable[[], float] = boot_seconds,
        dice: random.Random | None = None,
    ) -> None:
        self.election = election
        self.problem: str | None = None
        """Why the last attempt to take over failed."""
        self._coordinator = coordinator
        self._data_dir = data_dir
        self._store = store
        self._quorum = quorum
        self._open_watch = watch
        self._neighbours = neighbours
        self._refusal = refusal
        self._is_committing = is_committing
        self._instance_at = instance_at
        self._clock = clock
        self._dice = dice or random.Random()
        self._role: Role
        self._grant: Grant | None = None
        self._holder: Holder | None = None
        self._watch: EpochWatch | None = None
        self._taking = asyncio.Lock()
        self._promising = asyncio.Lock()
        self._promise_listeners: list[Callable[[], None]] = []
        self._activating: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._releasing: set[asyncio.Task[None]] = set()
        self._was_away = False
        self._is_level = False
        """Once, this process has had all blocks of the active node."""
        self._unfit_since: float | None = None
        self._last_number: int | None = None
        """At the last look whether the node is fit."""

    def start(self, role: Role, address: str) -> None:
        """Take part from now on, as the node at this address."""
        self._role, self.election.address = role, address
        loops = (
            (self._watch_term, TERM_LOOK_SECONDS),
            (self._keep_lease, TICK_SECONDS),
            (self._look_around, TICK_SECONDS),
        )
        self._tasks = [asyncio.ensure_future(self._again_and_again(*one)) for one in loops]

    async def close(self) -> None:
        """Release the lease, so that another node need not wait for its end."""
        tasks = [*self._tasks, *([] if self._activating is None else [self._activating])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.give_up()
        await asyncio.gather(*self._releasing, return_exceptions=True)
        await self._coordinator.close()

    # --- what the role and the acknowledgements ask ---------------------------------------------------------

    def may_acknowledge(self) -> bool:
        """See `Election.may_acknowledge`."""
        return self.election.may_acknowledge(self._clock())

    def holds(self) -> bool:
        """Return whether the node has a term that holds."""
        return self.election.holds(self._clock())

    def lead(self) -> None:
        """The node is active."""
        if self.election.phase is TermPhase.TAKING:
            self.election.lead()
            self.problem = None

    def state(self) -> ElectionState:
        """Return the state for reports."""
        return self.election.state(self._clock(), self.problem)

    async def permit(self, timeout_seconds: float) -> None:
        """Get the term and every acknowledged block.

        Raises:
            RoleRefused: another node has the term, or this node may not take part.
            Fatal: it was not possible in time; the node has no term.
        """
        async with self._taking:
            if self.election.phase is not TermPhase.FREE:
                if not self.holds():
                    raise _refused("it has ended")
                return
            epoch = await self._claim()
            reason: str | None = "the claim was under way"
            try:
                async with asyncio.timeout(min(timeout_seconds, TAKE_OVER_SECONDS)):
                    await self._promise(epoch, self.election.instance)
                    self._watch = self._open_watch(epoch)
                    while (reason := self._lacks()) is not None:  # noqa: ASYNC110 - reports change it
                        await asyncio.sleep(PROMISES_LOOK_SECONDS)
            except TimeoutError:
                await self.give_up()
                raise Fatal("take over", got=str(reason), expected="every acknowledged block here") from None
            except BaseException:
                await self.give_up()
                raise

    async def offer(self, address: str) -> None:
        """Let the node at this address take the term over: this node has sent its publishers there."""
        if self._holder is None or not (instance := await self._instance_at(address)):
            return
        await self._mark(replace(self._holder, successor=instance))

    async def withdraw(self) -> None:
        """Take an offer back; without an answer the node has no term any more: another may have it."""
        if self._holder is not None and self._holder.successor:
            is_answered = await self._mark(replace(self._holder, successor=""))
            if not is_answered:
                await self.give_up()

    async def give_up(self, pause_seconds: float = 0.0) -> None:
        """Have no term any more; the lease is ended meanwhile, or ends by itself."""
        grant, self._grant, self._holder = self._grant, None, None
        watch, self._watch = self._watch, None
        self.election.gave_up(self._clock(), pause_seconds)
        self._unfit_since = None
        if grant is not None:
            releasing = asyncio.ensure_future(self._release(grant))
            self._releasing.add(releasing)
            releasing.add_done_callback(self._releasing.discard)
        if watch is not None:
            await watch.close()

    async def _release(self, grant: Grant) -> None:
        try:
            async with asyncio.timeout(RELEASE_SECONDS_MAX):
                await self._coordinator.release(grant)
        except TimeoutError:
            log.info("the lease could not be ended early", extra=fields(seconds=RELEASE_SECONDS_MAX))

    # --- what other nodes ask ------------------------------------------------------------------------------

    @property
    def promised(self) -> int:
        """The epoch that this node has promised."""
        return self.election.promise.epoch

    @property
    def why_no_member(self) -> str | None:
        """Return why this node's promise does not count; None: it does."""
        return self.election.why_no_member()

    def on_promise(self, listener: Callable[[], None]) -> None:
        """Call `listener` when the node has promised a higher epoch."""
        self._promise_listeners.append(listener)

    async def promise_to(self, epoch: int, candidate: str) -> int:
        """Promise an epoch to another node, on disk; return the promised one, which may be higher.

        Raises:
            RoleRefused: another process has the promise, or the coordinator has not granted it to this one.
            OSError: the disk refused.
        """
        promise = self.election.promise
        if epoch > promise.epoch:
            await self._check_granted(epoch, candidate)
            promise = await self._promise(epoch, candidate)
        if epoch == promise.epoch and candidate != promise.candidate:
            raise RoleRefused(
                f"promise epoch {epoch}", got="bound to another process", expected="free for this epoch"
            )
        return promise.epoch

    async def _check_granted(self, epoch: int, candidate: str) -> None:
        """Raises RoleRefused if the coordinator does not say that this process has this term."""
        try:
            holder = (await self._coordinator.look()).holder
        except (CoordinatorAway, InvalidInput) as error:
            raise RoleRefused(
                f"promise epoch {epoch}", got=f"told nothing: {error}", expected="told who has it"
            ) from None
        if holder is None or (holder.epoch, holder.instance) != (epoch, candidate):
            held = "nobody has it" if holder is None else f"{holder.address} has epoch {holder.epoch}"
            raise RoleRefused(
                f"promise epoch {epoch}", got=f"told another holder: {held}", expected="told of this one"
            )

    async def _promise(self, epoch: int, candidate: str) -> Promise:
        async with self._promising:
            before = self.election.promise
            if epoch > before.epoch:
                promise = Promise(before.disk, epoch, candidate)
                await asyncio.to_thread(write_promise, self._data_dir, promise)
                self.election.promised(promise)
                for listener in self._promise_listeners:
                    listener()
            return self.election.promise

    def heard(self, epoch: int) -> None:
        """Another node has promised this epoch to somebody."""
        self.election.heard(epoch)

    # --- the loops -----------------------------------------------------------------------------------------

    async def _again_and_again(self, turn: Callable[[], Awaitable[None]], pause_seconds: float) -> None:
        while True:
            try:
                await turn()
            except Exception:  # the next turn may go better
                log.exception("the election failed on an internal error")
                await asyncio.sleep(1.0)
            await asyncio.sleep(pause_seconds)

    async def _look_around(self) -> None:
        election = self.election
        if not election.is_look_due(self._clock()) or self._taking.locked():
            return
        await self._look()
        own = height_of(self._store.last_number)
        should = election.should_claim(
            self._clock(),
            is_behind=any(height_of(one.last) > own for one in self._neighbours()),
            jitter=self._dice.random(),
        )
        is_idle = self._activating is None or self._activating.done()
        if should and is_idle and self._refusal() is None:
            self._activating = asyncio.ensure_future(self._take_over())

    async def _take_over(self) -> None:
        extra = fields(last_block=self._store.last_number)
        log.warning("nobody has the term: this node takes over", extra=extra)
        try:
            await self._role.activate(TAKE_OVER_SECONDS)
        except (GatewayError, OSError) as error:
            self.problem = str(error)
            log.warning("the node did not take over", extra=fields(reason=str(error)))
            await self.give_up(self.election.rules.lease_seconds * self._dice.uniform(0.2, 0.6))

    async def _keep_lease(self) -> None:
        election, asked_at = self.election, self._clock()
        grant = self._grant
        if grant is None or not election.is_renewal_due(asked_at):
            return
        try:
            is_ours = await self._coordinator.renew(grant)
        except CoordinatorAway as error:
            self._note_away(str(error))
            return
        if self._grant is not grant:
            return
        self._note_answer()
        if is_ours:
            election.renewed(asked_at)
        else:
            await self._lose("the lease has ended, or another node has taken the term over")

    async def _watch_term(self) -> None:
        now = self._clock()
        if (why := self.election.why_lost(now)) is not None:
            await self._lose(why)
        elif (why := self._why_unfit()) is None:
            self._unfit_since = None
        elif self._unfit_since is None:
            self._unfit_since = now
        elif now - self._unfit_since >= self.election.rules.lease_seconds:
            await self._lose(f"this node cannot acknowledge: {why}", 2 * self.election.rules.lease_seconds)

    def _why_unfit(self) -> str | None:
        """Return why this active node can acknowledge nothing, though another one perhaps could."""
        if self.election.phase is not TermPhase.LEADING:
            return None
        before, self._last_number = self._last_number, self._store.last_number
        hangs = "its disk takes no block" if self._is_committing() and before == self._last_number else None
        reporting, needed = self._quorum.connected_count(), self.election.rules.min_standbys
        few = f"{reporting} other nodes report to it, expected {needed}" if reporting < needed else None
        return self._refusal() or hangs or few

    async def _lose(self, why: str, pause_seconds: float = 0.0) -> None:
        """The term has ended: stop leading."""
        if self._grant is None:
            return
        was_leading, epoch = self.election.phase is TermPhase.LEADING, self.election.epoch
        log.warning("the term has ended", extra=fields(epoch=epoch, reason=why))
        await self.give_up(pause_seconds)
        if was_leading:
            await self._role.step_down(why)

    # --- small steps ---------------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Look at the coordinator, and join the cluster there."""
        election = self.election
        try:
            seen = await self._coordinator.look()
            election.looked(seen, self._clock())
            neighbours, own = self._neighbours(), height_of(self._store.last_number)
            election.answering = len(neighbours) + 1
            for one in neighbours:  # one that takes over may not have every acknowledged block yet
                is_leading = seen.holder is not None and one.instance == seen.holder.instance
                if is_leading and one.role == Phase.ACTIVE.value and own >= height_of(one.last):
                    self._is_level = True
            cluster = election.joined(is_level=self._is_level)
            if cluster is not None:
                if await self._coordinator.join(seen, cluster):
                    log.info("joined the cluster", extra=fields(nodes=", ".join(cluster.nodes)))
                election.looked(await self._coordinator.look(), self._clock())
        except (CoordinatorAway, InvalidInput) as error:
            self._note_away(str(error))
        else:
            self._note_answer()

    async def _claim(self) -> int:
        """Claim the term; return its epoch.

        Raises RoleRefused.
        """
        election, reason = self.election, "the records of the coordinator change all the time"
        for _ in range(CLAIMS_MAX):
            await self._look()
            if (why_not := election.may_claim()) is not None:
                reason = why_not
                break
            cluster, holder = election.claim()
            asked_at = self._clock()
            assert election.seen is not None
            try:
                grant = await self._coordinator.claim(election.seen, cluster, holder)
            except CoordinatorAway as error:
                self._note_away(str(error))
                reason = str(error)
                break
            if grant is not None:
                self._grant, self._holder = grant, holder
                election.claimed(holder.epoch, asked_at)
                log.info("has the term", extra=fields(epoch=holder.epoch))
                return holder.epoch
        raise _refused(reason)

    def _lacks(self) -> str | None:
        why = self.election.why_lost(self._clock())
        if why is not None or self._grant is None:
            raise _refused(why or "it has ended")
        return self.election.lacks(self._quorum.promises(), self._store.last_number)

    async def _mark(self, holder: Holder) -> bool:
        """Change this node's record at the coordinator; False: it did not answer."""
        if self._grant is None:
            return True
        try:
            grant = await self._coordinator.mark(self._grant, holder)
        except CoordinatorAway as error:
            log.warning("the coordinator does not answer", extra=fields(reason=str(error)))
            return False
        if grant is None:  # whoever asked changes the role
            log.warning("the term has ended", extra=fields(epoch=holder.epoch, reason="another node has it"))
            await self.give_up()
        else:
            self._grant, self._holder = grant, holder
        return True

    def _note_away(self, why: str) -> None:
        if not self._was_away:
            log.error("the coordinator does not answer", extra=fields(reason=why))
        self._was_away = True
        self.election.failed(why, self._clock())

    def _note_answer(self) -> None:
        if self._was_away:
            log.info("the coordinator answers again")
        self._was_away = False


def _refused(why: str) -> RoleRefused:
    return RoleRefused("activate", got=f"not elected: {why}", expected="elected")
