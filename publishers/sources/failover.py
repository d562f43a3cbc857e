"""Reading from several servers that hold the same: when one fails, the next continues at the same number."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol, TypeVar

from sluice.publishers.errors import SourceUnreachable

__all__ = ["RETRY_SECONDS", "first_answer", "read_on", "warn"]

RETRY_SECONDS: Final = 0.5
"""The pause after every server has failed once."""

log = logging.getLogger(__name__)

ServerT = TypeVar("ServerT")
AnswerT = TypeVar("AnswerT")
Faults = tuple[type[Exception], ...]


class _Numbered(Protocol):
    @property
    def number(self) -> int: ...


NumberedT = TypeVar("NumberedT", bound=_Numbered)


def warn(trouble: str) -> None:
    """Log the trouble of one server."""
    log.warning("%s", trouble)


def first_answer(
    servers: Sequence[ServerT],
    ask: Callable[[ServerT], AnswerT],
    faults: Faults,
    wanted: str,
    on_trouble: Callable[[str], None] = warn,
) -> AnswerT:
    """Ask each server once, in order, until one answers without one of `faults`; else raise
    SourceUnreachable.
    """
    trouble = ""
    for server in servers:
        try:
            return ask(server)
        except faults as error:
            trouble = f"{server}: {error}"
            on_trouble(trouble)
    raise SourceUnreachable(wanted, None, trouble)


def read_on(
    servers: Sequence[ServerT],
    read: Callable[[ServerT, int], Iterator[NumberedT]],
    faults: Faults,
    what: str,
    first: int,
    last: int | None,
    deadline_seconds: float,
    wait: Callable[[float], None],
) -> Iterator[NumberedT]:
    """Yield what has the numbers `first` to `last` (None: without end), each once, in order.

    Args:
        servers: in order of preference.
        read: reads one server from a number on.
        faults: the exceptions of `read` after which the next server is read.
        deadline_seconds: the longest time without a further number.

    Raises SourceUnreachable at the deadline.
    """
    next_number = first
    give_up_at = time.monotonic() + deadline_seconds
    while True:
        trouble = ""
        for server in servers:
            try:
                for found in read(server, next_number):
                    next_number = found.number + 1
                    yield found
                    give_up_at = time.monotonic() + deadline_seconds
            except faults as error:
                trouble = f"{server}: {error}"
                log.warning("%s %s: %s", what, next_number, trouble)
            if last is not None and next_number > last:
                return
        if time.monotonic() >= give_up_at:
            raise SourceUnreachable(f"{what} {next_number}", deadline_seconds, trouble)
        wait(RETRY_SECONDS)
