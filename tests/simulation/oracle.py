"""The oracle: it checks each action of the arbiter against the protocol's rules, without the arbiter's
tables.

It keeps its own picture: what each publisher has said, and who sends each block above L. It sees every event
with the arbiter's actions. A rule has to allow each action, and each action that a rule demands has to be
there. The disk is compared with the true chain, byte for byte.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from sluice.gateway.race.actions import (
    Action,
    AimCatchUp,
    Append,
    Begin,
    Drop,
    EndResponses,
    Idle,
    SendResponse,
    SourceError,
    Stray,
    Verify,
)
from sluice.gateway.race.records import RaceRules
from sluice.gateway.race.reputation import BackedOff
from sluice.gateway.race.tables import EndStatus, Failure
from sluice.gateway.store.block_store import BlockStore
from tests.simulation.answer_rules import AnswerRules, Moment
from tests.simulation.options import Options
from tests.simulation.picture import SLACK_NS, Block, Stream, memory_bytes
from tests.simulation.prices import Prices
from tests.simulation.storage import Storage
from tests.simulation.texts import brief, text_of
from tests.simulation.true_chain import true_blocks, with_proof_of_no_key
from tests.simulation.world import World


class Oracle(AnswerRules):
    """Checks one life of the node."""

    def __init__(self, world: World, options: Options, storage: Storage, store: BlockStore) -> None:
        super().__init__(world, options, storage, store)
        self.dead = False
        self.serving: object = None
        self.event_count = 0
        self.on_told: Callable[[int, str], None] = lambda number, what: None
        """Called with each block that is acknowledged while the node is no standby."""
        self.to_tell: list[object] = []
        """What other parts of the node have to hear."""
        self._backoffs: list[tuple[str, str, int, int]] = []
        self._forgets_from = 1 << 64
        """The disk has refused blocks from this one on in this event."""
        self._largest_bytes = 0
        """Of one message so far."""
        self._malformed = self._poisoned = False
        self._by_context: dict[int, Stream] = {}

    def begin(self, rules: RaceRules, first: int | None, last: int | None) -> None:
        self._rules, self.first, self.last = rules, first, last
        self.prices = Prices(rules.block_timeout_ns, self.options.forgiving_blocks)

    # --- the events ----------------------------------------------------------------------------------------

    def handling(self, *, malformed: bool, poisoned: bool) -> None:
        """The service begins to handle a message, which may be malformed or make our code fail."""
        self._malformed, self._poisoned = malformed, poisoned

    def handled(self, publisher_id: int) -> None:
        stream = self.streams.get(publisher_id)
        if self._malformed and stream is not None:
            self._expect(
                not stream.is_ready,
                "Rule 2: a message without the form is INVALID_REQUEST",
                f"publisher {stream.name} goes on",
            )
        self._malformed = False

    def disk_recovered(self) -> None:
        self.disk_failed = False

    def reinstated(self) -> None:
        self.retired, self.idle = False, self.shutting_down and self.idle

    def reading_paused(self, publisher_id: int) -> None:
        stream = self.streams[publisher_id]
        stream.is_paused = True
        options, in_all = self.options, self.held_in_all()
        its_own = 0 if stream.is_peer else self.held_by_name()[stream.name]
        self._expect(
            in_all >= options.inflight_bytes_max or its_own >= options.publisher_bytes_max,
            "Only a publisher for whom the node is full is not read",
            f"{stream.name} holds {its_own} of {in_all} bytes",
        )

    def resume_reading(self, publisher_id: int) -> None:
        stream = self.streams[publisher_id]
        stream.is_paused, stream.since_ns = False, self.world.now_ns
        stream.proof_ns = self.world.now_ns
        if stream.block is not None:
            self.begin_time(stream.block, self.world.now_ns)

    def delayed(self, publisher_id: int) -> None:
        stream = self.streams[publisher_id]
        self._expect(stream.state != "ended", "Only who is still heard is delayed", stream.name)
        stream.delayed_from_ns = self.world.now_ns

    def goes_on(self, publisher_id: int) -> None:
        stream, now_ns = self.streams[publisher_id], self.world.now_ns
        from_ns, stream.delayed_from_ns = stream.delayed_from_ns, None
        assert from_ns is not None
        self.add_time(stream, lambda since_ns: now_ns - max(from_ns, since_ns))
        if (block := stream.block) is not None:
            block.begun_ns += now_ns - max(from_ns, block.begun_ns)
            if block is self._timed:
                block.timed_from_ns += now_ns - max(from_ns, block.runs_from_ns)

    def stood_still(self, for_ns: int) -> None:
        now_ns = self.world.now_ns

        def took_ns(since_ns: int) -> int:
            return min(for_ns, now_ns - since_ns)

        for stream in self.streams.values():
            self.add_time(stream, took_ns)
        for block in self.blocks.values():
            block.begun_ns += took_ns(block.begun_ns)
            block.runs_from_ns += took_ns(block.runs_from_ns)
            block.timed_from_ns += took_ns(block.timed_from_ns)
        self.opened_ns = {number: at_ns + took_ns(at_ns) for number, at_ns in self.opened_ns.items()}
        self.lowest_since_ns += took_ns(self.lowest_since_ns)
        self.skipped_ns += took_ns(self.skipped_ns) if self.skipped_ns else 0

    def event(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], actions: Sequence[Action]
    ) -> None:
        self.event_count += 1
        subject = args[0] if args else None
        if self.world.is_tracing:
            led_to = ", ".join(map(text_of, actions)) or "nothing"
            self.world.note(f"  {name} {brief(args, kwargs)} -> {led_to}")
        if name == "connected":
            self._connected(args[0], args[1], kwargs)
        sender = self.streams.get(subject) if name in _FROM_PUBLISHERS and isinstance(subject, int) else None
        self._now = Moment(name, args, kwargs, actions, sender)
        self._answered, self._before, self._forgets_from = False, "", 1 << 64
        if name != "items" or not any(isinstance(action, Append) for action in actions):
            self.ranked_ns = self.world.now_ns  # further items change nothing else
        self._take_in(subject)
        must_refuse = sender is not None and self._must_refuse(sender)
        if sender is not None and sender.is_ready:
            self._before = sender.state
            self._is_alone = not any(one.is_ready for one in self.streams.values() if one is not sender)
            if name in ("left", "end_stream", "half_closed"):
                sender.state = "ended" if name == "left" else "finished"
        for action in actions:
            self._action(action)
        if sender is not None:
            self._after_message(sender, must_refuse)
        if name == "left":
            self.streams.pop(args[0]).closed = True
        gave_way = self._now.gave_way
        self._expect(gave_way is None, "Who gives way hears Skip", f"{gave_way and gave_way.winner_name}")
        self._expect(not self._backoffs, "Who has to stand back is told of", f"{self._backoffs}")
        self.run_time(self.world.now_ns)
        self.slack_ns = SLACK_NS + self.world.late_ns
        for rule, got in self.faults(self.world.now_ns):
            self._wrong(rule, got)

    def _connected(self, publisher_id: int, name: str, told: dict[str, Any]) -> None:
        hears_from = 0 if self.is_unsettled else self.next_number
        is_peer, address = bool(told.get("is_peer")), told["address"]
        context = None if is_peer else self.serving
        now_ns = self.world.now_ns
        stream = Stream(publisher_id, name, now_ns, hears_from, context, address=address, is_peer=is_peer)
        self.streams[publisher_id] = stream
        if context is not None:
            self._by_context[id(context)] = stream

    def _take_in(self, subject: Any) -> None:
        """Apply an event to the picture, before the arbiter's actions."""
        name, args = self._now.name, self._now.args
        # A standby still accepts other nodes' blocks.
        is_unwelcome = self.shutting_down or (
            self.retired and (self.is_closing or not self._now.kwargs.get("is_peer"))
        )
        if name == "connected" and (self.disk_failed or is_unwelcome):
            status = EndStatus.PERSISTENCE_FAILED if self.disk_failed else EndStatus.SUCCESS
            self._must_end(args[0], status)
        elif name == "connected":
            others = [one for one in self.streams.values() if one.is_ready and one.publisher_id != args[0]]
            if len(others) == 1 and not others[0].is_peer and (block := others[0].block) is not None:
                block.used_ns = 0  # from now on somebody else could bring it
                block.runs_from_ns = block.timed_from_ns = self.world.now_ns
        elif name == "committed":
            self._committed(subject)
        elif name == "commit_failed":
            self.disk_failed = True
            failed = [block.number for block in self.blocks.values() if block.attempt_id == subject]
            from_number = failed[0] if failed else self.next_number
            for number in [number for number in self.blamed if number >= from_number]:
                del self.blamed[number]
            for number in [number for number in self.opened_ns if number >= from_number]:
                del self.opened_ns[number]
            self._forgets_from = from_number
            ill = bool(self.storage.fault_count)
            self._expect(ill, "PERSISTENCE_FAILED only where the disk failed", str(args[1]))
        elif name == "publisher_failed":
            self._expect(self._poisoned, "No error in our own code", str(args[1]))
        elif name == "shutdown":
            self.shutting_down, self.idle = True, self.idle and self.is_closing
        elif name == "retire" and not self.shutting_down:
            self.retired = True
        elif name == "tick":
            self.pardon(self.world.now_ns)
        elif name == "header" and self._now.sender is not None and self._now.sender.is_ready:
            self._now.sender.let_pass = False
        elif name == "verified":
            for block in self.blocks.values():
                if block.attempt_id == subject and not block.is_of_peer:
                    self.prices.deliver((block.winner_name, block.address))

    def _committed(self, attempt_id: Any) -> None:
        block = self.blocks.get(self.next_number)
        if block is None or block.attempt_id != attempt_id:
            self._wrong("Blocks are committed in order", f"attempt {attempt_id}, expected {self.next_number}")
            return
        del self.blocks[block.number]
        self.last, self.lowest_since_ns, self.skipped_ns = block.number, self.world.now_ns, 0
        self.opened_ns.pop(block.number, None)
        if not (self.retired and self.idle):
            self.on_told(block.number, f"block {block.number} is acknowledged")
        for number in [number for number in self.blamed if number <= block.number]:
            del self.blamed[number]
        self._expect(block.complete, "Committed is complete", f"block {block.number}")
        self._expect(
            tuple(block.items) == true_blocks()[block.number].items,
            "A committed block is the true block",
            f"block {block.number}",
        )

    def _must_refuse(self, stream: Stream) -> bool:
        """Rules 2 and 4: return whether the message has to be answered with INVALID_REQUEST."""
        now = self._now
        name, args, kwargs = now.name, now.args, now.kwargs
        state = stream.state
        if not stream.is_ready:
            return False
        if name == "bad_request":
            self._expect(
                self._malformed, "Rule 2: INVALID_REQUEST only for what breaks the rules", f"{args[1]}"
            )
            return True
        if name in ("header", "items"):
            new = args[2] if name == "header" else args[1]
            if name == "header":
                stream.stray_count = 0
            if name == "items" and state in ("fresh", "between"):
                return self._is_stray(stream)
            if name == "items" and not kwargs["only_proofs"] and state == "proven":
                return True
            block = stream.block
            appends = name == "items" and state in ("sending", "proven") and block is not None
            if appends and block is not None:
                return block.size_bytes + sum(map(len, new)) > self._rules.block_bytes_max
        if name == "block_end":
            if state in ("sending", "proven"):
                assert stream.block is not None
                return bool(stream.block.number != args[1])
            if state == "fresh" or (state == "between" and stream.last_ended != args[1]):
                return self._is_stray(stream)
        return False

    def _is_stray(self, stream: Stream) -> bool:
        """Count a message that belongs to no block; return whether it is dropped."""
        stream.stray_count += 1
        is_too_many = stream.stray_count > self._rules.stray_messages_max
        is_told = any(isinstance(one, Stray) for one in self._now.actions)
        self._expect(is_told != is_too_many, "A stray message is dropped and counted", stream.name)
        return is_too_many

    # --- one action ----------------------------------------------------------------------------------------

    def _action(self, action: Action) -> None:
        name = self._now.name
        match action:
            case Begin():
                self._begun(action)
            case Append():
                block = self._block_of(action.attempt_id)
                if block is not None:
                    block.items.extend(action.items)
                    self._largest_bytes = max(self._largest_bytes, memory_bytes(action.items))
                    block.size_bytes += sum(map(len, action.items))
                    self._expect(
                        block.size_bytes <= self._rules.block_bytes_max,
                        "Rule 2: at most publish.max_block_bytes",
                        f"block {block.number} has {block.size_bytes}",
                    )
            case Verify():
                self._completed(action)
            case Drop():
                self._dropped(action)
            case SendResponse():
                self._sent(action)
            case EndResponses():
                stream = self.streams.get(action.publisher_id)
                if stream is not None:
                    self._expect(not stream.closed, "A stream is closed once", stream.name)
                    self._expect(
                        stream.state in ("ended", "finished"),
                        "The node closes a stream with EndOfStream, or after the publisher's goodbye",
                        f"{stream.name} is {stream.state}",
                    )
                    stream.state, stream.closed, stream.close_by_ns = "ended", True, None
            case AimCatchUp():
                self._expect(
                    self._catch_up_due() == action.target_number,
                    "Rule 1: the highest block offered is the target of catch-up, told once",
                    f"{action.target_number} on {name}, before {self.target}",
                )
                self.target = action.target_number
                self.to_tell.append(action.target_number)
            case SourceError():
                self._expect(
                    name == "end_stream" and self._is_last_source(),
                    "Rule 8: subscribers are told when the last publisher says ERROR",
                    f"{action} on {name}",
                )
                self.to_tell.append("source error")
            case Idle():
                self._expect(self.is_closing, "Idle only when the node closes", name)
                self._expect(
                    not self.blocks, "Idle means that nothing is in flight", str(sorted(self.blocks))
                )
                self.idle = True
                self.blamed.clear()
                self.opened_ns.clear()
            case BackedOff():
                told = action.name, action.address, action.failure_count, action.left_ns
                is_due = bool(self._backoffs) and self._backoffs.pop(0) == told
                self._expect(is_due, "Who stands back is told of when it begins", f"{action}")
            case _:
                pass

    def _block_of(self, attempt_id: int) -> Block | None:
        for block in self.blocks.values():
            if block.attempt_id == attempt_id:
                return block
        self._wrong("What the arbiter asks for is about a block in flight", f"attempt {attempt_id}")
        return None

    def _begun(self, action: Begin) -> None:
        now = self._now
        name, args, sender = now.name, now.args, now.sender
        number = action.block_number
        if sender is None or name != "header" or action.publisher_id != sender.publisher_id:
            self._wrong("Only a header wins a block", f"block {number} after {name}")
            return
        self._answer(sender, number, "accept")
        self._expect(number == args[1], "The block won is the block offered", f"{number} for {args[1]}")
        self._expect(number not in self.blocks, "At most one winner per block", f"block {number}")
        self._expect(sender.block is None, "One block at a time on a stream", f"{sender.name} wins {number}")
        if self.is_unbegun():
            self.first = number
            self.blamed = {number: self.blamed.get(number, set())}
            self.opened_ns.clear()
        self.opened_ns.pop(number, None)
        now_ns = self.world.now_ns
        block = Block(number, action.attempt_id, sender.publisher_id, sender.name, now_ns, sender.address)
        block.is_of_peer = sender.is_peer
        self.begin_time(block, now_ns)
        if (over := now.started_over) is not None:  # this gives it no more time
            block.timed_from_ns, block.order, block.begun_ns = over.timed_from_ns, over.order, over.begun_ns
            block.runs_from_ns, block.used_ns = over.runs_from_ns, over.used_ns
            if self._timed is over:
                self._timed = block
        self.blocks[number] = sender.block = block
        sender.offered_max = max(sender.offered_max, number)
        sender.state = "sending"
        sender.offers(number, self.next_number)

    def _completed(self, action: Verify) -> None:
        now = self._now
        name, sender = now.name, now.sender
        block = self._block_of(action.attempt_id)
        if block is None:
            return
        stream = self.streams[block.winner]
        if name == "tick":
            silent_ns = self.world.now_ns - stream.proof_ns
            is_right = stream.state == "proven" and silent_ns >= self._rules.proof_idle_ns
            is_right = is_right and stream.delayed_from_ns is None  # the kept message may be another proof
        else:
            is_right = sender is stream and (
                name == "block_end"
                or (self._before == "proven" and name in ("header", "end_stream", "half_closed"))
            )
        self._expect(is_right, "Rule 4: complete is end_of_block, or the proof", f"{block.number} on {name}")
        block.complete = True
        stream.block, stream.last_ended = None, block.number
        if stream.is_ready:
            stream.state = "between"

    def _dropped(self, action: Drop) -> None:
        now = self._now
        name, sender = now.name, now.sender
        block = self._block_of(action.attempt_id)
        if block is None:
            return
        winner = self.streams.get(block.winner)
        failure, is_own = action.failure, sender is not None and sender is winner
        self._expect(
            self._may_drop(block, failure, is_own),
            "A block is dropped only for a reason",
            f"block {block.number} of {block.winner_name}: {failure.name} on {name}",
        )
        self._expect(
            not (failure is Failure.NODE and self.is_closing and block.complete)
            or block.number != self.next_number
            or name == "commit_failed",
            "Rule 9: blocks that are complete are finished before the node closes",
            f"block {block.number} of {block.winner_name}",
        )
        del self.blocks[block.number]
        if block.number < self._forgets_from:
            self.opened_ns[block.number] = self.world.now_ns
        if self.pardoned == block.number:
            self.pardoned = None
        if failure is Failure.RESTARTED:
            now.started_over = block
        if failure is Failure.GAVE_WAY:
            now.gave_way = now.taken_over = block
        if failure not in _NOT_BLAMED:
            self.blamed.setdefault(block.number, set()).add(block.winner_name)
            if not block.is_of_peer:
                self._backoffs += self.pay(block, self.world.now_ns)
        if winner is not None and winner.block is block:
            winner.block = None
            if winner.is_ready:
                winner.state = "dropping"
        status = _HEARS.get(failure)
        if status is not None and winner is not None and winner.state != "ended":
            self._must_end(winner.publisher_id, status, block.number)

    def _may_drop(self, block: Block, failure: Failure, is_own: bool) -> bool:
        """Rules 6, 7, 9: return whether the block may be dropped for this."""
        now = self._now
        name, args = now.name, now.args
        now_ns = self.world.now_ns
        match failure:
            case Failure.REFUSED:
                true_items, items = true_blocks()[block.number].items, tuple(block.items)
                return name == "refused" and items not in (
                    true_items,
                    with_proof_of_no_key(block.number).items,
                )
            case Failure.UNCHECKED:
                return name == "refused" and tuple(block.items) == with_proof_of_no_key(block.number).items
            case Failure.BAD_REQUEST:
                return is_own and name in ("bad_request", "items", "block_end") and not block.complete
            case Failure.TOO_LARGE:
                return is_own and name in ("header", "items")
            case Failure.TIMED_OUT if block.falls:
                return True
            case Failure.TIMED_OUT:
                due_ns = self.late_at_ns(block)
                late = due_ns is not None and now_ns >= due_ns
                return name == "tick" and late and self.lowest_in_flight() is block
            case Failure.STALLED:
                return self.stalled() is block
            case Failure.LEFT:
                return is_own and name in ("left", "end_stream", "half_closed") and not block.complete
            case Failure.SENT_BACK if (is_own and args[1] == block.number) or name == "items":
                # Its bytes would keep out those of the block that it is asked for.
                asked = self.streams[block.winner]
                if asked.sent_back_to is None:
                    can_send = self.may_send(asked, self.next_number)
                    return (
                        can_send and self.next_number not in self.blocks and self.next_number < block.number
                    )
                return asked.sent_back_to <= self.next_number < block.number
            case Failure.GAVE_WAY if name == "header" and now.sender is not None and not is_own:
                return bool(args[1] == block.number and self.gives_way(block, now.sender))
            case Failure.ABANDONED | Failure.SENT_BACK:
                return is_own and name == "header" and args[1] != block.number and not block.complete
            case Failure.RESTARTED:
                return is_own and name == "header" and args[1] == block.number and not block.complete
            case Failure.STREAM_ENDED:
                return not block.complete
            case Failure.NODE:
                return name == "commit_failed" or self.is_closing or self.is_unsettled
        return False

    # --- after an event ------------------------------------------------------------------------------------

    def _after_message(self, stream: Stream, must_refuse: bool) -> None:
        now = self._now
        name, args, kwargs, actions = now.name, now.args, now.kwargs, now.actions
        sent_back = any(isinstance(one, Drop) and one.failure is Failure.SENT_BACK for one in actions)
        if must_refuse and not (name == "items" and sent_back):
            self._must_end(stream.publisher_id, EndStatus.INVALID_REQUEST)
        if name == "end_stream":
            self._expect(
                self._is_last_source() == any(isinstance(one, SourceError) for one in actions),
                "Rule 8: subscribers are told when the last publisher says ERROR",
                f"{stream.name}, {kwargs}",
            )
        if name in ("header", "end_stream"):
            due = self._catch_up_due()  # a reported target is not due any more
            self._expect(
                due is None, "Rule 1: the highest block offered is told", f"{due}, not {self.target}"
            )
        if name == "publisher_failed" and stream.is_ready:
            self._wrong("Rule 9: an error ends the stream", stream.name)
        if name == "header" and stream.state != "finished":
            number = args[1]
            if stream.is_ready:
                if not self._answered and not self.is_closing:
                    self._wrong("Rule 1: every header is answered", f"{stream.name} offers {number}")
                if self.is_closing and stream.block is None:
                    stream.state = "dropping"
        if name in ("header", "items") and stream.state in ("sending", "proven") and stream.block:
            stream.state = "proven" if kwargs.get("proven") else "sending"
            stream.proof_ns = self.world.now_ns
        if name in ("end_stream", "half_closed") and self._before:
            self._expect(stream.block is None, "A goodbye ends the block in progress", stream.name)
            if name == "end_stream" and stream.state == "finished":
                stream.close_by_ns = self.world.now_ns + self._rules.goodbye_ns

    def check_memory(self, held: int) -> None:
        """Rule 10: memory is bounded, except for the block that frees some, and one message of each
        publisher."""
        lowest = self.blocks.get(self.next_number)
        extra = memory_bytes(lowest.items) if lowest is not None else 0
        most = self.options.inflight_bytes_max + (len(self.streams) + 1) * self._largest_bytes
        self._expect(held - extra <= most, "Rule 10: bytes in flight are bounded", f"{held}, at most {most}")
        streams = Counter(stream.name for stream in self.streams.values())
        for name, its_own in self.held_by_name(but=self.next_number).items():
            most = self.options.publisher_bytes_max + (streams[name] + 1) * self._largest_bytes
            rule = "The bytes of one publisher in flight are bounded"
            self._expect(its_own <= most, rule, f"{name}: {its_own}, at most {most}")

    def stream_of(self, context: object) -> Stream | None:
        return self._by_context.get(id(context))


_FROM_PUBLISHERS = frozenset(
    {
        *("connected", "header", "items", "block_end", "end_stream", "half_closed", "left", "bad_request"),
        "publisher_failed",
    }
)
_NOT_BLAMED = frozenset(
    {Failure.SENT_BACK, Failure.RESTARTED, Failure.GAVE_WAY, Failure.STREAM_ENDED, Failure.NODE}
)
_HEARS = {
    Failure.REFUSED: EndStatus.BAD_BLOCK_PROOF,
    Failure.UNCHECKED: EndStatus.ERROR,
    Failure.BAD_REQUEST: EndStatus.INVALID_REQUEST,
    Failure.TOO_LARGE: EndStatus.INVALID_REQUEST,
    Failure.TIMED_OUT: EndStatus.TIMEOUT,
    Failure.STALLED: EndStatus.TIMEOUT,
}
