"""The module that `_many_entries.c` becomes where it is built."""

def append(
    buffer: bytearray,
    entry_types: list[int],
    data: list[bytes],
    at: int,
    number: int,
    room: int,
    interval: int,
    /,
) -> tuple[int, list[int]]: ...
