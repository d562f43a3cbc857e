"""Strict reading of the fixed layouts of proofs and keys.

Pure. `LayoutReader` reads fields of known size in order, and no byte may be left. Integers are little-endian
unless a name says `be`. A vector begins with its count as u64.
Source: docs/spec/tss.md sections 2.1 (Fr), 2.4 (scalar), 3, 5 and 6 (Fr, Vec).
"""

from typing import Final

from sluice.gateway.blocks.errors import ProofDataError

__all__ = ["SCALAR_SIZE", "LayoutReader", "integer_below", "scalar_bytes"]

SCALAR_SIZE: Final = 32


def integer_below(modulus: int, encoded: bytes, what: str, *, big_endian: bool = False) -> int:
    """Decode an integer. Raises ProofDataError, of `what`, if it is too large."""
    value = int.from_bytes(encoded, "big" if big_endian else "little")
    if value >= modulus:
        raise ProofDataError(what, f"{value:#x}", f"less than {modulus:#x}")
    return value


def scalar_bytes(value: int) -> bytes:
    """Encode a scalar."""
    return value.to_bytes(SCALAR_SIZE, "little")


class LayoutReader:
    """Reads the fields of one layout in order. Its methods raise ProofDataError."""

    __slots__ = ("_data", "_offset", "_what")

    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._what = what
        self._offset = 0

    @property
    def offset(self) -> int:
        """Bytes read so far."""
        return self._offset

    def take(self, size: int, name: str) -> bytes:
        """Return the next `size` bytes."""
        end = self._offset + size
        if end > len(self._data):
            left = len(self._data) - self._offset
            raise ProofDataError(self.named(name), f"{left} bytes at offset {self._offset}", f"{size}")
        taken = self._data[self._offset : end]
        self._offset = end
        return taken

    def scalar(self, modulus: int, name: str) -> int:
        """Return the next 32 bytes as an integer below the modulus."""
        return integer_below(modulus, self.take(SCALAR_SIZE, name), self.named(name))

    def u64(self, name: str) -> int:
        """Return the next 8 bytes as an integer."""
        return int.from_bytes(self.take(8, name), "little")

    def expect_count(self, count: int, name: str) -> None:
        """Read the count of a vector: the size of a layout must not depend on its bytes."""
        got = self.u64(name)
        if got != count:
            raise ProofDataError(self.named(name), f"{got} elements", f"{count}")

    def finish(self) -> None:
        """Check that no byte is left."""
        left = len(self._data) - self._offset
        if left:
            raise ProofDataError(self._what, f"{left} bytes after offset {self._offset}", "none")

    def named(self, name: str) -> str:
        """Return the name of a field for errors."""
        return f"{self._what}: {name}"
