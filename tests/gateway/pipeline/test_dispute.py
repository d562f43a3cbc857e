"""The dispute: what one liar can do, and what two sources that agree prove."""

from __future__ import annotations

import pytest

from sluice.gateway.pipeline.dispute import SETTLE_NS, SOURCES_KEPT, SOURCES_MIN, Dispute, Source, source_of

OURS, THEIRS, LIE = b"\x01" * 48, b"\x02" * 48, b"\x03" * 48
ALICE, BOB, PEER = (
    source_of("alice", "192.0.2.1"),
    source_of("bob", "192.0.2.2"),
    source_of("peer 192.0.2.9:40840", "", is_peer=True),
)


def disputed(*claims: tuple[Source, bytes], is_signed: bool | None = False) -> Dispute:
    """Make a dispute over block 2, with all claims at once."""
    dispute = Dispute()
    for source, root in claims:
        dispute.claim(2, OURS, source, root, 0)
    if is_signed is not None:
        dispute.judge(2, is_signed=is_signed)
    return dispute


@pytest.mark.parametrize("other", [BOB, PEER])
def test_two_sources_that_agree_make_a_dead_end(other: Source) -> None:
    dispute = disputed((ALICE, THEIRS), (other, THEIRS))
    assert dispute.state(2, SETTLE_NS - 1) is None
    found = dispute.state(2, SETTLE_NS)
    assert found is not None
    assert found.is_dead_end
    assert (found.number, found.own_root, found.named_root) == (2, OURS, THEIRS)
    assert found.sources == ("alice", other.name)
    assert found.text == (
        "the chain cannot go on from block 2 as it is stored here: it has root hash 0101010101010101…, which "
        "no checked signature covers, and block 3 of others names 0202020202020202… as "
        f"previous_block_root_hash (2 sources agree: alice, {other.name})"
    )


def test_one_source_is_a_doubt_however_long_and_often_it_says_so() -> None:
    dispute = disputed((ALICE, THEIRS))
    for second in range(100):
        dispute.claim(2, OURS, ALICE, THEIRS, second * SETTLE_NS)
    found = dispute.state(2, 100 * SETTLE_NS)
    assert found is not None
    assert not found.is_dead_end
    assert found.text.startswith("somebody disputes block 2 as it is stored here")
    assert found.text.endswith("(1 source: alice)")


@pytest.mark.parametrize(
    ("first", "second", "are_one"),
    [
        (source_of("a", "192.0.2.1"), source_of("b", "192.0.2.1"), True),
        (source_of("a", "192.0.2.1"), source_of("b", "::ffff:192.0.2.1"), True),
        (source_of("a", "192.0.2.1"), source_of("a", "192.0.2.2"), False),
        (source_of("a", "2001:db8::1"), source_of("b", "2001:db8::2"), True),
        (source_of("a", "2001:db8::1"), source_of("b", "2001:db8:0:1::1"), False),
        (source_of("a", "fe80::1%eth0"), source_of("b", "fe80::2%eth0"), True),
        (source_of("a", "unix:/run/x"), source_of("b", "unix:/run/x"), True),
        (
            source_of("CN=a", "192.0.2.1", has_certificate=True),
            source_of("CN=b", "192.0.2.1", has_certificate=True),
            False,
        ),
        (
            source_of("CN=a", "192.0.2.1", has_certificate=True),
            source_of("CN=a", "192.0.2.2", has_certificate=True),
            True,
        ),
        # A publisher that takes the name of a peer or of a certificate counts by its address.
        (source_of(PEER.name, "192.0.2.1"), source_of("b", "192.0.2.1"), True),
        (source_of(PEER.name, "192.0.2.1"), PEER, False),
    ],
)
def test_one_liar_under_many_names_is_one_source(first: Source, second: Source, are_one: bool) -> None:
    found = disputed((first, LIE), (second, LIE)).state(2, SETTLE_NS)
    assert found is not None
    assert found.is_dead_end is not are_one


def test_a_block_that_links_to_ours_ends_it() -> None:
    """So two liars that agree do no harm while an honest publisher brings blocks."""
    dispute = disputed((ALICE, LIE), (BOB, LIE))
    assert dispute.state(3, SETTLE_NS) is None
    dispute.claim(3, THEIRS, ALICE, LIE, SETTLE_NS)
    assert dispute.is_signed(3) is None
    dispute.judge(3, is_signed=False)
    found = dispute.state(3, 2 * SETTLE_NS)
    assert found is not None
    assert not found.is_dead_end  # bob's claim was about block 2


def test_sources_that_agree_have_to_agree_for_long_enough() -> None:
    dispute = disputed((ALICE, THEIRS))
    dispute.claim(2, OURS, BOB, THEIRS, 5 * SETTLE_NS)
    found = dispute.state(2, 6 * SETTLE_NS - 1)
    assert found is not None
    assert not found.is_dead_end
    dead_end = dispute.state(2, 6 * SETTLE_NS)
    assert dead_end is not None
    assert dead_end.is_dead_end


def test_who_says_something_else_does_not_agree() -> None:
    found = disputed((ALICE, THEIRS), (BOB, LIE)).state(2, SETTLE_NS)
    assert found is not None
    assert not found.is_dead_end
    assert found.named_root == THEIRS  # the first
    dispute = disputed((BOB, LIE), (ALICE, THEIRS), (PEER, THEIRS))
    dispute.claim(2, OURS, ALICE, LIE, SETTLE_NS)  # one claim each: alice agrees with bob only now
    found = dispute.state(2, SETTLE_NS)
    assert found is not None
    assert not found.is_dead_end


@pytest.mark.parametrize("is_signed", [True, None])
def test_a_signed_block_is_not_disputed(is_signed: bool | None) -> None:
    dispute = disputed((ALICE, LIE), (BOB, LIE), is_signed=is_signed)
    assert dispute.state(2, 10 * SETTLE_NS) is None
    assert dispute.is_signed(2) is is_signed
    dispute.judge(1, is_signed=False)  # of another block: too late
    assert dispute.state(2, 10 * SETTLE_NS) is None


def test_what_is_remembered_is_bounded_and_those_who_agree_stay() -> None:
    dispute = disputed((ALICE, THEIRS), (BOB, THEIRS))
    for count in range(10 * SOURCES_KEPT):
        liar = source_of("liar", f"198.51.{count // 250}.{count % 250}")
        dispute.claim(2, OURS, liar, count.to_bytes(48, "big"), 1 + count)
        assert len(dispute._claims) <= SOURCES_KEPT
    found = dispute.state(2, SETTLE_NS)
    assert found is not None
    assert found.is_dead_end
    assert len(found.sources) == SOURCES_MIN


def test_not_all_of_many_names_are_shown() -> None:
    found = disputed(*((source_of(f"p{count}", f"192.0.2.{count}"), THEIRS) for count in range(8))).state(
        2, SETTLE_NS
    )
    assert found is not None
    assert found.text.endswith("(8 sources agree: p0, p1, p2, p3, p4 and 3 more)")
