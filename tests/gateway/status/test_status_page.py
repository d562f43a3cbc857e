"""Tests of `status.status_page`: an operator's view; no name of a peer becomes markup."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from sluice.gateway.cluster.election import ClusterRecord, Election, ElectionRules, Holder, Promise, Seen
from sluice.gateway.pipeline.acknowledging import Won
from sluice.gateway.pipeline.replication_quorum import QuorumState
from sluice.gateway.status.charts import charts
from sluice.gateway.status.events import Event, EventTopic
from sluice.gateway.status.findings import FindingBook, FindingKind
from sluice.gateway.status.history import History
from sluice.gateway.status.node_report import Finding, NodeReport, PublisherStatus
from sluice.gateway.status.status_page import REFRESH_SECONDS, Colours, render

VOID = {"meta", "br", "link", "img"}
EMPTY = NodeReport(
    version="0.1.0",
    instance="feed",
    phase="active",
    verification_mode="full",
    addresses=(("gRPC", "127.0.0.1:40840"),),
    grpc_address="127.0.0.1:40840",
    now_unix_seconds=1_700_000_000.0,
    block_time_seconds=2.0,
)
BUSY = replace(
    EMPTY,
    first_block=0,
    last_block=1200,
    last_root_hash="ab" * 48,
    last_block_age_seconds=1.25,
    race=(Won(1199, "alice", 0.0042), Won(1200, "bob", 0.0051)),
    winners=(("alice", 1), ("bob", 1)),
    median_seconds=0.0051,
    publishers=(PublisherStatus("alice", "sends block 1201"),),
    inflight_bytes=3 << 20,
    tcp_clients=12,
    tcp_slowest_bytes=2048,
    subscribers=3,
    subscriber_lag_blocks=1,
    peers=("192.0.2.7:40840",),
    followed="192.0.2.7:40840",
    distance_blocks=4,
)


def shown(report: NodeReport, events: Sequence[Event] = ()) -> str:
    history = History()
    history.note(report.now_unix_seconds, {"blocks": 2.0, "disk_free_bytes": 1e12})
    return render(report, charts(history.hour), events)


def problem(text: str) -> Finding:
    return Finding(text, 1_700_000_000.0, "Do something.", "A node is not ready", is_problem=True)


class Page(HTMLParser):
    """Reads a page, and checks that its tags are closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open_tags: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self.titles: list[str] = []
        self.feed(html)
        self.close()
        assert self.open_tags == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.titles += [value or "" for name, value in attrs if name == "title"]
        if tag not in VOID:
            self.open_tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open_tags.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open_tags and self.open_tags[-1] != "style" and data.strip():
            self.words.append(data.strip())

    @property
    def text(self) -> str:
        return " | ".join(self.words)


def test_an_empty_node_says_so() -> None:
    text = Page(shown(EMPTY)).text
    assert text.startswith(
        "Sluice: no block yet | Sluice | active node, version 0.1.0, verification full | "
        "2023-11-14 22:13:20 UTC, every 5 s · | hold still | operations | · | status.json | Ready"
    )
    for words in (
        "The node holds no block yet.",
        "No block was acknowledged since the node started.",
        "None is connected.",
        "None is set.",
    ):
        assert words in text


def test_what_is_wrong_since_when_and_what_to_do() -> None:
    book, now = FindingBook(), 1_700_000_000.0
    book.note([(FindingKind.DISK, "blocks cannot be written: <no> space")], now - 754, 1_000.0)
    seen = [
        (FindingKind.DISK, "blocks cannot be written: <no> space"),
        (FindingKind.ONE_PUBLISHER, "only one publisher"),
    ]
    findings = book.note(seen, now, 1_754.0)
    html = shown(replace(EMPTY, findings=findings))
    text = Page(html).text
    assert text.index("Not ready:") < text.index("Worth a look:") < text.index("Chain")
    assert (
        "blocks cannot be written: <no> space | since 2023-11-14 22:00:46 UTC (12 min) | Make room, or mend"
    ) in text
    assert "only one publisher | since 2023-11-14 22:13:20 UTC (0.0 ms)" in text
    assert '<a href="/operations#the-disk-is-slow-or-full">The disk is slow or full</a>' in html
    assert '<a href="/operations#publishers-are-missing">Publishers are missing</a>' in html


