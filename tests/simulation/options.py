"""The options of one run: drawn from the seed, or changed by hand to study a failure."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields, replace

from tests.simulation.world import MILLISECOND_NS, SECOND_NS


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one run. Times in nanoseconds; probabilities from 0 to 1."""

    blocks: int = 10
    publishers: int = 3
    """Publishers that obey the protocol, with the real machine."""
    rogues: int = 1
    steps: int = 1_500
    """Steps after which faults stop."""
    chaos_ns: int = 20 * SECOND_NS
    """Time after which faults stop."""
    start_ns: int = 0
    block_time_ns: int = 0
    """Time between the blocks of a publisher's source; 0: it has all."""
    delay_ns: tuple[int, int] = (MILLISECOND_NS, 5 * MILLISECOND_NS)
    window: int = 16
    """Messages on their way in one direction."""
    lag_ns: int = 2 * MILLISECOND_NS
    """Most time of a publisher between two messages."""
    job_ns: tuple[int, int] = (0, 2 * MILLISECOND_NS)
    """Time that a thread takes to begin a job, and again to report it."""
    pause_ns: tuple[int, int] = (0, 4 * MILLISECOND_NS)
    """Time that the commit thread stands still at each flush, and between two groups."""
    inline_items_max: int = 1024
    """0: every set is hashed in a thread, so blocks are verified in any order."""
    proofs_in_process: bool = False
    first_block: int | str | None = None
    block_bytes_max: int = 64 * 1024
    block_timeout_ns: int = 6 * SECOND_NS
    stall_blocks: int = 3
    forgiving_blocks: int = 16
    """Delivered blocks that take one failure away."""
    idle_timeout_ns: int = 30 * SECOND_NS
    duplicate_skip_window: int = 5
    proof_idle_ns: int = 2 * SECOND_NS
    stray_messages_max: int = 1000
    responses_max: int = 4096
    inflight_bytes_max: int = 1 << 30
    publisher_bytes_max: int = 1 << 30
    messages_per_second: int = 0
    """Messages that the node takes from one publisher; 0: all."""
    group_blocks_max: int = 64
    pages: int = 1
    crashes: int = 0
    """Ends of the node without warning, with or without a power failure."""
    commit_crashes: int = 0
    """Power failures at some step of the disk."""
    shutdowns: int = 0
    retirements: int = 0
    """Times that the node sends publishers elsewhere."""
    disk_faults: int = 0
    """Times that the disk refuses."""
    breaks: int = 2
    pauses: int = 0
    """Times that the node stands still."""
    busy: float = 0.0
    """Probability of an event outside before the node's next callback."""
    peers: int = 0
    """Other nodes that blocks can be taken from."""
    standbys: int = 0
    """Other nodes whose disks the node waits for."""
    min_standbys: int = 0
    """Standbys that must have a block before it is acknowledged."""
    standby_faults: int = 0
    """Times that one of them is away, stands still, or has another disk."""
    standby_alias: bool = False
    elsewhere: bool = False
    """Publishers have a second node, which is not there or refuses them."""
    twins: bool = False
    """The last publisher uses the first one's name."""
    stalls: int = 1
    """Publishers that stand still for a while."""
    restarts: int = 0
    """Publishers whose process restarts, some without what they held, some with old blocks."""
    same_name: bool = False
    """The rogues use the name of publisher 0."""
    quiet: bool = False
    """The rogues are still connected, and silent, when the faults stop."""
    window_blocks: int = 128
    cache_bytes: int = 1 << 20
    reset_interval_ns: int = 0
    """Routine resets of publishers; 0: none."""
    answer_timeout_ns: int = 60 * SECOND_NS
    """Silence after which a publisher gives up."""

    @property
    def first_number(self) -> int | None:
        """The first block of an empty node; None: any."""
        return None if isinstance(self.first_block, str) else self.first_block or 0

    def lines(self) -> list[str]:
        """Return `name = value` for each option."""
        return [f"{field.name} = {getattr(self, field.name)}" for field in fields(self)]

    def with_changes(self, changes: list[str]) -> Options:
        """Apply `name=value` texts.

        Raises:
            ValueError: no such option, or not a number.
        """
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        values: dict[str, object] = {}
        for change in changes:
            name, _, text = change.partition("=")
            if name not in named:
                raise ValueError(f"option: got {name!r}, expected one of {', '.join(named)}")
            if text in ("any", "None"):
                values[name] = None if text == "None" else text
            elif isinstance(named[name], tuple):
                values[name] = tuple(int(part) for part in text.strip("()").split(","))
            elif isinstance(named[name], bool):
                values[name] = text not in ("0", "False", "false")
            else:
                values[name] = float(text) if isinstance(named[name], float) else int(text)
        return replace(self, **values)  # type: ignore[arg-type]


def draw(seed: int, steps: int | None = None) -> Options:
    """Draw the options of a seed. Most runs have some faults, some all, some none."""
    # Its own dice keep the other draws of the seed.
    dice = random.Random(f"disk {seed}")
    options = replace(
        _without_slow_disk(seed, steps), pause_ns=(0, dice.choice([1, 4, 30, 400]) * MILLISECOND_NS)
    )
    if (
        options.first_block
    ):  # a node that does not answer might store what this one does not: it is waited for
        options = replace(options, elsewhere=False)
    return _burst(options, dice) if dice.random() < 0.2 else options


