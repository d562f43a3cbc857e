"""A publish race driven by hand: publishers are names, and their responses are short texts.

The verdicts of the node (verified, linked, committed) come by themselves, except those named in `hold`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sluice.gateway.blocks.items import ItemKind
from sluice.gateway.race.actions import (
    Acknowledgement,
    Action,
    AimCatchUp,
    AttemptId,
    Begin,
    Behind,
    CheckLink,
    Commit,
    Drop,
    EndOfStream,
    EndResponses,
    PublisherId,
    Resend,
    Response,
    SendResponse,
    Skip,
    SourceError,
    Verify,
)
from sluice.gateway.race.arbiter import Arbiter
from sluice.gateway.race.records import RaceRules
from sluice.gateway.race.tables import Failure

SECOND_NS = 1_000_000_000
HEADER, ITEM, PROOF = b"header", b"item", b"proof"


def text_of(response: Response) -> str:
    """`ack 9`, `skip 9`, `resend 9`, `behind 8`, `end TIMEOUT last 8 about 9`."""
    match response:
        case Acknowledgement(number):
            return f"ack {number}"
        case Skip(number):
            return f"skip {number}"
        case Resend(number):
            return f"resend {number}"
        case Behind(last):
            return f"behind {last}"
        case EndOfStream(status, last, proximate):
            return f"end {status.name} last {last} about {proximate or 0}"


class Race:
    """One arbiter, and publishers that do what the test says, of whom `names` are connected.

    Invariants are checked after every action.
    """

    def __init__(
        self,
        last: int | None = None,
        *names: str,
        first: int | None = 0,
        rules: RaceRules | None = None,
        hold: str = "",
    ) -> None:
        self.arbiter = Arbiter(last, first, rules)
        self.now_ns = 0
        self.held = set(hold.split())
        """Events that the test reports itself: verified, linked, committed."""
        self.ids: dict[str, PublisherId] = {}
        self.names: dict[PublisherId, str] = {}
        self.closed: list[str] = []
        self.heard: dict[str, list[str]] = {}
        self.attempt_of: dict[int, AttemptId] = {}
        """The newest attempt at each block."""
        self.winner_of: dict[int, str] = {}
        self.dropped: list[tuple[int, str]] = []
        """Block and failure of each attempt that was dropped."""
        self.committed: list[int] = []
        self.targets: list[int] = []
        """Catch-up targets as they were told."""
        self.source_errors: list[str] = []
        """Publishers whose EndStream(ERROR) left the node without a source."""
        self.log: list[Action] = []
        self.connect(*names)

    # --- publishers ---

    def connect(self, *names: str, address: str = "", is_peer: bool = False) -> None:
        """Open a stream for each publisher; a second stream of a name replaces the first in this driver."""
        for name in names:
            publisher_id = PublisherId(len(self.names) + 1)
            self.ids[name], self.names[publisher_id] = publisher_id, name
            self.heard[name] = []
            self._do(
                self.arbiter.connected(publisher_id, name, self.now_ns, address=address, is_peer=is_peer)
            )

    def header(self, name: str, number: int, *, proven: bool = False) -> None:
        """Offer a block; `proven`: the set holds the whole block."""
        offer, publisher_id, kinds = self.arbiter.header, self.ids[name], [ItemKind.BLOCK_HEADER]
        size_bytes = len(HEADER)
        self._do(
            offer(
                publisher_id,
                number,
                [HEADER],
                self.now_ns,
                kinds=kinds,
                size_bytes=size_bytes,
                proven=proven,
            )
        )

    def items(self, name: str, *items: bytes) -> None:
        """Send items without a header."""
        sent = items or (ITEM,)
        proven, only_proofs = sent[-1] == PROOF, all(item == PROOF for item in sent)
        kinds = [ItemKind.BLOCK_PROOF if item == PROOF else ItemKind.SIGNED_TRANSACTION for item in sent]
        self._do(
            self.arbiter.items(
                *(self.ids[name], sent, self.now_ns),
                kinds=kinds,
                size_bytes=sum(map(len, sent)),
                proven=proven,
                only_proofs=only_proofs,
            )
        )

    def end(self, name: str, number: int) -> None:
        """Send end_of_block."""
        self._do(self.arbiter.block_end(self.ids[name], number, self.now_ns))

    def finish(self, name: str, number: int) -> None:
        """Send the proof and the end of a block."""
        self.items(name, PROOF)
        self.end(name, number)

    def block(self, name: str, *numbers: int) -> None:
        """Send whole blocks."""
        for number in numbers:
            self.header(name, number)
            self.items(name, ITEM, PROOF)
            self.end(name, number)

    def end_stream(self, name: str, target: int | None = None, *, is_error: bool = False) -> None:
        """Send EndStream."""
        actions = self.arbiter.end_stream(self.ids[name], self.now_ns, target=target, is_error=is_error)
        self._do(actions)

    def half_close(self, name: str) -> None:
        """Close the sending side."""
        self._do(self.arbiter.half_closed(self.ids[name], self.now_ns))

    def leave(self, name: str) -> None:
        """Break the connection."""
        self._do(self.arbiter.left(self.ids.pop(name), self.now_ns))

    def bad_request(self, name: str) -> None:
        """Send something that has not the form."""
        self._do(self.arbiter.bad_request(self.ids[name], "got garbage", self.now_ns))

    # --- the node ---

    def wait(self, seconds: float) -> None:
        """Let time pass, ticking at every time limit on the way."""
        until_ns = self.now_ns + int(seconds * SECOND_NS)
        while (deadline_ns := self.arbiter.next_deadline_ns()) is not None and deadline_ns <= until_ns:
            self.now_ns = max(self.now_ns, deadline_ns)
            self._do(self.arbiter.tick(self.now_ns))
        self.now_ns = until_ns
        self._do(self.arbiter.tick(self.now_ns))

    def verified(self, number: int) -> None:
        """Report a held verdict."""
        self._do(self.arbiter.verified(self.attempt_of[number], self.now_ns))

    def refused(self, number: int, *, failure: Failure = Failure.REFUSED) -> None:
        """Report a bad verdict."""
        attempt_id = self.attempt_of[number]
        self._do(self.arbiter.refused(attempt_id, "bad proof", self.now_ns, failure=failure))

    def commit(self, number: int) -> None:
        """Report a held commit."""
        self.committed.append(number)
        self._do(self.arbiter.committed(self.attempt_of[number], self.now_ns))

    def commit_failed(self, number: int) -> None:
        """Report that the disk refused."""
        self._do(self.arbiter.commit_failed(self.attempt_of[number], "no space", self.now_ns))

    def readers(self) -> list[str]:
        """Publishers of whom another message may be taken."""
        return [name for name, publisher_id in self.ids.items() if self.arbiter.may_read(publisher_id)]

    def shutdown(self) -> None:
        """Ask the node to stop."""
        self._do(self.arbiter.shutdown(self.now_ns))

    def give_up(self) -> None:
        """The time that the node had to stop is over."""
        self._do(self.arbiter.give_up(self.now_ns))

    def retire(self) -> None:
        """Ask the node to send its publishers elsewhere."""
        self._do(self.arbiter.retire("the node becomes a standby", self.now_ns))

    def expect(self, name: str, *texts: str) -> None:
        """Assert what a publisher has heard since the last time, and forget it."""
        assert self.heard[name] == list(texts), f"{name} heard {self.heard[name]}, expected {list(texts)}"
        self.heard[name] = []

    def _do(self, actions: Sequence[Action]) -> None:
        waiting = list(actions)
        self.arbiter.check()
        while waiting:
            waiting.extend(self._one(waiting.pop(0)))
            self.arbiter.check()

    def _one(self, action: Action) -> Sequence[Action]:
        self.log.append(action)
        match action:
            case SendResponse(publisher_id, response):
                self.heard[self.names[publisher_id]].append(text_of(response))
            case EndResponses(publisher_id):
                self.closed.append(self.names[publisher_id])
            case Begin(attempt_id, number, publisher_id):
                self.attempt_of[number] = attempt_id
                self.winner_of[number] = self.names[publisher_id]
            case Drop(_, number, failure):
                self.dropped.append((number, failure.name))
            case AimCatchUp(target_number):
                self.targets.append(target_number)
            case SourceError(publisher_id):
                self.source_errors.append(self.names[publisher_id])
            case Verify(attempt_id) if "verified" not in self.held:
                return self.arbiter.verified(attempt_id, self.now_ns)
            case CheckLink(attempt_id) if "linked" not in self.held:
                return self.arbiter.linked(attempt_id, self.now_ns)
            case Commit(attempt_id) if "committed" not in self.held:
                self.committed.append(self.arbiter.next_number)
                return self.arbiter.committed(attempt_id, self.now_ns)
            case _:
                pass
        return ()


def race_of_three(last: int | None = 8, **options: Any) -> Race:
    """A race of Alice, Bob and Carol, who are connected."""
    return Race(last, "Alice", "Bob", "Carol", **options)