def test_a_note_alone_leaves_the_node_ready() -> None:
    findings = FindingBook().note(
        [(FindingKind.NO_PUBLISHERS, "no publisher is connected")], 1_700_000_000.0, 0.0
    )
    text = Page(shown(replace(EMPTY, findings=findings))).text
    assert "Ready: no problem is known. | Worth a look: | no publisher is connected" in text


def test_a_busy_node_shows_its_head_race_publishers_readers_and_peers() -> None:
    page = Page(shown(BUSY))
    for words in (
        "last block | 1200 | acknowledged | 1.2 s ago | root hash | " + "ab" * 48 + " | first block | 0",
        "block 1199 | block 1200 | alice | 1 | bob | 1 | winners of the last 2 blocks",
        "winners of the last 2 blocks; from header to acknowledgement, median 5.1 ms",
        "alice | sends block 1201 | 3.0 MiB in flight",
        "data-streamer clients | 12 | the slowest is behind by | 2.0 KiB",
        "subscribers | 3 | the slowest is behind by | 1 block",
        "may be followed | 192.0.2.7:40840 | followed now | 192.0.2.7:40840 | behind by | 4 blocks",
        "blocks | 2.0 /s",
        "disk free | 931.3 GiB",
        "gRPC | 127.0.0.1:40840",
    ):
        assert words in page.text
    assert page.titles == ["block 1199: alice, 4.2 ms", "block 1200: bob, 5.1 ms"]


def test_a_node_that_waits_for_standbys_shows_what_they_have() -> None:
    states = (("b:1", "has block 7"), ("<c>:1", "does not report: gone"))
    text = Page(shown(replace(BUSY, quorum=QuorumState(1, states), awaiting_standbys=4))).text
    assert (
        "acknowledged when on | 1 of these as well | b:1 | has block 7 | <c>:1 | does not report: gone | "
        "not acknowledged yet | 4 blocks"
    ) in text
    assert "acknowledged when on" not in Page(shown(BUSY)).text


def test_a_node_of_an_election_shows_who_has_the_term() -> None:
    rules = ElectionRules(3, 1)
    election = Election(rules, "a:1", "A", Promise("disk"))
    nodes = {"a:1": "disk", "b:1": "other"}
    election.looked(Seen(ClusterRecord(4, 3, 1, nodes), Holder(4, "<b>:1", "B")), 100)
    text = Page(shown(replace(BUSY, election=election.state(101, None)))).text
    assert "election | this node has no term; the term has <b>:1, epoch 4" in text
    election.looked(Seen(ClusterRecord(4, 3, 1, nodes), None), 102)
    text = Page(shown(replace(BUSY, election=election.state(103, None)))).text
    assert "election | this node has no term; the term has nobody" in text
    assert "election" not in Page(shown(BUSY)).text


def test_problems_come_first_and_in_words() -> None:
    texts = ("the disk is full", "the node is stopping")
    page = Page(shown(replace(BUSY, findings=tuple(map(problem, texts)))))
    assert page.text.startswith("Sluice: 2 problems | Sluice")
    assert page.text.index("Not ready:") < page.text.index(texts[0]) < page.text.index(texts[1])
    assert page.text.index(texts[1]) < page.text.index("Chain")
    assert "no problem is known" not in page.text


