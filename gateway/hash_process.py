"""A process that hashes items, so that the hashes of many short ones do not stop the event loop.

A shell around `gateway.root_hash`. Python holds its lock while it hashes what is shorter than 2,048 bytes, in
whatever thread, so another process is the way to hash on a second core.

    node                          python -m gateway.hash_process
    request  ──► socket   ──►     state of each subtree concerned, subtree of each kind, items, their kinds
    answer   ◄── socket   ◄──     state of each subtree concerned, with the items in it
    frame    u32 big-endian size, then so many bytes of `marshal`; both ends are ours, and the same Python

It keeps nothing between two requests, and answers them in order. It says that it is ready by an empty frame,
and ends with its socket, that is with the node. Where it fails, `HashProcessLost` is raised, and who asked
hashes without it: what comes out is the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import marshal
import os
import socket
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from gateway.errors import HashProcessLost
from gateway.helper_process import serve
from gateway.limits import HASH_PROCESS_REST_SECONDS, HASH_PROCESS_SECONDS_MAX, WARM_UP_SECONDS_MAX
from gateway.logs import fields
from gateway.merkle import StreamingTree
from gateway.root_hash import Leaves, hash_into

__all__ = ["HashProcess", "main"]

log = logging.getLogger(__name__)

_SIZE: Final = struct.Struct(">I")
_States = dict[int, tuple[int, tuple[bytes, ...]]]
"""The state of a tree by the number of its subtree."""


class HashProcess(asyncio.Protocol):
    """The node's end: starts the process, asks it, replaces it. It lives in one event loop."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        """Set while the process answers, as far as is known."""
        self._process: subprocess.Popen[bytes] | None = None
        self._transport: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._received = bytearray()
        self._asked: deque[asyncio.Future[_States]] = deque()
        self._watch: asyncio.TimerHandle | None = None
        self._start_at = 0.0
        self._settled = asyncio.Event()  # no process is starting: one is ready, or none is there
        self._settled.set()
        self._over = False

    @property
    def pid(self) -> int | None:
        """Process id, None while there is no process."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process if there is none, and none was lost just now; it is ready some time later."""
        loop = asyncio.get_running_loop()
        if self._over or self._process is not None or loop.time() < self._start_at:
            return
        ours, theirs = socket.socketpair()
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        words = [sys.executable, "-P", "-m", "gateway.hash_process"]
        try:
            with theirs:
                self._process = subprocess.Popen(words, stdin=theirs.fileno(), env=environment)
        except OSError as error:
            ours.close()
            self._lose(str(error))
            return
        self._settled.clear()
        self._connecting = loop.create_task(self._connect(ours))
        self._watch_over()

    async def started(self, seconds_max: float = WARM_UP_SECONDS_MAX) -> bool:
        """Wait for a process that is starting, at most so long; tell whether one is ready."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._settled.wait(), seconds_max)
        return self.ready.is_set()

    async def hash(self, trees: Sequence[StreamingTree], leaves: Leaves) -> dict[int, StreamingTree]:
        """Append leaves to the trees, there; return the trees that have grown, by the number of the subtree.

        Raises:
            HashProcessLost: the process is not ready, died or took too long.
        """
        if self._transport is None or not self.ready.is_set():
            self.start()
            raise HashProcessLost("none that is ready")
        states = {subtree: trees[subtree].state() for subtree in leaves.subtrees}
        kinds = leaves.kinds
        subtree_of_kind = {int(kind): leaves.subtree_of_kind[kind] for kind in set(kinds)}
        sent: Any = (states, subtree_of_kind, leaves.items, kinds)
        request = marshal.dumps(sent)
        answered: asyncio.Future[_States] = asyncio.get_running_loop().create_future()
        self._asked.append(answered)
        self._transport.write(_SIZE.pack(len(request)))
        self._transport.write(request)
        if self._watch is None:
            self._watch_over()
        return {subtree: StreamingTree.from_state(*state) for subtree, state in (await answered).items()}

    def close(self) -> None:
        """End the process and wait for it; it is not started again."""
        self._over = True
        self._lose("its end")

    # --- what asyncio calls --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is read from now on."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def data_received(self, data: bytes) -> None:
        """Hand out answers in the order of the requests."""
        self._received += data
        while len(self._received) >= _SIZE.size:
            (size,) = _SIZE.unpack_from(self._received)
            if len(self._received) < _SIZE.size + size:
                return
            answer = self._received[_SIZE.size : _SIZE.size + size]
            del self._received[: _SIZE.size + size]
            if not self.ready.is_set():
                self.ready.set()
                self._settled.set()
            elif not (asked := self._asked.popleft()).done():  # done: whoever asked has given up
                asked.set_result(marshal.loads(answer))

    def connection_lost(self, error: Exception | None) -> None:
        """The process is gone."""
        if self._transport is not None:  # else it was given up here
            self._lose("the end of its socket" if error is None else str(error))

    # --- small steps ---------------------------------------------------------------------------------------

    async def _connect(self, ours: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: self, sock=ours)
        except BaseException:
            ours.close()
            raise

    def _watch_over(self) -> None:
        """See to it that what is asked now is answered in time."""
        self._watch = asyncio.get_running_loop().call_later(
            HASH_PROCESS_SECONDS_MAX, self._look, self._asked[0] if self._asked else None
        )

    def _look(self, oldest: asyncio.Future[_States] | None) -> None:
        self._watch = None
        if not self.ready.is_set() or (self._asked and self._asked[0] is oldest):
            self._lose(f"no answer in {HASH_PROCESS_SECONDS_MAX:g} s")
        elif self._asked:
            self._watch_over()

    def _lose(self, got: str) -> None:
        """Give up the process; another one is started by and by."""
        process, self._process = self._process, None
        transport, self._transport = self._transport, None
        self.ready.clear()
        self._settled.set()
        self._received.clear()
        for handle in (self._watch, self._connecting):
            if handle is not None:
                handle.cancel()
        self._watch = self._connecting = None
        if transport is not None:
            transport.abort()
        if process is not None:
            process.kill()  # it keeps nothing
            process.wait()
        if not self._over:
            log.warning("hash process lost", extra=fields(got=got, next_in_seconds=HASH_PROCESS_REST_SECONDS))
            self._start_at = asyncio.get_running_loop().time() + HASH_PROCESS_REST_SECONDS
        for asked in self._asked:
            if not asked.done():
                asked.set_exception(HashProcessLost(got))
        self._asked.clear()


def main() -> None:
    """Answer requests until the socket that is standard input ends."""
    serve(lambda requests: [_answer_encoded(request) for request in requests])


def _answer_encoded(request: bytes) -> bytes:
    states, subtree_of_kind, items, kinds = marshal.loads(request)
    return marshal.dumps(_answer(states, subtree_of_kind, items, kinds))


def _answer(
    states: _States, subtree_of_kind: Mapping[int, int], items: Sequence[bytes], kinds: Sequence[int]
) -> _States:
    """Hash the items of one request."""
    trees = {subtree: StreamingTree.from_state(*state) for subtree, state in states.items()}
    hash_into(trees, Leaves(subtree_of_kind, items, kinds))
    return {subtree: tree.state() for subtree, tree in trees.items()}


if __name__ == "__main__":
    main()
