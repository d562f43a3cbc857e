"""The budget of large messages: which streams may receive one now, with fair shares over all connections.

Pure. gRPC receives a whole message before the node sees any of it. The relay reads the five bytes in front of
a message and asks here before the client may send the rest:

    size of the message                  answer
    up to `small_bytes`                  yes; it fits in a stream's window and is not counted
    above `message_bytes_max`            yes; gRPC refuses it by those five bytes and receives none of it
    anything else                        yes while the budget and the sender's share have room, else later

Ask when gRPC opens the stream's window: an unread stream would count as slow. A message is `done` when the
service has taken it over (a publisher's: when the race counts its items in flight) or the stream has ended.

Shares. R is the room for one largest message, at most a quarter of the budget:

    the message is                                            after it there must be free
    the first of its address                                  nothing
    the first of its connection, not of its address           R
    a further one of its connection                           2 R

Order. Addresses alternate, so do the connections of an address; a connection's messages keep their order.
Small messages must not overtake a large one for ever, so a waiting message blocks others:

    the message that waits is                                 it blocks
    the first of its address                                  everybody
    the first of its connection, not of its address           the other connections of its address
    a further one of its connection                           its connection

Pace. While any message waits, a connection must deliver `bytes_per_second`, in equal parts of each message
that it holds, after `grace_ns`. `tick` names slower streams, which the caller ends. So every message is
granted in bounded time.

Urgent. Held messages may wait for the next commit while that block's publisher waits here. So `hurry` grants
one message of that block beyond the budget.

Invariants
  - The held messages never exceed the budget by more than one urgent message.
  - The budget is no smaller than the largest message, so one is always possible.
  - A stream, connection or address without messages leaves nothing here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

__all__ = ["LARGE_BYTES_PER_SECOND", "LARGE_GRACE_NS", "SMALL_BYTES", "MessageShares", "StreamKey"]

SMALL_BYTES: Final = 1 << 20
"""A stream's window (`STREAM_WINDOW_BYTES`) holds such a message."""

LARGE_BYTES_PER_SECOND: Final = 1 << 20
"""The pace of a connection's large messages while others wait; a busy node may read no faster."""

LARGE_GRACE_NS: Final = 2_000_000_000
"""Time before that pace is required, after a grant and after a wait has begun: a round trip, and the client's
own work."""

SECOND_NS: Final = 1_000_000_000

_Connection = tuple[str, int | str]
_Key = TypeVar("_Key")


class StreamKey(NamedTuple):
    """One stream of one client; it receives one message at a time."""

    address: str
    connection: int | str
    """A connection's name or number, unique in the process."""
    stream: int


@dataclass(slots=True)
class _Held:
    size: int
    granted_at_ns: int
    left: int
    """Bytes still to come."""
    delivered: int = 0
    """Bytes since the grant, or since the present waiting began."""
    due: float = 0.0
    """Bytes due in that time."""


_Queue = OrderedDict[StreamKey, int]
"""Waiting messages with their sizes, in order."""


