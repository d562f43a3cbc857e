"""A coroutine that has begun: it has run to its first wait, and is awaited later.

Pure. A task would do the same, but begins only when the event loop comes round, and wakes whoever awaits it
through the loop once more: for a short message that costs more than to handle it.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

__all__ = ["Begun"]

T = TypeVar("T")


class Begun(Generic[T]):
    """Runs a coroutine to its first wait; `await` the rest once, in one task, or `close` it.

    Raises:
        Whatever the coroutine raises, when it is awaited.
    """

    __slots__ = ("_coroutine", "_error", "_waits_for")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._waits_for: Any = None
        self._error: BaseException | None = None
        try:
            self._waits_for = coroutine.send(None)
        except BaseException as error:  # StopIteration too, which holds the result
            self._error = error

    def __await__(self) -> Generator[Any, Any, T]:
        """Wait for what the coroutine waits for, and go on with it."""
        coroutine, error, waits_for = self._coroutine, self._error, self._waits_for
        try:
            if error is not None:
                raise error
            while True:
                try:
                    sent = yield waits_for
                except BaseException as thrown:  # the task was cancelled
                    waits_for = coroutine.throw(thrown)
                else:
                    waits_for = coroutine.send(sent)
        except StopIteration as stop:
            result: T = stop.value
            return result

    async def rest(self) -> T:
        """Wait as `await` does; for a task."""
        return await self

    def close(self) -> None:
        """Give the rest up; an error of what it waited for is nobody's any more."""
        self._coroutine.close()
        tell = getattr(
            self._waits_for, "add_done_callback", None
        )  # None: it waited for the loop to come round
        if tell is not None:
            tell(_look_at)


def _look_at(future: Any) -> None:
    """Take note of a future's error, which is logged as one that nobody has seen otherwise."""
    if not future.cancelled():
        future.exception()
