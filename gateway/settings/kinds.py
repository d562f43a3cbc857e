"""The kinds of setting values, and how to read and write each.

A kind reads a text (from a flag or the environment) or a TOML value by the same `read`, so `8MiB` means the
same everywhere. Pure: nothing here reads a file.
"""

from __future__ import annotations

import ipaddress
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sluice.gateway.addresses import Address, parse_address
from sluice.gateway.blocks.block_numbers import BLOCK_NUMBER_MAX
from sluice.gateway.errors import AddressError

__all__ = [
    "GIB",
    "KIB",
    "MIB",
    "Choice",
    "Endpoint",
    "File",
    "FirstBlock",
    "Folder",
    "HostPort",
    "Listed",
    "Network",
    "NotThisKind",
    "Seconds",
    "SettingKind",
    "Share",
    "Size",
    "Subject",
    "Switch",
    "Text",
    "WholeNumber",
    "size_text",
]

KIB, MIB, GIB = 1024, 1024**2, 1024**3

_SIZE_UNITS = {"": 1, "B": 1, "KIB": KIB, "MIB": MIB, "GIB": GIB}
_SIZE = re.compile(r"(\d{1,20})\s*(B|[KMG]iB)?", re.IGNORECASE | re.ASCII)
_WHOLE = re.compile(r"\d{1,3}(_\d{3})+|\d{1,20}", re.ASCII)
_DECIMAL = re.compile(r"\d{1,20}(\.\d{1,20})?|\.\d{1,20}", re.ASCII)
_SWITCHES = {
    "on": True,
    "true": True,
    "yes": True,
    "1": True,
    "off": False,
    "false": False,
    "no": False,
    "0": False,
}


class NotThisKind(ValueError):
    """A value is not of the kind; the one argument says what it accepts."""


class SettingKind(Protocol):
    """The reader and writer of a setting's values."""

    @property
    def metavar(self) -> str:
        """The placeholder in the help, `HOST:PORT`."""

    def read(self, written: object) -> object:
        """Convert a text or a TOML value, or raise NotThisKind."""

    def to_toml(self, value: object) -> str:
        """Return the right-hand side of a TOML line."""


def size_text(size: int) -> str:
    """Return a number of bytes in the largest unit that divides it: `8MiB`, `1000B`."""
    for unit, factor in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return f"{size}B"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08X}" for c in escaped) + '"'


class _Quoted:  # except whole numbers
    __slots__ = ()

    def to_toml(self, value: object) -> str:
        return str(value) if isinstance(value, int) else _quoted(str(value))


@dataclass(frozen=True, slots=True)
class WholeNumber(_Quoted):
    """A whole number in a range."""

    least: int
    most: int
    metavar: str = "NUMBER"

    def read(self, written: object) -> int:
        """Read `64`, `10_000`; refuse a TOML float or boolean."""
        number: int | None = None
        if isinstance(written, str) and _WHOLE.fullmatch(written.strip()):
            number = int(written)
        elif isinstance(written, int) and not isinstance(written, bool):
            number = written
        if number is None or not self.least <= number <= self.most:
            raise NotThisKind(f"a whole number from {self.least} to {self.most}")
        return number


@dataclass(frozen=True, slots=True)
class Seconds:
    """A time in seconds; 0 means "no limit" where `none_allowed`."""

    most: float
    none_allowed: bool = True
    metavar: str = "SECONDS"

    def read(self, written: object) -> float:
        """Read `2`, `2.5` or `.5`."""
        seconds: float | None = None
        if isinstance(written, int | float) and not isinstance(written, bool):
            seconds = written  # no float yet: the number may be too large for one
        elif isinstance(written, str) and _DECIMAL.fullmatch(written.strip()):
            seconds = float(written)
        if seconds is None or not 0 <= seconds <= self.most or (seconds == 0 and not self.none_allowed):
            zero = "0 (no limit) or " if self.none_allowed else ""
            raise NotThisKind(f"{zero}seconds above 0, at most {self.most:g}")
        return float(seconds)

    def to_toml(self, value: object) -> str:
        """Return the shortest decimal form."""
        return f"{value:g}" if isinstance(value, float) and value.is_integer() else str(value)