def test_names_of_peers_are_never_markup() -> None:
    evil = '"><script>alert(1)</script><i title="'
    report = replace(
        BUSY,
        race=(Won(1, evil, 0.1),),
        winners=((evil, 1),),
        publishers=(PublisherStatus(evil, evil),),
        peers=(evil,),
        followed=evil,
        findings=(problem(evil),),
    )
    html = shown(report, [Event(1.0, EventTopic.BLOCK, evil, True)])
    page = Page(html)
    assert "script" not in page.tags
    assert page.titles == [f"block 1: {evil}, 100.0 ms"]
    assert page.text.count(evil) == 7


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.0004, "0.4 ms"), (1.0, "1.0 s"), (119.0, "119.0 s"), (120.0, "2 min"), (7200.0, "2 h 0 min")],
)
def test_ages_are_in_words(seconds: float, words: str) -> None:
    assert f"{words} ago" in Page(shown(replace(BUSY, last_block_age_seconds=seconds))).text


def test_the_page_asks_nothing_of_anybody_else() -> None:
    html = shown(BUSY)
    for mark in ("<script", "src=", "@import", "url(", "style=", 'href="http'):
        assert mark not in html
    assert html.count("href=") == html.count('href="/') > 3
    assert f'<meta http-equiv=refresh content="{REFRESH_SECONDS}">' in html


def test_the_charts_show_the_hour_or_the_day() -> None:
    history = History()
    for at in range(0, 400, 5):
        history.note(1_700_000_000.0 + at, {"blocks": float(at >= 395)})
    hour = render(BUSY, charts(history.hour))
    assert 'The last hour · <a href="/?over=day">the last day</a>' in hour
    assert "blocks | 1.0 /s" in Page(hour).text
    day = render(BUSY, charts(history.day), over="day")
    assert '<a href="/">The last hour</a> · the last day' in day
    assert "blocks | 0 /s" in Page(day).text
    assert render(BUSY, charts(history.hour), over="<b>") == hour


def test_a_reader_may_hold_the_page_still() -> None:
    """A reload takes the keyboard's place, and marked text, away."""
    for over, live, held, other in (
        ("hour", "/", "/?hold=on", "/?over=day&amp;hold=on"),
        ("day", "/?over=day", "/?over=day&amp;hold=on", "/?hold=on"),
    ):
        assert f'<a href="{held}">hold still</a>' in render(BUSY, "", over=over)
        still = render(BUSY, "", over=over, is_held=True)
        assert "http-equiv=refresh" not in still
        assert f'held still · <a href="{live}">go on</a>' in still
        assert f'<a href="{other}">' in still


def test_peers_are_links_where_their_page_is_known() -> None:
    peers = ("192.0.2.7:40840", "192.0.2.8:40840")
    html = render(replace(BUSY, peers=peers), "", pages={"192.0.2.7:40840": "http://192.0.2.7:16007/"})
    assert '<td><a href="http://192.0.2.7:16007/">192.0.2.7:40840</a>, 192.0.2.8:40840</td>' in html
    assert '<a href="/cluster">' in html
    assert "/cluster" not in shown(EMPTY)


def test_ten_publishers_have_ten_colours_in_ribbon_and_legend() -> None:
    names = [f"publisher-{number}" for number in range(10)]
    race = tuple(Won(number, name, 0.1) for number, name in enumerate(names))
    html = shown(replace(BUSY, race=race, winners=tuple((name, 1) for name in names)))
    ribbon, legend = html.partition("<ul class=legend>")[::2]
    looks = re.findall(r'<i class="(c\d+ m0)"></i><span>([^<]+)</span>', legend)
    assert [name for _, name in looks] == names
    assert len({look for look, _ in looks}) == 10
    assert re.findall(r'<i class="([^"]+)" title="block \d: ([^,]+),', ribbon) == looks
    assert all(f".{word}{{" in html for look, _ in looks for word in look.split() if word != "m0")


