"""The decisions of a follower: no sockets, no clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.datastream.errors import (
    CommandRefused,
    ConnectionEnded,
    EntryOutOfOrder,
    RemoteError,
    ServerBehind,
    ServerSpokeWrongly,
    StreamContradicts,
)
from sluice.datastream.layout import BOOKMARK_TYPE, Entry, StreamHeader
from sluice.datastream.limits import FollowLimits
from sluice.datastream.protocol.follow_core import (
    COMPARED_ENTRIES_COUNT,
    Connect,
    FollowCore,
    FollowerBase,
    RecentEntries,
    StartAt,
    StartAtBookmark,
    Wait,
)

A, B = ("a", 1), ("b", 2)
ENDED = ConnectionEnded("streaming")
ENTRIES = [Entry(1, number, b"%d" % number) for number in range(20)]


def header(total_entries: int, **changes: int) -> StreamHeader:
    fields = {"version": 1, "system_id": 137, "stream_type": 1, "total_length": 4096}
    return StreamHeader(**{**fields, "total_entries": total_entries, **changes})


def core_of(*servers: tuple[str, int], start: int | bytes | None = 0, random: float = 0) -> FollowCore:
    return FollowCore(servers or (A,), start, FollowLimits(), lambda: random)


def connect(core: FollowCore, total_entries: int = 20, now: float = 0) -> StartAt | StartAtBookmark:
    assert isinstance(core.next_step(), Connect)
    offered = header(total_entries)
    for entry in core.on_header(offered):
        core.on_compared(entry, ENTRIES[entry.number])
    step = core.start_step(offered)
    core.on_started(now)
    return step


def test_pauses_double_up_to_the_longest() -> None:
    core = core_of()
    waits = []
    for _ in range(8):
        assert core.next_step() == Connect(A)
        core.on_failure(OSError("refused"), 0)
        wait = core.next_step()
        assert isinstance(wait, Wait)
        waits.append(wait.seconds)
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]


def test_pauses_are_shortened_at_random() -> None:
    core = core_of(random=1)
    core.on_failure(ENDED, 0)
    assert core.next_step() == Wait(0.5)


def test_a_pause_comes_after_a_round_of_all_servers() -> None:
    core = core_of(A, B)
    steps = []
    for _ in range(6):
        step = core.next_step()
        steps.append(step)
        if isinstance(step, Connect):
            core.on_failure(OSError("refused"), 0)
    assert steps == [Connect(A), Connect(B), Wait(1), Connect(A), Connect(B), Wait(2)]


def test_an_accepted_entry_begins_the_pauses_anew() -> None:
    core = core_of(A)
    for _ in range(3):
        core.on_failure(ENDED, 0)
        assert isinstance(core.next_step(), Wait)
    connect(core)
    assert core.accept(ENTRIES[:5]) == (ENTRIES[:5], None)
    core.on_failure(ENDED, 1)
    assert core.next_step() == Wait(1)
    assert connect(core) == StartAt(5)


@pytest.mark.parametrize(("seconds", "pause"), [(29.9, 8), (30, 1)])
def test_a_steady_stream_begins_the_pauses_anew(seconds: float, pause: float) -> None:
    core = core_of(A)
    for _ in range(3):
        core.on_failure(ENDED, 0)
        core.next_step()
    connect(core, now=100)
    core.on_failure(ENDED, 100 + seconds)
    assert core.next_step() == Wait(pause)


def test_the_next_server_goes_on_where_the_last_one_was() -> None:
    core = core_of(A, B)
    connect(core)
    core.accept(ENTRIES[:7])
    core.on_failure(ENDED, 0)
    assert core.next_step() == Connect(B)
    assert list(core.on_header(header(20))) == ENTRIES[:7]
    assert core.start_step(header(20)) == StartAt(7)


def test_where_it_starts() -> None:
    assert connect(core_of(start=5)) == StartAt(5)
    assert connect(core_of(start=None), 17) == StartAt(17)
    assert connect(core_of(start=b"mark")) == StartAtBookmark(b"mark")


def test_latest_means_the_end_at_the_first_connection() -> None:
    core = core_of(start=None)
    connect(core, 12)
    core.on_failure(ENDED, 0)
    core.next_step()
    assert connect(core, 20) == StartAt(12)


def test_a_bookmark_is_left_for_numbers_after_the_first_entry() -> None:
    core = core_of(start=b"mark")
    connect(core)
    mark = Entry(BOOKMARK_TYPE, 4, b"mark")
    assert core.accept([mark, ENTRIES[5]]) == ([mark, ENTRIES[5]], None)
    core.on_failure(ENDED, 0)
    core.next_step()
    assert core.on_header(header(20)) == [mark, ENTRIES[5]]
    assert core.start_step(header(20)) == StartAt(6)


@pytest.mark.parametrize("first", [Entry(BOOKMARK_TYPE, 4, b"other"), Entry(1, 4, b"mark")])
def test_a_stream_that_does_not_begin_with_the_bookmark(first: Entry) -> None:
    core = core_of(start=b"mark")
    connect(core)
    good, wrong = core.accept([first])
    assert good == []
    assert str(wrong) == "server: streamed entry 4, expected bookmark 6d61726b"
    assert core.number_next is None


@pytest.mark.parametrize(
    ("sent", "good_count", "message"),
    [
        ([0, 1, 2], 3, None),
        ([], 0, None),
        ([0, 2], 1, "server: streamed entry 2, expected entry 1"),
        ([0, 1, 1, 2], 2, "server: streamed entry 1, expected entry 2"),
        ([1], 0, "server: streamed entry 1, expected entry 0"),
    ],
)
def test_only_the_next_entry_is_accepted(sent: list[int], good_count: int, message: str | None) -> None:
    core = core_of()
    connect(core)
    good, wrong = core.accept([ENTRIES[number] for number in sent])
    assert good == ENTRIES[:good_count]
    assert (None if wrong is None else str(wrong)) == message
    assert core.number_next == good_count


@given(st.lists(st.lists(st.integers(0, 19), max_size=6), max_size=30))
def test_whatever_servers_send_no_entry_is_left_out_or_repeated(sent: list[list[int]]) -> None:
    core = core_of()
    accepted: list[Entry] = []
    for numbers in sent:
        good, wrong = core.accept([ENTRIES[number] for number in numbers])
        accepted += good
        if wrong is not None:
            core.on_failure(wrong, 0)
    assert accepted == ENTRIES[: len(accepted)]


def test_a_shorter_server_is_left_for_later() -> None:
    core = core_of(A, start=7)
    core.next_step()
    offered = header(6)
    assert core.on_header(offered) == []
    with pytest.raises(ServerBehind, match="server: has 6 entries, but entry 7 is the next wanted"):
        core.start_step(offered)
    core.on_failure(ServerBehind(6, 7), 0)
    assert core.next_step() == Wait(1)
    assert connect(core, 7) == StartAt(7)


def test_what_both_have_is_compared_also_with_a_shorter_server() -> None:
    core = core_of()
    connect(core)
    core.accept(ENTRIES[:15])
    assert list(core.on_header(header(10))) == ENTRIES[7:10]
    assert list(core.on_header(header(20))) == ENTRIES[15 - COMPARED_ENTRIES_COUNT : 15]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "server: another stream: version: got 2, expected 1"),
        ({"system_id": 5}, "server: another stream: system id: got 5, expected 137"),
        ({"stream_type": 5}, "server: another stream: stream type: got 5, expected 1"),
    ],
)
def test_a_server_of_another_stream(changes: dict[str, int], message: str) -> None:
    core = core_of()
    connect(core)
    with pytest.raises(StreamContradicts) as caught:
        core.on_header(header(20, **changes))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("got", "text"),
    [
        (None, "none"),
        (Entry(1, 3, b"x" * 17), f"number 3, type 0x1, 17 bytes {'78' * 16}…"),
        (Entry(2, 3, b"3"), "number 3, type 0x2, 1 bytes 33"),
        (Entry(1, 4, b""), "number 4, type 0x1, 0 bytes"),
    ],
)
def test_an_entry_that_differs(got: Entry | None, text: str) -> None:
    core = core_of()
    with pytest.raises(StreamContradicts) as caught:
        core.on_compared(ENTRIES[3], got)
    expected = "number 3, type 0x1, 1 bytes 33"
    assert str(caught.value) == f"server: another stream: entry 3: got {text}, expected {expected}"


CONTRADICTS = StreamContradicts("entry 1", "x", "y")


@pytest.mark.parametrize(
    ("error", "start", "is_final"),
    [
        (CONTRADICTS, 0, True),
        (CommandRefused("StartBookmark", 4, "Bad from bookmark"), b"mark", True),
        (CommandRefused("Start", 3, "Bad from entry"), 0, False),
        (ServerSpokeWrongly("packet type", "0x48", "0x1"), 0, True),
        (EntryOutOfOrder("entry 5", "entry 4"), 0, False),
        (ServerBehind(1, 2), 0, False),
        (ENDED, 0, False),
        (TimeoutError(), 0, False),
    ],
)
def test_which_failures_end_it(error: Exception, start: int | bytes, is_final: bool) -> None:
    core = core_of(A, B, start=start)
    core.next_step()
    core.on_failure(error, 0)  # there is another server
    assert core.next_step() == Connect(B)
    if is_final:
        with pytest.raises(type(error)):
            core.on_failure(error, 0)
    else:
        core.on_failure(error, 0)


def test_a_server_that_is_only_away_may_still_have_the_stream() -> None:
    core = core_of(A, B)
    for error in (CONTRADICTS, ENDED, CONTRADICTS, ENDED):
        core.on_failure(error, 0)
    core.on_failure(CONTRADICTS, 0)
    with pytest.raises(StreamContradicts):
        core.on_failure(CONTRADICTS, 0)


def test_a_server_that_spoke_the_protocol_before_is_tried_again() -> None:
    """While it is away, a proxy may answer with a page of its own."""
    core = core_of(A)
    connect(core)
    wrong: RemoteError = ServerSpokeWrongly("packet type", "0x48", "0x1")
    core.on_failure(wrong, 0)
    assert core.next_step() == Wait(1)


def test_resume_at_goes_back() -> None:
    core = core_of()
    connect(core)
    core.accept(ENTRIES[:9])
    core.resume_at(4)
    assert core.accept(ENTRIES[4:6]) == (ENTRIES[4:6], None)


def test_recent_entries() -> None:
    recent = RecentEntries()
    recent.remember(ENTRIES[:3])
    recent.remember(ENTRIES[3:15])
    assert list(recent.before(100)) == ENTRIES[15 - COMPARED_ENTRIES_COUNT : 15]
    assert list(recent.before(9)) == ENTRIES[15 - COMPARED_ENTRIES_COUNT : 9]
    assert list(recent.before(0)) == []


def test_no_servers() -> None:
    with pytest.raises(ValueError, match="servers: got none, expected one or more addresses"):
        FollowCore([], 0, FollowLimits(), lambda: 0)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("backoff_first_seconds", 0, "backoff_first_seconds: got 0, expected more than 0"),
        ("answer_timeout_seconds", -1, "answer_timeout_seconds: got -1, expected more than 0"),
        ("steady_seconds", 0, "steady_seconds: got 0, expected more than 0"),
        (
            "backoff_max_seconds",
            0.5,
            "backoff_max_seconds: got 0.5, expected backoff_first_seconds or more, 1.0",
        ),
    ],
)
def test_limits_that_mean_nothing(name: str, value: float, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        FollowLimits(**{name: value})
    assert str(caught.value) == message


def test_entries_that_wait_come_before_what_the_core_wants_next() -> None:
    follower = FollowerBase([A], 7, None, 1, FollowLimits(), lambda: 0.0, lambda: 0.0)
    assert (follower.number_next, follower.address, follower.header) == (7, A, None)
    follower._pending.append(Entry(1, 5, b""))
    assert follower.number_next == 5


def test_a_bookmark_goes_before_an_entry() -> None:
    follower = FollowerBase([A], 7, b"bookmark", 1, None, lambda: 0.0, lambda: 0.0)
    assert follower.number_next is None
    assert connect(follower._core) == StartAtBookmark(b"bookmark")


def test_a_failure_is_told_with_the_server_that_failed() -> None:
    follower = FollowerBase([A, B], 7, None, 1, None, lambda: 0.0, lambda: 0.0)
    assert follower._core.next_step() == Connect(A)
    assert follower._failure_text(OSError("lost")) == f"{A[0]}:{A[1]}: lost"
    assert follower.address == B