class MessageShares:
    """The budget of large messages, one for all connections of a node.

    Args:
        budget_bytes: `grpc.max_receiving_bytes`; at least `message_bytes_max`.
        message_bytes_max: `grpc.max_message_bytes`.
        grace_ns: time before the pace is required.
    """

    def __init__(
        self,
        budget_bytes: int,
        message_bytes_max: int,
        *,
        small_bytes: int = SMALL_BYTES,
        bytes_per_second: int = LARGE_BYTES_PER_SECOND,
        grace_ns: int = LARGE_GRACE_NS,
    ) -> None:
        self.budget_bytes = max(budget_bytes, message_bytes_max)
        self.held_bytes = 0
        """Bytes of all granted messages that are not done."""
        self._message_bytes_max = message_bytes_max
        self._small_bytes = small_bytes
        self._bytes_per_second = bytes_per_second
        self._grace_ns = grace_ns
        self._room_bytes = min(message_bytes_max, self.budget_bytes // 4)
        self._held: dict[StreamKey, _Held] = {}
        self._held_by_connection: dict[_Connection, int] = {}
        self._held_by_address: dict[str, int] = {}
        self._urgent: StreamKey | None = None
        # Addresses, their connections and their messages; the next one stands first.
        self._waiting: OrderedDict[str, OrderedDict[int | str, _Queue]] = OrderedDict()
        self.waiting_count = 0
        """The number of streams that wait for a grant."""
        self._waiting_since_ns = 0  # while there are any
        self._ticked_at_ns = 0

    def ask(self, key: StreamKey, size_bytes: int, now_ns: int) -> bool:
        """Return whether a stream may receive its next message now; if not, a later `done` grants it.

        `key` neither holds a message nor waits for one.
        """
        if size_bytes <= self._small_bytes or size_bytes > self._message_bytes_max:
            return True
        is_over = key not in self._held and not self._is_waiting(key)
        assert is_over, f"{key} has not ended its last message"
        queues = self._waiting.setdefault(key.address, OrderedDict())
        queues.setdefault(key.connection, _Queue())[key] = size_bytes
        self.waiting_count += 1
        if self.waiting_count == 1:
            self._waiting_since_ns = now_ns
        is_granted = bool(self._grant(now_ns))  # only to itself: nothing has changed for others
        if not is_granted and self.waiting_count == 1:
            for held in self._held.values():  # nobody waited for their earlier progress
                held.delivered, held.due = 0, 0.0
        return is_granted

    def progressed(self, key: StreamKey, size_bytes: int) -> None:
        """Note that bytes of a stream's message have come, if it holds one."""
        held = self._held.get(key)
        if held is not None:
            held.delivered += size_bytes
            held.left -= size_bytes

    def done(self, key: StreamKey, now_ns: int) -> list[StreamKey]:
        """Forget a stream's message, if any; return the streams that may receive theirs now."""
        if key == self._urgent:
            self._urgent = None
        held = self._held.pop(key, None)
        if held is not None:
            self.held_bytes -= held.size
            _add(self._held_by_connection, key[:2], -held.size)
            _add(self._held_by_address, key.address, -held.size)
        elif self._is_waiting(key):
            self._leave_queue(key)
        else:
            return []
        return self._grant(now_ns)

    def hurry(self, is_urgent: Callable[[StreamKey], bool], now_ns: int) -> list[StreamKey]:
        """Grant one message beyond the budget, unless one is held; call it as often as `tick`. `is_urgent`
        returns whether a stream may bring the block that all others wait for."""
        if self._urgent is not None:
            return []
        for queues in self._waiting.values():
            for queue in queues.values():
                for key, size_bytes in queue.items():
                    if is_urgent(key):
                        self._urgent = key
                        self._hold(key, size_bytes, now_ns)
                        return [key]
        return []

    def tick(self, now_ns: int) -> list[StreamKey]:
        """Return the streams to end: they hold a message, are too slow, and others wait.

        Call it a few times a second while `waiting_count` is not 0.
        """
        before_ns, self._ticked_at_ns = self._ticked_at_ns, now_ns
        if not self.waiting_count:
            return []
        counts: dict[_Connection, int] = {}
        for key in self._held:
            _add(counts, key[:2], 1)
        slow = []
        for key, held in self._held.items():
            begins_ns = max(self._waiting_since_ns, held.granted_at_ns) + self._grace_ns
            judged_ns = now_ns - max(begins_ns, before_ns)
            if judged_ns > 0:
                shared_by = counts[key[:2]]
                held.due += self._bytes_per_second * judged_ns / SECOND_NS / shared_by
            if held.left > 0 and held.delivered < held.due:
                slow.append(key)
        return slow

    def _grant(self, now_ns: int) -> list[StreamKey]:
        granted: list[StreamKey] = []
        while (found := self._next()) is not None:
            self._hold(*found, now_ns)
            granted.append(found[0])
        return granted

    def _hold(self, key: StreamKey, size_bytes: int, now_ns: int) -> None:
        """Grant a waiting message; its connection and address go behind the others."""
        self._leave_queue(key)
        if key.address in self._waiting:
            self._waiting.move_to_end(key.address)
            if key.connection in self._waiting[key.address]:
                self._waiting[key.address].move_to_end(key.connection)
        self._held[key] = _Held(size_bytes, now_ns, left=size_bytes)
        self.held_bytes += size_bytes
        _add(self._held_by_connection, key[:2], size_bytes)
        _add(self._held_by_address, key.address, size_bytes)

    def _next(self) -> tuple[StreamKey, int] | None:
        """Return the next message that can be granted now; search few more connections than hold one."""
        free_bytes = self.budget_bytes - self.held_bytes
        for address, queues in self._waiting.items():
            is_first_of_address = address not in self._held_by_address
            for connection, queue in queues.items():
                key, size_bytes = next(iter(queue.items()))
                is_first = (address, connection) not in self._held_by_connection
                rooms = 0 if is_first_of_address else 1 if is_first else 2
                if size_bytes + rooms * self._room_bytes <= free_bytes:
                    return key, size_bytes
                if is_first_of_address:
                    return None
                if is_first:
                    break
        return None

    def _is_waiting(self, key: StreamKey) -> bool:
        queues = self._waiting.get(key.address)
        return queues is not None and key in queues.get(key.connection, ())

    def _leave_queue(self, key: StreamKey) -> None:
        queues = self._waiting[key.address]
        del queues[key.connection][key]
        if not queues[key.connection]:
            del queues[key.connection]
        if not queues:
            del self._waiting[key.address]
        self.waiting_count -= 1


def _add(sums: dict[_Key, int], key: _Key, size_bytes: int) -> None:
    total = sums.get(key, 0) + size_bytes
    if total:
        sums[key] = total
    else:
        del sums[key]
