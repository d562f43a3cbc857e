"""The module that `_many_clients.c` becomes where it is built."""

from array import array

def send(
    numbers: array[int], state: array[int], at: int, offset: int, data: bytes, seen: int, now: int, /
) -> tuple[int, list[int]]: ...
def idle(numbers: array[int], state: array[int], now: int, idle_max: int, /) -> list[int]: ...
