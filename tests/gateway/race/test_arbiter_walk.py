"""Random interleavings of a race: the invariants hold, and the chain goes on afterwards.

`SLUICE_LONG=1` tries three times as many.
"""

from __future__ import annotations

import os
import random

import pytest

from sluice.gateway.race.records import RaceRules
from sluice.gateway.race.tables import BlockState
from tests.gateway.racing import ITEM, PROOF, Race

LONG = os.environ.get("SLUICE_LONG") == "1"


class _Walk:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        chance = self.random
        self.is_narrow = chance.random() < 0.4
        """Little may be in flight, and paused publishers are not read."""
        its_own = chance.choice(["all", "publisher", "address"]) if self.is_narrow else ""
        rules = RaceRules(
            inflight_bytes_max=500 if its_own == "all" else 1 << 30,
            publisher_bytes_max=200 if its_own == "publisher" else 1 << 30,
            address_bytes_max=400 if its_own == "address" else 1 << 30,
            stall_blocks=chance.choice([0, 1, 3]),
            duplicate_skip_window=chance.choice([0, 0, 3]),
        )
        last, first = chance.choice([(8, 0), (8, 0), (8, 0), (None, 0), (None, None)])
        self.race = Race(last, first=first, rules=rules, hold="verified linked committed")
        self.names = ["Alice", "Bob", "Carol", "Dave"][: self.random.randint(1, 4)]
        self.race.connect(*self.names)

    def step(self) -> None:
        race, chance = self.race, self.random
        connected = [name for name in self.names if name in race.ids]
        name = chance.choice(self.names)
        if name not in connected:
            race.connect(name)
            return
        if self.is_narrow and not self.is_read(name):
            self.verdict()
            race.wait(chance.choice([0, 0, 4]))
            return
        number = max(0, race.arbiter.next_number + chance.choice([-1, 0, 0, 0, 1, 1, 2, 3]))
        if race.arbiter.is_unbegun():
            number = chance.randrange(20)
        if chance.random() < 0.002:
            self.fail_disk()
            return
        event = chance.randrange(12)
        if event <= 3:
            race.header(name, number, proven=chance.random() < 0.2)
        elif event <= 5:
            race.items(name, *chance.choice([(ITEM,), (ITEM, PROOF), (PROOF,)]))
        elif event <= 7:
            stream = race.arbiter.streams[race.ids[name]]
            race.end(name, stream.block.number if stream.block else number)
        elif event == 8:
            chance.choice([race.leave, race.end_stream, race.half_close, race.bad_request])(name)
        elif event == 9:
            race.wait(chance.choice([0.05, 0.2, 4]))
        else:
            self.verdict()

    def is_read(self, name: str) -> bool:
        """Return whether a publisher's next message is read, as a shell does."""
        arbiter, publisher_id = self.race.arbiter, self.race.ids[name]
        stream = arbiter.streams[publisher_id]
        if not arbiter.may_read(publisher_id):
            arbiter.pause_reading(publisher_id)
        elif stream.is_paused:
            arbiter.resume_reading(publisher_id, self.race.now_ns)
        return not stream.is_paused

    def fail_disk(self) -> None:
        """Let the disk refuse block L + 1 if it is on its way, and recover."""
        arbiter = self.race.arbiter
        block = arbiter.blocks.get(arbiter.next_number)
        if block is not None and block.state is BlockState.COMMITTING:
            self.race.commit_failed(block.number)
            arbiter.disk_recovered()

    def verdict(self) -> None:
        race = self.race
        blocks = sorted(race.arbiter.blocks.values(), key=lambda block: block.number)
        for block in blocks:
            number = block.number
            if block.state is BlockState.COMPLETE:
                (race.refused if self.random.random() < 0.2 else race.verified)(number)
            elif block.state is BlockState.VERIFIED and number == self.linkable():
                race._do(race.arbiter.linked(race.attempt_of[number], race.now_ns))
            elif block.state is BlockState.COMMITTING and number == race.arbiter.next_number:
                race.commit(number)

    def linkable(self) -> int:
        arbiter = self.race.arbiter
        number = arbiter.next_number
        while (block := arbiter.blocks.get(number)) and block.state is BlockState.COMMITTING:
            number += 1
        return number

    def heal(self) -> None:
        """Stop all faults: a new, honest publisher brings the chain on."""
        race = self.race
        for name in list(race.ids):
            race.leave(name)
        race.connect("Healthy")
        for _ in range(20):
            for number in range(race.arbiter.next_number, race.arbiter.next_number + 3):
                if "Healthy" not in race.ids:
                    break
                race.block("Healthy", number)
            for _ in range(8):
                for block in list(race.arbiter.blocks.values()):
                    if block.state is BlockState.COMPLETE:
                        race.verified(block.number)
                self.verdict()


@pytest.mark.parametrize("seed", range(300 if LONG else 100))
def test_invariants_hold_in_random_interleavings(seed: int) -> None:
    walk = _Walk(seed)
    for _ in range(150):
        walk.step()
    race = walk.race
    first = race.committed[0] if race.committed else 0
    assert race.committed == list(range(first, first + len(race.committed)))
    assert race.arbiter.inflight_bytes <= 800 + 8 * 200 or not walk.is_narrow
    before = race.arbiter.next_number
    walk.heal()
    assert race.arbiter.next_number > before + 10, "the chain does not go on after the faults stop"
