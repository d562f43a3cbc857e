"""A publish machine with verbs: what tests say instead of events and clock readings."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.publishers.protocol.machine import SECOND_NS, MachineLimits, PublisherMachine
from sluice.publishers.protocol.messages import (
    Acknowledged,
    Action,
    BlockReady,
    Clock,
    Connected,
    Disconnected,
    EndCode,
    Event,
    NodeBehind,
    ResendAsked,
    SendEndOfBlock,
    SendEndStream,
    SendItems,
    Skipped,
    SourceEnded,
    Stop,
    StreamEnded,
    Writable,
)
from sluice.publishers.report import PublishReport


def block_ready(number: int, set_count: int = 1, set_bytes: int = 10) -> BlockReady:
    """A block of `set_count` sets of one item each."""
    sets = tuple((bytes([number % 256]) * set_bytes,) for _ in range(set_count))
    return BlockReady(number, sets, set_count * set_bytes)


class Publisher:
    """Drives one machine; `actions` are those of the last event."""

    def __init__(self, gateway_count: int = 1, options: MachineLimits | None = None) -> None:
        self.machine = PublisherMachine("alice", gateway_count, options)
        self.now_ns = SECOND_NS
        self.actions: list[Action] = []

    @property
    def state(self) -> str:
        return self.machine.state.value

    @property
    def report(self) -> PublishReport:
        return self.machine.report()

    def hear(self, event: Event) -> list[Action]:
        self.actions = self.machine.handle(event, self.now_ns)
        return self.actions

    def take(self, numbers: Sequence[int], set_count: int = 1) -> Publisher:
        for number in numbers:
            self.hear(block_ready(number, set_count))
        return self

    def connect(self) -> Publisher:
        self.hear(Connected())
        return self

    def streaming(self, numbers: Sequence[int], set_count: int = 1) -> Publisher:
        """Hold these blocks, on an open stream."""
        return self.take(numbers, set_count).connect()

    def write(self) -> Action | None:
        """The next message, or None."""
        actions = self.hear(Writable())
        assert len(actions) <= 1, "one message at a time"
        return actions[0] if actions else None

    def write_all(self) -> list[str]:
        """Everything that can be sent now: `9` an item set of block 9, `9.` its end."""
        words = []
        while (action := self.write()) is not None:
            words.append(word(action))
        return words

    def wait(self, seconds: float) -> list[Action]:
        self.now_ns += int(seconds * SECOND_NS)
        return self.hear(Clock())

    def ack(self, number: int) -> list[Action]:
        return self.hear(Acknowledged(number))

    def skip(self, number: int) -> list[Action]:
        return self.hear(Skipped(number))

    def resend(self, number: int) -> list[Action]:
        return self.hear(ResendAsked(number))

    def behind(self, last: int | None) -> list[Action]:
        return self.hear(NodeBehind(last))

    def end(self, code: EndCode, last: int | None = None, proximate: int = 0) -> list[Action]:
        return self.hear(StreamEnded(code, last, proximate))

    def lose(self, reason: str = "reset by peer") -> list[Action]:
        return self.hear(Disconnected(reason))

    def source_ends(self) -> list[Action]:
        return self.hear(SourceEnded())

    def stop(self) -> list[Action]:
        return self.hear(Stop())


def word(action: Action) -> str:
    """Name a send in short."""
    if isinstance(action, SendItems):
        return str(action.number)
    if isinstance(action, SendEndOfBlock):
        return f"{action.number}."
    if isinstance(action, SendEndStream):
        return f"{action.code.name}({action.earliest}, {action.latest})"
    return type(action).__name__
