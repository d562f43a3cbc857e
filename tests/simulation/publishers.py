"""Honest publishers: the real machine in a small shell on the fake network."""

from __future__ import annotations

from collections.abc import Callable

from sluice.gateway.api import publish_pb2
from sluice.publishers.client.client import event_of, request_of
from sluice.publishers.errors import MachineError
from sluice.publishers.protocol.item_sets import ItemSet
from sluice.publishers.protocol.machine import MachineLimits, PublisherMachine
from sluice.publishers.protocol.machine_tables import FINAL_STATES
from sluice.publishers.protocol.messages import (
    Action,
    AskFirst,
    BlockReady,
    Clock,
    CloseStream,
    Connected,
    ConnectGateway,
    Disconnected,
    Event,
    Finish,
    FirstTold,
    HalfClose,
    SendEndOfBlock,
    SendEndStream,
    SendItems,
    SourceEnded,
    SourceFailed,
    Stop,
    StreamOutcome,
    Writable,
)
from tests.simulation.answer_checks import AnswerChecks
from tests.simulation.coverage import Coverage
from tests.simulation.network import Connection, Elsewhere
from tests.simulation.options import Options
from tests.simulation.true_chain import true_blocks
from tests.simulation.world import MILLISECOND_NS, SECOND_NS, World

Connector = Callable[["object", tuple[str | None, str | None, str]], Connection | None]
"""Opens a stream for a client of this identity; None when nobody listens."""


