"""Network addresses `host:port`, with IPv6 hosts in brackets.

The host is mandatory: `0.0.0.0`, which lets the whole network connect, must be explicit. Port 0 asks the
system for a free port, so only a listener may have it.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from sluice.gateway.errors import AddressError

__all__ = ["PORT_MAX", "Address", "parse_address", "parse_addresses"]

PORT_MAX = 65_535

_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")
_PORT = re.compile(r"\d{1,5}", re.ASCII)
_EXPECTED = "host:port, such as 127.0.0.1:40840, [::1]:40840 or node-a:40840"


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """A host and a TCP port. Its text fits a gRPC target or a URL."""

    host: str
    """An IPv4 or IPv6 address (without brackets), or a host name."""
    port: int
    """0 to 65,535; 0 is any free port, for a listener."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_everywhere(self) -> bool:
        """True if it is the wildcard 0.0.0.0 or [::]."""
        try:
            return ipaddress.ip_address(self.host).is_unspecified
        except ValueError:
            return False

    def reached_by(self, host: str) -> Address:
        """Return the address by which to reach a listener at this address on machine `host`."""
        return Address(host, self.port) if self.is_everywhere else self

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can connect to it; a name other than `localhost` counts as public."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host.rstrip(".").lower() == "localhost"


def parse_address(text: str, *, port_min: int = 0) -> Address:
    """Read one address; blanks around it are ignored.

    Args:
        port_min: 0 for an address to listen at, 1 for one to connect to.

    Raises:
        AddressError: `text` is not an address, or its port is out of range.
    """
    stripped = text.strip()
    host, colon, port_text = stripped.rpartition(":")
    if not colon or not host or "/" in stripped:
        raise AddressError(text, _EXPECTED)
    if host.startswith("[") and host.endswith("]"):
        host = _ipv6(host[1:-1], text)
    elif ":" in host:
        raise AddressError(text, f"an IPv6 host in brackets: {_EXPECTED}")
    elif not _HOST_NAME.fullmatch(host):
        raise AddressError(text, _EXPECTED)
    if not _PORT.fullmatch(port_text) or not port_min <= int(port_text) <= PORT_MAX:
        raise AddressError(text, f"a port from {port_min} to {PORT_MAX}: {_EXPECTED}")
    return Address(host, int(port_text))


def parse_addresses(text: str, *, port_min: int = 0) -> tuple[Address, ...]:
    """Read one or more addresses with commas between them.

    Raises AddressError for the first invalid one.
    """
    return tuple(parse_address(part, port_min=port_min) for part in text.split(","))


def _ipv6(host: str, text: str) -> str:
    try:
        return str(ipaddress.IPv6Address(host))
    except ValueError:
        raise AddressError(text, f"an IPv6 address in the brackets: {_EXPECTED}") from None
