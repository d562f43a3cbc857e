"""How many bytes of answers may be on their way to clients at once: in all, and to one network address.

Pure. An answer to a unary call is in memory as a whole until the client has taken it; one that asks for many
blocks and reads none would otherwise hold as much as it likes. Asked before a block is read: an address, or
all together, that has its share gets no further one until some of it was taken.

Invariants
  - What is taken is given back once; an address without answers is not counted any more.
  - One answer is always possible, however large: the bound is looked at before, not after.
Source: docs/protocol.md, "Limits".
"""

from __future__ import annotations

__all__ = ["AnswerShares"]


class AnswerShares:
    """Counts the bytes of answers that were not taken yet.

    Args:
        bytes_max: of all addresses together.
        address_bytes_max: of one network address.
    """

    def __init__(self, bytes_max: int, address_bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._address_bytes_max = address_bytes_max
        self._held: dict[str, int] = {}
        self.bytes_held = 0
        """Of all addresses together."""

    def refusal(self, address: str) -> str | None:
        """Say why an address gets no further answer now: what, got, expected; None: it gets one."""
        for who, held_bytes, most_bytes in (
            ("this address", self._held.get(address, 0), self._address_bytes_max),
            ("all clients", self.bytes_held, self._bytes_max),
        ):
            if held_bytes >= most_bytes:
                return (
                    f"blocks on their way to {who}: got {held_bytes} bytes that were not taken yet, "
                    f"expected less than {most_bytes}"
                )
        return None

    def take(self, address: str, size_bytes: int) -> None:
        """Count an answer that goes out; `give_back` the same when it was taken, or its client is gone."""
        self._held[address] = self._held.get(address, 0) + size_bytes
        self.bytes_held += size_bytes

    def give_back(self, address: str, size_bytes: int) -> None:
        """Forget an answer that `take` counted."""
        held_bytes = self._held[address] - size_bytes
        assert held_bytes >= 0, f"{address} has no answer of {size_bytes} bytes to give back"
        self.bytes_held -= size_bytes
        if held_bytes:
            self._held[address] = held_bytes
        else:
            del self._held[address]
