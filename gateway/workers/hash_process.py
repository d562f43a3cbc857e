"""A worker process that hashes items, so that many short ones do not stop the event loop.

A shell. Without the compiled module, Python holds its lock while it hashes fewer than 2,048 bytes, so only
another process can use a second core.

    request   state of each subtree concerned, subtree of each kind, items, their kinds
    answer    state of each subtree concerned, with the items in it

Both are `marshal`, in the frames of `workers.subprocess_worker`. If the process fails, the caller hashes the
items itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import marshal
from collections.abc import Sequence
from typing import Any, Final

from sluice.gateway.blocks.merkle import StreamingTree
from sluice.gateway.blocks.root_hash import NOT_HASHED, Leaves, hash_into
from sluice.gateway.errors import WorkerProcessLost
from sluice.gateway.logs import fields
from sluice.gateway.workers.subprocess_worker import WorkerProcess, serve

__all__ = ["HashProcess", "main"]

log = logging.getLogger(__name__)

HASH_WAITING_BYTES_MAX: Final = 8 << 20
"""Further requests wait here, where they can be dropped."""

HASH_PROCESS_SECONDS_MAX: Final = 10.0
"""Time for the start, or for one request; then the process is replaced."""

HASH_PROCESS_BACKOFF_SECONDS: Final = 5.0

WARM_UP_SECONDS_MAX: Final = 3.0
"""A starting node waits for the processes, which take a core from the first blocks."""

_NAME: Final = "hash process"
_MARSHAL_VERSION: Final = 2
"""The last version that does not look for repeated objects, which doubles the time."""
_States = dict[int, tuple[int, tuple[bytes, ...]]]
"""States of trees by subtree number."""


class HashProcess:
    """The node's end: starts the process, asks it, replaces it after a backoff. For one event loop."""

    def __init__(
        self,
        *,
        waiting_bytes_max: int = HASH_WAITING_BYTES_MAX,
        backoff_seconds: float = HASH_PROCESS_BACKOFF_SECONDS,
    ) -> None:
        self._waiting_bytes_max = waiting_bytes_max
        self._backoff_seconds = backoff_seconds
        self.ready = asyncio.Event()
        self._settled = asyncio.Event()  # set unless a process is starting
        self._settled.set()
        self._start_at = 0.0
        self._next: asyncio.TimerHandle | None = None
        self._waiting_items = self._waiting_bytes = 0
        self._has_room = asyncio.Event()
        self._worker = WorkerProcess(
            _NAME,
            "sluice.gateway.workers.hash_process",
            HASH_PROCESS_SECONDS_MAX,
            on_ready=self._on_ready,
            on_lost=self._on_lost,
        )

    @property
    def pid(self) -> int | None:
        """Process id."""
        return self._worker.pid

    @property
    def waiting_items(self) -> int:
        """Items sent and not answered."""
        return self._waiting_items

    @property
    def waiting_bytes(self) -> int:
        """Bytes of their requests."""
        return self._waiting_bytes

    def start(self) -> None:
        """Start the process, unless there is one or a backoff; do not wait for it."""
        if self._worker.is_over or self.pid is not None:
            return
        if asyncio.get_running_loop().time() >= self._start_at:
            self._settled.clear()
            self._worker.start()

    async def started(self, seconds_max: float = WARM_UP_SECONDS_MAX) -> bool:
        """Wait for a starting process; return whether one is ready."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._settled.wait(), seconds_max)
        return self.ready.is_set()

    async def hash(self, trees: Sequence[StreamingTree], leaves: Leaves) -> dict[int, StreamingTree]:
        """Append leaves to the trees in the process; return the trees that have grown, by subtree number.

        Raises:
            WorkerProcessLost: the process is not ready, died or took too long.
        """
        while self._waiting_bytes >= self._waiting_bytes_max:
            self._has_room.clear()
            await self._has_room.wait()
        if not self.ready.is_set():
            self.start()
            raise WorkerProcessLost(_NAME, "none that is ready", is_first=False)
        kinds = leaves.kinds
        subtree_of_kind = {int(kind): leaves.subtree_of_kind[kind] for kind in set(kinds)}
        subtrees = set(subtree_of_kind.values()) - {NOT_HASHED}
        states = {subtree: trees[subtree].state() for subtree in subtrees}
        if max(subtree_of_kind, default=0) < 256:  # as all known kinds are
            kinds = bytes(kinds)
        sent: Any = (states, subtree_of_kind, leaves.items, kinds)
        request = marshal.dumps(sent, _MARSHAL_VERSION)
        grown: _States = marshal.loads(await asyncio.shield(self._ask(request, len(leaves.items))))
        return {subtree: StreamingTree.from_state(*state) for subtree, state in grown.items()}

    def _ask(self, request: bytes, item_count: int) -> asyncio.Future[bytes]:
        size_bytes = len(request)

        def let_go(answered: asyncio.Future[bytes]) -> None:
            self._waiting_items -= item_count
            self._waiting_bytes -= size_bytes
            self._has_room.set()
            if not answered.cancelled():
                answered.exception()  # nobody waits for a dropped block's

        self._waiting_items += item_count
        self._waiting_bytes += size_bytes
        answered = self._worker.ask(request)
        answered.add_done_callback(let_go)
        return answered

    def close(self) -> None:
        """End the process and wait for it."""
        self._worker.close()
        if self._next is not None:
            self._next.cancel()

    def _on_ready(self) -> None:
        self.ready.set()
        self._settled.set()

    def _on_lost(self, got: str) -> None:
        """Start another process after a backoff, unasked: few sets would ask for one."""
        self.ready.clear()
        self._settled.set()
        if not self._worker.is_over:
            log.warning("hash process lost", extra=fields(got=got, next_in_seconds=self._backoff_seconds))
            loop = asyncio.get_running_loop()
            self._start_at = loop.time() + self._backoff_seconds
            self._next = loop.call_later(self._backoff_seconds, self._start_again)

    def _start_again(self) -> None:
        self._start_at = 0.0  # timers may be early by a millisecond
        self.start()


def main() -> None:
    """Answer requests until standard input, a socket, ends."""
    serve(lambda requests: [_answer_encoded(request) for request in requests])


def _answer_encoded(request: bytes) -> bytes:
    states, subtree_of_kind, items, kinds = marshal.loads(request)
    return marshal.dumps(_answer(states, subtree_of_kind, items, kinds))


def _answer(
    states: _States, subtree_of_kind: dict[int, int], items: Sequence[bytes], kinds: Sequence[int]
) -> _States:
    trees = {subtree: StreamingTree.from_state(*state) for subtree, state in states.items()}
    hash_into(trees, Leaves(subtree_of_kind, items, kinds))
    return {subtree: tree.state() for subtree, tree in trees.items()}


if __name__ == "__main__":
    main()