@dataclass(frozen=True, slots=True)
class Share:
    """A share from 0 to 1."""

    metavar: str = "SHARE"

    def read(self, written: object) -> float:
        """Read `1`, `0.25` or `.25`."""
        share: float | None = None
        if isinstance(written, int | float) and not isinstance(written, bool):
            share = written
        elif isinstance(written, str) and _DECIMAL.fullmatch(written.strip()):
            share = float(written)
        if share is None or not 0 <= share <= 1:
            raise NotThisKind("a share from 0 to 1, such as 0.25")
        return float(share)

    def to_toml(self, value: object) -> str:
        """Return the shortest decimal form."""
        return f"{value:g}" if isinstance(value, float) and value.is_integer() else str(value)


@dataclass(frozen=True, slots=True)
class Size:
    """A number of bytes, plain or with B, KiB, MiB, GiB."""

    least: int
    most: int
    metavar: str = "BYTES"

    def read(self, written: object) -> int:
        """Read `8MiB`, `8 MiB`, `8388608`."""
        size: int | None = None
        if isinstance(written, str) and (match := _SIZE.fullmatch(written.strip())):
            size = int(match[1]) * _SIZE_UNITS[(match[2] or "").upper()]
        elif isinstance(written, int) and not isinstance(written, bool):
            size = written
        if size is None or not self.least <= size <= self.most:
            raise NotThisKind(f"bytes (such as 8MiB) from {size_text(self.least)} to {size_text(self.most)}")
        return size

    def to_toml(self, value: object) -> str:
        """Return the size in its largest unit."""
        assert isinstance(value, int)
        return _quoted(size_text(value))


@dataclass(frozen=True, slots=True)
class Choice(_Quoted):
    """One of a few words or numbers."""

    words: tuple[str | int, ...]

    @property
    def metavar(self) -> str:
        """The words with bars between them."""
        return "|".join(str(word) for word in self.words)

    def read(self, written: object) -> str | int:
        """Read one of the words in any case."""
        if isinstance(written, str | int) and not isinstance(written, bool):
            for word in self.words:  # a number in the file may be too long for a text
                if written == word or (isinstance(written, str) and written.strip().lower() == str(word)):
                    return word
        raise NotThisKind("one of " + ", ".join(str(word) for word in self.words))


@dataclass(frozen=True, slots=True)
class Switch:
    """On or off."""

    metavar: str = "on|off"

    def read(self, written: object) -> bool:
        """Read on/off, true/false, yes/no, 1/0."""
        if isinstance(written, bool):
            return written
        if isinstance(written, str) and written.strip().lower() in _SWITCHES:
            return _SWITCHES[written.strip().lower()]
        raise NotThisKind("on or off (true or false in the file)")

    def to_toml(self, value: object) -> str:
        """Return true or false."""
        return "true" if value else "false"


@dataclass(frozen=True, slots=True)
class HostPort(_Quoted):
    """A network address. Port 0, any free port, is valid only with `port_min` 0: to listen, not to
    connect."""

    metavar: str = "HOST:PORT"
    port_min: int = 0

    def read(self, written: object) -> Address:
        """Read `host:port`."""
        if not isinstance(written, str):
            raise NotThisKind("an address host:port in quotes")
        try:
            return parse_address(written, port_min=self.port_min)
        except AddressError as error:
            raise NotThisKind(error.expected) from None


@dataclass(frozen=True, slots=True)
class Endpoint(_Quoted):
    """A gRPC server to send to: `http://host:port`, `https://host:port` with TLS, or `host:port` without."""

    metavar: str = "URL"

    def read(self, written: object) -> str:
        """Read it; the result has a scheme."""
        scheme, mark, rest = (written if isinstance(written, str) else "").strip().rpartition("://")
        scheme = scheme.lower() if mark else "http"
        with suppress(AddressError):
            address = parse_address(rest.removesuffix("/"), port_min=1)
            if scheme in ("http", "https"):
                return f"{scheme}://{address}"
        raise NotThisKind("http://host:port, https://host:port or host:port")


