"""The headers sent on one stream, to tell an answer about the present from one that is late.

Pure. A gateway answers headers in order, and an accepted one not at all. So an answer (skip, behind) is
about the oldest header that fits it, and all before that were accepted. A header is late when the publisher
has been sent back (resend, behind) since: its block will be offered again, and that offer will have its own
answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

__all__ = ["Offers"]


class Offers:
    """Block numbers whose headers were sent, oldest first, each with the epoch it was sent in."""

    def __init__(self, count_max: int) -> None:
        """Start with no header.

        Args:
            count_max: beyond it the oldest is forgotten; an answer about it counts as about a later one.
        """
        self._offers: deque[tuple[int, int]] = deque(maxlen=count_max)
        self._epoch = 0

    def __len__(self) -> int:
        return len(self._offers)

    def clear(self) -> None:
        """A new stream begins."""
        self._offers.clear()
        self._epoch = 0

    def sent(self, number: int) -> None:
        """Note a header."""
        self._offers.append((number, self._epoch))

    def sent_back(self) -> None:
        """The publisher goes back: what was offered until now is late."""
        self._epoch += 1

    def drop_through(self, number: int) -> None:
        """Forget the oldest headers as far as they are of blocks up to `number`."""
        while self._offers and self._offers[0][0] <= number:
            self._offers.popleft()

    def answered(self, fits: Callable[[int], bool]) -> bool | None:
        """Take an answer: forget the header that it is about and those before.

        Args:
            fits: whether the answer can be about a block number.

        Returns:
            True: about the present; False: late; None: no header fits.
        """
        for index, (number, epoch) in enumerate(self._offers):
            if fits(number):
                for _ in range(index + 1):
                    self._offers.popleft()
                return epoch == self._epoch
        return None