class HonestPublisher:
    """One publisher over all its lives.

    Args:
        check_safe: called when it takes more blocks as safe: its name, the last one, and the first it began
            with.
        ask_first: gives the node's first block, as `serverStatus` does; None: any.
    """

    def __init__(
        self,
        world: World,
        index: int,
        options: Options,
        connect: Connector,
        coverage: Coverage,
        check_safe: Callable[[str, int, int], None],
        ask_first: Callable[[], int | None],
    ) -> None:
        self.world, self.index, self.options, self.coverage = world, index, options, coverage
        self.name = f"P{index}"
        self._connect = connect
        self._check_safe = check_safe
        self._ask_first = ask_first
        # One has a certificate, one only its connection, the others a claimed name.
        self.subject = f"CN={self.name}" if index == 1 else None
        self.publisher_id = None if index == 2 else self.name
        if options.twins and index and index == options.publishers - 1:
            self.subject, self.publisher_id = None, "P0"
        self._port = 1000 * (index + 1)
        self.set_items = world.random.choice([1, 2, 3, 6])
        self.life = 0
        self.is_faulty = True
        self.machine: PublisherMachine
        self.connection: Connection | None = None
        self.checks = AnswerChecks(world, self.name)
        self.outcome: Finish | None = None
        # A node that may begin anywhere gets different first blocks.
        anywhere = options.first_block == "any" and world.chance(0.5)
        least = 0 if anywhere or world.chance(0.05) else options.first_number or 0
        self.begin(world.random.randrange(4) if anywhere else least)

    def begin(self, first_number: int, **limits: int | None) -> None:
        """Begin a life of the process with a source that starts at a block."""
        options = self.options
        self.life += 1
        if self.connection is not None:
            self.connection.client = None
            self.connection.break_off("the publisher is gone")
            self.connection = None
        self.machine = PublisherMachine(
            self.name,
            2 if options.elsewhere else 1,
            MachineLimits(
                cache_bytes_max=options.cache_bytes,
                window_blocks_max=options.window_blocks,
                answer_timeout_ns=options.answer_timeout_ns,
                reset_interval_ns=options.reset_interval_ns or None,
                **limits,  # type: ignore[arg-type]
            ),
        )
        self._next = self._begun_with = first_number
        self._first_at_ns = self.world.now_ns
        self._source_told = False
        self._closing = self._writing_over = False
        self._busy_until_ns = 0
        self._clock_at_ns: int | None = None
        self.outcome = None
        self.world.note(f"{self.name} begins life {self.life} with block {first_number}")
        late_ns = self.world.between(0, self.options.start_ns) if self.life == 1 else 0
        self.world.at(late_ns, self._pump, self.life)

    def begin_again(self, first_number: int) -> None:
        if self.outcome is not None and not self.is_done:
            self.begin(first_number)

    def _begin_with_first(self) -> None:
        """Begin with the block that its user has read the node begins with."""
        self.begin_again(self._ask_first() or 0)

    @property
    def is_done(self) -> bool:
        return self.outcome is not None and self.outcome.outcome is StreamOutcome.DONE

    # --- what happens to it --------------------------------------------------------------------------------

    def stall(self, for_ns: int) -> None:
        self._busy_until_ns = max(self._busy_until_ns, self.world.now_ns + for_ns)
        if self.connection is not None:
            self.connection.is_reading = False
            self.world.at(for_ns, self.connection.read_on)
        self.world.at(for_ns, self._pump, self.life)

    def stop(self) -> None:
        if self.machine.state not in FINAL_STATES:
            self._hear(Stop())
            self._pump(self.life)

    def fail_source(self) -> None:
        if not self._source_told and self.machine.state not in FINAL_STATES:
            self._source_told = True
            self._hear(SourceFailed("the source broke"))
            self._pump(self.life)

    # --- the network's side --------------------------------------------------------------------------------

    def on_response(self, message: bytes) -> None:
        event = event_of(publish_pb2.PublishStreamResponse.FromString(message))
        if event is not None:
            if self.world.is_tracing:
                self.world.note(f"{self.name} hears {event}")
            self.checks.heard(event)
            self._hear(event)
            self._pump(self.life)

    def on_room(self) -> None:
        self._pump(self.life)

    def on_end(self, reason: str) -> None:
        self.connection = None
        self.world.note(f"{self.name} disconnected: {reason}")
        self._hear(Disconnected(reason))
        self._pump(self.life)

    def _open(self, life: int, gateway: int) -> None:
        if life != self.life or self.machine.state in FINAL_STATES:
            return
        if gateway and self.is_faulty and self.world.chance(0.5):
            self.coverage.count("fault", "a publisher goes to another node")
            self.connection = Elsewhere(self.world, self)
            self._begin_stream(life)
            return
        if gateway:
            self._hear(Disconnected("the other node does not answer"))
            self._pump(life)
            return
        self._port += 1
        identity = (self.subject, self.publisher_id, f"ipv4:10.0.0.{self.index}:{self._port}")
        self.connection = self._connect(self, identity)
        if self.connection is None:
            self._hear(Disconnected("cannot connect"))
            self._pump(life)
        else:
            self._begin_stream(life)

    def _begin_stream(self, life: int) -> None:
        self._closing = self._writing_over = False
        first = self._ask_first()
        self.checks = AnswerChecks(self.world, self.name, first)
        self._hear(Connected(first))
        self._pump(life)

    # --- the machine ---------------------------------------------------------------------------------------

    def _hear(self, event: Event) -> list[Action]:
        machine = self.machine
        self.coverage.count("machine", f"{machine.state.name} {event.kind.name}")
        sends: list[Action] = []
        try:
            actions = machine.handle(event, self.world.now_ns)
        except MachineError as error:
            self.world.break_rule("The publisher's machine takes every answer", f"{self.name}: {error}")
            return sends
        if machine.safe_through is not None:
            self._check_safe(self.name, machine.safe_through, self._begun_with)
        for action in actions:
            match action:
                case ConnectGateway():
                    self.world.at(self._wait_ns(action.attempt), self._open, self.life, action.gateway)
                case AskFirst():
                    pause_ns = self.world.between(0, 20 * MILLISECOND_NS)
                    self.world.at(pause_ns, self._tell_first, self.connection)
                case Finish():
                    self._finish(action)
                case CloseStream():
                    self._closing = True
                    if action.force and self.connection is not None:
                        self.connection.cancel()
                case _:
                    sends.append(action)
        return sends

    def _tell_first(self, connection: Connection | None) -> None:
        """Answer the machine's question on this stream, if that is still open."""
        if connection is not None and connection is self.connection:
            is_told = not self.is_faulty or self.world.chance(0.9)
            self._hear(FirstTold(self._ask_first() if is_told else None))
            self._pump(self.life)

    def _finish(self, finish: Finish) -> None:
        self.outcome = finish
        self.world.note(f"{self.name} is {finish.outcome.name}: {finish.reason}")
        if finish.outcome is StreamOutcome.FAILED:
            reason = finish.reason or ""
            expected = reason == "the source broke" or "was not acknowledged within" in reason
            if reason.startswith("no gateway stores block"):
                expected = self.options.first_number != 0  # else every node stores all that there is
                self.world.at(SECOND_NS, self._begin_with_first)
            self.world.expect(
                expected, "A publisher that does right is not refused for good", f"{self.name}: {reason}"
            )
        if self.connection is not None:
            self.connection.client = None
            self.connection.cancel()
            self.connection = None

    def _wait_ns(self, attempt: int) -> int:
        """The retry policy: 1 s, doubled, at most 30 s, and jitter."""
        seconds = min(30, 2 ** (attempt - 1)) if attempt else 0
        jitter_ns = self.world.between(0, SECOND_NS) if attempt else 0
        return seconds * SECOND_NS + jitter_ns + self.world.between(0, 5 * MILLISECOND_NS)

    def _pump(self, life: int) -> None:
        """Feed, send and set the clock, as the tasks of the real shell do."""
        if life != self.life or self.machine.state in FINAL_STATES:
            return
        self._feed()
        self._write()
        at_ns = self.machine.wake_at_ns
        if at_ns is not None and (self._clock_at_ns is None or at_ns < self._clock_at_ns):
            self._clock_at_ns = at_ns
            pause_ns = max(10 * MILLISECOND_NS, at_ns - self.world.now_ns)
            self.world.at(pause_ns, self._tick, life)

    def _tick(self, life: int) -> None:
        if life == self.life and self.machine.state not in FINAL_STATES:
            self._clock_at_ns = None
            self._hear(Clock())
            self._pump(life)

    def _feed(self) -> None:
        blocks, options = true_blocks(), self.options
        while not self._source_told and self.machine.wants_block:
            if self._next >= options.blocks:
                self._source_told = True
                self._hear(SourceEnded())
                return
            due_ns = self._next * options.block_time_ns
            if self.is_faulty and self.world.now_ns < due_ns:
                self.world.at(due_ns - self.world.now_ns, self._pump, self.life)
                return
            block = blocks[self._next]
            self._next += 1
            self._hear(BlockReady(block.number, self._sets(block.items), block.size_bytes))

    def _sets(self, items: tuple[bytes, ...]) -> tuple[ItemSet, ...]:
        size = self.set_items
        return tuple(items[start : start + size] for start in range(0, len(items), size))

    def _write(self) -> None:
        connection = self.connection
        if connection is None or self._writing_over or self.world.now_ns < self._busy_until_ns:
            return
        if self._closing:
            self._writing_over = True
            connection.half_close()
            return
        if not connection.can_send:
            return
        for action in self._hear(Writable()):
            if isinstance(action, HalfClose):
                self._writing_over = True
                connection.half_close()
                return
            assert isinstance(action, SendItems | SendEndOfBlock | SendEndStream)
            if isinstance(action, SendEndStream):
                self.coverage.count("EndStream", action.code.name)
            if self.world.is_tracing:
                self.world.note(f"{self.name} sends {_text(action)}")
            self.checks.sent(action, self.machine.safe_through)
            connection.send(request_of(action).SerializeToString())
            pause_ns = self.world.between(0, self.options.lag_ns if self.is_faulty else 0) + 1
            self._busy_until_ns = self.world.now_ns + pause_ns
            self.world.at(pause_ns, self._pump, self.life)


def _text(action: SendItems | SendEndOfBlock | SendEndStream) -> str:
    if isinstance(action, SendItems):
        return f"{len(action.items)} items of block {action.number}"
    if isinstance(action, SendEndOfBlock):
        return f"the end of block {action.number}"
    return f"EndStream {action.code.name} {action.earliest} {action.latest}"
