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
def columns(
    data: bytes, number: int, end_number: int, size_wanted: int, /
) -> tuple[list[int], list[bytes]] | None: ...
def split(page: bytes, number: int, end: int, /) -> tuple[int, int, bytes, bytes, bytes]: ...
def walk(
    page: bytes, number: int, end: int, interval: int, bookmark_size_max: int, /
) -> tuple[int, int, list[int], list[tuple[bytes, int]]]: ...
