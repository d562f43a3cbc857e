"""Which gateways, and how."""

from __future__ import annotations

import pytest

from sluice.gateway.settings.kinds import Size
from sluice.gateway.settings.table import SETTINGS
from sluice.gateway.transport.channels import ClientTls
from sluice.publishers.errors import OptionError
from sluice.publishers.limits import MESSAGE_BYTES_MAX, MESSAGE_OPTION_MAX, MESSAGE_OPTION_MIN
from sluice.publishers.spark.gateway_options import (
    gateway_tls,
    gateways_of,
    message_bytes_of,
    rotated,
    tls_gateway_options,
)


def test_the_order_given_is_the_order_of_preference() -> None:
    gateways = gateways_of({"gateways": "b:2, a:1 ,[::1]:3,b:2"})
    assert gateways == (("b:2", 0), ("a:1", 1), ("[::1]:3", 2))
    assert rotated(gateways, 0) == rotated(gateways, 5) == ("b:2", "a:1", "[::1]:3")


def test_those_of_one_priority_take_turns() -> None:
    gateways = gateways_of({"gateways": "z:1/9,a:1/1,b:1/1,c:1/1"})
    assert rotated(gateways, 0) == ("a:1", "b:1", "c:1", "z:1")
    assert rotated(gateways, 1) == ("b:1", "c:1", "a:1", "z:1")
    assert rotated(gateways, 5) == ("c:1", "a:1", "b:1", "z:1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "option 'gateways': got nothing, expected host:port, or several with commas between"),
        ("a:1/x", "option 'gateways': got 'a:1/x', expected host:port/priority, such as 127.0.0.1:40840/1"),
        (
            f"a:1/{'9' * 5000}",
            (
                f"option 'gateways': got 'a:1/{'9' * 5000}', expected host:port/priority, such as "
                "127.0.0.1:40840/1"
            ),
        ),
        ("a:1/", "option 'gateways': got 'a:1/', expected host:port/priority, such as 127.0.0.1:40840/1"),
    ],
)
def test_other_lists_are_refused(text: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        gateways_of({"gateways": text})
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("options", "tls"),
    [
        ({}, None),
        ({"tls": "false"}, None),
        ({"tls": "true"}, ClientTls()),
        ({"tls_ca": "ca.pem"}, ClientTls("ca.pem")),
        (
            {"tls_ca": "ca.pem", "tls_certificate": "c.pem", "tls_key": "k.pem", "tls_server_name": "gate"},
            ClientTls("ca.pem", "c.pem", "k.pem", "gate"),
        ),
    ],
)
def test_tls(options: dict[str, str], tls: ClientTls | None) -> None:
    assert gateway_tls(options) == tls


@pytest.mark.parametrize("tls", [None, ClientTls(), ClientTls("ca.pem", "c.pem", "k.pem", "gate")])
def test_tls_as_options_is_read_back(tls: ClientTls | None) -> None:
    assert gateway_tls(tls_gateway_options(tls)) == tls


def test_a_certificate_needs_its_key() -> None:
    with pytest.raises(OptionError) as caught:
        gateway_tls({"tls_certificate": "c.pem"})
    assert str(caught.value) == (
        "option 'tls_certificate, tls_key': got a certificate without a key, expected both, or neither"
    )


def test_the_longest_message() -> None:
    assert message_bytes_of({}) == MESSAGE_BYTES_MAX
    for size_bytes in (MESSAGE_OPTION_MIN, MESSAGE_OPTION_MAX):
        assert message_bytes_of({"max_message_bytes": str(size_bytes)}) == size_bytes
    for wrong in (MESSAGE_OPTION_MIN - 1, MESSAGE_OPTION_MAX + 1):
        with pytest.raises(OptionError) as caught:
            message_bytes_of({"max_message_bytes": str(wrong)})
        assert str(caught.value) == f"option 'max_message_bytes': got {wrong}, expected 65536 to 1073741824"


def test_the_option_takes_what_the_setting_of_a_node_takes() -> None:
    (setting,) = (one for one in SETTINGS if one.name == "grpc.max_message_bytes")
    assert isinstance(setting.kind, Size)
    assert (setting.kind.least, setting.kind.most) == (MESSAGE_OPTION_MIN, MESSAGE_OPTION_MAX)
    assert setting.default == MESSAGE_BYTES_MAX