@dataclass(frozen=True, slots=True)
class _Path(_Quoted):
    """A path; `~` is the home folder. The path need not exist yet."""

    metavar: str
    what: str

    def read(self, written: object) -> Path:
        if not isinstance(written, str) or not written.strip() or "\0" in written:
            raise NotThisKind(self.what)
        try:
            return Path(written).expanduser()
        except RuntimeError:  # not every name after `~` has a home folder
            raise NotThisKind(self.what) from None


@dataclass(frozen=True, slots=True)
class Folder(_Path):
    """A folder."""

    metavar: str = "DIR"
    what: str = "a folder's path"


@dataclass(frozen=True, slots=True)
class File(_Path):
    """A file to read."""

    metavar: str = "FILE"
    what: str = "a file's path"


@dataclass(frozen=True, slots=True)
class FirstBlock(_Quoted):
    """The first block of an empty node: a number, or `any`."""

    metavar: str = "NUMBER|any"
    most: int = BLOCK_NUMBER_MAX

    def read(self, written: object) -> int | str:
        """Read a block number or `any`; refuse the highest number, which means "no block" on the wire."""
        if isinstance(written, str) and written.strip().lower() == "any":
            return "any"
        try:
            return WholeNumber(0, self.most).read(written)
        except NotThisKind as error:
            raise NotThisKind(f"any, or {error}") from None


@dataclass(frozen=True, slots=True)
class Text(_Quoted):
    """A text without blanks; the room that uses it reads its meaning."""

    metavar: str

    def read(self, written: object) -> str:
        """Read a text, and strip it."""
        if not isinstance(written, str) or not written.strip() or len(written.split()) != 1:
            raise NotThisKind(f"a text of the form {self.metavar}")
        return written.strip()


@dataclass(frozen=True, slots=True)
class Network(_Quoted):
    """A range of network addresses, `10.1.0.0/16`, or a single one."""

    metavar: str = "ADDRESS/BITS"

    def read(self, written: object) -> str:
        """Read an IPv4 or IPv6 network; refuse bits beyond its length."""
        if isinstance(written, str):
            with suppress(ValueError):
                return str(ipaddress.ip_network(written.strip()))
        raise NotThisKind("a network such as 10.1.0.0/16, or an IP address")


_NAME_KINDS = frozenset({"URI", "DNS", "IP", "email"})


@dataclass(frozen=True, slots=True)
class Subject(_Quoted):
    """A name that a certificate proves: its subject, `CN=alice,O=Net`, or `URI:spiffe://net/alice`.

    `openssl x509 -nameopt RFC2253` prints the subject; the kind precedes an alternative name.
    """

    metavar: str = "SUBJECT"

    def read(self, written: object) -> str:
        """Read an `attribute=value`, or a kind and a name, perhaps with blanks and commas."""
        text = written if isinstance(written, str) else ""
        kind, _, name = text.strip().partition(":")
        if "=" not in text.strip(" =") and not (kind in _NAME_KINDS and name):
            raise NotThisKind("a name in a certificate, such as CN=alice,O=Net or URI:spiffe://net/alice")
        assert isinstance(written, str)
        return written.strip()


@dataclass(frozen=True, slots=True)
class Listed:
    """Several values of one kind: a repeated flag, a list in the file, a separated text in the
    environment."""

    kind: SettingKind
    separator: str = ","
    """The separator in the environment."""

    @property
    def metavar(self) -> str:
        """The metavar of one value."""
        return self.kind.metavar

    def read(self, written: object) -> tuple[object, ...]:
        """Read a text with separators, or a list or tuple of values; it may be empty."""
        if isinstance(written, str):
            written = [part for part in written.split(self.separator) if part.strip()]
        if not isinstance(written, list | tuple):
            raise NotThisKind("a list")
        return tuple(self.kind.read(one) for one in written)

    def to_toml(self, value: object) -> str:
        """Return a TOML array."""
        assert isinstance(value, tuple)
        return "[" + ", ".join(self.kind.to_toml(one) for one in value) + "]"
