"""Many who begin blocks and bring none, beside two honest publishers."""

from __future__ import annotations

import pytest

from sluice.gateway.race.actions import PublisherId
from sluice.gateway.race.tables import BlockState
from tests.gateway.racing import ITEM, PROOF, Race

SENDS = ("header", "item", "items")
"""A header, one more item, or items without end."""


@pytest.mark.parametrize(
    ("names", "streams", "sends", "is_cold"),
    [
        *((names, 1, sends, is_cold) for names in (1, 5) for sends in SENDS for is_cold in (False, True)),
        (50, 1, "header", False),
        pytest.param(50, 1, "item", True, marks=pytest.mark.slow),
        pytest.param(1, 64, "items", False, marks=pytest.mark.slow),
        pytest.param(1, 64, "header", True, marks=pytest.mark.slow),
    ],
)
def test_the_race_that_nobody_wins(names: int, streams: int, sends: str, is_cold: bool) -> None:
    """The chain goes on: two honest publishers with a block every 2 s for 100 s, and others that bring none.

    Those answer at once, before the honest ones, and begin what they can get.
    """
    race = Race(8)
    honest, rogues = ("Alice", "Bob"), []
    race.connect(*honest, address="home")
    if not is_cold:
        race.block("Alice", 9)
        race.block("Bob", 10)
    for index in range(names):
        for _ in range(streams):
            race.connect(f"rogue-{index}", address="far")
            rogues.append(race.ids[f"rogue-{index}"])
    for name in race.heard:
        race.heard[name].clear()
    first = race.arbiter.next_number
    crowd = _Crowd(race, rogues, sends)
    offered = dict.fromkeys(honest, first)
    for half in range(200):  # a second
        race.now_ns = half * 500_000_000
        race._do(race.arbiter.tick(race.now_ns))
        made = first + half // 4  # of the network
        for _ in range(60):
            crowd.act()
            if not any(_honest_acts(race, name, offered, made) for name in honest):
                break
    assert len(race.committed) - (0 if is_cold else 2) >= 45


def _honest_acts(race: Race, name: str, offered: dict[str, int], made: int) -> bool:
    """Do what the protocol says, one block at most; return whether there was anything to do."""
    for text in race.heard[name]:
        kind, _, told = text.partition(" ")
        if kind == "resend":
            offered[name] = int(told)
        elif kind == "behind":
            offered[name] = int(told) + 1
        assert kind != "end", f"{name} hears {text}"
    race.heard[name].clear()
    if (number := max(offered[name], race.arbiter.next_number)) > made:
        return False
    offered[name] = number + 1
    race.header(name, number)
    stream = race.arbiter.streams[race.ids[name]]
    if stream.block is not None and stream.block.number == number:
        race.items(name, ITEM, PROOF)
        race.end(name, number)
    return True


class _Crowd:
    """Streams that win what they can, and bring nothing."""

    def __init__(self, race: Race, ids: list[PublisherId], sends: str) -> None:
        self.race, self.ids, self.sends = race, ids, sends

    def act(self) -> None:
        """Take the lowest free block for each stream without one; reconnect those that were ended."""
        arbiter, race = self.race.arbiter, self.race
        for index, publisher_id in enumerate(self.ids):
            stream = arbiter.streams[publisher_id]
            name = stream.name
            race.ids[name] = stream.publisher_id
            if stream.state.name == "ENDED":
                race.leave(name)
                race.connect(name, address="far")
                self.ids[index] = race.ids[name]
            elif stream.block is None:
                wanted = arbiter.blocks.get(arbiter.next_number)
                is_open = wanted is None or wanted.state is BlockState.OPEN
                race.header(name, arbiter.next_number if is_open else arbiter.next_unstreamed)
                if self.sends != "header" and arbiter.streams[race.ids[name]].block is not None:
                    race.items(name, ITEM)
            elif self.sends == "items":
                race.items(name, ITEM)
