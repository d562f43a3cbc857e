"""The module that `_many_items.c` becomes where it is built."""

from collections.abc import Callable, Sequence

LANES_MAX: int

def grow(peaks: list[bytes | None], leaves: bytes, lanes: int = 0, /) -> None: ...
def kinds(items: Sequence[bytes], /) -> tuple[bytes, int] | None: ...
def leaves(
    items: Sequence[bytes],
    kinds: Sequence[int],
    subtree_of_kind: dict[int, int],
    count: int,
    long_size: int,
    hash_long: Callable[[bytes], bytes],
    lanes: int = 0,
    /,
) -> list[bytes]: ...
def root(peaks: list[bytes | None], /) -> bytes | None: ...
def split(message: bytes, tag: int, items_max: int, /) -> tuple[list[bytes], bytes, int] | None: ...
