"""Hashing of messages to elements of a prime field, as in arkworks' DefaultFieldHasher with SHA-256.

Pure. RFC 9380 section 5.2 with expand_message_xmd of section 5.3.1, and one departure: Z_pad is as long as
one element's share of the output, not as a block of SHA-256 (64 bytes).

    L          bytes for one element                ceil((bits of the modulus + 128) / 8)
    DST'       DST || byte(size of DST)             an empty DST is allowed: DST' = 00
    b_0        SHA-256( Z_pad (L zero bytes) || message || u16 BE(size of output) || 00 || DST' )
    b_1        SHA-256( b_0 || 01 || DST' )
    b_i        SHA-256( (b_0 xor b_(i-1)) || byte(i) || DST' )
    output     b_1 || b_2 || …, cut to count * L bytes; each L bytes big-endian, mod the modulus

L is 48 for the scalar fields of BLS12-381 and BN254 and for the order of Baby Jubjub. It is 64, as in the
RFC, for the base field of BLS12-381.
Source: docs/spec/tss.md section 2.2; RFC 9380 sections 5.2 and 5.3.1.
"""

from hashlib import sha256
from typing import Final

__all__ = ["RFC_Z_PAD_SIZE", "element_size", "expand", "hash_to_field"]

RFC_Z_PAD_SIZE: Final = 64
"""Bytes of Z_pad in RFC 9380."""

SECURITY_BITS: Final = 128
"""Bits of an element's share of the output beyond the modulus, which make the remainder unbiased."""

_DIGEST_SIZE: Final = 32
_BLOCKS_MAX: Final = 255  # i is one byte


def element_size(modulus: int) -> int:
    """Return L, the bytes of output for one element of the field."""
    return (modulus.bit_length() + SECURITY_BITS + 7) // 8


def expand(message: bytes, dst: bytes, size: int, z_pad_size: int) -> bytes:
    """Return `size` bytes that look random and depend on all of the message and the DST (2.2, xmd).

    Args:
        message: any bytes.
        dst: domain separation tag, at most 255 bytes, may be empty.
        size: bytes of output, at most 255 * 32.
        z_pad_size: zero bytes before the message: L of the field, or `RFC_Z_PAD_SIZE`.
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
