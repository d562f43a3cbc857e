"""Tests of `status.status_page`: an operator's view; no name of a peer becomes markup."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from sluice.gateway.pipeline.acknowledging import Won
from sluice.gateway.pipeline.replication_quorum import QuorumState
from sluice.gateway.status import status_page
from sluice.gateway.status.findings import ADVICE, FindingBook, FindingKind, slug
from sluice.gateway.status.node_report import Finding, NodeReport, PublisherStatus
from sluice.gateway.status.status_page import render, render_operations

OPERATIONS = Path(__file__).resolve().parents[3] / "docs" / "operations.md"
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
    text = Page(render(EMPTY)).text
    assert text.startswith(
        "Sluice: no block yet | Sluice | active node, version 0.1.0, verification full | Ready"
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
    html = render(replace(EMPTY, findings=findings))
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
    text = Page(render(replace(EMPTY, findings=findings))).text
    assert "Ready: no problem is known. | Worth a look: | no publisher is connected" in text


def test_a_busy_node_shows_its_head_race_publishers_readers_and_peers() -> None:
    page = Page(render(BUSY))
    for words in (
        "last block | 1200 | acknowledged | 1.2 s ago | root hash | " + "ab" * 48 + " | first block | 0",
        "winner of the last 2 blocks | blocks | alice | 1 | bob | 1",
        "from header to acknowledgement, median 5.1 ms",
        "alice | sends block 1201 | 3.0 MiB in flight",
        "data-streamer clients | 12 | the slowest is behind by | 2.0 KiB",
        "subscribers | 3 | the slowest is behind by | 1 blocks",
        "may be followed | 192.0.2.7:40840 | followed now | 192.0.2.7:40840 | behind by | 4 blocks",
        "gRPC | 127.0.0.1:40840",
    ):
        assert words in page.text
    assert page.titles == ["block 1199: alice, 4.2 ms", "block 1200: bob, 5.1 ms"]


def test_a_node_that_waits_for_standbys_shows_what_they_have() -> None:
    states = (("b:1", "has block 7"), ("<c>:1", "does not report: gone"))
    text = Page(render(replace(BUSY, quorum=QuorumState(1, states), awaiting_standbys=4))).text
    assert (
        "acknowledged when on | 1 of these as well | b:1 | has block 7 | <c>:1 | does not report: gone | "
        "not acknowledged yet | 4 blocks"
    ) in text
    assert "acknowledged when on" not in Page(render(BUSY)).text


def test_problems_come_first_and_in_words() -> None:
    texts = ("the disk is full", "the node is stopping")
    page = Page(render(replace(BUSY, findings=tuple(map(problem, texts)))))
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
    html = render(report)
    page = Page(html)
    assert "script" not in page.tags
    assert page.titles == [f"block 1: {evil}, 100.0 ms"]
    assert page.text.count(evil) == 6


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.0004, "0.4 ms"), (1.0, "1.0 s"), (119.0, "119.0 s"), (120.0, "2 min"), (7200.0, "2 h 0 min")],
)
def test_ages_are_in_words(seconds: float, words: str) -> None:
    assert f"{words} ago" in Page(render(replace(BUSY, last_block_age_seconds=seconds))).text


def test_the_page_asks_nothing_of_anybody_else() -> None:
    html = render(BUSY)
    for mark in ("<script", "src=", "href=", "@import", "url("):
        assert mark not in html


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


def test_the_page_about_operations_is_its_text_with_anchors() -> None:
    page = render_operations('# Title\n\nSome <b>text</b> & "more".\n\n## A <part>\n\n### no anchor\n')
    assert (
        '<pre><a id="title"></a># Title\n\nSome &lt;b&gt;text&lt;/b&gt; &amp; "more".\n\n'
        '<a id="a-part"></a>## A &lt;part&gt;\n\n### no anchor\n</pre>'
    ) in page
    assert Page(page).text.startswith("Sluice: operations | status |")


def test_every_link_inside_the_page_about_operations_leads_to_an_anchor() -> None:
    text = OPERATIONS.read_text("utf-8")
    page = render_operations(text)
    assert "".join(Page(page).words[2:]).count("\n") > 100
    anchors = set(re.findall(r'<a id="([^"]+)"', page))
    links = set(re.findall(r"\(#([a-z-]+)\)", text))
    assert links
    assert links <= anchors
    assert {slug(advice.section) for advice in ADVICE.values()} <= anchors


def test_the_page_about_operations_comes_with_the_code() -> None:
    shipped = Path(status_page.__file__).with_name("operations.md")
    assert shipped.read_text("utf-8") == OPERATIONS.read_text("utf-8")
