"""Tests of `gateway.status.events`: the page says what the log says."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from sluice import gateway
from sluice.gateway.logs import caused_by, fields
from sluice.gateway.status.events import EVENTS, EVENTS_KEPT, EventRing, EventTopic
from tests.gateway.status.test_status_page import Page
from tests.nodes import make_blocks, running_node, wire_to

log = logging.getLogger("sluice.gateway.test_events")


@pytest.fixture
def ring(caplog: pytest.LogCaptureFixture) -> Iterator[EventRing]:
    caplog.set_level(logging.INFO)
    found, logger = EventRing(), logging.getLogger("sluice")
    logger.addHandler(found)
    yield found
    logger.removeHandler(found)


def test_every_event_is_a_line_that_the_code_logs() -> None:
    source = "".join(
        path.read_text("utf-8")
        for path in Path(gateway.__file__).parent.rglob("*.py")
        if path.name != "events.py"
    )
    ours = {message: message.removesuffix(", it ends soon") for message in EVENTS}
    assert [message for message, found in ours.items() if f'"{found}"' not in source] == []


def test_events_have_the_words_of_the_log_and_the_newest_is_first(ring: EventRing) -> None:
    log.info("the node is active", extra=fields(last_block=7))
    log.info("publisher connected", extra=fields(publisher="alice"))
    log.warning("block refused", extra=caused_by("", block=8, publisher="bob", kind="bad proof"))
    refused, active = ring.events()
    assert (refused.text, refused.kind, refused.is_trouble) == (
        'block refused  block=8 publisher=bob kind="bad proof"',
        EventTopic.BLOCK,
        True,
    )
    assert (active.text, active.kind, active.is_trouble) == (
        "the node is active  last_block=7",
        EventTopic.ROLE,
        False,
    )
    assert refused.unix_seconds >= active.unix_seconds > 1e9


async def test_a_node_shows_its_start_and_what_it_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    blocks, strange = make_blocks(1), make_blocks(1, seed=8)
    async with running_node(tmp_path) as node, wire_to(node) as wire:
        mallory = await wire.publisher("<b>mallory</b>")
        await mallory.items(*strange[0].items[:-1], blocks[0].items[-1])
        await mallory.end(0)
        assert (await mallory.answer()).startswith("end BAD_BLOCK_PROOF")
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://{node.http_address}/") as answer,
        ):
            text = Page(await answer.text()).text
    assert "| role | node started grpc=" in " ".join(text.split())
    assert "| block | block refused block=0 publisher=claimed:<b>mallory</b> " in " ".join(text.split())
    assert logging.getLogger("sluice").handlers == []


def test_a_stream_that_ended_as_it_should_is_no_event(ring: EventRing) -> None:
    log.info("stream ended", extra=fields(publisher="alice", status="SUCCESS"))
    assert ring.events() == []
    log.warning("stream ended", extra=fields(publisher="alice", status="TIMEOUT"))
    assert [event.text for event in ring.events()] == ["stream ended  publisher=alice status=TIMEOUT"]


def test_the_same_again_and_again_is_one_event_with_a_count(ring: EventRing) -> None:
    for number in range(9):
        log.warning("block refused", extra=fields(block=number, publisher="bob"))
    log.warning("block refused", extra=fields(block=9, publisher="carol"))
    assert [(event.text, event.count) for event in ring.events()] == [
        ("block refused  block=9 publisher=carol", 1),
        ("block refused  block=8 publisher=bob", 9),
    ]


def test_publishers_that_fail_in_turn_are_an_event_each(ring: EventRing) -> None:
    for number in range(40):
        log.warning("stream ended", extra=fields(publisher=f"p{number % 4}", status="PERSISTENCE_FAILED"))
    assert [event.count for event in ring.events()] == [10, 10, 10, 10]
    assert "publisher=p3" in ring.events()[0].text


def test_a_standby_that_comes_back_is_another_event_than_its_leaving(ring: EventRing) -> None:
    for peer in ("b:1", "c:1"):
        log.warning("standby", extra=fields(peer=peer, what="does not report: gone"))
    for peer in ("b:1", "c:1"):
        log.info("standby", extra=fields(peer=peer, what="reports block 7"))
    assert [event.is_trouble for event in ring.events()] == [False, False, True, True]


def test_each_step_of_a_failover_is_an_event(ring: EventRing) -> None:
    for change in ("drain", "stand by"):
        log.info("asked to change", extra=fields(change=change, peer="ipv4:127.0.0.1:5000"))
    for _ in range(20):
        log.warning("control call refused", extra=fields(peer="ipv4:192.0.2.1:5000"))
    assert [event.count for event in ring.events()] == [20, 1, 1]


def test_who_causes_many_events_of_one_kind_takes_no_other_away(ring: EventRing) -> None:
    log.info("the node is a standby", extra=fields(followed="b:1"))
    for number in range(1_000):
        log.warning("connection refused", extra=caused_by("", address=f"192.0.2.{number}"))
    events = ring.events()
    assert len(events) == EVENTS_KEPT + 1
    assert events[-1].text == "the node is a standby  followed=b:1"
    assert events[0].text == "connection refused  address=192.0.2.999"


def test_an_event_is_one_short_line_whoever_words_it(ring: EventRing) -> None:
    log.warning("block refused", extra=fields(publisher="a\nb\x1b[31m" + "x" * 1_000))
    (event,) = ring.events()
    assert event.text.startswith('block refused  publisher="a\\nb\\u001b[31mxxx')
    assert event.text.isprintable()
    assert len(event.text) == 400
