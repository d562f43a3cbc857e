"""The mutants of every table. Each is applied in a process of its own, which ends with it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from sluice.gateway.race import tables as race_tables
from sluice.gateway.race.tables import BlockEvent, BlockState, Consequence, EndStatus
from sluice.publishers.protocol import machine_tables
from sluice.publishers.protocol.machine_tables import Ending, Gateway, MachineStep, Pace

__all__ = ["TESTS", "Mutant", "mutants"]

_ARBITER = ("_streams", "", "_resends", "_ends", "_stories", "_roles", "_price", "_limits", "_facts")
RACE_TESTS = tuple(f"tests/gateway/race/test_{name}.py" for name in (f"arbiter{part}" for part in _ARBITER))
MACHINE_TESTS = tuple(
    f"tests/publishers/protocol/test_{name}.py"
    for name in ("machine", "machine_first", "machine_trouble", "machine_cells")
)
TESTS = {"race": RACE_TESTS, "machine": MACHINE_TESTS}
"""The tests that have to notice; not those that only compare a table with itself or a page."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One cell with another value."""

    name: str
    """Table, cell and value."""
    side: str
    """Key of TESTS."""
    apply: Callable[[], None]
    """Changes the table."""


def mutants() -> Iterator[Mutant]:
    """Yield all mutants, table by table."""
    yield from _cells("ON_HEADER", "race", race_tables.ON_HEADER)
    for stream_state, reactions in race_tables.STREAM_TABLE.items():
        name = f"STREAM_TABLE[{stream_state.name}]"
        values = [value for row in race_tables.STREAM_TABLE.values() for value in row.values()]
        yield from _cells(name, "race", reactions, values)
    yield from _block_table()
    yield from _consequences()
    yield from _machine_table()
    yield from _endings()


def _cells(
    name: str, side: str, table: dict[Any, Any], values: Sequence[Hashable] | None = None
) -> Iterator[Mutant]:
    """Yield a mutant for each cell of a table and each other value that occurs."""
    choice = list(dict.fromkeys(values if values is not None else list(table.values())))
    for key, value in table.items():
        for other in choice:
            if other != value:
                yield _set(name, side, table, key, other)


def _set(name: str, side: str, table: dict[Any, Any], key: Enum, value: object) -> Mutant:
    return Mutant(f"{name}[{key.name}] = {_text(value)}", side, lambda: table.update({key: value}))


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return "+".join(_text(one) for one in value) or "nothing"
    if isinstance(value, Consequence):
        skips = ", skips" if value.skips else ""
        return f"{_text(value.end_status)}, {'' if value.blamed else 'not '}blamed{skips}"
    if isinstance(value, Ending):
        return f"{value.gateway.name}, {value.pace.name}"
    return value.name if isinstance(value, Enum) else str(value)


def _block_table() -> Iterator[Mutant]:
    """Yield mutants that redirect, remove or add a step of a block's life."""
    for state in BlockState:
        row = race_tables.BLOCK_TABLE[state]
        name = f"BLOCK_TABLE[{state.name}]"
        for event in BlockEvent:
            if event not in row:
                yield _set(name, "race", row, event, state)
                continue
            for target in BlockState:
                if target is not row[event]:
                    yield _set(name, "race", row, event, target)
            yield Mutant(f"{name}[{event.name}] removed", "race", lambda row=row, event=event: row.pop(event))  # type: ignore[misc]


def _consequences() -> Iterator[Mutant]:
    table = race_tables.CONSEQUENCES
    for failure, consequence in table.items():
        for status in (None, *EndStatus):
            if status is not consequence.end_status:
                yield _set("CONSEQUENCES", "race", table, failure, replace(consequence, end_status=status))
        yield _set(
            "CONSEQUENCES", "race", table, failure, replace(consequence, blamed=not consequence.blamed)
        )
        if consequence.end_status is None:
            skips = replace(consequence, skips=not consequence.skips)
            yield _set("CONSEQUENCES", "race", table, failure, skips)


def _machine_table() -> Iterator[Mutant]:
    """Yield mutants with each other value of a cell's column, NOTHING and REFUSE."""
    table = machine_tables.TABLE
    for state in table:
        table[state] = dict(table[state])  # the final states share a row
    for state, row in table.items():
        for kind, step in row.items():
            column = [other[kind] for other in table.values()]
            for value in dict.fromkeys([*column, MachineStep.NOTHING, MachineStep.REFUSE]):
                if value is not step:
                    yield _set(f"TABLE[{state.name}]", "machine", row, kind, value)


def _endings() -> Iterator[Mutant]:
    table = machine_tables.ENDINGS
    for code, ending in table.items():
        gateway = Gateway.SAME if ending.gateway is Gateway.NEXT else Gateway.NEXT
        pace = Pace.AT_ONCE if ending.pace is Pace.BACKOFF else Pace.BACKOFF
        yield _set("ENDINGS", "machine", table, code, replace(ending, gateway=gateway))
        yield _set("ENDINGS", "machine", table, code, replace(ending, pace=pace))
