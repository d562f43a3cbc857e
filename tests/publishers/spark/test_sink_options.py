"""The options of the sink."""

from __future__ import annotations

import pytest

from sluice.publishers import limits
from sluice.publishers.client.racing import Racer
from sluice.publishers.errors import OptionError
from sluice.publishers.protocol.machine import SECOND_NS
from sluice.publishers.spark.sink_options import CACHE_BYTES_MAX, PUBLISHER_ID_CHARS_MAX, SinkOptions


def test_the_defaults() -> None:
    options = SinkOptions.parse({"gateways": "a:1, [::1]:2"})
    assert options == SinkOptions(
        gateways=(("a:1", 0), ("[::1]:2", 1)),
        tls=None,
        message_bytes=limits.MESSAGE_BYTES_MAX,
        publisher_id="spark",
        race=1,
        is_checked=True,
        deadline_seconds=None,
        reset_interval_seconds=None,
        part_order_seconds=limits.PART_ORDER_SECONDS_DEFAULT,
        answer_seconds=limits.ANSWER_TIMEOUT_SECONDS_DEFAULT,
        set_bytes=limits.ITEM_SET_BYTES_DEFAULT,
        cache_bytes=limits.CACHE_BYTES_DEFAULT,
        window_blocks=limits.WINDOW_BLOCKS_DEFAULT,
        blocks_per_second=None,
        first_block=None,
        report_path=None,
        coordinator=None,
    )
    machine = options.client_options().machine
    assert (machine.deadline_ns, machine.reset_interval_ns) == (None, None)


def test_options_reach_the_client_and_what_is_held_together_is_within_the_cache() -> None:
    options = SinkOptions.parse(
        {
            "gateways": "a:1",
            "deadline_seconds": "2.5",
            "reset_interval_seconds": "0.5",
            "answer_seconds": "4",
            "set_bytes": "1000",
            "cache_bytes": "4000",
            "window_blocks": "7",
            "tls_ca": "ca.pem",
        }
    )
    client = options.client_options()
    assert client.set_bytes_max == 1000
    assert client.tls is not None
    machine = client.machine
    assert (machine.window_blocks_max, machine.answer_timeout_ns) == (7, 4 * SECOND_NS)
    assert (machine.deadline_ns, machine.reset_interval_ns) == (5 * SECOND_NS // 2, SECOND_NS // 2)
    assert machine.cache_bytes_max + 2 * options.prepared_bytes == 4000


def test_racers_begin_with_different_gateways_of_one_priority() -> None:
    options = SinkOptions.parse({"gateways": "a:1/1,b:1/1", "race": "3"})
    assert options.racers("spark-4") == [
        Racer("spark-4.1", ("a:1", "b:1")),
        Racer("spark-4.2", ("b:1", "a:1")),
        Racer("spark-4.3", ("a:1", "b:1")),
    ]
    assert SinkOptions.parse({"gateways": "a:1"}).racers("x") == [Racer("x", ("a:1",))]


def test_a_former_name_is_taken_with_a_warning() -> None:
    with pytest.warns(FutureWarning, match="option 'turn_seconds' is now 'part_order_seconds'"):
        options = SinkOptions.parse({"gateways": "a:1", "turn_seconds": "5"})
    assert options == SinkOptions.parse({"gateways": "a:1", "part_order_seconds": "5"})
    both = {"gateways": "a:1", "turn_seconds": "5", "part_order_seconds": "5"}
    with pytest.raises(OptionError) as caught:
        SinkOptions.parse(both)
    assert (
        str(caught.value) == "option 'part_order_seconds': got turn_seconds as well, expected one of the two"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "option 'gateways': got nothing, expected host:port, or several with commas between"),
        (
            {"gateways": "a:1,b"},
            (
                "option 'gateways': got 'b', expected host:port, "
                "such as 127.0.0.1:40840, [::1]:40840 or node-a:40840"
            ),
        ),
        (
            {"gateways": "a:1", "window_blocks": str(limits.OFFERS_MAX + 1)},
            "option 'window_blocks': got 513, expected 1 to 512",
        ),
        (
            {"gateways": "a:1", "deadline_seconds": "0"},
            "option 'deadline_seconds': got '0', expected seconds above 0",
        ),
        (
            {"gateways": "a:1", "reset_interval_seconds": "-1"},
            "option 'reset_interval_seconds': got '-1', expected seconds above 0",
        ),
        (
            {"gateways": "a:1", "cache_bytes": str(CACHE_BYTES_MAX + 1)},
            "option 'cache_bytes': got 1099511627777, expected 1 to 1099511627776",
        ),
        ({"gateways": "a:1", "race": str(limits.RACE_MAX + 1)}, "option 'race': got 17, expected 1 to 16"),
        (
            {"gateways": "a:1", "publisher_id": "a\nb"},
            r"option 'publisher_id': got 'a\nb', expected printable ASCII characters",
        ),
        (
            {"gateways": "a:1", "publisher_id": "x" * (PUBLISHER_ID_CHARS_MAX + 1)},
            "option 'publisher_id': got 129 characters, expected 128 characters at most",
        ),
        ({"gateways": "a:1", "check": "no"}, "option 'check': got 'no', expected one of true, false"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        SinkOptions.parse(options)
    assert str(caught.value) == message


def test_the_highest_numbers_are_taken() -> None:
    options = SinkOptions.parse(
        {
            "gateways": "a:1",
            "race": str(limits.RACE_MAX),
            "cache_bytes": str(CACHE_BYTES_MAX),
            "window_blocks": str(limits.OFFERS_MAX),
            "set_bytes": str(limits.ITEM_BYTES_MAX),
        }
    )
    assert len(options.racers("x")) == limits.RACE_MAX
