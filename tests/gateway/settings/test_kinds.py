"""Tests of `gateway.settings.kinds`: reading text and TOML, refusals, and writing."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from sluice.gateway.addresses import Address
from sluice.gateway.settings.kinds import (
    GIB,
    KIB,
    MIB,
    Choice,
    Endpoint,
    File,
    FirstBlock,
    Folder,
    HostPort,
    Listed,
    Network,
    NotThisKind,
    Seconds,
    SettingKind,
    Share,
    Size,
    Subject,
    Switch,
    Text,
    WholeNumber,
    size_text,
)

NUMBER = WholeNumber(1, 10_000)
TIME = Seconds(3600)
SIZE = Size(64 * KIB, 64 * GIB)
CHOICE = Choice(("auto", 8, 16))
NAMES = Listed(Text("KIND:KEY"))
SUBJECTS = Listed(Subject(), separator=";")

READ: list[tuple[SettingKind, object, object]] = [
    (NUMBER, "64", 64),
    (NUMBER, " 64 ", 64),
    (NUMBER, "10_000", 10_000),
    (NUMBER, 1, 1),
    (TIME, "2", 2.0),
    (TIME, "2.5", 2.5),
    (TIME, ".5", 0.5),
    (TIME, 3600, 3600.0),
    (TIME, 0, 0.0),
    (Share(), ".25", 0.25),
    (Share(), 1, 1.0),
    (Share(), "0", 0.0),
    (Endpoint(), "HTTP://a.net:4317/", "http://a.net:4317"),
    (Endpoint(), " https://[::1]:1 ", "https://[::1]:1"),
    (Endpoint(), "127.0.0.1:4317", "http://127.0.0.1:4317"),
    (SIZE, "8MiB", 8 * MIB),
    (SIZE, "8 mib", 8 * MIB),
    (SIZE, "1GiB", GIB),
    (SIZE, "65536", 65_536),
    (SIZE, "65537B", 65_537),
    (SIZE, 65_536, 65_536),
    (CHOICE, "AUTO", "auto"),
    (CHOICE, 8, 8),
    (CHOICE, " 16", 16),
    (Switch(), "on", True),
    (Switch(), "No", False),
    (Switch(), True, True),
    (HostPort(), "[::1]:0", Address("::1", 0)),
    (Folder(), "a folder", Path("a folder")),
    (Folder(), "~/data", Path("/its/home/data")),
    (File(), "a file.crt", Path("a file.crt")),
    (File(), "~/tls.crt", Path("/its/home/tls.crt")),
    (Subject(), " O=Net\\, Inc,CN=alice ", "O=Net\\, Inc,CN=alice"),
    (Subject(), "URI:spiffe://net/alice", "URI:spiffe://net/alice"),
    (SUBJECTS, "O=Net,CN=alice; CN=bob", ("O=Net,CN=alice", "CN=bob")),
    (Network(), " 10.1.0.0/16 ", "10.1.0.0/16"),
    (Network(), "192.0.2.1", "192.0.2.1/32"),
    (Network(), "2001:db8::/48", "2001:db8::/48"),
    (FirstBlock(), "any", "any"),
    (FirstBlock(), "0", 0),
    (FirstBlock(), 2**63 - 1, 2**63 - 1),
    (NAMES, "a:1,b:2,", ("a:1", "b:2")),
    (NAMES, ["a:1"], ("a:1",)),
    (NAMES, ("a:1", "b:2"), ("a:1", "b:2")),
]

REFUSED: list[tuple[SettingKind, tuple[object, ...], str]] = [
    (
        NUMBER,
        ("", "x", "1.0", 1.0, True, 0, 10_001, "1__0", "-1", "9" * 5000, None),
        "a whole number from 1 to 10000",
    ),
    (
        TIME,
        ("", "x", ".", "-1", "1e3", -1, 3600.5, 10**400, float("nan"), float("inf"), True, [2]),
        "0 (no limit) or seconds above 0, at most 3600",
    ),
    (Share(), ("", "x", "-1", "1.1", 1.1, -1, True, float("nan"), None), "a share from 0 to 1, such as 0.25"),
    (
        Endpoint(),
        ("", "a.net", "http://a.net", "://a:1", "grpc://a:1", "http://a:0", "http://a:1/v1/traces", 4317),
        "http://host:port, https://host:port or host:port",
    ),
    (Seconds(10, none_allowed=False), ("0", 0, 11), "seconds above 0, at most 10"),
    (
        SIZE,
        ("", "8MB", "8M", "MiB", "1.5MiB", 65_535, "65GiB", True),
        "bytes (such as 8MiB) from 64KiB to 64GiB",
    ),
    (CHOICE, ("", "7", 7, 16**5000, True, None), "one of auto, 8, 16"),
    (Switch(), ("", "2", 1, None), "on or off (true or false in the file)"),
    (HostPort(), (6900,), "an address host:port in quotes"),
    (
        HostPort(port_min=1),
        ("a:0",),
        "a port from 1 to 65535: host:port, such as 127.0.0.1:40840, [::1]:40840 or node-a:40840",
    ),
    (
        Network(),
        ("", "a.net", "10.1.2.3/16", "10.0.0.0/33", 10, None),
        "a network such as 10.1.0.0/16, or an IP address",
    ),
    (Folder(), ("", " ", "a\0b", "~nobody-of-that-name/a", 3), "a folder's path"),
    (File(), ("", " ", "a\0b", 3), "a file's path"),
    (
        Subject(),
        ("", " ", "alice", "=", "URI:", "uri:spiffe://net/alice", 3),
        "a name in a certificate, such as CN=alice,O=Net or URI:spiffe://net/alice",
    ),
    (FirstBlock(), ("all", -1, 2**63), "any, or a whole number from 0 to 9223372036854775807"),
    (Text("KIND:KEY"), ("", " ", "a b", 3), "a text of the form KIND:KEY"),
    (NAMES, (3, {"a": 1}), "a list"),
    (NAMES, ([1],), "a text of the form KIND:KEY"),
]


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch) -> None:
    """A home folder; not every container user has one."""
    monkeypatch.setenv("HOME", "/its/home")


@pytest.mark.parametrize(("kind", "written", "value"), READ)
def test_a_kind_reads_text_and_toml(kind: SettingKind, written: object, value: object) -> None:
    read = kind.read(written)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(("kind", "written", "value"), READ)
def test_what_a_kind_writes_is_toml_that_it_reads(kind: SettingKind, written: object, value: object) -> None:
    assert kind.read(tomllib.loads(f"x = {kind.to_toml(value)}")["x"]) == value


@pytest.mark.parametrize(("kind", "all_written", "expected"), REFUSED)
def test_a_kind_refuses_the_rest(kind: SettingKind, all_written: tuple[object, ...], expected: str) -> None:
    for written in all_written:
        with pytest.raises(NotThisKind) as caught:
            kind.read(written)
        assert str(caught.value) == expected, repr(written)


def test_texts_are_written_so_that_toml_reads_them_back() -> None:
    for text in ('a"b', "a\\b", "tab\tline\nnull\x7f", "☃ 𝄞"):
        assert tomllib.loads(f"x = {Folder().to_toml(text)}")["x"] == text


def test_sizes_are_written_in_the_largest_unit_that_divides_them() -> None:
    texts = [size_text(size) for size in (0, 1, 1023, KIB, MIB + 1, 8 * MIB, 1536 * MIB, 3 * GIB)]
    assert texts == ["0B", "1B", "1023B", "1KiB", "1048577B", "8MiB", "1536MiB", "3GiB"]


def test_each_kind_names_its_values_in_the_help() -> None:
    kinds: list[SettingKind] = [
        NUMBER,
        TIME,
        SIZE,
        CHOICE,
        Switch(),
        HostPort(),
        Folder(),
        File(),
        FirstBlock(),
        NAMES,
        SUBJECTS,
    ]
    assert [kind.metavar for kind in kinds] == [
        *("NUMBER", "SECONDS", "BYTES", "auto|8|16", "on|off"),
        *("HOST:PORT", "DIR", "FILE", "NUMBER|any", "KIND:KEY", "SUBJECT"),
    ]
