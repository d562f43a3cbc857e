"""Tests of `gateway.addresses`: one list of cases for reading and writing."""

from __future__ import annotations

import pytest

from sluice.gateway.addresses import Address, parse_address, parse_addresses
from sluice.gateway.errors import AddressError

EXAMPLES = "host:port, such as 127.0.0.1:40840, [::1]:40840 or node-a:40840"

GOOD = [
    ("127.0.0.1:6900", Address("127.0.0.1", 6900), True),
    ("127.8.8.8:1", Address("127.8.8.8", 1), True),
    ("[::1]:6900", Address("::1", 6900), True),
    ("localhost:0", Address("localhost", 0), True),
    ("0.0.0.0:65535", Address("0.0.0.0", 65535), False),
    ("[::]:40840", Address("::", 40840), False),
    ("[fe80::1%eth0]:40840", Address("fe80::1%eth0", 40840), False),
    ("gateway-0.example_net.org:40840", Address("gateway-0.example_net.org", 40840), False),
    ("node1:40840", Address("node1", 40840), False),
]


@pytest.mark.parametrize(("text", "address", "is_loopback"), GOOD)
def test_an_address_reads_and_writes(text: str, address: Address, is_loopback: bool) -> None:
    assert parse_address(text) == address
    assert str(address) == text
    assert address.is_loopback is is_loopback
    assert parse_address(f" {text}\n") == address


def test_an_ipv6_address_is_written_in_its_short_form() -> None:
    assert str(parse_address("[2001:DB8:0:0::0001]:5")) == "[2001:db8::1]:5"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", EXAMPLES),
        ("6900", EXAMPLES),
        ("localhost", EXAMPLES),
        (":6900", EXAMPLES),
        ("http://localhost:6900", EXAMPLES),
        ("local host:6900", EXAMPLES),
        ("-x:6900", EXAMPLES),
        ("::1:6900", f"an IPv6 host in brackets: {EXAMPLES}"),
        ("[::1", f"an IPv6 host in brackets: {EXAMPLES}"),
        ("[::1]", f"an IPv6 host in brackets: {EXAMPLES}"),
        ("[::g]:6900", f"an IPv6 address in the brackets: {EXAMPLES}"),
        ("[127.0.0.1]:6900", f"an IPv6 address in the brackets: {EXAMPLES}"),
        ("localhost:", f"a port from 0 to 65535: {EXAMPLES}"),
        ("localhost:65536", f"a port from 0 to 65535: {EXAMPLES}"),
        ("localhost:-1", f"a port from 0 to 65535: {EXAMPLES}"),
        ("localhost:٣", f"a port from 0 to 65535: {EXAMPLES}"),
        ("localhost:" + "9" * 5000, f"a port from 0 to 65535: {EXAMPLES}"),
    ],
)
def test_what_is_no_address_is_refused(text: str, expected: str) -> None:
    with pytest.raises(AddressError) as caught:
        parse_address(text)
    assert str(caught.value) == f"address: got {text!r}, expected {expected}"
    assert caught.value.text == text
    assert caught.value.exit_status == 2


def test_port_0_is_only_for_listening() -> None:
    assert parse_address("localhost:0").port == 0
    with pytest.raises(AddressError, match="a port from 1 to 65535"):
        parse_address("localhost:0", port_min=1)


def test_addresses_have_commas_between_them() -> None:
    assert parse_addresses("b:2, a:1,[::1]:3") == (Address("b", 2), Address("a", 1), Address("::1", 3))
    with pytest.raises(AddressError, match="got '', expected host:port"):
        parse_addresses("b:2,")
