"""Strict reading of the messages in proofs: each has one encoding.

Pure. No hash covers the bytes of a proof. Known fields alone are accepted, in rising numbers, once unless
repeated.
Source: docs/spec/proofs.md sections 1 and 5.3.
"""

from collections.abc import Collection, Iterator, Mapping

from sluice.gateway.blocks.errors import ItemError, ProofDataError
from sluice.gateway.blocks.items import WireType, fields_of

__all__ = ["bytes_of", "integer_of", "strict_fields"]


def strict_fields(
    message: bytes, what: str, wire_types: Mapping[int, WireType], *, repeated: Collection[int] = ()
) -> Iterator[tuple[int, int | bytes]]:
    """Yield (number, value) of a message's fields in their order.

    Args:
        what: its name in errors.
        repeated: fields that may occur more than once.

    Raises:
        ProofDataError: the next field is unknown or misplaced, or the bytes are no field.
    """
    number_before = 0
    try:
        for number, wire_type, value in fields_of(message):
            if wire_types.get(number) is not wire_type:
                known = ", ".join(f"{number} (type {wire.value})" for number, wire in wire_types.items())
                got = f"field {number} of wire type {wire_type.value}"
                raise ProofDataError(what, got, f"fields {known}")
            if number < number_before or (number == number_before and number not in repeated):
                raise ProofDataError(what, f"field {number} after field {number_before}", "rising numbers")
            number_before = number
            yield number, value
    except ItemError as error:
        raise ProofDataError(f"{what}: {error.what}", error.got, error.expected) from None


def bytes_of(value: int | bytes) -> bytes:
    """Return the value of a length-delimited field."""
    assert isinstance(value, bytes)
    return value


def integer_of(value: int | bytes) -> int:
    """Return the value of a varint field."""
    assert isinstance(value, int)
    return value