def _without_slow_disk(seed: int, steps: int | None) -> Options:
    # Its own dice: changed options do not change what chance does in the run.
    dice = random.Random(f"options {seed}")

    def some(probability: float, most: int) -> int:
        return dice.randint(1, most) if dice.random() < probability else 0

    slow = dice.random() < 0.3
    # Its own dice keep the other draws of the seed.
    more = random.Random(f"standbys {seed}")
    standbys = more.randint(1, 3) if more.random() < 0.3 else 0
    pace_of_node = random.Random(f"pace {seed}").choice([0, 0, 0, 0, 0, 0, 2, 20])
    delay_ms = dice.choice([1, 5, 50, 400])
    return Options(
        blocks=dice.randint(5, 15),
        publishers=dice.randint(1, 4),
        rogues=some(0.6, 3),
        steps=steps or 1_500,
        chaos_ns=dice.choice([2, 8, 20, 60]) * SECOND_NS,
        start_ns=dice.choice([0, 0, 200, 2000]) * MILLISECOND_NS,
        block_time_ns=dice.choice([0, 0, 50, 500, 2000]) * MILLISECOND_NS,
        delay_ns=(0 if dice.random() < 0.5 else MILLISECOND_NS, delay_ms * MILLISECOND_NS),
        window=dice.choice([1, 2, 4, 16, 64]),
        lag_ns=dice.choice([0, 1, 20, 300, 1500]) * MILLISECOND_NS,
        job_ns=(0, dice.choice([0, 1, 20, 500]) * MILLISECOND_NS),
        inline_items_max=dice.choice([0, 1024]),
        proofs_in_process=dice.random() < 0.4,
        first_block=dice.choice([None, None, None, 0, 3, "any"]),
        block_bytes_max=dice.choice([1200, 64 * 1024]),
        block_timeout_ns=(1 if slow else 6) * SECOND_NS,
        stall_blocks=dice.choice([1, 2, 3, 3, 0]),
        idle_timeout_ns=dice.choice([3, 30, 300]) * SECOND_NS,
        duplicate_skip_window=dice.choice([0, 0, 5, 1, 3, 100]),
        proof_idle_ns=random.Random(f"proofs {seed}").choice([100 * MILLISECOND_NS, 2 * SECOND_NS]),
        forgiving_blocks=random.Random(f"levels {seed}").choice([1, 2, 16]),
        stray_messages_max=random.Random(f"strays {seed}").choice([0, 1, 3, 1000]),
        responses_max=dice.choice([2, 8, 4096, 4096]),
        inflight_bytes_max=dice.choice([400, 2000, 1 << 30, 1 << 30]),
        messages_per_second=pace_of_node,
        group_blocks_max=dice.choice([1, 2, 64]),
        pages=0 if dice.random() < 0.04 else 1,
        crashes=some(0.3, 3),
        commit_crashes=some(0.4, 5),
        shutdowns=some(0.2, 2),
        retirements=some(0.15, 2),
        # More often where blocks wait for standbys: what is on disk then must survive what is not.
        disk_faults=some(0.3, 2) + (more.randint(0, 3) if standbys else 0),
        breaks=some(0.6, 6),
        pauses=some(0.2, 2),
        busy=dice.choice([0.0, 0.0, 0.1, 0.5]),
        peers=some(0.3, 2),
        elsewhere=dice.random() < 0.25,
        twins=dice.random() < 0.15,
        stalls=some(0.4, 4),
        restarts=some(0.4, 4),
        same_name=dice.random() < 0.15,
        quiet=dice.random() < 0.3,
        window_blocks=dice.choice([1, 3, 128, 128]),
        cache_bytes=dice.choice([500, 3000, 1 << 20]),
        reset_interval_ns=dice.choice([0, 0, 0, 1, 5]) * SECOND_NS,
        # A publisher must wait as long as a block takes at the node's pace.
        answer_timeout_ns=dice.choice([60, 60, 60] if pace_of_node == 2 else [4, 60, 60]) * SECOND_NS,
        publisher_bytes_max=dice.choice([300, 1500, 1 << 30, 1 << 30]),
        standbys=standbys,
        min_standbys=more.randint(1, standbys) if standbys else 0,
        standby_faults=more.randint(0, 4) if standbys else 0,
        standby_alias=more.random() < 0.3,
    )


def _burst(options: Options, dice: random.Random) -> Options:
    """Let blocks come faster than a slow disk takes them, so that commits follow one another."""
    return replace(
        options,
        blocks=dice.randint(12, 20),
        chaos_ns=2 * SECOND_NS,
        start_ns=0,
        block_time_ns=0,
        delay_ns=(0, MILLISECOND_NS),
        window=64,
        lag_ns=0,
        job_ns=(0, dice.choice([0, 1]) * MILLISECOND_NS),
        pause_ns=(0, dice.choice([8, 20, 60]) * MILLISECOND_NS),
        messages_per_second=0,
        group_blocks_max=dice.choice([1, 1, 2, 64]),
        window_blocks=128,
        cache_bytes=1 << 20,
        commit_crashes=options.commit_crashes + dice.randint(0, 2),
        disk_faults=options.disk_faults + dice.randint(0, 3),
    )
