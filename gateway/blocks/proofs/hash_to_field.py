"""Hashing of messages to elements of a prime field, as in arkworks' DefaultFieldHasher with SHA-256.

Pure. RFC 9380 with one departure: Z_pad is as long as one element's share of the output, not as a block of
SHA-256.
Source: docs/spec/tss.md section 2.2; RFC 9380 sections 5.2 and 5.3.1.
"""

from hashlib import sha256
from typing import Final

__all__ = ["RFC_Z_PAD_SIZE", "element_size", "expand", "hash_to_field"]

RFC_Z_PAD_SIZE: Final = 64

SECURITY_BITS: Final = 128
"""Bits of an element's share beyond the modulus; they make the remainder unbiased."""

_DIGEST_SIZE: Final = 32
_BLOCKS_MAX: Final = 255  # i is one byte


def element_size(modulus: int) -> int:
    """Return L, the bytes of output for one element."""
    return (modulus.bit_length() + SECURITY_BITS + 7) // 8


def expand(message: bytes, dst: bytes, size: int, z_pad_size: int) -> bytes:
    """Return `size` bytes that look random and depend on all of the message and the DST (2.2, xmd).

    Args:
        dst: domain separation tag, at most 255 bytes, may be empty.
        size: at most 255 * 32.
        z_pad_size: L of the field, or `RFC_Z_PAD_SIZE`.
    """
    block_count = -(-size // _DIGEST_SIZE)
    assert len(dst) <= 255
    assert block_count <= _BLOCKS_MAX
    dst_prime = dst + bytes((len(dst),))
    first = sha256(bytes(z_pad_size) + message + size.to_bytes(2, "big") + b"\0" + dst_prime).digest()
    first_number = int.from_bytes(first, "big")
    block = sha256(first + b"\1" + dst_prime).digest()
    output = [block]
    for index in range(2, block_count + 1):
        mixed = (first_number ^ int.from_bytes(block, "big")).to_bytes(_DIGEST_SIZE, "big")
        block = sha256(mixed + bytes((index,)) + dst_prime).digest()
        output.append(block)
    return b"".join(output)[:size]


def hash_to_field(message: bytes, dst: bytes, modulus: int, count: int = 1) -> tuple[int, ...]:
    """Return `count` elements of the prime field, drawn from one output (2.2)."""
    size = element_size(modulus)
    output = expand(message, dst, count * size, size)
    return tuple(
        int.from_bytes(output[start : start + size], "big") % modulus
        for start in range(0, count * size, size)
    )