def test_a_publisher_keeps_its_colour_whoever_comes_and_goes() -> None:
    colours, names = Colours(), [f"publisher-{number}" for number in range(30)]
    first = colours.of(names[20:])
    assert colours.of(names) == colours.of(names[:20]) | first
    assert len(set(colours.of(names).values())) == 30
    assert Colours().of(reversed(names[20:])) == first  # on another node, and after a restart
    alone = Colours().of(names[:1])
    assert Colours().of(names[1:1] + names[:1]) == alone


def test_names_without_end_take_no_memory_and_no_colour_of_those_that_stay() -> None:
    colours = Colours()
    alice = colours.of(["alice"])["alice"]
    for number in range(1_000):
        assert colours.of(["alice", f"stranger-{number}"])["alice"] == alice
    assert len(colours._places) <= 49
    many = colours.of(f"publisher-{number}" for number in range(100))
    assert len(set(many.values())) == 48


def test_events_have_times_kinds_and_counts() -> None:
    events = [
        Event(1_700_000_000.0, EventTopic.BLOCK, "block refused  publisher=<b>", True, 12),
        Event(1_699_999_999.0, EventTopic.ROLE, "the node is active  last_block=7", False),
    ]
    html = shown(BUSY, events)
    assert (
        "2023-11-14 22:13:20 | block | block refused  publisher=<b> | × 12 | "
        "2023-11-14 22:13:19 | role | the node is active  last_block=7"
    ) in Page(html).text
    assert "None since the node started." in Page(shown(BUSY)).text


def test_only_the_newest_events_are_in_the_middle_of_the_page() -> None:
    events = [Event(1_700_000_000.0 - at, EventTopic.BLOCK, f"event {at}", True) for at in range(40)]
    html = shown(BUSY, events)
    assert '<a href="/?hold=on#older">28 older</a>' in html
    newest, older = html.split("<section id=older>")
    assert "event 11<" in newest
    assert "event 12<" not in newest
    assert "event 12<" in older
    assert "event 39<" in older
    assert "older" not in Page(shown(BUSY, events[:12])).text


def luminance(colour: str) -> float:
    digits = colour if len(colour) == 6 else "".join(digit * 2 for digit in colour)
    parts = (int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4))
    red, green, blue = (
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_all_text_can_be_read_on_light_and_dark() -> None:
    """WCAG AA: 4.5 to 1."""
    light, dark = re.findall(r":root\{([^}]*)\}", shown(BUSY))
    for theme in (light, dark):
        colours = {name: luminance(colour) for name, colour in re.findall(r"--(\w+):#(\w+)", theme)}
        for text, backs in (
            ("text", ("back", "card", "ok", "bad", "note")),
            ("link", ("back", "card", "note", "bad")),
            ("quiet", ("back", "card")),
            ("l0", ("back", "card")),
            ("l1", ("back", "card")),
            ("l2", ("back", "card")),
        ):
            for back in backs:
                low, high = sorted((colours[text], colours[back]))
                assert (high + 0.05) / (low + 0.05) >= 4.5, (text, back)


def test_the_keys_of_status_json_are_a_promise() -> None:
    waiting = replace(BUSY, quorum=QuorumState(1, (("b:1", "has block 7"),)), findings=(problem("full"),))
    facts = json.loads(json.dumps(waiting.as_json()))
    assert list(facts) == [
        *("version", "phase", "verification_mode", "addresses", "problems", "findings", "now_unix_seconds"),
        *("first_block", "last_block", "last_root_hash", "last_block_age_seconds"),
        *("race", "winners", "median_seconds", "publishers", "inflight_bytes"),
        *("tcp_clients", "tcp_slowest_bytes", "subscribers", "subscriber_lag_blocks"),
        *("peers", "followed", "distance_blocks", "min_standbys", "standbys", "awaiting_standbys"),
    ]
    assert facts["race"][1] == {"number": 1200, "publisher": "bob", "seconds": 0.0051}
    assert (facts["problems"], facts["min_standbys"]) == (["full"], 1)
    assert facts["standbys"] == [["b:1", "has block 7"]]
