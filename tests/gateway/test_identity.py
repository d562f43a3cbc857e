"""Tests of `gateway.identity`: names, and that no claim looks like anything else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.gateway.identity import NAME_CHARACTERS_MAX, is_vouched_for, name_of_peer, name_of_publisher

CONNECTION = "ipv4:127.0.0.1:5"
FORGED = (
    "CN=alice,O=Net",
    "URI:spiffe://net/alice",
    "peer 192.0.2.5:40840",
    "ipv4:192.0.2.1:5000",
    "claimed:N3",
    "other",
    "",
)


@pytest.mark.parametrize(
    ("subjects", "metadata", "name"),
    [
        (("CN=alice", "DNS:alice.net"), (("publisher-id", "bob"),), "CN=alice"),
        (("URI:spiffe://net/alice",), (("publisher-id", "bob"),), "URI:spiffe://net/alice"),
        (("CN=alice",), (("hiero-correlation-id", "N3-STR1"),), "CN=alice"),
        ((), (("other", "x"), ("publisher-id", "bob")), "claimed:bob"),
        ((), (("publisher-id", "bob"), ("publisher-id", "eve")), "claimed:bob"),
        ((), (("publisher-id", b"bob"),), "claimed:bob"),
        ((), (("hiero-correlation-id", "N3-STR1"),), "claimed:N3"),
        ((), (("hiero-correlation-id", "N3-STR27"), ("publisher-id", "bob")), "claimed:bob"),
        ((), (("hiero-correlation-id", "N3-STR"),), "claimed:N3-STR"),
        ((), (("hiero-correlation-id", "relay 7"),), "claimed:relay 7"),
        ((), (("hiero-correlation-id", ""),), CONNECTION),
        ((), (("publisher-id", ""),), CONNECTION),
        ((), (), CONNECTION),
    ],
)
def test_a_publisher_is_called_by_the_best_that_is_known(
    subjects: tuple[str, ...], metadata: tuple[tuple[str, str | bytes], ...], name: str
) -> None:
    assert name_of_publisher(subjects, metadata, CONNECTION) == name


@pytest.mark.parametrize(
    ("claim", "name"),
    [
        ("N3\nERROR", r"claimed:N3\nERROR"),
        ("N3\x1b[31m", r"claimed:N3\x1b[31m"),
        ("N3\u200b", r"claimed:N3\u200b"),
        ("\u202eN3", r"claimed:\u202eN3"),
        ("\u041d3", r"claimed:\u041d3"),  # a Cyrillic H
        (r"N3\n", r"claimed:N3\\n"),
        (b"\xff\xfe", r"claimed:\ufffd\ufffd"),
    ],
)
def test_a_claim_is_shown_for_what_it_is(claim: str | bytes, name: str) -> None:
    assert name_of_publisher((), (("publisher-id", claim),), CONNECTION) == name


@given(st.one_of(st.sampled_from(FORGED), st.text(max_size=600)))
def test_a_claim_is_no_other_name_whatever_it_says(claim: str) -> None:
    said = name_of_publisher((), (("publisher-id", claim),), CONNECTION)
    assert said == CONNECTION if not claim else said.startswith("claimed:")
    assert said.isascii()
    assert said.isprintable()
    assert len(said) <= NAME_CHARACTERS_MAX
    assert not is_vouched_for(said)
    assert said != name_of_peer("192.0.2.5:40840")
    assert said not in FORGED


@given(st.text(min_size=1, max_size=40), st.text(min_size=1, max_size=40))
def test_two_claims_are_two_names(one: str, other: str) -> None:
    names = {name_of_publisher((), (("publisher-id", text),), CONNECTION) for text in (one, other)}
    assert len(names) == len({one, other})


@pytest.mark.parametrize("size", [NAME_CHARACTERS_MAX, NAME_CHARACTERS_MAX + 1, 50_000])
def test_a_long_name_is_cut_and_stays_another_one(size: int) -> None:
    for as_subject in (True, False):
        names = set()
        for last in "ab":
            text = "CN=" + "x" * (size - 4) + last
            metadata = () if as_subject else (("publisher-id", text),)
            names.add(name_of_publisher((text,) if as_subject else (), metadata, CONNECTION))
        assert len(names) == 2
        assert {len(name) for name in names} == {NAME_CHARACTERS_MAX}


def test_who_vouches_for_a_name() -> None:
    assert is_vouched_for("CN=alice,O=Net")
    assert is_vouched_for("2.5.4.3=alice")
    assert is_vouched_for("URI:spiffe://net/alice")
    assert is_vouched_for(name_of_peer("192.0.2.5:40840"))
    for at_will in ("claimed:CN=alice", "ipv4:192.0.2.1:5000", "ipv6:%5B2001:db8::1%5D:5000", "unix:"):
        assert not is_vouched_for(at_will)
